// SPDX-License-Identifier: GPL-2.0

//! Disks and block devices as parents of entries in sysfs.
//!
//! [`kernel::block`] has no counterpart.

use super::{
    BlockDevice,
    GenDisk,
    Operations, //
};
use crate::sysfs::InSysfs;
use core::ptr;
use kernel::{
    bindings,
    device::Device,
    prelude::*,
    types::ScopeGuard, //
};

/// Calls a function with the kobject of a disk or of a partition.
///
/// # Errors
///
/// - [`ENODEV`] if the disk was deleted,
/// - errors of the function.
///
/// # Safety
///
/// `device` must be valid, and that of a disk or a partition.
unsafe fn with_block_kobject<R>(
    device: &Device,
    func: impl FnOnce(*mut bindings::kobject) -> Result<R>,
) -> Result<R> {
    // CAST: `Device` is transparent.
    let device = ptr::from_ref(device).cast::<bindings::device>().cast_mut();
    // SAFETY: By this function's contract the device is valid, and that of a disk or a partition.
    if !unsafe { ibtrs_bindings::kx_hold_disk(device) } {
        return Err(ENODEV);
    }
    let _release = ScopeGuard::new(move || {
        // SAFETY: `kx_hold_disk` has returned true for this device, in this task.
        unsafe { ibtrs_bindings::kx_release_disk(device) }
    });
    // SAFETY: The device is valid, so the field is in bounds.
    func(unsafe { &raw mut (*device).kobj })
}

// SAFETY: The disk was added by the type invariant of `GenDisk`. `with_block_kobject` holds the
// disk's open mutex and checks that the disk is live. Deleting a disk takes that mutex and marks
// the disk as not live before it deletes the disk's device.
unsafe impl<D: Operations> InSysfs for GenDisk<D> {
    fn with_kobject<R, F>(&self, func: F) -> Result<R>
    where
        F: FnOnce(*mut bindings::kobject) -> Result<R>,
    {
        // SAFETY: The disk is valid while it is borrowed, and this is its device.
        unsafe { with_block_kobject(self.device(), func) }
    }
}

// SAFETY: As above. The kernel deletes a partition with its disk, or under the same mutex, and does
// not delete one that is open.
unsafe impl InSysfs for BlockDevice {
    fn with_kobject<R, F>(&self, func: F) -> Result<R>
    where
        F: FnOnce(*mut bindings::kobject) -> Result<R>,
    {
        // SAFETY: The device is valid, as it is open, and that of a disk or a partition.
        unsafe { with_block_kobject(self.device(), func) }
    }
}
