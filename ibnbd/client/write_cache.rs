// SPDX-License-Identifier: GPL-2.0

//! The writes that the server's write cache may lose.
//!
//! A power failure of the server loses unflushed writes, while the clients that wrote them keep
//! running. A later flush must therefore fail; see [`ibnbd_proto::unflushed`].
//!
//! Contexts: *any*.

use core::convert::Infallible;
use ibnbd_proto::unflushed::{
    Late,
    Record,
    Unflushed, //
};
use ibtrs_client::Tag;
use kx::sync::atomic::{
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

/// The unflushed writes of a disk, and whether the server has lost some.
///
/// It has its own cache line, because all requests read the adjacent fields, which do not change.
#[repr(align(64))]
pub(crate) struct WriteCache {
    /// A [`Record`].
    record: Atomic<u64>,
    /// One of `WHOLE`, `LOST` and `REPORTED`.
    loss: Atomic<u32>,
    /// The server's disk keeps all writes that it has answered.
    safe: AtomicFlag,
}

impl WriteCache {
    /// Creates the state of a disk without unflushed writes; `safe` as in [`WriteCache::set_safe`].
    pub(crate) fn new(safe: bool) -> Self {
        Self {
            record: Atomic::new(Record::NEW.to_bits()),
            loss: Atomic::new(WHOLE),
            safe: AtomicFlag::new(safe),
        }
    }

    /// Sets whether the server's disk retains all writes that it has answered, as a disk without a
    /// volatile cache does.
    pub(crate) fn set_safe(&self, safe: bool) {
        // ORDERING: The caller sets the queue state afterwards, which publishes this.
        self.safe.store(safe, Relaxed);
    }

    /// Replaces the record by the result of `next`; returns the record before the change.
    ///
    /// # Errors
    ///
    /// The error of `next`; then the record is unchanged.
    fn update<E>(&self, next: impl Fn(Record) -> Result<Record, E>) -> Result<Record, E> {
        // ORDERING: The call follows the event that it records: an answer has arrived, or the tasks
        // that request a flush have seen the end of their writes.
        let mut bits = self.record.load(Relaxed);
        loop {
            let before = Record::from_bits(bits);
            let next = next(before)?.to_bits();
            if next == bits {
                return Ok(before);
            }
            // ORDERING: The new record is visible before a flush is sent or a write ends.
            match self.record.cmpxchg(bits, next, Full) {
                Ok(_) => return Ok(before),
                Err(now) => bits = now,
            }
        }
    }

    /// As [`WriteCache::update`], for a change that cannot fail.
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

    /// Records that a write sent in `generation`, which need not be durable, was answered.
    ///
    /// # Errors
    ///
    /// [`Late`] if the server's write cache was lost since, so that the write must be resent.
    #[inline]
    pub(crate) fn written(&self, generation: u32) -> Result<(), Late> {
        // ORDERING: The cache generation distinguishes answers from before the change of `safe`.
        let safe = self.safe.load(Relaxed);
        // For most writes the record does not change.
        self.update(|record| {
            let next = record.written(generation)?;
            Ok(if safe { record } else { next })
        })?;
        Ok(())
    }

    /// Records that the flush with `tag` is about to be sent.
    pub(crate) fn flushing(&self, tag: Tag) {
        self.change(|record| record.flushing(tag.get()));
    }

    /// Records that the flush with `tag`, sent in `generation`, has succeeded.
    pub(crate) fn flushed(&self, generation: u32, tag: Tag) {
        self.change(|record| record.flushed(generation, tag.get()));
    }

    /// Records that the server's write cache was lost; the queue is quiesced. Returns whether there
    /// were unflushed writes: flushes fail from now on.
    pub(crate) fn lose(&self) -> bool {
        let before = self.change(Record::lost);
        let matters = before.unflushed() != Unflushed::Nothing;
        if matters {
            self.loss.xchg(LOST, Full);
        }
        matters
    }

    /// Records that all answered writes are durable, as the server reports; the queue is quiesced.
    pub(crate) fn kept(&self) {
        self.change(Record::lost);
    }

    /// Returns whether a flush must fail because unflushed writes may be lost; the loss then counts
    /// as reported.
    pub(crate) fn fails_flush(&self) -> bool {
        if self.loss.load(Relaxed) == WHOLE {
            return false;
        }
        // If this fails, the loss was already reported or acknowledged.
        let _ = self.loss.cmpxchg(LOST, REPORTED, Full);
        true
    }

    /// Returns whether flushes fail.
    pub(crate) fn has_lost(&self) -> bool {
        self.loss.load(Relaxed) != WHOLE
    }

    /// Records that the last opener has closed the disk: flushes succeed again if one has failed.
    /// Returns whether this call has made them succeed again.
    pub(crate) fn closed(&self) -> bool {
        self.loss.cmpxchg(REPORTED, WHOLE, Full).is_ok()
    }

    /// Lets flushes succeed again, because the operator has acknowledged the loss. Returns whether
    /// this call has made them succeed again.
    pub(crate) fn accept_loss(&self) -> bool {
        self.loss.xchg(WHOLE, Full) != WHOLE
    }
}
