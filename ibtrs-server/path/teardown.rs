// SPDX-License-Identifier: GPL-2.0

//! Teardown of a path.
//!
//! A backing device may keep requests in service without limit. No thread waits for them: a work
//! item polls, so any number of paths can be in teardown.

use crate::{
    data::send, //
    path::Path,
    storage::landing::Group,
};
use ibtrs_proto::fsm::server_path::{
    Event,
    State, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    sync::atomic::Relaxed,
    work::WorkItem, //
};

/// Binary logarithm of the longest time between two checks, in milliseconds.
const LONGEST_PAUSE: u32 = 8;

impl Path {
    /// Ends the connections; the requests in service continue.
    ///
    /// No other path, session or accept waits for this.
    fn tear_down(self: &Arc<Self>) {
        self.heartbeat_work.disable_sync();
        self.key_check.disable_sync();
        self.zombie.disable_sync();
        self.fences.disable_sync();
        self.idle_work.disable_sync();
        self.hide();
        let mut cons = self.io.cons.lock();
        let qps = core::mem::take(&mut cons.qps);
        let messages = cons.messages.take();
        let mut closed = core::mem::take(&mut cons.closed);
        let removal = cons.removal.take();
        cons.is_taken = true;
        drop(cons);
        drop(removal);
        for qp in qps.iter().flatten() {
            // Disconnect all first, as closing waits for each one.
            qp.disconnect();
        }
        if let Some(conn) = &messages {
            conn.disconnect();
        }
        for qp in qps.iter().flatten() {
            qp.close();
        }
        drop(messages);
        // From here on no message arrives, and no device uses the memory of the path.
        for qp in qps.iter().flatten() {
            // Drops answers that waited for SQ space, and requests whose data was to be fetched.
            send::retry(qp);
        }
        for qp in qps.into_iter().flatten() {
            // `closed` has capacity for all. If not, dropping the rest would wait here.
            let _ = closed.push_within_capacity(qp.end());
        }
        // Leave the line now, so that other paths need not wait for the last request in service.
        self.io.session.holding.leave_line(self.io.id);
        self.give_buffers_back();
        let mut cons = self.io.cons.lock();
        cons.closed = closed;
        cons.checks = Some(0);
    }

    /// Releases the buffers of all idle slots. The buffers of requests in service are released when
    /// their chunks are put back.
    fn give_buffers_back(&self) {
        // ORDERING: A thread that puts a chunk back under the lock of its slot either does so before
        // this visits the slot, or then sees the flag.
        self.io.is_drained.store(true, Relaxed);
        for slot in self.io.slots.iter() {
            slot.release_buffers();
        }
    }

    /// Frees the connections and returns the chunks to the pool. If requests are still in service
    /// or about to be dropped, fails with the number of milliseconds after which to check again.
    fn finish(self: &Arc<Self>) -> Result<(), u32> {
        let dropped = self.io.drop_waiting(&**self);
        let mut cons = self.io.cons.lock();
        if !dropped || !cons.closed.iter().all(|qp| qp.is_over()) {
            let checks = cons.checks.unwrap_or(0);
            cons.checks = Some(checks.saturating_add(1));
            return Err(1 << checks.min(LONGEST_PAUSE));
        }
        let closed = core::mem::take(&mut cons.closed);
        let messages = (cons.auth2.take(), cons.info_rsp.take());
        drop(cons);
        drop(closed);
        drop(messages);
        self.io.session.env.buffers.look_after_late();
        self.give_chunks_back();
        Ok(())
    }

    /// Puts the memory of the chunks into the pool, for the next path.
    ///
    /// One chunk may be missing: a thread that takes a waiting request may see that the path is being
    /// closed, and put the chunk back just after this has checked for it (`Session::serve_woken`,
    /// `Session::close_superseded`, `PathIo::go_on`). That chunk, and the group of a slot, are not put into
    /// the pool but freed with the path, to which the thread holds a reference. Their charge is released
    /// slightly too early.
    fn give_chunks_back(&self) {
        let env = &self.io.session.env;
        let chunks = self.io.slots.iter().filter_map(|slot| slot.take_last());
        let memory = chunks.filter_map(|chunk| KBox::into_inner(chunk).landing.into_memory());
        self.charge.chunks_back();
        env.keep(&env.pool, memory);
        let groups = core::mem::take(&mut *self.groups.lock());
        let memory = groups
            .into_iter()
            .filter_map(Arc::into_unique_or_drop)
            .filter_map(Group::take_memory);
        env.keep(&env.slot_pool, memory);
    }
}

/// Tears down the path, and then ends the session if this was its last path.
impl WorkItem<{ crate::path::work::TEARDOWN }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.state() == State::Closed {
            return this.parent.clone().path_gone(&this);
        }
        if this.io.cons.lock().checks.is_none() {
            this.tear_down();
        }
        match this.finish() {
            Ok(()) => {
                this.event(Event::CloseDone);
            }
            Err(ms) => {
                this.teardown.enqueue_in(this.clone(), ms);
            }
        }
    }
}
