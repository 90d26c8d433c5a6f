// SPDX-License-Identifier: GPL-2.0

//! The send queue of a queue pair. It builds chains of work requests in preallocated memory, posts
//! them in batches, and counts the free entries of the device's queue.
//!
//! Entries of the device's send queue are freed only by completions of signalled requests, in
//! order. Such a completion also frees the entries of all unsignalled requests before it. The
//! number of free entries is therefore always known.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! # use rdma::{qp::{Handler, QpRef, QueuePair}, recv::{Received, Repost}, wc::Wc};
//! # struct Messages;
//! #
//! # impl Handler for Messages {
//! #     type Slot = ();
//! #
//! #     fn received(&self, _qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
//! #         let _ = message.bytes;
//! #         Repost::Yes
//! #     }
//! #
//! #     fn failed(&self, qp: QpRef<'_, Self>, wc: &Wc) {
//! #         if !wc.is_flush() {
//! #             qp.disconnect();
//! #         }
//! #     }
//! # }
//! use rdma::{
//!     dma::DmaBuf,
//!     mr::{Access, Mr},
//!     sendq::{Doorbell, Signal, SqSpace},
//!     sge::Remote,
//! };
//!
//! /// Lets the peer write to a region, and tells it so; all of that is one chain.
//! fn offer(qp: &QueuePair<Messages>, mr: &Mr, message: &DmaBuf) -> Result {
//!     let from = message.sge(0, 16)?;
//!     qp.send(SqSpace { wrs: 2, sges: 1 }, Doorbell::Now, |chain| {
//!         chain.reg_mr(mr, Access::RemoteWrite);
//!         chain.send([from], Signal::Control);
//!     })
//! }
//!
//! /// Writes to the memory of the peer.
//! fn write(qp: &QueuePair<Messages>, to: Remote, data: &DmaBuf) -> Result {
//!     let from = data.sge(0, 4096)?;
//!     qp.send(SqSpace { wrs: 1, sges: 1 }, Doorbell::Now, |chain| {
//!         chain.rdma_write_imm(to, [from], 7, Signal::None);
//!     })
//! }
//! ```

use core::{
    mem::ManuallyDrop,
    ptr, //
};

use super::{
    Handler,
    QpRef,
    QueuePair, //
};
use crate::{
    dma::Sink,
    imm::ImmRing,
    mr::{
        Access,
        Mr, //
    },
    sge::{
        Remote,
        Sge, //
    },
    wc::Wc,
    CZeroed, //
};
use ibtrs_bindings as bindings;
use kernel::prelude::*;

mod queue;
pub mod slot;

pub use crate::position::Position;
pub(crate) use queue::SendQueue;
use queue::{
    Draft,
    Wr, //
};
use slot::{
    Kind,
    Slot,
    SlotRef, //
};

/// The handler function that the completion of a work request calls.
pub enum Signal<'a, H: Handler> {
    /// None. The queue may still signal the request for its own accounting.
    None,
    /// [`Handler::control_sent`].
    Control,
    /// [`Handler::sent`] or [`Handler::slot_done`], with the slot.
    Slot(SlotRef<'a, H>, Kind),
}

/// The time at which the doorbell is rung.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Doorbell {
    /// Now, for this chain and all waiting chains.
    Now,
    /// With a later chain, or with [`QueuePair::ring`].
    Later,
}

/// SQ space: the maximum that a chain will use.
#[derive(Clone, Copy)]
pub struct SqSpace {
    /// Work requests.
    pub wrs: u32,
    /// Scatter elements of all work requests together.
    pub sges: u32,
}

/// The entries of a queue that a chain may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entries {
    /// All but the [reserve](crate::qp::QpConfig::send_reserve).
    Common,
    /// All.
    All,
}

/// The longest chain that a queue accepts, if it has enough entries.
pub const MAX_CHAIN: SqSpace = SqSpace {
    // CAST: Both are small.
    wrs: SendQueue::BATCH_WRS as u32,
    sges: SendQueue::BATCH_SGES as u32,
};

/// Returns whether `error` means that no part of the refused chain was or will be sent, see
/// [`QueuePair::send`]. Errors of a device's driver never have these values.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rdma::{
///     qp::{Handler, QueuePair},
///     sendq::{is_surely_unsent, Chain, Doorbell, SqSpace},
/// };
///
/// /// Sends a chain; returns false if it is to be sent again when there is space.
/// fn send<H: Handler>(
///     qp: &QueuePair<H>,
///     space: SqSpace,
///     build: impl FnOnce(&mut Chain<'_, H>),
/// ) -> Result<bool> {
///     match qp.send(space, Doorbell::Now, build) {
///         Ok(()) => Ok(true),
///         Err(EAGAIN) => Ok(false),
///         Err(error) if is_surely_unsent(error) => Err(error),
///         // The peer may have got it.
///         Err(error) => {
///             qp.disconnect();
///             Err(error)
///         }
///     }
/// }
/// ```
#[inline]
pub fn is_surely_unsent(error: Error) -> bool {
    matches!(error, ENOTCONN | EAGAIN | EINVAL)
}

