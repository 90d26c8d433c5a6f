// SPDX-License-Identifier: GPL-2.0

//! Mapped disks.

use crate::{
    background::Fate,
    device::{
        Device,
        Opened, //
    },
    limits::{
        self,
        Carrier, //
    },
    registry::{
        Registry,
        Unmap, //
    },
    request::IbnbdMq, //
};
use ibtrs_core::convert;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::{
    blk::{
        DiskSpec,
        GenDisk,
        Limits, //
    },
    sysfs::{
        Dir,
        Link,
        PlainDir, //
    }, //
};

mod attrs;

/// A disk whose data is on a server.
#[pin_data]
pub(crate) struct Mapping {
    /// Present from the end of the disk's creation until it is unmapped.
    #[pin]
    parts: Mutex<Option<Parts>>,
    opened: Opened,
}

/// The parts that the rest of the system sees, in the order of their removal.
struct Parts {
    link: Option<Link<Arc<PlainDir>>>,
    dir: Dir<Arc<Mapping>>,
    disk: Arc<GenDisk<IbnbdMq>>,
}

impl Mapping {
    /// Creates the disk of an open device, and adds it to the system. The disk can then be
    /// unmapped.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINTR` if the user was killed before the commit; `ENOMEM`; errors of [`GenDisk::add`].
    pub(crate) fn create(registry: &Registry, opened: Opened, fate: &Fate) -> Result<NewDisk> {
        let this = Arc::pin_init(
            try_pin_init!(Self {
                parts <- new_mutex!(None, "Mapping::parts"),
                opened,
            }? Error),
            GFP_KERNEL,
        )?;
        let disk = Arc::new(this.add_disk(registry)?, GFP_KERNEL)?;
        let dir = Dir::new(&*disk, fmt!("ibnbd"), this.clone(), &attrs::FILES)?;
        let link = this.link(registry, &disk);
        fate.commit()?;
        this.opened.place().set_mapping(Some(this.clone()));
        pr_info!(
            "ibnbd{}: {} of session {}, {} sectors, {}\n",
            this.number(),
            this.device().name(),
            this.session_name(),
            disk.capacity_sectors(),
            this.device().access().as_str()
        );
        this.device().warn_without_identity();
        let new = NewDisk {
            device: this.device().clone(),
            disk: disk.clone(),
        };
        // From here on the disk can be unmapped.
        *this.parts.lock() = Some(Parts { link, dir, disk });
        Ok(new)
    }

    fn add_disk(&self, registry: &Registry) -> Result<GenDisk<IbnbdMq>> {
        let session = self.opened.session();
        let rsp = self.device().rsp();
        let io = self.device().io().clone();
        let limits = Limits {
            // A checksum is only valid if the data does not change until the server has received
            // it.
            stable_writes: io.has_checksums(),
            ..limits::of_disk(&rsp, Carrier::of(session.transport()))?
        };
        GenDisk::add(
            DiskSpec {
                name: fmt!("ibnbd{}", self.number()),
                capacity_sectors: rsp.nsectors,
                limits,
                read_only: !self.device().access().writes(),
            },
            session.tags().clone(),
            io,
            registry.disks(),
        )
    }

    /// Creates the link `<device path>@<session>`. If this fails, because the name is too long, for
    /// example, the disk works without it.
    fn link(&self, registry: &Registry, disk: &GenDisk<IbnbdMq>) -> Option<Link<Arc<PlainDir>>> {
        let path = self.device().name().to_str().ok()?;
        let session = self.session_name().to_str().ok()?;
        let link = Link::new(registry.links()?, disk, fmt!("{path}@{session}"));
        link.inspect_err(|error| {
            pr_warn!(
                "ibnbd{}: cannot create the link {}@{} ({})\n",
                self.number(),
                path,
                session,
                convert::errno(*error).as_str()
            );
        })
        .ok()
    }

    /// Returns the number of the disk.
    pub(crate) fn number(&self) -> u32 {
        self.opened.place().number()
    }

    /// Returns the device on the server.
    pub(crate) fn device(&self) -> &Arc<Device> {
        self.opened.device()
    }

    /// Returns the name of the session.
    pub(crate) fn session_name(&self) -> &CStr {
        self.opened.session().name()
    }

    /// Returns the number of queues for ordinary I/O.
    pub(crate) fn nr_queues(&self) -> u32 {
        self.opened.session().nr_queues()
    }

    /// Returns the number of poll queues.
    pub(crate) fn nr_poll_queues(&self) -> u32 {
        self.opened.session().nr_poll_queues()
    }

