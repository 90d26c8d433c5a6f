// SPDX-License-Identifier: GPL-2.0

//! A simulator of memory between programs: GET, PUT, revocation, and the fence.
//!
//! Two kernels run the decisions of [`ibmsg_proto::memory`] and of a channel over connections whose
//! RDMA WRITEs may land long after their sender has gone, as long as the receiver's queue pair takes them.
//! Memory is cells, each with the operation that wrote it last. Nothing here decides anything that the
//! modules will decide as well.

mod bug;
mod check;
mod fabric;
mod host;
mod ops;
pub mod schedule;
mod world;

pub use bug::Bug;
pub use check::Violation;
pub use schedule::Schedule;
pub use world::{run, trace, Outcome};

use crate::simulation::{counts_events, shrunk, simulation, without, Events};

/// The simulator of memory between programs.
pub struct Memory;

simulation!(Memory, "ibmsg_memory_sim", Events);
counts_events!(Outcome);

/// Drops operations and faults from a schedule as long as it fails with any of the rest.
pub fn shrink(sch: &Schedule, bug: Option<Bug>) -> Schedule {
    shrunk(sch, |best| smaller(best, bug))
}

fn smaller(sch: &Schedule, bug: Option<Bug>) -> Option<Schedule> {
    let fails = |less: &Schedule| run(less, bug).violation.is_some();
    let fault = without(sch, |sch| &mut sch.faults);
    let op = without(sch, |sch| &mut sch.ops);
    fault.chain(op).find(fails)
}
