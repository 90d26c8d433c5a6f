// SPDX-License-Identifier: GPL-2.0

//! Memory of programs that the peer's program reads and writes.
//!
//! The *owner* publishes a range on a channel as a [`Handle`]; the *asker* gets from it and puts to it.
//! Keys of RDMA are between the kernels, and belong to one channel and one connection. The design is in
//! Documentation/protocol.md, "Memory".
//!
//! | Module | Contents |
//! |---|---|
//! | [`range`] | handles, ranges, rights, pieces, refusals |
//! | [`terms`] | what OPEN and ACCEPT say |
//! | [`export`] | the owner: publishing, revocation |
//! | [`granted`] | the owner: the keys that the peer has |
//! | [`keys`] | the asker: the keys that it has |
//! | [`put`] | PUT |
//! | [`get`] | GET, by RDMA READ or as a push of the peer's kernel |
//! | [`bodies`] | a message whose body stays with the sender until the receiver gets it |
//!
//! # The fence
//!
//! A side sends an entry of RESUME or RESUMED for a channel only when nothing can be written to its
//! memory any more by a connection that the channel has left: that queue pair is in error and drained,
//! or all keys of the channel there are invalidated ([`granted::Granted::fence`]). A side posts work for
//! the channel on the new connection only after the other side's entry. So what was posted on a former
//! connection never lands after what is posted on the present one, and what is said about an operation
//! after a move is final.

pub mod bodies;
pub mod export;
pub mod get;
pub mod granted;
pub mod keys;
pub mod put;
pub mod range;
pub mod terms;

pub use bodies::{BodyEnd, BodyError, BodyRef, Held, Loan, BODY_LEN, MAX_BODIES};
pub use export::{Export, Unmap};
pub use get::{Get, GetStep, Reading};
pub use granted::{GrantError, Granted};
pub use keys::{Keys, KeysError, Want};
pub use put::{Put, PutStep};
pub use range::{Handle, Key, Range, Refusal, Rights, MAX_WORK, PIECE};
pub use terms::{MemoryTerms, MAX_KEYS};

use crate::send::Progress;

/// What became of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpOutcome {
    /// All of it is done.
    Done,
    /// No byte of it has reached the memory, and none will.
    NotDone,
    /// Some bytes may have reached the memory, and no more will.
    Torn,
    /// Some bytes may have, and may still: the peer's kernel is lost, or could not be asked. None after those
    /// of a later operation of the channel.
    Unknown,
}

impl OpOutcome {
    /// The outcome of a PUT that ends. `touched`: a WRITE was posted; `progress`: of its note; `fenced`:
    /// nothing of it is posted, and the channel is on a connection, or the peer has fenced since.
    pub const fn of(progress: Progress, touched: bool, fenced: bool) -> Self {
        match (progress, touched, fenced) {
            (Progress::Queued | Progress::Taken, _, _) => Self::Done,
            (Progress::Pending, false, _) => Self::NotDone,
            (Progress::Pending, true, true) => Self::Torn,
            (Progress::Pending, true, false) => Self::Unknown,
        }
    }
}
