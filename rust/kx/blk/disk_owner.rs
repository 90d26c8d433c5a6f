// SPDX-License-Identifier: GPL-2.0

//! The owner of a module's disks.
//!
//! Differs from [`kernel::block::mq`], where nothing waits for the disks of a module: its disks
//! have no owner in their operations, so a driver could be unloaded while one of its disks is
//! open.

use core::mem::ManuallyDrop;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Completion, //
    }, //
};

/// The owner of a module's disks.
///
/// Dropping it waits until the last disk is freed and *may sleep*. After that, the block layer does
/// not call the module any more, so the module drops it on unload.
pub struct DiskOwner {
    /// Each disk holds a reference, too; dropping the last one completes `drained`.
    presence: ManuallyDrop<Arc<Presence>>,
    drained: Arc<Completion>,
}

/// The presence of a disk, or of the owner; the last one completes `drained`.
pub(crate) struct Presence(Arc<Completion>);

impl DiskOwner {
    /// Creates an owner without disks.
    ///
    /// # Context
    ///
    /// *may sleep*.
    pub fn new() -> Result<Self> {
        let drained = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        let presence = Arc::new(Presence(drained.clone()), GFP_KERNEL)?;
        Ok(Self {
            presence: ManuallyDrop::new(presence),
            drained,
        })
    }
    /// Returns a reference for another disk.
    pub(super) fn presence(&self) -> Arc<Presence> {
        (*self.presence).clone()
    }
}

impl Drop for DiskOwner {
    fn drop(&mut self) {
        // SAFETY: `presence` is not used again, as `self` is being dropped.
        unsafe { ManuallyDrop::drop(&mut self.presence) };
        self.drained.wait_for_completion();
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.complete_all();
    }
}
