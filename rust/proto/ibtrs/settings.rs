// SPDX-License-Identifier: GPL-2.0

//! Settings of a session that an operator can change while it runs.
//!
//! Each is declared once, by a line of [`session_settings`](crate::session_settings). From that line follow its name,
//! its range and its default in the drivers; in the command `ibnbd` the field of the JSON documents and
//! their schema, the keys of the configuration and of `ibnbd set`; and, with `make generated`, the row of
//! the scenario that reads and writes all files.

use crate::text::{self, TextError};

/// A number with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Name of the attribute, and of the field in JSON documents.
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
    /// A sentence without the period at its end.
    pub help: &'static str,
}

/// The value of a setting without a limit.
pub const UNLIMITED: u32 = u32::MAX;
/// [`UNLIMITED`] as operators write and read it.
const UNLIMITED_TEXT: i64 = -1;

/// What a setting may be besides the values of its range.
#[derive(PartialEq, Eq)]
enum Besides {
    /// Nothing.
    Nothing,
    /// 0, which turns it off.
    Off,
    /// [`UNLIMITED`].
    Unlimited,
}

/// Calls a macro with the settings of a session, in the order in which the command `ibnbd` shows and sets
/// them, a line for each: `NAME = field, least, greatest, default, besides, without, help;`.
///
/// `besides` is what a setting may be [besides](Besides) its range. `without` names the function of the
/// command that tells whether JSON documents leave out the field where the driver does not have the
/// setting.
#[macro_export]
macro_rules! session_settings {
    ($then:ident) => {
        $then! {
            /// See [`failover_time`](crate::failover_time).
            FAILOVER_TIME_MS = failover_time_ms, 1000, 300_000, 5000, Nothing, "Option::is_none",
                "Longest time that I/O stands still when one of several paths is lost silently, in milliseconds";
            /// Attempts to connect a path. The delay doubles with each of them, up to the maximum of this
            /// setting.
            RECONNECT_DELAY_MS = reconnect_delay_ms, 10, 30_000, $crate::consts::RECONNECT_BACKOFF_MS, Nothing,
                "never", "Longest delay before the first of them, in milliseconds";
            HB_INTERVAL_MS = hb_interval_ms, 100, 60_000, 0, Off, "never",
                "Milliseconds between heartbeats; 0 if they follow from `failover_time_ms`";
            /// The path of a peer that misses more counts as dead.
            HB_MISSED_MAX = hb_missed_max, 1, 100, $crate::consts::HB_MISSED_MAX, Nothing, "never",
                "Heartbeats that may be missed";
            /// With 0 they do not wait. The default is longer than a server takes to boot: a file system
            /// whose writes fail stays read-only after the server is back. A server that announces a
            /// longer [downtime](crate::downtime) corrects it.
            QUEUE_TIMEOUT_S = queue_timeout_s, 0, 86_400, 600, Unlimited, "never",
                "Seconds that requests wait while there is no path; -1 for no limit";
            /// A path takes up to some seconds to do so, so it is not asked to much more often.
            REAUTH_INTERVAL_S = reauth_interval_s, 10, 2_592_000, 0, Off, "Option::is_none",
                "Seconds after which a path authenticates again; 0 for never";
        }
    };
}

macro_rules! declare {
    ($(
        $(#[$more:meta])*
        $name:ident = $field:ident, $min:expr, $max:expr, $default:expr, $besides:ident, $without:literal, $help:literal;
    )+) => {
        $(
            #[doc = concat!($help, ".")]
            ///
            $(#[$more])*
            pub const $name: Setting = Setting {
                name: stringify!($field),
                min: $min,
                max: $max,
                default: $default,
                may_be_off: matches!(Besides::$besides, Besides::Off),
                may_be_unlimited: matches!(Besides::$besides, Besides::Unlimited),
                help: $help,
            };
        )+

        impl Setting {
            /// All settings.
            pub const ALL: [Setting; [$(stringify!($name)),+].len()] = [$($name),+];
        }
    };
}

session_settings!(declare);

impl Setting {
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
