// SPDX-License-Identifier: GPL-2.0

//! Request timeouts.
//!
//! A request times out because the path is dead or because the backing device is slow.
//! If the path is dead, the request fails over as soon as the path is failed. If the device is
//! slow, a failover gains nothing: the server would keep the second attempt waiting until the first
//! has ended, and all other disks would lose the path. So the client probes the server with a
//! heartbeat, and fails the path if no answer comes. Periodic heartbeats would find a dead path
//! too, but they may be far apart.

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
    sync::Arc, //
};
use kx::{
    sync::atomic::{
        Full,
        Relaxed, //
    },
    work::WorkItem, //
};

/// How long the server has to answer a probe.
const PROBE_TIMEOUT_MS: u32 = 5000;
const PROBE_TIMEOUT_NS: u64 = PROBE_TIMEOUT_MS as u64 * 1_000_000;

impl Session {
    /// Probes the paths that carry the request with tag `tag`, which has timed out. A path whose
    /// server does not answer fails; the request is then sent over another path, or over this one
    /// when it is connected again. The request itself stays in flight.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    pub fn request_timeout(&self, tag: u16) {
        self.with_multipath(|multipath| {
            for path in &multipath.paths {
                let slot = path.io.slots.get(tag.into());
                if slot.is_some_and(|slot| slot.is_busy()) {
                    path.probe();
                }
            }
        });
    }

    /// Cancels the request with tag `tag`, if
    /// [`IoHandle::is_cancelled`](kx::io::IoHandle::is_cancelled) is true for it: it ends for its users
    /// with `ETIMEDOUT`. Its chunk stays in use until the server has answered. If the path is lost,
    /// the request is sent again as a message without effect, as the server may still execute the
    /// original in that chunk.
    ///
    /// Cancelling a read revokes the key of its memory. If the server answers later on, it uses
    /// that key, which fails the path; the path then reconnects.
    ///
    /// # Context
    ///
    /// Any but hardirq. I/Os end during this call: hold no lock that their completion needs.
    pub fn cancel(&self, tag: u16) {
        self.with_multipath(|multipath| {
            for path in &multipath.paths {
                if let Some(slot) = path.io.slots.get(tag.into()) {
                    request::cancel(&path.io, slot);
                }
            }
        });
    }
}

/// Forced removal of a disk.
impl Session {
    /// Fails the paths that carry an unanswered request which is no longer wanted
    /// ([`IoHandle::is_wanted`](kx::io::IoHandle::is_wanted)). That request ends with `EIO` as soon
    /// as its memory cannot be reached any more. All other requests are sent again over another
    /// path, or over this one when it is connected again.
    ///
    /// A server that executes such a request for a long time accepts the path again only after the
    /// request has ended.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    pub fn fail_unwanted(&self) {
        self.with_multipath(|multipath| {
            // An administrative message belongs to no disk; that nobody waits for it says nothing about
            // its path.
            let io = usize::from(self.depth_split().io());
            for path in &multipath.paths {
                if path.io.slots.iter().take(io).any(|slot| slot.is_unwanted()) {
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
        let now = attempt.link.heartbeat.now_ns().max(1);
        // ORDERING: Pairs with the exchange in `run`: the answer to the last probe is read before the
        // silence flag is set again.
        if attempt.probe_began.cmpxchg(0, now, Full).is_err() {
            return;
        }
        attempt.link.heartbeat.listen();
        // A full queue contains messages that the server must acknowledge anyway. On any other
        // error, the path is about to go.
        let probing = self.io.qps.first().map(|qp| send_imm(qp, Imm::Heartbeat));
        if let Some(Ok(()) | Err(EAGAIN)) = probing {
            let path = &attempt.path;
            // Also if the timer still runs for an earlier attempt.
            path.probe_timeout.modify(path.clone(), PROBE_TIMEOUT_MS);
        }
    }
}

/// Checks whether the server has answered a probe in time.
impl WorkItem<{ crate::path::work::PROBE_TIMEOUT }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(attempt) = this.attempt() else {
            return;
        };
        let began = attempt.probe_began.load(Relaxed);
        // Without a probe, or with one that has just begun, the timer ran for an earlier attempt, which
        // is gone. The timer of the one that has just begun is still to run.
        let passed = attempt.link.heartbeat.now_ns().saturating_sub(began);
        if began == 0 || passed < PROBE_TIMEOUT_NS / 2 {
            return;
        }
        let silent = attempt.link.heartbeat.is_silent();
        // ORDERING: Pairs with the exchange in `probe`, which may begin again from here on.
        if attempt.probe_began.cmpxchg(began, 0, Full).is_err() {
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
