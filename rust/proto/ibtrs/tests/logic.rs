// SPDX-License-Identifier: GPL-2.0

//! Immediate layouts, limits, heartbeat, back-off, permits, path choice.

use ibtrs_proto::backoff::{Attempts, Backoff};
use ibtrs_proto::bytes::{Reader, Writer};
use ibtrs_proto::hb::{HbAction, Heartbeat};
use ibtrs_proto::imm::{clog2, ImmLayout, LayoutError, PayloadError};
use ibtrs_proto::limits::{server_layout, LimitError};
use ibtrs_proto::mp::{choose, first_outcome, Candidate, Policy};
use ibtrs_proto::permit::{DepthSplit, FreeIds, MAX_RESERVED};
use ibtrs_proto::tag::Tag;
use ibtrs_proto::text::TextError;
use proptest::prelude::*;

#[test]
fn clog2_is_bits_of_n_minus_one() {
    for (n, bits) in [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 3),
        (500, 9),
        (512, 9),
        (513, 10),
        (131_072, 17),
        (u32::MAX, 32),
    ] {
        assert_eq!(clog2(n), bits, "{n}");
    }
}

#[test]
fn mem_bits_depend_on_depth_alone() {
    for (qd, chunk, bits) in [
        (512, 131_072, 19),
        (500, 131_072, 19),
        (513, 131_072, 18),
        (1, 131_072, 28),
        (512, 8192, 19),
        (32_768, 8192, 13),
    ] {
        assert_eq!(ImmLayout::new(qd, chunk).unwrap().mem_bits(), bits);
    }
    assert_eq!(ImmLayout::new(0, 1), Err(LayoutError::ZeroDepth));
    assert_eq!(ImmLayout::new(1, 0), Err(LayoutError::ZeroChunk));
    assert_eq!(ImmLayout::new(32_769, 8192), Err(LayoutError::TooBig));
    assert_eq!(ImmLayout::new(1, (1 << 28) + 1), Err(LayoutError::TooBig));
    assert!(ImmLayout::new(1, 1 << 28).is_ok());
}

/// Every queue depth, with the largest chunk that fits: no two requests share a payload.
#[test]
fn every_depth() {
    for qd in 1..=u16::MAX {
        let chunk = 1u32 << (28 - clog2(qd.into()));
        let l = ImmLayout::new(qd, chunk).unwrap();
        assert!(ImmLayout::new(qd, chunk + 1).is_err());
        for id in [0, qd / 2, qd - 1] {
            for off in [0, chunk / 3, chunk - 1] {
                let p = l.request(Tag::new(id), off).unwrap();
                assert!(p < 1 << 28);
                assert_eq!(l.split(p), (id.into(), off));
                assert_eq!(l.check(p), Ok((Tag::new(id), off)));
            }
        }
        assert_eq!(l.request(Tag::new(qd), 0), None);
        assert_eq!(l.request(Tag::new(0), chunk), None);
    }
}

#[test]
fn payload_bounds() {
    let l = ImmLayout::new(500, 8192).unwrap();
    assert_eq!(l.check(500 << 19), Err(PayloadError::BufId(500)));
    assert_eq!(l.check(499 << 19), Ok((Tag::new(499), 0)));
    assert_eq!(l.check(8192), Err(PayloadError::Offset(8192)));
    assert_eq!(l.check(8191), Ok((Tag::new(0), 8191)));
    // The type bits are no part of the payload.
    assert_eq!(l.check(0xF000_0001), Ok((Tag::new(0), 1)));
    // One chunk of an odd size.
    let l = ImmLayout::new(1, 5000).unwrap();
    assert_eq!(l.check(5000), Err(PayloadError::Offset(5000)));
    assert_eq!(l.check(4999), Ok((Tag::new(0), 4999)));
}

