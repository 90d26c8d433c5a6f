// SPDX-License-Identifier: GPL-2.0

//! The limits for lines in the server's log.

use ibtrs_proto::addr::Addr;
use ibtrs_proto::audit::{
    Entry, LeftOut, Limiter, Limiters, Rate, Single, Together, Trust, SOURCES,
};
use proptest::prelude::*;

const KINDS: [Trust; 3] = [Trust::Stranger, Trust::Connected, Trust::Authenticated];

fn addr(n: u16) -> Addr {
    let [high, low] = n.to_be_bytes();
    Addr::V4([10, 0, high, low])
}

fn limiter(trust: Trust, entries: usize) -> Limiter<Vec<Entry>> {
    Limiter::new(trust, vec![Entry::FREE; entries])
}

fn limiters() -> Limiters<Vec<Entry>> {
    Limiters::new([(); 3].map(|()| vec![Entry::FREE; SOURCES]))
}

const NOTHING: Option<LeftOut> = Some(LeftOut {
    own: 0,
    others: None,
});

#[test]
fn a_source_has_some_lines_at_once_and_then_one_now_and_then() {
    for trust in KINDS {
        let (rate, mut limiter) = (trust.of_one(), limiter(trust, 4));
        for _ in 0..rate.at_once {
            assert_eq!(limiter.line(&addr(1), 7), NOTHING);
        }
        for _ in 0..30 {
            assert_eq!(limiter.line(&addr(1), 7), None);
        }
        let later = 7 + u64::from(rate.line_ms);
        assert_eq!(limiter.line(&addr(1), later - 1), None);
        let own = limiter.line(&addr(1), later).map(|left_out| left_out.own);
        assert_eq!(own, Some(31));
        assert_eq!(limiter.line(&addr(1), later), None);
        // In the end it is as at the beginning, but for the one that was left out.
        let end = later + u64::from(rate.line_ms * rate.at_once);
        let printed = (0..1000).filter_map(|_| limiter.line(&addr(1), end));
        let counts: Vec<u32> = printed.map(|left_out| left_out.own).collect();
        assert_eq!(counts.len(), rate.at_once as usize);
        assert_eq!(counts.iter().sum::<u32>(), 1);
    }
}

#[test]
fn another_source_tells_of_one_that_is_silent() {
    let mut limiter = limiter(Trust::Stranger, 4);
    let flood = (0..100).filter_map(|_| limiter.line(&addr(1), 0)).count();
    assert_eq!(flood, 10);
    // It is not silent yet.
    assert_eq!(limiter.line(&addr(2), 499), NOTHING);
    let of_silent = Some((Some(addr(1)), 90));
    assert_eq!(
        limiter
            .line(&addr(2), 500)
            .and_then(|left_out| left_out.others),
        of_silent
    );
    assert_eq!(limiter.line(&addr(2), 501), NOTHING);
}

#[test]
fn one_that_is_evicted_counts() {
    let mut limiter = limiter(Trust::Stranger, 2);
    for _ in 0..15 {
        limiter.line(&addr(1), 0);
    }
    assert_eq!(limiter.line(&addr(2), 1), NOTHING);
    // The third one needs the entry that was not used for the longest time.
    let evicted = limiter
        .line(&addr(3), 2)
        .and_then(|left_out| left_out.others);
    assert_eq!(evicted, Some((None, 5)));
    // The second one has its entry still.
    for _ in 0..9 {
        assert_eq!(limiter.line(&addr(2), 2), NOTHING);
    }
    assert_eq!(limiter.line(&addr(2), 2), None);
}

#[test]
fn sources_that_are_trusted_differently_do_not_share() {
    let mut limiters = limiters();
    // Strangers use all that they may, also in the name of an honest client.
    for n in 0..10_000 {
        limiters.line(Trust::Stranger, &addr(n % 300), 0);
    }
    assert_eq!(limiters.line(Trust::Stranger, &addr(1), 0), None);
    for _ in 0..Trust::Connected.of_one().at_once {
        assert_eq!(limiters.line(Trust::Connected, &addr(1), 0), NOTHING);
    }
    assert_eq!(limiters.line(Trust::Connected, &addr(1), 0), None);
    assert_eq!(limiters.line(Trust::Authenticated, &addr(1), 0), NOTHING);
}

