// SPDX-License-Identifier: GPL-2.0

//! Memory in pieces: which pieces there are, and which parts of them a range is.

use ibtrs_proto::pieces::{pairs, Part, PieceLayout, MAX_PIECE_BYTES};
use proptest::prelude::*;

const KIB: usize = 1024;

fn layout(len: usize, piece: usize) -> PieceLayout {
    PieceLayout::new(len, piece).unwrap()
}

fn part(piece: usize, offset: usize, len: usize) -> Part {
    Part { piece, offset, len }
}

fn parts(layout: &PieceLayout, offset: usize, len: usize) -> Vec<Part> {
    layout.parts(offset, len).unwrap().collect()
}

#[test]
fn a_default_chunk() {
    let chunk = layout(132 * KIB, 32 * KIB);
    assert_eq!(chunk.len(), 132 * KIB);
    assert_eq!(chunk.count(), 5);
    let sizes: Vec<_> = (0..6).map(|piece| chunk.bytes_of(piece) / KIB).collect();
    assert_eq!(sizes, [32, 32, 32, 32, 4, 0]);
    // The headers of a request of 4 KiB, and of the largest.
    assert_eq!(parts(&chunk, 4096, 40), [part(0, 4096, 40)]);
    assert_eq!(parts(&chunk, 128 * KIB, 40), [part(4, 0, 40)]);
    // A header across a boundary.
    let end = 32 * KIB - 8;
    assert_eq!(parts(&chunk, end, 40), [part(0, end, 8), part(1, 0, 32)]);
    assert_eq!(
        parts(&chunk, 0, 128 * KIB),
        [0, 1, 2, 3].map(|piece| part(piece, 0, 32 * KIB))
    );
    assert_eq!(parts(&chunk, 132 * KIB - 1, 1), [part(4, 4095, 1)]);
    assert_eq!(parts(&chunk, 132 * KIB, 0), []);
    assert_eq!(parts(&chunk, 7, 0), []);
}

#[test]
fn nothing_beyond_the_end() {
    let chunk = layout(12 * KIB, 8 * KIB);
    assert_eq!(chunk.count(), 2);
    for (offset, len) in [
        (0, 12 * KIB + 1),
        (12 * KIB, 1),
        (12 * KIB + 1, 0),
        (usize::MAX, 0),
        (usize::MAX, 1),
        (1, usize::MAX),
    ] {
        assert!(chunk.parts(offset, len).is_none());
        assert!(chunk.part(offset, len).is_none());
    }
    assert_eq!(chunk.bytes_of(usize::MAX), 0);
}

#[test]
fn so_many_pieces_have_the_first_bytes() {
    let chunk = layout(132 * KIB, 32 * KIB);
    for (len, count) in [
        (0, 0),
        (1, 1),
        (32 * KIB, 1),
        (32 * KIB + 1, 2),
        (64 * KIB, 2),
        (128 * KIB, 4),
        (128 * KIB + 1, 5),
        (132 * KIB, 5),
        (usize::MAX, 5),
    ] {
        assert_eq!(chunk.count_of(len), count, "{len}");
    }
}

#[test]
fn sizes_are_powers_of_two() {
    for bad in [0, 3, 24 * KIB, usize::MAX] {
        assert_eq!(PieceLayout::new(KIB, bad), None);
    }
    assert_eq!(PieceLayout::new(0, KIB), None);
    let top = 1 << (usize::BITS - 1);
    let all = layout(usize::MAX, top);
    assert_eq!((all.count(), all.bytes_of(1)), (2, top - 1));
    assert_eq!(all.count_of(usize::MAX), 1 + usize::MAX / top);
    assert_eq!(parts(&all, usize::MAX - 1, 1), [part(1, top - 2, 1)]);
}

fn candidates(len: usize, page: usize) -> Vec<(usize, usize, usize)> {
    PieceLayout::candidates(len, page)
        .map(|layout| (layout.len(), layout.bytes_of(0), layout.count()))
        .collect()
}

#[test]
fn smaller_pieces_follow_larger_ones() {
    let chunk = 132 * KIB;
    assert_eq!(
        candidates(chunk, 4096),
        [
            (chunk, 32 * KIB, 5),
            (chunk, 16 * KIB, 9),
            (chunk, 8 * KIB, 17),
            (chunk, 4 * KIB, 33)
        ]
    );
    // In one piece, if that is possible.
    assert_eq!(
        candidates(16 * KIB, 4096),
        [
            (16 * KIB, 16 * KIB, 1),
            (16 * KIB, 8 * KIB, 2),
            (16 * KIB, 4 * KIB, 4)
        ]
    );
    assert_eq!(candidates(20 * KIB, 4096)[0], (20 * KIB, 20 * KIB, 1));
    assert_eq!(candidates(1, 4096), [(4096, 4096, 1)]);
    // Whole pages, which may be larger than the largest piece.
    assert_eq!(candidates(chunk, 65_536), [(192 * KIB, 64 * KIB, 3)]);
    assert_eq!(candidates(chunk, 16_384).len(), 2);
}

