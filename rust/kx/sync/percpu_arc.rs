// SPDX-License-Identifier: GPL-2.0

//! A shared object with a per-CPU reference count and a teardown that waits.
//!
//! An object has one [`PercpuOwner`], and any number of references ([`PercpuArc`]). Taking or
//! dropping a reference changes a number in the CPU's own cache line. The owner waits until all
//! references are dropped, and then drops the object itself. The last reference may therefore be
//! dropped in any context, and the object's destructor may always sleep.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::sync::PercpuOwner;
//!
//! let owner = PercpuOwner::new(7u32)?;
//! let reference = owner.get();
//! // Nobody waits yet.
//! let end = owner.end();
//! if !end.is_over() {
//!     let _ = *reference;
//! }
//! drop(reference);
//! // This waits for references, and then drops the number.
//! drop(end);
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/percpu-refcount.h`](srctree/include/linux/percpu-refcount.h)

use super::Completion;
use crate::sync::atomic::{
    AtomicFlag,
    Relaxed, //
};
use core::{
    convert::Infallible,
    marker::PhantomData,
    mem::{
        offset_of,
        ManuallyDrop, //
    },
    ops::Deref,
    pin::Pin,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    error::to_result,
    prelude::*,
    task::might_sleep,
    types::Opaque, //
};

/// The reference count of an object, and the event that it has become zero.
///
/// # Invariants
///
/// - `count` is an initialised `percpu_ref` whose release function is [`UseCount::release`].
/// - The count covers the initial reference until `killed` is set, one reference of the
///   [`PercpuOwner`], and one of each [`PercpuArc`].
/// - `empty` is completed once, after the last reference is dropped.
#[repr(C)]
#[pin_data(PinnedDrop)]
struct UseCount {
    #[pin]
    count: Opaque<bindings::percpu_ref>,
    #[pin]
    empty: Completion,
    killed: AtomicFlag,
}

impl UseCount {
    fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // INVARIANT: A new count has the initial reference; the owner's is added here.
            count <- Opaque::try_ffi_init(|slot: *mut bindings::percpu_ref| {
                // SAFETY: `slot` is valid for writes and pinned. The allocation may sleep, as may
                // the callers by the contract of `PercpuOwner`.
                to_result(unsafe {
                    bindings::percpu_ref_init(slot, Some(Self::release), 0, bindings::GFP_KERNEL)
                })?;
                // SAFETY: The count was just initialised and is live.
                unsafe { ibtrs_bindings::percpu_ref_get(slot) };
                Ok::<(), Error>(())
            }),
            empty <- Completion::new(),
            killed: AtomicFlag::new(false),
        }? Error)
    }

    /// Called by the kernel when the last reference is dropped, in any context.
    ///
    /// # Safety
    ///
    /// `count` must be the field of a [`UseCount`].
    unsafe extern "C" fn release(count: *mut bindings::percpu_ref) {
        // CAST: `Opaque` is transparent, and `count` is the first field of a `repr(C)` struct.
        let use_count = count.cast::<UseCount>();
        // SAFETY: By this function's contract `use_count` is valid. It stays valid until `empty` is
        // completed, as `PercpuEnd` waits for that before it frees the object. Waiters of a
        // completion return only after `complete_all()` has finished with the completion.
        unsafe { &(*use_count).empty }.complete_all();
    }
}

#[pinned_drop]
impl PinnedDrop for UseCount {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The count is initialised by the type invariant, and nobody uses it any more:
        // either `PercpuEnd` has waited for `empty`, or the initialisation of the object failed.
        unsafe { bindings::percpu_ref_exit(self.count.get()) }
    }
}

/// The allocation that an owner and its references point to.
#[repr(C)]
#[pin_data]
struct PercpuInner<T> {
    #[pin]
    use_count: UseCount,
    #[pin]
    data: T,
}

/// The owner of an object, which decides when the object is dropped.
///
/// Dropping the owner kills the object, waits until all references are dropped, and drops the
/// object. A task that drops the owner while it holds a reference itself waits forever.
///
/// # Context
///
/// Creating and dropping one *may sleep*.
///
/// # Invariants
///
/// - `ptr` comes from a pinned [`KBox`] that this value owns.
/// - This value owns one reference of the object's count.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kx::sync::PercpuOwner;
///
/// let owner = PercpuOwner::new(5u32)?;
/// let user = owner.get();
/// assert_eq!(*user, 5);
/// drop(user);
/// drop(owner);
/// # Ok::<(), Error>(())
/// ```
pub struct PercpuOwner<T> {
    ptr: NonNull<PercpuInner<T>>,
    _owns: PhantomData<PercpuInner<T>>,
}

// SAFETY: An owner gives out `&T` and references, which other tasks may use, and drops the `T`;
// nothing else in it has thread affinity.
unsafe impl<T: Send + Sync> Send for PercpuOwner<T> {}

