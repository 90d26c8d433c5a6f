// SPDX-License-Identifier: GPL-2.0

//! `discover` and `map --all-paths`, run on a made-up sysfs tree, where the server's answer is there
//! before it is asked for.

mod tree;

use std::fs;

use ibnbd_host::document;
use tree::ran::{document, good, rows, run};
use tree::Tree;

const FILE: &str = "/sys/class/ibnbd-client/ctl/discover";

/// The answer to a line, in pages.
fn answered(tree: &Tree, session: &str, line: &str, portals: &str, unlisted: &str, pages: &[&str]) {
    let folder = format!("/sys/class/ibnbd-client/ctl/discovered/{session}");
    tree.file(FILE, "").files(
        &folder,
        &[
            ("number", "7\n"),
            ("request", &format!("{line}\n")),
            ("portals", portals),
            ("port", "1234\n"),
            ("unlisted", &format!("{unlisted}\n")),
            ("pages", &format!("{}\n", pages.len())),
        ],
    );
    for (number, text) in pages.iter().enumerate() {
        tree.file(&format!("{folder}/{number}/exports"), text);
    }
}

const LINE: &str = "sessname=web1 path=ip:10.0.1.2,ip:10.0.1.1 key_id=k";
const WORDS: [&str; 8] = [
    "discover",
    "10.0.1.1",
    "--session",
    "web1",
    "--path",
    "10.0.1.2,10.0.1.1",
    "--key-id",
    "k",
];

fn usual() -> Tree {
    let tree = Tree::new();
    tree.client();
    let portals = "ip:10.0.1.1 1234\ngid:fe80:0000:0000:0000:0000:0000:0000:0002 1235\n";
    let pages = [
        "disk1 rw 131072 512\nby-id/x ro 0 0\n",
        "disk2 migration 8 4096\n",
    ];
    answered(&tree, "web1", LINE, portals, "0", &pages);
    tree
}

#[test]
fn it_lists_all_pages_and_the_portals() {
    let tree = usual();
    let text = good(&tree, &WORDS);
    assert_eq!(tree.text(FILE), LINE);
    let rows = rows(&text);
    assert_eq!(rows[0], ["EXPORT", "SIZE", "BLOCK", "MODE"]);
    assert_eq!(rows[1], ["disk1", "64.0", "MiB", "512", "rw"]);
    assert_eq!(rows[2], ["by-id/x", "-", "-", "ro"]);
    assert_eq!(rows[3], ["disk2", "4.0", "KiB", "4096", "migration"]);
    assert_eq!(rows[5], ["PORTAL", "PORT"]);
    assert_eq!(rows[6], ["ip:10.0.1.1", "1234"]);
    let csv = [&WORDS[..], &["-o", "csv", "--columns", "export"]].concat();
    assert_eq!(good(&tree, &csv), "export\ndisk1\nby-id/x\ndisk2\n");
    let found = document::<document::Discovered>(&tree, &WORDS);
    assert_eq!((found.session.as_str(), found.unlisted), ("web1", false));
    let sizes: Vec<_> = found.exports.iter().map(|e| e.size_bytes).collect();
    assert_eq!(sizes, [Some(64 << 20), None, Some(4096)]);
    assert_eq!(found.portals[1].port, 1235);
    assert!(found.notes.is_empty());
}

#[test]
fn the_session_is_named_as_that_of_map() {
    let tree = Tree::new();
    tree.client()
        .file("/proc/sys/kernel/hostname", "host1.example\n");
    let line = "sessname=host1@10-0-1-1 path=ip:10.0.1.1 path=ip:10.0.2.1 dest_port=4321";
    answered(&tree, "host1@10-0-1-1", line, "", "0", &["d rw 8 512\n"]);
    let words = [
        "discover",
        "10.0.1.1,10.0.2.1",
        "--port",
        "4321",
        "-o",
        "csv",
    ];
    assert_eq!(
        good(&tree, &words),
        "export,size,block,mode\nd,4.0 KiB,512,rw\n"
    );
    assert_eq!(tree.text(FILE), line);
}

