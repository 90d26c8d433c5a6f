// SPDX-License-Identifier: GPL-2.0

//! Statistics of a path.
//!
//! Counters are per CPU: counting is one instruction on memory that belongs to the CPU.

use crate::types::Dir;
use ibtrs_core::stats::{
    Batches,
    Flow, //
};
use ibtrs_proto::stats::{
    counter::client_path,
    latency::{
        self,
        Latencies, //
    },
    table::{
        self,
        MigrationRow,
        PerCpu, //
    },
    ClientRdma,
    Reconnects, //
};
use kernel::{
    cpu::CpuId,
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    percpu::{
        is_possible,
        Counters,
        Maxima, //
    },
    sync::atomic::{
        Acquire,
        Atomic,
        AtomicFlag,
        Relaxed,
        Release, //
    }, //
};

// The counters, in the order of the ranges that are reset together.

/// Requests that were moved to another path.
const FAILOVERS: usize = 0;
const RECONNECTED: usize = 1;
const CONNECT_FAILED: usize = 2;
/// Answers handled on this CPU although their connection belongs to other CPUs.
const MIGRATED_TO: usize = 3;
const SG: usize = 4;
const READ_LATENCY: usize = SG + table::SG_ROWS;
const WRITE_LATENCY: usize = READ_LATENCY + latency::BUCKETS;
const COUNTERS: usize = WRITE_LATENCY + latency::BUCKETS;

const READ_NS: usize = 0;
const WRITE_NS: usize = 1;
const MAXIMA: usize = 2;

/// Answers on a connection that were handled on CPUs of other connections. The handler of that
/// connection's answers counts them, one at a time. A cancelled request may end in another context,
/// so a count may be lost.
struct Strays {
    counted: Atomic<u64>,
    reset_at: Atomic<u64>,
}

impl Strays {
    const fn new() -> Self {
        Self {
            counted: Atomic::new(0),
            reset_at: Atomic::new(0),
        }
    }

    fn get(&self) -> u64 {
        // ORDERING: Pairs with the release in `reset`, which has read `counted`: the value read
        // here is at least as new, so the difference is not negative.
        let reset_at = self.reset_at.load(Acquire);
        self.counted.load(Relaxed).wrapping_sub(reset_at)
    }

    fn reset(&self) {
        // ORDERING: Pairs with the acquire in `get`.
        self.reset_at.store(self.counted.load(Relaxed), Release);
    }
}

/// The counters of a path.
pub(crate) struct Stats {
    /// Requests, from submission until they end or are moved to another path.
    flow: Flow,
    pub(crate) batches: Batches,
    counters: Counters<COUNTERS>,
    /// The counters of [`client_path`].
    pub(crate) declared: Counters<{ client_path::ALL.len() }>,
    maxima: Maxima<MAXIMA>,
    /// One for each connection for I/O that is not polled, at the place of its first CPU.
    strays: KVVec<Strays>,
    nr_queues: u32,
    was_connected: AtomicFlag,
}

/// The time at which a request was submitted.
pub(crate) struct Timer(Instant<Monotonic>);

impl Timer {
    /// Returns that time.
    pub(crate) fn began(&self) -> Instant<Monotonic> {
        self.0
    }
}

impl Stats {
    /// Creates the statistics of a path with `nr_queues` connections for I/O that is not polled.
    pub(crate) fn new(nr_queues: u32) -> Result<Self> {
        let mut strays = KVVec::with_capacity(nr_queues as usize, GFP_KERNEL)?;
        for _ in 0..nr_queues {
            strays.push(Strays::new(), GFP_KERNEL)?;
        }
        Ok(Self {
            flow: Flow::new()?,
            batches: Batches::new()?,
            counters: Counters::new()?,
            declared: Counters::new()?,
            maxima: Maxima::new()?,
            strays,
            nr_queues,
            was_connected: AtomicFlag::new(false),
        })
    }

    /// Starts the timer of a request.
    #[inline]
    pub(crate) fn timer(&self) -> Timer {
        Timer(Instant::now())
    }

    /// Counts a request that was posted; `bytes` includes the user header, `nents` is the length of
    /// its scatter list.
    #[inline]
    pub(crate) fn submitted(&self, dir: Dir, bytes: u32, nents: u32) {
        self.flow.begun(dir, bytes.into());
        if let Some(row) = table::sg_row(nents) {
            self.counters.inc(SG + row);
        }
    }

    /// Counts the end of a request on connection `cid`; returns the time it took, in nanoseconds.
    #[inline(always)]
    pub(crate) fn ended(&self, dir: Dir, timer: &Timer, cid: u16) -> u64 {
        self.flow.ended();
        let here = CpuId::current().as_u32();
        if let Some(home) = table::migrated_from(cid, self.nr_queues, here) {
            self.strayed(home);
        }
        let ns = u64::try_from(timer.0.elapsed().as_nanos()).unwrap_or(0);
        let (buckets, max) = match dir {
            Dir::Read => (READ_LATENCY, READ_NS),
            Dir::Write => (WRITE_LATENCY, WRITE_NS),
        };
        self.counters.inc(buckets + latency::bucket(ns));
        self.maxima.raise(max, ns);
        ns
    }

