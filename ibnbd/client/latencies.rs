// SPDX-License-Identifier: GPL-2.0

//! Latencies of a disk's requests as the block layer sees them, including the time that a request
//! waits for a path, for the server and for the fair share.

use crate::request::IbnbdMq;
use ibnbd_proto::latency::{
    self,
    Histogram,
    Kind,
    KINDS,
    ROWS, //
};
use kernel::prelude::*;
use kx::{
    blk::Request,
    percpu::{
        Counters,
        Maxima, //
    }, //
};

/// Counters of a disk's requests; per CPU, because the end of each request updates them.
pub(crate) struct Latencies {
    counts: Counters<{ ROWS * KINDS }>,
    longest: Maxima<KINDS>,
}

impl Latencies {
    /// Creates counters that are zero.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            counts: Counters::new()?,
            longest: Maxima::new()?,
        })
    }

    /// Counts a request that is about to end, unless the disk's `queue/iostats` is 0.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(crate) fn count(&self, rq: &Request<IbnbdMq>, kind: Kind) {
        if let Some(ns) = rq.elapsed_ns() {
            self.counts
                .inc(latency::row(ns.get()) * KINDS + kind.column());
            self.longest.raise(kind.column(), ns.get());
        }
    }

    /// Returns the sums over all CPUs, on the heap because they are large.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn histogram(&self) -> Result<KBox<Histogram>> {
        let mut histogram = KBox::new(Histogram::NONE, GFP_KERNEL)?;
        for (at, count) in histogram.counts.as_flattened_mut().iter_mut().enumerate() {
            *count = self.counts.sum(at);
        }
        for (column, longest) in histogram.longest_ns.iter_mut().enumerate() {
            *longest = self.longest.max(column);
        }
        Ok(histogram)
    }

    /// Sets all counters to zero.
    pub(crate) fn reset(&self) {
        self.counts.reset();
        self.longest.reset();
    }
}
