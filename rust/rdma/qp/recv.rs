// SPDX-License-Identifier: GPL-2.0

//! Receive buffers. A queue pair has rings of buffers of the same size, which it posts again after
//! use.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! use rdma::{
//!     qp::{Handler, QpRef},
//!     recv::{Kept, Received, Repost},
//!     wc::Wc,
//! };
//!
//! /// Keeps the payload of a message until its data was used.
//! struct Keeper;
//!
//! impl Handler for Keeper {
//!     type Slot = ();
//!
//!     fn received(&self, qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
//!         let Some(kept): Option<Kept> = message.keep() else {
//!             return Repost::Yes;
//!         };
//!         if let Some((pieces, at)) = qp.payload(&kept) {
//!             let crc = pieces.crc32c(!0, at, message.payload);
//! #           let _ = crc;
//!         }
//!         qp.give_back(kept);
//!         Repost::Yes
//!     }
//!
//!     fn failed(&self, qp: QpRef<'_, Self>, _wc: &Wc) {
//!         qp.disconnect();
//!     }
//! }
//! ```

use core::{
    cell::Cell,
    mem::ManuallyDrop,
    num::NonZero,
    slice, //
};

use super::{
    Handler,
    QpRef,
    QueuePair, //
};
use crate::{
    dma::{
        Direction,
        DmaPieces,
        MappedBytes, //
    },
    imm,
    pd::Pd,
    wc::Wc,
    CZeroed, //
};
use ibtrs_bindings as bindings;
use kernel::{
    new_mutex,
    new_spinlock_irq,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLockIrq, //
    },
    types::Opaque, //
};
use kx::{
    mm::{
        Pieces,
        Record, //
    },
    sync::{
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        SetOnce, //
    },
};

/// Number and size of the receive buffers of a class.
#[derive(Clone, Copy)]
pub struct RecvClass {
    /// Number of buffers.
    pub count: u32,
    /// Size of each buffer in bytes; zero for receives that only immediates complete.
    pub bytes: u32,
    /// Size in bytes of the payload of each buffer, which follows the first `bytes` of a message.
    /// Zero, or a divisor of the page size. If it is not zero, `bytes` is [`HEAD`].
    pub payload: u32,
}

/// Size of a buffer with a payload, in bytes, without the payload.
pub const HEAD: usize = Record::BYTES;

/// The payload of a message that a handler has kept: its buffer is not posted again before
/// [`QueuePair::give_back`].
///
/// It takes four bytes, also as an `Option`: the class in the highest bits, and the index plus one.
#[derive(PartialEq, Eq, Debug)]
pub struct Kept(NonZero<u32>);

/// Number of bits of the index in a [`Kept`].
const INDEX_BITS: u32 = 28;

impl Kept {
    /// Returns the payload of a buffer; `None` if the numbers have too many bits.
    #[inline]
    fn new(class: u32, index: u32) -> Option<Self> {
        if index >= (1 << INDEX_BITS) - 1 || class >= 1 << (u32::BITS - INDEX_BITS) {
            return None;
        }
        NonZero::new(class << INDEX_BITS | (index + 1)).map(Self)
    }

    #[inline]
    fn class(&self) -> usize {
        (self.0.get() >> INDEX_BITS) as usize
    }

    #[inline]
    fn index(&self) -> u32 {
        (self.0.get() & ((1 << INDEX_BITS) - 1)) - 1
    }
}

/// A received message.
pub struct Received<'a> {
    /// The class of the buffer, as given to [`QueuePair::add_recvs`].
    pub class: usize,
    /// The data in the buffer without its payload; empty for a write with immediate.
    pub bytes: &'a [u8],
    /// The message is only the immediate of a write.
    pub is_write: bool,
    /// The number of bytes in the payload of the buffer.
    pub payload: usize,
    /// The immediate of the message, in host byte order.
    pub imm: Option<u32>,
    /// The remote key of this side that the message invalidated, according to the device; see
    /// [`Device::vouches_for_invalidations`](crate::device::Device::vouches_for_invalidations). The
    /// key may be valid again by now.
    pub invalidated: Option<u32>,
    /// The completion.
    pub wc: &'a Wc,
    entry: &'a Entry,
    /// Whether the handler has kept the payload.
    kept: &'a Cell<bool>,
}

