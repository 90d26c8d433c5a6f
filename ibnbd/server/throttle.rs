// SPDX-License-Identifier: GPL-2.0

//! A host's limits of requests and bytes per second; [`ibnbd_proto::throttle`] has the rules.
//!
//! A request above the limit waits in the completion handler of its connection, and later requests
//! on that connection wait behind it. Requests of other hosts, and the heartbeats of the path, use
//! other connections. (A client that sent I/O over its service connection would delay its own
//! heartbeats; ours does not.) The work queue of the RDMA core handles up to 1024 connections at a
//! time on each
//! CPU, so a host with that many waiting connections delays the others: `max_connections` prevents
//! that.

use ibnbd_proto::throttle::{
    Rates,
    Throttle, //
};
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use kx::sync::atomic::{
    AtomicFlag,
    Relaxed, //
};

/// Longest sleep between two checks whether a request is still wanted.
const MAX_SLEEP_NS: u64 = 100_000_000;

/// The limits of a host, and what it has used of them.
#[pin_data]
pub(crate) struct HostThrottle {
    /// There is a limit. Outside of the lock, so that requests of a host without limits take no
    /// lock.
    is_limited: AtomicFlag,
    /// Start of the times of `inner`.
    since: Instant<Monotonic>,
    #[pin]
    inner: SpinLock<(Rates, Throttle)>,
}

impl HostThrottle {
    /// Creates a throttle without limits.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                is_limited: AtomicFlag::new(false),
                since: Instant::now(),
                inner <- new_spinlock!((Rates::default(), Throttle::default()), "HostThrottle::inner"),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn rates(&self) -> Rates {
        self.inner.lock().0
    }

    /// Changes the limits; they also apply to requests that wait.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Rates)) {
        let (rates, throttle) = &mut *self.inner.lock();
        change(rates);
        throttle.reset();
        // ORDERING: A request that misses the change is served by the former limits.
        self.is_limited.store(rates.is_limited(), Relaxed);
    }

    /// Waits until a request of `bytes` bytes may be served, and returns `true`; returns `false` if
    /// `is_over` says meanwhile that the request is not wanted any more.
    ///
    /// # Context
    ///
    /// May sleep.
    #[inline]
    pub(crate) fn wait(&self, bytes: u32, is_over: impl Fn() -> bool) -> bool {
        // ORDERING: As in `change`.
        !self.is_limited.load(Relaxed) || self.wait_for_limit(bytes, is_over)
    }

    #[cold]
    fn wait_for_limit(&self, bytes: u32, is_over: impl Fn() -> bool) -> bool {
        while let Err(wait_ns) = self.serve(bytes) {
            // CAST: At most `MAX_SLEEP_NS`.
            fsleep(Delta::from_nanos(wait_ns.min(MAX_SLEEP_NS) as i64));
            if is_over() {
                return false;
            }
        }
        true
    }

    /// Counts a request of `bytes` bytes that must not wait; those that follow wait longer.
    ///
    /// # Context
    ///
    /// Any but interrupts.
    #[inline]
    pub(crate) fn charge(&self, bytes: u32) {
        // ORDERING: As in `change`.
        if self.is_limited.load(Relaxed) {
            let now_ns = self.now_ns();
            let (rates, throttle) = &mut *self.inner.lock();
            throttle.charge(rates, bytes, now_ns);
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(0)
    }

    fn serve(&self, bytes: u32) -> Result<(), u64> {
        let now_ns = self.now_ns();
        let (rates, throttle) = &mut *self.inner.lock();
        let served = throttle.serve(rates, bytes, now_ns);
        served.map_err(|wait_ns| wait_ns.get())
    }
}