// SAFETY: As above; every method that takes `&self` is safe on several tasks at once.
unsafe impl<T: Send + Sync> Sync for PercpuOwner<T> {}

impl<T> PercpuOwner<T> {
    /// Creates an object from a value.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new(value: T) -> Result<Self> {
        Self::pin_init::<Infallible>(value)
    }

    /// Creates an object in place.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], and the errors of `init`.
    pub fn pin_init<E>(init: impl PinInit<T, E>) -> Result<Self>
    where
        Error: From<E>,
    {
        let inner = KBox::pin_init::<Error>(
            try_pin_init!(PercpuInner {
                use_count <- UseCount::new(),
                data <- init,
            }? Error),
            GFP_KERNEL,
        )?;
        // SAFETY: Nothing moves the value before `PercpuEnd` pins it again and drops it.
        let inner = unsafe { Pin::into_inner_unchecked(inner) };
        // INVARIANT: `UseCount::new()` took the owner's reference.
        Ok(Self {
            ptr: NonNull::from(KBox::leak(inner)),
            _owns: PhantomData,
        })
    }

    fn use_count(&self) -> &UseCount {
        // SAFETY: By the type invariant the object is valid as long as `self`.
        unsafe { &self.ptr.as_ref().use_count }
    }

    /// Takes a reference.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn get(&self) -> PercpuArc<T> {
        // SAFETY: The count is not zero, as `self` owns one reference.
        unsafe { ibtrs_bindings::percpu_ref_get(self.use_count().count.get()) };
        // INVARIANT: The result owns the new reference.
        PercpuArc {
            ptr: self.ptr,
            _owns: PhantomData,
        }
    }

    /// Marks the object as dead, for [`Self::is_dead`]; may be called more than once.
    ///
    /// References stay valid and may be cloned.
    fn kill(&self) {
        let use_count = self.use_count();
        // ORDERING: The flag only picks the one caller that gives up the initial reference.
        if !use_count.killed.xchg(true, Relaxed) {
            // SAFETY: The count is initialised, and was not killed before, as this caller has set
            // the flag. It does not become zero here, as `self` owns one reference.
            unsafe { ibtrs_bindings::percpu_ref_kill(use_count.count.get()) }
        }
    }

    /// Returns whether the object was killed.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.use_count().killed.load(Relaxed)
    }

    /// Kills the object without waiting for references. [`PercpuEnd::is_over`] of the result
    /// reports when all of them are dropped; dropping the result waits for them and drops the
    /// object.
    ///
    /// # Context
    ///
    /// *any*
    pub fn end(self) -> PercpuEnd<T> {
        let this = ManuallyDrop::new(self);
        this.kill();
        // SAFETY: By the type invariant `this` owns the reference, and does not use it again.
        unsafe { ibtrs_bindings::percpu_ref_put(this.use_count().count.get()) };
        // INVARIANT: `this` owned the box, and is not dropped; the object was killed, and the
        // owner's reference dropped.
        PercpuEnd {
            ptr: this.ptr,
            _owns: PhantomData,
        }
    }
}

impl<T> Deref for PercpuOwner<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariant the object is valid as long as `self`.
        unsafe { &self.ptr.as_ref().data }
    }
}

impl<T> Drop for PercpuOwner<T> {
    fn drop(&mut self) {
        // INVARIANT: The copy takes over the box and the reference of `self`, which is not used
        // again.
        drop(
            Self {
                ptr: self.ptr,
                _owns: PhantomData,
            }
            .end(),
        );
    }
}

/// A killed object that may still have references.
///
/// Dropping it waits for them, and then drops the object.
///
/// # Context
///
/// Dropping one *may sleep*.
///
/// # Invariants
///
/// - `ptr` comes from a pinned [`KBox`] that this value owns.
/// - The object was killed, and its owner's reference dropped.
pub struct PercpuEnd<T> {
    ptr: NonNull<PercpuInner<T>>,
    _owns: PhantomData<PercpuInner<T>>,
}

// SAFETY: It gives out `&T`, and drops the `T`; `T` must be `Sync`, as other tasks may have
// references.
unsafe impl<T: Send + Sync> Send for PercpuEnd<T> {}

// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for PercpuEnd<T> {}

impl<T> Deref for PercpuEnd<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant the object is valid as long as `self`, which drops it.
        unsafe { &self.ptr.as_ref().data }
    }
}

impl<T> PercpuEnd<T> {
    /// Returns whether no reference is left, so that dropping this value does not wait. Even if
    /// there was no reference when the object was killed, this takes an RCU grace period.
    ///
    /// # Context
    ///
    /// *any*
    pub fn is_over(&self) -> bool {
        // SAFETY: By the type invariant the object is valid as long as `self`.
        unsafe { self.ptr.as_ref() }.use_count.empty.is_done()
    }
}

