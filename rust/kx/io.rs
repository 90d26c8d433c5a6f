// SPDX-License-Identifier: GPL-2.0

//! I/Os of any origin, in the form in which a driver passes them to a transport.
//!
//! [`IoHandle`] is an owned I/O with its type erased. It gives access to the memory of the I/O's
//! data, and the transport ends it exactly once. It wraps a block request, or a [`SyncIo`] that a
//! thread waits for. Creating one allocates nothing.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::io::SyncIo;
//!
//! let io = SyncIo::new(4096)?;
//! let handle = io.handle()?;
//! // The owner of the handle ends the I/O, usually in another task.
//! handle.done(Ok(()));
//! io.wait_interruptible_timeout(1000)?;
//! let answer = io.bytes()?;
//! # let _ = answer;
//! # Ok::<(), Error>(())
//! ```

use crate::{
    mm::PageBlock,
    sg::{
        SgList,
        SgTable, //
    },
    sync::{
        atomic::{
            Acquire,
            Atomic,
            AtomicFlag,
            Full,
            Relaxed,
            Release, //
        },
        Completion, //
    }, //
};
use core::{
    any::TypeId,
    cell::UnsafeCell,
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    ffi::c_void,
    prelude::*,
    sync::Arc,
    time::Msecs, //
};

/// An I/O that can be passed to a transport as an [`IoHandle`].
///
/// # Safety
///
/// Between `into_raw` and `from_raw`, the table that `sg` returns must be reachable only through
/// the raw pointer, must not move, and must describe only memory of this I/O, to whose contents
/// there is no reference. Several threads may call `is_wanted` and `is_cancelled` at a time.
pub unsafe trait Io: Send + Sized + 'static {
    /// Gives up the I/O as a raw pointer, which owns the I/O until [`Self::from_raw`].
    fn into_raw(self) -> NonNull<c_void>;

    /// Reclaims the I/O.
    ///
    /// # Safety
    ///
    /// `raw` must come from [`Self::into_raw`], and must not be used again.
    unsafe fn from_raw(raw: NonNull<c_void>) -> Self;

    /// Returns the table of the I/O's memory, or [`None`] if the I/O carries no data, as after
    /// [`Self::end_early`].
    ///
    /// # Context
    ///
    /// *any*.
    ///
    /// # Safety
    ///
    /// `raw` must come from [`Self::into_raw`], and must not have been reclaimed.
    unsafe fn sg(raw: NonNull<c_void>) -> Option<NonNull<SgTable>>;

    /// Copies the first `len` bytes of the I/O's memory to `block` (`out`), or from there, without
    /// the table; returns false, and copies nothing, if that is not possible.
    ///
    /// # Context
    ///
    /// *any*.
    ///
    /// # Safety
    ///
    /// As for [`Self::sg`], and nobody else may be using the table. `block` must be valid for `len`
    /// bytes, to which there is no reference. Other threads and devices may access both sides
    /// concurrently.
    unsafe fn copy(_raw: NonNull<c_void>, _block: *mut u8, _len: usize, _out: bool) -> bool {
        false
    }

    /// Returns whether the result of the I/O is still wanted. If not, the transport should end the
    /// I/O rather than keep it for later.
    ///
    /// # Context
    ///
    /// *any*.
    ///
    /// # Safety
    ///
    /// As for [`Self::sg`].
    unsafe fn is_wanted(_raw: NonNull<c_void>) -> bool {
        true
    }

    /// Returns whether the transport should report the failure of the I/O to its users before the
    /// I/O ends, see [`Self::end_early`].
    ///
    /// # Context
    ///
    /// *any*.
    ///
    /// # Safety
    ///
    /// As for [`Self::sg`].
    unsafe fn is_cancelled(_raw: NonNull<c_void>) -> bool {
        false
    }

    /// Reports an error to the users of the I/O. The I/O has no memory afterwards, and
    /// [`Self::done`] still follows.
    ///
    /// # Context
    ///
    /// *any*.
    ///
    /// # Safety
    ///
    /// As for [`Self::sg`], and nobody may use the I/O's memory any more.
    unsafe fn end_early(_raw: NonNull<c_void>, _error: Error) {}

    /// Records the trailer of the answer to the I/O, if it has one, and the number of the
    /// transport's path over which the answer arrived; [`Self::done`] follows.
    ///
    /// # Context
    ///
    /// *any*.
    ///
    /// # Safety
    ///
    /// `raw` must come from [`Self::into_raw`], must not have been reclaimed, and must not be used
    /// concurrently.
    unsafe fn note_answer(_raw: NonNull<c_void>, _trailer: Option<u32>, _path: u32) {}

    /// Ends the I/O.
    ///
    /// # Context
    ///
    /// *any*.
    fn done(self, result: Result);
}

