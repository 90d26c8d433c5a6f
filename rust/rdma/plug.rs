// SPDX-License-Identifier: GPL-2.0

//! Completions that a work queue handles, under one block plug: the I/O that their handlers
//! submit reaches the disks' drivers in one batch.
//!
//! The RDMA core has no hook around a batch of completions. It polls all queues in the same
//! function; ours replaces that as the function of the queue's work, and calls it.

use ibtrs_bindings as bindings;
use kernel::{
    bindings::{
        work_func_t,
        work_struct, //
    },
    sync::SetOnce, //
};

/// The core's function.
static POLL: SetOnce<work_func_t> = SetOnce::new();

/// Has the handlers of a queue called under a plug.
///
/// # Safety
///
/// `cq` must be a live completion queue whose completions a work queue handles, and
/// which can have none yet.
pub(crate) unsafe fn install(cq: *mut bindings::ib_cq) {
    // SAFETY: The queue is live by this function's contract.
    let work = unsafe { &raw mut (*cq).__bindgen_anon_1.work };
    // CAST: What wraps the work in a union is transparent.
    let work = work.cast::<work_struct>();
    // SAFETY: The work is the active member, as a work queue handles completions. It is
    // initialised, and nobody queues it yet.
    let func = unsafe { &mut (*work).func };
    // Once is enough, as it is always the same one. While another thread is putting it
    // there, this queue does without.
    if POLL.populate(*func) || POLL.as_ref().is_some() {
        *func = Some(poll);
    }
}

/// # Safety
///
/// `work` must be that of a completion queue that [`install`] was called for.
unsafe extern "C" fn poll(work: *mut work_struct) {
    // It was there before any queue was made to come here.
    if let Some(poll) = POLL.copy().flatten() {
        // SAFETY: The core's function for the work of its completion queues, which is
        // what `work` is by this function's contract.
        kx::blk::plugged(|| unsafe { poll(work) });
    }
}
