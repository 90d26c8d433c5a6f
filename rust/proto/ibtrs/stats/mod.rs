// SPDX-License-Identifier: GPL-2.0

//! The contents of the files of statistics.
//!
//! Everything here is a plain value that the caller fills with sums of its counters; [`Display`]
//! writes the text of the file, with a newline at its end. The caller resets its counters;
//! [`crate::text::reset`] parses the text that a user writes to reset them.
//!
//! | File | Type |
//! |---|---|
//! | client: `rdma` | [`ClientRdma`] |
//! | client: `reconnects` | [`Reconnects`] |
//! | client: `wc_completion` | [`WcCompletion::client`] |
//! | client: `rdma_lat`, `rdma_lat_us` | [`latency`] |
//! | client, session: `last_failover` | [`failover`] |
//! | client, session: `failover_times_ms` | [`latency::Single`] |
//! | client: `sg_entries`, `cpu_migration`, `cpu_migration_from`, `cpu_migration_to` | [`table`] |
//! | client: all others | [`counter::client_path`] |
//! | server: `rdma` | [`ServerRdma`] |
//! | server: `wc_completion` | [`WcCompletion::server`] |
//! | server: all others | [`counter::server_path`] |
//! | portals, sessions and hosts of messages, in configfs: `refused_*` | [`counter::message_refusals`] |

use core::fmt::{Display, Formatter, Result};

pub mod counter;
pub mod failover;
pub mod latency;
pub mod table;

/// Requests of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Transfers {
    /// Number of requests.
    pub count: u64,
    /// Bytes that they carried, including headers of the layer above.
    pub bytes: u64,
}

/// `rdma` of a path of the client: `reads bytes writes bytes in-flight failovers`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientRdma {
    /// Reads that were handed to the path.
    pub reads: Transfers,
    /// Writes that were handed to the path.
    pub writes: Transfers,
    /// Requests that have not ended.
    pub in_flight: u64,
    /// Requests that left the path for another one, or to wait for one.
    pub failovers: u64,
}

impl Display for ClientRdma {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Transfers { count, bytes } = self.reads;
        write!(f, "{count} {bytes} ")?;
        let Transfers { count, bytes } = self.writes;
        write!(f, "{count} {bytes} ")?;
        writeln!(f, "{} {}", self.in_flight, self.failovers)
    }
}

/// `rdma` of a path of the server: `reads bytes writes bytes in-flight`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerRdma {
    /// Reads that have arrived on the path.
    pub reads: Transfers,
    /// Writes that have arrived on the path.
    pub writes: Transfers,
    /// Requests that are not answered yet.
    pub in_flight: u64,
}

impl Display for ServerRdma {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Transfers { count, bytes } = self.reads;
        write!(f, "{count} {bytes} ")?;
        let Transfers { count, bytes } = self.writes;
        writeln!(f, "{count} {bytes} {}", self.in_flight)
    }
}

/// `reconnects`: `successful failed`. The first connect does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reconnects {
    /// Attempts that succeeded.
    pub successful: u64,
    /// Attempts that failed.
    pub failed: u64,
}

impl Display for Reconnects {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "{} {}", self.successful, self.failed)
    }
}

/// Numbers of completions that the handler of completion queues found in its calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WcCompletion {
    /// Most in one call.
    pub max: u64,
    /// In all calls together.
    pub total: u64,
    /// Calls that found any.
    pub calls: u64,
}

impl WcCompletion {
    /// Completions per call, rounded to the nearest number.
    pub const fn average(&self) -> u64 {
        let half = self.calls >> 1;
        match self.total.saturating_add(half).checked_div(self.calls) {
            Some(average) => average,
            None => 0,
        }
    }

    /// The client's file: `max average`.
    pub const fn client(self) -> ClientWc {
        ClientWc(self)
    }

    /// The server's file: `max total calls`.
    pub const fn server(self) -> ServerWc {
        ServerWc(self)
    }
}

/// See [`WcCompletion::client`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientWc(WcCompletion);

impl Display for ClientWc {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "{} {}", self.0.max, self.0.average())
    }
}

/// See [`WcCompletion::server`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerWc(WcCompletion);

impl Display for ServerWc {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "{} {} {}", self.0.max, self.0.total, self.0.calls)
    }
}
