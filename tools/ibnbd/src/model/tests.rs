// SPDX-License-Identifier: GPL-2.0

use std::collections::BTreeSet;

use crate::model::Machine;
use crate::root::Root;

#[path = "../../tests/tree/mod.rs"]
mod tree;

/// 200 disks and 64 sessions: each file is opened once.
#[test]
fn each_value_is_one_opening() {
    let tree = tree::Tree::new();
    tree.client();
    for number in 0..64 {
        let paths = [
            ("10.0.1.2", "10.0.1.1", "connected"),
            ("10.0.2.2", "10.0.2.1", "connected"),
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
    let root = Root::new(tree.base());
    let machine = Machine::read(&root);
    assert_eq!((machine.disks.len(), machine.sessions.len()), (200, 64));
    let opened = root.opened.borrow();
    let different: BTreeSet<_> = opened.iter().collect();
    assert_eq!(opened.len(), different.len());
    // What is shown of each, and not more.
    assert_eq!(opened.len(), 200 * 11 + 64 * (6 + 2 * 7));
}
