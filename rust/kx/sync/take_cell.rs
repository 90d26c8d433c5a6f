// SPDX-License-Identifier: GPL-2.0

//! Passing one value from one context to another, without a lock.
//!
//! # Examples
//!
//! ```
//! use kx::sync::TakeCell;
//!
//! let place = TakeCell::empty();
//! assert!(place.put(1).is_ok());
//! // It is full: the value comes back.
//! assert!(place.put(2) == Err(2));
//! assert!(place.take() == Some(1));
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
use kernel::prelude::*;

/// The slot is free.
const EMPTY: u32 = 0;
/// A caller is moving a value in or out.
const BUSY: u32 = 1;
/// The slot holds a value.
const FULL: u32 = 2;

/// A slot for one value, which several contexts may fill and empty.
///
/// # Context
///
/// Everything here: *any*. No call waits: while a value is being moved in or out, the slot is
/// neither full nor empty for other callers.
///
/// # Invariants
///
/// - `value` is initialised exactly while `state` is [`FULL`].
/// - Only the caller that changed `state` to [`BUSY`] accesses `value`, until it changes `state`
///   again.
pub struct TakeCell<T> {
    state: Atomic<u32>,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: Tasks pass the value on and never share it, so `T: Send` is enough. By the type invariant
// only one task at a time accesses the value.
unsafe impl<T: Send> Sync for TakeCell<T> {}

impl<T> TakeCell<T> {
    /// Creates an empty slot.
    pub const fn empty() -> Self {
        // INVARIANT: Nothing is initialised, and the state says so.
        Self {
            state: Atomic::new(EMPTY),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Creates a slot with a value.
    pub const fn new(value: T) -> Self {
        // INVARIANT: The value is initialised, and the state says so.
        Self {
            state: Atomic::new(FULL),
            value: UnsafeCell::new(MaybeUninit::new(value)),
        }
    }

    /// Puts a value in.
    ///
    /// # Errors
    ///
    /// Returns the value if the slot is full, or if another caller is moving a value.
    pub fn put(&self, value: T) -> Result<(), T> {
        // ORDERING: Pairs with the release store in `take`, which ends the previous use of the
        // slot.
        if self.state.cmpxchg(EMPTY, BUSY, Acquire).is_err() {
            return Err(value);
        }
        // SAFETY: This caller has changed the state from `EMPTY` to `BUSY`, so by the type
        // invariant only this caller accesses the value, which is not initialised.
        unsafe { (*self.value.get()).write(value) };
        // INVARIANT: The value is initialised now.
        // ORDERING: Pairs with the acquire in `take`, which then sees the value.
        self.state.store(FULL, Release);
        Ok(())
    }

    /// Takes the value out, if there is one and no other caller is moving it.
    pub fn take(&self) -> Option<T> {
        // ORDERING: Pairs with the release store in `put`, so that the value is visible.
        if self.state.cmpxchg(FULL, BUSY, Acquire).is_err() {
            return None;
        }
        // SAFETY: This caller has changed the state from `FULL` to `BUSY`, so by the type invariant
        // the value is initialised and only this caller accesses it. Nobody reads it again before
        // another value is put in.
        let value = unsafe { (*self.value.get()).assume_init_read() };
        // INVARIANT: The value was moved out.
        // ORDERING: Pairs with the acquire in `put`, which writes after this read.
        self.state.store(EMPTY, Release);
        Some(value)
    }

    /// Returns whether there is a value right now.
    pub fn is_full(&self) -> bool {
        self.state.load(Relaxed) == FULL
    }
}

impl<T> Drop for TakeCell<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_take_cell)]
mod tests {
    use super::*;
    use kernel::sync::Arc;

    #[test]
    fn holds_one() {
        let cell = TakeCell::empty();
        assert!(!cell.is_full());
        assert_eq!(cell.take(), None);
        assert_eq!(cell.put(1u32), Ok(()));
        assert_eq!(cell.put(2), Err(2));
        assert!(cell.is_full());
        assert_eq!(cell.take(), Some(1));
        assert_eq!(cell.take(), None);
        assert_eq!(TakeCell::new(3u8).take(), Some(3));
    }

    #[test]
    fn drops_what_is_left() -> Result {
        let value = Arc::new((), GFP_KERNEL)?;
        drop(TakeCell::new(value.clone()));
        assert!(Arc::into_unique_or_drop(value).is_some());
        Ok(())
    }
}