impl<T> Drop for PercpuEnd<T> {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariant the object is valid as long as `self`.
        unsafe { self.ptr.as_ref() }.use_count.empty.wait();
        // SAFETY: By the type invariant the pointer comes from the pinned box that `pin_init`
        // leaked. No reference is left, as `empty` is completed.
        drop(unsafe { Pin::new_unchecked(KBox::from_raw(self.ptr.as_ptr())) });
    }
}

/// A reference to the object of a [`PercpuOwner`].
///
/// Dropping the last reference only wakes the owner, so it may happen anywhere.
///
/// # Context
///
/// Everything here: *any*.
///
/// # Invariants
///
/// - `ptr` points to an object whose owner waits for this value to be dropped.
/// - This value owns one reference of the object's count.
#[repr(transparent)]
pub struct PercpuArc<T> {
    ptr: NonNull<PercpuInner<T>>,
    _owns: PhantomData<PercpuInner<T>>,
}

// SAFETY: A reference gives out `&T`, and other tasks may have clones, so `T` must be `Sync`. The
// owner may drop the `T` in another task, so `T` must be `Send`.
unsafe impl<T: Send + Sync> Send for PercpuArc<T> {}

// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for PercpuArc<T> {}

impl<T> PercpuArc<T> {
    fn count(&self) -> *mut bindings::percpu_ref {
        // SAFETY: By the type invariant the object is valid as long as `self`.
        unsafe { self.ptr.as_ref() }.use_count.count.get()
    }

    /// Returns whether the object's owner has killed it.
    #[inline]
    pub fn is_dead(&self) -> bool {
        // SAFETY: By the type invariant the object is valid as long as `self`.
        unsafe { self.ptr.as_ref() }.use_count.killed.load(Relaxed)
    }

    /// Returns whether both are references to the same object.
    #[inline]
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        this.ptr == other.ptr
    }

    /// Gives up the reference as a pointer, for [`Self::from_raw`].
    #[inline]
    pub fn into_raw(self) -> *const T {
        let this = ManuallyDrop::new(self);
        let inner = this.ptr.as_ptr();
        // SAFETY: By the type invariant the pointer is valid, so the field is in bounds.
        unsafe { &raw const (*inner).data }
    }

    /// Reclaims a reference from [`Self::into_raw`].
    ///
    /// # Safety
    ///
    /// `ptr` must come from [`Self::into_raw`], and must be passed here once for each call of that.
    #[inline]
    pub unsafe fn from_raw(ptr: *const T) -> Self {
        // SAFETY: By this function's contract `ptr` is valid and the field of an `PercpuInner<T>`, so the
        // address of the `PercpuInner` is not null.
        let inner = unsafe { NonNull::new_unchecked(inner_of(ptr)) };
        // INVARIANT: The result owns the reference that `into_raw` gave up.
        Self {
            ptr: inner,
            _owns: PhantomData,
        }
    }

    /// Takes a new reference to the object at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr` must point to the object of a [`PercpuOwner`], and the object must have a reference,
    /// of the owner or another one, until this returns.
    #[inline]
    pub unsafe fn get_raw(ptr: *const T) -> Self {
        // SAFETY: By this function's contract `ptr` is valid and the field of an `PercpuInner<T>`, so the
        // address of the `PercpuInner` is not null.
        let inner = unsafe { NonNull::new_unchecked(inner_of(ptr)) };
        // SAFETY: By this function's contract the object is valid, and the count is not zero.
        unsafe { ibtrs_bindings::percpu_ref_get(inner.as_ref().use_count.count.get()) };
        // INVARIANT: The result owns the new reference.
        Self {
            ptr: inner,
            _owns: PhantomData,
        }
    }
}

/// Returns the object of a `data` field.
///
/// # Safety
///
/// `data` must point to the field of a valid [`PercpuInner`].
unsafe fn inner_of<T>(data: *const T) -> *mut PercpuInner<T> {
    // SAFETY: By this function's contract the result is in bounds of the same allocation.
    unsafe { data.byte_sub(offset_of!(PercpuInner<T>, data)) }
        .cast::<PercpuInner<T>>()
        .cast_mut()
}

impl<T> Clone for PercpuArc<T> {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: The count is not zero, as `self` owns one reference.
        unsafe { ibtrs_bindings::percpu_ref_get(self.count()) };
        // INVARIANT: The result owns the new reference.
        Self {
            ptr: self.ptr,
            _owns: PhantomData,
        }
    }
}

impl<T> Deref for PercpuArc<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariant the object is valid as long as `self`.
        unsafe { &self.ptr.as_ref().data }
    }
}

