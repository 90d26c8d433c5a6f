// SPDX-License-Identifier: GPL-2.0

//! The view of a connection attempt that requests and connections have.
//!
//! [`Link`] has the state that they read, and their counters. [`Control`] is their only interface to
//! the layers above: they report errors and messages other than answers to it, but no successful
//! requests.

use crate::{
    data::{
        stats::Stats,
        wire::Wire, //
    },
    env::Env, //
};
use ibtrs_core::heartbeat::PathHeartbeat;
use ibtrs_proto::imm::Fence;
use kernel::{
    fmt,
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::sync::{
    atomic::{
        Atomic,
        AtomicFlag,
        Relaxed, //
    },
    SetOnce, //
};

/// The names of a path.
pub(crate) struct Names {
    /// `src@dst`, or `dst`, as the operator gave it.
    pub(crate) path: CString,
    /// Session and addresses, for the log.
    pub(crate) log: CString,
}

/// The state that the connections of an attempt share.
#[pin_data]
pub(crate) struct Link {
    pub(crate) env: Arc<Env>,
    pub(crate) names: Arc<Names>,
    pub(crate) stats: Arc<Stats>,
    /// The path epoch.
    pub(crate) epoch: u32,
    /// The parameters with which the server accepted the service connection.
    pub(crate) wire: SetOnce<Wire>,
    #[pin]
    pub(crate) heartbeat: PathHeartbeat,
    /// The last round trip of a heartbeat in nanoseconds; 0 before the first.
    latency_ns: Atomic<u64>,
    /// The server has violated the protocol.
    broken: AtomicFlag,
    /// The client has revoked a key that the server may still use in good faith.
    pub(crate) revoked: AtomicFlag,
    /// Requests in flight that the path selection policy counts.
    pub(crate) inflight: Atomic<i32>,
}

/// Events that connections report to their attempt, in any context.
pub(crate) trait Control: Send + Sync {
    /// Fails the path if the attempt is the current one; `what` is the reason for the log.
    fn error(&self, what: fmt::Arguments<'_>);

    /// Returns whether the path is connected.
    fn is_connected(&self) -> bool;

    /// Stores the session information that the attempt waits for.
    fn info_received(&self, bytes: &[u8]);

    /// Stores AUTH2, the server's answer to the client's proof.
    fn auth2_received(&self, bytes: &[u8]);

    /// Handles the server's answer to a fence.
    fn fence_done(&self, fence: Fence);

    /// Handles a notice about object `number`.
    fn noticed(&self, number: u32);

    /// Handles the report that object `number` is durable.
    fn durable(&self, number: u32);

    /// Records for how many seconds the server expects to be down; returns whether to acknowledge
    /// that.
    fn downtime_announced(&self, seconds: u32) -> bool;

    /// Records an answer to a request that `failover` has moved.
    fn moved_request_answered(&self, failover: u32);

    /// Records that a request which `failover` has moved ends with an answer from a path that was lost,
    /// too.
    fn moved_request_ended(&self, failover: u32);
}

impl Link {
    /// Creates the link of attempt `epoch`.
    pub(crate) fn new(
        env: Arc<Env>,
        names: Arc<Names>,
        stats: Arc<Stats>,
        epoch: u32,
    ) -> Result<Arc<Self>> {
        let missed_max = env.settings().hb_missed_max.get();
        Arc::pin_init(
            pin_init!(Self {
                env,
                names,
                stats,
                epoch,
                wire: SetOnce::new(),
                heartbeat <- PathHeartbeat::new(missed_max),
                latency_ns: Atomic::new(0),
                broken: AtomicFlag::new(false),
                revoked: AtomicFlag::new(false),
                inflight: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Records that the server has violated the protocol.
    pub(crate) fn set_broken(&self) {
        // ORDERING: The connections are drained before the flag is read.
        self.broken.store(true, Relaxed);
    }

    /// Returns whether the server has violated the protocol.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// Returns the last round trip of a heartbeat in nanoseconds, if there was one.
    #[inline]
    pub(crate) fn latency_ns(&self) -> Option<u64> {
        match self.latency_ns.load(Relaxed) {
            0 => None,
            ns => Some(ns),
        }
    }

    /// Handles the answer to a heartbeat.
    pub(crate) fn heartbeat_answered(&self) {
        if let Some(ns) = self.heartbeat.answered() {
            self.latency_ns.store(ns.max(1), Relaxed);
        }
    }
}
