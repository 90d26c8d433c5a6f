// SPDX-License-Identifier: GPL-2.0

//! Runs schedules of publish and subscribe, and checks that planted mistakes are found.

mod common;

use common::{caught, seeds_are_runs};
use ibtrs_sim::publish::{Bug, Publish, Schedule};

#[test]
fn subscribers_have_what_was_published() {
    common::all_pass::<Publish, _>(2000, |o| {
        let s = &o.seen;
        [
            s.entries,
            s.lost,
            s.dropped,
            s.closed,
            s.refused,
            s.waits,
            s.slow,
            s.moves,
            s.renewed,
            s.other_log,
            s.restarts,
        ]
    });
}

#[test]
fn a_seed_is_a_run() {
    seeds_are_runs::<Publish>();
}

#[test]
fn mistakes_are_found() {
    for bug in Bug::ALL {
        let (small, outcome) = caught::<Publish>(bug, 400_000, Schedule::of_seed);
        let steps = small.steps.len();
        println!(
            "{bug:?}: seed {}, {:?} with {steps} steps and {} faults",
            small.seed,
            outcome.violation,
            small.faults.len()
        );
    }
}
