// SPDX-License-Identifier: GPL-2.0

//! Ids that listen.

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
    /// `ENOMEM`; `EADDRINUSE` when the port is in use; others of `rdma_bind_addr` and
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
