// SPDX-License-Identifier: GPL-2.0

//! Notifies clients of changed devices, and of devices that an operator has closed.
//!
//! The kernel does not notify the opener of a block device that its size has changed. A worker
//! therefore polls the sizes once a second. A client that supports notices gets one, and then
//! queries the device's properties as if it reopened the device. Until then, the notice is repeated
//! every second, so a lost notice does no harm.

use super::{
    open::OpenDevice,
    Session, //
};
use kernel::{
    alloc::flags::GFP_NOWAIT,
    prelude::*,
    str::CString,
    sync::Arc, //
};
use kx::work::WorkItem;

/// Interval between checks of the devices' sizes.
const PERIOD_MS: u32 = 1000;
/// Devices of a session that one round of notices covers. The next round covers the remaining ones.
const BATCH: usize = 32;
/// Rounds of notices about a closed device. A path over which they are lost is closed long before
/// that; a client that has since unmapped the device does not query it.
const ROUNDS: u32 = 120;

/// A device that an operator has closed, and whose client has not queried it since.
struct Gone {
    id: u32,
    name: CString,
    rounds: u32,
}

/// The devices of a session that operators have closed.
pub(crate) struct AllGone(KVec<Gone>);

impl AllGone {
    pub(crate) const fn new() -> Self {
        Self(KVec::new())
    }

    /// Removes the device that a client calls `name`: the client knows that it is closed, or has
    /// reopened it.
    pub(crate) fn forget(&mut self, name: &[u8]) {
        self.0.retain(|gone| gone.name.to_bytes() != name);
    }

    /// Fills in the ids of at most [`BATCH`] devices for which a notice is due, and returns their
    /// number; the next round begins with the others.
    fn round(&mut self, ids: &mut [u32; BATCH]) -> usize {
        let count = self.0.len().min(BATCH);
        for (place, gone) in ids.iter_mut().zip(&mut self.0) {
            *place = gone.id;
            gone.rounds += 1;
        }
        self.0.rotate_left(count);
        self.0.retain(|gone| gone.rounds < ROUNDS);
        count
    }
}

impl Session {
    /// Starts to check the sizes of the devices once a second, as long as the session has devices.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn watch_sizes(self: &Arc<Self>) {
        self.watch.enqueue_in(self.clone(), PERIOD_MS);
    }

    /// Prepares to notify the client that an operator closes `device`. If the allocation fails,
    /// there will be only one notice, which may be lost.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn note_gone(&self, device: &OpenDevice) {
        let Ok(name) = CString::try_from(&*device.name) else {
            return;
        };
        let gone = Gone {
            id: device.id,
            name,
            rounds: 0,
        };
        let _ = self.gone.lock().0.push(gone, GFP_NOWAIT);
    }

    /// Notifies the client that device `id` is closed, once a second until it has queried the
    /// device.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn notify_gone(self: &Arc<Self>, id: u32) {
        self.notify(id);
        self.watch_sizes();
    }

    /// Sends notices about the devices `ids`, as [`Self::notify`].
    fn notify_all(&self, ids: &[u32]) {
        for id in ids {
            self.notify(*id);
        }
    }

    /// Sends a notice about device `id`, if the client supports notices. The notice may be lost.
    ///
    /// # Context
    ///
    /// May sleep.
    fn notify(&self, id: u32) {
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
        this.notify_all(changed.get(..count).unwrap_or_default());
        let mut gone = [0; BATCH];
        let count = this.gone.lock().round(&mut gone);
        this.notify_all(gone.get(..count).unwrap_or_default());
        if any || count > 0 {
            this.watch_sizes();
        }
    }
}
