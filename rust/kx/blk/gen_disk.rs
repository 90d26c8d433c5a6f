// SPDX-License-Identifier: GPL-2.0

//! Disks.
//!
//! The data of a disk lives from [`GenDisk::add`] until the block layer has let go
//! of the disk, which can be later than the drop of [`GenDisk`]: an opener may keep
//! a removed disk. An open disk keeps its driver's module loaded; the rest of
//! the time between is covered by [`DiskOwner`], for which the module waits.
//!
//! Lock order: the disk's open mutex comes before anything that a driver takes
//! in [`Operations::open`] or [`Operations::release`].
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::{
    blk::{
        limits::Limits,
        operations::Operations,
        tag_set::TagSet, //
    },
    mm::NoIo,
    sysfs::{
        send_uevent,
        Action, //
    }, //
};
use core::{
    fmt::Write,
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use ibtrs_bindings as ours;
use kernel::{
    bindings,
    device::Device,
    error::{
        from_err_ptr,
        from_result,
        to_result, //
    },
    ffi::c_int,
    fmt,
    module::this_module,
    new_mutex,
    prelude::*,
    static_lock_class,
    str::NullTerminatedFormatter,
    sync::{
        atomic::{
            AtomicFlag,
            Full,
            Relaxed, //
        },
        Arc,
        Completion,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// How a disk is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode {
    /// For writing, and perhaps for reading.
    pub write: bool,
    /// By an exclusive opener.
    pub exclusive: bool,
}

/// The owner of a module's disks; the module keeps it as long as it has disks.
///
/// Dropping it waits until the last disk is freed, so a module that drops it on unload is not
/// called afterwards.
pub struct DiskOwner {
    /// Each disk has a reference, too; dropping the last one completes `drained`.
    presence: ManuallyDrop<Arc<Presence>>,
    drained: Arc<Completion>,
}

struct Presence(Arc<Completion>);

impl DiskOwner {
    /// Creates an owner without disks.
    ///
    /// # Context
    ///
    /// *may sleep*.
    pub fn new() -> Result<Self> {
        let drained = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        let presence = Arc::new(Presence(drained.clone()), GFP_KERNEL)?;
        Ok(Self {
            presence: ManuallyDrop::new(presence),
            drained,
        })
    }
}

impl Drop for DiskOwner {
    fn drop(&mut self) {
        // SAFETY: Not used again.
        unsafe { ManuallyDrop::drop(&mut self.presence) };
        self.drained.wait_for_completion();
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.complete_all();
    }
}

/// The parameters of a disk.
pub struct DiskSpec<'a> {
    /// Its name below `/dev`, of at most 31 bytes.
    pub name: fmt::Arguments<'a>,
    /// Its size in 512 byte sectors.
    pub capacity_sectors: u64,
    /// Its limits and features.
    pub limits: Limits,
    /// Whether it cannot be written to.
    pub read_only: bool,
}

/// The part of a disk's data that does not depend on the driver.
pub(crate) struct Head {
    /// Frees the whole [`DiskData`].
    free: unsafe fn(NonNull<Head>),
    /// Nobody may open the disk any more. Set under the open mutex.
    closing: AtomicFlag,
    presence: Arc<Presence>,
}

/// The object that `private_data` of a disk and `queuedata` of its queue point to.
#[repr(C)]
pub(crate) struct DiskData<D: Operations> {
    /// First, so that a pointer to it is also one to the whole.
    head: Head,
    queue_data: D::QueueData,
    /// Dropped after the queue data, which may own objects in its requests.
    tag_set: Arc<TagSet<D>>,
}

impl<D: Operations> DiskData<D> {
    /// # Safety
    ///
    /// `queue` must be the queue of a disk created by [`GenDisk::add`] for `D`, and must be live as
    /// long as the result is used.
    #[inline]
    pub(crate) unsafe fn of_queue<'a>(queue: *mut bindings::request_queue) -> &'a Self {
        // SAFETY: `GenDisk::add` has set `queuedata` to a `DiskData`, which is freed
        // when the disk is.
        unsafe { &*(*queue).queuedata.cast() }
    }

    /// # Safety
    ///
    /// As [`Self::of_queue`].
    unsafe fn of_disk<'a>(disk: *mut bindings::gendisk) -> &'a Self {
        // SAFETY: `GenDisk::add` has set `private_data` to a `DiskData`, which is
        // freed when the disk is.
        unsafe { &*(*disk).private_data.cast() }
    }

    #[inline]
    pub(crate) fn queue_data(&self) -> &D::QueueData {
        &self.queue_data
    }

    /// # Safety
    ///
    /// `head` must be that of a boxed `Self`, which is not used again.
    unsafe fn free(head: NonNull<Head>) {
        // CAST: The head is the first field.
        // SAFETY: It was leaked by `GenDisk::add`.
        drop(unsafe { KBox::from_raw(head.cast::<Self>().as_ptr()) });
    }
}

/// A disk in use, `struct gendisk` in C.
///
/// Dropping it removes the disk, if [`GenDisk::delete`] was not called before.
///
/// # Invariants
///
/// - The pointer is to a disk that was added, and whose data is a `DiskData<D>`; this value owns a
///   reference to the disk.
/// - The disk has been deleted if and only if `deleted` is set.
pub struct GenDisk<D: Operations> {
    disk: NonNull<bindings::gendisk>,
    deleted: AtomicFlag,
    /// Held while an event is sent to user space, which walks up the device tree that the disk
    /// leaves when it is deleted.
    events: Pin<KBox<Mutex<()>>>,
    _data: core::marker::PhantomData<D>,
}

// SAFETY: A disk has no thread affinity; its data is `Send` and `Sync`.
unsafe impl<D: Operations> Send for GenDisk<D> {}
// SAFETY: The methods use only functions that may be called by several threads at once.
unsafe impl<D: Operations> Sync for GenDisk<D> {}

impl<D: Operations> GenDisk<D> {
    /// Adds a disk, which is in use at once: its partition table is read before this function
    /// returns.
    ///
    /// The disk and its partitions get extended numbers, those of disks without a major number of
    /// their own.
    ///
    /// # Context
    ///
    /// *may sleep*, as long as reading takes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for inconsistent limits or a name that is too long; `EEXIST` if a disk has that
    /// name; `ENOMEM`.
    pub fn add(
        spec: DiskSpec<'_>,
        tag_set: Arc<TagSet<D>>,
        queue_data: D::QueueData,
        owner: &DiskOwner,
    ) -> Result<Self> {
        let set = tag_set.as_raw();
        let events = KBox::pin_init(new_mutex!((), "Disk::events"), GFP_KERNEL)?;
        let head = Head {
            free: DiskData::<D>::free,
            closing: AtomicFlag::new(false),
            presence: (*owner.presence).clone(),
        };
        let data = KBox::new(
            DiskData {
                head,
                queue_data,
                tag_set,
            },
            GFP_KERNEL,
        )?;
        let mut limits: bindings::queue_limits = pin_init::zeroed();
        spec.limits.apply_to(&mut limits);

        // Freed by `Unadded` on failure, otherwise by the block layer.
        let data = KBox::into_raw(data);
        // SAFETY: The tag set is allocated, and kept by the data, which outlives the queue.
        let disk = from_err_ptr(unsafe {
            bindings::__blk_mq_alloc_disk(
                set,
                &mut limits,
                data.cast(),
                static_lock_class!().as_ptr(),
            )
        });
        let new = Unadded::<D> {
            disk: disk.as_ref().map_or(core::ptr::null_mut(), |d| *d),
            data,
        };
        let disk = disk?;

        // SAFETY: The disk is allocated, and nobody else knows of it yet.
        let raw = unsafe { &mut *disk };
        raw.private_data = data.cast();
        raw.fops = Self::FOPS_REF;
        NullTerminatedFormatter::new(&mut raw.disk_name)
            .ok_or(EINVAL)?
            .write_fmt(spec.name)
            .map_err(|_| EINVAL)?;
        // SAFETY: Allocated and unknown to others.
        unsafe { bindings::set_capacity(disk, spec.capacity_sectors) };
        if spec.read_only {
            // SAFETY: Allocated and unknown to others.
            unsafe { bindings::set_disk_ro(disk, true) };
        }
        // SAFETY: The disk is complete; it has no parent and no attribute groups.
        to_result(unsafe {
            bindings::device_add_disk(core::ptr::null_mut(), disk, core::ptr::null_mut())
        })?;

        core::mem::forget(new);
        // INVARIANT: The disk was added with this data, and not deleted.
        Ok(Self {
            // SAFETY: An allocated disk is not at null.
            disk: unsafe { NonNull::new_unchecked(disk) },
            deleted: AtomicFlag::new(false),
            events,
            _data: core::marker::PhantomData,
        })
    }

    /// Calls `func`, which sends an event to user space, unless the disk was deleted. Meanwhile the
    /// disk is not deleted, and allocations do not wait for I/O, which might be to this disk.
    fn unless_deleted<R>(&self, func: impl FnOnce() -> R) -> Result<R> {
        let _no_io = NoIo::enter();
        let _events = self.events.lock();
        if self.deleted.load(Relaxed) {
            return Err(ENODEV);
        }
        Ok(func())
    }

    pub(crate) fn queue(&self) -> *mut bindings::request_queue {
        // SAFETY: The disk is live by the type invariant, its queue does not change.
        unsafe { (*self.disk.as_ptr()).queue }
    }

    fn data(&self) -> &DiskData<D> {
        // SAFETY: The disk is live and has such data by the type invariant.
        unsafe { DiskData::of_disk(self.disk.as_ptr()) }
    }

    /// Returns the driver's part of the disk.
    pub fn queue_data(&self) -> &D::QueueData {
        self.data().queue_data()
    }

    /// Returns the tag set of the disk.
    pub fn tag_set(&self) -> &Arc<TagSet<D>> {
        &self.data().tag_set
    }

    /// Returns the device of the disk, the parent of its attributes.
    pub fn device(&self) -> &Device {
        // SAFETY: The disk is live by the type invariant, and with it its first
        // block device, whose device it is.
        unsafe { Device::from_raw(&raw mut (*(*self.disk.as_ptr()).part0).bd_device) }
    }

    /// Returns the name of the disk.
    pub fn name(&self) -> &CStr {
        self.device().name()
    }

    /// Returns the size in 512 byte sectors.
    pub fn capacity_sectors(&self) -> u64 {
        // SAFETY: The disk is live by the type invariant.
        unsafe { ours::get_capacity(self.disk.as_ptr()) }
    }

    /// Changes the size, in 512 byte sectors. [`Self::announce_size`] then tells user space.
    ///
    /// # Context
    ///
    /// *any* but hardirq: this sends no uevent and allocates no memory.
    pub fn set_capacity(&self, sectors: u64) {
        // SAFETY: The disk is live by the type invariant; if it was deleted, its size means
        // nothing.
        unsafe { bindings::set_capacity(self.disk.as_ptr(), sectors) };
    }

    /// Tells user space that the size has changed, with the event of C's
    /// `set_capacity_and_notify()`.
    ///
    /// # Context
    ///
    /// *may sleep*, but not for I/O.
    ///
    /// # Errors
    ///
    /// As [`Self::uevent`].
    pub fn announce_size(&self) -> Result {
        self.uevent(Action::Change, &[c"RESIZE=1"])
    }

    /// Sends an event of the disk to user space, with variables (`KEY=value`).
    ///
    /// # Context
    ///
    /// *may sleep*, but not for I/O.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the disk was deleted; `ENOMEM`, also for too many variables.
    pub fn uevent(&self, action: Action, variables: &[&CStr]) -> Result {
        self.unless_deleted(|| {
            // SAFETY: The disk is live by the type invariant, and with it its first block
            // device, which was added and is not being deleted.
            unsafe {
                let kobj = &raw mut (*(*self.disk.as_ptr()).part0).bd_device.kobj;
                send_uevent(kobj, action, variables)
            }
        })?
    }

    /// Announces the disk and each of its partitions to user space once more, after a driver has
    /// added the attributes that udev rules look at. The event is `add` again: rules for physical
    /// volumes and members of arrays accept no other for a new disk. Does nothing if the disk was
    /// deleted.
    ///
    /// # Context
    ///
    /// *may sleep*, but not for I/O.
    pub fn announce(&self) {
        let add = bindings::kobject_action_KOBJ_ADD;
        let _ = self.unless_deleted(|| {
            // SAFETY: The disk is live by the type invariant, and not being deleted.
            unsafe { bindings::disk_uevent(self.disk.as_ptr(), add) }
        });
    }

    /// Returns the number of openers of the disk and its partitions.
    pub fn openers(&self) -> u32 {
        // SAFETY: The disk is live by the type invariant.
        unsafe { ours::disk_openers(self.disk.as_ptr()) }
    }

    /// Claims the removal of the disk for the caller: from now on it cannot be
    /// opened.
    ///
    /// # Context
    ///
    /// *may sleep*; takes the open mutex.
    ///
    /// # Errors
    ///
    /// - `EALREADY` if it was claimed before.
    /// - `EBUSY` if the disk is open, unless `force` is set.
    pub fn begin_removal(&self, force: bool) -> Result {
        let disk = self.disk.as_ptr();
        // SAFETY: The disk is live by the type invariant.
        unsafe { bindings::mutex_lock(&raw mut (*disk).open_mutex) };
        let result = if self.openers() > 0 && !force {
            Err(EBUSY)
        } else if self.data().head.closing.xchg(true, Relaxed) {
            Err(EALREADY)
        } else {
            Ok(())
        };
        // SAFETY: Locked above.
        unsafe { bindings::mutex_unlock(&raw mut (*disk).open_mutex) };
        result
    }

    /// Undoes [`Self::begin_removal`]; the disk can be opened again.
    pub fn cancel_removal(&self) {
        // ORDERING: An open that still sees the old value fails, as if it had come
        // earlier.
        self.data().head.closing.store(false, Relaxed);
    }

    /// Returns whether the removal of the disk was claimed.
    pub fn is_closing(&self) -> bool {
        self.data().head.closing.load(Relaxed)
    }

    /// Declares the disk dead: new I/O fails at once, and file systems on it are notified.
    ///
    /// # Context
    ///
    /// *may sleep*, but not for I/O.
    pub fn mark_dead(&self) {
        // SAFETY: The disk is live by the type invariant.
        unsafe { bindings::blk_mark_disk_dead(self.disk.as_ptr()) };
    }

    /// Removes the disk: no more I/O after this. Only the first call has an effect.
    ///
    /// Unless the disk was declared dead, dirty data is written back first. Then this waits for the
    /// requests in flight and queued, which the driver must end. Existing openers keep a dead disk;
    /// all I/O fails.
    ///
    /// # Context
    ///
    /// *may sleep*, as long as requests take. Not in the disk's own attributes.
    pub fn delete(&self) {
        // Taking the lock waits for tasks that still act on the old value.
        let events = self.events.lock();
        // ORDERING: Only the first caller may go on; it publishes nothing.
        if self.deleted.xchg(true, Full) {
            return;
        }
        drop(events);
        // INVARIANT: Deleted and marked as such.
        // SAFETY: The disk was added, and not deleted before, by the type invariant.
        unsafe { bindings::del_gendisk(self.disk.as_ptr()) };
    }

    const FOPS: bindings::block_device_operations = bindings::block_device_operations {
        owner: this_module::<D::OwnerModule>().as_ptr(),
        open: Some(Self::fop_open),
        release: if D::HAS_RELEASE {
            Some(Self::fop_release)
        } else {
            None
        },
        getgeo: Some(geometry),
        free_disk: Some(free_disk),
        ..pin_init::zeroed()
    };
    const FOPS_REF: &'static bindings::block_device_operations = &Self::FOPS;

    /// # Safety
    ///
    /// `disk` must be a live disk of `D`, with its open mutex held.
    unsafe extern "C" fn fop_open(
        disk: *mut bindings::gendisk,
        mode: bindings::blk_mode_t,
    ) -> c_int {
        // SAFETY: By this function's contract.
        let data = unsafe { DiskData::<D>::of_disk(disk) };
        from_result(|| {
            if data.head.closing.load(Relaxed) {
                return Err(ENXIO);
            }
            if D::HAS_OPEN {
                let mode = OpenMode {
                    write: mode & ours::BLK_OPEN_WRITE != 0,
                    exclusive: mode & ours::BLK_OPEN_EXCL != 0,
                };
                D::open(&data.queue_data, mode)?;
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As [`Self::fop_open`].
    unsafe extern "C" fn fop_release(disk: *mut bindings::gendisk) {
        // SAFETY: By this function's contract. The task that closes the disk is no longer counted.
        let (data, last) = unsafe { (DiskData::<D>::of_disk(disk), ours::disk_openers(disk) == 0) };
        D::release(&data.queue_data, last);
    }
}

impl<D: Operations> Drop for GenDisk<D> {
    fn drop(&mut self) {
        self.delete();
        // SAFETY: The reference is ours by the type invariant, and not used again.
        unsafe { bindings::put_disk(self.disk.as_ptr()) };
    }
}

/// Sectors per track and tracks per cylinder, for disks that have no geometry.
const GEOMETRY: (u8, u8) = (32, 64);

/// Reports a plausible number of cylinders, heads and sectors to programs that still ask for them,
/// such as `hdparm`.
///
/// # Safety
///
/// `disk` must be a live disk, and `geometry` valid and exclusively the caller's.
unsafe extern "C" fn geometry(
    disk: *mut bindings::gendisk,
    geometry: *mut bindings::hd_geometry,
) -> c_int {
    // CAST: The kernel crate's bindings have this type by name only.
    // SAFETY: By this function's contract.
    let geometry = unsafe { &mut *geometry.cast::<ours::hd_geometry>() };
    // SAFETY: As above.
    let sectors = unsafe { ours::get_capacity(disk) };
    (geometry.sectors, geometry.heads) = GEOMETRY;
    let cylinders = sectors / (u64::from(GEOMETRY.0) * u64::from(GEOMETRY.1));
    // Large disks have more cylinders than fit; no program relies on the number.
    geometry.cylinders = u16::try_from(cylinders).unwrap_or(u16::MAX);
    0
}

/// Frees the data of an added disk, when the last reference to the disk is dropped.
///
/// Not generic, so that it is not part of the driver's module, which may be unloaded as soon as the
/// presence is dropped.
///
/// # Safety
///
/// `disk` must be a disk created by [`GenDisk::add`], and is not used again.
unsafe extern "C" fn free_disk(disk: *mut bindings::gendisk) {
    // CAST: The data starts with its head.
    // SAFETY: `GenDisk::add` has set `private_data`, which stays.
    let head = unsafe { NonNull::new_unchecked((*disk).private_data.cast::<Head>()) };
    // SAFETY: The data is freed only below.
    let (free, presence) = unsafe { ((*head.as_ptr()).free, (*head.as_ptr()).presence.clone()) };
    // SAFETY: `free` belongs to this data, which nobody uses any more.
    unsafe { free(head) };
    drop(presence);
}

/// Undoes the creation of a disk that was not added.
///
/// # Invariants
///
/// `disk` is null or an allocated disk, `data` a leaked box for it.
struct Unadded<D: Operations> {
    disk: *mut bindings::gendisk,
    data: *mut DiskData<D>,
}

impl<D: Operations> Drop for Unadded<D> {
    fn drop(&mut self) {
        // When `device_add_disk` fails late, the disk was visible in sysfs for a moment. A task
        // that found it there may still have a reference, and dropping the last reference uses the
        // data. No new references are taken, and none is kept for longer than a call takes.
        let looks = (0..Self::LOOKS).find(|_| self.is_ours_alone());
        // SAFETY: The reference is ours by the type invariant; null is allowed. If the reference is
        // the last, the queue is gone when this returns. As the disk was not added, this does not
        // free the data.
        unsafe { bindings::put_disk(self.disk) };
        if looks.is_none() {
            // Leaking the disk, which keeps the driver loaded, is better than a use after free.
            pr_err!("bug: a disk that could not be added is still referenced, so its memory is leaked\n");
            return;
        }
        // SAFETY: Leaked by the type invariant, and unused without a disk.
        drop(unsafe { KBox::from_raw(self.data) });
    }
}

impl<D: Operations> Unadded<D> {
    /// Number of checks for other references to the disk, at least a millisecond apart.
    const LOOKS: u32 = 60_000;

    /// Returns whether there is no other reference; sleeps for a millisecond if there is one.
    fn is_ours_alone(&self) -> bool {
        // SAFETY: The disk is allocated by the type invariant, unless it is null.
        let alone = self.disk.is_null() || unsafe { ours::kx_disk_references(self.disk) } <= 1;
        if !alone {
            fsleep(Delta::from_millis(1));
        }
        alone
    }
}
