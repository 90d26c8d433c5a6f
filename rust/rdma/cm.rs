// SPDX-License-Identifier: GPL-2.0

//! Connection manager ids, which resolve addresses and routes, connect, and listen.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! use kx::net::{addr::SockAddr, Net};
//! use rdma::cm::{CmEvent, CmHandler, CmId, ConnParam, PortSpace};
//!
//! struct Events;
//!
//! impl CmHandler for Events {
//!     fn event(&self, event: &CmEvent<'_>) {
//!         // Wake the task that waits for the step.
//!         let _ = (event.as_str(), event.is_end());
//!     }
//! }
//!
//! let server = SockAddr::v4([192, 168, 0, 1], 1234);
//! let handler = Arc::new(Events, GFP_KERNEL)?;
//! let id = CmId::new(&Net::current(), PortSpace::of(&server), handler)?;
//! id.resolve_addr(None, &server, 2000)?;
//! // After `CmEvent::AddrResolved`:
//! id.resolve_route(2000)?;
//! // After `CmEvent::RouteResolved`, and with a queue pair:
//! id.connect(ConnParam {
//!     private_data: b"hello",
//!     retry_count: 7,
//!     rnr_retry_count: 7,
//!     reads_by_peer: 1,
//!     reads: 1,
//! })?;
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use core::{
    mem::ManuallyDrop,
    ptr::{
        self,
        NonNull, //
    }, //
};

use crate::{
    device::Device,
    CZeroed, //
};
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
        addr::{
            Host,
            SockAddr, //
        },
        Net, //
    },
    sync::atomic::{
        Acquire,
        AtomicFlag,
        Full,
        Relaxed,
        Release, //
    }, //
};

mod event;
pub use event::{
    CmEvent,
    CmHandler,
    REJECTED_AS_STALE, //
};

/// Parameters of a connection; see `struct rdma_conn_param`.
#[derive(Clone, Copy)]
pub struct ConnParam<'a> {
    /// Private data for the peer: at most 56 bytes in a request, and 196 in an answer.
    pub private_data: &'a [u8],
    /// Number of retransmissions of a packet that is not acknowledged, 0 to 7.
    pub retry_count: u8,
    /// Number of retries while the peer has no receive buffer: 0 to 6, or 7 for no limit.
    pub rnr_retry_count: u8,
    /// Number of reads of this side's memory that the peer may have in progress at a time.
    pub reads_by_peer: u8,
    /// Number of reads of the peer's memory that this side may have in progress at a time.
    pub reads: u8,
}

impl ConnParam<'_> {
    fn raw(&self) -> Result<bindings::rdma_conn_param> {
        Ok(bindings::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len())?,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            responder_resources: self.reads_by_peer,
            initiator_depth: self.reads,
            ..bindings::rdma_conn_param::c_zeroed()
        })
    }
}

/// A port space of the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortSpace {
    /// TCP ports, for IPv4 and IPv6 addresses.
    Tcp,
    /// InfiniBand service ids, for GIDs.
    Ib,
}

impl PortSpace {
    /// Returns the port space for addresses of the family of `addr`.
    pub fn of(addr: &SockAddr) -> Self {
        match addr.host() {
            Some(Host::Gid(_)) => Self::Ib,
            _ => Self::Tcp,
        }
    }

    const fn raw(self) -> bindings::rdma_ucm_port_space {
        match self {
            Self::Tcp => bindings::rdma_ucm_port_space_RDMA_PS_TCP,
            Self::Ib => bindings::rdma_ucm_port_space_RDMA_PS_IB,
        }
    }
}

/// The context of a connection id on the C side.
///
/// # Invariants
///
/// The context of the id is the address of this box as long as the id exists. Once `has_addrs` is
/// set, the id's addresses no longer change.
#[pin_data]
pub(crate) struct Context {
    #[pin]
    handler: Mutex<HandlerSlot>,
    has_addrs: AtomicFlag,
}

/// The recipient of an id's events.
enum HandlerSlot {
    /// No handler was set yet; `ended` tells whether the connection has ended meanwhile.
    Waiting { ended: bool },
    /// The handler.
    Set(Arc<dyn CmHandler>),
}

