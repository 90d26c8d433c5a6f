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
use crate::{
    channel::Unread,
    types::now, //
};

/// Interval at which channels are looked at again.
const CHECK_MS: i64 = 10;

impl Side {
    /// Closes this end of a channel, whose programs learn `why`, or refuses its offer. Returns what the program has
    /// not read; `None` if the channel has ended before.
    pub(super) fn close_one(&self, state: &mut State, id: u32, why: Errno) -> Option<Unread> {
        let chan = state.chans.get_mut(&id)?;
        let unread = match chan.has_program {
            true if chan.end.is_none() => Some(chan.close_for(why)),
            true => None,
            false => chan.reject(why, KVec::new()).then(Unread::default),
        };
        if unread.is_some() {
            let (portal, is_offered) = (chan.portal, !chan.has_program);
            if is_offered {
                self.withdraw(id, &portal);
            }
            self.done(state, id);
        }
        unread
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
        let mut next = Some(0);
        while let Some(from) = next {
            let mut state = self.0.state.lock();
            let Some(id) = state.next_chan(from) else {
                break;
            };
            let unread = self.close_one(&mut state, id, Errno::ESHUTDOWN);
            let garbage = core::mem::take(&mut state.garbage);
            drop(state);
            drop((garbage, unread));
            next = id.checked_add(1);
        }
        self.drain(limit_ms);
    }

    /// Waits until the other side has what programs have written so far, for at most `limit_ms` milliseconds and as
    /// long as there is a connection.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn drain(&self, limit_ms: u32) {
        let end = now() + u64::from(limit_ms) * 1000;
        let mut from = 0;
        loop {
            let state = self.0.state.lock();
            if state.conns.iter().all(|conn| conn.has_failed) {
                return;
            }
            // One by one: a channel that is written to all the time is not waited for again.
            let Some(id) = state.next_chan(from) else {
                return;
            };
            let is_settled = state.chans.get(&id).is_none_or(|chan| chan.is_settled());
            drop(state);
            match is_settled {
                true => match id.checked_add(1) {
                    Some(after) => from = after,
                    None => return,
                },
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