/// An owned I/O of any type.
///
/// Dropping it ends the I/O with `EIO`.
///
/// # Invariants
///
/// `raw` comes from [`Io::into_raw`] of the type that `vtable` is for, and has not been reclaimed.
#[must_use = "an I/O that is dropped ends in an error"]
pub struct IoHandle {
    raw: NonNull<c_void>,
    vtable: &'static IoVtable,
}

struct IoVtable {
    sg: unsafe fn(NonNull<c_void>) -> Option<NonNull<SgTable>>,
    copy: unsafe fn(NonNull<c_void>, *mut u8, usize, bool) -> bool,
    is_wanted: unsafe fn(NonNull<c_void>) -> bool,
    is_cancelled: unsafe fn(NonNull<c_void>) -> bool,
    end_early: unsafe fn(NonNull<c_void>, Error),
    note_answer: unsafe fn(NonNull<c_void>, Option<u32>, u32),
    done: unsafe fn(NonNull<c_void>, Result),
    type_id: fn() -> TypeId,
}

struct VtableOf<T>(PhantomData<T>);

impl<T: Io> VtableOf<T> {
    const TABLE: &'static IoVtable = &IoVtable {
        sg: T::sg,
        copy: T::copy,
        is_wanted: T::is_wanted,
        is_cancelled: T::is_cancelled,
        end_early: T::end_early,
        note_answer: T::note_answer,
        done: Self::done,
        type_id: TypeId::of::<T>,
    };

    /// # Safety
    ///
    /// As for [`Io::from_raw`].
    unsafe fn done(raw: NonNull<c_void>, result: Result) {
        // SAFETY: By this function's contract.
        unsafe { T::from_raw(raw) }.done(result);
    }
}

// SAFETY: The handle owns an I/O, whose type is `Send`, as `Io` requires.
unsafe impl Send for IoHandle {}
// SAFETY: Shared references allow only `is_wanted` and `is_cancelled`, which several threads may
// call at a time by the contract of `Io`.
unsafe impl Sync for IoHandle {}

impl IoHandle {
    /// Erases the type of an I/O.
    #[inline]
    pub fn new<T: Io>(io: T) -> Self {
        // INVARIANT: Both the pointer and the vtable come from `T`.
        Self {
            raw: io.into_raw(),
            vtable: VtableOf::<T>::TABLE,
        }
    }

    /// Returns the table of the I/O's memory, or [`None`] if the I/O carries no data.
    ///
    /// # Context
    ///
    /// *any*.
    #[inline]
    pub fn sg(&mut self) -> Option<&mut SgTable> {
        // SAFETY: By the type invariant, `raw` has not been reclaimed.
        let table = unsafe { (self.vtable.sg)(self.raw) };
        // SAFETY: By the contract of `Io` the table is reachable only through `raw`, and `self`,
        // which owns `raw`, is borrowed exclusively as long as the reference exists.
        table.map(|mut table| unsafe { table.as_mut() })
    }

    /// Copies `len` bytes of `from`, from `at` on, to the I/O's memory, which no device may be using.
    ///
    /// # Context
    ///
    /// *any*.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the I/O carries no data or fewer bytes, or if the block is shorter.
    #[inline]
    pub fn fill(&mut self, from: &PageBlock, at: usize, len: usize) -> Result {
        self.copy(from, at, len, false)
    }

    /// Copies the first `len` bytes of the I/O's memory to `to`, from `at` on.
    ///
    /// # Context
    ///
    /// *any*.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the I/O carries no data or fewer bytes, or if the block is shorter.
    #[inline]
    pub fn read_out(&mut self, to: &PageBlock, at: usize, len: usize) -> Result {
        self.copy(to, at, len, true)
    }

    #[inline(always)]
    fn copy(&mut self, block: &PageBlock, at: usize, len: usize, out: bool) -> Result {
        let place = block.range(at, len)?;
        // SAFETY: By the type invariant, `raw` has not been reclaimed, and `self`, which owns it,
        // is borrowed exclusively, so nobody uses the table. `range` has checked that the bytes are
        // in the block, and there is no reference to the contents of a block.
        if unsafe { (self.vtable.copy)(self.raw, place, len, out) } {
            return Ok(());
        }
        let table = self.sg().ok_or(EINVAL)?;
        // SAFETY: By the contract of `Io` the table describes only memory of this I/O, to which
        // there is no reference. The memory is allocated: `self` owns the I/O, which has not ended,
        // and `end_early` was not called, as `sg` would then have returned none.
        unsafe {
            match out {
                true => table.copy_to(block, at, len),
                false => table.copy_from(block, at, len),
            }
        }
    }

