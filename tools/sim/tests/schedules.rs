// SPDX-License-Identifier: GPL-2.0

//! Runs schedules, and checks that planted mistakes are found.

mod common;

use common::seeds_are_runs;
use ibtrs_sim::{run, Bug, Mode, Outcome, Schedule, Session, Violation};

#[test]
fn nothing_is_lost_doubled_or_overtaken() {
    common::all_pass::<Session, _>(100, |o| {
        [
            o.retries,
            o.waited,
            o.fences,
            o.older,
            o.session_lost,
            o.connects,
            o.failures,
            o.exhausted,
            o.stale,
        ]
    });
}

#[test]
fn a_seed_is_a_run() {
    seeds_are_runs::<Session>();
}

/// Finds the mistake, in sessions with extensions.
fn caught(bug: Bug, within: u64) -> (Schedule, Outcome) {
    common::caught::<Session>(bug, within, |seed| Schedule::with_mode(seed, Mode::Ext))
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
