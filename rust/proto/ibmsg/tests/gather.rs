// SPDX-License-Identifier: GPL-2.0

//! Messages that wait for others.

use ibmsg_proto::gather::*;
use ibmsg_proto::limits::FRAME;
use proptest::prelude::*;

fn gather(watermark: u32, wait_us: u32) -> Gather {
    let mut gather = Gather::default();
    assert!(gather.tune(watermark, wait_us));
    gather
}

#[test]
fn waits_for_a_message_without_more() {
    let mut gather = Gather::default();
    let first = gather.add(64, true, 1000, None);
    let second = gather.add(64, true, 1500, None);
    assert!(gather.holds(first) && gather.holds(second));
    // The time is that of the first one.
    assert_eq!(gather.until(), Some(1000 + u64::from(WAIT_US)));
    let last = gather.add(64, false, 1600, None);
    assert!(!gather.holds(first) && !gather.holds(second) && !gather.holds(last));
    assert_eq!(gather.until(), None);
    // The next batch is another one.
    let next = gather.add(64, true, 1700, None);
    assert!(gather.holds(next) && !gather.holds(last) && !gather.holds(first));
}

#[test]
fn a_message_that_does_not_wait_is_of_no_batch() {
    let mut gather = Gather::default();
    let alone = gather.add(0, false, 0, None);
    let waits = gather.add(0, true, 0, None);
    assert!(!gather.holds(alone) && gather.holds(waits));
}

#[test]
fn a_full_frame_is_sent() {
    // Records of 128 bytes.
    let mut gather = gather(512, 100);
    let first: Vec<_> = (0..4).map(|_| gather.add(64, true, 0, None)).collect();
    assert!(first.iter().all(|batch| gather.holds(*batch)));
    let next = gather.add(64, true, 7, None);
    assert!(first.iter().all(|batch| !gather.holds(*batch)));
    assert!(gather.holds(next));
    assert_eq!(gather.until(), Some(107));
    // What exceeds the watermark alone does not wait.
    let long = gather.add(512, true, 8, None);
    assert!(!gather.holds(next) && !gather.holds(long));
    assert_eq!(gather.until(), None);
}

#[test]
fn the_default_fits_a_frame() {
    let mut gather = Gather::default();
    let first = gather.add(0, true, 0, None);
    let mut messages = 1;
    while gather.holds(first) {
        gather.add(0, true, 0, None);
        messages += 1;
    }
    // The last one did not fit.
    assert_eq!(messages - 1, (FRAME - 8) / 64);
}

#[test]
fn time_and_caller_release() {
    let mut gather = gather(4096, 100);
    assert!(!gather.release() && !gather.expire(u64::MAX));
    let first = gather.add(1, true, 50, None);
    assert!(!gather.expire(149) && gather.holds(first));
    assert!(gather.expire(150) && !gather.holds(first));
    let second = gather.add(1, true, 200, None);
    assert!(gather.release() && !gather.holds(second));
    assert!(!gather.release());
}

#[test]
fn nothing_expires_because_it_waits() {
    let mut gather = gather(4096, 1000);
    let first = gather.add(1, true, 0, None);
    gather.add(1, true, 100, Some(1100));
    assert_eq!(gather.until(), Some(600));
    gather.add(1, true, 200, Some(10_000));
    assert_eq!(gather.until(), Some(600));
    assert!(gather.holds(first) && gather.expire(600));
    gather.add(1, true, 700, Some(700));
    assert!(gather.expire(700));
}

#[test]
fn ranges() {
    let mut gather = Gather::default();
    let before = gather;
    for (watermark, wait_us) in [
        (MIN_WATERMARK - 1, WAIT_US),
        (MAX_WATERMARK + 1, WAIT_US),
        (WATERMARK, MIN_WAIT_US - 1),
        (WATERMARK, MAX_WAIT_US + 1),
    ] {
        assert!(!gather.tune(watermark, wait_us));
        assert_eq!(gather, before);
    }
    assert!(gather.tune(MIN_WATERMARK, MAX_WAIT_US));
    assert_eq!(gather.tuning(), (MIN_WATERMARK, MAX_WAIT_US));
}

proptest! {
    /// What waits is a suffix of the queue, no more than a frame, and never longer than its time.
    #[test]
    fn what_waits_is_the_end_of_the_queue(
        watermark in MIN_WATERMARK..=MAX_WATERMARK,
        wait_us in MIN_WAIT_US..10_000,
        steps in proptest::collection::vec(
            (0..8192_u32, any::<bool>(), 0..500_u64, proptest::option::of(1..5000_u64)), 1..200),
    ) {
        let mut gather = gather(watermark, wait_us);
        let mut queue: Vec<(Batch, u32, u64)> = Vec::new();
        let mut now = 0;
        for (len, more, after, time) in steps {
            now += after;
            gather.expire(now);
            let deadline = time.map(|time| now + time);
            let most = time.map_or(u64::MAX, |time| time / 2).min(u64::from(wait_us));
            queue.push((gather.add(len, more, now, deadline), len, now + most));
            // Its time may be over at once.
            gather.expire(now);
            let waits: Vec<bool> = queue.iter().map(|(batch, ..)| gather.holds(*batch)).collect();
            prop_assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]));
            let held = queue.iter().zip(&waits).filter(|(_, waits)| **waits);
            let bytes: u32 = held.clone().map(|((_, len, _), _)| (len + 64).next_multiple_of(8)).sum();
            prop_assert!(bytes <= watermark);
            prop_assert!(more || waits.iter().all(|waits| !waits));
            for ((_, _, latest), _) in held {
                prop_assert!(now < *latest);
            }
            prop_assert_eq!(gather.until().is_some(), waits.contains(&true));
        }
    }
}
