// SPDX-License-Identifier: GPL-2.0

//! What has happened to portals and channels.

use ibmsg_proto::history::{self, Entry, Event, What, AGAIN_MS};
use ibtrs_proto::history::{Alike, Ring};
use proptest::prelude::*;

type Of = Entry<&'static str, &'static str>;
type Entries = Ring<Vec<Option<Of>>>;

const CLASSES: [Alike<Of>; 2] = [
    |a, b| a.event.what == b.event.what,
    |a, b| a.event.portal == b.event.portal,
];

fn entries(places: usize) -> Entries {
    Ring::new(vec![None; places])
}

fn event(what: What, portal: &'static str, channel: u32) -> Event<&'static str, &'static str> {
    let cause = "";
    Event {
        what,
        portal,
        channel,
        cause,
    }
}

fn record(entries: &mut Entries, event: Event<&'static str, &'static str>, now_ms: i64) {
    history::record(entries, event, now_ms, &CLASSES);
}

#[test]
fn the_same_again_is_counted() {
    let mut entries = entries(8);
    for n in 0..1000 {
        let now = i64::from(n) * 5;
        record(&mut entries, event(What::Opened, "kv", n + 1), now);
        record(&mut entries, event(What::Closed, "kv", n + 1), now + 1);
    }
    let found: Vec<_> = entries.latest().copied().collect();
    let expected = Entry {
        since_ms: 1,
        at_ms: 4996,
        count: 1000,
        event: event(What::Closed, "kv", 1000),
    };
    assert_eq!(found[0], expected);
    let expected = Entry {
        since_ms: 0,
        at_ms: 4995,
        count: 1000,
        event: event(What::Opened, "kv", 1000),
    };
    assert_eq!(found[1..], [expected]);
    // Another portal, event or cause is another entry, and so is what happens later, or before the clock was set back.
    let later = 4996 + AGAIN_MS as i64;
    record(&mut entries, event(What::Closed, "log", 7), 4997);
    record(&mut entries, event(What::Refused, "kv", 7), 4998);
    record(
        &mut entries,
        Event {
            cause: "its session has ended",
            ..event(What::Closed, "kv", 7)
        },
        4999,
    );
    record(&mut entries, event(What::Closed, "kv", 8), later);
    record(&mut entries, event(What::Closed, "kv", 9), later - 1);
    record(&mut entries, event(What::Closed, "kv", 9), -10_000_000);
    let found: Vec<_> = entries
        .latest()
        .map(|entry| (entry.event.channel, entry.count))
        .collect();
    assert_eq!(
        found,
        [
            (9, 1),
            (9, 2),
            (7, 1),
            (7, 1),
            (7, 1),
            (1000, 1000),
            (1000, 1000)
        ]
    );
}

#[test]
fn a_busy_portal_leaves_the_others() {
    let mut entries = entries(32);
    for portal in ["a", "b", "c"] {
        record(&mut entries, event(What::Opened, portal, 1), 0);
    }
    let causes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    for n in 0..100_000u32 {
        let cause = causes[n as usize % causes.len()];
        let now = i64::from(n) * AGAIN_MS as i64;
        record(
            &mut entries,
            Event {
                cause,
                ..event(What::Closed, "busy", n)
            },
            now,
        );
    }
    for portal in ["a", "b", "c"] {
        assert!(
            entries.latest().any(|entry| entry.event.portal == portal),
            "{portal}"
        );
    }
    assert_eq!(entries.latest().count(), 32);
}

/// A client that asks for portals that do not exist does not hide what has happened to one that does.
#[test]
fn names_that_are_guessed_leave_other_causes() {
    const BY_CAUSE: [Alike<Of>; 2] = [|a, b| a.event.cause == b.event.cause, CLASSES[1]];
    let mut entries = entries(16);
    let refused = |portal, cause| Event {
        cause,
        ..event(What::Refused, portal, 1)
    };
    let guesses: Vec<&'static str> = ('a'..='z').map(|c| &*c.to_string().leak()).collect();
    for now in 0..1000i64 {
        let guess = guesses[now as usize % guesses.len()];
        let event = refused(guess, "no program has bound it");
        history::record(&mut entries, event, now * AGAIN_MS as i64, &BY_CAUSE);
        if now == 20 {
            let event = refused("kv", "its backlog is full");
            history::record(&mut entries, event, now * AGAIN_MS as i64, &BY_CAUSE);
        }
    }
    let found: Vec<_> = entries.latest().map(|entry| entry.event.portal).collect();
    assert_eq!((found.len(), found[15]), (16, "kv"));
}

#[test]
fn words_are_words() {
    for what in What::ALL {
        let word = what.as_str();
        assert!(word.bytes().all(|byte| byte.is_ascii_lowercase()), "{word}");
        assert_eq!(
            What::ALL
                .iter()
                .filter(|other| other.as_str() == word)
                .count(),
            1
        );
    }
}

proptest! {
    /// Nothing is lost or invented while there is room, and the latest comes first.
    #[test]
    fn all_are_counted(events in prop::collection::vec((0usize..6, 0usize..3, 0i64..4000), 0..200)) {
        let mut entries = entries(400);
        let (mut now, mut expected) = (0, [[0u32; 3]; 6]);
        for (channel, (what, portal, ms)) in (1..).zip(events) {
            now += ms;
            expected[what][portal] += 1;
            record(&mut entries, event(What::ALL[what], ["a", "b", "c"][portal], channel), now);
        }
        for (what, expected) in What::ALL.into_iter().zip(expected) {
            for (portal, expected) in ["a", "b", "c"].into_iter().zip(expected) {
                let its = |entry: &&Entry<&str, &str>| entry.event.what == what && entry.event.portal == portal;
                prop_assert_eq!(entries.latest().filter(its).map(|entry| entry.count).sum::<u32>(), expected);
            }
        }
        let times: Vec<_> = entries.latest().map(|entry| entry.at_ms).collect();
        prop_assert!(times.is_sorted_by(|a, b| a >= b));
        prop_assert!(entries.latest().all(|entry| entry.since_ms <= entry.at_ms));
    }
}
