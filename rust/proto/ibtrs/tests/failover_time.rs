// SPDX-License-Identifier: GPL-2.0

//! What follows from a failover time.

use ibtrs_proto::failover_time::{check, Chosen, Peer, Plan, DISCONNECT_GRACE_MS};
use ibtrs_proto::hb::{HbAction, Heartbeat};
use ibtrs_proto::settings::{FAILOVER_TIME_MS, HB_INTERVAL_MS, HB_MISSED_MAX};
use proptest::prelude::*;

fn set(failover_time_ms: u32) -> Chosen {
    Chosen {
        failover_time_ms,
        hb_interval_ms: 0,
        hb_missed_max: HB_MISSED_MAX.default,
    }
}

/// How long the device sends a packet again, in microseconds.
fn retries_us(plan: &Plan) -> u64 {
    (4096 << plan.ack_timeout) * 8 / 1000
}

#[test]
fn by_default() {
    let plan = Plan::new(set(FAILOVER_TIME_MS.default), Peer::Ours);
    assert_eq!((plan.hb_interval_ms, plan.hb_missed_max), (625, 5));
    assert_eq!((plan.detect_ms(), plan.move_ms), (3750, 1250));
    assert_eq!((plan.total_ms(), plan.ack_timeout), (5000, 17));
    // A server whose client tells its time has the same heartbeats.
    let server = Plan::of_server(5000, 0, 5);
    assert_eq!((server.hb_interval_ms, server.hb_missed_max), (625, 5));
}

#[test]
fn towards_mainline() {
    let plan = Plan::new(set(5000), Peer::Fixed);
    assert_eq!((plan.hb_interval_ms, plan.hb_missed_max), (5000, 5));
    assert_eq!(plan.move_ms, DISCONNECT_GRACE_MS + 2000);
    assert_eq!((plan.total_ms(), plan.ack_timeout), (35_000, 17));
    // A longer time holds.
    let plan = Plan::new(set(60_000), Peer::Fixed);
    assert_eq!(plan.hb_interval_ms, (60_000 - 2000) / 6);
    // Fewer heartbeats that may be missed are further apart: the server notices no sooner.
    let few = Plan::new(
        Chosen {
            hb_missed_max: 1,
            ..set(5000)
        },
        Peer::Fixed,
    );
    assert_eq!((few.hb_interval_ms, few.detect_ms()), (15_000, 30_000));
    let client = Plan::of_server(0, 0, 5);
    assert_eq!((client.hb_interval_ms, client.hb_missed_max), (5000, 5));
}

#[test]
fn explicit_settings_override() {
    for peer in [Peer::Ours, Peer::Fixed] {
        let plan = Plan::new(
            Chosen {
                hb_interval_ms: 20_000,
                hb_missed_max: 2,
                ..set(5000)
            },
            peer,
        );
        assert_eq!((plan.hb_interval_ms, plan.hb_missed_max), (20_000, 2));
        assert_eq!(plan.detect_ms(), 60_000);
    }
    // The interval makes up for the number of heartbeats.
    let missed = |hb_missed_max| {
        let set = Chosen {
            hb_missed_max,
            ..set(5000)
        };
        Plan::new(set, Peer::Ours).hb_interval_ms
    };
    assert_eq!((missed(1), missed(9)), (1875, 375));
    // As far as it can.
    assert_eq!(missed(100), HB_INTERVAL_MS.min);
    assert_eq!(Plan::of_server(5000, 300, 2).hb_interval_ms, 300);
}

#[test]
fn a_client_can_tell_anything() {
    for (told, taken) in [(1, FAILOVER_TIME_MS.min), (u32::MAX, FAILOVER_TIME_MS.max)] {
        let plan = Plan::of_server(told, 0, 5);
        assert_eq!(plan, Plan::new(set(taken), Peer::Ours));
    }
}

#[test]
fn impossible_times_are_refused() {
    assert!(check(set(1000)).is_ok());
    let short = |failover_time_ms, hb_missed_max| {
        let set = Chosen {
            failover_time_ms,
            hb_interval_ms: 0,
            hb_missed_max,
        };
        check(set).err().map(|error| error.least_ms)
    };
    assert_eq!(short(1000, 1), None);
    assert_eq!(short(1000, 6), Some(1100));
    assert_eq!(short(5000, 100), Some(12_100));
    // An explicit interval does not follow the time.
    let explicit = Chosen {
        hb_interval_ms: 100,
        hb_missed_max: 100,
        ..set(1000)
    };
    assert!(check(explicit).is_ok());
}

