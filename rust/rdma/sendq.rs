// SPDX-License-Identifier: GPL-2.0

//! The send queue of a queue pair: chains of work requests, built without
//! allocation in memory of the queue, posted in batches, counted exactly.
//!
//! The device frees entries of its send queue only when it completes a signalled
//! request, and in order. So each signalled request stands for itself and all
//! unsignalled ones before it, and the queue knows at any time how much room is
//! left.

use core::{
    mem::ManuallyDrop,
    ptr, //
};

use crate::{
    imm::ImmRing,
    mr::{
        Access,
        Mr, //
    },
    qp::{
        Handler,
        QpRef,
        QueuePair, //
    },
    sge::{
        Remote,
        Sge, //
    },
    slot::{
        Kind,
        Slot,
        SlotRef, //
    },
    wc::Wc,
    CZeroed, //
};
use ibtrs_bindings as bindings;
use kernel::prelude::*;
use kx::ring::Ring;

/// Whose completion a work request causes.
pub enum Signal<'a, H: Handler> {
    /// None, unless the queue wants one for its own accounting.
    None,
    /// [`Handler::control_sent`] is called.
    Control,
    /// [`Handler::sent`] or [`Handler::invalidated`] is called with the slot.
    Slot(SlotRef<'a, H>, Kind),
}

/// When the doorbell is rung.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Doorbell {
    /// With this chain, for it and all that wait.
    Now,
    /// By a later chain or [`QueuePair::ring`].
    Later,
}

/// The most that a chain will use.
#[derive(Clone, Copy)]
pub struct Room {
    /// Work requests.
    pub wrs: u32,
    /// Scatter elements of all of them together.
    pub sges: u32,
}

/// One work request of any kind.
#[repr(C)]
#[derive(Clone, Copy)]
union Wr {
    send: bindings::ib_send_wr,
    rdma: bindings::ib_rdma_wr,
    reg: bindings::ib_reg_wr,
}

/// Work requests that wait for the doorbell, and the count of what the device
/// has not completed.
///
/// # Invariants
///
/// - `wrs` and `sges` never grow, so that pointers into them stay good.
/// - The first `used_wrs` requests are valid and linked in order, and use
///   elements among the first `used_sges` only.
pub(crate) struct SendQueue {
    wrs: KVec<Wr>,
    sges: KVec<Sge>,
    used_wrs: usize,
    used_sges: usize,
    /// Entries of the device's queue that are free.
    room: u32,
    /// Requests since the last signalled one.
    unsignalled: u32,
    /// How many requests make the queue signal one by itself.
    signal_every: u32,
    /// For each signalled request in flight, how many entries it frees.
    frees: Ring<u32>,
    /// Present if immediates travel in messages.
    imms: Option<ImmRing>,
    closed: bool,
}

