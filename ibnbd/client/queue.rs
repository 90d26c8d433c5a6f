// SPDX-License-Identifier: GPL-2.0

//! Request queues of the disks.
//!
//! All disks and hardware queues of a session share one set of tags, as many as the server
//! has chunks for I/O: a request's tag is its chunk. Hardware queue `i` submits to
//! connection `i`, whose doorbell is rung once for a batch. The last queues may be for
//! polled I/O, see [`Session::poll`].
//!
//! [`Session::poll`]: ibtrs_client::Session::poll

use crate::{
    damage,
    dispatch::DiskQueue,
    fair_share::{
        Entry,
        Next, //
    },
    request::{
        self,
        Admission,
        IbnbdMq,
        Pdu,
        MAX_SEGMENTS, //
    },
    timeouts::{
        Timeout,
        Times, //
    }, //
};
use ibnbd_proto::{
    dispatch::{
        self,
        Disk as _,
        Dispatch, //
    },
    latency::Kind,
    msg::{
        IoFlags,
        IoHdr,
        Op as WireOp,
        WrittenThrough, //
    },
    unflushed::Late, //
};
use ibtrs_client::{
    Descriptor,
    Dir,
    Tag, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    blk::{
        Hctx,
        IoOperations,
        Op,
        OpenMode,
        Operations,
        Request,
        Status,
        TimedOut,
        TimeoutAction, //
    },
    io::IoHandle,
    sg::SgList, //
};

/// Returns whether a write ends only once it is durable.
fn is_durable(disk: &DiskQueue, rq: &Request<IbnbdMq>) -> bool {
    disk.is_write_through() || rq.is_fua()
}

#[inline(always)]
fn header(disk: &DiskQueue, device_id: u32, rq: &Request<IbnbdMq>, op: WireOp) -> IoHdr {
    let is_flush = op == WireOp::Flush;
    let through = disk.is_write_through() && op.written_through() == WrittenThrough::WithFua;
    let fua = through || rq.is_fua() && !is_flush;
    IoHdr {
        device_id,
        sector: if is_flush { 0 } else { rq.sector() },
        op,
        flags: IoFlags::when(IoFlags::SYNC, rq.is_sync())
            .and(IoFlags::when(IoFlags::FUA, fua))
            .and(IoFlags::when(
                IoFlags::NOUNMAP,
                op == WireOp::WriteZeroes && rq.is_nounmap(),
            )),
        bytes: if is_flush { 0 } else { rq.bytes() },
        prio: if disk.wants_prio() { rq.prio() } else { 0 },
        checksum: disk.has_checksums().then_some(0),
    }
}

/// Returns whether `op` may be sent: to a disk whose cache the block layer does not know of, only
/// if it has a durable form. The block layer writes zeroes instead of a refused write-zeroes.
fn can_do(disk: &DiskQueue, op: WireOp) -> bool {
    !(disk.is_write_through() && op.written_through() == WrittenThrough::Never)
}

#[vtable]
impl Operations for IbnbdMq {
    type Pdu = Pdu;
    type Shared = Times;
    type Sg = SgList<{ MAX_SEGMENTS as usize }>;
    type QueueData = Arc<DiskQueue>;

    #[inline]
    fn queue_rq(
        hctx: Hctx<'_>,
        disk: &Arc<DiskQueue>,
        rq: Request<Self>,
        last: bool,
    ) -> Result<(), (Request<Self>, Status)> {
        if disk.timeouts().is_stuck() {
            let mut rq = rq;
            request::reset(&mut rq);
            return Err((rq, Status::TIMEOUT));
        }
        disk.timeouts().start_timer(rq.shared(), rq.pdu().timeouts);
        match disk.fair_share().enter(rq, hctx.index()) {
            Entry::Go(rq) => match start(disk, rq, hctx.index(), last) {
                Outcome::Sent => return Ok(()),
                Outcome::Elsewhere => submit_waiting(disk),
                Outcome::Refused(rq, status) => {
                    submit_waiting(disk);
                    return Err((rq, status));
                }
            },
            Entry::Waits => (),
        }
        if last {
            // Earlier requests of the batch do not wait for this one.
            disk.transport().commit(hctx.index());
        }
        Ok(())
    }

    fn commit_rqs(hctx: Hctx<'_>, disk: &Arc<DiskQueue>) {
        disk.transport().commit(hctx.index());
    }

    fn poll(hctx: Hctx<'_>, disk: &Arc<DiskQueue>) -> u32 {
        disk.transport().poll(hctx.index())
    }

