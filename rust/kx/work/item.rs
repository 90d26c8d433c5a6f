// SPDX-License-Identifier: GPL-2.0

//! A work item embedded in an object.

use crate::sync::PercpuArc;
use core::{
    marker::PhantomData,
    ptr, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::{
        Arc,
        LockClassKey, //
    },
    task::might_sleep,
    types::Opaque,
    warn_on, //
};

use super::Queue;

/// A shared reference that a queue can hold as a pointer.
///
/// # Safety
///
/// - [`Self::into_raw`] must return a pointer to a pinned `T` that is valid until it is passed to
///   [`Self::from_raw`].
/// - Until then, other references may exist and be used for reading.
pub unsafe trait WorkPointer<T>: Send + 'static {
    /// Whether dropping a reference may drop the object.
    const DROPS_OBJECT: bool;

    /// Gives up the reference as a pointer.
    fn into_raw(self) -> *const T;

    /// Reclaims the reference.
    ///
    /// # Safety
    ///
    /// `ptr` must come from [`Self::into_raw`], and must be passed here once for each call of that.
    unsafe fn from_raw(ptr: *const T) -> Self;
}

// SAFETY: The object of an `Arc` is pinned and shared, and its reference stays counted until
// `from_raw`.
unsafe impl<T: Send + Sync + 'static> WorkPointer<T> for Arc<T> {
    const DROPS_OBJECT: bool = true;

    fn into_raw(self) -> *const T {
        Arc::into_raw(self)
    }

    unsafe fn from_raw(ptr: *const T) -> Self {
        // SAFETY: By this function's contract the pointer comes from `Arc::into_raw`.
        unsafe { Arc::from_raw(ptr) }
    }
}

// SAFETY: The object of a `PercpuArc` is pinned and shared, and its reference stays counted until
// `from_raw`.
unsafe impl<T: Send + Sync + 'static> WorkPointer<T> for PercpuArc<T> {
    const DROPS_OBJECT: bool = false;

    fn into_raw(self) -> *const T {
        PercpuArc::into_raw(self)
    }

    unsafe fn from_raw(ptr: *const T) -> Self {
        // SAFETY: By this function's contract the pointer comes from `PercpuArc::into_raw`.
        unsafe { PercpuArc::from_raw(ptr) }
    }
}

/// An object with a work item, and the function of the work item.
///
/// `ID` distinguishes the work items of one object.
pub trait WorkItem<const ID: u64 = 0>: Sized {
    /// The reference that a queued work item owns: [`PercpuArc`], or [`Arc`].
    type Pointer: WorkPointer<Self>;

    /// Does the work, and may queue the work item again.
    ///
    /// # Context
    ///
    /// *may sleep*.
    fn run(this: Self::Pointer);
}

/// Locates a work item in its object; implemented by [`impl_has_work!`](crate::impl_has_work).
///
/// # Safety
///
/// The two functions must be inverse to each other, and stay inside one object.
pub unsafe trait HasWork<W> {
    /// Returns the work item of an object.
    ///
    /// # Safety
    ///
    /// `this` must point to a valid object.
    unsafe fn work(this: *const Self) -> *const W;

    /// Returns the object of a work item.
    ///
    /// # Safety
    ///
    /// `work` must point to the work item of a valid object.
    unsafe fn object(work: *const W) -> *const Self;
}

/// Implements [`HasWork`] for a field.
#[macro_export]
macro_rules! impl_has_work {
    ($(impl $({$($generics:tt)*})? HasWork<$work:ty> for $self:ty { self.$field:ident })*) => {$(
        // SAFETY: Both functions use the offset of the same field, so they are inverse to each
        // other. The first one compiles only if the field has the right type.
        unsafe impl$(<$($generics)*>)? $crate::work::HasWork<$work> for $self {
            unsafe fn work(this: *const Self) -> *const $work {
                // SAFETY: By this function's contract the object is valid, so the field is in
                // bounds.
                unsafe { &raw const (*this).$field }
            }

            unsafe fn object(work: *const $work) -> *const Self {
                // SAFETY: By this function's contract the object contains the field.
                unsafe { work.byte_sub(::core::mem::offset_of!(Self, $field)) }.cast()
            }
        }
    )*};
}

