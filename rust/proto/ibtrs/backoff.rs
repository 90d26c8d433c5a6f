// SPDX-License-Identifier: GPL-2.0

//! Back-off between connection attempts, and their limit.

use crate::text::{self, TextError};

/// Delays that double with each attempt, up to a limit, half of each by chance.
///
/// Without chance all clients of a server that restarts come back in the same instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// Longest delay before the first attempt, in milliseconds.
    pub base_ms: u32,
    /// Longest delay at all, in milliseconds.
    pub max_ms: u32,
}

impl Backoff {
    /// Delay before attempt number `attempt` (the first is 0), in milliseconds.
    ///
    /// `random` is any 32 random bits. The delay is between the half and the whole of
    /// `base_ms << attempt`, or of `max_ms` if that is less.
    pub fn delay_ms(&self, attempt: u32, random: u32) -> u32 {
        // A shift of 32 turns any u32 into more than any limit (or leaves it 0).
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
    /// As many as it takes.
    Forever,
    /// At most this many; 0 means never.
    AtMost(u16),
}

impl Attempts {
    /// Largest number a user may set.
    pub const MAX: u16 = 9999;

    /// Reads -1 (without limit) or 0..=9999.
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

    /// As a user reads and writes it.
    pub const fn number(&self) -> i32 {
        match self {
            Self::Forever => -1,
            // Lossless: u16 to i32.
            Self::AtMost(n) => *n as i32,
        }
    }

    /// Whether another attempt may follow `made` ones.
    pub const fn allow(&self, made: u32) -> bool {
        match self {
            Self::Forever => true,
            // Lossless: u16 to u32.
            Self::AtMost(n) => made < *n as u32,
        }
    }
}