/// A [received](Received) message without its payload.
pub struct Content<'a> {
    /// See [`Received::class`].
    pub class: usize,
    /// See [`Received::bytes`].
    pub bytes: &'a [u8],
    /// See [`Received::imm`].
    pub imm: Option<u32>,
    /// See [`Received::invalidated`].
    pub invalidated: Option<u32>,
}

impl Received<'_> {
    /// Returns what the message is without a payload, for what is rare: the function that gets it may take it
    /// from memory, where a message as it arrives need not be.
    #[inline(always)]
    pub fn content(&self) -> Content<'_> {
        Content {
            class: self.class,
            bytes: self.bytes,
            imm: self.imm,
            invalidated: self.invalidated,
        }
    }

    /// Retains the payload of the message; `None` if it has none, or if this was called before. The
    /// buffer is not posted again, whatever the handler returns, until the payload is passed to
    /// [`QueuePair::give_back`].
    #[inline]
    pub fn keep(&self) -> Option<Kept> {
        let kept = Kept::new(self.entry.class, self.entry.index)?;
        if self.payload == 0 || self.kept.replace(true) {
            return None;
        }
        // ORDERING: `give_back()` can only be called with the value returned here, so it runs
        // later.
        self.entry.kept.store(true, Relaxed);
        Some(kept)
    }
}

/// The handler's decision about the receive buffer of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Repost {
    /// Post the buffer again.
    Yes,
    /// Do not use the buffer any more.
    No,
}

/// An empty scatter element.
const NO_SGE: bindings::ib_sge = bindings::ib_sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

/// A completion function.
type Done = unsafe extern "C" fn(*mut bindings::ib_cq, *mut bindings::ib_wc);

/// One receive buffer.
///
/// # Invariants
///
/// - `class` and `index` are the entry's position in the rings.
/// - `sges` name the buffer of the entry alone, and `head` is the part of it before the payload, if it
///   has one; both are memory of the ring that the entry is in.
#[repr(C)]
struct Entry {
    cqe: Opaque<bindings::ib_cqe>,
    class: u32,
    index: u32,
    /// The scatter elements of the work request, as many as [`Ring::num_sge`].
    sges: [bindings::ib_sge; 2],
    head: Option<Record>,
    /// The payload is kept, and the buffer is not posted.
    kept: AtomicFlag,
}

/// The buffers of one class.
///
/// # Invariants
///
/// Only receives of the queue pair that owns the ring name its memory.
struct Ring {
    entries: KVVec<Entry>,
    bytes: u32,
    /// Bytes of the payload of a buffer.
    payload: u32,
    num_sge: i32,
    /// Whether the memory needs DMA syncs, in both directions.
    needs_sync: bool,
    buf: Option<MappedBytes>,
    split: Option<Split>,
}

/// The buffers of a class with payloads: each is in two places.
struct Split {
    heads: DmaPieces,
    payloads: DmaPieces,
    payload: u32,
}

impl Split {
    /// Allocates and maps `count` buffers.
    fn new(pd: &Arc<Pd>, spec: RecvClass) -> Result<Self> {
        let map = |bytes: u32, dir| {
            let total = (spec.count as usize).checked_mul(bytes as usize);
            let pieces = Pieces::new(total.ok_or(EINVAL)?, pd.device().node())?;
            DmaPieces::new(pd, Arc::new(pieces, GFP_KERNEL)?, dir)
        };
        Ok(Self {
            // The CPU zeroes them.
            heads: map(spec.bytes, Direction::Bidirectional)?,
            payloads: map(spec.payload, Direction::FromDevice)?,
            payload: spec.payload,
        })
    }

    /// Returns where the payload of the buffer `index` begins.
    #[inline]
    fn payload_at(&self, index: u32) -> usize {
        index as usize * self.payload as usize
    }

