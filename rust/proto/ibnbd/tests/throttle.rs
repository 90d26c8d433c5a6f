// SPDX-License-Identifier: GPL-2.0

//! How many requests and bytes a host is served in a second.

use ibnbd_proto::throttle::{Rates, Throttle, BURST_NS, MAX_IOPS, MAX_MIB_S, MIN_IOPS};
use proptest::prelude::*;

const S: u64 = 1_000_000_000;

/// Serves requests of these sizes one after the other, each as soon as it may; returns when the
/// last one was served.
fn run(rates: &Rates, sizes: impl IntoIterator<Item = u32>, mut now: u64) -> u64 {
    let mut throttle = Throttle::default();
    for bytes in sizes {
        while let Err(wait) = throttle.serve(rates, bytes, now) {
            now += wait.get();
        }
    }
    now
}

#[test]
fn without_limits_nothing_waits() {
    let none = Rates::default();
    assert!(!none.is_limited());
    assert_eq!(run(&none, [u32::MAX; 1000], 7), 7);
}

#[test]
fn requests_in_a_second() {
    let rates = Rates {
        iops: 100,
        mib_s: 0,
    };
    assert!(rates.is_limited());
    // 50 ms ahead are 5 requests, and the one that goes beyond.
    assert_eq!(run(&rates, [u32::MAX; 6], S), S);
    assert_eq!(run(&rates, [0; 7], S), S + 10_000_000);
    assert_eq!(run(&rates, [0; 1006], S), 11 * S);
}

#[test]
fn mib_in_a_second() {
    let rates = Rates { iops: 0, mib_s: 1 };
    assert_eq!(run(&rates, [1 << 20, 0, 1 << 20], S), 2 * S - BURST_NS);
    assert_eq!(run(&rates, [1 << 20; 11], S), 11 * S - BURST_NS);
    // A request without data does not count.
    assert_eq!(run(&rates, std::iter::repeat_n(0, 100_000), S), S);
}

#[test]
fn the_lower_limit_counts() {
    let rates = Rates {
        iops: 1000,
        mib_s: 1,
    };
    assert_eq!(run(&rates, [1 << 18; 5], 0), S - BURST_NS);
    assert_eq!(run(&rates, [16; 1051], 0), S);
}

#[test]
fn idle_time_is_not_saved() {
    let rates = Rates {
        iops: 100,
        mib_s: 0,
    };
    let mut throttle = Throttle::default();
    assert!(throttle.serve(&rates, 0, 0).is_ok());
    let late = 1000 * S;
    let served = (0..100).take_while(|_| throttle.serve(&rates, 0, late).is_ok());
    assert_eq!(served.count(), 6);
    throttle.reset();
    assert!(throttle.serve(&rates, 0, late).is_ok());
}

#[test]
fn what_does_not_wait_is_paid_by_those_that_follow() {
    let rates = Rates {
        iops: 100,
        mib_s: 1,
    };
    let mut throttle = Throttle::default();
    for _ in 0..10 {
        throttle.charge(&rates, 1 << 20, 0);
    }
    // Ten seconds of data, less the burst.
    let wait = throttle.serve(&rates, 1 << 20, 0).unwrap_err();
    assert_eq!(wait.get(), 10 * S - BURST_NS);
    assert!(throttle.serve(&rates, 1 << 20, 10 * S - BURST_NS).is_ok());
}

proptest! {
    /// In the long run a host gets what the lower limit says, and never more than that and a burst.
    #[test]
    fn the_rate_is_kept(
        iops in prop_oneof![Just(0), MIN_IOPS..=MAX_IOPS],
        mib_s in prop_oneof![Just(0), 1..=MAX_MIB_S],
        sizes in prop::collection::vec(0u32..=1 << 20, 1..200),
        start in 0..u64::MAX / 4,
    ) {
        let rates = Rates { iops, mib_s };
        let took = run(&rates, sizes.iter().copied(), start) - start;
        // The last request is not paid for when it is served.
        let (_, paid) = sizes.split_last().unwrap();
        let data: u128 = paid.iter().map(|bytes| u128::from(*bytes)).sum();
        let least = [
            (u128::from(iops), paid.len() as u128),
            (u128::from(mib_s) << 20, data),
        ]
        .into_iter()
        .filter(|(rate, _)| *rate > 0)
        .map(|(rate, amount)| amount * u128::from(S) / rate)
        .max()
        .unwrap_or(0);
        let least = least.saturating_sub(u128::from(BURST_NS));
        let took = u128::from(took);
        // A nanosecond of rounding for each request.
        prop_assert!(took + sizes.len() as u128 >= least, "{took} < {least}");
        prop_assert!(took <= least + sizes.len() as u128, "{took} > {least}");
    }

    /// No request waits longer than the one before it takes.
    #[test]
    fn waits_are_bounded(
        iops in prop_oneof![Just(0), MIN_IOPS..=MAX_IOPS],
        mib_s in prop_oneof![Just(0), 1..=MAX_MIB_S],
        steps in prop::collection::vec((0u32..=1 << 20, 0..S), 1..100),
    ) {
        let (rates, mut throttle, mut now) = (Rates { iops, mib_s }, Throttle::default(), 0);
        for (bytes, pause) in steps {
            now += pause;
            if let Err(wait) = throttle.serve(&rates, bytes, now) {
                prop_assert!(wait.get() <= S);
            }
        }
    }
}
