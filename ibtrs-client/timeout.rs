// SPDX-License-Identifier: GPL-2.0

//! Request timeouts.
//!
//! A request times out because the path is dead or because the backing device is slow.
//! On a dead path the request fails over as soon as the path is failed. With a slow
//! device a failover gains nothing: the server would keep the second copy until the
//! first has ended, and all other disks would lose the path. So the client probes the
//! server with a heartbeat, and fails the path if no answer comes. Periodic heartbeats
//! would find a dead path too, but they may be far apart.

use crate::{
    attempt::PathConn,
    path::Path,
    request,
    session::Session, //
};
use ibtrs_core::imm::send_imm;
use ibtrs_proto::imm::Imm;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Release, //
        },
        Arc, //
    }, //
};
use kx::work::WorkItem;

/// How long the server has to answer a probe.
const PROBE_TIMEOUT_MS: u32 = 5000;

impl Session {
    /// The request with the chunk `tag` has timed out: probes the paths that carry it. A path whose
    /// server does not answer fails; the request is then sent over another path, or over this one
    /// when it is back. The request itself stays in flight.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    pub fn request_timeout(&self, tag: u16) {
        self.with_multipath(|multipath| {
            for path in &multipath.paths {
                let slot = path.slots.get(tag.into());
                if slot.is_some_and(|slot| slot.is_busy()) {
                    path.probe();
                }
            }
        });
    }

    /// As [`Session::request_timeout`], but cancels the request, for which
    /// [`IoHandle::is_cancelled`](kx::io::IoHandle::is_cancelled) is true. It ends for its users
    /// with `ETIMEDOUT`. Its chunk stays in use until the server has answered; should the path be
    /// lost, the request is sent again as a message without effect, as the server may still execute
    /// it with that chunk.
    ///
    /// The memory of a read is taken from the server for that. Should it have an answer
    /// later on, that costs the path, which is connected again.
    ///
    /// # Context
    ///
    /// Any but hardirq. I/Os end during this call; no lock may be held that they need.
    pub fn cancel(&self, tag: u16) {
        self.with_multipath(|multipath| {
            for path in &multipath.paths {
                if let Some(slot) = path.slots.get(tag.into()) {
                    request::cancel(path, slot);
                }
            }
        });
    }
}

/// Requests of a disk that is removed by force.
impl Session {
    /// Fails the paths that carry an unanswered request which is no longer wanted
    /// ([`IoHandle::is_wanted`](kx::io::IoHandle::is_wanted)). That request ends with `EIO` as soon
    /// as its memory cannot be reached any more. All other requests are sent again over another
    /// path, or over this one when it is connected again.
    ///
    /// A server that carries such a request out for a long time does not take the path back
    /// before it has ended.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    pub fn fail_unwanted(&self) {
        self.with_multipath(|multipath| {
            for path in &multipath.paths {
                if path.slots.iter().any(|slot| slot.is_unwanted()) {
                    path.attempt.error(fmt!(
                        "unanswered request of a disk that is unmapped by force"
                    ));
                }
            }
        });
    }
}

impl PathConn {
    /// Sends a probe, unless one is under way.
    fn probe(&self) {
        let attempt = &self.attempt;
        // ORDERING: Pairs with the release in `run`: the answer to the last probe is read before
        // the silence flag is set again.
        if attempt.probing.xchg(true, Acquire) {
            return;
        }
        attempt.heartbeat.listen();
        // A full queue has messages that the server must acknowledge anyway. If there is
        // another error, the path is about to go.
        let probing = self.qps.first().map(|qp| send_imm(qp, Imm::Heartbeat));
        if let Some(Ok(()) | Err(EAGAIN)) = probing {
            let path = &attempt.path;
            // Also if it still waits for an attempt before this one.
            path.probe_timeout.modify(path.clone(), PROBE_TIMEOUT_MS);
        }
    }
}

/// The server has had its time to answer.
impl WorkItem<{ crate::path::work::PROBE_TIMEOUT }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(attempt) = this.attempt() else {
            return;
        };
        let silent = attempt.heartbeat.is_silent();
        // If not, it was another attempt that is gone. ORDERING: Pairs with the acquire
        // in `probe`, which may begin again from here on.
        if !attempt.probing.xchg(false, Release) {
            return;
        }
        if silent {
            attempt.error(fmt!("request timed out and the server does not respond"));
        } else {
            kx::pr_warn_ratelimited!(
                "{}: request timed out; the server responds, its backing device is slow\n",
                attempt.log()
            );
        }
    }
}