    /// Returns where the head of the buffer `index` begins.
    #[inline]
    fn head_at(index: u32) -> usize {
        index as usize * HEAD
    }

    /// Fills in where the buffer of `entry` is.
    fn place(&self, entry: &mut Entry) -> Result {
        let (head, payload) = (Self::head_at(entry.index), self.payload_at(entry.index));
        let sge = self.heads.sge(head, HEAD as u32).ok_or(EINVAL)?;
        let behind = self.payloads.sge(payload, self.payload).ok_or(EINVAL)?;
        // INVARIANT: Both elements name this buffer alone.
        entry.sges = [sge.raw(), behind.raw()];
        entry.head = Some(self.heads.pieces().record(head).ok_or(EINVAL)?);
        Ok(())
    }

    fn needs_sync(&self) -> bool {
        self.heads.needs_sync() || self.payloads.needs_sync()
    }

    /// Makes the CPU's writes to the buffer `index` visible to the device.
    #[cold]
    fn sync_for_device(&self, index: u32) -> Result {
        self.heads.sync_for_device(Self::head_at(index), HEAD)?;
        self.payloads
            .sync_for_device(self.payload_at(index), self.payload as usize)
    }

    /// Makes the device's writes to the buffer `index`, with `len` bytes of payload, visible to the CPU.
    #[cold]
    fn sync_for_cpu(&self, index: u32, len: usize) -> Result {
        self.heads.sync_for_cpu(Self::head_at(index), HEAD)?;
        self.payloads.sync_for_cpu(self.payload_at(index), len)
    }
}

/// All receive buffers of a queue pair, by class.
///
/// # Invariants
///
/// Entries never move once their class is set.
#[pin_data]
pub(crate) struct Rings {
    rings: [SetOnce<Ring>; MAX_CLASSES],
    /// Whether messages begin with an immediate.
    imm_in_messages: AtomicFlag,
    closed: AtomicFlag,
    /// The entries of the receive queue that are not used for a buffer, except for the one for the
    /// marker of [`QueuePair::close`]. Locked while buffers are added, and while `closed` is being
    /// set.
    #[pin]
    adding: Mutex<u32>,
    /// As `closed`, for buffers that `give_back` reposts under this lock.
    #[pin]
    refuses: SpinLockIrq<bool>,
}

/// Maximum number of classes of receive buffers of a queue pair.
pub const MAX_CLASSES: usize = 3;

// SAFETY: A completion entry is constant once created: only the core reads it, from any thread. The
// other fields are `Send` and `Sync`.
unsafe impl Send for Entry {}
// SAFETY: As above.
unsafe impl Sync for Entry {}

impl RecvClass {
    /// Returns `count` receives that only immediates complete.
    pub const fn empty(count: u32) -> Self {
        Self {
            count,
            bytes: 0,
            payload: 0,
        }
    }

    /// Returns the class with room for an immediate in front of each message.
    fn with_imm(self) -> Result<Self> {
        Ok(Self {
            bytes: self.bytes.checked_add(imm::IMM_LEN).ok_or(EINVAL)?,
            ..self
        })
    }

    /// Returns the size of all buffers together in bytes, without their payloads.
    fn total(&self) -> Result<usize> {
        let total = (self.count as usize).checked_mul(self.bytes as usize);
        total.ok_or(EINVAL)
    }

    /// Returns whether the buffers have payloads.
    ///
    /// # Errors
    ///
    /// `EINVAL`: they would be of a wrong size.
    fn has_payloads(&self) -> Result<bool> {
        match self.payload {
            0 => Ok(false),
            payload if PAGE_SIZE % payload as usize != 0 => Err(EINVAL),
            _ if self.bytes as usize != HEAD => Err(EINVAL),
            _ => Ok(true),
        }
    }
}

/// Returns the offset and the length of a message in the memory of its class. The device reports
/// `byte_len` bytes in the buffer `index`, but the length is never more than the `bytes` of a
/// buffer.
#[inline]
fn place(index: usize, bytes: u32, byte_len: u32) -> (usize, usize) {
    (index * bytes as usize, byte_len.min(bytes) as usize)
}

