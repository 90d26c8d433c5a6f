// SPDX-License-Identifier: GPL-2.0

//! Request timeouts of a disk.
//!
//! After `io_timeout_limit` timeouts a request is cancelled: its users get an error as soon as the
//! transport allows that. The server may still execute the request. The disk therefore counts as
//! stuck until the server has answered the last cancelled request, and all other requests fail, so
//! that no cancelled write takes effect after a later one.
//!
//! With or without a limit, the driver counts the requests that have timed out and not ended.
//!
//! A new disk has a limit even if the operator has set none, until the disk is opened for writing or
//! exclusively: its first readers are the partition scan and udev, see [`ibnbd_proto::timeouts`]. The
//! limit counts only while the session has a path. Until the scan has ended, it counts for all reads,
//! because the scan holds the disk's open mutex.
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

/// A timeout of a request.
#[derive(Clone, Copy)]
pub(crate) struct Timeout {
    /// The time after which the request has timed out, in milliseconds.
    pub(crate) after_ms: u32,
    /// The session has a path.
    pub(crate) is_connected: bool,
    pub(crate) is_read: bool,
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
    /// The partition scan of the new disk has ended.
    scanned: AtomicFlag,
    /// A request was cancelled before the end of the scan.
    cut: AtomicFlag,
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
            scanned: AtomicFlag::new(false),
            cut: AtomicFlag::new(false),
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

    /// Records that the disk is opened for writing or exclusively.
    pub(crate) fn used(&self) {
        self.used.store(true, Relaxed);
    }

    /// Returns the limit for a request that has timed out. The limit of a new disk counts only while the
    /// session is connected, because otherwise requests wait for a path, or if the partition scan may
    /// wait for the request.
    fn limit_of(&self, timeout: Timeout) -> u32 {
        let scans = timeout.is_read && self.is_scanning();
        let is_new = scans || timeout.is_connected && !self.used.load(Relaxed);
        let age_ms = is_new.then(|| self.since.elapsed().as_millis());
        timeouts::limit(self.limit(), age_ms, timeout.after_ms)
    }

    /// Returns whether the partition scan of the new disk has not ended.
    pub(crate) fn is_scanning(&self) -> bool {
        !self.scanned.load(Relaxed)
    }

    /// Returns whether the result of the partition scan may be incomplete, because a request was cancelled
    /// or all requests fail.
    pub(crate) fn is_scan_cut(&self) -> bool {
        self.cut.load(Relaxed) || self.is_stuck()
    }

    /// Fails all new requests.
    pub(crate) fn stop(&self) {
        if !self.stopped.xchg(true, Full) {
            self.stuck.fetch_add(1, Relaxed);
        }
    }

    /// Records that the partition scan has ended, and undoes [`Self::stop`], if it was called.
    pub(crate) fn scan_over(&self) {
        self.scanned.store(true, Relaxed);
        if self.stopped.xchg(false, Full) {
            self.stuck.fetch_sub(1, Relaxed);
        }
    }

    /// Records that a request is dispatched. It has already timed out `so_far` times.
    #[inline]
    pub(crate) fn start_timer(&self, request: &Times, so_far: u32) {
        if is_late(so_far) {
            self.late.fetch_add(1, Relaxed);
        }
        // ORDERING: There are no concurrent changes of a request that the driver does not own yet.
        request.0.store(so_far, Relaxed);
    }

