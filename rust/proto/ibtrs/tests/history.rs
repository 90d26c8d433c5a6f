// SPDX-License-Identifier: GPL-2.0

//! The last changes of something.

use std::cell::Cell;
use std::collections::BTreeSet;

use ibtrs_proto::history::{Alike, DiskChange, Numbers, Ring, TOGETHER_MS};
use proptest::prelude::*;

type Places<T> = Vec<Option<T>>;

fn ring<T: Clone + 'static>(places: usize) -> Ring<Places<T>> {
    Ring::new(vec![None; places])
}

fn all<T: Copy + 'static>(ring: &Ring<Places<T>>) -> Vec<T> {
    ring.latest().copied().collect()
}

#[test]
fn the_latest_changes_stay() {
    let mut last = ring(3);
    assert!(all(&last).is_empty());
    for n in 0..5 {
        last.push(n, &[]);
    }
    assert_eq!(all(&last), [4, 3, 2]);
    // What is taken out leaves a place.
    assert_eq!(
        (last.take(|n| *n == 3), last.take(|n| *n == 3)),
        (Some(3), None)
    );
    assert_eq!(all(&last), [4, 2]);
    last.push(5, &[]);
    assert_eq!(all(&last), [5, 4, 2]);
    for n in last.latest_mut() {
        *n *= 10;
    }
    assert_eq!(all(&last), [50, 40, 20]);
    // No place at all.
    let mut none = ring(0);
    none.push(1, &[|_, _| true]);
    assert!(all(&none).is_empty() && none.take(|_| true).is_none());
}

/// A change: its kind, its source, its number.
type Change = (u8, u8, u32);

const BY_KIND: Alike<Change> = |a, b| a.0 == b.0;
const BY_SOURCE: Alike<Change> = |a, b| a.1 == b.1;

#[test]
fn many_of_a_kind_leave_the_others() {
    let mut last = ring(8);
    for kind in 0..3 {
        last.push((kind, 0, 0), &[BY_KIND]);
    }
    for n in 1..1000 {
        last.push((9, 0, n), &[BY_KIND]);
    }
    let mut found = all(&last);
    found.reverse();
    let others = (0..3).map(|kind| (kind, 0, 0));
    let latest = (995..1000).map(|n| (9, 0, n));
    assert_eq!(found, others.chain(latest).collect::<Vec<_>>());
    // Another kind gets places from it, until both have as many.
    for n in 1..1000 {
        last.push((0, 0, n), &[BY_KIND]);
    }
    let of = |kind| all(&last).iter().filter(|change| change.0 == kind).count();
    assert_eq!([0, 1, 2, 9].map(of), [3, 1, 1, 3]);
}

/// Other names do not help: all of a kind make room together, and of those the source with the most.
#[test]
fn names_that_vary_have_no_more_than_one() {
    let mut last = ring(16);
    let classes = [BY_KIND, BY_SOURCE];
    for n in 0..4 {
        last.push((0, 0, n), &classes);
        last.push((1, 0, n), &classes);
    }
    for n in 0..1000u32 {
        last.push((1, n.to_le_bytes()[0], n), &classes);
    }
    let found = all(&last);
    let of_kind = |kind| found.iter().filter(|change| change.0 == kind).count();
    assert_eq!([0, 1].map(of_kind), [4, 12]);
}

thread_local! {
    static COMPARED: Cell<usize> = const { Cell::new(0) };
}

/// Compares as [`BY_KIND`] does, and counts.
const COUNTED: Alike<Change> = |a, b| {
    COMPARED.set(COMPARED.get() + 1);
    a.0 == b.0
};
const COUNTED_SOURCE: Alike<Change> = |a, b| {
    COMPARED.set(COMPARED.get() + 1);
    a.1 == b.1
};

/// A ring is under a lock meanwhile, of some with interrupts off.
#[test]
fn few_changes_are_compared() {
    const PLACES: u8 = 64;
    let classes = [COUNTED, COUNTED_SOURCE];
    let most = |kinds: u8, sources: u8| {
        let mut last = ring(usize::from(PLACES));
        let changes = (0..4 * u32::from(PLACES)).map(|n| {
            let byte = n.to_le_bytes()[0];
            (byte % kinds, byte / kinds % sources, n)
        });
        let compared = changes.map(|change| {
            COMPARED.set(0);
            last.push(change, &classes);
            COMPARED.get()
        });
        compared.max().unwrap_or(0)
    };
    let places = usize::from(PLACES) + 1;
    // Few kinds: each change by a change of each kind, and those of the largest one by their sources.
    assert!(most(1, 1) <= 2 * places, "{}", most(1, 1));
    assert!(most(4, 1) <= 5 * places, "{}", most(4, 1));
    // All differ: no two are compared twice.
    for (kinds, sources) in [(PLACES, 1), (1, PLACES), (8, 8)] {
        let found = most(kinds, sources);
        assert!(found <= places * (places + 1) / 2 + places, "{found}");
    }
}

