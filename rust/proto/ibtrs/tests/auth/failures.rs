// SPDX-License-Identifier: GPL-2.0

//! The limit of failures.

use super::*;
use ibtrs_proto::addr::Addr;
use ibtrs_proto::origin::Origin;
use proptest::prelude::*;

fn source(n: u16) -> Source {
    let [high, low] = n.to_be_bytes();
    Source {
        origin: Origin::Addr(Addr::V4([10, 0, high, low])),
        session: None,
    }
}

#[test]
fn a_source_has_five_failures_and_then_one_every_two_seconds() {
    let mut failures = Failures::<8>::new();
    let me = source(1);
    let mut now = 1000;
    for _ in 0..FORGIVEN {
        assert_eq!(failures.wait_ms(&me, now), 0);
        failures.failed(&me, now);
    }
    for _ in 0..3 {
        assert_eq!(failures.wait_ms(&me, now), FAILURE_MS);
        assert_eq!(failures.wait_ms(&me, now + FAILURE_MS - 1), 1);
        now += FAILURE_MS;
        assert_eq!(failures.wait_ms(&me, now), 0);
        failures.failed(&me, now);
    }
    // All is forgotten in the end.
    now += FORGIVEN * FAILURE_MS;
    for _ in 0..FORGIVEN {
        assert_eq!(failures.wait_ms(&me, now), 0);
        failures.failed(&me, now);
    }
}

#[test]
fn failures_that_were_under_way_count_once_more_at_most() {
    let mut failures = Failures::<8>::new();
    for _ in 0..1000 {
        failures.failed(&source(1), 5);
    }
    assert_eq!(failures.wait_ms(&source(1), 5), 2 * FAILURE_MS);
}

/// Whatever address a stranger claims, it fails at its own port.
#[test]
fn a_port_fails_for_itself() {
    let mut failures = Failures::<8>::default();
    let port = |lid, gid: Option<u8>| Source {
        origin: Origin::Port {
            lid,
            gid: gid.map(|byte| [byte; 16]),
        },
        session: None,
    };
    for _ in 0..FORGIVEN {
        failures.failed(&port(7, None), 0);
        failures.failed(&port(9, Some(1)), 0);
    }
    assert_eq!(failures.wait_ms(&port(7, None), 0), FAILURE_MS);
    assert_eq!(failures.wait_ms(&port(8, None), 0), 0);
    // Behind a router, hosts differ by their GIDs.
    assert_eq!(failures.wait_ms(&port(9, Some(1)), 0), FAILURE_MS);
    assert_eq!(failures.wait_ms(&port(9, Some(2)), 0), 0);
}

/// A client whose key was removed does not keep the known sessions of its machine out, and a
/// stranger who knows their UUIDs neither.
#[test]
fn a_known_session_fails_for_itself() {
    let mut failures = Failures::<8>::new();
    let known = |n, uuid| Source {
        session: Some([uuid; 16]),
        ..source(n)
    };
    for _ in 0..FORGIVEN {
        failures.failed(&source(1), 0);
        failures.failed(&known(2, 9), 0);
    }
    assert_eq!(failures.wait_ms(&known(1, 9), 0), 0);
    assert_eq!(failures.wait_ms(&known(1, 8), 0), 0);
    assert_eq!(failures.wait_ms(&source(1), 0), FAILURE_MS);
    assert_eq!(failures.wait_ms(&known(2, 9), 0), FAILURE_MS);
    assert_eq!(failures.wait_ms(&source(2), 0), 0);
}

#[test]
fn the_worst_are_remembered() {
    let mut failures = Failures::<8>::new();
    for _ in 0..FORGIVEN {
        failures.failed(&source(1), 0);
    }
    // Many others fail once.
    for n in 2..10_000 {
        failures.failed(&source(n), 1);
        assert_eq!(failures.wait_ms(&source(n), 1), 0);
    }
    assert_eq!(failures.wait_ms(&source(1), 1), FAILURE_MS - 1);
}

proptest! {
    /// Whatever others do, a source that never fails never waits.
    #[test]
    fn honest_sources_never_wait(
        steps in prop::collection::vec((1u16..40, 0u64..3000), 1..300),
    ) {
        let mut failures = Failures::<16>::new();
        let mut now = 0;
        for (who, later) in steps {
            now += later;
            failures.failed(&source(who), now);
            prop_assert_eq!(failures.wait_ms(&source(0), now), 0);
        }
    }

    /// However a source spaces them, and whatever as many others do as the table has entries
    /// for, it fails no more often than the limit says.
    #[test]
    fn no_source_exceeds_its_limit(
        steps in prop::collection::vec((0u16..16, 0u64..1500), 1..400),
    ) {
        let mut failures = Failures::<16>::new();
        let (mut now, mut tries) = (0, [0; 16]);
        for (who, later) in steps {
            now += later;
            if failures.wait_ms(&source(who), now) == 0 {
                failures.failed(&source(who), now);
                tries[usize::from(who)] += 1;
            }
            let most = FORGIVEN + now / FAILURE_MS;
            prop_assert!(tries.iter().all(|&n| n <= most));
        }
    }
}
