// SPDX-License-Identifier: GPL-2.0

//! Telling user space whether the server can be reached.
//!
//! Whoever sends events waits for others who do, and those may wait for memory, which may
//! wait for a disk of ours. So a worker does it that nothing else waits for.

use super::Session;
use ibtrs_core::steps;
use kernel::sync::Arc;
use kx::work::WorkItem;

impl Session {
    /// The server can be reached, or not any more: user space will be told, soon.
    pub(crate) fn queue_uevent(self: &Arc<Self>, connected: bool) {
        self.pending_uevents.lock().push(connected, |_, last| last);
        self.uevents.enqueue(self.clone());
    }
}

impl WorkItem<6> for Session {
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
