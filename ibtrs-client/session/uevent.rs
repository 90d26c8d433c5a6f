// SPDX-License-Identifier: GPL-2.0

//! Reports to user space whether the server can be reached.
//!
//! Sending a uevent waits for other senders, and these may wait for memory, which may
//! wait for one of our disks. So a worker sends it, for which nothing else waits.

use super::Session;
use ibtrs_core::steps;
use kernel::sync::Arc;
use kx::work::WorkItem;

impl Session {
    /// Queues a uevent: the server can be reached, or no longer.
    pub(crate) fn queue_uevent(self: &Arc<Self>, connected: bool) {
        self.pending_uevents.lock().push(connected, |_, last| last);
        self.uevents.enqueue(self.clone());
    }
}

impl WorkItem<{ crate::session::work::UEVENTS }> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut hook = this.hook.lock();
        steps::carry_out(
            || this.pending_uevents.lock().take(),
            |connected| {
                if let Some(hook) = &mut *hook {
                    hook.changed(&this, connected);
                }
            },
        );
    }
}
