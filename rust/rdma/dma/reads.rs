// SPDX-License-Identifier: GPL-2.0

//! Reads from a peer into memory that is mapped for a device.

use crate::{
    position::Position,
    sge::Sge, //
};
use kx::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// The reads from a peer into some memory.
///
/// # Invariants
///
/// If one may not have completed, `last` is the position of the last one in the send queue with the
/// number `queue`. Otherwise `last` is zero. Only who has the memory exclusively notes reads: two
/// threads that do so at a time would overwrite the numbers of each other.
pub(crate) struct Reads {
    queue: Atomic<u64>,
    last: Atomic<u64>,
}

impl Reads {
    pub(super) fn none() -> Self {
        // INVARIANT: Zero stands for none.
        Self {
            queue: Atomic::new(0),
            last: Atomic::new(0),
        }
    }

    /// Notes a read at `at`; returns false if one of another queue may not have completed.
    #[inline]
    pub(crate) fn note(&self, at: Position) -> bool {
        // ORDERING: By the type invariant no other thread uses the numbers now. The thread that ends the
        // reads, or unmaps the memory, has the memory from this one.
        if self.is_pending() && self.queue.load(Relaxed) != at.queue {
            return false;
        }
        self.queue.store(at.queue, Relaxed);
        // INVARIANT: Positions of a queue grow, so this is the last one.
        self.last.store(at.number, Relaxed);
        true
    }

    /// Notes that all requests up to `done` have completed.
    #[inline]
    pub(super) fn end(&self, done: Position) {
        if self.queue.load(Relaxed) == done.queue && self.last.load(Relaxed) <= done.number {
            // INVARIANT: The last one has completed, and so have those before it in its queue, the only
            // queue that has any.
            self.last.store(0, Relaxed);
        }
    }

    /// Returns whether one may not have completed.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.last.load(Relaxed) != 0
    }

    /// Notes a read that never completes.
    pub(super) fn never_end(&self) {
        // INVARIANT: No queue has this number, and no request this position. So no further read is noted,
        // and none is ended.
        self.queue.store(0, Relaxed);
        self.last.store(u64::MAX, Relaxed);
    }
}

/// Memory for the device to write to, for [`Chain::rdma_read`].
///
/// [`Chain::rdma_read`]: crate::sendq::Chain::rdma_read
#[derive(Clone, Copy)]
pub struct Sink<'a> {
    pub(crate) sge: Sge,
    pub(crate) reads: &'a Reads,
}

impl Sink<'_> {
    /// Returns the length in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> u32 {
        self.sge.len()
    }
}
