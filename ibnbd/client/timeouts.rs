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
//! Contexts: *any*, unless stated otherwise.

use crate::by_tag::ByTag;
use kernel::prelude::*;
use kx::sync::atomic::{
    Atomic,
    AtomicFlag,
    Full,
    Relaxed, //
};

/// The request has ended.
const ENDED: u32 = u32::MAX;
/// The request was cancelled, and has not ended.
const CANCELLED: u32 = u32::MAX - 1;

/// The timeouts of a disk's requests.
pub(crate) struct Timeouts {
    /// The timeout limit; 0 for none.
    limit: Atomic<u32>,
    /// Set once a limit was set or a request has timed out. Until then requests are not tracked,
    /// so a disk without timeouts pays nothing.
    counting: AtomicFlag,
    /// Number of cancelled requests that have not ended.
    stuck: Atomic<u32>,
    /// By tag: the timeouts of the request so far, or one of the values above.
    places: ByTag<Atomic<u32>>,
}

impl Timeouts {
    /// The largest limit.
    pub(crate) const MAX: u32 = 1000;

    /// Creates the state of `tags` tags, without a limit.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(tags: usize) -> Result<Self> {
        Ok(Self {
            limit: Atomic::new(0),
            counting: AtomicFlag::new(false),
            stuck: Atomic::new(0),
            // Not `ENDED`: a request may be in flight when the first limit is set.
            places: ByTag::new(tags, || Atomic::new(0))?,
        })
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
        if limit > 0 {
            self.counting.store(true, Relaxed);
        }
        self.limit.store(limit, Relaxed);
        Ok(())
    }

    /// Notes that the request with `tag` is dispatched. It has already timed out `so_far` times.
    #[inline]
    pub(crate) fn begins(&self, tag: u32, so_far: u32) {
        if !self.counting.load(Relaxed) {
            return;
        }
        if let Some(place) = self.places.get(tag) {
            // An earlier request ended while the first limit was being set, see `ends`.
            if place.xchg(so_far, Full) == CANCELLED {
                self.stuck.fetch_sub(1, Relaxed);
            }
        }
    }

    /// Notes that the request with `tag` has timed out once more; returns whether it is cancelled.
    pub(crate) fn exceeded(&self, tag: u32) -> bool {
        let limit = self.limit();
        let Some(place) = self.places.get(tag) else {
            return false;
        };
        if !self.counting.load(Relaxed) {
            // Requests are tracked from now on. This request counts when it times out again: it
            // may be ending now without `ends` seeing the flag, and would then count until its tag
            // is used again.
            self.counting.store(true, Relaxed);
            return false;
        }
        let times = place.load(Relaxed);
        match times {
            ENDED => false,
            CANCELLED => true,
            times if limit == 0 || times + 1 < limit => {
                // If this fails, the request has ended.
                let _ = place.cmpxchg(times, (times + 1).min(Self::MAX), Relaxed);
                false
            }
            times => {
                // ORDERING: The request counts as stuck before `ends` can find it cancelled.
                self.stuck.fetch_add(1, Full);
                let cancelled = place.cmpxchg(times, CANCELLED, Full).is_ok();
                if !cancelled {
                    self.stuck.fetch_sub(1, Relaxed);
                }
                cancelled
            }
        }
    }

    /// Returns whether the request with `tag` is cancelled and has not ended.
    pub(crate) fn is_cancelled(&self, tag: u32) -> bool {
        let place = self.places.get(tag);
        place.is_some_and(|place| place.load(Relaxed) == CANCELLED)
    }

    /// Returns the number of requests that have timed out and not ended.
    pub(crate) fn timed_out(&self) -> usize {
        let has_timed_out = |place: &&Atomic<u32>| !matches!(place.load(Relaxed), 0 | ENDED);
        self.places.iter().filter(has_timed_out).count()
    }

    /// Notes that the request with `tag` ends, or that it returns to the block layer, which may
    /// dispatch it again with another tag. Returns the number of its timeouts; [`None`] if it was
    /// cancelled.
    #[inline]
    pub(crate) fn ends(&self, tag: u32) -> Option<u32> {
        if !self.counting.load(Relaxed) {
            return Some(0);
        }
        // ORDERING: Pairs with the exchange in `exceeded`.
        match self.places.get(tag).map(|place| place.xchg(ENDED, Full)) {
            Some(CANCELLED) => {
                self.stuck.fetch_sub(1, Relaxed);
                None
            }
            None | Some(ENDED) => Some(0),
            Some(times) => Some(times),
        }
    }

    /// Returns whether there is a cancelled request that has not ended.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Relaxed) > 0
    }
}
