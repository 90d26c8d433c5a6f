// SPDX-License-Identifier: GPL-2.0

//! The limit of failures.

use super::*;
use ibtrs_proto::addr::Addr;
use proptest::prelude::*;

const WRONG_KEY: Failure = Failure {
    no_key: false,
    beside_client: true,
};
const REMOVED_KEY: Failure = Failure {
    no_key: true,
    beside_client: true,
};
const STRANGER: Failure = Failure {
    no_key: true,
    beside_client: false,
};

fn source(n: u16) -> Source {
    let [high, low] = n.to_be_bytes();
    Source::Addr(Addr::V4([10, 0, high, low]))
}

#[test]
fn a_source_has_five_failures_and_then_one_every_two_seconds() {
    let mut failures = Failures::<8>::new();
    let me = source(1);
    let mut now = 1000;
    for _ in 0..FORGIVEN {
        assert_eq!(failures.wait_ms(&me, now), 0);
        failures.failed(&me, WRONG_KEY, now);
    }
    for _ in 0..3 {
        assert_eq!(failures.wait_ms(&me, now), FAILURE_MS);
        assert_eq!(failures.wait_ms(&me, now + FAILURE_MS - 1), 1);
        now += FAILURE_MS;
        assert_eq!(failures.wait_ms(&me, now), 0);
        failures.failed(&me, WRONG_KEY, now);
    }
    // All is forgotten in the end.
    now += FORGIVEN * FAILURE_MS;
    for _ in 0..FORGIVEN {
        assert_eq!(failures.wait_ms(&me, now), 0);
        failures.failed(&me, WRONG_KEY, now);
    }
}

#[test]
fn failures_that_were_under_way_count_once_more_at_most() {
    let mut failures = Failures::<8>::new();
    for _ in 0..1000 {
        failures.failed(&source(1), WRONG_KEY, 5);
    }
    assert_eq!(failures.wait_ms(&source(1), 5), 2 * FAILURE_MS);
}

#[test]
fn success_ends_the_wait() {
    let mut failures = Failures::<8>::default();
    for _ in 0..FORGIVEN {
        failures.failed(&source(1), WRONG_KEY, 0);
        failures.failed(&source(2), WRONG_KEY, 0);
    }
    failures.succeeded(&source(1));
    assert_eq!(failures.wait_ms(&source(1), 0), 0);
    assert_eq!(failures.wait_ms(&source(2), 0), FAILURE_MS);
}

/// Whatever address a stranger claims, it fails at its own port.
#[test]
fn a_port_fails_for_itself() {
    let mut failures = Failures::<8>::default();
    let port = |lid, gid: Option<u8>| Source::Port {
        lid,
        gid: gid.map(|byte| [byte; 16]),
    };
    for _ in 0..FORGIVEN {
        failures.failed(&port(7, None), STRANGER, 0);
        failures.failed(&port(9, Some(1)), STRANGER, 0);
    }
    assert_eq!(failures.wait_ms(&port(7, None), 0), FAILURE_MS);
    assert_eq!(failures.wait_ms(&port(8, None), 0), 0);
    // Behind a router, hosts differ by their GIDs.
    assert_eq!(failures.wait_ms(&port(9, Some(1)), 0), FAILURE_MS);
    assert_eq!(failures.wait_ms(&port(9, Some(2)), 0), 0);
}

#[test]
fn the_worst_are_remembered() {
    let mut failures = Failures::<8>::new();
    for _ in 0..FORGIVEN {
        failures.failed(&source(1), WRONG_KEY, 0);
    }
    // Many others fail once.
    for n in 2..10_000 {
        failures.failed(&source(n), WRONG_KEY, 1);
        assert_eq!(failures.wait_ms(&source(n), 1), 0);
    }
    assert_eq!(failures.wait_ms(&source(1), 1), FAILURE_MS - 1);
}

#[test]
fn a_removed_key_counts_only_where_nobody_is_connected() {
    let mut failures = Failures::<8>::new();
    for _ in 0..100 {
        failures.failed(&source(1), REMOVED_KEY, 0);
        failures.failed(&source(2), WRONG_KEY, 0);
        failures.failed(&source(3), STRANGER, 0);
    }
    assert_eq!(failures.wait_ms(&source(1), 0), 0);
    assert_eq!(failures.wait_ms(&source(2), 0), 2 * FAILURE_MS);
    assert_eq!(failures.wait_ms(&source(3), 0), 2 * FAILURE_MS);
}

proptest! {
    /// Failures that do not count change nothing for anybody.
    #[test]
    fn removed_keys_make_nobody_wait(
        steps in prop::collection::vec((0u16..24, 0u64..3000, 0u8..4), 1..300),
    ) {
        let (mut failures, mut without) = (Failures::<16>::new(), Failures::<16>::new());
        let mut now = 0;
        for (who, later, what) in steps {
            now += later;
            let failure = [WRONG_KEY, STRANGER, REMOVED_KEY].get(usize::from(what)).copied();
            match failure {
                Some(REMOVED_KEY) => failures.failed(&source(who), REMOVED_KEY, now),
                Some(failure) => {
                    failures.failed(&source(who), failure, now);
                    without.failed(&source(who), failure, now);
                }
                None => {
                    failures.succeeded(&source(who));
                    without.succeeded(&source(who));
                }
            }
            for who in 0..24 {
                let wait = |table: &Failures<16>| table.wait_ms(&source(who), now);
                prop_assert_eq!(wait(&failures), wait(&without));
            }
        }
    }

    /// Whatever others do, a source that never fails never waits.
    #[test]
    fn honest_sources_never_wait(
        steps in prop::collection::vec((1u16..40, 0u64..3000, any::<bool>()), 1..300),
    ) {
        let mut failures = Failures::<16>::new();
        let mut now = 0;
        for (who, later, success) in steps {
            now += later;
            match success {
                false => failures.failed(&source(who), WRONG_KEY, now),
                true => failures.succeeded(&source(who)),
            }
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
                failures.failed(&source(who), WRONG_KEY, now);
                tries[usize::from(who)] += 1;
            }
            let most = FORGIVEN + now / FAILURE_MS;
            prop_assert!(tries.iter().all(|&n| n <= most));
        }
    }
}
