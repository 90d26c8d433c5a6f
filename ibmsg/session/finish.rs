// SPDX-License-Identifier: GPL-2.0

//! Closes channels in the place of programs, and waits until the other side has what they have written.

use ibtrs_proto::Errno;
use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::{
    Side,
    State, //
};
use crate::types::now;

/// Interval at which channels are looked at again.
const CHECK_MS: i64 = 10;

impl Side {
    /// Closes this end of a channel, whose programs learn that the session is closed, or refuses its offer.
    fn close_one(&self, state: &mut State, id: u32) {
        let Some(chan) = state.chans.get_mut(&id) else {
            return;
        };
        if chan.is_shut() {
            return;
        }
        if chan.has_program {
            chan.close_for(Errno::ESHUTDOWN);
        } else if chan.reject(Errno::ESHUTDOWN, KVec::new(), "") {
            let portal = chan.portal;
            self.withdraw(id, &portal);
        }
        self.done(state, id);
    }

    /// The session is about to be closed on purpose: closes all channels, and waits until the other side knows, and
    /// has what programs have written, for at most `limit_ms` milliseconds and as long as there is a connection.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn finish(&self, limit_ms: u32) {
        let mut state = self.0.state.lock();
        if core::mem::replace(&mut state.is_closing, true) {
            return;
        }
        drop(state);
        self.each_chan(|state, id| {
            self.close_one(state, id);
            Some(())
        });
        self.drain(limit_ms);
    }

    /// Waits until the other side has what programs have written so far, for at most `limit_ms` milliseconds and as
    /// long as there is a connection, and until a signal comes.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn drain(&self, limit_ms: u32) {
        if limit_ms == 0 {
            return;
        }
        let end = now() + u64::from(limit_ms) * 1000;
        let mut from = 0;
        // What the present channel had written when it was first looked at.
        let mut goal = None;
        loop {
            let mut state = self.0.state.lock();
            if state.conns.iter().all(|conn| conn.has_failed) {
                return;
            }
            let Some(id) = state.next_chan(from) else {
                return;
            };
            let chan = state.chans.get_mut(&id);
            if let Some(chan) = chan.filter(|_| goal.is_none_or(|(of, _)| of != id)) {
                goal = Some((id, chan.goal()));
                // Nothing waits for messages that nobody writes in time.
                if chan.gather.release() {
                    self.done(&mut state, id);
                }
            }
            let is_settled = match (state.chans.get(&id), goal) {
                (Some(chan), Some((_, goal))) => chan.is_settled(goal),
                _ => true,
            };
            drop(state);
            match is_settled {
                true => match id.checked_add(1) {
                    Some(after) => from = after,
                    None => return,
                },
                false if current!().signal_pending() => return,
                false if now() >= end => {
                    kx::pr_warn_ratelimited!(
                        "{}: channel {}: the other side has not taken everything in time (stop_timeout_s)\n",
                        self.name(),
                        id
                    );
                    return;
                }
                false => fsleep(Delta::from_millis(CHECK_MS)),
            }
        }
    }
}
