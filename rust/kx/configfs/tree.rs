// SPDX-License-Identifier: GPL-2.0

//! The count of a subsystem's directories that still have references.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::sync::{
    atomic::{
        Atomic,
        Full,
        Relaxed, //
    },
    Completion, //
};

/// Interval in milliseconds between log lines while [`Tree::wait_gone`] waits.
const LOG_INTERVAL_MS: u32 = 30_000;

/// The count of a [`Subsystem`](super::Subsystem) and its directories that still have references.
/// Each [`Folder`](super::Folder) is created for one tree.
///
/// A [`Directory`](super::Directory) only borrows the tree, so a `Tree` exists only while the
/// subsystem or a directory is counted, and the count never rises from zero.
pub struct Tree(Arc<Count>);

#[pin_data]
struct Count {
    left: Atomic<usize>,
    /// Completed when `left` becomes zero.
    #[pin]
    gone: Completion,
}

impl Tree {
    /// Creates a tree, and the member for its subsystem.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(super) fn new() -> Result<(Self, Member)> {
        let count = Arc::pin_init(
            pin_init!(Count {
                left: Atomic::new(0),
                gone <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        let tree = Self(count);
        let member = tree.join();
        Ok((tree, member))
    }

    /// Counts one more directory.
    pub(super) fn join(&self) -> Member {
        // ORDERING: No other data depends on the new value, as the owner of `self` is counted
        // already.
        self.0.left.fetch_add(1, Relaxed);
        Member(Self(self.0.clone()))
    }

    /// Returns whether both are the same tree.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until no member is left.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(super) fn wait_gone(&self) {
        while self.0.gone.wait_timeout(LOG_INTERVAL_MS).is_err() {
            pr_warn!("configfs: unloading waits for a task in symlink(), which may be looking up the link's target on a slow disk or file server\n");
        }
    }
}

/// A directory, counted in its tree until this is dropped.
pub(super) struct Member(Tree);

impl Member {
    pub(super) fn tree(&self) -> &Tree {
        &self.0
    }
}

impl Drop for Member {
    /// This function is neither generic nor inlined, so that it is not part of the driver's module,
    /// which may be unloaded a moment later: see [`LastTails`](crate::module::LastTails).
    #[inline(never)]
    fn drop(&mut self) {
        let count = &self.0 .0;
        // ORDERING: The task that waits for the last member sees everything that the owners of all
        // members did before.
        if count.left.fetch_sub(1, Full) == 1 {
            count.gone.complete_all();
        }
    }
}
