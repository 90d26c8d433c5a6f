// SPDX-License-Identifier: GPL-2.0

//! Requests that take longer than their users want.
//!
//! There are two reasons: the path has gone without a sign, or the server's disk
//! is slow. In the first case the request goes by another path, as soon as this
//! one is given up. In the second, nothing is gained by that: the server would keep
//! the second attempt until the first has ended, and the path would be lost for all
//! other disks. So the server is asked for a sign of life, and the path is given up
//! if none comes. Heartbeats would find that out, too, but they may be far
//! apart.

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

/// How long the server has to answer.
const PROBE_TIMEOUT_MS: u32 = 5000;

impl Session {
    /// The request with the chunk `tag` takes too long: the paths that have it are
    /// looked at. One whose server is silent is given up, and the request is sent
    /// again by another one, or when this one is back. It goes on in any case.
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

    /// As [`Session::request_timeout`], of a request whose users have waited long enough, so that
    /// [`IoHandle::is_cancelled`](kx::io::IoHandle::is_given_up) says so. They are told that it has failed. The request
    /// itself ends when the server has answered, or is sent again as a message that means
    /// nothing, should its path be lost: before that, what it was may still be going
    /// on at the server, in the chunk that it names.
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

/// Requests of a disk that goes, whatever the server does.
impl Session {
    /// Gives the paths up that carry a request which nobody waits for any more
    /// ([`IoHandle::is_wanted`](kx::io::IoHandle::is_wanted)) and which the server has not
    /// answered. It ends with `EIO` as soon as nobody can reach its memory. All other requests
    /// are sent again by another path, or when this one is back.
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
                        "a request of a disk that is unmapped by force is not answered"
                    ));
                }
            }
        });
    }
}

impl PathConn {
    /// Asks the server for a sign of life, unless that is being done.
    fn probe(&self) {
        let attempt = &self.attempt;
        // ORDERING: Pairs with the release in `run`: what the server said to the last question was
        // looked at before it has to be silent again.
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
impl WorkItem<4> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(attempt) = this.attempt() else {
            return;
        };
        let silent = attempt.heartbeat.is_silent();
        // If not, it was another attempt that is gone.
        // ORDERING: Pairs with the acquire in `probe`, which may begin anew from here on.
        if !attempt.probing.xchg(false, Release) {
            return;
        }
        if silent {
            attempt.error(fmt!("a request is overdue, and the server is silent"));
        } else {
            kx::pr_warn_ratelimited!(
                "{}: a request is overdue, but the server is there: its disk is slow\n",
                attempt.log()
            );
        }
    }
}
