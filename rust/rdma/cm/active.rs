// SPDX-License-Identifier: GPL-2.0

//! Ids that connect.

use core::{
    ops::Deref,
    ptr, //
};

use super::{
    Addrs,
    CmHandler,
    CmId,
    ConnParam,
    PortSpace, //
};
use ibtrs_bindings as bindings;
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc, //
};
use kx::net::{
    addr::SockAddr,
    Net, //
};

/// An id that resolves an address and a route, and connects.
///
/// # Context
///
/// All functions may sleep. None may be called from the id's handler: resolving an address waits for the
/// work item that the handler runs on, and connecting takes the handler's lock.
pub struct ActiveId(Arc<CmId>);

impl ActiveId {
    /// Creates an id in the network namespace `net` for a reliable connection in the port space
    /// `space`; its events go to `handler`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(net: &Net, space: PortSpace, handler: Arc<dyn CmHandler>) -> Result<Self> {
        let id = CmId::new(net, space, handler)?;
        Ok(Self(Arc::new(id, GFP_KERNEL)?))
    }

    /// Returns the id, for a queue pair.
    pub fn shared(&self) -> Arc<CmId> {
        self.0.clone()
    }

    /// Allows other ids to use the same local address.
    ///
    /// # Errors
    ///
    /// None for an id that does not listen.
    pub fn set_reuse_addr(&mut self) -> Result {
        // SAFETY: The id is live by the type invariant of `CmId`.
        to_result(unsafe { bindings::rdma_set_reuseaddr(self.as_raw(), 1) })
    }

    /// Sets the time for which the device waits for an acknowledgement before it retransmits:
    /// 4.096 us times two to the power of `exponent`, which must be at most 31. With RoCE, the
    /// value also determines the timeout of the peer. Must be called before the route is resolved.
    ///
    /// # Errors
    ///
    /// None for reliable connections.
    pub fn set_ack_timeout(&mut self, exponent: u8) -> Result {
        // SAFETY: The id is live by the type invariant of `CmId`.
        to_result(unsafe { bindings::rdma_set_ack_timeout(self.as_raw(), exponent) })
    }

    /// Starts to resolve the address `dst`, from the local address `src` if there is one. The event
    /// [`CmEvent::AddrResolved`](super::CmEvent::AddrResolved),
    /// [`CmEvent::AddrUnanswered`](super::CmEvent::AddrUnanswered) or
    /// [`CmEvent::Failed`](super::CmEvent::Failed) follows.
    ///
    /// # Errors
    ///
    /// Errors of `rdma_resolve_addr`, such as `ENETUNREACH` or `EADDRNOTAVAIL`; `ENODEV` for a GID
    /// if no InfiniBand port of this machine has it or is in its subnet.
    pub fn resolve_addr(
        &mut self,
        src: Option<&SockAddr>,
        dst: &SockAddr,
        timeout_ms: u32,
    ) -> Result {
        let src = src.map_or(ptr::null_mut(), |src| src.as_raw().cast_mut());
        // SAFETY: The id is live by the type invariant of `CmId`. The addresses are valid during
        // the call, which does not change them. No other thread binds the id, as this one has it
        // exclusively.
        to_result(unsafe {
            bindings::rdma_resolve_addr(self.as_raw(), src, dst.as_raw(), timeout_ms as usize)
        })
    }

    /// Returns the addresses between [`CmEvent::AddrResolved`](super::CmEvent::AddrResolved) and
    /// [`ActiveId::connect`]; otherwise `None`. With iWARP, the answer of the peer writes them
    /// again.
    pub fn addrs(&self) -> Option<Addrs> {
        // SAFETY: The id is bound and not bound again. It has not begun to connect, which needs the
        // exclusive reference that this function's caller borrows from.
        (self.is_bound() && !self.has_peer()).then(|| unsafe { self.0.addrs() })
    }

    /// Starts to resolve the route. The event
    /// [`CmEvent::RouteResolved`](super::CmEvent::RouteResolved) or
    /// [`CmEvent::Failed`](super::CmEvent::Failed) follows.
    ///
    /// # Errors
    ///
    /// Errors of `rdma_resolve_route`.
    pub fn resolve_route(&self, timeout_ms: u32) -> Result {
        // SAFETY: The id is live by the type invariant of `CmId`.
        to_result(unsafe { bindings::rdma_resolve_route(self.as_raw(), timeout_ms as usize) })
    }

    /// Requests a connection. The event [`CmEvent::Established`](super::CmEvent::Established),
    /// [`CmEvent::Rejected`](super::CmEvent::Rejected) or
    /// [`CmEvent::Failed`](super::CmEvent::Failed) follows.
    ///
    /// # Context
    ///
    /// May sleep; not from the id's handler, whose lock it takes.
    ///
    /// # Errors
    ///
    /// Errors of `rdma_connect`; `EINVAL` for private data of more than 255 bytes; `ECONNRESET` if
    /// the queue pair of the id was closed.
    pub fn connect(&mut self, param: ConnParam<'_>) -> Result {
        let mut raw = param.raw()?;
        self.begin(|| {
            // SAFETY: The id is live by the type invariant of `CmId`. The parameters and their
            // private data are valid during the call, which is made with the handler lock.
            let ret = unsafe { bindings::rdma_connect_locked(self.as_raw(), &mut raw) };
            if ret == 0 {
                // SAFETY: The connection was just begun, under the handler lock.
                unsafe { self.set_connected() };
            }
            ret
        })
    }
}

impl Deref for ActiveId {
    type Target = CmId;

    fn deref(&self) -> &CmId {
        &self.0
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_cm_active)]
mod tests {
    use super::*;
    use crate::cm::{
        testing::{
            nobody,
            NO_DATA, //
        },
        CmEvent, //
    };

    fn id() -> Result<ActiveId> {
        ActiveId::new(Net::init(), PortSpace::Tcp, nobody()?)
    }

    /// A failing connect destroys the lower id, which disconnecting would use.
    #[test]
    fn an_id_without_a_peer_has_no_connection_to_end() -> Result {
        let mut id = id()?;
        assert!(id.connect(NO_DATA).is_err() && !id.has_peer());
        assert_eq!(id.disconnect(), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn an_id_has_addresses_once_it_is_bound() -> Result {
        let id = id()?;
        assert!(id.addrs().is_none() && matches!(id.device(), Err(ENODEV)));
        id.context.deliver(&CmEvent::AddrUnanswered);
        assert!(id.addrs().is_none());
        id.context.deliver(&CmEvent::AddrResolved);
        assert!(id.addrs().is_some());
        // SAFETY: Nothing uses the lower id, which the connection manager has not created.
        id.under_lock(|_| unsafe { id.set_connected() });
        assert!(id.addrs().is_none());
        Ok(())
    }

    #[test]
    fn a_closed_id_does_not_connect() -> Result {
        let mut id = id()?;
        id.close();
        assert_eq!(id.connect(NO_DATA), Err(ECONNRESET));
        Ok(())
    }
}
