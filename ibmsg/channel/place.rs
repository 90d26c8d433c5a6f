// SPDX-License-Identifier: GPL-2.0

//! Channels by the time until which they wait.

use kernel::{
    alloc::flags::{
        __GFP_NOWARN, //
        GFP_ATOMIC,
    },
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    }, //
};

/// A time, and the channel.
type Key = (u64, u32);

/// Where a channel is among those that wait.
#[derive(Default)]
pub(crate) struct Place {
    /// It waits until then.
    until: Option<u64>,
    /// Memory for it, if it does not.
    memory: Option<RBTreeNodeReservation<Key, ()>>,
}

impl Place {
    /// Until when the channel waits.
    pub(crate) const fn until(&self) -> Option<u64> {
        self.until
    }
}

/// Channels that wait.
pub(crate) struct Places(RBTree<Key, ()>);

impl Places {
    /// No channels.
    pub(crate) fn new() -> Self {
        Self(RBTree::new())
    }

    /// The first time, and its channel.
    pub(crate) fn first(&self) -> Option<Key> {
        Some(*self.0.cursor_front()?.current().0)
    }

    /// The channel `id` waits until `until` from now on, or not at all. Returns `false` if there is no memory: then it
    /// does not wait.
    #[must_use]
    pub(crate) fn set(&mut self, id: u32, place: &mut Place, until: Option<u64>) -> bool {
        if let Some(former) = place.until.take() {
            let node = self.0.remove_node(&(former, id));
            place.memory = node.map(|node| node.into_reservation());
        }
        let Some(at) = until else {
            return true;
        };
        let flags = GFP_ATOMIC | __GFP_NOWARN;
        let memory = match place.memory.take() {
            Some(memory) => memory,
            None => match RBTreeNodeReservation::new(flags) {
                Ok(memory) => memory,
                Err(_) => return false,
            },
        };
        self.0.insert(memory.into_node((at, id), ()));
        place.until = until;
        true
    }
}