#[test]
fn server_parameters() {
    assert!(server_layout(131_072, 512).is_ok());
    assert!(server_layout(131_072, 2048).is_ok());
    assert_eq!(server_layout(131_072, 2049), Err(LimitError::Both));
    assert!(server_layout(8192, 32_768).is_ok());
    assert_eq!(server_layout(8192, 32_769), Err(LimitError::Both));
    // What 128 KiB and their headers take, and no immediate has more bits for.
    assert!(server_layout(135_168, 1024).is_ok());
    assert_eq!(server_layout(135_168, 1025), Err(LimitError::Both));
    assert!(server_layout(12_288, 1).is_ok());
    for size in [0, 4096, 8191, 8193, 10_000, u32::MAX] {
        assert_eq!(server_layout(size, 1), Err(LimitError::ChunkSize(size)));
    }
    for depth in [0, 65_536, u32::MAX] {
        assert_eq!(
            server_layout(8192, depth),
            Err(LimitError::QueueDepth(depth))
        );
    }
}

#[test]
fn heartbeat_with_traffic_sends_each_tick() {
    let mut hb = Heartbeat::default();
    for i in 0..20 {
        assert_eq!(hb.tick(i * 5000), HbAction::Send);
        assert_eq!(hb.ack(i * 5000 + 3), Some(3));
        assert_eq!((hb.latency(), hb.missed()), (3, 0));
        // An answer nobody asked for changes nothing.
        assert_eq!(hb.ack(i * 5000 + 100), None);
        assert_eq!(hb.latency(), 3);
    }
}

#[test]
fn what_is_forgiven_may_change_meanwhile() {
    let mut hb = Heartbeat::new(5);
    for missed in 1..=3 {
        assert_ne!(hb.tick(0), HbAction::Dead);
        assert_eq!(hb.missed(), missed);
    }
    hb.set_missed_max(4);
    assert_eq!(hb.tick(0), HbAction::Nothing);
    assert_eq!(hb.tick(0), HbAction::Dead);
    hb.received();
    assert_eq!((hb.missed(), hb.tick(0)), (0, HbAction::Send));
}

#[test]
fn a_heartbeat_is_overdue_after_an_interval() {
    let mut hb = Heartbeat::new(5);
    assert_eq!(hb.overdue(10), None);
    assert_eq!((hb.tick(100), hb.overdue(690)), (HbAction::Send, None));
    assert_eq!(
        (hb.tick(700), hb.overdue(710)),
        (HbAction::Nothing, Some(610))
    );
    // As long as it is silent, since the first one.
    assert_eq!(
        (hb.tick(1300), hb.overdue(1310)),
        (HbAction::Nothing, Some(1210))
    );
    hb.received();
    assert_eq!(hb.overdue(1400), None);
    assert_eq!((hb.tick(1900), hb.overdue(1950)), (HbAction::Send, None));
    hb.tick(2500);
    assert_eq!(hb.overdue(2500), Some(600));
    hb.ack(2600);
    assert_eq!(hb.overdue(2700), None);
}

/// One message, then silence: dead 25 s after it, and 30 s at most after the last reception.
#[test]
fn heartbeat_in_silence() {
    let mut hb = Heartbeat::default();
    let actions: Vec<_> = (0..9).map(|i| hb.tick(i * 5000)).collect();
    let mut want = vec![HbAction::Send];
    want.extend([HbAction::Nothing; 4]);
    want.extend([HbAction::Dead; 4]);
    assert_eq!(actions, want);
    // Any reception revives the count.
    hb.received();
    assert_eq!(hb.tick(50_000), HbAction::Send);
    assert_eq!(hb.tick(55_000), HbAction::Nothing);
    // The answer to the first message counts from the last one sent.
    assert_eq!(hb.ack(55_001), Some(5001));
    // A clock that jumps back is no latency.
    hb.tick(100);
    assert_eq!(hb.ack(50), Some(0));
}

#[test]
fn backoff_doubles_up_to_its_limit() {
    let b = Backoff {
        base_ms: 1000,
        max_ms: 30_000,
    };
    let whole = [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000];
    for (i, w) in whole.into_iter().enumerate() {
        assert_eq!(b.delay_ms(i as u32, 0), w / 2);
        assert_eq!(b.delay_ms(i as u32, u32::MAX), w);
    }
    assert_eq!(b.delay_ms(u32::MAX, u32::MAX), 30_000);
    let endless = Backoff {
        base_ms: 1,
        max_ms: u32::MAX,
    };
    assert_eq!(endless.delay_ms(31, u32::MAX), 1 << 31);
    assert_eq!(endless.delay_ms(32, u32::MAX), u32::MAX);
    let none = Backoff {
        base_ms: 0,
        max_ms: 0,
    };
    assert_eq!(none.delay_ms(3, u32::MAX), 0);
}