impl Entry {
    /// Creates the entries of a class; their completions go to `done`.
    fn list(class: usize, count: u32, done: Done) -> Result<KVVec<Self>> {
        let mut entries = KVVec::with_capacity(count as usize, GFP_KERNEL)?;
        for index in 0..count {
            let entry = Self {
                cqe: Opaque::new(bindings::ib_cqe { done: Some(done) }),
                class: u32::try_from(class)?,
                index,
                sges: [NO_SGE; 2],
                head: None,
                kept: AtomicFlag::new(false),
            };
            entries.push(entry, GFP_KERNEL)?;
        }
        Ok(entries)
    }

    /// Recovers the entry that a completion entry is embedded in.
    ///
    /// # Safety
    ///
    /// `cqe` must be embedded in an entry that lives during `'a`.
    #[inline]
    unsafe fn of<'a>(cqe: *mut bindings::ib_cqe) -> &'a Self {
        let cqe: *mut Opaque<bindings::ib_cqe> = cqe.cast();
        // SAFETY: By this function's contract the completion entry is that field of an entry.
        unsafe { &*kernel::container_of!(cqe, Self, cqe) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The domain need not keep the memory, as it does with other buffers: a peer could have one queue
        // pair after the other made and closed.
        if let Some(buf) = &mut self.buf {
            // SAFETY: By the type invariant only receives of the owner name the memory. `QueuePair` drops
            // its rings after it has destroyed the device's queue pair, and nothing was posted from a
            // ring that was never added to a queue pair.
            unsafe { buf.free() };
        }
        if let Some(split) = &mut self.split {
            // SAFETY: As above.
            unsafe { split.heads.free() };
            // SAFETY: As above.
            unsafe { split.payloads.free() };
        }
    }
}

impl Ring {
    fn new(pd: &Arc<Pd>, class: usize, spec: RecvClass, done: Done) -> Result<Self> {
        let (buf, split) = match (spec.has_payloads()?, spec.total()?) {
            (true, _) => (None, Some(Split::new(pd, spec)?)),
            (false, 0) => (None, None),
            (false, total) => {
                let buf = MappedBytes::new(pd, total, Direction::FromDevice)?;
                (Some(buf), None)
            }
        };
        let mut entries = Entry::list(class, spec.count, done)?;
        for entry in entries.iter_mut() {
            if let Some(split) = &split {
                split.place(entry)?;
            } else if let Some(buf) = &buf {
                let (at, len) = place(entry.index as usize, spec.bytes, spec.bytes);
                // INVARIANT: These bytes are this buffer alone.
                entry.sges = [buf.sge(at, len)?.raw(), NO_SGE];
            }
        }
        let needs_sync = split.as_ref().is_some_and(Split::needs_sync)
            || buf.as_ref().is_some_and(MappedBytes::needs_sync);
        // INVARIANT: The memory is new, and its elements do not leave `Ring::post`.
        Ok(Self {
            entries,
            bytes: spec.bytes,
            payload: spec.payload,
            num_sge: i32::from(buf.is_some()) + 2 * i32::from(split.is_some()),
            needs_sync,
            buf,
            split,
        })
    }

    /// Makes the CPU's writes to the buffer of `entry` visible to the device.
    #[cold]
    fn sync_for_device(&self, entry: &Entry) -> Result {
        if let Some(split) = &self.split {
            split.sync_for_device(entry.index)?;
        } else if let Some(buf) = &self.buf {
            let (at, len) = place(entry.index as usize, self.bytes, self.bytes);
            buf.sge(at, len)?;
        }
        Ok(())
    }

