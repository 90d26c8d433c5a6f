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

mod queue;

pub(crate) use queue::SendQueue;
use queue::{
    Admitted,
    Draft,
    Wr, //
};

/// The recipient of the completion of a work request.
pub enum Signal<'a, H: Handler> {
    /// None; the queue may still signal the request for its own accounting.
    None,
    /// [`Handler::control_sent`] is called.
    Control,
    /// [`Handler::sent`] or [`Handler::invalidated`] is called with the slot.
    Slot(SlotRef<'a, H>, Kind),
}

/// When to ring the doorbell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Doorbell {
    /// With this chain, for it and all waiting chains.
    Now,
    /// With a later chain or [`QueuePair::ring`].
    Later,
}

/// SQ space: the most that a chain will use.
#[derive(Clone, Copy)]
pub struct SqSpace {
    /// Work requests.
    pub wrs: u32,
    /// Scatter elements of all work requests together.
    pub sges: u32,
}

/// A chain of work requests under construction.
pub struct Chain<'a, H: Handler> {
    draft: Draft<'a>,
    owner: &'a QueuePair<H>,
}

impl<H: Handler> Chain<'_, H> {
    /// Registers the memory that `mr` was last mapped to, under its current keys.
    ///
    /// The region must be one of the queue pair's protection domain, and so outlives the queue
    /// pair. The caller keeps the memory until the queue pair is closed or the registration was
    /// invalidated.
    pub fn reg_mr(&mut self, mr: &Mr, access: Access) {
        if !mr.is_of(self.owner.pd()) {
            return self.draft.refuse();
        }
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

    /// Writes to the peer's memory, and completes a receive of the peer with `imm`.
    pub fn rdma_write_imm(
        &mut self,
        to: Remote,
        from: impl IntoIterator<Item = Sge>,
        imm: u32,
        signal: Signal<'_, H>,
    ) {
        if !self.draft.has_imms() {
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
        if self.draft.has_imms() {
            return self.send_prefixed(from, None, signal);
        }
        let wr = self.draft.gather(bindings::ib_wr_opcode_IB_WR_SEND, from);
        self.push(Wr { send: wr }, signal);
    }

    /// Sends a message that begins with `imm`, or with a mark for none.
    fn send_prefixed(
        &mut self,
        from: impl IntoIterator<Item = Sge>,
        imm: Option<u32>,
        signal: Signal<'_, H>,
    ) {
        let Some(prefix) = self.draft.prefix(imm) else {
            return self.draft.refuse();
        };
        let pieces = Iterator::chain([prefix].into_iter(), from);
        let wr = self.draft.gather(bindings::ib_wr_opcode_IB_WR_SEND, pieces);
        self.push(Wr { send: wr }, signal);
    }

    /// Sends a message with an immediate.
    pub fn send_imm(
        &mut self,
        from: impl IntoIterator<Item = Sge>,
        imm: u32,
        signal: Signal<'_, H>,
    ) {
        if self.draft.has_imms() {
            return self.send_prefixed(from, Some(imm), signal);
        }
        let mut wr = self
            .draft
            .gather(bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM, from);
        wr.ex.imm_data = ManuallyDrop::new(imm.to_be());
        self.push(Wr { send: wr }, signal);
    }

    /// Sends a message that invalidates `rkey`, a key of the peer. Where immediates travel in
    /// messages, it must be empty: it carries no immediate, and the peer would take its first bytes
    /// for one.
    pub fn send_inv(
        &mut self,
        rkey: u32,
        from: impl IntoIterator<Item = Sge>,
        signal: Signal<'_, H>,
    ) {
        let mut from = from.into_iter().peekable();
        if self.draft.has_imms() && from.peek().is_some() {
            return self.draft.refuse();
        }
        let mut wr = self
            .draft
            .gather(bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV, from);
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
            wr: self.draft.gather(opcode, from),
            remote_addr: to.addr,
            rkey: to.rkey,
        };
        if let Some(imm) = imm {
            wr.wr.ex.imm_data = ManuallyDrop::new(imm.to_be());
        }
        self.push(Wr { rdma: wr }, signal);
    }

    fn push(&mut self, wr: Wr, signal: Signal<'_, H>) {
        let (cqe, signalled) = match signal {
            Signal::None => (self.owner.credit_cqe(), false),
            Signal::Control => (self.owner.control_cqe(), true),
            Signal::Slot(slot, kind) => {
                // Only slots of the table that the queue pair keeps alive may complete on it.
                let slots = self.owner.slots();
                if !slots.is_some_and(|slots| ptr::eq(slot.table(), slots)) {
                    return self.draft.refuse();
                }
                (slot.cqe(kind), true)
            }
        };
        self.draft.push(wr, cqe, signalled);
    }
}

