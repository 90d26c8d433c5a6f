// SPDX-License-Identifier: GPL-2.0

//! An I/O request, which becomes a bio, and is answered when the bio ends.

use crate::{
    device::Opened,
    throttle::HostThrottle, //
};
use ibnbd_proto::{
    checksum,
    io_check::CheckedIo,
    msg::{
        IoFlags,
        Op as IoKind,
        WrittenThrough, //
    }, //
};
use ibtrs_server::{
    Request,
    Tag, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    blk::{
        BioBuf,
        BioFlags,
        BioOwner,
        BioSpec,
        BlockDevice,
        Op as BioOp,
        Status, //
    },
    sync::PercpuArc,
};
use requests::Requests;

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
    /// Creates the I/O of a request that was [checked](ibnbd_proto::io_check) for `device`, whose id
    /// in the session is `device_id`. `crc` is the CRC of the header, if this is a read whose answer
    /// has a checksum.
    pub(crate) fn new(
        request: Request,
        device: PercpuArc<Opened>,
        device_id: u32,
        io: &CheckedIo,
        prio: u16,
        crc: Option<u32>,
    ) -> Self {
        Self {
            request,
            device,
            device_id,
            crc,
            through: io.op.written_through(),
            spec: spec(io, prio),
        }
    }

    /// Returns the request's tag.
    pub(crate) fn tag(&self) -> Tag {
        self.request.tag()
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

    /// Returns the id of the device in the session.
    pub(crate) fn device_id(&self) -> u32 {
        self.device_id
    }

    /// Returns whether the path or the device of the request is being closed.
    pub(crate) fn is_over(&self) -> bool {
        self.request.is_moot() || self.device.is_revoked()
    }

    /// Ends a request whose result is no longer wanted. If its session `is_stopped`, or its path is
    /// being closed, the client resends it.
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

    /// Submits the request to its disk, or adds it to the disk's backlog.
    ///
    /// # Context
    ///
    /// May sleep, but does not wait for the disk.
    #[inline(always)]
    pub(crate) fn submit(self, requests: &Requests) {
        let is_first = self.device.backlog().is_empty();
        if !is_first || !self.device.bdev().takes_nowait(&self.spec) {
            return self.wait();
        }
        self.start(requests);
    }

    /// Submits a request that has waited to its disk, unless its result is no longer wanted.
    ///
    /// # Context
    ///
    /// May sleep, until the disk accepts the request.
    pub(crate) fn submit_waiting(mut self, requests: &Requests) {
        if self.is_over() {
            return self.end_unwanted(false);
        }
        self.spec.flags = self.spec.flags.without(BioFlags::NOWAIT);
        self.start(requests);
    }

    /// Adds the request to the backlog of its disk.
    fn wait(self) {
        // Keeps the backlog, as the request may end at once.
        let device = self.device.clone();
        device.backlog().push(self);
    }

    #[inline]
    fn start(mut self, requests: &Requests) {
        // The disk may have got a cache since the request arrived.
        match self.through {
            WrittenThrough::AsItIs => {}
            _ if !self.device.is_written_through() => {}
            WrittenThrough::WithFua => self.spec.flags = self.spec.flags.and(BioFlags::FUA),
            WrittenThrough::Never => {
                drop(self.device);
                return self.request.respond(Err(EOPNOTSUPP));
            }
        }
        self.request.executing();
        let (slot, spec) = (usize::from(self.tag()), self.spec);
        if let Err((error, io)) = requests.bios.submit(slot, &spec, self) {
            io.request.respond(Err(error));
        }
    }

    /// Answers a successful read with the checksum of its header and its data.
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
pub(crate) fn data_crc(request: &Request, crc: u32) -> Result<u32> {
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

    #[inline]
    fn buffer(&self) -> Option<BioBuf<'_>> {
        let (pieces, at) = self.request.buffer()?;
        BioBuf::new(pieces, at, self.request.data_len()).ok()
    }

    #[inline]
    fn done(self, status: Status) {
        // The disk may also have ceased to take such I/O since it was asked.
        let nowait = self.spec.flags.intersects(BioFlags::NOWAIT);
        if nowait && matches!(status, Status::AGAIN | Status::NOT_SUPPORTED) {
            return self.wait();
        }
        match self.crc {
            Some(crc) if status.is_ok() => self.respond_with_checksum(crc),
            _ => self.request.respond(status.to_result()),
        }
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
    let flags = [
        (IoFlags::FUA, BioFlags::FUA),
        (IoFlags::PREFLUSH, BioFlags::PREFLUSH),
        (IoFlags::SYNC, BioFlags::SYNC),
        (IoFlags::NOUNMAP, BioFlags::NOUNMAP),
    ]
    .into_iter()
    .map(|(sent, flag)| flag.when(io.flags.contains(sent)));
    BioSpec {
        op,
        sector: io.sector,
        bytes: io.bytes,
        flags: flags.fold(BioFlags::NOWAIT, BioFlags::and),
        prio,
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibnbd_server_io)]
mod tests {
    use super::*;
    use ibnbd_proto::io_check::IoError;
    use ibtrs_core::convert;
    use ibtrs_proto::errno::Errno;

    /// The client's disk ends a request with the status of the server's disk, although an answer
    /// encodes it in only nine bits.
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

    /// The error of a damaged request differs from all errors of the server's disk.
    #[test]
    fn damage_is_no_status() {
        let damaged = convert::error(IoError::Damaged.errno());
        assert!(Status::failures().all(|status| status.to_result() != Err(damaged)));
    }
}
