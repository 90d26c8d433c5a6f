// SPDX-License-Identifier: GPL-2.0

use std::collections::BTreeSet;

use crate::model::Machine;
use crate::root::Root;
use crate::tree;

fn many() -> tree::Tree {
    let tree = tree::Tree::new();
    tree.client();
    for number in 0..64 {
        let paths = [
            ("10.0.1.2", "10.0.1.1", "connected"),
            ("10.0.2.2", "10.0.2.1", "disconnected"),
        ];
        tree.session(&format!("s{number}"), &paths);
    }
    for number in 0..200 {
        tree.disk(
            number,
            &format!("s{}", number % 64),
            &format!("disk{number}"),
        );
    }
    tree
}

/// How many files were opened, each of them once.
fn openings(root: &Root) -> usize {
    let opened = root.opened.borrow();
    let different: BTreeSet<_> = opened.iter().collect();
    assert_eq!(opened.len(), different.len());
    opened.len()
}

/// 200 disks and 64 sessions: each file is opened once.
#[test]
fn each_value_is_one_opening() {
    let tree = many();
    let root = Root::new(tree.base());
    let machine = Machine::read(&root);
    assert_eq!((machine.disks.len(), machine.sessions.len()), (200, 64));
    // The values that are shown of each, and not more; and which sessions stay open without a disk.
    assert_eq!(openings(&root), 200 * 16 + 64 * (13 + 2 * 14) + 1);
}

#[test]
fn a_list_opens_what_it_shows() {
    let tree = many();
    for (fields, each, of_paths) in [
        (
            &[
                "state",
                "size_bytes",
                "access_mode",
                "session",
                "paths",
                "mapping_path",
            ][..],
            5,
            256,
        ),
        (&["state", "session"], 2, 0),
        (&["paths"], 1, 256),
        (&[], 0, 0),
    ] {
        let root = Root::new(tree.base());
        let machine = Machine::read_list(&root, &|field| fields.contains(&field));
        assert_eq!(machine.disks.len(), 200);
        assert_eq!(openings(&root), 200 * each + of_paths, "{fields:?}");
        if of_paths != 0 {
            assert!(machine
                .disks
                .iter()
                .all(|d| (d.paths, d.paths_connected) == (2, 1)));
        }
    }
}

/// With all fields a list has the same disks and devices as all of the machine.
#[test]
fn a_list_is_a_part_of_the_machine() {
    let tree = tree::Tree::new();
    tree.usual_client()
        .mainline()
        .server("/x")
        .opened("sda", "u", "a");
    let root = Root::new(tree.base());
    let (all, list) = (Machine::read(&root), Machine::read_list(&root, &|_| true));
    assert_eq!((all.disks.len(), all.opened.len()), (4, 2));
    assert_eq!((list.disks, list.opened), (all.disks, all.opened));
}
