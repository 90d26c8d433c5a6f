// SPDX-License-Identifier: GPL-2.0

//! What becomes of a device on the server while we have it.

use super::{
    device_path,
    Device,
    Inner, //
};
use crate::session;
use ibnbd_proto::state::Standing;
use ibtrs_proto::imm::notice_number;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    mm::NoIo,
    sysfs::Action,
    work::WorkItem, //
};

impl Device {
    /// Has a worker ask what it is, if the number is that of this device.
    pub(crate) fn noticed(self: &Arc<Self>, number: u32) {
        let device_id = self.inner.lock().rsp.device_id;
        if notice_number(device_id) == number {
            self.look.enqueue(self.clone());
        }
    }

    /// Asks the server about the device. If there is no answer, the server tells us
    /// again that there is something to ask.
    fn look(&self) -> Result {
        let _no_io = NoIo::enter();
        let _asking = self.asking.lock();
        let (life, device_id) = {
            let inner = self.inner.lock();
            if inner.closed || inner.standing != Standing::Open {
                return Ok(());
            }
            (inner.life, inner.rsp.device_id)
        };
        let name = device_path(&self.name)?;
        let answer = session::ask_device(self.io.transport(), name, self.access);
        let mut inner = self.inner.lock();
        if inner.life != life {
            return Ok(());
        }
        match answer {
            Ok(rsp) if rsp.device_id == device_id => self.resized(&mut inner, rsp.nsectors),
            Ok(_) => self.taken(&mut inner),
            Err(error) if error == ENOENT => self.taken(&mut inner),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The server's disk has another size.
    fn resized(&self, inner: &mut Inner, sectors: u64) {
        if inner.rsp.nsectors == sectors {
            return;
        }
        kx::pr_info_ratelimited!(
            "ibnbd{}: {} has {} sectors now, it had {}\n",
            self.number,
            *self.name,
            sectors,
            inner.rsp.nsectors
        );
        inner.rsp.nsectors = sectors;
        if let Some(disk) = &inner.disk {
            disk.set_capacity_and_notify(sectors);
        }
    }

    /// The server's operator has closed the device.
    fn taken(&self, inner: &mut Inner) {
        pr_err!(
            "ibnbd{}: {} was closed on the server; write 1 to remap_device to have it opened again\n",
            self.number,
            *self.name
        );
        inner.standing = Standing::Taken;
        self.io.set_gate(inner.standing.gate());
        self.show_locked(inner);
    }

    /// The server's cache is empty. Nobody who has written, and not flushed, shall believe that it
    /// is on the disk.
    pub(super) fn cache_lost(&self, inner: &Inner) {
        if !self.io.cache().lose() {
            return;
        }
        pr_err!(
            "ibnbd{}: the server has lost its cache: what was written to {} and not flushed may be gone, and flushes fail until all know\n",
            self.number,
            *self.name
        );
        if let Some(disk) = &inner.disk {
            // That nobody hears of it is no reason to do anything else.
            let _ = disk.uevent(Action::Change, &[c"IBNBD_CACHE_LOST=1"]);
        }
    }
}

/// A notice.
impl WorkItem<1> for Device {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Told again, if there was no answer.
        let _ = this.look();
    }
}
