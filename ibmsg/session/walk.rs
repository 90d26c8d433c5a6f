// SPDX-License-Identifier: GPL-2.0

//! What concerns all channels, or many: done in portions, between which others get the lock.
//!
//! Whatever is left when a portion is done goes on in a work item. Until then, a channel that was not looked
//! at is as it was: it sends nothing by a connection that is not there, and gets nothing from it.

use kernel::prelude::*;

use super::{
    LiveDue,
    Role,
    Side,
    State, //
};

/// Channels in a portion.
const PORTION: u32 = 256;
/// Channels that get memory in one go.
const MEALS: usize = 16;

impl State {
    /// All channels are to be looked at, as connections have come or gone.
    pub(super) fn walk_again(&mut self, role: Role) {
        self.walk = Some(0);
        if role == Role::Client {
            self.live_due = Some(LiveDue { from: 0, to: None });
            for conn in &mut self.conns {
                // Channels may have left that were to stay.
                conn.live = conn.live.filter(|ends| !ends);
                conn.is_announced = false;
            }
        }
    }

    /// The first channel from a number on.
    pub(super) fn next_chan(&self, from: u32) -> Option<u32> {
        let cursor = self.chans.cursor_lower_bound(&from)?;
        Some(*cursor.current().0)
    }
}

impl Side {
    /// Calls a function for all channels, one by one under the lock, as they are many, until it returns `None`. What
    /// it returns is dropped without the lock.
    pub(super) fn each_chan<T>(&self, mut f: impl FnMut(&mut State, u32) -> Option<T>) {
        let mut next = Some(0);
        while let Some(from) = next {
            let result = self.locked(|state| {
                let id = state.next_chan(from)?;
                Some((id, f(state, id)?))
            });
            next = result.and_then(|(id, _)| id.checked_add(1));
        }
    }

    /// Does what is to be done, within bounds; the rest is done later.
    pub(super) fn step(&self, state: &mut State, now: u64) {
        let is_settled = self.settle(state, now);
        let is_timely = self.on_time(state, now);
        let is_sent = self.transmit(state, now);
        let is_done = is_settled && is_timely && is_sent;
        if !is_done && !state.is_over {
            self.0.more.enqueue(self.0.clone());
        }
    }

    /// Looks at channels after connections have come or gone. Returns whether it was at all of them.
    fn settle(&self, state: &mut State, now: u64) -> bool {
        let Some(mut from) = state.walk else {
            return true;
        };
        for _ in 0..PORTION {
            let next = state.next_chan(from);
            if let Some(id) = next {
                self.settle_one(state, id, now);
            }
            let Some(after) = next.and_then(|id| id.checked_add(1)) else {
                (state.walk, state.live) = (None, None);
                state.news.told(state.conns.is_empty());
                state.is_spreading = false;
                return true;
            };
            from = after;
        }
        state.walk = Some(from);
        false
    }

    fn settle_one(&self, state: &mut State, id: u32, now: u64) {
        let State {
            conns, chans, news, ..
        } = &mut *state;
        let Some(chan) = chans.get_mut(&id) else {
            return;
        };
        if let Some(on) = chan.proto.on() {
            let is_there = conns.iter().any(|conn| conn.id == on);
            if !is_there && chan.proto.lost(on) {
                chan.lost();
            }
        }
        news.tell(chan, conns.is_empty());
        Self::settle_memory(state, id);
        let State { chans, live, .. } = &mut *state;
        let Some(chan) = chans.get_mut(&id) else {
            return;
        };
        match self.0.role {
            Role::Client => state.place(id),
            Role::Server => {
                if let Some(live) = live.as_ref().and_then(|live| live.record()) {
                    chan.live(&live);
                    let portal = chan.portal;
                    if chan.proto.is_over() && !chan.has_program {
                        self.withdraw(id, &portal);
                    }
                }
            }
        }
        self.attend(state, id, now);
    }

    /// Looks at channels that wait for a time. Returns whether it was at all of them.
    fn on_time(&self, state: &mut State, now: u64) -> bool {
        for _ in 0..PORTION {
            if state.timed_left == 0 {
                return true;
            }
            state.timed_left -= 1;
            let Some(id) = state.timed.pop_front() else {
                state.timed_left = 0;
                return true;
            };
            if let Some(chan) = state.chans.get_mut(&id) {
                chan.is_timed = false;
            }
            self.attend(state, id, now);
        }
        state.timed_left == 0
    }

    /// A channel that waited for a time is gone: its number leaves the list some time.
    pub(super) fn untimed(state: &mut State) {
        state.stale += 1;
        if state.stale < 64 || state.stale < state.timed.len() / 2 {
            return;
        }
        state.stale = 0;
        let State { timed, chans, .. } = &mut *state;
        timed.retain(|id| {
            // Each once: a number may have been used again.
            let chan = chans.get_mut(&id)?;
            core::mem::take(&mut chan.is_timed).then_some(id)
        });
        for id in timed.iter() {
            if let Some(chan) = chans.get_mut(id) {
                chan.is_timed = true;
            }
        }
        state.timed_left = state.timed_left.min(state.timed.len());
    }

    /// Allocates memory for channels that had none for what arrived.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(super) fn feed(&self) {
        let mut hungry = [0; MEALS];
        let mut state = self.0.state.lock();
        let mut len = 0;
        for place in &mut hungry {
            let Some(id) = state.hungry.pop_front() else {
                break;
            };
            *place = id;
            len += 1;
        }
        let is_more = !state.hungry.is_empty();
        drop(state);
        for id in hungry.iter().take(len) {
            self.feed_one(*id);
        }
        if is_more {
            self.0.feed.enqueue(self.0.clone());
        }
    }

    fn feed_one(&self, id: u32) {
        let needs = self.with(id, |chan| {
            chan.is_listed_hungry = false;
            chan.needs_of_hungry()
        });
        let Some(needs) = needs else {
            return;
        };
        // The content of a record needs memory as well: waits until there is some.
        let content = KVec::<u8>::with_capacity(crate::types::BLOCK, GFP_KERNEL);
        match (needs.allocate(GFP_KERNEL), content) {
            (Ok(mut spares), Ok(content)) => {
                drop(content);
                self.change(id, |chan| chan.feed(&mut spares));
            }
            _ => {
                self.change(id, |chan| chan.starves_on(crate::types::now()));
            }
        }
    }
}
