// SPDX-License-Identifier: GPL-2.0

//! Planned stops for which the server has announced how long it expects to be down.
//!
//! An announcement belongs to a session generation. It is dropped when the first path is connected
//! after the session has lost all of its paths, as the server is then up again.

use super::Session;
use crate::{
    path::attempt::Attempt,
    types::Announcement, //
};
use ibtrs_proto::{
    downtime::{
        self,
        Downtime, //
    },
    settings::UNLIMITED, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::Arc,
    time::Instant, //
};

impl Session {
    /// Records for how many seconds the server of `attempt` expects to be down; 0 if it has
    /// withdrawn the announcement. Returns `false` if the attempt is not connected yet, or if the
    /// server has lost its session since.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn downtime_announced(self: &Arc<Self>, attempt: &Attempt, seconds: u32) -> bool {
        let Some(published) = attempt.published.as_ref() else {
            return false;
        };
        let downtime = Downtime::from_wire(seconds);
        let mut failover = self.failover.lock();
        if !failover.logic.is_current(published) {
            return false;
        }
        // The server repeats the announcement until it receives the answer.
        let known = failover.announcement.map(|known| known.downtime);
        if known == downtime {
            return true;
        }
        failover.announcement = downtime.map(|downtime| Announcement {
            downtime,
            at: Instant::now(),
        });
        drop(failover);
        self.tell_downtime(attempt, downtime);
        // If the last path is already lost, requests now wait for longer.
        self.expiry.modify(self.clone(), 0);
        true
    }

    /// Logs the announcement of the server, and how long requests wait.
    fn tell_downtime(&self, attempt: &Attempt, downtime: Option<Downtime>) {
        let tell = |waits: fmt::Arguments<'_>| match downtime {
            Some(downtime) => kx::pr_info_ratelimited!(
                "{}: the server is about to be stopped, and expects to be back in {} s; {}\n",
                attempt.path.log(),
                downtime.seconds(),
                waits
            ),
            None => kx::pr_info_ratelimited!(
                "{}: the server no longer says when it is back\n",
                attempt.path.log()
            ),
        };
        let timeout_s = self.settings().queue_timeout_s.get();
        match downtime.map_or(timeout_s, |downtime| downtime::limit_s(timeout_s, downtime)) {
            0 => tell(fmt!("requests fail until then (queue_timeout_s 0)")),
            UNLIMITED => tell(fmt!("requests wait")),
            limit_s => tell(fmt!("requests wait for up to {} s", limit_s)),
        }
    }

    /// Returns the seconds until the server expects to be up again, if it has announced that; 0 if
    /// it is overdue.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn server_back_in_s(&self) -> Option<u32> {
        let announcement = self.failover.lock().announcement;
        announcement.and_then(|announcement| announcement.now().back_in_s())
    }
}
