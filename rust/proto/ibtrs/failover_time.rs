// SPDX-License-Identifier: GPL-2.0

//! The failover time of a session, and what follows from it (Documentation/failover.md).
//!
//! The failover time is the longest time that I/O stands still when one of several paths is lost
//! silently. It has two parts: the heartbeats of the path notice the loss, and then the requests
//! move: teardown of the path, fence, and submission over another path.
//!
//! The device's retransmissions are no part of the sum, as they run beside the heartbeats. They
//! only have to be frequent enough, so that a few lost packets delay no heartbeat for too long.

use crate::consts::{HB_INTERVAL_MS, HB_MISSED_MAX, RETRY_COUNT};
use crate::settings;

/// The share of the failover time in which the requests move: one part in this many.
const MOVE_SHARE: u32 = 4;
/// Limits of that share, in milliseconds.
const MOVE_MS: (u32, u32) = (400, 2000);
/// The time in which requests move if the server has no fences, in milliseconds. The client then
/// waits for the answer to the disconnect, at most [`DISCONNECT_GRACE_MS`].
const MOVE_UNFENCED_MS: u32 = DISCONNECT_GRACE_MS + MOVE_MS.1;
/// Time for a server without fences to answer the disconnects before the path's requests are sent
/// over another path, in milliseconds.
pub const DISCONNECT_GRACE_MS: u32 = 3000;
/// The longest ACK timeout, see [`Plan::ack_timeout`]: 537 ms. It is the one that the connection
/// manager chooses for RoCE.
const MAX_ACK_TIMEOUT: u8 = 17;

/// The peer, as far as the heartbeats depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// It has fences, and its heartbeats follow the failover time of the client.
    Ours,
    /// It has the fixed heartbeats of mainline, and no fences.
    Fixed,
}

/// What the operator has set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// The failover time in milliseconds.
    pub failover_time_ms: u32,
    /// The time between two heartbeats in milliseconds; 0: it follows from the failover time.
    pub hb_interval_ms: u32,
    /// Heartbeats that may be missed in a row.
    pub hb_missed_max: u32,
}

/// What follows from a failover time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The time between two heartbeats in milliseconds.
    pub hb_interval_ms: u32,
    /// Heartbeats that may be missed in a row.
    pub hb_missed_max: u32,
    /// The device sends a packet again after 4.096 us times two to the power of this without an
    /// acknowledgement.
    pub ack_timeout: u8,
    /// The time in milliseconds that is left for the requests to move to another path.
    pub move_ms: u32,
}

/// A failover time that is too short for the heartbeats that may be missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooShort {
    /// The shortest time that is possible, in milliseconds.
    pub least_ms: u32,
}

impl Plan {
    /// Derives the times. An explicit interval is taken as it is, and so is a number of missed
    /// heartbeats for which even the shortest interval is too long: the sum then exceeds the failover
    /// time.
    pub fn new(set: Chosen, peer: Peer) -> Self {
        let (detect_ms, move_ms) = match peer {
            Peer::Ours => shares(set.failover_time_ms),
            Peer::Fixed => fixed_shares(set),
        };
        let ticks = ticks(set.hb_missed_max);
        let (least, most) = (settings::HB_INTERVAL_MS.min, settings::HB_INTERVAL_MS.max);
        let interval = match set.hb_interval_ms {
            0 => detect_ms.checked_div(ticks).unwrap_or(0).clamp(least, most),
            explicit => explicit,
        };
        let plan = Self {
            hb_interval_ms: interval,
            hb_missed_max: set.hb_missed_max,
            ack_timeout: 0,
            move_ms,
        };
        Self {
            ack_timeout: ack_timeout(plan.detect_ms()),
            ..plan
        }
    }

