// SPDX-License-Identifier: GPL-2.0

//! Mapped disks.

use crate::{
    attrs,
    device::Device,
    limits::{
        self,
        Carrier, //
    },
    queue::{
        DiskIo,
        Queue, //
    },
    registry::{
        PlaceRef,
        Registry, //
    }, //
};
use ibnbd_proto::{
    state::DevState,
    AccessMode, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::{
    blk::{
        Disk,
        DiskSpec, //
    },
    sysfs::{
        Dir,
        Link,
        PlainDir, //
    }, //
};

/// A disk whose data is on a server.
#[pin_data]
pub(crate) struct Mapping {
    path: CString,
    access_mode: AccessMode,
    /// Present until it is unmapped.
    #[pin]
    parts: Mutex<Option<Parts>>,
    // The device is closed, and with its last one the session, before the place is
    // free again.
    device: Device,
    place: PlaceRef,
}

/// What the rest of the system sees, in the order in which it goes.
struct Parts {
    link: Option<Link<Arc<PlainDir>>>,
    dir: Dir<Arc<Mapping>>,
    disk: Disk<Queue>,
}

impl Mapping {
    /// Makes a disk of a device.
    ///
    /// # Context
    ///
    /// May sleep, as long as reading a partition table takes.
    pub(crate) fn create(
        registry: &Registry,
        place: PlaceRef,
        device: Device,
        path: &str,
        access_mode: AccessMode,
    ) -> Result {
        let this = Arc::pin_init(
            try_pin_init!(Self {
                path: CString::try_from_fmt(fmt!("{path}"))?,
                access_mode,
                parts <- new_mutex!(None, "Mapping::parts"),
                device,
                place,
            }? Error),
            GFP_KERNEL,
        )?;
        let disk = this.add_disk(registry)?;
        let dir = Dir::new(&disk, fmt!("ibnbd"), this.clone(), &attrs::FILES)?;
        let link = this.link(registry, &disk);
        this.place.set_mapping(Some(this.clone()));
        pr_info!(
            "ibnbd{}: {} of session {}, {} sectors, {}\n",
            this.place.number(),
            *this.path,
            this.session_name(),
            this.device.rsp().nsectors,
            access_mode.as_str()
        );
        // From here on it can be unmapped.
        *this.parts.lock() = Some(Parts { link, dir, disk });
        Ok(())
    }

    fn add_disk(&self, registry: &Registry) -> Result<Disk<Queue>> {
        let (session, rsp) = (self.device.session(), self.device.rsp());
        let transport = session.transport().clone();
        let read_only = !self.access_mode.writes();
        let spec = DiskSpec {
            name: fmt!("ibnbd{}", self.place.number()),
            capacity_sectors: rsp.nsectors,
            limits: limits::of_disk(rsp, Carrier::of(&transport))?,
            read_only,
        };
        let io = DiskIo::new(transport, rsp.device_id, read_only);
        Disk::add(spec, session.tags().clone(), io, registry.disks())
    }

    /// Makes the link `<device path>@<session>`, if such a name is short enough.
    fn link(&self, registry: &Registry, disk: &Disk<Queue>) -> Option<Link<Arc<PlainDir>>> {
        let path = self.path.to_str().ok()?;
        let session = self.session_name().to_str().ok()?;
        let link = Link::new(registry.links()?, disk, fmt!("{path}@{session}"));
        link.inspect_err(|error| {
            pr_warn!(
                "ibnbd{}: no link {}@{}: {:?}\n",
                self.place.number(),
                path,
                session,
                error
            );
        })
        .ok()
    }

    /// Returns the name of the device on the server.
    pub(crate) fn device_path(&self) -> &CStr {
        &self.path
    }

    /// Returns the name of the session.
    pub(crate) fn session_name(&self) -> &CStr {
        self.device.session().name()
    }

    /// Returns how the device is used.
    pub(crate) fn access_mode(&self) -> AccessMode {
        self.access_mode
    }

    /// Returns the state of the disk, as far as its files can tell.
    pub(crate) fn state(&self) -> DevState {
        if self.device.session().transport().is_connected() {
            DevState::Open
        } else {
            DevState::Closed
        }
    }

    /// Unmaps the disk: removes it, and has the server close the device when the
    /// last reference to the mapping is dropped.
    ///
    /// Who calls this in one of the disk's own files leaves that in `leave`, which
    /// is called once it is sure that the disk goes.
    ///
    /// # Context
    ///
    /// May sleep, as long as requests take.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the disk is open, unless `force` is set; `EALREADY` if it is
    /// being unmapped; what `leave` returns.
    pub(crate) fn unmap(&self, force: bool, leave: impl FnOnce() -> Result) -> Result {
        self.with_disk(|disk| disk.begin_removal(force))?;
        // Not under the lock: it may wait for others who want that.
        if let Err(error) = leave() {
            self.with_disk(|disk| {
                disk.cancel_removal();
                Ok(())
            })?;
            return Err(error);
        }
        let Parts { link, dir, disk } = self.parts.lock().take().ok_or(EALREADY)?;
        drop(link);
        drop(dir);
        if force {
            disk.queue_data().set_gone();
            disk.mark_dead();
        }
        drop(disk);
        pr_info!("ibnbd{}: unmapped\n", self.place.number());
        self.place.set_mapping(None);
        Ok(())
    }

    /// Does something with the disk, if it is complete and not taken apart.
    fn with_disk(&self, func: impl FnOnce(&Disk<Queue>) -> Result) -> Result {
        let parts = self.parts.lock();
        func(&parts.as_ref().ok_or(EALREADY)?.disk)
    }
}
