// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

use core::{
    cell::UnsafeCell,
    marker::PhantomPinned,
    mem::ManuallyDrop,
    ptr, //
};

use crate::{
    cm::CmId,
    cq::{
        Cq,
        PollContext, //
    },
    pd::Pd,
    plug,
    recv::{
        Received,
        Repost,
        Rings, //
    },
    sendq::{
        self,
        SendQueue, //
    },
    slot::{
        SlotRef,
        Slots, //
    },
    wc::{
        self,
        Wc, //
    },
    CZeroed, //
};
use ibtrs_bindings as bindings;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            AtomicFlag,
            Relaxed,
            Release, //
        },
        Arc,
        SetOnce,
        SpinLockIrq, //
    },
    types::Opaque, //
};
use kx::sync::{
    PercpuArc,
    PercpuEnd,
    PercpuOwner, //
};

/// A driver's handlers for the completions of a queue pair.
///
/// # Context
///
/// All functions run where [`QpConfig::context`] says, one at a time for each
/// queue pair, but for [`Handler::failed`], which may run anywhere. While a queue
/// pair that is polled directly is being closed, they may run several at a time.
pub trait Handler: Send + Sync + Sized + 'static {
    /// The driver's part of each slot.
    type Slot: Send + Sync;

    /// A message arrived.
    fn received(&self, qp: QpRef<'_, Self>, message: Received<'_>) -> Repost;

    /// The message that was signalled to the slot was sent.
    fn sent(&self, _qp: QpRef<'_, Self>, _slot: SlotRef<'_, Self>) {}

    /// The invalidation that was signalled to the slot was done.
    fn invalidated(&self, _qp: QpRef<'_, Self>, _slot: SlotRef<'_, Self>) {}

    /// A control message was sent.
    fn control_sent(&self, _qp: QpRef<'_, Self>) {}

    /// The send queue has more room than before.
    fn sq_space_freed(&self, _qp: QpRef<'_, Self>) {}

    /// A completion is about to be handled, by one of the functions here: it is the one at
    /// `position` of those that were taken off the completion queue together, from 0 on;
    /// always 0 if that is polled directly.
    fn completes(&self, _qp: &QueuePair<Self>, _position: u32) {}

    /// A batch of completions is about to be handled: until [`Handler::batch_ends`], what is to be
    /// sent can wait, for what else is to be sent. Only with [`PollContext::WorkQueue`].
    fn batch_begins(&self) {}

    /// The completions of a batch were handled, and the disks' drivers have got what the handlers
    /// have asked of them; or the thread that handles them goes to sleep meanwhile, so that it may
    /// be called a second time. It must not sleep.
    ///
    /// When [`QueuePair::close`] returns, the last batch has ended.
    fn batch_ends(&self, _qp: &QueuePair<Self>) {}

    /// A work request failed, or was flushed because an earlier one did, or
    /// because the queue pair is being closed (see [`Wc::is_flush`]).
    fn failed(&self, qp: QpRef<'_, Self>, wc: &Wc);

    /// As [`Handler::failed`], of a receive: a message did not fit it, for one.
    fn receive_failed(&self, qp: QpRef<'_, Self>, wc: &Wc) {
        self.failed(qp, wc);
    }
}

/// A queue pair as its completions see it.
pub struct QpRef<'a, H: Handler> {
    qp: &'a QueuePair<H>,
}

impl<'a, H: Handler> QpRef<'a, H> {
    pub(crate) fn new(qp: &'a QueuePair<H>) -> Self {
        Self { qp }
    }

    /// Takes a reference that may outlive the completion.
    pub fn get(&self) -> PercpuArc<QueuePair<H>> {
        // SAFETY: Every `QueuePair` is made inside a `PercpuOwner`. This exists
        // while one of its completions is handled, and then the count is not zero:
        // either the owner's reference is there, which `Qp` gives up only after
        // `QueuePair::close`, when all completions have been handled and none can
        // come any more; or, with direct polling, the poller has a reference.
        // The reference that is made up is not dropped.
        let this = ManuallyDrop::new(unsafe { PercpuArc::from_raw(ptr::from_ref(self.qp)) });
        PercpuArc::clone(&this)
    }
}

impl<H: Handler> core::ops::Deref for QpRef<'_, H> {
    type Target = QueuePair<H>;

    #[inline]
    fn deref(&self) -> &QueuePair<H> {
        self.qp
    }
}

