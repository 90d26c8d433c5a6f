// SPDX-License-Identifier: GPL-2.0

//! Connection manager ids, which resolve addresses and routes, connect, and listen.
//!
//! Each role of an id has its own type, with the functions that the connection manager allows in
//! that role:
//!
//! | type | role |
//! | --- | --- |
//! | [`ActiveId`] | resolves an address and a route, and connects |
//! | [`Listener`] | listens at an address; requests go to [`CmHandler::connect_request`] |
//! | [`ConnRequest`] | a connection request that can still be returned to the connection manager |
//! | [`IncomingId`] | a connection request that is accepted or rejected once |
//! | [`CmId`] | the common part of an active and an incoming id, held by a queue pair |
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! use kx::net::{addr::SockAddr, Net};
//! use rdma::cm::{ActiveId, CmEvent, CmHandler, ConnParam, PortSpace};
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
//! let mut id = ActiveId::new(&Net::current(), PortSpace::of(&server), handler)?;
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

use crate::CZeroed;
use ibtrs_bindings as bindings;
use kernel::prelude::*;
use kx::net::addr::{
    Host,
    SockAddr, //
};

mod active;
mod event;
mod id;
mod listener;
#[cfg(IBTRS_KUNIT)]
mod testing;
pub use active::ActiveId;
pub use event::{
    CmEvent,
    REJECTED_AS_STALE, //
};
pub use id::{
    Addrs,
    CmHandler,
    CmId,
    ConnRequest,
    IncomingId,
    NotAccepted,
    PeerPort, //
};
pub use listener::Listener;

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
