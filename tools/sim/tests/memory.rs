// SPDX-License-Identifier: GPL-2.0

//! Runs schedules of memory, and checks that planted mistakes are found.

mod common;

use common::{caught, passes, seeds, seeds_are_runs};
use ibtrs_sim::mem::{Bug, Memory, Schedule};

#[test]
fn memory_keeps_its_promises() {
    let (first, runs) = seeds();
    // An event that never happened was not tested.
    let mut happened = [0u64; 13];
    for seed in first..first + runs {
        let o = passes::<Memory>(seed);
        let s = o.seen;
        let counts = [
            s.writes, s.reads, s.late, s.refused, s.moves, s.repeated, s.torn, s.unknown, s.undone,
            s.freed, s.receipts, s.fenced, s.replaced,
        ];
        for (sum, n) in happened.iter_mut().zip(counts) {
            *sum += u64::from(n);
        }
    }
    println!("{happened:?}");
    if runs >= 1000 {
        assert!(happened.iter().all(|n| *n > runs / 2000), "{happened:?}");
    }
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
