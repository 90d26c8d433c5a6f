// SPDX-License-Identifier: GPL-2.0

//! Changes of configfs, carried out on what a test has in place of the kernel.

use std::fmt::Debug;

use ibnbd_host::configfs::change::{self, Change};

/// Carries out the changes of each command. Whichever of them fails, the kernel must have
/// afterwards what it had before.
pub fn are_all_or_nothing<K: Clone + PartialEq + Debug>(
    commands: Vec<(K, Vec<Change>)>,
    apply: fn(&mut K, &Change) -> Result<(), &'static str>,
) {
    for (before, changes) in commands {
        for fails in 0..changes.len() {
            let mut kernel = before.clone();
            let mut number = 0;
            let failed = change::all(&changes, |change| {
                number += 1;
                if number == fails + 1 {
                    return Err("fault");
                }
                apply(&mut kernel, change)
            });
            let failed = failed.unwrap_err();
            assert_eq!(
                (failed.error, failed.left),
                ("fault", Vec::new()),
                "{changes:?}"
            );
            assert_eq!(failed.change, changes[fails]);
            assert_eq!(kernel, before, "{changes:?} at {fails}");
        }
        let mut kernel = before.clone();
        assert_eq!(
            change::all(&changes, |change| apply(&mut kernel, change)),
            Ok(())
        );
        assert_ne!(kernel, before, "{changes:?}");
    }
}
