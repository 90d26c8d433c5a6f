// SPDX-License-Identifier: GPL-2.0

//! Turns requests into bios, and answers the requests.

use crate::{
    device::Opened,
    session::{
        admin,
        Session, //
    },
    throttle::HostThrottle, //
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
use kernel::{
    prelude::*,
    sync::Arc, //
};
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
use requests::{
    Requests,
    Waiting, //
};

pub(crate) mod backlog;
pub(crate) mod requests;

/// A request that the block layer executes, and its device.
pub(crate) struct IoRequest {
    request: Request,
    device: PercpuArc<Opened>,
    /// The device's number in the session.
    device_id: u32,
    /// The CRC of the header of a read whose answer has a checksum.
    crc: Option<u32>,
    through: WrittenThrough,
    spec: BioSpec,
}

impl IoRequest {
    /// Returns the number of the request's chunk.
    pub(crate) fn number(&self) -> u16 {
        self.request.buf_id()
    }

    /// Returns the bytes that count towards the limits of the host.
    pub(crate) fn data_len(&self) -> u32 {
        // CAST: At most the size of a chunk, which fits in 32 bits.
        self.request.data_len() as u32
    }

    /// Returns the limits of the host, if there are any for the device.
    pub(crate) fn limits(&self) -> Option<&Arc<HostThrottle>> {
        self.device.throttle()
    }

    /// Returns whether nobody wants the request any more, which has not reached its disk yet.
    pub(crate) fn is_unwanted(&self, session: &Session) -> bool {
        self.is_over() || session.device(self.device_id).is_none()
    }

    fn is_over(&self) -> bool {
        self.request.is_moot() || self.device.is_revoked()
    }

    /// Ends a request that nobody wants any more. If its session `is_stopped`, or its path is being
    /// closed, the client sends it again.
    pub(crate) fn end_unwanted(self, is_stopped: bool) {
        let Self {
            request, device, ..
        } = self;
        // The task that closes the device does not wait for the answer.
        drop(device);
        match is_stopped || request.is_moot() {
            true => request.abandon(),
            false => request.respond(Err(ENOTCONN)),
        }
    }

    /// Hands the request to its disk, or to those that wait for the disk.
    ///
    /// # Context
    ///
    /// May sleep, but does not wait for the disk.
    pub(crate) fn submit(self, requests: &Requests) {
        let is_first = self.device.backlog().is_empty();
        if !is_first || !self.device.bdev().takes_nowait(&self.spec) {
            return self.wait();
        }
        self.start(requests);
    }

    /// Hands a request that has waited to its disk, unless nobody wants it any more.
    ///
    /// # Context
    ///
    /// May sleep, until the disk takes the request.
    pub(crate) fn submit_waiting(mut self, requests: &Requests) {
        if self.is_over() {
            return self.end_unwanted(false);
        }
        self.spec.nowait = false;
        self.start(requests);
    }

    /// Makes the request wait for its disk.
    fn wait(self) {
        // Keeps the backlog, as the request may end at once.
        let device = self.device.clone();
        device.backlog().push(self);
    }

    fn start(mut self, requests: &Requests) {
        // The disk may have got a cache since the request arrived.
        match self.through {
            WrittenThrough::AsItIs => {}
            _ if !self.device.is_written_through() => {}
            WrittenThrough::WithFua => self.spec.fua = true,
            WrittenThrough::Never => {
                drop(self.device);
                return self.request.respond(Err(EOPNOTSUPP));
            }
        }
        self.request.executing();
        let (slot, spec) = (usize::from(self.number()), self.spec);
        if let Err((error, io)) = requests.bios.submit(slot, &spec, self) {
            io.request.respond(Err(error));
        }
    }

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
        // The disk may also have ceased to take such I/O since it was asked.
        if self.spec.nowait && matches!(status, Status::AGAIN | Status::NOT_SUPPORTED) {
            return self.wait();
        }
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
/// May sleep, but waits neither for a disk nor for a limit.
pub(crate) fn serve(session: &Arc<Session>, hdr: &IoHdr, intact: Intact, request: Request) {
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
                pr_warn!(
                    "{}: device {}: I/O refused: {}\n",
                    session.name(),
                    hdr.device_id,
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
    let io = IoRequest {
        request,
        device_id: hdr.device_id,
        crc: crc.filter(|_| io.op == IoKind::Read),
        through: io.op.written_through(),
        spec: spec(&io, prio),
        device,
    };
    match io.limits().filter(|limits| limits.is_limited()).cloned() {
        Some(limits) => session.limit(&limits, Waiting::Io(io)),
        None => io.submit(&session.requests),
    }
}

/// Refuses a message with `error`, whose checksum was computed, and charges the session's host for
/// it: a client may have no more data examined than it may write. So the answer may have to wait.
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

/// Decides whether to believe a message of a session that has opened a device with checksums.
///
/// # Errors
///
/// Why not; [`damaged`] refuses the message.
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

/// Logs and refuses a message that [`examine`] does not believe, and charges for it.
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

/// Ends a request to a device that the session does not, or no longer, have open; `examined` tells
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

/// Describes the bio of a request.
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
        nowait: true,
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
