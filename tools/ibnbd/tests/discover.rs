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
    // Without an answer nothing is mapped.
    tree.file(map_file, "");
    fs::remove_file(tree.real(FILE)).unwrap();
    let ran = run(&tree, &[&words[..], &["--all-paths"]].concat());
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert_eq!(tree.text(map_file), "");
}
