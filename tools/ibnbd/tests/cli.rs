// SPDX-License-Identifier: GPL-2.0

//! The command, run on a made-up sysfs tree.

mod tree;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use ibnbd_host::document;
use rustix::fs::{FileType, Mode};
use rustix::process::{kill_process, Pid, Signal};
use tree::ran::{document, good, rows, run};
use tree::{Tree, DISK_LATENCY};

#[test]
fn list_shows_disks_and_what_clients_have_open() {
    let tree = Tree::new();
    tree.usual_client().server("/x").opened("sda", "u", "a");
    let text = good(&tree, &["list"]);
    let rows = rows(&text);
    assert_eq!(
        rows[0],
        ["DISK", "STATE", "SIZE", "MODE", "SESSION", "PATHS", "EXPORT"]
    );
    assert_eq!(
        rows[3],
        [
            "ibnbd10",
            "open",
            "64.0",
            "MiB",
            "rw",
            "t",
            "1/2",
            "/dev/nullb0"
        ]
    );
    assert_eq!(rows[5], ["OPENED", "SIZE", "MODE", "CLIENT", "EXPORT"]);
    assert_eq!(rows[6], ["sda", "64.0", "MiB", "rw", "u", "a"]);
}

#[test]
fn columns_are_chosen_by_name() {
    let tree = Tree::new();
    tree.usual_client();
    let text = good(&tree, &["list", "--columns", "device,disk", "-o", "csv"]);
    assert_eq!(
        text,
        "device,disk\n/dev/nullb0,ibnbd0\ndisk1,ibnbd1\n/dev/nullb0,ibnbd10\n"
    );
    let ran = run(&tree, &["list", "--columns", "colour"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("there is no column colour"), "{}", ran.err);
    // That column was called device: programs find it by either name.
    let text = good(&tree, &["list", "--columns", "export,disk", "-o", "csv"]);
    assert!(
        text.starts_with("export,disk\n/dev/nullb0,ibnbd0\n"),
        "{text}"
    );
    let text = good(&tree, &["list", "-o", "csv"]);
    let head = "disk,state,size,mode,session,paths,device,export\n";
    let row = "ibnbd1,open,64.0 MiB,rw,s,2/2,disk1,disk1\n";
    assert!(text.starts_with(head) && text.contains(row), "{text}");
    assert!(good(&tree, &["list"])
        .lines()
        .next()
        .unwrap()
        .ends_with("PATHS  EXPORT"));
}

#[test]
fn columns_are_those_of_one_table_where_there_are_two() {
    let tree = Tree::new();
    tree.usual_client().server("/x").opened("sda", "u", "a");
    let csv = |words: &[&str]| good(&tree, &[words, &["-o", "csv"]].concat());
    assert_eq!(
        csv(&["list", "--columns", "disk,state"]),
        "disk,state\nibnbd0,open\nibnbd1,open\nibnbd10,open\n"
    );
    assert_eq!(
        csv(&["list", "--columns", "opened,client"]),
        "opened,client\nsda,u\n"
    );
    let both = csv(&["list", "--columns", "mode"]);
    assert_eq!(both, "mode\nrw\nrw\nrw\n\nmode\nrw\n");
    assert_eq!(
        csv(&["stats", "--columns", "disk,reads"]).lines().count(),
        4
    );
    let top = ["top", "--batch", "1", "--columns", "disk"];
    assert_eq!(csv(&top), "disk\nibnbd0\nibnbd1\nibnbd10\n");
    let ran = run(&tree, &["list", "--columns", "disk,colour"]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("there is no column colour") && ran.err.contains("opened"),
        "{}",
        ran.err
    );
}

#[test]
fn what_a_peer_has_named_is_harmless_in_a_table() {
    let tree = Tree::new();
    tree.server("/x").opened("sda", "u", "a\x1b[31m");
    let text = good(&tree, &["list"]);
    assert!(!text.contains('\x1b'), "{text:?}");
    let csv = good(&tree, &["list", "-o", "csv", "--columns", "as"]);
    assert_eq!(csv, "as\na\u{1b}[31m\n");
}

#[test]
fn documents_are_as_the_schema_says() {
    let tree = Tree::new();
    tree.usual_client()
        .mainline()
        .server("/exports")
        .folder("/exports");
    tree.served("u", "10.0.1.3", "10.0.1.1")
        .opened("sda", "u", "a");
    assert_eq!(document::<document::List>(&tree, &["list"]).disks.len(), 4);
    assert_eq!(
        document::<document::Sessions>(&tree, &["sessions"])
            .sessions
            .len(),
        5
    );
    assert_eq!(
        document::<document::Paths>(&tree, &["paths"]).paths.len(),
        7
    );
    assert_eq!(
        document::<document::Paths>(&tree, &["paths", "s"])
            .paths
            .len(),
        2
    );
    assert_eq!(
        document::<document::Stats>(&tree, &["stats"]).paths.len(),
        7
    );
    assert!(document::<document::Show>(&tree, &["show", "ibnbd0"])
        .disk
        .is_some());
    assert!(document::<document::Show>(&tree, &["show", "s"])
        .session
        .is_some());
    assert!(document::<document::Show>(&tree, &["show", "s/10.0.1.1"])
        .path
        .is_some());
    assert!(document::<document::Show>(&tree, &["show", "sda"])
        .opened
        .is_some());
    assert_eq!(
        document::<document::Clients>(&tree, &["clients"])
            .clients
            .len(),
        2
    );
    assert_eq!(
        document::<document::Exports>(&tree, &["export", "list"]).directory,
        Some("/exports".to_owned())
    );
    assert!(!document::<document::Check>(&tree, &["check"])
        .findings
        .is_empty());
    assert_eq!(
        document::<document::Status>(&tree, &["status"])
            .health
            .paths,
        4
    );
}

/// To write it again: `make generated`.
#[test]
fn the_schema_is_the_one_in_the_documentation() {
    let file = &tree::of_package("../../Documentation/tool.schema.json");
    if tree::may_write() {
        std::fs::write(file, document::schema()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), document::schema());
}

#[test]
fn names_lead_to_disks() {
    let tree = Tree::new();
    tree.usual_client();
    tree.file("/dev/ibnbd1", "")
        .link("/dev/disk/by-ibnbd/s/disk1", "../../../ibnbd1");
    for name in [
        "ibnbd1",
        "/dev/ibnbd1",
        "disk1",
        "disk1@s",
        "/dev/disk/by-ibnbd/s/disk1",
        "ibnbd-sdisk1-0123456789abcdef",
    ] {
        assert_eq!(
            document::<document::Show>(&tree, &["show", name])
                .disk
                .unwrap()
                .name,
            "ibnbd1",
            "{name}"
        );
    }
    let ran = run(&tree, &["show", "/dev/nullb0"]);
    assert_eq!(ran.code, 3);
    assert!(
        ran.err.contains("take one of: ibnbd0 ibnbd10"),
        "{}",
        ran.err
    );
    let ran = run(&tree, &["show", "nothing"]);
    assert_eq!(ran.code, 3);
    assert!(ran.err.contains("nothing has that name"), "{}", ran.err);
}

#[test]
fn without_modules_nothing_is_changed_and_the_remedy_is_said() {
    let tree = Tree::new();
    for words in [
        &["map", "10.0.1.1", "d"][..],
        &["unmap", "ibnbd0"],
        &["remap", "ibnbd0"],
        &["resize", "ibnbd0", "1G"],
        &["path", "add", "s", "10.0.1.1"],
        &["policy", "s"],
        &["set", "s", "hb_missed_max=3"],
        &["disconnect", "s"],
        &["close", "sda"],
    ] {
        let ran = run(&tree, words);
        assert_eq!(ran.code, 4, "{words:?}: {}", ran.err);
        assert!(ran.err.contains("remedy: modprobe ibnbd_"), "{}", ran.err);
    }
    for words in [
        &["list"][..],
        &["sessions"],
        &["paths"],
        &["stats"],
        &["clients"],
    ] {
        let ran = run(&tree, words);
        assert_eq!(ran.code, 0, "{words:?}");
        assert!(ran.err.contains("see `ibnbd check`"), "{}", ran.err);
    }
    assert_eq!(run(&tree, &["status"]).code, 3);
    assert_eq!(run(&tree, &["check"]).code, 1);
}

const MAP_FILE: &str = "/sys/class/ibnbd-client/ctl/map_device";

#[test]
fn map_writes_the_line_and_prints_the_disk() {
    let tree = Tree::new();
    tree.usual_client()
        .file("/proc/sys/kernel/hostname", "host1.example\n")
        .file(MAP_FILE, "");
    tree.file("/sys/class/net/eth0/ifindex", "7\n");
    tree.disk(2, "host1@10-0-1-1", "data");
    assert_eq!(
        good(&tree, &["map", "10.0.1.1,fe80::1%eth0", "data"]),
        "/dev/ibnbd2\n"
    );
    assert_eq!(
        tree.text(MAP_FILE),
        "sessname=host1@10-0-1-1 device_path=data path=ip:10.0.1.1 path=ip:fe80::1%7"
    );
    tree.file(MAP_FILE, "");
    let words = [
        "map",
        "localhost",
        "disk1",
        "--session",
        "s",
        "--path",
        "10.0.1.2,10.0.1.1",
        "--migration",
        "--exclusive",
        "--queues",
        "2",
        "--key-id",
        "web1-2026",
        "--failover-time-ms",
        "2500",
        "--checksum",
        "crc32c",
    ];
    assert_eq!(good(&tree, &words), "/dev/ibnbd1\n");
    let text = tree.text(MAP_FILE);
    assert!(
        text.starts_with("sessname=s device_path=disk1 path=ip:10.0.1.2,ip:10.0.1.1 path=ip:"),
        "{text}"
    );
    assert!(
        text.ends_with(
            " access_mode=migration exclusive=1 nr_queues=2 key_id=web1-2026 failover_time_ms=2500 data_checksum=crc32c"
        ),
        "{text}"
    );
}

#[test]
fn lines_that_make_no_sense_are_not_written() {
    let tree = Tree::new();
    tree.usual_client();
    for (words, why) in [
        (&["map", "10.0.1.1", "a b"][..], "blanks"),
        (&["map", "10.0.1.1", "d sessname=x"], "blanks"),
        (&["map", "10.0.1.1", "d\u{a0}e"], "blanks"),
        (&["map", "10.0.1.1", "d", "--session", "a.b"], "'/' or '.'"),
        (&["map", "10.0.1.1", "d", "--session", "-b"], ""),
        (&["map", "0.0.0.0", "d"], "names no single host"),
        (&["map", "", "d"], "empty"),
        (
            &["map", "10.0.1.1", "d", "--ro", "--migration"],
            "cannot be used with",
        ),
        (&["map", "10.0.1.1", "d", "--port", "0"], "0 is not in"),
        (&["map", "10.0.1.1", "d", "--queues", "0"], "0 is not in"),
        (
            &["map", "10.0.1.1", "d", "--failover-time-ms", "999"],
            "999 is not in",
        ),
        (
            &["map", "10.0.1.1", "d", "--key-id", "a:b"],
            "1 to 32 letters",
        ),
        (
            &["map", "10.0.1.1", "d", "--path", "fd00::1,10.0.1.1"],
            "different kinds",
        ),
        (&["map", "fe80::1%nonet0", "d"], "no such interface"),
        (&["map", "no-such-host.invalid", "d"], "no address is known"),
        (&["resize", "ibnbd0", "1.5G"], "not a size"),
        (&["resize", "ibnbd0", "513"], "whole number of sectors"),
        (&["set", "s", "colour=1"], "no such setting"),
        (&["set", "s", "hb_missed_max"], "not SETTING=VALUE"),
        (&["set", "ibnbd0", "queue_timeout_s=1"], "no such setting"),
    ] {
        let ran = run(&tree, words);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(why), "{words:?}: {}", ran.err);
        assert!(tree.text(MAP_FILE).starts_with("Usage"));
    }
}

