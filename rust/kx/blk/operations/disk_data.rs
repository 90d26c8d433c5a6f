// SPDX-License-Identifier: GPL-2.0

//! The data of a disk, which the entry points of its driver find.
//!
//! Differs from [`kernel::block::mq`], where the driver's data is a `ForeignOwnable` pointer in
//! the queue.

use super::Operations;
use crate::{
    blk::disk_owner::Presence,
    sync::atomic::AtomicFlag, //
};
use core::ptr::NonNull;
use kernel::{
    bindings,
    sync::Arc, //
};

/// The part of a disk's data that does not depend on the driver.
pub(crate) struct Head {
    /// Frees the allocation that begins with this head, with everything that the disk owns.
    pub(crate) free: unsafe fn(NonNull<Head>),
    /// Whether opening the disk fails, as its removal was claimed. Set under the open mutex, unless the
    /// removal is by force.
    pub(crate) closing: AtomicFlag,
    pub(crate) presence: Arc<Presence>,
}

/// The first part of the object that `private_data` of a disk and `queuedata` of its queue point to.
#[repr(C)]
pub(crate) struct DiskData<D: Operations> {
    /// First, so that a pointer to it is also one to the whole.
    pub(crate) head: Head,
    pub(crate) queue_data: D::QueueData,
}

impl<D: Operations> DiskData<D> {
    /// # Safety
    ///
    /// `queue` must be the queue of a disk created by [`GenDisk::add`](crate::blk::GenDisk::add) for
    /// `D`, and must be live as long as the result is used.
    #[inline]
    pub(crate) unsafe fn of_queue<'a>(queue: *mut bindings::request_queue) -> &'a Self {
        // SAFETY: By this function's contract the queue is live, and `GenDisk::add` has set its `queuedata` to
        // an allocation that begins with a `DiskData` of `D`, which `free_disk` frees together with the disk.
        unsafe { &*(*queue).queuedata.cast() }
    }

    /// # Safety
    ///
    /// `disk` must be a disk created by [`GenDisk::add`](crate::blk::GenDisk::add) for `D`, and must be
    /// live as long as the result is used.
    pub(crate) unsafe fn of_disk<'a>(disk: *mut bindings::gendisk) -> &'a Self {
        // SAFETY: By this function's contract the disk is live, and `GenDisk::add` has set its `private_data` to
        // an allocation that begins with a `DiskData` of `D`, which `free_disk` frees together with the disk.
        unsafe { &*(*disk).private_data.cast() }
    }

    #[inline]
    pub(crate) fn queue_data(&self) -> &D::QueueData {
        &self.queue_data
    }
}
