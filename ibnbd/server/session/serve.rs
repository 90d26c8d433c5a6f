// SPDX-License-Identifier: GPL-2.0

//! Serves the I/O requests of a session.

use super::Session;
use crate::device::io::{
    data_crc,
    requests::Waiting,
    IoRequest, //
};
use ibnbd_proto::{
    checksum::{
        self,
        Arrived,
        Intact, //
    },
    io_check::{
        self,
        IoError, //
    },
    msg::{
        IoHdr,
        Op as IoKind,
        IO_HDR_LEN, //
    },
    prio,
};
use ibtrs_core::convert::{
    self,
    Shown, //
};
use ibtrs_proto::msg::Direction;
use ibtrs_server::Request;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::crc::crc32c;

/// Serves an I/O request. If its session has checksums, it has been [examined](examine).
///
/// # Context
///
/// May sleep, but waits neither for a disk nor for a limit.
pub(crate) fn serve(session: &Arc<Session>, hdr: &IoHdr, intact: Intact, request: Request) {
    let crc = match intact {
        Intact::Sealed(crc) => Some(crc),
        Intact::Plain => None,
    };
    if let Err(error) = hdr.check_flags(crc.is_some()) {
        let error = session.refused(&request.source(), error);
        return request.respond(Err(error));
    }
    let device = session.device(hdr.device_id);
    let Some(device) = device.filter(|device| !device.is_revoked()) else {
        return refuse(session, hdr.device_id, crc.is_some(), request);
    };
    // CAST: At most the size of a chunk, which fits in 32 bits.
    let data_len = request.data_len() as u32;
    let checked = io_check::check(hdr, request.dir(), data_len, &device.bounds());
    let io = match checked {
        Ok(io) => io,
        Err(error) => {
            let error = match intact {
                Intact::Sealed(_) => error.of_sealed(),
                Intact::Plain => error,
            };
            if session.may_log(&request.source()) {
                // A copy: the message borrows it, which would keep the whole header in memory.
                let id = hdr.device_id;
                pr_warn!(
                    "{}: device {id}: I/O refused: {}\n",
                    session.name(),
                    error.as_str()
                );
            }
            // The task that closes the device does not wait for this request.
            drop(device);
            let error = convert::error(error.errno());
            return match crc {
                Some(_) => charge(session, request, error),
                None => request.respond(Err(error)),
            };
        }
    };
    let prio = match session.has_prio() {
        true => prio::granted(io.prio, device.allows_realtime()),
        false => 0,
    };
    let crc = crc.filter(|_| io.op == IoKind::Read);
    let io = IoRequest::new(request, device, hdr.device_id, &io, prio, crc);
    match io.limits().filter(|limits| limits.is_limited()).cloned() {
        Some(limits) => session.limit(&limits, Waiting::Io(io)),
        None => io.submit(&session.requests),
    }
}

/// Refuses a message with `error`, whose checksum was computed, and charges the session's host for
/// it: the limit for writes also applies to data that the server only verifies. The answer may
/// therefore be delayed.
///
/// # Context
///
/// May sleep, but does not wait for the limit.
#[cold]
pub(crate) fn charge(session: &Arc<Session>, request: Request, error: Error) {
    let limits = session.limits().filter(|limits| limits.is_limited());
    let Some(limits) = limits else {
        return request.respond(Err(error));
    };
    let bytes = match request.dir() {
        // CAST: At most the size of a chunk, which fits in 32 bits.
        Direction::Write => request.data_len() as u32,
        Direction::Read => 0,
    };
    let refused = Waiting::Refused {
        request,
        error,
        limits: limits.clone(),
        bytes,
    };
    session.limit(&limits, refused);
}

/// Verifies a message of a session that has opened a device with checksums.
///
/// # Errors
///
/// The defect of the message, which [`damaged`] then refuses.
pub(crate) fn examine(session: &Session, request: &Request) -> Result<Intact, IoError> {
    let arrived = Arrived {
        header: request.user_hdr(),
        direction: request.dir(),
        data_len: request.data_len(),
    };
    let has_checksums = |id| session.device_has_checksums(id);
    let of_data = |crc| data_crc(request, crc).ok();
    checksum::examine(&arrived, has_checksums, crc32c, of_data)
}

/// Logs and refuses a message that has failed [`examine`], and charges for it.
///
/// # Context
///
/// As for [`charge`].
#[cold]
pub(crate) fn damaged(session: &Arc<Session>, request: Request, error: IoError) {
    let source = request.source();
    if session.may_log(&source) {
        pr_warn!(
            "{}: {}: message refused: {}\n",
            session.name(),
            Shown(source),
            error.as_str()
        );
    }
    let error = convert::error(error.errno());
    // No checksum was computed for headers of other lengths.
    match request.user_hdr().len() == IO_HDR_LEN {
        true => charge(session, request, error),
        false => request.respond(Err(error)),
    }
}

/// Ends a request to a device that the session does not have open, or no longer; `examined` says
/// whether its checksum was computed.
#[cold]
fn refuse(session: &Arc<Session>, id: u32, examined: bool, request: Request) {
    if session.is_stopped() {
        return request.abandon();
    }
    if session.may_log(&request.source()) {
        pr_warn!(
            "{}: I/O to device {}, which is not open\n",
            session.name(),
            id
        );
    }
    match examined {
        true => charge(session, request, ENOTCONN),
        false => request.respond(Err(ENOTCONN)),
    }
}
