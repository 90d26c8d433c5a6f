// SPDX-License-Identifier: GPL-2.0

//! A simulator of messages between programs.
//!
//! Two kernels run the decisions of [`ibmsg_proto`] over a fabric that delays and loses frames, with
//! programs that read slowly or die, and kernels that reboot. Frames are bytes, written and read by the
//! code that runs in the kernel modules. Nothing here decides anything that the modules decide as well.
//!
//! A seed determines a [`Schedule`], and a schedule determines a run.

mod bug;
mod check;
mod fabric;
mod host;
mod program;
pub mod schedule;
mod world;

pub use bug::Bug;
pub use check::Violation;
pub use schedule::Schedule;
pub use world::{run, trace, Outcome};

use crate::simulation::{counts_events, shrunk, simulation, Events};

/// The simulator of messages between programs.
pub struct Messages;

simulation!(Messages, "ibmsg_sim", Events);
counts_events!(Outcome);

/// Drops channels' operations and faults from a schedule as long as it fails with any of the rest.
/// Returns the schedule as it is if it does not fail.
pub fn shrink(sch: &Schedule, bug: Option<Bug>) -> Schedule {
    shrunk(sch, |best| smaller(best, bug))
}

fn smaller(sch: &Schedule, bug: Option<Bug>) -> Option<Schedule> {
    let fails = |less: &Schedule| run(less, bug).violation.is_some();
    let channels = sch.channels.len();
    let channel = (0..channels).filter(move |_| channels > 1).map(|at| {
        let mut less = sch.clone();
        less.channels.remove(at);
        less
    });
    let fault = (0..sch.faults.len()).map(|at| {
        let mut less = sch.clone();
        less.faults.remove(at);
        less
    });
    let op = (0..sch.channels.len()).flat_map(|chan| {
        (0..2).flat_map(move |side| {
            (0..sch.channels[chan].ops[side].len()).map(move |at| {
                let mut less = sch.clone();
                less.channels[chan].ops[side].remove(at);
                less
            })
        })
    });
    channel.chain(fault).chain(op).find(fails)
}