    /// Posts the buffers of `entries` with one call.
    ///
    /// # Safety
    ///
    /// `qp` must be the live queue pair that owns this. `entries` must be at least one and at most `N`
    /// of this ring, and their buffers must not be posted.
    #[inline]
    unsafe fn post<const N: usize>(&self, qp: *mut bindings::ib_qp, entries: &[Entry]) -> Result {
        let mut wrs: [_; N] = core::array::from_fn(|_| bindings::ib_recv_wr::c_zeroed());
        // From the last to the first, as each is linked to the next one.
        let mut next = core::ptr::null_mut();
        for (wr, entry) in wrs.iter_mut().zip(entries).rev() {
            if self.needs_sync {
                self.sync_for_device(entry)?;
            }
            wr.next = next;
            wr.__bindgen_anon_1.wr_cqe = ManuallyDrop::new(entry.cqe.get());
            // The callee only reads them.
            wr.sg_list = entry.sges.as_ptr().cast_mut();
            wr.num_sge = self.num_sge;
            next = wr;
        }
        let mut bad = core::ptr::null();
        // SAFETY: The queue pair is live by this function's contract. The list of requests is valid, and
        // the callee reads it before it returns. The entries and the buffers belong to the `QueuePair`,
        // which destroys its queue pair before it drops them. Nobody else uses the buffers, as they are
        // not posted; the contents of `Pieces`, where a buffer with a payload is, may change at any
        // time.
        kernel::error::to_result(unsafe { bindings::ib_post_recv(qp, next, &mut bad) })
    }
}

/// See `new_send_queue` in [`crate::qp`].
#[inline(never)]
fn new_adding(left: u32) -> impl PinInit<Mutex<u32>> {
    new_mutex!(left, "QueuePair::recvs")
}

/// As [`new_adding`].
#[inline(never)]
fn new_refuses() -> impl PinInit<SpinLockIrq<bool>> {
    new_spinlock_irq!(false, "QueuePair::refuses")
}

impl Rings {
    /// Number of new buffers that are posted with one call, as the device's driver takes a lock in each
    /// call. Their work requests are on the stack.
    const AT_A_TIME: usize = 8;

    /// Creates the rings of a receive queue that has `depth` entries for buffers.
    pub(crate) fn new(depth: u32) -> impl PinInit<Self> {
        let (adding, refuses) = (new_adding(depth), new_refuses());
        pin_init!(Self {
            rings: [SetOnce::new(), SetOnce::new(), SetOnce::new()],
            imm_in_messages: AtomicFlag::new(false),
            closed: AtomicFlag::new(false),
            adding <- adding,
            refuses <- refuses,
        })
    }

    #[inline]
    fn get(&self, class: usize) -> Option<&Ring> {
        self.rings.get(class).and_then(SetOnce::as_ref)
    }

    /// See [`QueuePair::carry_imm_in_messages`]; returns false if it was called before.
    pub(crate) fn expect_imm_in_messages(&self) -> bool {
        !self.imm_in_messages.xchg(true, Relaxed)
    }

    /// Closes the rings: handlers no longer repost buffers, and tasks can no longer add or return
    /// any. When this returns, tasks that were adding or returning buffers have posted them.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn close(&self) {
        let _adding = self.adding.lock();
        // ORDERING: Tasks that add buffers see the flag through the lock. A handler that is running
        // may miss it, see `QueuePair::close`.
        self.closed.store(true, Relaxed);
        *self.refuses.lock() = true;
    }

    /// Adds the buffers of a class and posts them under the lock that closing the rings takes: calls
    /// `post` with each of them once, at least one and at most [`Self::AT_A_TIME`] at a time.
    ///
    /// # Errors
    ///
    /// Errors of [`QueuePair::add_recvs`].
    fn add(
        &self,
        class: usize,
        ring: Ring,
        mut post: impl FnMut(&Ring, &[Entry]) -> Result,
    ) -> Result {
        let place = self.rings.get(class).ok_or(EINVAL)?;
        let count = ring.entries.len();
        let mut left = self.adding.lock();
        if self.closed.load(Relaxed) {
            return Err(ENOTCONN);
        }
        let rest = left.checked_sub(u32::try_from(count)?).ok_or(EINVAL)?;
        if !place.populate(ring) {
            return Err(EBUSY);
        }
        *left = rest;
        let ring = self.get(class).ok_or(EINVAL)?;
        let mut parts = ring.entries.chunks(Self::AT_A_TIME);
        parts.try_for_each(|part| post(ring, part))
    }
}

