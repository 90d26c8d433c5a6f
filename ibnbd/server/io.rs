// SPDX-License-Identifier: GPL-2.0

//! Turns requests into bios, and answers the requests.

use crate::{
    device::Opened,
    session::Session, //
};
use ibnbd_proto::{
    io_check::{
        self,
        CheckedIo, //
    },
    msg::{
        IoFlags,
        IoHdr,
        Op as IoKind, //
    },
    prio,
};
use ibtrs_core::convert;
use ibtrs_server::Request;
use kernel::prelude::*;
use kx::{
    blk::{
        BioBuf,
        BioOwner,
        BioSpec,
        BlockDevice,
        Op as BioOp,
        Status, //
    },
    sync::PercpuArc,
};

/// A request that the block layer executes, and its device.
pub(crate) struct IoRequest {
    request: Request,
    device: PercpuArc<Opened>,
}

impl BioOwner for IoRequest {
    fn device(&self) -> &BlockDevice {
        self.device.bdev()
    }

    fn buffer(&self) -> Option<BioBuf<'_>> {
        BioBuf::new(self.request.buffer()?, 0, self.request.data_len()).ok()
    }

    fn done(self, status: Status) {
        self.request.respond(status.to_result());
    }
}

/// Serves an I/O request.
///
/// # Context
///
/// May sleep, when the device's queue is full or the host has reached a limit.
pub(crate) fn serve(session: &Session, hdr: &IoHdr, request: Request) {
    let device = session.device(hdr.device_id);
    let Some(device) = device.filter(|device| !device.is_revoked()) else {
        return refuse(session, hdr.device_id, request);
    };
    // CAST: At most the size of a chunk, which fits in 32 bits.
    let data_len = request.data_len() as u32;
    let checked = io_check::check(hdr, request.dir(), data_len, &device.bounds());
    let io = match checked {
        Ok(io) => io,
        Err(error) => {
            if session.may_log(&request.source()) {
                pr_warn!(
                    "{}: device {}: I/O refused: {}\n",
                    session.name(),
                    hdr.device_id,
                    error.as_str()
                );
            }
            return request.respond(Err(convert::error(error.errno())));
        }
    };
    match device.throttle() {
        Some(throttle) if !request.may_wait() => throttle.charge(data_len),
        Some(throttle) => {
            let is_over = || {
                request.is_moot() || device.is_revoked() || session.device(hdr.device_id).is_none()
            };
            if !throttle.wait(data_len, is_over) {
                return match request.is_moot() || session.is_stopped() {
                    // The client sends it again.
                    true => request.abandon(),
                    false => request.respond(Err(ENOTCONN)),
                };
            }
        }
        None => {}
    }
    let slot = usize::from(request.buf_id());
    let prio = match session.has_prio() {
        true => prio::granted(io.prio, device.allows_realtime()),
        false => 0,
    };
    let owner = IoRequest { request, device };
    if let Err((error, owner)) = session.bios.submit(slot, &spec(&io, prio), owner) {
        owner.request.respond(Err(error));
    }
}

/// Ends a request to a device that the session does not, or no longer, have open.
#[cold]
fn refuse(session: &Session, id: u32, request: Request) {
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
    request.respond(Err(ENOTCONN));
}

fn spec(io: &CheckedIo, prio: u16) -> BioSpec {
    let op = match io.op {
        IoKind::Read => BioOp::Read,
        IoKind::Write => BioOp::Write,
        IoKind::Flush => BioOp::Flush,
        IoKind::Discard => BioOp::Discard,
        IoKind::SecureErase => BioOp::SecureErase,
        IoKind::WriteZeroes => BioOp::WriteZeroes,
    };
    BioSpec {
        op,
        sector: io.sector,
        bytes: io.bytes,
        fua: io.flags.contains(IoFlags::FUA),
        preflush: io.flags.contains(IoFlags::PREFLUSH),
        sync: io.flags.contains(IoFlags::SYNC),
        nounmap: io.flags.contains(IoFlags::NOUNMAP),
        prio,
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibnbd_server_io)]
mod tests {
    use super::*;
    use ibtrs_proto::errno::Errno;

    /// The client's disk ends a request with the status of the server's disk, although an answer
    /// has only nine bits for it.
    #[test]
    fn every_status_travels() {
        assert_eq!(Status::OK.to_result(), Ok(()));
        for status in Status::failures() {
            let sent = status.to_result().err().map(convert::errno);
            let received = sent.and_then(|errno| Errno::from_imm(errno.to_imm()));
            let there = received.map(convert::error);
            assert_eq!(there.map(Status::from), Some(status));
        }
    }
}
