// SPDX-License-Identifier: GPL-2.0

//! The event handler that the connection manager calls.

use core::ptr::NonNull;

use super::{
    incoming::ConnRequest,
    Context, //
};
use crate::cm::event::{
    private_data,
    translate, //
};
use ibtrs_bindings as bindings;
use kernel::prelude::*;
use kx::pr_err_ratelimited;

/// The handler of all ids of this crate.
///
/// # Safety
///
/// The connection manager must have called this, for an id whose context is a [`Context`].
pub(super) unsafe extern "C" fn handler(
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> kernel::ffi::c_int {
    // SAFETY: By this function's contract the context is a `Context`. It outlives its id, which the
    // connection manager keeps during a call of the handler. The new id of a request starts with
    // the context of its listener, which the connection manager keeps as well.
    let context = unsafe { &*(*id).context.cast::<Context>() };
    // SAFETY: By this function's contract the event is valid.
    if unsafe { (*event).event } == bindings::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST {
        // SAFETY: `id` is the new id of the request, and its context still that of the listener.
        return unsafe { connect_request(context, id, event) };
    }
    // SAFETY: By this function's contract; `deliver` does not keep the event.
    context.deliver(&unsafe { translate(id, event) });
    0
}

/// # Safety
///
/// The connection manager must have called the handler with the connection request `event` and its
/// new id `id`, and the handler must return the result. `listener` must be the context of the
/// listening id.
pub(super) unsafe fn connect_request(
    listener: &Context,
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> kernel::ffi::c_int {
    let Some(handler) = listener.handler() else {
        return ENODEV.to_errno();
    };
    // The event names the resources from this side's point of view.
    // SAFETY: By this function's contract the event is a connection request, so it has connection
    // parameters.
    let param = unsafe { &*(*event).param.conn };
    let (reads_allowed, reads_wanted) = (param.initiator_depth, param.responder_resources);
    // SAFETY: By this function's contract. If this succeeds, the result below is an error only
    // after the id was released.
    let new = NonNull::new(id)
        .ok_or(EINVAL)
        .and_then(|id| unsafe { ConnRequest::new(id, reads_allowed, reads_wanted) });
    let new = match new {
        Ok(new) => new,
        // The connection manager destroys the id, which rejects the request.
        Err(error) => return error.to_errno(),
    };
    // SAFETY: By this function's contract the event is a connection request, so it has connection
    // parameters.
    match handler.connect_request(new, unsafe { private_data(event) }) {
        Ok(()) => 0,
        Err(back) if core::ptr::eq(back.as_raw(), id) => {
            // SAFETY: `back` has the new id, and the handler returns the error below.
            unsafe { back.release() };
            ECONNREFUSED.to_errno()
        }
        Err(other) => {
            // The handler keeps the new request. The other one cannot be destroyed here, as its own
            // handler may be running.
            pr_err_ratelimited!(
                "bug: a handler returned another request than the one that it received\n"
            );
            core::mem::forget(other);
            0
        }
    }
}