impl Context {
    fn new(handler: HandlerSlot, has_addrs: bool) -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(
            pin_init!(Self {
                handler <- new_mutex!(handler, "CmId::handler"),
                has_addrs: AtomicFlag::new(has_addrs),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the handler, if one was set.
    fn handler(&self) -> Option<Arc<dyn CmHandler>> {
        match &*self.handler.lock() {
            HandlerSlot::Set(handler) => Some(handler.clone()),
            HandlerSlot::Waiting { .. } => None,
        }
    }

    /// Passes an event to the handler. Without a handler, this only records the end of the
    /// connection.
    fn deliver(&self, event: &CmEvent<'_>) {
        if matches!(event, CmEvent::AddrResolved) {
            // INVARIANT: The connection manager writes the addresses before this event, and refuses
            // to bind or to resolve the id again after it.
            // ORDERING: Pairs with the acquire in `CmId::has_addrs`.
            self.has_addrs.store(true, Release);
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

/// The port of a peer in an InfiniBand or Omni-Path subnet.
#[derive(Clone, Copy)]
pub struct PeerPort {
    /// Its local identifier, or that of the router before it.
    pub lid: u32,
    /// Its GID, if answers have a global route header.
    pub gid: Option<[u8; 16]>,
}

/// A connection manager id.
///
/// Dropping it cancels an operation in progress, rejects a request that was not accepted, and waits
/// for a running handler.
///
/// # Context
///
/// All functions may sleep. The id's handler may resolve the route, and look at the id. It must not
/// resolve an address again, which would wait for the work item that the handler runs on; nor connect,
/// accept or reject, which take its lock or wait for events; nor drop the id.
///
/// # Invariants
///
/// - `id` is live, and its context is `context`.
/// - The owner of `binding` is the only thread that binds the id to an address.
/// - Once `has_peer` is set, the id has a lower one, which stays until the id is destroyed.
/// - Queue pairs are created and connections begun under the id's handler lock only, and not once
///   `is_closed` is set, which happens under that lock.
/// - `has_qp` is changed under that lock only, and set once the id has a queue pair.
/// - `has_request` is changed under that lock only. While it is set, the id has a request that was
///   neither accepted nor rejected.
pub struct CmId {
    id: NonNull<bindings::rdma_cm_id>,
    context: Pin<KBox<Context>>,
    /// A thread binds the id.
    binding: AtomicFlag,
    /// See [`CmId::disconnect`].
    has_peer: AtomicFlag,
    /// See [`CmId::take_request`].
    has_request: AtomicFlag,
    /// See [`CmId::close`].
    is_closed: AtomicFlag,
    /// See [`CmId::create_qp`].
    has_qp: AtomicFlag,
    /// See [`CmId::peer_roce_gid`].
    peer_roce_gid: Option<[u8; 16]>,
    /// See [`CmId::peer_port`].
    peer_port: Option<PeerPort>,
    /// See [`CmId::reads_allowed`].
    reads_allowed: u8,
}

// SAFETY: An id has no thread affinity, and the handler is `Send`.
unsafe impl Send for CmId {}
// SAFETY: The connection manager locks an id's state and changes it in one step, so that one of two
// conflicting calls fails, with two exceptions. A call that binds the id writes addresses after it
// has changed the state, and a failing connect frees the lower id that others use. The second
// invariant excludes the former. Of the others, those that create queue pairs, accept and reject
// have the handler lock as connecting does, and disconnecting is covered by the third invariant.
// Accepting and rejecting once, by the last one, is what the connection manager expects for iWARP.
// This type reads fields of an id without those locks only in one piece, or once they no longer
// change. The handler is `Sync`.
unsafe impl Sync for CmId {}

impl CmId {
    /// Creates an id in the network namespace `net` for reliable connections in the port space
    /// `space`; its events go to `handler`.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(net: &Net, space: PortSpace, handler: Arc<dyn CmHandler>) -> Result<Self> {
        let context = Context::new(HandlerSlot::Set(handler), false)?;
        // SAFETY: The namespace is live, as it is borrowed. The context is pinned, and outlives the
        // id, which `Drop` destroys before the context is dropped.
        let id = crate::from_err_ptr(unsafe {
            bindings::__rdma_create_kernel_id(
                net.as_raw(),
                Some(event::handler),
                ptr::from_ref::<Context>(&context).cast_mut().cast(),
                space.raw(),
                bindings::ib_qp_type_IB_QPT_RC,
                crate::caller(),
            )
        })?;
        // INVARIANT: The id was just created with that context.
        Ok(Self {
            id,
            context,
            binding: AtomicFlag::new(false),
            has_peer: AtomicFlag::new(false),
            has_request: AtomicFlag::new(false),
            is_closed: AtomicFlag::new(false),
            has_qp: AtomicFlag::new(false),
            peer_roce_gid: None,
            peer_port: None,
            reads_allowed: 0,
        })
    }

    /// Takes ownership of the id of a connection request, whose peer allows that many reads of its
    /// memory at a time.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the connection manager then still owns the id.
    ///
    /// # Safety
    ///
    /// `id` must be the new id with which the connection manager has called a listener's handler.
    /// If this succeeds, the handler must return zero, unless it calls [`CmId::release`].
    pub(crate) unsafe fn from_request(
        id: NonNull<bindings::rdma_cm_id>,
        reads_allowed: u8,
    ) -> Result<Self> {
        // INVARIANT: An id that comes with a request has the request's addresses.
        let context = Context::new(HandlerSlot::Waiting { ended: false }, true)?;
        // SAFETY: By this function's contract the id is live and in its first handler call. That
        // call holds the lock that all events of the id take, so nobody reads the context
        // meanwhile.
        unsafe {
            (*id.as_ptr()).context = ptr::from_ref::<Context>(&context).cast_mut().cast();
        }
        // SAFETY: By this function's contract the connection manager has filled in the id. It
        // writes to the route only during calls for the id, of which there is none yet.
        let peer_roce_gid = unsafe { roce_gid(&(*id.as_ptr()).route) };
        // SAFETY: As above.
        let peer_port = unsafe { peer_port(&(*id.as_ptr()).route) };
        // INVARIANT: The id is live, and its context was just set. It has come with a request, for
        // which the connection manager has given it a lower id.
        Ok(Self {
            id,
            context,
            binding: AtomicFlag::new(false),
            has_peer: AtomicFlag::new(true),
            has_request: AtomicFlag::new(true),
            is_closed: AtomicFlag::new(false),
            has_qp: AtomicFlag::new(false),
            peer_roce_gid,
            peer_port,
            reads_allowed,
        })
    }

    /// Returns the id to the connection manager, which destroys it.
    ///
    /// # Safety
    ///
    /// The caller must be the handler that called [`CmId::from_request`], and must return an error
    /// now, so that the connection manager destroys the id.
    unsafe fn release(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither used again nor dropped. By this function's contract the
        // connection manager destroys the id when the handler returns. It holds the id's handler
        // lock until it has begun to do so, and then delivers no more events, so nobody uses the
        // context any more.
        drop(unsafe { ptr::read(&this.context) });
    }

    /// Calls `bind` as the only thread that binds the id.
    ///
    /// # Errors
    ///
    /// `EBUSY` while another thread does; otherwise that of `bind`.
    fn bind(&self, bind: impl FnOnce() -> kernel::ffi::c_int) -> Result {
        if self.binding.xchg(true, Full) {
            return Err(EBUSY);
        }
        // INVARIANT: Nobody else had the flag.
        let ret = bind();
        // ORDERING: Pairs with the exchange of the next owner.
        self.binding.store(false, Release);
        kernel::error::to_result(ret)
    }

    /// Calls `func` under the handler lock, with whether the id is [closed](CmId::close).
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler.
    fn under_lock<T>(&self, func: impl FnOnce(bool) -> T) -> T {
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
    /// `EBUSY` if the id has a queue pair; `ECONNRESET` once it is [closed](CmId::close); otherwise
    /// that of `create`.
    pub(crate) fn create_qp(&self, create: impl FnOnce() -> kernel::ffi::c_int) -> Result {
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
    /// `ECONNRESET` once the id is [closed](CmId::close); otherwise that of `begin`.
    pub(crate) fn begin(&self, begin: impl FnOnce() -> kernel::ffi::c_int) -> Result {
        self.under_lock(|is_closed| match is_closed {
            true => Err(ECONNRESET),
            false => kernel::error::to_result(begin()),
        })
    }

    /// Takes the right to answer the request; the caller has the handler lock.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an id that did not come with a request, or whose request was answered.
    fn take_request(&self) -> Result {
        // INVARIANT: The caller has the lock, and answers the request or gives that up.
        // ORDERING: The lock orders it.
        match self.has_request.xchg(false, Relaxed) {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }

    /// Waits until no connection is being begun, and lets none begin from now on. After that, only
    /// an answer of the peer may still change the queue pair's state, and not from the error state.
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler.
    pub(crate) fn close(&self) {
        // ORDERING: The lock orders it.
        self.under_lock(|_| self.is_closed.store(true, Relaxed));
    }

    fn has_peer(&self) -> bool {
        // ORDERING: Pairs with the release in `connect`.
        self.has_peer.load(Acquire)
    }

    fn has_addrs(&self) -> bool {
        // ORDERING: Pairs with the release in `Context::deliver`.
        self.context.has_addrs.load(Acquire)
    }

    /// Returns whether the connection ended before a handler was set.
    pub fn has_ended(&self) -> bool {
        matches!(
            *self.context.handler.lock(),
            HandlerSlot::Waiting { ended: true }
        )
    }

    /// Sets the handler of an id that came with a request. Events before that are lost, except for
    /// the end of the connection.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` when the connection has already ended.
    pub fn set_handler(&self, handler: Arc<dyn CmHandler>) -> Result {
        let mut slot = self.context.handler.lock();
        if let HandlerSlot::Waiting { ended: true } = *slot {
            return Err(ECONNRESET);
        }
        *slot = HandlerSlot::Set(handler);
        Ok(())
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
        // pointer meanwhile, but in one piece, and the callee only compares it.
        Device::find(unsafe { ptr::read_volatile(&raw const (*self.as_raw()).device) })
    }

    /// Returns the number of the device's port that the id is bound to, or zero before the id is
    /// bound.
    pub fn port_num(&self) -> u32 {
        // SAFETY: The id is live by the type invariant. The connection manager may write the number
        // meanwhile, but in one piece.
        unsafe { ptr::read_volatile(&raw const (*self.as_raw()).port_num) }
    }

    /// Allows other ids to use the same local address.
    ///
    /// # Errors
    ///
    /// `EINVAL` once the id listens.
    pub fn set_reuse_addr(&self) -> Result {
        // SAFETY: The id is live by the type invariant.
        kernel::error::to_result(unsafe { bindings::rdma_set_reuseaddr(self.as_raw(), 1) })
    }

    /// Restricts a listener to the address family that it is bound to, so that the IPv6 wildcard
    /// address does not cover IPv4.
    ///
    /// # Errors
    ///
    /// `EINVAL` once the id listens, or resolves an address.
    pub fn set_family_only(&self) -> Result {
        // SAFETY: The id is live by the type invariant.
        kernel::error::to_result(unsafe { bindings::rdma_set_afonly(self.as_raw(), 1) })
    }

    /// Sets the time for which the device waits for an acknowledgement before it retransmits:
    /// 4.096 us times two to the power of `exponent`, which must be at most 31. With RoCE, the
    /// value also determines the timeout of the peer. Must be called before the route is resolved.
    ///
    /// # Errors
    ///
    /// None for reliable connections.
    pub fn set_ack_timeout(&self, exponent: u8) -> Result {
        // SAFETY: The id is live by the type invariant.
        kernel::error::to_result(unsafe { bindings::rdma_set_ack_timeout(self.as_raw(), exponent) })
    }

    /// Starts to resolve the address `dst`, from the local address `src` if there is one. The event
    /// [`CmEvent::AddrResolved`], [`CmEvent::AddrUnanswered`] or [`CmEvent::Failed`] follows.
    ///
    /// # Errors
    ///
    /// Those of `rdma_resolve_addr`, such as `ENETUNREACH` or `EADDRNOTAVAIL`; `ENODEV` for a GID
    /// if no InfiniBand port of this machine has it or is in its subnet; `EBUSY` while another
    /// thread calls this function or [`CmId::listen`].
    pub fn resolve_addr(&self, src: Option<&SockAddr>, dst: &SockAddr, timeout_ms: u32) -> Result {
        let src = src.map_or(ptr::null_mut(), |src| src.as_raw().cast_mut());
        // SAFETY: The id is live by the type invariant. The addresses are valid during the call,
        // which does not change them.
        self.bind(|| unsafe {
            bindings::rdma_resolve_addr(self.as_raw(), src, dst.as_raw(), timeout_ms as usize)
        })
    }

    /// Starts to resolve the route. The event [`CmEvent::RouteResolved`] or [`CmEvent::Failed`]
    /// follows.
    ///
    /// # Errors
    ///
    /// Those of `rdma_resolve_route`.
    pub fn resolve_route(&self, timeout_ms: u32) -> Result {
        // SAFETY: The id is live by the type invariant.
        kernel::error::to_result(unsafe {
            bindings::rdma_resolve_route(self.as_raw(), timeout_ms as usize)
        })
    }

    /// Requests a connection. The event [`CmEvent::Established`], [`CmEvent::Rejected`] or
    /// [`CmEvent::Failed`] follows.
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler, whose lock it takes.
    ///
    /// # Errors
    ///
    /// Those of `rdma_connect`; `EINVAL` for private data of more than 255 bytes; `ECONNRESET` if
    /// the queue pair of the id was closed.
    pub fn connect(&self, param: ConnParam<'_>) -> Result {
        let mut raw = param.raw()?;
        self.begin(|| {
            // SAFETY: The id is live by the type invariant. The parameters and their private data
            // are valid during the call, which is made with the handler lock.
            let ret = unsafe { bindings::rdma_connect_locked(self.as_raw(), &mut raw) };
            if ret == 0 {
                // INVARIANT: The connection manager has created the lower id. From now on the state
                // of this id refuses to connect, whose failure would destroy the lower one.
                // ORDERING: Pairs with the acquire in `has_peer`.
                self.has_peer.store(true, Release);
            }
            ret
        })
    }

    /// Accepts the connection request that the id came with. An error of the connection manager
    /// rejects it.
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler, whose lock it takes.
    ///
    /// # Errors
    ///
    /// Those of `rdma_accept`; `EINVAL` for private data of more than 255 bytes, and for an id
    /// without a request, or whose request was answered; `ECONNRESET` if the queue pair of the id
    /// was closed.
    pub fn accept(&self, param: ConnParam<'_>) -> Result {
        let mut raw = param.raw()?;
        self.begin(|| match self.take_request() {
            // SAFETY: The id is live by the type invariant. The parameters and their private data
            // are valid during the call, which is made with the handler lock, as it requires.
            Ok(()) => unsafe { bindings::rdma_accept(self.as_raw(), &mut raw) },
            Err(error) => error.to_errno(),
        })
    }

    /// Rejects the connection request that the id came with, with private data for the peer.
    ///
    /// # Errors
    ///
    /// Those of `rdma_reject`; `EINVAL` for private data of more than 255 bytes, and for an id
    /// without a request, or whose request was answered. Dropping the id then rejects the request.
    pub fn reject(&self, private_data: &[u8]) -> Result {
        let len = u8::try_from(private_data.len())?;
        self.under_lock(|_| {
            self.take_request()?;
            // SAFETY: The id is live by the type invariant, and the data is valid during the call.
            kernel::error::to_result(unsafe {
                bindings::rdma_reject(
                    self.as_raw(),
                    private_data.as_ptr().cast(),
                    len,
                    bindings::ib_cm_rej_reason_IB_CM_REJ_CONSUMER_DEFINED as u8,
                )
            })
        })
    }

    /// Ends the connection and moves its queue pair to the error state. The caller keeps that until this
    /// returns: with iWARP, the core uses it without a reference of its own.
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

    /// Listens at the local address `addr`. Connection requests go to
    /// [`CmHandler::connect_request`]. `backlog` is the maximum number of requests that the
    /// device's driver keeps waiting; only iWARP uses it.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE` when the port is in use; others of `rdma_bind_addr` and `rdma_listen`; `EBUSY`
    /// while another thread calls this function or [`CmId::resolve_addr`].
    pub fn listen(&self, addr: &SockAddr, backlog: i32) -> Result {
        // SAFETY: The id is live by the type invariant. The address is valid during the call, which
        // does not change it.
        self.bind(|| unsafe {
            match bindings::rdma_bind_addr(self.as_raw(), addr.as_raw().cast_mut()) {
                0 => bindings::rdma_listen(self.as_raw(), backlog),
                error => error,
            }
        })
    }

    /// Returns the local address, or `None` while it may still change: until the address was
    /// resolved, unless the id came with a request.
    pub fn local_addr(&self) -> Option<SockAddr> {
        // SAFETY: The id is live by the type invariant. By the invariant of `Context` its addresses
        // no longer change; the connection manager has initialised them with the id.
        self.has_addrs()
            .then(|| unsafe { SockAddr::from_raw(&raw const (*self.as_raw()).route.addr.src_addr) })
    }

    /// Returns the GID from which a connection request came over RoCE, in network byte order.
    /// Returns `None` for another transport, and for an id that did not come with a request.
    ///
    /// For such an id, [`CmId::peer_addr`] is the address in the peer's message, which the peer can
    /// choose. Answers go to the GID, so a peer that cannot receive there cannot complete the
    /// connection.
    pub fn peer_roce_gid(&self) -> Option<[u8; 16]> {
        self.peer_roce_gid
    }

    /// Returns the port from which a connection request came over InfiniBand or Omni-Path. Returns
    /// `None` for another transport, and for an id that did not come with a request.
    ///
    /// Answers go there, so a peer at another port cannot complete the connection. A GID alone does
    /// not show the port: it is in the peer's message, like [`CmId::peer_addr`].
    pub fn peer_port(&self) -> Option<PeerPort> {
        self.peer_port
    }

    /// Returns the number of reads of its memory that the peer allows at a time, according to its
    /// connection request; 0 for an id that did not come with a request.
    pub fn reads_allowed(&self) -> u8 {
        self.reads_allowed
    }

    /// Returns the peer's address, under the condition of [`CmId::local_addr`].
    pub fn peer_addr(&self) -> Option<SockAddr> {
        // SAFETY: As in `local_addr`.
        self.has_addrs()
            .then(|| unsafe { SockAddr::from_raw(&raw const (*self.as_raw()).route.addr.dst_addr) })
    }
}

/// Returns the GID of the peer in a route over RoCE.
///
/// # Safety
///
/// The path record of `route` must be null or valid, and nobody may write to it during the call.
unsafe fn roce_gid(route: &bindings::rdma_route) -> Option<[u8; 16]> {
    // SAFETY: By this function's contract.
    let record = unsafe { route.path_rec.as_ref() }?;
    let is_roce = matches!(
        record.rec_type,
        bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V1
            | bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V2
    );
    // SAFETY: All variants of the union have 16 bytes, and any bytes are a valid `raw`.
    is_roce.then(|| unsafe { *record.dgid.raw })
}

/// Returns the port of the peer in a route over InfiniBand or Omni-Path.
///
/// # Safety
///
/// As for [`roce_gid`].
unsafe fn peer_port(route: &bindings::rdma_route) -> Option<PeerPort> {
    // SAFETY: By this function's contract.
    let record = unsafe { route.path_rec.as_ref() }?;
    let lid = match record.rec_type {
        // SAFETY: The union has this variant for that type, and any bits are a valid number.
        bindings::sa_path_rec_type_SA_PATH_REC_TYPE_IB => unsafe {
            u32::from(u16::from_be(record.__bindgen_anon_1.ib.dlid))
        },
        // SAFETY: As above.
        bindings::sa_path_rec_type_SA_PATH_REC_TYPE_OPA => unsafe {
            u32::from_be(record.__bindgen_anon_1.opa.dlid)
        },
        _ => return None,
    };
    // The connection manager puts a global route header into its answers if this is set.
    let is_global = record.hop_limit > 0;
    Some(PeerPort {
        lid,
        // SAFETY: All variants of the union have 16 bytes, and any bytes are a valid `raw`.
        gid: is_global.then(|| unsafe { *record.dgid.raw }),
    })
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: The id is live by the type invariant, and not used after this. The call waits for
        // a running handler and lets no other one begin, so the context may be dropped afterwards.
        unsafe { bindings::rdma_destroy_id(self.id.as_ptr()) };
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_cm)]
mod tests {
    use super::*;

    const NO_DATA: ConnParam<'_> = ConnParam {
        private_data: &[],
        retry_count: 0,
        rnr_retry_count: 0,
        reads_by_peer: 0,
        reads: 0,
    };

    struct Nobody;

    impl CmHandler for Nobody {
        fn event(&self, _event: &CmEvent<'_>) {}
    }

    fn id() -> Result<CmId> {
        CmId::new(Net::init(), PortSpace::Tcp, Arc::new(Nobody, GFP_KERNEL)?)
    }

    /// A second queue pair would be destroyed with the first, and used after that.
    #[test]
    fn an_id_has_one_queue_pair() -> Result {
        let id = id()?;
        assert_eq!(id.create_qp(|| EINVAL.to_errno()), Err(EINVAL));
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

    /// Two threads that bind an id would write its addresses together.
    #[test]
    fn one_thread_binds_an_id() -> Result {
        let (id, here) = (id()?, SockAddr::v4([127, 0, 0, 1], 0));
        let mut meanwhile = Ok(());
        let outer = id.bind(|| {
            meanwhile = id.resolve_addr(None, &here, 1);
            0
        });
        assert!(outer.is_ok() && meanwhile == Err(EBUSY));
        assert!(id.bind(|| 0).is_ok());
        assert_eq!(id.bind(|| -22), Err(EINVAL));
        assert!(id.bind(|| 0).is_ok());
        Ok(())
    }

    /// A connect that fails destroys what these would use.
    #[test]
    fn an_id_without_a_peer_has_no_connection_to_end() -> Result {
        let id = id()?;
        assert!(id.connect(NO_DATA).is_err() && !id.has_peer());
        assert_eq!(id.disconnect(), Err(EINVAL));
        assert_eq!(id.reject(&[]), Err(EINVAL));
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
        assert_eq!(id.connect(NO_DATA), Err(ECONNRESET));
        assert_eq!(id.accept(NO_DATA), Err(ECONNRESET));
        Ok(())
    }

    /// A second answer would find iWARP's connection manager in a state that it does not expect.
    #[test]
    fn a_request_is_answered_once() -> Result {
        let id = id()?;
        assert_eq!(id.accept(NO_DATA), Err(EINVAL));
        id.under_lock(|_| id.has_request.store(true, Relaxed));
        // The connection manager refuses, as the id has no connection.
        assert!(id.accept(NO_DATA).is_err() && id.take_request().is_err());
        id.under_lock(|_| id.has_request.store(true, Relaxed));
        id.close();
        // Not by this one, which does not begin.
        assert_eq!(id.accept(NO_DATA), Err(ECONNRESET));
        assert!(id.reject(&[]).is_err() && id.take_request().is_err());
        Ok(())
    }

    #[test]
    fn an_id_has_addresses_once_they_stay() -> Result {
        let id = id()?;
        assert!(id.local_addr().is_none() && id.peer_addr().is_none());
        assert!(matches!(id.device(), Err(ENODEV)));
        id.context.deliver(&CmEvent::AddrUnanswered);
        assert!(id.local_addr().is_none());
        id.context.deliver(&CmEvent::AddrResolved);
        assert!(id.local_addr().is_some() && id.peer_addr().is_some());
        Ok(())
    }

    /// An end that comes before the handler is recorded, so that setting a handler then fails.
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

    #[test]
    fn only_subnets_have_a_port_of_the_peer() {
        // SAFETY: C structs of numbers and pointers: zeroes are valid.
        let (mut route, mut record): (bindings::rdma_route, bindings::sa_path_rec) =
            unsafe { core::mem::zeroed() };
        // SAFETY: There is no path record, as with iWARP.
        assert!(unsafe { peer_port(&route) }.is_none());
        record.dgid.raw = ManuallyDrop::new([7; 16]);
        let (ib, opa) = (
            bindings::sa_path_rec_type_SA_PATH_REC_TYPE_IB,
            bindings::sa_path_rec_type_SA_PATH_REC_TYPE_OPA,
        );
        for (rec_type, hop_limit, port) in [
            (ib, 0, Some((0x1234, None))),
            (ib, 255, Some((0x1234, Some([7; 16])))),
            (opa, 0, Some((0x12345, None))),
            (opa, 1, Some((0x12345, Some([7; 16])))),
            (bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V1, 1, None),
            (bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V2, 1, None),
        ] {
            record.rec_type = rec_type;
            record.hop_limit = hop_limit;
            // SAFETY: Each variant of the union consists of numbers, for which any bits are valid.
            unsafe {
                match rec_type == opa {
                    true => (*record.__bindgen_anon_1.opa).dlid = 0x12345_u32.to_be(),
                    false => (*record.__bindgen_anon_1.ib).dlid = 0x1234_u16.to_be(),
                }
            }
            route.path_rec = &raw mut record;
            // SAFETY: The record lives, and nobody else has it.
            let found = unsafe { peer_port(&route) };
            assert_eq!(found.map(|port| (port.lid, port.gid)), port);
        }
    }

    #[test]
    fn only_roce_has_a_gid_of_the_peer() {
        // SAFETY: C structs of numbers and pointers: zeroes are valid.
        let (mut route, mut record): (bindings::rdma_route, bindings::sa_path_rec) =
            unsafe { core::mem::zeroed() };
        // SAFETY: There is no path record, as with iWARP.
        assert_eq!(unsafe { roce_gid(&route) }, None);
        record.dgid.raw = ManuallyDrop::new([7; 16]);
        for (rec_type, gid) in [
            (bindings::sa_path_rec_type_SA_PATH_REC_TYPE_IB, None),
            (bindings::sa_path_rec_type_SA_PATH_REC_TYPE_OPA, None),
            (
                bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V1,
                Some([7; 16]),
            ),
            (
                bindings::sa_path_rec_type_SA_PATH_REC_TYPE_ROCE_V2,
                Some([7; 16]),
            ),
        ] {
            record.rec_type = rec_type;
            route.path_rec = &raw mut record;
            // SAFETY: The record lives, and nobody else has it.
            assert_eq!(unsafe { roce_gid(&route) }, gid);
        }
    }

    /// A handler that keeps the id that it gets, and returns the one that it has kept before.
    #[pin_data]
    struct Swap {
        #[pin]
        held: Mutex<Option<CmId>>,
    }

    impl CmHandler for Swap {
        fn event(&self, _event: &CmEvent<'_>) {}

        fn connect_request(&self, id: CmId, _private_data: &[u8]) -> Result<(), CmId> {
            self.held.lock().replace(id).map_or(Ok(()), Err)
        }
    }

    /// If a listener's handler returns another id than the one that it received, it keeps the
    /// latter, and the connection manager does not destroy it.
    #[test]
    fn a_request_is_not_exchanged() -> Result {
        let swap = Arc::pin_init(
            pin_init!(Swap {
                held <- new_mutex!(None, "Swap::held"),
            }),
            GFP_KERNEL,
        )?;
        let listener = Context::new(HandlerSlot::Set(swap.clone()), true)?;
        // An id as the connection manager creates it: nobody here owns it yet.
        let request = || -> Result<NonNull<bindings::rdma_cm_id>> {
            let id = ManuallyDrop::new(id()?);
            // SAFETY: `id` is neither used again nor dropped, and no event comes to an id that is
            // not bound.
            drop(unsafe { ptr::read(&id.context) });
            Ok(id.id)
        };
        // SAFETY: A C struct of numbers and pointers: zeroes are valid.
        let mut event: bindings::rdma_cm_event = unsafe { core::mem::zeroed() };
        // SAFETY: The id is new, and the event has parameters without private data.
        let mut ask = |id: NonNull<bindings::rdma_cm_id>| unsafe {
            event::connect_request(&listener, id.as_ptr(), &mut event)
        };
        let (first, second) = (request()?, request()?);
        assert_eq!(ask(first), 0);
        let twin = {
            let held = swap.held.lock();
            // SAFETY: This copy is used only after the original was leaked.
            held.as_ref()
                .map(|id| ManuallyDrop::new(unsafe { ptr::read(id) }))
        };
        // Zero: the connection manager leaves the id to its owner.
        assert_eq!(ask(second), 0);
        let kept = swap.held.lock().take();
        assert_eq!(kept.map(|id| id.id), Some(second));
        // The test does not leak the first id.
        drop(twin.map(ManuallyDrop::into_inner));
        Ok(())
    }
}
