// SPDX-License-Identifier: GPL-2.0

//! Serves the requests that wait for buffers.
//!
//! The work item of a session takes buffers for the requests in its line, in FIFO order. It runs
//! when a request joins the line and when the session releases a buffer. A work item of the server
//! covers buffers that other sessions release, and memory that becomes free on the machine: it runs
//! periodically as long as requests wait, and makes their sessions retry. If a session is behind,
//! it also runs whenever a buffer is released, and makes sessions that hold many buffers release
//! the ones that their idle slots keep.

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

/// Resumes the requests in the line, as far as there are buffers. If there is no other, the first
/// request gets the reserve buffer.
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
            // If this fails, the path has just left the line.
            if this.io.holding.leave_first(first) {
                path.io.resume(first, buffer);
            }
        }
    }
}

/// Serves the lines periodically, as long as requests wait for buffers.
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
    /// Makes all sessions with waiting requests retry. If `is_due`, idle slots of these sessions
    /// release their buffers, and if one of these sessions is behind, so do idle slots of sessions
    /// that hold many buffers. Returns whether requests wait.
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
