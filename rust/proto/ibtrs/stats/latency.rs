// SPDX-License-Identifier: GPL-2.0

//! Latency histograms: `rdma_lat` in milliseconds, `rdma_lat_us` in microseconds.
//!
//! The limits are powers of two: 1 ms to 65536 ms and 1 us to 1048576 us. At most one limit in
//! milliseconds lies between two consecutive limits in microseconds. So one histogram that has the
//! limits of both files serves both, and a request increments one counter.

use core::fmt::{Display, Formatter, Result};

/// Buckets of the histogram of one direction.
pub const BUCKETS: usize = 2 * (MAX_BITS as usize + 1);

/// Latencies with this many bits of microseconds and more share the last two buckets; the upper one
/// begins at 65536 ms.
const MAX_BITS: u32 = 26;

/// Bits of the first number of microseconds that may be a millisecond.
const MS_BITS: u32 = 10;

/// Limits of the file in milliseconds: 2^0 to 2^16.
const MS_ROWS: u32 = 17;

/// Limits of the file in microseconds: 2^0 to 2^20.
const US_ROWS: u32 = 21;

const NS_PER_US: u64 = 1000;
const NS_PER_MS: u64 = 1_000_000;

/// The bucket that counts a request of `ns` nanoseconds; below [`BUCKETS`].
#[inline]
pub const fn bucket(ns: u64) -> usize {
    let us = ns / NS_PER_US;
    let bits = u64::BITS.saturating_sub(us.leading_zeros());
    if bits > MAX_BITS {
        return BUCKETS.saturating_sub(1);
    }
    // The limit in milliseconds among the numbers with that many bits. No shift is above 16.
    let limit = match bits.checked_sub(MS_BITS) {
        Some(shift) => 1000_u64.wrapping_shl(shift),
        None => u64::MAX,
    };
    // Lossless, and below BUCKETS.
    (bits as usize)
        .wrapping_mul(2)
        .wrapping_add((us >= limit) as usize)
}

/// The row in milliseconds that a bucket belongs to: 0 is below 1 ms, 17 from 65536 ms on.
const fn ms_row(bucket: usize) -> usize {
    match (bucket >> 1).checked_sub(MS_BITS as usize) {
        Some(row) => row.saturating_add(bucket & 1),
        None => 0,
    }
}

/// The row in microseconds that a bucket belongs to: 0 is below 1 us, 21 from 1048576 us on.
const fn us_row(bucket: usize) -> usize {
    let (bits, last) = (bucket >> 1, US_ROWS as usize);
    if bits < last {
        bits
    } else {
        last
    }
}

/// The requests of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latencies {
    /// Number of requests in each bucket.
    pub counts: [u64; BUCKETS],
    /// The longest latency, in nanoseconds.
    pub max_ns: u64,
}

impl Latencies {
    /// No requests.
    pub const NONE: Self = Self {
        counts: [0; BUCKETS],
        max_ns: 0,
    };

    fn sum(&self, row: usize, row_of: fn(usize) -> usize) -> u64 {
        let counts = self.counts.iter().enumerate();
        let in_row = counts.filter(|(bucket, _)| row_of(*bucket) == row);
        in_row.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

/// Both directions of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram<'a> {
    /// The reads.
    pub reads: &'a Latencies,
    /// The writes.
    pub writes: &'a Latencies,
}

/// The unit of a file.
struct Unit {
    name: &'static str,
    rows: u32,
    row_of: fn(usize) -> usize,
    ns: u64,
}

impl<'a> Histogram<'a> {
    /// The file `rdma_lat`. A row `N ms` counts requests that took less than that and do not belong
    /// to an earlier row.
    pub const fn in_ms(self) -> impl Display + 'a {
        Rows(
            self,
            Unit {
                name: "ms",
                rows: MS_ROWS,
                row_of: ms_row,
                ns: NS_PER_MS,
            },
        )
    }

    /// The file `rdma_lat_us`, as [`Histogram::in_ms`].
    pub const fn in_us(self) -> impl Display + 'a {
        Rows(
            self,
            Unit {
                name: "us",
                rows: US_ROWS,
                row_of: us_row,
                ns: NS_PER_US,
            },
        )
    }
}

/// A histogram without directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Single<'a>(pub &'a Latencies);

/// As [`Histogram::in_ms`], with one number on each line.
impl Display for Single<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self(all) = self;
        for row in 0..=MS_ROWS {
            // Lossless: a few rows.
            let count = all.sum(row as usize, ms_row);
            writeln!(f, "{}: {count}", Limit(row, MS_ROWS, "ms"))?;
        }
        let longest = all.max_ns.checked_div(NS_PER_MS).unwrap_or(0);
        writeln!(f, "maximum ms: {longest}")
    }
}

/// The beginning of row `.0`, of which the last one is row `.1`.
struct Limit(u32, u32, &'static str);

impl Display for Limit {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self(row, last, unit) = self;
        // The last row begins where the one before it ends.
        let (prefix, power) = match row == last {
            true => (">= ", row.saturating_sub(1)),
            false => ("", *row),
        };
        write!(f, "{prefix}{} {unit}", 1_u64.wrapping_shl(power))
    }
}

struct Rows<'a>(Histogram<'a>, Unit);

impl Display for Rows<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self(Histogram { reads, writes }, unit) = self;
        let name = unit.name;
        for row in 0..=unit.rows {
            let limit = Limit(row, unit.rows, name);
            // Lossless: a few rows.
            let row = row as usize;
            let counts = (reads.sum(row, unit.row_of), writes.sum(row, unit.row_of));
            writeln!(f, "{limit}: {} {}", counts.0, counts.1)?;
        }
        let longest = |of: &Latencies| of.max_ns.checked_div(unit.ns).unwrap_or(0);
        writeln!(f, "maximum {name}: {} {}", longest(reads), longest(writes))
    }
}
