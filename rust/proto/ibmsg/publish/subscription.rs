// SPDX-License-Identifier: GPL-2.0

//! The subscriber's side of a subscription: what may arrive, and where to go on.

use ibtrs_proto::Errno;

use super::log::LogId;
use super::{From, Request};

/// What the publisher's kernel must not send. The receiver fails the path that it came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishError {
    /// A subscription begins that nobody has asked for, or elsewhere than was asked for.
    Begin,
    /// An entry, or the end, that does not come next.
    Position(u64),
    /// LOST of no entries, or of more than there are positions.
    Count(u64),
    /// Something for a tag without a subscription, or before SUBSCRIBED.
    NoSubscription(u64),
    /// SUBSCRIBE for a tag that has a subscription, or more of them than agreed.
    Subscribe(u64),
    /// A record of publishing from the wrong side, or on a channel without it.
    Side,
}

impl PublishError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Begin => "subscription begins elsewhere than was asked for",
            Self::Position(_) => "published entry does not come next",
            Self::Count(_) => "impossible number of lost entries",
            Self::NoSubscription(_) => "published entry without a subscription",
            Self::Subscribe(_) => "subscription that exists, or more of them than agreed",
            Self::Side => "record of publishing from a side that must not send it",
        }
    }
}

/// How a subscription begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begins {
    /// As it was asked for.
    Asked,
    /// The log that was asked for is no more: what it had from the position on is lost, and nobody knows how much.
    OtherLog,
}

/// A subscription, from SUBSCRIBE until ENDED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscription {
    request: Request,
    /// The log and the entry that comes next, once SUBSCRIBED has arrived.
    place: Option<(LogId, u64)>,
    leaves: bool,
}

impl Subscription {
    /// The program subscribes: send SUBSCRIBE. The channel must have no subscription to the tag.
    pub const fn new(request: Request) -> Self {
        Self {
            request,
            place: None,
            leaves: false,
        }
    }

    /// What was asked for.
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// SUBSCRIBED has arrived.
    ///
    /// # Errors
    ///
    /// When it had arrived before, or does not fit what was asked for.
    pub fn subscribed(&mut self, log: LogId, position: u64) -> Result<Begins, PublishError> {
        if self.place.is_some() {
            return Err(PublishError::Begin);
        }
        let begins = match self.request.from {
            From::Position(asked, at) if asked == log => match at == position {
                true => Begins::Asked,
                false => return Err(PublishError::Begin),
            },
            From::Position(..) if self.request.exact => return Err(PublishError::Begin),
            From::Position(..) => Begins::OtherLog,
            From::First | From::Next => Begins::Asked,
        };
        self.place = Some((log, position));
        Ok(begins)
    }

    /// Goes on behind `count` entries from `position` on.
    fn advance(&mut self, position: u64, count: u64) -> Result<(), PublishError> {
        match &mut self.place {
            None => Err(PublishError::NoSubscription(position)),
            Some((_, next)) if *next != position => Err(PublishError::Position(position)),
            Some((_, next)) => {
                *next = match (count, position.checked_add(count)) {
                    (1.., Some(after)) => after,
                    _ => return Err(PublishError::Count(count)),
                };
                Ok(())
            }
        }
    }

    /// PUBLISHED has arrived, with the entry at this position.
    ///
    /// # Errors
    ///
    /// When it does not come next.
    pub fn published(&mut self, position: u64) -> Result<(), PublishError> {
        self.advance(position, 1)
    }

    /// LOST has arrived.
    ///
    /// # Errors
    ///
    /// When these entries do not come next, or are none.
    pub fn lost(&mut self, first: u64, count: u64) -> Result<(), PublishError> {
        self.advance(first, count)
    }

    /// ENDED has arrived: there is no subscription any more.
    ///
    /// # Errors
    ///
    /// When something is missing before it, or the subscription has not begun and there is no reason.
    pub fn ended(&self, position: u64, why: Option<Errno>) -> Result<(), PublishError> {
        match (self.place, why) {
            (Some((_, next)), _) if next == position => Ok(()),
            // Refused, or ended before it had begun.
            (None, Some(_)) => Ok(()),
            (None, None) if self.leaves => Ok(()),
            _ => Err(PublishError::Position(position)),
        }
    }

    /// The program wants no more. Returns whether UNSUBSCRIBE is to be sent; what arrives before ENDED is still for
    /// the program.
    #[must_use]
    pub fn leave(&mut self) -> bool {
        !core::mem::replace(&mut self.leaves, true)
    }

    /// Whether the program wants no more.
    pub const fn is_leaving(&self) -> bool {
        self.leaves
    }

    /// How the subscription ends if the publisher's program closes its end of the channel before ENDED: the position
    /// that would have been next, and why, as ENDED would have said.
    pub fn cut_off(&self) -> (u64, Option<Errno>) {
        let position = self.place.map_or(0, |(_, next)| next);
        (position, (!self.leaves).then_some(Errno::ESHUTDOWN))
    }

    /// What to ask for by another channel so that nothing is missing or comes twice, if this one has ended. What has
    /// arrived before counts as received.
    pub const fn renewal(&self) -> Request {
        match self.place {
            Some((log, next)) => Request {
                from: From::Position(log, next),
                ..self.request
            },
            None => self.request,
        }
    }
}
