// SPDX-License-Identifier: GPL-2.0

//! Buffers for the data of requests in service, which all sessions of a server share: their sizes,
//! the limit on their memory, and the share of each session.
//!
//! A session may take a buffer as long as it holds no more than [`SHARE`] times what is left of the
//! limit. So `n` sessions that take all they can get, as their requests come and go, hold the same,
//! and together `n * SHARE / (n * SHARE + 1)` of the limit. What counts is what a session holds now,
//! not what it has got so far. If it never gives back what it holds, as when its disks hang or its
//! client lets nothing be read, it leaves a third of what there was to those that come later.
//! Beyond that, each session has a buffer of the largest size in reserve, which serves one request
//! at a time: it goes on, slowly, whatever the others do and however little memory the machine has.
//!
//! A request that gets no buffer waits in the line of its session, which from then on keeps nothing
//! for its next requests. If the session [is behind](is_behind) others, these keep nothing either,
//! so that no session holds more than its share for long.
//!
//! The shares are those of sessions, not of clients or addresses: how many sessions a client may
//! have is decided where it gets the memory for their paths ([`crate::quota`]).

/// Bytes of the smallest buffers.
pub const SMALLEST: usize = 16_384;

/// The sizes of buffers, all of whole pages: [`SMALLEST`] or a page, doubled as long as larger requests
/// remain, and the largest request.
///
/// # Invariants
///
/// `smallest` is not zero, and `largest` is at least as much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    smallest: usize,
    largest: usize,
}

impl Sizes {
    /// Most sizes that there are.
    pub const MOST: usize = 8;

    /// The sizes for requests of up to `max_io` bytes on a machine with pages of `page` bytes, a power
    /// of two.
    pub const fn new(max_io: usize, page: usize) -> Self {
        let smallest = if page > SMALLEST { page } else { SMALLEST };
        let largest = match max_io.checked_next_multiple_of(page) {
            Some(largest) if largest > smallest => largest,
            _ => smallest,
        };
        // INVARIANT: `SMALLEST` is not zero.
        Self { smallest, largest }
    }

    /// Number of the smallest size with room for `len` bytes; `None` if there is no such buffer.
    #[inline]
    pub const fn of(&self, len: usize) -> Option<usize> {
        if len > self.largest {
            return None;
        }
        Some(self.smallest_for(len))
    }

    /// As [`Sizes::of`], for a length that is not above the largest.
    #[inline]
    const fn smallest_for(&self, len: usize) -> usize {
        let mut size = 0;
        // The last size ends this, as it is the largest.
        while self.bytes(size) < len {
            size = size.saturating_add(1);
        }
        size
    }

    /// Bytes of a buffer of size number `size`.
    #[inline]
    pub const fn bytes(&self, size: usize) -> usize {
        let last = size >= Self::MOST - 1;
        // Lossless: at most the greatest number of a size.
        let doubled = self.smallest.wrapping_shl(size as u32);
        if last || doubled >= self.largest {
            self.largest
        } else {
            doubled
        }
    }

    /// Number of the largest size.
    pub const fn last(&self) -> usize {
        self.smallest_for(self.largest)
    }
}

/// Where a buffer comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// From those that are free.
    Free,
    /// It is allocated.
    New,
    /// It is allocated, once others that are free were given back to the system.
    InPlaceOf {
        /// Bytes to give back.
        bytes: u64,
    },
    /// There is none now.
    Nowhere,
}

/// The memory of all buffers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Bytes of all buffers, free or in use.
    pub taken: u64,
    /// Bytes of the free ones.
    pub free: u64,
}

impl Memory {
    /// Where a request gets a buffer of `bytes`. The buffers may take up to `limit` bytes together;
    /// `is_free` says whether one of that size is free.
    #[inline]
    pub const fn source(&self, bytes: u64, is_free: bool, limit: u64) -> Source {
        if is_free {
            return Source::Free;
        }
        let then = self.taken.saturating_add(bytes);
        if then <= limit {
            return Source::New;
        }
        let excess = then.saturating_sub(limit);
        if excess <= self.free {
            Source::InPlaceOf { bytes: excess }
        } else {
            Source::Nowhere
        }
    }
}

/// Number of times as much as what is left of the limit that a session may hold.
pub const SHARE: u64 = 2;

/// Whether a session that holds `held` bytes may take `bytes` more, while all sessions together use
/// `used` of `limit`.
#[inline]
pub const fn may_take(held: u64, bytes: u64, used: u64, limit: u64) -> bool {
    let left = match limit.checked_sub(used) {
        Some(left) => match left.checked_sub(bytes) {
            Some(left) => left,
            None => return false,
        },
        None => return false,
    };
    held.saturating_add(bytes) <= left.saturating_mul(SHARE)
}

/// Whether a session is behind that holds `held` bytes and waits for `bytes` more, while another
/// session holds `most`.
pub const fn is_behind(held: u64, bytes: u64, most: u64) -> bool {
    held.saturating_add(bytes) < most / 2
}

/// The pace at which the server looks after those that wait: nobody reports that the machine has
/// memory again. The longer it takes, the longer the pauses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    pause_ms: u32,
    /// When the pause ends.
    next_ms: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            pause_ms: Self::SHORTEST_MS,
            next_ms: 0,
        }
    }
}

impl Pace {
    /// The shortest pause, in milliseconds.
    pub const SHORTEST_MS: u32 = 2;
    /// The longest pause, in milliseconds.
    pub const LONGEST_MS: u32 = 256;

    /// Whether the pause is over at `now_ms`; then the next one begins.
    pub fn is_over(&mut self, now_ms: u64) -> bool {
        if now_ms < self.next_ms {
            return false;
        }
        self.next_ms = now_ms.saturating_add(self.pause_ms.into());
        self.pause_ms = self.pause_ms.saturating_mul(2).min(Self::LONGEST_MS);
        true
    }

    /// Milliseconds until the pause ends, at least one.
    pub fn left_ms(&self, now_ms: u64) -> u32 {
        let left = self.next_ms.saturating_sub(now_ms).max(1);
        u32::try_from(left).unwrap_or(Self::LONGEST_MS)
    }
}
