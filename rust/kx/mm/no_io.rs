// SPDX-License-Identifier: GPL-2.0

//! A scope in which no allocation starts I/O.
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h)

use kernel::types::NotThreadSafe;

/// While it lives, allocations of the current task behave as with `GFP_NOIO`.
///
/// For what must make progress so that the system can write out pages: connecting to storage,
/// for example. Guards that overlap must be dropped in the reverse order of their creation;
/// otherwise the restriction may end early or stay.
///
/// # Context
///
/// Process context.
#[must_use = "the scope ends when this is dropped"]
pub struct NoIo {
    /// What `memalloc_noio_save()` returned.
    flags: u32,
    _not_send: NotThreadSafe,
}

impl NoIo {
    /// Starts the scope.
    pub fn enter() -> Self {
        Self {
            // SAFETY: Only changes the current task's own flags.
            flags: unsafe { ibtrs_bindings::memalloc_noio_save() },
            _not_send: NotThreadSafe,
        }
    }
}

impl Drop for NoIo {
    fn drop(&mut self) {
        // SAFETY: The flags come from the same task, as the type is not `Send`.
        unsafe { ibtrs_bindings::memalloc_noio_restore(self.flags) }
    }
}