/// How a queue pair is made.
pub struct QpConfig {
    /// Entries of the send queue.
    pub send_depth: u32,
    /// Scatter elements of one request to send, at most.
    pub send_sges: u32,
    /// Entries of the receive queue.
    pub recv_depth: u32,
    /// Where completions are handled.
    pub context: PollContext,
    /// The completion vector, taken modulo the device's vectors.
    pub vector: u32,
}

/// Of no type of the caller's, and never inlined: a lock's class and its name must
/// be the same in every module, and the name of a generic function's lock is
/// another one in each.
#[inline(never)]
fn new_send_queue(queue: SendQueue) -> impl PinInit<SpinLockIrq<SendQueue>> {
    new_spinlock_irq!(queue, "QueuePair::send_queue")
}

impl QpConfig {
    /// A send queue that has to be shorter than this is of no use.
    const MIN_SEND_DEPTH: u32 = 16;

    /// Creates the queue pair of a connection id in the protection domain `pd` of
    /// the device that the id is bound to.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// - `E2BIG`: the device cannot have queues of that depth. A send queue may
    ///   become shorter than asked for, down to a point.
    /// - `EINVAL`: the id is bound to another device, or to none.
    /// - `EBUSY`: the id has been given a queue pair before.
    /// - `ENOMEM`; what the driver returns.
    pub fn create<H: Handler>(self, id: Arc<CmId>, pd: &Arc<Pd>, handler: H) -> Result<Qp<H>> {
        let dev = pd.device();
        // One entry of each queue is for the drain, and the completion queue must
        // have room for whatever both can hold.
        let max_wr = dev.max_qp_wr().saturating_sub(1);
        let recv_depth = self.recv_depth.max(1);
        let for_sends = dev.max_cqe().saturating_sub(recv_depth.saturating_add(2));
        let send_depth = self.send_depth.min(max_wr).min(for_sends);
        if recv_depth > max_wr || send_depth < Self::MIN_SEND_DEPTH.min(self.send_depth) {
            return Err(E2BIG);
        }
        let entries = send_depth + recv_depth + 2;
        let cq = Cq::new(dev, entries, self.vector, self.context)?;
        let send_queue = SendQueue::new(send_depth, self.send_sges, dev.id())?;
        let owner = PercpuOwner::pin_init(try_pin_init!(QueuePair {
            qp: UnsafeCell::new(ptr::null_mut()),
            handler,
            send_queue <- new_send_queue(send_queue),
            credit: Opaque::new(bindings::ib_cqe { done: Some(sendq::credit_done::<H>) }),
            control: Opaque::new(bindings::ib_cqe { done: Some(sendq::control_done::<H>) }),
            recvs <- Rings::new(),
            slots: SetOnce::new(),
            send_depth,
            drained: AtomicFlag::new(false),
            tells_batches: AtomicFlag::new(false),
            cq: Some(cq),
            id,
            pd: pd.clone(),
            _pin: PhantomPinned,
        }? Error))?;

        let qp: &QueuePair<H> = &owner;
        let mut attr = bindings::ib_qp_init_attr::c_zeroed();
        attr.event_handler = Some(QueuePair::<H>::event);
        attr.qp_context = ptr::from_ref(qp).cast_mut().cast();
        let cq = qp.cq.as_ref().ok_or(EINVAL)?;
        let has_work = cq.has_work();
        let cq = cq.as_raw();
        attr.send_cq = cq;
        attr.recv_cq = cq;
        attr.cap.max_send_wr = send_depth + 1;
        attr.cap.max_recv_wr = recv_depth + 1;
        attr.cap.max_send_sge = self.send_sges;
        attr.cap.max_recv_sge = 1;
        attr.sq_sig_type = bindings::ib_sig_type_IB_SIGNAL_REQ_WR;
        attr.qp_type = bindings::ib_qp_type_IB_QPT_RC;
        if !qp.id.claim_qp() {
            return Err(EBUSY);
        }
        // SAFETY: The id, the protection domain and the completion queue are live
        // and outlive the queue pair, as `qp` holds them; the id has none yet, as
        // it was just claimed. The queue pair's context stays until `PinnedDrop`
        // has destroyed it.
        let ret = unsafe { bindings::rdma_create_qp(qp.id.as_raw(), pd.as_raw(), &mut attr) };
        if ret != 0 {
            qp.id.unclaim_qp();
            kernel::error::to_result(ret)?;
        }
        // SAFETY: The id is live and has a queue pair now, the one just made;
        // nobody else knows of this object yet, and no completion can come before
        // something was posted.
        unsafe { *qp.qp.get() = (*qp.id.as_raw()).qp };
        if has_work {
            qp.tells_batches(true);
            // SAFETY: The completion queue is for a work queue, and its queue pair this one, which
            // does not move: nothing was posted, so that it has no completions. The owner closes
            // the queue pair before it goes, which calls `plug::remove`.
            unsafe { plug::install(cq, ptr::from_ref(qp)) };
        }
        Ok(Qp { owner })
    }
}

