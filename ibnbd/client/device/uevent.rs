// SPDX-License-Identifier: GPL-2.0

//! Sends uevents of a disk.
//!
//! Sending a uevent waits for other senders, and these may wait for memory, which may wait for this
//! very disk. A worker therefore sends it, without any lock that reopening the device takes, and
//! requests do not wait for it.

use super::Device;
use crate::request::IbnbdMq;
use ibtrs_proto::steps::Steps;
use kernel::sync::Arc;
use kx::{
    blk::GenDisk,
    sysfs::Action,
    work::WorkItem, //
};

/// Changes not yet reported to user space.
#[derive(Default)]
pub(super) struct PendingUevents {
    cache_lost: bool,
    resized: bool,
    /// Changes of the state, oldest first: whether the device is open.
    states: Steps<bool>,
}

impl PendingUevents {
    pub(super) fn cache_lost(&mut self) {
        self.cache_lost = true;
    }

    pub(super) fn resized(&mut self) {
        self.resized = true;
    }

    pub(super) fn state(&mut self, open: bool) {
        self.states.push(open, |_, last| last);
    }

    fn take(&mut self) -> Option<Self> {
        let is_empty = !self.cache_lost && !self.resized && self.states.is_empty();
        (!is_empty).then(|| core::mem::take(self))
    }

    /// Sends the uevents. Errors are ignored: they only mean that no program received the uevent.
    fn send(self, disk: &GenDisk<IbnbdMq>) {
        if self.cache_lost {
            let _ = disk.uevent(Action::Change, &[c"IBNBD_CACHE_LOST=1"]);
        }
        if self.resized {
            let _ = disk.announce_size();
        }
        self.states.iter().for_each(|open| {
            let _ = if open {
                disk.uevent(Action::Online, &[c"IBNBD_STATE=open"])
            } else {
                disk.uevent(Action::Offline, &[c"IBNBD_STATE=closed"])
            };
        });
    }
}

impl Device {
    /// Schedules the work item that sends the pending uevents.
    pub(super) fn tell_soon(self: &Arc<Self>) {
        self.uevents.enqueue(self.clone());
    }

    /// Takes the pending uevents and the disk; [`None`] if there are none or the disk is unmapped.
    fn take_uevents(&self) -> Option<(PendingUevents, Arc<GenDisk<IbnbdMq>>)> {
        let mut inner = self.inner.lock();
        let disk = inner.disk.clone()?;
        Some((inner.pending_uevents.take()?, disk))
    }
}

impl WorkItem<{ crate::device::work::UEVENTS }> for Device {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        while let Some((pending_uevents, disk)) = this.take_uevents() {
            pending_uevents.send(&disk);
        }
    }
}
