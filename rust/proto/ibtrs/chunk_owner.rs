// SPDX-License-Identifier: GPL-2.0

//! Chunk ownership: which path of a session has a chunk number in service (server).
//!
//! Chunk `buf_id` names at most one request of a client at a time, over whichever path it arrives.
//! After a failover the client sends the request again over another path, while the server's disk
//! may still execute the first attempt. If both were in service at once, the older write could land
//! last. So each number has one word for the whole session: the path whose request is in service,
//! and the path whose request waits for that to end.
//!
//! # What the driver keeps
//!
//! - One [`ChunkOwner`] for each number, in an atomic `u32` ([`ChunkOwner::to_bits`]).
//! - A [`PathId`] for each path, unlike those of all other paths of the session that are not
//!   released yet, and a way from the id to the path.
//! - For each path and number a place for one *waiting* request. A waiting request counts as in
//!   service of its path: the path is not CLOSED before it was served or dropped.
//!
//! # What the driver does, in this order
//!
//! **A request arrives** by path `me`, which is not closing:
//!
//! 1. Load the word (acquire) and ask [`ChunkOwner::arrive`].
//! 2. [`Arrive::Serve`]: compare-exchange, check again whether `me` is closing, then serve. If it
//!    is closing, drop the request instead, see below.
//! 3. [`Arrive::Wait`]: *first* put the request into its place, *then* compare-exchange:
//!    the thread that serves it finds the request once the word names it. After success check again
//!    whether `me` is closing. If it is not, take the request of `displaced`, if there is one, out
//!    of its place, drop it and close its path; also close the path `close`. If `me` is closing, its
//!    request does not show which path the client uses now: close no path, give a `displaced`
//!    request its place back ([`ChunkOwner::restore`]), and let `me` leave, see below.
//! 4. [`Arrive::Violation`]: close `me`; the request is dropped.
//! 5. If the word has changed by then, start over; the request may leave its place again, because
//!    no other thread knew of it.
//!
//! The compare-exchange is fully ordered, and so is the change that begins the closing of a path.
//! So a fence may be answered as soon as its path is closing: a request that arrives later sees
//! that, and neither gets into service nor closes the path that the client uses.
//!
//! **The I/O of a request has ended**, or a request that was to be served is dropped: ask
//! [`ChunkOwner::done`] and compare-exchange (acquire-release at least: the next one's I/O starts
//! after this one's has ended). Only *after* that post the answer, if the path still lives: the
//! client may use the number again as soon as it has the answer. With [`Done::Wake`] take the
//! waiter's request out of its place and serve it, or drop it if its path is closing, which is
//! another [`ChunkOwner::done`], for that path.
//!
//! **A path is closing**: after its QPs are drained, so that nothing arrives any more, and before
//! its requests are waited for, ask [`ChunkOwner::leave`] for each number with a waiting request.
//! With [`Leave::Left`] compare-exchange (acquire-release), take the request out and drop it. With
//! [`Leave::Elsewhere`] another thread has taken it off the word, and drops or serves it; the path
//! is not CLOSED before that.
//!
//! [`crate::serving`] has these steps as functions.
//!
//! So there is one rule for waiting requests: the thread that takes an id out of the waiter's part
//! of the word takes the request out of its place.

use core::num::NonZeroU16;

/// Identifies a path within its session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PathId(NonZeroU16);

impl PathId {
    /// The id with a number; `None` for 0.
    pub const fn new(n: u16) -> Option<Self> {
        match NonZeroU16::new(n) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

/// The path that serves a chunk number, and the path that waits for it.
///
/// # Invariants
///
/// Without an owner there is no waiter, and owner and waiter are different paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkOwner {
    owner: Option<PathId>,
    waiter: Option<PathId>,
}

/// The decision about a request that arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Arrive {
    /// Store this word, and serve the request.
    Serve(ChunkOwner),
    /// Another path has the number in service, which the client has superseded. Put the request
    /// into its place, then store `next`.
    Wait {
        /// The word from now on.
        next: ChunkOwner,
        /// The superseded path, which must be closed.
        close: PathId,
        /// The path whose request waited until now. It is superseded, too, and must be closed; its
        /// request must never be served.
        displaced: Option<PathId>,
    },
    /// This path has already sent a request with this number, and must be closed.
    Violation,
}

