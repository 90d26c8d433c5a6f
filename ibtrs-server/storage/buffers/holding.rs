// SPDX-License-Identifier: GPL-2.0

//! A session's share of the buffers: the bytes that it holds, its reserve buffer, and the requests
//! that wait for a buffer.

use super::{
    Buffers,
    Memory, //
};
use ibtrs_proto::{
    chunk_owner::PathId,
    tag::Tag, //
};
use kernel::{
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLockIrq, //
    }, //
};
use kx::{
    ring::Ring,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        TakeCell, //
    }, //
};

/// A waiting request, which is pending in its place.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// The id of its path.
    pub(crate) path: u16,
    pub(crate) tag: Tag,
    /// The connection on which it arrived.
    pub(crate) cid: u16,
    /// Bytes of its data.
    pub(crate) bytes: u32,
}

/// The share of a session.
#[pin_data]
pub(crate) struct Holding {
    pub(crate) buffers: Arc<Buffers>,
    /// Bytes of the buffers that the slots of all paths hold. Larger requests write this, so it is
    /// not in a cache line that all requests read.
    pub(super) held: KBox<Atomic<u64>>,
    /// The requests that wait for a buffer, in FIFO order.
    #[pin]
    line: SpinLockIrq<Ring<Waiter>>,
    /// Length of `line`; written under its lock.
    waiting: Atomic<u32>,
    /// Whether a reserve buffer exists, free or in use.
    #[pin]
    pub(super) has_reserve: Mutex<bool>,
    pub(super) reserve: TakeCell<KBox<Memory>>,
}

impl Holding {
    /// Creates the share of a session with `depth` tags. The line has twice as many places, as the
    /// client may resend the requests of a closing path over another one. There is no reserve buffer
    /// until the session has a path with slots.
    pub(crate) fn new(buffers: Arc<Buffers>, depth: u16) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            buffers,
            held: KBox::new(Atomic::new(0), GFP_KERNEL)?,
            line <- new_spinlock_irq!(Ring::new(2 * usize::from(depth))?, "Holding::line"),
            waiting: Atomic::new(0),
            has_reserve <- new_mutex!(false, "Holding::has_reserve"),
            reserve: TakeCell::empty(),
        }? Error)
    }

    /// Returns the bytes that the session holds.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// As [`Self::is_waiting`], but never misses a request that has missed the buffer which the caller
    /// has just released.
    pub(super) fn is_waiting_ordered(&self) -> bool {
        // ORDERING: Full, see `wait`.
        self.waiting.fetch_add(0, Full) > 0
    }

    /// Returns whether a request waits for a buffer. Later requests must queue behind it.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        // ORDERING: See `wait`.
        self.waiting.load(Relaxed) > 0
    }

    /// Returns whether the slots of the session must not keep buffers for their next requests, as a
    /// request waits for memory.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.is_waiting() || self.buffers.is_short()
    }

    /// Appends a request, which is pending in its place, to the line.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: too many requests of closing paths are still in the line.
    pub(super) fn wait(&self, waiter: Waiter) -> Result {
        let mut line = self.line.lock();
        if !line.push(waiter) {
            return Err(ENOSPC);
        }
        // ORDERING: Full, so that this is ordered before the search for a buffer; pairs with
        // `Buffers::release`: either the releasing thread sees the waiting request, or this thread
        // sees the buffer.
        self.waiting.fetch_add(1, Full);
        Ok(())
    }

    /// Removes the requests of a path, whose connections are closed, from the line.
    pub(crate) fn leave_line(&self, id: PathId) {
        let mut line = self.line.lock();
        for _ in 0..line.len() {
            match line.pop() {
                Some(waiter) if waiter.path != id.get() => {
                    line.push(waiter);
                }
                _ => {
                    self.waiting.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    /// Returns the first request in the line.
    pub(crate) fn first_in_line(&self) -> Option<Waiter> {
        self.line.lock().first()
    }

    /// Removes the first request from the line, if it is `waiter`.
    pub(crate) fn leave_first(&self, waiter: Waiter) -> bool {
        let mut line = self.line.lock();
        if line.first() != Some(waiter) {
            return false;
        }
        line.pop();
        self.waiting.fetch_sub(1, Relaxed);
        true
    }
}
