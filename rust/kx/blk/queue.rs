// SPDX-License-Identifier: GPL-2.0

//! Quiescing a disk's queue.
//!
//! [`kernel::block::mq`] has no counterpart.
//!
//! # Examples
//!
//! ```
//! use kx::blk::{GenDisk, Operations};
//!
//! /// Changes what `queue_rq` reads, which does not run meanwhile.
//! fn reconfigure<D: Operations>(disk: &GenDisk<D>, change: impl FnOnce(&D::QueueData)) {
//!     let _quiesced = disk.quiesce();
//!     change(disk.queue_data());
//! }
//! ```
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use crate::blk::{
    gen_disk::GenDisk,
    operations::Operations, //
};
use kernel::bindings;

/// Keeps a disk's queue quiesced: nothing is dispatched to the driver until this is dropped.
#[must_use = "dropping this resumes the queue"]
pub struct Quiesced<'a, D: Operations>(&'a GenDisk<D>);

impl<D: Operations> GenDisk<D> {
    /// Waits for running calls of [`Operations::queue_rq`], and prevents new ones until the result
    /// is dropped.
    ///
    /// # Context
    ///
    /// *may sleep*.
    pub fn quiesce(&self) -> Quiesced<'_, D> {
        // SAFETY: The queue is live, as the disk is by the type invariant.
        unsafe { bindings::blk_mq_quiesce_queue(self.queue()) };
        Quiesced(self)
    }
}

impl<D: Operations> Drop for Quiesced<'_, D> {
    fn drop(&mut self) {
        // SAFETY: `quiesce` has quiesced the queue for this value, and the queue is live, as the
        // disk is borrowed.
        unsafe { bindings::blk_mq_unquiesce_queue(self.0.queue()) };
    }
}
