// SPDX-License-Identifier: GPL-2.0

//! A simulator of a session of IBTRS.
//!
//! The decisions of client and server ([`ibtrs_proto`]: state machines of paths, heartbeat,
//! back-off, path selection, failover, chunk owners) run here against a fabric that delays, loses
//! and reorders, with crashes and slow disks. Nothing here decides anything that the kernel
//! modules decide as well: it stands in for the drivers there.
//!
//! A seed determines a [`Schedule`], and a schedule determines a run. A broken property is a
//! [`Violation`]; a schedule that leads to one is [shrunk](shrink) to the parts that matter.

pub mod cli;
mod client;
mod counts;
mod driver;
mod events;
pub mod history;
pub mod mem;
pub mod msg;
mod net;
pub mod publish;
pub mod schedule;
mod server;
mod shrink;
pub mod simulation;
mod world;

pub use schedule::{Mode, Schedule};
pub use shrink::shrink;
pub use world::{run, trace, Bug, Outcome, Violation};

use counts::Counts;

/// The simulator of a session.
pub struct Session;

simulation::simulation!(Session, "ibtrs_sim", Counts);
