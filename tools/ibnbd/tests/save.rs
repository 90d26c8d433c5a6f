// SPDX-License-Identifier: GPL-2.0

//! `save` and `--persist`, beside what others wrote into the files.

mod tree;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{chown, symlink, MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{flock, FlockOperation};
use tree::ran::{good, run};
use tree::Tree;

const CLIENT: &str = "/etc/ibtrs/client.toml";
const SERVER: &str = "/etc/ibtrs/server.toml";
const OTHER: &str = "/etc/ibtrs/conf.d/x.toml";
const CONFIGFS: &str = "/sys/kernel/config/ibnbd";
const MAP: [&str; 6] = ["map", "10.0.1.1", "disk1", "--session", "s", "--persist"];

/// A client and a server that are as these files say.
const SESSIONS: &str = r#"[[session]]
name = "s"
paths = ["10.0.1.2,10.0.1.1", "10.0.2.2,10.0.2.1"]
[[session.disk]]
device = "/dev/nullb0"
[[session.disk]]
device = "disk1"
[[session]]
name = "t"
paths = ["10.0.1.2,10.0.3.1", "10.0.2.2,10.0.3.2"]
[[session.disk]]
device = "/dev/nullb0"
"#;
const EXPORTS: &str = r#"[ibnbd_server]
max_devices = "100"
[ibtrs_server]
always_invalidate = false
[[host]]
name = "web1"
[[port]]
name = "left"
address = "10.0.1.1"
[[export]]
name = "disk1"
device = "/dev/vda"
hosts = ["web1"]
"#;

fn server() -> Tree {
    let tree = Tree::new();
    tree.server("")
        .host("web1")
        .port("left", "ip:10.0.1.1")
        .export("disk1", "/dev/vda", &["web1"])
        .file("/sys/module/ibnbd_server/parameters/max_devices", "100\n")
        .file(
            "/sys/module/ibtrs_server/parameters/always_invalidate",
            "N\n",
        );
    tree
}

fn has(tree: &Tree, file: &str) -> bool {
    tree.real(file).exists()
}

/// The command must refuse because of the files, and leave them as they are.
#[track_caller]
fn refused(tree: &Tree, words: &[&str], parts: &[&str]) {
    let texts = || [CLIENT, SERVER, OTHER].map(|file| fs::read(tree.real(file)).ok());
    let before = texts();
    let ran = run(tree, words);
    assert_eq!(ran.code, 6, "{}", ran.err);
    for part in parts {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert_eq!(texts(), before);
}

#[test]
fn what_other_files_have_is_not_written_again() {
    let tree = server();
    tree.usual_client()
        .file(OTHER, format!("{EXPORTS}{SESSIONS}"));
    for words in [&["save"][..], &["save", "--prune"], &MAP] {
        good(&tree, words);
        assert!(!has(&tree, CLIENT) && !has(&tree, SERVER), "{words:?}");
    }
    assert_eq!(good(&tree, &["apply", "--dry-run", "--prune"]), "");
    // Nor what the file of the other side has.
    tree.file(OTHER, "")
        .file(CLIENT, EXPORTS)
        .file(SERVER, SESSIONS);
    good(&tree, &["save"]);
    assert_eq!(
        (tree.text(CLIENT), tree.text(SERVER)),
        (EXPORTS.to_owned(), SESSIONS.to_owned())
    );
}

#[test]
fn a_value_may_be_written_in_several_ways() {
    let tree = server();
    let sessions = SESSIONS
        .replace(
            "name = \"t\"",
            "name = 't'\nreauth_interval_s = 86_400\nmp_policy = 'round-robin'",
        )
        .replace("\"disk1\"\n", "'disk1'\naccess = 'rw'\n");
    let exports = EXPORTS
        .replace("\"100\"", "\"0x64\"")
        .replace("always_invalidate = false", "always_invalidate = \"off\"")
        .replace(
            "name = \"web1\"",
            "name = \"web1\"\nmax_iops = 5_000 # for now",
        );
    tree.usual_client()
        .file("/sys/class/ibtrs-client/t/reauth_interval_s", "86400\n")
        .file(
            "/sys/class/ibtrs-client/t/mp_policy",
            "round-robin (RR: 0)\n",
        )
        .file(&format!("{CONFIGFS}/hosts/web1/max_iops"), "5000\n")
        .file(OTHER, format!("{exports}{sessions}"));
    good(&tree, &["save"]);
    assert!(!has(&tree, CLIENT) && !has(&tree, SERVER));
    // Nor is it written in another way into the file that has it.
    tree.file(OTHER, "")
        .file(CLIENT, &sessions)
        .file(SERVER, &exports);
    good(&tree, &["save"]);
    assert_eq!((tree.text(CLIENT), tree.text(SERVER)), (sessions, exports));
}

#[test]
fn what_other_files_have_in_another_form_is_told_with_its_place() {
    let tree = server();
    let text = format!("{EXPORTS}{SESSIONS}");
    tree.usual_client().file(OTHER, text);
    tree.file("/sys/module/ibnbd_server/parameters/max_devices", "200\n")
        .file(&format!("{CONFIGFS}/hosts/web1/max_paths"), "2\n")
        .file(&format!("{CONFIGFS}/ports/left/enable"), "0\n")
        .file(&format!("{CONFIGFS}/exports/disk1/access_mode"), "ro\n")
        .file("/sys/class/ibtrs-client/t/queue_timeout_s", "90\n");
    let parts = [
        "5 of them do not go with what the machine has, and nothing was written\n",
        "conf.d/x.toml:2:15: max_devices: the machine has \"200\"\n",
        "conf.d/x.toml:5:1: the machine has the host \"web1\" in another form\n",
        "conf.d/x.toml:7:1: the machine has the port \"left\" in another form\n",
        "conf.d/x.toml:10:1: the machine has the export \"disk1\" in another form\n",
        "conf.d/x.toml:21:1: the machine has the session \"t\" in another form\n",
        "  remedy: change these lines of /etc/ibtrs/conf.d/x.toml, or take them out\n",
    ];
    for words in [&["save"][..], &["save", "--prune"], &["save", "--dry-run"]] {
        refused(&tree, words, &parts);
    }
}

#[test]
fn a_disk_that_goes_into_a_session_of_another_file_is_not_persisted() {
    let tree = Tree::new();
    let text = SESSIONS.replace("[[session.disk]]\ndevice = \"disk1\"\n", "");
    tree.usual_client().file(OTHER, text);
    refused(
        &tree,
        &MAP,
        &["conf.d/x.toml:1:1: the machine has the session \"s\" in another form"],
    );
}

#[test]
fn a_disk_of_another_file_is_not_forgotten_in_silence() {
    let tree = Tree::new();
    tree.usual_client().file(OTHER, SESSIONS);
    let ran = run(&tree, &["unmap", "ibnbd1", "--persist"]);
    let warning = "ibnbd: warning: /etc/ibtrs/conf.d/x.toml still has disk1 of session s: ";
    assert!(ran.code == 0 && ran.err.contains(warning), "{}", ran.err);
}

#[test]
fn a_port_in_the_place_of_another_one_needs_prune() {
    let tree = server();
    good(&tree, &["save"]);
    let ports = tree.real(&format!("{CONFIGFS}/ports"));
    fs::rename(ports.join("left"), ports.join("left2")).unwrap();
    let parts = [
        "server.toml:",
        "address: port \"left\" has it already",
        "  remedy: give --prune, which takes out of the files what the machine does not have\n",
    ];
    refused(&tree, &["save"], &parts);
    good(&tree, &["save", "--prune"]);
    assert_eq!(good(&tree, &["apply", "--dry-run", "--prune"]), "");
    assert!(tree.text(SERVER).contains("left2"));
}

#[test]
fn a_directory_in_another_file_does_not_go_with_exports_in_configfs() {
    let tree = server();
    tree.file(
        OTHER,
        "[ibnbd_server]\nmax_devices = 100\ndev_search_path = \"/e\"\n",
    );
    let parts = [
        "conf.d/x.toml:3:19: dev_search_path: it is off",
        "  remedy: change these lines of /etc/ibtrs/conf.d/x.toml, or take them out\n",
    ];
    refused(&tree, &["save"], &parts);
    // With exports of configfs in another file only, the directory is not written.
    let tree = Tree::new();
    tree.server("/e").folder("/e").configfs().file(
        OTHER,
        EXPORTS
            .split_once("[[host]]")
            .map(|(_, rest)| format!("[[host]]{rest}"))
            .unwrap(),
    );
    good(&tree, &["save"]);
    assert!(!has(&tree, SERVER));
}

#[test]
fn paths_on_standby_are_written() {
    let tree = Tree::new();
    tree.usual_client();
    tree.file(CLIENT, SESSIONS);
    good(&tree, &["save"]);
    assert_eq!(tree.text(CLIENT), SESSIONS);
    let path = "/sys/class/ibtrs-client/s/paths/ip:10.0.2.2@ip:10.0.2.1/standby";
    tree.file(path, "1\n");
    good(&tree, &["save"]);
    let saved = tree.text(CLIENT);
    let line = "standby = [\"10.0.2.2,10.0.2.1\"]\n";
    assert!(saved.contains(line), "{saved}");
    good(&tree, &["save"]);
    assert_eq!(tree.text(CLIENT), saved);
    // What is saved is what apply wants.
    let planned = good(&tree, &["apply", "--dry-run"]);
    assert!(!planned.contains("standby"), "{planned}");
    tree.file(path, "0\n");
    good(&tree, &["save"]);
    assert!(tree.text(CLIENT).contains("standby = []\n"));
    // A file that is made.
    tree.file(path, "1\n");
    fs::remove_file(tree.real(CLIENT)).unwrap();
    good(&tree, &["save"]);
    assert!(tree.text(CLIENT).contains(line), "{}", tree.text(CLIENT));
    assert!(!good(&tree, &["apply", "--dry-run"]).contains("standby"));
}

/// A session whose paths are gone for the moment.
#[test]
fn a_session_without_paths_is_not_written() {
    let tree = Tree::new();
    tree.client().session("s", &[]).session("new", &[]);
    tree.file(
        CLIENT,
        "[[session]]\nname = \"s\"\npaths = [\"10.0.1.1\"]\n",
    );
    good(&tree, &["save"]);
    assert_eq!(
        tree.text(CLIENT),
        "[[session]]\nname = \"s\"\npaths = [\"10.0.1.1\"]\n"
    );
}

#[test]
fn nothing_is_pruned_of_what_cannot_be_read() {
    let tree = server();
    good(&tree, &["save"]);
    let saved = tree.text(SERVER);
    let refused = |parts: &[&str]| {
        let ran = run(&tree, &["save", "--prune"]);
        assert!(
            ran.code != 0 && parts.iter().all(|part| ran.err.contains(part)),
            "{}",
            ran.err
        );
        let ran = run(&tree, &["save"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(tree.text(SERVER), saved);
    };
    // The hosts of an export.
    let hosts = tree.real(&format!("{CONFIGFS}/exports/disk1/allowed_hosts"));
    fs::remove_dir_all(&hosts).unwrap();
    symlink("allowed_hosts", &hosts).unwrap();
    refused(&[
        "allowed_hosts: it could not be read",
        "without --prune nothing goes",
    ]);
    // All hosts.
    let hosts = tree.real(&format!("{CONFIGFS}/hosts"));
    fs::remove_dir_all(&hosts).unwrap();
    symlink("hosts", &hosts).unwrap();
    refused(&["ibnbd/hosts: Too many levels", "it could not be read"]);
    // All of it.
    fs::remove_dir_all(tree.real(CONFIGFS)).unwrap();
    tree.file("/proc/mounts", "");
    refused(&[
        "configfs is not mounted",
        "remedy: mount -t configfs configfs /sys/kernel/config",
    ]);
}

#[test]
fn nothing_is_pruned_of_a_directory_that_cannot_be_read() {
    let tree = Tree::new();
    tree.server("/e").configfs().link("/e", "e");
    let text = "[ibnbd_server]\ndev_search_path = \"/e\"\n[[export]]\ndevice = \"/dev/vda\"\n";
    tree.file(SERVER, text);
    for (words, code) in [(&["save", "--prune"][..], 1), (&["save"], 0)] {
        let ran = run(&tree, words);
        assert!(
            ran.code == code && ran.err.contains("warning: /e: "),
            "{}",
            ran.err
        );
        assert_eq!(tree.text(SERVER), text);
    }
}

#[test]
fn a_file_keeps_its_mode_its_owner_and_its_link() {
    let tree = server();
    tree.file("/etc/real/server.toml", "# mine\n")
        .link(SERVER, "../real/server.toml");
    let real = tree.real("/etc/real/server.toml");
    fs::set_permissions(&real, Permissions::from_mode(0o640)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(&real, Some(12), Some(34)).unwrap();
    }
    good(&tree, &["save"]);
    assert!(tree.text("/etc/real/server.toml").contains("web1"));
    assert!(fs::symlink_metadata(tree.real(SERVER))
        .unwrap()
        .is_symlink());
    let meta = fs::metadata(&real).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o640);
    assert!(!is_root || (meta.uid(), meta.gid()) == (12, 34));
    // A link to what is not there yet.
    fs::remove_file(&real).unwrap();
    good(&tree, &["save"]);
    assert!(tree.text("/etc/real/server.toml").contains("web1"));
}

#[test]
fn a_failure_leaves_nothing_behind() {
    let tree = server();
    tree.folder("/etc/ibtrs/x").link(SERVER, "x/../x");
    let report = tree.real("/etc/ibtrs/x");
    let ran = run(&tree, &["report", "--file", report.to_str().unwrap()]);
    assert!(
        ran.code != 0 && ran.err.contains("cannot write"),
        "{}",
        ran.err
    );
    let left = fs::read_dir(tree.real("/etc/ibtrs")).unwrap().count();
    assert_eq!(left, 2);
}

/// A report may have to be written into a folder where everybody may make files and links.
#[test]
fn a_report_replaces_a_link_and_is_private() {
    let tree = server();
    tree.file("/etc/passwd", "root\n")
        .file("/tmp/open", "x")
        .link("/tmp/report", "../etc/passwd");
    for name in ["/tmp/report", "/tmp/open", "/tmp/new"] {
        let file = tree.real(name);
        good(&tree, &["report", "--file", file.to_str().unwrap()]);
        let meta = fs::symlink_metadata(&file).unwrap();
        assert!(meta.is_file() && meta.mode() & 0o777 == 0o600, "{name}");
        assert!(tree.text(name).starts_with("ibnbd "));
    }
    assert_eq!(tree.text("/etc/passwd"), "root\n");
    let ran = run(&tree, &["report", "--file", "/dev/null"]);
    assert!(
        ran.code == 2 && ran.err.contains("not a regular file"),
        "{}",
        ran.err
    );
}

#[test]
fn commands_that_write_files_wait_for_each_other() {
    let tree = Tree::new();
    tree.usual_client().folder("/etc/ibtrs");
    let lock = File::create(tree.real("/etc/ibtrs/.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let start = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ibnbd"));
        command.arg("--root").arg(tree.base()).args(words);
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let mut children = [start(&["save"]), start(&MAP)];
    thread::sleep(Duration::from_millis(500));
    assert!(children
        .iter_mut()
        .all(|child| child.try_wait().unwrap().is_none()));
    // Changes that are written meanwhile are not lost.
    tree.file(CLIENT, "# mine\n");
    drop(lock);
    assert!(children
        .iter_mut()
        .all(|child| child.wait().unwrap().success()));
    let text = tree.text(CLIENT);
    assert!(
        text.contains("# mine\n") && text.contains("disk1"),
        "{text}"
    );
    // To look at the files needs no lock, and makes none.
    fs::remove_dir_all(tree.real("/etc/ibtrs")).unwrap();
    good(&tree, &["save", "--dry-run"]);
    assert!(!has(&tree, "/etc/ibtrs"));
}

#[test]
fn comments_in_arrays_stay() {
    let tree = server();
    tree.usual_client()
        .host("web0")
        .host("web2")
        .export("disk1", "/dev/vda", &["web2"]);
    let server = EXPORTS.replace(
        "hosts = [\"web1\"]",
        "hosts = [\n    \"web0\", # gone\n    \"web1\", # frontend\n]",
    );
    let server = server.replace("[[host]]", "[[host]]\nname = \"web0\"\n[[host]]");
    tree.file(SERVER, &server);
    let client = SESSIONS.replace(
        "[\"10.0.1.2,10.0.1.1\", ",
        "[ # by hand\n\"10.0.1.2,10.0.1.1\", # left\n",
    );
    tree.file(CLIENT, client.replace("\"10.0.2.2,10.0.2.1\"", ""));
    good(&tree, &["save"]);
    let text = tree.text(SERVER);
    let hosts = "hosts = [\n    \"web1\", # frontend\n    \"web2\",\n]";
    assert!(text.contains(hosts), "{text}");
    let text = tree.text(CLIENT);
    let paths = "[ # by hand\n\"10.0.1.2,10.0.1.1\", # left\n\"10.0.2.2,10.0.2.1\",\n]";
    assert!(text.contains(paths), "{text}");
    assert_eq!(good(&tree, &["apply", "--dry-run"]), "");
}
