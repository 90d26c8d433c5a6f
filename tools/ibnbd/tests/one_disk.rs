// SPDX-License-Identifier: GPL-2.0

//! Disks that are mapped and unmapped one by one: `auto = false`, `apply --disk`, `unmap --unused`.

mod tree;

use std::io;
use std::net::IpAddr;

use ibnbd_host::config::keep::{self, Choice, Others};
use ibnbd_host::config::plan::{self, Step, Wish};
use ibnbd_host::config::{self, Config};
use ibnbd_host::disk_name::DiskName;
use ibnbd_host::{Machine, Root};
use toml_edit::DocumentMut;
use tree::ran::{good, run};
use tree::Tree;

const FILE: &str = "/etc/ibtrs/client.toml";
const MAP_FILE: &str = "/sys/class/ibnbd-client/ctl/map_device";

/// The first two sessions are those of the usual client; the third one has no disk for `apply`.
const CLIENT: &str = r#"[ibtrs_client]
ack_timeout = 16

[[session]]
name = "s"
paths = ["10.0.1.2,10.0.1.1", "10.0.2.2,10.0.2.1"]

[[session.disk]]
device = "/dev/nullb0"

[[session.disk]]
device = "disk1"
auto = false # web1's unit maps it
io_timeout_ms = 5000

[[session.disk]]
device = "a-b"
auto = false

[[session]]
name = "t"
servers = ["10.0.3.1"]
paths = ["10.0.2.2,10.0.3.2"]
queue_timeout_s = 300

[[session.disk]]
device = "new"
auto = true

# Once a week.
[[session]]
name = "u"
servers = ["gone"]
key_id = "2026"

[[session.disk]]
device = "backup"
auto = false
access = "ro"
"#;

fn nobody(_: &str) -> io::Result<Vec<IpAddr>> {
    Err(io::Error::new(io::ErrorKind::NotFound, "unknown"))
}

fn parsed() -> Config {
    config::parse("client.toml", CLIENT).unwrap()
}

/// The steps for one disk, or for all that are to be mapped.
fn steps(tree: &Tree, config: &Config, disk: Option<&str>, prune: bool) -> Vec<String> {
    let root = Root::new(tree.base());
    let disk: Option<DiskName> = disk.map(|name| name.parse().unwrap());
    let wish = Wish {
        resolve: &nobody,
        prune,
        side: None,
        disk: disk.as_ref(),
    };
    let steps = plan::steps(&root, &Machine::read(&root), config, &wish);
    steps.iter().map(Step::to_string).collect()
}

/// A client with the sessions, but not yet all disks, in the state that the file says.
fn client() -> Tree {
    let tree = Tree::new();
    tree.usual_client()
        .file("/sys/module/ibtrs_client/parameters/ack_timeout", "16\n")
        .file("/sys/class/ibtrs-client/t/queue_timeout_s", "300\n")
        .disk(2, "t", "new");
    tree
}

#[test]
fn what_is_not_automatic_is_left_alone() {
    let tree = client();
    // disk1 is there, and has another time limit; a-b and backup are not there, and the server of
    // the last one is unknown.
    assert_eq!(steps(&tree, &parsed(), None, false), [""; 0]);
    assert_eq!(steps(&tree, &parsed(), None, true), ["- unmap ibnbd10"]);
    // A session that is there for such disks only is left alone as well.
    tree.session("u", &[("10.0.1.2", "10.0.5.1", "connected")])
        .disk(5, "u", "backup");
    assert_eq!(steps(&tree, &parsed(), None, true), ["- unmap ibnbd10"]);
    // Without the key it is as any other disk.
    let all = CLIENT.replace("auto = false", "");
    let all = config::parse("client.toml", &all).unwrap();
    assert_eq!(
        steps(&tree, &all, None, false),
        [
            "~ set io_timeout_ms of ibnbd1 from 30000 to 5000",
            "+ map a-b of session s over ip:10.0.1.2,ip:10.0.1.1 ip:10.0.2.2,ip:10.0.2.1",
            "! session u: gone: no address is known for it: unknown",
            "! ibnbd5 is mapped as rw until it is unmapped, and not as ro",
            "~ set key_id of session u from default to 2026",
        ]
    );
}

