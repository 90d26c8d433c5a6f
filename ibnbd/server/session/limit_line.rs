// SPDX-License-Identifier: GPL-2.0

//! Requests of a session that wait for a limit of their host.
//!
//! They wait in one FIFO, as the limits apply to all devices of the host together. A work item
//! serves the line when the first request may proceed. Requests to devices without limits bypass
//! it.

use super::Session;
use crate::{
    device::io::requests::Waiting,
    throttle::HostThrottle, //
};
use ibtrs_server::Tag;
use kernel::{
    new_spinlock,
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};
use kx::{
    ring::Ring,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    work::WorkItem, //
};

/// The number of `Session::limit_line_work`.
pub(crate) const LIMIT_LINE: u64 = 1;

/// Maximum time in milliseconds between two runs of the work item, which also ends requests whose
/// result is no longer wanted.
const MAX_PAUSE_MS: u64 = 100;

const NS_PER_MS: u64 = 1_000_000;

/// Returns the time until the next run of the work item, in milliseconds.
fn pause_ms(wait_ns: u64) -> u32 {
    // CAST: At most `MAX_PAUSE_MS`.
    wait_ns.div_ceil(NS_PER_MS).min(MAX_PAUSE_MS) as u32
}

/// The line of a session.
#[pin_data]
pub(crate) struct LimitLine {
    #[pin]
    tags: SpinLock<Ring<Tag>>,
    /// Number of requests in the line.
    len: Atomic<u32>,
}

impl LimitLine {
    /// Creates an empty line with a capacity of `depth` requests.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(depth: u16) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            tags <- new_spinlock!(Ring::new(depth.into())?, "LimitLine::tags"),
            len: Atomic::new(0),
        }? Error)
    }

    fn push(&self, tag: Tag) {
        // The ring has a place for each tag.
        let _ = kernel::warn_on!(!self.tags.lock().push(tag));
    }

    fn pop(&self) -> Option<Tag> {
        self.tags.lock().pop()
    }

    fn first(&self) -> Option<Tag> {
        self.tags.lock().first()
    }
}

impl Session {
    /// Resumes a request as soon as `limits` allow it: now, or after the requests in the line.
    ///
    /// # Context
    ///
    /// May sleep, but does not wait for the limits.
    pub(crate) fn limit(self: &Arc<Self>, limits: &HostThrottle, waiting: Waiting) {
        // ORDERING: A request that misses one which has just joined the line overtakes it, which is
        // harmless.
        let wait_ns = match self.limit_line.len.load(Relaxed) {
            0 => match limits.serve(waiting.bytes()) {
                Ok(()) => return waiting.resume(self),
                Err(wait_ns) => wait_ns,
            },
            _ => 0,
        };
        self.join_line(waiting, wait_ns);
    }

    #[cold]
    fn join_line(self: &Arc<Self>, waiting: Waiting, wait_ns: u64) {
        let Some(tag) = self.requests.keep(waiting) else {
            return;
        };
        self.limit_line.len.fetch_add(1, Relaxed);
        self.limit_line.push(tag);
        // If the work item is already queued, its time does not change.
        self.limit_line_work
            .enqueue_in(self.clone(), pause_ms(wait_ns));
    }

    fn leave_line(&self) {
        self.limit_line.len.fetch_sub(1, Relaxed);
    }

    /// Ends the requests in the line whose results are no longer wanted. Requests behind the first
    /// one must not keep their path or device until they are served.
    fn end_unwanted(&self) {
        let count = self.limit_line.tags.lock().len();
        for _ in 0..count {
            let tag = self.limit_line.pop();
            let waiting = tag.and_then(|tag| self.requests.take(tag));
            match waiting {
                Some(waiting) if !waiting.is_unwanted(self) => {
                    if let Some(tag) = self.requests.keep(waiting) {
                        self.limit_line.push(tag);
                        continue;
                    }
                }
                Some(waiting) => waiting.end(self),
                None => {}
            }
            self.leave_line();
        }
    }

    /// Resumes the first requests as far as the limits allow. Returns the milliseconds until the
    /// next one may proceed; `None` if the line is empty.
    fn serve_line(self: &Arc<Self>) -> Option<u32> {
        loop {
            let tag = self.limit_line.first()?;
            let waiting = self.requests.take(tag);
            let wait_ns = waiting.as_ref().and_then(|waiting| waiting.serve().err());
            match (waiting, wait_ns) {
                (Some(waiting), Some(wait_ns)) => {
                    self.requests.keep(waiting);
                    return Some(pause_ms(wait_ns));
                }
                (waiting, _) => {
                    self.limit_line.pop();
                    self.leave_line();
                    if let Some(waiting) = waiting {
                        waiting.resume(self);
                    }
                }
            }
        }
    }
}

/// Serves the line. Only this work item removes requests from it.
impl WorkItem<LIMIT_LINE> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.end_unwanted();
        if let Some(ms) = this.serve_line() {
            this.limit_line_work.enqueue_in(this.clone(), ms);
        }
    }
}

impl Waiting {
    /// Returns the bytes that count towards the limits.
    fn bytes(&self) -> u32 {
        match self {
            Self::Io(io) => io.data_len(),
            Self::Refused { bytes, .. } => *bytes,
        }
    }

    /// Counts the request, if its limits allow it now.
    ///
    /// # Errors
    ///
    /// The nanoseconds to wait.
    fn serve(&self) -> Result<(), u64> {
        let limits = match self {
            Self::Io(io) => io.limits(),
            Self::Refused { limits, .. } => Some(limits),
        };
        limits.map_or(Ok(()), |limits| limits.serve(self.bytes()))
    }

    /// Returns whether the result of the request, which has not reached its disk yet, is no longer
    /// wanted.
    fn is_unwanted(&self, session: &Session) -> bool {
        match self {
            Self::Io(io) => io.is_over() || session.device(io.device_id()).is_none(),
            Self::Refused { request, .. } => request.is_moot() || session.is_stopped(),
        }
    }

    /// Ends a request whose result is no longer wanted.
    fn end(self, session: &Session) {
        match self {
            Self::Io(io) => io.end_unwanted(session.is_stopped()),
            // The message has no effect, so it does not matter whether it is answered.
            Self::Refused { request, error, .. } => request.respond(Err(error)),
        }
    }

    fn resume(self, session: &Session) {
        match self {
            Self::Io(io) => io.submit(&session.requests),
            Self::Refused { request, error, .. } => request.respond(Err(error)),
        }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibnbd_server_limit_line)]
mod tests {
    use super::*;

    /// The work item does not run too early, and at least ten times a second.
    #[test]
    fn pauses() {
        for (wait_ns, ms) in [
            (0, 0),
            (1, 1),
            (NS_PER_MS, 1),
            (NS_PER_MS + 1, 2),
            (100 * NS_PER_MS, 100),
            (u64::MAX, 100),
        ] {
            assert_eq!(pause_ms(wait_ns), ms);
        }
    }
}
