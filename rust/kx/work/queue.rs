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
/// last reference to its object and, with that, to its queue, then the [`QueueDestroyer`] drops
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
/// This value owns `wq`. Works with timers are only queued by objects that hold a reference to this
/// value, and works whose lock class is `class` are only queued here.
#[pin_data(PinnedDrop)]
pub struct Queue {
    wq: NonNull<bindings::workqueue_struct>,
    /// One for each queue: a function on one queue may wait for the functions on another, which
    /// lockdep would take for a deadlock if both were of one class.
    #[pin]
    class: LockClassKey,
    /// Drops the last reference on the queue of the [`QueueDestroyer`].
    #[pin]
    destroy: workqueue::Work<Self>,
}

kernel::impl_has_work! {
    impl HasWork<Self> for Queue { self.destroy }
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
        // INVARIANT: The queue was just created, and nothing is on it.
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

    /// Drops a reference on a worker of the queue.
    pub(super) fn leave(this: Arc<Self>) {
        let Some(last) = Arc::into_unique_or_drop(this) else {
            return;
        };
        let last = Arc::from(last);
        // In the read section: the end of the destroyer waits for this, and then for the works that
        // are queued.
        let destroyer = DESTROYER.read();
        // The work of the last reference is queued once, so this cannot fail.
        let _ = match destroyer.get() {
            Some(queue) => queue.as_kernel().enqueue(last),
            None => workqueue::system_long().enqueue(last),
        };
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
        // SAFETY: The work of the closure only hands the class to lockdep. The class is pinned, and by
        // the drop of `Queue` it outlives all that runs on this queue, where the closure is queued at
        // once.
        let class = unsafe { Pin::new_unchecked(&*core::ptr::from_ref(&self.class)) };
        self.enqueue(KBox::pin_init(Closure::new(func, class), flags).map_err(|_| AllocError)?);
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

#[pinned_drop]
impl PinnedDrop for Queue {
    fn drop(self: Pin<&mut Self>) {
        might_sleep();
        // SAFETY: By the type invariant the queue is owned by this value. What is queued runs
        // before this returns, and nobody can queue more: the timers of delayed works hold objects
        // that hold a reference to this value. The lock class is dropped after that.
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
/// empty once this is dropped. Without it a system queue destroys them, and no unload waits for it.
///
/// The module that this crate is part of keeps one as long as it is loaded, so that no code of
/// the crate runs after that: a destroyed work queue has no worker that still runs a function.
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

/// Waits for all that the destroyer has to do at this moment.
#[cfg(IBTRS_KUNIT)]
pub(super) fn flush_destroyer() {
    let queue = DESTROYER.read().get().cloned();
    if let Some(queue) = queue {
        queue.flush();
    }
}

/// A function that a queue runs once.
///
/// The kernel crate has the same, but with one lock class for all queues of all modules.
#[pin_data]
struct Closure<F> {
    #[pin]
    work: workqueue::Work<Closure<F>>,
    func: Option<F>,
}

kernel::impl_has_work! {
    impl{F} HasWork<Self> for Closure<F> { self.work }
}

/// The name of the lock classes. lockdep compares where it is: of no type of the caller's, and
/// never inlined, so that it is the same for functions of several modules on one queue.
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
