// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! use rdma::{
//!     cm::CmId,
//!     cq::PollContext,
//!     pd::Pd,
//!     qp::{Handler, Qp, QpConfig, QpRef},
//!     recv::{Received, RecvClass, Repost},
//!     wc::Wc,
//! };
//!
//! struct Messages;
//!
//! impl Handler for Messages {
//!     type Slot = ();
//!
//!     fn received(&self, _qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
//!         let _ = message.bytes;
//!         Repost::Yes
//!     }
//!
//!     fn failed(&self, qp: QpRef<'_, Self>, wc: &Wc) {
//!         if !wc.is_flush() {
//!             qp.disconnect();
//!         }
//!     }
//! }
//!
//! /// Creates a queue pair for an id whose route was resolved.
//! fn create(id: Arc<CmId>) -> Result<Qp<Messages>> {
//!     let pd = Pd::new(&id.device()?)?;
//!     let config = QpConfig {
//!         send_depth: 16,
//!         send_reserve: 0,
//!         send_sges: 1,
//!         recv_depth: 16,
//!         payloads: false,
//!         context: PollContext::WorkQueue,
//!         vector: 0,
//!     };
//!     let qp = config.create(id, &pd, Messages)?;
//!     qp.add_recvs(0, RecvClass { count: 16, bytes: 64, payload: 0 })?;
//!     Ok(qp)
//! }
//! ```

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
    wc::{
        self,
        Wc, //
    },
    CZeroed, //
};
use ibtrs_bindings as bindings;
use kernel::{
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLockIrq, //
    },
    types::Opaque, //
};
use kx::sync::{
    atomic::{
        AtomicFlag,
        Full,
        Relaxed, //
    },
    PercpuArc,
    PercpuEnd,
    PercpuOwner,
    SetOnce, //
};
use recv::{
    Received,
    Repost,
    Rings, //
};
use sendq::{
    slot::{
        SlotRef,
        Slots, //
    },
    Position,
    SendQueue, //
};

mod plug;
pub mod recv;
pub mod sendq;

