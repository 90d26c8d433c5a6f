// SPDX-License-Identifier: GPL-2.0

//! The operations that a driver of a multi-queue disk implements, and their C entry points.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use crate::{
    blk::{
        gen_disk::{
            DiskData,
            OpenMode, //
        },
        hctx::{
            fill_maps,
            Hctx, //
        },
        status::Status, //
    },
    pr_err_ratelimited,
    sg::SgStorage, //
};
use core::{
    marker::PhantomData,
    mem::align_of, //
};
use kernel::{
    bindings,
    error::VTABLE_DEFAULT_ERROR,
    ffi::{
        c_int,
        c_uint, //
    },
    prelude::*, //
};
use request::{
    Private,
    Request,
    TimedOut, //
};

pub mod request;

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

/// A driver whose requests can be handed out as [`IoHandle`](crate::io::IoHandle)s.
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

    /// Notes what came with the answer to a request, in the driver's part of it, see
    /// [`Io::note_answer`](crate::io::Io::note_answer). [`Self::io_done`] follows.
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

/// The C entry points of an [`Operations`].
pub(crate) struct Vtable<D>(PhantomData<D>);

impl<D: Operations> Vtable<D> {
    const OPS: bindings::blk_mq_ops = bindings::blk_mq_ops {
        queue_rq: Some(Self::queue_rq),
        commit_rqs: if D::HAS_COMMIT_RQS {
            Some(Self::commit_rqs)
        } else {
            None
        },
        complete: if D::HAS_COMPLETE {
            Some(Self::complete)
        } else {
            None
        },
        timeout: if D::HAS_TIMEOUT {
            Some(Self::timeout)
        } else {
            None
        },
        poll: if D::HAS_POLL { Some(Self::poll) } else { None },
        map_queues: Some(Self::map_queues),
        init_request: Some(Self::init_request),
        exit_request: Some(Self::exit_request),
        ..pin_init::zeroed()
    };