#[test]
fn commands_write_to_their_files() {
    let tree = Tree::new();
    tree.usual_client()
        .server("/x")
        .served("u", "10.0.1.3", "10.0.1.1")
        .opened("sda", "u", "a")
        .opened("sda", "v", "a");
    let path = "/sys/class/ibtrs-client/t/paths/ip:10.0.2.2@ip:10.0.3.2";
    for (words, file, text) in [
        (
            &["unmap", "ibnbd0"][..],
            "/sys/block/ibnbd0/ibnbd/unmap_device",
            "normal",
        ),
        (
            &["unmap", "disk1", "--force"],
            "/sys/block/ibnbd1/ibnbd/unmap_device",
            "force",
        ),
        (
            &["remap", "ibnbd0"],
            "/sys/block/ibnbd0/ibnbd/remap_device",
            "1",
        ),
        (
            &["resize", "ibnbd0", "1M"],
            "/sys/block/ibnbd0/ibnbd/resize",
            "2048",
        ),
        (
            &["path", "add", "t", "10.0.9.2,10.0.9.1"],
            "/sys/class/ibtrs-client/t/add_path",
            "ip:10.0.9.2,ip:10.0.9.1",
        ),
        (
            &["path", "remove", "t", "10.0.3.2"],
            &format!("{path}/remove_path"),
            "1",
        ),
        (
            &["path", "reconnect", "t", "10.0.2.2,10.0.3.2"],
            &format!("{path}/reconnect"),
            "1",
        ),
        (
            &["path", "disconnect", "t", "ip:10.0.2.2@ip:10.0.3.2"],
            &format!("{path}/disconnect"),
            "1",
        ),
        (
            &["path", "set", "t", "10.0.2.2", "--active"],
            &format!("{path}/standby"),
            "0",
        ),
        (
            &["path", "drain", "t", "10.0.2.2", "--undo"],
            &format!("{path}/drain"),
            "0",
        ),
        (&["drain"], "/sys/class/ibnbd-server/ctl/drain", "1"),
        (
            &["drain", "--downtime", "10m"],
            "/sys/class/ibnbd-server/ctl/drain",
            "downtime=600",
        ),
        (
            &["drain", "--downtime", "0"],
            "/sys/class/ibnbd-server/ctl/drain",
            "downtime=0",
        ),
        (
            &["drain", "--undo"],
            "/sys/class/ibnbd-server/ctl/drain",
            "0",
        ),
        (
            &["policy", "s", "min-latency"],
            "/sys/class/ibtrs-client/s/mp_policy",
            "min-latency",
        ),
        (
            &["set", "s", "queue_timeout_s=300"],
            "/sys/class/ibtrs-client/s/queue_timeout_s",
            "300",
        ),
        (
            &["set", "s", "reauth_interval_s=86400"],
            "/sys/class/ibtrs-client/s/reauth_interval_s",
            "86400",
        ),
        (
            &["set", "s", "key_id=web1-2026"],
            "/sys/class/ibtrs-client/s/key_id",
            "web1-2026",
        ),
        (
            &["set", "ibnbd1", "io_timeout_ms=5000"],
            "/sys/block/ibnbd1/queue/io_timeout",
            "5000",
        ),
        (
            &["set", "ibnbd1", "io_timeout_limit=3"],
            "/sys/block/ibnbd1/ibnbd/io_timeout_limit",
            "3",
        ),
        (
            &["disconnect", "u"],
            "/sys/class/ibtrs-server/u/paths/ip:10.0.1.3@ip:10.0.1.1/disconnect",
            "1",
        ),
        (
            &["close", "sda", "v"],
            "/sys/class/ibnbd-server/ctl/devices/sda/sessions/v/force_close",
            "1",
        ),
    ] {
        tree.file(file, "");
        assert_eq!(good(&tree, words), "", "{words:?}");
        assert_eq!(tree.text(file), text, "{words:?}");
    }
    // Only the session that was named.
    assert!(tree
        .text("/sys/class/ibnbd-server/ctl/devices/sda/sessions/u/force_close")
        .starts_with("Usage"));
    assert_eq!(good(&tree, &["policy", "t"]), "min-inflight\n");
}

#[test]
fn a_device_is_closed_however_its_name_is_written() {
    for theirs in ["disk1", "/disk1", "/exports/disk1"] {
        let tree = Tree::new();
        tree.server("/exports")
            .opened("sda", "s", theirs)
            .opened("sdb", "s", "disk2");
        let file =
            |device| format!("/sys/class/ibnbd-server/ctl/devices/{device}/sessions/s/force_close");
        for ours in ["disk1", "/disk1", "/exports/./disk1", "sda", "/dev/sda"] {
            tree.file(&file("sda"), "");
            good(&tree, &["close", ours]);
            assert_eq!(tree.text(&file("sda")), "1", "{theirs} {ours}");
        }
        assert!(tree.text(&file("sdb")).starts_with("Usage"));
        assert_eq!(run(&tree, &["close", "disk"]).code, 3);
    }
}

#[test]
fn an_open_device_file_stays_however_its_name_is_written() {
    let tree = Tree::new();
    tree.server("/exports")
        .link("/sys/dev/block/7:0", "../../devices/virtual/block/loop0")
        .opened("loop0", "s", "disk1");
    let file = tree.real("/exports/disk1");
    fs::create_dir(tree.real("/exports")).unwrap();
    let (mode, number) = (Mode::from_raw_mode(0o600), rustix::fs::makedev(7, 0));
    let made = rustix::fs::mknodat(rustix::fs::CWD, &file, FileType::BlockDevice, mode, number);
    // Only root can make it.
    if made.is_err() {
        return;
    }
    let names = ["disk1", "/disk1", "./disk1", "/exports/disk1"];
    for name in names {
        let ran = run(&tree, &["export", "remove", name]);
        assert!(
            ran.code == 1 && ran.err.contains("the device is open, by s"),
            "{}",
            ran.err
        );
        assert!(file.exists());
    }
    good(&tree, &["export", "remove", names[3], "--force"]);
    assert!(!file.exists());
}

#[test]
fn a_path_is_found_however_its_address_is_written() {
    let tree = Tree::new();
    tree.client()
        .session("s", &[("fe80::2%7", "fe80::1%7", "connected")])
        .session("t", &[("10.0.1.2", "10.0.1.1", "connected")])
        .file("/sys/class/net/eth0/ifindex", "7\n");
    for name in [
        "fe80::1%eth0",
        "FE80::1%7",
        "ip:fe80::1%eth0",
        "[fe80::2%eth0]",
        "fe80::2%eth0,ip:fe80::1%eth0",
        "ip:fe80::2%7@ip:fe80::1%7",
    ] {
        let file = "/sys/class/ibtrs-client/s/paths/ip:fe80::2%7@ip:fe80::1%7/remove_path";
        tree.file(file, "");
        good(&tree, &["path", "remove", "s", name, "--force"]);
        assert_eq!(tree.text(file), "1", "{name}");
    }
    for name in ["fe80::1%eth1", "fe80::1", "s", "10.0.1.1", "localhost", ""] {
        let ran = run(&tree, &["path", "remove", "s", name]);
        assert_eq!(ran.code, 3, "{name}: {}", ran.err);
    }
}

