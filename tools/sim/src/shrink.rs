// SPDX-License-Identifier: GPL-2.0

//! Shrinks a schedule that leads to a violation.

use crate::schedule::Schedule;
use crate::simulation::{shrunk, without};
use crate::world::{run, Bug};

/// Drops requests and faults from a schedule as long as it fails with any of the rest.
///
/// Returns the schedule as it is if it does not fail.
pub fn shrink(sch: &Schedule, bug: Option<Bug>) -> Schedule {
    shrunk(sch, |best| smaller(best, bug))
}

/// Finds a schedule with a fault or a request less that fails as well, or with two requests less:
/// without one of them, paths that take turns would each get the other's.
fn smaller(sch: &Schedule, bug: Option<Bug>) -> Option<Schedule> {
    let fails = |less: &Schedule| run(less, bug).violation.is_some();
    let requests = sch.requests.len();
    let without_fault = without(sch, |sch| &mut sch.faults);
    let without_request = without(sch, |sch| &mut sch.requests);
    let pairs = (0..requests).flat_map(|second| (0..second).map(move |first| (first, second)));
    let without_two = pairs.map(|(first, second)| {
        let mut less = sch.clone();
        less.requests.remove(second);
        less.requests.remove(first);
        less
    });
    without_fault
        .rev()
        .chain(without_request.rev())
        .chain(without_two)
        .find(fails)
}
