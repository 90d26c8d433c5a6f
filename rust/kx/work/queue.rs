// SPDX-License-Identifier: GPL-2.0

//! Work queues that belong to a driver.

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

    /// Has work items run at high priority, before ordinary threads.
    pub const fn high_priority(mut self) -> Self {
        self.flags |= bindings::wq_flags_WQ_HIGHPRI;
        self
    }

    /// Adds a rescuer thread, so that work items run even if there is no memory for a new worker.
    pub const fn mem_reclaim(mut self) -> Self {
        self.flags |= bindings::wq_flags_WQ_MEM_RECLAIM;
        self
    }
}

/// A work queue, destroyed when its last reference is dropped.
///
/// Destroying it runs all work items that are queued, and waits for them. Afterwards no code runs
/// on the queue.
///
/// A work item cannot wait for its own queue. If a [`Work`](super::Work) that owns an [`Arc`] drops
/// the last reference to its object and thereby to its queue, the [`QueueDestroyer`] drops the
/// queue some time later. A module that must be sure that its code has left the queue flushes the
/// queue; dropping its own reference does not wait while a work item holds another one.
///
/// # Context
///
/// Creating and dropping one *may sleep*. The function of [`Self::spawn`], and work items of the
/// kernel crate, must not drop the last reference.
///
/// # Invariants
///
/// - This value owns `wq`.
/// - Only objects that own a reference to this value queue work items with timers here.
/// - Work items whose lock class is `class` are queued only here.
#[pin_data(PinnedDrop)]
pub struct Queue {
    wq: NonNull<bindings::workqueue_struct>,
    /// The lock class of functions on this queue. Each queue has its own, as a function on one
    /// queue may wait for functions on another one, which lockdep would take for a deadlock in one
    /// class.
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

// SAFETY: A work queue has its own locks, and `class` and `destroy` are `Sync`.
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
        // SAFETY: The format takes one pointer to a `fmt::Arguments`, which lives during the call.
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
        // This cannot fail, as only the owner of the last reference queues the work item.
        let _ = later(Arc::from(last));
    }

    pub(super) fn as_raw(&self) -> *mut bindings::workqueue_struct {
        self.wq.as_ptr()
    }

    fn as_kernel(&self) -> &workqueue::Queue {
        // SAFETY: By the type invariant this value owns the queue, which is valid while `self` is
        // borrowed.
        unsafe { workqueue::Queue::from_raw(self.wq.as_ptr()) }
    }

    /// Queues a function, which runs once.
    ///
    /// # Context
    ///
    /// Any in which `flags` allow an allocation.
    ///
    /// # Errors
    ///
    /// [`AllocError`]; the function is then dropped. [`Self::enqueue`] allocates nothing.
    pub fn spawn<F>(&self, flags: Flags, func: F) -> Result<(), AllocError>
    where
        F: FnOnce() + Send + 'static,
    {
        // SAFETY: The work item of the closure only passes the class to lockdep, until it has run.
        // The closure is queued on this queue at once. The class is pinned in `self` and outlives
        // everything that runs on the queue: `drop` waits for that before the class is dropped.
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

    /// Waits for all work items that are queued when this is called.
    ///
    /// # Context
    ///
    /// *may sleep*, but not on this queue.
    pub fn flush(&self) {
        might_sleep();
        // SAFETY: By the type invariant this value owns the queue.
        unsafe { bindings::__flush_workqueue(self.wq.as_ptr()) }
    }
}

#[pinned_drop]
impl PinnedDrop for Queue {
    fn drop(self: Pin<&mut Self>) {
        might_sleep();
        // SAFETY: By the type invariant this value owns the queue. Queued work items run before
        // this returns. No more can be queued, as there is no reference to this value: by the type
        // invariant the object of a pending timer would own one. The lock class is dropped
        // afterwards.
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

/// Queues a work item of the kernel crate on the queue of the [`QueueDestroyer`]. It is for cleanup that must not
/// delay the caller. The destroyer is dropped before this crate is unloaded, and waits for these work items.
///
/// # Context
///
/// *any*
pub fn later<W, const ID: u64>(work: W) -> W::EnqueueOutput
where
    W: workqueue::RawWorkItem<ID> + Send + 'static,
{
    // The work item is queued inside the read section. Dropping the destroyer waits for this
    // section, and then for the queued work items.
    let destroyer = DESTROYER.read();
    match destroyer.get() {
        Some(queue) => queue.as_kernel().enqueue(work),
        None => workqueue::system_long().enqueue(work),
    }
}

/// Destroys queues whose last reference is dropped on one of their own workers.
///
/// It does so on its own queue, which is empty once this value is dropped. Without a destroyer, a
/// system queue destroys them, and unloading does not wait for it. The module that this crate is
/// part of therefore keeps one as long as it is loaded. No code of the crate runs after the
/// destroyer is dropped, as a destroyed queue has no worker that still runs a function.
pub struct QueueDestroyer(());

impl QueueDestroyer {
    /// Starts the destroyer; there may be one at a time.
    ///
    /// # Context
    ///
    /// Starting and dropping it *may sleep*. All queues must be gone before it is dropped.
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
        // This drops the last reference to the queue, and thereby waits for the queued work items.
        drop(DESTROYER.replace(None));
    }
}

/// Waits for work items that were queued by [`later`], and for queues that are being destroyed.
///
/// # Context
///
/// *may sleep*, but not in such a work item.
pub fn flush_later() {
    let queue = DESTROYER.read().get().cloned();
    if let Some(queue) = queue {
        queue.flush();
    }
}

/// A function that a queue runs once.
///
/// The kernel crate has such a work item, too, but with one lock class for the queues of all
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

/// Returns the name of the lock classes. This function is neither generic nor inlined, so that the
/// name has one address, which lockdep compares, for functions of several modules on one queue.
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
