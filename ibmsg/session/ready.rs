// SPDX-License-Identifier: GPL-2.0

//! Channels with something to send, in a list for each connection.
//!
//! A channel is in one list at most: its entry there is the one with the number of the channel's latest entry. A channel
//! that moves leaves its entry in the list of its former connection, which may still work. Such entries are skipped
//! when their turn comes, and removed when a list has as many entries as there may be twice as many channels, so that
//! a list is not searched again before as many entries were added.

use ibtrs_core::messages::Conn;
use kernel::{
    alloc::Flags,
    prelude::*, //
};
use kx::deque::Deque;

use super::State;
use crate::channel::Chan;

/// A channel in a list.
#[derive(Clone, Copy)]
struct Entry {
    id: u32,
    /// Number of this entry among those of the channel.
    number: u32,
}

impl Entry {
    /// Whether it is the present entry of the channel, in the list of `conn`.
    fn is_of(self, chan: &Chan, conn: Conn) -> bool {
        chan.ready_on == Some(conn) && chan.entry == self.number
    }
}

/// The list of a connection.
pub(super) struct Ready {
    /// It has places for `limit` entries, wherever its first one is.
    list: Deque<Entry>,
    limit: usize,
}

impl Ready {
    /// A list without places.
    pub(super) const fn new() -> Self {
        Self {
            list: Deque::new(),
            limit: 0,
        }
    }

    /// The most entries with that many channels.
    const fn limit(channels: usize) -> usize {
        channels.saturating_mul(2)
    }

    /// Whether there is room with that many channels.
    pub(super) fn has_room(&self, channels: usize) -> bool {
        self.limit >= Self::limit(channels)
    }

    /// Makes room for that many channels.
    ///
    /// # Context
    ///
    /// As `flags` says.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(super) fn reserve(&mut self, channels: usize, flags: Flags) -> Result {
        let limit = Self::limit(channels).max(self.limit);
        self.list
            .reserve(limit.saturating_sub(self.list.len()), flags)?;
        self.limit = limit;
        Ok(())
    }

    /// Whether there is no entry.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of entries.
    #[cfg(IBTRS_KUNIT)]
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }
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
        chan.ready_on = Some(conn.id);
        chan.entry = chan.entry.wrapping_add(1);
        let entry = Entry {
            id,
            number: chan.entry,
        };
        let (of, ready) = (conn.id, &mut conn.ready);
        if ready.list.len() >= ready.limit {
            // No more than there are channels are left.
            let chans = &self.chans;
            ready.list.retain(|entry| {
                let chan = chans.get(&entry.id)?;
                entry.is_of(chan, of).then_some(entry)
            });
        }
        let is_listed = ready.list.push_back(entry).is_ok();
        if !is_listed {
            // There is a place, see above; otherwise, the channel waits until it has something else to send.
            self.unlist(id, of);
        }
    }

    /// The first channel in the list of the connection with index `at`, which stays there. Entries of channels that have
    /// left are removed, as long as `looks` is not 0; each lowers it.
    pub(super) fn first_ready(&mut self, at: usize, looks: &mut u32) -> Option<u32> {
        let conn = self.conns.get_mut(at)?;
        while let Some(entry) = conn.ready.list.front().copied() {
            *looks = looks.checked_sub(1)?;
            let chan = self.chans.get(&entry.id);
            if chan.is_some_and(|chan| entry.is_of(chan, conn.id)) {
                return Some(entry.id);
            }
            let _ = conn.ready.list.pop_front();
        }
        None
    }

    /// Removes the first entry from the list of the connection with index `at`, whose channel still counts as listed.
    pub(super) fn pop_ready(&mut self, at: usize) {
        if let Some(conn) = self.conns.get_mut(at) {
            let _ = conn.ready.list.pop_front();
        }
    }

    /// The channel, whose entry was removed from the list of `conn`, may be listed again.
    pub(super) fn unlist(&mut self, id: u32, conn: Conn) {
        let chan = self.chans.get_mut(&id);
        if let Some(chan) = chan.filter(|chan| chan.ready_on == Some(conn)) {
            chan.ready_on = None;
        }
    }
}
