// SPDX-License-Identifier: GPL-2.0

//! Buffers for data in service: sizes, memory, and portions.

use ibtrs_proto::buffers::*;
use proptest::prelude::*;

const KIB: usize = 1024;

#[test]
fn sizes_by_default() {
    let sizes = Sizes::new(131_072, 4096);
    let all: Vec<_> = (0..=sizes.last())
        .map(|size| sizes.bytes(size) / KIB)
        .collect();
    assert_eq!(all, [16, 32, 64, 128]);
    for (len, size) in [
        (0, 0),
        (1, 0),
        (16 * KIB, 0),
        (16 * KIB + 1, 1),
        (64 * KIB, 2),
        (128 * KIB, 3),
    ] {
        assert_eq!(sizes.of(len), Some(size), "{len}");
    }
    assert_eq!(sizes.of(128 * KIB + 1), None);
    // However short the largest request is, its buffer is no shorter than the smallest.
    assert_eq!(Sizes::new(4096, 4096).last(), 0);
    assert_eq!(Sizes::new(4096, 4096).bytes(0), SMALLEST);
    // The largest size need not be a power of two.
    let odd = Sizes::new(20_480, 4096);
    assert_eq!((odd.last(), odd.bytes(1)), (1, 20_480));
    assert_eq!(Sizes::new(1 << 20, 4096).last(), 6);
    // There are no more sizes than that; the last one is the largest, whatever the one before it is.
    let far = Sizes::new(8 << 20, 4096);
    assert_eq!(
        (far.bytes(6), far.last(), far.bytes(7)),
        (1 << 20, 7, 8 << 20)
    );
    assert_eq!(far.of((1 << 20) + 1), Some(7));
    assert_eq!(far.of(8 << 20), Some(7));
}

#[test]
fn memory_is_reused_first() {
    let memory = Memory {
        taken: 100,
        free: 30,
    };
    assert_eq!(memory.source(50, true, 0), Source::Free);
    assert_eq!(memory.source(50, false, 150), Source::New);
    assert_eq!(
        memory.source(50, false, 149),
        Source::InPlaceOf { bytes: 1 }
    );
    assert_eq!(
        memory.source(50, false, 120),
        Source::InPlaceOf { bytes: 30 }
    );
    assert_eq!(memory.source(50, false, 119), Source::Nowhere);
    assert_eq!(memory.source(u64::MAX, false, 119), Source::Nowhere);
}

/// A session that takes all it can get, and keeps it.
fn fill(held: &mut u64, bytes: u64, used: &mut u64, limit: u64) {
    while may_take(*held, bytes, *used, limit) {
        *held += bytes;
        *used += bytes;
    }
}

#[test]
fn something_is_left_for_the_next() {
    let limit = 81_000;
    let mut used = 0;
    for wanted in [54_000, 18_000, 6_000, 2_000] {
        let mut held = 0;
        fill(&mut held, 1, &mut used, limit);
        assert_eq!(held, wanted);
    }
    // What does not fit what is left, or the limit.
    assert!(!may_take(0, 34, 66, 100) && !may_take(0, 101, 0, 100));
    assert!(may_take(0, 22, 66, 100) && !may_take(0, 23, 66, 100));
    // The limit was lowered.
    assert!(!may_take(0, 1, 101, 100) && !may_take(0, u64::MAX, u64::MAX, 100));
    assert!(!may_take(u64::MAX, 1, 0, 100));
}

#[test]
fn behind_the_others() {
    assert!(is_behind(0, 10, 100) && is_behind(39, 10, 100));
    assert!(!is_behind(40, 10, 100) && !is_behind(100, 10, 100) && !is_behind(0, 1, 0));
    assert!(!is_behind(u64::MAX, u64::MAX, u64::MAX));
}

