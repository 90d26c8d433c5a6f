// SPDX-License-Identifier: GPL-2.0

//! Per-CPU counters, maxima and round-robin cursors.

use core::ops::Range;
use kernel::prelude::*;

use super::{
    cpus,
    Array, //
};

/// `N` counters, each one number per CPU.
///
/// Counting changes only the CPU's own memory; reading adds up the numbers of all CPUs. A sum that
/// is read while other CPUs count may be slightly out of date. Counters wrap at 64 bits.
pub struct Counters<const N: usize> {
    /// Never reset, so that no CPU writes to the memory in which another one counts.
    counted: Array<N>,
    /// The value of `counted` at the last reset. Only readers use it.
    reset_at: Array<N>,
}

impl<const N: usize> Counters<N> {
    /// Creates counters of zero.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new() -> Result<Self> {
        Ok(Self {
            counted: Array::new()?,
            reset_at: Array::new()?,
        })
    }

    /// Adds `value` to a counter; does nothing for an index from `N` on.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn add(&self, counter: usize, value: u64) {
        self.counted.add(counter, value);
    }

    /// Increments a counter; does nothing for an index from `N` on.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn inc(&self, counter: usize) {
        self.add(counter, 1);
    }

    /// Returns a CPU's count since the last reset, or zero if the counter or the CPU does not
    /// exist.
    ///
    /// # Context
    ///
    /// *any*
    pub fn on_cpu(&self, counter: usize, cpu: u32) -> u64 {
        // ORDERING: `reset_at` is read first, with acquire ordering, so that the value cannot
        // exceed `counted` if the counter is reset concurrently.
        let reset_at = self.reset_at.get(counter, cpu);
        self.counted.get(counter, cpu).wrapping_sub(reset_at)
    }

    /// Returns the count of all CPUs since the last reset.
    ///
    /// # Context
    ///
    /// *any*
    pub fn sum(&self, counter: usize) -> u64 {
        cpus().fold(0, |sum, cpu| sum.wrapping_add(self.on_cpu(counter, cpu)))
    }

    /// Returns the count of all CPUs since the counters were created, regardless of resets.
    ///
    /// # Context
    ///
    /// *any*
    pub fn total(&self, counter: usize) -> u64 {
        cpus().fold(0, |sum, cpu| {
            sum.wrapping_add(self.counted.get(counter, cpu))
        })
    }

    /// Resets all counters to zero.
    ///
    /// # Context
    ///
    /// *any*
    pub fn reset(&self) {
        self.reset_some(0..N);
    }

    /// Resets a range of counters to zero; ignores indexes from `N` on.
    ///
    /// # Context
    ///
    /// *any*
    pub fn reset_some(&self, counters: Range<usize>) {
        for counter in counters {
            for cpu in cpus() {
                let counted = self.counted.get(counter, cpu);
                self.reset_at.set(counter, cpu, counted);
            }
        }
    }
}

/// `N` maxima, each one number per CPU.
pub struct Maxima<const N: usize> {
    seen: Array<N>,
}

impl<const N: usize> Maxima<N> {
    /// Creates maxima of zero.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new() -> Result<Self> {
        Ok(Self {
            seen: Array::new()?,
        })
    }

    /// Raises a maximum to `value` if it is lower; does nothing for an index from `N` on.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn raise(&self, index: usize, value: u64) {
        self.seen.raise(index, value);
    }

    /// Returns the largest value on any CPU since the last reset.
    ///
    /// # Context
    ///
    /// *any*
    pub fn max(&self, index: usize) -> u64 {
        cpus().fold(0, |max, cpu| max.max(self.seen.get(index, cpu)))
    }

    /// Resets all maxima to zero; a value raised concurrently may survive.
    ///
    /// # Context
    ///
    /// *any*
    pub fn reset(&self) {
        self.reset_some(0..N);
    }

    /// Like [`Self::reset`], for a range of maxima.
    ///
    /// # Context
    ///
    /// *any*
    pub fn reset_some(&self, range: Range<usize>) {
        for index in range {
            for cpu in cpus() {
                self.seen.set(index, cpu, 0);
            }
        }
    }
}

