// SPDX-License-Identifier: GPL-2.0

//! Requests, and the operations of requests and bios.
//!
//! A request has one owner at a time:
//!
//! 1. the block layer, until it calls [`Operations::queue_rq`], and after the end of the request;
//! 2. the driver, as a [`Request`];
//! 3. a transport to which the driver has passed the [`Request`] as an
//!    [`IoHandle`](crate::io::IoHandle), and which returns it through [`IoOperations::io_done`].
//!
//! Requests have no reference count here, so a tag cannot be turned into a request. A driver that
//! must find a request again keeps the [`Request`].
//!
//! Differs from `kernel::block::mq::Request`, which is an `ARef` with a count in the request: an
//! atomic operation for each reference, and a check at the end that no other one is left. It
//! exposes neither the operation nor the sector or the length, has no scatterlist, and can only end
//! with success.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use crate::{
    blk::{
        operations::{
            disk_data::DiskData,
            IoOperations,
            Operations, //
        },
        status::Status, //
    },
    io::Io,
    sg::{
        SgStorage,
        SgTable, //
    }, //
};
use core::{
    marker::PhantomData,
    mem::{
        offset_of,
        ManuallyDrop, //
    },
    num::NonZero,
    ptr::NonNull, //
};
use ibtrs_bindings as ours;
use kernel::{
    bindings,
    ffi::c_void,
    prelude::*, //
};

/// The operations that this crate supports, `enum req_op` in C. Contexts: *any*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read data.
    Read,
    /// Write data.
    Write,
    /// Flush the device's write cache.
    Flush,
    /// Discard data that is no longer needed.
    Discard,
    /// Erase data so that it cannot be recovered.
    SecureErase,
    /// Make blocks read as zeroes.
    WriteZeroes,
}

impl Op {
    /// Returns whether the operation carries data.
    #[inline]
    pub fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Returns the operation of a `cmd_flags` or `bi_opf`.
    #[inline]
    pub(crate) fn from_opf(opf: bindings::blk_opf_t) -> Option<Self> {
        Some(match opf & ours::REQ_OP_MASK {
            bindings::req_op_REQ_OP_READ => Self::Read,
            bindings::req_op_REQ_OP_WRITE => Self::Write,
            bindings::req_op_REQ_OP_FLUSH => Self::Flush,
            bindings::req_op_REQ_OP_DISCARD => Self::Discard,
            bindings::req_op_REQ_OP_SECURE_ERASE => Self::SecureErase,
            bindings::req_op_REQ_OP_WRITE_ZEROES => Self::WriteZeroes,
            _ => return None,
        })
    }
}

/// The private data that follows a request in memory; it is never moved.
///
/// Only this crate fills the scatterlist, from the request in front of it. `Vtable::queue_rq`
/// empties the list, which otherwise still describes the memory of an earlier use.
#[repr(C)]
pub(crate) struct Private<D: Operations> {
    pdu: D::Pdu,
    shared: D::Shared,
    sg: D::Sg,
}

impl<D: Operations> Private<D> {
    /// Initialises the private data at `place`. The scatterlist, most of which the block layer has
    /// zeroed, is only emptied: a disk has megabytes of them.
    ///
    /// # Safety
    ///
    /// `place` must be valid for reads and writes, and aligned. The memory must be zeroed, or private
    /// data that was dropped.
    pub(crate) unsafe fn init(place: *mut Self) {
        // SAFETY: By this function's contract, which covers each field. A scatterlist is `Zeroable` and
        // has no destructor, so there is a valid one.
        unsafe {
            (&raw mut (*place).pdu).write(D::Pdu::default());
            (&raw mut (*place).shared).write(D::Shared::default());
            if let Some(table) = (*place).sg.table() {
                table.clear();
            }
        }
    }
}

/// A started request that the driver owns.
///
/// Dropping it ends the request with [`Status::IO_ERROR`].
///
/// # Invariants
///
/// - The pointer is to a started request of a disk of `D`, owned by the driver.
/// - A valid [`Private<D>`] follows the request.
#[must_use = "a request that is dropped ends in an error"]
pub struct Request<D: Operations>(NonNull<bindings::request>, PhantomData<D>);

// SAFETY: A request has no thread affinity, its private data is `Send`, and the data of its disk is
// `Sync`.
unsafe impl<D: Operations> Send for Request<D> {}
// SAFETY: Shared references only read, and the private data and the data of the disk are `Sync`.
unsafe impl<D: Operations> Sync for Request<D> {}

