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
/// All functions run in the context of [`QpConfig::context`], one at a time for each queue pair,
/// except [`Handler::failed`], which may run in any. While a directly polled queue pair is being
/// closed, several may run at a time.
pub trait Handler: Send + Sync + Sized + 'static {
    /// The driver's data in each slot.
    type Slot: Send + Sync;

    /// A message has arrived.
    fn received(&self, qp: QpRef<'_, Self>, message: Received<'_>) -> Repost;

    /// The message whose completion was signalled to `slot` was sent.
    fn sent(&self, _qp: QpRef<'_, Self>, _slot: SlotRef<'_, Self>) {}

    /// The invalidation whose completion was signalled to `slot` was done.
    fn invalidated(&self, _qp: QpRef<'_, Self>, _slot: SlotRef<'_, Self>) {}

    /// A control message was sent.
    fn control_sent(&self, _qp: QpRef<'_, Self>) {}

    /// The send queue has more space than before.
    fn sq_space_freed(&self, _qp: QpRef<'_, Self>) {}

    /// One of the functions here is about to handle a completion. `position`, from 0, is its index
    /// among the completions that were polled together; always 0 with direct polling.
    fn completes(&self, _qp: &QueuePair<Self>, _position: u32) {}

    /// A batch of completions begins: until [`Handler::batch_ends`], messages may wait, to be sent
    /// together with others. Only with [`PollContext::WorkQueue`].
    fn batch_begins(&self) {}

    /// The completions of a batch were handled, and the disks' drivers have got the I/O that the
    /// handlers submitted. Also called when the handling thread goes to sleep within a batch, which
    /// then ends a second time. Must not sleep.
    ///
    /// When [`QueuePair::close`] returns, the last batch has ended.
    fn batch_ends(&self, _qp: &QueuePair<Self>) {}

    /// A work request failed, or was flushed because an earlier one failed or the queue pair is
    /// being closed (see [`Wc::is_flush`]).
    fn failed(&self, qp: QpRef<'_, Self>, wc: &Wc);

    /// As [`Handler::failed`], for a receive: a message did not fit its buffer, for one.
    fn receive_failed(&self, qp: QpRef<'_, Self>, wc: &Wc) {
        self.failed(qp, wc);
    }
}

/// A queue pair, as its handler's functions get it.
pub struct QpRef<'a, H: Handler> {
    qp: &'a QueuePair<H>,
}

impl<'a, H: Handler> QpRef<'a, H> {
    pub(crate) fn new(qp: &'a QueuePair<H>) -> Self {
        Self { qp }
    }

    /// Takes a reference that may outlive the completion.
    pub fn get(&self) -> PercpuArc<QueuePair<H>> {
        // SAFETY: Every `QueuePair` is created inside a `PercpuOwner`. A `QpRef` exists only while
        // a completion is handled, when the count is not zero: either the owner still has its
        // reference, which `Qp` gives up only after `QueuePair::close`, when all completions have
        // been handled and no other can come; or, with direct polling, the poller has a reference.
        // The reference that is made up here is not dropped.
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

/// The parameters of a queue pair.
pub struct QpConfig {
    /// Number of entries of the send queue.
    pub send_depth: u32,
    /// Maximum number of scatter elements of a send work request.
    pub send_sges: u32,
    /// Number of entries of the receive queue.
    pub recv_depth: u32,
    /// Where completions are handled.
    pub context: PollContext,
    /// The completion vector, taken modulo the device's vectors.
    pub vector: u32,
}

/// Not generic, and never inlined: lockdep expects one class to have one name, at one address, and
/// every module with a copy of this function would have its own copy of the name.
#[inline(never)]
fn new_send_queue(queue: SendQueue) -> impl PinInit<SpinLockIrq<SendQueue>> {
    new_spinlock_irq!(queue, "QueuePair::send_queue")
}

impl QpConfig {
    /// A send queue must have this many entries to be useful, or all that were asked for.
    const MIN_SEND_DEPTH: u32 = 16;

    /// Creates the queue pair of a connection id in the protection domain `pd`, which must be one
    /// of the device that the id is bound to.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// - `E2BIG`: the device does not support queues of that depth. The send queue may become
    ///   shorter than asked for, down to 16 entries.
    /// - `EINVAL`: the id is bound to another device, or to none.
    /// - `EBUSY`: the id already had a queue pair.
    /// - `ENOMEM`, and other errors of the driver.
    pub fn create<H: Handler>(self, id: Arc<CmId>, pd: &Arc<Pd>, handler: H) -> Result<Qp<H>> {
        let dev = pd.device();
        // One entry of each queue is for the drain's marker, and the completion queue must have
        // room for the completions of both.
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
        // SAFETY: The id, the protection domain and the completion queue are live and outlive the
        // queue pair, as `qp` holds them; the id has none yet, as it was just claimed. The queue
        // pair's context stays valid until `PinnedDrop` has destroyed the queue pair.
        let ret = unsafe { bindings::rdma_create_qp(qp.id.as_raw(), pd.as_raw(), &mut attr) };
        if ret != 0 {
            qp.id.unclaim_qp();
            kernel::error::to_result(ret)?;
        }
        // SAFETY: The id is live and has the queue pair that was just created; nobody else has
        // access to this object yet, and no completion can come before something is posted.
        unsafe { *qp.qp.get() = (*qp.id.as_raw()).qp };
        if has_work {
            qp.tells_batches(true);
            // SAFETY: The completion queue is for a work queue, and belongs to this queue pair,
            // which does not move; nothing was posted yet, so it has no completions. The owner
            // closes the queue pair before it is freed, which calls `plug::remove`.
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
/// - `qp` is null, or the one queue pair that `id` ever gets, whose context is the address of this
///   object; it is written before the object is shared.
/// - Once `drained` is set, nothing is posted any more and no completion is outstanding.
#[pin_data(PinnedDrop)]
pub struct QueuePair<H: Handler> {
    qp: UnsafeCell<*mut bindings::ib_qp>,
    handler: H,
    #[pin]
    send_queue: SpinLockIrq<SendQueue>,
    credit: Opaque<bindings::ib_cqe>,
    control: Opaque<bindings::ib_cqe>,
    // Dropped in this order, after `PinnedDrop` has destroyed the queue pair: the protection
    // domain, which frees the regions, comes last.
    cq: Option<Cq>,
    #[pin]
    recvs: Rings,
    slots: SetOnce<Arc<Slots<H>>>,
    send_depth: u32,
    drained: AtomicFlag,
    /// Whether the handler is told about batches.
    tells_batches: AtomicFlag,
    id: Arc<CmId>,
    pd: Arc<Pd>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: Queue pairs may be used from any thread, and so may all fields; `qp` is a
// pointer to one.
unsafe impl<H: Handler> Send for QueuePair<H> {}
// SAFETY: As above; `qp` is not written once shared, by the type invariant, and the completion
// entries never are.
unsafe impl<H: Handler> Sync for QueuePair<H> {}

impl<H: Handler> QueuePair<H> {
    /// Maximum number of completions that one call of [`QueuePair::poll`] handles.
    const POLL_BUDGET: u16 = 32;

    /// Recovers the queue pair of a completion, and calls [`Handler::completes`].
    ///
    /// # Safety
    ///
    /// `wc` must be a completion of a live queue pair of this crate with that handler type, found
    /// on `cq`.
    #[inline]
    pub(crate) unsafe fn from_completion<'a>(
        cq: *mut bindings::ib_cq,
        wc: *mut bindings::ib_wc,
    ) -> &'a Self {
        // SAFETY: By this function's contract; the queue pair's context is the object, which lives
        // as long as the queue pair.
        let this = unsafe { &*(*(*wc).qp).qp_context.cast::<Self>() };
        // SAFETY: By this function's contract.
        this.handler
            .completes(this, unsafe { wc::position(cq, wc) });
        this
    }

    pub(crate) fn tells_batches(&self, tells: bool) {
        // ORDERING: The caller that clears it waits for work that may have missed that, see
        // `plug::remove`.
        self.tells_batches.store(tells, Relaxed);
    }

    /// Returns the queue pair if its handler is to be told about batches.
    ///
    /// # Safety
    ///
    /// `this` must point to the memory of a queue pair. The queue pair may be in the middle of its
    /// drop if its handler is no longer to be told about batches; otherwise it must live during
    /// `'a`.
    pub(crate) unsafe fn batches_of<'a>(this: *const Self) -> Option<&'a Self> {
        // SAFETY: By this function's contract; the drop of the queue pair leaves the flag as it is.
        let tells = unsafe { &(*this).tells_batches };
        // ORDERING: See `tells_batches`.
        // SAFETY: By this function's contract.
        tells.load(Relaxed).then(|| unsafe { &*this })
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_qp {
        // SAFETY: `qp` is no longer written, by the type invariant.
        unsafe { *self.qp.get() }
    }

    #[inline]
    pub(crate) fn send_queue(&self) -> &SpinLockIrq<SendQueue> {
        &self.send_queue
    }

    /// Returns the number of entries of the send queue: fewer than asked for if the device does not
    /// support as many.
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

    /// Sets the table of slots for signalled work requests.
    ///
    /// # Errors
    ///
    /// `EBUSY` when there already is one.
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

    /// Returns the slot `index`, if a table was set and has it.
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

    /// Refuses to send from now on, and starts to disconnect.
    ///
    /// # Context
    ///
    /// May sleep; not from a handler.
    pub fn disconnect(&self) {
        self.send_queue.lock().close();
        if self.is_direct() {
            // Keep pollers from reposting their buffers behind the drain's marker, where nothing
            // waits for their completions.
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

    /// Handles a few completions of a queue pair with [`PollContext::Direct`]; returns their
    /// number, which is zero if another thread is polling, and always with another context.
    ///
    /// # Context
    ///
    /// Any but hardirq; not from a handler, nor with a lock that handlers take.
    #[inline]
    pub fn poll(&self) -> u32 {
        self.cq.as_ref().map_or(0, |cq| cq.poll(Self::POLL_BUDGET))
    }

    /// Disconnects, refuses to send and to add receives from now on, and waits until every posted
    /// request has completed and its handler has returned. May be called again.
    ///
    /// Afterwards the device executes nothing for the peer any more; [`Pd`](crate::pd::Pd) says
    /// what that means for memory.
    ///
    /// With [`PollContext::Direct`], every [`poll`] that began before the call of
    /// [`QueuePair::disconnect`] must have returned. This function itself polls only ten times a
    /// second: for a quick close, another thread should poll until it returns.
    ///
    /// [`poll`]: QueuePair::poll
    ///
    /// # Context
    ///
    /// May sleep; not from a handler.
    pub fn close(&self) {
        // ORDERING: Pairs with the store below, so that the caller sees everything that handlers
        // have done.
        if self.drained.load(Acquire) {
            return;
        }
        self.disconnect();
        self.recvs.close();
        let qp = self.as_raw();
        if !qp.is_null() {
            // SAFETY: The queue pair is live by the type invariant. Each queue has an entry for the
            // marker, and only a handler that runs right now posts anything behind it: its own
            // buffer again.
            unsafe { bindings::ib_drain_qp(qp) };
            if !self.is_direct() {
                // A handler that was running may have reposted its buffer behind the drain's
                // marker. It has returned, as the marker was handled after it, and later handlers
                // see `recvs` closed.
                // SAFETY: As above.
                unsafe { bindings::ib_drain_rq(qp) };
            }
        }
        if let Some(cq) = self.cq.as_ref().filter(|cq| cq.has_work()) {
            // SAFETY: The completion queue is that of this queue pair, and for a work queue, so
            // `create` has called `plug::install` for it.
            unsafe { plug::remove(cq.as_raw(), self) };
        }
        // ORDERING: See above.
        self.drained.store(true, Release);
    }

    /// Handles an asynchronous event of the queue pair.
    ///
    /// # Safety
    ///
    /// Called by the core with the context that `create` gave it.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut kernel::ffi::c_void) {
        // SAFETY: By this function's contract. The object lives until the queue pair is destroyed,
        // and no event comes after that.
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
            // SAFETY: The id is live, as it is held, and this is its queue pair, by the type
            // invariant. `Qp` closed the queue pair before it gave up the owner's reference, so
            // nothing is posted and no handler runs any more (see `QueuePair::close`); and in drop,
            // nobody else has a reference to poll or to post with.
            unsafe { bindings::rdma_destroy_qp(self.id.as_raw()) };
        }
    }
}

/// The owner of a queue pair.
///
/// Dropping it closes the queue pair (see [`QueuePair::close`]) and waits until all references of
/// [`QpRef::get`] and [`Qp::get`] are dropped.
pub struct Qp<H: Handler> {
    owner: PercpuOwner<QueuePair<H>>,
}

impl<H: Handler> Qp<H> {
    /// Takes a reference.
    pub fn get(&self) -> PercpuArc<QueuePair<H>> {
        self.owner.get()
    }

    /// Closes the queue pair (see [`QueuePair::close`]) without waiting for references.
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

/// A closed queue pair that may still have references.
///
/// Dropping it waits for them, and destroys the queue pair.
pub struct QpEnd<H: Handler> {
    end: PercpuEnd<QueuePair<H>>,
}

impl<H: Handler> QpEnd<H> {
    /// Returns whether no reference is left, so that dropping this does not wait.
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
