// SPDX-License-Identifier: GPL-2.0

//! Notifies clients of changed devices.
//!
//! The kernel does not notify the opener of a block device that its size has changed. So a
//! worker reads the sizes once a second. A client that takes notices gets one, and then asks for
//! the device's properties as if it opened the device again. Until it has asked, it gets another
//! notice every second, so a lost notice does no harm.

use crate::session::Session;
use kernel::sync::Arc;
use kx::work::WorkItem;

/// Interval between checks of the devices' sizes.
const PERIOD_MS: u32 = 1000;
/// Devices of a session that one round of notices covers. The next round covers the others.
const BATCH: usize = 32;

impl Session {
    /// Starts to check the sizes of the devices once a second, as long as the session has devices.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn watch_sizes(self: &Arc<Self>) {
        self.watch.enqueue_in(self.clone(), PERIOD_MS);
    }

    /// Sends a notice about device `id`, if the client takes notices. The notice may be lost.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn notify(&self, id: u32) {
        if let Some(notices) = &*self.notices.lock() {
            // Without a path, no notice can be sent.
            let _ = notices.send(id);
        }
    }
}

/// A check of the devices' sizes.
impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.notices.lock().is_none() {
            return;
        }
        let mut any = false;
        let mut changed = [0; BATCH];
        let mut count = 0;
        this.for_each_device(|id, device| {
            any = true;
            if !device.has_new_size() {
                return;
            }
            if let Some(place) = changed.get_mut(count) {
                *place = id;
                count += 1;
            }
        });
        for id in changed.iter().take(count) {
            this.notify(*id);
        }
        if any {
            this.watch_sizes();
        }
    }
}
