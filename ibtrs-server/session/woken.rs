// SPDX-License-Identifier: GPL-2.0

//! Serves the requests of a session that have waited for another path ([`crate::data::chunk_owner`]).

use crate::{
    data::serve::dispatch,
    path::Path,
    session::Session, //
};
use ibtrs_proto::{
    chunk_owner::PathId,
    serving::Place,
    tag::Tag, //
};
use kernel::{
    sync::Arc,
    warn_on, //
};
use kx::work::WorkItem;

impl Session {
    fn release(self: &Arc<Self>, id: PathId, tag: Tag) {
        let wake = || {
            self.wake.enqueue(self.clone());
        };
        self.io.release(id, tag, wake);
    }

    /// Closes the path `id`, which the client has superseded. If a newer request has replaced its
    /// `waiting` one, the latter is dropped.
    pub(crate) fn close_superseded(&self, id: PathId, waiting: Option<Tag>) {
        let Some(path) = self.path(id) else {
            return;
        };
        let slots = &path.io.slots;
        if let Some(slot) = waiting.and_then(|tag| slots.get(tag.get())) {
            if let Some(chunk) = slot.take_waiting() {
                path.io.put_back(&slot, chunk);
            }
        }
        path.superseded();
    }

    /// Serves a request that has waited, or drops it if its path is being closed.
    fn serve_woken(self: &Arc<Self>, path: &Arc<Path>, tag: Tag) {
        let io = &path.io;
        let Some(slot) = io.slots.get(tag.get()) else {
            return;
        };
        let Some(mut chunk) = slot.take_waiting() else {
            // `put_waiting` has stored the request before the word names its path.
            warn_on!(true);
            return self.release(io.id, tag);
        };
        chunk.claimed = true;
        match io.qp(chunk.cid).filter(|_| io.takes_requests()) {
            // The queue pair has the same table of slots.
            Some(qp) => dispatch(io, qp, slot, chunk),
            None => io.drop_request(&**path, slot, chunk),
        }
    }
}

/// Serves requests that have waited for another path.
impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        loop {
            let woken = this.io.owners.woken.lock().pop();
            let Some((id, tag)) = woken else {
                return;
            };
            // A path outlives its waiting requests.
            let Some(id) = PathId::new(id) else {
                continue;
            };
            match this.path(id) {
                Some(path) => this.serve_woken(&path, tag),
                None => {
                    warn_on!(true);
                    this.release(id, tag);
                }
            }
        }
    }
}