#[test]
fn nothing_to_list_has_a_reason() {
    let tree = Tree::new();
    tree.client();
    let line = "sessname=s path=ip:10.0.1.1";
    let words = ["discover", "10.0.1.1", "--session", "s"];
    for (unlisted, why) in [
        ("1", "does not list the devices in its dev_search_path"),
        ("0", "no export that this session may open"),
    ] {
        answered(&tree, "s", line, "", unlisted, &[]);
        let ran = run(&tree, &words);
        assert_eq!(ran.code, 0);
        assert!(ran.err.contains(why), "{}", ran.err);
        assert_eq!(ran.out, "EXPORT  SIZE  BLOCK  MODE\n");
        // Programs see it in the document.
        let ran = run(&tree, &[&words[..], &["-o", "json"]].concat());
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    }
}

/// The kernel shows texts that come from a server.
#[test]
fn what_makes_no_sense_is_named() {
    let tree = Tree::new();
    tree.client();
    let line = "sessname=s path=ip:10.0.1.1";
    let lines = "a\x1b[31m rw 8 512\nb rw 8\nc rw x 512\nd rw 8 512 more\n\ne rw 8 512\n";
    answered(&tree, "s", line, "ip:x 1\nip:10.0.1.1\n", "0", &[lines]);
    let words = ["discover", "10.0.1.1", "--session", "s"];
    let ran = run(&tree, &words);
    assert_eq!(ran.err.matches("warning: ").count(), 7, "{}", ran.err);
    assert!(!ran.err.contains('\x1b') && !ran.out.contains('\x1b'));
    assert_eq!(rows(&ran.out)[1], ["e", "4.0", "KiB", "512", "rw"]);
    let found = document::<document::Discovered>(&tree, &words);
    assert_eq!((found.notes.len(), found.exports.len()), (7, 1));
}

#[test]
fn the_result_of_another_command_is_not_taken() {
    let tree = usual();
    answered(
        &tree,
        "web1",
        "sessname=web1 path=ip:10.9.9.9",
        "",
        "0",
        &["x rw 8 512\n"],
    );
    let ran = run(&tree, &WORDS);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert!(ran.err.contains("all the time"), "{}", ran.err);
    // Nor one that is gone.
    fs::remove_dir_all(tree.real("/sys/class/ibnbd-client/ctl/discovered/web1")).unwrap();
    let ran = run(&tree, &WORDS);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
}

#[test]
fn errors_come_with_remedies() {
    let tree = usual();
    fs::remove_file(tree.real(FILE)).unwrap();
    let ran = run(&tree, &WORDS);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("older than this command"), "{}", ran.err);
    let bare = Tree::new();
    assert_eq!(run(&bare, &WORDS).code, 4);
    let tree = usual();
    for (words, why) in [
        (
            &["discover", "10.0.1.1", "--session", "a.b"][..],
            "'/' or '.'",
        ),
        (&["discover", "10.0.1.1", "--session", "a b"], "option"),
        (&["discover", "0.0.0.0"], "names no single host"),
        (&["discover"], "SERVER"),
    ] {
        let ran = run(&tree, words);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(why), "{words:?}: {}", ran.err);
        assert_eq!(tree.text(FILE), "");
    }
    let long = vec!["10.0.1.1"; 128].join(",");
    let ran = run(&tree, &["discover", &long, "--session", &"x".repeat(254)]);
    // They are one path.
    assert_eq!(ran.code, 1, "{}", ran.err);
}

