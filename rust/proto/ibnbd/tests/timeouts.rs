// SPDX-License-Identifier: GPL-2.0

//! After how many timeouts a request is cancelled.

use ibnbd_proto::timeouts::{limit, FIRST_READS_MS, NEW_MS, SCAN_MS};
use proptest::prelude::*;

/// The time-out of a disk's requests that Linux starts with.
const DEFAULT_MS: u32 = 30_000;
/// After so long udev kills the worker that handles an event.
const UDEV_MS: u32 = 180_000;

#[test]
fn a_new_disk_has_a_limit() {
    for (after_ms, timeouts) in [
        (DEFAULT_MS, 1),
        (1000, 30),
        (7000, 5),
        (60_000, 1),
        (0, 30_000),
    ] {
        assert_eq!(limit(0, Some(0), after_ms), timeouts);
        assert_eq!(limit(0, Some(NEW_MS - 1), after_ms), timeouts);
    }
}

#[test]
fn a_disk_in_use_has_the_operators() {
    assert_eq!(limit(0, None, DEFAULT_MS), 0);
    assert_eq!(limit(0, Some(NEW_MS), DEFAULT_MS), 0);
}

/// The first request of a disk that exceeds its time counts when it does that again.
#[test]
fn udev_kills_nobody() {
    let longest = DEFAULT_MS * (1 + limit(0, Some(0), DEFAULT_MS));
    assert!(SCAN_MS + longest < UDEV_MS);
    // The last read of a scan is still that of a new disk when it times out.
    assert!(i64::from(SCAN_MS + longest) < NEW_MS);
}

proptest! {
    #[test]
    fn the_operator_has_the_last_word(
        set in 1u32..,
        age in prop::option::of(any::<i64>()),
        after_ms: u32,
    ) {
        prop_assert_eq!(limit(set, age, after_ms), set);
    }

    /// A request of a new disk gets its time, and not much more.
    #[test]
    fn each_gets_its_time(age in i64::MIN..NEW_MS, after_ms in 1u32..) {
        let waited = u64::from(limit(0, Some(age), after_ms)) * u64::from(after_ms);
        prop_assert!(waited >= u64::from(FIRST_READS_MS));
        prop_assert!(waited < u64::from(FIRST_READS_MS) + u64::from(after_ms));
    }
}
