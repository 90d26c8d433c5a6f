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
/// If a read may be outstanding, `last` is the position of the last one in the send queue with the
/// number `queue`. If none is, `last` is zero. A read is recorded only with exclusive access to the
/// memory: two threads doing so concurrently would overwrite each other's numbers.
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

    /// Records a read at `at`; returns false if a read of another queue may be outstanding.
    #[inline]
    pub(crate) fn note(&self, at: Position) -> bool {
        // ORDERING: By the type invariant no other thread uses the numbers now. The thread that ends the
        // reads, or unmaps the memory, has received the memory from this thread.
        if self.is_pending() && self.queue.load(Relaxed) != at.queue {
            return false;
        }
        self.queue.store(at.queue, Relaxed);
        // INVARIANT: Positions of a queue grow, so this is the last one.
        self.last.store(at.number, Relaxed);
        true
    }

    /// Records that all requests up to `done` have completed.
    #[inline]
    pub(super) fn end(&self, done: Position) {
        if self.queue.load(Relaxed) == done.queue && self.last.load(Relaxed) <= done.number {
            // INVARIANT: The last one has completed, and so have those before it in its queue, the only
            // queue that has any.
            self.last.store(0, Relaxed);
        }
    }

    /// Returns whether a read may be outstanding.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.last.load(Relaxed) != 0
    }

    /// Records a read that never completes.
    pub(super) fn never_end(&self) {
        // INVARIANT: No queue has this number, and no request this position, so no further read is
        // recorded, and none is ended.
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