#[test]
fn one_disk_is_asked_for() {
    let tree = client();
    let of = |name: &str| steps(&tree, &parsed(), Some(name), false);
    // One of several of a session, whether it is there or not.
    assert_eq!(
        of("s/disk1"),
        ["~ set io_timeout_ms of ibnbd1 from 30000 to 5000"]
    );
    assert_eq!(
        of("s/a-b"),
        ["+ map a-b of session s over ip:10.0.1.2,ip:10.0.1.1 ip:10.0.2.2,ip:10.0.2.1"]
    );
    // It need not say auto = false.
    assert_eq!(of("s//dev/nullb0"), [""; 0]);
    assert_eq!(of("t/new"), [""; 0]);
    assert_eq!(of("s/new"), [""; 0]);
    assert_eq!(
        of("u/backup"),
        [
            "! session u: gone: no address is known for it: unknown",
            "+ map backup of session u over  with key 2026",
        ]
    );
    // The session comes to what the file says, with the disk; what concerns others stays.
    tree.file("/sys/class/ibtrs-client/t/queue_timeout_s", "60\n")
        .file("/sys/module/ibtrs_client/parameters/ack_timeout", "0\n");
    assert_eq!(
        of("t/new"),
        ["~ set queue_timeout_s of session t from 60 to 300"]
    );
    assert_eq!(of("s//dev/nullb0"), [""; 0]);
    let all = steps(&tree, &parsed(), None, false);
    assert!(all[0].starts_with("! ibtrs_client: ack_timeout"), "{all:?}");
}

#[test]
fn a_machine_without_modules_gets_those_of_the_client() {
    let tree = Tree::new();
    let text = format!("{CLIENT}[ibnbd_server]\nport_nr = 4321\n[[export]]\ndevice = '/dev/x'\n");
    let config = config::parse("client.toml", &text).unwrap();
    assert_eq!(
        steps(&tree, &config, Some("t/new"), false),
        [
            "+ load ibtrs_client ack_timeout=16",
            "+ load ibnbd_client",
            "+ map new of session t over ip:10.0.2.2,ip:10.0.3.2 ip:10.0.3.1",
            "~ set queue_timeout_s of session t from default to 300",
        ]
    );
    // Another unit is loading them: modprobe waits until that is done.
    let tree = client();
    let state = "/sys/module/ibnbd_client/initstate";
    tree.file(state, "coming\n");
    assert_eq!(
        steps(&tree, &parsed(), Some("t/new"), false),
        ["+ load ibnbd_client"]
    );
    tree.file(state, "live\n");
    assert_eq!(steps(&tree, &parsed(), Some("t/new"), false), [""; 0]);
}

#[test]
fn a_value_that_is_none_is_told_with_its_place() {
    let text = CLIENT.replace("auto = true", "auto = \"no\"");
    let found = config::parse("x.toml", &text).unwrap_err();
    assert_eq!(
        found[0].to_string(),
        "x.toml:28:8: auto: true or false is wanted"
    );
    assert_eq!(found.len(), 1);
}

fn kept(tree: &Tree, text: &str, prune: bool) -> String {
    let root = Root::new(tree.base());
    let mut document: DocumentMut = text.parse().unwrap();
    let choice = Choice {
        prune,
        ..Choice::default()
    };
    let machine = Machine::read(&root);
    let mut others = Others::default();
    let nobody = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    keep::client(&root, &machine, &mut document, &mut others, choice, &nobody);
    document.to_string()
}

/// Most of the time such disks may not be there: that is no reason to forget them.
#[test]
fn saving_keeps_them_and_their_sessions() {
    let tree = client();
    let now = CLIENT.replace("io_timeout_ms = 5000", "io_timeout_ms = 30000");
    // The disk that no file has.
    let stranger = "auto = true\n\n[[session.disk]]\ndevice = \"/dev/nullb0\"\n";
    let now = now.replace("auto = true\n", stranger);
    for prune in [false, true] {
        assert_eq!(kept(&tree, CLIENT, prune), now);
    }
    let other = CLIENT.replace("auto = false\naccess", "access");
    let pruned = kept(&tree, &other, true);
    assert!(
        !pruned.contains("backup") && pruned.contains("a-b"),
        "{pruned}"
    );
    // The session stays for one of its disks, and the other one goes.
    let other = format!("{CLIENT}\n[[session.disk]]\ndevice = \"tape\"\n");
    let pruned = kept(&tree, &other, true);
    assert!(
        pruned.contains("backup") && !pruned.contains("tape"),
        "{pruned}"
    );
}

#[test]
fn the_command_maps_only_that_one() {
    let tree = client();
    tree.file(FILE, CLIENT);
    let words = ["apply", "--disk", "s/a-b"];
    let line = "+ map a-b of session s over ip:10.0.1.2,ip:10.0.1.1 ip:10.0.2.2,ip:10.0.2.1\n";
    assert_eq!(
        good(&tree, &["apply", "--disk", "s/a-b", "--dry-run"]),
        line
    );
    assert!(tree.text(MAP_FILE).starts_with("Usage"));
    let ran = run(&tree, &words);
    // In a made tree no disk comes of it.
    assert_eq!((ran.code, ran.out.as_str()), (1, line));
    assert_eq!(
        tree.text(MAP_FILE),
        "sessname=s device_path=a-b path=ip:10.0.1.2,ip:10.0.1.1 path=ip:10.0.2.2,ip:10.0.2.1"
    );
    tree.disk(3, "s", "a-b");
    assert_eq!(good(&tree, &words), "");
}

