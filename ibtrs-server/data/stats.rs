// SPDX-License-Identifier: GPL-2.0

//! Statistics of a path.

use ibtrs_core::stats::{
    Batches,
    Flow, //
};
use ibtrs_proto::stats::{
    counter::server_path,
    ServerRdma, //
};
use kernel::prelude::*;
use kx::percpu::Counters;

/// The counters of a path.
pub(crate) struct Stats {
    /// Requests in the service, from when they are passed to it until they end.
    pub(crate) flow: Flow,
    pub(crate) batches: Batches,
    /// The counters of [`server_path`].
    pub(crate) declared: Counters<{ server_path::ALL.len() }>,
}

impl Stats {
    /// Creates counters that are zero.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            flow: Flow::new()?,
            batches: Batches::new()?,
            declared: Counters::new()?,
        })
    }

    /// Returns the contents of the file `rdma`.
    pub(crate) fn rdma(&self) -> ServerRdma {
        ServerRdma {
            reads: self.flow.reads(),
            writes: self.flow.writes(),
            in_flight: self.flow.in_flight(),
        }
    }

    /// Resets all counters except the number of requests in service.
    pub(crate) fn reset(&self) {
        self.flow.reset();
        self.batches.reset();
        self.declared.reset();
    }
}
