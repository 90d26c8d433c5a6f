// SPDX-License-Identifier: GPL-2.0

//! Per-CPU counters, maxima and round-robin cursors.
//!
//! A CPU counts in its own memory, also in interrupts; readers add up the numbers of all CPUs.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::percpu::{Counters, Maxima, RoundRobin};
//!
//! const SENT: usize = 0;
//!
//! let counters = Counters::<2>::new()?;
//! counters.add(SENT, 4096);
//! let sent = counters.sum(SENT);
//! let longest = Maxima::<1>::new()?;
//! longest.raise(0, 25);
//! // Which of three, in turn.
//! let next = RoundRobin::new()?.next() % 3;
//! # let _ = (sent, next);
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/percpu.h`](srctree/include/linux/percpu.h)

use core::ptr::NonNull;
use kernel::{
    bindings,
    cpu::nr_cpu_ids,
    prelude::*,
    task::might_sleep, //
};

mod counters;

pub use counters::{
    Counters,
    Maxima,
    RoundRobin, //
};

/// Returns whether `cpu` is the number of a possible CPU, online or not.
///
/// # Context
///
/// *any*
pub fn is_possible(cpu: u32) -> bool {
    // SAFETY: The callee accepts any number.
    unsafe { ibtrs_bindings::cpu_possible(cpu) }
}

/// The possible CPUs.
fn cpus() -> impl Iterator<Item = u32> {
    (0..nr_cpu_ids()).filter(|cpu| is_possible(*cpu))
}

/// `N` numbers for each CPU.
///
/// # Invariants
///
/// `numbers` points to per-CPU memory of `N` numbers, which this value owns.
struct Array<const N: usize> {
    numbers: NonNull<u64>,
}

// SAFETY: Per-CPU memory has no thread affinity.
unsafe impl<const N: usize> Send for Array<N> {}

// SAFETY: A CPU updates its own numbers atomically with respect to its interrupts; other CPUs read
// and write whole numbers.
unsafe impl<const N: usize> Sync for Array<N> {}

impl<const N: usize> Array<N> {
    /// Creates numbers of zero; *may sleep*.
    fn new() -> Result<Self> {
        might_sleep();
        // SAFETY: The size is not zero, and this function may sleep. The memory is zeroed.
        let numbers = unsafe {
            bindings::pcpu_alloc_noprof(
                size_of::<[u64; N]>().max(1),
                align_of::<u64>(),
                false,
                bindings::GFP_KERNEL,
            )
        };
        // INVARIANT: The memory was just allocated, for `N` numbers on each CPU.
        Ok(Self {
            numbers: NonNull::new(numbers.cast()).ok_or(ENOMEM)?,
        })
    }

    /// Returns the per-CPU pointer to a number, or `None` for an index from `N` on.
    #[inline]
    fn at(&self, index: usize) -> Option<*mut c_void> {
        // A per-CPU pointer is an offset into each CPU's memory, and is never dereferenced itself.
        (index < N).then(|| self.numbers.as_ptr().wrapping_add(index).cast())
    }

    /// Returns the per-CPU pointer to a number, or `None` unless both the number and the CPU exist.
    fn at_cpu(&self, index: usize, cpu: u32) -> Option<*mut c_void> {
        self.at(index).filter(|_| is_possible(cpu))
    }

    /// Adds to this CPU's number; does nothing for an index from `N` on.
    #[inline]
    fn add(&self, index: usize, value: u64) {
        if let Some(number) = self.at(index) {
            // SAFETY: `at` returns the per-CPU pointer of one of the numbers.
            unsafe { ibtrs_bindings::kx_this_cpu_add(number, value) }
        }
    }

    /// Increments this CPU's number and returns it; zero for an index from `N` on.
    #[inline]
    fn next(&self, index: usize) -> u64 {
        self.at(index).map_or(0, |number| {
            // SAFETY: As in `add`.
            unsafe { ibtrs_bindings::kx_this_cpu_next(number) }
        })
    }

    /// Raises this CPU's number to `value` if it is lower.
    #[inline]
    fn raise(&self, index: usize, value: u64) {
        if let Some(number) = self.at(index) {
            // SAFETY: As in `add`.
            unsafe { ibtrs_bindings::kx_this_cpu_raise(number, value) }
        }
    }

    /// Returns a CPU's number, or zero if the number or the CPU does not exist. The read has
    /// acquire ordering, so later reads see values that are at least as new.
    fn get(&self, index: usize, cpu: u32) -> u64 {
        self.at_cpu(index, cpu).map_or(0, |number| {
            // SAFETY: `at_cpu` returns the per-CPU pointer of one of the numbers, and has checked
            // that the CPU is possible.
            unsafe { ibtrs_bindings::kx_per_cpu_read(number, cpu) }
        })
    }

    /// Overwrites a CPU's number. The write has release ordering, so a reader of the new number
    /// also sees everything that was written before.
    fn set(&self, index: usize, cpu: u32, value: u64) {
        if let Some(number) = self.at_cpu(index, cpu) {
            // SAFETY: As in `get`.
            unsafe { ibtrs_bindings::kx_per_cpu_write(number, cpu, value) }
        }
    }
}

impl<const N: usize> Drop for Array<N> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, this value owns the memory.
        unsafe { bindings::free_percpu(self.numbers.as_ptr().cast()) }
    }
}
