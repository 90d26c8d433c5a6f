// SPDX-License-Identifier: GPL-2.0

//! A scope in which allocations may use the memory reserves.
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h)

use kernel::types::NotThreadSafe;

/// While it lives, allocations of the current task do not wait for memory, and may take what
/// the kernel keeps in reserve (`PF_MEMALLOC`).
///
/// Only for what makes more memory free than it takes, soon: connecting to storage that cannot be
/// written to otherwise, as the kernel's NFS does for swap. What is taken is to be bounded, as
/// nothing else bounds it. Guards that overlap, of [`NoIo`](super::NoIo) as well, must be dropped
/// in the reverse order of their creation.
///
/// # Context
///
/// Process context.
#[must_use = "the scope ends when this is dropped"]
pub struct Reserve {
    /// What `memalloc_noreclaim_save()` returned.
    flags: u32,
    _not_send: NotThreadSafe,
}

impl Reserve {
    /// Starts the scope.
    pub fn enter() -> Self {
        Self {
            // SAFETY: Only changes the current task's own flags.
            flags: unsafe { ibtrs_bindings::memalloc_noreclaim_save() },
            _not_send: NotThreadSafe,
        }
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // SAFETY: The flags come from the same task, as the type is not `Send`.
        unsafe { ibtrs_bindings::memalloc_noreclaim_restore(self.flags) }
    }
}