    /// Reopens the device at an operator's request.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// Errors of [`Device::remap`].
    pub(crate) fn remap(&self) -> Result {
        self.device().remap(self.opened.session().registry().jobs())
    }

    /// Unmaps the disk: removes it. The device is closed on the server when the last reference to
    /// the mapping is dropped.
    ///
    /// `leave` is called once the removal is certain; a caller that runs in one of the disk's own
    /// attributes removes that attribute there.
    ///
    /// # Context
    ///
    /// May sleep until the disk's requests have ended; with `force`, at most until the paths that
    /// carry them are closed.
    ///
    /// # Errors
    ///
    /// Errors of [`GenDisk::begin_removal`]: `EBUSY` if the disk is open, unless `force` is set,
    /// and `EALREADY` if it is being unmapped; the error of `leave`.
    pub(crate) fn unmap(&self, force: bool, leave: impl FnOnce() -> Result) -> Result {
        self.begin_removal(force)?;
        // Without the lock, as `leave` may wait for tasks that are taking it.
        if let Err(error) = leave() {
            if let Some(parts) = &*self.parts.lock() {
                parts.disk.cancel_removal();
            }
            return Err(error);
        }
        let Parts { link, dir, disk } = self.parts.lock().take().ok_or(EALREADY)?;
        drop(link);
        if force {
            self.device().io().set_gone();
            // Waits for submitters that have not seen `set_gone`.
            drop(disk.quiesce());
            self.opened.session().transport().recheck();
            // First, because later steps may wait for memory, and reclaim for these requests.
            self.device().begin_forcing();
            disk.mark_dead();
        }
        // Only existing openers use the disk from here on.
        self.device().set_disk(None);
        drop(dir);
        if !force {
            disk.delete();
        } else {
            self.device().delete_by_force(&disk);
            self.drop_disk(disk);
        }
        pr_info!("ibnbd{}: unmapped\n", self.number());
        self.opened.place().set_mapping(None);
        Ok(())
    }

    /// Claims the removal of the disk. Without `force`, this may wait a while for a partition scan, so
    /// the lock is not held.
    ///
    /// # Errors
    ///
    /// `EALREADY` if the disk is not complete yet or already unmapped; errors of
    /// [`GenDisk::begin_removal`].
    fn begin_removal(&self, force: bool) -> Result {
        let disk = match &*self.parts.lock() {
            Some(parts) => parts.disk.clone(),
            None => return Err(EALREADY),
        };
        let claimed = disk.begin_removal(force);
        if claimed.is_err() {
            // Another task may have unmapped it since.
            self.drop_disk(disk);
        }
        claimed
    }

    /// Drops a reference to the disk on a worker, as freeing the disk may sleep.
    fn drop_disk(&self, disk: Arc<GenDisk<IbnbdMq>>) {
        let jobs = self.opened.session().registry().jobs();
        // If the allocation fails, it is dropped here.
        let _ = jobs.spawn(GFP_KERNEL, move || drop(disk));
    }
}

impl Unmap for Mapping {
    fn unmap_by_force(&self) -> Result {
        self.unmap(true, || Ok(()))
    }
}

/// A new disk whose partition table has not been read.
///
/// It holds no reference to the [`Mapping`]: dropping the last one closes the device, which unmapping
/// by force waits for.
pub(crate) struct NewDisk {
    device: Arc<Device>,
    disk: Arc<GenDisk<IbnbdMq>>,
}

impl NewDisk {
    /// Reads the partition table, and announces the disk with its partitions. If the scan fails, the
    /// disk works without partitions.
    ///
    /// # Context
    ///
    /// May sleep, as long as the reads take. Unmapping the disk by force ends them.
    pub(crate) fn complete(self) {
        let Self { device, disk } = self;
        let limit = device.limit_scan();
        let scanned = disk.scan_partitions();
        // Some parsers treat a table that cannot be read as absent.
        let scanned = match device.io().timeouts().is_scan_cut() {
            true => Err(ETIMEDOUT),
            false => scanned,
        };
        drop(limit);
        // A disk that is being unmapped needs no partitions.
        if let (Err(error), false) = (scanned, disk.is_closing()) {
            kx::pr_warn_ratelimited!(
                "{}: cannot read the partition table: {} ({}); run blockdev --rereadpt /dev/{} when the server answers\n",
                disk.name(),
                convert::errno(error).as_str(),
                error.to_errno(),
                disk.name()
            );
        }
        // The first uevent of the disk was sent before its attributes existed.
        disk.announce();
        device.set_disk(Some(disk));
    }
}
