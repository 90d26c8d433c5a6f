// SPDX-License-Identifier: GPL-2.0

//! Probes: whether the server of a path answers, after a request has timed out.

use crate::path::{
    attempt::PathConn,
    Path, //
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

/// Time limit for the server's answer to a probe.
const PROBE_TIMEOUT_MS: u32 = 5000;
const PROBE_TIMEOUT_NS: u64 = PROBE_TIMEOUT_MS as u64 * 1_000_000;

impl PathConn {
    /// Sends a probe, unless one is in progress.
    pub(crate) fn probe(&self) {
        let attempt = &self.attempt;
        let now = attempt.link.heartbeat.now_ns().max(1);
        // ORDERING: Pairs with the exchange in `run`: the answer to the last probe is read before the
        // silence flag is set again.
        if attempt.probe_began.cmpxchg(0, now, Full).is_err() {
            return;
        }
        attempt.link.heartbeat.listen();
        // A full queue contains messages that the server must acknowledge anyway. On any other
        // error, the path is about to be closed.
        let probing = self.io.qps.first().map(|qp| send_imm(qp, Imm::Heartbeat));
        if let Some(Ok(()) | Err(EAGAIN)) = probing {
            let path = &attempt.path;
            // Even if the timer still runs for an earlier attempt.
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
        // If there is no probe, or one that has just begun, this timer belongs to an earlier attempt,
        // which has ended. The timer of a probe that has just begun is still pending.
        let passed = attempt.link.heartbeat.now_ns().saturating_sub(began);
        if began == 0 || passed < PROBE_TIMEOUT_NS / 2 {
            return;
        }
        let silent = attempt.link.heartbeat.is_silent();
        // ORDERING: Pairs with the exchange in `probe`, which may begin another probe from here on.
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