    pub(crate) const fn build() -> &'static bindings::blk_mq_ops {
        // The private data follows the request, which is 8 byte aligned.
        const { assert!(align_of::<Private<D>>() <= align_of::<bindings::request>()) };
        &Self::OPS
    }

    /// # Safety
    ///
    /// `hctx` must be live, and `bd` valid. The request of `bd` must be initialized by
    /// [`Self::init_request`], and passes to the driver.
    unsafe extern "C" fn queue_rq(
        hctx: *mut bindings::blk_mq_hw_ctx,
        bd: *const bindings::blk_mq_queue_data,
    ) -> bindings::blk_status_t {
        // SAFETY: `bd` is valid by this function's contract.
        let (rq, last) = unsafe { ((*bd).rq, (*bd).last) };
        // When the block layer dispatches the request again, it must not merge it into another one,
        // which would end the request without the driver's knowledge.
        const DONTPREP: u32 = 1 << bindings::rqf_flags___RQF_DONTPREP;
        // The timer may still be handling an earlier attempt of a request that is dispatched again.
        // SAFETY: By this function's contract the request passes to the driver, and is live. Only
        // the timer, on another CPU, changes its flags meanwhile, and it sets another bit.
        let flags = unsafe { (&raw const (*rq).rq_flags).read_volatile() };
        if flags & DONTPREP == 0 {
            // SAFETY: As above. Nobody else accesses the flags: the allocation of the request has
            // cleared the bit, and the first dispatch sets it, so this is the first one. The timer
            // handles only requests that were started, and has a reference to one that it handles,
            // which the allocation has waited for.
            unsafe { (*rq).rq_flags = flags | DONTPREP };
        }
        // SAFETY: As above.
        unsafe { bindings::blk_mq_start_request(rq) };
        // The scatterlist describes memory of the previous use, which belongs to another user now.
        // SAFETY: By this function's contract the request is initialized, and nobody else uses it
        // before the driver receives it below.
        if let Some(table) = unsafe { Request::<D>::table_of(rq) } {
            table.clear();
        }
        // SAFETY: The request was just started, and by this function's contract it is initialized
        // and passes to the driver.
        let given = unsafe { Request::<D>::from_raw(rq) };
        // SAFETY: A queue with this vtable that has requests, or is polled, is that of a disk of
        // `GenDisk::add`, as nobody uses a `DisklessQueue`. The disk of a queue that dispatches is live.
        let disk = unsafe { DiskData::<D>::of_queue((*hctx).queue) };
        // SAFETY: `hctx` is live by this function's contract.
        let hctx = unsafe { Hctx::from_raw(hctx) };
        match D::queue_rq(hctx, disk.queue_data(), given, last) {
            Ok(()) => Status::OK.as_raw(),
            Err((back, _)) if !back.is(rq) => {
                // The driver keeps `rq` or has ended it. `back` is a request that it had kept from
                // an earlier call, and ends here.
                pr_err_ratelimited!(
                    "bug: a driver returned another request than the one that it received\n"
                );
                drop(back);
                Status::OK.as_raw()
            }
            Err((back, status)) => {
                // The request returns to the block layer, which acts on the status.
                let _ = back.into_raw();
                if status.is_ok() {
                    Status::IO_ERROR.as_raw()
                } else {
                    status.as_raw()
                }
            }
        }
    }

    /// # Safety
    ///
    /// `hctx` must be live.
    unsafe extern "C" fn commit_rqs(hctx: *mut bindings::blk_mq_hw_ctx) {
        // SAFETY: As in `queue_rq`.
        let disk = unsafe { DiskData::<D>::of_queue((*hctx).queue) };
        // SAFETY: `hctx` is live by this function's contract.
        let hctx = unsafe { Hctx::from_raw(hctx) };
        D::commit_rqs(hctx, disk.queue_data());
    }

    /// # Safety
    ///
    /// `rq` must have been given to `blk_mq_complete_request` by the driver.
    unsafe extern "C" fn complete(rq: *mut bindings::request) {
        // SAFETY: By this function's contract `Request::complete` has given up a started request,
        // whose ownership returns to the driver here.
        D::complete(unsafe { Request::from_raw(rq) });
    }

    /// # Safety
    ///
    /// `rq` must be a request of the driver that was in flight, and that is not freed during the call,
    /// as `bt_iter()` in block/blk-mq-tag.c has a reference to it. Its queue must be in use during the
    /// call, as `blk_mq_timeout_work()` ensures.
    unsafe extern "C" fn timeout(rq: *mut bindings::request) -> bindings::blk_eh_timer_return {
        // SAFETY: By this function's contract the request is valid, and its queue is in use; deleting
        // the disk waits until the queue is not.
        let disk = unsafe { DiskData::<D>::of_queue((*rq).q) };
        // SAFETY: By this function's contract the request is not freed during the call. It is one of the
        // driver's, whose private data `init_request` has made, and `exit_request` drops that only when
        // the request is free.
        let timed_out = unsafe { TimedOut::from_raw(rq) };
        match D::timeout(disk.queue_data(), timed_out) {
            TimeoutAction::Restart => bindings::blk_eh_timer_return_BLK_EH_RESET_TIMER,
            TimeoutAction::Done => bindings::blk_eh_timer_return_BLK_EH_DONE,
        }
    }

    /// # Safety
    ///
    /// `hctx` must be live.
    unsafe extern "C" fn poll(
        hctx: *mut bindings::blk_mq_hw_ctx,
        _iob: *mut bindings::io_comp_batch,
    ) -> c_int {
        // SAFETY: As in `queue_rq`. The disk is live: the poller keeps the queue in use, and
        // deleting the disk waits until the queue is not.
        let disk = unsafe { DiskData::<D>::of_queue((*hctx).queue) };
        // SAFETY: `hctx` is live by this function's contract.
        let hctx = unsafe { Hctx::from_raw(hctx) };
        c_int::try_from(D::poll(hctx, disk.queue_data())).unwrap_or(c_int::MAX)
    }

    /// # Safety
    ///
    /// `set` must be a tag set whose maps are allocated, and which nobody else uses.
    unsafe extern "C" fn map_queues(set: *mut bindings::blk_mq_tag_set) {
        // SAFETY: By this function's contract. The block layer allocates maps with an entry for each
        // number below `nr_cpu_ids`.
        unsafe { fill_maps(set) };
    }

    /// # Safety
    ///
    /// `rq` must be a new request of a [`TagSet`](super::TagSet) of the driver. The memory behind it must
    /// be zeroed, or have gone through [`Self::exit_request`].
    unsafe extern "C" fn init_request(
        _set: *mut bindings::blk_mq_tag_set,
        rq: *mut bindings::request,
        _hctx_idx: c_uint,
        _numa_node: c_int,
    ) -> c_int {
        let private = Request::<D>::private_of(rq);
        // SAFETY: By this function's contract the request is new, so nobody uses the memory behind
        // it, which is as `Private::init` needs it: blk_mq_alloc_rqs() and blk_alloc_flush_queue()
        // allocate it zeroed. `TagSet::raw` has asked for the size of a `Private` there, and `build` has
        // checked its alignment. It stays there until `exit_request` drops it.
        unsafe { Private::init(private) };
        0
    }

    /// # Safety
    ///
    /// `rq` must have gone through [`Self::init_request`], and nobody may use it.
    unsafe extern "C" fn exit_request(
        _set: *mut bindings::blk_mq_tag_set,
        rq: *mut bindings::request,
        _hctx_idx: c_uint,
    ) {
        // SAFETY: By this function's contract the private data is initialized, and nobody uses it.
        unsafe { Request::<D>::private_of(rq).drop_in_place() };
    }
}
