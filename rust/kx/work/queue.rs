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
    static_lock_class,
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
    /// One work at a time, in the order of queueing, on any CPU.
    pub const fn ordered() -> Self {
        Self {
            flags: bindings::wq_flags_WQ_UNBOUND | bindings::wq_flags___WQ_ORDERED,
            max_active: 1,
        }
    }

    /// Many works at a time, on any CPU.
    pub const fn unbound() -> Self {
        Self {
            flags: bindings::wq_flags_WQ_UNBOUND,
            max_active: 0,
        }
    }

    /// Keeps a worker in reserve, so that work goes on when there is no memory for a new one.
    pub const fn mem_reclaim(mut self) -> Self {
        self.flags |= bindings::wq_flags_WQ_MEM_RECLAIM;
        self
    }
}

/// A work queue, destroyed when its last reference is dropped.
///
/// Destroying it runs everything that is queued, and waits for it: after that no code runs on it.
///
/// A work cannot wait for its own queue. If a [`Work`](super::Work) that holds an [`Arc`] drops the
/// last reference to its object and, with that, to its queue, then the [`QueueDestroyer`] destroys
/// the queue some time later. A module whose code must have left the queue at some point flushes
/// it, or keeps a reference to it and drops that last.
///
/// # Context
///
/// To create and to drop one *may sleep*. The function of [`Self::spawn`], and works of the kernel
/// crate, must not drop the last reference.
///
/// # Invariants
///
/// `wq` is a work queue that this value owns unless `deferred` is [`None`]. Works with timers are
/// only queued by objects that hold a reference to this value.
pub struct Queue {
    wq: NonNull<bindings::workqueue_struct>,
    /// Allocated in advance, so that destroying cannot fail.
    deferred: Option<Pin<KBox<DeferredDestroy>>>,
}

// SAFETY: A work queue belongs to no task.
unsafe impl Send for Queue {}

// SAFETY: A work queue has locks of its own.
unsafe impl Sync for Queue {}

impl Queue {
    /// Creates a queue. The workers' names are made of its name, which is cut to 31 bytes.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new(options: Options, name: fmt::Arguments<'_>) -> Result<Arc<Self>> {
        might_sleep();
        // SAFETY: The format takes one pointer to `fmt::Arguments`, which lives during the call.
        let wq = unsafe {
            bindings::alloc_workqueue_noprof(
                c"%pA".as_char_ptr(),
                options.flags,
                options.max_active,
                core::ptr::from_ref(&name).cast::<c_void>(),
            )
        };
        let wq = NonNull::new(wq).ok_or(ENOMEM)?;
        let Ok(deferred) = KBox::pin_init(DeferredDestroy::new(wq), GFP_KERNEL) else {
            // SAFETY: The queue was just created, and nobody else knows it.
            unsafe { bindings::destroy_workqueue(wq.as_ptr()) };
            return Err(ENOMEM);
        };
        // INVARIANT: The queue was just created, and nothing is on it.
        let queue = Self {
            wq,
            deferred: Some(deferred),
        };
        Ok(Arc::new(queue, GFP_KERNEL)?)
    }

    /// Drops a reference on a worker of the queue.
    pub(super) fn leave(this: Arc<Self>) {
        let last = Arc::into_unique_or_drop(this);
        // INVARIANT: The deferred work owns the queue from now on.
        let Some(deferred) = last.and_then(|mut queue| queue.deferred.take()) else {
            return;
        };
        // In the read section: the end of the destroyer waits for this, and then for the works that
        // are queued.
        let destroyer = DESTROYER.read();
        match destroyer.get() {
            Some(queue) => queue.as_kernel().enqueue(deferred),
            None => workqueue::system_long().enqueue(deferred),
        }
    }

    pub(super) fn as_raw(&self) -> *mut bindings::workqueue_struct {
        self.wq.as_ptr()
    }

    fn as_kernel(&self) -> &workqueue::Queue {
        // SAFETY: By the type invariant the queue is valid, and it stays so while it is borrowed.
        unsafe { workqueue::Queue::from_raw(self.wq.as_ptr()) }
    }

    /// Runs a function once.
    ///
    /// # Context
    ///
    /// *any*, if `flags` allow.
    ///
    /// # Errors
    ///
    /// [`AllocError`]; the function is dropped. Where that will not do, see [`Self::enqueue`].
    pub fn spawn<F>(&self, flags: Flags, func: F) -> Result<(), AllocError>
    where
        F: FnOnce() + Send + 'static,
    {
        self.enqueue(KBox::pin_init(Closure::new(func), flags).map_err(|_| AllocError)?);
        Ok(())
    }

    /// Queues a work of the kernel crate's, a `Pin<KBox<T>>` that was allocated before for example.
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

    /// Waits for everything that is queued at this moment.
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

