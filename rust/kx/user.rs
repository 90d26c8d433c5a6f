// SPDX-License-Identifier: GPL-2.0

//! Memory of programs that devices use.
//!
//! [`UserPages`] pins pages of the calling program until nobody needs them any more, which may be after the
//! program has ended. Its [`Owner`] is notified when the address space is torn down, by `exit` or `execve`. No
//! device should access the pages after that, although they stay pinned until the last reference is dropped.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! # use kx::module::ModuleRef;
//! use kx::user::{Owner, Purpose, UserPages};
//!
//! struct Peer;
//!
//! impl Owner for Peer {
//! #   fn module(&self) -> Option<ModuleRef> { None }
//!     fn exits(&self) {
//!         // Take the keys back.
//!     }
//! }
//!
//! /// Pins memory of the calling program for a device that writes there.
//! fn pin(address: usize, len: usize) -> Result<Arc<UserPages>> {
//!     let owner: Arc<dyn Owner> = Arc::new(Peer, GFP_KERNEL)?;
//!     UserPages::pin(address, len, Purpose::Written, Some(owner))
//! }
//! ```
//!
//! C headers: [`include/linux/mm.h`](srctree/include/linux/mm.h),
//! [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use core::{
    mem::ManuallyDrop,
    ptr, //
};

use ibtrs_bindings as ours;
use kernel::{
    bindings,
    error::to_result,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
    types::Opaque,
    workqueue, //
};

use crate::{
    module::ModuleRef,
    sync::SetOnce,
    work::{
        cond_resched,
        flush_later,
        later, //
    }, //
};

/// Pages that are unpinned between two calls of `cond_resched`.
const UNPINNED: usize = 1024;

/// How a device accesses pinned memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// It reads once, soon. The memory may be that of a file.
    ReadOnce,
    /// It reads.
    Read,
    /// It reads or writes.
    Written,
}

/// The owner of pinned memory, which is notified when the program's address space is torn down.
pub trait Owner: Send + Sync {
    /// Takes a reference to the module of this code, which stays loaded until the pages are unpinned.
    fn module(&self) -> Option<ModuleRef>;

    /// The address space is being torn down, or the pages were unpinned. May be called more than
    /// once.
    ///
    /// # Context
    ///
    /// *may sleep*, but must not wait for the program, whose exit waits for this.
    fn exits(&self);
}

/// A pointer to a page, which has no thread affinity.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Page(*mut bindings::page);

// SAFETY: A pointer to a page may be used by any thread.
unsafe impl Send for Page {}
// SAFETY: As above.
unsafe impl Sync for Page {}

/// An address space, with a reference to its structure.
struct Mm(*mut bindings::mm_struct);

// SAFETY: Any thread may use the counter of an address space, and drop a reference.
unsafe impl Send for Mm {}
// SAFETY: As above.
unsafe impl Sync for Mm {}

/// Pinned pages, which are unpinned in process context after the last user has dropped them.
///
/// # Invariants
///
/// - This value owns a reference to `mm`, which counts `count` pages as pinned.
/// - All of `pages` are pinned once, for writing if `writes` is set.
/// - `notifier` is registered for `mm` if `is_watched` is set.
#[pin_data(PinnedDrop)]
struct Pinned {
    #[pin]
    notifier: Opaque<ours::mmu_notifier>,
    #[pin]
    release: workqueue::Work<Self>,
    is_watched: SetOnce<()>,
    owner: Option<Arc<dyn Owner>>,
    // Dropped after `owner`, whose code is in the module.
    module: Option<ModuleRef>,
    pages: KVVec<Page>,
    count: usize,
    writes: bool,
    mm: Mm,
}

// SAFETY: The notifier belongs to the memory manager, which may call it from any thread; all else is `Send`.
unsafe impl Send for Pinned {}
// SAFETY: As above; and everything else that is shared is `Sync`.
unsafe impl Sync for Pinned {}

kernel::impl_has_work! {
    impl HasWork<Self> for Pinned { self.release }
}

impl workqueue::WorkItem for Pinned {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Nobody else has a reference.
        drop(this);
    }
}

/// The operations of the notifiers.
static OPS: Ops = Ops({
    // SAFETY: Zeroes are a table without functions.
    let mut ops: ours::mmu_notifier_ops = unsafe { core::mem::zeroed() };
    ops.release = Some(exits);
    ops
});

#[repr(transparent)]
struct Ops(ours::mmu_notifier_ops);

// SAFETY: The table is constant.
unsafe impl Sync for Ops {}

/// Called when an address space ends.
///
/// # Safety
///
/// `notifier` must be that of a [`Pinned`], registered.
unsafe extern "C" fn exits(notifier: *mut ours::mmu_notifier, _mm: *mut bindings::mm_struct) {
    // SAFETY: By this function's contract it is the field of a `Pinned`. `Opaque` is transparent. The value lives
    // until `mmu_notifier_unregister` has returned, which waits for this call.
    let pinned = unsafe { &*kernel::container_of!(Opaque::cast_from(notifier), Pinned, notifier) };
    if let Some(owner) = &pinned.owner {
        owner.exits();
    }
}

