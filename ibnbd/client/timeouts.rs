// SPDX-License-Identifier: GPL-2.0

//! Request timeouts of a disk.
//!
//! After `io_timeout_limit` timeouts a request is cancelled: its users get an error as soon as the
//! transport allows that. The server may still execute the request. So the disk counts as stuck
//! until the server has answered the last cancelled request, and all other requests fail: no
//! cancelled write can take effect after a later one.
//!
//! With a limit or without, the driver counts the requests that have timed out and not ended.
//!
//! A new disk has a limit even if the operator has set none, until the disk is opened for writing or
//! exclusively: its first readers are the partition scan and udev, see [`ibnbd_proto::timeouts`].
//!
//! Contexts: *any*, unless stated otherwise.

use ibnbd_proto::timeouts;
use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::sync::atomic::{
    Atomic,
    AtomicFlag,
    Full,
    Relaxed, //
};

/// The request is not with the driver, or has ended.
const ENDED: u32 = u32::MAX;
/// The request was cancelled, and has not ended.
const CANCELLED: u32 = u32::MAX - 1;

/// The timeouts of a request so far, or one of the values above. It belongs to the request, not to
/// the tag: with an I/O scheduler, a request may lose its tag to another one while its timeout is
/// being handled.
pub(crate) struct Times(Atomic<u32>);

impl Default for Times {
    fn default() -> Self {
        Self(Atomic::new(ENDED))
    }
}

impl Times {
    /// Returns whether the request is cancelled and has not ended.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Relaxed) == CANCELLED
    }
}

/// Returns whether a request with these timeouts counts as one that has timed out and not ended.
fn is_late(times: u32) -> bool {
    !matches!(times, 0 | ENDED)
}

/// The timeouts of a disk's requests.
pub(crate) struct Timeouts {
    /// The timeout limit; 0 for none.
    limit: Atomic<u32>,
    /// Number of cancelled requests that have not ended, and one more while requests are stopped.
    stuck: Atomic<u32>,
    stopped: AtomicFlag,
    /// Number of requests that have timed out and not ended.
    late: Atomic<u32>,
    /// When the disk was created.
    since: Instant<Monotonic>,
    /// The disk was opened for writing or exclusively.
    used: AtomicFlag,
}

impl Timeouts {
    /// The largest limit.
    pub(crate) const MAX: u32 = 1000;

    /// Creates the state of a disk without a limit.
    pub(crate) fn new() -> Self {
        Self {
            limit: Atomic::new(0),
            stuck: Atomic::new(0),
            stopped: AtomicFlag::new(false),
            late: Atomic::new(0),
            since: Instant::now(),
            used: AtomicFlag::new(false),
        }
    }

    /// Returns the timeout limit; 0 if there is none.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// Sets the timeout limit; 0 for none.
    ///
    /// # Errors
    ///
    /// `EINVAL` above [`Timeouts::MAX`].
    pub(crate) fn set_limit(&self, limit: u32) -> Result {
        if limit > Self::MAX {
            return Err(EINVAL);
        }
        self.limit.store(limit, Relaxed);
        Ok(())
    }

    /// Notes that the disk is opened for writing or exclusively.
    pub(crate) fn used(&self) {
        self.used.store(true, Relaxed);
    }

    /// Returns the limit for a request that times out after `after_ms` milliseconds. That of a new disk
    /// counts only while the session is connected: otherwise requests wait for a path.
    fn limit_of(&self, after_ms: u32, is_connected: bool) -> u32 {
        let age_ms = match self.used.load(Relaxed) || !is_connected {
            true => None,
            false => Some(self.since.elapsed().as_millis()),
        };
        timeouts::limit(self.limit(), age_ms, after_ms)
    }

    /// Fails all new requests from now on.
    pub(crate) fn stop(&self) {
        if !self.stopped.xchg(true, Full) {
            self.stuck.fetch_add(1, Relaxed);
        }
    }

    /// Undoes [`Self::stop`], if it was called.
    pub(crate) fn resume(&self) {
        if self.stopped.xchg(false, Full) {
            self.stuck.fetch_sub(1, Relaxed);
        }
    }

    /// Notes that a request is dispatched. It has already timed out `so_far` times.
    #[inline]
    pub(crate) fn begins(&self, request: &Times, so_far: u32) {
        if is_late(so_far) {
            self.late.fetch_add(1, Relaxed);
        }
        // ORDERING: Nobody else changes the value of a request that is not with the driver.
        request.0.store(so_far, Relaxed);
    }

