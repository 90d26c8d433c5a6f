// SPDX-License-Identifier: GPL-2.0

//! Tag sets: the requests that one or more disks share.
//!
//! Differs from `kernel::block::mq::TagSet` in these respects: queues for polled I/O, tags that
//! all queues share, disks without an I/O scheduler, a timeout, and room for the driver's part of
//! each request and its scatterlist.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use crate::blk::{
    hctx::{
        MAPS_WITH_POLL,
        POLL_MAP, //
    },
    operations::{
        request::Private,
        Operations, //
    },
    vtable::Vtable, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    types::Opaque, //
};

/// The parameters of a tag set.
#[derive(Clone, Copy, Debug)]
pub struct TagSetSpec {
    /// Number of hardware queues for all I/O that is not polled, at least one. CPU `i` uses queue
    /// `i % nr_queues`. Without poll queues, no more than there are CPUs are created.
    pub nr_queues: u32,
    /// Number of hardware queues for polled I/O, which requires [`Operations::poll`]; their indices
    /// follow those of the others. CPU `i` uses queue `nr_queues + i % nr_poll_queues`.
    pub nr_poll_queues: u32,
    /// Number of tags: of each hardware queue, or in total with `shared_tags`.
    pub depth: u32,
    /// All hardware queues share one set of tags, so that a tag identifies one request in flight on
    /// the whole tag set. The total number of requests is then `depth` (apart from those of an I/O
    /// scheduler, which have no tag until they are dispatched).
    pub shared_tags: bool,
    /// Disks start without an I/O scheduler.
    pub no_scheduler: bool,
    /// Time in jiffies after which the block layer calls [`Operations::timeout`]; zero for the
    /// block layer's default.
    pub timeout_jiffies: u32,
}

impl Default for TagSetSpec {
    fn default() -> Self {
        Self {
            nr_queues: 1,
            nr_poll_queues: 0,
            depth: 128,
            shared_tags: false,
            no_scheduler: false,
            timeout_jiffies: 0,
        }
    }
}

/// A tag set with its requests, `struct blk_mq_tag_set` in C.
///
/// A tag set has a queue without a disk from the beginning. The block layer divides tags among the queues of
/// a set only if it has several, and freezes a queue when that begins or ends: to add a second disk, or to
/// remove one of two, would wait for all requests of the other one, which may wait for a server.
#[pin_data]
pub struct TagSet<D: Operations> {
    /// Dropped before the tag set, which it belongs to.
    diskless: DisklessQueue,
    #[pin]
    raw: RawTagSet<D>,
}

/// A tag set as the block layer knows it.
///
/// # Invariants
///
/// `inner` was initialized by `blk_mq_alloc_tag_set`, with the vtable and the size of private data
/// of `D`.
#[pin_data(PinnedDrop)]
struct RawTagSet<D: Operations> {
    #[pin]
    inner: Opaque<bindings::blk_mq_tag_set>,
    _driver: PhantomData<D>,
}

/// A queue of a tag set without a disk, to which nobody submits requests.
///
/// # Invariants
///
/// `0` is a queue that `blk_mq_alloc_queue` has returned, and this value owns the reference to it.
struct DisklessQueue(NonNull<bindings::request_queue>);

// SAFETY: The value is only ever dropped, and any task may destroy a queue and put a reference to it.
unsafe impl Send for DisklessQueue {}
// SAFETY: A shared reference gives access to nothing.
unsafe impl Sync for DisklessQueue {}

impl DisklessQueue {
    /// Adds a queue to `set`.
    ///
    /// # Safety
    ///
    /// `set` must be an allocated tag set, which is freed after the result was dropped.
    unsafe fn new(set: *mut bindings::blk_mq_tag_set) -> Result<Self> {
        // SAFETY: The tag set is allocated by this function's contract. Null stands for the default
        // limits; the vtable uses the queue's data only for requests, and there are none.
        let queue = from_err_ptr(unsafe {
            bindings::blk_mq_alloc_queue(set, core::ptr::null_mut(), core::ptr::null_mut())
        })?;
        // INVARIANT: The queue was just allocated.
        Ok(Self(NonNull::new(queue).ok_or(ENOMEM)?))
    }
}