/// A queue pair with its completion queue and buffers, shared by reference.
///
/// # Invariants
///
/// - Lives inside a `PercpuOwner`.
/// - `qp` is null, or the one queue pair that `id` ever gets, whose context points
///   here; it is written before the object is shared.
/// - Once `drained`, nothing is posted any more and no completion is waited for.
#[pin_data(PinnedDrop)]
pub struct QueuePair<H: Handler> {
    qp: UnsafeCell<*mut bindings::ib_qp>,
    handler: H,
    #[pin]
    send_queue: SpinLockIrq<SendQueue>,
    credit: Opaque<bindings::ib_cqe>,
    control: Opaque<bindings::ib_cqe>,
    // Dropped in this order, after `PinnedDrop` destroyed the queue pair: the
    // protection domain, which frees the regions, is the last.
    cq: Option<Cq>,
    #[pin]
    recvs: Rings,
    slots: SetOnce<Arc<Slots<H>>>,
    send_depth: u32,
    drained: AtomicFlag,
    /// The handler hears of batches.
    tells_batches: AtomicFlag,
    id: Arc<CmId>,
    pd: Arc<Pd>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: Queue pairs may be used from any thread, and so may all fields; `qp` is a
// pointer to one.
unsafe impl<H: Handler> Send for QueuePair<H> {}
// SAFETY: As above; `qp` is not written once shared, by the type invariant, and the
// completion entries never.
unsafe impl<H: Handler> Sync for QueuePair<H> {}

impl<H: Handler> QueuePair<H> {
    /// Completions that one call of [`QueuePair::poll`] handles.
    const POLL_BUDGET: u16 = 32;

