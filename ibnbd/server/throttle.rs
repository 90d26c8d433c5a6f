// SPDX-License-Identifier: GPL-2.0

//! A host's limits of requests and bytes per second; [`ibnbd_proto::throttle`] has the rules, and
//! `session/limit_line.rs` the requests that wait.

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
        Instant,
        Monotonic, //
    }, //
};
use kx::sync::atomic::{
    AtomicFlag,
    Relaxed, //
};

/// The limits of a host, and its usage.
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
        // ORDERING: A request that misses the change is served with the former limits.
        self.is_limited.store(rates.is_limited(), Relaxed);
    }

    /// Returns whether there is a limit.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        // ORDERING: As in `change`.
        self.is_limited.load(Relaxed)
    }

    /// Counts a request of `bytes` bytes, if the limits allow it now.
    ///
    /// # Context
    ///
    /// Any but interrupts.
    ///
    /// # Errors
    ///
    /// The nanoseconds to wait.
    pub(crate) fn serve(&self, bytes: u32) -> Result<(), u64> {
        let now_ns = self.now_ns();
        let (rates, throttle) = &mut *self.inner.lock();
        let served = throttle.serve(rates, bytes, now_ns);
        served.map_err(|wait_ns| wait_ns.get())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(0)
    }
}
