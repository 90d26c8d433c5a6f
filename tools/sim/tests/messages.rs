// SPDX-License-Identifier: GPL-2.0

//! Runs schedules of messages, and checks that planted mistakes are found.

mod common;

use common::{caught, seeds_are_runs};
use ibtrs_sim::msg::{Bug, Messages, Schedule};

#[test]
fn messages_arrive_once_and_in_order() {
    common::all_pass::<Messages, _>(200, |o| {
        [
            o.messages,
            o.resent,
            o.skips,
            o.moves,
            o.calls,
            o.unknown,
            o.undelivered,
            o.starved,
            o.repeated,
            o.late,
            o.reboots,
            o.dropped,
            o.relocated,
        ]
    });
}

#[test]
fn a_seed_is_a_run() {
    seeds_are_runs::<Messages>();
}

#[test]
fn mistakes_are_found() {
    for bug in Bug::ALL {
        let (small, outcome) = caught::<Messages>(bug, 200_000, Schedule::of_seed);
        let ops: usize = small
            .channels
            .iter()
            .flat_map(|c| &c.ops)
            .map(Vec::len)
            .sum();
        println!(
            "{bug:?}: seed {}, {:?} with {ops} operations and {} faults",
            small.seed,
            outcome.violation,
            small.faults.len()
        );
    }
}
