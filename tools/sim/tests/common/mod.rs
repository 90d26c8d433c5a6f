// SPDX-License-Identifier: GPL-2.0

//! What the tests of all simulators have in common.

use ibtrs_sim::simulation::Simulation;

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

/// The first seed, to take up where another run ended, and the number of schedules.
fn seeds() -> (u64, u64) {
    (
        number("IBTRS_SIM_SEED", 0),
        number("IBTRS_SIM_RUNS", 20_000),
    )
}

/// Runs all schedules, none of which may fail. `counts` says how often things happened in a run: in many runs, each
/// happens more than once in `rarely` of them, as what never happened was not tested.
pub fn all_pass<S: Simulation, const N: usize>(
    rarely: u64,
    counts: impl Fn(&S::Outcome) -> [u32; N],
) {
    let (first, runs) = seeds();
    let mut happened = [0u64; N];
    for seed in first..first + runs {
        let outcome = passes::<S>(seed);
        for (sum, n) in happened.iter_mut().zip(counts(&outcome)) {
            *sum += u64::from(n);
        }
    }
    println!("{happened:?}");
    if runs >= 1000 {
        assert!(happened.iter().all(|n| *n > runs / rarely), "{happened:?}");
    }
}

/// Runs the schedule of a seed, which must not fail.
fn passes<S: Simulation>(seed: u64) -> S::Outcome {
    let sch = S::of_seed(seed);
    let outcome = S::run(&sch, None);
    let violation = S::violation(&outcome);
    assert!(violation.is_none(), "{}", explain::<S>(seed, violation));
    outcome
}

fn explain<S: Simulation>(seed: u64, violation: Option<&S::Violation>) -> String {
    let small = S::shrink(&S::of_seed(seed), None);
    let outcome = S::run(&small, None);
    format!(
        "seed {seed}: {violation:?}\n{small:#?}\n{outcome:?}\n\
         what happens: cargo run --release -p ibtrs_sim --bin {} -- --seed {seed} --trace",
        S::PROGRAM
    )
}

/// A seed always gives the same run.
pub fn seeds_are_runs<S: Simulation>() {
    for seed in 0..200 {
        let sch = S::of_seed(seed);
        assert_eq!(S::run(&sch, None), S::run(&S::of_seed(seed), None));
    }
}

/// Finds the mistake within that many schedules, and shrinks it.
pub fn caught<S: Simulation>(
    bug: S::Bug,
    within: u64,
    of_seed: impl Fn(u64) -> S::Schedule,
) -> (S::Schedule, S::Outcome) {
    for seed in 0..within {
        let sch = of_seed(seed);
        if S::violation(&S::run(&sch, Some(bug))).is_some() {
            let small = S::shrink(&sch, Some(bug));
            let outcome = S::run(&small, Some(bug));
            assert!(S::violation(&outcome).is_some());
            assert_eq!(S::violation(&S::run(&small, None)), None, "{small:#?}");
            return (small, outcome);
        }
    }
    panic!("{bug:?} was not found in {within} schedules");
}
