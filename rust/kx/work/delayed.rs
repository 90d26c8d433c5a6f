// SPDX-License-Identifier: GPL-2.0

//! Delayed work: a work item with a timer.

use core::marker::PhantomData;
use kernel::{
    bindings,
    container_of,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        LockClassKey,
        SpinLockIrq, //
    },
    task::might_sleep,
    time::{
        msecs_to_jiffies,
        Jiffies,
        Msecs, //
    },
    types::Opaque, //
};

use super::{
    item::{
        cpu_unbound,
        lend,
        run,
        take_back, //
    },
    HasWork,
    Queue,
    WorkItem, //
};

/// Creates an initializer of a [`DelayedWork`] from its queue and its name.
#[macro_export]
macro_rules! new_delayed_work {
    ($queue:expr, $name:literal $(,)?) => {
        $crate::work::DelayedWork::new(
            $queue,
            [
                ::kernel::c_str!($name),
                ::kernel::c_str!(::core::concat!($name, "_timer")),
            ],
            [
                ::kernel::static_lock_class!(),
                ::kernel::static_lock_class!(),
            ],
        )
    };
}

/// A work item of an object of type `T` that runs after a delay.
///
/// It counts as queued during the delay, too.
///
/// # Invariants
///
/// - `work` is an initialised `struct delayed_work` whose function is [`DelayedWork::run_raw`].
/// - While the work item is queued, it owns a reference to the object that embeds it.
/// - The work item is disabled in C only while `disabled` is not zero.
#[repr(C)]
#[pin_data]
pub struct DelayedWork<T, const ID: u64 = 0> {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    queue: Arc<Queue>,
    /// Number of callers that keep the work item from being queued. C has such a count, too, but
    /// the result of `mod_delayed_work()` does not show whether it has queued the item or respected
    /// the count.
    #[pin]
    disabled: SpinLockIrq<u32>,
    _object: PhantomData<fn(T)>,
}

// SAFETY: Any task may use a `struct delayed_work`. References to the object are `Send`, as
// `WorkPointer` requires, and the type contains no `T`.
unsafe impl<T, const ID: u64> Send for DelayedWork<T, ID> {}

// SAFETY: As above, and several tasks may call the methods that take `&self` at a time.
unsafe impl<T, const ID: u64> Sync for DelayedWork<T, ID> {}

/// This function is neither generic nor inlined, so that the name of the lock class has one
/// address, as lockdep requires. A generic or inlined function would be copied into each module,
/// together with the name.
#[inline(never)]
fn new_disabled() -> impl PinInit<SpinLockIrq<u32>> {
    new_spinlock_irq!(0, "DelayedWork::disabled")
}

