// SPDX-License-Identifier: GPL-2.0

//! Per-CPU maxima.

use core::ops::Range;
use kernel::prelude::*;

use super::array::{
    cpus,
    Array, //
};

/// `N` numbers that only grow, each kept by every CPU for itself.
pub struct Maxima<const N: usize> {
    seen: Array<N>,
}

impl<const N: usize> Maxima<N> {
    /// Makes numbers that are zero.
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

    /// Raises a number to a value if it is below that; there is none at an index from `N` on, and
    /// nothing happens then.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn raise(&self, index: usize, value: u64) {
        self.seen.raise(index, value);
    }

    /// The largest value that any CPU has seen since the last reset.
    ///
    /// # Context
    ///
    /// *any*
    pub fn max(&self, index: usize) -> u64 {
        cpus().fold(0, |max, cpu| max.max(self.seen.get(index, cpu)))
    }

    /// Lets all numbers begin at zero again; one that is raised at the same time may stay.
    ///
    /// # Context
    ///
    /// *any*
    pub fn reset(&self) {
        self.reset_some(0..N);
    }

    /// Like [`Self::reset`], for a range of the numbers.
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

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_maxima)]
mod tests {
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
