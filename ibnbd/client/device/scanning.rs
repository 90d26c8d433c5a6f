// SPDX-License-Identifier: GPL-2.0

//! The time limit of the partition scan of a new disk.
//!
//! The scan holds the disk's open mutex, on which udev's workers block. Each read has a limit, with a
//! path or without one, see [`crate::timeouts`]; this is the limit of the whole scan.

use super::Device;
use crate::queue;
use ibnbd_proto::timeouts::SCAN_MS;
use kernel::sync::Arc;
use kx::work::WorkItem;

/// The running time limit of a scan. Drop ends it.
pub(crate) struct ScanLimit<'a>(&'a Arc<Device>);

impl Device {
    /// Starts the time limit of the partition scan.
    pub(crate) fn limit_scan(self: &Arc<Self>) -> ScanLimit<'_> {
        self.scanning.enqueue_in(self.clone(), SCAN_MS);
        ScanLimit(self)
    }
}

impl Drop for ScanLimit<'_> {
    fn drop(&mut self) {
        self.0.scanning.cancel_sync();
        self.0.io.timeouts().scan_over();
    }
}

impl WorkItem<{ crate::device::work::SCANNING }> for Device {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.io.timeouts().stop();
        // Fails the requests that wait for admission.
        queue::submit_waiting(&this.io);
    }
}
