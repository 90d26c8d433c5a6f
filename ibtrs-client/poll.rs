// SPDX-License-Identifier: GPL-2.0

//! Polled connections.
//!
//! Their completions raise no interrupt. The task that waits for a request handles them. Such a
//! task does not always exist: the task may be stopped while its requests are in flight, no task
//! polls for a flush, and the submitter of a request that failed over may be gone. So the session
//! polls these connections too, a few times a second. When a path is torn down, a worker drains
//! them.
//!
//! Nothing else depends on them: heartbeats, fences and administrative messages use
//! the service connection, and so does the notification that the peer has left.

use crate::{
    con::Con,
    path::Path,
    session::{
        cid_of,
        Session, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kx::{
    sync::{
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        Completion,
        PercpuArc, //
    },
    work::WorkItem, //
};
use rdma::qp::{
    Qp,
    QueuePair, //
};

/// Interval at which the session polls connections that may have no other poller.
const POLL_MS: u32 = 250;
/// Rounds of polling a connection in a row, as long as completions are found.
const POLL_ROUNDS: u32 = 64;
/// Interval of polling while connections are closed.
const DRAIN_MS: i64 = 1;

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

    /// Polls all polled connections, each for at most [`POLL_ROUNDS`] rounds: a task that keeps one
    /// of them busy polls it itself.
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

/// Connections of a path that are polled while they are closed.
#[pin_data]
pub(crate) struct Closing {
    polled: KVec<PercpuArc<QueuePair<Con>>>,
    over: AtomicFlag,
    #[pin]
    done: Completion,
}

/// Makes a worker poll connections of a path until this is dropped.
pub(crate) struct Drain<'a> {
    path: &'a Path,
    closing: Option<Arc<Closing>>,
}

impl<'a> Drain<'a> {
    /// Makes a worker poll the polled connections among `qps`. This only saves time: without memory
    /// for it, each connection polls itself when it is closed.
    pub(crate) fn begin(path: &'a Arc<Path>, qps: &[Qp<Con>]) -> Self {
        let closing = if qps.iter().any(|qp| qp.is_direct()) {
            Closing::new(qps).ok()
        } else {
            None
        };
        if let Some(closing) = &closing {
            // `closing` is empty: a path has one attempt at a time.
            let _ = path.closing.put(closing.clone());
            path.drain.enqueue(path.clone());
        }
        Self { path, closing }
    }
}

impl Closing {
    fn new(qps: &[Qp<Con>]) -> Result<Arc<Self>> {
        let mut polled = KVec::with_capacity(qps.len(), GFP_KERNEL)?;
        for qp in qps.iter().filter(|qp| qp.is_direct()) {
            polled.push(qp.get(), GFP_KERNEL)?;
        }
        Arc::pin_init(
            pin_init!(Self {
                polled,
                over: AtomicFlag::new(false),
                done <- Completion::new(),
            }),
            GFP_KERNEL,
        )
    }

    fn poll(&self) {
        while !self.over.load(Relaxed) {
            for qp in &self.polled {
                while qp.poll() > 0 {}
            }
            fsleep(Delta::from_millis(DRAIN_MS));
        }
        self.done.complete_all();
    }
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        let Some(closing) = &self.closing else { return };
        closing.over.store(true, Relaxed);
        // When memory is short, the caller may occupy the only worker. Then the work item has not
        // begun, and has nothing to do once `closing` is taken.
        if self.path.closing.take().is_none() {
            closing.done.wait();
        }
    }
}

/// Polls connections that are being closed.
impl WorkItem<{ crate::path::work::DRAIN }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if let Some(closing) = this.closing.take() {
            closing.poll();
        }
    }
}
