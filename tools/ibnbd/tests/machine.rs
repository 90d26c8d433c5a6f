// SPDX-License-Identifier: GPL-2.0

//! Sysfs trees of healthy and of damaged machines.

mod tree;

use std::fs;

use ibnbd_host::family::{Family, Side};
use ibnbd_host::model::{PathState, SessionState};
use ibnbd_host::value::Operation;
use ibnbd_host::{Machine, Root};
use tree::Tree;

fn read(tree: &Tree) -> Machine {
    let root = Root::new(tree.base());
    let mut machine = Machine::read(&root);
    machine.read_stats(&root);
    machine.read_disk_stats(&root);
    machine
}

#[test]
fn a_machine_without_modules_is_empty() {
    let tree = Tree::new();
    let machine = read(&tree);
    assert!(machine.is_empty());
    assert!(machine.notes.is_empty(), "{:?}", machine.notes);
}

#[test]
fn a_client_has_disks_sessions_and_paths() {
    let tree = Tree::new();
    tree.usual_client();
    let machine = read(&tree);
    assert!(machine.notes.is_empty(), "{:?}", machine.notes);
    let names: Vec<_> = machine.disks.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["ibnbd0", "ibnbd1", "ibnbd10"]);
    let disk = &machine.disks[2];
    assert_eq!((disk.paths_connected, disk.paths), (1, 2));
    assert_eq!(disk.size_bytes, Some(131_072 * 512));
    assert_eq!(disk.stat.unwrap().flushes, 3);
    let latency = disk.latency.as_ref().unwrap();
    assert_eq!(latency.percentile(50, Operation::Flush), Some(2));
    assert!(disk.is_open() && disk.has_identity());
    let states: Vec<_> = machine.sessions.iter().map(|s| s.state).collect();
    assert_eq!(states, [SessionState::Connected, SessionState::Degraded]);
    let path = &machine.sessions[1].paths[1];
    assert_eq!(path.state, PathState::Disconnected);
    assert_eq!(
        path.last_error.as_deref(),
        Some("no heartbeat from the server (ETIMEDOUT)")
    );
    let stats = path.stats.as_ref().unwrap();
    assert_eq!(stats.traffic.unwrap().failovers, Some(2));
    assert_eq!(
        stats
            .latency
            .as_ref()
            .unwrap()
            .percentile(50, Operation::Read),
        Some(8)
    );
}

#[test]
fn a_server_has_sessions_and_opened_devices() {
    let tree = Tree::new();
    tree.server("/dev/ibnbd-exports")
        .served("s", "10.0.1.2", "10.0.1.1")
        .opened("nullb0", "s", "disk1")
        .opened("nullb0", "t.3", "disk1");
    let machine = read(&tree);
    assert!(machine.notes.is_empty(), "{:?}", machine.notes);
    assert_eq!(machine.sessions[0].side, Side::Server);
    assert_eq!(machine.sessions[0].state, SessionState::Connected);
    let opened: Vec<_> = machine
        .opened
        .iter()
        .map(|o| (o.session.as_str(), o.entry.as_str()))
        .collect();
    assert_eq!(opened, [("s", "s"), ("t", "t.3")]);
}

#[test]
fn the_kernels_own_modules_are_read_too() {
    let tree = Tree::new();
    tree.mainline();
    let machine = read(&tree);
    assert!(machine.notes.is_empty(), "{:?}", machine.notes);
    let disk = &machine.disks[0];
    assert_eq!(
        (disk.family, disk.paths, disk.cache_lost),
        (Family::Rnbd, 1, None)
    );
    let sides: Vec<_> = machine
        .sessions
        .iter()
        .map(|s| (s.name.as_str(), s.side))
        .collect();
    assert_eq!(sides, [("m", Side::Client), ("n", Side::Server)]);
    assert_eq!(
        machine.sessions[0].settings.mp_policy.as_deref(),
        Some("min-inflight")
    );
    assert_eq!(machine.opened[0].access_mode.as_deref(), Some("migration"));
}

