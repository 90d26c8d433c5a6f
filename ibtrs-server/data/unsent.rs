// SPDX-License-Identifier: GPL-2.0

//! The queue of answers and fetches that wait for space in the send queue of a connection.

use ibtrs_proto::tag::Tag;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::SpinLockIrq, //
};
use kx::{
    ring::Ring,
    sync::atomic::{
        AtomicFlag,
        Relaxed, //
    }, //
};

/// Answers, fetches and a flush that wait for SQ space.
///
/// FIFO order prevents short chains from starving a long one.
#[pin_data]
pub(crate) struct Unsent {
    #[pin]
    pub(crate) queue: SpinLockIrq<Queue>,
    /// Whether an entry waits. Separate from the queue, so that a connection with SQ space only
    /// reads this flag. Written under the lock.
    pub(crate) some: AtomicFlag,
}

pub(crate) struct Queue {
    /// The tags of answers, and of requests whose data is to be fetched, oldest first.
    pub(crate) tags: Ring<Tag>,
    /// A [flush](crate::data::idle) is to be posted, ahead of the queue; it need not cover queued
    /// entries.
    pub(crate) flush: bool,
}

impl Unsent {
    /// Creates the queue of a session with `depth` chunks.
    pub(crate) fn new(depth: u16) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            queue <- new_spinlock_irq!(
                Queue { tags: Ring::new(usize::from(depth))?, flush: false },
                "Unsent::queue"
            ),
            some: AtomicFlag::new(false),
        }? Error)
    }

    /// Returns whether an entry waits for SQ space.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        // ORDERING: A thread that queues an entry retries under the lock after setting the flag,
        // which compensates for a stale value here.
        self.some.load(Relaxed)
    }
}