/// Creates an initializer of a [`Work`] from its queue and optionally its name.
#[macro_export]
macro_rules! new_work {
    ($queue:expr $(, $name:literal)? $(,)?) => {
        $crate::work::Work::new(
            $queue,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}

/// A work item of an object of type `T`.
///
/// # Invariants
///
/// - `work` is an initialised `struct work_struct` whose function is [`Work::run_raw`].
/// - While the work item is queued, it owns a reference to the object that embeds it.
#[repr(C)]
#[pin_data]
pub struct Work<T, const ID: u64 = 0> {
    #[pin]
    work: Opaque<bindings::work_struct>,
    queue: Arc<Queue>,
    _object: PhantomData<fn(T)>,
}

// SAFETY: Any task may use a `struct work_struct`. References to the object are `Send`, as
// `WorkPointer` requires, and the type contains no `T`.
unsafe impl<T, const ID: u64> Send for Work<T, ID> {}

// SAFETY: As above, and several tasks may call the methods that take `&self` at a time.
unsafe impl<T, const ID: u64> Sync for Work<T, ID> {}

impl<T, const ID: u64> Work<T, ID>
where
    T: WorkItem<ID> + HasWork<Self>,
{
    /// Creates a work item for `queue`; see [`new_work!`](crate::new_work).
    pub fn new(
        queue: Arc<Queue>,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            work <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writes and pinned; name and key are static.
                unsafe {
                    bindings::init_work_with_key(
                        slot,
                        Some(Self::run_raw),
                        false,
                        name.as_char_ptr(),
                        key.as_ptr(),
                    )
                }
            }),
            queue,
            _object: PhantomData,
        })
    }

    /// Called by the queue.
    ///
    /// # Safety
    ///
    /// `work` must be the field of a [`Work`] that was queued by [`Work::enqueue`].
    unsafe extern "C" fn run_raw(work: *mut bindings::work_struct) {
        // CAST: `Opaque` is transparent, and the first field of a `repr(C)` struct.
        let work = work.cast_const().cast::<Self>();
        // SAFETY: By this function's contract the work item was queued, so `lend` has checked that
        // it is embedded in an object, which its reference keeps.
        let object = unsafe { T::object(work) };
        // SAFETY: `lend` has given up this reference. The work item is no longer queued, so it is
        // not reclaimed elsewhere.
        unsafe { run::<T, ID>(object, &raw const (*work).queue) }
    }

    /// Queues the work item of `object`, which must be the object that embeds `self`.
    ///
    /// Returns whether this call has queued the work item. If it was already queued or is disabled,
    /// `object` is dropped. A work item that is running and not queued is queued, and runs again.
    ///
    /// # Context
    ///
    /// *any*
    pub fn enqueue(&self, object: T::Pointer) -> bool {
        lend::<T, Self, ID>(self, object, || {
            // INVARIANT: If this succeeds, the work item owns the reference.
            // SAFETY: The queue and the work item are valid. They stay valid until the work item
            // runs or is cancelled: the work item owns a reference to the object, which contains it
            // and owns a reference to the queue.
            unsafe { bindings::queue_work_on(cpu_unbound(), self.queue.as_raw(), self.work.get()) }
        })
    }

    /// Takes back the reference of a cancelled work item.
    fn cancelled(&self, was_queued: bool) -> bool {
        if was_queued {
            // SAFETY: The work item was queued, which only `lend` does, and the caller has
            // cancelled it, so it has not run.
            unsafe { take_back::<T, Self, ID>(self) }
        }
        was_queued
    }

    /// Cancels the work item if it is queued, without waiting for it if it is running.
    ///
    /// Returns whether it was queued.
    ///
    /// # Context
    ///
    /// *any*
    pub fn cancel(&self) -> bool {
        // SAFETY: By the type invariant the work item is initialised.
        self.cancelled(unsafe { bindings::cancel_work(self.work.get()) })
    }

    /// Cancels the work item if it is queued, and waits for it if it is running.
    ///
    /// Returns whether it was queued. It cannot be queued during the call; afterwards the caller
    /// must prevent that, for instance with [`Self::disable_sync`].
    ///
    /// # Context
    ///
    /// *may sleep*, but not in this work item.
    pub fn cancel_sync(&self) -> bool {
        might_sleep();
        // SAFETY: By the type invariant the work item is initialised.
        self.cancelled(unsafe { bindings::cancel_work_sync(self.work.get()) })
    }

    /// As [`Self::cancel_sync`]; the work item cannot be queued any more afterwards.
    ///
    /// # Context
    ///
    /// *may sleep*, but not in this work item.
    pub fn disable_sync(&self) -> bool {
        might_sleep();
        // SAFETY: By the type invariant the work item is initialised.
        self.cancelled(unsafe { bindings::disable_work_sync(self.work.get()) })
    }

    /// Waits until the work item has run, if it is queued or running.
    ///
    /// Returns whether there was anything to wait for.
    ///
    /// # Context
    ///
    /// *may sleep*, but not in this work item, nor in one before it on an ordered queue.
    pub fn flush(&self) -> bool {
        might_sleep();
        // SAFETY: By the type invariant the work item is initialised.
        unsafe { bindings::flush_work(self.work.get()) }
    }
}

