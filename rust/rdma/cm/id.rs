// SPDX-License-Identifier: GPL-2.0

//! The common part of active and incoming ids.

use core::{
    mem::ManuallyDrop,
    ptr::{
        self,
        NonNull, //
    }, //
};

use super::{
    CmEvent,
    PortSpace, //
};
use crate::device::Device;
use ibtrs_bindings as bindings;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::{
    net::{
        addr::SockAddr,
        Net, //
    },
    sync::atomic::{
        Acquire,
        AtomicFlag,
        Relaxed,
        Release, //
    }, //
};

mod handler;
mod incoming;
pub use incoming::{
    ConnRequest,
    IncomingId,
    NotAccepted,
    PeerPort, //
};

/// Handles the events of an id.
///
/// # Context
///
/// Process context, with the id's handler lock held: the functions may sleep, but must not drop the
/// id.
pub trait CmHandler: Send + Sync {
    /// Handles an event of the id.
    fn event(&self, event: &CmEvent<'_>);

    /// Handles a connection request to a listener; `private_data` comes from the peer, padded with
    /// bytes to ignore.
    ///
    /// The handler either keeps the request, and accepts, rejects or drops it later in another
    /// context; or it returns the request, which rejects it. If it returns another request, that one
    /// is leaked, and the log has an error.
    fn connect_request(
        &self,
        request: ConnRequest,
        _private_data: &[u8],
    ) -> Result<(), ConnRequest> {
        Err(request)
    }
}

/// The context of a connection id on the C side.
///
/// # Invariants
///
/// The context of the id is the address of this box as long as the id exists. Once `is_bound` is
/// set, the id is bound to a device, and the connection manager refuses to bind it again.
#[pin_data]
pub(super) struct Context {
    #[pin]
    pub(super) handler: Mutex<HandlerSlot>,
    is_bound: AtomicFlag,
}

/// The recipient of an id's events.
pub(super) enum HandlerSlot {
    /// No handler was set yet; `ended` is set if the connection has ended since.
    Waiting { ended: bool },
    /// The handler.
    Set(Arc<dyn CmHandler>),
}

/// The addresses of a connection.
pub struct Addrs {
    /// Of this machine.
    pub local: SockAddr,
    /// Of the peer. In a connection request, this is what the peer's message says.
    pub peer: SockAddr,
}

impl Context {
    pub(super) fn new(handler: HandlerSlot, is_bound: bool) -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(
            pin_init!(Self {
                handler <- new_mutex!(handler, "CmId::handler"),
                is_bound: AtomicFlag::new(is_bound),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the handler, if one was set.
    pub(super) fn handler(&self) -> Option<Arc<dyn CmHandler>> {
        match &*self.handler.lock() {
            HandlerSlot::Set(handler) => Some(handler.clone()),
            HandlerSlot::Waiting { .. } => None,
        }
    }

    /// Passes an event to the handler. Without a handler, this only records the end of the
    /// connection.
    pub(super) fn deliver(&self, event: &CmEvent<'_>) {
        if matches!(event, CmEvent::AddrResolved) {
            // INVARIANT: The connection manager has bound the id before this event, and refuses to
            // resolve an address again after it.
            // ORDERING: Pairs with the acquire in `CmId::is_bound`.
            self.is_bound.store(true, Release);
        }
        let mut slot = self.handler.lock();
        let handler = match &mut *slot {
            HandlerSlot::Set(handler) => handler.clone(),
            HandlerSlot::Waiting { ended } => {
                *ended |= event.is_end();
                return;
            }
        };
        drop(slot);
        handler.event(event);
    }
}

/// A connection manager id: the common part of [`ActiveId`](super::ActiveId) and
/// [`IncomingId`](super::IncomingId), which a queue pair holds.
///
/// Dropping the last reference cancels an operation in progress, rejects a request that was not
/// accepted, and waits for a running handler.
///
/// # Context
///
/// All functions may sleep. The handler of the id runs under the id's handler lock. It must
/// therefore not create or close a queue pair, connect, accept or reject, as these take that lock;
/// nor drop the last reference, as that waits for the handler.
///
/// # Invariants
///
/// - `id` is live, and its context is `context`.
/// - Only the owner of the role binds the id to an address, by a function that needs it
///   exclusively or creates it.
/// - Once `has_peer` is set, the id has a lower one, which stays until the id is destroyed.
/// - Queue pairs are created and connections begun under the id's handler lock only, and not once
///   `is_closed` is set, which happens under that lock.
/// - `has_qp` is changed under that lock only, and set once the id has a queue pair.
pub struct CmId {
    id: NonNull<bindings::rdma_cm_id>,
    pub(super) context: Pin<KBox<Context>>,
    /// See [`CmId::disconnect`].
    has_peer: AtomicFlag,
    /// See [`CmId::close`].
    is_closed: AtomicFlag,
    /// See [`CmId::create_qp`].
    has_qp: AtomicFlag,
}

// SAFETY: An id has no thread affinity, and the handler is `Send`.
unsafe impl Send for CmId {}
// SAFETY: The connection manager locks an id's state and changes it in one step, so that one of two
// conflicting calls fails, with two exceptions. A call that binds the id writes its addresses and
// device after it has changed the state: the second invariant rules out two such calls at a time,
// and queue pairs are created only for an id that is not bound again. A failing connect frees the
// lower id: creating a queue pair, accepting and rejecting have the handler lock as connecting
// does, and disconnecting is covered by the third invariant. This type reads fields of an id
// without those locks only by a single load, or while they do not change. The handler is `Sync`.
unsafe impl Sync for CmId {}

impl CmId {
    /// Creates an id in the network namespace `net` for reliable connections in the port space
    /// `space`; its events go to `handler`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(net: &Net, space: PortSpace, handler: Arc<dyn CmHandler>) -> Result<Self> {
        let context = Context::new(HandlerSlot::Set(handler), false)?;
        // SAFETY: The namespace is live, as it is borrowed. The context is pinned, and outlives the
        // id, which `Drop` destroys before the context is dropped.
        let id = crate::from_err_ptr(unsafe {
            bindings::__rdma_create_kernel_id(
                net.as_raw(),
                Some(handler::handler),
                ptr::from_ref::<Context>(&context).cast_mut().cast(),
                space.raw(),
                bindings::ib_qp_type_IB_QPT_RC,
                crate::caller(),
            )
        })?;
        // INVARIANT: The id was just created with that context. It has no lower id yet.
        Ok(Self::with(id, context, false))
    }

    /// Takes ownership of the id of a connection request.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the connection manager then still owns the id.
    ///
    /// # Safety
    ///
    /// `id` must be the new id with which the connection manager has called a listener's handler,
    /// and that call must not have returned. It must return zero, unless the result is
    /// [released](CmId::release).
    pub(super) unsafe fn of_request(id: NonNull<bindings::rdma_cm_id>) -> Result<Self> {
        // INVARIANT: An id that comes with a request is bound to the device that it came from.
        let context = Context::new(HandlerSlot::Waiting { ended: false }, true)?;
        // SAFETY: By this function's contract the id is live and in its first handler call. That
        // call holds the lock that all events of the id take, so nothing reads the context
        // concurrently.
        unsafe {
            (*id.as_ptr()).context = ptr::from_ref::<Context>(&context).cast_mut().cast();
        }
        // INVARIANT: The id is live, and its context was just set. It belongs to a request, so the
        // connection manager has created its lower id.
        Ok(Self::with(id, context, true))
    }

    fn with(
        id: NonNull<bindings::rdma_cm_id>,
        context: Pin<KBox<Context>>,
        has_peer: bool,
    ) -> Self {
        Self {
            id,
            context,
            has_peer: AtomicFlag::new(has_peer),
            is_closed: AtomicFlag::new(false),
            has_qp: AtomicFlag::new(false),
        }
    }

    /// Returns the id to the connection manager, which destroys it.
    ///
    /// # Safety
    ///
    /// The id must have been made by [`CmId::of_request`], and nobody else may have it. The
    /// handler's call that made it must return an error now, so that the connection manager
    /// destroys the id.
    pub(super) unsafe fn release(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither used again nor dropped. By this function's contract the
        // connection manager destroys the id when the handler returns. It holds the id's handler
        // lock until it has begun to do so, and then delivers no more events, so nobody uses the
        // context any more.
        drop(unsafe { ptr::read(&this.context) });
    }

    /// Calls `func` under the handler lock, with whether the id is [closed](CmId::close).
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler.
    pub(super) fn under_lock<T>(&self, func: impl FnOnce(bool) -> T) -> T {
        // SAFETY: The id is live by the type invariant.
        unsafe { bindings::rdma_lock_handler(self.as_raw()) };
        // ORDERING: The lock orders it.
        let result = func(self.is_closed.load(Relaxed));
        // SAFETY: As above; this thread has locked it.
        unsafe { bindings::rdma_unlock_handler(self.as_raw()) };
        result
    }

    /// Calls `create`, which creates the one queue pair that the id may have, under the handler
    /// lock.
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the id is bound to no device; `EBUSY` if it has a queue pair; `ECONNRESET` once it
    /// is [closed](CmId::close); otherwise the error of `create`.
    pub(crate) fn create_qp(&self, create: impl FnOnce() -> kernel::ffi::c_int) -> Result {
        if !self.is_bound() {
            return Err(EINVAL);
        }
        self.begin(|| {
            // ORDERING: The lock orders both.
            if self.has_qp.load(Relaxed) {
                return EBUSY.to_errno();
            }
            let ret = create();
            self.has_qp.store(ret == 0, Relaxed);
            ret
        })
    }

    /// Calls `begin`, which creates a queue pair or begins a connection, under the handler lock.
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` once the id is [closed](CmId::close); otherwise the error of `begin`.
    pub(crate) fn begin(&self, begin: impl FnOnce() -> kernel::ffi::c_int) -> Result {
        self.under_lock(|is_closed| match is_closed {
            true => Err(ECONNRESET),
            false => kernel::error::to_result(begin()),
        })
    }

    /// Records that a connection was begun.
    ///
    /// # Safety
    ///
    /// The connection manager must have begun it since the caller took the handler lock, which the
    /// caller must still hold.
    pub(super) unsafe fn set_connected(&self) {
        // INVARIANT: The connection manager has created the lower id. From now on the state
        // of this id refuses to connect, whose failure would destroy the lower one.
        // ORDERING: Pairs with the acquire in `has_peer`.
        self.has_peer.store(true, Release);
    }

    /// Waits for connection attempts in progress, and prevents new ones. After this, only an answer
    /// of the peer may still change the queue pair's state, and not from the error state.
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler.
    pub(crate) fn close(&self) {
        // ORDERING: The lock orders it.
        self.under_lock(|_| self.is_closed.store(true, Relaxed));
    }

    pub(super) fn has_peer(&self) -> bool {
        // ORDERING: Pairs with the release in `set_connected`.
        self.has_peer.load(Acquire)
    }

    pub(super) fn is_bound(&self) -> bool {
        // ORDERING: Pairs with the release in `Context::deliver`.
        self.context.is_bound.load(Acquire)
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::rdma_cm_id {
        self.id.as_ptr()
    }

    /// Returns the device that the id is bound to.
    ///
    /// # Errors
    ///
    /// `ENODEV` when the id is bound to no device, or the device is being removed or does not
    /// support fast registration.
    pub fn device(&self) -> Result<Arc<Device>> {
        // SAFETY: The id is live by the type invariant. The connection manager may write the
        // pointer concurrently, but in a single store, and the callee only compares it.
        Device::find(unsafe { ptr::read_volatile(&raw const (*self.as_raw()).device) })
    }

    /// Returns the number of the device's port that the id is bound to, or zero before the id is
    /// bound.
    pub fn port_num(&self) -> u32 {
        // SAFETY: The id is live by the type invariant. The connection manager may write the number
        // concurrently, but in a single store.
        unsafe { ptr::read_volatile(&raw const (*self.as_raw()).port_num) }
    }

    /// Ends the connection and moves its queue pair to the error state. The caller must keep the queue
    /// pair alive until this returns: with iWARP, the core uses it without taking a reference.
    ///
    /// # Errors
    ///
    /// `EINVAL` when there is no connection.
    pub(crate) fn disconnect(&self) -> Result {
        if !self.has_peer() {
            return Err(EINVAL);
        }
        // SAFETY: The id is live by the type invariant, and its lower one stays.
        kernel::error::to_result(unsafe { bindings::rdma_disconnect(self.as_raw()) })
    }

    /// Returns the addresses of the connection.
    ///
    /// # Safety
    ///
    /// The connection manager must not write addresses of the id during the call.
    pub(super) unsafe fn addrs(&self) -> Addrs {
        // SAFETY: The id is live by the type invariant. The connection manager has initialised the
        // addresses with the id, and does not write them by this function's contract.
        unsafe {
            let addr = &raw const (*self.as_raw()).route.addr;
            Addrs {
                local: SockAddr::from_raw(&raw const (*addr).src_addr),
                peer: SockAddr::from_raw(&raw const (*addr).dst_addr),
            }
        }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: The id is live by the type invariant, and not used after this. The call waits for
        // a running handler and prevents further calls, so the context may be dropped afterwards.
        unsafe { bindings::rdma_destroy_id(self.id.as_ptr()) };
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_cm_id)]
mod tests {
    use super::*;
    use crate::cm::testing::nobody;

    fn id() -> Result<CmId> {
        CmId::new(Net::init(), PortSpace::Tcp, nobody()?)
    }

    /// A second queue pair would be destroyed with the first, and used after that.
    #[test]
    fn an_id_has_one_queue_pair() -> Result {
        let id = id()?;
        assert_eq!(id.create_qp(|| 0), Err(EINVAL));
        // An unanswered query leaves the id unbound.
        id.context.deliver(&CmEvent::AddrUnanswered);
        assert_eq!(id.create_qp(|| 0), Err(EINVAL));
        id.context.deliver(&CmEvent::AddrResolved);
        assert_eq!(id.create_qp(|| ENODEV.to_errno()), Err(ENODEV));
        assert!(id.create_qp(|| 0).is_ok());
        let mut again = false;
        let second = id.create_qp(|| {
            again = true;
            0
        });
        assert!(second == Err(EBUSY) && !again);
        id.close();
        assert_eq!(id.create_qp(|| 0), Err(ECONNRESET));
        Ok(())
    }

    #[test]
    fn nothing_begins_on_a_closed_id() -> Result {
        let id = id()?;
        let mut called = false;
        assert_eq!(id.begin(|| -22), Err(EINVAL));
        id.close();
        let begun = id.begin(|| {
            called = true;
            0
        });
        assert!(begun == Err(ECONNRESET) && !called);
        Ok(())
    }

    /// If the connection ends before a handler is set, the end is recorded, so that setting a
    /// handler fails.
    #[test]
    fn an_end_is_not_missed() -> Result {
        let context = Context::new(HandlerSlot::Waiting { ended: false }, true)?;
        context.deliver(&CmEvent::Established(&[]));
        assert!(matches!(
            *context.handler.lock(),
            HandlerSlot::Waiting { ended: false }
        ));
        context.deliver(&CmEvent::Disconnected);
        assert!(matches!(
            *context.handler.lock(),
            HandlerSlot::Waiting { ended: true }
        ));
        assert!(context.handler().is_none());
        Ok(())
    }
}
