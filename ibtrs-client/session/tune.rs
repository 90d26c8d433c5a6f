// SPDX-License-Identifier: GPL-2.0

//! Changing the settings of a session.

use super::Session;
use crate::settings::Settings;
use ibtrs_proto::{
    backoff::Attempts,
    mp::Policy, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl Session {
    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets how paths are chosen.
    pub fn set_policy(&self, policy: Policy) {
        self.settings.set_policy(policy);
    }

    /// Limits the attempts to reconnect; paths that have made as many are closed.
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
    /// `EINVAL` out of range.
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
    /// `EINVAL` out of range.
    pub fn set_hb_missed_max(&self, missed: u32) -> Result {
        self.settings.hb_missed_max.set(missed)
    }

    /// Sets the longest delay before the first attempt to reconnect, in
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// `EINVAL` out of range.
    pub fn set_reconnect_delay_ms(&self, ms: u32) -> Result {
        self.settings.reconnect_delay_ms.set(ms)
    }

    /// Sets how long requests wait for a path, in seconds; those that wait
    /// already, too.
    ///
    /// # Errors
    ///
    /// `EINVAL` out of range.
    pub fn set_queue_timeout_s(self: &Arc<Self>, s: u32) -> Result {
        self.settings.queue_timeout_s.set(s)?;
        // It looks for itself how much time is left.
        self.expiry.modify(self.clone(), 0);
        Ok(())
    }
}