#[test]
fn attempts() {
    assert_eq!(Attempts::parse(b"-1\n"), Ok(Attempts::Forever));
    assert_eq!(Attempts::parse(b"0"), Ok(Attempts::AtMost(0)));
    assert_eq!(Attempts::parse(b"9999"), Ok(Attempts::AtMost(9999)));
    for bad in [&b"-2"[..], b"10000", b"99999999999999999999"] {
        assert_eq!(Attempts::parse(bad), Err(TextError::Range));
    }
    for bad in [&b""[..], b"-", b"+1", b"0x1", b"1 2", b"one"] {
        assert_eq!(Attempts::parse(bad), Err(TextError::Value));
    }
    assert!(Attempts::Forever.allow(u32::MAX));
    assert!(!Attempts::AtMost(0).allow(0));
    assert!(Attempts::AtMost(2).allow(1));
    assert!(!Attempts::AtMost(2).allow(2));
    assert_eq!(Attempts::Forever.number(), -1);
    assert_eq!(Attempts::AtMost(7).number(), 7);
}

#[test]
fn depth_split() {
    let s = DepthSplit::new(512, 8);
    assert_eq!((s.reserved(), s.io(), s.queue_depth()), (8, 504, 512));
    assert_eq!(DepthSplit::of_session(512).reserved(), 4);
    assert_eq!(DepthSplit::of_session(15).reserved(), 1);
    assert_eq!(DepthSplit::of_session(16).reserved(), 4);
    assert_eq!(DepthSplit::new(2, 8).reserved(), 1);
    assert_eq!(DepthSplit::new(512, 0).reserved(), 1);
    assert_eq!(DepthSplit::new(1, 8).reserved(), 0);
    for qd in 2..=u16::MAX {
        let s = DepthSplit::new(qd, 300);
        assert!(s.reserved() > 0 && s.reserved() <= MAX_RESERVED);
        assert!(s.io() > 0 && s.io() + s.reserved() == qd);
    }
}

#[test]
fn free_ids() {
    for n in [0u16, 1, 5, 64, 70] {
        let mut f = FreeIds::new(n);
        assert!(f.all_are_free());
        let got: Vec<_> = core::iter::from_fn(|| f.take()).collect();
        assert_eq!(got, (0..n.min(64)).collect::<Vec<_>>());
        assert!(!f.give(n.min(64)), "never was one of them");
        assert!(!f.give(u16::MAX));
        if n > 2 {
            assert!(f.give(2) && !f.give(2) && !f.all_are_free());
            assert_eq!(f.take(), Some(2));
        }
        assert_eq!(f.all_are_free(), n == 0);
        got.iter().for_each(|id| assert!(f.give(*id)));
        assert!(f.all_are_free());
    }
}

#[test]
fn writer_stops_at_the_first_thing_that_does_not_fit() {
    let mut buf = [0xEE; 5];
    let mut w = Writer::new(&mut buf);
    w.u32(0x0403_0201);
    w.u16(7);
    w.u8(9);
    w.zeros(1);
    assert_eq!(w.finish(), None);
    assert_eq!(buf, [1, 2, 3, 4, 0xEE]);
    let mut w = Writer::new(&mut buf);
    w.zeros(6);
    w.u64(1);
    assert_eq!(w.finish(), None);
    let mut r = Reader::new(&buf);
    assert_eq!((r.u8(), r.u16(), r.u64()), (Some(1), Some(0x0302), None));
    assert_eq!((r.rest(), r.skip(2), r.u8()), (&buf[3..], Some(()), None));
}

