// SPDX-License-Identifier: GPL-2.0

//! Runs schedules of messages, and checks that planted mistakes are found.

use ibtrs_sim::msg::{run, shrink, Bug, Outcome, Schedule};

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
         what happens: cargo run --release -p ibtrs_sim --bin ibmsg_sim -- --seed {} --trace",
        sch.seed,
        run(sch, bug).violation,
        run(&small, bug),
        sch.seed
    )
}

#[test]
fn messages_arrive_once_and_in_order() {
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
        let counts = [
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
        ];
        for (sum, n) in happened.iter_mut().zip(counts) {
            *sum += u64::from(n);
        }
    }
    println!("{happened:?}");
    if runs >= 1000 {
        assert!(happened.iter().all(|n| *n > runs / 200), "{happened:?}");
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
        let (small, outcome) = caught(bug, 200_000);
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
