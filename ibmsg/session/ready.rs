// SPDX-License-Identifier: GPL-2.0

//! Channels with something to send, in a list for each connection.
//!
//! A channel is in the list of the connection that it is on if [`Chan::ready_on`](crate::channel::Chan::ready_on) says
//! so. A channel that has moved leaves its number in the list of its former connection, which may still work. Such
//! numbers are skipped when their turn comes, and removed when a list is full: it has places for twice as many numbers
//! as there are channels, so that a list is not searched again before as many numbers were added.

use super::State;

/// Places in the list of a connection for that many channels.
pub(super) const fn places(channels: usize) -> usize {
    channels.saturating_mul(2)
}

impl State {
    /// Puts a channel into the list of its connection, unless it is there.
    pub(super) fn list_ready(&mut self, id: u32) {
        let Some(chan) = self.chans.get_mut(&id) else {
            return;
        };
        let mut conns = self.conns.iter_mut();
        let conn = conns.find(|conn| chan.proto.is_on(conn.id));
        let Some(conn) = conn.filter(|conn| chan.ready_on != Some(conn.id)) else {
            return;
        };
        if conn.ready.push_back(id).is_ok() {
            chan.ready_on = Some(conn.id);
            return;
        }
        let of = conn.id;
        conn.ready.retain(|id| {
            // Each once.
            let chan = self.chans.get_mut(&id)?;
            chan.ready_on.take_if(|on| *on == of).map(|_| id)
        });
        // There is a place for every channel now.
        let _ = conn.ready.push_back(id);
        for id in conn.ready.iter() {
            if let Some(chan) = self.chans.get_mut(id) {
                chan.ready_on = Some(of);
            }
        }
    }
}
