// SPDX-License-Identifier: GPL-2.0

//! Brings requests of one tag into service one after the other, and drops those of a closing
//! path (server): the steps that [`crate::chunk_owner`] prescribes, in their order.
//!
//! Many threads execute these steps at once: receives of any path, completions of I/O, the worker
//! that serves waiting requests, and the teardown of each path. The driver provides the words and
//! the places. Each of their methods is atomic; no other step needs to be.
//!
//! # Where a request is
//!
//! A request is in one place at a time, or owned by one thread. It may be *waiting*, as another
//! path has its tag; or it has its tag and is *pending*, until the key of its chunk is
//! invalidated, there is a buffer for its data, or the data is fetched. A thread that owns a request and cannot continue drops the request itself, as no
//! other thread looks for it. So the teardown of a path only visits the places, and repeats that
//! until they are empty.

use crate::chunk_owner::{Arrive, ChunkOwner, Done, Leave, PathId, Restore};
use crate::tag::Tag;

/// The words of a session, one for each tag.
pub trait Words {
    /// The word of a tag; `None` if it is out of range.
    fn load(&self, tag: Tag) -> Option<ChunkOwner>;

    /// Replaces a word, fully ordered; returns whether it still was `old`.
    fn replace(&self, tag: Tag, old: ChunkOwner, new: ChunkOwner) -> bool;
}

/// The place of a path for its request with a tag.
pub trait Place {
    /// The request.
    type Request;

    /// Makes a request wait.
    ///
    /// # Errors
    ///
    /// Returns the request if one is already waiting.
    fn put_waiting(&self, request: Self::Request) -> Result<(), Self::Request>;

    /// Takes the waiting request.
    fn take_waiting(&self) -> Option<Self::Request>;

    /// Returns whether a request waits.
    fn has_waiting(&self) -> bool;

    /// Keeps a request that has its tag but is not served yet.
    ///
    /// # Errors
    ///
    /// Returns the request if one is already there.
    fn put_pending(&self, request: Self::Request) -> Result<(), Self::Request>;

    /// Takes that request.
    fn take_pending(&self) -> Option<Self::Request>;
}

/// The result for a request that has arrived.
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub enum Claim<R> {
    /// The request has its tag: serve it. If the path is closing, which the caller checks only
    /// after this, drop the request and [`release`] the tag instead.
    Has(R),
    /// The request waits. If its path is closing, which the caller checks only after this, the
    /// caller closes no path, and has a displaced request [restored](restore).
    Waits {
        /// The path that the client has superseded, and which the caller closes.
        close: PathId,
        /// A path whose request the caller takes out of its place and drops, and which it closes.
        displaced: Option<PathId>,
    },
    /// The path already has a request with this tag.
    Violation(R),
}

/// Claims `tag` for `request` of path `me`, which has `place` for it.
pub fn claim<W: Words, P: Place>(
    words: &W,
    me: PathId,
    tag: Tag,
    place: &P,
    mut request: P::Request,
) -> Claim<P::Request> {
    while let Some(word) = words.load(tag) {
        match word.arrive(me) {
            Arrive::Violation => break,
            Arrive::Serve(next) => {
                if words.replace(tag, word, next) {
                    return Claim::Has(request);
                }
            }
            Arrive::Wait {
                next,
                close,
                displaced,
            } => {
                if let Err(back) = place.put_waiting(request) {
                    return Claim::Violation(back);
                }
                if words.replace(tag, word, next) {
                    return Claim::Waits { close, displaced };
                }
                match place.take_waiting() {
                    Some(back) => request = back,
                    // Does not happen: no other thread knows of the request yet.
                    None => {
                        return Claim::Waits {
                            close,
                            displaced: None,
                        }
                    }
                }
            }
        }
    }
    Claim::Violation(request)
}

/// The outcome for a displaced request.
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub enum Restored<R> {
    /// It waits again. Drop this request of the closing path, unless another thread has taken it.
    Waits(Option<R>),
    /// The client may have sent a newer one meanwhile: drop it, and close its path.
    Superseded,
}

/// Gives the request of path `displaced` its place back, which a request of path `me` has taken
/// with [`claim`]. Path `me` is closing and its request late, so the client does not wait for that.
/// Path `displaced` may well be the one that the client uses.
pub fn restore<W: Words, P: Place>(
    words: &W,
    me: PathId,
    tag: Tag,
    place: &P,
    displaced: PathId,
) -> Restored<P::Request> {
    while let Some(word) = words.load(tag) {
        match word.restore(me, displaced) {
            Restore::Waits(next) => {
                if words.replace(tag, word, next) {
                    return Restored::Waits(place.take_waiting());
                }
            }
            Restore::Behind(next) => {
                if words.replace(tag, word, next) {
                    return Restored::Waits(None);
                }
            }
            Restore::Superseded => break,
        }
    }
    Restored::Superseded
}

/// The next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Next {
    /// No request waits.
    Nobody,
    /// The waiting request of this path has the tag now: serve it, or drop it.
    Wake(PathId),
    /// The path does not own the tag: a mistake of the caller.
    Stray,
}

/// Releases `tag`, because the request of path `me` is no longer in service.
pub fn release<W: Words>(words: &W, me: PathId, tag: Tag) -> Next {
    while let Some(word) = words.load(tag) {
        match word.done(me) {
            Done::Free(next) => {
                if words.replace(tag, word, next) {
                    return Next::Nobody;
                }
            }
            Done::Wake { next, waiter } => {
                if words.replace(tag, word, next) {
                    return Next::Wake(waiter);
                }
            }
            Done::Stray => break,
        }
    }
    Next::Stray
}

/// Keeps a request, which has its tag, until it can be served. `post` arranges that: for example,
/// it asks the device to invalidate the key of its chunk. It returns whether it could; if not, nobody
/// but the teardown of the path may have learnt of the request from it.
///
/// # Errors
///
/// Returns the request if nobody will take it. The caller drops it.
pub fn pend<P: Place>(
    place: &P,
    request: P::Request,
    post: impl FnOnce() -> bool,
) -> Result<(), P::Request> {
    place.put_pending(request)?;
    if post() {
        return Ok(());
    }
    // The teardown of the path may have taken the request meanwhile.
    place.take_pending().map_or(Ok(()), Err)
}

/// The step for a tag of a closing path.
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub enum Left<R> {
    /// The place is empty. A thread may own a request.
    Nothing,
    /// A request that has its tag: drop it, and release the tag.
    Pending(R),
    /// A request that does not have its tag: drop it.
    Waiting(R),
    /// Another thread is about to take the request: visit the tag again.
    Taken,
}

/// Takes the request that path `me` has left in its place for a tag. The path takes no more
/// requests, and its connections have ended. The caller repeats this until it returns
/// [`Left::Nothing`]: the path is not CLOSED before.
pub fn leave<W: Words, P: Place>(words: &W, me: PathId, tag: Tag, place: &P) -> Left<P::Request> {
    if let Some(request) = place.take_pending() {
        return Left::Pending(request);
    }
    while place.has_waiting() {
        let Some(word) = words.load(tag) else {
            break;
        };
        match word.leave(me) {
            Leave::Left(next) => {
                if words.replace(tag, word, next) {
                    return place.take_waiting().map_or(Left::Nothing, Left::Waiting);
                }
            }
            // The thread that took the path off the word takes the request.
            Leave::Elsewhere => return Left::Taken,
        }
    }
    Left::Nothing
}
