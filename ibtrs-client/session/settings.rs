// SPDX-License-Identifier: GPL-2.0

//! Settings of a session that can change while it runs.

use super::Session;
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
    /// The longest time that I/O stands still when one of several paths is lost silently, in
    /// milliseconds.
    pub failover_time_ms: Number,
    /// Time between two heartbeats, in milliseconds; 0 if it follows from the failover time.
    pub hb_interval_ms: Number,
    /// Heartbeats that may be missed in a row.
    pub hb_missed_max: Number,
    /// Longest delay before the first attempt to reconnect, in milliseconds.
    pub reconnect_delay_ms: Number,
    /// How long requests wait for a path, in seconds; 0 if they do not wait,
    /// [`settings::UNLIMITED`] if they wait for ever.
    pub queue_timeout_s: Number,
    /// Time after which a path authenticates again, in seconds; 0 for never.
    pub reauth_interval_s: Number,
}

impl Settings {
    pub(crate) const fn new() -> Self {
        Self {
            policy: Atomic::new(Policy::MinInflight.to_u8() as u32),
            max_reconnect_attempts: Atomic::new(Attempts::Forever.number()),
            failover_time_ms: Number::new(&settings::FAILOVER_TIME_MS),
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

    fn set(&self) -> failover_time::Chosen {
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

    /// Sets the longest time that I/O stands still when one of several paths is lost silently, in
    /// milliseconds. The heartbeats of this side follow at once; the server and the RDMA device learn
    /// of the time with the next connection of a path.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: out of range, or too short for the heartbeats that may be missed; the log has the
    /// reason.
    pub fn set_failover_time_ms(&self, ms: u32) -> Result {
        let set = failover_time::Chosen {
            failover_time_ms: ms,
            ..self.settings.set()
        };
        failover_time::check(set).map_err(|short| {
            kx::pr_err_ratelimited!(
                "{}: failover_time_ms={}: too short with hb_missed_max={}: heartbeats are at least {} ms apart; the shortest possible time is {}\n",
                self.name(),
                ms,
                set.hb_missed_max,
                settings::HB_INTERVAL_MS.min,
                short.least_ms
            );
            EINVAL
        })?;
        self.settings.failover_time_ms.set(ms)?;
        self.heartbeats_changed();
        Ok(())
    }

    /// Sets the time between two heartbeats, in milliseconds; 0: it follows from the failover time.
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
        self.heartbeats_changed();
        Ok(())
    }

    /// Sets how many heartbeats may be missed.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: out of range.
    pub fn set_hb_missed_max(&self, missed: u32) -> Result {
        self.settings.hb_missed_max.set(missed)?;
        // The interval may follow from the number.
        self.heartbeats_changed();
        Ok(())
    }

    /// Returns the times that follow from the failover time towards the server of the connected paths,
    /// or a server of ours if there is none.
    ///
    /// # Context
    ///
    /// Any.
    pub fn plan(&self) -> Plan {
        let peer = self.with_multipath(|multipath| {
            let first = multipath.paths.first();
            first.map_or(Peer::Ours, |path| path.attempt.peer())
        });
        self.settings.plan(peer.unwrap_or(Peer::Ours))
    }

    /// Says in the log, once for the session, that a server of kind `peer` with a connected path does
    /// not let the client keep its failover time.
    pub(crate) fn tell_failover_time(&self, peer: Peer) {
        let plan = self.settings.plan(peer);
        let set_ms = self.settings.failover_time_ms.get();
        if peer == Peer::Ours || plan.total_ms() <= set_ms || self.told_fixed.xchg(true, Relaxed) {
            return;
        }
        kx::pr_info_ratelimited!(
            "{}: the server has the fixed heartbeats of the mainline kernel: the silent loss of a path stops I/O for up to {} ms, not {} (failover_time_ms)\n",
            self.name(),
            plan.total_ms(),
            set_ms
        );
    }

    fn heartbeats_changed(&self) {
        for path in &self.paths.lock().list {
            path.heartbeat_changed();
        }
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
