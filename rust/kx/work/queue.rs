// SPDX-License-Identifier: GPL-2.0

//! A work queue of the driver's own.

use crate::sync::RcuPtr;
use core::ptr::NonNull;
use kernel::{
    alloc::{
        AllocError,
        Flags, //
    },
    bindings,
    fmt,
    prelude::*,
    sync::{
        Arc,
        LockClassKey, //
    },
    task::might_sleep,
    workqueue, //
};

/// The kind of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    flags: bindings::wq_flags,
    max_active: c_int,
}

impl Options {
    /// One work item at a time, in the order of queueing, on any CPU.
    pub const fn ordered() -> Self {
        Self {
            flags: bindings::wq_flags_WQ_UNBOUND | bindings::wq_flags___WQ_ORDERED,
            max_active: 1,
        }
    }

    /// Many work items at a time, on any CPU.
    pub const fn unbound() -> Self {
        Self {
            flags: bindings::wq_flags_WQ_UNBOUND,
            max_active: 0,
        }
    }

    /// Adds a rescuer, so that work goes on when there is no memory for a new worker.
    pub const fn mem_reclaim(mut self) -> Self {
        self.flags |= bindings::wq_flags_WQ_MEM_RECLAIM;
        self
    }
}

/// A work queue, destroyed when its last reference is dropped.
///
/// Destroying it runs all work items that are queued, and waits for them: afterwards no code runs
/// on it.
///
/// A work item cannot wait for its own queue. If a [`Work`](super::Work) that holds an [`Arc`]
/// drops the last reference to its object and thereby to its queue, the [`QueueDestroyer`] drops
/// the queue some time later. A module that needs its code to have left the queue at some point
/// flushes the queue, or drops a reference of its own last.
///
/// # Context
///
/// Creating and dropping one *may sleep*. The function of [`Self::spawn`], and work items of the
/// kernel crate, must not drop the last reference.
///
/// # Invariants
///
/// This value owns `wq`. Work items with timers are queued here only by objects that hold a
/// reference to this value, and work items whose lock class is `class` are queued only here.
#[pin_data(PinnedDrop)]
pub struct Queue {
    wq: NonNull<bindings::workqueue_struct>,
    /// One for each queue: a function on one queue may wait for functions on another one, which
    /// lockdep would take for a deadlock if both had the same class.
    #[pin]
    class: LockClassKey,
    /// Drops the last reference, on the queue of the [`QueueDestroyer`].
    #[pin]
    destroy: workqueue::Work<Self>,
}

kernel::impl_has_work! {
    impl HasWork<Self> for Queue { self.destroy }
}

// SAFETY: A work queue has no thread affinity.
unsafe impl Send for Queue {}

// SAFETY: A work queue has its own locks.
unsafe impl Sync for Queue {}

impl Queue {
    /// Creates a queue. Workers are named after it; its name is truncated to 31 bytes.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new(options: Options, name: fmt::Arguments<'_>) -> Result<Arc<Self>> {
        might_sleep();
        // INVARIANT: The queue was just created and is empty.
        Arc::pin_init(
            try_pin_init!(Self {
                wq: Self::alloc(options, &name)?,
                class <- LockClassKey::new_dynamic(),
                destroy <- workqueue::new_work!("work::Queue"),
            }),
            GFP_KERNEL,
        )
    }

    fn alloc(
        options: Options,
        name: &fmt::Arguments<'_>,
    ) -> Result<NonNull<bindings::workqueue_struct>> {
        // SAFETY: The format takes one pointer to `fmt::Arguments`, which lives during the call.
        let wq = unsafe {
            bindings::alloc_workqueue_noprof(
                c"%pA".as_char_ptr(),
                options.flags,
                options.max_active,
                core::ptr::from_ref(name).cast::<c_void>(),
            )
        };
        NonNull::new(wq).ok_or(ENOMEM)
    }

    /// Drops a reference on a worker of the queue itself.
    pub(super) fn leave(this: Arc<Self>) {
        let Some(last) = Arc::into_unique_or_drop(this) else {
            return;
        };
        let last = Arc::from(last);
        // In the read section: ending the destroyer waits for this section, and then for the queued
        // work items.
        let destroyer = DESTROYER.read();
        // The work item of the last reference is queued once, so this cannot fail.
        let _ = match destroyer.get() {
            Some(queue) => queue.as_kernel().enqueue(last),
            None => workqueue::system_long().enqueue(last),
        };
    }

    pub(super) fn as_raw(&self) -> *mut bindings::workqueue_struct {
        self.wq.as_ptr()
    }

    fn as_kernel(&self) -> &workqueue::Queue {
        // SAFETY: By the type invariant the queue is valid, and stays so while it is borrowed.
        unsafe { workqueue::Queue::from_raw(self.wq.as_ptr()) }
    }

    /// Queues a function, to be run once.
    ///
    /// # Context
    ///
    /// *any*, if `flags` allow.
    ///
    /// # Errors
    ///
    /// [`AllocError`]; the function is dropped. [`Self::enqueue`] allocates nothing.
    pub fn spawn<F>(&self, flags: Flags, func: F) -> Result<(), AllocError>
    where
        F: FnOnce() + Send + 'static,
    {
        // SAFETY: The work item of the closure only passes the class to lockdep. The class is
        // pinned, and by the drop of `Queue` it outlives everything that runs on this queue, on
        // which the closure is queued at once.
        let class = unsafe { Pin::new_unchecked(&*core::ptr::from_ref(&self.class)) };
        self.enqueue(KBox::pin_init(Closure::new(func, class), flags).map_err(|_| AllocError)?);
        Ok(())
    }

    /// Queues a work item of the kernel crate, for example a `Pin<KBox<T>>` that was allocated
    /// earlier.
    ///
    /// # Context
    ///
    /// *any*
    pub fn enqueue<W, const ID: u64>(&self, work: W) -> W::EnqueueOutput
    where
        W: workqueue::RawWorkItem<ID> + Send + 'static,
    {
        self.as_kernel().enqueue(work)
    }

    /// Waits for all work items that are queued now.
    ///
    /// # Context
    ///
    /// *may sleep*, but not on this queue.
    pub fn flush(&self) {
        might_sleep();
        // SAFETY: By the type invariant the queue is valid.
        unsafe { bindings::__flush_workqueue(self.wq.as_ptr()) }
    }
}