impl<H: Handler> QueuePair<H> {
    /// Adds the buffers of the class `class`, which must be below [`MAX_CLASSES`], and posts them.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the queue pair was closed; `EBUSY` when the class already has buffers;
    /// `EINVAL` for any other class, a size that overflows, or more buffers than
    /// [`QpConfig::recv_depth`](crate::qp::QpConfig::recv_depth) in all classes together; `ENOMEM`;
    /// errors of the device's driver.
    pub fn add_recvs(&self, class: usize, spec: RecvClass) -> Result {
        if class >= MAX_CLASSES {
            return Err(EINVAL);
        }
        let spec = match self.recvs().imm_in_messages.load(Relaxed) {
            true => spec.with_imm()?,
            false => spec,
        };
        let ring = Ring::new(self.pd(), class, spec, recv_done::<H>)?;
        self.recvs().add(class, ring, |ring, entries| {
            // SAFETY: This queue pair owns the rings, and is live by its type invariant. `add` passes
            // each entry of the ring once, at least one and at most `AT_A_TIME` at a time. The buffers
            // are new, so they are not posted.
            unsafe { ring.post::<{ Rings::AT_A_TIME }>(self.as_raw(), entries) }
        })
    }

    /// Returns the ring and the entry of a payload.
    #[inline]
    fn keeper(&self, kept: &Kept) -> Option<(&Ring, &Entry)> {
        let ring = self.recvs().get(kept.class())?;
        Some((ring, ring.entries.get(kept.index() as usize)?))
    }

    /// Returns the memory of a payload of this queue pair, and where in it the payload begins. All of
    /// it is in one piece.
    #[inline]
    pub fn payload(&self, kept: &Kept) -> Option<(&Pieces, usize)> {
        let (ring, _) = self.keeper(kept)?;
        let split = ring.split.as_ref()?;
        Some((split.payloads.pieces(), split.payload_at(kept.index())))
    }

    /// Releases a payload of this queue pair, which the caller must no longer use: its buffer is posted
    /// again, unless the queue pair is being closed. The payload must be of this queue pair: with one
    /// of another, a buffer whose payload is still in use may be posted.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn give_back(&self, kept: Kept) {
        let Some((ring, entry)) = self.keeper(&kept) else {
            return;
        };
        if !entry.kept.xchg(false, Relaxed) {
            return;
        }
        let refuses = self.recvs().refuses.lock();
        if !*refuses {
            // An error means that the queue pair is being torn down.
            // SAFETY: The queue pair owns the rings. It is live: as it is not closed, its destruction
            // has not begun, and closing it waits for the lock. The entry was just found in the ring.
            // Its buffer is not posted: it was kept, so `recv_done` has not posted it, and only one
            // exchange sees the flag set.
            let _ = unsafe { ring.post::<1>(self.as_raw(), slice::from_ref(entry)) };
        }
    }
}

