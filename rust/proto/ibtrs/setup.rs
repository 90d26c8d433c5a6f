// SPDX-License-Identifier: GPL-2.0

//! Time limit for setting up a path (server).
//!
//! The server accepts connections one after the other, which costs it a queue pair each. When many
//! clients come back at once, after the server was restarted, their requests wait for longer than
//! any limit. If that time counted, the server would close path after path before it accepts the
//! last connection, the clients would begin again, and no path would ever be complete. So only the
//! client's time counts: from the moment when the server has accepted all connections that came,
//! until the client's next request comes.

use crate::consts::ZOMBIE_TIMEOUT_MS;

/// Delay in milliseconds until a path whose time is over is checked again, while the server is
/// behind with accepting its connections.
pub const BEHIND_MS: u32 = 1000;

/// A path may stay incomplete for this many times the client's limit, whichever side is behind.
const BEHIND_MAX: u64 = 10;

/// Whether a path whose time is over may stay while the server is behind with accepting its
/// connections. The path is `age_ms` old, and the client may take `limit_ms`.
///
/// Without this limit, peers that keep the backlog filled could keep an incomplete path forever.
pub const fn may_be_behind(age_ms: u64, limit_ms: u32) -> bool {
    // Lossless: u32 to u64.
    age_ms < (limit_ms as u64).saturating_mul(BEHIND_MAX)
}

/// How many connection requests may wait to be accepted.
pub const WAITING_MAX: usize = 4096;

/// How many may wait when the first connection of a path is requested.
const FIRST_WAITING_MAX: usize = 1024;

/// Whether a connection request may wait when `waiting` others do; `further` if it is not the
/// first one of its path.
///
/// A client asks for all further connections of a path at once, and begins again if one of them is
/// refused. So most of the backlog is for these, and new paths are refused first.
pub const fn may_wait(waiting: usize, further: bool) -> bool {
    waiting
        < if further {
            WAITING_MAX
        } else {
            FIRST_WAITING_MAX
        }
}

/// The time that the client of a path has taken for its setup.
///
/// All times are milliseconds since the creation of the path.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SetupClock {
    /// The time that the client has taken.
    spent_ms: u64,
    /// Since when the server has waited for the client.
    since_ms: u64,
}

impl SetupClock {
    /// Notes that a connection whose request arrived at `came_ms` was accepted at `now_ms`.
    pub const fn accepted(&mut self, came_ms: u64, now_ms: u64) {
        let waited = came_ms.saturating_sub(self.since_ms);
        self.spent_ms = self.spent_ms.saturating_add(waited);
        if now_ms > self.since_ms {
            self.since_ms = now_ms;
        }
    }

    /// How many milliseconds the client has left to complete the path, or to request its next
    /// connection, if it may take `limit_ms` in all. After that the path is stale.
    pub const fn left_ms(&self, limit_ms: u32) -> u32 {
        // Lossless: u32 to u64.
        let left = (limit_ms as u64).saturating_sub(self.spent_ms);
        if left < ZOMBIE_TIMEOUT_MS as u64 {
            // Lossless: less than `ZOMBIE_TIMEOUT_MS`.
            left as u32
        } else {
            ZOMBIE_TIMEOUT_MS
        }
    }
}
