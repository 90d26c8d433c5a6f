// SPDX-License-Identifier: GPL-2.0

//! A block plug around each batch of completions that a work queue handles. The I/O that their
//! handlers submit reaches the drivers of the disks in one batch, and the handler is notified when
//! a batch begins and ends.
//!
//! The RDMA core has no hook around a batch of completions. One function of the core polls all
//! queues. Here, [`poll`] replaces it as the function of a queue's work item, and calls it under a
//! plug.

use super::{
    Handler,
    QueuePair, //
};
use ibtrs_bindings as bindings;
use kernel::bindings::{
    work_func_t,
    work_struct, //
};
use kx::sync::SetOnce;

/// The core's work function of completion queues.
static POLL: SetOnce<work_func_t> = SetOnce::new();

/// Returns the work item of a completion queue.
///
/// # Safety
///
/// `cq` must be a live completion queue whose completions a work queue handles.
unsafe fn work_of(cq: *mut bindings::ib_cq) -> *mut work_struct {
    // SAFETY: The queue is live by this function's contract, and for a work queue, so the work item
    // is the active member of the union.
    let work = unsafe { &raw mut (*cq).__bindgen_anon_1.work };
    // CAST: The wrapper of the union's field is transparent.
    work.cast()
}

/// Makes the completion handlers of a queue run under a plug, and notifies the handler of its queue
/// pair of batches until [`remove`] is called.
///
/// # Safety
///
/// `cq` must be a live completion queue whose completions a work queue handles, and must not have
/// any completion yet. `qp` must be its queue pair. It must stay valid until [`remove`] has
/// returned, and its memory must stay allocated as long as the completion queue is live.
pub(crate) unsafe fn install<H: Handler>(cq: *mut bindings::ib_cq, qp: *const QueuePair<H>) {
    // SAFETY: The queue is live by this function's contract. Only `poll` reads its context, as the
    // core's own event function of such queues does not.
    unsafe { (*cq).cq_context = qp.cast_mut().cast() };
    // SAFETY: By this function's contract the queue is live and for a work queue. The core has
    // initialised the work item, and nobody queues it before the first completion.
    let func = unsafe { &mut (*work_of(cq)).func };
    // The core's function is stored once, as it is the same for all queues. If another thread is
    // storing it right now, this queue works without plugs.
    if POLL.populate(*func) || POLL.as_ref().is_some() {
        *func = Some(poll::<H>);
    }
}

/// Stops notifying the handler of batches. When this returns, no batch is open.
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
    // A running work item may have missed the flag, so wait for it. `flush_work()` first looks up the
    // pool of the work item, without a lock. A worker that starts the item leaves the pool id in that
    // word and executes a full barrier, and only then does `poll` read the flag. The flag was cleared
    // with a full barrier, too, so either `flush_work()` finds the item, or `poll` sees the flag.
    // SAFETY: By this function's contract the queue is live and for a work queue, so its work item
    // is initialised.
    unsafe { kernel::bindings::flush_work(work_of(cq)) };
}

/// # Safety
///
/// `work` must be the work item of a completion queue for which [`install`] was called with a queue
/// pair of this handler type.
unsafe extern "C" fn poll<H: Handler>(work: *mut work_struct) {
    // `install` has stored the core's function before it set this one.
    let Some(poll) = POLL.copy().flatten() else {
        return;
    };
    let union = work.cast::<bindings::ib_cq__bindgen_ty_1>();
    // SAFETY: By this function's contract the work item is that field of a completion queue, and
    // `install` has set its context. The completion queue is live while its work item runs, as
    // `ib_free_cq` waits for that.
    let qp = unsafe {
        let cq = kernel::container_of!(union, bindings::ib_cq, __bindgen_anon_1);
        (*cq).cq_context.cast::<QueuePair<H>>()
    };
    // SAFETY: By the contract of `install` the memory of the queue pair is allocated as long as the
    // completion queue is live. If the handler is to be notified, `remove` has not returned, and
    // waits until this function has returned, so the queue pair stays valid until then.
    let qp = unsafe { QueuePair::batches_of(qp) };
    if let Some(qp) = qp {
        qp.handler().batch_begins();
    }
    // SAFETY: This is the core's function for the work items of completion queues, and by this
    // function's contract `work` is one of them.
    let polls = || unsafe { poll(work) };
    let ends = || {
        if let Some(qp) = qp {
            qp.handler().batch_ends(qp);
        }
    };
    // `ends` also runs when the thread goes to sleep, so that no message waits for the rest of the
    // batch.
    kx::blk::plugged(polls, ends);
    ends();
}
