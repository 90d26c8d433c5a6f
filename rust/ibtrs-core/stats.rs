// SPDX-License-Identifier: GPL-2.0

//! Statistics of paths on both sides. Counters are per CPU.

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
/// Requests that have ended.
const ENDED: usize = 4;

/// Counts requests and their bytes.
pub struct Flow(Counters<5>);

impl Flow {
    /// Creates counters of zero.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new() -> Result<Self> {
        Ok(Self(Counters::new()?))
    }

    /// Counts a request that begins, of `bytes` bytes including the user header.
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

    /// Counts a request that has ended.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn ended(&self) {
        self.0.inc(ENDED);
    }

    /// Returns the count and the bytes of reads.
    pub fn reads(&self) -> Transfers {
        self.transfers(READS, READ_BYTES)
    }

    /// Returns the count and the bytes of writes.
    pub fn writes(&self) -> Transfers {
        self.transfers(WRITES, WRITE_BYTES)
    }

    fn transfers(&self, count: usize, bytes: usize) -> Transfers {
        Transfers {
            count: self.0.sum(count),
            bytes: self.0.sum(bytes),
        }
    }

    /// Returns the number of requests that have begun and not ended, regardless of resets.
    pub fn in_flight(&self) -> u64 {
        // Read `ENDED` first: a request that begins concurrently makes the difference larger, never
        // negative.
        let ended = self.0.total(ENDED);
        let begun = self.0.total(READS) + self.0.total(WRITES);
        begun.saturating_sub(ended)
    }

    /// Resets all counters to zero; requests in flight stay in flight.
    pub fn reset(&self) {
        self.0.reset();
    }
}

const TOTAL: usize = 0;
const CALLS: usize = 1;

/// Counts completions, and the size of the batches in which they are handled.
pub struct Batches {
    counters: Counters<2>,
    largest: Maxima<1>,
}

impl Batches {
    /// Creates counters of zero.
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

    /// Counts a completion, at `position` (from 0) of the batch polled at once.
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

    /// Returns the values of the sysfs file `wc_completion`.
    pub fn wc_completion(&self) -> WcCompletion {
        WcCompletion {
            max: self.largest.max(0),
            total: self.counters.sum(TOTAL),
            calls: self.counters.sum(CALLS),
        }
    }

    /// Resets all counters to zero.
    pub fn reset(&self) {
        self.counters.reset();
        self.largest.reset();
    }
}
