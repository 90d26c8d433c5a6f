// SPDX-License-Identifier: GPL-2.0

//! Locks that memory reclaim may wait for.
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h)

/// Tells lockdep that reclaiming memory may wait for the locks that `take` takes and gives back.
///
/// Reclaim writes to disks. If it takes such a lock to make a disk work again, nobody may allocate
/// under it in a way that waits for reclaim: see [`NoIo`](super::NoIo). From this call on, lockdep
/// reports such an allocation as a circular dependency, also where it finds memory at once. This
/// is about all locks of the same class, so that one call is enough; it costs as much as a lock,
/// and in a kernel without lockdep nothing.
///
/// # Context
///
/// As `take`, without locks, and outside of [`NoIo`](super::NoIo).
pub fn in_reclaim(take: impl FnOnce()) {
    if cfg!(CONFIG_LOCKDEP) {
        // SAFETY: Both only tell lockdep something about the current task, and are paired.
        unsafe { ibtrs_bindings::kx_reclaim_acquire() };
        take();
        // SAFETY: As above.
        unsafe { ibtrs_bindings::kx_reclaim_release() };
    }
}
