// SPDX-License-Identifier: GPL-2.0

//! Publish and subscribe: a portal keeps a log for each tag, and subscribers follow it.
//!
//! The *publisher* is the program at the portal, so it is on the server; a *subscriber* is a client's program, on a
//! channel to that portal. The design is in Documentation/protocol.md, "Publish and subscribe".
//!
//! | Module | Contents |
//! |---|---|
//! | [`terms`] | what OPEN and ACCEPT say |
//! | [`log`] | the publisher: the entries of a tag, and whether another one has room |
//! | [`feed`] | the publisher: the cursor of one subscription |
//! | [`subscription`] | the subscriber: what may arrive, and where to go on after the channel has ended |
//!
//! Everything travels as messages of the channel, which arrive exactly once and in order whatever happens to paths.
//! So a subscription on a channel that lives is never renewed. A position is needed for the cursor of a slow
//! subscriber, for LOST, and for a subscription by another channel.

pub mod feed;
pub mod log;
pub mod subscription;
pub mod terms;

pub use feed::{Feed, FeedStep};
pub use log::{Admission, Log, LogId, LogTerms, Policy};
pub use subscription::{Begins, PublishError, Subscription};
pub use terms::{PublishTerms, MAX_SUBSCRIPTIONS};

/// Where a subscription begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// With the first entry that the log still has.
    First,
    /// With the next entry that is published.
    Next,
    /// With this entry of this log.
    Position(LogId, u64),
}

/// What a subscriber asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Where to begin.
    pub from: From,
    /// The subscriber wants nothing if the log no longer has that entry. Otherwise it is told what it has lost.
    pub exact: bool,
}