#[test]
fn map_adds_the_paths_that_the_server_names() {
    let tree = Tree::new();
    tree.usual_client();
    tree.files(
        "/sys/class/infiniband/rxe0/ports/1",
        &[
            ("gids/0", "0000:0000:0000:0000:0000:ffff:0a00:0701\n"),
            ("gids/1", "fd00:0000:0000:0000:0000:0000:0000:0007\n"),
        ],
    );
    let portals = "ip:10.0.1.1 1234\nip:10.0.9.1 1234\nip:10.0.8.1 1235\nip:10.0.9.1 1234\n\
                   ip:10.0.7.1 1234\nip:fd00::7 1234\n";
    answered(
        &tree,
        "s",
        "sessname=s path=ip:10.0.1.1",
        portals,
        "0",
        &["disk1 rw 8 512\n"],
    );
    let map_file = "/sys/class/ibnbd-client/ctl/map_device";
    let add_file = "/sys/class/ibtrs-client/s/add_path";
    tree.file(map_file, "").file(add_file, "");
    let words = ["map", "10.0.1.1", "disk1", "--session", "s"];
    assert_eq!(good(&tree, &words), "/dev/ibnbd1\n");
    assert_eq!(tree.text(FILE), "");
    tree.file(map_file, "");
    let ran = run(&tree, &[&words[..], &["--all-paths"]].concat());
    assert_eq!((ran.code, ran.out.as_str()), (0, "/dev/ibnbd1\n"));
    assert_eq!(
        tree.text(map_file),
        "sessname=s device_path=disk1 path=ip:10.0.1.1"
    );
    // The first is there already, and the last one is at another port.
    assert_eq!(tree.text(add_file), "ip:10.0.9.1");
    assert_eq!(
        ran.err,
        "ibnbd: warning: no path to ip:10.0.8.1: its port is 1235, and all paths of a session go to one port\n\
         ibnbd: warning: no path to ip:10.0.7.1: it is an address of this machine\n\
         ibnbd: warning: no path to ip:fd00::7: it is an address of this machine\n\
         ibnbd: added a path to ip:10.0.9.1\n"
    );
    // The kernel adds paths with the port of the session, whatever the command says.
    tree.file("/sys/class/ibnbd-client/ctl/discovered/s/port", "1235\n");
    let ran = run(&tree, &[&words[..], &["--all-paths"]].concat());
    assert_eq!(tree.text(add_file), "ip:10.0.8.1");
    assert!(ran.err.contains("no path to ip:10.0.9.1: its port is 1234"));
    tree.file("/sys/class/ibnbd-client/ctl/discovered/s/port", "1234\n");
    // A path that cannot be added does not undo the rest, nor what follows.
    fs::remove_file(tree.real(add_file)).unwrap();
    let ran = run(&tree, &[&words[..], &["--all-paths", "--persist"]].concat());
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "/dev/ibnbd1\n"),
        "{}",
        ran.err
    );
    assert!(tree.text("/etc/ibtrs/client.toml").contains("disk1"));
    assert!(
        ran.err.contains("warning: no path to ip:10.0.9.1: "),
        "{}",
        ran.err
    );
    // A server without ports names no addresses, which is said.
    tree.file("/sys/class/ibnbd-client/ctl/discovered/s/portals", "");
    let ran = run(&tree, &[&words[..], &["--all-paths"]].concat());
    let said = "the server names no further addresses, as its operator has made no ports";
    assert!(ran.code == 0 && ran.err.contains(said), "{}", ran.err);
    // Without an answer nothing is mapped.
    tree.file(map_file, "");
    fs::remove_file(tree.real(FILE)).unwrap();
    let ran = run(&tree, &[&words[..], &["--all-paths"]].concat());
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert_eq!(tree.text(map_file), "");
}

