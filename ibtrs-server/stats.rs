// SPDX-License-Identifier: GPL-2.0

//! What a path counts. Counting is done by each CPU for itself.

use ibtrs_proto::{
    msg::Direction as Dir,
    stats::{
        ServerRdma,
        Transfers,
        WcCompletion, //
    }, //
};
use kernel::prelude::*;
use kx::percpu::{
    Counters,
    Maxima, //
};

const READS: usize = 0;
const READ_BYTES: usize = 1;
const WRITES: usize = 2;
const WRITE_BYTES: usize = 3;
const ENDED: usize = 4;
const WC_TOTAL: usize = 5;
const WC_CALLS: usize = 6;
const COUNTERS: usize = 7;

/// The counters of a path.
pub(crate) struct Stats {
    counters: Counters<COUNTERS>,
    /// The most completions that were handled at once.
    batch: Maxima<1>,
}

impl Stats {
    /// Makes counters that are zero.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            counters: Counters::new()?,
            batch: Maxima::new()?,
        })
    }

    /// A request of `bytes` bytes, user header included, goes to the service.
    #[inline]
    pub(crate) fn served(&self, dir: Dir, bytes: u64) {
        let (count, sum) = match dir {
            Dir::Read => (READS, READ_BYTES),
            Dir::Write => (WRITES, WRITE_BYTES),
        };
        self.counters.inc(count);
        self.counters.add(sum, bytes);
    }

    /// The service is done with a request.
    #[inline]
    pub(crate) fn ended(&self) {
        self.counters.inc(ENDED);
    }

    /// A completion is handled, at `position` of those taken at once.
    #[inline]
    pub(crate) fn completes(&self, position: u32) {
        self.counters.inc(WC_TOTAL);
        if position == 0 {
            self.counters.inc(WC_CALLS);
        }
        self.batch.raise(0, u64::from(position) + 1);
    }

    /// The file `rdma`.
    pub(crate) fn rdma(&self) -> ServerRdma {
        let transfers = |count, bytes| Transfers {
            count: self.counters.sum(count),
            bytes: self.counters.sum(bytes),
        };
        // What has ended is looked at first: what begins meanwhile makes the difference larger,
        // and not negative.
        let ended = self.counters.total(ENDED);
        let begun = self.counters.total(READS) + self.counters.total(WRITES);
        ServerRdma {
            reads: transfers(READS, READ_BYTES),
            writes: transfers(WRITES, WRITE_BYTES),
            in_flight: begun.saturating_sub(ended),
        }
    }

    /// The file `wc_completion`.
    pub(crate) fn wc_completion(&self) -> WcCompletion {
        WcCompletion {
            max: self.batch.max(0),
            total: self.counters.sum(WC_TOTAL),
            calls: self.counters.sum(WC_CALLS),
        }
    }

    /// Lets the counters of [`Stats::rdma`] begin at zero again, but for those in flight.
    pub(crate) fn reset_rdma(&self) {
        self.counters.reset_some(READS..ENDED);
    }

    /// Lets the counters of [`Stats::wc_completion`] begin at zero again.
    pub(crate) fn reset_wc_completion(&self) {
        self.counters.reset_some(WC_TOTAL..COUNTERS);
        self.batch.reset();
    }

    /// Lets all counters begin at zero again.
    pub(crate) fn reset(&self) {
        self.reset_rdma();
        self.reset_wc_completion();
    }
}
