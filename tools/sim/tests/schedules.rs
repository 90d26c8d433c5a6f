// SPDX-License-Identifier: GPL-2.0

//! Schedules by their seeds, and that mistakes are found.

use ibtrs_proto::mp::Policy;
use ibtrs_sim::schedule::{Fault, Kind, Request, Time};
use ibtrs_sim::{run, shrink, Bug, Mode, Outcome, Schedule, Violation};

/// So many, unless the variable says something else.
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
    // What never happened was not tested.
    let mut happened = [0u64; 5];
    for seed in first..first + runs {
        let sch = Schedule::of_seed(seed);
        let o = run(&sch, None);
        assert!(o.violation.is_none(), "{}", explain(&sch, None));
        for (sum, n) in happened
            .iter_mut()
            .zip([o.retries, o.waited, o.fences, o.older, o.fresh])
        {
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

/// Finds the mistake within so many schedules, and shrinks it.
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
    // All but one, which so few schedules find that it has one of its own below.
    for bug in Bug::ALL {
        if bug == Bug::NoOlderIfFenced {
            continue;
        }
        let (small, outcome) = caught(bug, 20_000);
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
/// any more, but its first attempt is still on the disk when a later write is made.
#[test]
fn a_request_that_was_fenced_leaves_a_ghost() {
    let write = |at: Time, sector: u8| Request {
        at,
        sector,
        write: true,
    };
    let fault = |at: Time, kind: Kind| Fault { at, kind };
    let disk = Kind::SlowDisk {
        time: 1_614_000,
        extra: 2_481_000,
    };
    let mut sch = Schedule {
        seed: 0,
        mode: Mode::Ext,
        paths: 3,
        depth: 3,
        policy: Policy::MinInflight,
        hb: 100_000,
        missed: 2,
        retry: 800_000,
        reconnect_ms: 20,
        queue_timeout: 0,
        requests: vec![
            write(1_581_655, 0),
            write(1_987_155, 1),
            write(2_013_592, 1),
            write(2_032_696, 0),
            write(2_042_338, 0),
        ],
        faults: vec![
            fault(1_572_954, Kind::ClientError { path: 2 }),
            fault(1_976_469, disk),
            fault(1_986_469, Kind::Full { time: 271_000 }),
            fault(1_991_245, Kind::ClientError { path: 1 }),
            fault(1_992_780, Kind::ClientError { path: 0 }),
            fault(2_004_355, Kind::ClientError { path: 2 }),
        ],
    };
    // The fabric's part is left to chance.
    let mut found = 0;
    for seed in 0..2000 {
        sch.seed = seed;
        assert_eq!(run(&sch, None).violation, None, "seed {seed}");
        let violation = run(&sch, Some(Bug::NoOlderIfFenced)).violation;
        found += u32::from(matches!(violation, Some(Violation::Overtaken(_))));
    }
    assert!(found > 0);
    println!("found {found} times");
}

#[test]
fn what_is_shrunk_is_small() {
    let (small, _) = caught(Bug::AlwaysServe, 1000);
    assert!(
        small.requests.len() <= 2 && small.faults.len() <= 3,
        "{small:#?}"
    );
}
