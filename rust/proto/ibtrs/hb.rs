// SPDX-License-Identifier: GPL-2.0

//! Heartbeat accounting (Documentation/protocol.md, "Heartbeat").
//!
//! Times come from one monotonic clock in any one unit; latencies have the same unit. Receptions on
//! the I/O path need not touch this value: the caller may collect them in a per-CPU flag and call
//! [`Heartbeat::received`] right before [`Heartbeat::tick`].

use crate::consts::HB_MISSED_MAX;

/// The action at a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HbAction {
    /// Send a heartbeat message now.
    Send,
    /// Wait for the next tick.
    Nothing,
    /// The peer has been silent for too long.
    Dead,
}

/// State of one path's heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    missed: u32,
    missed_max: u32,
    sent: Option<u64>,
    latency: u64,
    /// When the next tick is due.
    due: u64,
}

impl Heartbeat {
    /// A heartbeat that tolerates fewer than `missed_max` ticks of silence after its message.
    pub const fn new(missed_max: u32) -> Self {
        Self {
            missed: 0,
            missed_max,
            sent: None,
            latency: 0,
            due: 0,
        }
    }

    /// Sets `missed_max` of [`Heartbeat::new`] for later ticks.
    pub fn set_missed_max(&mut self, missed_max: u32) {
        self.missed_max = missed_max;
    }

    /// Decides about the next message. The caller calls this once per interval; the first time when
    /// the path comes up, which measures the latency at once, or one interval later.
    ///
    /// While the path receives, every tick sends. In silence one tick sends, and the path is dead
    /// `missed_max` ticks later (at least one), which is at most `missed_max + 1` intervals after
    /// the last reception.
    pub fn tick(&mut self, now: u64) -> HbAction {
        if self.missed >= self.missed_max.max(1) {
            return HbAction::Dead;
        }
        let first = self.missed == 0;
        self.missed = self.missed.saturating_add(1);
        if first {
            self.sent = Some(now);
            HbAction::Send
        } else {
            HbAction::Nothing
        }
    }

    /// Returns the time from `now`, right after a tick, until the next one.
    ///
    /// A tick may come late if the machine is busy. In silence the next one makes up for that, so that
    /// the delays of all ticks do not add up; but no two are closer than half an interval, so that a
    /// machine that stood still first handles what has arrived. The tick after a heartbeat was sent
    /// waits for a whole interval, so the peer always has `missed_max` of them for the answer.
    pub fn next_in(&mut self, now: u64, interval: u64) -> u64 {
        let from = if self.missed <= 1 { now } else { self.due };
        let wait = from.saturating_add(interval).saturating_sub(now);
        let wait = wait.clamp(interval >> 1, interval);
        self.due = now.saturating_add(wait);
        wait
    }

    /// Notes that anything was received on any connection of the path.
    pub fn received(&mut self) {
        self.missed = 0;
    }

    /// Notes that a heartbeat was answered. Returns the round trip, or `None` if no heartbeat was
    /// sent since the last answer.
    pub fn ack(&mut self, now: u64) -> Option<u64> {
        self.missed = 0;
        let latency = now.saturating_sub(self.sent.take()?);
        self.latency = latency;
        Some(latency)
    }

    /// Returns for how long the heartbeat has been overdue that was sent in silence: a whole interval has passed
    /// since, and nothing was received.
    pub const fn overdue(&self, now: u64) -> Option<u64> {
        match self.sent {
            Some(sent) if self.missed > 1 => Some(now.saturating_sub(sent)),
            _ => None,
        }
    }

    /// Ticks since the last reception.
    pub const fn missed(&self) -> u32 {
        self.missed
    }

    /// The last round trip; 0 before the first one.
    pub const fn latency(&self) -> u64 {
        self.latency
    }
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self::new(HB_MISSED_MAX)
    }
}
