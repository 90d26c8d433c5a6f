// SPDX-License-Identifier: GPL-2.0

//! The C entry points of the operations of a multi-queue disk.
//!
//! Differs from `OperationsVTable` of [`kernel::block::mq`]: operations that a driver does not
//! implement are null, and the driver's part of a request is created with the request and dropped
//! with it.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use crate::{
    blk::{
        hctx::{
            fill_maps,
            Hctx, //
        },
        operations::{
            disk_data::DiskData,
            request::{
                Private,
                Request,
                TimedOut, //
            },
            Operations,
            TimeoutAction, //
        },
        status::Status, //
    },
    pr_err_ratelimited, //
};
use core::{
    marker::PhantomData,
    mem::align_of, //
};
use kernel::{
    bindings,
    ffi::{
        c_int,
        c_uint, //
    }, //
};

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
        // the timer, on another CPU, changes its flags concurrently, and it sets another bit.
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
    /// `rq` must be a request of the driver that was in flight, and that is not freed during the call:
    /// `bt_iter()` in block/blk-mq-tag.c holds a reference to it. Its queue must be in use during the
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
        // SAFETY: By this function's contract the request is new, so nobody uses the memory behind it,
        // which meets the contract of `Private::init`: blk_mq_alloc_rqs() and blk_alloc_flush_queue()
        // allocate it zeroed. `TagSet::raw` has set `cmd_size` to the size of a `Private`, and `build`
        // has checked its alignment. It stays there until `exit_request` drops it.
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