impl<T> Drop for PercpuArc<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariant `self` owns the reference; it does not access the object
        // afterwards.
        unsafe { ibtrs_bindings::percpu_ref_put(self.count()) }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_percpu_arc)]
mod tests {
    use super::*;
    use crate::sync::atomic::Atomic;
    use crate::work::{
        Options,
        Queue, //
    };
    use kernel::{
        sync::{
            rcu::rcu_barrier,
            Arc, //
        },
        time::{
            delay::fsleep,
            Delta, //
        }, //
    };

    /// Counts the drops of the probes with a clone of it.
    #[derive(Clone)]
    struct Drops(Arc<Atomic<u32>>);

    struct Probe(Drops);

    impl Drops {
        fn new() -> Result<Self> {
            Ok(Self(Arc::new(Atomic::new(0), GFP_KERNEL)?))
        }

        fn count(&self) -> u32 {
            self.0.load(Relaxed)
        }
    }

    impl Drop for Probe {
        fn drop(&mut self) {
            self.0 .0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn owner_drops_the_value() -> Result {
        let drops = Drops::new()?;
        let owner = PercpuOwner::new(Probe(drops.clone()))?;
        let first = owner.get();
        let second = first.clone();
        assert!(PercpuArc::ptr_eq(&first, &second));
        drop(first);
        drop(second);
        assert_eq!(drops.count(), 0);
        drop(owner);
        assert_eq!(drops.count(), 1);
        drop(PercpuOwner::new(Probe(drops.clone()))?);
        assert_eq!(drops.count(), 2);
        Ok(())
    }

    #[test]
    fn dead_is_dead() -> Result {
        let owner = PercpuOwner::new(7u32)?;
        let user = owner.get();
        assert!(!owner.is_dead());
        owner.kill();
        owner.kill();
        assert!(owner.is_dead() && user.is_dead());
        // A reference and the owner still allow further references.
        assert_eq!(*user.clone(), 7);
        assert_eq!(*owner.get(), 7);
        drop(user);
        // The owner has the last reference, and an RCU callback has switched the count to atomic
        // mode.
        rcu_barrier();
        assert_eq!(*owner.get(), 7);
        drop(owner);
        Ok(())
    }

    #[test]
    fn teardown_waits() -> Result {
        const NEVER: u32 = u32::MAX;
        let drops = Drops::new()?;
        let queue = Queue::new(Options::unbound(), fmt!("kx-test"))?;
        let seen = Arc::new(Atomic::new(NEVER), GFP_KERNEL)?;
        let owner = PercpuOwner::new(Probe(drops.clone()))?;
        let (user, before, told) = (owner.get(), drops.clone(), seen.clone());
        queue.spawn(GFP_KERNEL, move || {
            for _ in 0..10_000 {
                if user.is_dead() {
                    break;
                }
                fsleep(Delta::from_millis(1));
            }
            // The count can become zero from here on; an owner that does not wait would have
            // dropped the value by then.
            rcu_barrier();
            told.store(before.count(), Relaxed);
            drop(user);
        })?;
        drop(owner);
        assert_eq!(seen.load(Relaxed), 0);
        assert_eq!(drops.count(), 1);
        Ok(())
    }

    #[test]
    fn an_end_tells_when_it_is_over() -> Result {
        let drops = Drops::new()?;
        let owner = PercpuOwner::new(Probe(drops.clone()))?;
        let user = owner.get();
        let end = owner.end();
        // The count can become zero from here on, but does not as long as there is a reference.
        rcu_barrier();
        assert!(user.is_dead() && !end.is_over());
        drop(user);
        assert!(end.is_over());
        assert_eq!(drops.count(), 0);
        drop(end);
        assert_eq!(drops.count(), 1);
        Ok(())
    }

    #[test]
    fn init_may_fail() {
        let owner = PercpuOwner::<Probe>::pin_init::<Error>(Err(EBUSY));
        assert!(matches!(owner, Err(e) if e == EBUSY));
    }

    #[test]
    fn pointers_come_back() -> Result {
        let owner = PercpuOwner::new(7u64)?;
        let ptr = owner.get().into_raw();
        // SAFETY: The pointer is valid, as its reference was not reclaimed yet.
        assert_eq!(unsafe { *ptr }, 7);
        // SAFETY: The object has the reference that was given up, and the owner's.
        let second = unsafe { PercpuArc::get_raw(ptr) };
        // SAFETY: The pointer comes from `into_raw`, and is used once.
        let user = unsafe { PercpuArc::from_raw(ptr) };
        assert!(PercpuArc::ptr_eq(&user, &second));
        drop(user);
        assert_eq!(*second, 7);
        let end = owner.end();
        rcu_barrier();
        // Each of the two references was taken once, and is dropped once.
        assert!(!end.is_over());
        drop(second);
        assert!(end.is_over());
        drop(end);
        Ok(())
    }
}
