// SPDX-License-Identifier: GPL-2.0

//! A simulator of publish and subscribe: logs, cursors, slow subscribers, channels that move and end.
//!
//! One kernel of a publisher and up to three of subscribers run the decisions of [`ibmsg_proto::publish`], on channels
//! that run those of [`ibmsg_proto::channel`]. Programs publish, subscribe, sleep, and subscribe again where they
//! have stopped reading. Nothing here decides anything that the modules will decide as well.

mod bug;
mod chan;
mod check;
mod fabric;
mod publisher;
pub mod schedule;
mod subscriber;
mod world;

pub use bug::Bug;
pub use check::Violation;
pub use schedule::Schedule;
pub use world::{run, trace, Outcome};

use crate::simulation::{counts_events, shrunk, simulation, without, Events};

/// The simulator of publish and subscribe.
pub struct Publish;

simulation!(Publish, "ibmsg_publish_sim", Events);
counts_events!(Outcome);

/// Drops steps and faults from a schedule as long as it fails with any of the rest.
pub fn shrink(sch: &Schedule, bug: Option<Bug>) -> Schedule {
    shrunk(sch, |best| smaller(best, bug))
}

fn smaller(sch: &Schedule, bug: Option<Bug>) -> Option<Schedule> {
    let fails = |less: &Schedule| run(less, bug).violation.is_some();
    let fault = without(sch, |sch| &mut sch.faults);
    let step = without(sch, |sch| &mut sch.steps);
    fault.chain(step).find(fails)
}
