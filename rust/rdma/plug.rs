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

/// The core's function.
static POLL: SetOnce<work_func_t> = SetOnce::new();

/// Where the work of a completion queue is.
///
/// # Safety
///
/// `cq` must be a live completion queue whose completions a work queue handles.
unsafe fn work_of(cq: *mut bindings::ib_cq) -> *mut work_struct {
    // SAFETY: The queue is live by this function's contract, and the work the active member.
    let work = unsafe { &raw mut (*cq).__bindgen_anon_1.work };
    // CAST: What wraps the work in a union is transparent.
    work.cast()
}

/// Has the handlers of a queue called under a plug, and the handler of its queue pair told of
/// batches, until [`remove`] is called.
///
/// # Safety
///
/// `cq` must be a live completion queue whose completions a work queue handles, and
/// which can have none yet. It must be the one of `qp`, which keeps its place as long as the queue
/// lives, and stays valid until [`remove`] has returned.
pub(crate) unsafe fn install<H: Handler>(cq: *mut bindings::ib_cq, qp: *const QueuePair<H>) {
    // SAFETY: The queue is live by this function's contract. Nobody but `poll` looks at its
    // context: the core's own function for the events of such queues does not.
    unsafe { (*cq).cq_context = qp.cast_mut().cast() };
    // SAFETY: By this function's contract. The work is initialised, and nobody queues it yet.
    let func = unsafe { &mut (*work_of(cq)).func };
    // Once is enough, as it is always the same one. While another thread is putting it
    // there, this queue does without.
    if POLL.populate(*func) || POLL.as_ref().is_some() {
        *func = Some(poll::<H>);
    }
}

/// Tells the handler of no batch any more: when this returns, none is open.
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
    // The work that runs now may not have seen that. One that is queued later does: who queues it
    // takes the lock of the work queue after this has given it back.
    // SAFETY: By this function's contract; the work is initialised.
    unsafe { kernel::bindings::flush_work(work_of(cq)) };
}

/// # Safety
///
/// `work` must be that of a completion queue that [`install`] was called for with a queue pair with
/// that handler.
unsafe extern "C" fn poll<H: Handler>(work: *mut work_struct) {
    // It was there before any queue was made to come here.
    let Some(poll) = POLL.copy().flatten() else {
        return;
    };
    let union = work.cast::<bindings::ib_cq__bindgen_ty_1>();
    // SAFETY: By this function's contract the work is that field of a completion queue. That lives
    // while its work runs, which `ib_free_cq` waits for, and so does the memory of the queue pair,
    // which is freed later.
    let qp = unsafe {
        let cq = kernel::container_of!(union, bindings::ib_cq, __bindgen_anon_1);
        (*cq).cq_context.cast::<QueuePair<H>>()
    };
    // SAFETY: Only a flag is looked at, which is not changed when the queue pair is dropped. If it
    // is set, `remove` has not returned, and will not before this work is done: so the queue pair
    // stays valid that long, by the contract of `install`.
    let qp = unsafe { QueuePair::batches_of(qp) };
    if let Some(qp) = qp {
        qp.handler().batch_begins();
    }
    // SAFETY: The core's function for the work of its completion queues, which is
    // what `work` is by this function's contract.
    let polls = || unsafe { poll(work) };
    let ends = || {
        if let Some(qp) = qp {
            qp.handler().batch_ends(qp);
        }
    };
    // Nobody waits for a batch whose thread sleeps.
    kx::blk::plugged(polls, ends);
    ends();
}
