// SPDX-License-Identifier: GPL-2.0

//! Publishing a value that readers reach without a lock.
//!
//! C header: [`include/linux/rcupdate.h`](srctree/include/linux/rcupdate.h)

use crate::pr_err_ratelimited;
use core::{
    marker::PhantomData,
    ptr, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        rcu, //
    },
    task::might_sleep, //
};

/// A boxed value, or none, that is replaced as a whole while others read it.
///
/// Readers never wait. A writer waits for the readers of the former value before it gets that back.
/// Writers need no lock for the pointer's sake; those that derive the new value from the old one
/// need one among themselves.
///
/// # Context
///
/// Reading: *any*. Replacing and dropping: *may sleep*.
///
/// # Invariants
///
/// `ptr` is null, or comes from [`KBox::into_raw`], is owned by this value, and may be read by
/// tasks that loaded it inside an RCU read section that has not ended.
pub struct RcuPtr<T> {
    ptr: Atomic<*mut T>,
    _owns: PhantomData<KBox<T>>,
}

// SAFETY: The value inside is dropped where this one is, or given to the task that replaces it.
unsafe impl<T: Send> Send for RcuPtr<T> {}

// SAFETY: Readers on several tasks share the value (`Sync`); the task that replaces it gets it
// (`Send`).
unsafe impl<T: Send + Sync> Sync for RcuPtr<T> {}

impl<T> RcuPtr<T> {
    /// Creates a pointer to a value, or to none.
    pub fn new(value: Option<KBox<T>>) -> Self {
        // INVARIANT: The box is now owned by the new value.
        Self {
            ptr: Atomic::new(into_raw(value)),
            _owns: PhantomData,
        }
    }

    /// Creates a pointer to no value, also in a `static`.
    pub const fn null() -> Self {
        // INVARIANT: The pointer is null.
        Self {
            ptr: Atomic::new(ptr::null_mut()),
            _owns: PhantomData,
        }
    }

    /// Starts reading: until the result is dropped, the value stays as it is.
    ///
    /// Nothing may sleep meanwhile.
    #[inline]
    pub fn read(&self) -> RcuRef<'_, T> {
        let guard = rcu::read_lock();
        // ORDERING: Pairs with the full barrier of `replace`: readers see all that the writer did
        // to the value before, as their accesses depend on the pointer.
        let ptr = self.ptr.load(Relaxed);
        // INVARIANT: The pointer was loaded after the read section began.
        RcuRef {
            // SAFETY: By the type invariant the pointer, if there is one, is valid until the read
            // section ends, and that ends when the result is dropped.
            value: unsafe { ptr.as_ref() },
            _guard: guard,
        }
    }

    /// Publishes another value, waits for the readers of the former one, and returns that.
    ///
    /// A caller inside an RCU read section of its own, which [`Self::read`] or [`rcu::read_lock`]
    /// has begun, might be such a reader, and be waited for by itself. It is refused: the new
    /// value comes back, the former one stays, and the log has a line. Kernels that never preempt
    /// and are built without `CONFIG_PREEMPT_COUNT` cannot tell; there, to call this in such a
    /// section is as wrong as to sleep in it, which Rust does not check anywhere.
    pub fn replace(&self, value: Option<KBox<T>>) -> Option<KBox<T>> {
        // SAFETY: May be called anywhere.
        if unsafe { ibtrs_bindings::kx_in_rcu_section() } {
            pr_err_ratelimited!("bug: a pointer is replaced inside an RCU read section: refused\n");
            return value;
        }
        might_sleep();
        // INVARIANT: The new box is now owned by this value, the old pointer by the caller.
        // ORDERING: Pairs with the dependent accesses in `read`.
        let old = self.ptr.xchg(into_raw(value), Full);
        if old.is_null() {
            return None;
        }
        rcu::synchronize_rcu();
        // SAFETY: By the type invariant the pointer comes from a box. Every reader that could have
        // loaded it has left the read section: other tasks by the grace period, this one by the
        // check above.
        Some(unsafe { KBox::from_raw(old) })
    }
}

fn into_raw<T>(value: Option<KBox<T>>) -> *mut T {
    value.map_or(ptr::null_mut(), KBox::into_raw)
}

impl<T> Drop for RcuPtr<T> {
    fn drop(&mut self) {
        // Readers borrow `self`, so there are none, and no grace period is needed.
        let ptr = self.ptr.load(Relaxed);
        if !ptr.is_null() {
            // SAFETY: By the type invariant the pointer comes from a box that is owned here.
            drop(unsafe { KBox::from_raw(ptr) });
        }
    }
}

/// The value of an [`RcuPtr`], and the read section in which it is valid.
///
/// # Invariants
///
/// `value` was loaded inside the section that `_guard` stands for.
pub struct RcuRef<'a, T> {
    value: Option<&'a T>,
    _guard: rcu::Guard,
}

impl<T> RcuRef<'_, T> {
    /// The value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.value
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_rcu_ptr)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_it_had() -> Result {
        let ptr = RcuPtr::null();
        assert_eq!(ptr.read().get(), None);
        assert!(ptr.replace(Some(KBox::new(1u32, GFP_KERNEL)?)).is_none());
        assert_eq!(ptr.read().get(), Some(&1));
        let old = ptr.replace(Some(KBox::new(2, GFP_KERNEL)?));
        assert_eq!(old.as_deref(), Some(&1));
        let read = ptr.read();
        assert_eq!(read.get(), Some(&2));
        // A reader cannot replace the value that it reads.
        let new = KBox::new(3, GFP_ATOMIC)?;
        assert_eq!(ptr.replace(Some(new)).as_deref(), Some(&3));
        assert!(ptr.replace(None).is_none());
        assert_eq!(read.get(), Some(&2));
        drop(read);
        assert_eq!(ptr.replace(None).as_deref(), Some(&2));
        assert_eq!(ptr.read().get(), None);
        Ok(())
    }
}
