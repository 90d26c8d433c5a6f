// SPDX-License-Identifier: GPL-2.0

//! Connections come and go.

use ibmsg_proto::{
    channel::Conn,
    limits::MAX_ATTEMPTS,
    link::Link,
    wire::Drain, //
};
use ibtrs_core::convert;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::deque::Deque;

use super::{
    ready::Ready,
    ConnState,
    Side,
    State,
    MAX_CONNS, //
};
use crate::{
    link::{
        Arrived,
        Connection,
        Upper, //
    },
    types::now, //
};

/// Channels that are opened while a list is made.
const SPARE_PLACES: usize = 32;

impl Upper for Side {
    fn begins(&self, id: Conn) {
        let mut state = self.0.state.lock();
        state.newest = state.newest.max(id.epoch);
        // There is a place for each path.
        let _ = state.begun.push_within_capacity(id.epoch);
    }

    fn unsupported(&self, id: Conn) {
        let mut state = self.0.state.lock();
        state.begun.retain(|epoch| *epoch != id.epoch);
        state.is_supported = false;
    }

    fn connected(&self, id: Conn, connection: Arc<dyn Connection>, receives: u32) -> Result {
        let garbage;
        // Not under the lock, as a list has a place for every channel.
        let mut ready = Ready::new();
        let mut state = self.0.state.lock();
        while !ready.has_room(state.len + 1) {
            let channels = state.len + SPARE_PLACES;
            drop(state);
            ready.reserve(channels, GFP_KERNEL)?;
            state = self.0.state.lock();
        }
        let is_known = state.conns.iter().any(|conn| conn.id.epoch == id.epoch);
        let is_full = state.conns.len() >= MAX_ATTEMPTS
            || state.conns.len() + state.undrained.len() >= MAX_CONNS;
        if state.is_over || is_known || is_full {
            return Err(EINVAL);
        }
        let flags = GFP_ATOMIC | __GFP_NOWARN;
        let now = now();
        let conn = ConnState {
            id,
            out: connection,
            flow: Link::new(receives, receives),
            ready,
            spread_at: Some(now.saturating_add(state.spread_after)),
            since: now,
            channels: 0,
            answers: Deque::new(),
            spare: None,
            live: None,
            drain: None,
            is_announced: false,
            has_failed: false,
            next: None,
        };
        let conn = KBox::new(conn, flags)?;
        state.conns.push(conn, flags)?;
        state.newest = state.newest.max(id.epoch);
        state.begun.retain(|epoch| *epoch != id.epoch);
        state.is_supported = true;
        state.news.forget();
        state.walk_again(self.0.role);
        self.begin_spread(&mut state, now);
        self.step(&mut state, now);
        garbage = core::mem::take(&mut state.garbage);
        drop(state);
        drop(garbage);
        Ok(())
    }

    fn arrived(&self, id: Conn, frame: &[u8], done: &mut usize) -> Arrived {
        self.frame(id, frame, done)
    }

    fn completed(&self, id: Conn, cookie: u64) {
        self.memory_done(id, cookie);
    }

    fn draining(&self, seconds: u32) {
        let drain = Drain { seconds };
        self.locked(|state| {
            for conn in &mut state.conns {
                conn.drain = Some(drain);
            }
            state.tell_draining(drain);
            self.step(state, now());
        });
    }

    fn key_revoked(&self, why: Error) {
        let why = convert::errno(why);
        self.locked(|state| {
            state.tell_key_revoked(why);
            self.step(state, now());
        });
    }

    fn lost(&self, id: Conn) {
        let is_over = self.locked(|state| {
            state.begun.retain(|epoch| *epoch != id.epoch);
            self.is_drained_now(state, id);
            if state.conns.iter().any(|conn| conn.id == id) {
                self.forget(state, id);
            }
            self.step(state, now());
            state.is_over
        });
        if is_over {
            // No work item looks at channels any more, and memory that this connection reached can be released.
            self.each_chan(|state, id| {
                Self::settle_memory(state, id);
                self.attend(state, id, now());
                Some(())
            });
        }
    }
}

impl Side {
    /// Takes a connection out of use. Its channels are looked at later.
    pub(super) fn forget(&self, state: &mut State, id: Conn) {
        let at = state.conns.iter().position(|conn| conn.id == id);
        if let Some(Ok(conn)) = at.map(|at| state.conns.remove(at)) {
            state.spread_was_lost(&conn, now());
            state.garbage.add_conn(conn);
            state.walk_again(self.0.role);
        }
    }
}
