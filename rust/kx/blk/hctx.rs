// SPDX-License-Identifier: GPL-2.0

//! Hardware queues, and the maps from CPUs to them.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    prelude::*, //
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

/// The purpose of the queues of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HctxType {
    /// All I/O that has no map of its own.
    Default,
    /// Reads.
    Read,
    /// Polled I/O.
    Poll,
}

/// The maps of a tag set during their setup.
///
/// # Invariants
///
/// The pointer is to a tag set whose maps are allocated, with `nr_cpu_ids` entries each, and which
/// nobody else uses for `'a`.
pub struct QueueMaps<'a>(NonNull<bindings::blk_mq_tag_set>, PhantomData<&'a mut ()>);

impl QueueMaps<'_> {
    /// # Safety
    ///
    /// `set` must be as the type invariant says, as long as the result is used.
    pub(crate) unsafe fn from_raw(set: *mut bindings::blk_mq_tag_set) -> Self {
        // INVARIANT: By this function's contract.
        // SAFETY: A live object is not at null.
        Self(unsafe { NonNull::new_unchecked(set) }, PhantomData)
    }

    /// Returns the total number of hardware queues.
    pub fn nr_hw_queues(&self) -> u32 {
        // SAFETY: The tag set is live by the type invariant.
        unsafe { (*self.0.as_ptr()).nr_hw_queues }
    }

    /// Maps CPU `i` to the queue `first + i % nr`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such map, or there are no such queues.
    pub fn one_to_one(&mut self, kind: HctxType, first: u32, nr: u32) -> Result {
        let map = self.range(kind, first, nr)?;
        // SAFETY: The kernel sets the number at boot, and does not change it afterwards.
        let cpus = unsafe { bindings::nr_cpu_ids };
        for cpu in 0..cpus {
            // SAFETY: By the type invariant the map is allocated and has `nr_cpu_ids` entries, and
            // nobody else uses it.
            unsafe { *(*map).mq_map.add(cpu as usize) = first + cpu % nr };
        }
        Ok(())
    }

    /// Sets the queues of a map, after checking that map and queues exist.
    fn range(
        &mut self,
        kind: HctxType,
        first: u32,
        nr: u32,
    ) -> Result<*mut bindings::blk_mq_queue_map> {
        let idx = match kind {
            HctxType::Default => bindings::hctx_type_HCTX_TYPE_DEFAULT,
            HctxType::Read => bindings::hctx_type_HCTX_TYPE_READ,
            HctxType::Poll => bindings::hctx_type_HCTX_TYPE_POLL,
        };
        let set = self.0.as_ptr();
        // SAFETY: The tag set is live by the type invariant.
        let (maps, queues) = unsafe { ((*set).nr_maps, (*set).nr_hw_queues) };
        let end = first.checked_add(nr).ok_or(EINVAL)?;
        if idx >= maps || nr == 0 || end > queues {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant the tag set is live, and nobody else uses it.
        let maps = unsafe { &mut (*set).map };
        let map = maps.get_mut(idx as usize).ok_or(EINVAL)?;
        map.queue_offset = first;
        map.nr_queues = nr;
        Ok(map)
    }
}