    fn strayed(&self, home: u32) {
        self.counters.inc(MIGRATED_TO);
        if let Some(strays) = self.strays.get(home as usize) {
            let counted = strays.counted.load(Relaxed);
            strays.counted.store(counted.wrapping_add(1), Relaxed);
        }
    }

    /// Counts an unanswered request that was moved to another path.
    pub(crate) fn failed_over(&self) {
        self.flow.ended();
        self.counters.inc(FAILOVERS);
    }

    /// Counts a connect of the path, from the second one on.
    pub(crate) fn connected(&self) {
        if self.was_connected.xchg(true, Relaxed) {
            self.counters.inc(RECONNECTED);
        }
    }

    /// Counts a failed attempt to connect.
    pub(crate) fn connect_failed(&self) {
        self.counters.inc(CONNECT_FAILED);
    }

    /// Returns the number of requests that were submitted on the path and have not ended.
    pub(crate) fn in_flight(&self) -> u64 {
        self.flow.in_flight()
    }

    /// Returns the contents of the file `rdma`.
    pub(crate) fn rdma(&self) -> ClientRdma {
        ClientRdma {
            reads: self.flow.reads(),
            writes: self.flow.writes(),
            in_flight: self.in_flight(),
            failovers: self.counters.sum(FAILOVERS),
        }
    }

    pub(crate) fn reset_rdma(&self) {
        self.flow.reset();
        self.counters.reset_some(FAILOVERS..FAILOVERS + 1);
    }

    /// Returns the contents of the file `reconnects`.
    pub(crate) fn reconnects(&self) -> Reconnects {
        Reconnects {
            successful: self.counters.sum(RECONNECTED),
            failed: self.counters.sum(CONNECT_FAILED),
        }
    }

    pub(crate) fn reset_reconnects(&self) {
        self.counters.reset_some(RECONNECTED..CONNECT_FAILED + 1);
    }

    /// Returns the latencies of one direction; boxed, as they are too large for the stack.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn latencies(&self, dir: Dir) -> Result<KBox<Latencies>> {
        let (buckets, max) = match dir {
            Dir::Read => (READ_LATENCY, READ_NS),
            Dir::Write => (WRITE_LATENCY, WRITE_NS),
        };
        let mut latencies = KBox::new(Latencies::NONE, GFP_KERNEL)?;
        for (bucket, count) in latencies.counts.iter_mut().enumerate() {
            *count = self.counters.sum(buckets + bucket);
        }
        latencies.max_ns = self.maxima.max(max);
        Ok(latencies)
    }

    pub(crate) fn reset_latencies(&self) {
        self.counters.reset_some(READ_LATENCY..COUNTERS);
        self.maxima.reset_some(READ_NS..WRITE_NS + 1);
    }

    /// Returns the source of the file `sg_entries`.
    pub(crate) fn sg_entries(&self) -> SgEntries<'_> {
        SgEntries(self)
    }

    pub(crate) fn reset_sg_entries(&self) {
        self.counters.reset_some(SG..READ_LATENCY);
    }

    /// Returns the source of the file `cpu_migration` and of its parts.
    pub(crate) fn migrations(&self) -> Migrations<'_> {
        Migrations(self)
    }

    pub(crate) fn reset_migrations(&self) {
        self.counters.reset_some(MIGRATED_TO..MIGRATED_TO + 1);
        self.strays.iter().for_each(Strays::reset);
    }

    /// Resets all counters except the number of requests in flight.
    pub(crate) fn reset(&self) {
        self.flow.reset();
        self.batches.reset();
        self.counters.reset();
        self.declared.reset();
        self.maxima.reset();
        self.reset_migrations();
    }
}

/// See [`Stats::sg_entries`].
pub(crate) struct SgEntries<'a>(&'a Stats);

impl PerCpu for SgEntries<'_> {
    fn nr_cpus(&self) -> u32 {
        kernel::cpu::nr_cpu_ids()
    }

    fn is_possible(&self, cpu: u32) -> bool {
        is_possible(cpu)
    }

    fn count(&self, row: usize, cpu: u32) -> u64 {
        if row >= table::SG_ROWS {
            return 0;
        }
        self.0.counters.on_cpu(SG + row, cpu)
    }
}

/// See [`Stats::migrations`].
pub(crate) struct Migrations<'a>(&'a Stats);

impl PerCpu for Migrations<'_> {
    fn nr_cpus(&self) -> u32 {
        kernel::cpu::nr_cpu_ids()
    }

    fn is_possible(&self, cpu: u32) -> bool {
        is_possible(cpu)
    }

    fn count(&self, row: usize, cpu: u32) -> u64 {
        if row == MigrationRow::From.index() {
            self.0.strays.get(cpu as usize).map_or(0, Strays::get)
        } else {
            self.0.counters.on_cpu(MIGRATED_TO, cpu)
        }
    }
}
