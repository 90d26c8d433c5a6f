// SPDX-License-Identifier: GPL-2.0

//! When paths authenticate again.

use ibtrs_proto::reauth::{late, may_proceed, next, Next, PathStatus};
use proptest::prelude::*;
use PathStatus::{Closed, Connected, Connecting, Failed};

fn of(interval_ms: u64, paths: &[PathStatus]) -> Next {
    next(interval_ms, paths.iter().copied())
}

#[test]
fn the_oldest_path_is_the_next() {
    let paths = [Connected(9_000), Connected(10_000), Connected(9_999)];
    assert_eq!(of(10_000, &paths), Next::Drain(1));
    assert_eq!(of(5_000, &paths), Next::Drain(1));
    assert_eq!(of(10_001, &paths), Next::Wait(1000));
    assert_eq!(of(25_000, &paths), Next::Wait(15_000));
    assert_eq!(of(u64::MAX, &paths), Next::Wait(60_000));
    // With the same age, the first.
    assert_eq!(of(1, &[Connected(5), Connected(5)]), Next::Drain(0));
}

#[test]
fn no_path_leaves_while_another_is_not_back() {
    let paths = [Connected(10_000), Connecting, Connected(10_000)];
    assert_eq!(of(10_000, &paths), Next::Wait(1000));
    assert_eq!(
        of(10_000, &[Connected(10_000), Connecting]),
        Next::Wait(1000)
    );
}

/// Such a path may have used up its attempts; the others would follow it, one after the other.
#[test]
fn no_path_leaves_while_one_has_failed() {
    let paths = [Connected(10_000), Failed, Connected(10_000)];
    assert_eq!(of(10_000, &paths), Next::Wait(1000));
    assert_eq!(of(10_000, &[Failed, Connected(10_000)]), Next::Wait(1000));
    assert_eq!(of(10_000, &[Failed]), Next::Wait(1000));
}

/// While a path is drained, the others may go, or come.
#[test]
fn a_path_that_has_become_the_last_one_stays() {
    let may_proceed = |chosen, paths: &[PathStatus]| may_proceed(chosen, paths.iter().copied());
    let both = [Connected(1), Connected(2)];
    assert!(may_proceed(Next::Drain(0), &both) && may_proceed(Next::Drain(1), &both));
    for other in [Connecting, Failed, Closed] {
        assert!(!may_proceed(Next::Drain(0), &[Connected(1), other]));
        // It has gone itself.
        assert!(!may_proceed(Next::Drain(1), &[Connected(1), other]));
        assert!(!may_proceed(
            Next::Drain(0),
            &[other, Connected(1), Connected(2)]
        ));
    }
    assert!(may_proceed(
        Next::Drain(0),
        &[Connected(1), Closed, Connected(2)]
    ));
    assert!(!may_proceed(
        Next::Drain(0),
        &[Connected(1), Connecting, Connected(2)]
    ));
    assert!(!may_proceed(Next::Drain(2), &both));
    // The only one.
    assert!(may_proceed(Next::Only(1), &[Closed, Connected(1)]));
    for paths in [
        &both[..],
        &[Connected(1), Connecting],
        &[Connected(1), Failed],
        &[Closed],
        &[],
    ] {
        assert!(!may_proceed(Next::Only(0), paths), "{paths:?}");
    }
    assert!(!may_proceed(Next::Wait(1), &both));
}

#[test]
fn the_operator_learns_what_a_path_waits_for() {
    let late = |paths: &[PathStatus]| late(10_000, paths.iter().copied());
    for away in [Connecting, Failed] {
        let paths = [Connected(29_999), Connected(30_000), away, Connecting];
        assert_eq!(late(&paths), Some((1, 2)));
        assert_eq!(late(&[Connected(29_999), away]), None);
        assert_eq!(late(&[away]), None);
    }
    assert_eq!(late(&[Connected(30_000), Closed, Connected(1)]), None);
}

#[test]
fn an_only_path_has_no_other_to_wait_for() {
    assert_eq!(of(10_000, &[Closed, Connected(10_000)]), Next::Only(1));
    assert_eq!(of(10_000, &[Connected(9_000)]), Next::Wait(1000));
}

#[test]
fn without_a_path_nothing_is_due() {
    for paths in [&[][..], &[Closed]] {
        assert_eq!(of(1, paths), Next::Wait(60_000));
    }
    // Soon there is one.
    for paths in [&[Connecting][..], &[Closed, Connecting]] {
        assert_eq!(of(1, paths), Next::Wait(1000));
    }
}

fn seen() -> impl Strategy<Value = PathStatus> {
    prop_oneof![
        4 => (0u64..100_000).prop_map(Connected),
        1 => Just(Connecting),
        1 => Just(Failed),
        1 => Just(Closed),
    ]
}

proptest! {
    /// Whatever the paths are like, only one that is due connects again, and only if that leaves
    /// another one, or there is none to leave.
    #[test]
    fn a_session_is_left_a_path(
        interval_ms in 1u64..200_000,
        paths in prop::collection::vec(seen(), 0..8),
    ) {
        let connected = paths.iter().filter(|path| matches!(path, Connected(_))).count();
        let all_back = !paths.contains(&Connecting) && !paths.contains(&Failed);
        let chosen = of(interval_ms, &paths);
        let goes = !matches!(chosen, Next::Wait(_));
        prop_assert_eq!(may_proceed(chosen, paths.iter().copied()), goes);
        let is_late = late(interval_ms, paths.iter().copied()).is_some();
        prop_assert!(!is_late || !goes);
        match chosen {
            Next::Drain(at) => prop_assert!(
                matches!(paths[at], Connected(age) if age >= interval_ms) && all_back && connected > 1
            ),
            Next::Only(at) => prop_assert!(
                matches!(paths[at], Connected(age) if age >= interval_ms) && all_back && connected == 1
            ),
            Next::Wait(ms) => {
                prop_assert!((1000..=60_000).contains(&ms));
                let due = |path: &PathStatus| matches!(path, Connected(age) if *age >= interval_ms);
                prop_assert!(!all_back || !paths.iter().any(due));
            }
        }
    }
}
