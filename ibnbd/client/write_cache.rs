// SPDX-License-Identifier: GPL-2.0

//! The writes that the server's write cache may lose.
//!
//! A power failure of the server loses writes that were not flushed, while the clients that
//! wrote them live on. A later flush has to fail then; see [`ibnbd_proto::unflushed`].
//!
//! Contexts: *any*.

use core::convert::Infallible;
use ibnbd_proto::unflushed::{
    Late,
    Record,
    Unflushed, //
};
use kernel::sync::atomic::{
    Atomic,
    AtomicFlag,
    Full,
    Relaxed, //
};

/// Nothing was lost, or the loss was acknowledged.
const WHOLE: u32 = 0;
/// Something may be lost; no flush has failed yet.
const LOST: u32 = 1;
/// Something may be lost; a flush has failed.
const REPORTED: u32 = 2;

/// The writes of a disk that the server has answered, as far as it could lose them.
///
/// It has a cache line of its own, because the fields around it are read by all requests and do not
/// change.
#[repr(align(64))]
pub(crate) struct WriteCache {
    /// A [`Record`].
    record: Atomic<u64>,
    /// One of the above.
    loss: Atomic<u32>,
    /// The server's disk keeps everything that it answers.
    safe: AtomicFlag,
}

impl WriteCache {
    /// Knows of no writes; `safe` as in [`WriteCache::set_safe`].
    pub(crate) fn new(safe: bool) -> Self {
        Self {
            record: Atomic::new(Record::NEW.to_bits()),
            loss: Atomic::new(WHOLE),
            safe: AtomicFlag::new(safe),
        }
    }

    /// Returns whether the server's disk keeps everything that it answers, as one without a
    /// volatile cache does.
    pub(crate) fn set_safe(&self, safe: bool) {
        // ORDERING: The queue state is still to be set.
        self.safe.store(safe, Relaxed);
    }

    /// Returns what it was before.
    fn update<E>(&self, next: impl Fn(Record) -> Result<Record, E>) -> Result<Record, E> {
        // ORDERING: The event has happened before the call: an answer has arrived, or the tasks
        // that want a flush have seen their writes end.
        let mut bits = self.record.load(Relaxed);
        loop {
            let before = Record::from_bits(bits);
            let next = next(before)?.to_bits();
            if next == bits {
                return Ok(before);
            }
            // ORDERING: It is there before a flush is sent, or a write ends.
            match self.record.cmpxchg(bits, next, Full) {
                Ok(_) => return Ok(before),
                Err(now) => bits = now,
            }
        }
    }

    /// As [`WriteCache::update`], with what cannot fail.
    fn change(&self, next: impl Fn(Record) -> Record) -> Record {
        let Ok(before) = self.update(|record| Ok::<_, Infallible>(next(record)));
        before
    }

    /// Returns the cache generation that a request is sent with. Read it after the dispatch
    /// decision.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        Record::from_bits(self.record.load(Relaxed)).generation()
    }

    /// A write that need not be durable was answered.
    ///
    /// # Errors
    ///
    /// When it was lost since; it is to be sent again.
    #[inline]
    pub(crate) fn written(&self, generation: u32) -> Result<(), Late> {
        // ORDERING: The cache generation tells answers from before the change.
        let safe = self.safe.load(Relaxed);
        // For most writes the record stays as it is.
        self.update(|record| {
            let next = record.written(generation)?;
            Ok(if safe { record } else { next })
        })?;
        Ok(())
    }

    /// A flush is about to be sent.
    pub(crate) fn flushing(&self, tag: u16) {
        self.change(|record| record.flushing(tag));
    }

    /// A flush was answered.
    pub(crate) fn flushed(&self, generation: u32, tag: u16) {
        self.change(|record| record.flushed(generation, tag));
    }

    /// The server's cache has lost what it had; the queue is quiesced. Returns whether that
    /// matters: flushes fail from now on.
    pub(crate) fn lose(&self) -> bool {
        let before = self.change(Record::lost);
        let matters = before.unflushed() != Unflushed::Nothing;
        if matters {
            self.loss.xchg(LOST, Full);
        }
        matters
    }

    /// Everything that was answered is durable, the server says; the queue is quiesced.
    pub(crate) fn kept(&self) {
        self.change(Record::lost);
    }

    /// Returns whether a flush has to fail because unflushed writes may be lost; the loss then
    /// counts as reported.
    pub(crate) fn fails_flush(&self) -> bool {
        if self.loss.load(Relaxed) == WHOLE {
            return false;
        }
        // Otherwise a flush has failed before.
        let _ = self.loss.cmpxchg(LOST, REPORTED, Full);
        true
    }

    /// Returns whether flushes fail.
    pub(crate) fn has_lost(&self) -> bool {
        self.loss.load(Relaxed) != WHOLE
    }

    /// The last opener has closed the disk. If a flush has failed, flushes succeed again;
    /// returns whether they do because of this.
    pub(crate) fn closed(&self) -> bool {
        self.loss.cmpxchg(REPORTED, WHOLE, Full).is_ok()
    }

    /// Lets flushes succeed again: all know. Tells whether they do because of this.
    pub(crate) fn accept_loss(&self) -> bool {
        self.loss.xchg(WHOLE, Full) != WHOLE
    }
}
