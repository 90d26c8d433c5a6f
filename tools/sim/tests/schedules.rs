// SPDX-License-Identifier: GPL-2.0

//! Runs schedules, and checks that planted mistakes are found.

use ibtrs_sim::{run, shrink, Bug, Mode, Outcome, Schedule, Violation};

/// The number of schedules unless the variable sets another.
fn runs() -> u64 {
    let runs = std::env::var("IBTRS_SIM_RUNS").ok();
    runs.and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

/// The first one, to take up where another run ended.
fn first() -> u64 {
    let seed = std::env::var("IBTRS_SIM_SEED").ok();
    seed.and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn explain(sch: &Schedule, bug: Option<Bug>) -> String {
    let small = shrink(sch, bug);
    let outcome = run(&small, bug);
    format!(
        "seed {}: {:?}\n{small:#?}\n{outcome:?}\n\
         what happens: cargo run --release -p ibtrs_sim -- --seed {} --trace",
        sch.seed,
        run(sch, bug).violation,
        sch.seed
    )
}

#[test]
fn nothing_is_lost_doubled_or_overtaken() {
    let (first, runs) = (first(), runs());
    // An event that never happened was not tested.
    let mut happened = [0u64; 9];
    for seed in first..first + runs {
        let sch = Schedule::of_seed(seed);
        let o = run(&sch, None);
        assert!(o.violation.is_none(), "{}", explain(&sch, None));
        let counts = [o.retries, o.waited, o.fences, o.older, o.session_lost];
        let more = [o.connects, o.failures, o.exhausted, o.stale];
        for (sum, n) in happened.iter_mut().zip(counts.into_iter().chain(more)) {
            *sum += u64::from(n);
        }
    }
    if runs >= 1000 {
        assert!(happened.iter().all(|n| *n > runs / 100), "{happened:?}");
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
        let sch = Schedule::with_mode(seed, Mode::Ext);
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
    let rare = |bug: &Bug| *bug == Bug::LateDisplaces;
    for bug in Bug::ALL.into_iter().filter(|bug| !rare(bug)) {
        let (small, outcome) = caught(bug, 100_000);
        println!(
            "{bug:?}: seed {}, {:?} with {} requests and {} faults",
            small.seed,
            outcome.violation,
            small.requests.len(),
            small.faults.len()
        );
    }
}

/// A write is fenced, but not sent again before all paths are lost, and fails. It needs no fence
/// any more, but its first attempt is still on the disk when a later write is made. Schedules come
/// upon that by themselves, more than once.
#[test]
fn a_request_that_was_fenced_is_executed_late() {
    let found = (0..30_000)
        .map(|seed| Schedule::with_mode(seed, Mode::Ext))
        .map(|sch| run(&sch, Some(Bug::NoOlderIfFenced)))
        .filter(|o| matches!(o.violation, Some(Violation::Overtaken(_))))
        .count();
    println!("found {found} times");
    assert!(found >= 2, "{found}");
}

/// A request arrives late over a path that is being closed, when one of the client's present path
/// waits. It takes 300,000 schedules to come upon that.
#[test]
fn a_late_request_displaces_nobody() {
    let sch = Schedule::with_mode(329_508, Mode::Ext);
    let displaced = run(&sch, Some(Bug::LateDisplaces)).violation;
    assert!(
        matches!(displaced, Some(Violation::Lost(_))),
        "{displaced:?}"
    );
    assert_eq!(run(&sch, None).violation, None);
}

#[test]
fn what_is_shrunk_is_small() {
    let (small, _) = caught(Bug::AlwaysServe, 1000);
    assert!(
        small.requests.len() <= 2 && small.faults.len() <= 3,
        "{small:#?}"
    );
}
