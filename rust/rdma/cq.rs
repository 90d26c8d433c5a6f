// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use core::ptr::NonNull;

use crate::device::Device;
use ibtrs_bindings as bindings;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Where completions are handled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PollContext {
    /// In softirq context: handlers must not sleep.
    SoftIrq,
    /// On a bound, high-priority work queue: handlers may sleep, at the cost
    /// of the completions behind them.
    WorkQueue,
}

/// A completion queue of one queue pair.
///
/// # Invariants
///
/// `ptr` is a live completion queue of `_dev`.
pub(crate) struct Cq {
    ptr: NonNull<bindings::ib_cq>,
    _dev: Arc<Device>,
}

// SAFETY: A completion queue may be used and freed from any thread.
unsafe impl Send for Cq {}
// SAFETY: As above; shared access gives out the pointer only.
unsafe impl Sync for Cq {}

impl Cq {
    /// Allocates a completion queue of `entries` entries on the completion
    /// vector `vector`, taken modulo the device's vectors.
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
        let context = match context {
            PollContext::SoftIrq => bindings::ib_poll_context_IB_POLL_SOFTIRQ,
            PollContext::WorkQueue => bindings::ib_poll_context_IB_POLL_WORKQUEUE,
        };
        let vector = vector % dev.num_comp_vectors();
        // SAFETY: The device is live as `dev` holds it; the other arguments are
        // plain numbers, checked by the callee.
        let ptr = crate::from_err_ptr(unsafe {
            bindings::__ib_alloc_cq(
                dev.as_raw(),
                core::ptr::null_mut(),
                i32::try_from(entries)?,
                i32::try_from(vector)?,
                context,
                crate::caller(),
            )
        })?;
        // INVARIANT: Just allocated on `dev`.
        Ok(Self {
            ptr,
            _dev: dev.clone(),
        })
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::ib_cq {
        self.ptr.as_ptr()
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the queue is live; its one user, a
        // queue pair, is destroyed before it drops this.
        unsafe { bindings::ib_free_cq(self.ptr.as_ptr()) }
    }
}
