// SPDX-License-Identifier: GPL-2.0

//! Polled connections.
//!
//! Their completions raise no interrupt. The task that waits for a request handles them. Such a
//! task does not always exist: it may be stopped while its requests are in flight, no task polls
//! for a flush, and the submitter of a request that failed over may have exited. The session
//! therefore polls these connections, too, a few times a second. When a path is torn down, a worker
//! of the path drains them.
//!
//! Nothing else depends on them: heartbeats, fences and administrative messages use the service
//! connection, and so does the notification that the peer has disconnected.

use crate::session::{
    cid_of,
    Session, //
};
use kernel::sync::Arc;
use kx::work::WorkItem;

/// Interval at which the session polls connections that may have no other poller.
const POLL_MS: u32 = 250;
/// Maximum number of consecutive polls of a connection, while completions are found.
const POLL_ROUNDS: u32 = 64;

impl Session {
    /// Handles completions of connection `queue` on all paths and returns their number: 0 if the
    /// connection is not polled, or while another task polls it.
    ///
    /// # Context
    ///
    /// Any but hardirq. I/Os end during this call: hold no lock that their completion needs.
    #[inline]
    pub fn poll(&self, queue: u32) -> u32 {
        match cid_of(queue) {
            Some(cid) => self
                .with_multipath(|multipath| multipath.poll(cid))
                .unwrap_or(0),
            None => 0,
        }
    }

    /// Polls all polled connections, each at most [`POLL_ROUNDS`] times: a task that keeps a
    /// connection busy polls it itself.
    pub(crate) fn poll_all(&self) {
        let first = self.nr_queues();
        for queue in first..first + self.nr_poll_queues() {
            for _ in 0..POLL_ROUNDS {
                if self.poll(queue) == 0 {
                    break;
                }
            }
        }
    }

    /// Schedules the next periodic poll, if there are polled connections.
    pub(crate) fn poll_later(self: &Arc<Self>) {
        if self.nr_poll_queues() > 0 {
            self.poll_work.enqueue_in(self.clone(), POLL_MS);
        }
    }
}

/// Polls connections that may have no other poller.
impl WorkItem<{ crate::session::work::POLL }> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.poll_all();
        this.poll_later();
    }
}
