// SPDX-License-Identifier: GPL-2.0

//! Back-off between connection attempts, and their limit.

use crate::text::{self, TextError};

/// Exponential back-off with jitter: delays double with each attempt up to a limit, and up to half
/// of each delay is random.
///
/// Without jitter, all clients of a restarted server would reconnect in the same instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// Longest delay before the first attempt, in milliseconds.
    pub base_ms: u32,
    /// Longest delay before any attempt, in milliseconds.
    pub max_ms: u32,
}

impl Backoff {
    /// Delay before attempt number `attempt` (the first is 0), in milliseconds.
    ///
    /// `random` is any 32 random bits. The delay is between the half and the whole of
    /// `base_ms << attempt`, or of `max_ms` if that is less.
    pub fn delay_ms(&self, attempt: u32, random: u32) -> u32 {
        // A shift by 32 makes any base but 0 larger than any limit.
        let whole = u64::from(self.base_ms)
            .wrapping_shl(attempt.min(32))
            .min(u64::from(self.max_ms));
        let half = whole >> 1;
        let spread = whole.saturating_sub(half).saturating_add(1);
        // At most `spread - 1`.
        let chance = u64::from(random).saturating_mul(spread) >> 32;
        u32::try_from(half.saturating_add(chance)).unwrap_or(self.max_ms)
    }
}

/// How many attempts to reconnect are made in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempts {
    /// No limit.
    Forever,
    /// At most this many; 0 means never.
    AtMost(u16),
}

impl Attempts {
    /// Largest number that an operator may set.
    pub const MAX: u16 = 9999;

    /// Parses -1 (no limit) or 0..=9999.
    ///
    /// # Errors
    ///
    /// For any other text.
    pub fn parse(bytes: &[u8]) -> Result<Self, TextError> {
        let n = text::decimal(bytes, -1, i64::from(Self::MAX))?;
        Ok(match u16::try_from(n) {
            Ok(n) => Self::AtMost(n),
            Err(_) => Self::Forever,
        })
    }

    /// The number that operators read and write: -1 for no limit.
    pub const fn number(&self) -> i32 {
        match self {
            Self::Forever => -1,
            // Lossless: u16 to i32.
            Self::AtMost(n) => *n as i32,
        }
    }

    /// Whether another attempt may follow `made` attempts.
    pub const fn allow(&self, made: u32) -> bool {
        match self {
            Self::Forever => true,
            // Lossless: u16 to u32.
            Self::AtMost(n) => made < *n as u32,
        }
    }
}
