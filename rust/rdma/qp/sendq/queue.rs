// SPDX-License-Identifier: GPL-2.0

//! The state of a send queue: the work requests that wait for the doorbell, and the number of
//! outstanding requests. Only [`SendQueue::post`] uses the device.

use core::{
    mem::ManuallyDrop,
    ptr, //
};

use super::{
    Entries,
    SqSpace, //
};
use crate::{
    imm::ImmRing,
    position::Position,
    sge::{
        Remote,
        Sge, //
    },
    CZeroed, //
};
use ibtrs_bindings as bindings;
use kernel::prelude::*;
use kx::{
    ring::Ring,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// One work request of any kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Wr {
    pub(super) send: bindings::ib_send_wr,
    pub(super) rdma: bindings::ib_rdma_wr,
    pub(super) reg: bindings::ib_reg_wr,
}

/// The number of the latest queue.
static LAST_NUMBER: Atomic<u64> = Atomic::new(0);

/// The work requests that wait for the doorbell, and the number of outstanding requests.
///
/// # Invariants
///
/// - `wrs` and `sges` never grow, so that pointers into them stay valid.
/// - The first `used_wrs` requests are valid and linked in order, and use only elements among the
///   first `used_sges`.
pub(crate) struct SendQueue {
    wrs: KVVec<Wr>,
    sges: KVec<bindings::ib_sge>,
    used_wrs: usize,
    used_sges: usize,
    credits: Credits,
    /// Number of entries that are left free for the chains that may not be refused.
    reserve: u32,
    /// Maximum number of elements of one request.
    max_sges: u32,
    /// The number of the protection domain.
    domain: u64,
    /// The number of this queue, which no other ever has.
    number: u64,
    /// Present if immediates travel in messages.
    imms: Option<ImmRing>,
    closed: bool,
}