#[test]
fn no_candidates_for_what_cannot_be() {
    for (len, page) in [
        (0, 4096),
        (4096, 0),
        (usize::MAX, 4096),
        // A power of two that would not fit.
        (usize::MAX - 8191, 4096),
        (4096, 3000),
    ] {
        assert_eq!(candidates(len, page), [], "{len} {page}");
    }
}

#[test]
fn pairs_are_in_one_piece_each() {
    let (chunk, private) = (layout(64 * KIB, 8 * KIB), layout(16 * KIB, 16 * KIB));
    let cut = |from, to, len| -> Vec<_> {
        let (from, to) = (chunk.parts(from, len), private.parts(to, len));
        pairs(from.unwrap(), to.unwrap()).collect()
    };
    assert_eq!(
        cut(4 * KIB, 0, 10 * KIB),
        [
            (part(0, 4 * KIB, 4 * KIB), part(0, 0, 4 * KIB)),
            (part(1, 0, 6 * KIB), part(0, 4 * KIB, 6 * KIB)),
        ]
    );
    assert_eq!(cut(0, 0, 0), []);
    // The shorter range decides.
    let (one, other) = (chunk.parts(0, 9 * KIB), private.parts(0, 1));
    let cut: Vec<_> = pairs(one.unwrap(), other.unwrap()).collect();
    assert_eq!(cut, [(part(0, 0, 1), part(0, 0, 1))]);
}

/// A layout, and a range in it.
fn ranges() -> impl Strategy<Value = (PieceLayout, usize, usize)> {
    (1usize..3000, 0u32..10)
        .prop_flat_map(|(len, shift)| {
            let layout = layout(len, 1 << shift);
            (Just(layout), 0..=len)
        })
        .prop_flat_map(|(layout, offset)| (Just(layout), Just(offset), 0..=layout.len() - offset))
}

proptest! {
    /// The parts are all bytes of the range, each once, in order, and none is outside of its piece.
    #[test]
    fn parts_are_the_range((layout, offset, len) in ranges()) {
        let size = layout.bytes_of(0);
        let mut at = offset;
        for part in layout.parts(offset, len).unwrap() {
            prop_assert!(part.len > 0 && part.piece < layout.count());
            prop_assert!(part.offset + part.len <= layout.bytes_of(part.piece));
            prop_assert_eq!(part.piece * size + part.offset, at);
            at += part.len;
        }
        prop_assert_eq!(at, offset + len);
        let parts: Vec<_> = layout.parts(offset, len).unwrap().collect();
        let only = (parts.len() == 1).then(|| parts[0]);
        prop_assert_eq!(layout.part(offset, len), only);
        let count = layout.parts(0, len).unwrap().count();
        prop_assert_eq!(layout.count_of(len), count);
    }

    #[test]
    fn pieces_are_the_memory(len in 1usize..5000, shift in 0u32..12) {
        let layout = layout(len, 1 << shift);
        let sizes: Vec<_> = (0..layout.count()).map(|piece| layout.bytes_of(piece)).collect();
        prop_assert_eq!(sizes.iter().sum::<usize>(), len);
        prop_assert!(sizes.iter().all(|size| *size > 0));
        prop_assert_eq!(layout.bytes_of(layout.count()), 0);
    }

    /// Both sides are the same bytes of their ranges.
    #[test]
    fn pairs_are_both_ranges((one, from, len) in ranges(), shift in 0u32..10, to in 0usize..500) {
        let other = layout(to + len + 1, 1 << shift);
        let mut at = 0;
        let (ones, others) = (one.parts(from, len), other.parts(to, len));
        for (left, right) in pairs(ones.unwrap(), others.unwrap()) {
            prop_assert_eq!(left.len, right.len);
            prop_assert!(left.offset + left.len <= one.bytes_of(left.piece));
            prop_assert!(right.offset + right.len <= other.bytes_of(right.piece));
            prop_assert_eq!(left.piece * one.bytes_of(0) + left.offset, from + at);
            prop_assert_eq!(right.piece * other.bytes_of(0) + right.offset, to + at);
            at += left.len;
        }
        prop_assert_eq!(at, len);
    }

    /// Every candidate has room for all, in pieces of whole pages, smaller from one to the next, down
    /// to a page.
    #[test]
    fn candidates_get_smaller(len in 1usize..2_000_000, page_shift in 12u32..17) {
        let page = 1usize << page_shift;
        let mut last = usize::MAX;
        for layout in PieceLayout::candidates(len, page) {
            prop_assert_eq!(layout.len(), len.next_multiple_of(page));
            let pieces = layout.count();
            // All but the last have the full size.
            let size = layout.len().div_ceil(pieces);
            prop_assert!(size <= MAX_PIECE_BYTES.max(page));
            prop_assert_eq!(layout.bytes_of(0) % page, 0);
            prop_assert!(layout.bytes_of(0) < last);
            last = layout.bytes_of(0);
        }
        prop_assert_eq!(last, page);
    }
}