// SAFETY: The pointers inside the requests lead to the two vectors, to completion
// entries of the queue pair and its slots, and to regions; all may be used from
// any thread.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// Work requests and scatter elements that can wait for the doorbell.
    const BATCH_WRS: usize = 48;
    const BATCH_SGES: usize = 192;

    /// Makes the state for a device queue of `depth` entries.
    pub(crate) fn new(depth: u32) -> Result<Self> {
        let zero = Wr {
            rdma: bindings::ib_rdma_wr::c_zeroed(),
        };
        Ok(Self {
            wrs: KVec::from_elem(zero, Self::BATCH_WRS, GFP_KERNEL)?,
            sges: KVec::from_elem(Sge::new(0, 0, 0), Self::BATCH_SGES, GFP_KERNEL)?,
            used_wrs: 0,
            used_sges: 0,
            room: depth,
            unsignalled: 0,
            signal_every: (depth / 4).clamp(1, 64),
            frees: Ring::new(depth as usize)?,
            imms: None,
            closed: false,
        })
    }

    /// Lets immediates travel in messages from now on.
    fn set_imms(&mut self, imms: ImmRing) {
        self.imms = Some(imms);
    }

    /// Refuses everything from now on.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.used_wrs = 0;
        self.used_sges = 0;
    }

    /// Takes note of a completed signalled request.
    fn completed(&mut self) {
        if let Some(count) = self.frees.pop() {
            self.room = self.room.saturating_add(count);
        }
    }

    fn fits(&self, room: Room) -> bool {
        self.used_wrs.saturating_add(room.wrs as usize) <= self.wrs.len()
            && self.used_sges.saturating_add(room.sges as usize) <= self.sges.len()
    }

    /// Hands all waiting requests to the device.
    ///
    /// # Safety
    ///
    /// `qp` must be the live queue pair that this is the send queue of.
    unsafe fn post(&mut self, qp: *mut bindings::ib_qp) -> Result {
        if self.used_wrs == 0 {
            return Ok(());
        }
        self.used_wrs = 0;
        self.used_sges = 0;
        let mut bad = ptr::null();
        // SAFETY: By the type invariant the requests form a valid list, which
        // ends as each was made with a null link. All memory that they name by
        // address stays until their completion (see `slot` and `dma`).
        let ret = unsafe { bindings::ib_post_send(qp, self.wrs.as_ptr().cast(), &mut bad) };
        if ret != 0 {
            // Some may have been posted and some not: the connection is lost.
            self.closed = true;
        }
        kernel::error::to_result(ret)
    }
}

/// A chain of work requests under construction.
pub struct Chain<'a, H: Handler> {
    queue: &'a mut SendQueue,
    owner: &'a QueuePair<H>,
    wrs_left: u32,
    sges_left: u32,
    overflow: bool,
}