/// A short time takes short retransmissions: one lost packet must not look like a lost path.
#[test]
fn packets_are_sent_again_in_time() {
    let ack = |ms| Plan::new(set(ms), Peer::Ours).ack_timeout;
    assert_eq!(
        (ack(1000), ack(2000), ack(3000), ack(5000)),
        (15, 16, 17, 17)
    );
    assert_eq!(ack(300_000), 17);
}

proptest! {
    #[test]
    fn the_parts_do_not_exceed_the_whole(
        ms in FAILOVER_TIME_MS.min..=FAILOVER_TIME_MS.max,
        missed in HB_MISSED_MAX.min..=HB_MISSED_MAX.max,
    ) {
        let set = Chosen { failover_time_ms: ms, hb_interval_ms: 0, hb_missed_max: missed };
        let plan = Plan::new(set, Peer::Ours);
        prop_assert!(HB_INTERVAL_MS.allows(plan.hb_interval_ms) && plan.hb_interval_ms > 0);
        match check(set) {
            Ok(()) => prop_assert!(plan.total_ms() <= ms, "{plan:?}"),
            Err(short) => {
                let with = |failover_time_ms| Chosen { failover_time_ms, ..set };
                prop_assert!(short.least_ms > ms && check(with(short.least_ms)).is_ok());
                prop_assert!(check(with(short.least_ms - 1)).is_err());
            }
        }
        // The device sends a packet again several times before the heartbeats give up.
        let once_ms = retries_us(&plan) / 8 / 1000;
        prop_assert!(once_ms * 4 <= u64::from(plan.detect_ms()), "{plan:?}");
        // It does not give up before, unless that takes as long as it ever does.
        let lasts = retries_us(&plan) >= u64::from(plan.detect_ms()) * 1000;
        prop_assert!(lasts || plan.ack_timeout == 17);
    }

    /// Late ticks neither add up nor shorten the time that the peer has for its answer.
    #[test]
    fn late_ticks(
        interval in 2_u64..1000,
        missed in 1_u32..=20,
        late in prop::collection::vec(0_u64..3000, 24),
    ) {
        let mut hb = Heartbeat::new(missed);
        let (mut now, mut late) = (0, late.into_iter());
        prop_assert_eq!(hb.tick(now), HbAction::Send);
        let mut most = 0;
        loop {
            let wait = hb.next_in(now, interval);
            prop_assert!(wait >= interval / 2 && wait <= interval);
            let late = late.next().unwrap();
            most = late.max(most);
            now += wait + late;
            match hb.tick(now) {
                HbAction::Dead => break,
                action => prop_assert_eq!(action, HbAction::Nothing),
            }
        }
        let all = interval * u64::from(missed);
        prop_assert!(now >= all);
        if most <= interval / 2 {
            prop_assert!(now <= all + most);
        }
    }

    /// The heartbeats that follow notice a silence in the time that they were given, and no shorter
    /// silence than all permitted misses.
    #[test]
    fn heartbeats_keep_the_time(
        ms in FAILOVER_TIME_MS.min..=FAILOVER_TIME_MS.max,
        missed in 1_u32..=9,
        heard in 1_u32..=5,
        after in 0_u32..100,
    ) {
        let set = Chosen { failover_time_ms: ms, hb_interval_ms: 0, hb_missed_max: missed };
        prop_assume!(check(set).is_ok());
        let plan = Plan::new(set, Peer::Ours);
        let mut hb = Heartbeat::new(plan.hb_missed_max);
        let mut now = 0;
        for _ in 0..heard {
            prop_assert_eq!(hb.tick(now.into()), HbAction::Send);
            hb.received();
            now += plan.hb_interval_ms;
        }
        // Something arrives for the last time soon after the last tick.
        let last = now - plan.hb_interval_ms + after.min(plan.hb_interval_ms - 1);
        while hb.tick(now.into()) != HbAction::Dead {
            now += plan.hb_interval_ms;
        }
        prop_assert!(now - last <= plan.detect_ms());
        prop_assert!(now - last > plan.hb_interval_ms * missed);
    }
}
