// SPDX-License-Identifier: GPL-2.0

//! Limits the requests and bytes of a host per second.
//!
//! Each limit is a generic cell rate algorithm: a request costs the time that the limit allows for
//! a request of its size, and these times add up to a moment at which everything served so far is
//! paid for. A request is served if that moment is not more than [`BURST_NS`] ahead. So a host that
//! was idle may exceed its limit by that time and one request; in the long run it gets exactly its
//! limit.

use core::num::NonZeroU64;

/// How far a host may be ahead of a limit, in nanoseconds.
pub const BURST_NS: u64 = 50_000_000;

/// Lowest limit of requests in a second: a request then waits for 10 ms at most after the one
/// before.
pub const MIN_IOPS: u32 = 100;
/// Highest limit of requests in a second.
pub const MAX_IOPS: u32 = 100_000_000;
/// Highest limit of MiB in a second.
pub const MAX_MIB_S: u32 = 1_048_576;

const NS_PER_S: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

/// The limits; 0 is none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Rates {
    /// Requests in a second.
    pub iops: u32,
    /// MiB of data that reads and writes transfer in a second.
    pub mib_s: u32,
}

impl Rates {
    /// Whether there is a limit.
    pub const fn is_limited(&self) -> bool {
        self.iops > 0 || self.mib_s > 0
    }

    /// Returns the time that a request takes at each limit.
    fn costs(&self, bytes: u32) -> [u64; 2] {
        let ios = NS_PER_S.checked_div(self.iops.into());
        let data = u64::from(bytes) * NS_PER_S;
        let data = data.checked_div(u64::from(self.mib_s) * MIB);
        [ios.unwrap_or(0), data.unwrap_or(0)]
    }
}

/// The service that a host has received so far.
///
/// All times are nanoseconds of one clock that does not go backwards.
#[derive(Clone, Copy, Default, Debug)]
pub struct Throttle {
    /// When everything served so far is paid for, at each limit.
    paid_ns: [u64; 2],
}

impl Throttle {
    /// Serves a request of `bytes` bytes at the time `now_ns`, if the limits allow it.
    ///
    /// # Errors
    ///
    /// The time to wait before the next call, in nanoseconds.
    pub fn serve(&mut self, rates: &Rates, bytes: u32, now_ns: u64) -> Result<(), NonZeroU64> {
        let costs = rates.costs(bytes);
        let limit = now_ns.saturating_add(BURST_NS);
        let limited = self.paid_ns.iter().zip(costs).filter(|(_, cost)| *cost > 0);
        let wait = limited.map(|(paid, _)| paid.saturating_sub(limit)).max();
        if let Some(wait) = wait.and_then(NonZeroU64::new) {
            return Err(wait);
        }
        self.pay(costs, now_ns);
        Ok(())
    }

    /// Serves a request of `bytes` bytes at the time `now_ns`, whatever the limits say; requests
    /// that come later wait for its time, too.
    pub fn charge(&mut self, rates: &Rates, bytes: u32, now_ns: u64) {
        self.pay(rates.costs(bytes), now_ns);
    }

    fn pay(&mut self, costs: [u64; 2], now_ns: u64) {
        for (paid, cost) in self.paid_ns.iter_mut().zip(costs) {
            *paid = (*paid).max(now_ns).saturating_add(cost);
        }
    }

    /// Forgets what was served, because the limits have changed.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}
