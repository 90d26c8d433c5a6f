// SPDX-License-Identifier: GPL-2.0

//! Fair shares of a session that several disks use.
//!
//! A disk that is alone in its session submits all its requests. While another disk is in use, it
//! keeps no more requests in flight than [`Window`] allows. The other requests wait here in the
//! order of their arrival, instead of delaying the requests of all disks in the queues of
//! connections, links and the server. Waiting requests keep their tags; the block layer divides the
//! tags among the disks.
//!
//! Contexts: *any* but hardirq, unless stated otherwise.

use crate::{
    by_tag::ByTag,
    request::{
        Admission,
        IbnbdMq, //
    }, //
};
use ibnbd_proto::window::Window;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    blk::Request,
    ring::Ring,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        TakeCell, //
    }, //
};

/// How long a disk counts as in use after a request has arrived or ended, in milliseconds.
const IN_USE_MS: u64 = 1000;

/// The disks of a session, and whether several of them are in use.
pub(crate) struct DiskGroup {
    start: Instant<Monotonic>,
    /// Number of disks of the session.
    disks: Atomic<u32>,
    /// Number of the disk that was in use last.
    last: Atomic<u32>,
    /// Until when several disks count as in use, in milliseconds since `start`.
    until_ms: Atomic<u64>,
}

impl DiskGroup {
    /// Creates a group without disks.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let this = Self {
            start: Instant::now(),
            disks: Atomic::new(0),
            last: Atomic::new(u32::MAX),
            until_ms: Atomic::new(0),
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(0)
    }
}

/// Counts one disk of a group until it is dropped.
struct GroupRef(Arc<DiskGroup>);

impl GroupRef {
    fn new(group: Arc<DiskGroup>) -> Self {
        group.disks.fetch_add(1, Relaxed);
        Self(group)
    }
}

impl Drop for GroupRef {
    fn drop(&mut self) {
        self.0.disks.fetch_sub(1, Relaxed);
    }
}

/// A waiting request, and the index of the hardware queue that it arrived on.
pub(crate) type Waiting = (Request<IbnbdMq>, u32);

/// The fair share of one disk.
#[pin_data]
pub(crate) struct FairShare {
    group_ref: GroupRef,
    number: u32,
    /// When this disk was last in use, in milliseconds since the start of the group.
    seen_ms: Atomic<u64>,
    #[pin]
    inner: SpinLockIrq<FairShareInner>,
    places: ByTag<TakeCell<Waiting>>,
}

struct FairShareInner {
    window: Window,
    /// Number of requests that count against the window, see [`Admission`].
    under_way: u32,
    /// Tags of waiting requests, in the order of their arrival.
    waiting: Ring<u32>,
}