impl<H: Handler> QueuePair<H> {
    /// Makes immediates travel in messages, for devices that do not support them. The peer must do
    /// the same. Each chain takes one more entry of the send queue.
    ///
    /// Must be called before [`QueuePair::add_recvs`] and before anything is sent.
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

    /// Builds a chain of work requests with `build` and queues it. Rings the doorbell if `doorbell`
    /// says so, or if waiting chains must make room.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// With the first three, nothing of the chain was or will be sent:
    ///
    /// - `EAGAIN`: the device's queue has no space now; [`Handler::sq_space_freed`] tells when it
    ///   may have. The doorbell was rung for the waiting chains.
    /// - `EINVAL`: `build` used more than `space`, elements of another device, a region of another
    ///   protection domain, or a slot of another queue pair; or the queue can never hold such a
    ///   chain.
    /// - `ENOTCONN`: the queue pair was closed.
    /// - `EIO`, or another error of the driver: the device did not take everything that it was
    ///   handed. The queue pair is unusable, and it is unknown how much of this chain and of the
    ///   waiting ones was sent.
    pub fn send(
        &self,
        space: SqSpace,
        doorbell: Doorbell,
        build: impl FnOnce(&mut Chain<'_, H>),
    ) -> Result {
        let mut guard = self.send_queue().lock();
        let queue = &mut *guard;
        if queue.is_closed() {
            return Err(ENOTCONN);
        }
        let space = queue.with_imm(space);
        let admitted = queue.admit(space);
        if admitted != Ok(Admitted::Beside) {
            // SAFETY: This is the queue pair's own send queue.
            unsafe { queue.post(self.as_raw()) }?;
        }
        admitted?;
        let mut chain = Chain {
            draft: queue.begin(space),
            owner: self,
        };
        build(&mut chain);
        let queued = chain.draft.finish();
        if doorbell == Doorbell::Now {
            // SAFETY: As above.
            unsafe { queue.post(self.as_raw()) }?;
        }
        queued
    }

    /// Rings the doorbell for all waiting chains.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` and those of the driver, as [`QueuePair::send`].
    pub fn ring(&self) -> Result {
        let mut queue = self.send_queue().lock();
        if queue.is_closed() {
            return Err(ENOTCONN);
        }
        // SAFETY: This is the queue pair's own send queue.
        unsafe { queue.post(self.as_raw()) }
    }

    /// The common part of all completions of the send queue. Returns whether the work request
    /// succeeded; if not, the handler was told.
    fn send_completed(&self, wc: &Wc) -> bool {
        if !wc.is_success() {
            self.handler().failed(QpRef::new(self), wc);
            return false;
        }
        self.send_queue().lock().completed();
        true
    }
}

/// Handles the completion of a request that was signalled only for accounting, or failed.
///
/// # Safety
///
/// For [`done`] functions: called by the core with a completion of a queue pair of this crate with
/// that handler type.
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
        qp.handler().sq_space_freed(QpRef::new(qp));
    }
}

/// Handles the completion of a control message.
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
        qp.handler().sq_space_freed(QpRef::new(qp));
    }
}

/// Handles the completion of a slot's message.
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
        qp.handler().sq_space_freed(QpRef::new(qp));
    }
}

/// Handles the completion of the invalidation of a slot's key.
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
        qp.handler().sq_space_freed(QpRef::new(qp));
    }
}

/// # Safety
///
/// As [`credit_done`], and the completion entry must be a slot's, of that kind.
unsafe fn slot_of<'a, H: Handler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
    kind: Kind,
) -> (&'a QueuePair<H>, Option<SlotRef<'a, H>>) {
    // SAFETY: By this function's contract. The slot is in the queue pair's table, as `Chain::push`
    // checked before the request was posted.
    unsafe {
        let qp = QueuePair::<H>::from_completion(cq, wc);
        let cqe = *(*wc).__bindgen_anon_1.wr_cqe;
        let slot = qp
            .slots()
            .map(|slots| SlotRef::new(slots, Slot::<H>::from_cqe(cqe, kind)));
        (qp, slot)
    }
}