impl<H: Handler> Chain<'_, H> {
    /// Registers what `mr` was last mapped to, under its present keys.
    ///
    /// The caller keeps the region until the queue pair is drained or the
    /// registration was invalidated.
    pub fn reg_mr(&mut self, mr: &Mr, access: Access) {
        let mut wr = bindings::ib_reg_wr {
            mr: mr.as_raw(),
            key: mr.rkey(),
            access: access.bits(),
            ..bindings::ib_reg_wr::c_zeroed()
        };
        wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_REG_MR;
        self.push(Wr { reg: wr }, Signal::None);
    }

    /// Invalidates a key of this side.
    pub fn local_inv(&mut self, rkey: u32, signal: Signal<'_, H>) {
        let mut wr = bindings::ib_send_wr::c_zeroed();
        wr.opcode = bindings::ib_wr_opcode_IB_WR_LOCAL_INV;
        wr.ex.invalidate_rkey = ManuallyDrop::new(rkey);
        self.push(Wr { send: wr }, signal);
    }

    /// Writes to the peer's memory.
    pub fn rdma_write(&mut self, to: Remote, from: impl IntoIterator<Item = Sge>) {
        self.rdma(to, from, None, Signal::None);
    }

    /// Writes to the peer's memory and completes a receive of his with `imm`.
    pub fn rdma_write_imm(
        &mut self,
        to: Remote,
        from: impl IntoIterator<Item = Sge>,
        imm: u32,
        signal: Signal<'_, H>,
    ) {
        if self.queue.imms.is_none() {
            return self.rdma(to, from, Some(imm), signal);
        }
        let mut from = from.into_iter().peekable();
        if from.peek().is_some() {
            self.rdma(to, from, None, Signal::None);
        }
        self.send_prefixed([], Some(imm), signal);
    }

    /// Sends a message.
    pub fn send(&mut self, from: impl IntoIterator<Item = Sge>, signal: Signal<'_, H>) {
        if self.queue.imms.is_some() {
            return self.send_prefixed(from, None, signal);
        }
        let wr = self.message(bindings::ib_wr_opcode_IB_WR_SEND, from);
        self.push(Wr { send: wr }, signal);
    }

    /// Sends a message that begins with `imm`.
    fn send_prefixed(
        &mut self,
        from: impl IntoIterator<Item = Sge>,
        imm: Option<u32>,
        signal: Signal<'_, H>,
    ) {
        let Some(prefix) = self.queue.imms.as_mut().and_then(|imms| imms.push(imm)) else {
            self.overflow = true;
            return;
        };
        let pieces = Iterator::chain([prefix].into_iter(), from);
        let wr = self.message(bindings::ib_wr_opcode_IB_WR_SEND, pieces);
        self.push(Wr { send: wr }, signal);
    }

    /// Sends a message with an immediate.
    pub fn send_imm(
        &mut self,
        from: impl IntoIterator<Item = Sge>,
        imm: u32,
        signal: Signal<'_, H>,
    ) {
        if self.queue.imms.is_some() {
            return self.send_prefixed(from, Some(imm), signal);
        }
        let mut wr = self.message(bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM, from);
        wr.ex.imm_data = ManuallyDrop::new(imm.to_be());
        self.push(Wr { send: wr }, signal);
    }

    /// Sends an empty message that invalidates `rkey`, a key of the peer's.
    pub fn send_inv(&mut self, rkey: u32, signal: Signal<'_, H>) {
        let mut wr = self.message(bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV, []);
        wr.ex.invalidate_rkey = ManuallyDrop::new(rkey);
        self.push(Wr { send: wr }, signal);
    }

    fn rdma(
        &mut self,
        to: Remote,
        from: impl IntoIterator<Item = Sge>,
        imm: Option<u32>,
        signal: Signal<'_, H>,
    ) {
        let opcode = match imm {
            Some(_) => bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM,
            None => bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
        };
        let mut wr = bindings::ib_rdma_wr {
            wr: self.message(opcode, from),
            remote_addr: to.addr,
            rkey: to.rkey,
        };
        if let Some(imm) = imm {
            wr.wr.ex.imm_data = ManuallyDrop::new(imm.to_be());
        }
        self.push(Wr { rdma: wr }, signal);
    }

    /// Makes a request that sends `from`.
    fn message(
        &mut self,
        opcode: bindings::ib_wr_opcode,
        from: impl IntoIterator<Item = Sge>,
    ) -> bindings::ib_send_wr {
        let mut wr = bindings::ib_send_wr::c_zeroed();
        wr.opcode = opcode;
        let start = self.queue.used_sges;
        for sge in from {
            if self.sges_left == 0 {
                self.overflow = true;
                return wr;
            }
            self.sges_left -= 1;
            if let Some(place) = self.queue.sges.get_mut(self.queue.used_sges) {
                *place = sge;
                self.queue.used_sges += 1;
            }
        }
        let count = self.queue.used_sges - start;
        if count > 0 {
            // CAST: `Sge` is transparent.
            wr.sg_list = self.queue.sges.as_mut_ptr().wrapping_add(start).cast();
            wr.num_sge = count as i32;
        }
        wr
    }

    fn push(&mut self, mut wr: Wr, signal: Signal<'_, H>) {
        if self.wrs_left == 0 {
            self.overflow = true;
            return;
        }
        self.wrs_left -= 1;
        let (cqe, signalled) = match signal {
            Signal::None => (self.owner.credit_cqe(), false),
            Signal::Control => (self.owner.control_cqe(), true),
            Signal::Slot(slot, kind) => {
                // Only slots of the table that the queue pair keeps may
                // complete on it.
                if !self
                    .owner
                    .slots()
                    .is_some_and(|slots| ptr::eq(slot.table(), slots))
                {
                    self.overflow = true;
                    return;
                }
                (slot.cqe(kind), true)
            }
        };
        let queue = &mut *self.queue;
        queue.unsignalled += 1;
        // SAFETY: Each variant of the union begins with the plain request.
        let head = unsafe { &mut wr.send };
        head.__bindgen_anon_1.wr_cqe = ManuallyDrop::new(cqe);
        if signalled || queue.unsignalled >= queue.signal_every {
            head.send_flags |= bindings::ib_send_flags_IB_SEND_SIGNALED;
            // There is room: each entry stands for at least one of the device's queue.
            queue.frees.push(queue.unsignalled);
            queue.unsignalled = 0;
        }
        let at = queue.used_wrs;
        let Some(place) = queue.wrs.get_mut(at) else {
            self.overflow = true;
            return;
        };
        *place = wr;
        let next: *mut bindings::ib_send_wr = ptr::from_mut(place).cast();
        if let Some(last) = at.checked_sub(1).and_then(|last| queue.wrs.get_mut(last)) {
            last.send.next = next;
        }
        queue.used_wrs = at + 1;
    }
}

