// SPDX-License-Identifier: GPL-2.0

//! Statistics that paths of both sides keep. Counters are per CPU.

use ibtrs_proto::{
    msg::Direction as Dir,
    stats::{
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
/// Requests that are over.
const ENDED: usize = 4;

/// Counts requests and their bytes.
pub struct Flow(Counters<5>);

impl Flow {
    /// Creates counters that are zero.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new() -> Result<Self> {
        Ok(Self(Counters::new()?))
    }

    /// A request of `bytes` bytes, user header included, begins.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn begun(&self, dir: Dir, bytes: u64) {
        let (count, sum) = match dir {
            Dir::Read => (READS, READ_BYTES),
            Dir::Write => (WRITES, WRITE_BYTES),
        };
        self.0.inc(count);
        self.0.add(sum, bytes);
    }

    /// A request is over.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn ended(&self) {
        self.0.inc(ENDED);
    }

    /// Returns what was read.
    pub fn reads(&self) -> Transfers {
        self.transfers(READS, READ_BYTES)
    }

    /// Returns what was written.
    pub fn writes(&self) -> Transfers {
        self.transfers(WRITES, WRITE_BYTES)
    }

    fn transfers(&self, count: usize, bytes: usize) -> Transfers {
        Transfers {
            count: self.0.sum(count),
            bytes: self.0.sum(bytes),
        }
    }

    /// Returns the number of requests that have begun and are not over.
    pub fn in_flight(&self) -> u64 {
        // The ended requests are read first: a request that starts meanwhile makes the difference
        // larger, never negative.
        let ended = self.0.total(ENDED);
        let begun = self.0.total(READS) + self.0.total(WRITES);
        begun.saturating_sub(ended)
    }

    /// Lets all begin at zero again, but for the requests in flight.
    pub fn reset(&self) {
        self.0.reset();
    }
}

const TOTAL: usize = 0;
const CALLS: usize = 1;

/// Counts completions, and how many are handled at once.
pub struct Batches {
    counters: Counters<2>,
    largest: Maxima<1>,
}

impl Batches {
    /// Creates counters that are zero.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new() -> Result<Self> {
        Ok(Self {
            counters: Counters::new()?,
            largest: Maxima::new()?,
        })
    }

    /// A completion is handled, at `position` of those taken at once.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn completes(&self, position: u32) {
        self.counters.inc(TOTAL);
        if position == 0 {
            self.counters.inc(CALLS);
        }
        self.largest.raise(0, u64::from(position) + 1);
    }

    /// The file `wc_completion`.
    pub fn wc_completion(&self) -> WcCompletion {
        WcCompletion {
            max: self.largest.max(0),
            total: self.counters.sum(TOTAL),
            calls: self.counters.sum(CALLS),
        }
    }

    /// Lets all begin at zero again.
    pub fn reset(&self) {
        self.counters.reset();
        self.largest.reset();
    }
}