fn numbers(of: &[u32]) -> Numbers {
    let mut found = Numbers::one(of[0]);
    assert!(of.iter().all(|number| found.add(*number)));
    found
}

#[test]
fn numbers_are_written_as_ranges() {
    assert_eq!(Numbers::one(7).to_string(), "7");
    let found = numbers(&[5, 3, 4, 0, 31, 33, 1, 32]);
    assert_eq!(found.to_string(), "0-1,3-5,31-33");
    assert_eq!(
        numbers(&[u32::MAX, 0, u32::MAX - 1]).to_string(),
        "0,4294967294-4294967295"
    );
    // Eight ranges; a ninth has no room, until two of them meet.
    let mut found = numbers(&[0, 2, 4, 6, 8, 10, 12, 14]);
    assert!(!found.add(20) && !found.contains(20) && found.add(4));
    assert!(found.add(1) && found.add(20));
    assert_eq!(found.to_string(), "0-2,4,6,8,10,12,14,20");
}

#[test]
fn what_does_not_fit_makes_room_as_for_a_new_change() {
    let mut last = ring(16);
    last.push((0, 0, 7), &[BY_KIND]);
    for n in 1..10 {
        last.push((1, 0, n), &[BY_KIND]);
    }
    let mut shown = ring(16);
    shown.push((5, 5, 5), &[]);
    shown.copy_from(&last);
    assert_eq!(all(&shown), all(&last));
    // All of a kind are as long.
    let takes = |change: &Change| 10 * usize::from(change.0 + 1);
    for (most, expected) in [
        (1000, vec![9, 8, 7, 6, 5, 4, 3, 2, 1, 7]),
        (190, vec![9, 8, 7, 6, 5, 4, 3, 2, 1, 7]),
        (189, vec![9, 8, 7, 6, 5, 4, 3, 2, 7]),
        (40, vec![9, 7]),
        (29, vec![9]),
        (19, vec![]),
        (0, vec![]),
    ] {
        shown.copy_from(&last);
        shown.fit(most, takes, &[BY_KIND]);
        let found: Vec<u32> = all(&shown).iter().map(|change| change.2).collect();
        assert_eq!(found, expected, "{most}");
        // What is left is still a ring.
        shown.push((3, 0, 100), &[BY_KIND]);
        assert_eq!(all(&shown)[0].2, 100);
    }
    assert_eq!(all(&last).len(), 10);
}

