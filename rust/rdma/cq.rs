// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use core::ptr::NonNull;

use crate::device::Device;
use ibtrs_bindings as bindings;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sync::atomic::{
    AtomicFlag,
    Full,
    Relaxed,
    Release, //
};

/// The context in which completions are handled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PollContext {
    /// In softirq context: handlers must not sleep.
    SoftIrq,
    /// On a bound, high-priority work queue: handlers may sleep, which delays later completions.
    /// I/O that handlers submit is plugged until all available completions are handled.
    WorkQueue,
    /// In the context of the caller of [`QueuePair::poll`]. The device raises no interrupts for
    /// completions, and handlers must not sleep.
    ///
    /// [`QueuePair::poll`]: crate::qp::QueuePair::poll
    Direct,
}

/// A completion queue of one queue pair.
///
/// # Invariants
///
/// `ptr` is a live completion queue of `_dev`, which was allocated for `context`.
pub(crate) struct Cq {
    ptr: NonNull<bindings::ib_cq>,
    context: PollContext,
    /// Whether a thread is polling a directly polled queue.
    polled: AtomicFlag,
    _dev: Arc<Device>,
}

// SAFETY: A completion queue may be used and freed from any thread.
unsafe impl Send for Cq {}
// SAFETY: As above; `polled` lets one thread at a time poll with shared access.
unsafe impl Sync for Cq {}

impl Cq {
    /// Allocates a completion queue of `entries` entries on the completion vector `vector`, modulo
    /// the number of the device's vectors.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(
        dev: &Arc<Device>,
        entries: u32,
        vector: u32,
        context: PollContext,
    ) -> Result<Self> {
        let poll_ctx = match context {
            PollContext::SoftIrq => bindings::ib_poll_context_IB_POLL_SOFTIRQ,
            PollContext::WorkQueue => bindings::ib_poll_context_IB_POLL_WORKQUEUE,
            PollContext::Direct => bindings::ib_poll_context_IB_POLL_DIRECT,
        };
        let vector = vector % dev.num_comp_vectors();
        // SAFETY: The device is live, as `dev` keeps it. The callee checks the numbers.
        let ptr = crate::from_err_ptr(unsafe {
            bindings::__ib_alloc_cq(
                dev.as_raw(),
                core::ptr::null_mut(),
                i32::try_from(entries)?,
                i32::try_from(vector)?,
                poll_ctx,
                crate::caller(),
            )
        })?;
        // INVARIANT: The queue was just allocated on `dev`, for that context.
        Ok(Self {
            ptr,
            context,
            polled: AtomicFlag::new(false),
            _dev: dev.clone(),
        })
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::ib_cq {
        self.ptr.as_ptr()
    }

    /// Returns whether a work queue handles the completions.
    pub(crate) fn has_work(&self) -> bool {
        self.context == PollContext::WorkQueue
    }

    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        self.context == PollContext::Direct
    }

    /// Handles up to `budget` completions of a directly polled queue. Returns their number, which
    /// is zero if another thread is polling.
    #[inline]
    pub(crate) fn poll(&self, budget: u16) -> u32 {
        if !self.is_direct() || self.polled.load(Relaxed) {
            return 0;
        }
        // ORDERING: Pairs with the store below: a poller sees everything that the handlers of the
        // previous one did.
        if self.polled.xchg(true, Full) {
            return 0;
        }
        // SAFETY: By the type invariant the queue is live, and was allocated for direct polling.
        // The callee calls the functions of the completion entries, each of which belongs to the
        // queue's one queue pair.
        let done = unsafe { bindings::ib_process_cq_direct(self.ptr.as_ptr(), budget.into()) };
        // ORDERING: Pairs with the exchange above.
        self.polled.store(false, Release);
        u32::try_from(done).unwrap_or(0)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the queue is live. Its one user, a queue pair, was
        // destroyed before or never created. No thread polls directly, as a poller holds a
        // reference to the `QueuePair`, and the call waits for the work item that polls.
        unsafe { bindings::ib_free_cq(self.ptr.as_ptr()) }
    }
}