/// A cursor per CPU, for round-robin choices.
///
/// Callers on one CPU, interrupts included, never get the same number, and CPUs share no memory.
pub struct RoundRobin(Array<1>);

impl RoundRobin {
    /// Creates a cursor whose numbers begin with 1 on each CPU.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new() -> Result<Self> {
        Ok(Self(Array::new()?))
    }

    /// Returns this CPU's next number.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn next(&self) -> u64 {
        self.0.next(0)
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_counters)]
mod tests {
    use super::*;
    use crate::work::{
        Options,
        Queue, //
    };
    use kernel::sync::Arc;

    /// A reader that runs concurrently with counting and resets never sees a negative number, which
    /// would show up as one of twenty digits.
    #[test]
    fn resets_at_any_time() -> Result {
        const TIMES: u32 = 200_000;
        let counters = Arc::new(Counters::<1>::new()?, GFP_KERNEL)?;
        let queue = Queue::new(Options::unbound(), fmt!("kx-counters"))?;
        let others = counters.clone();
        queue.spawn(GFP_KERNEL, move || {
            for _ in 0..TIMES {
                others.inc(0);
                others.reset();
            }
        })?;
        let negative = (0..TIMES).filter(|_| counters.sum(0) > u64::from(TIMES));
        assert_eq!(negative.count(), 0);
        Ok(())
    }

    #[test]
    fn counts() -> Result {
        let counters = Counters::<2>::new()?;
        for _ in 0..10 {
            counters.inc(0);
        }
        counters.add(1, 5);
        counters.add(2, 1);
        assert_eq!((counters.sum(0), counters.sum(1)), (10, 5));
        assert_eq!(counters.sum(2), 0);
        let by_cpu: u64 = cpus().map(|cpu| counters.on_cpu(0, cpu)).sum();
        assert_eq!(by_cpu, 10);
        assert_eq!(counters.on_cpu(0, u32::MAX), 0);
        Ok(())
    }

    #[test]
    fn resets() -> Result {
        let counters = Counters::<3>::new()?;
        for counter in 0..3 {
            counters.add(counter, 7);
        }
        counters.reset_some(1..2);
        assert_eq!(
            (counters.sum(0), counters.sum(1), counters.sum(2)),
            (7, 0, 7)
        );
        counters.inc(1);
        assert_eq!((counters.sum(1), counters.total(1)), (1, 8));
        counters.reset();
        counters.reset_some(2..5);
        assert_eq!(
            (counters.sum(0), counters.sum(1), counters.sum(2)),
            (0, 0, 0)
        );
        assert!(cpus().all(|cpu| counters.on_cpu(0, cpu) == 0));
        assert_eq!((counters.total(0), counters.total(3)), (7, 0));
        Ok(())
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_maxima)]
mod maxima_tests {
    use super::*;

    #[test]
    fn keeps_the_largest() -> Result {
        let maxima = Maxima::<2>::new()?;
        for value in [3, u64::MAX, 7] {
            maxima.raise(0, value);
        }
        maxima.raise(1, 7);
        maxima.raise(1, 3);
        maxima.raise(2, 9);
        assert_eq!(
            (maxima.max(0), maxima.max(1), maxima.max(2)),
            (u64::MAX, 7, 0)
        );
        maxima.reset_some(0..1);
        assert_eq!((maxima.max(0), maxima.max(1)), (0, 7));
        maxima.raise(0, 1);
        assert_eq!(maxima.max(0), 1);
        maxima.reset();
        assert_eq!((maxima.max(0), maxima.max(1)), (0, 0));
        Ok(())
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_round_robin)]
mod round_robin_tests {
    use super::*;

    #[test]
    fn each_cpu_counts() -> Result {
        let round_robin = RoundRobin::new()?;
        for _ in 0..10 {
            assert!(round_robin.next() > 0);
        }
        let given: u64 = cpus().map(|cpu| round_robin.0.get(0, cpu)).sum();
        assert_eq!(given, 10);
        Ok(())
    }
}
