// SPDX-License-Identifier: GPL-2.0

//! What waits for space in the send queue of a connection.

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

/// What a connection sends when there is SQ space.
///
/// Later answers and fetches wait behind it, so that a long chain finds space some time: shorter ones
/// would take all that becomes free.
#[pin_data]
pub(crate) struct Unsent {
    #[pin]
    pub(crate) queue: SpinLockIrq<Queue>,
    /// Whether something waits; apart from the queue, so that a connection with SQ space only reads
    /// this. Written under the lock.
    pub(crate) some: AtomicFlag,
}

pub(crate) struct Queue {
    /// The tags of answers, and of requests whose data is to be fetched, oldest first.
    pub(crate) tags: Ring<Tag>,
    /// A [flush](crate::data::idle), before all that waits, which it need not report on.
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

    /// Returns whether something waits for SQ space.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        // ORDERING: Who queues something tries again under the lock after it has set the flag, which
        // makes up for a stale value.
        self.some.load(Relaxed)
    }
}
