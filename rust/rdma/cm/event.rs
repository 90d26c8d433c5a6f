// SPDX-License-Identifier: GPL-2.0

//! Events of connection manager ids.

use core::ptr::NonNull;

use super::{
    CmId,
    Context, //
};
use ibtrs_bindings as bindings;
use kernel::{
    error::code::*,
    prelude::*,
    str::CStr, //
};
use kx::pr_err_ratelimited;

/// Handles the events of an id.
///
/// # Context
///
/// Process context, with the id's handler lock held: the functions may sleep, but must not drop the
/// id.
pub trait CmHandler: Send + Sync {
    /// Handles an event of the id.
    fn event(&self, event: &CmEvent<'_>);

    /// Handles a connection request to a listener. `id` is a new id for the connection, and
    /// `private_data` comes from the peer, padded with bytes to ignore.
    ///
    /// The handler either keeps the new id, and accepts, rejects or drops it later in another
    /// context; or it returns the id, which rejects the request. If it returns another id, that id
    /// is leaked, and the log has an error.
    fn connect_request(&self, id: CmId, _private_data: &[u8]) -> Result<(), CmId> {
        Err(id)
    }
}

/// The reason of [`CmEvent::Rejected`] if the peer's connection manager still has a connection from
/// before a reboot of this machine, with the same address and number of a queue pair.
pub const REJECTED_AS_STALE: i32 = bindings::ib_cm_rej_reason_IB_CM_REJ_STALE_CONN as i32;

/// An event of an id.
#[derive(Clone, Copy)]
pub enum CmEvent<'a> {
    /// The address was resolved: the id is bound to a device.
    AddrResolved,
    /// The address was not resolved within the timeout; another thread than that of the handler may
    /// try again.
    AddrUnanswered,
    /// The route was resolved.
    RouteResolved,
    /// The connection is established. The data is the peer's private data, padded.
    Established(&'a [u8]),
    /// The connection request was rejected, for the reason with this number of the connection
    /// manager. If the peer itself rejected it, the data is the peer's private data, padded.
    Rejected(i32, &'a [u8]),
    /// Resolving the address or route, or connecting failed, or the id's device or address changed;
    /// with the error and the name of the event.
    Failed(Error, &'static CStr),
    /// The peer ended the connection, or the connection was lost.
    Disconnected,
    /// The id's device is being removed.
    DeviceRemoval,
}

impl CmEvent<'_> {
    /// Returns a description of the event.
    pub fn as_str(&self) -> &'static CStr {
        match self {
            Self::AddrResolved => c"address resolved",
            Self::AddrUnanswered => c"no answer about the address",
            Self::RouteResolved => c"route resolved",
            Self::Established(_) => c"established",
            Self::Rejected(..) => c"rejected",
            Self::Failed(_, what) => what,
            Self::Disconnected => c"disconnected",
            Self::DeviceRemoval => c"device removal",
        }
    }

    /// Returns whether the event ends the connection, or a step of its setup with a failure.
    pub fn is_end(&self) -> bool {
        !matches!(
            self,
            Self::AddrResolved | Self::RouteResolved | Self::Established(_)
        )
    }
}

/// Translates an event. An event without a variant of its own becomes [`CmEvent::Failed`].
///
/// # Safety
///
/// `id` and `event` must be the arguments with which the connection manager has called the handler,
/// and the result must not be used after the handler has returned.
unsafe fn translate<'a>(
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> CmEvent<'a> {
    // SAFETY: The event is valid by this function's contract.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    match kind {
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED => CmEvent::AddrResolved,
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR if status == ETIMEDOUT.to_errno() => {
            CmEvent::AddrUnanswered
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED => CmEvent::RouteResolved,
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED => {
            // SAFETY: The event is valid by this function's contract, and this kind of event has
            // connection parameters.
            CmEvent::Established(unsafe { private_data(event) })
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED => {
            // SAFETY: By this function's contract, and this event is a rejection.
            CmEvent::Rejected(status, unsafe { reject_data(id, event) })
        }
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED
        | bindings::rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEvent::Disconnected,
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => CmEvent::DeviceRemoval,
        kind => {
            // SAFETY: The function accepts any event and returns a static string.
            let name = unsafe { CStr::from_char_ptr(bindings::rdma_event_msg(kind)) };
            CmEvent::Failed(error_of(kind, status), name)
        }
    }
}

/// Returns the errno for a failure.
fn error_of(kind: bindings::rdma_cm_event_type, status: i32) -> Error {
    match kind {
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR
        | bindings::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR => match Error::from_errno(status)
        {
            error if (-4095..0).contains(&status) => error,
            _ => EHOSTUNREACH,
        },
        bindings::rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE => ETIMEDOUT,
        _ => ECONNRESET,
    }
}

/// # Safety
///
/// `event` must be valid and have connection parameters. Their private data must be valid during
/// `'a`.
unsafe fn private_data<'a>(event: *mut bindings::rdma_cm_event) -> &'a [u8] {
    // SAFETY: By this function's contract; the private data has the length in the parameters.
    unsafe {
        let conn = &*(*event).param.conn;
        slice(conn.private_data.cast(), conn.private_data_len)
    }
}

/// Returns the private data of the peer's rejection; empty if the peer itself did not reject.
///
/// # Safety
///
/// As [`translate`], for a rejection.
unsafe fn reject_data<'a>(
    id: *mut bindings::rdma_cm_id,
    event: *mut bindings::rdma_cm_event,
) -> &'a [u8] {
    // SAFETY: The event is valid by this function's contract.
    if unsafe { (*event).status } < 0 {
        // The status is negative only with iWARP, as InfiniBand's reasons are positive.
        // `rdma_consumer_reject_data` recognises a peer's rejection only by ECONNREFUSED, but siw
        // reports ECONNRESET, with the peer's data.
        // SAFETY: The event is a rejection by this function's contract, so it has connection
        // parameters.
        return unsafe { private_data(event) };
    }
    let mut len = 0u8;
    // SAFETY: The id and the event are valid by this function's contract. The callee returns null,
    // or the private data of the event with its length.
    unsafe {
        let data = bindings::rdma_consumer_reject_data(id, event, &mut len);
        slice(data.cast(), len)
    }
}

/// # Safety
///
/// `data` must be null, or point to `len` initialised bytes that do not change during `'a`.
unsafe fn slice<'a>(data: *const u8, len: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: By this function's contract.
    unsafe { core::slice::from_raw_parts(data, len.into()) }
}

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
    let reads_allowed = unsafe { (*(*event).param.conn).initiator_depth };
    // SAFETY: By this function's contract. If this succeeds, the result below is an error only
    // after the id was released.
    let new = NonNull::new(id)
        .ok_or(EINVAL)
        .and_then(|id| unsafe { CmId::from_request(id, reads_allowed) });
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
            // SAFETY: `back` is the new id, and the handler returns the error below.
            unsafe { back.release() };
            ECONNREFUSED.to_errno()
        }
        Err(other) => {
            // The handler keeps the new id. The other id cannot be destroyed here, as its own
            // handler may be running.
            pr_err_ratelimited!(
                "bug: a handler returned another id than the one that it received\n"
            );
            core::mem::forget(other);
            0
        }
    }
}