impl FairShareInner {
    /// Stops counting a request.
    fn leave(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Returns whether one more request may be in flight; `all` ignores the window.
    fn has_room(&self, all: bool) -> bool {
        all || self.under_way < self.window.limit()
    }

    /// Takes the tag of the next waiting request, if it may be submitted now, and counts it. Also
    /// returns whether another one may follow.
    fn take(&mut self, all: bool) -> (Option<u32>, bool) {
        if !self.has_room(all) {
            return (None, false);
        }
        let Some(tag) = self.waiting.pop() else {
            return (None, false);
        };
        self.under_way += 1;
        (Some(tag), !self.waiting.is_empty() && self.has_room(all))
    }
}

/// A request that may be submitted after others have ended.
pub(crate) struct Next {
    pub(crate) waiting: Option<Waiting>,
    /// Whether [`FairShare::next`] may have another one.
    pub(crate) has_more: bool,
}

/// The decision about a request.
pub(crate) enum Entry {
    /// Submit the request now.
    Go(Request<IbnbdMq>),
    /// The request waits, see [`FairShare::next`].
    Waits,
}

impl FairShare {
    /// Returns the number of the disk.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Creates the fair-share state of disk `number` with `tags` tags.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(
        group: Arc<DiskGroup>,
        number: u32,
        tags: usize,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            seen_ms: Atomic::new(0),
            inner <- new_spinlock_irq!(
                FairShareInner {
                    window: Window::new(),
                    under_way: 0,
                    waiting: Ring::new(tags)?,
                },
                "FairShare::inner"
            ),
            places: ByTag::new(tags, TakeCell::empty)?,
            number,
            group_ref: GroupRef::new(group),
        }? Error)
    }

    /// Records that the disk is in use; returns whether another one is, too.
    fn is_contended(&self, now_ns: u64) -> bool {
        let now_ms = now_ns / 1_000_000;
        let group = &*self.group_ref.0;
        // Fields that all disks of the group read are written at most once in a millisecond.
        if self.seen_ms.load(Relaxed) != now_ms {
            self.seen_ms.store(now_ms, Relaxed);
            if group.last.load(Relaxed) != self.number {
                group.last.store(self.number, Relaxed);
                group.until_ms.store(now_ms + IN_USE_MS, Relaxed);
            }
        }
        now_ms < group.until_ms.load(Relaxed)
    }

    /// Admits a request that arrived on hardware queue `queue`, or keeps it waiting.
    #[inline]
    pub(crate) fn enter(&self, mut rq: Request<IbnbdMq>, queue: u32) -> Entry {
        rq.pdu_mut().admission = Admission(None);
        if self.group_ref.0.disks.load(Relaxed) < 2 {
            return Entry::Go(rq);
        }
        let now_ns = self.group_ref.0.now_ns();
        if !self.is_contended(now_ns) {
            return Entry::Go(rq);
        }
        let mut inner = self.inner.lock();
        if inner.under_way < inner.window.limit() {
            inner.under_way += 1;
            drop(inner);
            rq.pdu_mut().admission = Admission(Some(now_ns));
            return Entry::Go(rq);
        }
        let tag = rq.tag();
        let Some(place) = self.places.get(tag) else {
            return Entry::Go(rq);
        };
        // Under the lock, so that a task that finds the tag also finds the request.
        match place.put((rq, queue)) {
            Ok(()) if inner.waiting.push(tag) => Entry::Waits,
            Ok(()) => match place.take() {
                Some((rq, _)) => Entry::Go(rq),
                None => Entry::Waits,
            },
            Err((rq, _)) => Entry::Go(rq),
        }
    }

    /// Reverts the admission of a request that was not sent. If the request was counted, the caller
    /// must then call [`FairShare::next`].
    #[inline]
    pub(crate) fn leave(&self, Admission(since_ns): Admission) {
        if since_ns.is_some() {
            self.inner.lock().leave();
        }
    }

    /// Records the end of a request that was counted since `since_ns`. Returns the request that may
    /// be submitted instead, as [`FairShare::next`] does.
    pub(crate) fn ended(&self, since_ns: u64, all: bool) -> Next {
        let now_ns = self.group_ref.0.now_ns();
        let all = !self.is_contended(now_ns) || all;
        let mut inner = self.inner.lock();
        inner.leave();
        inner.window.ended(now_ns.saturating_sub(since_ns), now_ns);
        let taken = inner.take(all);
        drop(inner);
        self.found(taken, now_ns)
    }

    /// Returns the next waiting request that may be submitted now, if there is one; `all` ignores
    /// the window. After [`FairShare::leave`], and after a request of [`FairShare::ended`] that was
    /// not sent, the caller must repeat this until there is none. Requests therefore wait only
    /// while a counted one is in flight, whose end releases the next.
    pub(crate) fn next(&self, all: bool) -> Next {
        let now_ns = self.group_ref.0.now_ns();
        let all = all || now_ns / 1_000_000 >= self.group_ref.0.until_ms.load(Relaxed);
        let taken = self.inner.lock().take(all);
        self.found(taken, now_ns)
    }

    /// Returns the request of a tag that was taken.
    fn found(&self, (tag, has_more): (Option<u32>, bool), now_ns: u64) -> Next {
        let waiting = tag
            .and_then(|tag| self.places.get(tag)?.take())
            .map(|(mut rq, queue)| {
                rq.pdu_mut().admission = Admission(Some(now_ns));
                (rq, queue)
            });
        Next { waiting, has_more }
    }
}
