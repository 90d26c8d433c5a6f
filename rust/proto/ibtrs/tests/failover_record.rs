// SPDX-License-Identifier: GPL-2.0

//! What a session tells about its failovers.

use ibtrs_proto::stats::failover::{Failovers, Record, Took};
use ibtrs_proto::stats::latency::Single;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// A failover under way, and its number.
fn lost(at_ms: u64) -> (Failovers, u32) {
    let mut failovers = Failovers::new();
    let number = failovers.lost(at_ms * MS, 4000 * MS);
    (failovers, number)
}

fn total_ms(failovers: &Failovers) -> Option<u64> {
    failovers.last().took.map(|took| took.total_ns() / MS)
}

#[test]
fn a_silent_loss() {
    let (mut failovers, number) = lost(10_000);
    for since in [7000, 6500, 9000] {
        assert_eq!(failovers.moved(number, 0, since * MS), number);
    }
    assert!(!failovers.all_moved(number));
    assert_eq!(failovers.last().to_string(), "requests 3\n");
    assert!(failovers.answered(number, 10_200 * MS));
    assert!(
        !failovers.answered(number, 10_300 * MS),
        "only the first counts"
    );
    assert_eq!(
        failovers.last().to_string(),
        "requests 3\ntotal_ms 3700\ndetect_ms 3500\nmove_ms 200\n"
    );
    let text = Single(failovers.times()).to_string();
    assert!(text.contains("\n4096 ms: 1\n") && text.ends_with("\nmaximum ms: 3700\n"));
    failovers.reset_times();
    let text = Single(failovers.times()).to_string();
    assert!(text.contains("\n4096 ms: 0\n") && text.ends_with("\n>= 65536 ms: 0\nmaximum ms: 0\n"));
    assert_eq!(failovers.last().moved, 3);
}

/// Parts of a millisecond are not lost: the file has the same whole as the histogram and the uevent.
#[test]
fn the_parts_add_up_as_they_are_shown() {
    let mut failovers = Failovers::new();
    let number = failovers.lost(10_000 * MS + 700_000, 4000 * MS);
    failovers.moved(number, 0, 9000 * MS);
    assert!(!failovers.all_moved(number));
    assert!(failovers.answered(number, 10_002 * MS + 400_000));
    assert_eq!(
        failovers.last().to_string(),
        "requests 1\ntotal_ms 1002\ndetect_ms 1000\nmove_ms 2\n"
    );
    let text = Single(failovers.times()).to_string();
    assert!(text.ends_with("\nmaximum ms: 1002\n"));
}

/// A request that its disk has kept for a minute does not make the failover a minute long.
#[test]
fn a_slow_disk_is_no_failover() {
    let (mut failovers, number) = lost(100_000);
    failovers.moved(number, 0, 40_000 * MS);
    assert!(!failovers.all_moved(number));
    assert!(failovers.answered(number, 100_010 * MS));
    let took = failovers.last().took.unwrap();
    assert_eq!((took.detect_ns, took.move_ns), (4000 * MS, 10 * MS));
}

#[test]
fn nothing_in_flight() {
    let (mut failovers, number) = lost(1);
    assert!(failovers.all_moved(number));
    let nothing = Record {
        moved: 0,
        took: None,
    };
    assert_eq!(failovers.last(), nothing);
    assert!(!failovers.answered(number, 2 * MS) && !failovers.cut_off());
    assert_eq!(failovers.times().max_ns, 0);
}

/// One failover, from the beginning of the first: it is over when no request waits for the second.
#[test]
fn a_second_path_is_lost() {
    let (mut failovers, number) = lost(1000);
    failovers.moved(number, 0, 900 * MS);
    assert_eq!(failovers.lost(2000 * MS, 4000 * MS), number);
    assert!(!failovers.all_moved(number));
    // Requests of the second path still wait.
    assert!(!failovers.answered(number, 2100 * MS));
    failovers.moved(number, 0, 1900 * MS);
    assert!(!failovers.all_moved(number));
    assert!(failovers.answered(number, 2500 * MS));
    assert_eq!(
        (failovers.last().moved, total_ms(&failovers)),
        (2, Some(1600))
    );
}

/// Two paths by one switch: the one without requests may be torn down first, or last.
#[test]
fn a_path_without_requests_is_lost_beside_one_with() {
    let (mut failovers, number) = lost(1000);
    failovers.lost(1001 * MS, 4000 * MS);
    assert!(!failovers.all_moved(number));
    failovers.moved(number, 0, 900 * MS);
    assert!(!failovers.all_moved(number));
    assert!(failovers.answered(number, 1200 * MS));
    assert_eq!(total_ms(&failovers), Some(300));

    let number = failovers.lost(2000 * MS, 4000 * MS);
    failovers.lost(2001 * MS, 4000 * MS);
    failovers.moved(number, 0, 1900 * MS);
    assert!(!failovers.all_moved(number));
    assert!(!failovers.answered(number, 2200 * MS));
    assert!(failovers.all_moved(number));
    assert_eq!(total_ms(&failovers), Some(300));
}

