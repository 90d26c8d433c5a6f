// SPDX-License-Identifier: GPL-2.0

//! The operations that a driver of a multi-queue disk implements.
//!
//! Differs from `kernel::block::mq::Operations` in these respects. A request belongs to the driver
//! alone, and returns to the block layer by value, with a status instead of an errno. Each request
//! has parts of the driver's own types. There are `timeout`, `open` and `release`, and `poll`
//! receives the queue. The queue data is borrowed as it is, not by way of `ForeignOwnable`.
//! [`IoOperations`] lets a transport handle requests of any driver.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
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
//! use kx::blk::{Hctx, Op, OpenMode, Operations, Request, Status, TimedOut, TimeoutAction};
//!
//! /// Disks that are read, by one opener at a time that excludes others.
//! struct ReadOnly;
//!
//! #[vtable]
//! impl Operations for ReadOnly {
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
//!         if rq.op() != Some(Op::Read) {
//!             return Err((rq, Status::NOT_SUPPORTED));
//!         }
//!         rq.end(Status::OK);
//!         Ok(())
//!     }
//!
//!     fn timeout(_disk: &(), rq: TimedOut<'_, Self>) -> TimeoutAction {
//!         let _ = (rq.tag(), rq.after_ms());
//!         // It ends by its completion in any case.
//!         TimeoutAction::Restart
//!     }
//!
//!     fn open(_disk: &(), mode: OpenMode) -> Result {
//!         match mode.write {
//!             true => Err(EPERM),
//!             false => Ok(()),
//!         }
//!     }
//! }
//! ```
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use crate::{
    blk::{
        hctx::Hctx,
        status::Status, //
    },
    sg::SgStorage, //
};
use kernel::{
    error::VTABLE_DEFAULT_ERROR,
    prelude::*, //
};
use request::{
    Request,
    TimedOut, //
};

pub(crate) mod disk_data;
pub mod request;

/// The mode in which a disk is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// The opener may write; it may be allowed to read as well.
    pub write: bool,
    /// The opener claims the disk for itself.
    pub exclusive: bool,
}

/// The driver's decision about a request that has timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutAction {
    /// Restart the timer.
    Restart,
    /// The request has ended, or is about to.
    Done,
}

/// A driver of multi-queue disks.
#[vtable]
pub trait Operations: Sized + 'static {
    /// The driver's part of each request, with an alignment of 8 bytes at most.
    ///
    /// It has its default when the request is allocated, and keeps its value from one use of the
    /// request to the next. The default is made on the stack, and must not wait for I/O.
    type Pdu: Default + Send + Sync;

    /// Another part of each request, like [`Self::Pdu`], which the request's owner shares with
    /// [`Self::timeout`] and [`IoOperations::is_cancelled`].
    type Shared: Default + Send + Sync;

    /// The scatterlist of each request, for [`Request::map_sg`] and
    /// [`IoHandle::sg`](crate::io::IoHandle::sg): an [`SgList`](crate::sg::SgList), or `()` for none.
    type Sg: SgStorage;

    /// The driver's part of each disk.
    type QueueData: Send + Sync;

    /// Starts a request. Unless `last` is set, more requests for the same queue follow, until one
    /// has `last` set or the block layer calls [`Self::commit_rqs`].
    ///
    /// # Context
    ///
    /// *queue_rq*.
    ///
    /// # Errors
    ///
    /// The driver returns `rq` with a status. With [`Status::RESOURCE`], the block layer retries
    /// the request a little later; with [`Status::DEVICE_RESOURCE`], when another request of the
    /// disk has ended; with any other status, it ends the request. If a driver returns a request
    /// other than `rq`, that request ends with an error, and the driver keeps `rq`.
    fn queue_rq(
        hctx: Hctx<'_>,
        disk: &Self::QueueData,
        rq: Request<Self>,
        last: bool,
    ) -> Result<(), (Request<Self>, Status)>;

    /// Starts the requests that [`Self::queue_rq`] has held back, as no more requests follow on
    /// this queue for now.
    ///
    /// # Context
    ///
    /// *queue_rq*.
    fn commit_rqs(_hctx: Hctx<'_>, _disk: &Self::QueueData) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Ends a request for which the driver has called [`Request::complete`]. Runs on a CPU near the
    /// one that submitted the request.
    ///
    /// # Context
    ///
    /// *any*.
    fn complete(_rq: Request<Self>) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Handles a timeout of a request, which may end, or return to the block layer and be dispatched
    /// again, at the same time.
    ///
    /// # Context
    ///
    /// *may sleep*.
    fn timeout(_disk: &Self::QueueData, _rq: TimedOut<'_, Self>) -> TimeoutAction {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Handles the completed requests of a polled queue, and returns their number.
    ///
    /// # Context
    ///
    /// *any*.
    fn poll(_hctx: Hctx<'_>, _disk: &Self::QueueData) -> u32 {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Handles an opening of the disk or of one of its partitions.
    ///
    /// # Context
    ///
    /// *may sleep*, with the disk's open mutex held.
    fn open(_disk: &Self::QueueData, _mode: OpenMode) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Undoes an [`Self::open`]. If `last` is set, neither the disk nor a partition is open any
    /// more.
    ///
    /// # Context
    ///
    /// *may sleep*, with the disk's open mutex held.
    fn release(_disk: &Self::QueueData, _last: bool) {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A driver whose requests can be passed on as [`IoHandle`](crate::io::IoHandle)s.
pub trait IoOperations: Operations {
    /// Returns whether the requests of the disk are still wanted. If not, a transport ends the
    /// requests that it keeps for later.
    ///
    /// # Context
    ///
    /// *any*.
    fn is_wanted(_disk: &Self::QueueData) -> bool {
        true
    }

    /// Returns whether the request with this shared part is cancelled. The transport then reports an
    /// error to the users of the request before the request ends, see
    /// [`IoHandle::end_early`](crate::io::IoHandle::end_early).
    ///
    /// # Context
    ///
    /// *any*.
    fn is_cancelled(_shared: &Self::Shared) -> bool {
        false
    }

    /// Records the trailer and the path of the answer to a request in the driver's part of the
    /// request, see [`Io::note_answer`](crate::io::Io::note_answer). [`Self::io_done`] follows.
    ///
    /// # Context
    ///
    /// *any*.
    fn note_answer(_pdu: &mut Self::Pdu, _trailer: Option<u32>, _path: u32) {}

    /// Handles the end of a request's I/O in the transport.
    ///
    /// # Context
    ///
    /// *any*.
    fn io_done(rq: Request<Self>, result: Result);
}
