// SPDX-License-Identifier: GPL-2.0

//! The part of the buffers that a session has: those that it holds, the one in reserve, and the
//! requests that wait for one.

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

/// The part of a session.
#[pin_data]
pub(crate) struct Holding {
    pub(crate) buffers: Arc<Buffers>,
    /// Bytes of the buffers that the slots of all paths have. Larger requests write this, so it is
    /// apart from what all requests read.
    pub(super) held: KBox<Atomic<u64>>,
    /// The requests that wait for a buffer, in the order in which they came.
    #[pin]
    line: SpinLockIrq<Ring<Waiter>>,
    /// Number of those; written under the lock.
    waiting: Atomic<u32>,
    /// There is a buffer in reserve, here or in use.
    #[pin]
    pub(super) has_reserve: Mutex<bool>,
    pub(super) reserve: TakeCell<KBox<Memory>>,
}

impl Holding {
    /// Creates the part of a session with `depth` tags. The line has room for requests of a path that
    /// is being closed while the client sends them again over another one. There is no buffer in reserve
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

    /// Returns whether a request waits for a buffer, as [`Self::is_waiting`] does, but in any case sees
    /// one that has not seen the buffer which the caller has just given back.
    pub(super) fn is_waiting_ordered(&self) -> bool {
        // ORDERING: Full, see `wait`.
        self.waiting.fetch_add(0, Full) > 0
    }

    /// Returns whether a request waits for a buffer. Those that come later wait behind it.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        // ORDERING: See `wait`.
        self.waiting.load(Relaxed) > 0
    }

    /// Returns whether no slot of the session is to keep a buffer for its next request, as a request
    /// waits for memory.
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
        // ORDERING: Full, so that this comes before the look for a buffer; pairs with
        // `Buffers::release`: either that sees the waiting request, or this sees the buffer.
        self.waiting.fetch_add(1, Full);
        Ok(())
    }

    /// Takes the requests of a path, whose connections are closed, out of the line.
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

    /// Takes the first request out of the line, if that is `waiter`.
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