/// Requests that fail, or that nobody wants any more, do not leave a failover open, which the next
/// one would become part of.
#[test]
fn requests_without_an_answer() {
    let (mut failovers, number) = lost(1000);
    failovers.moved(number, 0, 900 * MS);
    failovers.moved(number, 0, 950 * MS);
    assert!(!failovers.all_moved(number));
    assert!(!failovers.ended(number));
    // Another path that has the request is lost as well.
    failovers.lost(1500 * MS, 4000 * MS);
    failovers.moved(number, number, 1100 * MS);
    assert!(!failovers.all_moved(number));
    assert!(failovers.ended(number));
    assert_eq!(total_ms(&failovers), None);
    assert_eq!(failovers.times().counts.iter().sum::<u64>(), 0);

    let number = failovers.lost(60_000 * MS, 4000 * MS);
    failovers.moved(number, 0, 59_000 * MS);
    assert!(!failovers.all_moved(number));
    assert!(failovers.answered(number, 60_100 * MS));
    assert_eq!(total_ms(&failovers), Some(1100));
}

/// A lost path may have the answer to a request that it got from an earlier one; it tells nothing about
/// those that wait.
#[test]
fn a_lost_path_has_answered() {
    let (mut failovers, number) = lost(1000);
    failovers.moved(number, 0, 900 * MS);
    failovers.lost(1100 * MS, 4000 * MS);
    failovers.moved(number, 0, 950 * MS);
    assert!(!failovers.ended(number));
    assert!(!failovers.all_moved(number) && !failovers.all_moved(number));
    assert!(failovers.answered(number, 1300 * MS));
    assert_eq!(total_ms(&failovers), Some(400));
}

/// A request that hangs on a slow disk neither keeps a later failover open nor ends it.
#[test]
fn what_is_left_of_an_earlier_failover() {
    let (mut failovers, first) = lost(1000);
    failovers.moved(first, 0, 900 * MS);
    failovers.moved(first, 0, 950 * MS);
    assert!(!failovers.all_moved(first));
    assert!(failovers.answered(first, 1100 * MS));

    let second = failovers.lost(5000 * MS, 4000 * MS);
    failovers.moved(second, 0, 4900 * MS);
    assert!(!failovers.all_moved(second));
    assert!(!failovers.answered(first, 5050 * MS));
    assert_eq!(total_ms(&failovers), None);
    assert!(failovers.ended(second));
    assert_eq!(total_ms(&failovers), None);
    assert!(!failovers.answered(second, 35_000 * MS));
    // It is moved once more, and belongs to the failover that did so.
    let third = failovers.lost(40_000 * MS, 4000 * MS);
    assert_eq!(failovers.moved(third, first, 39_900 * MS), third);
    assert!(!failovers.all_moved(third));
    assert!(failovers.answered(third, 40_100 * MS));
    assert_eq!(total_ms(&failovers), Some(200));
}

/// Without another path there is no failover: requests of an outage count in none.
#[test]
fn an_outage_is_no_failover() {
    let (mut failovers, number) = lost(3000);
    failovers.moved(number, 0, 2900 * MS);
    // The last path: no answer can come.
    assert!(failovers.cut_off());
    assert!(!failovers.all_moved(number));
    assert_eq!(failovers.moved(0, number, 3100 * MS), 0);
    // Before the last path is torn down, others are back and one of them is lost.
    let next = failovers.lost(5000 * MS, 4000 * MS);
    assert!(!failovers.all_moved(0));
    failovers.moved(next, 0, 4900 * MS);
    assert!(!failovers.answered(number, 5010 * MS) && !failovers.answered(0, 5020 * MS));
    assert!(!failovers.all_moved(next));
    assert!(failovers.answered(next, 5100 * MS));
    assert_eq!(
        (failovers.last().moved, total_ms(&failovers)),
        (1, Some(200))
    );
}

proptest! {
    #[test]
    fn the_whole_is_the_sum_of_the_parts(
        noticed: u32, detect: u32, since in prop::collection::vec(any::<u32>(), 1..9), after: u32,
    ) {
        let (noticed, detect, after) = (u64::from(noticed), u64::from(detect), u64::from(after));
        let mut failovers = Failovers::new();
        let number = failovers.lost(noticed, detect);
        since.iter().for_each(|ns| {
            failovers.moved(number, 0, (*ns).into());
        });
        prop_assert!(!failovers.all_moved(number));
        prop_assert!(failovers.answered(number, noticed + after));
        let Record { moved, took } = failovers.last();
        let Took { detect_ns, move_ns } = took.unwrap();
        prop_assert_eq!(moved as usize, since.len());
        prop_assert!(detect_ns <= detect && detect_ns <= noticed && move_ns == after);
        prop_assert_eq!(failovers.times().counts.iter().sum::<u64>(), 1);
        prop_assert_eq!(failovers.times().max_ns, detect_ns + move_ns);
    }
}
