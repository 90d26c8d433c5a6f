// SPDX-License-Identifier: GPL-2.0

//! Blocks of pages, scopes that restrict allocation, and locks that memory reclaim may wait for.
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h)

use kernel::{
    page::PAGE_SIZE,
    types::NotThreadSafe, //
};

mod block;

pub use block::{
    Node,
    PageBlock, //
};

/// Bytes of memory that the kernel manages on this machine.
///
/// # Context
///
/// *any*
pub fn total_bytes() -> u64 {
    // SAFETY: May be called anywhere.
    let pages = unsafe { ibtrs_bindings::kx_totalram_pages() };
    (pages as u64).saturating_mul(PAGE_SIZE as u64)
}

/// While it lives, allocations of the current task behave as with `GFP_NOIO`.
///
/// For code that must make progress so that the system can write out pages, such as connecting to
/// storage. Guards that overlap must be dropped in the reverse order of their creation; otherwise
/// the restriction may end early or stay.
///
/// # Context
///
/// Process context.
#[must_use = "the scope ends when this is dropped"]
pub struct NoIo {
    /// The result of `memalloc_noio_save()`.
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

/// While it lives, allocations of the current task do not wait for memory, and may take the
/// kernel's reserves (`PF_MEMALLOC`).
///
/// Only for code that soon frees more memory than it takes, such as connecting to storage that
/// cannot be written to otherwise, as the kernel's NFS does for swap. The caller has to limit the
/// amount, because nothing else does. Guards that overlap, of [`NoIo`] as well, must be dropped in
/// the reverse order of their creation.
///
/// # Context
///
/// Process context.
#[must_use = "the scope ends when this is dropped"]
pub struct Reserve {
    /// The result of `memalloc_noreclaim_save()`.
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

/// Tells lockdep that reclaiming memory may wait for the locks that `take` takes and gives back.
///
/// Reclaim writes to disks. If a lock is needed to make a disk work again, no allocation under it
/// may wait for reclaim: see [`NoIo`]. From this call on, lockdep reports such an allocation as a
/// circular dependency, even if the allocation finds memory at once. The call covers all locks of
/// the same class, so one is enough; it costs as much as taking a lock, and nothing in a kernel
/// without lockdep.
///
/// # Context
///
/// As `take`, without locks, and outside of [`NoIo`].
pub fn in_reclaim(take: impl FnOnce()) {
    if cfg!(CONFIG_LOCKDEP) {
        // SAFETY: Both only tell lockdep something about the current task, and are paired.
        unsafe { ibtrs_bindings::kx_reclaim_acquire() };
        take();
        // SAFETY: As above.
        unsafe { ibtrs_bindings::kx_reclaim_release() };
    }
}
