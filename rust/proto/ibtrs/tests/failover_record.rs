// SPDX-License-Identifier: GPL-2.0

//! What a session tells about its failovers.

use ibtrs_proto::stats::failover::{Failovers, Record, Took};
use ibtrs_proto::stats::latency::Single;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

#[test]
fn a_silent_loss() {
    let mut failovers = Failovers::new();
    failovers.lost(10_000 * MS, 4000 * MS);
    for since in [7000, 6500, 9000] {
        failovers.moved(since * MS, false);
    }
    assert!(!failovers.all_moved());
    assert_eq!(failovers.last().to_string(), "requests 3\n");
    assert!(failovers.answered(10_200 * MS));
    assert!(!failovers.answered(10_300 * MS), "only the first counts");
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
    failovers.lost(10_000 * MS + 700_000, 4000 * MS);
    failovers.moved(9000 * MS, false);
    assert!(!failovers.all_moved());
    assert!(failovers.answered(10_002 * MS + 400_000));
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
    let mut failovers = Failovers::new();
    failovers.lost(100_000 * MS, 4000 * MS);
    failovers.moved(40_000 * MS, false);
    assert!(!failovers.all_moved());
    assert!(failovers.answered(100_010 * MS));
    let took = failovers.last().took.unwrap();
    assert_eq!((took.detect_ns, took.move_ns), (4000 * MS, 10 * MS));
}

#[test]
fn nothing_in_flight() {
    let mut failovers = Failovers::new();
    failovers.lost(MS, MS);
    assert!(failovers.all_moved());
    let last = failovers.last();
    assert_eq!(
        last,
        Record {
            moved: 0,
            took: None
        }
    );
    assert!(!failovers.answered(2 * MS) && !failovers.cut_off());
    assert_eq!(failovers.times().max_ns, 0);
}

/// One failover, from the beginning of the first: it is over when no request waits for the second.
#[test]
fn a_second_path_is_lost() {
    let mut failovers = Failovers::new();
    failovers.lost(1000 * MS, 4000 * MS);
    failovers.moved(900 * MS, false);
    failovers.lost(2000 * MS, 4000 * MS);
    assert!(!failovers.all_moved());
    // Requests of the second path still wait.
    assert!(!failovers.answered(2100 * MS));
    failovers.moved(1900 * MS, false);
    assert!(!failovers.all_moved());
    assert!(failovers.answered(2500 * MS));
    let last = failovers.last();
    assert_eq!((last.moved, last.took.unwrap().total_ns()), (2, 1600 * MS));
    // After it: another one, to which late answers of the first do not belong.
    failovers.lost(3000 * MS, 4000 * MS);
    assert!(!failovers.answered(3100 * MS));
    failovers.moved(2900 * MS, false);
    // The last path: no answer can come.
    assert!(failovers.cut_off());
    assert!(!failovers.all_moved() && !failovers.all_moved());
    assert!(!failovers.answered(9000 * MS));
    assert_eq!(
        failovers.last(),
        Record {
            moved: 1,
            took: None
        }
    );
}

/// Two paths by one switch: the one without requests may be torn down first, or last.
#[test]
fn a_path_without_requests_is_lost_beside_one_with() {
    let mut failovers = Failovers::new();
    failovers.lost(1000 * MS, 4000 * MS);
    failovers.lost(1001 * MS, 4000 * MS);
    assert!(!failovers.all_moved());
    failovers.moved(900 * MS, false);
    assert!(!failovers.all_moved());
    assert!(failovers.answered(1200 * MS));
    assert_eq!(failovers.last().took.unwrap().total_ns(), 300 * MS);

    failovers.lost(2000 * MS, 4000 * MS);
    failovers.lost(2001 * MS, 4000 * MS);
    failovers.moved(1900 * MS, false);
    assert!(!failovers.all_moved());
    assert!(!failovers.answered(2200 * MS));
    assert!(failovers.all_moved());
    assert_eq!(failovers.last().took.unwrap().total_ns(), 300 * MS);
}

/// Requests that fail, or that nobody wants any more, do not leave a failover open, which the next
/// one would become part of.
#[test]
fn requests_without_an_answer() {
    let mut failovers = Failovers::new();
    failovers.lost(1000 * MS, 4000 * MS);
    failovers.moved(900 * MS, false);
    failovers.moved(950 * MS, false);
    assert!(!failovers.all_moved());
    assert!(!failovers.abandoned());
    // Another path that has the request is lost as well.
    failovers.lost(1500 * MS, 4000 * MS);
    failovers.moved(1100 * MS, true);
    assert!(!failovers.all_moved());
    assert!(failovers.abandoned());
    assert_eq!(failovers.last().took, None);
    assert_eq!(failovers.times().counts.iter().sum::<u64>(), 0);

    failovers.lost(60_000 * MS, 4000 * MS);
    failovers.moved(59_000 * MS, false);
    assert!(!failovers.all_moved());
    assert!(failovers.answered(60_100 * MS));
    assert_eq!(failovers.last().took.unwrap().total_ns(), 1100 * MS);
}

proptest! {
    #[test]
    fn the_whole_is_the_sum_of_the_parts(
        noticed: u32, detect: u32, since in prop::collection::vec(any::<u32>(), 1..9), after: u32,
    ) {
        let (noticed, detect, after) = (u64::from(noticed), u64::from(detect), u64::from(after));
        let mut failovers = Failovers::new();
        failovers.lost(noticed, detect);
        since.iter().for_each(|ns| failovers.moved((*ns).into(), false));
        prop_assert!(!failovers.all_moved());
        prop_assert!(failovers.answered(noticed + after));
        let Record { moved, took } = failovers.last();
        let Took { detect_ns, move_ns } = took.unwrap();
        prop_assert_eq!(moved as usize, since.len());
        prop_assert!(detect_ns <= detect && detect_ns <= noticed && move_ns == after);
        prop_assert_eq!(failovers.times().counts.iter().sum::<u64>(), 1);
        prop_assert_eq!(failovers.times().max_ns, detect_ns + move_ns);
    }
}
