// SPDX-License-Identifier: GPL-2.0

//! Changes to the settings of a session.

use super::Session;
use crate::env::Settings;
use ibtrs_proto::{
    backoff::Attempts,
    failover_time::{
        self,
        Peer,
        Plan, //
    },
    mp::Policy,
    settings, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sync::atomic::Relaxed;

/// Changes to the settings of a session.
impl Session {
    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        self.env.settings()
    }

    /// Returns the path selection policy.
    #[inline]
    pub fn policy(&self) -> Policy {
        // CAST: `set_policy` and `new` store a `u8`.
        Policy::from_u8(self.policy.load(Relaxed) as u8).unwrap_or_default()
    }

    /// Sets the path selection policy.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.store(policy.to_u8().into(), Relaxed);
    }

    /// Limits consecutive attempts to reconnect; paths that have reached the limit are closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn set_max_reconnect_attempts(&self, attempts: Attempts) {
        self.env.settings().set_max_reconnect_attempts(attempts);
        for path in &self.paths.lock().list {
            path.attempts_limited();
        }
    }

    /// Sets the maximum time in milliseconds for which I/O stalls when one of several paths is lost
    /// silently. The heartbeats of this side follow at once; the server and the RDMA device use the
    /// new time from the next connection of a path.
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
            ..self.env.settings().set()
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
        self.env.settings().failover_time_ms.set(ms)?;
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
        self.env.settings().hb_interval_ms.set(ms)?;
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
        self.env.settings().hb_missed_max.set(missed)?;
        // The interval may depend on the number.
        self.heartbeats_changed();
        Ok(())
    }

    /// Returns the times that follow from the failover time towards the server of the connected paths,
    /// or an IBTRS server with extensions if there is none.
    ///
    /// # Context
    ///
    /// Any.
    pub fn plan(&self) -> Plan {
        let peer = self.with_multipath(|multipath| {
            let first = multipath.paths.first();
            first.map_or(Peer::Ours, |path| path.attempt.peer())
        });
        self.env.settings().plan(peer.unwrap_or(Peer::Ours))
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
        self.env.settings().reconnect_delay_ms.set(ms)
    }

    /// Sets how long requests wait for a path, in seconds; also applies to requests that already
    /// wait.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL`: out of range.
    pub fn set_queue_timeout_s(self: &Arc<Self>, s: u32) -> Result {
        self.env.settings().queue_timeout_s.set(s)?;
        // The work item recomputes the remaining time.
        self.expiry.modify(self.clone(), 0);
        self.session_events.queue_timeout_changed();
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
        self.env.settings().reauth_interval_s.set(s)?;
        self.reauth_settings_changed();
        Ok(())
    }
}