    /// Records that a request has timed out once more; returns whether it is cancelled.
    pub(crate) fn exceeded(&self, request: &Times, timeout: Timeout) -> bool {
        let limit = self.limit_of(timeout);
        let times = request.0.load(Relaxed);
        let cancels = match times {
            ENDED => return false,
            CANCELLED => return true,
            times => limit > 0 && times + 1 >= limit,
        };
        // ORDERING: The request is counted before `ends` can see that it must be subtracted.
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
        if cancels && self.is_scanning() {
            // ORDERING: Before the exchange, after which the request may end and the scan may check
            // the flag.
            self.cut.store(true, Relaxed);
        }
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

    /// Records that a request ends, or that it returns to the block layer, which may dispatch it again.
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

    /// A timeout of a write, with the default of `io_timeout`, while there is a path.
    const WRITE: Timeout = Timeout {
        after_ms: 30_000,
        is_connected: true,
        is_read: false,
    };
    const READ: Timeout = Timeout {
        is_read: true,
        ..WRITE
    };

    /// The state of a disk that is in use.
    fn in_use() -> Timeouts {
        let timeouts = Timeouts::new();
        timeouts.scan_over();
        timeouts.used();
        timeouts
    }

    #[test]
    fn a_request_is_cancelled_at_the_limit() {
        let timeouts = in_use();
        let request = Times::default();
        assert_eq!(timeouts.set_limit(Timeouts::MAX + 1), Err(EINVAL));
        assert_eq!(timeouts.set_limit(2), Ok(()));
        timeouts.start_timer(&request, 0);
        assert!(!timeouts.exceeded(&request, WRITE) && !request.is_cancelled());
        assert!(timeouts.timed_out() == 1 && !timeouts.is_stuck());
        assert!(timeouts.exceeded(&request, WRITE) && request.is_cancelled());
        assert!(timeouts.timed_out() == 1 && timeouts.is_stuck());
        assert_eq!(timeouts.ends(&request), None);
        assert!(timeouts.timed_out() == 0 && !timeouts.is_stuck() && !request.is_cancelled());
    }

    #[test]
    fn a_request_keeps_its_count_when_it_is_dispatched_again() {
        let timeouts = in_use();
        let request = Times::default();
        timeouts.start_timer(&request, 0);
        assert!(!timeouts.exceeded(&request, WRITE) && !timeouts.exceeded(&request, WRITE));
        assert_eq!(timeouts.ends(&request), Some(2));
        assert_eq!(timeouts.timed_out(), 0);
        timeouts.start_timer(&request, 2);
        assert_eq!(timeouts.timed_out(), 1);
        assert_eq!(timeouts.set_limit(3), Ok(()));
        assert!(timeouts.exceeded(&request, WRITE));
        assert_eq!(timeouts.ends(&request), None);
    }

    /// The timer may handle a request that the driver has just returned, and whose tag already
    /// belongs to another one.
    #[test]
    fn a_timeout_counts_for_its_own_request_only() {
        let timeouts = in_use();
        let (returned, other) = (Times::default(), Times::default());
        assert_eq!(timeouts.set_limit(1), Ok(()));
        timeouts.start_timer(&returned, 0);
        assert_eq!(timeouts.ends(&returned), Some(0));
        timeouts.start_timer(&other, 0);
        assert!(!timeouts.exceeded(&returned, WRITE));
        assert!(!other.is_cancelled() && !timeouts.is_stuck() && timeouts.timed_out() == 0);
        assert_eq!(timeouts.ends(&other), Some(0));
    }

    /// Without a path, the requests of a new disk wait like the requests of other disks.
    #[test]
    fn a_new_disk_has_a_limit() {
        let timeouts = Timeouts::new();
        timeouts.scan_over();
        for timeout in [READ, WRITE] {
            let request = Times::default();
            let lost = Timeout {
                is_connected: false,
                ..timeout
            };
            timeouts.start_timer(&request, 0);
            assert!(!timeouts.exceeded(&request, lost));
            assert!(timeouts.exceeded(&request, timeout));
            assert_eq!(timeouts.ends(&request), None);
        }
    }

    /// Even without a path, and if a program has already opened the disk for writing.
    #[test]
    fn a_scan_has_a_limit() {
        let timeouts = Timeouts::new();
        timeouts.used();
        let (read, write) = (Times::default(), Times::default());
        let lost = |timeout| Timeout {
            is_connected: false,
            ..timeout
        };
        timeouts.start_timer(&read, 0);
        timeouts.start_timer(&write, 0);
        assert!(!timeouts.exceeded(&write, lost(WRITE)) && !timeouts.exceeded(&write, WRITE));
        assert!(!timeouts.is_scan_cut());
        assert!(timeouts.exceeded(&read, lost(READ)) && timeouts.is_stuck());
        assert_eq!(timeouts.ends(&read), None);
        // The read has ended, but its data is missing.
        assert!(!timeouts.is_stuck() && timeouts.is_scan_cut());
        timeouts.start_timer(&read, 0);
        timeouts.scan_over();
        assert!(!timeouts.exceeded(&read, lost(READ)) && !timeouts.exceeded(&read, READ));
        assert!(timeouts.ends(&read) == Some(2) && timeouts.ends(&write) == Some(2));
    }
}
