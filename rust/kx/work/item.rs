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

/// A shared reference that can be kept by a queue as a pointer.
///
/// # Safety
///
/// - [`Self::into_raw`] gives a pointer to a pinned `T` that is valid until it is passed to
///   [`Self::from_raw`].
/// - While it is, other references may exist, and read.
pub unsafe trait WorkPointer<T>: Send + 'static {
    /// Whether dropping a reference may drop the object.
    const DROPS_OBJECT: bool;

    /// Gives the reference up as a pointer.
    fn into_raw(self) -> *const T;

    /// Takes the reference back.
    ///
    /// # Safety
    ///
    /// `ptr` must come from [`Self::into_raw`], and be passed here once for each call of that.
    unsafe fn from_raw(ptr: *const T) -> Self;
}

// SAFETY: `Arc` is pinned, shared, and owned as long as its pointer is given up.
unsafe impl<T: Send + Sync + 'static> WorkPointer<T> for Arc<T> {
    const DROPS_OBJECT: bool = true;

    fn into_raw(self) -> *const T {
        Arc::into_raw(self)
    }

    unsafe fn from_raw(ptr: *const T) -> Self {
        // SAFETY: The requirements are the same.
        unsafe { Arc::from_raw(ptr) }
    }
}

// SAFETY: `PercpuArc` is pinned, shared, and counted as long as its pointer is given up.
unsafe impl<T: Send + Sync + 'static> WorkPointer<T> for PercpuArc<T> {
    const DROPS_OBJECT: bool = false;

    fn into_raw(self) -> *const T {
        PercpuArc::into_raw(self)
    }

    unsafe fn from_raw(ptr: *const T) -> Self {
        // SAFETY: The requirements are the same.
        unsafe { PercpuArc::from_raw(ptr) }
    }
}

/// The function of a work.
///
/// `ID` tells the works of one object from each other.
pub trait WorkItem<const ID: u64 = 0>: Sized {
    /// The reference that a queued work holds: [`PercpuArc`], or [`Arc`].
    type Pointer: WorkPointer<Self>;

    /// Does the work, in process context. It may queue itself again.
    fn run(this: Self::Pointer);
}

/// Says where an object keeps a work, by [`impl_has_work!`](crate::impl_has_work).
///
/// # Safety
///
/// The two functions are inverse to each other, and both stay inside one object.
pub unsafe trait HasWork<W> {
    /// The work of an object.
    ///
    /// # Safety
    ///
    /// `this` must point to a valid object.
    unsafe fn work(this: *const Self) -> *const W;

    /// The object of a work.
    ///
    /// # Safety
    ///
    /// `work` must point to the work of a valid object.
    unsafe fn object(work: *const W) -> *const Self;
}

/// Tells [`HasWork`] the field.
#[macro_export]
macro_rules! impl_has_work {
    ($(impl $({$($generics:tt)*})? HasWork<$work:ty> for $self:ty { self.$field:ident })*) => {$(
        // SAFETY: Both functions use the field's offset; the first compiles only if the field has
        // the right type.
        unsafe impl$(<$($generics)*>)? $crate::work::HasWork<$work> for $self {
            unsafe fn work(this: *const Self) -> *const $work {
                // SAFETY: By the function's requirement the field is in bounds.
                unsafe { &raw const (*this).$field }
            }

            unsafe fn object(work: *const $work) -> *const Self {
                // SAFETY: By the function's requirement the object is around the field.
                unsafe { work.byte_sub(::core::mem::offset_of!(Self, $field)) }.cast()
            }
        }
    )*};
}

/// Creates an initializer of a [`Work`], of its queue and optionally its name.
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

/// A work of an object of type `T`.
///
/// # Invariants
///
/// - `work` is an initialised `struct work_struct` whose function is [`Work::run_raw`].
/// - While it is queued, it owns a reference to the object it is embedded in.
#[repr(C)]
#[pin_data]
pub struct Work<T, const ID: u64 = 0> {
    #[pin]
    work: Opaque<bindings::work_struct>,
    queue: Arc<Queue>,
    _object: PhantomData<fn(T)>,
}

// SAFETY: A `struct work_struct` may be used from any task, and there is no `T` in here.
unsafe impl<T, const ID: u64> Send for Work<T, ID> {}

// SAFETY: As above; every method that takes `&self` is safe on several tasks at once.
unsafe impl<T, const ID: u64> Sync for Work<T, ID> {}