impl<D: Operations> Request<D> {
    /// # Safety
    ///
    /// `rq` must be a started request of a disk of `D`, with a valid [`Private<D>`], and owned by
    /// the driver; the ownership passes to the result.
    pub(crate) unsafe fn from_raw(rq: *mut bindings::request) -> Self {
        // INVARIANT: By this function's contract.
        // SAFETY: A live object is not at null.
        Self(unsafe { NonNull::new_unchecked(rq) }, PhantomData)
    }

    /// Gives up ownership without ending the request.
    pub(crate) fn into_raw(self) -> NonNull<bindings::request> {
        ManuallyDrop::new(self).0
    }

    /// Returns the address of the private data of a request.
    pub(crate) fn private_of(rq: *mut bindings::request) -> *mut Private<D> {
        // CAST: As `blk_mq_rq_to_pdu`: the private data starts behind the request.
        rq.wrapping_add(1).cast()
    }

    /// Returns the address of the driver's part of a request.
    fn pdu_of(rq: *mut bindings::request) -> *mut D::Pdu {
        const { assert!(offset_of!(Private<D>, pdu) == 0) };
        // CAST: As just asserted, it is where the private data begins.
        Self::private_of(rq).cast()
    }

    /// Returns the part of a request that its owner shares with others.
    ///
    /// # Safety
    ///
    /// `rq` must be a request with a valid [`Private<D>`], which is not dropped during `'a`.
    pub(crate) unsafe fn shared_of<'a>(rq: *mut bindings::request) -> &'a D::Shared {
        // SAFETY: By this function's contract the field is valid during `'a`. All references to it
        // are shared ones: `pdu_mut` and `table_of` refer to other fields.
        unsafe { &(*Self::private_of(rq)).shared }
    }

    /// Returns whether this is the request at `rq`.
    pub(crate) fn is(&self, rq: *mut bindings::request) -> bool {
        self.0.as_ptr() == rq
    }

    // Fields are read one by one, through the pointer. A reference to the whole request would claim
    // that no field changes, but others change some, such as the block layer's timer.

    fn cmd_flags(&self) -> bindings::blk_opf_t {
        // SAFETY: The request is live by the type invariant, and its operation and flags do not
        // change while the driver owns it.
        unsafe { (*self.0.as_ptr()).cmd_flags }
    }

    fn first_bio(&self) -> *mut bindings::bio {
        // SAFETY: The request is live by the type invariant, and only its owner ends its bios.
        unsafe { (*self.0.as_ptr()).bio }
    }

    fn queue(&self) -> *mut bindings::request_queue {
        // SAFETY: The request is live by the type invariant, and its queue does not change.
        unsafe { (*self.0.as_ptr()).q }
    }

    /// Returns the operation, or [`None`] if this crate does not support it.
    #[inline]
    pub fn op(&self) -> Option<Op> {
        Op::from_opf(self.cmd_flags())
    }

    /// Returns whether the data must be on the medium when the request ends.
    #[inline]
    pub fn is_fua(&self) -> bool {
        self.cmd_flags() & ours::REQ_FUA != 0
    }

    /// Returns whether a task waits for the request.
    #[inline]
    pub fn is_sync(&self) -> bool {
        self.cmd_flags() & ours::REQ_SYNC != 0
    }

    /// Returns whether space must stay allocated when zeroes are written.
    #[inline]
    pub fn is_nounmap(&self) -> bool {
        self.cmd_flags() & ours::REQ_NOUNMAP != 0
    }

    /// Returns the first sector, in units of 512 bytes. The value is meaningless for a flush.
    #[inline]
    pub fn sector(&self) -> u64 {
        // SAFETY: The request is live by the type invariant, and only its owner ends a part of it,
        // which changes the field.
        unsafe { (*self.0.as_ptr()).__sector }
    }

    /// Returns the number of bytes to read, write, discard and so on.
    #[inline]
    pub fn bytes(&self) -> u32 {
        // SAFETY: As for `sector`.
        unsafe { (*self.0.as_ptr()).__data_len }
    }

    /// Returns the tag: unique among the requests in flight on the hardware queue, or on the tag
    /// set if that shares its tags.
    #[inline]
    pub fn tag(&self) -> u32 {
        // CAST: A started request has a tag, which is not negative.
        // SAFETY: The request is live by the type invariant, and keeps its tag until it ends.
        unsafe { (*self.0.as_ptr()).tag as u32 }
    }