/// As other programs take them, or in the other order.
#[test]
fn wrong_arguments_of_map_are_named() {
    let tree = Tree::new();
    tree.client();
    for (words, said) in [
        ("map 10.0.1.1:disk1", "the export is an argument of its own: ibnbd map 10.0.1.1 disk1\n"),
        ("map [fe80::1]:/dev/x", "the export is an argument of its own: ibnbd map fe80::1 /dev/x\n"),
        ("map storage1,storage2:disk1 disk1", "invalid value 'storage1,storage2:disk1' for '[SERVER[,SERVER...]]': the export is an argument of its own: ibnbd map storage2 disk1\n"),
        ("discover storage1:1235", "a server has no port here: storage1 ... --port 1235\n"),
        ("map disk1.invalid 10.0.1.1", "ibnbd: server disk1.invalid: no address is known for it, but 10.0.1.1 in the place of the device is one\n  remedy: ibnbd map 10.0.1.1 disk1.invalid\n"),
        // The order is right, and the name is not.
        ("map disk1.invalid disk1", "ibnbd: path disk1.invalid: disk1.invalid: no address is known for it: "),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let ran = run(&tree, &words);
        assert_eq!(ran.code, 2, "{words:?}");
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
    let file = "/sys/class/ibnbd-client/ctl/map_device";
    for server in [
        "fe80::1%7",
        "[fe80::1%7]",
        "ip:10.0.1.1",
        "ip:fe80::1%7",
        "10.0.1.1",
    ] {
        tree.file(file, "");
        // The disk does not come in a made-up machine.
        run(&tree, &["map", server, "disk1"]);
        assert!(tree.text(file).contains(" device_path=disk1 "), "{server}");
    }
}

/// I/O stops without the last path, so that the user has to insist.
#[test]
fn the_last_path_is_kept_unless_the_user_insists() {
    let tree = Tree::new();
    tree.usual_client()
        .session("u", &[("10.0.1.2", "10.0.4.1", "disconnected")])
        .file("/sys/class/ibtrs-client/u/queue_timeout_s", "0\n");
    let (last, only) = ("ip:10.0.1.2@ip:10.0.3.1", "ip:10.0.1.2@ip:10.0.4.1");
    for (verb, file, back) in [
        ("remove", "remove_path", "add"),
        ("disconnect", "disconnect", "reconnect"),
    ] {
        for (session, path, stops) in [
            ("t", last, "I/O waits for a path, and fails after 600 s"),
            ("u", only, "I/O fails without it"),
        ] {
            let file = format!("/sys/class/ibtrs-client/{session}/paths/{path}/{file}");
            tree.file(&file, "");
            let ran = run(&tree, &["path", verb, session, path]);
            assert_eq!(
                (ran.code, ran.err),
                (
                    1,
                    format!("ibnbd: cannot {verb} the path {path} of session {session}: no other path is connected: {stops}\n  remedy: connect another path first, or take --force; `ibnbd path {back} {session} {path}` brings it back\n")
                )
            );
            assert_eq!(tree.text(&file), "");
            good(&tree, &["path", verb, session, path, "--force"]);
            assert_eq!(tree.text(&file), "1");
        }
        // One of two that are connected, and one that is lost anyway.
        good(&tree, &["path", verb, "s", "10.0.1.1"]);
        good(&tree, &["path", verb, "t", "10.0.3.2"]);
    }
}

#[test]
fn check_says_how_a_session_without_paths_gets_one() {
    let tree = Tree::new();
    tree.client()
        .session("s", &[])
        .session("t", &[("10.0.1.2", "10.0.3.1", "disconnected")]);
    let out = run(&tree, &["check"]).out;
    assert!(
        out.contains("ibnbd path add s ADDRESS: all of its paths were removed\n"),
        "{out}"
    );
    assert!(out.contains("ibnbd path reconnect t PATH\n"), "{out}");
}

/// A wrong address of a server must not cost a session the path that works.
#[test]
fn no_path_is_pruned_of_a_session_that_did_not_get_another_one() {
    let tree = Tree::new();
    tree.client()
        .session("s", &[("10.0.1.2", "10.0.1.1", "connected")])
        .file(
            "/etc/ibtrs/client.toml",
            "[[session]]\nname = \"s\"\nservers = [\"10.0.9.9\"]\n",
        );
    let add = tree.real("/sys/class/ibtrs-client/s/add_path");
    fs::remove_file(&add).unwrap();
    let remove = "/sys/class/ibtrs-client/s/paths/ip:10.0.1.2@ip:10.0.1.1/remove_path";
    tree.file(remove, "");
    let ran = run(&tree, &["apply", "--prune"]);
    assert_eq!(
        (ran.code, tree.text(remove).as_str()),
        (1, ""),
        "{}",
        ran.err
    );
    assert!(
        ran.err.contains("the session may need this one"),
        "{}",
        ran.err
    );
    tree.file("/sys/class/ibtrs-client/s/add_path", "");
    good(&tree, &["apply", "--prune"]);
    assert_eq!(tree.text(remove), "1");
}

#[test]
fn a_path_is_drained_when_its_last_request_has_ended() {
    let tree = Tree::new();
    tree.usual_client();
    let path = |session: &str, n: usize| {
        format!("/sys/class/ibtrs-client/{session}/paths/ip:10.0.{n}.2@ip:10.0.{n}.1")
    };
    let rdma = format!("{}/stats/rdma", path("s", 1));
    thread::scope(|scope| {
        let drained = scope.spawn(|| run(&tree, &["path", "drain", "s", "10.0.1.1"]));
        let drain = format!("{}/drain", path("s", 1));
        // It ends without that, too, if it does not wait.
        while tree.text(&drain).trim() != "1" && !drained.is_finished() {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(300));
        let waited = !drained.is_finished();
        tree.file(&rdma, "10 40960 20 81920 0 2\n");
        let ran = drained.join().unwrap();
        assert!(waited, "one was in flight");
        assert_eq!(tree.text(&drain).trim(), "1");
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(!ran.err.contains("warning"), "{}", ran.err);
    });
    assert!(good(&tree, &["show", "s/10.0.1.1", "-o", "json"]).contains("\"drained\": true"));
    // The other path is the last one that takes requests: they do not end by its being drained.
    let ran = run(&tree, &["path", "drain", "s", "10.0.2.1"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.err.contains("no other path takes requests"),
        "{}",
        ran.err
    );
    // Nor does it help that a path is there which is not connected.
    let ran = run(&tree, &["path", "drain", "t", "10.0.3.1"]);
    assert!(
        ran.err.contains("no other path takes requests"),
        "{}",
        ran.err
    );
}

/// One path after the other is drained, connected and given its requests back; the kernel's part of
/// it is in the scenarios.
#[test]
fn a_session_authenticates_again_by_one_path_after_the_other() {
    let tree = Tree::new();
    tree.usual_client();
    let path = |session: &str, n: usize, file: &str| {
        format!("/sys/class/ibtrs-client/{session}/paths/ip:10.0.{n}.2@ip:10.0.{n}.1/{file}")
    };
    for n in 1..=2 {
        tree.file(&path("s", n, "stats/rdma"), "10 40960 20 81920 0 0\n");
        tree.file(&path("s", n, "drain"), "");
        tree.file(&path("s", n, "reconnect"), "");
    }
    assert_eq!(good(&tree, &["path", "reauth", "s"]), "");
    for n in 1..=2 {
        assert_eq!(tree.text(&path("s", n, "reconnect")), "1");
        assert_eq!(tree.text(&path("s", n, "drain")), "0");
    }

    // The first that cannot be connected takes requests again, and the other stays as it is.
    tree.file(&path("s", 2, "reconnect"), "");
    fs::remove_file(tree.real(&path("s", 1, "reconnect"))).unwrap();
    let ran = run(&tree, &["path", "reauth", "s"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("cannot connect the path"), "{}", ran.err);
    assert_eq!(tree.text(&path("s", 1, "drain")), "0");
    assert_eq!(tree.text(&path("s", 2, "reconnect")), "");

    assert_eq!(run(&tree, &["path", "reauth", "nobody"]).code, 3);
}

#[test]
fn no_path_stays_drained_when_a_signal_ends_the_command() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let tree = Tree::new();
        tree.usual_client();
        let path = "/sys/class/ibtrs-client/s/paths/ip:10.0.1.2@ip:10.0.1.1";
        let (drain, reconnect) = (format!("{path}/drain"), format!("{path}/reconnect"));
        tree.file(&drain, "").file(&reconnect, "");
        // The command leaves a signal ignored that its parent ignores.
        let mut child = std::process::Command::new("env")
            .args(["--default-signal", env!("CARGO_BIN_EXE_ibnbd"), "--root"])
            .arg(tree.base())
            .args(["path", "reauth", "s"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // One request stays in flight.
        while tree.text(&drain) != "1" && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(
            (tree.text(&drain), tree.text(&reconnect)),
            ("0".to_owned(), String::new())
        );
    }
}

/// A kernel without authentication has no such file.
#[test]
fn the_key_of_a_session_is_shown() {
    let tree = Tree::new();
    tree.usual_client();
    let text = good(&tree, &["show", "s"]);
    assert!(rows(&text).contains(&vec!["key_id", "default"]));
    std::fs::remove_file(tree.real("/sys/class/ibtrs-client/s/key_id")).unwrap();
    assert!(!good(&tree, &["show", "s"]).contains("key_id"));
}

/// The kernel's words say more than the number, which several of them have.
#[test]
fn a_key_that_is_missing_is_named() {
    let tree = Tree::new();
    tree.usual_client();
    let path = "/sys/class/ibtrs-client/t/paths/ip:10.0.2.2@ip:10.0.3.2";
    let why =
        "the peer does not authenticate, but must: load the session's key there (EKEYREJECTED)\n";
    tree.file(&format!("{path}/last_error"), why);
    let text = run(&tree, &["check"]).out;
    let remedy = "  remedy: load it on the other machine: `ibnbd key load SESSION`\n";
    assert!(text.contains(remedy), "{text}");
}

#[test]
fn a_drained_server_is_a_finding() {
    let tree = Tree::new();
    tree.server("/x");
    assert!(!run(&tree, &["check"]).out.contains("drained"));
    tree.file("/sys/class/ibnbd-server/ctl/drain", "1\n");
    assert!(run(&tree, &["check"]).out.contains("ibnbd drain --undo"));
}

#[test]
fn an_output_that_a_command_does_not_have_is_refused() {
    let tree = Tree::new();
    tree.usual_client();
    for (words, formats, known) in [
        (
            &["top", "--batch", "1"][..],
            &["json", "yaml"][..],
            "table csv",
        ),
        (&["top"], &["json", "yaml", "csv"], "table"),
        (&["watch", "--count", "0"], &["yaml", "csv"], "table json"),
        (&["trace", "ibnbd0"], &["yaml", "csv"], "table json"),
    ] {
        for format in formats {
            let ran = run(&tree, &[words, &["-o", format]].concat());
            assert_eq!(
                (ran.code, ran.out.as_str()),
                (2, ""),
                "{words:?}: {}",
                ran.err
            );
            let remedy = format!("--output {format}: the command has no such output\n  remedy: take one of: {known}\n");
            assert!(ran.err.ends_with(&remedy), "{}", ran.err);
        }
    }
    assert!(good(&tree, &["top", "--batch", "1", "-o", "csv"]).starts_with("disk,"));
}

#[test]
fn statistics_are_shown_and_then_reset() {
    let tree = Tree::new();
    tree.usual_client();
    let file = |n: usize| {
        format!("/sys/class/ibtrs-client/s/paths/ip:10.0.{n}.2@ip:10.0.{n}.1/stats/reset_all")
    };
    tree.file(&file(1), "").file(&file(2), "");
    let text = good(&tree, &["stats", "s", "--reset"]);
    let rows = rows(&text);
    assert_eq!(rows.len(), 3);
    assert!(text.contains("8/2500"), "{text}");
    assert_eq!(
        (tree.text(&file(1)).as_str(), tree.text(&file(2)).as_str()),
        ("1", "1")
    );
    let other = "/sys/class/ibtrs-client/t/paths/ip:10.0.1.2@ip:10.0.3.1/stats/reset_all";
    assert!(tree.text(other).starts_with("echo"));
    // Writing replaces the first bytes of a file that is not the kernel's.
    let histogram = |disk: &str| tree.text(&format!("/sys/block/{disk}/ibnbd/latency_us"));
    assert_eq!(histogram("ibnbd0"), DISK_LATENCY);
    assert!(good(&tree, &["stats", "ibnbd0", "--reset"]).contains("8/2501"));
    assert_eq!(histogram("ibnbd0"), DISK_LATENCY.replacen('1', "0", 1));
    assert_eq!(histogram("ibnbd1"), DISK_LATENCY);
}

#[test]
fn all_statistics_are_reset_at_either_end() {
    let tree = Tree::new();
    tree.usual_client()
        .server("/x")
        .served("u", "10.0.1.3", "10.0.1.1");
    tree.mainline();
    good(&tree, &["stats", "--reset"]);
    let reset = |path: &str| tree.text(&format!("/sys/class/{path}/stats/reset_all"));
    assert!(reset("ibtrs-server/u/paths/ip:10.0.1.3@ip:10.0.1.1").starts_with('1'));
    assert!(reset("ibtrs-client/t/paths/ip:10.0.1.2@ip:10.0.3.1").starts_with('1'));
    for disk in ["ibnbd0", "ibnbd1", "ibnbd10"] {
        let text = tree.text(&format!("/sys/block/{disk}/ibnbd/latency_us"));
        assert!(text.starts_with("0 us"), "{disk}: {text}");
    }
}

#[test]
fn mainline_is_looked_at_and_not_touched() {
    let tree = Tree::new();
    tree.client().server("/x").mainline();
    assert!(good(&tree, &["list"]).contains("rnbd0"));
    assert!(good(&tree, &["paths"]).contains("17.0 us"));
    for words in [
        &["unmap", "rnbd0"][..],
        &["path", "add", "m", "10.0.1.9"],
        &["set", "m", "max_reconnect_attempts=1"],
        &["set", "rnbd0", "io_timeout_ms=1"],
        &["disconnect", "n"],
        &["close", "nullb1"],
    ] {
        let ran = run(&tree, words);
        assert!(ran.code == 2 || ran.code == 3, "{words:?}: {}", ran.err);
    }
    assert!(tree
        .text("/sys/block/rnbd0/rnbd/unmap_device")
        .starts_with("Usage"));
}

#[test]
fn status_is_one_line_and_a_code() {
    let tree = Tree::new();
    tree.usual_client();
    let ran = run(&tree, &["status"]);
    assert_eq!(ran.code, 1);
    let line = "WARNING: session t: 1 of 2 paths connected (3 of 3 disks open, 3 of 4 paths connected, 0 clients)\n";
    assert_eq!(ran.out, line);
    tree.file("/sys/block/ibnbd1/ibnbd/timed_out", "4\n");
    let ran = run(&tree, &["status"]);
    assert_eq!(ran.code, 1);
    let text = "WARNING: ibnbd1: 4 requests take longer than 30000 ms; session t";
    assert!(ran.out.starts_with(text), "{}", ran.out);
    assert!(good(&tree, &["stats", "ibnbd1", "--columns", "disk,timed out"]).contains("ibnbd1  4"));
    tree.file("/sys/block/ibnbd1/ibnbd/timed_out", "1\n");
    tree.file("/sys/block/ibnbd1/queue/io_timeout", "?\n");
    let ran = run(&tree, &["status"]);
    let text = "WARNING: ibnbd1: 1 request takes longer than io_timeout; session t";
    assert!(ran.out.starts_with(text), "{}", ran.out);
    tree.file("/sys/block/ibnbd0/ibnbd/cache_lost", "1\n");
    let ran = run(&tree, &["status"]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.out.starts_with("CRITICAL: ibnbd0: flushes fail"),
        "{}",
        ran.out
    );
}

#[test]
fn a_server_that_is_drained_is_no_good_sign() {
    let tree = Tree::new();
    tree.server("/exports");
    assert_eq!(run(&tree, &["status"]).code, 0);
    tree.file("/sys/class/ibnbd-server/ctl/drain", "1\n");
    let ran = run(&tree, &["status"]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.out.starts_with("WARNING: the server is drained ("),
        "{}",
        ran.out
    );
}

#[test]
fn a_downtime_is_a_time() {
    let tree = Tree::new();
    tree.server("/exports");
    let file = "/sys/class/ibnbd-server/ctl/drain";
    for text in [
        "",
        "x",
        "-1",
        "10d",
        "1.5h",
        "25h",
        "86401",
        "99999999999999999999",
        "10 m",
    ] {
        let ran = run(&tree, &["drain", "--downtime", text]);
        assert_eq!(ran.code, 2, "{text}: {}", ran.err);
        assert_eq!(tree.text(file), "0\n", "{text}");
    }
    let ran = run(&tree, &["drain", "--downtime=25h"]);
    assert!(ran.err.contains("a time of at most a day"), "{}", ran.err);
    let ran = run(&tree, &["drain", "--downtime", "10m", "--undo"]);
    assert_eq!((ran.code, tree.text(file).as_str()), (2, "0\n"));
    let ran = run(&tree, &["drain", "--downtime", "40m"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    // Clients do not wait that long by default.
    let ran = run(&tree, &["drain", "--downtime", "2h"]);
    assert_eq!((ran.code, tree.text(file).as_str()), (0, "downtime=7200"));
    assert!(ran.err.contains("waits for 3600 s at most"), "{}", ran.err);
}

/// While the server that one of two sessions leads to is away as announced.
#[test]
fn a_planned_stop_is_no_failure() {
    let tree = Tree::new();
    tree.client()
        .session("s", &[("10.0.1.2", "10.0.1.1", "disconnected")])
        .session("t", &[("10.0.1.2", "10.0.3.1", "connected")])
        .disk(0, "s", "disk1")
        .disk(1, "t", "disk2");
    let back_in = "/sys/class/ibtrs-client/s/server_back_in_s";
    tree.file("/sys/block/ibnbd0/ibnbd/state", "closed\n");
    for (left, said) in [("540\n", "back in 540 s"), ("0\n", "late")] {
        tree.file(back_in, left);
        let ran = run(&tree, &["status"]);
        let text = format!(
            "WARNING: session s: planned stop, server {said} (1 of 2 disks open, 1 of 2 paths connected, 0 clients)\n"
        );
        assert_eq!((ran.code, ran.out), (1, text));
        let ran = run(&tree, &["check"]);
        let text = format!(
            "warning: session s: its server was stopped as planned, and is {said}: I/O waits for it, for an hour at most\n"
        );
        assert!(ran.out.contains(&text), "{}", ran.out);
        for wrong in ["error: session", "error: ibnbd", "is not connected"] {
            assert!(!ran.out.contains(wrong), "{}", ran.out);
        }
        let planned = format!("closed: planned stop, {said}");
        assert!(good(&tree, &["list"]).contains(&planned));
        assert!(!good(&tree, &["list", "--columns", "disk,paths"]).contains("planned"));
        let planned = format!("disconnected: planned stop, {said}");
        assert!(good(&tree, &["sessions"]).contains(&planned));
        // Programs get states as they were.
        assert!(!good(&tree, &["list", "-o", "csv"]).contains("planned"));
        assert!(!good(&tree, &["sessions", "-o", "csv"]).contains("planned"));
        let left = left.trim();
        let shown = good(&tree, &["show", "s"]);
        assert!(
            rows(&shown).contains(&vec!["server_back_in_s", left]),
            "{shown}"
        );
        for words in [
            &["show", "s", "-o", "json"],
            &["show", "ibnbd0", "-o", "json"],
        ] {
            let json = good(&tree, words);
            assert!(
                json.contains(&format!("\"server_back_in_s\": {left}")),
                "{json}"
            );
        }
        let metric = format!(
            "ibtrs_session_server_back_in_seconds{{session=\"s\",side=\"client\"}} {left}\n"
        );
        let metrics = good(&tree, &["metrics"]);
        assert!(metrics.contains(&metric), "{metrics}");
        assert_eq!(
            metrics
                .matches("ibtrs_session_server_back_in_seconds{")
                .count(),
            1
        );
    }
    // What waits, and for how long, is the operator's choice.
    for (timeout, said) in [
        ("0", "I/O fails until then"),
        ("2", "I/O waits for it, for 2 s at most"),
        ("-1", "I/O waits for it\n"),
    ] {
        tree.file("/sys/class/ibtrs-client/s/queue_timeout_s", timeout);
        let text = run(&tree, &["check"]).out;
        assert!(text.contains(said), "{text}");
    }
    // The server did not come back.
    tree.file(back_in, "\n");
    assert_eq!(run(&tree, &["status"]).code, 2);
    let ran = run(&tree, &["check"]);
    assert!(ran
        .out
        .contains("error: session s has no path to its server"));
    assert!(ran
        .out
        .contains("error: ibnbd0 is closed: its server is out of reach"));
    let metrics = good(&tree, &["metrics"]);
    assert!(!metrics.contains("ibtrs_session_server_back_in_seconds"));
    // The stop has been announced, and has not begun.
    tree.file(back_in, "600\n").file(
        "/sys/class/ibtrs-client/s/paths/ip:10.0.1.2@ip:10.0.1.1/state",
        "connected\n",
    );
    tree.file("/sys/block/ibnbd0/ibnbd/state", "open\n");
    assert_eq!(run(&tree, &["status"]).code, 0);
    assert!(!good(&tree, &["list"]).contains("planned"));
}

#[test]
fn a_healthy_machine_is_ok() {
    let tree = Tree::new();
    tree.client().session(
        "s",
        &[
            ("10.0.1.2", "10.0.1.1", "connected"),
            ("10.0.2.2", "10.0.2.1", "connected"),
        ],
    );
    tree.disk(0, "s", "d")
        .file("/usr/lib/udev/rules.d/60-ibnbd.rules", "");
    tree.files(
        "/sys/class/infiniband/mlx5_0/ports/1",
        &[("state", "4: ACTIVE\n"), ("gid_attrs/ndevs/0", "eth0\n")],
    );
    tree.file("/sys/class/net/eth0/mtu", "9000\n");
    assert_eq!(
        good(&tree, &["status"]),
        "OK: 1 of 1 disks open, 2 of 2 paths connected, 0 clients\n"
    );
    assert_eq!(good(&tree, &["check"]), "nothing is wrong\n");
}

#[test]
fn check_finds_what_is_wrong_and_the_remedy() {
    let tree = Tree::new();
    tree.usual_client().server("/dev");
    tree.files(
        "/sys/class/infiniband/rxe0/ports/1",
        &[("state", "1: DOWN\n"), ("gid_attrs/ndevs/0", "eth0\n")],
    );
    tree.file("/sys/class/net/eth0/mtu", "1500\n");
    tree.file("/sys/block/ibnbd1/ibnbd/state", "closed\n")
        .file("/sys/block/ibnbd10/ibnbd/wwid", "ibnbd-t-x\n");
    tree.file("/sys/block/ibnbd0/ibnbd/cache_lost", "1\n")
        .file("/sys/block/ibnbd0/ibnbd/checksum_errors", "2 13\n")
        .file("/sys/class/ibtrs-client/s/hb_missed_max", "?\n");
    tree.file(
        "/sys/module/ibtrs_server/parameters/always_invalidate",
        "N\n",
    );
    let ran = run(&tree, &["check"]);
    assert_eq!(ran.code, 1);
    for text in [
        "error: ibnbd1 is closed though its server is there",
        "remedy: ibnbd remap ibnbd1",
        "ibnbd set ibnbd0 cache_lost=0",
        "ibnbd0: data was damaged on the way: 2 requests to the server, 13 from it",
        "ibnbd set ibnbd0 checksum_errors=0",
        "warning: session t: path ip:10.0.2.2@ip:10.0.3.2 is not connected: no heartbeat from the server (ETIMEDOUT)",
        "remedy: ibnbd path reconnect t ip:10.0.2.2@ip:10.0.3.2",
        "rxe0 port 1 is DOWN",
        "remedy: ip link set eth0 up",
        "MTU of 1500",
        "warning: ibnbd10 has no identity: after a restart of the server it is not used while it is open",
        "ibnbd set ibnbd10 identity=none",
        "dev_search_path=/dev: any machine that reaches the port",
        "always_invalidate=N",
        "hb_missed_max: not understood: \"?\"",
        "rules for udev are not installed",
    ] {
        assert!(ran.out.contains(text), "{text}: {}", ran.out);
    }
    let first_hint = ran.out.find("hint:").unwrap();
    assert!(ran.out.rfind("error:").unwrap() < first_hint);
}

#[test]
fn modules_of_other_versions_are_found() {
    let own = env!("CARGO_PKG_VERSION");
    let tree = Tree::new();
    tree.usual_client().program("/usr/sbin/modinfo");
    let checked = || run(&tree, &["check"]).out;
    let version = |module: &str, loaded: &str, installed: &str| {
        tree.files(
            &format!("/sys/module/{module}"),
            &[("version", loaded), ("srcversion", "0123\n")],
        );
        tree.files(
            &format!("/modules/{module}"),
            &[("version", installed), ("srcversion", "0123\n")],
        );
    };
    for module in ["ibtrs_core", "ibnbd_client"] {
        version(module, own, own);
    }
    assert!(!checked().contains("modules"), "{}", checked());
    tree.file("/modules/ibtrs_core/srcversion", "4567\n");
    let text = format!("hint: the modules that are loaded are not those that are installed: ibtrs_core {own} of other sources\n  remedy: unload all of them");
    assert!(checked().contains(&text), "{}", checked());
    // An upgrade leaves the modules loaded, and brings the new command.
    for module in ["ibtrs_core", "ibnbd_client"] {
        version(module, "0.0.9\n", own);
    }
    let out = checked();
    let text = format!(
        "warning: this command has version {own}, and the modules that are loaded have 0.0.9"
    );
    assert!(out.contains(&text), "{out}");
    let text = format!("installed: ibtrs_core {own}, ibnbd_client {own}\n");
    assert!(out.contains(&text), "{out}");
    version("ibtrs_core", own, own);
    let text = format!(
        "error: modules of different versions are loaded: ibtrs_core {own}, ibnbd_client 0.0.9\n"
    );
    assert!(checked().contains(&text), "{}", checked());
    // Without the program nothing is known of what is installed.
    fs::remove_file(tree.real("/usr/sbin/modinfo")).unwrap();
    assert!(!checked().contains("not those"), "{}", checked());
}

#[test]
fn interrupts_that_are_not_spread_are_found() {
    let tree = Tree::new();
    tree.client()
        .session("s", &[("10.0.1.2", "10.0.1.1", "connected")]);
    let path = "/sys/class/ibtrs-client/s/paths/ip:10.0.1.2@ip:10.0.1.1";
    tree.files(
        path,
        &[
            ("hca_name", "mlx5_0\n"),
            ("stats/rdma", "9000 1 9000 1 0 0\n"),
            ("stats/cpu_migration_from", "9000 1 \n"),
        ],
    );
    assert!(run(&tree, &["check"]).out.contains("9001 of 18000 answers"));
    tree.files(path, &[("stats/cpu_migration_from", "8999 1 \n")]);
    assert!(!run(&tree, &["check"]).out.contains("answers"));
}

/// An RDMA device of hardware with interrupts 40 to 43, of which the first three have come often.
fn interrupts(tree: &Tree) {
    tree.usual_client();
    tree.file("/sys/devices/system/cpu/online", "0-3\n");
    tree.file(
        "/proc/interrupts",
        "           CPU0  CPU1\n  40:  9000  1  IR-PCI-MSI mlx5_async0\n  41:  5000  0  IR-PCI-MSI mlx5_comp0\n  42:  0  5000  IR-PCI-MSI mlx5_comp1\n  43:  1  1  IR-PCI-MSI mlx5_comp2\n NMI:  0  0  Non-maskable interrupts\n",
    );
    for number in 40..44 {
        tree.file(
            &format!("/sys/class/infiniband/mlx5_0/device/msi_irqs/{number}"),
            "msix\n",
        );
        tree.file(&format!("/proc/irq/{number}/smp_affinity_list"), "0-3\n");
        tree.file(
            &format!("/proc/irq/{number}/effective_affinity_list"),
            "2\n",
        );
    }
}

#[test]
fn interrupts_that_come_to_one_cpu_are_found() {
    let tree = Tree::new();
    interrupts(&tree);
    let out = run(&tree, &["check"]).out;
    let text = "warning: all 3 active interrupts of mlx5_0 go to CPU 2\n  remedy: irqbalance is not running: systemctl enable --now irqbalance; or without it, for each of 40 41 42: echo CPU > /proc/irq/40/smp_affinity_list\n";
    assert!(out.contains(text), "{out}");
    tree.file("/proc/77/comm", "irqbalance\n");
    let out = run(&tree, &["check"]).out;
    let text = "remedy: irqbalance is running and leaves them there: check IRQBALANCE_BANNED_CPULIST and IRQBALANCE_ARGS in its settings; or have it ignore them, as it undoes what is set by hand: add --banirq=40 --banirq=41 --banirq=42 to IRQBALANCE_ARGS, systemctl restart irqbalance, then for each of 40 41 42: echo CPU > /proc/irq/40/smp_affinity_list\n";
    assert!(out.contains(text), "{out}");
    // One that is not in use does not count, any other does.
    tree.file("/proc/irq/43/effective_affinity_list", "1\n");
    assert!(run(&tree, &["check"])
        .out
        .contains("active interrupts of mlx5_0 go to CPU 2"));
    tree.file("/proc/irq/42/effective_affinity_list", "1\n");
    assert!(!run(&tree, &["check"]).out.contains("active interrupts of"));
    let tree = Tree::new();
    interrupts(&tree);
    tree.file("/sys/devices/system/cpu/online", "0\n");
    assert!(!run(&tree, &["check"]).out.contains("active interrupts of"));
}

#[test]
fn a_firewall_that_drops_rdma_is_found() {
    let tree = Tree::new();
    tree.usual_client()
        .program("/usr/sbin/nft")
        .file(
            "/rules.json",
            r#"{"nftables": [{"chain": {"family": "inet", "table": "filter", "name": "input", "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}}]}"#,
        );
    let rxe = "/sys/class/infiniband/rxe0";
    tree.files(
        rxe,
        &[
            ("node_type", "1: CA\n"),
            ("parent", "eth0\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/link_layer", "Ethernet\n"),
        ],
    );
    let out = run(&tree, &["check"]).out;
    let text = "warning: the firewall drops udp port 4791, which RDMA uses: chain input of table inet filter (input)\n  remedy: nft insert rule inet filter input udp dport 4791 accept";
    assert!(out.contains(text), "{out}");
    // The packets of hardware do not pass the rules.
    fs::remove_file(tree.real(&format!("{rxe}/parent"))).unwrap();
    assert!(!run(&tree, &["check"]).out.contains("firewall"));
    // iWARP's port is the server's.
    tree.file(&format!("{rxe}/node_type"), "4: RNIC\n")
        .file(&format!("{rxe}/parent"), "eth0\n");
    assert!(!run(&tree, &["check"]).out.contains("firewall"));
    tree.server("/x");
    let out = run(&tree, &["check"]).out;
    assert!(out.contains("the firewall drops tcp port 1234"), "{out}");
    // Without the right to read the rules, or without nft, there is no finding.
    fs::remove_file(tree.real("/rules.json")).unwrap();
    assert!(!run(&tree, &["check"]).out.contains("firewall"));
    fs::remove_file(tree.real("/usr/sbin/nft")).unwrap();
    assert!(!run(&tree, &["check"]).out.contains("firewall"));
    // One that hangs holds up nothing.
    let mode = Mode::RUSR | Mode::WUSR;
    let pipe = tree.real("/rules.json");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
    tree.program("/usr/sbin/nft");
    let out = run(&tree, &["check"]).out;
    let text = "hint: it is not known whether the firewall drops tcp port 1234: nft did not answer within 5 s\n  remedy: try: nft -j list ruleset\n";
    assert!(out.contains(text), "{out}");
    // The reader may end.
    drop(fs::File::options().read(true).write(true).open(&pipe));
}

#[test]
fn a_peer_without_extensions_is_found() {
    let tree = Tree::new();
    tree.usual_client()
        .server("/x")
        .served("u", "10.0.1.3", "10.0.1.1");
    assert!(!run(&tree, &["check"]).out.contains("extensions"));
    tree.file(
        "/sys/class/ibtrs-client/s/paths/ip:10.0.1.2@ip:10.0.1.1/extensions",
        "0\n",
    )
    .file(
        "/sys/class/ibtrs-server/u/paths/ip:10.0.1.3@ip:10.0.1.1/extensions",
        "0\n",
    );
    let out = run(&tree, &["check"]).out;
    for text in [
        "warning: session s: its server does not have our extensions",
        "hint: session u: its client does not have our extensions",
    ] {
        assert!(out.contains(text), "{text}: {out}");
    }
    assert_eq!(out.matches("extensions").count(), 2);
}

#[test]
fn exports_are_checked() {
    for (search, text) in [
        ("", "dev_search_path is not set"),
        ("/nowhere", "/nowhere cannot be read"),
        ("/empty", "nothing is exported"),
        ("/", "every disk of this one"),
    ] {
        let tree = Tree::new();
        tree.server(search).folder("/empty");
        let out = run(&tree, &["check"]).out;
        assert!(out.contains(text), "{search}: {out}");
    }
}

#[test]
fn exports_need_a_folder_of_their_own() {
    let tree = Tree::new();
    let ran = run(&tree, &["export", "list"]);
    assert_eq!(
        (ran.code, ran.err.contains("give --directory")),
        (4, true),
        "{}",
        ran.err
    );
    tree.server("/dev");
    assert_eq!(run(&tree, &["export", "add", "/dev/x"]).code, 2);
    tree.server("/e/%SESSNAME%");
    assert!(run(&tree, &["export", "list"])
        .err
        .contains("give --session"));
    tree.server("/e")
        .file("/e/file", "x")
        .file("/secret", "x")
        .link("/e/link", "nowhere");
    let ran = run(&tree, &["export", "add", "/e/file", "d"]);
    assert!(ran.err.contains("is not a block device"), "{}", ran.err);
    assert!(run(&tree, &["export", "add", "/e/file", "../d"])
        .err
        .contains("leads out"));
    for name in ["file", "../secret"] {
        assert!(
            run(&tree, &["export", "remove", name])
                .err
                .contains("it is not a device file"),
            "{name}"
        );
        assert!(tree.real("/e/file").exists() && tree.real("/secret").exists());
    }
    good(&tree, &["export", "remove", "link"]);
}

#[test]
fn metrics_are_in_the_format_of_prometheus() {
    let tree = Tree::new();
    tree.usual_client()
        .server("/x")
        .served("u", "10.0.1.3", "10.0.1.1")
        .opened("sda", "u", "a");
    tree.file("/sys/block/ibnbd1/ibnbd/mapping_path", "a\"b\\c\n");
    let text = good(&tree, &["metrics"]);
    let path = "session=\"s\",path=\"ip:10.0.1.2@ip:10.0.1.1\",side=\"client\"";
    for line in [
        "ibnbd_disk_info{disk=\"ibnbd1\",session=\"s\",device=\"a\\\"b\\\\c\",export=\"a\\\"b\\\\c\",mode=\"rw\"} 1".to_owned(),
        "ibnbd_disk_bytes_total{disk=\"ibnbd0\",operation=\"read\"} 40960".to_owned(),
        "ibtrs_session_paths_connected{session=\"t\",side=\"client\"} 1".to_owned(),
        "ibtrs_session_last_failover_timestamp_seconds{session=\"s\",side=\"client\"} 1764376027.042".to_owned(),
        "ibtrs_session_last_failover_seconds{session=\"s\",side=\"client\"} 3.7".to_owned(),
        "ibtrs_session_last_failover_requests{session=\"s\",side=\"client\"} 16".to_owned(),
        "ibtrs_session_failover_duration_seconds_bucket{session=\"s\",side=\"client\",le=\"0.004\"} 1".to_owned(),
        "ibtrs_session_failover_duration_seconds_bucket{session=\"s\",side=\"client\",le=\"+Inf\"} 3".to_owned(),
        "ibtrs_session_failover_duration_seconds_count{session=\"s\",side=\"client\"} 3".to_owned(),
        format!("ibtrs_path_heartbeat_seconds{{{path}}} 0.0001205"),
        format!("ibtrs_path_heartbeat_overdue_seconds{{{path}}} 0"),
        format!("ibtrs_path_reconnects_total{{{path},result=\"failure\"}} 4"),
        format!("ibtrs_path_request_duration_seconds_bucket{{{path},operation=\"read\",le=\"0.000008\"}} 9"),
        format!("ibtrs_path_request_duration_seconds_bucket{{{path},operation=\"read\",le=\"+Inf\"}} 10"),
        format!("ibtrs_path_request_duration_seconds_count{{{path},operation=\"read\"}} 10"),
        "ibnbd_opened_info{device=\"sda\",session=\"u\",mode=\"rw\"} 1".to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    let file = tree.real("/ibnbd.prom");
    good(&tree, &["metrics", "--textfile", file.to_str().unwrap()]);
    assert_eq!(tree.text("/ibnbd.prom"), text);
}

#[test]
fn a_report_has_modules_findings_and_the_log() {
    let tree = Tree::new();
    tree.usual_client().file(
        "/dev/kmsg",
        "6,1,5,-;ibnbd_client: s: connected\n6,2,6,-;other: x\n",
    );
    tree.file("/sys/module/ibnbd_client/version", "0.0.9\n")
        .file("/etc/ibtrs/client.toml", "[[session]]\nname = 's'\n")
        .file("/etc/ibtrs/conf.d/more.toml", "# none\n")
        .file("/etc/ibtrs/web1.key", "secret\n")
        .program("/usr/sbin/systemctl");
    let text = good(&tree, &["report"]);
    for part in [
        "module ibnbd_client 0.0.9 srcversion 0123\n",
        "\n/etc/ibtrs/client.toml:\n  [[session]]\n  name = 's'\n",
        "\n/etc/ibtrs/conf.d/more.toml:\n  # none\n",
        "\nservices:\n  Id=ibnbd-client.service\n",
        "  StatusText=2 steps are missing\n",
        "ibnbd-server ibnbd-client ibnbd-metrics ibnbd@*.service ibmsg-rules ibmsg@*.service\n",
        "    remedy: ibnbd path reconnect t ip:10.0.2.2@ip:10.0.3.2\n",
        "ack_timeout=0",
        "there is no RDMA device",
        "\"ibnbd10\"",
        "  ibnbd_client: s: connected\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("other: x") && !text.contains("secret"));
}

/// A machine with names of each kind.
fn with_names(tree: &Tree) {
    tree.usual_client()
        .server("")
        .host("web1")
        .host("web2")
        .export("disk1", "/dev/vdb", &["web1"])
        .port("left", "ip:10.0.1.1")
        .file("/etc/ibtrs/keys/web3.key", "");
}

/// What is typed, and what a shell is told.
const COMPLETED: [(&str, &str); 16] = [
    ("pa", "path paths"),
    ("path rec", "reconnect"),
    ("map --ex", "--exclusive"),
    ("map --checksum c", "crc32c"),
    ("unmap ibn", "ibnbd0 ibnbd1 ibnbd10"),
    ("events ibnbd1", "ibnbd1 ibnbd10"),
    ("path drain s 10.0.2", "10.0.2.1"),
    ("export disable di", "disk1"),
    ("export deny disk1 we", "web1 web2"),
    ("host set we", "web1 web2"),
    ("port remove l", "left"),
    ("policy s r", "round-robin"),
    ("key remove we", "web3"),
    ("disconnect s", "s"),
    ("completions f", "fish"),
    // It is to be a new one.
    ("host add we", ""),
];

/// The scripts of these shells, which few machines have, ask in this way.
#[test]
fn zsh_and_fish_are_told_the_same() {
    let tree = Tree::new();
    with_names(&tree);
    let program = env!("CARGO_BIN_EXE_ibnbd");
    let root = tree.base().display().to_string();
    for (words, expected) in COMPLETED {
        let words: Vec<&str> = ["ibnbd", "--root", &root]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        for (shell, between) in [("fish", '\t'), ("zsh", ':')] {
            let output = Command::new(program)
                .arg("--")
                .args(&words)
                .env("IBNBD_COMPLETE", shell)
                .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string())
                .env("_CLAP_IFS", "\n")
                .output()
                .unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let values = said
                .lines()
                .map(|line| line.split(between).next().unwrap_or_default());
            let mut found: Vec<&str> = values.filter(|value| !value.is_empty()).collect();
            found.sort_unstable();
            assert_eq!(found.join(" "), expected, "{shell}: {words:?}: {said}");
        }
    }
    // What they run is what was run here.
    for (shell, asks) in [
        ("fish", "IBNBD_COMPLETE=fish ibnbd -- "),
        ("zsh", "IBNBD_COMPLETE=\"zsh\""),
    ] {
        let script = good(&tree, &["completions", shell]);
        assert!(script.contains(asks), "{script}");
    }
}

#[test]
fn completions_and_manual_pages_know_all_commands() {
    let tree = Tree::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = good(&tree, &["completions", shell]);
        assert!(text.contains("IBNBD_COMPLETE"), "{shell}");
        let file = tree.real(&format!("/{shell}"));
        fs::write(&file, &text).unwrap();
        let check = if shell == "fish" {
            "--no-execute"
        } else {
            "-n"
        };
        // Those that are installed: bash always is.
        match Command::new(shell).arg(check).arg(&file).output() {
            Ok(output) => assert!(output.status.success(), "{shell}: {output:?}"),
            Err(error) => assert!(shell != "bash" && error.kind() == io::ErrorKind::NotFound),
        }
    }
    // Those of the machine that it runs on, whose names it knows.
    with_names(&tree);
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_ibnbd"))
        .parent()
        .unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let root = tree.base().display();
    for (words, expected) in COMPLETED {
        let script = format!(
            "source \"$1\"; COMP_TYPE=9; COMP_WORDS=(ibnbd --root {root} {words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _clap_complete_ibnbd ibnbd \"${{COMP_WORDS[COMP_CWORD]}}\" ibnbd; echo \"${{COMPREPLY[*]}}\""
        );
        let bash = Command::new("bash")
            .args(["-c", &script, "bash"])
            .arg(tree.real("/bash"))
            .env("PATH", &path)
            .output()
            .unwrap();
        let said = String::from_utf8(bash.stdout).unwrap();
        let mut found: Vec<&str> = said.split_whitespace().collect();
        found.sort_unstable();
        assert_eq!(
            found.join(" "),
            expected,
            "{words}: {}",
            String::from_utf8_lossy(&bash.stderr)
        );
    }
    let folder = tree.real("/man");
    good(&tree, &["manpages", folder.to_str().unwrap()]);
    let pages = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let pages: Vec<_> = pages.collect();
    assert!(pages.len() > 50, "{pages:?}");
    // Formats all of them, if that is installed, and says what is no manual page.
    let mut groff = Command::new("groff");
    match groff
        .args(["-man", "-ww", "-z", "-Tutf8"])
        .args(&pages)
        .output()
    {
        Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stderr), ""),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
    }
    let page = tree.text("/man/ibnbd-map.1");
    assert!(
        page.contains("migration") && page.contains("Examples:\n.nf\n  ibnbd map"),
        "{page}"
    );
}

/// Half a configuration: the session is there and its disk is not, a disk is there and its session
/// is not.
#[test]
fn halves_are_shown_as_they_are() {
    let tree = Tree::new();
    tree.client().disk(3, "gone", "d").session("alone", &[]);
    assert_eq!(rows(&good(&tree, &["list"]))[1][6], "0/0");
    assert!(good(&tree, &["sessions"]).contains("disconnected"));
    assert_eq!(run(&tree, &["status"]).code, 2);
}

#[test]
fn wrong_files_change_nothing_and_all_of_it_is_said() {
    let tree = Tree::new();
    tree.usual_client()
        .file(
            "/etc/ibtrs/client.toml",
            "[[session]]\nname = 's.t'\nport = 0\n",
        )
        .file("/etc/ibtrs/conf.d/x.toml", "y\n");
    for words in [&["apply"][..], &["apply", "--dry-run"], &["save"]] {
        let ran = run(&tree, words);
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (6, ""),
            "{words:?}: {}",
            ran.err
        );
        for place in [
            "client.toml:2:8: ",
            "client.toml:3:8: ",
            "client.toml:1:1: ",
            "conf.d/x.toml:1:",
        ] {
            assert!(ran.err.contains(place), "{place}: {}", ran.err);
        }
    }
    assert!(tree.text(MAP_FILE).starts_with("Usage"));
}

#[test]
fn files_that_are_missing_are_no_wish() {
    let tree = Tree::new();
    tree.usual_client();
    assert_eq!(good(&tree, &["apply", "--prune"]), "");
    for words in [
        &["apply", "--prune"][..],
        &["apply", "--dry-run"],
        &["apply", "--until-done"],
    ] {
        let ran = run(&tree, &[words, &["--config", "/etc/ibtsr"]].concat());
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (6, ""),
            "{words:?}: {}",
            ran.err
        );
        assert!(
            ran.err
                .contains("configuration in /etc/ibtsr: there is no such folder"),
            "{}",
            ran.err
        );
    }
    // Those of a server say nothing about disks.
    tree.file("/etc/ibtrs/server.toml", "# none\n");
    assert_eq!(good(&tree, &["apply", "--prune"]), "");
    // Nothing is there yet where files are to be written.
    good(&tree, &["save", "--config", "/etc/new"]);
    assert!(tree.text("/etc/new/client.toml").contains("disk1"));
}

/// An initramfs can look nothing up, and does not know how the machine is called.
#[test]
fn files_for_an_initramfs_need_no_names() {
    let tree = Tree::new();
    tree.client();
    let words = ["apply", "--no-names", "--dry-run", "--config", "/root"];
    let said = |session: &str| {
        let text = format!("[[session]]\n{session}\n[[session.disk]]\ndevice = 'disk1'\n");
        tree.file("/root/client.toml", text);
        run(&tree, &words)
    };
    let paths = "'[10.0.1.1]', 'ip:10.0.1.2@10.0.2.1', 'gid:fe80::2,gid:fe80::1', 'fd00::1'";
    let ran = said(&format!(
        "name = 'root'\nservers = ['10.0.3.1']\npaths = [{paths}]"
    ));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = said("servers = ['localhost', '10.0.3.1']\npaths = ['10.0.1.2,localhost']");
    assert_eq!((ran.code, ran.out.as_str()), (6, ""));
    let expected = "names of machines are needed, and nothing was changed\n\
        the session of localhost has no name\n\
        the session of localhost: localhost is not an address\n\
        the session of localhost: localhost is not an address\n";
    assert!(ran.err.contains(expected), "{}", ran.err);
    let ran = said("name = 'root'\nservers = ['localhost']");
    assert!(
        ran.code == 6 && ran.err.contains("session root: localhost is not"),
        "{}",
        ran.err
    );
}

#[test]
fn apply_shows_the_difference_and_carries_it_out() {
    let tree = Tree::new();
    tree.usual_client()
        .file("/sys/class/ibtrs-client/t/queue_timeout_s", "60");
    let text = "[[session]]\nname = 't'\npaths = ['10.0.1.2,10.0.3.1', '10.0.2.2,10.0.3.2']\nqueue_timeout_s = 90\n";
    tree.file("/etc/ibtrs/client.toml", text);
    let line = "~ set queue_timeout_s of session t from 60 to 90\n";
    assert_eq!(good(&tree, &["apply", "--dry-run"]), line);
    assert_eq!(tree.text("/sys/class/ibtrs-client/t/queue_timeout_s"), "60");
    assert_eq!(good(&tree, &["apply"]), line);
    assert_eq!(tree.text("/sys/class/ibtrs-client/t/queue_timeout_s"), "90");
    assert_eq!(good(&tree, &["apply"]), "");
}

#[test]
fn what_cannot_be_applied_is_counted() {
    let tree = Tree::new();
    tree.usual_client();
    let text = "[[session]]\nname = 's'\nservers = ['10.0.1.1']\n[[session.disk]]\ndevice = 'disk1'\naccess = 'ro'\n";
    tree.file("/etc/ibtrs/client.toml", text);
    let ran = run(&tree, &["apply"]);
    assert_eq!(ran.code, 1);
    assert_eq!(
        ran.out,
        "! ibnbd1 is mapped as rw until it is unmapped, and not as ro\n"
    );
    assert!(ran.err.contains("1 steps could not be done"), "{}", ran.err);
    // A command that only shows something ends with the same code.
    let shown = run(&tree, &["apply", "--dry-run"]);
    assert_eq!((shown.code, shown.out), (1, ran.out));
}

/// Runs a command whose output nobody reads.
fn unread(tree: &Tree, words: &[&str]) -> (Option<i32>, String) {
    let (nobody, stdout) = UnixStream::pair().unwrap();
    drop(nobody);
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_ibnbd"))
        .arg("--root")
        .arg(tree.base())
        .args(words)
        .stdout(OwnedFd::from(stdout))
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), err)
}

