// SPDX-License-Identifier: GPL-2.0

//! Disks.
//!
//! The data of a disk lives from [`GenDisk::add`] until the block layer drops its last reference to
//! the disk. That can be later than the drop of [`GenDisk`], as an opener may keep a removed disk.
//! An open disk keeps its driver's module loaded, and unloading the module waits in the drop of
//! [`DiskOwner`] until all disks are freed.
//!
//! Lock order: the disk's open mutex is taken before any lock that a driver takes in
//! [`Operations::open`] or [`Operations::release`].
//!
//! Differs from `kernel::block::mq::gen_disk` in these respects. A disk keeps its module loaded
//! while it is open. It can be deleted, marked dead and resized, sends uevents, and scans
//! partitions when the driver says so; there, dropping it is all that a driver can do. A structure,
//! [`DiskSpec`], describes it instead of a builder. The data of the queue lives until the disk is
//! freed, also for openers that keep a deleted disk.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::{
    blk::{
        bdev::BlockDevice,
        disk_owner::DiskOwner,
        limits::Limits,
        operations::{
            disk_data::{
                DiskData,
                Head, //
            },
            OpenMode,
            Operations, //
        },
        tag_set::TagSet, //
    },
    mm::NoIo,
    sync::atomic::{
        AtomicFlag,
        Full,
        Relaxed, //
    },
    sysfs::{
        send_uevent,
        Action, //
    }, //
};
use core::{
    fmt::Write,
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
    ffi::{
        c_int,
        c_ulong, //
    },
    fmt,
    module::this_module,
    new_mutex,
    prelude::*,
    static_lock_class,
    str::NullTerminatedFormatter,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// The use of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Neither the disk nor a partition is open.
    None,
    /// The disk or one of its partitions is open.
    Open,
    /// A task is opening or closing the disk, and no other task has it open. If two openers close the disk
    /// at the same time, the block layer writes back the data of the last one after it has stopped counting
    /// it; usually the write-back comes first.
    Changing,
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

/// What a disk owns.
#[repr(C)]
struct Owned<D: Operations> {
    /// The first field, so that a pointer to it, or to its head, also points to this struct.
    data: DiskData<D>,
    /// Keeps the tag set. Dropped after the queue data, which may own objects in its requests.
    _tag_set: Arc<TagSet<D>>,
}

impl<D: Operations> Owned<D> {
    /// # Safety
    ///
    /// `head` must be that of a boxed `Self`, which is not used again.
    unsafe fn free(head: NonNull<Head>) {
        // CAST: The head is the first field of the first field of a `repr(C)` struct.
        // SAFETY: By this function's contract the head is that of a box, which `GenDisk::add` has
        // leaked, and which is not used again.
        drop(unsafe { KBox::from_raw(head.cast::<Self>().as_ptr()) });
    }
}

/// How long [`GenDisk::begin_removal`] waits for a task that opens or closes the disk, in
/// milliseconds.
const OPEN_MUTEX_MS: i64 = 5000;
/// The interval between attempts to take the open mutex, in milliseconds.
const OPEN_MUTEX_TRY_MS: i64 = 10;

/// The bit in the state of a disk that keeps `device_add_disk` from reading the partition table.
// CAST: The number of a bit of a `c_ulong`.
const SUPPRESS_SCAN: c_ulong = bindings::GD_SUPPRESS_PART_SCAN as c_ulong;
/// The bit that makes the next open read the partition table.
// CAST: As above.
const NEED_SCAN: c_ulong = bindings::GD_NEED_PART_SCAN as c_ulong;

/// A disk in use, `struct gendisk` in C.
///
/// Dropping it removes the disk, if [`GenDisk::delete`] was not called before.
///
/// # Invariants
///
/// - `disk` points to a disk that was added, and whose data is a `DiskData<D>`; this value owns a
///   reference to the disk.
/// - Only the caller that has set `deleted` deletes the disk.
/// - While `unscanned` is set, the disk is claimed, with its own address as the holder; only the
///   caller that has cleared the flag ends the claim.
pub struct GenDisk<D: Operations> {
    disk: NonNull<bindings::gendisk>,
    deleted: AtomicFlag,
    /// The partition table has not been read.
    unscanned: AtomicFlag,
    /// Held while a uevent is sent, which walks up the device tree. Deleting the disk takes the
    /// disk out of that tree.
    events: Pin<KBox<Mutex<()>>>,
    _data: core::marker::PhantomData<D>,
}

// SAFETY: A disk has no thread affinity; its data is `Send` and `Sync`.
unsafe impl<D: Operations> Send for GenDisk<D> {}
// SAFETY: The methods use only functions that may be called by several threads at once.
unsafe impl<D: Operations> Sync for GenDisk<D> {}

impl<D: Operations> GenDisk<D> {
    /// Adds a disk. The disk can be opened at once. [`Self::scan_partitions`] reads the partition
    /// table. Exclusive opens block until then, as a claim on the whole disk would make the scan fail.
    ///
    /// The disk and its partitions get extended device numbers, as does any disk without its own
    /// major number.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// `EINVAL` for inconsistent limits or a name that is too long; `EEXIST` if another disk has
    /// that name; `ENOMEM`.
    pub fn add(
        spec: DiskSpec<'_>,
        tag_set: Arc<TagSet<D>>,
        queue_data: D::QueueData,
        owner: &DiskOwner,
    ) -> Result<Self> {
        let set = tag_set.as_raw();
        let events = KBox::pin_init(new_mutex!((), "Disk::events"), GFP_KERNEL)?;
        let head = Head {
            free: Owned::<D>::free,
            closing: AtomicFlag::new(false),
            presence: owner.presence(),
        };
        let data = KBox::new(
            Owned {
                data: DiskData { head, queue_data },
                _tag_set: tag_set,
            },
            GFP_KERNEL,
        )?;
        let mut limits: bindings::queue_limits = pin_init::zeroed();
        spec.limits.apply_to(&mut limits);

        // `Unadded` frees the data on failure, otherwise `free_disk` does.
        let data = KBox::into_raw(data);
        // SAFETY: The tag set is allocated by its type invariant, and the data holds a reference to
        // it until the queue is freed.
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

        // SAFETY: The disk was just allocated, and nobody else uses it yet.
        let raw = unsafe { &mut *disk };
        raw.private_data = data.cast();
        raw.fops = Self::FOPS_REF;
        NullTerminatedFormatter::new(&mut raw.disk_name)
            .ok_or(EINVAL)?
            .write_fmt(spec.name)
            .map_err(|_| EINVAL)?;
        // SAFETY: As above.
        unsafe { bindings::set_capacity(disk, spec.capacity_sectors) };
        if spec.read_only {
            // SAFETY: As above.
            unsafe { bindings::set_disk_ro(disk, true) };
        }
        // SAFETY: The disk is allocated, and so is the block device of the whole disk. The callees
        // change the state atomically, and only compare the address of a holder; null operations are
        // allowed.
        to_result(unsafe {
            bindings::set_bit(SUPPRESS_SCAN, &raw mut (*disk).state);
            bindings::bd_prepare_to_claim((*disk).part0, disk.cast(), core::ptr::null())
        })?;
        // SAFETY: The disk has its name, operations and data; null stands for no parent and for no
        // attribute groups.
        let added = to_result(unsafe {
            bindings::device_add_disk(core::ptr::null_mut(), disk, core::ptr::null_mut())
        });
        // From here on, the claim prevents other scans.
        // SAFETY: As above.
        unsafe { bindings::clear_bit(SUPPRESS_SCAN, &raw mut (*disk).state) };
        if added.is_err() {
            // SAFETY: The disk was claimed above for this holder.
            unsafe { bindings::bd_abort_claiming((*disk).part0, disk.cast()) };
        }
        added?;

        core::mem::forget(new);
        // INVARIANT: The disk was added with this data, and not deleted. It was claimed.
        Ok(Self {
            // SAFETY: The disk is allocated, so the pointer is not null.
            disk: unsafe { NonNull::new_unchecked(disk) },
            deleted: AtomicFlag::new(false),
            unscanned: AtomicFlag::new(true),
            events,
            _data: core::marker::PhantomData,
        })
    }

    /// Reads the partition table, and adds the partitions. Only the first call has an effect.
    ///
    /// # Context
    ///
    /// *may sleep*, as long as the reads take. Tasks that open or close the disk wait as long, and so
    /// does [`Self::delete`].
    ///
    /// # Errors
    ///
    /// `EIO` if the table cannot be read; `ENXIO` if the removal of the disk was claimed; `ENOMEM`;
    /// errors of the driver's [`Operations::open`].
    pub fn scan_partitions(&self) -> Result {
        // ORDERING: The flag only selects the one caller that proceeds; it publishes nothing.
        if !self.unscanned.xchg(false, Full) {
            return Ok(());
        }
        let scanned = match self.capacity_sectors() {
            0 => Ok(()),
            _ => self.open_to_scan(),
        };
        // SAFETY: This caller has cleared `unscanned`, so by the type invariant it ends the claim.
        unsafe { self.end_claim() };
        scanned
    }

    /// Opens the disk once, like C's `disk_scan_partitions`. The open sets the block size of the page
    /// cache, and the close drops the pages.
    fn open_to_scan(&self) -> Result {
        let disk = self.disk.as_ptr();
        // SAFETY: The disk is live by the type invariant, and its state changes atomically.
        let dev = unsafe {
            bindings::set_bit(NEED_SCAN, &raw mut (*disk).state);
            (*(*disk).part0).bd_dev
        };
        let opened = BlockDevice::open_to_scan(dev);
        // An open that fails early leaves the bit set, and the next open would scan the disk.
        // SAFETY: As above.
        unsafe { bindings::clear_bit(NEED_SCAN, &raw mut (*disk).state) };
        opened.map(drop)
    }

    /// Ends the claim of [`Self::add`].
    ///
    /// # Safety
    ///
    /// The caller must have cleared `unscanned`.
    unsafe fn end_claim(&self) {
        let disk = self.disk.as_ptr();
        // SAFETY: The disk is live by the type invariant, and by this function's contract nobody else
        // ends the claim, which has this holder.
        unsafe { bindings::bd_abort_claiming((*disk).part0, disk.cast()) };
    }

    /// Calls `func`, which sends a uevent, unless the disk was deleted. The disk is not deleted
    /// before `func` has returned, and allocations in `func` do not wait for I/O, which might be
    /// I/O to this disk.
    fn unless_deleted<R>(&self, func: impl FnOnce() -> R) -> Result<R> {
        let _no_io = NoIo::enter();
        let _events = self.events.lock();
        if self.deleted.load(Relaxed) {
            return Err(ENODEV);
        }
        Ok(func())
    }

    pub(crate) fn queue(&self) -> *mut bindings::request_queue {
        // SAFETY: The disk is live by the type invariant, and its queue does not change.
        unsafe { (*self.disk.as_ptr()).queue }
    }

    fn data(&self) -> &DiskData<D> {
        // SAFETY: By the type invariant the disk was added for `D`, and is live as long as `self`.
        unsafe { DiskData::of_disk(self.disk.as_ptr()) }
    }

    /// Returns the driver's part of the disk.
    pub fn queue_data(&self) -> &D::QueueData {
        self.data().queue_data()
    }

    /// Returns the device of the disk, the parent of its attributes.
    pub fn device(&self) -> &Device {
        // SAFETY: The disk is live by the type invariant, and so is the block device of the whole
        // disk, which contains the device.
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

    /// Changes the size, in 512 byte sectors. The caller then calls [`Self::announce_size`], as
    /// this sends no uevent.
    ///
    /// # Context
    ///
    /// *any* except hard interrupts; allocates no memory.
    pub fn set_capacity(&self, sectors: u64) {
        // SAFETY: The disk is live by the type invariant, even if it was deleted.
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
            // SAFETY: The disk is live by the type invariant, and so is the block device of the
            // whole disk. It was added, and `unless_deleted` keeps it from being deleted.
            unsafe {
                let kobj = &raw mut (*(*self.disk.as_ptr()).part0).bd_device.kobj;
                send_uevent(kobj, action, variables)
            }
        })?
    }

    /// Announces the disk and each of its partitions to user space once more, after the driver has
    /// added attributes that udev rules read. The event is `add` again, because udev rules for
    /// physical volumes and array members accept no other event for a new disk. Does nothing if the
    /// disk was deleted.
    ///
    /// # Context
    ///
    /// *may sleep*, but not for I/O.
    pub fn announce(&self) {
        let add = bindings::kobject_action_KOBJ_ADD;
        let _ = self.unless_deleted(|| {
            // SAFETY: The disk is live by the type invariant, and `unless_deleted` keeps it from
            // being deleted.
            unsafe { bindings::disk_uevent(self.disk.as_ptr(), add) }
        });
    }

    /// Returns the use of the disk at the moment.
    ///
    /// # Context
    ///
    /// *any* except interrupts.
    pub fn usage(&self) -> Usage {
        let openers = self.if_unlocked(|| self.openers());
        match openers.unwrap_or_else(|| self.openers()) {
            0 if openers.is_none() => Usage::Changing,
            0 => Usage::None,
            _ => Usage::Open,
        }
    }

    /// Has the next opener of the disk or of a partition read the partition table again, as the disk
    /// may have other contents.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn read_partitions_at_next_open(&self) {
        // SAFETY: The disk is live by the type invariant.
        unsafe { ours::kx_disk_needs_part_scan(self.disk.as_ptr()) };
    }

    /// Returns the number of openers of the disk and its partitions.
    pub(super) fn openers(&self) -> u32 {
        // SAFETY: The disk is live by the type invariant.
        unsafe { ours::disk_openers(self.disk.as_ptr()) }
    }

    /// Claims the removal of the disk for the caller. From now on, opening the disk fails.
    ///
    /// # Context
    ///
    /// *may sleep*, for [`OPEN_MUTEX_MS`] at most; with `force`, *any*.
    ///
    /// # Errors
    ///
    /// - `EALREADY` if it was claimed before.
    /// - `EBUSY` if the disk is open, or if a task opens or closes it, or reads its partition table,
    ///   for longer than that; never if `force` is set.
    pub fn begin_removal(&self, force: bool) -> Result {
        if force {
            // Without the open mutex: its holder may wait for a request that only this removal ends.
            // An open that has passed the flag becomes one of an existing opener.
            return self.claim_removal();
        }
        for _ in 0..=OPEN_MUTEX_MS / OPEN_MUTEX_TRY_MS {
            if self.is_closing() {
                return Err(EALREADY);
            }
            if let Some(result) = self.if_unlocked(|| match self.openers() {
                0 => self.claim_removal(),
                _ => Err(EBUSY),
            }) {
                return result;
            }
            fsleep(Delta::from_millis(OPEN_MUTEX_TRY_MS));
        }
        Err(EBUSY)
    }

    /// Calls `func` under the open mutex; `None` if another task has that.
    pub(super) fn if_unlocked<T>(&self, func: impl FnOnce() -> T) -> Option<T> {
        let disk = self.disk.as_ptr();
        // SAFETY: The disk is live by the type invariant.
        if unsafe { bindings::mutex_trylock(&raw mut (*disk).open_mutex) } == 0 {
            return None;
        }
        let result = func();
        // SAFETY: This task has locked the mutex above.
        unsafe { bindings::mutex_unlock(&raw mut (*disk).open_mutex) };
        Some(result)
    }

    fn claim_removal(&self) -> Result {
        match self.data().head.closing.xchg(true, Relaxed) {
            true => Err(EALREADY),
            false => Ok(()),
        }
    }

    /// Undoes [`Self::begin_removal`], so that the disk can be opened again.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn cancel_removal(&self) {
        // ORDERING: An open that still sees the old value fails, like an earlier one.
        self.data().head.closing.store(false, Relaxed);
    }

    /// Returns whether the removal of the disk was claimed.
    pub fn is_closing(&self) -> bool {
        self.data().head.closing.load(Relaxed)
    }

    /// Declares the disk dead: new I/O fails at once, and the kernel notifies file systems on it.
    ///
    /// # Context
    ///
    /// *may sleep*, but not for I/O.
    pub fn mark_dead(&self) {
        // SAFETY: The disk is live by the type invariant.
        unsafe { bindings::blk_mark_disk_dead(self.disk.as_ptr()) };
    }

    /// Removes the disk: no request reaches the driver after this. Only the first call has an
    /// effect.
    ///
    /// Unless the disk was declared dead, the kernel writes dirty data back first. Then this waits
    /// for the requests in flight and queued, which the driver must end. Existing openers keep a
    /// dead disk; all I/O fails.
    ///
    /// # Context
    ///
    /// *may sleep*, as long as requests take. Must not be called by a function of the disk's own
    /// attributes, for which this waits.
    pub fn delete(&self) {
        // Taking the lock waits for tasks that still act on the old value.
        let events = self.events.lock();
        // ORDERING: The flag only selects the one caller that proceeds; it publishes nothing.
        if self.deleted.xchg(true, Full) {
            return;
        }
        drop(events);
        // SAFETY: By the type invariant the disk was added. This caller has set `deleted`, so by
        // the type invariant nobody else deletes the disk.
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
        // SAFETY: By this function's contract. The block layer no longer counts the opener that
        // closes the disk.
        let (data, last) = unsafe { (DiskData::<D>::of_disk(disk), ours::disk_openers(disk) == 0) };
        D::release(&data.queue_data, last);
    }
}