#[test]
fn pauses_grow_while_nothing_comes_of_it() {
    let mut pace = Pace::default();
    let (mut now, mut looks) = (1_000, Vec::new());
    while looks.len() < 10 {
        if pace.is_over(now) {
            looks.push(now - 1_000);
        }
        now += u64::from(pace.left_ms(now));
    }
    assert_eq!(looks, [0, 2, 6, 14, 30, 62, 126, 254, 510, 766]);
    // However often one asks meanwhile.
    assert!((0..100).all(|_| !pace.is_over(1_800)));
    assert_eq!((pace.left_ms(1_800), pace.left_ms(u64::MAX)), (222, 1));
    assert!(pace.is_over(u64::MAX));
}

proptest! {
    #[test]
    fn a_buffer_has_room_and_little_more(
        max_io in 1usize..1 << 20,
        len in 0usize..1 << 20,
        page in prop_oneof![Just(4096usize), Just(65_536)],
    ) {
        let sizes = Sizes::new(max_io, page);
        let Some(size) = sizes.of(len) else {
            prop_assert!(len > max_io && len > SMALLEST);
            return Ok(());
        };
        // What is counted is what is allocated.
        prop_assert!(sizes.bytes(size).is_multiple_of(page));
        prop_assert!(size <= sizes.last() && sizes.last() < Sizes::MOST);
        prop_assert!(sizes.bytes(size) >= len);
        prop_assert!(size == 0 || sizes.bytes(size - 1) < len);
        prop_assert!(sizes.bytes(size) <= SMALLEST.max(page).max(2 * len));
    }

    /// Whatever is asked for, the buffers stay within the limit, if that is not lowered.
    #[test]
    fn the_limit_holds(limit in 0u64..1000, asks in prop::collection::vec((1u64..200, any::<bool>()), 1..200)) {
        let mut memory = Memory::default();
        for (bytes, gives) in asks {
            match memory.source(bytes, false, limit) {
                Source::Free => unreachable!(),
                Source::New => memory.taken += bytes,
                Source::InPlaceOf { bytes: less } => {
                    prop_assert!(less > 0 && less <= memory.free);
                    memory.free -= less;
                    memory.taken = memory.taken - less + bytes;
                }
                Source::Nowhere => {
                    // Not even all of the free memory would have been enough.
                    prop_assert!(memory.taken - memory.free + bytes > limit);
                }
            }
            if gives {
                memory.free = memory.taken;
            }
            prop_assert!(memory.taken <= limit && memory.free <= memory.taken);
        }
    }

    /// Sessions whose requests come and go: whatever they hold, one that holds nothing gets a buffer
    /// that is small beside the limit.
    #[test]
    fn nobody_is_shut_out(steps in prop::collection::vec((0usize..6, 1u64..100, any::<bool>()), 1..200)) {
        let limit = 1_000_000;
        let (mut held, mut used) = ([0u64; 6], 0u64);
        for (session, bytes, takes) in steps {
            if takes {
                fill(&mut held[session], bytes, &mut used, limit);
            } else {
                used -= held[session];
                held[session] = 0;
            }
            prop_assert!(used < limit && used == held.iter().sum::<u64>());
            prop_assert!(may_take(0, 1, used, limit));
        }
    }

    /// If all give back and take again, those that want all they can get hold about the same.
    #[test]
    fn shares_become_equal(sizes in prop::collection::vec(200u64..1000, 2..6)) {
        let limit = 100_000;
        let (mut held, mut used) = (vec![0u64; sizes.len()], 0u64);
        fill(&mut held[0], sizes[0], &mut used, limit);
        for round in 0..5_000 {
            let session = round % sizes.len();
            let gives = sizes[session].min(held[session]);
            held[session] -= gives;
            used -= gives;
            for (held, bytes) in held.iter_mut().zip(&sizes).rev() {
                if may_take(*held, *bytes, used, limit) {
                    *held += bytes;
                    used += bytes;
                }
            }
        }
        let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
        prop_assert!(most - least <= limit / 20, "{held:?}");
    }
}
