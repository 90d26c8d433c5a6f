// SPDX-License-Identifier: GPL-2.0

//! Time limit for setting up a path.

use ibtrs_proto::consts::ZOMBIE_TIMEOUT_MS;
use ibtrs_proto::setup::{may_be_behind, may_wait, SetupClock};
use proptest::prelude::*;

const LIMIT: u32 = 120_000;

fn after(admissions: &[(u64, u64)]) -> SetupClock {
    let mut clock = SetupClock::default();
    for &(came, now) in admissions {
        clock.accepted(came, now);
    }
    clock
}

#[test]
fn each_connection_gives_time_but_no_more_than_all_have() {
    assert_eq!(after(&[]).left_ms(LIMIT), 30_000);
    assert_eq!(after(&[]).left_ms(10_000), 10_000);
    assert_eq!(after(&[(90_000, 90_000)]).left_ms(LIMIT), 30_000);
    assert_eq!(after(&[(90_001, 90_001)]).left_ms(LIMIT), 29_999);
    assert_eq!(after(&[(120_000, 120_000)]).left_ms(LIMIT), 0);
    assert_eq!(after(&[(u64::MAX, u64::MAX)]).left_ms(u32::MAX), 0);
    // One every 20 s.
    let slow: Vec<_> = (1..=7).map(|n| (20_000 * n, 20_000 * n)).collect();
    assert_eq!(after(&slow[..5]).left_ms(LIMIT), 20_000);
    assert_eq!(after(&slow).left_ms(LIMIT), 0);
}

#[test]
fn what_waits_for_the_server_takes_none_of_the_clients_time() {
    // Three come at once, and are accepted a minute after each other.
    let clock = after(&[(1000, 60_000), (1000, 120_000), (1001, 180_000)]);
    assert_eq!(clock, {
        let mut same = SetupClock::default();
        same.accepted(1000, 180_000);
        same
    });
    assert_eq!(clock.left_ms(30_000), 29_000);
    // From then on the client's runs again.
    let mut later = clock;
    later.accepted(181_500, 200_000);
    assert_eq!(later.left_ms(30_000), 27_500);
}

#[test]
fn new_paths_are_refused_before_connections_of_others() {
    assert!(may_wait(0, false) && may_wait(1023, false) && !may_wait(1024, false));
    assert!(may_wait(1024, true) && may_wait(4095, true) && !may_wait(4096, true));
}

#[test]
fn no_path_stays_incomplete_for_ever() {
    assert!(may_be_behind(0, 1000) && may_be_behind(9_999, 1000));
    assert!(!may_be_behind(10_000, 1000) && !may_be_behind(u64::MAX, u32::MAX));
}

proptest! {
    /// Whatever the server takes for each of them: a client that asks for all connections at once
    /// is never too late.
    #[test]
    fn a_server_that_is_behind_closes_no_path(took in prop::collection::vec(0u64..1 << 40, 1..200), limit in 1000u32..3_600_000) {
        let mut clock = SetupClock::default();
        let mut now = 0u64;
        for took in took {
            now += took;
            clock.accepted(0, now);
            prop_assert_eq!(clock.left_ms(limit), limit.min(ZOMBIE_TIMEOUT_MS));
        }
    }

    /// However fast the server is: the client has its limit, and no more.
    #[test]
    fn a_client_that_dawdles_is_closed(waits in prop::collection::vec(0u64..ZOMBIE_TIMEOUT_MS.into(), 1..200), limit in 1000u32..3_600_000) {
        let mut clock = SetupClock::default();
        let mut now = 0u64;
        for wait in waits {
            now += wait;
            clock.accepted(now, now);
            let left = u64::from(limit).saturating_sub(now).min(ZOMBIE_TIMEOUT_MS.into());
            prop_assert_eq!(u64::from(clock.left_ms(limit)), left);
        }
    }
}
