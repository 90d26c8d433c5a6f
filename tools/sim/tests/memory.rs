// SPDX-License-Identifier: GPL-2.0

//! Runs schedules of memory, and checks that planted mistakes are found.

use ibtrs_sim::mem::{run, shrink, Bug, Outcome, Schedule};

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

fn explain(sch: &Schedule, bug: Option<Bug>) -> String {
    let small = shrink(sch, bug);
    format!(
        "seed {}: {:?}\n{small:#?}\n{:?}\n\
         what happens: cargo run --release -p ibtrs_sim --bin ibmsg_memory_sim -- --seed {} --trace",
        sch.seed,
        run(sch, bug).violation,
        run(&small, bug),
        sch.seed
    )
}

#[test]
fn memory_keeps_its_promises() {
    let (first, runs) = (
        number("IBTRS_SIM_SEED", 0),
        number("IBTRS_SIM_RUNS", 20_000),
    );
    // An event that never happened was not tested.
    let mut happened = [0u64; 13];
    for seed in first..first + runs {
        let sch = Schedule::of_seed(seed);
        let o = run(&sch, None);
        assert!(o.violation.is_none(), "{}", explain(&sch, None));
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
    for seed in 0..200 {
        let sch = Schedule::of_seed(seed);
        assert_eq!(run(&sch, None), run(&Schedule::of_seed(seed), None));
    }
}

/// Finds the mistake within that many schedules, and shrinks it.
fn caught(bug: Bug, within: u64) -> (Schedule, Outcome) {
    for seed in 0..within {
        let sch = Schedule::of_seed(seed);
        if run(&sch, Some(bug)).violation.is_some() {
            let small = shrink(&sch, Some(bug));
            let outcome = run(&small, Some(bug));
            assert!(outcome.violation.is_some());
            assert_eq!(run(&small, None).violation, None, "{small:#?}");
            return (small, outcome);
        }
    }
    panic!("{bug:?} was not found in {within} schedules");
}

#[test]
fn mistakes_are_found() {
    for bug in Bug::ALL {
        let (small, outcome) = caught(bug, 400_000);
        let ops = small.ops.len();
        println!(
            "{bug:?}: seed {}, {:?} with {ops} operations and {} faults",
            small.seed,
            outcome.violation,
            small.faults.len()
        );
    }
}
