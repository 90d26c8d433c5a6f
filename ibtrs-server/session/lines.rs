// SPDX-License-Identifier: GPL-2.0

//! Who looks after the requests that wait for buffers.
//!
//! The work item of a session takes buffers for the first requests of its line. It runs when a
//! request joins the line and when the session gives back a buffer. What other sessions do, and the
//! machine, is the business of a work item of the server: it runs from time to time as long as
//! requests wait, and has the sessions try again. If one of them is behind, it also runs whenever a
//! buffer comes back, and has the rich give back what they keep.

use crate::{
    session::{
        sessions::Sessions, //
        Session,
        LINE,
    }, //
    storage::{
        buffers::{
            Buffer,
            Holder,
            Holding, //
        },
        source::Source, //
    },
};
use ibtrs_proto::{
    buffers::{
        is_behind,
        Pace, //
    },
    chunk_owner::PathId, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::work::WorkItem;

impl Holder for Session {
    fn holding(&self) -> &Holding {
        &self.io.holding
    }

    fn serve_line(self: Arc<Self>) {
        self.line_work.enqueue(self.clone());
    }

    fn look_after_lines(&self, is_urgent: bool) {
        let sessions = &self.sessions;
        match is_urgent {
            true => sessions.feed.modify(sessions.clone(), 0),
            false => sessions
                .feed
                .enqueue_in(sessions.clone(), Pace::SHORTEST_MS),
        };
    }

    fn is_late(&self) {
        kx::pr_err_ratelimited!(
            "{}: bug: a buffer is given back to which the device may still write; it is kept until the connections are closed\n",
            self.io.name()
        );
    }

    fn close_path_of(&self, memory: &Source) {
        for path in self.paths.lock().iter() {
            if memory.is_of(&path.io.pd) {
                path.error(fmt!("the device may still write to a buffer"));
            }
        }
    }
}

/// Has the requests in the line go on, as far as there are buffers: if there is no other, the first
/// gets the one in reserve.
impl WorkItem<LINE> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        while let Some(first) = this.io.holding.first_in_line() {
            let path = PathId::new(first.path).and_then(|id| this.path(id));
            let Some(path) = path.filter(|path| path.io.takes_requests()) else {
                // The teardown of the path drops the request, unless it already has.
                this.io.holding.leave_first(first);
                continue;
            };
            let buffer = Buffer::take(this.clone(), &path.io.pd, first.bytes);
            let reserve = || Buffer::take_reserve(this.clone(), &path.io.pd);
            let Some(buffer) = buffer.or_else(reserve) else {
                return;
            };
            // Otherwise the path has just left the line.
            if this.io.holding.leave_first(first) {
                path.io.resume(first, buffer);
            }
        }
    }
}

/// Looks after the requests that wait for buffers, as long as there are some.
impl WorkItem for Sessions {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut look = this.look.lock();
        let now_ms = look.now_ms();
        let is_due = look.pace.is_over(now_ms);
        let left_ms = look.pace.left_ms(now_ms);
        drop(look);
        if this.look_after_lines(is_due) {
            this.feed.enqueue_in(this.clone(), left_ms);
        } else {
            this.look.lock().pace = Pace::default();
        }
    }
}

impl Sessions {
    /// Has all sessions whose requests wait try again. If `is_due`, these give back what idle slots
    /// have, and if one of them is behind, the rich as well. Returns whether requests wait.
    fn look_after_lines(&self, is_due: bool) -> bool {
        let buffers = &self.env.buffers;
        let failed = buffers.take_failed();
        let sessions = self.lock();
        let held = |session: &Arc<Session>| session.io.holding.held();
        let most = sessions.list.iter().map(held).max().unwrap_or(0);
        let (mut some, mut short) = (false, failed);
        for session in &sessions.list {
            if let Some(first) = session.io.holding.first_in_line() {
                some = true;
                short |= is_behind(held(session), first.bytes.into(), most);
                session.line_work.enqueue(session.clone());
            }
        }
        buffers.set_short(short && some);
        if some && is_due {
            let rich = |session: &&Arc<Session>| short && held(session) > most / 2;
            let gives = |session: &&Arc<Session>| session.io.holding.is_waiting() || rich(session);
            for session in sessions.list.iter().filter(gives) {
                for path in session.paths.lock().iter() {
                    path.reclaim_soon();
                }
            }
        }
        some
    }
}
