// SPDX-License-Identifier: GPL-2.0

//! Latency histograms of a disk: the file `latency_us`.
//!
//! The file has a row for each power of two of microseconds, and a column for each [`Kind`] of
//! request; the kinds are those of the block layer's own statistics.

use crate::msg::Op;
use core::fmt::{Display, Formatter, Result};

/// Rows of the histogram. Row `n` counts requests that took less than 2^`n` us and do not belong
/// to an earlier row; the last row has no limit.
pub const ROWS: usize = 22;

/// Kinds of requests.
pub const KINDS: usize = 4;

const NS_PER_US: u64 = 1000;

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads.
    Read = 0,
    /// Writes, write-zeroes and secure erase.
    Write = 1,
    /// Discards.
    Discard = 2,
    /// Flushes.
    Flush = 3,
}

impl Kind {
    /// The kind that an operation belongs to.
    pub const fn of(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write | Op::WriteZeroes | Op::SecureErase => Self::Write,
            Op::Discard => Self::Discard,
            Op::Flush => Self::Flush,
        }
    }

    /// Its column, below [`KINDS`].
    pub const fn column(self) -> usize {
        self as usize
    }
}

/// The row that counts a request of `ns` nanoseconds; below [`ROWS`].
#[inline]
pub const fn row(ns: u64) -> usize {
    let us = ns / NS_PER_US;
    // Lossless.
    let bits = u64::BITS.saturating_sub(us.leading_zeros()) as usize;
    if bits < ROWS {
        bits
    } else {
        ROWS.saturating_sub(1)
    }
}

/// Counts of requests by row and column. `Display` writes the contents of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// Number of requests.
    pub counts: [[u64; KINDS]; ROWS],
    /// The longest request of each kind, in nanoseconds.
    pub longest_ns: [u64; KINDS],
}

impl Histogram {
    /// No requests.
    pub const NONE: Self = Self {
        counts: [[0; KINDS]; ROWS],
        longest_ns: [0; KINDS],
    };
}

struct Columns<'a>(&'a [u64; KINDS]);

impl Display for Columns<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let [reads, writes, discards, flushes] = self.0;
        writeln!(f, ": {reads} {writes} {discards} {flushes}")
    }
}

impl Display for Histogram {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let mut limit = 1_u64;
        for (row, counts) in self.counts.iter().enumerate() {
            // The last row begins where the one before it ends.
            match row.saturating_add(1) == ROWS {
                true => write!(f, ">= {} us", limit >> 1)?,
                false => write!(f, "{limit} us")?,
            }
            Columns(counts).fmt(f)?;
            limit = limit.wrapping_shl(1);
        }
        write!(f, "maximum us")?;
        Columns(&self.longest_ns.map(|ns| ns / NS_PER_US)).fmt(f)
    }
}
