// SPDX-License-Identifier: GPL-2.0

//! `ibnbd key`, with a program in place of keyctl.

mod tree;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use assert_cmd::Command;
use ibnbd_host::document::Keys;
use ibnbd_host::join::store;
use ibnbd_host::Root;
use ibtrs_proto::auth::{Key, KeyId, KEY_TEXT_LEN};
use tree::ran::{document, ibnbd, rows, Ran};
use tree::Tree;

const KEY: [u8; 32] = *b"\0\x01\xff\n secret, not text: 01234567\n";
/// Two keys of ours, one that is not in the keyring, and others.
const KEYS: &str = "\
057ddf6f I------     1 perm 1f3f0000     0     0 keyring   .ibtrs: 3
00000015 I--Q---     1 perm 3d010000     0     0 logon     ibtrs:web1-2026:s: 32
00000016 I--Q---     1   5m 3d010000     0     0 logon     ibtrs:default:host1@storage1:a: 32
00000017 I--Q---     1 perm 3d010000     0     0 logon     ibtrs:default:removed: 32
00000018 I--Q---     1 perm 3d010000     0     0 user      ibtrs:default:s: 32
";

/// A machine whose kernel has the keyring with keys in it.
fn machine() -> Tree {
    let tree = Tree::new();
    tree.folder("/sys/module/ibtrs_core")
        .file("/ring", "21 22 24 \n")
        .file("/proc/keys", KEYS)
        .keyctl();
    tree
}

fn key(tree: &Tree, words: &[&str]) -> Command {
    let mut command = ibnbd(tree, &[&["key"], words].concat());
    command.env_remove("CREDENTIALS_DIRECTORY");
    command
}

fn run(tree: &Tree, words: &[&str]) -> Ran {
    Ran::of(&mut key(tree, words))
}

#[track_caller]
fn good(tree: &Tree, words: &[&str], input: &str) -> String {
    Ran::of(key(tree, words).write_stdin(input)).good()
}

fn text(id: &str) -> String {
    let mut text = [0; KEY_TEXT_LEN];
    let id = KeyId::new(id.as_bytes()).unwrap();
    let length = Key::new(KEY).write(&id, &mut text);
    String::from_utf8(text[..length].to_vec()).unwrap()
}

fn asked(tree: &Tree) -> String {
    tree.text("/keyctl.log")
}

fn payload(tree: &Tree) -> Vec<u8> {
    fs::read(tree.real("/payload")).unwrap()
}

#[test]
fn new_keys_are_whole_and_differ() {
    let tree = Tree::new();
    let first = good(&tree, &["new"], "");
    let (id, key) = Key::parse(first.as_bytes()).unwrap();
    assert_eq!((id.as_str(), first.lines().count()), ("default", 1));
    let second = good(&tree, &["new", "--id", "web1-2026"], "");
    let (id, other) = Key::parse(second.as_bytes()).unwrap();
    assert_eq!(id.as_str(), "web1-2026");
    assert_ne!(key.as_bytes(), other.as_bytes());
    let ran = run(&tree, &["new", "--id", "a:b"]);
    assert!(
        ran.code == 2 && ran.err.contains("1 to 32 letters"),
        "{}",
        ran.err
    );
}

/// Its bytes are given on standard input: others see the words of a program.
#[test]
fn a_key_is_loaded_under_its_id_and_session() {
    let tree = machine();
    let said = good(&tree, &["load", "host1@storage1:b"], &text("web1-2026"));
    assert_eq!(said, "loaded key web1-2026 of session host1@storage1:b\n");
    assert_eq!(payload(&tree), KEY);
    let asked = asked(&tree);
    let lines: Vec<&str> = asked.lines().collect();
    assert_eq!(lines[0], "rlist %:.ibtrs");
    assert!(lines[1].starts_with("session - sh -c "), "{asked}");
    let description = "ibtrs:web1-2026:host1@storage1:b";
    assert_eq!(lines[2], format!("padd logon {description} @s"));
    assert_eq!(lines[3..], ["link 77 %:.ibtrs", "rlist %:.ibtrs"]);
    assert!(!asked.contains("secret"));
}

#[test]
fn blanks_around_a_key_are_none_of_it() {
    let tree = machine();
    good(&tree, &["load", "t"], &format!("  {}\r\n\n", text("a")));
    assert_eq!(payload(&tree), KEY);
}

#[test]
fn a_key_that_is_there_is_replaced() {
    let tree = machine();
    let said = good(&tree, &["load", "s"], &text("web1-2026"));
    assert_eq!(said, "replaced key web1-2026 of session s\n");
    // The link replaces it; without the key nobody would have to authenticate for a moment.
    assert!(!asked(&tree).contains("unlink"));
}