    /// The heartbeats of a server for a client with that failover time; 0 if the client tells none.
    /// A client can tell any number, so it is brought into the range of the setting.
    pub fn of_server(client_ms: u32, hb_interval_ms: u32, hb_missed_max: u32) -> Self {
        let setting = settings::FAILOVER_TIME_MS;
        let (failover_time_ms, peer) = match client_ms {
            0 => (setting.default, Peer::Fixed),
            ms => (ms.clamp(setting.min, setting.max), Peer::Ours),
        };
        let set = Chosen {
            failover_time_ms,
            hb_interval_ms,
            hb_missed_max,
        };
        Self::new(set, peer)
    }

    /// The longest time from the last reception until the heartbeats notice a loss, in
    /// milliseconds.
    pub fn detect_ms(&self) -> u32 {
        self.hb_interval_ms
            .saturating_mul(ticks(self.hb_missed_max))
    }

    /// The longest time that I/O stands still, in milliseconds.
    pub fn total_ms(&self) -> u32 {
        self.detect_ms().saturating_add(self.move_ms)
    }
}

/// The intervals from the last reception until the heartbeats notice a loss, at most.
fn ticks(missed_max: u32) -> u32 {
    missed_max.max(1).saturating_add(1)
}

/// Splits a failover time into the time to notice the loss and the time to move the requests.
fn shares(failover_time_ms: u32) -> (u32, u32) {
    let move_ms = failover_time_ms.checked_div(MOVE_SHARE).unwrap_or(0);
    let move_ms = move_ms.clamp(MOVE_MS.0, MOVE_MS.1);
    (failover_time_ms.saturating_sub(move_ms), move_ms)
}

/// As [`shares`] towards a peer with fixed heartbeats. The client does not notice a loss before such
/// a server does: without fences, a request that the server still has may be executed after its
/// second attempt.
fn fixed_shares(set: Chosen) -> (u32, u32) {
    let (longer, _) = shares(set.failover_time_ms);
    let fixed = HB_INTERVAL_MS.saturating_mul(ticks(set.hb_missed_max.max(HB_MISSED_MAX)));
    (fixed.max(longer), MOVE_UNFENCED_MS)
}

/// The shortest ACK timeout with which all retransmissions together last as long as the heartbeats
/// take to notice a loss, so that the device does not give up before; at most [`MAX_ACK_TIMEOUT`].
fn ack_timeout(detect_ms: u32) -> u8 {
    let attempts = u64::from(RETRY_COUNT).saturating_add(1);
    let detect_ns = u64::from(detect_ms).saturating_mul(1_000_000);
    let lasts = |exponent: &u8| {
        let once_ns = 4096_u64.wrapping_shl((*exponent).into());
        once_ns.saturating_mul(attempts) >= detect_ns
    };
    (0..MAX_ACK_TIMEOUT).find(lasts).unwrap_or(MAX_ACK_TIMEOUT)
}

/// Checks whether a failover time is possible with a number of heartbeats that may be missed.
///
/// # Errors
///
/// The time is too short, and the interval between heartbeats not explicit.
pub fn check(set: Chosen) -> Result<(), TooShort> {
    let (detect_ms, _) = shares(set.failover_time_ms);
    let least = settings::HB_INTERVAL_MS.min;
    let needed_ms = least.saturating_mul(ticks(set.hb_missed_max));
    if set.hb_interval_ms != 0 || detect_ms >= needed_ms {
        return Ok(());
    }
    Err(TooShort {
        least_ms: least_ms(needed_ms),
    })
}

/// The shortest failover time that leaves `detect_ms` to notice the loss.
fn least_ms(detect_ms: u32) -> u32 {
    // The share of the whole is this much of the rest, rounded down as `shares` does.
    let of_rest = MOVE_SHARE.saturating_sub(1);
    let move_ms = detect_ms.saturating_sub(1).checked_div(of_rest);
    let move_ms = move_ms.unwrap_or(0).clamp(MOVE_MS.0, MOVE_MS.1);
    detect_ms.saturating_add(move_ms)
}