impl<H: Handler> QueuePair<H> {
    /// Lets immediates travel in messages, for devices that cannot send them
    /// otherwise. The peer must do the same. A message takes one entry of the
    /// send queue more than without.
    ///
    /// To be called before [`QueuePair::add_recvs`] and before anything is sent.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EBUSY` the second time.
    pub fn carry_imm_in_messages(&self) -> Result {
        let ring = ImmRing::new(self.pd(), self.send_depth())?;
        if !self.recvs().expect_imm_in_messages() {
            return Err(EBUSY);
        }
        self.send_queue().lock().set_imms(ring);
        Ok(())
    }

    /// Builds a chain of work requests with `build` and queues it; rings the
    /// doorbell if `doorbell` says so or the queue must make room.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// - `EAGAIN`: the device's queue has no such room now;
    ///   [`Handler::room`] tells when it may.
    /// - `EINVAL`: `build` used more than `room`, or a slot of another queue
    ///   pair; nothing was queued.
    /// - `ENOTCONN`: the queue pair was closed.
    /// - Others from the driver: the queue pair is no longer usable, and some
    ///   requests that waited may have been lost.
    pub fn send(
        &self,
        room: Room,
        doorbell: Doorbell,
        build: impl FnOnce(&mut Chain<'_, H>),
    ) -> Result {
        let mut guard = self.send_queue().lock();
        let queue = &mut *guard;
        if queue.closed {
            return Err(ENOTCONN);
        }
        let room = match &queue.imms {
            // A chain has one immediate, which is a message of its own then.
            Some(_) => Room {
                wrs: room.wrs + 1,
                sges: room.sges + 1,
            },
            None => room,
        };
        if queue.room < room.wrs {
            return Err(EAGAIN);
        }
        if !queue.fits(room) {
            // SAFETY: This is the queue pair's own send queue.
            unsafe { queue.post(self.as_raw()) }?;
            if !queue.fits(room) {
                return Err(EINVAL);
            }
        }
        let before = (queue.used_wrs, queue.used_sges, queue.unsignalled);
        let signals = queue.frees.len();
        let imms = queue.imms.as_ref().map(ImmRing::position);
        let mut chain = Chain {
            queue,
            owner: self,
            wrs_left: room.wrs,
            sges_left: room.sges,
            overflow: false,
        };
        build(&mut chain);
        let (overflow, left) = (chain.overflow, chain.wrs_left);
        if overflow {
            (queue.used_wrs, queue.used_sges, queue.unsignalled) = before;
            queue.frees.truncate(signals);
            if let (Some(ring), Some(position)) = (&mut queue.imms, imms) {
                ring.rewind(position);
            }
            if let Some(last) = before.0.checked_sub(1).and_then(|at| queue.wrs.get_mut(at)) {
                last.send.next = ptr::null_mut();
            }
            return Err(EINVAL);
        }
        queue.room -= room.wrs - left;
        if doorbell == Doorbell::Now {
            // SAFETY: As above.
            unsafe { queue.post(self.as_raw()) }?;
        }
        Ok(())
    }

    /// Tells whether nothing can be sent any more: the queue pair was closed, or
    /// the driver has failed to take a chain, in whole or in part.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_closed(&self) -> bool {
        self.send_queue().lock().closed
    }