/// A driver's handlers for the completions of a queue pair.
///
/// # Context
///
/// All functions run in the context of [`QpConfig::context`], one at a time for each queue pair,
/// except [`Handler::failed`], which may run in any context. While a directly polled queue pair is
/// being closed, several functions may run at a time.
pub trait Handler: Send + Sync + Sized + 'static {
    /// The driver's data in each slot.
    type Slot: Send + Sync;

    /// Handles a message that has arrived.
    fn received(&self, qp: QpRef<'_, Self>, message: Received<'_>) -> Repost;

    /// Handles the completion of a message, which was signalled to `slot`.
    fn sent(&self, _qp: QpRef<'_, Self>, _slot: SlotRef<'_, Self>) {}

    /// Handles the other completion of a slot, which was signalled to `slot`: that of an invalidation, of
    /// a read of the peer's memory, or of a flush. It is at the position `done` of the send queue, and everything before it
    /// has completed as well.
    fn slot_done(&self, _qp: QpRef<'_, Self>, _slot: SlotRef<'_, Self>, _done: Position) {}

    /// Handles the completion of a control message.
    fn control_sent(&self, _qp: QpRef<'_, Self>) {}

    /// Called after a completion that has freed space in the send queue.
    fn sq_space_freed(&self, _qp: QpRef<'_, Self>) {}

    /// Called before each completion is handled. `position`, from 0, is the index of the completion
    /// among those that were polled together; with direct polling it is always 0.
    fn completes(&self, _qp: &QueuePair<Self>, _position: u32) {}

    /// Called when a batch of completions begins. Until [`Handler::batch_ends`], messages may wait,
    /// to be sent together with others. Only with [`PollContext::WorkQueue`].
    fn batch_begins(&self) {}

    /// Called when the completions of a batch were handled, and the drivers of disks have received
    /// the I/O that the handlers submitted. Also called when the handling thread goes to sleep
    /// within a batch, which then ends a second time. Must not sleep.
    ///
    /// When [`QueuePair::close`] returns, the last batch has ended.
    fn batch_ends(&self, _qp: &QueuePair<Self>) {}

    /// Handles the failure of a work request. The request itself failed, or it was flushed because
    /// an earlier one failed or the queue pair is being closed (see [`Wc::is_flush`]).
    fn failed(&self, qp: QpRef<'_, Self>, wc: &Wc);

    /// As [`Handler::failed`], for a receive; for example, a message did not fit its buffer.
    fn receive_failed(&self, qp: QpRef<'_, Self>, wc: &Wc) {
        self.failed(qp, wc);
    }
}

/// A queue pair whose completion is being handled.
///
/// # Invariants
///
/// The queue pair has a reference as long as this value exists.
pub struct QpRef<'a, H: Handler> {
    qp: &'a QueuePair<H>,
}

impl<'a, H: Handler> QpRef<'a, H> {
    /// # Safety
    ///
    /// A completion of the queue pair must be handled as long as the result exists.
    pub(crate) unsafe fn new(qp: &'a QueuePair<H>) -> Self {
        // INVARIANT: While a completion is handled, either the owner still holds its reference,
        // which `Qp` drops only after `QueuePair::close`, when all completions have been handled
        // and no further one is possible; or, with direct polling, the poller holds a reference.
        Self { qp }
    }

    /// Takes a reference that may outlive the completion.
    ///
    /// # Context
    ///
    /// Any.
    pub fn get(&self) -> PercpuArc<QueuePair<H>> {
        // SAFETY: By the type invariant of `QueuePair` it is the object of a `PercpuOwner`, and by
        // that of this type it has a reference.
        unsafe { PercpuArc::get_raw(ptr::from_ref(self.qp)) }
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
    /// Number of these that only [`QueuePair::invalidate`] takes; a third of them at most.
    pub send_reserve: u32,
    /// Maximum number of scatter elements of a send work request.
    pub send_sges: u32,
    /// Number of entries of the receive queue.
    pub recv_depth: u32,
    /// Receive buffers may have a payload, see [`RecvClass`](crate::recv::RecvClass).
    pub payloads: bool,
    /// The context in which completions are handled.
    pub context: PollContext,
    /// The completion vector, modulo the number of the device's vectors.
    pub vector: u32,
}

/// This function is neither generic nor inlined, so that the name of the lock class has one
/// address, as lockdep requires. A generic or inlined function would be copied into each module,
/// together with the name.
#[inline(never)]
fn new_send_queue(queue: SendQueue) -> impl PinInit<SpinLockIrq<SendQueue>> {
    new_spinlock_irq!(queue, "QueuePair::send_queue")
}

/// Neither generic nor inlined, as [`new_send_queue`].
#[inline(never)]
fn new_drained() -> impl PinInit<Mutex<bool>> {
    new_mutex!(false, "QueuePair::drained")
}

impl QpConfig {
    /// The minimum depth of a send queue, unless fewer entries were requested.
    const MIN_SEND_DEPTH: u32 = 16;

    /// Creates the queue pair of a connection id in the protection domain `pd`, which must be one
    /// of the device that the id is bound to.
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler.
    ///
    /// # Errors
    ///
    /// - `E2BIG`: the device does not support queues of that depth. The send queue may have fewer
    ///   entries than requested, but no fewer than 16.
    /// - `EINVAL`: the id is bound to another device, or to none.
    /// - `EBUSY`: the id already had a queue pair.
    /// - `ESHUTDOWN`: all queue pairs of the domain were closed.
    /// - `ENOMEM`, and other errors of the device's driver.
    pub fn create<H: Handler>(self, id: Arc<CmId>, pd: &Arc<Pd>, handler: H) -> Result<Qp<H>> {
        let dev = pd.device();
        // The marker of a drain takes one entry of each queue, and the completion queue must have
        // room for the completions of both markers.
        let max_wr = dev.max_qp_wr().saturating_sub(1);
        let recv_depth = self.recv_depth.max(1);
        let for_sends = dev.max_cqe().saturating_sub(recv_depth.saturating_add(2));
        let send_depth = self.send_depth.min(max_wr).min(for_sends);
        if recv_depth > max_wr || send_depth < Self::MIN_SEND_DEPTH.min(self.send_depth) {
            return Err(E2BIG);
        }
        let entries = send_depth + recv_depth + 2;
        let cq = Cq::new(dev, entries, self.vector, self.context)?;
        let mut send_queue =
            SendQueue::new(send_depth, self.send_sges, pd.id())?.with_reserve(self.send_reserve);
        if dev.lends_unsignalled_data() {
            send_queue.signal_all();
        }
        let owner = PercpuOwner::pin_init(try_pin_init!(QueuePair {
            qp: UnsafeCell::new(ptr::null_mut()),
            handler,
            send_queue <- new_send_queue(send_queue),
            credit: Opaque::new(bindings::ib_cqe { done: Some(sendq::credit_done::<H>) }),
            control: Opaque::new(bindings::ib_cqe { done: Some(sendq::control_done::<H>) }),
            recvs <- Rings::new(recv_depth),
            slots: SetOnce::new(),
            send_depth,
            drained <- new_drained(),
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
        attr.cap.max_recv_sge = 1 + u32::from(self.payloads);
        attr.sq_sig_type = bindings::ib_sig_type_IB_SIGNAL_REQ_WR;
        attr.qp_type = bindings::ib_qp_type_IB_QPT_RC;
        let opening = pd.open()?;
        // SAFETY: The id, the protection domain and the completion queue are live and outlive the
        // queue pair, as `qp` keeps them. `CmId::create_qp` calls this only for an id that has no
        // queue pair, and holds the lock with which connections are begun. The context of the queue
        // pair stays valid until `PinnedDrop` has destroyed the queue pair.
        qp.id.create_qp(|| unsafe {
            bindings::rdma_create_qp(qp.id.as_raw(), pd.as_raw(), &mut attr)
        })?;
        // SAFETY: The id is live and has the queue pair that was just created. Nothing else reads
        // the field yet: this object was not shared, there is no completion before a request is
        // posted, and `event` does not use the field.
        unsafe { *qp.qp.get() = (*qp.id.as_raw()).qp };
        if has_work {
            qp.tells_batches(true);
            // SAFETY: The completion queue is for a work queue, and belongs to this queue pair.
            // Nothing was posted yet, so it has no completions. `Qp` closes the queue pair, which
            // calls `plug::remove`, before the queue pair is dropped. The memory of the queue pair
            // is freed after its field `cq` was dropped.
            unsafe { plug::install(cq, ptr::from_ref(qp)) };
        }
        opening.done();
        Ok(Qp { owner })
    }
}

/// A queue pair with its completion queue and buffers, shared by reference.
///
/// # Invariants
///
/// - The value is the object of a `PercpuOwner`.
/// - `qp` is null, or the one queue pair that `id` ever gets, whose context is the address of this
///   value. It is written before the value is shared.
/// - Once `drained` is set, no request is posted any more and no completion is outstanding.
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
    /// Whether it is drained; the thread that drains it has the lock.
    #[pin]
    drained: Mutex<bool>,
    /// Whether the handler is notified of batches.
    tells_batches: AtomicFlag,
    id: Arc<CmId>,
    pd: Arc<Pd>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: Any thread may use a queue pair, to which `qp` points, and all other fields.
unsafe impl<H: Handler> Send for QueuePair<H> {}
// SAFETY: As above. By the type invariant nobody writes `qp` once the value is shared, and nobody
// writes the completion entries after their creation.
unsafe impl<H: Handler> Sync for QueuePair<H> {}

impl<H: Handler> QueuePair<H> {
    /// Maximum number of completions that one call of [`QueuePair::poll`] handles.
    const POLL_BUDGET: u16 = 32;

    /// Recovers the queue pair of a completion, and calls [`Handler::completes`].
    ///
    /// # Safety
    ///
    /// `wc` must be a completion of a live queue pair of this crate with that handler type, which
    /// was found on `cq` and is being handled. The result must not be used after that.
    #[inline]
    pub(crate) unsafe fn from_completion<'a>(
        cq: *mut bindings::ib_cq,
        wc: *mut bindings::ib_wc,
    ) -> &'a Self {
        // SAFETY: By this function's contract the queue pair is live. Its context is the
        // `QueuePair` by the type invariant, which outlives it.
        let this = unsafe { &*(*(*wc).qp).qp_context.cast::<Self>() };
        // SAFETY: By this function's contract `wc` was found on `cq`, which is live as its queue
        // pair is.
        this.handler
            .completes(this, unsafe { wc::position(cq, wc) });
        this
    }

    /// Sets whether the handler is notified of batches.
    pub(crate) fn tells_batches(&self, tells: bool) {
        // ORDERING: A full barrier, see `plug::remove`.
        self.tells_batches.xchg(tells, Full);
    }

    /// Returns the queue pair if its handler is to be notified of batches.
    ///
    /// # Safety
    ///
    /// `this` must point to the allocated memory of a queue pair. If the handler is to be notified
    /// of batches, the queue pair must be valid during `'a`; otherwise it may be in the middle of
    /// its drop.
    pub(crate) unsafe fn batches_of<'a>(this: *const Self) -> Option<&'a Self> {
        // SAFETY: By this function's contract the memory is allocated, and dropping the queue pair
        // does not change the flag in it.
        let tells = unsafe { &(*this).tells_batches };
        // ORDERING: See `tells_batches`.
        // SAFETY: By this function's contract, as the flag is set.
        tells.load(Relaxed).then(|| unsafe { &*this })
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_qp {
        // SAFETY: By the type invariant `qp` is not written once the value is shared.
        unsafe { *self.qp.get() }
    }

    #[inline]
    pub(crate) fn send_queue(&self) -> &SpinLockIrq<SendQueue> {
        &self.send_queue
    }

    /// Returns the number of entries of the send queue, which is lower than requested if the device
    /// does not support as many.
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
    pub fn slot(&self, index: u16) -> Option<SlotRef<'_, H>> {
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

    /// Starts to disconnect. From now on, chains are refused.
    ///
    /// # Context
    ///
    /// May sleep; not from a handler.
    pub fn disconnect(&self) {
        self.send_queue.lock().close();
        if self.is_direct() {
            // Prevent pollers from reposting buffers behind the drain marker, where nothing would
            // wait for their completions.
            self.recvs.close();
        }
        // An error means that there is no connection.
        let _ = self.id.disconnect();
    }

    /// Returns whether completions are handled by [`QueuePair::poll`] only.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.cq.as_ref().is_some_and(Cq::is_direct)
    }

    /// Handles a few completions of a queue pair with [`PollContext::Direct`], and returns their
    /// number. It is zero if another thread is polling, and always with another context.
    ///
    /// # Context
    ///
    /// Any except hard interrupts; not from a handler, nor with a lock that handlers take.
    #[inline]
    pub fn poll(&self) -> u32 {
        self.cq.as_ref().map_or(0, |cq| cq.poll(Self::POLL_BUDGET))
    }

    /// Disconnects, and waits until every posted request has completed and its handler has
    /// returned. From now on, chains and receive buffers are refused. May be called again.
    ///
    /// Afterwards the device executes nothing for the peer any more, so memory may be reused as
    /// [`Pd`](crate::pd::Pd) describes. As everywhere in the kernel, this relies on the device's
    /// driver: if it cannot move the queue pair to the error state, nothing is drained, and the
    /// core warns.
    ///
    /// With [`PollContext::Direct`], every [`poll`] that began before the call of
    /// [`QueuePair::disconnect`] must have returned. This function itself polls only ten times a
    /// second. To close quickly, another thread should poll until this function returns.
    ///
    /// [`poll`]: QueuePair::poll
    ///
    /// # Context
    ///
    /// May sleep; neither from a handler of the queue pair nor from that of its id, nor with a lock
    /// that these take.
    pub fn close(&self) {
        // Another thread that closes it waits: the queues have room for one marker each.
        let mut drained = self.drained.lock();
        if *drained {
            return;
        }
        // A connection that is being accepted would move the queue pair out of the error state, or
        // be established without it.
        self.id.close();
        self.disconnect();
        self.recvs.close();
        let qp = self.as_raw();
        if !qp.is_null() {
            // SAFETY: The queue pair is live by the type invariant, and `create` has reserved an
            // entry for the marker in each queue, which no other thread uses, as this thread holds
            // the lock. The send queue and `recvs` are closed, so only a running handler can post
            // behind the marker: it reposts its own buffer. Buffers that were returned by
            // `give_back` are in front of the marker.
            unsafe { bindings::ib_drain_qp(qp) };
            if !self.is_direct() {
                // A handler that was running may have reposted its buffer behind the marker. It has
                // returned, as the marker was handled after it, and later handlers see that `recvs`
                // is closed. The second drain waits for that buffer.
                // SAFETY: As above, and the first marker has completed.
                unsafe { bindings::ib_drain_rq(qp) };
            }
        }
        if let Some(cq) = self.cq.as_ref().filter(|cq| cq.has_work()) {
            // SAFETY: The completion queue is that of this queue pair, and for a work queue, so
            // `create` has called `plug::install` for it.
            unsafe { plug::remove(cq.as_raw(), self) };
        }
        // INVARIANT: The drains have completed, and no request is posted any more.
        *drained = true;
        self.pd.close();
    }

    /// Handles an asynchronous event of the queue pair.
    ///
    /// # Safety
    ///
    /// The core must have called this with the context that `create` has set.
    unsafe extern "C" fn event(event: *mut bindings::ib_event, context: *mut kernel::ffi::c_void) {
        // SAFETY: By this function's contract the context is a `QueuePair`. It lives until the
        // queue pair is destroyed, and the core delivers no event after that.
        let (qp, event) = unsafe { (&*context.cast::<Self>(), (*event).event) };
        if event == bindings::ib_event_type_IB_EVENT_COMM_EST {
            // SAFETY: The id is live, as `qp` keeps it. Its lower id, which the call uses, is not
            // destroyed: the queue pair gets this event only once the peer has answered or was
            // accepted.
            unsafe { bindings::rdma_notify(qp.id.as_raw(), event) };
        }
    }
}

#[pinned_drop]
impl<H: Handler> PinnedDrop for QueuePair<H> {
    fn drop(self: Pin<&mut Self>) {
        if !self.as_raw().is_null() {
            // SAFETY: The id is live, as this value keeps it, and has this queue pair by the type
            // invariant. `create` has returned a `Qp`, which has closed the queue pair before it
            // dropped the owner's reference, so nothing is posted, no handler runs and no
            // connection attempt is in progress (see `QueuePair::close`). There is no reference
            // with which to poll or to post.
            unsafe { bindings::rdma_destroy_qp(self.id.as_raw()) };
        }
    }
}

/// The owner of a queue pair.
///
/// Dropping it closes the queue pair (see [`QueuePair::close`]) and waits until all references of
/// [`QpRef::get`] and [`Qp::get`] are dropped. It may sleep, and must not happen in a handler.
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
/// Dropping it waits for them and destroys the queue pair, and may sleep.
pub struct QpEnd<H: Handler> {
    end: PercpuEnd<QueuePair<H>>,
}

impl<H: Handler> QpEnd<H> {
    /// Returns whether no reference is left, so that dropping this value does not wait.
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
