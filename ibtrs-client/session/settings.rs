// SPDX-License-Identifier: GPL-2.0

//! Settings of a session that can change while it runs.

use super::Session;
use ibtrs_proto::{
    backoff::{
        Attempts,
        Backoff, //
    },
    mp::Policy,
    settings::{
        self,
        Setting, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// A number within the range of its setting; users read it again for each use.
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
/// do more than store a number.
pub struct Settings {
    policy: Atomic<u32>,
    max_reconnect_attempts: Atomic<i32>,
    /// Time between two heartbeats, in milliseconds.
    pub hb_interval_ms: Number,
    /// Heartbeats that may be missed in a row.
    pub hb_missed_max: Number,
    /// Longest delay before the first attempt to reconnect, in milliseconds.
    pub reconnect_delay_ms: Number,
    /// How long requests wait for a path, in seconds; 0 if they do not wait.
    pub queue_timeout_s: Number,
    /// Time after which a path authenticates again, in seconds; 0 for never.
    pub reauth_interval_s: Number,
}

impl Settings {
    pub(crate) const fn new() -> Self {
        Self {
            policy: Atomic::new(Policy::MinInflight.to_u8() as u32),
            max_reconnect_attempts: Atomic::new(Attempts::Forever.number()),
            hb_interval_ms: Number::new(&settings::HB_INTERVAL_MS),
            hb_missed_max: Number::new(&settings::HB_MISSED_MAX),
            reconnect_delay_ms: Number::new(&settings::RECONNECT_DELAY_MS),
            queue_timeout_s: Number::new(&settings::QUEUE_TIMEOUT_S),
            reauth_interval_s: Number::new(&settings::REAUTH_INTERVAL_S),
        }
    }

    /// Returns the path selection policy.
    #[inline]
    pub fn policy(&self) -> Policy {
        // CAST: `set_policy` and `new` store a `u8`.
        Policy::from_u8(self.policy.load(Relaxed) as u8).unwrap_or_default()
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.policy.store(policy.to_u8().into(), Relaxed);
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

    /// Returns the back-off between attempts to reconnect.
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff {
            base_ms: self.reconnect_delay_ms.get(),
            max_ms: settings::RECONNECT_DELAY_MS.max,
        }
    }
}

/// Changes to the settings of a session.
impl Session {
    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the path selection policy.
    pub fn set_policy(&self, policy: Policy) {
        self.settings.set_policy(policy);
    }

    /// Limits consecutive attempts to reconnect; paths that have reached the limit are closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn set_max_reconnect_attempts(&self, attempts: Attempts) {
        self.settings.set_max_reconnect_attempts(attempts);
        for path in &self.paths.lock().list {
            path.attempts_limited();
        }
    }

    /// Sets the time between two heartbeats, in milliseconds.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: out of range.
    pub fn set_hb_interval_ms(&self, ms: u32) -> Result {
        self.settings.hb_interval_ms.set(ms)?;
        for path in &self.paths.lock().list {
            path.heartbeat_changed();
        }
        Ok(())
    }

    /// Sets how many heartbeats may be missed.
    ///
    /// # Errors
    ///
    /// `EINVAL`: out of range.
    pub fn set_hb_missed_max(&self, missed: u32) -> Result {
        self.settings.hb_missed_max.set(missed)
    }

    /// Sets the longest delay before the first attempt to reconnect, in
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// `EINVAL`: out of range.
    pub fn set_reconnect_delay_ms(&self, ms: u32) -> Result {
        self.settings.reconnect_delay_ms.set(ms)
    }

    /// Sets how long requests wait for a path, in seconds; also applies to requests that already
    /// wait.
    ///
    /// # Errors
    ///
    /// `EINVAL`: out of range.
    pub fn set_queue_timeout_s(self: &Arc<Self>, s: u32) -> Result {
        self.settings.queue_timeout_s.set(s)?;
        // The work item computes the remaining time again.
        self.expiry.modify(self.clone(), 0);
        Ok(())
    }

    /// Sets the time after which a path authenticates again, in seconds; also applies to connected
    /// paths.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: out of range.
    pub fn set_reauth_interval_s(self: &Arc<Self>, s: u32) -> Result {
        self.settings.reauth_interval_s.set(s)?;
        self.reauth_settings_changed();
        Ok(())
    }
}
