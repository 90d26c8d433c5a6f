// SPDX-License-Identifier: GPL-2.0

//! Runs schedules of memory, and checks that planted mistakes are found.

mod common;

use common::{caught, seeds_are_runs};
use ibtrs_sim::mem::{Bug, Memory, Schedule};

#[test]
fn memory_keeps_its_promises() {
    common::all_pass::<Memory, _>(2000, |o| {
        let s = &o.seen;
        [
            s.writes, s.reads, s.late, s.refused, s.moves, s.repeated, s.torn, s.unknown, s.undone,
            s.freed, s.receipts, s.early, s.untaken, s.fenced, s.replaced,
        ]
    });
}

#[test]
fn a_seed_is_a_run() {
    seeds_are_runs::<Memory>();
}

#[test]
fn mistakes_are_found() {
    for bug in Bug::ALL {
        let (small, outcome) = caught::<Memory>(bug, 400_000, Schedule::of_seed);
        let ops = small.ops.len();
        println!(
            "{bug:?}: seed {}, {:?} with {ops} operations and {} faults",
            small.seed,
            outcome.violation,
            small.faults.len()
        );
    }
}
