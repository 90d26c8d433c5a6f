// SPDX-License-Identifier: GPL-2.0

//! The smallest disk on `kx`: a few MiB of memory, as `/dev/sample0`.
//!
//! A sample, which is built for tests only.

#![deny(unsafe_code)]

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    blk::{
        DiskOwner,
        DiskSpec,
        GenDisk,
        Hctx,
        IoOperations,
        Limits,
        Op,
        Operations,
        Request,
        Status,
        TagSet,
        TagSetSpec, //
    },
    io::IoHandle,
    mm::{
        Node,
        PageBlock, //
    },
    sg::SgList, //
};

const SECTOR: usize = 512;
const BYTES: usize = 4 << 20;
/// Most segments of a request.
const SEGMENTS: usize = 128;

module! {
    type: Module,
    name: "ibtrs_sample_disk",
    authors: ["The ibtrs authors"],
    description: "Sample: the smallest disk",
    license: "GPL",
}

/// The driver.
struct Ram;

#[vtable]
impl Operations for Ram {
    type Pdu = ();
    type Shared = ();
    type Sg = SgList<SEGMENTS>;
    type QueueData = PageBlock;

    fn queue_rq(
        _hctx: Hctx<'_>,
        memory: &PageBlock,
        mut rq: Request<Self>,
        _last: bool,
    ) -> Result<(), (Request<Self>, Status)> {
        let op = rq.op();
        // CAST: Both are within the disk, which is in memory.
        let (at, len) = (rq.sector() as usize * SECTOR, rq.bytes() as usize);
        // The scatterlist of the request names all of its memory.
        if op.is_some_and(Op::has_data) && rq.map_sg().is_err() {
            return Err((rq, Status::IO_ERROR));
        }
        // A transport would keep the handle until the answer comes; this disk has the answer.
        let mut io = IoHandle::new(rq);
        let result = match op {
            Some(Op::Read) => io.fill(memory, at, len),
            Some(Op::Write) => io.read_out(memory, at, len),
            _ => Err(EOPNOTSUPP),
        };
        io.done(result);
        Ok(())
    }
}

impl IoOperations for Ram {
    fn io_done(rq: Request<Self>, result: Result) {
        rq.end(result.map_or_else(Status::from, |()| Status::OK));
    }
}

struct Module {
    // Dropped first: the disk is removed.
    _disk: GenDisk<Ram>,
    // Then this waits until nobody has the disk open any more.
    _owner: DiskOwner,
}

impl kernel::Module for Module {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let owner = DiskOwner::new()?;
        let memory = PageBlock::with_len(BYTES, Node::ANY)?;
        memory.zero(0, BYTES)?;
        let tags = Arc::pin_init(TagSet::new(TagSetSpec::default()), GFP_KERNEL)?;
        let spec = DiskSpec {
            name: fmt!("sample0"),
            capacity_sectors: (BYTES / SECTOR) as u64,
            limits: Limits {
                logical_block_bytes: 512,
                physical_block_bytes: 512,
                max_hw_sectors: 256,
                // CAST: A small number.
                max_segments: SEGMENTS as u16,
                ..Limits::default()
            },
            read_only: false,
        };
        let disk = GenDisk::add(spec, tags, memory, &owner)?;
        disk.announce();
        Ok(Self {
            _disk: disk,
            _owner: owner,
        })
    }
}
