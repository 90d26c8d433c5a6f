// SPDX-License-Identifier: GPL-2.0

//! What has happened to portals and channels, for operators who were not there.
//!
//! Programs can bind portals and open channels as fast as they like, and so can a peer. What they do again and again is
//! one [`Entry`] with a count, and a [`Ring`] has a fixed number of entries, of which one kind cannot take all.

use core::ops::DerefMut;

use ibtrs_proto::history::{Alike, Ring};

/// For how long after the last time the same event joins an entry, in milliseconds.
pub const AGAIN_MS: u64 = 10_000;

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A program has bound a portal.
    Bound,
    /// The portal is closed.
    Unbound,
    /// A channel was accepted.
    Opened,
    /// A channel goes on by another connection, after it has lost the former one.
    Moved,
    /// A channel was refused.
    Refused,
    /// A channel has ended.
    Closed,
}

impl What {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Bound,
        Self::Unbound,
        Self::Opened,
        Self::Moved,
        Self::Refused,
        Self::Closed,
    ];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Unbound => "unbound",
            Self::Opened => "opened",
            Self::Moved => "moved",
            Self::Refused => "refused",
            Self::Closed => "closed",
        }
    }
}

/// An event of a portal `N`, or of a channel to it, with its cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event<N, C> {
    /// What has happened.
    pub what: What,
    /// The name of the portal.
    pub portal: N,
    /// The number of the channel; 0 if it is the portal itself.
    pub channel: u32,
    /// Why.
    pub cause: C,
}

/// An event, and how often it has happened in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<N, C> {
    /// When it happened first, in milliseconds since 1970.
    pub since_ms: i64,
    /// When it happened last.
    pub at_ms: i64,
    /// How often it has happened.
    pub count: u32,
    /// The last one.
    pub event: Event<N, C>,
}

/// Adds an event to those of a session, or to those of portals. The entry of the same event, of any channel, is
/// continued if that was not long ago. `alike` says which entries make room in a full ring, see [`Ring::push`].
pub fn record<N, C, S>(
    entries: &mut Ring<S>,
    event: Event<N, C>,
    now_ms: i64,
    alike: &[Alike<Entry<N, C>>],
) where
    N: Copy + PartialEq + 'static,
    C: Copy + PartialEq + 'static,
    S: DerefMut<Target = [Option<Entry<N, C>>]>,
{
    let continues = |entry: &Entry<N, C>| {
        let former = &entry.event;
        former.what == event.what
            && former.portal == event.portal
            && former.cause == event.cause
            && entry.at_ms.abs_diff(now_ms) < AGAIN_MS
    };
    let entry = match entries.take(continues) {
        Some(former) => Entry {
            at_ms: now_ms,
            count: former.count.saturating_add(1),
            event,
            ..former
        },
        None => Entry {
            since_ms: now_ms,
            at_ms: now_ms,
            count: 1,
            event,
        },
    };
    entries.push(entry, alike);
}