/// A chain of work requests under construction.
pub struct Chain<'a, H: Handler> {
    draft: Draft<'a>,
    owner: &'a QueuePair<H>,
}

impl<H: Handler> Chain<'_, H> {
    /// Registers the memory that `mr` describes, with its current keys.
    ///
    /// The region must be of the queue pair's protection domain, so that it outlives the queue
    /// pair. The caller keeps the memory until the registration was invalidated, or all queue pairs
    /// of the domain are closed.
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

    /// Invalidates a key of this side, see [`QueuePair::invalidate`].
    fn local_inv(&mut self, rkey: u32, signal: Signal<'_, H>) {
        let mut wr = bindings::ib_send_wr::c_zeroed();
        wr.opcode = bindings::ib_wr_opcode_IB_WR_LOCAL_INV;
        wr.ex.invalidate_rkey = ManuallyDrop::new(rkey);
        self.push(Wr { send: wr }, signal);
    }

    /// Writes to the peer's memory.
    pub fn rdma_write(&mut self, to: Remote, from: impl IntoIterator<Item = Sge>) {
        self.rdma(to, from, None, Signal::None);
    }

    /// Writes to the peer's memory, and reports the completion, which shows that the peer's device has received the
    /// bytes.
    pub fn rdma_write_signalled(
        &mut self,
        to: Remote,
        from: impl IntoIterator<Item = Sge>,
        signal: Signal<'_, H>,
    ) {
        self.rdma(to, from, None, signal);
    }

    /// Reads from the peer's memory. If one of the last work requests of a chain is signalled, its
    /// completion also means that the earlier ones have read all of their bytes.
    ///
    /// The memory stays mapped until [`DmaPieces::end_reads`] or [`DmaUser::end_reads`] is called for it. A chain is
    /// refused if reads of another queue pair into the same memory may be outstanding.
    ///
    /// [`DmaPieces::end_reads`]: crate::dma::DmaPieces::end_reads
    /// [`DmaUser::end_reads`]: crate::dma::DmaUser::end_reads
    pub fn rdma_read<'s>(
        &mut self,
        from: Remote,
        to: impl IntoIterator<Item = Sink<'s>>,
        signal: Signal<'_, H>,
    ) {
        let at = self.draft.position();
        let mut is_free = true;
        let to = to.into_iter().map(|sink| {
            is_free &= sink.reads.note(at);
            sink.sge
        });
        let wr = bindings::ib_rdma_wr {
            wr: self
                .draft
                .gather(bindings::ib_wr_opcode_IB_WR_RDMA_READ, to),
            remote_addr: from.addr,
            rkey: from.rkey,
        };
        if !is_free {
            return self.draft.refuse();
        }
        self.push(Wr { rdma: wr }, signal);
    }

    /// Writes to the peer's memory, and completes a receive of the peer with `imm`.
    #[inline]
    pub fn rdma_write_imm(
        &mut self,
        to: Remote,
        from: impl IntoIterator<Item = Sge>,
        imm: u32,
        signal: Signal<'_, H>,
    ) {
        match self.draft.has_imms() {
            true => self.rdma_write_then_imm(to, from, imm, signal),
            false => self.rdma(to, from, Some(imm), signal),
        }
    }

    /// As [`Self::rdma_write_imm`], with the immediate in a separate message.
    #[cold]
    fn rdma_write_then_imm(
        &mut self,
        to: Remote,
        from: impl IntoIterator<Item = Sge>,
        imm: u32,
        signal: Signal<'_, H>,
    ) {
        let mut from = from.into_iter().peekable();
        if from.peek().is_some() {
            self.rdma(to, from, None, Signal::None);
        }
        self.send_prefixed([], Some(imm), signal);
    }

    /// Sends a message.
    #[inline]
    pub fn send(&mut self, from: impl IntoIterator<Item = Sge>, signal: Signal<'_, H>) {
        if self.draft.has_imms() {
            return self.send_prefixed(from, None, signal);
        }
        let wr = self.draft.gather(bindings::ib_wr_opcode_IB_WR_SEND, from);
        self.push(Wr { send: wr }, signal);
    }

    /// Sends a message that begins with `imm`, or with a mark for none.
    #[cold]
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
    #[inline]
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

    /// Sends a message that invalidates `rkey`, a key of the peer. If immediates travel in
    /// messages, the message must be empty, because it carries no immediate and the peer would take
    /// its first bytes for one.
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

    #[inline(always)]
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

    #[inline(always)]
    fn push(&mut self, wr: Wr, signal: Signal<'_, H>) {
        match self.owner.report_of(&signal) {
            Some((cqe, signalled)) => self.draft.push(wr, cqe, signalled),
            None => self.draft.refuse(),
        }
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
    /// `ENOMEM`; `EBUSY` if it was called before.
    pub fn carry_imm_in_messages(&self) -> Result {
        let ring = ImmRing::new(self.pd(), self.send_depth())?;
        if !self.recvs().expect_imm_in_messages() {
            return Err(EBUSY);
        }
        self.send_queue().lock().set_imms(ring);
        Ok(())
    }

    /// Builds a chain of work requests with `build` and queues it. Rings the doorbell as `doorbell`
    /// requests, or if waiting chains must make room.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// With `EAGAIN`, `EINVAL` and `ENOTCONN`, no part of the chain was or will be sent:
    ///
    /// - `EAGAIN`: the device's queue has no space now beside the
    ///   [reserve](crate::qp::QpConfig::send_reserve). [`Handler::sq_space_freed`] is called when
    ///   it may have space again. The doorbell was rung for the waiting chains.
    /// - `EINVAL`: `build` used more than `space`, elements or a region of another protection domain,
    ///   or a slot of another queue pair; or the queue can never hold such a chain.
    /// - `ENOTCONN`: the queue pair was closed.
    /// - `EIO`, or another error of the device's driver: the device did not accept everything that
    ///   was posted. The queue pair is unusable, and it is unknown which part of this chain and of
    ///   the waiting ones was sent.
    pub fn send(
        &self,
        space: SqSpace,
        doorbell: Doorbell,
        build: impl FnOnce(&mut Chain<'_, H>),
    ) -> Result {
        self.send_from(Entries::Common, space, doorbell, build)
    }

    /// Queues a chain of one message with `imm`: a write to `to`, or else a send. The same as
    /// [`QueuePair::send`] with [`Chain::rdma_write_imm`] or [`Chain::send_imm`], and faster.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::send`].
    // Left to itself, the compiler stops inlining it into the path of most requests as soon as there is one
    // more caller elsewhere, which costs each write a hundred instructions.
    #[inline(always)]
    pub fn send_message<const N: usize>(
        &self,
        to: Option<Remote>,
        from: [Sge; N],
        imm: u32,
        signal: Signal<'_, H>,
        doorbell: Doorbell,
    ) -> Result {
        if let Some((cqe, signalled)) = self.report_of(&signal) {
            let mut queue = self.send_queue().lock();
            if queue.push_message(to, &from, imm, cqe, signalled) {
                return match doorbell {
                    // SAFETY: This is the send queue of the queue pair, which is live, as `self` is.
                    Doorbell::Now => unsafe { queue.post(self.as_raw()) },
                    Doorbell::Later => Ok(()),
                };
            }
        }
        self.send_chain_of_one(to, from, imm, signal, doorbell)
    }

    /// As [`QueuePair::send_message`], by the general path for chains.
    #[cold]
    fn send_chain_of_one<const N: usize>(
        &self,
        to: Option<Remote>,
        from: [Sge; N],
        imm: u32,
        signal: Signal<'_, H>,
        doorbell: Doorbell,
    ) -> Result {
        // CAST: A few elements.
        let space = SqSpace {
            wrs: 1,
            sges: N as u32,
        };
        self.send(space, doorbell, |chain| match to {
            Some(to) => chain.rdma_write_imm(to, from, imm, signal),
            None => chain.send_imm(from, imm, signal),
        })
    }

    /// Returns the completion entry of a request with `signal`, and whether its success is signalled;
    /// `None` if the slot is not of the queue pair's table, which alone it keeps alive.
    #[inline(always)]
    fn report_of(&self, signal: &Signal<'_, H>) -> Option<(*mut bindings::ib_cqe, bool)> {
        match signal {
            Signal::None => Some((self.credit_cqe(), false)),
            Signal::Control => Some((self.control_cqe(), true)),
            Signal::Slot(slot, kind) => {
                let slots = self.slots();
                let is_ours = slots.is_some_and(|slots| ptr::eq(slot.table(), slots));
                is_ours.then(|| (slot.cqe(*kind), true))
            }
        }
    }

    /// Posts the invalidation of `rkey`, a key of this side, for which it takes an entry of the
    /// [reserve](crate::qp::QpConfig::send_reserve) if there is no other.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// As [`QueuePair::send`].
    pub fn invalidate(&self, rkey: u32, signal: Signal<'_, H>) -> Result {
        let space = SqSpace { wrs: 1, sges: 0 };
        self.send_from(Entries::All, space, Doorbell::Now, |chain| {
            chain.local_inv(rkey, signal)
        })
    }

    #[inline]
    fn send_from(
        &self,
        entries: Entries,
        space: SqSpace,
        doorbell: Doorbell,
        build: impl FnOnce(&mut Chain<'_, H>),
    ) -> Result {
        let mut guard = self.send_queue().lock();
        let queue = &mut *guard;
        let space = queue.make_room(space, entries, |queue| {
            // SAFETY: `make_room` passes the queue that it is called on: the send queue of the queue
            // pair, which is live, as `self` is.
            unsafe { queue.post(self.as_raw()) }
        })?;
        let mut chain = Chain {
            draft: queue.begin(space),
            owner: self,
        };
        build(&mut chain);
        let queued = chain.draft.finish();
        if doorbell == Doorbell::Now {
            // SAFETY: This is the send queue of the queue pair, which is live, as `self` is.
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
    /// `ENOTCONN`, and errors of the driver, as [`QueuePair::send`].
    pub fn ring(&self) -> Result {
        let mut queue = self.send_queue().lock();
        if queue.is_closed() {
            return Err(ENOTCONN);
        }
        // SAFETY: As in `send`.
        unsafe { queue.post(self.as_raw()) }
    }
}

/// Handles the completion of a work request of the send queue. If the request succeeded, this frees
/// its space, calls `report`, and then [`Handler::sq_space_freed`].
///
/// # Safety
///
/// The caller must be the [`done`] function that the core has called with this completion, of a
/// queue pair of this crate with that handler type.
///
/// [`done`]: bindings::ib_cqe::done
#[inline]
unsafe fn complete<H: Handler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
    report: impl FnOnce(&QueuePair<H>, QpRef<'_, H>, Position),
) {
    // SAFETY: By this function's contract the core has filled in the completion, which is being
    // handled, and does not change it during the call.
    let (qp, wc) = unsafe { (QueuePair::<H>::from_completion(cq, wc), Wc::from_raw(wc)) };
    // SAFETY: A completion of the queue pair is being handled until this function returns.
    let qp_ref = || unsafe { QpRef::new(qp) };
    if !wc.is_success() {
        return qp.handler().failed(qp_ref(), wc);
    }
    let done = qp.send_queue().lock().completed();
    report(qp, qp_ref(), done);
    qp.handler().sq_space_freed(qp_ref());
}

/// Handles the completion of a request that was signalled only for accounting, or failed.
///
/// # Safety
///
/// The core must have called this with a completion of a queue pair of this crate with that handler
/// type.
pub(crate) unsafe extern "C" fn credit_done<H: Handler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    // SAFETY: By this function's contract.
    unsafe { complete::<H>(cq, wc, |_, _, _| ()) };
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
    unsafe { complete::<H>(cq, wc, |qp, qp_ref, _| qp.handler().control_sent(qp_ref)) };
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
    let report = |qp: &QueuePair<H>, qp_ref: QpRef<'_, H>, _| {
        // SAFETY: By this function's contract.
        if let Some(slot) = unsafe { slot_of(qp, wc, Kind::Send) } {
            qp.handler().sent(qp_ref, slot);
        }
    };
    // SAFETY: By this function's contract.
    unsafe { complete(cq, wc, report) };
}

/// Handles the completion of the invalidation of a slot's key.
///
/// # Safety
///
/// As [`credit_done`], and the completion entry must be a slot's `invalidate`.
pub(crate) unsafe extern "C" fn other_done<H: Handler>(
    cq: *mut bindings::ib_cq,
    wc: *mut bindings::ib_wc,
) {
    let report = |qp: &QueuePair<H>, qp_ref: QpRef<'_, H>, done| {
        // SAFETY: By this function's contract.
        if let Some(slot) = unsafe { slot_of(qp, wc, Kind::Other) } {
            qp.handler().slot_done(qp_ref, slot, done);
        }
    };
    // SAFETY: By this function's contract.
    unsafe { complete(cq, wc, report) };
}

/// Returns the slot of a completion.
///
/// # Safety
///
/// `wc` must be a completion of `qp`, whose completion entry is a slot's, of that kind.
unsafe fn slot_of<H: Handler>(
    qp: &QueuePair<H>,
    wc: *mut bindings::ib_wc,
    kind: Kind,
) -> Option<SlotRef<'_, H>> {
    let slots = qp.slots()?;
    // SAFETY: By this function's contract the completion entry is that of a slot. `Chain::push` has
    // checked before the request was posted that the slot is in the queue pair's table, which the
    // queue pair keeps.
    unsafe {
        let cqe = *(*wc).__bindgen_anon_1.wr_cqe;
        Some(SlotRef::new(slots, Slot::<H>::from_cqe(cqe, kind)))
    }
}
