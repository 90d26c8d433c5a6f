// SPDX-License-Identifier: GPL-2.0

//! Settings of a session that an operator can change while it runs.

use crate::consts;
use crate::text::{self, TextError};

/// A number with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Name of the attribute.
    pub name: &'static str,
    /// Smallest value other than 0.
    pub min: u32,
    /// Largest value.
    pub max: u32,
    /// The value unless it is set.
    pub default: u32,
    /// 0 is allowed as well, and turns the setting off.
    pub may_be_off: bool,
    /// [`UNLIMITED`] is allowed as well; its text is -1.
    pub may_be_unlimited: bool,
}

/// The value of a setting without a limit.
pub const UNLIMITED: u32 = u32::MAX;
/// [`UNLIMITED`] as operators write and read it.
const UNLIMITED_TEXT: i64 = -1;

/// The longest time that I/O stands still when one of several paths is lost silently, in
/// milliseconds; see [`failover_time`](crate::failover_time).
pub const FAILOVER_TIME_MS: Setting = Setting {
    name: "failover_time_ms",
    min: 1000,
    max: 300_000,
    default: 5000,
    may_be_off: false,
    may_be_unlimited: false,
};

/// Time between two heartbeats, in milliseconds; 0: it follows from [`FAILOVER_TIME_MS`].
pub const HB_INTERVAL_MS: Setting = Setting {
    name: "hb_interval_ms",
    min: 100,
    max: 60_000,
    default: 0,
    may_be_off: true,
    may_be_unlimited: false,
};

/// Heartbeats in a row that a peer may miss before its path counts as dead.
pub const HB_MISSED_MAX: Setting = Setting {
    name: "hb_missed_max",
    min: 1,
    max: 100,
    default: consts::HB_MISSED_MAX,
    may_be_off: false,
    may_be_unlimited: false,
};

/// Longest delay before the first attempt to reconnect, in milliseconds. The delay doubles with
/// each attempt, up to the maximum of this setting.
pub const RECONNECT_DELAY_MS: Setting = Setting {
    name: "reconnect_delay_ms",
    min: 10,
    max: 30_000,
    default: consts::RECONNECT_BACKOFF_MS,
    may_be_off: false,
    may_be_unlimited: false,
};

/// How long requests wait for a path when there is none, in seconds; 0: not at all.
///
/// The default is longer than a server takes to boot: a file system whose writes fail stays
/// read-only after the server is back. A server that announces a longer [downtime](crate::downtime)
/// corrects it.
pub const QUEUE_TIMEOUT_S: Setting = Setting {
    name: "queue_timeout_s",
    min: 0,
    max: 86_400,
    default: 600,
    may_be_off: false,
    may_be_unlimited: true,
};

/// Time after which a path authenticates again, in seconds; 0: never. A path takes up to some
/// seconds to do so, so it is not asked to much more often.
pub const REAUTH_INTERVAL_S: Setting = Setting {
    name: "reauth_interval_s",
    min: 10,
    max: 2_592_000,
    default: 0,
    may_be_off: true,
    may_be_unlimited: false,
};

impl Setting {
    /// All settings, in the order in which the command `ibnbd` shows and sets them.
    pub const ALL: [Setting; 6] = [
        FAILOVER_TIME_MS,
        RECONNECT_DELAY_MS,
        HB_INTERVAL_MS,
        HB_MISSED_MAX,
        QUEUE_TIMEOUT_S,
        REAUTH_INTERVAL_S,
    ];

    /// Whether the setting may have this value.
    pub const fn allows(&self, value: u32) -> bool {
        value >= self.min && value <= self.max
            || self.may_be_off && value == 0
            || self.may_be_unlimited && value == UNLIMITED
    }

    /// The value of a number that an operator wrote; `None` if the setting may not have it.
    pub fn value(&self, number: i64) -> Option<u32> {
        let value = match number {
            UNLIMITED_TEXT => Some(UNLIMITED),
            // The text of `UNLIMITED` is never the number.
            _ => u32::try_from(number).ok().filter(|n| *n != UNLIMITED),
        };
        value.filter(|n| self.allows(*n))
    }

    /// The number that operators read; the inverse of [`Setting::value`].
    pub const fn number(value: u32) -> i64 {
        match value {
            UNLIMITED => UNLIMITED_TEXT,
            // Lossless: u32 to i64.
            _ => value as i64,
        }
    }

    /// Parses what an operator wrote: a decimal number in the range.
    ///
    /// # Errors
    ///
    /// For any other text.
    pub fn parse(&self, bytes: &[u8]) -> Result<u32, TextError> {
        let n = text::decimal(bytes, UNLIMITED_TEXT, i64::from(self.max))?;
        self.value(n).ok_or(TextError::Range)
    }
}

/// The milliseconds that are left of a limit in seconds, which may be [`UNLIMITED`], after
/// `waited_ms`; `None` if there is no limit.
pub const fn left_ms(limit_s: u32, waited_ms: u64) -> Option<u64> {
    match limit_s {
        UNLIMITED => None,
        // Lossless: u32 to u64; the product has 42 bits at most.
        _ => Some(
            (limit_s as u64)
                .saturating_mul(1000)
                .saturating_sub(waited_ms),
        ),
    }
}