/// `ibnbd map ... | true` does all that it is there for.
#[test]
fn commands_go_on_where_nobody_reads() {
    let silent = (Some(0), String::new());
    let tree = Tree::new();
    tree.usual_client();
    assert_eq!(unread(&tree, &["list"]), silent);
    let words = ["map", "10.0.1.1", "disk1", "--session", "s", "--persist"];
    assert_eq!(unread(&tree, &words), silent);
    assert!(tree.text("/etc/ibtrs/client.toml").contains("disk1"));
    assert_eq!(unread(&tree, &["stats", "--reset"]), silent);
    let histogram = tree.text("/sys/block/ibnbd0/ibnbd/latency_us");
    assert!(histogram.starts_with('0'), "{histogram}");
    let unmap = "/sys/block/ibnbd1/ibnbd/unmap_device";
    assert_eq!(
        unread(&tree, &["unmap", "--unused", "none", "ibnbd1"]),
        silent
    );
    assert!(tree.text(unmap).starts_with("normal"));
}

/// `ibnbd apply | true` does what it is there for.
#[test]
fn apply_goes_on_where_nobody_reads_the_steps() {
    let tree = Tree::new();
    tree.usual_client();
    let text = "[[session]]\nname = 's'\npaths = ['10.0.1.1', '10.0.2.1']\nqueue_timeout_s = 900\n[[session.disk]]\ndevice = 'disk1'\n";
    tree.file("/etc/ibtrs/client.toml", text);
    assert_eq!(unread(&tree, &["apply"]).0, Some(0));
    let set = tree.text("/sys/class/ibtrs-client/s/queue_timeout_s");
    assert_eq!(set.trim(), "900");
}