/// Every user can add keys, whose descriptions are any bytes.
#[test]
fn keys_of_others_are_no_harm() {
    let tree = machine();
    let line = |description: &[u8]| {
        let start = b"00000019 I--Q---     1 perm 3f010000  1000  1000 user      ";
        [&start[..], description, b": 1\n"].concat()
    };
    let others = [line(b"\xff"), line(&[b'x'; 4000]).repeat(300)].concat();
    tree.file("/proc/keys", [&others, KEYS.as_bytes()].concat());
    assert_eq!(rows(&good(&tree, &["list"], "")).len(), 3);
    let said = good(&tree, &["load", "s"], &text("web1-2026"));
    assert_eq!(said, "replaced key web1-2026 of session s\n");
    good(&tree, &["remove", "s", "--id", "web1-2026"], "");
}

#[test]
fn a_key_is_loaded_although_keys_cannot_be_listed() {
    let tree = machine();
    fs::remove_file(tree.real("/proc/keys")).unwrap();
    let said = good(&tree, &["load", "s"], &text("web1-2026"));
    assert_eq!(said, "loaded key web1-2026 of session s\n");
    assert_eq!(payload(&tree), KEY);
}

#[test]
fn what_is_no_key_is_refused() {
    let tree = machine();
    let whole = text("a");
    let changed = format!("{}0", &whole[..whole.len() - 1]);
    for (text, why) in [
        ("", "begins with ibtrs-key-1:"),
        ("hunter2", "begins with ibtrs-key-1:"),
        (&whole[..40], "64 lower-case"),
        (&whole[..whole.len() - 1], "a part is missing"),
        (&changed, "a part is missing or was changed"),
        (
            &format!("{whole} {whole}"),
            "a part is missing or was changed",
        ),
        (&"x".repeat(100_000), "begins with ibtrs-key-1:"),
    ] {
        let ran = Ran::of(key(&tree, &["load", "s"]).write_stdin(text));
        assert_eq!(ran.code, 2, "{text}: {}", ran.err);
        assert!(ran.err.contains(why), "{text}: {}", ran.err);
        assert!(
            ran.err.contains("remedy: take the whole line"),
            "{}",
            ran.err
        );
    }
    let ran = Ran::of(key(&tree, &["load", "a.b"]).write_stdin(whole));
    assert!(
        ran.code == 2 && ran.err.contains("'/' or '.'"),
        "{}",
        ran.err
    );
    assert!(!tree.real("/keyctl.log").exists());
}

#[test]
fn a_key_comes_from_a_file() {
    let tree = machine();
    tree.file("/key", text("a"));
    let file = tree.real("/key");
    let words = ["load", "t", "--file", file.to_str().unwrap()];
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(good(&tree, &words, ""), "loaded key a of session t\n");
    assert_eq!(payload(&tree), KEY);
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let ran = run(&tree, &words);
    assert_eq!(ran.code, 0);
    assert!(ran.err.contains("warning: others can read") && ran.err.contains("chmod 600"));
    // The shell opens the same file.
    let mut command = std::process::Command::new("sh");
    command.args([
        "-c",
        r#"exec "$0" "$@" <"$KEY_FILE""#,
        env!("CARGO_BIN_EXE_ibnbd"),
        "--root",
    ]);
    command
        .arg(tree.base())
        .args(["key", "load", "t"])
        .env("KEY_FILE", &file);
    let ran = command.output().unwrap();
    let err = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success() && err.contains("warning: others can read"),
        "{err}"
    );
    let ran = run(&tree, &["load", "t", "--file", "/nowhere"]);
    assert!(
        ran.code == 1 && ran.err.contains("/nowhere: No such file"),
        "{}",
        ran.err
    );
    let ran = run(&tree, &["load", "t", "--file", "/a", "--credential", "b"]);
    assert_eq!(ran.code, 2);
}

#[test]
fn a_key_comes_from_a_credential_of_a_service() {
    let tree = machine();
    tree.file("/credentials/web1", text("a"));
    let file = tree.real("/credentials/web1");
    fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
    let load = |name: &str, folder: Option<&Path>| {
        let mut command = key(&tree, &["load", "t", "--credential", name]);
        folder.map(|folder| command.env("CREDENTIALS_DIRECTORY", folder));
        Ran::of(&mut command)
    };
    let folder = file.parent();
    assert_eq!(load("web1", folder).out, "loaded key a of session t\n");
    assert_eq!(payload(&tree), KEY);
    assert_eq!(load("other", folder).code, 1);
    for name in ["../credentials/web1", "/web1", ".."] {
        let ran = load(name, folder);
        assert!(
            ran.code == 2 && ran.err.contains("no way to a file"),
            "{name}: {}",
            ran.err
        );
    }
    let ran = load("web1", None);
    assert!(
        ran.code == 3 && ran.err.contains("LoadCredentialEncrypted="),
        "{}",
        ran.err
    );
}