    fn timeout(disk: &Arc<DiskQueue>, rq: TimedOut<'_, Self>) -> TimeoutAction {
        let timeouts = disk.timeouts();
        let cancelled = timeouts.exceeded(
            rq.shared(),
            Timeout {
                after_ms: rq.after_ms(),
                is_connected: disk.transport().is_connected(),
                is_read: rq.op() == Some(Op::Read),
            },
        );
        // The transport sees by itself whether the tag is still that of the request. If not, the
        // request is cancelled at its next timeout.
        if let Some(tag) = rq.tag().and_then(|tag| Tag::try_from(tag).ok()) {
            disk.transport().request_timeout(tag);
            if cancelled {
                disk.transport().cancel(tag);
                if timeouts.is_scanning() {
                    // It may wait for the device to be opened again.
                    disk.dispatch_again(tag);
                }
                // Requests that wait for admission fail now.
                submit_waiting(disk);
            }
        }
        // A request always ends by its completion, cancelled or not.
        TimeoutAction::Restart
    }

    fn open(disk: &Arc<DiskQueue>, mode: OpenMode) -> Result {
        if mode.write && disk.is_read_only() {
            return Err(EPERM);
        }
        if mode.write || mode.exclusive {
            disk.timeouts().used();
        }
        Ok(())
    }

    fn release(disk: &Arc<DiskQueue>, last: bool) {
        if last {
            disk.closed();
        }
    }
}

impl IoOperations for IbnbdMq {
    fn is_wanted(disk: &Arc<DiskQueue>) -> bool {
        !disk.is_gone()
    }

    fn is_cancelled(times: &Times) -> bool {
        times.is_cancelled()
    }

    fn note_answer(pdu: &mut Pdu, trailer: Option<u32>, path: u32) {
        pdu.check.note(trailer, path);
    }

    fn io_done(mut rq: Request<Self>, result: Result) {
        let result = damage::verify(&mut rq, result);
        let result = result.and_then(|()| answered(&rq));
        if let Admission(Some(since_ns)) = Admission::take(&mut rq) {
            // Before the request ends: it may be the last one that keeps the disk.
            let disk = rq.queue_data();
            let next = disk
                .fair_share()
                .ended(since_ns, disk.timeouts().is_stuck());
            submit_each(disk, next);
        }
        end(rq, result);
    }
}

/// Records the effect of a completed request on the unflushed writes of the disk.
///
/// # Errors
///
/// `ESTALE` if the server's write cache was lost since, and the write with it.
#[inline]
fn answered(rq: &Request<IbnbdMq>) -> Result {
    let disk = rq.queue_data();
    let generation = rq.pdu().generation;
    match rq.op() {
        Some(Op::Flush) => {
            disk.write_cache()
                .flushed(generation, Tag::try_from(rq.tag())?);
            Ok(())
        }
        // A discarded range may have any content, so a loss changes nothing.
        None | Some(Op::Read | Op::Discard) => Ok(()),
        Some(Op::Write | Op::WriteZeroes | Op::SecureErase) => {
            if is_durable(disk, rq) {
                return Ok(());
            }
            disk.write_cache()
                .written(generation)
                .map_err(|Late| ESTALE)
        }
    }
}

#[inline]
fn end(mut rq: Request<IbnbdMq>, mut result: Result) {
    // A request that was cancelled while it was dispatched again may be abandoned, although its
    // new tag does not show that it was cancelled.
    let cancelled = request::stop_timer(&mut rq) || rq.is_abandoned();
    // The server has lost the session or the written data: send the request again.
    if !cancelled && result == Err(ESTALE) {
        return rq.requeue();
    }
    if let (false, Err(EBADMSG), Some(op)) = (cancelled, result, rq.op()) {
        if let Some(pause_ms) = damage::resend_after(&mut rq, wire_op(op)) {
            let paused = rq.queue_data().paused().clone();
            return paused.requeue_after(rq, pause_ms);
        }
        result = Status::PROTECTION.to_result();
    }
    request::reset(&mut rq);
    if let Some(op) = rq.op() {
        let disk = rq.queue_data();
        disk.latencies().count(&rq, Kind::of(wire_op(op)));
    }
    match result {
        // The user of a cancelled request has already got its error, `ETIMEDOUT`.
        Err(_) if cancelled => rq.end(Status::TIMEOUT),
        // Some disks reject an operation only when they execute it.
        Err(EOPNOTSUPP) => rq.end_unsupported(),
        result => rq.end(Status::from(result)),
    }
}

/// The result of a submission.
enum Outcome {
    /// Sent, or kept by the transport until there is a path.
    Sent,
    /// Queued by the driver, or handed back to the block layer.
    Elsewhere,
    /// The request ends with the status, or is dispatched again if that is `RESOURCE`.
    Refused(Request<IbnbdMq>, Status),
}