// SAFETY: The pointers in the requests are to the two vectors, to completion entries of the queue
// pair and its slots, and to regions. Any thread may use all of them.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// Capacity for waiting work requests and, in `BATCH_SGES`, their scatter elements; also the
    /// limits of a chain.
    pub(super) const BATCH_WRS: usize = 96;
    /// Enough entries for two chains of maximum length, and the unsignalled requests before each signalled
    /// one.
    // CAST: A small constant.
    const COMMON: u32 = 2 * (Self::BATCH_WRS as u32 + Credits::SIGNAL_EVERY);
    pub(super) const BATCH_SGES: usize = 272;

    /// Creates the state for a queue of `depth` entries, each of at most `max_sges` elements, of
    /// a queue pair in the protection domain with the number `domain`.
    pub(crate) fn new(depth: u32, max_sges: u32, domain: u64) -> Result<Self> {
        let wr = Wr {
            rdma: bindings::ib_rdma_wr::c_zeroed(),
        };
        let sge = bindings::ib_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        Ok(Self {
            wrs: KVVec::from_elem(wr, Self::BATCH_WRS, GFP_KERNEL)?,
            sges: KVec::from_elem(sge, Self::BATCH_SGES, GFP_KERNEL)?,
            used_wrs: 0,
            used_sges: 0,
            credits: Credits::new(depth)?,
            reserve: 0,
            max_sges,
            domain,
            number: LAST_NUMBER.fetch_add(1, Relaxed) + 1,
            imms: None,
            closed: false,
        })
    }

    /// Reserves `reserve` entries for chains with [`Entries::All`], or fewer, so that other chains have enough entries
    /// for two chains of maximum length; on a short queue, two thirds of it.
    pub(crate) fn with_reserve(self, reserve: u32) -> Self {
        let depth = self.credits.depth;
        let most = depth.saturating_sub(Self::COMMON).max(depth / 3);
        Self {
            reserve: reserve.min(most),
            ..self
        }
    }

    /// Makes all requests signalled.
    pub(crate) fn signal_all(&mut self) {
        self.credits.signal_every = 1;
    }

    /// Makes immediates travel in messages from now on.
    pub(super) fn set_imms(&mut self, imms: ImmRing) {
        self.imms = Some(imms);
    }

    /// Refuses all chains from now on, and drops the waiting ones.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.used_wrs = 0;
        self.used_sges = 0;
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Records the completion of a signalled request; returns its position.
    #[inline]
    pub(super) fn completed(&mut self) -> Position {
        Position {
            queue: self.number,
            number: self.credits.completed(),
        }
    }

    /// Makes room for a chain of `space`, and returns the space that it needs, with its immediate.
    /// If the chain does not fit beside the waiting ones, this first calls `post` with this queue to
    /// post those, even if the chain is then refused.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`: the queue is closed; `EINVAL`: the queue can never hold such a chain; `EAGAIN`: no
    /// space now; errors of `post`.
    #[inline]
    pub(super) fn make_room(
        &mut self,
        space: SqSpace,
        entries: Entries,
        post: impl FnOnce(&mut Self) -> Result,
    ) -> Result<SqSpace> {
        if self.closed {
            return Err(ENOTCONN);
        }
        let space = self.with_imm(space);
        let fit = self.fit(space, entries);
        if fit != Ok(Fit::Beside) {
            post(self)?;
        }
        fit.map(|_| space)
    }

    /// Returns the space that a chain takes for which the caller has announced `space`.
    #[inline]
    fn with_imm(&self, space: SqSpace) -> SqSpace {
        match &self.imms {
            // The immediate of a chain may need a separate message.
            Some(_) => SqSpace {
                wrs: space.wrs.saturating_add(1),
                sges: space.sges.saturating_add(1),
            },
            None => space,
        }
    }

    /// Returns whether a chain can be queued. If it does not fit beside the waiting ones,
    /// [`Self::make_room`] posts those first: they free space only after they were posted, and there may
    /// be no other task that posts them.
    ///
    /// # Errors
    ///
    /// `EINVAL`: never possible; `EAGAIN`: not now.
    #[inline]
    fn fit(&self, space: SqSpace, entries: Entries) -> Result<Fit> {
        let kept = match entries {
            Entries::All => 0,
            Entries::Common => self.reserve,
        };
        // A chain that has credit and fits is also possible.
        match self.has_credit(space, kept) && self.fits(space) {
            true => Ok(Fit::Beside),
            false => self.misfit(space, kept),
        }
    }

    /// As [`Self::fit`], for a chain that has no credit now, or does not fit beside the waiting ones.
    #[cold]
    fn misfit(&self, space: SqSpace, kept: u32) -> Result<Fit> {
        if !self.is_possible(space, kept) {
            Err(EINVAL)
        } else if !self.has_credit(space, kept) {
            Err(EAGAIN)
        } else {
            Ok(Fit::Alone)
        }
    }

    /// Returns whether a chain can ever be queued that leaves `kept` entries free.
    #[inline]
    fn is_possible(&self, space: SqSpace, kept: u32) -> bool {
        space.wrs.saturating_add(kept) <= self.credits.depth
            && space.wrs as usize <= self.wrs.len()
            && space.sges as usize <= self.sges.len()
    }

    /// Returns whether the device's queue has room now for a chain that leaves `kept` entries free.
    #[inline]
    fn has_credit(&self, space: SqSpace, kept: u32) -> bool {
        let used = u64::from(self.credits.used());
        used + u64::from(space.wrs) + u64::from(kept) <= u64::from(self.credits.depth)
    }

    /// Returns whether a chain fits beside the waiting ones.
    #[inline]
    fn fits(&self, space: SqSpace) -> bool {
        self.used_wrs.saturating_add(space.wrs as usize) <= self.wrs.len()
            && self.used_sges.saturating_add(space.sges as usize) <= self.sges.len()
    }

    /// Queues a chain of one message with an immediate: a write to `to` or, without `to`, a send. Returns
    /// false, with nothing queued, in all but the common case.
    ///
    /// `cqe` is a completion entry of the queue pair, or of a slot that it keeps, see
    /// `QueuePair::report_of`.
    #[inline(always)]
    pub(super) fn push_message<const N: usize>(
        &mut self,
        to: Option<Remote>,
        from: &[Sge; N],
        imm: u32,
        cqe: *mut bindings::ib_cqe,
        signalled: bool,
    ) -> bool {
        // CAST: A few elements.
        let space = SqSpace {
            wrs: 1,
            sges: N as u32,
        };
        let fits = self.has_credit(space, self.reserve) && space.sges <= self.max_sges;
        if self.closed || self.imms.is_some() || !fits {
            return false;
        }
        let (at, start) = (self.used_wrs, self.used_sges);
        let places = self.sges.get_mut(start..);
        let places = places.and_then(|rest| rest.first_chunk_mut::<N>());
        let (Some(places), Some(place)) = (places, self.wrs.get_mut(at)) else {
            return false;
        };
        for (place, sge) in places.iter_mut().zip(from) {
            let Some(raw) = sge.for_domain(self.domain) else {
                return false;
            };
            *place = raw;
        }
        let mut wr = bindings::ib_send_wr::c_zeroed();
        wr.__bindgen_anon_1.wr_cqe = ManuallyDrop::new(cqe);
        if N > 0 {
            wr.sg_list = places.as_mut_ptr();
            wr.num_sge = N as i32;
        }
        wr.opcode = match to {
            Some(_) => bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM,
            None => bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM,
        };
        if self.credits.take(signalled) {
            wr.send_flags = bindings::ib_send_flags_IB_SEND_SIGNALED;
        }
        wr.ex.imm_data = ManuallyDrop::new(imm.to_be());
        let to = to.unwrap_or_default();
        *place = Wr {
            rdma: bindings::ib_rdma_wr {
                wr,
                remote_addr: to.addr,
                rkey: to.rkey,
            },
        };
        let next: *mut bindings::ib_send_wr = ptr::from_mut(place).cast();
        if let Some(last) = at.checked_sub(1).and_then(|last| self.wrs.get_mut(last)) {
            last.send.next = next;
        }
        // INVARIANT: The request is valid, linked behind the one before it, and has the elements that
        // were unused before.
        self.used_wrs = at + 1;
        self.used_sges = start + N;
        true
    }

    /// Begins a chain of at most `space`. Without credit, or if it does not fit, the chain is
    /// refused.
    #[inline]
    pub(super) fn begin(&mut self, space: SqSpace) -> Draft<'_> {
        Draft {
            before: Mark {
                wrs: self.used_wrs,
                sges: self.used_sges,
                credits: self.credits.mark(),
                imms: self.imms.as_ref().map(ImmRing::position),
            },
            wrs_left: space.wrs,
            sges_left: space.sges,
            overflow: !(self.has_credit(space, 0) && self.fits(space)),
            queue: self,
        }
    }

    /// Posts all waiting requests. An error closes the queue.
    ///
    /// # Errors
    ///
    /// The driver's error, but `EIO` instead of an error that
    /// [`is_surely_unsent`](super::is_surely_unsent) accepts: the device may have received some of
    /// the requests.
    ///
    /// # Safety
    ///
    /// `qp` must be the live queue pair of this send queue.
    // Where a message was queued alone, what is known of the queue is in registers.
    #[inline(always)]
    pub(super) unsafe fn post(&mut self, qp: *mut bindings::ib_qp) -> Result {
        if self.used_wrs == 0 {
            return Ok(());
        }
        self.used_wrs = 0;
        self.used_sges = 0;
        let mut bad = ptr::null();
        // SAFETY: The queue pair is live by this function's contract. By the type invariant the
        // waiting requests form a valid list with their elements in `sges`; the list ends, as
        // `Draft::gather`, `Chain` and `push_message` create requests with a null link, and
        // `Draft::finish` restores the end. The device's driver copies requests and elements before it
        // returns. `QueuePair::report_of`, which returns the completion entries for `Chain::push` and
        // `push_message`, has checked that they are in the queue pair or in slots that it keeps, and
        // `Chain::reg_mr` that regions belong to its protection domain, so all of them outlive the queue
        // pair. `Draft::gather` and `push_message` have checked that the elements are of that domain. The
        // domain keeps the memory that they name, except the memory of an I/O (`MappedIo`), as described
        // in the crate's documentation.
        let ret = unsafe { bindings::ib_post_send(qp, self.wrs.as_ptr().cast(), &mut bad) };
        kernel::error::to_result(ret).map_err(|error| {
            self.closed = true;
            driver_error(error)
        })
    }
}

