// SPDX-License-Identifier: GPL-2.0

//! Gives back the small buffers of idle slots.
//!
//! A slot keeps its small buffer, so that the next request finds it. The device may still send the
//! data of an answer from there, once more if an acknowledgement was lost, even when the client has
//! the answer. Answers are not signalled, so nothing tells when that is over. So this goes in
//! rounds: a round marks the slots that are idle, and has every connection report when all that was
//! sent before has been acknowledged. When all have, the round is over, and the slots that are still
//! idle give back their buffers. If memory is short, so do all others that have sent nothing without
//! a signal since the round began.

use crate::{
    con::Con,
    landing::Spare,
    path::Path,
    respond,
    types::{
        Round,
        Shape, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed,
        Release, //
    },
    work::WorkItem, //
};
use rdma::qp::QueuePair;

/// Time between two rounds, in milliseconds.
const ROUND_MS: u32 = 1_000;

/// The state of the rounds of a path.
pub(crate) struct Idle {
    /// The round that began last.
    latest: Atomic<u32>,
    /// The last round that is over.
    done: Atomic<u32>,
    /// Number of connections that have not yet reported.
    reports: Atomic<u32>,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self {
            latest: Atomic::new(0),
            done: Atomic::new(0),
            reports: Atomic::new(0),
        }
    }

    /// Returns the round that began last. Called under the lock of a slot, from which an answer is
    /// sent before the lock is released.
    #[inline]
    pub(crate) fn latest(&self) -> Round {
        // ORDERING: See `begin`.
        Round(self.latest.load(Relaxed))
    }

    /// Begins a round. The caller then visits each slot under its lock before it asks the connections.
    /// So an answer of a slot is either sent before that visit, and this round is over only when it has
    /// been acknowledged; or it is sent after the visit, and takes the number of this round.
    fn begin(&self) {
        // ORDERING: The locks of the slots make it visible.
        self.latest.fetch_add(1, Relaxed);
    }

    /// Ends the latest round, all of whose reports are there.
    fn end(&self) {
        // ORDERING: Pairs with `Path::shortage`: who takes a buffer comes after the reports.
        self.done.store(self.latest.load(Relaxed), Release);
    }

    /// Records that all that connection `cid` had sent before it was asked has been acknowledged.
    /// The service connection is not asked.
    pub(crate) fn flushed(&self, cid: u16) {
        if cid > 0 {
            // ORDERING: Pairs with the load of the next round, which comes after the device.
            self.reports.fetch_sub(1, Full);
        }
    }
}

impl Path {
    /// Makes sure that there is a round, as a slot of the path has got a small buffer.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn keeps_small(self: &Arc<Self>) {
        self.idle_work.enqueue_in(self.clone(), ROUND_MS);
    }

    /// Has the next round take place now, as others need buffers.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn reclaim_soon(self: &Arc<Self>) {
        if self.terms.shape == Shape::Slots {
            self.idle_work.modify(self.clone(), 0);
        }
    }

    /// If memory is short, so that nobody is to keep a buffer for the next request, returns the last
    /// round that is over.
    #[inline]
    pub(crate) fn shortage(&self) -> Option<Round> {
        // ORDERING: Pairs with `Idle::end`.
        let done = || Round(self.idle.done.load(Acquire));
        self.session.share.is_short().then(done)
    }

    /// Gives back the buffers that the end of a round has made free.
    fn give_idle(&self) {
        let short = self.shortage();
        for slot in self.slots.iter() {
            let spare = slot.with_idle(|chunk| match chunk.slot() {
                _ if slot.is_used() => Spare::NONE,
                Some(in_slot) if in_slot.is_idle => in_slot.take_all(),
                Some(in_slot) => in_slot.spare(short),
                None => Spare::NONE,
            });
            drop(spare);
        }
    }

    /// Marks the slots that are idle. Returns whether a slot has a buffer, or may have one, as a
    /// request has it.
    fn mark_idle(&self) -> bool {
        let mut some = false;
        for slot in self.slots.iter() {
            let has_buffer = slot.with_idle(|chunk| {
                chunk.slot().is_some_and(|in_slot| {
                    in_slot.is_idle = true;
                    in_slot.has_buffer()
                })
            });
            some |= has_buffer.unwrap_or(true);
        }
        some
    }

    /// Asks the connections for requests to report when all that was sent has been acknowledged.
    fn flush_all(self: &Arc<Self>) {
        let cons = self.cons.lock();
        for qp in cons.qps.iter().skip(1).flatten() {
            self.idle.reports.fetch_add(1, Relaxed);
            respond::flush(qp);
        }
    }
}

/// Deals with a connection that cannot be asked: its queue refuses all that follows, so it gives no
/// report, and the round never ends.
///
/// # Context
///
/// Any.
pub(crate) fn not_flushed(qp: &QueuePair<Con>, error: Error) {
    if error != ENOTCONN {
        qp.handler().path.failed("cannot flush a send queue", error);
    }
}

/// Carries out a round.
impl WorkItem<{ crate::path::work::IDLE }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if !this.takes_requests() {
            // The teardown gives everything back.
            return;
        }
        let idle = &this.idle;
        // ORDERING: Pairs with `Idle::flushed`.
        if idle.reports.load(Acquire) == 0 {
            idle.end();
            this.give_idle();
            idle.begin();
            if !this.mark_idle() {
                // No slot had a buffer, so nobody is asked about this round: what has been sent by
                // then is in no buffer, and what is sent later has the number of this round.
                return;
            }
            this.flush_all();
        }
        this.idle_work.enqueue_in(this.clone(), ROUND_MS);
    }
}
