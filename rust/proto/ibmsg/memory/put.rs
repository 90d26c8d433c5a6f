// SPDX-License-Identifier: GPL-2.0

//! PUT: RDMA WRITEs, then a note with a number among the messages.
//!
//! The note stands in the channel's queue as a message does, so the PUT takes effect exactly there: the
//! WRITEs are posted when it comes to the cursor, on the connection that carries the note behind them.
//! The peer's `next` behind the note says that all of it is in place. It is then never repeated, even
//! if the answer is lost: the program may have changed the memory since.

use super::keys::{Access, Wish};
use super::range::{Handle, Range, Refusal, Rights};
use super::{Keys, OpOutcome};
use crate::send::{Item, Progress, Sender};

/// What to do next for the PUT at the cursor of the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutStep {
    /// Send ASK for this piece.
    Ask(u64),
    /// Send RETURN for this piece of this handle, and ask again.
    Return(Handle, u64),
    /// Post a WRITE: [`Put::completed`] with `place` when it has completed.
    Write {
        /// Offsets of the memory.
        part: Range,
        /// The first byte's place in the program's buffer.
        from: u64,
        /// The key.
        rkey: u32,
        /// The address for it.
        addr: u64,
        /// For [`Keys::done`].
        place: usize,
    },
    /// All WRITEs are posted: send the note, as [`Sender::next`] says.
    Note,
    /// Nothing now.
    Wait,
    /// It has failed, and no work request of it is under way. [`Put::failed`] has the outcome.
    Failed(Refusal),
}

/// A PUT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    handle: Handle,
    range: Range,
    /// Bytes whose WRITEs were posted on the present connection.
    at: u64,
    /// WRITEs that have not completed.
    posted: u32,
    /// A WRITE was posted, on this connection or a former one.
    touched: bool,
    refused: Option<Refusal>,
}

impl Put {
    /// A PUT to these offsets.
    pub const fn new(handle: Handle, range: Range) -> Self {
        Self {
            handle,
            range,
            at: 0,
            posted: 0,
            touched: false,
            refused: None,
        }
    }

    /// The memory.
    pub const fn handle(&self) -> Handle {
        self.handle
    }

    /// The offsets.
    pub const fn range(&self) -> Range {
        self.range
    }

    /// What to do next, while the channel's [`crate::channel::Channel::conn`] has a connection and the PUT is at
    /// the cursor.
    pub fn step<const N: usize>(&mut self, keys: &mut Keys<N>) -> PutStep {
        if let Some(refusal) = self.refused {
            return self.refuse(refusal);
        }
        let Some((piece, part)) = self.range.work(self.at) else {
            return PutStep::Note;
        };
        let write = Rights {
            read: false,
            write: true,
        };
        match keys.access(
            self.handle,
            &self.range,
            (piece, &part),
            write,
            Wish::Replace,
        ) {
            Access::At {
                rkey, addr, place, ..
            } => {
                let from = self.at;
                self.at = self.at.saturating_add(part.len());
                self.posted = self.posted.saturating_add(1);
                self.touched = true;
                PutStep::Write {
                    part,
                    from,
                    rkey,
                    addr,
                    place,
                }
            }
            Access::Ask(piece) => PutStep::Ask(piece),
            Access::Return(handle, piece) => PutStep::Return(handle, piece),
            Access::Wait | Access::Full => PutStep::Wait,
            Access::Refused(refusal) => self.refuse(refusal),
        }
    }

    fn refuse(&mut self, refusal: Refusal) -> PutStep {
        self.refused = Some(refusal);
        match self.posted {
            0 => PutStep::Failed(refusal),
            _ => PutStep::Wait,
        }
    }

    /// A WRITE has completed. The buffer may be reused only at the end of the PUT: it may have to be
    /// repeated. A PUT that is to complete locally has a copy.
    pub fn completed<const N: usize>(&mut self, keys: &mut Keys<N>, place: usize) {
        self.posted = self.posted.saturating_sub(1);
        keys.done(place);
    }

    /// The connection is lost, and its queue pair drained. All of it is written again.
    pub fn lost(&mut self) {
        (self.at, self.posted) = (0, 0);
    }

    /// Whether a work request is under way.
    pub const fn is_posted(&self) -> bool {
        self.posted > 0
    }

    /// Ends a PUT that has [failed](PutStep::Failed): the outcome. If its note has a number, SKIP takes its
    /// place, as that of a message whose time is over; else it leaves the queue, and the caller releases it.
    pub fn failed(&self, tx: &Sender, item: &mut Item) -> OpOutcome {
        let _ = tx.expire(item);
        OpOutcome::of(tx.progress(item), self.touched, true)
    }

    /// Ends a PUT whose channel has ended, or that waits no longer. `fenced`: the peer has fenced since the last
    /// WRITE was posted, or all have completed.
    pub fn end(&self, progress: Progress, fenced: bool) -> OpOutcome {
        OpOutcome::of(progress, self.touched, fenced)
    }
}
