// SPDX-License-Identifier: GPL-2.0

//! Which connection a channel is on, as the client decides.
//!
//! A channel uses one connection, so that its messages stay in order, and the channels of a session are spread over all
//! connections: a new channel gets the one with the fewest channels, and so does a channel that has lost its
//! connection. When a path comes back, open channels move there until no connection has two more than another one.
//!
//! Channels that wait for their portal, which may take any time, all wait at [`State::home`] once they have lost their
//! connection: LIVE with `ends` is sent there, and must not overtake what says where a channel has moved
//! ([`Channel::blocks_live`](ibmsg_proto::channel::Channel::blocks_live)).

use ibmsg_proto::channel::Conn;

use super::State;
use crate::channel::Chan;

impl State {
    /// The connection that works and has been there for longest.
    pub(super) fn home(&self) -> Option<Conn> {
        let mut conns = self.conns.iter();
        conns.find(|conn| !conn.has_failed).map(|conn| conn.id)
    }

    /// The connection that works and has the fewest channels, and their number.
    pub(super) fn least_used(&self) -> Option<(Conn, usize)> {
        let usable = self.conns.iter().filter(|conn| !conn.has_failed);
        let least = usable.min_by_key(|conn| conn.channels)?;
        Some((least.id, least.channels))
    }

    /// Moves a channel that has lost its connection, or whose connection has more channels than others.
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
        let is_crowded =
            conns.any(|conn| chan.proto.is_on(conn.id) && conn.channels > channels + 1);
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
        let on = chan.proto.on();
        if chan.counts_on == on {
            return;
        }
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