/// Handles the completion of a receive.
///
/// # Safety
///
/// The core must have called this with a completion of a queue pair of this crate with that handler
/// type, whose completion entry is that of an [`Entry`].
unsafe extern "C" fn recv_done<H: Handler>(cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
    // SAFETY: By this function's contract. The entry belongs to the queue pair.
    let (qp, entry) = unsafe {
        let cqe = *(*wc).__bindgen_anon_1.wr_cqe;
        (QueuePair::<H>::from_completion(cq, wc), Entry::of(cqe))
    };
    // SAFETY: By this function's contract the core has filled in the completion, and does not
    // change it during the call.
    let wc = unsafe { Wc::from_raw(wc) };
    // SAFETY: This function handles a completion of the queue pair.
    let qp_ref = unsafe { QpRef::new(qp) };
    if !wc.is_success() {
        qp.handler().receive_failed(qp_ref, wc);
        return;
    }
    let class = entry.class as usize;
    // The ring always exists, as the entry is in it.
    let Some(ring) = qp.recvs().get(class) else {
        return;
    };
    let is_write = wc.is_rdma_imm();
    let len = if is_write { 0 } else { wc.byte_len() };
    let mut payload = 0;
    // Copied, as the buffer may be posted again before the handler returns, if it keeps the payload.
    let head;
    let bytes: &[u8] = match (entry.head, &ring.buf) {
        _ if len == 0 => &[],
        (Some(record), _) => {
            // CAST: At most a page.
            payload = len.saturating_sub(HEAD as u32).min(ring.payload) as usize;
            if let (true, Some(split)) = (ring.needs_sync, &ring.split) {
                // The buffer is in the ring, so this does not fail.
                let _ = split.sync_for_cpu(entry.index, payload);
            }
            // `take` leaves zeroes: if the device reports the next message without writing it, this one
            // is not mistaken for it.
            // SAFETY: By the invariant of `Entry` the record is memory of the ring, which lives with the
            // queue pair.
            head = unsafe { record.take() };
            head.get(..len as usize).unwrap_or(&head)
        }
        (None, Some(buf)) => {
            let (at, len) = place(entry.index as usize, ring.bytes, len);
            // SAFETY: `place` returns a part of this buffer alone. The device has completed its
            // receive, so it writes to the buffer only once the buffer is posted again. This function
            // does so last, after the handler, to which the bytes are lent, has returned. No other
            // function can: `QueuePair::give_back` takes the result of `Received::keep`, which
            // returns `None` for a message without a payload, and a ring with a `buf` has no payloads
            // (`Ring::new`).
            unsafe { buf.read(at, len) }.unwrap_or(&[])
        }
        (None, None) => &[],
    };
    let (imm, bytes) = if qp.recvs().imm_in_messages.load(Relaxed) {
        imm::split(bytes)
    } else {
        (wc.imm(), bytes)
    };
    let kept = Cell::new(false);
    let message = Received {
        class,
        bytes,
        is_write,
        payload,
        imm,
        invalidated: wc.invalidated(),
        wc,
        entry,
        kept: &kept,
    };
    let repost = qp.handler().received(qp_ref, message);
    // ORDERING: The flag may be missed here, as `QueuePair::close` drains twice.
    if repost == Repost::Yes && !kept.get() && !qp.recvs().closed.load(Relaxed) {
        // An error means that the queue pair is being torn down.
        // SAFETY: The queue pair owns the rings, and is live, as its completion is handled. The entry
        // is in the ring of its class by its type invariant. Its buffer is not posted, as its
        // completion was just handled, and `give_back` cannot post it, as its payload was not kept.
        let _ = unsafe { ring.post::<1>(qp.as_raw(), slice::from_ref(entry)) };
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_recv)]
mod tests {
    use super::*;

    extern "C" fn done(_: *mut bindings::ib_cq, _: *mut bindings::ib_wc) {}

    #[test]
    fn entries_know_their_place() -> Result {
        let entries = Entry::list(2, 300, done)?;
        for (index, entry) in entries.iter().enumerate() {
            // SAFETY: The argument is the completion entry of an entry that is live.
            let found = unsafe { Entry::of(entry.cqe.get()) };
            assert!(core::ptr::eq(found, entry));
            assert_eq!((found.class, found.index as usize), (2, index));
        }
        Ok(())
    }

    #[test]
    fn buffers_do_not_overlap() -> Result {
        let spec = RecvClass {
            count: 5,
            bytes: 24,
            payload: 0,
        };
        let mut end = 0;
        for index in 0..spec.count as usize {
            let (at, len) = place(index, spec.bytes, spec.bytes);
            assert_eq!(at, end);
            end = at + len;
        }
        assert_eq!(end, spec.total()?);
        Ok(())
    }

    /// No completion makes more than its buffer readable.
    #[test]
    fn no_message_is_longer_than_its_buffer() {
        assert_eq!(place(3, 24, 0), (72, 0));
        assert_eq!(place(3, 24, 24), (72, 24));
        assert_eq!(place(3, 24, u32::MAX), (72, 24));
        assert_eq!(place(3, 0, 7), (0, 0));
    }