    /// Returns whether the result of the I/O is still wanted. If not, the transport should end the
    /// I/O rather than keep it for later.
    ///
    /// # Context
    ///
    /// *any*.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        // SAFETY: By the type invariant, `raw` has not been reclaimed.
        unsafe { (self.vtable.is_wanted)(self.raw) }
    }

    /// Returns whether the transport should report the failure of the I/O to its users before the
    /// I/O ends, see [`Self::end_early`].
    ///
    /// # Context
    ///
    /// *any*.
    pub fn is_cancelled(&self) -> bool {
        // SAFETY: By the type invariant, `raw` has not been reclaimed.
        unsafe { (self.vtable.is_cancelled)(self.raw) }
    }

    /// Reports an error to the users of the I/O before the I/O itself ends. From now on the I/O
    /// carries no data, so no device may use its memory any more. May be called again for the same
    /// I/O.
    ///
    /// # Context
    ///
    /// *any*, without locks that users of the I/O take.
    pub fn end_early(&mut self, error: Error) {
        // SAFETY: By the type invariant, `raw` has not been reclaimed. The memory is reached only
        // through `self`, which is borrowed exclusively, and a device's mapping of it owns `self`.
        unsafe { (self.vtable.end_early)(self.raw, error) }
    }

    /// Records the trailer and the path of the answer to the I/O, see [`Io::note_answer`].
    ///
    /// # Context
    ///
    /// *any*.
    #[inline]
    pub fn note_answer(&mut self, trailer: Option<u32>, path: u32) {
        // SAFETY: By the type invariant, `raw` has not been reclaimed, and `self` is borrowed
        // exclusively.
        unsafe { (self.vtable.note_answer)(self.raw, trailer, path) }
    }

    /// Recovers the I/O with its type.
    ///
    /// # Errors
    ///
    /// Returns the handle if the I/O is of another type.
    pub fn downcast<T: Io>(self) -> Result<T, Self> {
        if (self.vtable.type_id)() != TypeId::of::<T>() {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: By the type invariant `raw` comes from the type of the vtable, which is `T`. It
        // is not used again, as `this` is neither used nor dropped.
        Ok(unsafe { T::from_raw(this.raw) })
    }

    /// Ends the I/O.
    ///
    /// # Context
    ///
    /// *any*.
    #[inline]
    pub fn done(self, result: Result) {
        let this = ManuallyDrop::new(self);
        // SAFETY: By the type invariant, `raw` has not been reclaimed. It is not used again, as
        // `this` is neither used nor dropped.
        unsafe { (this.vtable.done)(this.raw, result) };
    }
}

impl Drop for IoHandle {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, `raw` has not been reclaimed, and `self` is not used after
        // its drop.
        unsafe { (self.vtable.done)(self.raw, Err(EIO)) };
    }
}

/// An I/O with its own buffer, for a thread that waits for the end of the I/O.
///
/// The buffer lives until both the waiter and the transport have finished with it, even if the
/// waiter stops waiting early.
pub struct SyncIo(Arc<SyncInner>);

/// Value of `SyncInner::result` until the I/O has ended.
const PENDING: i32 = 1;

/// # Invariants
///
/// - `sg` is empty if `buf` is, otherwise it describes exactly `buf`.
/// - While `handed_out` is set and `result` is `PENDING`, the one [`IoHandle`] owns `sg`, and the
///   contents of `buf` may change. Otherwise nobody writes to either.
#[pin_data]
struct SyncInner {
    #[pin]
    ended: Completion,
    /// Zero, a negative errno, or `PENDING`.
    result: Atomic<i32>,
    handed_out: Atomic<i32>,
    /// The I/O is no longer wanted.
    is_left: AtomicFlag,
    buf: KVec<u8>,
    sg: UnsafeCell<SgList<1>>,
}

// SAFETY: Nothing in it has thread affinity.
unsafe impl Send for SyncInner {}
// SAFETY: By the type invariant `sg` and the contents of `buf` have one user at a time, or are only
// read. The other fields are `Sync`.
unsafe impl Sync for SyncInner {}

