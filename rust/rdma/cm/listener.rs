// SPDX-License-Identifier: GPL-2.0

//! Ids that listen.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! # use kx::net::{addr::SockAddr, Net};
//! use rdma::cm::{
//!     CmEvent, CmHandler, ConnParam, ConnRequest, IncomingId, Listener, NotAccepted,
//! };
//!
//! struct Requests;
//!
//! impl CmHandler for Requests {
//!     fn event(&self, _event: &CmEvent<'_>) {}
//!
//!     fn connect_request(
//!         &self,
//!         request: ConnRequest,
//!         _private_data: &[u8],
//!     ) -> Result<(), ConnRequest> {
//!         // Hand it to a task, which calls `into_id` and `accept`. To return it is to reject it.
//!         Err(request)
//!     }
//! }
//!
//! fn listen(address: &SockAddr) -> Result<Listener> {
//!     let handler = Arc::new(Requests, GFP_KERNEL)?;
//!     Listener::new(&Net::current(), address, 16, handler)
//! }
//!
//! /// In a task, with a queue pair for the id.
//! fn accept(id: IncomingId, events: Arc<dyn CmHandler>) -> Result {
//!     id.set_handler(events)?;
//!     let (peer, port) = (id.addrs(), id.peer_port());
//! #   let _ = (peer, port);
//!     let reads = id.reads_allowed();
//!     let param = ConnParam {
//!         private_data: b"welcome",
//!         retry_count: 7,
//!         rnr_retry_count: 7,
//!         reads_by_peer: 1,
//!         reads,
//!     };
//!     id.accept(param).map_err(|NotAccepted { error, unanswered }| {
//!         if let Some(id) = unanswered {
//!             let _ = id.reject(b"no");
//!         }
//!         error
//!     })
//! }
//! ```

use super::{
    CmHandler,
    CmId,
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

/// An id that listens. Dropping it ends that, and waits for a running handler, so its handler must
/// not drop it.
pub struct Listener {
    _id: CmId,
}

impl Listener {
    /// Listens at the local address `addr` in the network namespace `net`. Connection requests go to
    /// [`CmHandler::connect_request`], and other events of the listener to [`CmHandler::event`].
    /// `backlog` is the maximum number of requests that the device's driver keeps waiting; only
    /// iWARP uses it. The IPv6 wildcard address does not cover IPv4.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EADDRINUSE` when the port is in use; other errors of `rdma_bind_addr` and
    /// `rdma_listen`.
    pub fn new(
        net: &Net,
        addr: &SockAddr,
        backlog: i32,
        handler: Arc<dyn CmHandler>,
    ) -> Result<Self> {
        let id = CmId::new(net, PortSpace::of(addr), handler)?;
        // SAFETY: The id is live by the type invariant of `CmId`. The address is valid during the
        // call, which does not change it. Nobody else has the id, so no other thread binds it.
        unsafe {
            to_result(bindings::rdma_set_afonly(id.as_raw(), 1))?;
            to_result(bindings::rdma_bind_addr(
                id.as_raw(),
                addr.as_raw().cast_mut(),
            ))?;
            to_result(bindings::rdma_listen(id.as_raw(), backlog))?;
        }
        Ok(Self { _id: id })
    }
}
