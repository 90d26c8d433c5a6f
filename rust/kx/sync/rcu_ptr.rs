// SPDX-License-Identifier: GPL-2.0

//! Publishing a value that tasks read without a lock.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::sync::RcuPtr;
//!
//! let table = RcuPtr::new(Some(KBox::new([1, 2], GFP_KERNEL)?));
//! let first = table.read().get().map(|table| table[0]);
//! // Waits until no task reads the former table.
//! let former = table.replace(None);
//! # let _ = (first, former);
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/rcupdate.h`](srctree/include/linux/rcupdate.h)

use crate::{
    pr_err_ratelimited,
    sync::atomic::{
        Atomic,
        Full,
        Relaxed, //
    }, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    bindings,
    ffi::c_ulong,
    prelude::*,
    sync::rcu,
    task::might_sleep, //
};

/// An optional boxed value that is replaced as a whole while others read it.
///
/// Readers never wait. A writer gets the former value after waiting for its readers, or waits for them
/// later ([`Retired`]). Writers need no lock for the pointer itself, but must serialize themselves if they
/// derive the new value from the old one.
///
/// # Context
///
/// Reading and publishing: *any*. Replacing and dropping: *may sleep*.
///
/// # Sleeping in a read section
///
/// A [read section](Self::read) must not sleep. Neither this crate nor the kernel crate, whose
/// `rcu::Guard` has the same rule, can enforce that at compile time: the section is a state of the
/// task, and whether a function sleeps is not part of its type. The compiler does check that a
/// section ends in the task that has begun it, and that no reference to the value outlives the
/// section. The rest is checked at run time:
///
/// - A task that calls [`Self::replace`] or [`Retired::wait`] inside a read section is refused.
/// - With `CONFIG_PREEMPT_RCU`, which kernels with `CONFIG_PREEMPT_DYNAMIC` have, a grace period
///   waits for a section even if it sleeps. The kernel warns, but the value remains valid.
/// - In any other kernel, the scheduler reports a section that sleeps (`scheduling while atomic`),
///   and the value may be freed before the section ends.
/// - Each function of this crate that *may sleep* calls `might_sleep()`, and so do the locks of the
///   kernel crate. With `CONFIG_PROVE_RCU`, as in the debug kernel, lockdep reports such a call
///   in a section even if it does not sleep.
///
/// # Invariants
///
/// `ptr` is null, or comes from [`KBox::into_raw`]. This value owns it, and tasks that loaded it
/// inside an RCU read section may read it until their section ends.
pub struct RcuPtr<T> {
    ptr: Atomic<*mut T>,
    _owns: PhantomData<KBox<T>>,
}

// SAFETY: The task that drops this pointer drops the value, and the task that replaces the value
// gets it.
unsafe impl<T: Send> Send for RcuPtr<T> {}

// SAFETY: Several tasks may read the value at a time (`Sync`), and the task that replaces the value
// gets it (`Send`).
unsafe impl<T: Send + Sync> Sync for RcuPtr<T> {}

impl<T> RcuPtr<T> {
    /// Creates a pointer to a value, or to none.
    pub fn new(value: Option<KBox<T>>) -> Self {
        // INVARIANT: The new value owns the box.
        Self {
            ptr: Atomic::new(into_raw(value)),
            _owns: PhantomData,
        }
    }

    /// Creates a pointer to no value, for use in a `static`.
    pub const fn null() -> Self {
        // INVARIANT: The pointer is null.
        Self {
            ptr: Atomic::new(ptr::null_mut()),
            _owns: PhantomData,
        }
    }

    /// Starts reading: until the result is dropped, the value stays valid and unchanged.
    ///
    /// The task must not sleep before it drops the result, see [`RcuPtr`].
    #[inline]
    pub fn read(&self) -> RcuRef<'_, T> {
        let guard = rcu::read_lock();
        // ORDERING: Pairs with the full barrier of `exchange`. Readers see everything that the
        // writer did to the value before, as their accesses depend on the pointer.
        let ptr = self.ptr.load(Relaxed);
        // INVARIANT: The pointer was loaded after the read section began.
        RcuRef {
            // SAFETY: By the type invariant the pointer, unless null, is valid until the read
            // section ends, and that ends when the result is dropped.
            value: unsafe { ptr.as_ref() },
            _guard: guard,
        }
    }

    /// Publishes another value, waits for the readers of the former one, and returns the former
    /// value.
    ///
    /// A caller must not be inside an RCU read section, begun by [`Self::read`] or
    /// [`rcu::read_lock`], as it would wait for itself. Such a call does nothing: it returns the
    /// new value, keeps the former one, and logs an error.
    pub fn replace(&self, value: Option<KBox<T>>) -> Option<KBox<T>> {
        if !may_wait() {
            return value;
        }
        let old = self.exchange(value)?;
        rcu::synchronize_rcu();
        // SAFETY: By the contract of `exchange` the pointer comes from a box that the caller owns. Every read
        // section in which the pointer was loaded has ended. A section of another task began before the
        // exchange, so the grace period has waited for it, unless it has slept in a kernel where it must not
        // (see the type). This task was in no section when the check above ran, and has begun none since.
        Some(unsafe { KBox::from_raw(old.as_ptr()) })
    }

    /// Publishes another value without waiting for the readers of the former one, which is returned.
    ///
    /// # Context
    ///
    /// *any*, but dropping the result *may sleep*.
    pub fn publish(&self, value: KBox<T>) -> Option<Retired<T>> {
        let old = self.exchange(Some(value))?;
        // SAFETY: The callee has no requirements.
        let grace_period = unsafe { bindings::start_poll_synchronize_rcu() };
        // INVARIANT: By the contract of `exchange` the pointer comes from a box that the result owns from
        // now on. Readers have loaded it before the exchange, and the grace period begins after that.
        Some(Retired {
            value: old,
            grace_period: Some(grace_period),
            _owns: PhantomData,
        })
    }

    /// Publishes another value; returns the former one, which comes from a box that the caller owns, but which
    /// tasks may read until the end of a grace period that begins after this call.
    fn exchange(&self, value: Option<KBox<T>>) -> Option<NonNull<T>> {
        // INVARIANT: This value owns the new box, and the caller owns the old pointer.
        // ORDERING: Pairs with the dependent accesses in `read`.
        NonNull::new(self.ptr.xchg(into_raw(value), Full))
    }
}

/// Returns whether the caller may wait for a grace period: not inside a read section. If not, logs an error.
fn may_wait() -> bool {
    // SAFETY: The callee only reads the state of the current task.
    if unsafe { ibtrs_bindings::kx_in_rcu_section() } {
        pr_err_ratelimited!(
            "bug: a grace period was not awaited, as the caller is in an RCU read section\n"
        );
        return false;
    }
    might_sleep();
    true
}

/// A value that is not published, and that readers may still use if it was.
///
/// # Context
///
/// Dropping one *may sleep*, to wait for readers.
///
/// # Invariants
///
/// - `value` comes from [`KBox::into_raw`], and this value owns it.
/// - After the grace period `grace_period`, or already if there is none, no task reads `value`.
pub struct Retired<T> {
    value: NonNull<T>,
    /// A result of `start_poll_synchronize_rcu()`.
    grace_period: Option<c_ulong>,
    _owns: PhantomData<KBox<T>>,
}

// SAFETY: The value is given to the task that has waited for its readers (`Send`); these may be other tasks
// (`Sync`).
unsafe impl<T: Send + Sync> Send for Retired<T> {}

impl<T> Retired<T> {
    /// Returns a value that was not published yet.
    pub fn unread(value: KBox<T>) -> Self {
        // INVARIANT: The box has just become a pointer, and has no readers.
        Self {
            value: NonNull::from(KBox::leak(value)),
            grace_period: None,
            _owns: PhantomData,
        }
    }

    /// Waits for the readers and returns the value. If [`Self::is_over`], this does not wait.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// Hands the value back if the caller is in an RCU read section, as described for
    /// [`RcuPtr::replace`].
    pub fn wait(self) -> Result<KBox<T>, Self> {
        if !self.has_waited() {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: By the type invariant the pointer comes from a box that `this` owns, and `this` is not
        // dropped. `has_waited` has returned true, so nobody reads the value.
        Ok(unsafe { KBox::from_raw(this.value.as_ptr()) })
    }

    /// Returns whether no reader is left.
    ///
    /// # Context
    ///
    /// *any*
    pub fn is_over(&self) -> bool {
        // SAFETY: The callee has no requirements.
        let is_over = |period| unsafe { bindings::poll_state_synchronize_rcu(period) };
        self.grace_period.is_none_or(is_over)
    }

    /// Waits for the readers. If this returns true, there are none.
    fn has_waited(&self) -> bool {
        if self.is_over() {
            return true;
        }
        if !may_wait() {
            return false;
        }
        // This grace period begins after that of the value.
        rcu::synchronize_rcu();
        true
    }
}

impl<T> Drop for Retired<T> {
    fn drop(&mut self) {
        // A value that may have readers is never freed.
        if self.has_waited() {
            // SAFETY: By the type invariant the pointer comes from a box that `self` owns, and `has_waited`
            // has returned true, so nobody reads the value.
            drop(unsafe { KBox::from_raw(self.value.as_ptr()) });
        }
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
            // SAFETY: By the type invariant the pointer comes from a box that this value owns.
            drop(unsafe { KBox::from_raw(ptr) });
        }
    }
}

/// The value of an [`RcuPtr`], with the read section in which the value is valid.
///
/// # Invariants
///
/// `value` was loaded inside the read section of `_guard`.
pub struct RcuRef<'a, T> {
    value: Option<&'a T>,
    _guard: rcu::Guard,
}

impl<T> RcuRef<'_, T> {
    /// Returns the value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.value
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_rcu_ptr)]
mod tests {
    use super::*;
    use kernel::time::{
        delay::fsleep,
        Delta, //
    };

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

    /// Counts the values that are dropped.
    struct Counted<'a>(&'a Atomic<u32>);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn readers_are_waited_for_later() -> Result {
        let ptr = RcuPtr::new(Some(KBox::new(1u32, GFP_KERNEL)?));
        let new = Retired::unread(KBox::new(2, GFP_KERNEL)?);
        assert!(new.is_over());
        let new = new.wait().map_err(|_| EINVAL)?;
        let read = ptr.read();
        let former = ptr.publish(new).ok_or(EINVAL)?;
        assert_eq!(read.get(), Some(&1));
        assert_eq!(ptr.read().get(), Some(&2));
        assert!(!former.is_over());
        // A reader gets no value that it might read.
        let former = former.wait().err().ok_or(EINVAL)?;
        drop(read);
        assert_eq!(former.wait().ok().as_deref(), Some(&1));
        assert!(RcuPtr::null().publish(KBox::new(3, GFP_KERNEL)?).is_none());
        Ok(())
    }

    #[test]
    fn a_grace_period_ends_by_itself() -> Result {
        let ptr = RcuPtr::new(Some(KBox::new(1u32, GFP_KERNEL)?));
        let former = ptr.publish(KBox::new(2, GFP_KERNEL)?).ok_or(EINVAL)?;
        for _ in 0..10_000 {
            if former.is_over() {
                return Ok(());
            }
            fsleep(Delta::from_millis(1));
        }
        Err(ETIMEDOUT)
    }

    #[test]
    fn retired_values_are_dropped_once() -> Result {
        let drops = Atomic::new(0);
        let value = || KBox::new(Counted(&drops), GFP_KERNEL);
        drop(Retired::unread(value()?));
        assert_eq!(drops.load(Relaxed), 1);
        let ptr = RcuPtr::new(Some(value()?));
        let former = ptr.publish(value()?);
        assert_eq!(drops.load(Relaxed), 1);
        drop(former);
        assert_eq!(drops.load(Relaxed), 2);
        drop(ptr.publish(value()?).ok_or(EINVAL)?.wait());
        assert_eq!(drops.load(Relaxed), 3);
        drop(ptr);
        assert_eq!(drops.load(Relaxed), 4);
        Ok(())
    }
}
