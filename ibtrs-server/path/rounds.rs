// SPDX-License-Identifier: GPL-2.0

//! Releases the small buffers of idle slots, in the rounds of [`crate::data::idle`].

use crate::{
    data::send,
    path::Path,
    storage::landing::Spare,
    types::Shape, //
};
use kernel::sync::Arc;
use kx::work::WorkItem;

/// Time between two rounds, in milliseconds.
const ROUND_MS: u32 = 1_000;

impl Path {
    /// Ensures that a round is scheduled, as a slot of the path now has a small buffer.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn begin_rounds(self: &Arc<Self>) {
        self.idle_work.enqueue_in(self.clone(), ROUND_MS);
    }

    /// Starts the next round now, as other paths need buffers.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn reclaim_soon(self: &Arc<Self>) {
        if self.io.terms.shape == Shape::Slots {
            self.idle_work.modify(self.clone(), 0);
        }
    }

    /// Releases the buffers that are free after the completion of a round.
    fn give_idle(&self) {
        let short = self.io.shortage();
        for slot in self.io.slots.iter() {
            let spare = slot.with_idle(|chunk| match chunk.landing.slot() {
                _ if slot.is_used() => Spare::NONE,
                Some(in_slot) if in_slot.is_idle => in_slot.take_all(),
                Some(in_slot) => in_slot.spare(short),
                None => Spare::NONE,
            });
            drop(spare);
        }
    }

    /// Marks the idle slots. Returns whether any slot has a buffer; a slot with a request in
    /// service may have one.
    fn mark_idle(&self) -> bool {
        let mut some = false;
        for slot in self.io.slots.iter() {
            let has_buffer = slot.with_idle(|chunk| {
                chunk.landing.slot().is_some_and(|in_slot| {
                    in_slot.is_idle = true;
                    in_slot.has_buffer()
                })
            });
            some |= has_buffer.unwrap_or(true);
        }
        some
    }

    /// Flushes the connections for requests; each reports when everything that it has sent was
    /// acknowledged.
    fn flush_all(self: &Arc<Self>) {
        let cons = self.io.cons.lock();
        for qp in cons.qps.iter().skip(1).flatten() {
            self.io.idle.asked();
            send::flush(qp);
        }
    }
}

/// Executes a round.
impl WorkItem<{ crate::path::work::IDLE }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if !this.io.takes_requests() {
            // The teardown releases all buffers.
            return;
        }
        let idle = &this.io.idle;
        if idle.has_reports() {
            idle.end();
            this.give_idle();
            idle.begin();
            if !this.mark_idle() {
                // No slot had a buffer, so no connection is flushed for this round: answers sent so
                // far used no buffer, and later ones record the number of this round.
                return;
            }
            this.flush_all();
        }
        this.idle_work.enqueue_in(this.clone(), ROUND_MS);
    }
}
