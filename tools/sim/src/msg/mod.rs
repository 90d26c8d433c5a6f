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

use crate::simulation::{counts_events, shrunk, simulation, without, Events};

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
    // The last channel stays.
    let channel = without(sch, |sch| &mut sch.channels).filter(|less| !less.channels.is_empty());
    let fault = without(sch, |sch| &mut sch.faults);
    let op = (0..sch.channels.len()).flat_map(|chan| {
        (0..2).flat_map(move |side| without(sch, move |sch| &mut sch.channels[chan].ops[side]))
    });
    channel.chain(fault).chain(op).find(fails)
}
