// SPDX-License-Identifier: GPL-2.0

//! A value that is set at most once.
//!
//! # Examples
//!
//! ```
//! use kx::sync::SetOnce;
//!
//! static NAME: SetOnce<u32> = SetOnce::new();
//!
//! assert!(NAME.populate(1) && !NAME.populate(2));
//! assert!(NAME.copy() == Some(1));
//! ```

use crate::sync::atomic::{
    Acquire,
    Atomic,
    Relaxed,
    Release, //
};
use core::{
    cell::UnsafeCell,
    mem::MaybeUninit, //
};

/// There is no value yet.
const EMPTY: u32 = 0;
/// A caller is moving the value in.
const BUSY: u32 = 1;
/// There is a value, for good.
const SET: u32 = 2;

/// A container for a value that is set at most once. Unlike [`kernel::sync::SetOnce`], it is read
/// without a call, see [`atomic`](crate::sync::atomic).
///
/// # Context
///
/// Everything here: *any*.
///
/// # Invariants
///
/// - `state` goes from [`EMPTY`] to [`BUSY`] to [`SET`], and never back.
/// - `value` is initialised exactly while `state` is [`SET`]. Only the caller that changed `state`
///   to [`BUSY`] accesses it before.
pub struct SetOnce<T> {
    state: Atomic<u32>,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: The value moves with its container.
unsafe impl<T: Send> Send for SetOnce<T> {}

// SAFETY: Several tasks may share the value (`Sync`), and the task that sets it may be another than
// the one that drops it (`Send`).
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}

impl<T> SetOnce<T> {
    /// Creates an empty container.
    pub const fn new() -> Self {
        // INVARIANT: Nothing is initialised, and the state says so.
        Self {
            state: Atomic::new(EMPTY),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Returns the value, if it was set.
    #[inline]
    pub fn as_ref(&self) -> Option<&T> {
        // ORDERING: Pairs with the release in `populate`, so that the value is visible.
        if self.state.load(Acquire) != SET {
            return None;
        }
        // SAFETY: By the type invariant the value is initialised, and nobody writes it any more.
        Some(unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Returns a copy of the value, if it was set.
    #[inline]
    pub fn copy(&self) -> Option<T>
    where
        T: Copy,
    {
        self.as_ref().copied()
    }

    /// Sets the value; returns false, and drops `value`, if it was set before or another task is
    /// setting it.
    pub fn populate(&self, value: T) -> bool {
        if self.state.cmpxchg(EMPTY, BUSY, Relaxed).is_err() {
            return false;
        }
        // SAFETY: This caller has changed the state from `EMPTY` to `BUSY`, so by the type
        // invariant only this caller accesses the value, which is not initialised.
        unsafe { (*self.value.get()).write(value) };
        // INVARIANT: The value is initialised now.
        // ORDERING: Pairs with the acquire in `as_ref`.
        self.state.store(SET, Release);
        true
    }
}

impl<T> Default for SetOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for SetOnce<T> {
    fn drop(&mut self) {
        if *self.state.get_mut() == SET {
            // SAFETY: By the type invariant the value is initialised, and nobody uses it any more.
            unsafe { self.value.get_mut().assume_init_drop() };
        }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_set_once)]
mod tests {
    use super::*;
    use kernel::{
        prelude::*,
        sync::Arc, //
    };

    #[test]
    fn is_set_once() {
        let number = SetOnce::new();
        assert_eq!((number.as_ref(), number.copy()), (None, None));
        assert!(number.populate(42u8) && !number.populate(101));
        assert_eq!((number.as_ref(), number.copy()), (Some(&42), Some(42)));
    }

    #[test]
    fn drops_each_value_once() -> Result {
        let value = Arc::new((), GFP_KERNEL)?;
        let place = SetOnce::new();
        assert!(place.populate(value.clone()) && !place.populate(value.clone()));
        drop(place);
        drop(SetOnce::<Arc<()>>::new());
        assert!(Arc::into_unique_or_drop(value).is_some());
        Ok(())
    }
}