/// Calls `enqueue` to queue a work item, which gets the reference `object` if `enqueue` returns
/// true. If it returns false, the reference is dropped, and the result is false.
///
/// An object that does not embed `work` is refused with a warning.
pub(super) fn lend<T, W, const ID: u64>(
    work: &W,
    object: T::Pointer,
    enqueue: impl FnOnce() -> bool,
) -> bool
where
    T: WorkItem<ID> + HasWork<W>,
{
    let object = object.into_raw();
    // SAFETY: By the contract of `WorkPointer`, `into_raw` returns a pointer to a valid object.
    let its_own = ptr::eq(unsafe { T::work(object) }, work);
    if !warn_on!(!its_own) && enqueue() {
        return true;
    }
    // SAFETY: The pointer comes from `into_raw`, and the work item did not get the reference.
    drop(unsafe { T::Pointer::from_raw(object) });
    false
}

/// Runs a work item on a worker of its queue.
///
/// # Safety
///
/// `object` must come from [`lend`], and the reference of the work item passes to this function.
/// `queue` must be a field of the object.
pub(super) unsafe fn run<T: WorkItem<ID>, const ID: u64>(
    object: *const T,
    queue: *const Arc<Queue>,
) {
    // If the object may be dropped here, keep the queue, whose drop would wait for this worker.
    // SAFETY: By this function's contract the reference keeps the object, and `queue` is its field.
    let queue = T::Pointer::DROPS_OBJECT.then(|| unsafe { (*queue).clone() });
    // SAFETY: By this function's contract the pointer comes from `into_raw` in `lend`, and its
    // reference was not reclaimed.
    T::run(unsafe { T::Pointer::from_raw(object) });
    if let Some(queue) = queue {
        Queue::leave(queue);
    }
}

/// Drops the reference of a work item that was cancelled.
///
/// # Safety
///
/// `work` must have been queued by [`lend`], and must neither have run nor have been passed here
/// since.
pub(super) unsafe fn take_back<T, W, const ID: u64>(work: &W)
where
    T: WorkItem<ID> + HasWork<W>,
{
    // SAFETY: `lend` has checked that the work item is part of an object.
    let object = unsafe { T::object(work) };
    // SAFETY: The pointer comes from `into_raw` in `lend`. By this function's contract the
    // reference was not reclaimed.
    drop(unsafe { T::Pointer::from_raw(object) });
}

/// Returns the CPU number that stands for any CPU.
pub(super) const fn cpu_unbound() -> c_int {
    // CAST: The value is `NR_CPUS`, a small number.
    bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int
}
