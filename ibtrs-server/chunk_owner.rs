// SPDX-License-Identifier: GPL-2.0

//! Chunk ownership: which path has a request number in service.
//!
//! [`ibtrs_proto::chunk_owner`] has the rules, [`ibtrs_proto::serving`] the order of the
//! steps; this file provides the memory and carries them out.

use crate::{
    chunk::{
        Chunk,
        ChunkSlot, //
    },
    con,
    path::Path,
    session::Session, //
};
use ibtrs_proto::{
    chunk_owner::{
        ChunkOwner,
        PathTag, //
    },
    serving::{
        self,
        Left,
        Next,
        Place,
        Restored, //
    },
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
    warn_on, //
};
use kx::{
    ring::Ring,
    sync::atomic::{
        Acquire,
        Atomic,
        Full, //
    },
    work::WorkItem, //
};

/// One word for each chunk number, as [`ChunkOwner::to_bits`].
struct Words(KVVec<Atomic<u32>>);

impl serving::Words for Words {
    fn load(&self, buf_id: u16) -> Option<ChunkOwner> {
        let word = self.0.get(usize::from(buf_id))?;
        // ORDERING: Pairs with the exchanges in `replace`.
        Some(ChunkOwner::from_bits(word.load(Acquire)))
    }

    fn replace(&self, buf_id: u16, old: ChunkOwner, new: ChunkOwner) -> bool {
        let Some(word) = self.0.get(usize::from(buf_id)) else {
            return false;
        };
        // ORDERING: Full, so that the exchange comes before the read in `Path::takes_requests` that
        // follows; pairs with the full exchange in `Path::event`.
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

/// Path tag and chunk number of a waiting request that may be served.
type Woken = (u16, u16);

/// The owners of the chunk numbers of a session.
#[pin_data]
pub(crate) struct ChunkOwners {
    words: Words,
    /// Waiting requests that may be served. A number is in the ring at most once, as it gets no
    /// other owner before it is taken out.
    #[pin]
    woken: SpinLockIrq<Ring<Woken>>,
}

impl ChunkOwners {
    /// Creates the words for `depth` numbers.
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

/// The result of a claim.
pub(crate) enum Claim {
    /// The request may be served.
    Serve(KBox<Chunk>),
    /// The request waits until another path is done with the number, or was dropped because its own
    /// path is being closed.
    Later,
}

impl Path {
    /// Claims the number of a request that has just arrived.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The chunk is handed back: this path already has a request with this number.
    pub(crate) fn claim(
        self: &Arc<Self>,
        slot: &ChunkSlot,
        buf_id: u16,
        chunk: KBox<Chunk>,
    ) -> Result<Claim, KBox<Chunk>> {
        let session = &self.session;
        match serving::claim(&session.owners.words, self.tag, buf_id, slot, chunk) {
            serving::Claim::Violation(chunk) => Err(chunk),
            serving::Claim::Has(mut chunk) => {
                chunk.claimed = true;
                if self.takes_requests() {
                    return Ok(Claim::Serve(chunk));
                }
                session.drop_request(self, slot, buf_id, chunk);
                Ok(Claim::Later)
            }
            serving::Claim::Waits { close, displaced } => {
                if self.takes_requests() {
                    session.supersede(buf_id, displaced);
                    session.close_superseded(close);
                } else if let Some(displaced) = displaced {
                    self.restore(slot, buf_id, displaced);
                }
                Ok(Claim::Later)
            }
        }
    }

    /// Lets the request of path `displaced` wait again, in place of one that has arrived late over
    /// this path, which is being closed. Such a request does not show that the client has moved on;
    /// it is dropped with its path.
    fn restore(self: &Arc<Self>, slot: &ChunkSlot, buf_id: u16, displaced: PathTag) {
        let session = &self.session;
        match serving::restore(&session.owners.words, self.tag, buf_id, slot, displaced) {
            Restored::Waits(None) => {}
            Restored::Waits(Some(chunk)) => self.put_back(slot, chunk),
            Restored::Superseded => session.supersede(buf_id, Some(displaced)),
        }
    }

    /// Drops the requests of this path that wait: for another path, a buffer, their data, or the
    /// invalidation of a key. The connections of the path have ended. Returns false if another
    /// thread is about to take one of the requests; the caller then calls it again.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn drop_waiting(self: &Arc<Self>) -> bool {
        let session = &self.session;
        let mut all = true;
        for slot in self.slots.iter() {
            // CAST: A table has no more slots than numbers.
            let buf_id = slot.index() as u16;
            match serving::leave(&session.owners.words, self.tag, buf_id, &**slot) {
                Left::Nothing => {}
                Left::Pending(chunk) => session.drop_request(self, &slot, buf_id, chunk),
                Left::Waiting(chunk) => self.put_back(&slot, chunk),
                Left::Taken => all = false,
            }
        }
        all
    }
}

impl Session {
    /// Releases the number of a request that is over, and wakes the request that waits for it.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn release(self: &Arc<Self>, tag: PathTag, buf_id: u16) {
        match serving::release(&self.owners.words, tag, buf_id) {
            Next::Nobody => {}
            Next::Wake(waiter) => {
                self.owners.woken.lock().push((waiter.get(), buf_id));
                self.wake.enqueue(self.clone());
            }
            Next::Stray => {
                warn_on!(true);
            }
        }
    }

    /// Drops a request without an answer, because its path is being closed; releases its number if
    /// the request has claimed it.
    pub(crate) fn drop_request(
        self: &Arc<Self>,
        path: &Path,
        slot: &ChunkSlot,
        buf_id: u16,
        mut chunk: KBox<Chunk>,
    ) {
        let claimed = core::mem::take(&mut chunk.claimed);
        path.put_back(slot, chunk);
        if claimed {
            self.release(path.tag, buf_id);
        }
    }

    /// Drops the waiting request of path `displaced`, whose place a newer one has taken, and closes
    /// that path.
    fn supersede(&self, buf_id: u16, displaced: Option<PathTag>) {
        let Some(path) = displaced.and_then(|tag| self.path(tag)) else {
            return;
        };
        if let Some(slot) = path.slots.get(buf_id.into()) {
            if let Some(chunk) = slot.take_waiting() {
                path.put_back(&slot, chunk);
            }
        }
        path.superseded();
    }

    /// Closes a path that the client has superseded.
    fn close_superseded(&self, tag: PathTag) {
        if let Some(path) = self.path(tag) {
            path.superseded();
        }
    }

    /// Serves a request that has waited, or drops it if its path is being closed.
    fn serve_woken(self: &Arc<Self>, path: &Arc<Path>, buf_id: u16) {
        let Some(slot) = path.slots.get(buf_id.into()) else {
            return;
        };
        let Some(mut chunk) = slot.take_waiting() else {
            // `put_waiting` has stored the request before the word names its path.
            warn_on!(true);
            return self.release(path.tag, buf_id);
        };
        chunk.claimed = true;
        let cons = path.cons.lock();
        let qp = match cons.qps.get(usize::from(chunk.cid)) {
            Some(Some(qp)) if path.takes_requests() => qp.get(),
            _ => {
                drop(cons);
                return self.drop_request(path, &slot, buf_id, chunk);
            }
        };
        drop(cons);
        // The queue pair has the same table of slots.
        con::proceed(path, qp, slot, chunk);
    }
}

/// Serves requests that have waited for another path.
impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        loop {
            let woken = this.owners.woken.lock().pop();
            let Some((tag, buf_id)) = woken else {
                return;
            };
            // A path outlives its waiting requests.
            let Some(tag) = PathTag::new(tag) else {
                continue;
            };
            match this.path(tag) {
                Some(path) => this.serve_woken(&path, buf_id),
                None => {
                    warn_on!(true);
                    this.release(tag, buf_id);
                }
            }
        }
    }
}