proptest! {
    #[test]
    fn numbers_are_a_set(added in prop::collection::vec(0u32..24, 1..40)) {
        let mut found = Numbers::one(added[0]);
        let mut expected = BTreeSet::from([added[0]]);
        for number in added {
            if found.add(number) {
                expected.insert(number);
            }
        }
        for number in 0..24 {
            prop_assert_eq!(found.contains(number), expected.contains(&number));
        }
        let text = found.to_string();
        let ranges: Vec<(u32, u32)> = text
            .split(',')
            .map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().unwrap(), last.parse().unwrap())
            })
            .collect();
        prop_assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{}", text);
        let said: BTreeSet<u32> = ranges.iter().flat_map(|(first, last)| *first..=*last).collect();
        prop_assert_eq!(said, expected);
    }

    /// Of `k` classes, each keeps what was added to it, or at least one in `k` of the places; and within a class, the
    /// same holds of the next division. What is kept of the finest classes are their latest changes, in their order. The
    /// latest of one only makes room if nothing older is left of its coarser class.
    #[test]
    fn each_class_keeps_its_share(
        places in 1usize..24,
        added in prop::collection::vec((0u8..4, 0u8..3), 0..200),
        levels in 1usize..3,
    ) {
        let mut last = ring(places);
        let classes = &[BY_KIND, BY_SOURCE][..levels];
        let all_added: Vec<Change> = (0..).zip(&added).map(|(n, (kind, source))| (*kind, *source, n)).collect();
        for change in &all_added {
            last.push(*change, classes);
        }
        let mut found = all(&last);
        found.reverse();
        prop_assert!(found.is_sorted_by_key(|change| change.2));
        prop_assert_eq!(found.len(), places.min(added.len()));
        let distinct = |changes: &[Change], key: fn(&Change) -> u8| changes.iter().map(key).collect::<BTreeSet<_>>().len();
        let kinds = distinct(&all_added, |change| change.0).max(1);
        for kind in 0..4 {
            let of_kind = |changes: &[Change]| changes.iter().copied().filter(|change| change.0 == kind).collect::<Vec<_>>();
            let (of_added, of_found) = (of_kind(&all_added), of_kind(&found));
            let share = places / kinds;
            prop_assert!(of_found.len() >= share.min(of_added.len()), "{:?} of {:?}", of_found, of_added);
            if levels == 1 {
                prop_assert!(of_added.ends_with(&of_found));
                continue;
            }
            let sources = distinct(&of_added, |change| change.1).max(1);
            for source in 0..3 {
                let of_source = |changes: &[Change]| changes.iter().copied().filter(|change| change.1 == source).collect::<Vec<_>>();
                let (of_added, of_found) = (of_source(&of_added), of_source(&of_found));
                prop_assert!(of_found.len() >= (share / sources).min(of_added.len()));
                prop_assert!(of_added.ends_with(&of_found));
                if let (Some(latest), true) = (of_added.last(), of_found.is_empty()) {
                    prop_assert!(of_kind(&found).iter().all(|kept| kept.2 > latest.2));
                }
            }
        }
    }

    /// Whatever the order: each disk has its own changes, in their order, and none of another's.
    #[test]
    fn each_disk_keeps_its_changes(changes in prop::collection::vec((0u32..6, 0usize..3, 0i64..1500), 0..60)) {
        let what = ["closed", "open", "failing"];
        let mut last = ring(100);
        let (mut now, mut expected) = (0, vec![Vec::new(); 6]);
        for (disk, kind, ms) in changes {
            now += ms;
            expected[disk as usize].push((what[kind], now));
            record(&mut last, disk, what[kind], now);
        }
        let mut found = all(&last);
        found.reverse();
        prop_assert!(found.is_sorted_by_key(|change| change.at_ms));
        for (disk, expected) in (0..).zip(&expected) {
            let own = found.iter().filter(|change| change.disks.contains(disk));
            let own: Vec<_> = own.collect();
            prop_assert_eq!(own.len(), expected.len());
            for (change, (what, at)) in own.iter().zip(expected) {
                prop_assert_eq!(change.what, *what);
                prop_assert!((0..TOGETHER_MS as i64).contains(&(at - change.at_ms)));
            }
        }
    }
}

fn record(
    last: &mut Ring<Places<DiskChange<&'static str>>>,
    disk: u32,
    what: &'static str,
    at_ms: i64,
) {
    let disks = Numbers::one(disk);
    let cause = "";
    let change = DiskChange {
        at_ms,
        disks,
        what,
        cause,
    };
    if let Some(change) = change.join(disk, last.latest_mut()) {
        last.push(change, &[]);
    }
}

#[test]
fn a_session_that_is_lost_is_one_change_of_its_disks() {
    let mut last = ring(64);
    for time in 0..20 {
        for disk in 0..200 {
            record(&mut last, disk, "closed", time * 60_000);
        }
        for disk in (0..200).rev() {
            record(
                &mut last,
                disk,
                "open",
                time * 60_000 + 30_000 + i64::from(disk % 7),
            );
        }
    }
    let found = all(&last);
    assert_eq!(found.len(), 40);
    assert!(
        found
            .iter()
            .all(|change| change.disks.to_string() == "0-199"),
        "{found:?}"
    );
    // What has happened for another reason, or later, is another change.
    let change = DiskChange {
        at_ms: 0,
        disks: Numbers::one(1),
        what: "closed",
        cause: "a",
    };
    let mut former = [change];
    for other in [
        DiskChange {
            cause: "b",
            ..change
        },
        DiskChange {
            what: "open",
            ..change
        },
        DiskChange {
            at_ms: TOGETHER_MS as i64,
            ..change
        },
        // The clock was set back.
        DiskChange {
            at_ms: -(TOGETHER_MS as i64),
            ..change
        },
    ] {
        assert_eq!(other.join(2, former.iter_mut()), Some(other));
    }
    assert_eq!(change.join(2, former.iter_mut()), None);
    assert_eq!(former[0].disks.to_string(), "1-2");
}