/// Each file of the tree in turn has bad contents: everything else is read as before.
#[test]
fn damage_stays_where_it_is() {
    for (damage, bytes) in [
        ("empty", &b""[..]),
        ("garbage", b"\x01\x02 0x?!\nx\n"),
        ("no text", b"\xff\xfe\n"),
    ] {
        let whole = Tree::new();
        whole
            .usual_client()
            .server("/x")
            .served("u", "10.0.1.3", "10.0.1.1")
            .opened("sda", "u", "a");
        let files = files_of(&whole);
        assert!(files.len() > 50);
        for file in files {
            let before = fs::read(&file).unwrap();
            fs::write(&file, bytes).unwrap();
            let machine = read(&whole);
            let what = format!("{damage} {}", file.display());
            assert_eq!(
                (
                    machine.disks.len(),
                    machine.sessions.len(),
                    machine.opened.len()
                ),
                (3, 3, 1),
                "{what}"
            );
            assert!(machine.notes.len() <= 3, "{what}: {:?}", machine.notes);
            for note in &machine.notes {
                assert!(
                    file.ends_with(note.file.trim_start_matches('/')),
                    "{what}: {note:?}"
                );
            }
            fs::write(&file, before).unwrap();
        }
    }
}

#[test]
fn what_is_missing_is_left_out_without_a_word() {
    let whole = Tree::new();
    whole.usual_client();
    for file in files_of(&whole) {
        let before = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let machine = read(&whole);
        assert_eq!(machine.disks.len(), 3, "{}", file.display());
        assert!(
            machine.notes.is_empty(),
            "{}: {:?}",
            file.display(),
            machine.notes
        );
        fs::write(&file, before).unwrap();
    }
}

#[test]
fn a_huge_file_is_no_value() {
    let tree = Tree::new();
    tree.usual_client()
        .file("/sys/block/ibnbd0/ibnbd/session", vec![b's'; 3 << 20]);
    let machine = read(&tree);
    assert_eq!(machine.disks[0].session, None);
    assert_eq!(machine.notes.len(), 1);
}

#[test]
fn a_disk_that_is_going_is_not_shown() {
    let tree = Tree::new();
    tree.usual_client()
        .file("/sys/block/ibnbd7/size", "8\n")
        .file("/sys/block/ibnbdx/ibnbd/state", "open\n");
    let machine = read(&tree);
    assert!(machine
        .disks
        .iter()
        .all(|d| d.name != "ibnbd7" && d.name != "ibnbdx"));
}

#[test]
fn what_cannot_be_read_is_told() {
    let tree = Tree::new();
    tree.usual_client();
    let file = tree.real("/sys/block/ibnbd0/ibnbd/wwid");
    fs::remove_file(&file).unwrap();
    // Root may read any file, but not a folder as one.
    fs::create_dir(&file).unwrap();
    let machine = read(&tree);
    assert_eq!(machine.notes.len(), 1, "{:?}", machine.notes);
    assert_eq!(machine.notes[0].file, "/sys/block/ibnbd0/ibnbd/wwid");
}

#[test]
fn files_in_place_of_folders_are_none() {
    let tree = Tree::new();
    tree.file("/sys/class/ibtrs-client", "")
        .file("/sys/block", "")
        .file("/sys/class/ibnbd-server/ctl/devices", "x");
    let machine = read(&tree);
    assert!(machine.is_empty());
}

/// Files that appear and vanish during a reading do no harm.
#[test]
fn things_vanish_while_they_are_read() {
    let tree = Tree::new();
    tree.usual_client();
    let base = tree.base().to_owned();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let disk = base.join("sys/block/ibnbd1");
            let path = base.join("sys/class/ibtrs-client/t/paths/ip:10.0.2.2@ip:10.0.3.2");
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = fs::remove_dir_all(&disk);
                let _ = fs::remove_dir_all(&path);
                tree.disk(1, "s", "disk1");
                tree.session("t", &[("10.0.2.2", "10.0.3.2", "disconnected")]);
            }
        });
        for _ in 0..300 {
            let machine = read(&tree);
            assert!(machine.disks.len() == 2 || machine.disks.len() == 3);
            assert_eq!(machine.sessions.len(), 2);
            assert_eq!(machine.sessions[0].paths.len(), 2);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

fn files_of(tree: &Tree) -> Vec<std::path::PathBuf> {
    fn walk(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(tree.base(), &mut found);
    found.sort();
    found
}
