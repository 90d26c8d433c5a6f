// SPDX-License-Identifier: GPL-2.0

//! Serial numbers of 32 bits, which wrap around (RFC 1982).

/// A place in a sequence that wraps around: a message number, or a count of messages or bytes.
///
/// Two places can be compared while they are less than 2^31 apart. There is deliberately no `Ord`: the
/// order of serial numbers is not transitive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Seq(u32);

impl Seq {
    /// The place with this number.
    #[inline]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number on the wire.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The place `n` further on.
    #[inline]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// How far this place is ahead of `other`; negative if it is behind.
    #[inline]
    pub const fn since(self, other: Self) -> i32 {
        // CAST: The distance as a signed number is the point of serial arithmetic.
        self.0.wrapping_sub(other.0) as i32
    }

    /// Whether this place is behind `other`.
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// How far this place is ahead of `other`; `None` if it is behind.
    #[inline]
    pub const fn ahead_of(self, other: Self) -> Option<u32> {
        let distance = self.since(other);
        match distance < 0 {
            true => None,
            // CAST: Not negative.
            false => Some(distance as u32),
        }
    }

    /// Whether this place is more than `n` ahead of `other`.
    #[inline]
    pub const fn is_beyond(self, other: Self, n: u32) -> bool {
        match self.ahead_of(other) {
            Some(distance) => distance > n,
            None => false,
        }
    }

    /// The later of two places.
    #[inline]
    pub const fn later(self, other: Self) -> Self {
        match self.is_before(other) {
            true => other,
            false => self,
        }
    }
}