    /// Returns the I/O priority of the first bio, or zero if there is no bio.
    #[inline]
    pub fn prio(&self) -> u16 {
        let bio = self.first_bio();
        if bio.is_null() {
            return 0;
        }
        // SAFETY: The first bio of a request is live until the owner of the request ends it.
        unsafe { (*bio).bi_ioprio }
    }

    /// Returns the nanoseconds since the block layer received the request, or [`None`] if the block
    /// layer does not account for requests of the disk (`queue/iostats` is 0).
    #[inline]
    pub fn elapsed_ns(&self) -> Option<NonZero<u64>> {
        // SAFETY: The request is live by the type invariant, and so is its queue. The block layer
        // sets the time before it passes the request to the driver.
        NonZero::new(unsafe { ours::kx_rq_elapsed_ns(self.0.as_ptr()) })
    }

    /// Returns the driver's part of the disk.
    #[inline]
    pub fn queue_data(&self) -> &D::QueueData {
        // SAFETY: By the type invariant the request is of a disk of `D`, which only `GenDisk::add`
        // creates. The disk is live as long as the driver owns one of its requests.
        unsafe { DiskData::<D>::of_queue(self.queue()) }.queue_data()
    }

    /// Returns the driver's part of the request.
    #[inline]
    pub fn pdu(&self) -> &D::Pdu {
        // SAFETY: The private data is valid by the type invariant. It belongs to the owner of the
        // request, which is borrowed as long as the result.
        unsafe { &*Self::pdu_of(self.0.as_ptr()) }
    }

    /// Returns the driver's part of the request, mutably.
    #[inline]
    pub fn pdu_mut(&mut self) -> &mut D::Pdu {
        // SAFETY: As for `pdu`; the request is borrowed exclusively.
        unsafe { &mut *Self::pdu_of(self.0.as_ptr()) }
    }

    /// Returns the part of the request that others may access as well.
    #[inline]
    pub fn shared(&self) -> &D::Shared {
        // SAFETY: The private data is valid by the type invariant, as long as the driver owns the
        // request.
        unsafe { Self::shared_of(self.0.as_ptr()) }
    }

    /// Returns the scatterlist of a request, if it has one.
    ///
    /// # Safety
    ///
    /// `rq` must be a request with a valid [`Private<D>`], whose scatterlist the caller must own
    /// during `'a`.
    #[inline]
    pub(crate) unsafe fn table_of<'a>(rq: *mut bindings::request) -> Option<&'a mut SgTable> {
        // SAFETY: By this function's contract.
        unsafe { (*Self::private_of(rq)).sg.table() }
    }

    /// Returns the scatterlist, if there is one.
    #[inline]
    pub(crate) fn table(&mut self) -> Option<&mut SgTable> {
        // SAFETY: By the type invariant the private data is valid. `self`, which owns it, is
        // borrowed exclusively as long as the result.
        unsafe { Self::table_of(self.0.as_ptr()) }
    }

    /// Fills the scatterlist with the request's data, and returns the list, which is empty if the
    /// operation has no data. An [`IoHandle`] does so by itself when the list is needed.
    ///
    /// [`IoHandle`]: crate::io::IoHandle
    ///
    /// # Context
    ///
    /// *any*.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if there are more segments than entries; `EINVAL` if requests of the driver have
    /// no scatterlist.
    #[inline]
    pub fn map_sg(&mut self) -> Result<&SgTable> {
        let rq = self.0.as_ptr();
        let has_data = self.op().is_some_and(Op::has_data);
        let table = self.table().ok_or(EINVAL)?;
        if has_data {
            // SAFETY: By the type invariant `self` owns the request.
            unsafe { table.set_request(rq)? };
        } else {
            table.clear();
        }
        Ok(table)
    }