const JOINED: &str = "\
[[server]]
session = \"web1\"
addresses = [\"ip:10.0.1.1\", \"ip:10.0.2.1\"]
port = 1234
joined_at = []

[[server]]
session = \"web2\"
addresses = [\"ip:10.0.3.1\"]
port = 1235
joined_at = []
";

/// A client that has joined two servers, which both export disk2.
fn joined() -> Tree {
    let tree = Tree::new();
    tree.client()
        .file("/etc/ibtrs/joined.toml", JOINED)
        .file(MAP, "");
    let of_web1 = ["disk1 rw 131072 512\ndisk2 ro 8 512\n"];
    let line = "sessname=web1 path=ip:10.0.1.1 path=ip:10.0.2.1";
    answered(&tree, "web1", line, "", "0", &of_web1);
    let line = "sessname=web2 path=ip:10.0.3.1 dest_port=1235";
    answered(&tree, "web2", line, "", "0", &["disk2 rw 8 512\n"]);
    tree
}

const MAP: &str = "/sys/class/ibnbd-client/ctl/map_device";

#[test]
fn a_disk_of_a_joined_server_needs_its_name_only() {
    let tree = joined();
    // The disk does not come in a made-up machine.
    let ran = run(&tree, &["map", "disk1"]);
    assert!(
        ran.err.contains("it was mapped, and is not there"),
        "{}",
        ran.err
    );
    assert_eq!(
        tree.text(MAP),
        "sessname=web1 device_path=disk1 path=ip:10.0.1.1 path=ip:10.0.2.1"
    );
    tree.file(MAP, "");
    run(&tree, &["map", "disk2", "--session", "web2", "--ro"]);
    let line = "sessname=web2 device_path=disk2 path=ip:10.0.3.1 dest_port=1235 access_mode=ro";
    assert_eq!(tree.text(MAP), line);
}

#[test]
fn what_no_joined_server_or_several_have_is_named() {
    let tree = joined();
    for (words, code, why) in [
        (
            &["map", "disk2"][..],
            3,
            "several servers have it: web1, web2",
        ),
        (
            &["map", "disk9"],
            3,
            "no server that was joined lets this machine open it",
        ),
        (
            &["map", "disk1", "--session", "web2"],
            3,
            "no server that was joined lets this machine open it",
        ),
        (
            &["map", "disk1", "--session", "web9"],
            2,
            "this machine has joined servers as web1, web2 only",
        ),
        (
            &["map", "10.0.1.1"],
            2,
            "it is not said what to map of the server",
        ),
        (&["map"], 2, "it is not said what to map"),
        (&["map", "--all", "disk1"], 2, "cannot be used with"),
    ] {
        let ran = run(&tree, words);
        assert!(
            ran.code == code && ran.err.contains(why),
            "{words:?}: {}",
            ran.err
        );
        assert_eq!(tree.text(MAP), "", "{words:?}");
    }
    fs::remove_file(tree.real("/etc/ibtrs/joined.toml")).unwrap();
    for words in [&["map", "disk1"][..], &["map", "--all"], &["discover"]] {
        let ran = run(&tree, words);
        let is_said = ran.err.contains("this machine has joined no server");
        assert!(ran.code == 2 && is_said, "{words:?}: {}", ran.err);
    }
    tree.file("/etc/ibtrs/joined.toml", "[[server]]\n");
    let ran = run(&tree, &["map", "disk1"]);
    assert!(
        ran.code == 6 && ran.err.contains("joined.toml: "),
        "{}",
        ran.err
    );
}

#[test]
fn all_disks_of_joined_servers_are_mapped() {
    let tree = joined();
    // The last of them is seen: a made-up kernel keeps one line.
    let ran = run(&tree, &["map", "--all", "--session", "web1"]);
    assert_eq!(
        ran.err.matches("it was mapped, and is not there").count(),
        2,
        "{}",
        ran.err
    );
    // It may be read only.
    let line = "sessname=web1 device_path=disk2 path=ip:10.0.1.1 path=ip:10.0.2.1 access_mode=ro";
    assert_eq!(tree.text(MAP), line);
    assert_eq!(ran.code, 3);
    tree.disk(0, "web1", "disk1").disk(1, "web1", "disk2");
    tree.file(MAP, "");
    let ran = run(&tree, &["map", "--all", "--session", "web1"]);
    assert_eq!(
        (ran.code, ran.out.as_str(), tree.text(MAP).as_str()),
        (0, "", "")
    );
}

#[test]
fn discover_alone_asks_each_joined_server() {
    let tree = joined();
    let text = good(&tree, &["discover"]);
    assert!(
        text.contains("web1:\nEXPORT") && text.contains("web2:\nEXPORT"),
        "{text}"
    );
    let ran = run(&tree, &["discover", "-o", "json"]);
    assert!(ran.code == 2 && ran.err.contains("name one by --session"));
    assert_eq!(
        document::<document::Discovered>(&tree, &["discover", "--session", "web2"]).session,
        "web2"
    );
    // One that does not answer does not hide the others.
    fs::remove_dir_all(tree.real("/sys/class/ibnbd-client/ctl/discovered/web1")).unwrap();
    let ran = run(&tree, &["discover"]);
    assert!(
        ran.out.contains("disk2") && ran.err.contains("cannot list the exports for session web1"),
        "{}",
        ran.err
    );
}