/// A credential is read under the lock: the key may have been removed, or exchanged, while another command had it.
#[test]
fn a_credential_is_read_when_no_other_command_changes_keys() {
    let tree = machine();
    tree.file("/credentials/web1", text("old"));
    let folder = tree.real("/credentials");
    let lock = store::lock(&Root::new(tree.base())).unwrap();
    thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let mut command = key(&tree, &["load", "t", "--credential", "web1"]);
            Ran::of(command.env("CREDENTIALS_DIRECTORY", &folder))
        });
        // For it to come to where it waits.
        thread::sleep(Duration::from_secs(2));
        assert!(!loading.is_finished());
        tree.file("/credentials/web1", text("new"));
        drop(lock);
        let ran = loading.join().unwrap();
        assert_eq!(ran.out, "loaded key new of session t\n", "{}", ran.err);
    });
}

/// What systemd decrypts before the command starts may be removed by the time that it loads it. And a command that
/// changes keys may keep the unit waiting for longer than it waits.
#[test]
fn the_unit_reads_the_key_under_the_lock_and_tries_again() {
    let unit = fs::read_to_string(tree::of_package("../systemd/ibnbd-key@.service")).unwrap();
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("{key}"))
            .trim_start_matches('=')
    };
    assert!(unit.contains("\nExecStart=/usr/bin/ibnbd key load %i --kept\n"));
    assert!(!unit.contains("\nLoadCredential"));
    assert_eq!(value("Restart"), "on-failure");
    // Usage, no such key, and a damaged one: those do not go away.
    assert_eq!(value("RestartPreventExitStatus"), "2 3 6");
    let seconds = |key: &str| value(key).parse::<u64>().unwrap();
    let (tries, pause) = (seconds("StartLimitBurst"), seconds("RestartSec"));
    // All tries are within the interval though each of them waits as long as it can: there is a last one.
    let all = tries * (pause + store::TURN.as_secs());
    assert!(all < seconds("StartLimitIntervalSec"), "{all}");
}

#[test]
fn a_kept_key_that_is_none_is_not_tried_again() {
    let tree = machine();
    tree.file("/etc/ibtrs/keys/t.key", "no key");
    let ran = Ran::of(&mut key(&tree, &["load", "t", "--kept"]));
    assert_eq!(ran.code, 6, "{}", ran.err);
}

#[test]
fn a_text_of_several_lines_has_several_keys() {
    let tree = machine();
    let line = |id: &str| good(&tree, &["new", "--id", id], "");
    let both = line("a") + &line("b");
    let said = good(&tree, &["load", "t"], &both);
    assert_eq!(
        said,
        "loaded key a of session t\nloaded key b of session t\n"
    );
    // One that is wrong, and none is loaded.
    let before = asked(&tree);
    let ran = Ran::of(key(&tree, &["load", "t"]).write_stdin(line("a") + "x"));
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert_eq!(asked(&tree), before);
}

#[test]
fn keys_are_listed_without_their_secret() {
    let tree = machine();
    assert_eq!(
        rows(&good(&tree, &["list"], "")),
        [
            ["ID", "SESSION", "EXPIRES", "FINGERPRINT"],
            ["default", "host1@storage1:a", "5m", "-"],
            ["web1-2026", "s", "never", "-"],
        ]
    );
    let csv = good(&tree, &["list", "-o", "csv", "--columns", "session,id"], "");
    assert_eq!(csv, "session,id\nhost1@storage1:a,default\ns,web1-2026\n");
    let Keys { keys, .. } = document(&tree, &["key", "list"]);
    assert_eq!((keys[1].serial, keys[1].expires.as_str()), (21, "never"));
    tree.file("/ring", "\n");
    assert_eq!(
        good(&tree, &["list"], ""),
        "ID  SESSION  EXPIRES  FINGERPRINT\n"
    );
}

#[test]
fn a_key_is_removed_by_session_and_id() {
    let tree = machine();
    let said = good(&tree, &["remove", "s", "--id", "web1-2026"], "");
    assert_eq!(said, "removed key web1-2026 of session s\n");
    good(&tree, &["remove", "host1@storage1:a"], "");
    let asked = asked(&tree);
    let unlinked: Vec<&str> = asked.lines().filter(|l| l.starts_with("unlink")).collect();
    assert_eq!(unlinked, ["unlink 21 %:.ibtrs", "unlink 22 %:.ibtrs"]);
    // One that is no key of a session, one that is in no keyring, and none at all.
    for session in ["s", "removed", "t"] {
        let ran = run(&tree, &["remove", session]);
        assert!(
            ran.code == 3 && ran.err.contains("no such key"),
            "{}",
            ran.err
        );
        assert!(
            ran.err.contains("remedy: see `ibnbd key list`"),
            "{}",
            ran.err
        );
    }
}