    /// Continues a CRC-32C with the request's data, see [`crc32c`](crate::crc::crc32c). There is no
    /// data if the operation has none, before [`Self::map_sg`], and for an
    /// [abandoned](crate::io::IoHandle::end_early) request. No device may be using the data.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn crc32c(&mut self, crc: u32) -> u32 {
        let Some(table) = self.table() else {
            return crc;
        };
        // SAFETY: The table is empty, or `map_sg` or `Io::sg` has filled it with the memory of this
        // request, which has not ended. Nobody has a reference to that memory.
        unsafe { table.crc32c(crc) }
    }

    /// Returns whether its users [already got an error](crate::io::IoHandle::end_early). The request
    /// has no data any more, and cannot be sent again.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        self.first_bio().is_null() && self.op() != Some(Op::Flush)
    }

    /// Ends the request.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn end(self, status: Status) {
        let rq = self.into_raw();
        // SAFETY: The driver owns the request by the type invariant, and gives up ownership here.
        unsafe { bindings::blk_mq_end_request(rq.as_ptr(), status.as_raw()) };
    }

    /// Ends the request with [`Status::NOT_SUPPORTED`]. After an optional operation (discard,
    /// secure erase, write zeroes), the disk gets no more requests of that kind.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn end_unsupported(self) {
        let queue = self.queue();
        match self.op() {
            // SAFETY: The queue is live, as `self` owns one of its requests.
            Some(Op::Discard) => unsafe { ours::blk_queue_disable_discard(queue) },
            // SAFETY: As above.
            Some(Op::SecureErase) => unsafe { ours::blk_queue_disable_secure_erase(queue) },
            // SAFETY: As above.
            Some(Op::WriteZeroes) => unsafe { ours::blk_queue_disable_write_zeroes(queue) },
            _ => (),
        }
        self.end(Status::NOT_SUPPORTED);
    }

    /// Calls [`Operations::complete`] on a CPU near the submitter's.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn complete(self) {
        const { assert!(D::HAS_COMPLETE) };
        let rq = self.into_raw();
        // SAFETY: The driver owns the request by the type invariant, and gives up ownership here.
        // `Vtable::complete`, which exists as just asserted, returns it to the driver.
        unsafe { bindings::blk_mq_complete_request(rq.as_ptr()) };
    }

    /// Returns the request to the block layer, which dispatches it again at once. An
    /// [abandoned](Self::is_abandoned) request ends instead.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn requeue(self) {
        if self.is_abandoned() {
            return self.end(Status::IO_ERROR);
        }
        let rq = self.into_raw();
        // SAFETY: The driver owns the request by the type invariant, and gives up ownership here.
        unsafe { bindings::blk_mq_requeue_request(rq.as_ptr(), true) };
    }
}

impl<D: Operations> Drop for Request<D> {
    fn drop(&mut self) {
        // SAFETY: The driver owns the request by the type invariant, and gives up ownership here.
        unsafe { bindings::blk_mq_end_request(self.0.as_ptr(), Status::IO_ERROR.as_raw()) };
    }
}

/// A request that has timed out, as the block layer's timer sees it. It may be owned by the driver or
/// by the block layer, and that may change at any time, but it is not freed and used for other I/O.
///
/// # Invariants
///
/// The pointer is to a request of a disk of `D`, with a valid [`Private<D>`], that is not freed during
/// `'a`.
pub struct TimedOut<'a, D: Operations>(NonNull<bindings::request>, PhantomData<&'a D::Shared>);

impl<'a, D: Operations> TimedOut<'a, D> {
    /// # Safety
    ///
    /// `rq` must be a request of a disk of `D`, with a valid [`Private<D>`], that is not freed during
    /// `'a`.
    pub(crate) unsafe fn from_raw(rq: *mut bindings::request) -> Self {
        // INVARIANT: By this function's contract.
        // SAFETY: A live object is not at null.
        Self(unsafe { NonNull::new_unchecked(rq) }, PhantomData)
    }

    /// Returns the tag that the request has now, if it has one. With an I/O scheduler, a request that
    /// returns to the block layer loses its tag, which another request may then get, and gets
    /// another one when it is dispatched again.
    pub fn tag(&self) -> Option<u32> {
        // SAFETY: The request is live by the type invariant. The block layer may change the aligned
        // integer concurrently.
        let tag = unsafe { (&raw const (*self.0.as_ptr()).tag).read_volatile() };
        u32::try_from(tag).ok()
    }

    /// Returns the operation, or [`None`] if this crate does not support it.
    pub fn op(&self) -> Option<Op> {
        // SAFETY: The request is live by the type invariant. The block layer may change other bits of
        // the aligned integer concurrently, but not the operation of a request that is not freed.
        Op::from_opf(unsafe { (&raw const (*self.0.as_ptr()).cmd_flags).read_volatile() })
    }

