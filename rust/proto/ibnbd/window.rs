// SPDX-License-Identifier: GPL-2.0

//! Window of a disk: its limit of in-flight requests while other disks of the session are in use.
//!
//! The requests of all disks of a session share connections, links and the server's processors,
//! and queue there in order of arrival. A disk with hundreds of requests keeps these queues long,
//! and another disk with a single request at a time waits behind all of them. More requests than
//! needed to keep everything busy gain nothing, as they only wait.
//!
//! Latency shows how many are needed. With few requests in flight there is no queue: that latency
//! is the *base*, measured again from time to time with as few requests. At twice the base, half of
//! the time is spent in queues, and the window is large enough.

/// The window of one disk.
///
/// All times are of one monotonic clock, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Window {
    limit: u32,
    base_ns: u64,
    /// Requests that ended since the limit was last adjusted, and how many of them were late.
    ended: u32,
    late: u32,
    /// When the base is measured again.
    measure_at_ns: u64,
    measuring: bool,
}

impl Window {
    /// The least limit, which also applies while the base is measured.
    pub const MIN: u32 = 2;
    /// A request is late if it takes this many times the base latency.
    pub const LATE: u64 = 2;
    /// Time between two measurements of the base.
    pub const PERIOD_NS: u64 = 1_000_000_000;
    /// Number of requests whose least latency becomes the base.
    const SAMPLES: u32 = 4;

    /// A window that measures the base first.
    pub const fn new() -> Self {
        Self {
            limit: Self::MIN,
            base_ns: u64::MAX,
            ended: 0,
            late: 0,
            measure_at_ns: 0,
            measuring: false,
        }
    }

    /// How many requests may be in flight.
    pub const fn limit(&self) -> u32 {
        if self.measuring {
            Self::MIN
        } else {
            self.limit
        }
    }

    /// Notes that a request has ended, which took `took_ns`.
    pub fn ended(&mut self, took_ns: u64, now_ns: u64) {
        self.ended = self.ended.saturating_add(1);
        if self.measuring {
            self.measure(took_ns);
            return;
        }
        if now_ns >= self.measure_at_ns {
            self.measure_at_ns = now_ns.saturating_add(Self::PERIOD_NS);
            self.measuring = true;
            self.ended = 0;
            return;
        }
        self.base_ns = self.base_ns.min(took_ns);
        if took_ns > self.base_ns.saturating_mul(Self::LATE) {
            self.late = self.late.saturating_add(1);
        }
        if self.ended >= self.limit {
            self.adjust();
        }
    }

    /// Measures the base: the least latency of [`Self::SAMPLES`] requests. Requests that were in
    /// flight when the measurement began do not count.
    fn measure(&mut self, took_ns: u64) {
        let before = self.limit;
        if self.ended <= before {
            self.base_ns = u64::MAX;
            return;
        }
        self.base_ns = self.base_ns.min(took_ns);
        if self.ended >= before.saturating_add(Self::SAMPLES) {
            self.measuring = false;
            (self.ended, self.late) = (0, 0);
        }
    }

    /// Adjusts the limit after as many requests have ended as may be in flight.
    fn adjust(&mut self) {
        if self.late.saturating_mul(2) > self.ended {
            let less = (self.limit / 4).max(1);
            self.limit = self.limit.saturating_sub(less).max(Self::MIN);
        } else if self.late.saturating_mul(4) <= self.ended {
            let more = (self.limit / 8).max(1);
            self.limit = self.limit.saturating_add(more).min(u32::from(u16::MAX));
        }
        (self.ended, self.late) = (0, 0);
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}
