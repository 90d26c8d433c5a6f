// SPDX-License-Identifier: GPL-2.0

//! Hardware queues, and the maps from CPUs to them.
//!
//! Differs from [`kernel::block::mq`], whose operations do not receive their hardware queue, and
//! which has no separate queues for polled I/O.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    cpu::nr_cpu_ids, //
};

/// A hardware queue of a disk, borrowed during a call of an operation.
///
/// # Invariants
///
/// The pointer is to a hardware context that is live during `'a`.
#[derive(Clone, Copy)]
pub struct Hctx<'a>(NonNull<bindings::blk_mq_hw_ctx>, PhantomData<&'a ()>);

impl Hctx<'_> {
    /// # Safety
    ///
    /// `hctx` must be live as long as the result is used.
    pub(crate) unsafe fn from_raw(hctx: *mut bindings::blk_mq_hw_ctx) -> Self {
        // INVARIANT: By this function's contract.
        // SAFETY: A live object is not at null.
        Self(unsafe { NonNull::new_unchecked(hctx) }, PhantomData)
    }

    /// Returns the index of the queue, counted from zero over all maps.
    #[inline]
    pub fn index(&self) -> u32 {
        // SAFETY: The hardware queue is live by the type invariant, and its number does not change.
        unsafe { (*self.0.as_ptr()).queue_num }
    }
}

/// Number of maps of a tag set that has queues for polled I/O: default, read and poll.
pub(crate) const MAPS_WITH_POLL: u32 = bindings::hctx_type_HCTX_MAX_TYPES;

/// The index of the map for polled I/O.
pub(crate) const POLL_MAP: usize = bindings::hctx_type_HCTX_TYPE_POLL as usize;

/// Maps the CPUs to the hardware queues of a tag set: CPU `i` to ordinary queue `i % n` of `n`, for
/// all I/O that is not polled, and likewise to the queues for polled I/O, which follow.
///
/// The number of ordinary queues is the offset of the map for polled I/O, if there is one:
/// [`TagSet`](super::TagSet) sets it, and the block layer, which sets `nr_queues` of each map, leaves
/// it alone. Without such a map all queues are ordinary. The block layer may have lowered their
/// number to that of the CPUs.
///
/// # Safety
///
/// `set` must be a tag set whose maps are allocated, with `nr_cpu_ids` entries each, and which
/// nobody else uses during the call.
pub(crate) unsafe fn fill_maps(set: *mut bindings::blk_mq_tag_set) {
    const {
        assert!(bindings::hctx_type_HCTX_TYPE_DEFAULT == 0);
        assert!(bindings::hctx_type_HCTX_TYPE_READ == 1);
        assert!(bindings::hctx_type_HCTX_TYPE_POLL == 2);
    };
    // SAFETY: By this function's contract the tag set is live, and nobody else uses its maps. The
    // reference is to the maps only.
    let (nr_maps, all, maps) = unsafe {
        (
            (*set).nr_maps as usize,
            (*set).nr_hw_queues,
            &mut (*set).map,
        )
    };
    let ordinary = match maps.get(POLL_MAP) {
        Some(poll) if nr_maps > POLL_MAP => poll.queue_offset.min(all),
        _ => all,
    };
    // In the order of the maps.
    let ranges = [(0, ordinary), (0, ordinary), (ordinary, all - ordinary)];
    for (map, (first, nr)) in maps.iter_mut().zip(ranges).take(nr_maps) {
        map.queue_offset = first;
        map.nr_queues = nr;
        for cpu in 0..nr_cpu_ids() {
            let queue = cpu.checked_rem(nr).map_or(0, |nth| first + nth);
            // SAFETY: By this function's contract the map is allocated, the number of the CPU is
            // below that of its entries, and nobody else uses it.
            unsafe { map.mq_map.add(cpu as usize).write(queue) };
        }
    }
}
