// SPDX-License-Identifier: GPL-2.0

//! The time for which a server expects to be away after a planned stop, as it tells its clients
//! (Documentation/protocol.md, "Planned stops").
//!
//! A client lets I/O wait for that time, and a margin, even if the default of the queue timeout is
//! shorter. A value that an operator has chosen is left alone: requests to one leg of a mirror must
//! fail soon, however long the server takes. A server may be hostile, so no announcement makes I/O
//! wait for longer than [`MAX_WAIT_S`].

use crate::settings::{self, QUEUE_TIMEOUT_S};
use crate::text::{self, TextError};

/// Longest time in seconds that I/O waits because of an announcement.
pub const MAX_WAIT_S: u32 = 3600;
/// Smallest margin in seconds.
const MIN_MARGIN_S: u32 = 60;
/// The margin is that part of the announced time, if it is longer than the smallest one.
const MARGIN_PART: u32 = 2;

/// A number of seconds, 1..=[`Downtime::MAX_S`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Downtime(u32);

impl Downtime {
    /// Longest time that can be announced.
    pub const MAX_S: u32 = 86_400;

    /// This number of seconds; `None` if it is out of range.
    pub const fn new(seconds: u32) -> Option<Self> {
        match seconds {
            1..=Self::MAX_S => Some(Self(seconds)),
            _ => None,
        }
    }

    /// The time that a server has announced; `None` if it has withdrawn an announcement. A longer
    /// time than the longest one counts as the longest one.
    pub const fn from_wire(seconds: u32) -> Option<Self> {
        match seconds {
            0..=Self::MAX_S => Self::new(seconds),
            _ => Some(Self(Self::MAX_S)),
        }
    }

    /// The number of seconds.
    pub const fn seconds(self) -> u32 {
        self.0
    }

    /// Seconds from the loss of the last path until the stop no longer counts as planned: the announced time,
    /// and half as much again, at least a minute.
    pub const fn lasts_s(self) -> u32 {
        let part = self.0 / MARGIN_PART;
        let margin = if part > MIN_MARGIN_S {
            part
        } else {
            MIN_MARGIN_S
        };
        self.0.saturating_add(margin)
    }

    /// Seconds from the loss of the last path for which I/O waits for the server by default.
    pub const fn waits_s(self) -> u32 {
        let lasts_s = self.lasts_s();
        if lasts_s < MAX_WAIT_S {
            lasts_s
        } else {
            MAX_WAIT_S
        }
    }
}

/// A planned stop that a server has announced to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announced {
    /// The announced time.
    pub downtime: Downtime,
    /// Milliseconds since the last path was lost; before that, since the announcement.
    pub passed_ms: u64,
}

impl Announced {
    /// Seconds until the server expects to be back, rounded up; 0 if that time has passed, and `None`
    /// if the stop no longer counts as planned.
    pub fn back_in_s(self) -> Option<u32> {
        settings::left_ms(self.downtime.lasts_s(), self.passed_ms).filter(|left| *left != 0)?;
        let left_ms = settings::left_ms(self.downtime.seconds(), self.passed_ms)?;
        u32::try_from(left_ms.div_ceil(1000)).ok()
    }
}

/// The longest time in seconds for which requests wait without a path: the queue timeout of the
/// session, unless that is the default and the announced time calls for more.
pub const fn limit_s(queue_timeout_s: u32, downtime: Downtime) -> u32 {
    if queue_timeout_s == QUEUE_TIMEOUT_S.default && downtime.waits_s() > queue_timeout_s {
        downtime.waits_s()
    } else {
        queue_timeout_s
    }
}

/// The milliseconds for which requests may still wait when there has been no path for `waited_ms`;
/// `None` if there is no limit.
pub fn left_ms(queue_timeout_s: u32, waited_ms: u64, announced: Option<Announced>) -> Option<u64> {
    let left = settings::left_ms(queue_timeout_s, waited_ms)?;
    let planned = announced
        .filter(|_| queue_timeout_s == QUEUE_TIMEOUT_S.default)
        .and_then(|stop| settings::left_ms(stop.downtime.waits_s(), stop.passed_ms));
    Some(left.max(planned.unwrap_or(0)))
}

/// What an operator has written to the file `drain` of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrainOrder {
    /// `0`: accept sessions again.
    Undo,
    /// `1`: drain the server, and announce what is configured.
    Drain,
    /// `downtime=<seconds>`: drain the server, and announce this time; nothing after `downtime=0`.
    Away(Option<Downtime>),
}

impl DrainOrder {
    /// Parses what an operator wrote.
    ///
    /// # Errors
    ///
    /// For any other text; [`TextError::Range`] for a number of seconds that is too large.
    pub fn parse(bytes: &[u8]) -> Result<Self, TextError> {
        match text::line(bytes)?.split_once('=') {
            Some(("downtime", seconds)) => {
                let max = i64::from(Downtime::MAX_S);
                let seconds = text::decimal(seconds.as_bytes(), 0, max)?;
                let seconds = u32::try_from(seconds).map_err(|_| TextError::Range)?;
                Ok(Self::Away(Downtime::new(seconds)))
            }
            Some(_) => Err(TextError::Value),
            None => match text::decimal(bytes, 0, 1)? {
                0 => Ok(Self::Undo),
                _ => Ok(Self::Drain),
            },
        }
    }
}