/// Translates the error with which a device's driver has refused requests. Soft-iWARP, for example,
/// returns `ENOTCONN` while the state of a queue pair changes.
fn driver_error(error: Error) -> Error {
    match error {
        EAGAIN | EINVAL | ENOTCONN => EIO,
        other => other,
    }
}

/// The place of a chain that fits; see [`SendQueue::fit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fit {
    /// Behind the waiting chains.
    Beside,
    /// At the beginning, once the waiting chains were posted.
    Alone,
}

/// The state before a chain, which is restored if the chain is not queued.
struct Mark {
    wrs: usize,
    sges: usize,
    credits: CreditMark,
    imms: Option<usize>,
}

/// A chain under construction: queued as a whole by [`Draft::finish`], or not at all.
pub(super) struct Draft<'a> {
    queue: &'a mut SendQueue,
    before: Mark,
    wrs_left: u32,
    sges_left: u32,
    overflow: bool,
}

impl Draft<'_> {
    /// Returns whether immediates travel in messages.
    #[inline]
    pub(super) fn has_imms(&self) -> bool {
        self.queue.imms.is_some()
    }

    /// Returns the element of the immediate that begins a message, or `None` if the chain may not
    /// have another message, as the immediate could overwrite that of a message in flight.
    pub(super) fn prefix(&mut self, imm: Option<u32>) -> Option<Sge> {
        if self.overflow || self.wrs_left == 0 {
            return None;
        }
        self.queue.imms.as_mut()?.push(imm)
    }

    /// Returns the position of the next request.
    #[inline]
    pub(super) fn position(&self) -> Position {
        Position {
            queue: self.queue.number,
            number: self.queue.credits.taken.wrapping_add(1),
        }
    }

    /// Marks the chain as one that cannot be queued.
    #[inline]
    pub(super) fn refuse(&mut self) {
        self.overflow = true;
    }

    /// Returns a request that sends `from`.
    // Inlined into the one caller that knows the elements.
    #[inline(always)]
    pub(super) fn gather(
        &mut self,
        opcode: bindings::ib_wr_opcode,
        from: impl IntoIterator<Item = Sge>,
    ) -> bindings::ib_send_wr {
        let mut wr = bindings::ib_send_wr::c_zeroed();
        wr.opcode = opcode;
        let start = self.queue.used_sges;
        let mut count = 0;
        for sge in from {
            let place = self.queue.sges.get_mut(start + count);
            let (Some(place), Some(raw)) = (place, sge.for_domain(self.queue.domain)) else {
                self.refuse();
                return wr;
            };
            *place = raw;
            count += 1;
        }
        // CAST: At most `BATCH_SGES`.
        let taken = count as u32;
        if taken > self.sges_left || taken > self.queue.max_sges {
            self.refuse();
            return wr;
        }
        self.sges_left -= taken;
        self.queue.used_sges += count;
        if taken > 0 {
            wr.sg_list = self.queue.sges.as_mut_ptr().wrapping_add(start);
            wr.num_sge = taken as i32;
        }
        wr
    }

    /// Appends a request whose completion goes to `cqe`. Its success is signalled only if
    /// `signalled`, or if the queue needs the signal.
    // Inlined, so that the request is built in place.
    #[inline(always)]
    pub(super) fn push(&mut self, mut wr: Wr, cqe: *mut bindings::ib_cqe, signalled: bool) {
        if self.overflow || self.wrs_left == 0 {
            self.refuse();
            return;
        }
        let queue = &mut *self.queue;
        let at = queue.used_wrs;
        let Some(place) = queue.wrs.get_mut(at) else {
            self.refuse();
            return;
        };
        self.wrs_left -= 1;
        // SAFETY: Each variant of the `repr(C)` union begins with an `ib_send_wr`.
        let head = unsafe { &mut wr.send };
        head.__bindgen_anon_1.wr_cqe = ManuallyDrop::new(cqe);
        if queue.credits.take(signalled) {
            head.send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED;
        }
        *place = wr;
        let next: *mut bindings::ib_send_wr = ptr::from_mut(place).cast();
        if let Some(last) = at.checked_sub(1).and_then(|last| queue.wrs.get_mut(last)) {
            last.send.next = next;
        }
        // INVARIANT: The request is valid, and linked behind the one before it.
        queue.used_wrs = at + 1;
    }

    /// Queues the chain.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the chain exceeded its space or was refused; no part of it remains queued.
    #[inline]
    pub(super) fn finish(self) -> Result {
        if !self.overflow {
            return Ok(());
        }
        let (queue, before) = (self.queue, self.before);
        queue.used_wrs = before.wrs;
        queue.used_sges = before.sges;
        queue.credits.undo(before.credits);
        if let (Some(ring), Some(position)) = (&mut queue.imms, before.imms) {
            ring.rewind(position);
        }
        // INVARIANT: The last request that remains ends the list again.
        let last = before.wrs.checked_sub(1);
        if let Some(last) = last.and_then(|at| queue.wrs.get_mut(at)) {
            last.send.next = ptr::null_mut();
        }
        Err(EINVAL)
    }
}