    /// Notes that a request has timed out once more, after `after_ms` milliseconds; returns whether it is
    /// cancelled. `is_connected`: the session has a path.
    pub(crate) fn exceeded(&self, request: &Times, after_ms: u32, is_connected: bool) -> bool {
        let limit = self.limit_of(after_ms, is_connected);
        let times = request.0.load(Relaxed);
        let cancels = match times {
            ENDED => return false,
            CANCELLED => return true,
            times => limit > 0 && times + 1 >= limit,
        };
        // ORDERING: The request counts before `ends` can find out that it has to be subtracted.
        let first = !is_late(times);
        if first {
            self.late.fetch_add(1, Full);
        }
        if cancels {
            self.stuck.fetch_add(1, Full);
        }
        let next = match cancels {
            true => CANCELLED,
            false => (times + 1).min(CANCELLED - 1),
        };
        if request.0.cmpxchg(times, next, Full).is_ok() {
            return cancels;
        }
        // The request has ended.
        if first {
            self.late.fetch_sub(1, Relaxed);
        }
        if cancels {
            self.stuck.fetch_sub(1, Relaxed);
        }
        false
    }

    /// Returns the number of requests that have timed out and not ended.
    pub(crate) fn timed_out(&self) -> u32 {
        self.late.load(Relaxed)
    }

    /// Notes that a request ends, or that it returns to the block layer, which may dispatch it again.
    /// Returns the number of its timeouts; [`None`] if it was cancelled.
    #[inline]
    pub(crate) fn ends(&self, request: &Times) -> Option<u32> {
        // ORDERING: Pairs with the exchange in `exceeded`.
        let times = request.0.xchg(ENDED, Full);
        if is_late(times) {
            self.late.fetch_sub(1, Relaxed);
        }
        match times {
            CANCELLED => {
                self.stuck.fetch_sub(1, Relaxed);
                None
            }
            ENDED => Some(0),
            times => Some(times),
        }
    }

    /// Returns whether there is a cancelled request that has not ended, or all requests are stopped.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Relaxed) > 0
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibnbd_client_timeouts)]
mod tests {
    use super::*;

    /// The default of `io_timeout`.
    const AFTER_MS: u32 = 30_000;

    /// The state of a disk that is in use.
    fn in_use() -> Timeouts {
        let timeouts = Timeouts::new();
        timeouts.used();
        timeouts
    }

    #[test]
    fn a_request_is_cancelled_at_the_limit() {
        let timeouts = in_use();
        let request = Times::default();
        assert_eq!(timeouts.set_limit(Timeouts::MAX + 1), Err(EINVAL));
        assert_eq!(timeouts.set_limit(2), Ok(()));
        timeouts.begins(&request, 0);
        assert!(!timeouts.exceeded(&request, AFTER_MS, true) && !request.is_cancelled());
        assert!(timeouts.timed_out() == 1 && !timeouts.is_stuck());
        assert!(timeouts.exceeded(&request, AFTER_MS, true) && request.is_cancelled());
        assert!(timeouts.timed_out() == 1 && timeouts.is_stuck());
        assert_eq!(timeouts.ends(&request), None);
        assert!(timeouts.timed_out() == 0 && !timeouts.is_stuck() && !request.is_cancelled());
    }

    #[test]
    fn a_request_keeps_its_count_when_it_is_dispatched_again() {
        let timeouts = in_use();
        let request = Times::default();
        timeouts.begins(&request, 0);
        assert!(
            !timeouts.exceeded(&request, AFTER_MS, true)
                && !timeouts.exceeded(&request, AFTER_MS, true)
        );
        assert_eq!(timeouts.ends(&request), Some(2));
        assert_eq!(timeouts.timed_out(), 0);
        timeouts.begins(&request, 2);
        assert_eq!(timeouts.timed_out(), 1);
        assert_eq!(timeouts.set_limit(3), Ok(()));
        assert!(timeouts.exceeded(&request, AFTER_MS, true));
        assert_eq!(timeouts.ends(&request), None);
    }

    /// The timer may handle a request that the driver has just returned, whose tag is another one's.
    #[test]
    fn a_timeout_counts_for_its_own_request_only() {
        let timeouts = in_use();
        let (returned, other) = (Times::default(), Times::default());
        assert_eq!(timeouts.set_limit(1), Ok(()));
        timeouts.begins(&returned, 0);
        assert_eq!(timeouts.ends(&returned), Some(0));
        timeouts.begins(&other, 0);
        assert!(!timeouts.exceeded(&returned, AFTER_MS, true));
        assert!(!other.is_cancelled() && !timeouts.is_stuck() && timeouts.timed_out() == 0);
        assert_eq!(timeouts.ends(&other), Some(0));
    }

    #[test]
    fn a_new_disk_has_a_limit() {
        let timeouts = Timeouts::new();
        let request = Times::default();
        timeouts.begins(&request, 0);
        // Without a path it waits as those of other disks.
        assert!(!timeouts.exceeded(&request, AFTER_MS, false));
        assert!(timeouts.exceeded(&request, AFTER_MS, true));
        assert_eq!(timeouts.ends(&request), None);
    }
}