/// The step that follows the end of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Done {
    /// Store this word; no path waits.
    Free(ChunkOwner),
    /// Store `next`, and serve the waiting request of `waiter`, which owns the number now.
    Wake {
        /// The word from now on.
        next: ChunkOwner,
        /// The path whose request must be served.
        waiter: PathId,
    },
    /// The path does not own the number: a mistake of the caller, which stores nothing.
    Stray,
}

/// The decision about a waiting request whose path is closing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Leave {
    /// Store this word, and drop the request.
    Left(ChunkOwner),
    /// The request does not wait any more: another thread has taken it.
    Elsewhere,
}

/// The decision about a displaced request whose place a closing path took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Restore {
    /// Store this word, and drop the request of the closing path: the displaced request waits again.
    Waits(ChunkOwner),
    /// Store this word: the displaced request waits again, and another thread drops the request of
    /// the closing path.
    Behind(ChunkOwner),
    /// The client may have sent a newer request meanwhile, over yet another path.
    Superseded,
}

impl ChunkOwner {
    /// The number is free.
    pub const FREE: Self = Self {
        owner: None,
        waiter: None,
    };

    /// The word as a number for an atomic; the inverse of [`ChunkOwner::from_bits`].
    pub const fn to_bits(self) -> u32 {
        half(self.waiter) << 16 | half(self.owner)
    }

    /// The word of a number from [`ChunkOwner::to_bits`].
    pub const fn from_bits(bits: u32) -> Self {
        // CAST: Each keeps the 16 bits of its half.
        Self {
            owner: PathId::new(bits as u16),
            waiter: PathId::new((bits >> 16) as u16),
        }
    }

    /// The path whose request is in service.
    pub const fn owner(self) -> Option<PathId> {
        self.owner
    }

    /// The path whose request waits.
    pub const fn waiter(self) -> Option<PathId> {
        self.waiter
    }

    /// Decides about a request for the number that has arrived on path `me`.
    pub fn arrive(self, me: PathId) -> Arrive {
        if self.owner == Some(me) || self.waiter == Some(me) {
            return Arrive::Violation;
        }
        match self.owner {
            None => Arrive::Serve(Self {
                owner: Some(me),
                waiter: None,
            }),
            Some(close) => Arrive::Wait {
                next: Self {
                    owner: self.owner,
                    waiter: Some(me),
                },
                close,
                displaced: self.waiter,
            },
        }
    }

    /// Decides what follows the request of path `me`, which is no longer in service: its I/O has
    /// ended, or it was dropped.
    pub fn done(self, me: PathId) -> Done {
        if self.owner != Some(me) {
            return Done::Stray;
        }
        match self.waiter {
            None => Done::Free(Self::FREE),
            Some(waiter) => Done::Wake {
                next: Self {
                    owner: Some(waiter),
                    waiter: None,
                },
                waiter,
            },
        }
    }

    /// Decides about the request of path `displaced`, which has waited until [`Arrive::Wait`] put
    /// one of path `me` into its place, if `me` is closing.
    pub fn restore(self, me: PathId, displaced: PathId) -> Restore {
        match (self.owner, self.waiter) {
            (Some(owner), Some(waiter)) if waiter == me && owner != displaced => {
                Restore::Waits(Self {
                    owner: self.owner,
                    waiter: Some(displaced),
                })
            }
            (Some(owner), None) if owner == me && me != displaced => Restore::Behind(Self {
                owner: self.owner,
                waiter: Some(displaced),
            }),
            _ => Restore::Superseded,
        }
    }

    /// Decides about the waiting request of path `me`, which is closing.
    pub fn leave(self, me: PathId) -> Leave {
        if self.waiter != Some(me) {
            return Leave::Elsewhere;
        }
        Leave::Left(Self {
            owner: self.owner,
            waiter: None,
        })
    }
}

const fn half(id: Option<PathId>) -> u32 {
    match id {
        // Lossless: u16 to u32.
        Some(id) => id.get() as u32,
        None => 0,
    }
}