impl<T, const ID: u64> DelayedWork<T, ID>
where
    T: WorkItem<ID> + HasWork<Self>,
{
    /// Creates a work item for `queue`; see [`new_delayed_work!`](crate::new_delayed_work). The
    /// first name and key are those of the work item, the second those of its timer.
    pub fn new(
        queue: Arc<Queue>,
        names: [&'static CStr; 2],
        keys: [Pin<&'static LockClassKey>; 2],
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            work <- Opaque::ffi_init(move |slot: *mut bindings::delayed_work| {
                let [work_name, timer_name] = names;
                let [work_key, timer_key] = keys;
                // SAFETY: `slot` is valid for writes and pinned; names and keys are static.
                unsafe {
                    bindings::init_work_with_key(
                        &raw mut (*slot).work,
                        Some(Self::run_raw),
                        false,
                        work_name.as_char_ptr(),
                        work_key.as_ptr(),
                    )
                }
                // SAFETY: As above. This is the function for timers in a `struct delayed_work`, and
                // it requires this flag.
                unsafe {
                    bindings::timer_init_key(
                        &raw mut (*slot).timer,
                        Some(bindings::delayed_work_timer_fn),
                        bindings::TIMER_IRQSAFE,
                        timer_name.as_char_ptr(),
                        timer_key.as_ptr(),
                    )
                }
            }),
            queue,
            disabled <- new_disabled(),
            _object: PhantomData,
        })
    }

    /// Called by the queue.
    ///
    /// # Safety
    ///
    /// `work` must be part of a [`DelayedWork`] that was queued by this type's methods.
    unsafe extern "C" fn run_raw(work: *mut bindings::work_struct) {
        // SAFETY: By this function's contract this is the field of a `struct delayed_work`.
        let delayed = unsafe { container_of!(work, bindings::delayed_work, work) };
        // CAST: `Opaque` is transparent, and the first field of a `repr(C)` struct.
        let this = delayed.cast_const().cast::<Self>();
        // SAFETY: By this function's contract the work item was queued, so `lend` has checked that
        // it is embedded in an object, which its reference keeps.
        let object = unsafe { T::object(this) };
        // SAFETY: `lend` has given up this reference. The work item is no longer queued, so it is
        // not reclaimed elsewhere.
        unsafe { run::<T, ID>(object, &raw const (*this).queue) }
    }

    /// Queues the work item of `object`, which must be the object that embeds `self`, to run at
    /// once.
    ///
    /// Returns whether this call has queued the work item. If it was already queued or is disabled,
    /// `object` is dropped, and the time of a queued one does not change.
    ///
    /// # Context
    ///
    /// *any*
    pub fn enqueue(&self, object: T::Pointer) -> bool {
        self.enqueue_after(object, 0)
    }

    /// As [`Self::enqueue`], in `ms` milliseconds.
    ///
    /// # Context
    ///
    /// *any*
    pub fn enqueue_in(&self, object: T::Pointer, ms: Msecs) -> bool {
        self.enqueue_after(object, msecs_to_jiffies(ms))
    }

    fn enqueue_after(&self, object: T::Pointer, delay: Jiffies) -> bool {
        let (queue, work) = (self.queue.as_raw(), self.work.get());
        lend::<T, Self, ID>(self, object, || {
            // INVARIANT: If this succeeds, the work item owns the reference.
            // SAFETY: The queue and the work item are valid. They stay valid until the work item
            // runs or is cancelled: the work item owns a reference to the object, which contains it
            // and owns a reference to the queue.
            unsafe { bindings::queue_delayed_work_on(cpu_unbound(), queue, work, delay) }
        })
    }

    /// Queues the work item of `object`, which must be the object that embeds `self`, to run in
    /// `ms` milliseconds. If the work item is already queued, its time changes.
    ///
    /// Returns whether the work item was queued by this call and not before. If it was queued
    /// before, or if it is disabled or being cancelled, `object` is dropped.
    ///
    /// # Context
    ///
    /// *any*
    pub fn modify(&self, object: T::Pointer, ms: Msecs) -> bool {
        let (queue, work) = (self.queue.as_raw(), self.work.get());
        let delay = msecs_to_jiffies(ms);
        lend::<T, Self, ID>(self, object, || {
            let disabled = self.disabled.lock();
            // INVARIANT: The work item is not disabled, by the type invariant, and no task can
            // disable it while the lock is held, so the call queues it. The work item owns the
            // reference, unless it was queued before and owns another one.
            // SAFETY: As in `enqueue_after`.
            *disabled == 0
                && !unsafe { bindings::mod_delayed_work_on(cpu_unbound(), queue, work, delay) }
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
        self.cancelled(unsafe { bindings::cancel_delayed_work(self.work.get()) })
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
        *self.disabled.lock() += 1;
        // INVARIANT: The callee disables the work item until it returns, while `disabled` is not
        // zero.
        // SAFETY: By the type invariant the work item is initialised.
        let was_queued = unsafe { bindings::cancel_delayed_work_sync(self.work.get()) };
        *self.disabled.lock() -= 1;
        self.cancelled(was_queued)
    }

    /// As [`Self::cancel_sync`]; the work item cannot be queued any more afterwards.
    ///
    /// # Context
    ///
    /// *may sleep*, but not in this work item.
    pub fn disable_sync(&self) -> bool {
        might_sleep();
        *self.disabled.lock() += 1;
        // INVARIANT: `disabled` stays above zero.
        // SAFETY: By the type invariant the work item is initialised.
        let was_queued = unsafe { bindings::disable_delayed_work_sync(self.work.get()) };
        self.cancelled(was_queued)
    }

    /// Runs the work item now if it is queued, and waits until it has run.
    ///
    /// Returns whether there was anything to wait for.
    ///
    /// # Context
    ///
    /// *may sleep*, but not in this work item, nor in one before it on an ordered queue.
    pub fn flush(&self) -> bool {
        might_sleep();
        // SAFETY: By the type invariant the work item is initialised.
        unsafe { bindings::flush_delayed_work(self.work.get()) }
    }
}
