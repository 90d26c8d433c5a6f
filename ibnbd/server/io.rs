// SPDX-License-Identifier: GPL-2.0

//! Turns requests into bios, and answers the requests.

use crate::{
    admin,
    device::Opened,
    session::Session, //
};
use ibnbd_proto::{
    checksum::{
        self,
        Arrived,
        Intact, //
    },
    io_check::{
        self,
        CheckedIo,
        IoError, //
    },
    msg::{
        IoFlags,
        IoHdr,
        Op as IoKind,
        WrittenThrough,
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
    crc::crc32c,
    sync::PercpuArc,
};

/// A request that the block layer executes, and its device.
pub(crate) struct IoRequest {
    request: Request,
    device: PercpuArc<Opened>,
    /// The CRC of the header of a read whose answer has a checksum.
    crc: Option<u32>,
}

impl IoRequest {
    /// Answers a read that succeeded, with the checksum of its header and its data.
    ///
    /// Runs in the context in which the disk ends its bios, which may be an interrupt. The CRC of
    /// 128 KiB, the longest read by default, takes some ten microseconds there; that of 1 MiB takes
    /// up to a millisecond on a slow processor.
    fn respond_with_checksum(mut self, crc: u32) {
        self.request.executed();
        match data_crc(&self.request, crc) {
            Ok(crc) => self.request.respond_with(checksum::finish(crc)),
            Err(error) => self.request.respond(Err(error)),
        }
    }
}

/// Continues the CRC of a header with the data of its request.
fn data_crc(request: &Request, crc: u32) -> Result<u32> {
    let len = request.data_len();
    match request.buffer() {
        Some((buffer, at)) if len > 0 => buffer.crc32c(crc, at, len),
        _ => Ok(crc),
    }
}

impl BioOwner for IoRequest {
    fn device(&self) -> &BlockDevice {
        self.device.bdev()
    }

    fn buffer(&self) -> Option<BioBuf<'_>> {
        let (pieces, at) = self.request.buffer()?;
        BioBuf::new(pieces, at, self.request.data_len()).ok()
    }

    fn done(self, status: Status) {
        match self.crc {
            Some(crc) if status.is_ok() => self.respond_with_checksum(crc),
            _ => self.request.respond(status.to_result()),
        }
    }
}

/// Serves an I/O request. If its session has checksums, it has been [examined](examine).
///
/// # Context
///
/// May sleep, when the device's queue is full or the host has reached a limit.
pub(crate) fn serve(session: &Session, hdr: &IoHdr, intact: Intact, mut request: Request) {
    let crc = match intact {
        Intact::Sealed(crc) => Some(crc),
        Intact::Plain => None,
    };
    if let Err(error) = hdr.check_flags(crc.is_some()) {
        let error = admin::refused(session, &request.source(), error);
        return request.respond(Err(error));
    }
    let device = session.device(hdr.device_id);
    let Some(device) = device.filter(|device| !device.is_revoked()) else {
        if crc.is_some() {
            charge(session, &request);
        }
        return refuse(session, hdr.device_id, request);
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
                pr_warn!(
                    "{}: device {}: I/O refused: {}\n",
                    session.name(),
                    hdr.device_id,
                    error.as_str()
                );
            }
            // The task that closes the device does not wait for this request.
            drop(device);
            if crc.is_some() {
                charge(session, &request);
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
    let fua = match io.op.written_through() {
        WrittenThrough::AsItIs => false,
        _ if !device.is_written_through() => false,
        WrittenThrough::WithFua => true,
        WrittenThrough::Never => {
            drop(device);
            return request.respond(Err(EOPNOTSUPP));
        }
    };
    let slot = usize::from(request.buf_id());
    let prio = match session.has_prio() {
        true => prio::granted(io.prio, device.allows_realtime()),
        false => 0,
    };
    let crc = crc.filter(|_| io.op == IoKind::Read);
    request.executing();
    let owner = IoRequest {
        request,
        device,
        crc,
    };
    if let Err((error, owner)) = session.bios.submit(slot, &spec(&io, fua, prio), owner) {
        owner.request.respond(Err(error));
    }
}

/// Charges the session's host for a message that is refused after its checksum was computed: a
/// client may have no more data examined than it may write. So the message may have to wait, unless
/// it has no data and came over the service connection.
///
/// # Context
///
/// May sleep, when the host has reached a limit.
#[cold]
pub(crate) fn charge(session: &Session, request: &Request) {
    let Some(limits) = session.limits() else {
        return;
    };
    let examined = match request.dir() {
        // CAST: At most the size of a chunk, which fits in 32 bits.
        Direction::Write => request.data_len() as u32,
        Direction::Read => 0,
    };
    // A damaged administrative message, which has no data, must not delay heartbeats.
    let may_wait = examined > 0 || !request.is_on_service_connection();
    if may_wait && request.may_wait() {
        // The message has no effect, so it does not matter whether it is answered.
        let _ = limits.wait(examined, || request.is_moot() || session.is_stopped());
    } else {
        limits.charge(examined);
    }
}

/// Decides whether to believe a message of a session that has opened a device with checksums.
///
/// # Context
///
/// May sleep, when the message is damaged and the host has reached a limit.
///
/// # Errors
///
/// `EBADMSG` if it is damaged.
pub(crate) fn examine(session: &Session, request: &Request) -> Result<Intact> {
    let arrived = Arrived {
        header: request.user_hdr(),
        direction: request.dir(),
        data_len: request.data_len(),
    };
    let has_checksums = |id| session.device_has_checksums(id);
    let of_data = |crc| data_crc(request, crc).ok();
    checksum::examine(&arrived, has_checksums, crc32c, of_data)
        .map_err(|error| damaged(session, request, error))
}

/// Logs a damaged message, charges for it, and returns the error for the answer.
#[cold]
fn damaged(session: &Session, request: &Request, error: IoError) -> Error {
    let source = request.source();
    if session.may_log(&source) {
        pr_warn!(
            "{}: {}: message refused: {}\n",
            session.name(),
            Shown(source),
            error.as_str()
        );
    }
    // No checksum was computed for headers of other lengths.
    if request.user_hdr().len() == IO_HDR_LEN {
        charge(session, request);
    }
    convert::error(error.errno())
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

/// Describes the bio of a request; with `fua`, also one that does not ask for that is durable when it
/// ends.
fn spec(io: &CheckedIo, fua: bool, prio: u16) -> BioSpec {
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
        fua: fua || io.flags.contains(IoFlags::FUA),
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

    /// The error of a damaged request is none that the server's disk can have.
    #[test]
    fn damage_is_no_status() {
        let damaged = convert::error(IoError::Damaged.errno());
        assert!(Status::failures().all(|status| status.to_result() != Err(damaged)));
    }
}