#[pinned_drop]
impl PinnedDrop for Pinned {
    fn drop(self: Pin<&mut Self>) {
        if self.is_watched.as_ref().is_some() {
            // SAFETY: By the type invariant the notifier is registered for this address space, whose structure has
            // a reference. This context may sleep: `UserPages` drops the value in a work item, and `UserPages::pin`
            // in process context.
            unsafe { ours::mmu_notifier_unregister(self.notifier.get(), self.mm.0) };
        }
        for portion in self.pages.chunks(UNPINNED) {
            // SAFETY: By the type invariant these pages are pinned, once. They are written to only if they were pinned
            // for that. CAST: `Page` is transparent; the callee does not write to the list.
            unsafe {
                ours::unpin_user_pages_dirty_lock(
                    portion.as_ptr().cast_mut().cast(),
                    portion.len(),
                    self.writes,
                )
            };
            cond_resched();
        }
        // SAFETY: By the type invariant the pages are counted there, and the reference is that of this value, which
        // ends.
        unsafe { ours::kx_uncharge_pinned(self.mm.0, self.count) };
    }
}

/// Pages of a program that stay where they are, even if the program ends.
///
/// They count as pinned by the program (`VmPin` in `/proc/PID/status`), within its limit for locked memory.
///
/// # Context
///
/// It may be dropped in any context. A work item then unpins the pages.
pub struct UserPages {
    /// Taken when this is dropped.
    pinned: ManuallyDrop<Arc<Pinned>>,
    /// Where the memory begins in the first page.
    offset: usize,
    len: usize,
}

impl UserPages {
    /// Pages that are pinned at a time.
    const PORTION: usize = 64;
    /// Maximum number of pages of one [`UserPages`].
    const MOST: usize = 1 << 22;

    /// Pins `len` bytes of the calling program from `address` on, for `purpose`.
    ///
    /// # Context
    ///
    /// *may sleep*; in a system call of the program.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`]: no bytes, or too many,
    /// - [`ENOMEM`]: the program may not lock so much memory (`RLIMIT_MEMLOCK`), or there is none,
    /// - [`EFAULT`]: the memory is not mapped, or not with the permissions for `purpose`,
    /// - [`EOPNOTSUPP`]: it is neither anonymous nor shared memory.
    pub fn pin(
        address: usize,
        len: usize,
        purpose: Purpose,
        owner: Option<Arc<dyn Owner>>,
    ) -> Result<Arc<Self>> {
        let offset = address % PAGE_SIZE;
        let end = address.checked_add(len).ok_or(EFAULT)?;
        let count = end.div_ceil(PAGE_SIZE) - address / PAGE_SIZE;
        if len == 0 || count > Self::MOST {
            return Err(EINVAL);
        }
        let pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        // SAFETY: The helper only accesses the current task, and returns null if the task has no
        // address space.
        let charge = || unsafe { ours::kx_charge_pinned(count) };
        let mut mm = charge();
        if mm.is_null() {
            // Memory that the program no longer uses may still be counted: one work item unmaps it, and queues another that
            // unpins it.
            flush_later();
            flush_later();
            mm = charge();
        }
        if mm.is_null() {
            return Err(ENOMEM);
        }
        let is_watched = owner.is_some();
        let module = owner.as_ref().and_then(|owner| owner.module());
        let pinned = pin_init!(Pinned {
            notifier <- Opaque::ffi_init(|slot: *mut ours::mmu_notifier| {
                // SAFETY: `slot` is valid for writes. Zeroes are a notifier that is in no list.
                unsafe { slot.write_bytes(0, 1) };
                // SAFETY: As above.
                unsafe { (*slot).ops = &raw const OPS.0 };
            }),
            release <- kernel::new_work!("UserPages::release"),
            is_watched: SetOnce::new(),
            owner,
            module,
            pages,
            count,
            writes: purpose == Purpose::Written,
            // INVARIANT: That many pages were just counted, and none is pinned yet.
            mm: Mm(mm),
        });
        let pinned = match kernel::sync::UniqueArc::pin_init(pinned, GFP_KERNEL_ACCOUNT) {
            Ok(pinned) => pinned,
            Err(e) => {
                // SAFETY: The pages were just counted, and the reference has no other owner.
                unsafe { ours::kx_uncharge_pinned(mm, count) };
                return Err(e);
            }
        };
        let pinned = Self::fill(pinned, address - offset, purpose)?;
        if is_watched {
            // SAFETY: The notifier is initialised and stays where it is until it is unregistered, before it is
            // dropped. The address space is that of the current program: nothing here lasts longer than its system
            // call. None of its locks are held.
            to_result(unsafe { ours::mmu_notifier_register(pinned.notifier.get(), mm) })?;
            // INVARIANT: It was just registered.
            pinned.is_watched.populate(());
        }
        let this = Self {
            pinned: ManuallyDrop::new(pinned),
            offset,
            len,
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Pins the pages that are counted.
    fn fill(
        mut pinned: Pin<kernel::sync::UniqueArc<Pinned>>,
        mut address: usize,
        purpose: Purpose,
    ) -> Result<Arc<Pinned>> {
        let writes = pinned.writes;
        let mut left = pinned.count;
        while left > 0 {
            let mut portion = [ptr::null_mut(); Self::PORTION];
            let most = left.min(portion.len());
            // SAFETY: The list has room for that many pages. CAST: A small number.
            let got = unsafe {
                ours::kx_pin_user_pages(address, most as c_int, writes, portion.as_mut_ptr())
            };
            if got <= 0 {
                return Err(Self::refusal(address, got));
            }
            // CAST: Not negative.
            let got = got as usize;
            let mut is_plain = true;
            for page in portion.iter().take(got).copied() {
                // SAFETY: The page was just pinned.
                is_plain &= unsafe { ours::kx_is_plain_memory(page) };
                // INVARIANT: It was just pinned, and there is a place for each page.
                let _ = pinned
                    .as_mut()
                    .project()
                    .pages
                    .push_within_capacity(Page(page));
            }
            if !is_plain && purpose != Purpose::ReadOnce {
                return Err(EOPNOTSUPP);
            }
            address = address.wrapping_add(got * PAGE_SIZE);
            left -= got;
            cond_resched();
        }
        Ok(pinned.into())
    }

    /// Why no page at `address` was pinned.
    fn refusal(address: usize, got: c_int) -> Error {
        match to_result(got) {
            Err(e) if e != EFAULT => e,
            // SAFETY: The current task has memory, as `kx_charge_pinned` has returned it in this call of `pin`, which
            // runs where it may sleep and takes no lock of that memory.
            _ if unsafe { ours::kx_is_file_memory(address) } => EOPNOTSUPP,
            _ => EFAULT,
        }
    }

    /// Number of bytes.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes in all pinned pages, which may be many more than [`Self::len`].
    pub fn pinned_len(&self) -> usize {
        self.pinned.count * PAGE_SIZE
    }

    /// Returns the contiguous pieces of the `len` bytes from `at` on, each of at most `most` bytes or one page, whichever
    /// is larger. Each but the last ends at a page boundary.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the range exceeds the memory.
    pub fn spans(&self, at: usize, len: usize, most: usize) -> Result<Spans<'_>> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(Spans {
                pages: &self.pinned.pages,
                next: self.offset + at,
                left: len,
                most,
            }),
            _ => Err(EINVAL),
        }
    }
}