#[test]
fn a_table_without_entries_lets_nothing_pass() {
    let mut limiter = limiter(Trust::Connected, 0);
    assert_eq!(limiter.line(&addr(1), 0), None);
}

#[test]
fn a_single_source_is_limited_like_one_of_many() {
    let mut all = Together::new(Trust::Authenticated);
    let mut single = Single::new(Trust::Authenticated);
    let Rate { at_once, line_ms } = Trust::Authenticated.of_one();
    for _ in 0..at_once {
        assert_eq!(single.line(&mut all, 1000), Some(0));
    }
    for _ in 0..7 {
        assert_eq!(single.line(&mut all, 1000), None);
    }
    let later = 1000 + u64::from(line_ms);
    assert_eq!(single.line(&mut all, later), Some(7));
    assert_eq!(single.line(&mut all, later), None);
    assert_eq!(single.line(&mut all, later + u64::from(line_ms)), Some(1));
}

#[test]
fn single_sources_have_a_limit_together() {
    let mut all = Together::new(Trust::Connected);
    let at_once = Trust::Connected.of_all().at_once;
    // As many sources as there are lines, each for one line.
    for _ in 0..at_once {
        assert_eq!(Single::new(Trust::Connected).line(&mut all, 5), Some(0));
    }
    let mut late = Single::new(Trust::Connected);
    assert_eq!(late.line(&mut all, 5), None);
    let later = 5 + u64::from(Trust::Connected.of_all().line_ms);
    assert_eq!(late.line(&mut all, later), Some(1));
}

proptest! {
    /// A source that prints no more than it may is heard, whatever one other does.
    #[test]
    fn one_source_does_not_hide_another(
        steps in prop::collection::vec((0u64..400, 0usize..100), 1..100),
        trust in prop::sample::select(&KINDS[..]),
    ) {
        let mut limiter = limiter(trust, SOURCES);
        let (mut now, line_ms) = (0, u64::from(trust.of_one().line_ms));
        for (later, flood) in steps {
            now += line_ms + later;
            for _ in 0..flood {
                limiter.line(&addr(1), now);
            }
            prop_assert!(limiter.line(&addr(2), now).is_some());
        }
    }

    /// However many sources there are, the lines of each and of all together are bounded, and every
    /// line is printed, was reported as left out, or will be.
    #[test]
    fn lines_are_bounded_and_counted(
        steps in prop::collection::vec((0u16..12, 0u64..300, 1u32..60), 1..200),
        trust in prop::sample::select(&KINDS[..]),
    ) {
        let mut limiter = limiter(trust, 8);
        let (one, all) = (trust.of_one(), trust.of_all());
        let (mut now, mut asked, mut printed, mut reported) = (0, 0, 0, 0);
        for (who, later, count) in steps {
            now += later;
            let mut own = 0;
            for _ in 0..count {
                asked += 1;
                if let Some(left_out) = limiter.line(&addr(who), now) {
                    printed += 1;
                    own += 1;
                    let others = left_out.others.map_or(0, |(_, lines)| lines);
                    reported += u64::from(left_out.own) + u64::from(others);
                }
            }
            prop_assert!(own <= one.at_once);
            prop_assert!(printed <= u64::from(all.at_once) + now / u64::from(all.line_ms));
            prop_assert!(printed + reported <= asked);
        }
        // When all are silent, two lines of each of two sources tell of ten others.
        now += 1_000_000;
        for _ in 0..10 {
            for who in [100, 101] {
                let left_out = limiter.line(&addr(who), now);
                prop_assert!(left_out.is_some());
                let left_out = left_out.into_iter().map(|left_out| {
                    u64::from(left_out.own) + u64::from(left_out.others.map_or(0, |(_, lines)| lines))
                });
                reported += left_out.sum::<u64>();
                printed += 1;
                asked += 1;
            }
        }
        prop_assert_eq!(printed + reported, asked);
    }
}
