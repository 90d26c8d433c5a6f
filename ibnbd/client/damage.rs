// SPDX-License-Identifier: GPL-2.0

//! Detects damaged requests by the checksums of a disk, and resends them.
//!
//! In a session that has a disk with checksums, the server also detects some damaged requests of
//! the other disks.
//!
//! A damaged request has changed nothing on the server's disk, and its user has not seen the data
//! yet. The client therefore resends it, at most [`MAX_RESENDS`](checksum::MAX_RESENDS) times, and
//! after a pause from the second time on. It prefers another path than the one that has damaged the
//! request.
//!
//! Contexts: *any*.

use crate::request::IbnbdMq;
use ibnbd_proto::{
    checksum::{
        self,
        DataChecksum, //
    },
    msg::{
        IoHdr,
        Op,
        IO_HDR_LEN, //
    }, //
};
use kernel::prelude::*;
use kx::{
    blk::Request,
    crc::crc32c,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// The checksum of a disk, and the damage of its requests.
pub(crate) struct Damage {
    checksum: DataChecksum,
    /// Requests that the server has refused.
    to_server: Atomic<u64>,
    /// Answers whose data did not match.
    from_server: Atomic<u64>,
}

impl Damage {
    pub(crate) fn new(checksum: DataChecksum) -> Self {
        Self {
            checksum,
            to_server: Atomic::new(0),
            from_server: Atomic::new(0),
        }
    }

    /// Returns the checksum of the disk.
    #[inline]
    pub(crate) fn checksum(&self) -> DataChecksum {
        self.checksum
    }

    /// Returns how many requests were damaged on the way to the server, and how many answers on the
    /// way from it.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let count = |counter: &Atomic<u64>| counter.load(Relaxed);
        (count(&self.to_server), count(&self.from_server))
    }

    /// Resets the counts.
    pub(crate) fn reset(&self) {
        self.to_server.store(0, Relaxed);
        self.from_server.store(0, Relaxed);
    }
}

/// Returns the path that has damaged the request, if the request is being resent.
pub(crate) fn damaging_path(rq: &Request<IbnbdMq>) -> Option<u32> {
    rq.pdu().check.avoid
}

/// Puts the checksum of a request into its header. Called before each attempt to send it, even if
/// the transport has refused the earlier ones, because the user may have changed the data since.
pub(crate) fn seal(rq: &mut Request<IbnbdMq>, op: Op, header: &mut [u8; IO_HDR_LEN]) {
    let crc = checksum::start(header, crc32c);
    let check = &mut rq.pdu_mut().check;
    check.crc = crc;
    check.received = None;
    check.path = None;
    let crc = match op {
        Op::Write => rq.crc32c(crc),
        _ => crc,
    };
    IoHdr::set_checksum(header, checksum::finish(crc));
}

/// Checks an answer, and counts damage.
///
/// # Errors
///
/// `EBADMSG` if the request or the answer was damaged; the error of `result`.
#[inline]
pub(crate) fn verify(rq: &mut Request<IbnbdMq>, result: Result) -> Result {
    match rq.queue_data().has_checksums() || result == Err(EBADMSG) {
        true => examine(rq, result),
        false => result,
    }
}

fn examine(rq: &mut Request<IbnbdMq>, result: Result) -> Result {
    // An abandoned request has no data any more. This is the answer to the message without effect
    // that has replaced it.
    if rq.is_abandoned() {
        return result;
    }
    match result {
        Ok(()) if rq.op() == Some(kx::blk::Op::Read) && rq.bytes() > 0 => {
            let check = &mut rq.pdu_mut().check;
            let (crc, received) = (check.crc, check.received);
            if received == Some(checksum::finish(rq.crc32c(crc))) {
                return Ok(());
            }
            rq.queue_data().damage().from_server.fetch_add(1, Relaxed);
            Err(EBADMSG)
        }
        // From a C server, the error does not mean damage.
        Err(EBADMSG) if !rq.queue_data().transport().has_extensions() => Err(EIO),
        // A flush is not abandoned when it is cancelled.
        Err(EBADMSG) if !rq.shared().is_cancelled() => {
            rq.queue_data().damage().to_server.fetch_add(1, Relaxed);
            Err(EBADMSG)
        }
        other => other,
    }
}

/// Returns the pause before a damaged request is resent, in milliseconds; `None` if it fails.
pub(crate) fn resend_after(rq: &mut Request<IbnbdMq>, op: Op) -> Option<u32> {
    let check = &mut rq.pdu_mut().check;
    let again = check.resends.again();
    check.avoid = check.path;
    let path = check.path.unwrap_or_default();
    let disk = rq.queue_data().fair_share().number();
    // A flush has no sector.
    let sector = if op == Op::Flush { 0 } else { rq.sector() };
    rq.queue_data().transport().with_path_name(path, |path| {
        let path = path.unwrap_or(c"an unknown path");
        if again.is_some() {
            kx::pr_warn_ratelimited!(
                "ibnbd{}: {} at sector {} was damaged on the way over {} (checksum mismatch): sending it again\n",
                disk,
                op.as_str(),
                sector,
                path
            );
        } else {
            kx::pr_err_ratelimited!(
                "ibnbd{}: {} at sector {} failed: it was damaged on the way each time, the last time over {} (checksum mismatch); look for a defective network card or memory, or a program that changes data while it is being written\n",
                disk,
                op.as_str(),
                sector,
                path
            );
        }
    });
    again
}