impl Drop for Queue {
    fn drop(&mut self) {
        if self.deferred.take().is_none() {
            return;
        }
        might_sleep();
        // SAFETY: By the type invariant the queue is owned by this value. What is queued runs
        // before this returns, and nobody can queue more: the timers of delayed works hold objects
        // that hold a reference to this value.
        unsafe { bindings::destroy_workqueue(self.wq.as_ptr()) }
    }
}

/// The queue of the [`QueueDestroyer`].
static DESTROYER: RcuPtr<Arc<Queue>> = RcuPtr::null();

/// Destroys queues whose last reference is dropped on one of their own workers, on a queue that is
/// empty once this is dropped. Without it a system queue destroys them, and no unload waits for it.
///
/// The module that this crate is part of keeps one as long as it is loaded, so that no code of
/// the crate runs after that.
pub struct QueueDestroyer(());

impl QueueDestroyer {
    /// Starts the destroyer; there is one at a time.
    ///
    /// # Context
    ///
    /// *may sleep*; dropping it as well. Users of queues must be gone before it is dropped.
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
        // The last reference, so this waits for the works that are queued.
        drop(DESTROYER.replace(None));
    }
}

/// Destroys a queue whose last reference was dropped on one of its own workers.
///
/// # Invariants
///
/// While this is queued, it owns `wq`.
#[pin_data]
struct DeferredDestroy {
    #[pin]
    work: workqueue::Work<Self>,
    wq: NonNull<bindings::workqueue_struct>,
}

// SAFETY: A work queue belongs to no task.
unsafe impl Send for DeferredDestroy {}

kernel::impl_has_work! {
    impl HasWork<Self> for DeferredDestroy { self.work }
}

impl DeferredDestroy {
    fn new(wq: NonNull<bindings::workqueue_struct>) -> impl PinInit<Self> {
        // INVARIANT: This is not queued.
        pin_init!(Self {
            work <- workqueue::new_work!("work::DeferredDestroy"),
            wq,
        })
    }
}

impl workqueue::WorkItem for DeferredDestroy {
    type Pointer = Pin<KBox<Self>>;

    fn run(this: Pin<KBox<Self>>) {
        // SAFETY: By the type invariant the queue is owned by this value, which is dropped here.
        // For what is queued, see the drop of `Queue`.
        unsafe { bindings::destroy_workqueue(this.wq.as_ptr()) }
    }
}

/// A function that a queue runs once.
///
/// The kernel crate has the same, but its lock class has one key for all modules and a name in
/// each: lockdep warns as soon as a second module queues a closure.
#[pin_data]
struct Closure<F> {
    #[pin]
    work: workqueue::Work<Closure<F>>,
    func: Option<F>,
}

kernel::impl_has_work! {
    impl{F} HasWork<Self> for Closure<F> { self.work }
}

/// Of no type of the caller's, and never inlined, so that name and key are the same in every
/// module.
#[inline(never)]
fn lock_class() -> (&'static CStr, Pin<&'static LockClassKey>) {
    (c"work::Closure", static_lock_class!())
}

impl<F: FnOnce()> Closure<F> {
    fn new(func: F) -> impl PinInit<Self> {
        let (name, key) = lock_class();
        pin_init!(Self {
            work <- workqueue::Work::new(name, key),
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
