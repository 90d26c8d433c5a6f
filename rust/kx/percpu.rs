// SPDX-License-Identifier: GPL-2.0

//! Per-CPU counters, maxima and round-robin cursors.
//!
//! Counting in interrupts writes to no memory that other CPUs write to; readers add up.
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

/// Returns whether there is, or may be one day, a CPU of that number.
///
/// # Context
///
/// *any*
pub fn is_possible(cpu: u32) -> bool {
    // SAFETY: Any number may be asked for.
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
/// `numbers` points to the per-CPU memory of `N` numbers, which belongs to this value.
struct Array<const N: usize> {
    numbers: NonNull<u64>,
}

// SAFETY: Per-CPU memory belongs to no task.
unsafe impl<const N: usize> Send for Array<N> {}

// SAFETY: A CPU changes its own numbers with single instructions; others read and write them whole.
unsafe impl<const N: usize> Sync for Array<N> {}

impl<const N: usize> Array<N> {
    /// Creates numbers that are zero; *may sleep*.
    fn new() -> Result<Self> {
        might_sleep();
        // SAFETY: The size is not that of nothing, and this may sleep. The memory is zeroed.
        let numbers = unsafe {
            bindings::pcpu_alloc_noprof(
                size_of::<[u64; N]>().max(1),
                align_of::<u64>(),
                false,
                bindings::GFP_KERNEL,
            )
        };
        // INVARIANT: The memory was just allocated.
        Ok(Self {
            numbers: NonNull::new(numbers.cast()).ok_or(ENOMEM)?,
        })
    }

    /// Where a number is, if there is such a one.
    fn at(&self, index: usize) -> Option<*mut c_void> {
        // Not a pointer that anything can be read from, but an offset into each CPU's memory.
        (index < N).then(|| self.numbers.as_ptr().wrapping_add(index).cast())
    }

    /// Where a CPU has a number, if there are both.
    fn at_cpu(&self, index: usize, cpu: u32) -> Option<*mut c_void> {
        self.at(index).filter(|_| is_possible(cpu))
    }

    /// Adds to this CPU's number.
    #[inline]
    fn add(&self, index: usize, value: u64) {
        if let Some(number) = self.at(index) {
            // SAFETY: By the type invariant this is a number in per-CPU memory.
            unsafe { ibtrs_bindings::kx_this_cpu_add(number, value) }
        }
    }

    /// Adds one to this CPU's number and returns it; zero if there is none.
    #[inline]
    fn next(&self, index: usize) -> u64 {
        self.at(index).map_or(0, |number| {
            // SAFETY: By the type invariant this is a number in per-CPU memory.
            unsafe { ibtrs_bindings::kx_this_cpu_next(number) }
        })
    }

    /// Raises this CPU's number to a value if it is below that.
    #[inline]
    fn raise(&self, index: usize, value: u64) {
        if let Some(number) = self.at(index) {
            // SAFETY: By the type invariant this is a number in per-CPU memory.
            unsafe { ibtrs_bindings::kx_this_cpu_raise(number, value) }
        }
    }

    /// A CPU's number; zero if there is none. Later reads see values that are at least as new.
    fn get(&self, index: usize, cpu: u32) -> u64 {
        self.at_cpu(index, cpu).map_or(0, |number| {
            // SAFETY: By the type invariant this is a number in per-CPU memory, and each possible
            // CPU has that.
            unsafe { ibtrs_bindings::kx_per_cpu_read(number, cpu) }
        })
    }

    /// Overwrites a CPU's number. A reader of the new number also sees everything that was written
    /// before it.
    fn set(&self, index: usize, cpu: u32, value: u64) {
        if let Some(number) = self.at_cpu(index, cpu) {
            // SAFETY: By the type invariant this is a number in per-CPU memory, and each possible
            // CPU has that.
            unsafe { ibtrs_bindings::kx_per_cpu_write(number, cpu, value) }
        }
    }
}

impl<const N: usize> Drop for Array<N> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the memory belongs to this value.
        unsafe { bindings::free_percpu(self.numbers.as_ptr().cast()) }
    }
}