impl SyncIo {
    /// Creates an I/O with a zeroed buffer of `len` bytes, or without data if `len` is zero.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` for a length that does not fit in 32 bits.
    pub fn new(len: usize) -> Result<Self> {
        let mut buf = KVec::from_elem(0u8, len, GFP_KERNEL)?;
        let mut sg: SgList<1> = pin_init::zeroed();
        if len > 0 {
            let ptr = NonNull::new(buf.as_mut_ptr()).ok_or(ENOMEM)?;
            let len = u32::try_from(len).map_err(|_| EINVAL)?;
            // SAFETY: The memory of a `KVec` is in the linear mapping. It is freed together with
            // the table by the last reference to the `SyncInner`, and the handle that may map the
            // table holds one.
            unsafe { sg.as_table().set_buf(ptr, len)? };
        }
        // INVARIANT: The table describes the buffer, and there is no handle yet.
        let inner = Arc::pin_init(
            pin_init!(SyncInner {
                ended <- Completion::new(),
                result: Atomic::new(PENDING),
                handed_out: Atomic::new(0),
                is_left: AtomicFlag::new(false),
                buf,
                sg: UnsafeCell::new(sg),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(inner))
    }

    /// Returns the handle for the transport.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the handle was taken before.
    pub fn handle(&self) -> Result<IoHandle> {
        // ORDERING: The flag only selects the one thread that gets the table; it publishes nothing.
        if self.0.handed_out.xchg(1, Full) != 0 {
            return Err(EBUSY);
        }
        Ok(IoHandle::new(SyncRef(self.0.clone())))
    }

    /// Waits for the end of the I/O and returns its result.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` after `timeout_ms`, `ERESTARTSYS` after a signal; the I/O continues in both
    /// cases. All other errors are the result of the I/O.
    pub fn wait_interruptible_timeout(&self, timeout_ms: Msecs) -> Result {
        self.0.ended.wait_interruptible_timeout(timeout_ms)?;
        self.result()
    }

    /// Marks the I/O as no longer wanted. The transport may have sent it, but does not send it again.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn leave(&self) {
        // ORDERING: Publishes nothing.
        self.0.is_left.store(true, Relaxed);
    }

    /// Returns whether the I/O has ended. The result alone is ambiguous: a peer may answer with
    /// `EINPROGRESS`.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn has_ended(&self) -> bool {
        self.0.result.load(Acquire) != PENDING
    }

    /// Returns the result of the I/O, or `EINPROGRESS` before its end.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn result(&self) -> Result {
        // ORDERING: Pairs with the release in `done`, so that the data is visible.
        match self.0.result.load(Acquire) {
            0 => Ok(()),
            PENDING => Err(EINPROGRESS),
            errno => Err(Error::from_errno(errno)),
        }
    }

    /// Returns the data of the I/O.
    ///
    /// # Errors
    ///
    /// As [`Self::result`].
    pub fn bytes(&self) -> Result<&[u8]> {
        self.result()?;
        // By the type invariant nobody writes to the buffer after the end of the I/O.
        Ok(&self.0.buf)
    }
}

/// The transport's side of a [`SyncIo`]; there is at most one.
struct SyncRef(Arc<SyncInner>);

// SAFETY: There is one `SyncRef` for each table, see `SyncIo::handle`, and nothing else uses the
// table, which is in an `Arc` and does not move. The `Arc` owns the buffer that the table
// describes, to which there is no reference before the end of the I/O, see `SyncIo::bytes`.
// `is_wanted` reads an atomic flag, and `is_cancelled` returns a constant.
unsafe impl Io for SyncRef {
    fn into_raw(self) -> NonNull<c_void> {
        let raw = Arc::into_raw(self.0).cast_mut().cast();
        // SAFETY: The pointer of an `Arc` is not null.
        unsafe { NonNull::new_unchecked(raw) }
    }

    unsafe fn from_raw(raw: NonNull<c_void>) -> Self {
        // SAFETY: By this function's contract the pointer comes from `into_raw`, and is not used
        // again.
        Self(unsafe { Arc::from_raw(raw.cast::<SyncInner>().as_ptr()) })
    }

    unsafe fn sg(raw: NonNull<c_void>) -> Option<NonNull<SgTable>> {
        // SAFETY: By this function's contract `raw` comes from `into_raw` and has not been
        // reclaimed, so it owns a reference.
        let inner = unsafe { raw.cast::<SyncInner>().as_ref() };
        if inner.buf.is_empty() {
            return None;
        }
        // SAFETY: The caller has the only handle, which by the type invariant owns the table until
        // `done`.
        Some(NonNull::from(unsafe { &mut *inner.sg.get() }.as_table()))
    }

