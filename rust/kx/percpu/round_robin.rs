// SPDX-License-Identifier: GPL-2.0

//! A round-robin cursor.

use kernel::prelude::*;

use super::array::Array;

/// Gives the users of each CPU consecutive numbers.
///
/// No number is given twice on a CPU, whoever gets in between, and no memory is shared.
pub struct RoundRobin(Array<1>);

impl RoundRobin {
    /// Creates a cursor that begins with 1.
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

    /// This CPU's next number.
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
#[kernel::macros::kunit_tests(kx_round_robin)]
mod tests {
    use super::super::array::cpus;
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
