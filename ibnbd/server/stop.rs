// SPDX-License-Identifier: GPL-2.0

//! Planned stops: when the module is unloaded, before a reboot, and when an operator drains the
//! server. They ensure that no client loses data.
//!
//! The transport drains its sessions, and each [stops in an orderly way](crate::session::Session::stop).
//! The stop ends after `stop_timeout_s`; writes that were not reported durable by then count as lost,
//! as after a power failure.
//!
//! The operator may specify how long the server will be down: with the command to drain it, or for
//! all planned stops in the parameter `downtime_s`. The transport announces this to the clients.
//!
//! Contexts: *may sleep*, unless stated otherwise.

use crate::param;
use ibtrs_proto::downtime::Downtime;
use ibtrs_server::Drain;
use kernel::prelude::*;
use kx::reboot::RebootHandler;

/// Returns the time for which the server expects to be down after a planned stop, unless the operator
/// specifies another one.
pub(crate) fn usual_downtime() -> Option<Downtime> {
    Downtime::new(param::downtime_s.get())
}

/// Drains the server, within `stop_timeout_s`; `why` is for the log. The server announces to its
/// clients that it expects to be down for `downtime`.
///
/// # Errors
///
/// Errors of [`Drain::drain`].
pub(crate) fn stop(drain: &Drain, why: &'static str, downtime: Option<Downtime>) -> Result {
    let limit_ms = param::stop_timeout_s.get().saturating_mul(1000);
    drain.drain(limit_ms, downtime).inspect_err(|_| {
        pr_warn!(
            "{}: not all disks are flushed, or not within stop_timeout_s: their clients may lose unflushed writes\n",
            why
        );
    })
}

/// Stops the server when it is dropped.
pub(crate) struct Stop(pub(crate) Drain);

impl Drop for Stop {
    fn drop(&mut self) {
        // Dropping the listener waits for the rest.
        let _ = stop(&self.0, "unloading", usual_downtime());
    }
}

/// Stops the server before the machine reboots.
pub(crate) struct BeforeReboot(pub(crate) Drain);

impl RebootHandler for BeforeReboot {
    fn reboot(&self) {
        let _ = stop(&self.0, "reboot", usual_downtime());
    }
}