#[test]
fn a_disk_that_no_file_has_is_refused_with_those_that_there_are() {
    let tree = client();
    tree.file(FILE, CLIENT);
    for (name, remedy) in [
        ("t/disk1", "take one of: t/new"),
        (
            "v/disk1",
            "take one of: s//dev/nullb0 s/disk1 s/a-b t/new u/backup",
        ),
    ] {
        for more in [&[][..], &["--dry-run"], &["--until-done"]] {
            let ran = run(&tree, &[&["apply", "--disk", name], more].concat());
            assert_eq!((ran.code, ran.out.as_str()), (3, ""));
            let expected = format!(
                "ibnbd: disk {name}: the files in /etc/ibtrs have no such disk\n  remedy: {remedy}\n"
            );
            assert_eq!(ran.err, expected);
        }
    }
    tree.file(FILE, "");
    let ran = run(&tree, &["apply", "--disk", "s/disk1"]);
    assert!(ran.err.contains("write it into /etc/ibtrs/client.toml"));
    for words in [
        &["apply", "--disk", "disk1"][..],
        &["apply", "--disk", "a.b/disk1"],
        &["apply", "--disk", "s/disk1", "--prune"],
        &["apply", "--disk", "s/disk1", "--side", "client"],
    ] {
        assert_eq!(run(&tree, words).code, 2, "{words:?}");
    }
}

fn is_unmapped(tree: &Tree, number: usize) -> bool {
    let file = format!("/sys/block/ibnbd{number}/ibnbd/unmap_device");
    tree.text(&file).starts_with("normal")
}

/// The last unit that stops.
#[test]
fn one_unused_disk_is_unmapped() {
    let tree = client();
    assert_eq!(good(&tree, &["unmap", "--unused", "--", "s/disk1"]), "");
    let gone: Vec<usize> = [0, 1, 2, 10]
        .into_iter()
        .filter(|number| is_unmapped(&tree, *number))
        .collect();
    assert_eq!(gone, [1]);
    // Its server has never come, or somebody was faster.
    assert_eq!(
        good(&tree, &["unmap", "--unused", "s/a-b", "ibnbd2"]),
        "s/a-b is not mapped\n"
    );
    assert!(is_unmapped(&tree, 2));
    assert_eq!(
        good(&Tree::new(), &["unmap", "--unused", "s/a-b"]),
        "s/a-b is not mapped\n"
    );
    // A name that fits two disks.
    let ran = run(&tree, &["unmap", "--unused", "/dev/nullb0"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(!is_unmapped(&tree, 0) && !is_unmapped(&tree, 10));
}

/// A unit names a disk by its session and its device, and means no other one.
#[test]
fn the_session_and_the_device_name_one_disk() {
    let tree = client();
    tree.disk(3, "t", "s/disk1");
    assert_eq!(good(&tree, &["unmap", "s/disk1"]), "");
    assert!(is_unmapped(&tree, 1) && !is_unmapped(&tree, 3));
    assert_eq!(good(&tree, &["unmap", "t/s/disk1"]), "");
    assert!(is_unmapped(&tree, 3));
    assert_eq!(good(&tree, &["unmap", "t//dev/nullb0"]), "");
    assert!(is_unmapped(&tree, 10) && !is_unmapped(&tree, 0));
    // The unit's disk is not mapped, but a device of another session is called like it.
    let tree = client();
    tree.disk(3, "t", "s/gone");
    assert_eq!(
        good(&tree, &["unmap", "--unused", "--", "s/gone"]),
        "s/gone is not mapped\n"
    );
    assert!(!is_unmapped(&tree, 3));
}

/// What `ibnbd-client.service` does when it stops.
#[test]
fn disks_with_units_of_their_own_stay() {
    let tree = client();
    tree.file(FILE, CLIENT);
    assert_eq!(good(&tree, &["unmap", "--unused", "--auto"]), "");
    let gone = [0, 1, 2, 10].map(|number| is_unmapped(&tree, number));
    assert_eq!(gone, [true, false, true, true]);
    // Nothing goes if it is not known which those are.
    let tree = client();
    tree.file(FILE, "y\n");
    let ran = run(&tree, &["unmap", "--unused", "--auto"]);
    assert_eq!(ran.code, 6, "{}", ran.err);
    assert!([0, 1, 2, 10]
        .iter()
        .all(|number| !is_unmapped(&tree, *number)));
    for words in [
        &["unmap", "--auto"][..],
        &["unmap", "--auto", "ibnbd0"],
        &["unmap", "--unused", "--auto", "ibnbd0"],
        &["unmap", "--unused", "--persist", "ibnbd0"],
    ] {
        assert_eq!(run(&tree, words).code, 2, "{words:?}");
    }
}
