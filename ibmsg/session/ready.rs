// SPDX-License-Identifier: GPL-2.0

//! Channels with something to send, in a list for each connection.
//!
//! A channel is in one list at most: its entry there is the one with the number of the channel's latest entry. A channel
//! that moves leaves its entry in the list of its former connection, which may still work. Such entries are skipped
//! when their turn comes, and removed when a list has as many entries as there may be twice as many channels, so that
//! a list is not searched again before as many entries were added.

use ibtrs_core::messages::{
    memory::Device,
    Conn, //
};
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

    /// Adds an entry for a channel that is on the connection `of`. Returns `false` if there are too many.
    pub(super) fn push(&mut self, of: Conn, chan: &mut Chan) -> bool {
        if self.list.len() >= self.limit {
            return false;
        }
        let entry = Entry {
            id: chan.proto.id(),
            number: chan.entry.wrapping_add(1),
        };
        let is_listed = self.list.push_back(entry).is_ok();
        if is_listed {
            (chan.ready_on, chan.entry) = (Some(of), entry.number);
        }
        is_listed
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
    /// Puts a channel into the list of its connection, unless it is there. Channels that have left make room.
    pub(super) fn list_ready(&mut self, id: u32) {
        let Some(chan) = self.chans.get_mut(&id) else {
            return;
        };
        let mut conns = self.conns.iter_mut();
        let conn = conns.find(|conn| chan.proto.is_on(conn.id));
        let Some(conn) = conn.filter(|conn| chan.ready_on != Some(conn.id)) else {
            return;
        };
        let of = conn.id;
        if conn.ready.push(of, chan) {
            return;
        }
        conn.ready.list.retain(|entry| {
            let chan = self.chans.get(&entry.id)?;
            entry.is_of(chan, of).then_some(entry)
        });
        if let Some(chan) = self.chans.get_mut(&id) {
            // There is a place: no more entries than there are channels are left.
            let _ = conn.ready.push(of, chan);
        }
    }

    /// Calls `serve` for the first channel in the list of the connection with index `at`, which stays there. Entries of
    /// channels that have left are removed. Each entry lowers `looks`; none are looked at once it is 0.
    pub(super) fn serve_first<R>(
        &mut self,
        at: usize,
        looks: &mut u32,
        serve: impl FnOnce((Conn, Option<&dyn Device>), &mut Chan) -> R,
    ) -> Option<(Conn, u32, R)> {
        let conn = self.conns.get_mut(at)?;
        while let Some(entry) = conn.ready.list.front().copied() {
            *looks = looks.checked_sub(1)?;
            let chan = self.chans.get_mut(&entry.id);
            if let Some(chan) = chan.filter(|chan| entry.is_of(chan, conn.id)) {
                let on = (conn.id, conn.out.memory());
                return Some((conn.id, entry.id, serve(on, chan)));
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