impl<D: Operations> Drop for GenDisk<D> {
    fn drop(&mut self) {
        self.delete();
        if self.unscanned.xchg(false, Full) {
            // SAFETY: The flag was cleared just now.
            unsafe { self.end_claim() };
        }
        // SAFETY: By the type invariant this value owns a reference, which ends here.
        unsafe { bindings::put_disk(self.disk.as_ptr()) };
    }
}

/// Sectors per track and tracks per cylinder, for disks that have no geometry.
const GEOMETRY: (u8, u8) = (32, 64);

/// Reports a plausible number of cylinders, heads and sectors to programs that still query them,
/// such as `hdparm`.
///
/// # Safety
///
/// `disk` must be a live disk, and `geometry` valid and exclusively the caller's.
unsafe extern "C" fn geometry(
    disk: *mut bindings::gendisk,
    geometry: *mut bindings::hd_geometry,
) -> c_int {
    // CAST: The kernel crate's bindings only declare this type.
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

/// Called by the block layer to free the data of an added disk, when the last reference to the disk
/// is dropped.
///
/// This function is not generic, so that it is not part of the driver's module, which may be
/// unloaded as soon as the presence is dropped.
///
/// # Safety
///
/// `disk` must be a disk created by [`GenDisk::add`], and is not used again.
unsafe extern "C" fn free_disk(disk: *mut bindings::gendisk) {
    // CAST: The head is the first field of the data, which is the first of what the disk owns; both are
    // `repr(C)`.
    // SAFETY: By this function's contract `GenDisk::add` has set `private_data`, which does not
    // change.
    let head = unsafe { NonNull::new_unchecked((*disk).private_data.cast::<Head>()) };
    // SAFETY: The data is freed only below.
    let (free, presence) = unsafe { ((*head.as_ptr()).free, (*head.as_ptr()).presence.clone()) };
    // SAFETY: `GenDisk::add` has set `free` to the function for this data, which by this function's
    // contract nobody uses any more.
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
    data: *mut Owned<D>,
}

impl<D: Operations> Drop for Unadded<D> {
    fn drop(&mut self) {
        // When `device_add_disk` fails late, the disk was visible in sysfs for a moment. A task
        // that found it there may still hold a reference, and dropping the last reference uses the
        // data. Tasks take no new references, and keep none for longer than one call.
        let last = (0..Self::CHECKS).any(|_| self.has_last_reference());
        // SAFETY: By the type invariant this value owns a reference; null is allowed. If the
        // reference is the last one, the queue is freed when this returns. As the disk was not
        // added, this does not free the data.
        unsafe { bindings::put_disk(self.disk) };
        if !last {
            // Leaking the disk, which keeps the driver loaded, is better than a use after free.
            pr_err!("bug: a disk that could not be added is still referenced, so its memory is leaked\n");
            return;
        }
        // SAFETY: By the type invariant the data is a leaked box, and without the disk nobody uses
        // it.
        drop(unsafe { KBox::from_raw(self.data) });
    }
}

impl<D: Operations> Unadded<D> {
    /// Number of checks for other references to the disk, at least a millisecond apart.
    const CHECKS: u32 = 60_000;

    /// Returns whether nobody else holds a reference; otherwise sleeps for a millisecond first.
    fn has_last_reference(&self) -> bool {
        // SAFETY: The disk is allocated by the type invariant, unless it is null.
        let last = self.disk.is_null() || unsafe { ours::kx_disk_references(self.disk) } <= 1;
        if !last {
            fsleep(Delta::from_millis(1));
        }
        last
    }
}
