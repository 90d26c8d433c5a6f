// SPDX-License-Identifier: GPL-2.0

//! Quiescing and freezing a disk's queue.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use crate::blk::{
    gen_disk::GenDisk,
    operations::Operations, //
};
use core::ffi::c_uint;
use ibtrs_bindings as ours;
use kernel::{
    bindings,
    types::NotThreadSafe, //
};

/// No request of the disk is in flight, new ones wait, until this is dropped.
///
/// It must be dropped by the thread that made it.
#[must_use = "the queue is thawed at once when this is not kept"]
pub struct Frozen<'a, D: Operations> {
    disk: &'a GenDisk<D>,
    memflags: c_uint,
    _thread: NotThreadSafe,
}

/// Nothing is dispatched to the driver until this is dropped.
#[must_use = "the queue goes on at once when this is not kept"]
pub struct Quiesced<'a, D: Operations>(&'a GenDisk<D>);

impl<D: Operations> GenDisk<D> {
    /// Waits until no request is in flight and keeps it so.
    ///
    /// # Context
    ///
    /// *may sleep*, as long as requests take.
    pub fn freeze(&self) -> Frozen<'_, D> {
        // SAFETY: The queue is live as the disk is.
        let memflags = unsafe { ours::blk_mq_freeze_queue(self.queue()) };
        Frozen {
            disk: self,
            memflags,
            _thread: NotThreadSafe,
        }
    }

    /// Waits until no call of [`Operations::queue_rq`] is going on and keeps it so.
    ///
    /// # Context
    ///
    /// *may sleep*.
    pub fn quiesce(&self) -> Quiesced<'_, D> {
        // SAFETY: The queue is live as the disk is.
        unsafe { bindings::blk_mq_quiesce_queue(self.queue()) };
        Quiesced(self)
    }
}

impl<D: Operations> Drop for Frozen<'_, D> {
    fn drop(&mut self) {
        // SAFETY: Frozen by this thread when this was made, with these flags.
        unsafe { ours::blk_mq_unfreeze_queue(self.disk.queue(), self.memflags) };
    }
}

impl<D: Operations> Drop for Quiesced<'_, D> {
    fn drop(&mut self) {
        // SAFETY: Quiesced when this was made.
        unsafe { bindings::blk_mq_unquiesce_queue(self.0.queue()) };
    }
}