    /// Returns the time for which the timer of the request runs, in milliseconds.
    pub fn after_ms(&self) -> u32 {
        // SAFETY: The request is live by the type invariant; the callee reads an aligned integer of it.
        unsafe { ours::kx_rq_timeout_ms(self.0.as_ptr()) }
    }

    /// Returns the part of the request that its owner shares.
    pub fn shared(&self) -> &'a D::Shared {
        // SAFETY: By the type invariant the private data is valid, and not dropped during `'a`.
        unsafe { Request::<D>::shared_of(self.0.as_ptr()) }
    }
}

// SAFETY: Between `into_raw` and `from_raw` the holder of the raw pointer owns the request, and
// with it the table in its private data, which does not move, see `Private`. `Vtable::queue_rq`
// empties the table before the driver receives the request, and only `map_sg` and `sg` fill it, so
// it describes the request's own memory. `is_wanted` gets a shared reference to the disk's data, and
// `is_cancelled` one to the shared part of the request; both are `Sync`.
unsafe impl<D: IoOperations> Io for Request<D> {
    fn into_raw(self) -> NonNull<c_void> {
        Request::into_raw(self).cast()
    }

    unsafe fn from_raw(raw: NonNull<c_void>) -> Self {
        // SAFETY: By this function's contract the pointer comes from `into_raw`, which passed on
        // the ownership of a `Request<D>`.
        unsafe { Request::from_raw(raw.cast().as_ptr()) }
    }

    unsafe fn sg(raw: NonNull<c_void>) -> Option<NonNull<SgTable>> {
        let rq: *mut bindings::request = raw.cast().as_ptr();
        // SAFETY: The caller owns the request, and with it the table.
        let table = unsafe { Self::table_of(rq) }?;
        if table.is_empty() {
            // SAFETY: The caller owns the request, so it is live, and its operation does not change.
            let op = Op::from_opf(unsafe { (*rq).cmd_flags });
            if op.is_some_and(Op::has_data) {
                // SAFETY: The caller owns the request, which is a read or a write. After `end_early`
                // it has no bios, and the table stays empty.
                unsafe { table.set_request(rq) }.ok()?;
            }
        }
        (!table.is_empty()).then_some(NonNull::from(table))
    }

    unsafe fn copy(raw: NonNull<c_void>, block: *mut u8, len: usize, out: bool) -> bool {
        // SAFETY: The caller owns the request, whose bios, if `end_early` has left it some, keep
        // their memory until the request ends. By this function's contract the block is valid for
        // that length, and the C callee allows for others that use both sides.
        unsafe { ours::kx_rq_copy(raw.cast().as_ptr(), block.cast(), len, out) }
    }

    unsafe fn is_wanted(raw: NonNull<c_void>) -> bool {
        let rq: NonNull<bindings::request> = raw.cast();
        // SAFETY: The caller owns the request, so it is live, and so is its queue, which
        // `GenDisk::add` created.
        D::is_wanted(unsafe { DiskData::<D>::of_queue((*rq.as_ptr()).q) }.queue_data())
    }

    unsafe fn is_cancelled(raw: NonNull<c_void>) -> bool {
        // SAFETY: The caller owns the request during the call.
        D::is_cancelled(unsafe { Self::shared_of(raw.cast().as_ptr()) })
    }

    unsafe fn end_early(raw: NonNull<c_void>, error: Error) {
        let rq: NonNull<bindings::request> = raw.cast();
        let status = Status::from(error);
        // SAFETY: The caller owns the request, so it is live.
        let bytes = unsafe { (*rq.as_ptr()).__data_len };
        // The request stays started, without bios. The result is false, as the update covers all
        // bytes.
        // SAFETY: By this function's contract the caller owns the request, and nobody uses its
        // memory any more.
        let _ = unsafe { bindings::blk_update_request(rq.as_ptr(), status.as_raw(), bytes) };
        // SAFETY: As for `sg`.
        if let Some(table) = unsafe { Self::table_of(rq.as_ptr()) } {
            table.clear();
        }
    }

    unsafe fn note_answer(raw: NonNull<c_void>, trailer: Option<u32>, path: u32) {
        let pdu = Self::pdu_of(raw.cast().as_ptr());
        // SAFETY: The caller owns the request, whose private data is valid and not used by anyone
        // else during the call.
        D::note_answer(unsafe { &mut *pdu }, trailer, path);
    }

    fn done(self, result: Result) {
        D::io_done(self, result);
    }
}
