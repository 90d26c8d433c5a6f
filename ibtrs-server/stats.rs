// SPDX-License-Identifier: GPL-2.0

//! What a path counts.

use ibtrs_proto::msg::Direction as Dir;
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};
use kx::percpu::Counters;

const READS: usize = 0;
const READ_BYTES: usize = 1;
const WRITES: usize = 2;
const WRITE_BYTES: usize = 3;

const COMPLETIONS: usize = 0;
const POLLS: usize = 1;

/// The counters of a path. Counting is done by each CPU for itself.
pub struct Stats {
    rdma: Counters<4>,
    /// Requests in service; not reset.
    in_flight: Counters<1>,
    polls: Counters<2>,
    /// The most completions that were handled at once.
    max_batch: Atomic<u32>,
}

/// Requests of a path.
#[derive(Clone, Copy)]
pub struct Rdma {
    /// Requests for data.
    pub reads: u64,
    /// Bytes of data and user headers of reads.
    pub read_bytes: u64,
    /// Requests with data, or without any.
    pub writes: u64,
    /// Bytes of data and user headers of writes.
    pub write_bytes: u64,
    /// Requests that are with the service at this moment.
    pub in_flight: u64,
}

/// Completions of a path.
#[derive(Clone, Copy)]
pub struct WcCompletion {
    /// The most that were taken off a completion queue at once.
    pub max: u32,
    /// All of them.
    pub total: u64,
    /// How often some were taken off.
    pub polls: u64,
}

impl Stats {
    /// Makes counters that are zero.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            rdma: Counters::new()?,
            in_flight: Counters::new()?,
            polls: Counters::new()?,
            max_batch: Atomic::new(0),
        })
    }

    /// A request of `bytes` bytes, user header included, goes to the service.
    pub(crate) fn served(&self, dir: Dir, bytes: u64) {
        let (count, sum) = match dir {
            Dir::Read => (READS, READ_BYTES),
            Dir::Write => (WRITES, WRITE_BYTES),
        };
        self.rdma.inc(count);
        self.rdma.add(sum, bytes);
        self.in_flight.inc(0);
    }

    /// The service is done with a request.
    pub(crate) fn ended(&self) {
        // One less: the sum wraps as well.
        self.in_flight.add(0, u64::MAX);
    }

    /// A completion is handled, at `position` of those taken at once.
    pub(crate) fn completes(&self, position: u32) {
        self.polls.inc(COMPLETIONS);
        if position == 0 {
            self.polls.inc(POLLS);
        }
        let batch = position.saturating_add(1);
        // Two CPUs that raise it at the same time may leave the smaller number.
        if batch > self.max_batch.load(Relaxed) {
            self.max_batch.store(batch, Relaxed);
        }
    }

    /// Gives the requests.
    pub fn rdma(&self) -> Rdma {
        Rdma {
            reads: self.rdma.sum(READS),
            read_bytes: self.rdma.sum(READ_BYTES),
            writes: self.rdma.sum(WRITES),
            write_bytes: self.rdma.sum(WRITE_BYTES),
            in_flight: self.in_flight.sum(0),
        }
    }

    /// Gives the completions.
    pub fn wc_completion(&self) -> WcCompletion {
        WcCompletion {
            max: self.max_batch.load(Relaxed),
            total: self.polls.sum(COMPLETIONS),
            polls: self.polls.sum(POLLS),
        }
    }

    /// Lets the counters of [`Stats::rdma`] begin at zero again, but for those in flight.
    pub fn reset_rdma(&self) {
        self.rdma.reset();
    }

    /// Lets the counters of [`Stats::wc_completion`] begin at zero again.
    pub fn reset_wc_completion(&self) {
        self.polls.reset();
        self.max_batch.store(0, Relaxed);
    }
}