/// Submits an accepted request.
// Most are accepted where they arrive; others have waited, and are rare.
#[inline(always)]
fn start(disk: &Arc<DiskQueue>, mut rq: Request<IbnbdMq>, queue: u32, last: bool) -> Outcome {
    // Read before the number of the device: if the session is lost in between, `submit` refuses
    // the request with `ESTALE`.
    let generation = disk.transport().generation();
    let device_id = match dispatch::dispatch(&**disk) {
        Dispatch::Send(device_id) => device_id,
        Dispatch::Queue => {
            disk.fair_share().leave(Admission::take(&mut rq));
            return match disk.queue(rq) {
                Ok(()) => Outcome::Elsewhere,
                Err((rq, status)) => refused(disk, rq, status),
            };
        }
        Dispatch::Fail => return refused(disk, rq, Status::IO_ERROR),
    };
    let (Some(op), Ok(tag)) = (rq.op().map(wire_op), Tag::try_from(rq.tag())) else {
        return refused(disk, rq, Status::NOT_SUPPORTED);
    };
    if !can_do(disk, op) {
        return refused(disk, rq, Status::NOT_SUPPORTED);
    }
    rq.pdu_mut().generation = disk.write_cache().generation();
    if op == WireOp::Flush {
        if disk.write_cache().fails_flush() {
            return refused(disk, rq, Status::IO_ERROR);
        }
        disk.write_cache().flushing(tag);
    }
    // Otherwise the transport does, if it needs the list: it copies small data without one.
    if disk.has_checksums() && rq.map_sg().is_err() {
        return refused(disk, rq, Status::IO_ERROR);
    }
    let mut user_hdr = header(disk, device_id, &rq, op).encode();
    if disk.has_checksums() {
        damage::seal(&mut rq, op, &mut user_hdr);
    }
    let dir = if op.is_transport_write() {
        Dir::Write
    } else {
        Dir::Read
    };
    let bytes = if op.has_data() { rq.bytes() } else { 0 };
    let mut request = Descriptor::new(tag, dir, bytes);
    request.last = last;
    request.avoid = damage::damaging_path(&rq);
    let io = IoHandle::new(rq);
    let submitted = disk
        .transport()
        .submit(queue, generation, request, &user_hdr, io);
    let Err((error, io)) = submitted else {
        return Outcome::Sent;
    };
    let mut rq = match io.downcast::<Request<IbnbdMq>>() {
        Ok(rq) => rq,
        // Does not happen: the handle is that of the request. Ending it is right in any case.
        Err(io) => {
            io.done(Err(error));
            return Outcome::Elsewhere;
        }
    };
    match error {
        EAGAIN | ENOMEM => refused(disk, rq, Status::RESOURCE),
        ESTALE => {
            disk.fair_share().leave(Admission::take(&mut rq));
            request::hand_back(rq);
            Outcome::Elsewhere
        }
        ETIMEDOUT => refused(disk, rq, Status::TIMEOUT),
        _ => refused(disk, rq, Status::IO_ERROR),
    }
}

fn refused(disk: &DiskQueue, mut rq: Request<IbnbdMq>, status: Status) -> Outcome {
    disk.fair_share().leave(Admission::take(&mut rq));
    let status = match request::stop_timer(&mut rq) {
        true => Status::TIMEOUT,
        false => status,
    };
    if status != Status::RESOURCE {
        request::reset(&mut rq);
    }
    Outcome::Refused(rq, status)
}

/// Submits waiting requests as far as the fair share admits them.
pub(crate) fn submit_waiting(disk: &Arc<DiskQueue>) {
    submit_each(disk, disk.fair_share().next(disk.timeouts().is_stuck()));
}

/// Submits a waiting request, if there is one, and further ones that may follow it.
fn submit_each(disk: &Arc<DiskQueue>, mut next: Next) {
    while let Some((rq, queue)) = next.waiting {
        let outcome = if disk.timeouts().is_stuck() {
            refused(disk, rq, Status::TIMEOUT)
        } else {
            start(disk, rq, queue, true)
        };
        match outcome {
            // Its end admits the next.
            Outcome::Sent if !next.has_more => return,
            Outcome::Sent | Outcome::Elsewhere => (),
            Outcome::Refused(rq, status) if status == Status::RESOURCE => rq.requeue(),
            Outcome::Refused(rq, status) => rq.end(status),
        }
        next = disk.fair_share().next(disk.timeouts().is_stuck());
    }
}

fn wire_op(op: Op) -> WireOp {
    match op {
        Op::Read => WireOp::Read,
        Op::Write => WireOp::Write,
        Op::Flush => WireOp::Flush,
        Op::Discard => WireOp::Discard,
        Op::SecureErase => WireOp::SecureErase,
        Op::WriteZeroes => WireOp::WriteZeroes,
    }
}
