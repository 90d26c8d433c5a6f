// SPDX-License-Identifier: GPL-2.0

//! The requests of the disks.
//!
//! The tags of a session are one set over all its disks and hardware queues, as
//! many as the server has chunks for I/O: a request's tag is its chunk. Hardware
//! queue `i` submits to connection `i`, whose doorbell is rung for a batch.

use ibnbd_proto::msg::{
    IoFlags,
    IoHdr,
    Op as WireOp, //
};
use ibtrs_client::{
    Dir,
    Session,
    Submit, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kx::{
    blk::{
        Driver,
        Hctx,
        HctxType,
        IoDriver,
        Op,
        OpenMode,
        QueueMaps,
        Request,
        Status, //
    },
    io::IoHandle,
    sg::{
        SgList,
        SgTable, //
    }, //
};

/// Most segments of a request.
pub(crate) const MAX_SEGMENTS: u16 = 128;

/// The driver of the disks.
pub(crate) struct Queue;

/// The driver's part of a request.
pub(crate) struct Pdu {
    sg: SgList<{ MAX_SEGMENTS as usize }>,
}

/// The driver's part of a disk.
pub(crate) struct DiskIo {
    transport: Arc<Session>,
    device_id: u32,
    read_only: bool,
    /// The disk goes, no matter who uses it.
    gone: AtomicFlag,
}

impl DiskIo {
    /// Makes the part of a disk of the device that the server calls `device_id`.
    pub(crate) fn new(transport: Arc<Session>, device_id: u32, read_only: bool) -> Self {
        Self {
            transport,
            device_id,
            read_only,
            gone: AtomicFlag::new(false),
        }
    }

    /// Lets requests that are queued, and all later ones, fail.
    pub(crate) fn set_gone(&self) {
        // ORDERING: Requests that pass still end, as the session is there.
        self.gone.store(true, Relaxed);
    }

    fn header(&self, rq: &Request<Queue>, op: WireOp) -> IoHdr {
        let is_flush = op == WireOp::Flush;
        IoHdr {
            device_id: self.device_id,
            sector: if is_flush { 0 } else { rq.sector() },
            op,
            flags: IoFlags::when(IoFlags::SYNC, rq.is_sync())
                .and(IoFlags::when(IoFlags::FUA, rq.is_fua() && !is_flush))
                .and(IoFlags::when(
                    IoFlags::NOUNMAP,
                    op == WireOp::WriteZeroes && rq.is_nounmap(),
                )),
            bytes: if is_flush { 0 } else { rq.bytes() },
            prio: rq.prio(),
        }
    }
}

#[vtable]
impl Driver for Queue {
    type Pdu = Pdu;
    type QueueData = DiskIo;

    fn init_pdu() -> impl PinInit<Pdu, Error> {
        try_init!(Pdu {
            sg <- SgList::new(),
        }? Error)
    }

    fn queue_rq(
        hctx: Hctx<'_>,
        disk: &DiskIo,
        mut rq: Request<Self>,
        last: bool,
    ) -> Result<(), (Request<Self>, Status)> {
        if disk.gone.load(Relaxed) {
            return Err((rq, Status::IO_ERROR));
        }
        let (Some(op), Ok(tag)) = (rq.op().map(wire_op), u16::try_from(rq.tag())) else {
            return Err((rq, Status::NOT_SUPPORTED));
        };
        if rq.map_sg().is_err() {
            return Err((rq, Status::IO_ERROR));
        }
        // Before the device's number is looked at.
        let life = disk.transport.life();
        let submit = Submit {
            life,
            tag,
            dir: if op.is_transport_write() {
                Dir::Write
            } else {
                Dir::Read
            },
            user_hdr: &disk.header(&rq, op).encode(),
            bytes: if op.has_data() { rq.bytes() } else { 0 },
            last,
            io: IoHandle::new(rq),
        };
        disk.transport.submit(hctx.index(), submit).or_else(refused)
    }

    fn commit_rqs(hctx: Hctx<'_>, disk: &DiskIo) {
        disk.transport.commit(hctx.index());
    }

    fn map_queues(maps: &mut QueueMaps<'_>) {
        // There is a connection for each possible CPU.
        let nr = maps.nr_hw_queues();
        let _ = maps.one_to_one(HctxType::Default, 0, nr);
    }

    fn open(disk: &DiskIo, mode: OpenMode) -> Result {
        if mode.write && disk.read_only {
            return Err(EPERM);
        }
        Ok(())
    }

    fn sg(pdu: Pin<&mut Pdu>) -> &mut SgTable {
        pdu.get_mut().sg.as_table()
    }
}

impl IoDriver for Queue {
    fn io_done(rq: Request<Self>, result: Result) {
        rq.end(Status::from(result));
    }
}

/// Hands a request back that the transport did not take.
fn refused((error, io): (Error, IoHandle)) -> Result<(), (Request<Queue>, Status)> {
    let status = match error {
        EAGAIN | ENOMEM => Status::RESOURCE,
        _ => Status::IO_ERROR,
    };
    match io.downcast() {
        Ok(rq) => Err((rq, status)),
        // It is what was submitted, but to end it is right in any case.
        Err(io) => {
            io.done(Err(error));
            Ok(())
        }
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
