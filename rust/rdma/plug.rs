// SPDX-License-Identifier: GPL-2.0

//! Completions that a work queue handles, under one block plug: the I/O that their handlers
//! submit reaches the disks' drivers in one batch. The handler is called at the beginning
//! and at the end of each batch.
//!
//! The RDMA core has no hook around a batch of completions. It polls all queues in the same
//! function; ours replaces that as the function of the queue's work, and calls it.

use crate::qp::{
    Handler,
    QueuePair, //
};
use ibtrs_bindings as bindings;
use kernel::{
    bindings::{
        work_func_t,
        work_struct, //
    },
    sync::SetOnce, //
};

/// The core's work function of completion queues.
static POLL: SetOnce<work_func_t> = SetOnce::new();

/// Returns the work item of a completion queue.
///
/// # Safety
///
/// `cq` must be a live completion queue whose completions a work queue handles.
unsafe fn work_of(cq: *mut bindings::ib_cq) -> *mut work_struct {
    // SAFETY: The queue is live by this function's contract, and the work the active member.
    let work = unsafe { &raw mut (*cq).__bindgen_anon_1.work };
    // CAST: The wrapper of the union's field is transparent.
    work.cast()
}

/// Runs the completion handlers of a queue under a plug, and tells the handler of its queue pair
/// about batches, until [`remove`] is called.
///
/// # Safety
///
/// `cq` must be a live completion queue whose completions a work queue handles, and which cannot
/// have any yet. `qp` must be its queue pair, must not move as long as the completion queue lives,
/// and must stay valid until [`remove`] has returned.
pub(crate) unsafe fn install<H: Handler>(cq: *mut bindings::ib_cq, qp: *const QueuePair<H>) {
    // SAFETY: The queue is live by this function's contract. Only `poll` reads its context: the
    // core's own event function of such queues does not.
    unsafe { (*cq).cq_context = qp.cast_mut().cast() };
    // SAFETY: By this function's contract. The work is initialised, and nobody queues it yet.
    let func = unsafe { &mut (*work_of(cq)).func };
    // Stored once, as it is the same function for all queues. If another thread is storing it right
    // now, this queue goes without plugs.
    if POLL.populate(*func) || POLL.as_ref().is_some() {
        *func = Some(poll::<H>);
    }
}

/// Stops telling the handler about batches: when this returns, no batch is open.
///
/// # Context
///
/// May sleep; not from a handler.
///
/// # Safety
///
/// `cq` must be the completion queue of `qp` that [`install`] was called for.
pub(crate) unsafe fn remove<H: Handler>(cq: *mut bindings::ib_cq, qp: &QueuePair<H>) {
    qp.tells_batches(false);
    // Work that is running may have missed the flag, so wait for it. Work that is queued later sees
    // it: queueing takes the lock of the worker pool after `flush_work()` has released it.
    // SAFETY: By this function's contract; the work is initialised.
    unsafe { kernel::bindings::flush_work(work_of(cq)) };
}

/// # Safety
///
/// `work` must be the work of a completion queue for which [`install`] was called with a queue pair
/// of this handler type.
unsafe extern "C" fn poll<H: Handler>(work: *mut work_struct) {
    // `install` stored it before it directed any work here.
    let Some(poll) = POLL.copy().flatten() else {
        return;
    };
    let union = work.cast::<bindings::ib_cq__bindgen_ty_1>();
    // SAFETY: By this function's contract the work is that field of a completion queue. The
    // completion queue lives while its work runs, as `ib_free_cq` waits for that, and the memory of
    // the queue pair is freed later.
    let qp = unsafe {
        let cq = kernel::container_of!(union, bindings::ib_cq, __bindgen_anon_1);
        (*cq).cq_context.cast::<QueuePair<H>>()
    };
    // SAFETY: Only reads a flag, which dropping the queue pair does not change. If the flag is set,
    // `remove` has not returned, and will not return before this work is done: so the queue pair
    // stays valid that long, by the contract of `install`.
    let qp = unsafe { QueuePair::batches_of(qp) };
    if let Some(qp) = qp {
        qp.handler().batch_begins();
    }
    // SAFETY: This is the core's function for the work of completion queues, and `work` is that of
    // one, by this function's contract.
    let polls = || unsafe { poll(work) };
    let ends = || {
        if let Some(qp) = qp {
            qp.handler().batch_ends(qp);
        }
    };
    // `ends` also runs when the thread sleeps, so that nothing waits for the batch meanwhile.
    kx::blk::plugged(polls, ends);
    ends();
}