    /// Recovers the queue pair of a completion, and tells its handler.
    ///
    /// # Safety
    ///
    /// `wc` must be a completion of a live queue pair of this crate with that
    /// handler, found on `cq`.
    #[inline]
    pub(crate) unsafe fn from_completion<'a>(
        cq: *mut bindings::ib_cq,
        wc: *mut bindings::ib_wc,
    ) -> &'a Self {
        // SAFETY: By this function's contract; the context was set to the object,
        // which lives as long as the queue pair.
        let this = unsafe { &*(*(*wc).qp).qp_context.cast::<Self>() };
        // SAFETY: By this function's contract.
        this.handler
            .completes(this, unsafe { wc::position(cq, wc) });
        this
    }

    pub(crate) fn tells_batches(&self, tells: bool) {
        // ORDERING: Whoever turns it off waits for those that have missed that, see `plug::remove`.
        self.tells_batches.store(tells, Relaxed);
    }

    /// Returns the queue pair if its handler is to hear of batches.
    ///
    /// # Safety
    ///
    /// The memory of a queue pair must be at `this`, which may be being dropped if the handler is
    /// not to hear of batches any more. If it is, it must live during `'a`.
    pub(crate) unsafe fn batches_of<'a>(this: *const Self) -> Option<&'a Self> {
        // SAFETY: By this function's contract; the flag needs no dropping.
        let tells = unsafe { &(*this).tells_batches };
        // ORDERING: See `tells_batches`.
        // SAFETY: By this function's contract.
        tells.load(Relaxed).then(|| unsafe { &*this })
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_qp {
        // SAFETY: Not written any more, by the type invariant.
        unsafe { *self.qp.get() }
    }

    #[inline]
    pub(crate) fn send_queue(&self) -> &SpinLockIrq<SendQueue> {
        &self.send_queue
    }

    /// Returns the number of entries of the send queue, which are fewer than were asked for where
    /// the device has no more.
    pub fn send_depth(&self) -> u32 {
        self.send_depth
    }

    #[inline]
    pub(crate) fn recvs(&self) -> &Rings {
        &self.recvs
    }

    #[inline]
    pub(crate) fn credit_cqe(&self) -> *mut bindings::ib_cqe {
        self.credit.get()
    }

    #[inline]
    pub(crate) fn control_cqe(&self) -> *mut bindings::ib_cqe {
        self.control.get()
    }

    /// Sets the table of the slots that requests may signal.
    ///
    /// # Errors
    ///
    /// `EBUSY` when there is one already.
    pub fn set_slots(&self, slots: Arc<Slots<H>>) -> Result {
        if self.slots.populate(slots) {
            Ok(())
        } else {
            Err(EBUSY)
        }
    }

    /// Returns the table of slots, if it was set.
    #[inline]
    pub(crate) fn slots(&self) -> Option<&Slots<H>> {
        self.slots.as_ref().map(|slots| &**slots)
    }

    /// Returns the slot of that index, if a table was set and has it.
    #[inline]
    pub fn slot(&self, index: u32) -> Option<SlotRef<'_, H>> {
        self.slots()?.get(index)
    }

    /// Returns the protection domain.
    #[inline]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the driver's handler.
    #[inline]
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// Returns the connection id.
    #[inline]
    pub fn id(&self) -> &Arc<CmId> {
        &self.id
    }

    /// Refuses to send from now on, and begins to disconnect.
    ///
    /// # Context
    ///
    /// May sleep; not from a handler.
    pub fn disconnect(&self) {
        self.send_queue.lock().close();
        if self.is_direct() {
            // Pollers do not post their buffers behind the drain's marker, as they would never be
            // taken from there.
            self.recvs.close();
        }
        // An error means that there is no connection to end.
        let _ = self.id.disconnect();
    }

    /// Returns whether completions are handled by [`QueuePair::poll`] only.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.cq.as_ref().is_some_and(Cq::is_direct)
    }

    /// Handles completions of a queue pair with [`PollContext::Direct`], a few at most; returns
    /// their number, which is zero if another thread does so at this moment, or with another
    /// context.
    ///
    /// # Context
    ///
    /// Any but hardirq; not from a handler, nor with a lock that handlers take.
    #[inline]
    pub fn poll(&self) -> u32 {
        self.cq.as_ref().map_or(0, |cq| cq.poll(Self::POLL_BUDGET))
    }

    /// Disconnects, refuses to send and to add receives from now on, and waits
    /// until every posted request has completed and its handler has run. May be
    /// called again.
    ///
    /// Afterwards the device executes nothing for the peer any more: see
    /// [`Pd`](crate::pd::Pd) for what that means for memory.
    ///
    /// With [`PollContext::Direct`], every [`poll`] that began before the call of
    /// [`QueuePair::disconnect`] must have returned. This function polls itself, but ten times a
    /// second only: for a quick end, another thread polls until it returns.
    ///
    /// [`poll`]: QueuePair::poll
    ///
    /// # Context
    ///
    /// May sleep; not from a handler.
    pub fn close(&self) {
        // ORDERING: Pairs with the store below: all that handlers have done is seen.
        if self.drained.load(Acquire) {
            return;
        }
        self.disconnect();
        self.recvs.close();
        let qp = self.as_raw();
        if !qp.is_null() {
            // SAFETY: The queue pair is live by the type invariant. There is an
            // entry of each queue for the markers, and nothing is posted behind
            // them but what a handler that runs at this moment posts again.
            unsafe { bindings::ib_drain_qp(qp) };
            if !self.is_direct() {
                // A handler that was running meanwhile may have posted its buffer
                // again behind the drain's marker. That handler has returned, as
                // the marker was handled after it, and those since have seen
                // `recvs` closed.
                // SAFETY: As above.
                unsafe { bindings::ib_drain_rq(qp) };
            }
        }
        if let Some(cq) = self.cq.as_ref().filter(|cq| cq.has_work()) {
            // SAFETY: It is the completion queue of this queue pair, made for a work queue.
            unsafe { plug::remove(cq.as_raw(), self) };
        }
        // ORDERING: See above.
        self.drained.store(true, Release);
    }

    /// Asynchronous events of the queue pair.
    ///
    /// # Safety
    ///
    /// Called by the core with the context that `create` gave it.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut kernel::ffi::c_void) {
        // SAFETY: By this function's contract. The object lives until the queue
        // pair is destroyed, after which there are no events.
        let (qp, event) = unsafe { (&*context.cast::<Self>(), (*event).event) };
        if event == bindings::ib_event_type_IB_EVENT_COMM_EST {
            // SAFETY: The id is live as `qp` holds it.
            unsafe { bindings::rdma_notify(qp.id.as_raw(), event) };
        }
    }
}

