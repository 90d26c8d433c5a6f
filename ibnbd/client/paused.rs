// SPDX-License-Identifier: GPL-2.0

//! Requests that pause before they are resent.
//!
//! The block layer has one timer for all requests on its requeue list. A request that must be
//! dispatched at once would end the pauses of the others, or would itself be delayed. Paused
//! requests therefore wait here, each for its own time.
//!
//! Contexts: *any*, unless stated otherwise.

use crate::{
    by_tag::ByTag,
    request::IbnbdMq, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    blk::Request,
    sync::TakeCell,
    work::{
        self,
        DelayedWork,
        WorkItem, //
    }, //
};

/// Interval at which paused requests are checked, in milliseconds. A pause may be longer by this
/// interval.
const CHECK_MS: u32 = 10;

/// A request that pauses for `ms` milliseconds from `since` on.
struct Pause {
    rq: Request<IbnbdMq>,
    since: Instant<Monotonic>,
    ms: u32,
}

impl Pause {
    fn is_over(&self) -> bool {
        self.since.elapsed().as_millis() >= i64::from(self.ms)
    }
}

/// The paused requests of a disk.
#[pin_data]
pub(crate) struct Paused {
    places: ByTag<TakeCell<Pause>>,
    #[pin]
    check: DelayedWork<Self>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Paused { self.check }
}

impl Paused {
    /// Creates an empty list with a place for each of `tags` tags. No work on `queue` may wait for
    /// a disk.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(tags: usize, queue: Arc<work::Queue>) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                places: ByTag::new(tags, TakeCell::empty)?,
                check <- kx::new_delayed_work!(queue, "Paused::check"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns a request to the block layer after `ms` milliseconds. Until then the request keeps its
    /// tag, and the disk cannot be removed. The caller must have called [`stop_timer`] for the
    /// request.
    ///
    /// [`stop_timer`]: crate::request::stop_timer
    pub(crate) fn requeue_after(self: &Arc<Self>, rq: Request<IbnbdMq>, ms: u32) {
        let place = match self.places.get(rq.tag()) {
            Some(place) if ms > 0 => place,
            _ => return rq.requeue(),
        };
        let pause = Pause {
            rq,
            since: Instant::now(),
            ms,
        };
        match place.put(pause) {
            // If the work item is already queued, it will find this request when it runs.
            Ok(()) => {
                self.check.enqueue_in(self.clone(), CHECK_MS);
            }
            // Does not happen: a place belongs to the request with its tag.
            Err(Pause { rq, .. }) => rq.requeue(),
        }
    }

    /// Waits for the last check. The disk must have been removed, so that no request pauses any
    /// more.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn end(&self) {
        self.check.flush();
    }
}

/// Returns the requests whose pause has ended to the block layer.
impl WorkItem for Paused {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut again = false;
        for place in this.places.iter() {
            match place.take() {
                Some(pause) if pause.is_over() => pause.rq.requeue(),
                Some(pause) => {
                    again = true;
                    if let Err(Pause { rq, .. }) = place.put(pause) {
                        rq.requeue();
                    }
                }
                None => (),
            }
        }
        if again {
            this.check.enqueue_in(this.clone(), CHECK_MS);
        }
    }
}
