// SPDX-License-Identifier: GPL-2.0

//! Claims the numbers of requests, and releases them ([`crate::data::chunk_owner`]).

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
use ibtrs_proto::{
    chunk_owner::PathId,
    serving::{
        self,
        Left,
        Next,
        Restored, //
    },
};
use kernel::{
    prelude::*,
    warn_on, //
};

/// The result of a claim.
pub(crate) enum Claim {
    /// The request may be served.
    Serve(KBox<Chunk>),
    /// The request waits until another path is done with the number, or was dropped because its own
    /// path is being closed.
    Later,
}

impl Con {
    /// Claims the number of a request that has just arrived.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The chunk is handed back: this path already has a request with this number.
    #[inline]
    pub(crate) fn claim(
        &self,
        slot: &ChunkSlot,
        buf_id: u16,
        chunk: KBox<Chunk>,
    ) -> Result<Claim, KBox<Chunk>> {
        let path = &self.path;
        let words = &path.session.owners.words;
        match serving::claim(words, path.id, buf_id, slot, chunk) {
            serving::Claim::Violation(chunk) => Err(chunk),
            serving::Claim::Has(mut chunk) => {
                chunk.claimed = true;
                if path.takes_requests() {
                    return Ok(Claim::Serve(chunk));
                }
                self.drop_request(slot, buf_id, chunk);
                Ok(Claim::Later)
            }
            serving::Claim::Waits { close, displaced } => {
                if path.takes_requests() {
                    if let Some(displaced) = displaced {
                        self.control.supersede(displaced, Some(buf_id));
                    }
                    self.control.supersede(close, None);
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
    fn restore(&self, slot: &ChunkSlot, buf_id: u16, displaced: PathId) {
        let path = &self.path;
        let words = &path.session.owners.words;
        match serving::restore(words, path.id, buf_id, slot, displaced) {
            Restored::Waits(None) => {}
            Restored::Waits(Some(chunk)) => path.put_back(slot, chunk),
            Restored::Superseded => self.control.supersede(displaced, Some(buf_id)),
        }
    }

    /// Releases the number of a request of this path that is over, as [`SessionIo::release`] does.
    #[inline]
    pub(crate) fn release(&self, buf_id: u16) {
        self.path.release(&*self.control, buf_id);
    }

    /// As [`PathIo::drop_request`].
    pub(crate) fn drop_request(&self, slot: &ChunkSlot, buf_id: u16, chunk: KBox<Chunk>) {
        self.path.drop_request(&*self.control, slot, buf_id, chunk);
    }
}

impl PathIo {
    #[inline]
    fn release(&self, control: &dyn Control, buf_id: u16) {
        let wake = || control.wake();
        self.session.release(self.id, buf_id, wake);
    }

    /// Drops a request without an answer, because its path is being closed; releases its number if
    /// the request has claimed it.
    pub(crate) fn drop_request(
        &self,
        control: &dyn Control,
        slot: &ChunkSlot,
        buf_id: u16,
        mut chunk: KBox<Chunk>,
    ) {
        let claimed = core::mem::take(&mut chunk.claimed);
        self.put_back(slot, chunk);
        if claimed {
            self.release(control, buf_id);
        }
    }

    /// Drops the requests of this path that wait: for another path, a buffer, their data, or the
    /// invalidation of a key. The connections of the path have ended. Returns false if another
    /// thread is about to take one of the requests; the caller then calls it again.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn drop_waiting(&self, control: &dyn Control) -> bool {
        let mut all = true;
        for slot in self.slots.iter() {
            let buf_id = slot.index();
            match serving::leave(&self.session.owners.words, self.id, buf_id, &**slot) {
                Left::Nothing => {}
                Left::Pending(chunk) => self.drop_request(control, &slot, buf_id, chunk),
                Left::Waiting(chunk) => self.put_back(&slot, chunk),
                Left::Taken => all = false,
            }
        }
        all
    }
}

impl SessionIo {
    /// Releases the number of a request that is over. If another one waits for it, calls `wake`.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(crate) fn release(&self, id: PathId, buf_id: u16, wake: impl FnOnce()) {
        match serving::release(&self.owners.words, id, buf_id) {
            Next::Nobody => {}
            Next::Wake(waiter) => {
                self.owners.woken.lock().push((waiter.get(), buf_id));
                wake();
            }
            Next::Stray => {
                warn_on!(true);
            }
        }
    }
}
