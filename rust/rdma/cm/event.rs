// SPDX-License-Identifier: GPL-2.0

//! Events of connection manager ids.

use ibtrs_bindings as bindings;
use kernel::{
    error::code::*,
    prelude::*,
    str::CStr, //
};

/// The reason of [`CmEvent::Rejected`] if the peer's connection manager still has a connection from
/// before a reboot of this machine, with the same address and number of a queue pair.
pub const REJECTED_AS_STALE: i32 = bindings::ib_cm_rej_reason_IB_CM_REJ_STALE_CONN as i32;

/// An event of an id.
#[derive(Clone, Copy)]
pub enum CmEvent<'a> {
    /// The address was resolved: the id is bound to a device.
    AddrResolved,
    /// The address was not resolved within the timeout. The resolution may be retried, but not by the
    /// thread that runs the handler.
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

/// Translates an event. An event without its own variant becomes [`CmEvent::Failed`].
///
/// # Safety
///
/// `id` and `event` must be the arguments with which the connection manager has called the handler,
/// and the result must not be used after the handler has returned.
pub(super) unsafe fn translate<'a>(
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
pub(super) unsafe fn private_data<'a>(event: *mut bindings::rdma_cm_event) -> &'a [u8] {
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
