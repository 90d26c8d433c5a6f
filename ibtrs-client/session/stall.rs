// SPDX-License-Identifier: GPL-2.0

//! Information for operators on requests that wait for an answer, or for a path.

use super::{
    requeue_list::Away,
    Session, //
};
use ibtrs_proto::downtime;
use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex,
    time::{
        Instant,
        Monotonic, //
    }, //
};

/// The time for which the session has been without a path.
pub(crate) struct Outage {
    /// When the last path was lost, in milliseconds since 1970.
    pub(crate) since_ms: i64,
    /// When requests began to fail, if they do.
    pub(crate) failing_since_ms: Option<i64>,
    /// Milliseconds until requests fail; `None` if they wait without limit, or fail already.
    pub(crate) left_ms: Option<u64>,
}

/// For how long the age of the oldest request is cached, in milliseconds, as any user may read it at any rate.
const MAX_AGE_MS: i64 = 100;

/// The cached age of the oldest request.
#[pin_data]
pub(super) struct OldestRequest {
    #[pin]
    known: Mutex<Option<(Instant<Monotonic>, u64)>>,
}

impl OldestRequest {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            known <- new_mutex!(None, "OldestRequest::known"),
        })
    }
}

impl Session {
    /// Returns the outage, if no path is connected.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn outage(&self) -> Option<Outage> {
        let limit_s = self.settings().queue_timeout_s.get();
        let failover = self.failover.lock();
        let Away {
            since_ms,
            failing_since_ms,
        } = failover.away?;
        let planned = failover.announcement.map(|planned| planned.now());
        let left_ms = failover.outage.and_then(|(_, since)| {
            let waited_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(0);
            downtime::left_ms(limit_s, waited_ms, planned)
        });
        Some(Outage {
            since_ms,
            failing_since_ms,
            left_ms,
        })
    }

    /// Returns for how many milliseconds the oldest unanswered I/O request has been on its path; 0
    /// without one. The result may be up to [`MAX_AGE_MS`] old.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn oldest_request_ms(&self) -> u64 {
        let mut known = self.oldest_request.known.lock();
        if let Some((at, ms)) = *known {
            if at.elapsed().as_millis() < MAX_AGE_MS {
                return ms;
            }
        }
        let ms = self.find_oldest_request_ms();
        *known = Some((Instant::now(), ms));
        ms
    }

    /// Visits the slots of all tags, and takes their locks.
    fn find_oldest_request_ms(&self) -> u64 {
        let io = usize::from(self.depth_split().io());
        let oldest = self.with_multipath(|multipath| {
            let paths = multipath.paths.iter();
            let slots = paths.flat_map(|path| path.io.slots.iter().take(io));
            let ages = slots.filter_map(|slot| slot.unanswered_since());
            ages.map(|since| since.elapsed().as_millis()).max()
        });
        u64::try_from(oldest.flatten().unwrap_or(0)).unwrap_or(0)
    }
}