impl Drop for DisklessQueue {
    fn drop(&mut self) {
        let queue = self.0.as_ptr();
        // SAFETY: By the type invariant the queue is allocated and the reference is ours. Nothing hands the
        // queue out, so it was never registered with a disk and has no requests. By the contract of `new`
        // its tag set still is allocated.
        unsafe {
            bindings::blk_mq_destroy_queue(queue);
            bindings::blk_put_queue(queue);
        }
    }
}

// SAFETY: A tag set has no thread affinity.
unsafe impl<D: Operations> Send for RawTagSet<D> {}
// SAFETY: Shared references only read constant fields of `inner`, or fields that the block layer locks.
unsafe impl<D: Operations> Sync for RawTagSet<D> {}

impl<D: Operations> RawTagSet<D> {
    fn new(spec: TagSetSpec) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // INVARIANT: `blk_mq_alloc_tag_set` initializes the tag set.
            inner <- Opaque::try_ffi_init(move |slot: *mut bindings::blk_mq_tag_set| {
                let params = Self::params(spec)?;
                // SAFETY: `slot` is valid for writes.
                unsafe { slot.write(params) };
                // SAFETY: `slot` was just filled in, and is pinned.
                to_result(unsafe { bindings::blk_mq_alloc_tag_set(slot) })
            }),
            _driver: PhantomData,
        })
    }

    fn params(spec: TagSetSpec) -> Result<bindings::blk_mq_tag_set> {
        let polled = spec.nr_poll_queues > 0;
        // The block layer calls `poll` for a polled queue without checking that there is one.
        if spec.nr_queues == 0 || polled && !D::HAS_POLL {
            return Err(EINVAL);
        }
        let all = spec.nr_queues.checked_add(spec.nr_poll_queues);
        let mut flags = 0;
        if spec.shared_tags {
            flags |= bindings::BLK_MQ_F_TAG_HCTX_SHARED;
        }
        if spec.no_scheduler {
            flags |= bindings::BLK_MQ_F_NO_SCHED_BY_DEFAULT;
        }
        let mut set = bindings::blk_mq_tag_set {
            ops: Vtable::<D>::build(),
            nr_hw_queues: all.ok_or(EINVAL)?,
            queue_depth: spec.depth,
            nr_maps: if polled { MAPS_WITH_POLL } else { 1 },
            cmd_size: u32::try_from(size_of::<Private<D>>())?,
            numa_node: bindings::NUMA_NO_NODE,
            timeout: spec.timeout_jiffies,
            flags,
            ..pin_init::zeroed()
        };
        if polled {
            // For `fill_maps`.
            set.map[POLL_MAP].queue_offset = spec.nr_queues;
        }
        Ok(set)
    }
}

#[pinned_drop]
impl<D: Operations> PinnedDrop for RawTagSet<D> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant the tag set is allocated. No queue uses it: the data of each disk
        // keeps a reference to the `TagSet` until the disk's queue has left the tag set, and the `TagSet`
        // drops the queue without a disk first.
        unsafe { bindings::blk_mq_free_tag_set(self.inner.get()) };
    }
}

impl<D: Operations> TagSet<D> {
    /// Creates an initializer that allocates the tag set.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` for invalid numbers.
    pub fn new(spec: TagSetSpec) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            raw <- RawTagSet::new(spec),
            // SAFETY: The tag set was just allocated. It is freed after `diskless`: the fields are dropped in
            // their order, and if this initializer fails, there is no queue.
            diskless: unsafe { DisklessQueue::new(raw.inner.get()) }?,
        })
    }

    /// Returns the number of tags, which is lower than requested if memory was short.
    pub fn depth(&self) -> u32 {
        // SAFETY: The tag set is initialized by the type invariant, and its depth does not change.
        unsafe { (*self.raw.inner.get()).queue_depth }
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::blk_mq_tag_set {
        self.raw.inner.get()
    }
}
