// SPDX-License-Identifier: GPL-2.0

//! Chunk ownership: which path serves a tag.
//!
//! [`ibtrs_proto::chunk_owner`] defines the rules, [`ibtrs_proto::serving`] the order of the steps;
//! this file provides the memory, and [`crate::data::claims`] executes the steps.

use crate::storage::chunk::{
    Chunk,
    ChunkSlot, //
};
use ibtrs_proto::{
    chunk_owner::ChunkOwner,
    serving::{
        self,
        Place, //
    },
    tag::Tag,
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::SpinLockIrq, //
};
use kx::{
    ring::Ring,
    sync::atomic::{
        Acquire,
        Atomic,
        Full, //
    },
    //
};

/// One word for each tag, as [`ChunkOwner::to_bits`].
pub(crate) struct Words(KVVec<Atomic<u32>>);

impl serving::Words for Words {
    fn load(&self, tag: Tag) -> Option<ChunkOwner> {
        let word = self.0.get(usize::from(tag))?;
        // ORDERING: Pairs with the exchanges in `replace`.
        Some(ChunkOwner::from_bits(word.load(Acquire)))
    }

    fn replace(&self, tag: Tag, old: ChunkOwner, new: ChunkOwner) -> bool {
        let Some(word) = self.0.get(usize::from(tag)) else {
            return false;
        };
        // ORDERING: Full, so that the exchange is ordered before the following read in
        // `PathIo::takes_requests`; pairs with the full exchange in `PathIo::set_connected`.
        word.cmpxchg(old.to_bits(), new.to_bits(), Full).is_ok()
    }
}

impl Place for ChunkSlot {
    type Request = KBox<Chunk>;

    fn put_waiting(&self, chunk: KBox<Chunk>) -> Result<(), KBox<Chunk>> {
        self.waiting.put(chunk)
    }

    fn take_waiting(&self) -> Option<KBox<Chunk>> {
        self.waiting.take()
    }

    fn has_waiting(&self) -> bool {
        self.waiting.is_full()
    }

    fn put_pending(&self, chunk: KBox<Chunk>) -> Result<(), KBox<Chunk>> {
        self.pending.put(chunk)
    }

    fn take_pending(&self) -> Option<KBox<Chunk>> {
        self.pending.take()
    }
}

/// Path id and tag of a waiting request that may be served.
pub(crate) type Woken = (u16, Tag);

/// The owners of the tags of a session.
#[pin_data]
pub(crate) struct ChunkOwners {
    pub(crate) words: Words,
    /// Waiting requests that may be served. A tag is in the ring at most once, as it gets no other
    /// owner before it is removed.
    #[pin]
    pub(crate) woken: SpinLockIrq<Ring<Woken>>,
}

impl ChunkOwners {
    /// Creates the words for `depth` tags.
    pub(crate) fn new(depth: u16) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            words: {
                let mut words = KVVec::with_capacity(usize::from(depth), GFP_KERNEL)?;
                for _ in 0..depth {
                    words.push(Atomic::new(ChunkOwner::FREE.to_bits()), GFP_KERNEL)?;
                }
                Words(words)
            },
            woken <- new_spinlock_irq!(Ring::new(usize::from(depth))?, "ChunkOwners::woken"),
        }? Error)
    }
}
