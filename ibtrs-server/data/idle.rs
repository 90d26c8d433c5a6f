// SPDX-License-Identifier: GPL-2.0

//! The state of the rounds that release the small buffers of idle slots ([`crate::path::rounds`]).
//!
//! A slot keeps its small buffer for its next request. The device may still read the data of an
//! answer from the buffer, even after the client has received the answer: if an acknowledgement was
//! lost, the device retransmits. Answers are not signalled, so there is no completion to wait for.
//! Buffers are therefore released in rounds. A round marks the idle slots, and flushes every
//! connection: the completion of the flush shows that everything sent before it was acknowledged.
//! When all connections have reported, the round is complete, and slots that are still idle release
//! their buffers. If memory is short, all other slots that have sent nothing unsignalled since the
//! round began release theirs, too.

use crate::types::Round;
use kx::sync::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed,
    Release, //
};

/// The state of the rounds of a path.
pub(crate) struct Idle {
    /// The latest round that has begun.
    latest: Atomic<u32>,
    /// The last completed round.
    done: Atomic<u32>,
    /// Number of connections that have not yet reported.
    reports: Atomic<u32>,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self {
            latest: Atomic::new(0),
            done: Atomic::new(0),
            reports: Atomic::new(0),
        }
    }

    /// Returns the latest round that has begun. Called under the lock of a slot, from which an
    /// answer is sent before the lock is released.
    #[inline]
    pub(crate) fn latest(&self) -> Round {
        // ORDERING: See `begin`.
        Round(self.latest.load(Relaxed))
    }

    /// Begins a round. The caller then visits each slot under its lock, and flushes the connections
    /// only after that. An answer of a slot is therefore either sent before the visit, so that this
    /// round completes only after its acknowledgement, or sent after the visit, so that it records the
    /// number of this round.
    pub(crate) fn begin(&self) {
        // ORDERING: The locks of the slots order it.
        self.latest.fetch_add(1, Relaxed);
    }

    /// Returns the last completed round.
    #[inline]
    pub(crate) fn done(&self) -> Round {
        // ORDERING: Pairs with `end`.
        Round(self.done.load(Acquire))
    }

    /// Records that a connection was asked to report.
    pub(crate) fn asked(&self) {
        self.reports.fetch_add(1, Relaxed);
    }

    /// Returns whether all connections have reported for the latest round.
    pub(crate) fn has_reports(&self) -> bool {
        // ORDERING: Pairs with `flushed`.
        self.reports.load(Acquire) == 0
    }

    /// Completes the latest round, for which all connections have reported.
    pub(crate) fn end(&self) {
        // ORDERING: Pairs with `PathIo::shortage`: a thread that takes a buffer is ordered after
        // the reports.
        self.done.store(self.latest.load(Relaxed), Release);
    }

    /// Records that everything that connection `cid` had sent before its flush was acknowledged.
    /// The service connection does not take part.
    pub(crate) fn flushed(&self, cid: u16) {
        if cid > 0 {
            // ORDERING: Pairs with the load in `has_reports`, so that the end of the round is
            // ordered after the device's use of the buffers.
            self.reports.fetch_sub(1, Full);
        }
    }
}
