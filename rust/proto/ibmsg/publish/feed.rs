// SPDX-License-Identifier: GPL-2.0

//! The publisher's side of a subscription: a cursor in a log.
//!
//! Each subscriber has its own, so an entry that some have and others do not is nobody's concern: each goes on where
//! it is. The caller asks [`Feed::step`] while the channel has credits for what it queues, and queues that; nothing
//! waits in the channel's queue instead of the log.

use ibtrs_proto::Errno;

use super::log::{Log, LogId, Policy};
use super::{From, Request};

/// What to queue on the channel next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedStep {
    /// SUBSCRIBED: the subscription begins with the entry at this position of this log.
    Subscribed(LogId, u64),
    /// LOST: as many entries, from this position on, are not in the log any more.
    Lost(u64, u64),
    /// PUBLISHED: the entry at this position.
    Entry(u64),
    /// ENDED: nothing more comes, from this position on; with the reason, if there is one. The subscription is
    /// [over](Feed::is_over) when it is queued.
    Ended(u64, Option<Errno>),
    /// Nothing now.
    Idle,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// SUBSCRIBED is to be sent.
    Begins,
    /// The subscriber asks for entries that were dropped before it had subscribed: not because it is slow.
    Joins,
    Live,
    /// ENDED is to be sent.
    Ends(Option<Errno>),
    Over,
}

/// A subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feed {
    tag: u64,
    log: LogId,
    /// The next entry to queue.
    at: u64,
    state: State,
}

impl Feed {
    /// SUBSCRIBE has arrived, for a tag to which the channel has no subscription.
    pub const fn new(tag: u64, request: &Request, log: &Log) -> Self {
        let feed = Self {
            tag,
            log: log.id(),
            at: log.first(),
            state: State::Begins,
        };
        match request.from {
            From::First => feed,
            From::Next => Self {
                at: log.next(),
                ..feed
            },
            // Positions of a former log mean nothing here: the id in SUBSCRIBED says that this is another one.
            From::Position(id, at) if id.get() != log.id().get() => match request.exact {
                true => feed.refused(at, Errno::ESTALE),
                false => feed,
            },
            From::Position(_, at) if at > log.next() => feed.refused(at, Errno::ERANGE),
            From::Position(_, at) if at < log.first() && request.exact => {
                feed.refused(at, Errno::ESTALE)
            }
            From::Position(_, at) => Self { at, ..feed },
        }
    }

    /// SUBSCRIBE has arrived, and there can be no subscription.
    pub const fn refusal(tag: u64, request: &Request, log: LogId, why: Errno) -> Self {
        let at = match request.from {
            From::Position(_, at) => at,
            From::First | From::Next => 0,
        };
        Self {
            tag,
            log,
            at,
            state: State::Ends(Some(why)),
        }
    }

    const fn refused(self, at: u64, why: Errno) -> Self {
        Self {
            at,
            state: State::Ends(Some(why)),
            ..self
        }
    }

    /// The tag.
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// The log.
    pub const fn log(&self) -> LogId {
        self.log
    }

    /// The next entry to queue.
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// Whether ENDED is queued: the channel may have another subscription to the tag.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// The oldest entry that the subscriber still needs; `None` if it needs none any more.
    pub const fn holds(&self) -> Option<u64> {
        match self.state {
            State::Begins | State::Joins | State::Live => Some(self.at),
            State::Ends(_) | State::Over => None,
        }
    }

    /// What to queue on the channel next, if that has credits. [`Feed::queued`] says that it is queued.
    pub fn step(&self, log: &Log) -> FeedStep {
        let missing = log.first().saturating_sub(self.at);
        match self.state {
            State::Begins => FeedStep::Subscribed(self.log, self.at),
            State::Ends(why) => FeedStep::Ended(self.at, why),
            State::Over => FeedStep::Idle,
            State::Live if missing > 0 && log.terms().policy() == Policy::Close => {
                FeedStep::Ended(self.at, Some(Errno::ENOBUFS))
            }
            State::Joins | State::Live if missing > 0 => FeedStep::Lost(self.at, missing),
            State::Joins | State::Live if self.at < log.next() => FeedStep::Entry(self.at),
            State::Joins | State::Live => FeedStep::Idle,
        }
    }

    /// What [`Feed::step`] has said is in the channel's queue.
    pub fn queued(&mut self, step: FeedStep) {
        match step {
            FeedStep::Subscribed(..) => self.state = State::Joins,
            FeedStep::Lost(first, count) => {
                self.at = first.saturating_add(count);
                self.state = State::Live;
            }
            FeedStep::Entry(position) => {
                self.at = position.saturating_add(1);
                self.state = State::Live;
            }
            FeedStep::Ended(..) => self.state = State::Over,
            FeedStep::Idle => {}
        }
    }

    /// The subscription is to end: UNSUBSCRIBE has arrived, or the portal is closed (with the reason). What is queued
    /// on the channel still arrives. One that is ending already keeps its reason.
    pub fn end(&mut self, why: Option<Errno>) {
        if self.holds().is_some() {
            self.state = State::Ends(why);
        }
    }
}
