// SPDX-License-Identifier: GPL-2.0

//! Atomics that are loaded and stored without a call.
//!
//! The atomics of the kernel crate call a helper in C for each access, which is inlined only into
//! kernels that clang built with `CONFIG_RUST_INLINE_HELPERS`. Loads and stores are most accesses,
//! and mostly one instruction. Everything else is that of [`kernel::sync::atomic`], to which these
//! atomics dereference.
//!
//! # Examples
//!
//! ```
//! use kx::sync::atomic::{Acquire, Atomic, AtomicFlag, Full, Relaxed, Release};
//!
//! let count = Atomic::new(0u32);
//! count.fetch_add(1, Relaxed);
//! assert!(count.cmpxchg(1, 2, Full).is_ok());
//! let is_ready = AtomicFlag::new(false);
//! is_ready.store(true, Release);
//! assert!(is_ready.load(Acquire));
//! ```

use kernel::sync::atomic::{
    ordering::{
        AcquireOrRelaxed,
        OrderingType,
        ReleaseOrRelaxed, //
    },
    Atomic as Plain,
    AtomicType, //
};
pub use kernel::sync::atomic::{
    Acquire,
    Full,
    Relaxed,
    Release, //
};

/// Whether loads and stores are inline. x86-64 processors do not reorder a load with later
/// accesses, or a store with earlier ones, so acquire and release need only a compiler barrier, as
/// in `smp_load_acquire` and `smp_store_release` of C. The kernel's checker for races (KCSAN) must
/// see the accesses.
const HERE: bool = cfg!(all(
    target_arch = "x86_64",
    not(CONFIG_RUST_INLINE_HELPERS),
    not(CONFIG_KCSAN)
));

/// The compiler moves no access to memory across this function, `barrier()` in C.
#[inline(always)]
fn barrier() {
    // SAFETY: Nothing is executed. The compiler must assume that any memory is read and written.
    unsafe { core::arch::asm!("", options(nostack, preserves_flags)) };
}

mod private {
    /// Implemented by booleans, numbers and pointers only.
    pub trait Sealed {}
}

/// Loads and stores of the kernel crate, whose own trait of them is private.
pub trait Access: AtomicType + private::Sealed {
    /// See [`Atomic::load`].
    fn load(from: &Plain<Self>, order: impl AcquireOrRelaxed) -> Self;
    /// See [`Atomic::store`].
    fn store(to: &Plain<Self>, value: Self, order: impl ReleaseOrRelaxed);
}

macro_rules! access {
    ($($({$($of:tt)*})? $type:ty),*) => {
        $(impl $(<$($of)*>)? private::Sealed for $type {}

        impl $(<$($of)*>)? Access for $type {
            #[inline(always)]
            fn load(from: &Plain<Self>, order: impl AcquireOrRelaxed) -> Self {
                from.load(order)
            }

            #[inline(always)]
            fn store(to: &Plain<Self>, value: Self, order: impl ReleaseOrRelaxed) {
                to.store(value, order)
            }
        })*
    };
}
access!(bool, i32, u32, i64, u64, isize, usize, {T} *mut T);

/// An atomic memory location, see [`kernel::sync::atomic::Atomic`].
#[repr(transparent)]
pub struct Atomic<T: AtomicType>(Plain<T>);

/// An atomic boolean, of one byte on every architecture.
pub type AtomicFlag = Atomic<bool>;

impl<T: AtomicType> Atomic<T> {
    /// Creates an atomic with the value `value`.
    #[inline(always)]
    pub const fn new(value: T) -> Self {
        Self(Plain::new(value))
    }

    /// Returns the value; exclusive access needs no atomic operation.
    #[inline(always)]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: Access> Atomic<T> {
    /// Loads the value.
    #[inline(always)]
    pub fn load<O: AcquireOrRelaxed>(&self, order: O) -> T {
        if !HERE {
            return T::load(&self.0, order);
        }
        // SAFETY: The pointer is valid and aligned, as the atomic guarantees, and the stored value
        // is a valid `T`. Concurrent accesses are atomic. `T` is an integer or a pointer, for which
        // an aligned volatile access is a single access of the processor (`READ_ONCE` in C); the
        // kernel's memory model allows it alongside its atomic operations.
        let value = unsafe { self.0.as_ptr().read_volatile() };
        if matches!(O::TYPE, OrderingType::Acquire) {
            barrier();
        }
        value
    }

    /// Stores a value.
    #[inline(always)]
    pub fn store<O: ReleaseOrRelaxed>(&self, value: T, order: O) {
        if !HERE {
            return T::store(&self.0, value, order);
        }
        if matches!(O::TYPE, OrderingType::Release) {
            barrier();
        }
        // SAFETY: As in `load`; this is `WRITE_ONCE` in C.
        unsafe { self.0.as_ptr().write_volatile(value) };
    }
}

impl<T: AtomicType> core::ops::Deref for Atomic<T> {
    type Target = Plain<T>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_atomic)]
mod tests {
    use super::*;

    /// Each kind of access sees what the others have stored.
    #[test]
    fn all_accesses_agree() {
        let number = Atomic::new(1u32);
        assert_eq!((number.load(Relaxed), number.load(Acquire)), (1, 1));
        number.store(u32::MAX, Relaxed);
        assert_eq!(number.xchg(7, Full), u32::MAX);
        number.store(8, Release);
        assert_eq!(number.fetch_add(1, Relaxed), 8);
        assert_eq!(number.cmpxchg(9, 10, Full), Ok(9));
        assert_eq!(number.load(Acquire), 10);
        let wide = Atomic::new(1u64 << 40);
        wide.store(wide.load(Relaxed) + 1, Relaxed);
        assert_eq!(wide.load(Acquire), (1 << 40) + 1);
        let flag = AtomicFlag::new(false);
        flag.store(true, Release);
        assert!(flag.load(Relaxed) && flag.xchg(false, Full) && !flag.load(Acquire));
        let mut byte = 5u8;
        let pointer = Atomic::new(core::ptr::null_mut::<u8>());
        pointer.store(&raw mut byte, Relaxed);
        assert_eq!(pointer.load(Relaxed), &raw mut byte);
    }
}