impl<T, const ID: u64> Work<T, ID>
where
    T: WorkItem<ID> + HasWork<Self>,
{
    /// Creates a work that will be queued on `queue`; see [`new_work!`](crate::new_work).
    pub fn new(
        queue: Arc<Queue>,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            work <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writing and does not move; name and key are static.
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
        // SAFETY: By the function's requirement the work is embedded in an object.
        let object = unsafe { T::object(work) };
        // SAFETY: `enqueue` gave this reference up, and the work is no longer queued.
        unsafe { run::<T, ID>(object, &raw const (*work).queue) }
    }

    /// Queues the work of `object`, which is the one that `self` is part of.
    ///
    /// Returns whether it was not queued before; if it was, `object` is dropped. A work that is
    /// running but not queued is queued, and will run again.
    ///
    /// # Context
    ///
    /// *any*
    pub fn enqueue(&self, object: T::Pointer) -> bool {
        lend::<T, Self, ID>(self, object, || {
            // INVARIANT: If this succeeds, the work owns the reference.
            // SAFETY: Queue and work are valid; the work stays so until it has run.
            unsafe { bindings::queue_work_on(cpu_unbound(), self.queue.as_raw(), self.work.get()) }
        })
    }

    /// Takes back the reference of a work that was cancelled.
    fn cancelled(&self, was_queued: bool) -> bool {
        if was_queued {
            // SAFETY: The work was queued, by `enqueue`, and is not any more.
            unsafe { take_back::<T, Self, ID>(self) }
        }
        was_queued
    }

    /// Takes the work off the queue without waiting for it if it is running.
    ///
    /// Returns whether it was queued.
    ///
    /// # Context
    ///
    /// *any*
    pub fn cancel(&self) -> bool {
        // SAFETY: By the type invariant the work is initialised.
        self.cancelled(unsafe { bindings::cancel_work(self.work.get()) })
    }

    /// Takes the work off the queue, and waits for it if it is running.
    ///
    /// Returns whether it was queued. It cannot be queued during the call; the caller prevents
    /// later queueing itself, or with [`Self::disable_sync`].
    ///
    /// # Context
    ///
    /// *may sleep*, but not in this work.
    pub fn cancel_sync(&self) -> bool {
        might_sleep();
        // SAFETY: By the type invariant the work is initialised.
        self.cancelled(unsafe { bindings::cancel_work_sync(self.work.get()) })
    }

    /// As [`Self::cancel_sync`], and the work cannot be queued any more.
    ///
    /// # Context
    ///
    /// *may sleep*, but not in this work.
    pub fn disable_sync(&self) -> bool {
        might_sleep();
        // SAFETY: By the type invariant the work is initialised.
        self.cancelled(unsafe { bindings::disable_work_sync(self.work.get()) })
    }

    /// Waits until the work has run, if it is queued or running.
    ///
    /// Returns whether there was anything to wait for.
    ///
    /// # Context
    ///
    /// *may sleep*, but not in this work, nor in one before it on an ordered queue.
    pub fn flush(&self) -> bool {
        might_sleep();
        // SAFETY: By the type invariant the work is initialised.
        unsafe { bindings::flush_work(self.work.get()) }
    }
}

/// Gives a reference to `object` up to a queue, if `enqueue` says that it took it.
///
/// Refuses an object that `work` is not part of.
pub(super) fn lend<T, W, const ID: u64>(
    work: &W,
    object: T::Pointer,
    enqueue: impl FnOnce() -> bool,
) -> bool
where
    T: WorkItem<ID> + HasWork<W>,
{
    let object = object.into_raw();
    // SAFETY: `into_raw` gives a valid object.
    let its_own = ptr::eq(unsafe { T::work(object) }, work);
    if !warn_on!(!its_own) && enqueue() {
        return true;
    }
    // SAFETY: The queue did not take the reference.
    drop(unsafe { T::Pointer::from_raw(object) });
    false
}

/// Does a work, on a worker of `queue`, which is a field of `object`.
///
/// # Safety
///
/// `object` must come from [`lend`], and the queue's reference is passed here.
pub(super) unsafe fn run<T: WorkItem<ID>, const ID: u64>(
    object: *const T,
    queue: *const Arc<Queue>,
) {
    // If the object may be dropped here the queue must not be, as that would wait for this worker.
    // SAFETY: By the function's requirement the object is still there, and with it its field.
    let queue = T::Pointer::DROPS_OBJECT.then(|| unsafe { (*queue).clone() });
    // SAFETY: By the function's requirement.
    T::run(unsafe { T::Pointer::from_raw(object) });
    if let Some(queue) = queue {
        Queue::leave(queue);
    }
}

/// Drops the reference that a queue held.
///
/// # Safety
///
/// `work` must have been queued by [`lend`], and neither have run nor been passed here since.
pub(super) unsafe fn take_back<T, W, const ID: u64>(work: &W)
where
    T: WorkItem<ID> + HasWork<W>,
{
    // SAFETY: `lend` made sure that the work is part of an object.
    let object = unsafe { T::object(work) };
    // SAFETY: By the function's requirement the reference that was lent has no owner now.
    drop(unsafe { T::Pointer::from_raw(object) });
}

/// No particular CPU.
pub(super) const fn cpu_unbound() -> c_int {
    // CAST: One more than the largest CPU number.
    bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int
}
