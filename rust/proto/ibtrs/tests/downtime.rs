// SPDX-License-Identifier: GPL-2.0

//! How long a client waits for a server that has announced its downtime.

use ibtrs_proto::downtime::{left_ms, limit_s, Announced, Downtime, DrainOrder, MAX_WAIT_S};
use ibtrs_proto::settings::{QUEUE_TIMEOUT_S, UNLIMITED};
use ibtrs_proto::text::TextError;
use proptest::prelude::*;

const DEFAULT: u32 = QUEUE_TIMEOUT_S.default;

fn downtime(seconds: u32) -> Downtime {
    Downtime::new(seconds).unwrap()
}

fn announced(seconds: u32, passed_s: u64) -> Option<Announced> {
    Some(Announced {
        downtime: downtime(seconds),
        passed_ms: passed_s * 1000,
    })
}

#[test]
fn times() {
    assert_eq!(Downtime::new(0), None);
    assert_eq!(Downtime::new(86_401), None);
    assert_eq!(Downtime::new(86_400).unwrap().seconds(), 86_400);
    // A peer's number is never refused.
    assert_eq!(Downtime::from_wire(0), None);
    assert_eq!(Downtime::from_wire(1), Downtime::new(1));
    for long in [86_400, 86_401, (1 << 27) - 1, u32::MAX] {
        assert_eq!(Downtime::from_wire(long), Downtime::new(86_400));
    }
}

#[test]
fn margins() {
    for (announced, lasts, waits) in [
        (1, 61, 61),
        (120, 180, 180),
        (122, 183, 183),
        (600, 900, 900),
        (2400, 3600, 3600),
        (2401, 3601, 3600),
        (86_400, 129_600, 3600),
    ] {
        let downtime = downtime(announced);
        assert_eq!((downtime.lasts_s(), downtime.waits_s()), (lasts, waits));
    }
}

#[test]
fn the_way_back() {
    let back_in = |seconds, passed_ms| {
        Announced {
            downtime: downtime(seconds),
            passed_ms,
        }
        .back_in_s()
    };
    assert_eq!(back_in(600, 0), Some(600));
    assert_eq!(back_in(600, 1), Some(600));
    assert_eq!(back_in(600, 1000), Some(599));
    assert_eq!(back_in(600, 599_999), Some(1));
    // Late, but still as planned.
    assert_eq!(back_in(600, 600_000), Some(0));
    assert_eq!(back_in(600, 899_999), Some(0));
    assert_eq!(back_in(600, 900_000), None);
    assert_eq!(back_in(600, u64::MAX), None);
    // I/O does not wait for as long as that, but the stop is planned.
    assert_eq!(back_in(86_400, 86_399_001), Some(1));
}

#[test]
fn the_default_waits_for_the_server() {
    let left_s =
        |limit, waited_s: u64, stop| left_ms(limit, waited_s * 1000, stop).map(|left| left / 1000);
    assert_eq!(left_s(DEFAULT, 0, None), Some(600));
    assert_eq!(left_s(DEFAULT, 600, None), Some(0));
    // A short downtime needs no more than the default.
    assert_eq!(left_s(DEFAULT, 0, announced(120, 10)), Some(600));
    assert_eq!(left_s(DEFAULT, 0, announced(1200, 10)), Some(1790));
    assert_eq!(left_s(DEFAULT, 1780, announced(1200, 1790)), Some(10));
    assert_eq!(left_s(DEFAULT, 1790, announced(1200, 1800)), Some(0));
    // No longer than an hour.
    assert_eq!(left_s(DEFAULT, 3590, announced(86_400, 3590)), Some(10));
    assert_eq!(left_s(DEFAULT, 3600, announced(86_400, 3600)), Some(0));
    // An announcement of long ago does not shorten the wait.
    assert_eq!(left_s(DEFAULT, 100, announced(1200, 1_000_000)), Some(500));
    assert_eq!(limit_s(DEFAULT, downtime(120)), 600);
    assert_eq!(limit_s(DEFAULT, downtime(1200)), 1800);
    assert_eq!(limit_s(DEFAULT, downtime(86_400)), 3600);
}

#[test]
fn the_choice_of_an_operator_stands() {
    for limit in [0, 2, 599, 601, 86_400] {
        let (stop, limit_ms) = (announced(1200, 0), u64::from(limit) * 1000);
        assert_eq!(left_ms(limit, 0, stop), Some(limit_ms));
        assert_eq!(left_ms(limit, limit_ms, stop), Some(0));
        assert_eq!(limit_s(limit, downtime(1200)), limit);
    }
    assert_eq!(left_ms(UNLIMITED, u64::MAX, announced(1, 0)), None);
    assert_eq!(limit_s(UNLIMITED, downtime(1)), UNLIMITED);
}

#[test]
fn orders() {
    assert_eq!(DrainOrder::parse(b"0\n"), Ok(DrainOrder::Undo));
    assert_eq!(DrainOrder::parse(b"1"), Ok(DrainOrder::Drain));
    for (text, seconds) in [("downtime=1", 1), (" downtime=86400\n", 86_400)] {
        let expected = DrainOrder::Away(Downtime::new(seconds));
        assert_eq!(DrainOrder::parse(text.as_bytes()), Ok(expected));
    }
    let nothing = DrainOrder::parse(b"downtime=0");
    assert_eq!(nothing, Ok(DrainOrder::Away(None)));
    for text in [
        "2",
        "-1",
        "downtime=86401",
        "downtime=-1",
        "downtime=99999999999999999999",
    ] {
        assert_eq!(
            DrainOrder::parse(text.as_bytes()),
            Err(TextError::Range),
            "{text}"
        );
    }
    for text in [
        "",
        "yes",
        "downtime",
        "downtime=",
        "downtime=x",
        "downtime=10m",
        "downtime=1 2",
        "uptime=1",
        "1 downtime=5",
        "1=1",
        "Downtime=1",
        "downtime=0x10",
        "downtime=+1",
    ] {
        assert_eq!(
            DrainOrder::parse(text.as_bytes()),
            Err(TextError::Value),
            "{text}"
        );
    }
    assert_eq!(DrainOrder::parse(b"\xff"), Err(TextError::NotText));
    assert_eq!(DrainOrder::parse(b"1\0"), Err(TextError::NotText));
}

proptest! {
    /// However a server lies, and whenever, the wait is bounded.
    #[test]
    fn no_server_makes_io_wait_for_ever(seconds: u32, passed_ms: u64, waited_ms: u64) {
        let stop = Downtime::from_wire(seconds).map(|downtime| Announced { downtime, passed_ms });
        let left = left_ms(DEFAULT, waited_ms, stop).unwrap();
        let own = (u64::from(DEFAULT) * 1000).saturating_sub(waited_ms);
        prop_assert!(left >= own);
        prop_assert!(left <= own.max((u64::from(MAX_WAIT_S) * 1000).saturating_sub(passed_ms)));
        // While it is shown, it is a planned stop.
        if let Some(back) = stop.and_then(Announced::back_in_s) {
            prop_assert!(back <= Downtime::MAX_S);
        }
    }
}