    /// Rings the doorbell for all chains that wait.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::send`].
    pub fn ring(&self) -> Result {
        let mut queue = self.send_queue().lock();
        if queue.closed {
            return Err(ENOTCONN);
        }
        // SAFETY: This is the queue pair's own send queue.
        unsafe { queue.post(self.as_raw()) }
    }

    /// What every completion of the send queue has in common: gives the
    /// completion if it is a success.
    fn send_completed(&self, wc: &Wc) -> bool {
        if !wc.is_success() {
            self.handler().failed(QpRef::new(self), wc);
            return false;
        }
        self.send_queue().lock().completed();
        true
    }
}

/// Completion of a request that was signalled for accounting only, or failed.
///
/// # Safety
///
/// For [`done`] functions: called by the core with a completion of a queue pair
/// of this crate with that handler.
///
/// [`done`]: bindings::ib_cqe::done
pub(crate) unsafe extern "C" fn credit_done<H: Handler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: By this function's contract.
    let qp = unsafe { QueuePair::<H>::from_completion(cq, wc) };
    // SAFETY: By this function's contract.
    let wc = unsafe { Wc::from_raw(wc) };
    if qp.send_completed(wc) {
        qp.handler().room(QpRef::new(qp));
    }
}

/// Completion of a control message.
///
/// # Safety
///
/// As [`credit_done`].
pub(crate) unsafe extern "C" fn control_done<H: Handler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: By this function's contract.
    let qp = unsafe { QueuePair::<H>::from_completion(cq, wc) };
    // SAFETY: By this function's contract.
    let wc = unsafe { Wc::from_raw(wc) };
    if qp.send_completed(wc) {
        qp.handler().control_sent(QpRef::new(qp));
        qp.handler().room(QpRef::new(qp));
    }
}

/// Completion of a slot's message.
///
/// # Safety
///
/// As [`credit_done`], and the completion entry must be a slot's `send`.
pub(crate) unsafe extern "C" fn sent_done<H: Handler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: By this function's contract.
    let (qp, slot) = unsafe { slot_of::<H>(cq, wc, Kind::Send) };
    // SAFETY: By this function's contract.
    if qp.send_completed(unsafe { Wc::from_raw(wc) }) {
        if let Some(slot) = slot {
            qp.handler().sent(QpRef::new(qp), slot);
        }
        qp.handler().room(QpRef::new(qp));
    }
}

/// Completion of the invalidation of a slot's key.
///
/// # Safety
///
/// As [`credit_done`], and the completion entry must be a slot's `invalidate`.
pub(crate) unsafe extern "C" fn invalidated_done<H: Handler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: By this function's contract.
    let (qp, slot) = unsafe { slot_of::<H>(cq, wc, Kind::Invalidate) };
    // SAFETY: By this function's contract.
    if qp.send_completed(unsafe { Wc::from_raw(wc) }) {
        if let Some(slot) = slot {
            qp.handler().invalidated(QpRef::new(qp), slot);
        }
        qp.handler().room(QpRef::new(qp));
    }
}

/// # Safety
///
/// As [`credit_done`], and the completion entry must be a slot's of that kind.
unsafe fn slot_of<'a, H: Handler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
    kind: Kind,
) -> (&'a QueuePair<H>, Option<SlotRef<'a, H>>) {
    // SAFETY: By this function's contract. The slot is in the queue pair's
    // table, as `Chain::push` checked when the request was made.
    unsafe {
        let qp = QueuePair::<H>::from_completion(cq, wc);
        let cqe = *(*wc).__bindgen_anon_1.wr_cqe;
        let slot = qp
            .slots()
            .map(|slots| SlotRef::new(slots, Slot::<H>::from_cqe(cqe, kind)));
        (qp, slot)
    }
}
