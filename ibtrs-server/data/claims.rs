// SPDX-License-Identifier: GPL-2.0

//! Claims the tags of requests, and releases them ([`crate::data::chunk_owner`]).

use crate::{
    data::con::{
        Con,
        Control,
        PathIo,
        SessionIo, //
    }, //
    storage::chunk::{
        Chunk,
        ChunkSlot, //
    },
};
use ibtrs_core::tag::Tagged;
use ibtrs_proto::{
    chunk_owner::PathId,
    serving::{
        self,
        Left,
        Next,
        Restored, //
    },
    tag::Tag,
};
use kernel::{
    prelude::*,
    warn_on, //
};
use rdma::slot::SlotRef;

/// The result of a claim.
pub(crate) enum Claim {
    /// The request may be served.
    Serve(KBox<Chunk>),
    /// The request waits until another path has released the tag, or was dropped because its own
    /// path is being closed.
    Later,
}

impl Con {
    /// Claims the tag of a request that has just arrived.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Returns the chunk if this path already has a request with this tag.
    #[inline]
    pub(crate) fn claim(
        &self,
        slot: SlotRef<'_, Self>,
        tag: Tag,
        chunk: KBox<Chunk>,
    ) -> Result<Claim, KBox<Chunk>> {
        let path = &self.path;
        let words = &path.session.owners.words;
        match serving::claim(words, path.id, tag, &**slot, chunk) {
            serving::Claim::Violation(chunk) => Err(chunk),
            serving::Claim::Has(mut chunk) => {
                chunk.claimed = true;
                if path.takes_requests() {
                    return Ok(Claim::Serve(chunk));
                }
                self.drop_request(slot, chunk);
                Ok(Claim::Later)
            }
            serving::Claim::Waits { close, displaced } => {
                if path.takes_requests() {
                    if let Some(displaced) = displaced {
                        self.control.supersede(displaced, Some(tag));
                    }
                    self.control.supersede(close, None);
                } else if let Some(displaced) = displaced {
                    self.restore(&slot, tag, displaced);
                }
                Ok(Claim::Later)
            }
        }
    }

    /// Restores the request of path `displaced` as the waiting one, instead of one that has arrived
    /// late over this path, which is being closed. A late request does not mean that the client has
    /// given up the displaced one; it is dropped with its path.
    fn restore(&self, slot: &ChunkSlot, tag: Tag, displaced: PathId) {
        let path = &self.path;
        let words = &path.session.owners.words;
        match serving::restore(words, path.id, tag, slot, displaced) {
            Restored::Waits(None) => {}
            Restored::Waits(Some(chunk)) => path.put_back(slot, chunk),
            Restored::Superseded => self.control.supersede(displaced, Some(tag)),
        }
    }

    /// As [`PathIo::drop_request`].
    pub(crate) fn drop_request(&self, slot: SlotRef<'_, Self>, chunk: KBox<Chunk>) {
        self.path.drop_request(&*self.control, slot, chunk);
    }
}

impl PathIo {
    /// Drops a request without an answer, because its path is being closed; releases its tag if
    /// the request has claimed it.
    pub(crate) fn drop_request(
        &self,
        control: &dyn Control,
        slot: SlotRef<'_, Con>,
        mut chunk: KBox<Chunk>,
    ) {
        let claimed = core::mem::take(&mut chunk.claimed);
        self.put_back(&slot, chunk);
        if claimed {
            let wake = || control.wake();
            self.session.release(self.id, slot.tag(), wake);
        }
    }

    /// Drops the requests of this path that wait: for another path, a buffer, their data, or the
    /// invalidation of a key. The connections of the path must be closed. Returns false if another
    /// thread is about to take one of the requests; the caller must then repeat the call.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn drop_waiting(&self, control: &dyn Control) -> bool {
        let mut all = true;
        for slot in self.slots.iter() {
            match serving::leave(&self.session.owners.words, self.id, slot.tag(), &**slot) {
                Left::Nothing => {}
                Left::Pending(chunk) => self.drop_request(control, slot, chunk),
                Left::Waiting(chunk) => self.put_back(&slot, chunk),
                Left::Taken => all = false,
            }
        }
        all
    }
}

impl SessionIo {
    /// Releases the tag of a completed request. If another request waits for the tag, calls `wake`.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(crate) fn release(&self, id: PathId, tag: Tag, wake: impl FnOnce()) {
        match serving::release(&self.owners.words, id, tag) {
            Next::Nobody => {}
            Next::Wake(waiter) => {
                self.owners.woken.lock().push((waiter.get(), tag));
                wake();
            }
            Next::Stray => {
                warn_on!(true);
            }
        }
    }
}