/// Of a server's paths, those that the key has authenticated, and no others.
#[test]
fn paths_of_a_removed_key_are_disconnected() {
    let tree = machine();
    tree.server("/e")
        .authenticated("s", "10.0.1.2", "10.0.1.1", "web1-2026")
        .authenticated("s", "10.0.2.2", "10.0.2.1", "web1-2026")
        .authenticated("s", "10.0.3.2", "10.0.3.1", "web1-2027")
        .served("s", "10.0.4.2", "10.0.4.1")
        .authenticated("t", "10.0.5.2", "10.0.5.1", "web1-2026");
    tree.client()
        .session("s", &[("10.0.6.2", "10.0.6.1", "connected")])
        .file(
            "/sys/class/ibtrs-client/s/paths/ip:10.0.6.2@ip:10.0.6.1/key_id",
            "web1-2026\n",
        );
    let file = |session: &str, n: usize| {
        format!("/sys/class/ibtrs-server/{session}/paths/ip:10.0.{n}.2@ip:10.0.{n}.1/disconnect")
    };
    for (session, n) in [("s", 1), ("s", 2), ("s", 3), ("s", 4), ("t", 5)] {
        tree.file(&file(session, n), "");
    }
    assert_eq!(
        good(&tree, &["remove", "s", "--id", "web1-2026"], ""),
        "removed key web1-2026 of session s; this client's paths stay until their next connection\n"
    );
    let written = |session, n| tree.text(&file(session, n));
    assert_eq!(
        (written("s", 1).as_str(), written("s", 2).as_str()),
        ("1", "1")
    );
    for (session, n) in [("s", 3), ("s", 4), ("t", 5)] {
        assert_eq!(written(session, n), "", "{session} {n}");
    }
    let own = "/sys/class/ibtrs-client/s/paths/ip:10.0.6.2@ip:10.0.6.1/disconnect";
    assert!(tree.text(own).starts_with("Usage"));
}

/// A path that cannot be disconnected does not keep the others connected.
#[test]
fn a_path_that_stays_is_told() {
    let tree = machine();
    tree.server("/e")
        .authenticated("s", "10.0.1.2", "10.0.1.1", "web1-2026")
        .authenticated("s", "10.0.2.2", "10.0.2.1", "web1-2026");
    let file = |n: usize| {
        format!("/sys/class/ibtrs-server/s/paths/ip:10.0.{n}.2@ip:10.0.{n}.1/disconnect")
    };
    fs::remove_file(tree.real(&file(1))).unwrap();
    tree.file(&file(2), "");
    let ran = run(&tree, &["remove", "s", "--id", "web1-2026"]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.contains("cannot disconnect the path ip:10.0.1.2"),
        "{}",
        ran.err
    );
    assert_eq!(tree.text(&file(2)), "1");
}

const ALL: [&[&str]; 3] = [&["load", "s"], &["list"], &["remove", "s"]];

fn each(tree: &Tree, code: i32, parts: [&str; 2]) {
    for words in ALL {
        let ran = Ran::of(key(tree, words).write_stdin(text("a")));
        assert_eq!(ran.code, code, "{words:?}: {}", ran.err);
        for part in parts {
            assert!(ran.err.contains(part), "{words:?}: {}", ran.err);
        }
    }
}

#[test]
fn without_the_module_its_remedy_is_said() {
    let tree = Tree::new();
    tree.keyctl();
    each(
        &tree,
        4,
        ["ibtrs_core is not loaded", "remedy: modprobe ibtrs_core"],
    );
}

#[test]
fn without_keyctl_its_package_is_named() {
    let tree = Tree::new();
    each(
        &tree,
        3,
        [
            "keyctl is not there",
            "remedy: install the package keyutils",
        ],
    );
}

#[test]
fn refusals_have_the_words_of_keyctl_or_the_reason() {
    let tree = machine();
    fs::remove_file(tree.real("/ring")).unwrap();
    let root = rustix::process::geteuid().is_root();
    let other = |code, parts| {
        if root {
            (code, parts)
        } else {
            (5, ["only root", "as root"])
        }
    };
    let (code, parts) = other(1, ["has no keyring", "module of this version"]);
    each(&tree, code, parts);
    tree.file("/ring", "\n").file("/denied", "");
    let (code, parts) = other(1, ["cannot", "add_key: Permission denied"]);
    each(&tree, code, parts);
}
