// SPDX-License-Identifier: GPL-2.0

//! Block layer: drivers of multi-queue disks, and I/O to block devices.
//!
//! # Providing a disk
//!
//! These types replace [`kernel::block::mq`], which cannot be extended from outside, and keep its
//! names where possible; each file says how it differs. To provide a disk, a driver:
//!
//! 1. Implement [`Operations`]: the type of the per-request data, the size of the scatterlist,
//!    `queue_rq`, and optional operations.
//! 2. Create a [`TagSet`], which allocates the requests. Several disks may share it.
//! 3. Create a [`DiskOwner`] when the module is loaded. Dropping it on unload waits until the last
//!    disk is freed.
//! 4. Add a [`GenDisk`] with its [`Limits`]. The block layer then calls `queue_rq` with owned
//!    [`Request`]s, and the driver ends each of them with [`Request::end`].
//! 5. Remove the disk: call [`GenDisk::begin_removal`], then drop the disk.
//!
//! | Rust | C |
//! |---|---|
//! | [`Operations`] | `struct blk_mq_ops`, `struct block_device_operations` |
//! | [`TagSet`] | `struct blk_mq_tag_set` |
//! | [`Hctx`] | `struct blk_mq_hw_ctx` |
//! | [`Request`] | `struct request` |
//! | [`GenDisk`] | `struct gendisk` with its `struct request_queue` |
//! | [`Limits`] | `struct queue_limits` |
//! | [`Status`] | `blk_status_t` |
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! # module! {
//! #     type: Example,
//! #     name: "example",
//! #     authors: ["The authors"],
//! #     description: "An example",
//! #     license: "GPL",
//! # }
//! # struct Example;
//! # impl kernel::Module for Example {
//! #     fn init(_module: &'static ThisModule) -> Result<Self> {
//! #         Ok(Self)
//! #     }
//! # }
//! # fn main() {}
//! use kx::blk::{
//!     DiskOwner, DiskSpec, GenDisk, Hctx, Limits, Operations, Request, Status, TagSet, TagSetSpec,
//! };
//!
//! /// Disks of zeroes that nobody can change.
//! struct Zeroes;
//!
//! #[vtable]
//! impl Operations for Zeroes {
//!     type Pdu = ();
//!     type Shared = ();
//!     type Sg = ();
//!     type QueueData = ();
//!
//!     fn queue_rq(
//!         _hctx: Hctx<'_>,
//!         _disk: &(),
//!         rq: Request<Self>,
//!         _last: bool,
//!     ) -> Result<(), (Request<Self>, Status)> {
//!         rq.end(Status::OK);
//!         Ok(())
//!     }
//! }
//!
//! fn add(owner: &DiskOwner) -> Result<GenDisk<Zeroes>> {
//!     let tags = Arc::pin_init(TagSet::new(TagSetSpec::default()), GFP_KERNEL)?;
//!     let spec = DiskSpec {
//!         name: fmt!("zeroes{}", 0),
//!         capacity_sectors: 2048,
//!         limits: Limits::default(),
//!         read_only: true,
//!     };
//!     GenDisk::add(spec, tags, (), owner)
//! }
//! ```
//!
//! # I/O to other disks
//!
//! Open a [`BlockDevice`], create a [`BioTable`] with one slot for each concurrent I/O, and
//! [`submit`](BioTable::submit) a [`BioOwner`] for each I/O.
//!
//! Not supported: zones, integrity data, passthrough requests, `queue_rqs`,
//! budgets, media events, ioctls.

pub mod bdev;
pub mod bio;
mod disk_owner;
pub mod gen_disk;
pub mod hctx;
mod in_sysfs;
pub mod limits;
pub mod operations;
pub mod plug;
pub mod queue;
pub mod status;
pub mod tag_set;
#[cfg(IBTRS_KUNIT)]
mod tests;
mod vtable;

pub use bdev::{
    BlockDevice,
    Holder,
    OpenSpec,
    UniqueId, //
};
pub use bio::{
    BioBuf,
    BioFlags,
    BioOwner,
    BioSpec,
    BioTable, //
};
pub use disk_owner::DiskOwner;
pub use gen_disk::{
    DiskSpec,
    GenDisk,
    Usage, //
};
pub use hctx::Hctx;
pub use limits::Limits;
pub use operations::{
    request::{
        Op,
        Request,
        TimedOut, //
    },
    IoOperations,
    OpenMode,
    Operations,
    TimeoutAction, //
};
pub use plug::plugged;
pub use queue::Quiesced;
pub use status::Status;
pub use tag_set::{
    TagSet,
    TagSetSpec, //
};
