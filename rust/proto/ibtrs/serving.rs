// SPDX-License-Identifier: GPL-2.0

//! Brings requests of one number into service one after the other, and drops those of a closing
//! path (server): the steps that [`crate::chunk_owner`] prescribes, in their order.
//!
//! Many threads execute these steps at once: receives of any path, completions of I/O, the worker
//! that serves waiting requests, and the teardown of each path. The driver provides the words and
//! the places. Each of their methods is atomic; no other step needs to be.
//!
//! # Where a request is
//!
//! A request is in one place at a time, or owned by one thread. It may be *waiting*, as another
//! path has its number; or *invalidating* until the key of its chunk is invalidated, and then it
//! has its number. A thread that owns a request and cannot continue drops the request itself, as no
//! other thread looks for it. So the teardown of a path only visits the places, and repeats that
//! until they are empty.

use crate::chunk_owner::{Arrive, ChunkOwner, Done, Leave, PathTag};

/// The words of a session, one for each number.
pub trait Words {
    /// The word of a number; none if there is no such number.
    fn load(&self, number: u16) -> Option<ChunkOwner>;

    /// Replaces a word, fully ordered; returns whether it still was `old`.
    fn replace(&self, number: u16, old: ChunkOwner, new: ChunkOwner) -> bool;
}

/// A path's place for the request with a number.
pub trait Place {
    /// The request.
    type Request;

    /// Makes it wait. It comes back if there is one.
    ///
    /// # Errors
    ///
    /// The request, if one is waiting already.
    fn put_waiting(&self, request: Self::Request) -> Result<(), Self::Request>;

    /// Takes the one that waits.
    fn take_waiting(&self) -> Option<Self::Request>;

    /// Returns whether one waits.
    fn has_waiting(&self) -> bool;

    /// Keeps it while the key of its chunk is invalidated.
    ///
    /// # Errors
    ///
    /// The request, if one is there already.
    fn put_invalidating(&self, request: Self::Request) -> Result<(), Self::Request>;

    /// Takes the one whose key is being invalidated.
    fn take_invalidating(&self) -> Option<Self::Request>;
}

/// The result for a request that has arrived.
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub enum Claim<R> {
    /// It has its number: serve it, or drop it and [`release`] the number if the path is being
    /// closed, which is to be asked after this only.
    Has(R),
    /// It waits.
    Waits {
        /// The client has superseded this path. To be closed, unless the request's own path is
        /// being closed, which is to be asked after this only.
        close: PathTag,
        /// This path's request is to be taken out of its place and dropped, and the path closed.
        displaced: Option<PathTag>,
    },
    /// The path had a request of that number already.
    Violation(R),
}

/// Claims `number` for a request that path `me` has for it, and whose place is `place`.
pub fn claim<W: Words, P: Place>(
    words: &W,
    me: PathTag,
    number: u16,
    place: &P,
    mut request: P::Request,
) -> Claim<P::Request> {
    while let Some(word) = words.load(number) {
        match word.arrive(me) {
            Arrive::Violation => break,
            Arrive::Serve(next) => {
                if words.replace(number, word, next) {
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
                if words.replace(number, word, next) {
                    return Claim::Waits { close, displaced };
                }
                match place.take_waiting() {
                    Some(back) => request = back,
                    // No other thread knows of it yet, so this does not happen.
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

/// The next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Next {
    /// No request waits.
    Nobody,
    /// The waiting request of this path, which has the number now: it is to be served, or dropped.
    Wake(PathTag),
    /// The number was not the path's: a mistake of the caller.
    Stray,
}

/// The request of path `me` is over.
pub fn release<W: Words>(words: &W, me: PathTag, number: u16) -> Next {
    while let Some(word) = words.load(number) {
        match word.done(me) {
            Done::Free(next) => {
                if words.replace(number, word, next) {
                    return Next::Nobody;
                }
            }
            Done::Wake { next, waiter } => {
                if words.replace(number, word, next) {
                    return Next::Wake(waiter);
                }
            }
            Done::Stray => break,
        }
    }
    Next::Stray
}

/// Holds a request, which has its number, until the key of its chunk is invalidated, which `post`
/// asks the device for; it tells whether it did.
///
/// # Errors
///
/// The request, if the device was not asked: no completion will tell of it. To be dropped.
pub fn invalidate<P: Place>(
    place: &P,
    request: P::Request,
    post: impl FnOnce() -> bool,
) -> Result<(), P::Request> {
    place.put_invalidating(request)?;
    if post() {
        return Ok(());
    }
    // The end of the path may have been faster.
    place.take_invalidating().map_or(Ok(()), Err)
}

/// The step for a number of a path that is being closed.
#[derive(PartialEq, Eq, Debug)]
#[must_use]
pub enum Left<R> {
    /// No request that waits for anything. In hands there may be one.
    Nothing,
    /// A request that has its number: to be dropped, and the number released.
    Invalidating(R),
    /// A request that does not have its number: to be dropped.
    Waiting(R),
    /// Another thread is about to take the request: visit the number again.
    Taken,
}

/// Takes what path `me`, which takes no requests any more and whose connections have ended, has
/// left of a number. To be called again until there is [`Left::Nothing`]: the path is not gone
/// before.
pub fn leave<W: Words, P: Place>(
    words: &W,
    me: PathTag,
    number: u16,
    place: &P,
) -> Left<P::Request> {
    if let Some(request) = place.take_invalidating() {
        return Left::Invalidating(request);
    }
    while place.has_waiting() {
        let Some(word) = words.load(number) else {
            break;
        };
        match word.leave(me) {
            Leave::Left(next) => {
                if words.replace(number, word, next) {
                    return place.take_waiting().map_or(Left::Nothing, Left::Waiting);
                }
            }
            // The thread that took the path off the word takes the request.
            Leave::Elsewhere => return Left::Taken,
        }
    }
    Left::Nothing
}