/// The notifications that a service manager gets from a command.
struct Manager {
    folder: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Self { folder, socket }
    }

    fn start(&self, tree: &Tree, words: &[&str]) -> Child {
        std::process::Command::new(env!("CARGO_BIN_EXE_ibnbd"))
            .arg("--root")
            .arg(tree.base())
            .args(words)
            .env("NOTIFY_SOCKET", self.folder.path().join("notify"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn hears(&self) -> String {
        let mut text = [0; 1000];
        // A socket with a time limit is not asked again when a signal, or a stopped machine, ends
        // the call.
        let length = loop {
            match self.socket.recv(&mut text) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result.unwrap(),
            }
        };
        String::from_utf8(text[..length].to_vec()).unwrap()
    }
}

#[test]
fn a_service_has_started_after_the_first_attempt_and_goes_on() {
    let tree = Tree::new();
    tree.usual_client();
    let text =
        "[[session]]\nname = 's'\nservers = ['10.0.1.1']\n[[session.disk]]\ndevice = 'disk1'\n";
    tree.file("/etc/ibtrs/client.toml", format!("{text}access = 'ro'\n"));
    let words = ["apply", "--until-done"];
    let manager = Manager::new();
    let service = manager.start(&tree, &words);
    assert_eq!(
        manager.hears(),
        "READY=1\nSTATUS=1 steps could not be done; tried again after 5 s\n"
    );
    // The service also waits while a later fault lasts.
    tree.file("/etc/ibtrs/client.toml", "y\n");
    let said = manager.hears();
    assert!(
        said.ends_with("nothing was changed; tried again after 10 s\n"),
        "{said}"
    );
    tree.file("/etc/ibtrs/client.toml", text);
    assert_eq!(manager.hears(), "READY=1\nSTATUS=all of it is done\n");
    // Where there is no manager, as in an initramfs, people see on the console that it goes on.
    let ended = service.wait_with_output().unwrap();
    assert!(ended.status.success());
    let said = String::from_utf8(ended.stderr).unwrap();
    for pause in ["5 s", "10 s"] {
        let line = format!("\nibnbd: tried again after {pause}\n");
        assert!(said.contains(&line), "{said}");
    }
}

/// The operator has changed a setting while something else is still missing.
#[test]
fn a_service_that_goes_on_leaves_alone_what_was_done() {
    let tree = Tree::new();
    tree.usual_client();
    let setting = |key: &str| format!("/sys/class/ibtrs-client/s/{key}");
    fs::remove_file(tree.real(&setting("queue_timeout_s"))).unwrap();
    let text = "[[session]]\nname = 's'\npaths = ['10.0.1.1', '10.0.2.1']\nhb_interval_ms = 1000\nqueue_timeout_s = 300\n[[session.disk]]\ndevice = 'disk1'\nio_timeout_ms = 50000\n";
    tree.file("/etc/ibtrs/client.toml", text);
    let manager = Manager::new();
    let mut service = manager.start(&tree, &["apply", "--until-done"]);
    assert_eq!(
        manager.hears(),
        "READY=1\nSTATUS=1 steps could not be done; tried again after 5 s\n"
    );
    let disk = "/sys/block/ibnbd1/queue/io_timeout";
    assert_eq!(tree.text(&setting("hb_interval_ms")).trim(), "1000");
    assert_eq!(tree.text(disk).trim(), "50000");
    tree.file(&setting("hb_interval_ms"), "2000\n")
        .file(disk, "70000\n")
        .file(&setting("queue_timeout_s"), "60\n");
    assert_eq!(manager.hears(), "READY=1\nSTATUS=all of it is done\n");
    assert!(service.wait().unwrap().success());
    assert_eq!(tree.text(&setting("queue_timeout_s")).trim(), "300");
    assert_eq!(tree.text(&setting("hb_interval_ms")).trim(), "2000");
    assert_eq!(tree.text(disk).trim(), "70000");
    // A new one does all of it.
    good(&tree, &["apply"]);
    assert_eq!(tree.text(&setting("hb_interval_ms")).trim(), "1000");
    assert_eq!(tree.text(disk).trim(), "50000");
}

/// The network may give the machine its name after the first attempt.
#[test]
fn a_service_starts_over_when_its_sessions_get_other_names() {
    let tree = Tree::new();
    tree.client()
        .session("b@10-0-1-1", &[("10.0.1.2", "10.0.1.1", "connected")])
        .disk(0, "b@10-0-1-1", "disk1")
        .file("/proc/sys/kernel/hostname", "a\n");
    fs::remove_file(tree.real(MAP_FILE)).unwrap();
    let text = "[[session]]\nservers = ['10.0.1.1']\nqueue_timeout_s = 300\n[[session.disk]]\ndevice = 'disk1'\n";
    tree.file("/etc/ibtrs/client.toml", text);
    let manager = Manager::new();
    let mut service = manager.start(&tree, &["apply", "--until-done"]);
    let said = manager.hears();
    assert!(said.contains("tried again after 5 s"), "{said}");
    tree.file("/proc/sys/kernel/hostname", "b\n");
    assert_eq!(manager.hears(), "READY=1\nSTATUS=all of it is done\n");
    assert!(service.wait().unwrap().success());
    let set = tree.text("/sys/class/ibtrs-client/b@10-0-1-1/queue_timeout_s");
    assert_eq!(set.trim(), "300");
}

/// The service manager calls an end by the signal clean, and not an exit code that only looks so:
/// what follows a stop depends on it.
#[test]
fn a_service_that_waits_for_what_is_missing_ends_by_the_signal() {
    let tree = Tree::new();
    tree.server("").configfs().host("web1").file(
        "/etc/ibtrs/server.toml",
        "[[host]]\nname = 'web1'\nmax_paths = 2\n[[export]]\ndevice = '/dev/x'\nhosts = []\n",
    );
    let manager = Manager::new();
    let mut service = manager.start(&tree, &["apply", "--side", "server", "--until-done"]);
    let said = manager.hears();
    assert!(said.contains("tried again after 5 s"), "{said}");
    kill_process(Pid::from_child(&service), Signal::TERM).unwrap();
    assert_eq!(
        service.wait().unwrap().signal(),
        Some(Signal::TERM.as_raw())
    );
    for side in ["server", "client"] {
        let unit = tree::of_package(&format!("../systemd/ibnbd-{side}.service"));
        let unit = std::fs::read_to_string(unit).unwrap();
        // Those that end by themselves, when they have taken a change back.
        assert!(unit.contains("\nSuccessExitStatus=129 130 143\n"), "{side}");
    }
}

#[test]
fn a_service_whose_files_are_wrong_does_not_start() {
    let tree = Tree::new();
    tree.usual_client().file("/etc/ibtrs/client.toml", "y\n");
    let manager = Manager::new();
    let mut service = manager.start(&tree, &["apply", "--until-done"]);
    assert_eq!(service.wait().unwrap().code(), Some(6));
    manager.socket.set_nonblocking(true).unwrap();
    assert!(manager.socket.recv(&mut [0]).is_err());
}

#[test]
fn what_is_saved_can_be_applied() {
    let tree = Tree::new();
    tree.usual_client();
    let shown = good(&tree, &["save", "--dry-run"]);
    assert!(!tree.real("/etc/ibtrs/client.toml").exists());
    good(&tree, &["save"]);
    assert_eq!(
        shown,
        format!(
            "# /etc/ibtrs/client.toml\n{}",
            tree.text("/etc/ibtrs/client.toml")
        )
    );
    assert_eq!(good(&tree, &["apply", "--dry-run", "--prune"]), "");
}

#[test]
fn map_and_unmap_persist() {
    let tree = Tree::new();
    tree.usual_client()
        .file("/etc/ibtrs/client.toml", "# mine\n")
        .file("/sys/class/ibtrs-client/s/key_id", "2026\n")
        .file("/sys/class/ibtrs-client/s/queue_timeout_s", "90\n")
        .file(MAP_FILE, "");
    for disk in [0, 1] {
        tree.file(&format!("/sys/block/ibnbd{disk}/ibnbd/nr_queues"), "2\n");
    }
    tree.file("/sys/block/ibnbd1/ibnbd/unmap_device", "");
    good(
        &tree,
        &["map", "10.0.1.1", "disk1", "--session", "s", "--persist"],
    );
    let text = tree.text("/etc/ibtrs/client.toml");
    assert!(
        text.contains("# mine") && text.contains("device = \"disk1\""),
        "{text}"
    );
    // Only what the session needs to connect is written of its settings.
    assert!(text.contains("key_id = \"2026\""), "{text}");
    assert!(text.contains("queues = 2\n"), "{text}");
    assert!(!text.contains("queue_timeout_s"), "{text}");
    good(&tree, &["unmap", "disk1", "--persist"]);
    assert!(!tree.text("/etc/ibtrs/client.toml").contains("disk1"));
}

/// The commands of systemd when the client is stopped.
/// As hosts and paths do; but a name may have a comma itself.
#[test]
fn disks_come_in_lists() {
    let file = |number: u32| format!("/sys/block/ibnbd{number}/ibnbd/unmap_device");
    for (words, expected) in [
        (&["unmap", "ibnbd0,disk1"][..], [true, true, false]),
        (
            &["unmap", "--unused", "ibnbd0,none,ibnbd7"],
            [true, false, true],
        ),
        (&["unmap", "disk1,x"], [false, false, true]),
        (&["unmap", "ibnbd0,"], [true, false, false]),
        (&["unmap", ",/dev/ibnbd0,/dev/ibnbd1"], [true, true, false]),
        (&["unmap", "s//dev/nullb0,s/disk1"], [true, true, false]),
        (
            &["unmap", "--unused", "s/none,s//dev/nullb0,s/disk1"],
            [true, true, false],
        ),
        // A unit asks for that, and its disk is not mapped.
        (&["unmap", "--unused", "s/disk1,ibnbd0"], [false; 3]),
        (&["unmap", "--unused", "s/disk1,gone/x"], [false; 3]),
        (&["unmap", "--unused", "t/disk1,x"], [false, false, true]),
    ] {
        let tree = Tree::new();
        tree.usual_client().disk(7, "t", "disk1,x");
        let ran = run(&tree, words);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let gone = [0, 1, 7].map(|number| tree.text(&file(number)).starts_with("normal"));
        assert_eq!(gone, expected, "{words:?}");
    }
}

#[test]
fn all_unused_disks_are_unmapped() {
    let tree = Tree::new();
    assert_eq!(good(&tree, &["unmap", "--unused"]), "");
    tree.usual_client().mainline();
    assert_eq!(good(&tree, &["unmap", "--unused"]), "");
    for number in [0, 1, 10] {
        let file = format!("/sys/block/ibnbd{number}/ibnbd/unmap_device");
        assert!(tree.text(&file).starts_with("normal"), "{file}");
    }
    assert!(tree
        .text("/sys/block/rnbd0/rnbd/unmap_device")
        .starts_with("Usage"));
    // A disk that cannot be unmapped does not keep the others mapped.
    let file = tree.real("/sys/block/ibnbd10/ibnbd/unmap_device");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    tree.file("/sys/block/ibnbd1/ibnbd/unmap_device", "Usage: ...\n");
    let ran = run(&tree, &["unmap", "--unused"]);
    assert!(ran.code != 0 && ran.err.contains("cannot unmap ibnbd10"));
    assert!(tree
        .text("/sys/block/ibnbd1/ibnbd/unmap_device")
        .starts_with("normal"));
    for words in [&["unmap"][..], &["unmap", "--unused", "--force"]] {
        assert_eq!(run(&tree, words).code, 2, "{words:?}");
    }
}

#[test]
fn top_counts_what_happens_in_between() {
    let tree = Tree::new();
    tree.usual_client();
    let text = good(&tree, &["top", "--batch", "1"]);
    let rows = rows(&text);
    assert_eq!(rows[1][..4], ["ibnbd0", "open", "0", "0"]);
    let session = rows.iter().find(|row| row.len() > 4 && row[0] == "t");
    assert_eq!(session.unwrap()[..4], ["t", "client", "degraded", "1/2"]);
    assert!(
        text.contains("P99 US") && text.contains("120.5 us"),
        "{text}"
    );
    let ran = run(&tree, &["top"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("not a terminal"), "{}", ran.err);
}

/// A disk without identity is a warning until its operator vouches for it.
#[test]
fn a_disk_without_identity_is_a_warning() {
    let tree = Tree::new();
    tree.client()
        .disk(0, "s", "/dev/nullb0")
        .session("s", &[("ip:10.0.1.2", "ip:10.0.1.1", "connected")]);
    assert_eq!(run(&tree, &["status"]).code, 0);
    tree.file("/sys/block/ibnbd0/ibnbd/wwid", "ibnbd-s-dev-nullb0\n");
    let ran = run(&tree, &["status"]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(
        ran.out.starts_with("WARNING: ibnbd0 has no identity ("),
        "{}",
        ran.out
    );
    good(&tree, &["set", "ibnbd0", "identity=none"]);
    assert_eq!(tree.text("/sys/block/ibnbd0/ibnbd/identity").trim(), "none");
    assert_eq!(run(&tree, &["status"]).code, 0);
    let ran = run(&tree, &["check"]);
    let text = "warning: ibnbd0 has no identity: after a restart of the server any disk of its name and size is used";
    assert!(ran.out.contains(text), "{}", ran.out);
    assert!(good(&tree, &["show", "ibnbd0", "-o", "json"]).contains("\"identity\": \"none\""));
}