    #[test]
    fn sizes_do_not_wrap() -> Result {
        let spec = |count, bytes| RecvClass {
            count,
            bytes,
            payload: 0,
        };
        assert_eq!(spec(7, 0).with_imm()?.total()?, 28);
        assert_eq!(spec(7, 3).with_imm()?.total()?, 49);
        assert!(spec(1, u32::MAX).with_imm().is_err());
        assert!(spec(1, u32::MAX - 4).with_imm().is_ok());
        assert_eq!(spec(0, u32::MAX).total()?, 0);
        Ok(())
    }

    #[test]
    fn payloads_have_their_place() -> Result {
        for (class, index) in [(0, 0), (2, 77), (15, (1 << 28) - 2)] {
            let kept = Kept::new(class, index).ok_or(EINVAL)?;
            assert_eq!((kept.class(), kept.index()), (class as usize, index));
        }
        assert!(Kept::new(16, 0).is_none() && Kept::new(0, (1 << 28) - 1).is_none());
        assert_eq!(size_of::<Option<Kept>>(), 4);
        Ok(())
    }

    /// Both parts of a buffer are in one piece of memory each.
    #[test]
    fn parts_divide_pages() {
        let spec = |bytes, payload| RecvClass {
            count: 3,
            bytes,
            payload,
        };
        assert_eq!(spec(300, 0).has_payloads(), Ok(false));
        assert_eq!(spec(64, 4096).has_payloads(), Ok(true));
        assert_eq!(spec(64, 512).has_payloads(), Ok(true));
        for wrong in [
            spec(64, 4095),
            spec(128, 4096),
            spec(0, 4096),
            spec(32, 4096),
        ] {
            assert_eq!(wrong.has_payloads(), Err(EINVAL));
        }
        let larger = spec(64, 2 * PAGE_SIZE as u32);
        assert_eq!(larger.has_payloads(), Err(EINVAL));
    }

    /// A ring of buffers without memory.
    fn ring(count: u32) -> Result<Ring> {
        Ok(Ring {
            entries: Entry::list(1, count, done)?,
            bytes: 0,
            payload: 0,
            num_sge: 0,
            needs_sync: false,
            buf: None,
            split: None,
        })
    }

    /// No buffer is posted to a queue pair that is being drained, or drained.
    #[test]
    fn nothing_is_added_after_the_end() -> Result {
        const COUNT: u32 = 2 * Rings::AT_A_TIME as u32 + 3;
        let rings = KBox::pin_init(Rings::new(2 * COUNT), GFP_KERNEL)?;
        let mut posted = 0;
        let mut add = |class| {
            rings.add(class, ring(COUNT)?, |_, entries| {
                assert!((1..=Rings::AT_A_TIME).contains(&entries.len()));
                for entry in entries {
                    assert_eq!(entry.index, posted);
                    posted += 1;
                }
                Ok(())
            })
        };
        assert_eq!(add(1), Ok(()));
        assert_eq!(add(1), Err(EBUSY));
        assert_eq!(add(MAX_CLASSES), Err(EINVAL));
        rings.close();
        assert_eq!(add(2), Err(ENOTCONN));
        assert_eq!(posted, COUNT);
        assert!(rings.get(1).is_some() && rings.get(2).is_none());
        Ok(())
    }

    /// The entry for the marker is not given to a buffer.
    #[test]
    fn no_more_buffers_than_entries() -> Result {
        let rings = KBox::pin_init(Rings::new(5), GFP_KERNEL)?;
        assert_eq!(rings.add(0, ring(3)?, |_, _| Ok(())), Ok(()));
        assert_eq!(rings.add(1, ring(3)?, |_, _| Ok(())), Err(EINVAL));
        assert!(rings.get(1).is_none());
        Ok(())
    }

    #[test]
    fn closes_for_ever() -> Result {
        let rings = KBox::pin_init(Rings::new(8), GFP_KERNEL)?;
        assert!(rings.expect_imm_in_messages() && !rings.expect_imm_in_messages());
        assert!(!rings.closed.load(Relaxed));
        rings.close();
        rings.close();
        assert!(rings.closed.load(Relaxed));
        assert!(rings.get(0).is_none() && rings.get(MAX_CLASSES).is_none());
        Ok(())
    }
}
