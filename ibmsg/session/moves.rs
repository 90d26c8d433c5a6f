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
        let garbage;
        let mut state = self.0.state.lock();
        let flags = GFP_ATOMIC | __GFP_NOWARN;
        let mut ready = Deque::new();
        ready.reserve(state.len + 1, flags)?;
        let conn = ConnState {
            id,
            out: connection,
            flow: Link::new(receives, receives),
            ready,
            answers: Deque::new(),
            spare: None,
            live: None,
            has_failed: false,
            next: None,
        };
        let conn = KBox::new(conn, flags)?;
        state.conns.push(conn, flags)?;
        state.newest = state.newest.max(id.epoch);
        state.walk_again(self.0.role);
        self.step(&mut state, now());
        garbage = core::mem::take(&mut state.garbage);
        drop(state);
        drop(garbage);
        Ok(())
    }

    fn arrived(&self, id: Conn, frame: &[u8], done: &mut usize) -> Arrived {
        self.frame(id, frame, done)
    }

    fn lost(&self, id: Conn) {
        let garbage;
        let mut state = self.0.state.lock();
        self.forget(&mut state, id);
        self.step(&mut state, now());
        garbage = core::mem::take(&mut state.garbage);
        drop(state);
        drop(garbage);
    }
}

impl Side {
    /// Takes a connection out of use. Its channels are looked at later.
    pub(super) fn forget(&self, state: &mut State, id: Conn) {
        let at = state.conns.iter().position(|conn| conn.id == id);
        if let Some(Ok(conn)) = at.map(|at| state.conns.remove(at)) {
            state.garbage.add_conn(conn);
            state.walk_again(self.0.role);
        }
    }
}
