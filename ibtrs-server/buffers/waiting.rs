// SPDX-License-Identifier: GPL-2.0

//! Requests that wait for buffers: the line of each session, and who looks after the lines.
//!
//! The work item of a session takes buffers for the first requests of its line. It runs when a
//! request joins the line and when the session gives back a buffer. What other sessions do, and the
//! machine, is the business of a work item of the server: it runs from time to time as long as
//! requests wait, and has the sessions try again. If one of them is behind, it also runs whenever a
//! buffer comes back, and has the rich give back what they keep.

use super::Buffer;
use crate::{
    path::Path,
    server::Server,
    session::{
        Session,
        LINE, //
    }, //
};
use ibtrs_proto::{
    buffers::{
        is_behind,
        Pace, //
    },
    chunk_owner::PathTag, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
};
use kx::{
    ring::Ring,
    sync::atomic::{
        Full,
        Relaxed, //
    },
    work::WorkItem, //
};

/// A waiting request, which is pending in its place.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// The tag of its path.
    pub(crate) tag: u16,
    pub(crate) buf_id: u16,
    /// The connection on which it arrived.
    pub(crate) cid: u16,
    /// Bytes of its data.
    pub(crate) bytes: u32,
}

/// The requests of a session that wait for a buffer, in the order in which they came.
pub(crate) struct Line(Ring<Waiter>);

impl Line {
    /// Creates the line of a session with `depth` numbers. It has room for requests of a path that
    /// is being closed while the client sends them again over another one.
    pub(crate) fn new(depth: u16) -> Result<Self> {
        Ok(Self(Ring::new(2 * usize::from(depth))?))
    }
}

/// When the server looked after the lines last.
pub(crate) struct Look {
    /// The beginning of time.
    since: Instant<Monotonic>,
    pace: Pace,
}

impl Look {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            pace: Pace::default(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(0)
    }
}

impl Session {
    /// Returns whether a request waits for a buffer, as [`Self::is_waiting`] does, but in any case sees
    /// one that has not seen the buffer which the caller has just given back.
    pub(super) fn is_waiting_after_all(&self) -> bool {
        // ORDERING: Full, see `wait_for_buffer`.
        self.waiting.fetch_add(0, Full) > 0
    }

    /// Returns whether a request waits for a buffer. Those that come later wait behind it.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        // ORDERING: See `wait_for_buffer`.
        self.waiting.load(Relaxed) > 0
    }

    /// Appends a request, which is pending in its place, to the line.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: too many requests of closing paths are still in the line.
    pub(crate) fn wait_for_buffer(self: &Arc<Self>, waiter: Waiter) -> Result {
        let mut line = self.line.lock();
        if !line.0.push(waiter) {
            return Err(ENOSPC);
        }
        // ORDERING: Full, so that this comes before the look for a buffer; pairs with
        // `Buffers::release`: either that sees the waiting request, or this sees the buffer.
        self.waiting.fetch_add(1, Full);
        drop(line);
        self.line_work.enqueue(self.clone());
        let server = &self.server;
        server.feed.enqueue_in(server.clone(), Pace::SHORTEST_MS);
        Ok(())
    }

    /// Takes the requests of a path, whose connections are closed, out of the line.
    pub(crate) fn leave_line(&self, tag: PathTag) {
        let mut line = self.line.lock();
        for _ in 0..line.0.len() {
            match line.0.pop() {
                Some(waiter) if waiter.tag != tag.get() => {
                    line.0.push(waiter);
                }
                _ => {
                    self.waiting.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    fn first_in_line(&self) -> Option<Waiter> {
        self.line.lock().0.first()
    }

    /// Takes the first request out of the line, if that is `waiter`.
    fn leave_first(&self, waiter: Waiter) -> bool {
        let mut line = self.line.lock();
        if line.0.first() != Some(waiter) {
            return false;
        }
        line.0.pop();
        self.waiting.fetch_sub(1, Relaxed);
        true
    }

    /// Has the requests in the line go on, as far as there are buffers. Only `line_work` calls this.
    fn serve_line(self: &Arc<Self>) {
        while let Some(first) = self.first_in_line() {
            let path = PathTag::new(first.tag).and_then(|tag| self.path(tag));
            let path = path.filter(|path| path.takes_requests());
            let Some(path) = path else {
                // The teardown of the path drops the request, unless it already has.
                self.leave_first(first);
                continue;
            };
            let Some(buffer) = self.buffer_for(&path, first.bytes) else {
                return;
            };
            // Otherwise the path has just left the line.
            if self.leave_first(first) {
                path.go_on(first, buffer);
            }
        }
    }

    /// Takes a buffer for the first request in the line: if there is no other, the one in reserve.
    fn buffer_for(self: &Arc<Self>, path: &Path, bytes: u32) -> Option<Buffer> {
        let buffers = &self.server.buffers;
        let shared = buffers.take(self, &path.pd, bytes as usize);
        shared.or_else(|| self.take_reserve(&path.pd))
    }

    /// Takes a buffer for a request of a path that has just arrived; `None` if it must wait.
    ///
    /// # Context
    ///
    /// May sleep, but does not wait for memory.
    pub(crate) fn take_buffer(self: &Arc<Self>, path: &Path, bytes: u32) -> Option<Buffer> {
        if self.is_waiting() {
            return None;
        }
        self.server.buffers.take(self, &path.pd, bytes as usize)
    }
}

/// Serves the line.
impl WorkItem<LINE> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.serve_line();
    }
}

/// Looks after the requests that wait for buffers, as long as there are some.
impl WorkItem<{ crate::server::work::FEED }> for Server {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let buffers = &this.buffers;
        let mut look = buffers.look.lock();
        let now_ms = look.now_ms();
        let is_due = look.pace.is_over(now_ms);
        let left_ms = look.pace.left_ms(now_ms);
        drop(look);
        if this.look_after_lines(is_due) {
            this.feed.enqueue_in(this.clone(), left_ms);
        } else {
            buffers.look.lock().pace = Pace::default();
        }
    }
}

impl Server {
    /// Has all sessions whose requests wait try again. If `is_due`, these give back what idle slots
    /// have, and if one of them is behind, the rich as well. Returns whether requests wait.
    fn look_after_lines(&self, is_due: bool) -> bool {
        let buffers = &self.buffers;
        let failed = buffers.failed.xchg(false, Relaxed);
        let sessions = self.sessions.lock();
        let held = |session: &Arc<Session>| session.held.load(Relaxed);
        let most = sessions.list.iter().map(held).max().unwrap_or(0);
        let (mut some, mut short) = (false, failed);
        for session in &sessions.list {
            if let Some(first) = session.first_in_line() {
                some = true;
                short |= is_behind(held(session), first.bytes.into(), most);
                session.line_work.enqueue(session.clone());
            }
        }
        buffers.short.store(short && some, Relaxed);
        if some && is_due {
            let rich = |session: &&Arc<Session>| short && held(session) > most / 2;
            let gives = |session: &&Arc<Session>| session.is_waiting() || rich(session);
            for session in sessions.list.iter().filter(gives) {
                for path in session.paths.lock().iter() {
                    path.reclaim_soon();
                }
            }
        }
        some
    }
}