/// The free entries of the device's queue, and the positions of requests.
///
/// # Invariants
///
/// All requests up to the position `done` have completed.
struct Credits {
    depth: u32,
    /// Position of the latest request.
    taken: u64,
    /// Position of the latest completed request.
    done: u64,
    /// Position of the latest signalled request.
    signalled: u64,
    /// Interval in requests at which the queue signals a request that need not be.
    signal_every: u64,
    /// The position of each signalled request in flight.
    signals: Ring<u64>,
}

/// A state of [`Credits`] to roll back to, as long as nothing has completed since.
struct CreditMark {
    taken: u64,
    signalled: u64,
    signals: usize,
}

impl Credits {
    /// Maximum number of requests from one signalled request to the next.
    const SIGNAL_EVERY: u32 = 64;

    fn new(depth: u32) -> Result<Self> {
        // INVARIANT: There is no request yet.
        Ok(Self {
            depth,
            taken: 0,
            done: 0,
            signalled: 0,
            signal_every: (depth / 4).clamp(1, Self::SIGNAL_EVERY).into(),
            signals: Ring::new(depth as usize)?,
        })
    }

    /// Returns the number of entries in use.
    #[inline]
    fn used(&self) -> u32 {
        // CAST: No more requests are in flight than entries, of which `depth` is the number.
        self.taken.wrapping_sub(self.done) as u32
    }

    /// Takes an entry, which must be free; returns whether its request must be signalled.
    #[inline]
    fn take(&mut self, signalled: bool) -> bool {
        self.taken = self.taken.wrapping_add(1);
        if !signalled && self.taken.wrapping_sub(self.signalled) < self.signal_every {
            return false;
        }
        // The ring has room, as each signalled request takes at least one of the `depth` entries.
        self.signals.push(self.taken);
        self.signalled = self.taken;
        true
    }

    /// Frees the entries of a completed signalled request and of all requests before it; returns
    /// its position.
    #[inline]
    fn completed(&mut self) -> u64 {
        if let Some(position) = self.signals.pop() {
            // INVARIANT: Requests complete in order.
            self.done = position;
        }
        self.done
    }

    #[inline]
    fn mark(&self) -> CreditMark {
        CreditMark {
            taken: self.taken,
            signalled: self.signalled,
            signals: self.signals.len(),
        }
    }

    fn undo(&mut self, mark: CreditMark) {
        self.taken = mark.taken;
        self.signalled = mark.signalled;
        self.signals.truncate(mark.signals);
    }
}

#[cfg(IBTRS_KUNIT)]
mod tests;
