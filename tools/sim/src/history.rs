// SPDX-License-Identifier: GPL-2.0

//! Linearizability: could a single local disk have shown the users the same results?

use crate::schedule::{Time, REQUESTS};

/// A request as its user saw it.
///
/// A write may be made more than once while it is in flight: it is sent again when a path is lost.
/// If two writes of a sector are in flight at once, the sector may end up with either value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// When it was made.
    pub from: Time,
    /// When it was answered; `Time::MAX` for a write that failed, which need not take effect.
    pub to: Time,
    /// The time of its answer or failure, after which it takes no effect any more.
    pub until: Time,
    /// A write.
    pub write: bool,
    /// The value that it wrote or read.
    pub value: u32,
}

/// Whether the requests of one sector, which held 0 before, are linearizable: each takes effect
/// at a moment between its beginning and its end, failed writes perhaps never.
pub fn linearizable(seen: &[Seen]) -> bool {
    let mut search = Search {
        seen,
        been: [[0; (1 << REQUESTS) / 64]; REQUESTS + 1],
    };
    search.from(0, 0)
}

struct Search<'a> {
    seen: &'a [Seen],
    /// The states visited: requests that took effect, and the last write.
    been: [[u64; (1 << REQUESTS) / 64]; REQUESTS + 1],
}

impl Search<'_> {
    /// `last` is 1 + the place of the write whose value the sector holds, 0 for none.
    fn from(&mut self, done: usize, last: usize) -> bool {
        let open = |i: &usize| done & (1 << i) == 0;
        let all = 0..self.seen.len();
        let Some(first_end) = all.clone().filter(open).map(|i| self.seen[i].to).min() else {
            return true;
        };
        if first_end == Time::MAX {
            return true;
        }
        let bit = 1 << (done % 64);
        if self.been[last][done / 64] & bit != 0 {
            return false;
        }
        self.been[last][done / 64] |= bit;
        let value = last.checked_sub(1).map_or(0, |i| self.seen[i].value);
        let taken = |i: &usize| done & (1 << i) != 0;
        let now = all
            .clone()
            .filter(taken)
            .map(|i| self.seen[i].from)
            .max()
            .unwrap_or(0);
        for i in all.clone().filter(taken) {
            let op = self.seen[i];
            if op.write && op.until >= now && last != i + 1 && self.from(done, i + 1) {
                return true;
            }
        }
        for i in all.filter(open) {
            let op = self.seen[i];
            // Nothing that had ended before it began may take effect after it.
            if op.from > first_end || op.until < now {
                continue;
            }
            let next = if op.write { i + 1 } else { last };
            if (op.write || op.value == value) && self.from(done | 1 << i, next) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: bool = true;
    const R: bool = false;

    fn op(from: Time, to: Time, write: bool, value: u32) -> Seen {
        Seen {
            from,
            to,
            until: to,
            write,
            value,
        }
    }

    fn failed(from: Time, until: Time, value: u32) -> Seen {
        Seen {
            until,
            ..op(from, Time::MAX, W, value)
        }
    }

    #[test]
    fn one_after_the_other() {
        assert!(linearizable(&[]));
        assert!(linearizable(&[op(0, 1, R, 0)]));
        assert!(!linearizable(&[op(0, 1, R, 5)]));
        assert!(linearizable(&[op(0, 1, W, 5), op(2, 3, R, 5)]));
        assert!(!linearizable(&[op(0, 1, W, 5), op(2, 3, R, 0)]));
        let (a, b) = (op(0, 1, W, 5), op(2, 3, W, 6));
        assert!(linearizable(&[a, b, op(4, 5, R, 6)]));
        assert!(!linearizable(&[a, b, op(4, 5, R, 5)]));
    }

    #[test]
    fn beside_each_other() {
        let w = op(0, 9, W, 5);
        assert!(linearizable(&[w, op(2, 3, R, 0)]));
        assert!(linearizable(&[w, op(2, 3, R, 5)]));
        assert!(!linearizable(&[w, op(2, 3, R, 5), op(4, 5, R, 0)]));
        // A write in flight may be repeated, one that was answered is not.
        let other = op(2, 3, W, 6);
        assert!(linearizable(&[w, op(1, 2, R, 5), other, op(4, 5, R, 5)]));
        assert!(!linearizable(&[
            w,
            other,
            op(10, 11, R, 5),
            op(12, 13, R, 6)
        ]));
    }

    #[test]
    fn failed_writes() {
        let w = failed(0, 1, 7);
        assert!(linearizable(&[w, op(2, 3, R, 7)]));
        assert!(linearizable(&[w, op(2, 3, R, 0)]));
        // It is there or not, but does not come back to life.
        assert!(!linearizable(&[w, op(2, 3, R, 0), op(4, 5, R, 7)]));
        assert!(!linearizable(&[w, op(2, 3, W, 8), op(4, 5, R, 7)]));
    }
}
