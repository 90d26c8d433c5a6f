// SPDX-License-Identifier: GPL-2.0

//! The histogram of a disk, and its file.

use ibnbd_proto::latency::{row, Histogram, Kind, KINDS, ROWS};
use ibnbd_proto::msg::Op;
use proptest::prelude::*;

/// The label of the row that a number of nanoseconds belongs to, by the file's own words.
fn label(ns: u64) -> String {
    let us = ns / 1000;
    match (0..=20)
        .map(|power| 1_u64 << power)
        .find(|limit| us < *limit)
    {
        Some(limit) => format!("{limit} us"),
        None => ">= 1048576 us".to_owned(),
    }
}

/// The rows of the file with anything in them.
fn filled(histogram: &Histogram) -> Vec<String> {
    let text = histogram.to_string();
    assert!(text.ends_with('\n'));
    assert_eq!(text.lines().count(), ROWS + 1);
    text.lines()
        .filter(|line| !line.ends_with(": 0 0 0 0"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_files_rows() {
    assert_eq!(filled(&Histogram::NONE), Vec::<String>::new());
    let mut histogram = Histogram::NONE;
    for (op, ns) in [
        (Op::Read, 999),
        (Op::Read, 1_000),
        (Op::Write, 3_999),
        (Op::WriteZeroes, 2_000),
        (Op::SecureErase, 4_000),
        (Op::Discard, 1_048_575_999),
        (Op::Flush, 1_048_576_000),
        (Op::Flush, u64::MAX),
    ] {
        let column = Kind::of(op).column();
        histogram.counts[row(ns)][column] += 1;
        histogram.longest_ns[column] = histogram.longest_ns[column].max(ns);
    }
    assert_eq!(
        filled(&histogram),
        [
            "1 us: 1 0 0 0",
            "2 us: 1 0 0 0",
            "4 us: 0 2 0 0",
            "8 us: 0 1 0 0",
            "1048576 us: 0 0 1 0",
            ">= 1048576 us: 0 0 0 2",
            "maximum us: 1 4 1048575 18446744073709551",
        ]
    );
}

proptest! {
    #[test]
    fn a_request_is_counted_below_its_limit(ns in any::<u64>(), shift in 0_u32..64, column in 0..KINDS) {
        let ns = ns >> shift;
        prop_assert!(row(ns) < ROWS);
        let mut histogram = Histogram::NONE;
        histogram.counts[row(ns)][column] = 1;
        let lines = filled(&histogram);
        prop_assert_eq!(lines.len(), 1);
        prop_assert_eq!(lines[0].split(':').next().unwrap(), label(ns));
    }
}
