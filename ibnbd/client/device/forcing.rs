// SPDX-License-Identifier: GPL-2.0

//! Ends the requests of a disk that is unmapped by force.
//!
//! The block layer releases a disk when its requests have ended. Waiting requests end at once;
//! requests at the server end when it answers. If the server still responds to heartbeats but never
//! answers a request, the paths that carry such requests are failed, which ends them.

use super::Device;
use crate::request::IbnbdMq;
use kernel::sync::Arc;
use kx::{
    blk::GenDisk,
    work::WorkItem, //
};

/// Time limit in milliseconds for the server to answer the requests of a disk that is unmapped by
/// force.
const ANSWER_TIMEOUT_MS: u32 = 10_000;

impl Device {
    /// Starts the time limit for the requests of the disk.
    pub(crate) fn begin_forcing(self: &Arc<Self>) {
        self.forcing.enqueue_in(self.clone(), ANSWER_TIMEOUT_MS);
    }

    /// Deletes this device's `disk` once its requests have ended; [`Device::begin_forcing`], which
    /// must have been called, ends them.
    ///
    /// # Context
    ///
    /// May sleep, until the server has answered or its paths are closed.
    pub(crate) fn delete_by_force(&self, disk: &GenDisk<IbnbdMq>) {
        disk.delete();
        self.forcing.cancel_sync();
    }
}

impl WorkItem<{ crate::device::work::FORCING }> for Device {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.io.transport().fail_unwanted();
        // Check again: a request may have been about to be submitted on a path.
        this.forcing.enqueue_in(this.clone(), ANSWER_TIMEOUT_MS);
    }
}