    unsafe fn is_wanted(raw: NonNull<c_void>) -> bool {
        // SAFETY: By this function's contract `raw` comes from `into_raw` and has not been
        // reclaimed, so it owns a reference.
        let inner = unsafe { raw.cast::<SyncInner>().as_ref() };
        !inner.is_left.load(Relaxed)
    }

    fn done(self, result: Result) {
        let inner = self.0;
        let errno = result.map_or_else(|e| e.to_errno(), |()| 0);
        // ORDERING: Pairs with the acquire in `result`.
        inner.result.store(errno, Release);
        inner.ended.complete_all();
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_io)]
mod tests {
    use super::*;

    #[test]
    fn ends_once() -> Result {
        let io = SyncIo::new(8)?;
        assert_eq!(io.result(), Err(EINPROGRESS));
        let mut handle = io.handle()?;
        assert!(matches!(io.handle(), Err(EBUSY)));
        assert!(handle.is_wanted() && !handle.is_cancelled());
        assert_eq!(handle.sg().map(|sg| sg.bytes()), Some(8));
        assert_eq!(io.wait_interruptible_timeout(1), Err(ETIMEDOUT));
        assert!(matches!(io.bytes(), Err(EINPROGRESS)));
        io.leave();
        assert!(!handle.is_wanted());
        handle.done(Ok(()));
        assert_eq!(io.wait_interruptible_timeout(1), Ok(()));
        assert_eq!(io.bytes()?.len(), 8);
        Ok(())
    }

    /// A peer may answer with `EINPROGRESS`.
    #[test]
    fn in_progress_ends_it_as_well() -> Result {
        let io = SyncIo::new(0)?;
        assert!(!io.has_ended());
        io.handle()?.done(Err(EINPROGRESS));
        assert!(io.has_ended());
        Ok(())
    }

    #[test]
    fn knows_its_type() -> Result {
        let io = SyncIo::new(4)?;
        let handle = io.handle()?;
        let back = handle.downcast::<SyncRef>().map_err(|_| EINVAL)?;
        IoHandle::new(back).done(Ok(()));
        assert_eq!(io.result(), Ok(()));
        Ok(())
    }

    #[test]
    fn dropped_is_an_error() -> Result {
        let io = SyncIo::new(0)?;
        let mut handle = io.handle()?;
        assert!(handle.sg().is_none());
        drop(handle);
        assert_eq!(io.result(), Err(EIO));
        Ok(())
    }

    #[test]
    fn takes_what_it_has_room_for() -> Result {
        let block = PageBlock::with_len(8, crate::mm::Node::ANY)?;
        block.copy_in(0, b"data of ")?;
        let io = SyncIo::new(8)?;
        let mut handle = io.handle()?;
        handle.fill(&block, 0, 4)?;
        assert_eq!(handle.fill(&block, 0, 9), Err(EINVAL));
        assert_eq!(handle.fill(&block, 0, block.len() + 1), Err(EINVAL));
        assert_eq!(handle.fill(&block, block.len() - 3, 4), Err(EINVAL));
        assert_eq!(handle.fill(&block, usize::MAX, 4), Err(EINVAL));
        handle.fill(&block, 5, 3)?;
        handle.fill(&block, 0, 6)?;
        handle.done(Ok(()));
        assert_eq!(io.bytes()?, b"data of ");
        let other = PageBlock::with_len(8, crate::mm::Node::ANY)?;
        let io = SyncIo::new(8)?;
        let mut handle = io.handle()?;
        handle.fill(&block, 0, 8)?;
        assert_eq!(handle.read_out(&other, 0, 9), Err(EINVAL));
        other.zero(0, 9)?;
        handle.read_out(&other, 0, 4)?;
        let mut copied = [1; 9];
        other.copy_out(0, &mut copied)?;
        assert_eq!(&copied, b"data\0\0\0\0\0");
        handle.done(Ok(()));
        let empty = SyncIo::new(0)?;
        assert_eq!(empty.handle()?.fill(&block, 0, 1), Err(EINVAL));
        Ok(())
    }

    /// The waiter has dropped the I/O before the transport ends it.
    #[test]
    fn waiter_gone() -> Result {
        let io = SyncIo::new(100)?;
        let mut handle = io.handle()?;
        drop(io);
        assert_eq!(handle.sg().map(|sg| sg.nents()), Some(1));
        handle.done(Err(ETIMEDOUT));
        Ok(())
    }
}