#[pinned_drop]
impl PinnedDrop for Queue {
    fn drop(self: Pin<&mut Self>) {
        might_sleep();
        // SAFETY: By the type invariant this value owns the queue. Queued work items run before
        // this returns, and nobody can queue more: the timers of delayed work items hold objects
        // that hold a reference to this value. The lock class is dropped afterwards.
        unsafe { bindings::destroy_workqueue(self.wq.as_ptr()) }
    }
}

impl workqueue::WorkItem for Queue {
    type Pointer = Arc<Self>;

    fn run(last: Arc<Self>) {
        drop(last);
    }
}

/// The queue of the [`QueueDestroyer`].
static DESTROYER: RcuPtr<Arc<Queue>> = RcuPtr::null();

/// Destroys queues whose last reference is dropped on one of their own workers, on a queue that is
/// empty once this is dropped. Without it, a system queue destroys them, and no unload waits for
/// that.
///
/// The module that this crate is part of keeps one as long as it is loaded, so no code of the crate
/// runs afterwards: a destroyed work queue has no worker that still runs a function.
pub struct QueueDestroyer(());

impl QueueDestroyer {
    /// Starts the destroyer; there may be one at a time.
    ///
    /// # Context
    ///
    /// *may sleep*; dropping it, too. Users of queues must be gone before it is dropped.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn start() -> Result<Self> {
        let queue = Queue::new(Options::unbound(), fmt!("kx-destroy"))?;
        drop(DESTROYER.replace(Some(KBox::new(queue, GFP_KERNEL)?)));
        Ok(Self(()))
    }
}

impl Drop for QueueDestroyer {
    fn drop(&mut self) {
        // This drops the last reference, and so waits for the queued work items.
        drop(DESTROYER.replace(None));
    }
}

/// Waits for everything that the destroyer has to do now.
#[cfg(IBTRS_KUNIT)]
pub(super) fn flush_destroyer() {
    let queue = DESTROYER.read().get().cloned();
    if let Some(queue) = queue {
        queue.flush();
    }
}

/// A function that a queue runs once.
///
/// The kernel crate has such a work item, too, but with one lock class for all queues of all
/// modules.
#[pin_data]
struct Closure<F> {
    #[pin]
    work: workqueue::Work<Closure<F>>,
    func: Option<F>,
}

kernel::impl_has_work! {
    impl{F} HasWork<Self> for Closure<F> { self.work }
}

/// Returns the name of the lock classes. lockdep compares its address: not generic and never
/// inlined, so that the address is the same for functions of several modules on one queue.
#[inline(never)]
fn class_name() -> &'static CStr {
    c"work::Closure"
}

impl<F: FnOnce()> Closure<F> {
    fn new(func: F, class: Pin<&'static LockClassKey>) -> impl PinInit<Self> {
        pin_init!(Self {
            work <- workqueue::Work::new(class_name(), class),
            func: Some(func),
        })
    }
}

impl<F: FnOnce()> workqueue::WorkItem for Closure<F> {
    type Pointer = Pin<KBox<Self>>;

    fn run(mut this: Pin<KBox<Self>>) {
        if let Some(func) = this.as_mut().project().func.take() {
            func();
        }
    }
}
