// SPDX-License-Identifier: GPL-2.0

//! The log of a tag.
//!
//! It keeps the latest entries, as many as its terms allow, whether or not anybody has subscribed. The caller keeps
//! their content. An entry that leaves the log is not taken from channels that have it queued.

use core::num::NonZeroU64;

/// Names a log among all that there have been under its tag, so that a position of a former one, from before the
/// publisher was restarted, is not taken for one of this log. The publisher's kernel never uses a number twice, and
/// begins with a random one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LogId(NonZeroU64);

impl LogId {
    /// The id with this number; `None` for 0.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// What happens if a subscriber is so slow that the log has no room for another entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The publisher waits.
    Wait,
    /// The subscriber loses entries, and is told which.
    Drop,
    /// The subscription ends.
    Close,
}

/// The terms of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogTerms {
    entries: u32,
    bytes: u64,
    policy: Policy,
}

impl LogTerms {
    /// Terms of at most `entries` entries of together `bytes` bytes. `None` if either is 0.
    pub const fn new(entries: u32, bytes: u64, policy: Policy) -> Option<Self> {
        match (entries, bytes) {
            (0, _) | (_, 0) => None,
            _ => Some(Self {
                entries,
                bytes,
                policy,
            }),
        }
    }

    /// Entries: at least 1.
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Bytes of the content of all entries: at least 1.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What happens to slow subscribers.
    pub const fn policy(&self) -> Policy {
        self.policy
    }
}

/// What to do with an entry that is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// There is room: [`Log::append`].
    Append,
    /// First drop the oldest entry ([`Log::evicted`]), and ask again.
    Evict,
    /// A subscriber does not have the oldest entry yet, and the publisher is to wait for it.
    Wait,
    /// The log could not keep it even if it was empty.
    TooLong,
    /// The log has had as many entries as there are positions. Not reached in practice.
    Exhausted,
}

/// The log of a tag: the entries from [`Log::first`] up to [`Log::next`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    id: LogId,
    terms: LogTerms,
    first: u64,
    next: u64,
    bytes: u64,
}

impl Log {
    /// A log without entries.
    pub const fn new(id: LogId, terms: LogTerms) -> Self {
        Self {
            id,
            terms,
            first: 0,
            next: 0,
            bytes: 0,
        }
    }

    /// Its id.
    pub const fn id(&self) -> LogId {
        self.id
    }

    /// Its terms.
    pub const fn terms(&self) -> &LogTerms {
        &self.terms
    }

    /// Other terms. A log that is longer than they allow gets shorter with the next entry.
    pub fn set_terms(&mut self, terms: LogTerms) {
        self.terms = terms;
    }

    /// The position of the oldest entry, or [`Log::next`] if there is none.
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// The position that the next entry will have. The first entry has position 0.
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// Entries that it has.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> u64 {
        self.next.saturating_sub(self.first)
    }

    /// Bytes of their content.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether nothing was ever published in it: then nobody misses it once it has no subscribers.
    pub const fn is_unused(&self) -> bool {
        self.next == 0
    }

    /// Decides about another entry of `len` bytes. `slowest`: the least [`super::Feed::holds`] of all subscribers.
    pub fn admission(&self, len: u32, slowest: Option<u64>) -> Admission {
        if u64::from(len) > self.terms.bytes {
            return Admission::TooLong;
        }
        if self.next == u64::MAX {
            return Admission::Exhausted;
        }
        let bytes = self.bytes.saturating_add(u64::from(len));
        if self.len() < u64::from(self.terms.entries) && bytes <= self.terms.bytes {
            return Admission::Append;
        }
        let is_needed = slowest.is_some_and(|slowest| slowest <= self.first);
        match (self.terms.policy, is_needed) {
            (Policy::Wait, true) => Admission::Wait,
            _ => Admission::Evict,
        }
    }

    /// Adds an entry of `len` bytes after [`Admission::Append`]. Returns its position.
    pub fn append(&mut self, len: u32) -> u64 {
        let position = self.next;
        self.next = position.saturating_add(1);
        self.bytes = self.bytes.saturating_add(u64::from(len));
        position
    }

    /// The oldest entry was dropped, which had `len` bytes.
    pub fn evicted(&mut self, len: u32) {
        self.first = self.first.saturating_add(1).min(self.next);
        self.bytes = self.bytes.saturating_sub(u64::from(len));
    }
}
