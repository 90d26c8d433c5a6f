// SPDX-License-Identifier: GPL-2.0

//! Memory in pages, scopes that restrict allocation, and locks that memory reclaim may wait for.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::mm::{NoIo, Node, PageBlock, Pieces};
//!
//! // No allocation waits for I/O, for as long as the guard lives.
//! let _no_io = NoIo::enter();
//! let block = PageBlock::with_len(8192, Node::ANY)?;
//! block.copy_in(100, b"bytes")?;
//! // Memory that need not be in one piece.
//! let pieces = Pieces::new(1 << 20, Node::new(0))?;
//! pieces.copy_in(4094, b"over the end of a page")?;
//! let mut bytes = [0; 4];
//! pieces.copy_out(4094, &mut bytes)?;
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/sched/mm.h`](srctree/include/linux/sched/mm.h)

use kernel::{
    page::PAGE_SIZE,
    types::NotThreadSafe, //
};

mod block;
mod pieces;
mod record;

pub use block::{
    Node,
    PageBlock, //
};
pub use pieces::Pieces;
pub use record::Record;

/// Returns the size in bytes of the memory that the kernel manages on this machine.
///
/// # Context
///
/// *any*
pub fn total_bytes() -> u64 {
    // SAFETY: The callee only reads a counter, and has no preconditions.
    let pages = unsafe { ibtrs_bindings::kx_totalram_pages() };
    (pages as u64).saturating_mul(PAGE_SIZE as u64)
}

/// Makes allocations of the current task behave as with `GFP_NOIO`, while this value lives.
///
/// For code that must make progress before the system can write out pages, such as connecting to
/// storage. Overlapping guards must be dropped in the reverse order of their creation, or the
/// restriction may end early or remain.
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
            // SAFETY: The call changes only the current task's own flags.
            flags: unsafe { ibtrs_bindings::memalloc_noio_save() },
            _not_send: NotThreadSafe,
        }
    }
}

impl Drop for NoIo {
    fn drop(&mut self) {
        // SAFETY: `enter` has saved the flags of the same task, as the type is not `Send`.
        unsafe { ibtrs_bindings::memalloc_noio_restore(self.flags) }
    }
}

/// Makes allocations of the current task use the kernel's reserves instead of waiting for memory
/// (`PF_MEMALLOC`), while this value lives.
///
/// Only for code that soon frees more memory than it takes, such as connecting to storage to which
/// the kernel must write pages. The kernel's NFS client does the same for swap. The caller must
/// limit the amount, because nothing else does. Overlapping guards, including those of [`NoIo`],
/// must be dropped in the reverse order of their creation.
///
/// # Context
///
/// Process context.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kx::mm::Reserve;
///
/// let request = {
///     let _reserve = Reserve::enter();
///     KBox::new([0u8; 64], GFP_KERNEL)?
/// };
/// # let _ = request;
/// # Ok::<(), Error>(())
/// ```
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
            // SAFETY: The call changes only the current task's own flags.
            flags: unsafe { ibtrs_bindings::memalloc_noreclaim_save() },
            _not_send: NotThreadSafe,
        }
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        // SAFETY: `enter` has saved the flags of the same task, as the type is not `Send`.
        unsafe { ibtrs_bindings::memalloc_noreclaim_restore(self.flags) }
    }
}

/// Tells lockdep that reclaim may wait for the locks that `take` takes and releases.
///
/// Reclaim writes to disks. If a disk needs a lock to work again, no allocation under the lock may
/// wait for reclaim: see [`NoIo`]. After this call, lockdep reports such an allocation as a
/// circular dependency, even if the allocation finds memory at once. One call covers all locks of a
/// class. It costs as much as taking the lock, and nothing in a kernel without lockdep.
///
/// # Context
///
/// The context that `take` requires, without locks held, and outside of [`NoIo`].
///
/// # Examples
///
/// ```
/// # use kernel::sync::Mutex;
/// /// Once, before the first disk needs the lock.
/// fn needed_in_reclaim(lock: &Mutex<u32>) {
///     kx::mm::in_reclaim(|| drop(lock.lock()));
/// }
/// ```
pub fn in_reclaim(take: impl FnOnce()) {
    if cfg!(CONFIG_LOCKDEP) {
        // SAFETY: Both calls only update lockdep's state of the current task, and are paired.
        unsafe { ibtrs_bindings::kx_reclaim_acquire() };
        take();
        // SAFETY: As above.
        unsafe { ibtrs_bindings::kx_reclaim_release() };
    }
}
