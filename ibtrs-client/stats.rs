// SPDX-License-Identifier: GPL-2.0

//! What a path counts.
//!
//! Counters are per CPU: counting is one instruction on memory of the CPU's own.

use crate::session::Dir;
use kernel::{
    cpu::CpuId,
    prelude::*,
    sync::atomic::{
        Atomic,
        AtomicFlag,
        Relaxed, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::percpu::Counters;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Count {
    /// Requests that read.
    Reads,
    /// Bytes of them.
    ReadBytes,
    /// Requests that write.
    Writes,
    /// Bytes of them.
    WriteBytes,
    /// Requests that left the path for another one, or to wait for one.
    Failovers,
    /// Answers that were handled on this CPU and not on the connection's.
    MigratedTo,
    /// Reconnects that succeeded.
    Reconnected,
    /// Attempts to connect that failed.
    ConnectFailed,
}

const COUNTS: usize = Count::ConnectFailed as usize + 1;
/// Classes of requests by elements of their scatter lists.
const SG_CLASSES: usize = 9;
/// Classes of latencies: powers of two of a microsecond, up to 2^31.
const LATENCY_CLASSES: usize = 32;

/// The counters of a path.
pub struct Stats {
    counts: Counters<COUNTS>,
    sg: Counters<SG_CLASSES>,
    latency: [Counters<LATENCY_CLASSES>; 2],
    latency_max_us: [Atomic<u64>; 2],
    /// For each CPU, answers to its connection that were handled elsewhere.
    migrated_from: KVec<Atomic<u64>>,
    measure: AtomicFlag,
}

/// When a request was submitted, if that is of interest.
pub(crate) struct Timer(Option<Instant<Monotonic>>);

impl Stats {
    pub(crate) fn new() -> Result<Self> {
        let cpus = kernel::cpu::nr_cpu_ids() as usize;
        let mut migrated_from = KVec::with_capacity(cpus, GFP_KERNEL)?;
        for _ in 0..cpus {
            migrated_from.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self {
            counts: Counters::new()?,
            sg: Counters::new()?,
            latency: [Counters::new()?, Counters::new()?],
            latency_max_us: [Atomic::new(0), Atomic::new(0)],
            migrated_from,
            measure: AtomicFlag::new(true),
        })
    }

    /// Reads the clock if latencies are measured: some 25 ns where the clock is
    /// the time stamp counter, and as much again when the request ends.
    #[inline]
    pub(crate) fn timer(&self) -> Timer {
        Timer(self.measure.load(Relaxed).then(Instant::now))
    }

    /// A request was handed to the device.
    #[inline]
    pub(crate) fn submitted(&self, dir: Dir, bytes: u32, nents: u32) {
        let (requests, data) = match dir {
            Dir::Read => (Count::Reads, Count::ReadBytes),
            Dir::Write => (Count::Writes, Count::WriteBytes),
        };
        self.counts.inc(requests as usize);
        self.counts.add(data as usize, bytes.into());
        if nents > 0 {
            self.sg.inc(sg_class(nents));
        }
    }

    /// A request has ended whose connection is `cid`.
    #[inline]
    pub(crate) fn ended(&self, dir: Dir, timer: &Timer, cid: u16) {
        let here = CpuId::current().as_u32();
        // Connection 1 belongs to CPU 0; the service connection to nobody.
        if let Some(home) = u32::from(cid).checked_sub(1) {
            if home != here {
                self.counts.inc(Count::MigratedTo as usize);
                if let Some(from) = self.migrated_from.get(home as usize) {
                    from.fetch_add(1, Relaxed);
                }
            }
        }
        if let Some(start) = &timer.0 {
            let us = u64::try_from(start.elapsed().as_micros_ceil()).unwrap_or(0);
            self.took(dir, us);
        }
    }

    fn took(&self, dir: Dir, us: u64) {
        let side = side(dir);
        if let Some(latency) = self.latency.get(side) {
            latency.inc(latency_class(us));
        }
        if let Some(max) = self.latency_max_us.get(side) {
            // Lost when two are the greatest at once; it is a number to look at.
            if us > max.load(Relaxed) {
                max.store(us, Relaxed);
            }
        }
    }

    /// A request has left the path for another one, or to wait for one.
    pub(crate) fn failed_over(&self) {
        self.counts.inc(Count::Failovers as usize);
    }

    pub(crate) fn connected(&self, again: bool) {
        if again {
            self.counts.inc(Count::Reconnected as usize);
        }
    }

    pub(crate) fn connect_failed(&self) {
        self.counts.inc(Count::ConnectFailed as usize);
    }

    /// Lets latencies be measured, or not.
    pub fn set_measure(&self, on: bool) {
        self.measure.store(on, Relaxed);
    }

    /// Returns a counter's sum.
    pub fn sum(&self, count: Count) -> u64 {
        self.counts.sum(count as usize)
    }

    /// Returns a counter of one CPU, since the path was made.
    pub fn on_cpu(&self, count: Count, cpu: u32) -> u64 {
        self.counts.on_cpu(count as usize, cpu)
    }

    /// Returns how many answers to connections of a CPU were handled on others.
    pub fn migrated_from(&self, cpu: u32) -> u64 {
        self.migrated_from
            .get(cpu as usize)
            .map_or(0, |from| from.load(Relaxed))
    }

    /// Returns how many requests had a scatter list of the class: 1, 2, up to 4,
    /// 8, 16, 32, 64, 128, and more elements.
    pub fn sg(&self, class: usize) -> u64 {
        self.sg.sum(class)
    }

    /// Returns how many requests took less than 2^`class` microseconds, and not
    /// less than half of that.
    pub fn latency(&self, dir: Dir, class: usize) -> u64 {
        self.latency.get(side(dir)).map_or(0, |l| l.sum(class))
    }

    /// Returns the longest time that a request took, in microseconds.
    pub fn latency_max_us(&self, dir: Dir) -> u64 {
        self.latency_max_us
            .get(side(dir))
            .map_or(0, |max| max.load(Relaxed))
    }

    /// Lets everything begin at zero again, except for [`Stats::on_cpu`].
    pub fn reset(&self) {
        self.counts.reset();
        self.sg.reset();
        for latency in &self.latency {
            latency.reset();
        }
        for value in &self.latency_max_us {
            value.store(0, Relaxed);
        }
        for value in &self.migrated_from {
            value.store(0, Relaxed);
        }
    }
}

fn side(dir: Dir) -> usize {
    match dir {
        Dir::Read => 0,
        Dir::Write => 1,
    }
}

fn sg_class(nents: u32) -> usize {
    let class = u32::BITS - nents.saturating_sub(1).leading_zeros();
    (class as usize).min(SG_CLASSES - 1)
}

fn latency_class(us: u64) -> usize {
    let class = u64::BITS - us.leading_zeros();
    (class as usize).min(LATENCY_CLASSES - 1)
}
