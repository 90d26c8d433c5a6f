// SPDX-License-Identifier: GPL-2.0

//! Connections come and go.

use ibmsg_proto::{
    channel::Conn,
    link::Link, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::deque::Deque;

use super::{
    ConnState,
    Role,
    Side,
    State, //
};
use crate::{
    link::{
        Arrived,
        Connection,
        Upper, //
    },
    types::now, //
};

impl Upper for Side {
    fn connected(&self, id: Conn, connection: Arc<dyn Connection>, receives: u32) -> Result {
        let mut state = self.0.state.lock();
        let flags = GFP_ATOMIC | __GFP_NOWARN;
        let mut ready = Deque::new();
        ready.reserve(state.len + 1, flags)?;
        state.conns.reserve(1, flags)?;
        state.newest = state.newest.max(id.epoch);
        state.conns.push(
            ConnState {
                id,
                out: connection,
                flow: Link::new(receives, receives),
                ready,
                spare: None,
                live: None,
                has_failed: false,
            },
            flags,
        )?;
        let now = now();
        self.move_channels(&mut state, now);
        self.transmit(&mut state, now);
        Ok(())
    }

    fn arrived(&self, id: Conn, frame: &[u8], done: &mut usize) -> Arrived {
        self.frame(id, frame, done)
    }

    fn lost(&self, id: Conn) {
        let mut state = self.0.state.lock();
        let conn = self.forget(&mut state, id);
        let now = now();
        self.move_channels(&mut state, now);
        self.transmit(&mut state, now);
        drop(state);
        // It may be the last reference to something of the link.
        drop(conn);
    }
}

impl Side {
    /// Takes a connection out of use, and its channels off it.
    pub(super) fn forget(&self, state: &mut State, id: Conn) -> Option<ConnState> {
        let at = state.conns.iter().position(|conn| conn.id == id)?;
        let mut conn = state.conns.remove(at).ok();
        while let Some(id) = conn.as_mut().and_then(|conn| conn.ready.pop_front()) {
            if let Some(chan) = state.chans.get_mut(&id) {
                chan.is_ready = false;
            }
        }
        state.unknown.retain(|(conn, _)| *conn != id);
        let now = now();
        let mut next = state.chans.keys().next().copied();
        while let Some(id_of) = next {
            if let Some(chan) = state.chans.get_mut(&id_of) {
                if chan.proto.lost(id) {
                    chan.lost();
                }
                self.attend(state, id_of, now);
            }
            next = id_of.checked_add(1).and_then(|from| {
                let cursor = state.chans.cursor_lower_bound(&from)?;
                Some(*cursor.current().0)
            });
        }
        conn
    }

    /// The client moves the channels that have no connection.
    pub(super) fn move_channels(&self, state: &mut State, now: u64) {
        if self.0.role != Role::Client {
            return;
        }
        let Some(conn) = state.conns.iter_mut().find(|conn| !conn.has_failed) else {
            return;
        };
        let to = conn.id;
        // What was sent before a move must not arrive after it.
        conn.live = Some(false);
        state.live_due = true;
        let mut next = state.chans.keys().next().copied();
        while let Some(id) = next {
            let moves = state
                .chans
                .get_mut(&id)
                .is_some_and(|chan| chan.move_to(to));
            if moves {
                self.attend(state, id, now);
            }
            next = id.checked_add(1).and_then(|from| {
                let cursor = state.chans.cursor_lower_bound(&from)?;
                Some(*cursor.current().0)
            });
        }
    }
}