#[test]
fn policy_texts() {
    for p in Policy::ALL {
        assert_eq!(Policy::from_u8(p.to_u8()), Some(p));
        assert_eq!(Policy::parse(p.name().as_bytes()), Ok(p));
        assert_eq!(Policy::parse(p.to_u8().to_string().as_bytes()), Ok(p));
        assert!(p.sysfs_str().starts_with(p.name()));
    }
    assert_eq!(Policy::from_u8(3), None);
    for (text, p) in [
        ("RR\n", Policy::RoundRobin),
        ("r", Policy::RoundRobin),
        ("Round", Policy::RoundRobin),
        ("mi", Policy::MinInflight),
        ("ml", Policy::MinLatency),
        ("MIN-L", Policy::MinLatency),
    ] {
        assert_eq!(Policy::parse(text.as_bytes()), Ok(p), "{text}");
    }
    for bad in ["", "3", "min-", "m", "round-robin2", "rrr", "\0", "00"] {
        assert!(Policy::parse(bad.as_bytes()).is_err(), "{bad:?}");
    }
}

#[test]
fn path_choice() {
    let path = |usable, inflight, latency| Candidate {
        usable,
        inflight,
        latency,
    };
    let paths = [
        path(true, 5, None),
        path(false, 0, Some(1)),
        path(true, 2, Some(9)),
        path(true, 2, Some(9)),
    ];
    let rr = |turn| choose(Policy::RoundRobin, turn, paths);
    // The unusable path does not add to the share of its neighbour.
    assert_eq!([0, 1, 2, 3, 4].map(rr), [0, 2, 3, 0, 2].map(Some));
    assert_eq!(rr(u64::MAX), Some(0));
    assert_eq!(choose(Policy::MinInflight, 0, paths), Some(2));
    assert_eq!(choose(Policy::MinLatency, 0, paths), Some(2));
    // A path without a measurement is the last resort, but it is one.
    assert_eq!(
        choose(Policy::MinLatency, 0, [path(true, 0, None)]),
        Some(0)
    );
    for p in Policy::ALL {
        assert_eq!(choose(p, 1, [path(false, 0, None); 3]), None);
        assert_eq!(choose(p, 0, []), None);
    }
}

proptest! {
    #[test]
    fn any_payload(qd: u16, chunk: u32, payload: u32, id: u16, off: u32) {
        let chunk = chunk >> (chunk % 32);
        let Ok(l) = ImmLayout::new(qd, chunk) else { return Ok(()); };
        if let Ok((tag, off)) = l.check(payload) {
            prop_assert!(tag.get() < qd && off < chunk);
            prop_assert_eq!(l.request(tag, off), Some(payload & 0x0FFF_FFFF));
        }
        if let Some(p) = l.request(Tag::new(id), off) {
            prop_assert_eq!(l.check(p), Ok((Tag::new(id), off)));
        }
    }

    #[test]
    fn backoff_in_bounds(base_ms: u32, max_ms: u32, attempt: u32, random: u32) {
        let d = Backoff { base_ms, max_ms }.delay_ms(attempt, random);
        let whole = (u128::from(base_ms) << attempt.min(64)).min(max_ms.into());
        prop_assert!(u128::from(d) <= whole && u128::from(d) >= whole / 2);
    }

    /// However receptions and answers fall: dead only after more than the forgiven silence.
    #[test]
    fn heartbeat_dies_of_silence_only(events in prop::collection::vec(0u8..4, 0..200)) {
        let mut hb = Heartbeat::default();
        let mut silent = 0;
        for (i, e) in events.into_iter().enumerate() {
            match e {
                0 => { hb.received(); silent = 0; }
                1 => { hb.ack(i as u64); silent = 0; }
                _ => {
                    let want = match silent {
                        0 => HbAction::Send,
                        1..=4 => HbAction::Nothing,
                        _ => HbAction::Dead,
                    };
                    prop_assert_eq!(hb.tick(i as u64), want);
                    silent += 1;
                }
            }
        }
    }
}

#[test]
fn a_session_is_there_with_its_first_path() {
    let (ok, bad, worse) = (Some(Ok(())), Some(Err(1)), Some(Err(2)));
    assert_eq!(first_outcome([None, None]), None::<Result<(), u32>>);
    assert_eq!(first_outcome([bad, None]), None);
    assert_eq!(first_outcome([None, ok]), ok);
    assert_eq!(first_outcome([worse, bad]), worse);
    // Wherever the one is that is connected, and however many have failed before.
    for outcomes in [[ok, bad, bad], [bad, ok, None], [bad, bad, ok]] {
        assert_eq!(first_outcome(outcomes), ok);
    }
    assert_eq!(first_outcome::<u32>([]), None);
}
