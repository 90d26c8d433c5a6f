// SPDX-License-Identifier: GPL-2.0

//! Changes of a device on the server while it is open.

use super::{
    device_path,
    Device,
    DeviceInner, //
};
use crate::admin;
use ibnbd_proto::state::Standing;
use kernel::{
    prelude::*,
    sync::Arc,
    time::Instant, //
};
use kx::{
    mm::NoIo,
    work::WorkItem, //
};

/// Minimum interval between two refreshes, in milliseconds, however many notices arrive.
pub(super) const REFRESH_PAUSE_MS: u32 = 1000;

impl Device {
    /// Refreshes the properties of the device from the server.
    ///
    /// # Errors
    ///
    /// The answer was lost or is invalid; the refresh must be repeated.
    fn refresh(self: &Arc<Self>) -> Result {
        let _no_io = NoIo::enter();
        let _asking = self.asking.lock();
        let transport = self.io.transport();
        // Before the device's number is read: a session that has begun since does not know the
        // number.
        let session = transport.generation();
        if !session.is_open() {
            // The device may not have been notified of the new session yet, in which it will be
            // reopened.
            return Ok(());
        }
        let (generation, device_id) = {
            let mut inner = self.inner.lock();
            inner.refreshed = Some(Instant::now());
            if inner.closed || inner.standing != Standing::Open {
                return Ok(());
            }
            (inner.generation, inner.rsp.device_id)
        };
        let name = device_path(&self.name)?;
        let checksum = self.io.damage().checksum();
        let answer = admin::ask_device(transport, name, self.access, checksum);
        let mut inner = self.inner.lock();
        if inner.generation != generation || transport.generation() != session {
            return Ok(());
        }
        match answer {
            Ok(open) if open.rsp.device_id == device_id => {
                self.resized(&mut inner, open.rsp.nsectors)
            }
            Ok(_) => self.taken(&mut inner),
            Err(error) if error == ENOENT => self.taken(&mut inner),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Adopts the size that the server reports, if it has changed.
    fn resized(self: &Arc<Self>, inner: &mut DeviceInner, sectors: u64) {
        // An unchanged report does not override a size that the operator has set.
        if inner.rsp.nsectors != sectors {
            inner.rsp.nsectors = sectors;
            self.set_size(inner, sectors);
        }
    }

    /// Sets the capacity of the disk; a change queues a uevent.
    pub(super) fn set_size(self: &Arc<Self>, inner: &mut DeviceInner, sectors: u64) {
        let Some(disk) = &inner.disk else { return };
        let before = disk.capacity_sectors();
        if before == sectors {
            return;
        }
        disk.set_capacity(sectors);
        kx::pr_info_ratelimited!(
            "ibnbd{}: {} has {} sectors now, it had {}\n",
            self.number,
            *self.name,
            sectors,
            before
        );
        inner.pending_uevents.resized();
        self.tell_soon();
        self.record("resized", fmt!("{sectors} sectors now, {before} before"));
    }

    /// Records that the server's operator has closed the device; its I/O fails until it is
    /// reopened.
    fn taken(self: &Arc<Self>, inner: &mut DeviceInner) {
        pr_err!(
            "ibnbd{}: {} was closed on the server; write 1 to remap_device to have it opened again\n",
            self.number,
            *self.name
        );
        inner.standing = Standing::Revoked;
        self.io.set_queue_state(inner.standing.queue_state());
        self.show_locked(inner);
    }

    /// Handles the loss of the server's write cache: if there were unflushed writes, flushes fail,
    /// so that no program treats lost data as durable.
    pub(super) fn cache_lost(self: &Arc<Self>, inner: &mut DeviceInner) {
        if !self.io.write_cache().lose() {
            return;
        }
        pr_err!(
            "ibnbd{}: the server has lost its write cache: unflushed writes to {} may be gone; flushes fail until the loss is acknowledged in cache_lost\n",
            self.number,
            *self.name
        );
        inner.pending_uevents.cache_lost();
        self.tell_soon();
        self.record("cache_lost", fmt!("unflushed writes may be gone"));
    }
}

/// Handles a notice.
impl WorkItem<{ crate::device::work::REFRESH }> for Device {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // The server does not repeat a notice once it has answered the resulting query.
        if this.refresh().is_err() {
            this.refresh.enqueue_in(this.clone(), REFRESH_PAUSE_MS);
        }
    }
}
