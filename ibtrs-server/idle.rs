// SPDX-License-Identifier: GPL-2.0

//! Gives back the small buffers of idle slots.
//!
//! A slot keeps its small buffer, so that the next request finds it. The device may still send the
//! data of an answer from there, once more if an acknowledgement was lost, even when the client has
//! the answer. Answers are not signalled, so nothing tells when that is over. So this goes in
//! rounds: a round marks the slots that are idle, and has every connection report when all that was
//! sent before has been acknowledged. The next round gives back the buffers of the slots that are
//! still idle.

use crate::{
    landing::Spare,
    path::{
        Path,
        Shape, //
    },
};
use kernel::sync::Arc;
use kx::{
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Relaxed, //
    },
    work::WorkItem, //
};
use rdma::sendq::{
    Doorbell,
    Signal,
    SqSpace, //
};

/// Time between two rounds, in milliseconds.
const ROUND_MS: u32 = 1_000;

/// The state of the rounds of a path.
pub(crate) struct Idle {
    /// Number of connections that have not yet reported.
    reports: Atomic<u32>,
    /// Number of the connections that were not asked, as their send queues were full.
    missed: Atomic<u32>,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self {
            reports: Atomic::new(0),
            missed: Atomic::new(0),
        }
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
        if self.shape == Shape::Slots {
            self.idle_work.modify(self.clone(), 0);
        }
    }

    /// Gives back the buffers of the slots that have been idle since the last round.
    fn give_idle(&self) {
        for slot in self.slots.iter() {
            let spare = slot.with_idle(|chunk| match chunk.slot() {
                Some(in_slot) if in_slot.is_idle && !slot.is_used() => in_slot.take_small(),
                _ => Spare::NONE,
            });
            drop(spare);
        }
    }

    /// Marks the slots that are idle. Returns whether a slot has a small buffer, or may have one, as a
    /// request has it.
    fn mark_idle(&self) -> bool {
        let mut some = false;
        for slot in self.slots.iter() {
            let has_small = slot.with_idle(|chunk| {
                chunk.slot().is_some_and(|in_slot| {
                    in_slot.is_idle = true;
                    in_slot.has_small()
                })
            });
            some |= has_small.unwrap_or(true);
        }
        some
    }

    /// Asks the connections for requests to report when all that was sent has been acknowledged.
    fn flush_all(&self) {
        let cons = self.cons.lock();
        self.idle.missed.store(0, Relaxed);
        for qp in cons.qps.iter().skip(1).flatten() {
            self.idle.reports.fetch_add(1, Relaxed);
            let space = SqSpace { wrs: 1, sges: 0 };
            let asked = qp.send(space, Doorbell::Now, |chain| chain.flush(Signal::Control));
            if asked.is_err() {
                self.idle.reports.fetch_sub(1, Relaxed);
                self.idle.missed.fetch_add(1, Relaxed);
            }
        }
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
        let has_reports = idle.reports.load(Acquire) == 0;
        if has_reports && idle.missed.load(Relaxed) == 0 {
            this.give_idle();
        }
        if has_reports && !this.mark_idle() {
            return;
        }
        if has_reports {
            this.flush_all();
        }
        this.idle_work.enqueue_in(this.clone(), ROUND_MS);
    }
}
