// SPDX-License-Identifier: GPL-2.0

//! How far the rounds are that give back the small buffers of idle slots ([`crate::path::rounds`]).
//!
//! A slot keeps its small buffer, so that the next request finds it. The device may still send the
//! data of an answer from there, once more if an acknowledgement was lost, even when the client has
//! the answer. Answers are not signalled, so nothing tells when that is over. So this goes in
//! rounds: a round marks the slots that are idle, and has every connection report when all that was
//! sent before has been acknowledged. When all have, the round is over, and the slots that are still
//! idle give back their buffers. If memory is short, so do all others that have sent nothing without
//! a signal since the round began.

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
    /// The round that began last.
    latest: Atomic<u32>,
    /// The last round that is over.
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

    /// Returns the round that began last. Called under the lock of a slot, from which an answer is
    /// sent before the lock is released.
    #[inline]
    pub(crate) fn latest(&self) -> Round {
        // ORDERING: See `begin`.
        Round(self.latest.load(Relaxed))
    }

    /// Begins a round. The caller then visits each slot under its lock before it asks the connections.
    /// So an answer of a slot is either sent before that visit, and this round is over only when it has
    /// been acknowledged; or it is sent after the visit, and takes the number of this round.
    pub(crate) fn begin(&self) {
        // ORDERING: The locks of the slots make it visible.
        self.latest.fetch_add(1, Relaxed);
    }

    /// Returns the last round that is over.
    #[inline]
    pub(crate) fn done(&self) -> Round {
        // ORDERING: Pairs with `end`.
        Round(self.done.load(Acquire))
    }

    /// Notes that a connection is asked to report.
    pub(crate) fn asked(&self) {
        self.reports.fetch_add(1, Relaxed);
    }

    /// Returns whether all reports of the latest round are there.
    pub(crate) fn has_reports(&self) -> bool {
        // ORDERING: Pairs with `flushed`.
        self.reports.load(Acquire) == 0
    }

    /// Ends the latest round, all of whose reports are there.
    pub(crate) fn end(&self) {
        // ORDERING: Pairs with `PathIo::shortage`: who takes a buffer comes after the reports.
        self.done.store(self.latest.load(Relaxed), Release);
    }

    /// Records that all that connection `cid` had sent before it was asked has been acknowledged.
    /// The service connection is not asked.
    pub(crate) fn flushed(&self, cid: u16) {
        if cid > 0 {
            // ORDERING: Pairs with the load of the next round, which comes after the device.
            self.reports.fetch_sub(1, Full);
        }
    }
}
