// SPDX-License-Identifier: GPL-2.0

//! Which connection a channel is on, as the client decides.
//!
//! A channel uses one connection, so that its messages stay in order, and the channels of a session are spread over all
//! connections: a new channel gets the one with the fewest channels, and so does a channel that has lost its
//! connection. When a connection has been there for a while, open channels move to it from others until none has two
//! more than another one. It takes longer if connections were lost soon after channels had moved there, so that a path
//! that fails again and again does not stop half of all channels each time.
//!
//! Channels that wait for their portal, which may take any time, all wait at [`State::home`] once they have lost their
//! connection: LIVE with `ends` is sent there, and must not overtake what says where a channel has moved
//! ([`Channel::blocks_live`](ibmsg_proto::channel::Channel::blocks_live)).

use ibmsg_proto::channel::Conn;

use super::{
    ConnState,
    Side,
    State, //
};
use crate::channel::Chan;

/// The shortest and the longest time in which channels do not move to a new connection from one that works, in
/// microseconds.
pub(super) const MIN_AFTER_US: u64 = 10_000_000;
const MAX_AFTER_US: u64 = 600_000_000;
/// A connection that is lost within so many times that time has failed soon.
const SOON: u64 = 6;

impl Side {
    /// Moves channels to the connections that have been there for long enough, and wakes up for the others.
    pub(super) fn begin_spread(&self, state: &mut State, now: u64) {
        if self.0.role != super::Role::Client {
            return;
        }
        let mut next = None;
        for conn in &mut state.conns {
            if conn.spread_at.is_some_and(|at| at <= now) {
                conn.spread_at = None;
                (state.walk, state.is_spreading) = (Some(0), true);
            }
            next = crate::channel::earlier(next, conn.spread_at);
        }
        if let Some(next) = next {
            self.wake_at(state, next, now);
        }
    }
}

impl State {
    /// The connection that works and has been there for longest.
    pub(super) fn home(&self) -> Option<Conn> {
        let mut conns = self.conns.iter();
        conns.find(|conn| !conn.has_failed).map(|conn| conn.id)
    }

    /// The connection that works and has the fewest channels, and their number. One that has just come is not used if
    /// there are others.
    pub(super) fn least_used(&self) -> Option<(Conn, usize)> {
        let usable = self.conns.iter().filter(|conn| !conn.has_failed);
        let least = usable.min_by_key(|conn| (conn.spread_at.is_some(), conn.channels))?;
        Some((least.id, least.channels))
    }

    /// A connection is lost: perhaps channels should not have moved there.
    pub(super) fn spread_was_lost(&mut self, conn: &ConnState, now: u64) {
        if conn.spread_at.is_some() {
            return;
        }
        let lived = now.saturating_sub(conn.since);
        self.spread_after = match lived < self.spread_after.saturating_mul(SOON) {
            true => self.spread_after.saturating_mul(2).min(MAX_AFTER_US),
            false => MIN_AFTER_US,
        };
    }

    /// Moves a channel that has lost its connection, or, if channels are being spread, whose connection has more channels
    /// than others.
    pub(super) fn place(&mut self, id: u32) {
        let (Some(home), Some((least, channels))) = (self.home(), self.least_used()) else {
            return;
        };
        let Some(chan) = self.chans.get_mut(&id) else {
            return;
        };
        let to = match chan.proto.is_opening() {
            true => home,
            false => least,
        };
        let mut conns = self.conns.iter();
        let is_crowded = self.is_spreading
            && conns.any(|conn| chan.proto.is_on(conn.id) && conn.channels > channels + 1);
        if chan.move_to(to) || (is_crowded && chan.relocate(to)) {
            let mut conns = self.conns.iter_mut();
            if let Some(conn) = conns.find(|conn| conn.id == to) {
                conn.announce();
            }
        }
    }

    /// Counts a channel among those of its connection.
    pub(super) fn count(&mut self, id: u32) {
        let Some(chan) = self.chans.get_mut(&id) else {
            return;
        };
        let on = chan.counted_on();
        let former = core::mem::replace(&mut chan.counts_on, on);
        for conn in &mut self.conns {
            if Some(conn.id) == former {
                conn.channels -= 1;
            }
            if Some(conn.id) == on {
                conn.channels += 1;
            }
        }
    }

    /// A channel is forgotten.
    pub(super) fn count_off(&mut self, chan: &Chan) {
        let mut conns = self.conns.iter_mut();
        if let Some(conn) = conns.find(|conn| Some(conn.id) == chan.counts_on) {
            conn.channels -= 1;
        }
    }
}
