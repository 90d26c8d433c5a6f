// SPDX-License-Identifier: GPL-2.0

//! Tag sets: the requests that one or more disks share.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use crate::blk::{
    hctx::{
        MAPS_WITH_POLL,
        POLL_MAP, //
    },
    operations::{
        Operations,
        Vtable, //
    },
    request::Private, //
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
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
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
/// Once a second disk is to be added while the first one is not freed, a tag set keeps a queue without a
/// disk. The block layer divides tags among the queues of a set only if it has several, and freezes a
/// queue when that begins or ends: the removal of one of two disks would wait for all requests of the
/// other one. A tag set that only ever has one disk does without, as dividing costs each request.
///
/// # Invariants
///
/// `inner` was initialized by `blk_mq_alloc_tag_set`, with the vtable and the size of private data
/// of `D`.
#[pin_data(PinnedDrop)]
pub struct TagSet<D: Operations> {
    #[pin]
    inner: Opaque<bindings::blk_mq_tag_set>,
    /// Held while requests of the first disk are waited for, so nothing that ends requests takes it. The
    /// lock of the set's queues is taken under it.
    #[pin]
    disks: Mutex<Disks>,
    _driver: PhantomData<D>,
}

/// The disks of a tag set.
struct Disks {
    /// Number of disks that are about to be allocated, or not freed yet.
    count: usize,
    /// Present from the second disk on.
    diskless: Option<DisklessQueue>,
}

impl Disks {
    // Not generic: there is one class of these locks.
    #[inline(never)]
    fn new() -> impl PinInit<Mutex<Self>> {
        new_mutex!(
            Self {
                count: 0,
                diskless: None,
            },
            "TagSet::disks"
        )
    }
}

/// A queue of a tag set without a disk, to which nobody submits requests.
///
/// # Invariants
///
/// `0` is a queue that `blk_mq_alloc_queue` has returned, and this value owns the reference to it.
struct DisklessQueue(NonNull<bindings::request_queue>);

// SAFETY: The value is only ever dropped, and any task may destroy a queue and put a reference to it.
unsafe impl Send for DisklessQueue {}

impl DisklessQueue {
    /// Adds a queue to `set`. If that has one queue, this waits until all requests of that have ended.
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

/// A disk of a tag set, which is counted and keeps the tag set until this is dropped.
pub(crate) struct TagSetUser<D: Operations>(Arc<TagSet<D>>);

impl<D: Operations> TagSetUser<D> {
    /// Counts a disk that is about to be allocated on `set`.
    ///
    /// # Context
    ///
    /// *may sleep*; for the second disk, until all requests of the first have ended.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(set: Arc<TagSet<D>>) -> Result<Self> {
        let mut disks = set.disks.lock();
        if disks.count > 0 && disks.diskless.is_none() {
            // SAFETY: By the type invariant the tag set is allocated; `TagSet::drop` drops the queue before
            // it frees the set.
            disks.diskless = Some(unsafe { DisklessQueue::new(set.as_raw()) }?);
        }
        disks.count += 1;
        drop(disks);
        Ok(Self(set))
    }
}

impl<D: Operations> Drop for TagSetUser<D> {
    fn drop(&mut self) {
        self.0.disks.lock().count -= 1;
    }
}

// SAFETY: A tag set has no thread affinity.
unsafe impl<D: Operations> Send for TagSet<D> {}
// SAFETY: Shared references only read constant fields of `inner`, or fields that the block layer locks;
// `disks` is `Sync` itself.
unsafe impl<D: Operations> Sync for TagSet<D> {}

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
            // INVARIANT: `blk_mq_alloc_tag_set` initializes the tag set.
            inner <- Opaque::try_ffi_init(move |slot: *mut bindings::blk_mq_tag_set| {
                let raw = Self::raw(spec)?;
                // SAFETY: `slot` is valid for writes.
                unsafe { slot.write(raw) };
                // SAFETY: `slot` was just filled in, and is pinned.
                to_result(unsafe { bindings::blk_mq_alloc_tag_set(slot) })
            }),
            disks <- Disks::new(),
            _driver: PhantomData,
        })
    }

    fn raw(spec: TagSetSpec) -> Result<bindings::blk_mq_tag_set> {
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

    /// Returns the number of tags, which is lower than requested if memory was short.
    pub fn depth(&self) -> u32 {
        // SAFETY: The tag set is initialized by the type invariant, and its depth does not change.
        unsafe { (*self.inner.get()).queue_depth }
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::blk_mq_tag_set {
        self.inner.get()
    }
}

#[pinned_drop]
impl<D: Operations> PinnedDrop for TagSet<D> {
    fn drop(self: Pin<&mut Self>) {
        let diskless = self.disks.lock().diskless.take();
        drop(diskless);
        // SAFETY: By the type invariant the tag set is allocated. No disk uses it, as the data of
        // each disk keeps a reference to it until the disk's queue has left the tag set; nor does the
        // queue without a disk, which was just dropped.
        unsafe { bindings::blk_mq_free_tag_set(self.inner.get()) };
    }
}