impl Drop for UserPages {
    fn drop(&mut self) {
        // SAFETY: It is taken once, as this value ends.
        let pinned = unsafe { ManuallyDrop::take(&mut self.pinned) };
        // It cannot be queued yet: only this value queues it.
        let _ = later(pinned);
    }
}

/// A piece of contiguous memory.
#[derive(Clone, Copy)]
pub struct Span {
    /// The first page.
    pub page: *mut bindings::page,
    /// Where it begins in that page.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Pieces of contiguous memory, see [`UserPages::spans`].
pub struct Spans<'a> {
    pages: &'a [Page],
    /// The next byte, from the first page on.
    next: usize,
    left: usize,
    most: usize,
}

/// The maximum length of a piece that begins at `offset` in its first page: at most `most` bytes, or the rest of that page
/// if it is longer, and ending at a page boundary.
const fn span_limit(offset: usize, most: usize) -> usize {
    let end = offset.saturating_add(most) / PAGE_SIZE * PAGE_SIZE;
    let end = if end == 0 { PAGE_SIZE } else { end };
    end - offset
}

impl Iterator for Spans<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        if self.left == 0 {
            return None;
        }
        let (first, offset) = (self.next / PAGE_SIZE, self.next % PAGE_SIZE);
        let Page(page) = *self.pages.get(first)?;
        let mut len = PAGE_SIZE - offset;
        let most = self.left.min(span_limit(offset, self.most));
        let (mut last, mut at) = (page, first + 1);
        while len < most {
            let Some(Page(other)) = self.pages.get(at).copied() else {
                break;
            };
            // SAFETY: Both pages are pinned, by the type invariant of `Pinned`.
            if !unsafe { ours::kx_page_follows(last, other) } {
                break;
            }
            (last, at, len) = (other, at + 1, len + PAGE_SIZE);
        }
        let len = len.min(most);
        self.next += len;
        self.left -= len;
        Some(Span { page, offset, len })
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_user)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_pages() {
        for (offset, most, limit) in [
            (0, PAGE_SIZE, PAGE_SIZE),
            (7, PAGE_SIZE, PAGE_SIZE - 7),
            (0, 3 * PAGE_SIZE + 1, 3 * PAGE_SIZE),
            (1, 3 * PAGE_SIZE + 1, 3 * PAGE_SIZE - 1),
            (PAGE_SIZE - 1, 2 * PAGE_SIZE, PAGE_SIZE + 1),
            // A device that maps less than a page fails for itself.
            (9, 1, PAGE_SIZE - 9),
        ] {
            assert_eq!(span_limit(offset, most), limit);
        }
        for offset in [0, 5, PAGE_SIZE - 1] {
            let limit = span_limit(offset, usize::MAX);
            assert!(limit > 1 << 30 && (offset + limit) % PAGE_SIZE == 0);
        }
    }
}