#[pinned_drop]
impl<H: Handler> PinnedDrop for QueuePair<H> {
    fn drop(self: Pin<&mut Self>) {
        if !self.as_raw().is_null() {
            // SAFETY: The id is live, as it is held, and this is its queue pair, by
            // the type invariant. `Qp` has closed it before it gave up the owner's
            // reference, so that nothing is posted and no handler runs any more
            // (see `QueuePair::close`); and as this is the drop, nobody has
            // another reference to poll or to post with.
            unsafe { bindings::rdma_destroy_qp(self.id.as_raw()) };
        }
    }
}

/// The owner of a queue pair.
///
/// Dropping it closes the queue pair (see [`QueuePair::close`]) and waits for
/// all references that [`QpRef::get`] and [`Qp::get`] gave out.
pub struct Qp<H: Handler> {
    owner: PercpuOwner<QueuePair<H>>,
}

impl<H: Handler> Qp<H> {
    /// Takes a reference, unless the owner is being dropped.
    pub fn get(&self) -> PercpuArc<QueuePair<H>> {
        self.owner.get()
    }

    /// Closes the queue pair (see [`QueuePair::close`]) and does not wait for references.
    ///
    /// # Context
    ///
    /// May sleep; not from a handler.
    pub fn end(self) -> QpEnd<H> {
        self.owner.close();
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither used again nor dropped.
        let owner = unsafe { ptr::read(&this.owner) };
        QpEnd { end: owner.end() }
    }
}

/// A queue pair that was closed, and may be referred to still.
///
/// Dropping it waits for that, and destroys it.
pub struct QpEnd<H: Handler> {
    end: PercpuEnd<QueuePair<H>>,
}

impl<H: Handler> QpEnd<H> {
    /// Returns whether there is no reference to it any more, so that dropping it does not wait.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_over(&self) -> bool {
        self.end.is_over()
    }
}

impl<H: Handler> core::ops::Deref for Qp<H> {
    type Target = QueuePair<H>;

    #[inline]
    fn deref(&self) -> &QueuePair<H> {
        &self.owner
    }
}

impl<H: Handler> Drop for Qp<H> {
    fn drop(&mut self) {
        self.owner.close();
    }
}
