// SPDX-License-Identifier: GPL-2.0

//! Settings of a session that can change while it runs.

use ibtrs_proto::{
    backoff::{
        Attempts,
        Backoff, //
    },
    failover_time::{
        self,
        Peer,
        Plan, //
    },
    settings::{
        self,
        Setting, //
    }, //
};
use kernel::prelude::*;
use kx::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// A number within the range of its setting. Users must read it for each use.
pub struct Number {
    value: Atomic<u32>,
    setting: &'static Setting,
}

impl Number {
    const fn new(setting: &'static Setting) -> Self {
        Self {
            value: Atomic::new(setting.default),
            setting,
        }
    }

    /// Returns the number.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn get(&self) -> u32 {
        self.value.load(Relaxed)
    }

    /// Sets the number.
    ///
    /// # Errors
    ///
    /// `EINVAL`: out of range.
    pub(crate) fn set(&self, value: u32) -> Result {
        if !self.setting.allows(value) {
            return Err(EINVAL);
        }
        self.value.store(value, Relaxed);
        Ok(())
    }
}

/// The settings of a session. Functions of [`Session`](crate::Session) change them, as some changes
/// have side effects.
pub struct Settings {
    max_reconnect_attempts: Atomic<i32>,
    /// Maximum time in milliseconds for which I/O stalls when one of several paths is lost
    /// silently.
    pub failover_time_ms: Number,
    /// Time between two heartbeats, in milliseconds; 0 if it follows from the failover time.
    pub hb_interval_ms: Number,
    /// Heartbeats that may be missed in a row.
    pub hb_missed_max: Number,
    /// Longest delay before the first attempt to reconnect, in milliseconds.
    pub reconnect_delay_ms: Number,
    /// How long requests wait for a path, in seconds; 0 if they do not wait,
    /// [`settings::UNLIMITED`] if they wait forever.
    pub queue_timeout_s: Number,
    /// Time after which a path authenticates again, in seconds; 0 for never.
    pub reauth_interval_s: Number,
}

impl Settings {
    pub(crate) const fn new() -> Self {
        Self {
            max_reconnect_attempts: Atomic::new(Attempts::Forever.number()),
            failover_time_ms: Number::new(&settings::FAILOVER_TIME_MS),
            hb_interval_ms: Number::new(&settings::HB_INTERVAL_MS),
            hb_missed_max: Number::new(&settings::HB_MISSED_MAX),
            reconnect_delay_ms: Number::new(&settings::RECONNECT_DELAY_MS),
            queue_timeout_s: Number::new(&settings::QUEUE_TIMEOUT_S),
            reauth_interval_s: Number::new(&settings::REAUTH_INTERVAL_S),
        }
    }

    /// Returns the limit on consecutive attempts to reconnect.
    pub fn max_reconnect_attempts(&self) -> Attempts {
        match u16::try_from(self.max_reconnect_attempts.load(Relaxed)) {
            Ok(n) => Attempts::AtMost(n),
            Err(_) => Attempts::Forever,
        }
    }

    pub(crate) fn set_max_reconnect_attempts(&self, attempts: Attempts) {
        self.max_reconnect_attempts
            .store(attempts.number(), Relaxed);
    }

    pub(crate) fn set(&self) -> failover_time::Chosen {
        failover_time::Chosen {
            failover_time_ms: self.failover_time_ms.get(),
            hb_interval_ms: self.hb_interval_ms.get(),
            hb_missed_max: self.hb_missed_max.get(),
        }
    }

    /// Returns the times that follow from the failover time towards a server of kind `peer`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn plan(&self, peer: Peer) -> Plan {
        Plan::new(self.set(), peer)
    }

    /// Returns the back-off between attempts to reconnect.
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff {
            base_ms: self.reconnect_delay_ms.get(),
            max_ms: settings::RECONNECT_DELAY_MS.max,
        }
    }
}
