// SPDX-License-Identifier: GPL-2.0

//! Counters that each CPU keeps for itself.
//!
//! C header: [`include/linux/percpu.h`](srctree/include/linux/percpu.h)

use core::ptr::NonNull;
use kernel::{
    bindings,
    cpu::nr_cpu_ids,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    task::might_sleep, //
};

/// `N` counters, each one number per CPU.
///
/// Counting is a single instruction on the CPU's own memory; reading adds up all CPUs. Numbers read
/// while others count may be a little old.
///
/// # Invariants
///
/// `counters` points to the per-CPU memory of `N` numbers, which belongs to this value.
pub struct Counters<const N: usize> {
    counters: NonNull<u64>,
    /// What [`Self::sum`] was when the counter was reset.
    reset_at: [Atomic<u64>; N],
}

// SAFETY: Per-CPU memory belongs to no task.
unsafe impl<const N: usize> Send for Counters<N> {}

// SAFETY: A CPU changes its own numbers only, with interrupts shut out; others read them whole.
unsafe impl<const N: usize> Sync for Counters<N> {}

impl<const N: usize> Counters<N> {
    /// Makes counters that are zero.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new() -> Result<Self> {
        might_sleep();
        // SAFETY: The size is not that of nothing, and this may sleep. The memory is zeroed.
        let counters = unsafe {
            bindings::pcpu_alloc_noprof(
                size_of::<[u64; N]>().max(1),
                align_of::<u64>(),
                false,
                bindings::GFP_KERNEL,
            )
        };
        // INVARIANT: The memory was just allocated.
        Ok(Self {
            counters: NonNull::new(counters.cast()).ok_or(ENOMEM)?,
            reset_at: [const { Atomic::new(0) }; N],
        })
    }

    /// Where a counter is, if there is such a one.
    fn at(&self, counter: usize) -> Option<*mut c_void> {
        // Not a pointer that anything can be read from, but an offset into each CPU's memory.
        (counter < N).then(|| self.counters.as_ptr().wrapping_add(counter).cast())
    }

    /// Adds to a counter; there is none at an index from `N` on, and nothing happens then.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn add(&self, counter: usize, value: u64) {
        if let Some(counter) = self.at(counter) {
            // SAFETY: By the type invariant this is a number in per-CPU memory.
            unsafe { ibtrs_bindings::kx_this_cpu_add(counter, value) }
        }
    }

    /// Adds one to a counter.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn inc(&self, counter: usize) {
        self.add(counter, 1);
    }

    /// What a CPU has counted since the counters were made, of resets regardless.
    ///
    /// # Context
    ///
    /// *any*
    pub fn on_cpu(&self, counter: usize, cpu: u32) -> u64 {
        // SAFETY: Any number may be asked for.
        if !unsafe { ibtrs_bindings::cpu_possible(cpu) } {
            return 0;
        }
        self.at(counter).map_or(0, |counter| {
            // SAFETY: By the type invariant this is a number in per-CPU memory, and each possible
            // CPU has that.
            unsafe { ibtrs_bindings::kx_per_cpu_read(counter, cpu) }
        })
    }

    fn total(&self, counter: usize) -> u64 {
        (0..nr_cpu_ids()).fold(0, |sum, cpu| sum.wrapping_add(self.on_cpu(counter, cpu)))
    }

    /// What all CPUs have counted since the last reset.
    ///
    /// # Context
    ///
    /// *any*
    pub fn sum(&self, counter: usize) -> u64 {
        let reset_at = self.reset_at.get(counter).map_or(0, |at| at.load(Relaxed));
        self.total(counter).wrapping_sub(reset_at)
    }

    /// Lets all counters begin at zero again.
    ///
    /// # Context
    ///
    /// *any*
    pub fn reset(&self) {
        for (counter, at) in self.reset_at.iter().enumerate() {
            at.store(self.total(counter), Relaxed);
        }
    }
}

impl<const N: usize> Drop for Counters<N> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the memory belongs to this value.
        unsafe { bindings::free_percpu(self.counters.as_ptr().cast()) }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_counters)]
mod tests {
    use super::*;
    use kernel::cpu::CpuId;

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
        counters.reset();
        assert_eq!((counters.sum(0), counters.sum(1)), (0, 0));
        counters.inc(1);
        assert_eq!((counters.sum(0), counters.sum(1)), (0, 1));
        let by_cpu: u64 = (0..nr_cpu_ids()).map(|cpu| counters.on_cpu(0, cpu)).sum();
        assert_eq!(by_cpu, 10);
        assert_eq!(counters.on_cpu(0, u32::MAX), 0);
        assert!(CpuId::from_u32(0).is_some());
        Ok(())
    }
}
