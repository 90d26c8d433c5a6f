// SPDX-License-Identifier: GPL-2.0

//! Block devices of other drivers: finding one by its path, opening it, and its properties.
//!
//! [`kernel::block`] has no counterpart: it neither opens the devices of other drivers nor reads
//! their limits.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::blk::{BlockDevice, Holder, OpenSpec};
//!
//! static HOLDER: Holder = Holder::new();
//!
//! // A device below a directory, which no symbolic link leaves.
//! let dev = BlockDevice::find(c"/dev/vg0", c"data")?;
//! let device = BlockDevice::open(dev, OpenSpec { write: true, holder: Some(&HOLDER) })?;
//! let sectors = device.capacity_sectors();
//! device.flush()?;
//! # let _ = sectors;
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::{
    blk::limits::Limits,
    fs::{
        self,
        InitFs, //
    },
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use core::{
    mem::MaybeUninit,
    ptr::NonNull, //
};
use ibtrs_bindings as ours;
use kernel::{
    bindings,
    device::Device,
    error::{
        from_err_ptr,
        to_result, //
    },
    fmt,
    prelude::*,
    str::CString,
    task::might_sleep, //
};

/// The identity of a claim on a block device: openers with the same holder share the device, and
/// all other exclusive openers are refused.
///
/// The address identifies the holder, so a holder belongs in a `static`.
pub struct Holder(u8);

impl Holder {
    /// Creates a holder.
    pub const fn new() -> Self {
        Self(1)
    }

    fn as_ptr(&'static self) -> *mut c_void {
        core::ptr::from_ref(&self.0).cast_mut().cast()
    }
}

impl Default for Holder {
    fn default() -> Self {
        Self::new()
    }
}

/// How to open a block device.
#[derive(Clone, Copy)]
pub struct OpenSpec {
    /// Whether to open the device for writing, too.
    pub write: bool,
    /// The holder of the claim; `None` claims nothing.
    pub holder: Option<&'static Holder>,
}

/// The unique identifier that the manufacturer gave to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl UniqueId {
    const MAX: usize = 16;

    /// Returns the identifier, of at most 16 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// An open block device, whole disk or partition; dropping it closes the device.
///
/// # Invariants
///
/// `file` is a file that `bdev_file_open_by_dev` returned, and this value owns a reference to it;
/// `bdev` is its device. Until it is closed, the file holds a reference to the `struct device` in
/// `bdev` (`blkdev_get_no_open()`), and only the release function of that device drops the disk.
/// Therefore the device, its disk, the queue of the disk and `part0`, the device of the whole disk,
/// are live. Their pointers to each other were set before anyone could open the device, and do not
/// change.
pub struct BlockDevice {
    bdev: NonNull<bindings::block_device>,
    file: NonNull<bindings::file>,
    blocking: Blocking,
}

/// Caches whether the driver may sleep in `queue_rq`.
///
/// The answer is a flag of the tag set (`BLK_MQ_F_BLOCKING`), which never changes. It cannot be read
/// while the queue is frozen, and a queue may get its tag set late: a device-mapper device exists
/// before its table is loaded. The answer is therefore cached together with the address of the tag set,
/// which is null if the driver has none. A tag set is freed only after its disk, so a new tag set at
/// the same address never belongs to a disk that still accepts requests.
struct Blocking(Atomic<usize>);

impl Blocking {
    /// The driver does not sleep. Tag sets are aligned, so the two low bits of their addresses are
    /// free. If neither is set, the answer is unknown.
    const NEVER: usize = 1;
    /// The driver may sleep.
    const MAY: usize = 2;

    const fn unknown() -> Self {
        Self(Atomic::new(0))
    }

    /// Returns whether the driver may sleep, if the answer is cached for the tag set at `address`.
    #[inline]
    fn get(&self, address: usize) -> Option<bool> {
        // ORDERING: The word is self-contained; no other data is published with it.
        match self.0.load(Relaxed) ^ address {
            Self::NEVER => Some(false),
            Self::MAY => Some(true),
            _ => None,
        }
    }

    /// Caches the answer for the tag set at `address`.
    fn set(&self, address: usize, may_block: bool) {
        let answer = if may_block { Self::MAY } else { Self::NEVER };
        self.0.store(address | answer, Relaxed);
    }
}

const _: () = assert!(align_of::<bindings::blk_mq_tag_set>() > Blocking::NEVER | Blocking::MAY);

// SAFETY: An open device has no thread affinity.
unsafe impl Send for BlockDevice {}
// SAFETY: The methods only read fields that any opener may read, or call functions that may be
// called concurrently.
unsafe impl Sync for BlockDevice {}

impl BlockDevice {
    /// Returns the number of the device at `path` below the directory `root`, for [`Self::open`].
    /// Symbolic links must not lead out of `root`, unless `root` is `/`.
    ///
    /// `root` itself is looked up from the root directory of the first process.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// - `EXDEV` for a `..` that leads out of the root, and for a link with an absolute path,
    ///   unless the root is `/`.
    /// - `ENOENT` and other errors of a path look-up, `ELOOP` for a link of procfs, `EAGAIN` if
    ///   names changed during each of many look-ups.
    /// - `ENOTBLK` if the file is not a block device, `EACCES` if its file system does not allow
    ///   any, `ENODEV` if its number is zero.
    pub fn find(root: &CStr, path: &CStr) -> Result<u32> {
        /// Maximum number of look-ups while names keep changing.
        const TRIES: u32 = 100;

        might_sleep();
        let mut flags = ours::LOOKUP_FOLLOW | ours::LOOKUP_NO_MAGICLINKS;
        if root.to_bytes() != b"/" {
            flags |= ours::LOOKUP_BENEATH;
        }
        let _fs = InitFs::enter();
        let root = Path::lookup(root, ours::LOOKUP_FOLLOW | ours::LOOKUP_DIRECTORY)?;
        for _ in 1..TRIES {
            match root.lookup_below(path, flags) {
                // Something was renamed or mounted while the look-up followed a `..`.
                Err(error) if error == EAGAIN => {}
                found => return found?.block_device_number(),
            }
        }
        Err(EAGAIN)
    }

    /// Opens the device with the number `dev`, as returned by [`Self::find`] and [`Self::dev`].
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// - `EACCES` if the device is read-only and `write` is set.
    /// - `EBUSY` if another holder has claimed the device.
    /// - `ENXIO` if there is no such device.
    /// - Other errors of the device's driver.
    pub fn open(dev: u32, spec: OpenSpec) -> Result<Self> {
        let mut mode = ours::BLK_OPEN_READ;
        if spec.write {
            mode |= ours::BLK_OPEN_WRITE;
        }
        let this = Self::open_as(dev, mode, spec.holder)?;
        if spec.write && this.is_read_only() {
            return Err(EACCES);
        }
        Ok(this)
    }

    /// Opens a disk with `GD_NEED_PART_SCAN` set, so that the kernel reads the partition table.
    ///
    /// # Context
    ///
    /// *may sleep*, as long as the reads take.
    ///
    /// # Errors
    ///
    /// Errors of [`Self::open`] and of the scan.
    pub(super) fn open_to_scan(dev: u32) -> Result<Self> {
        Self::open_as(dev, ours::BLK_OPEN_READ | ours::BLK_OPEN_STRICT_SCAN, None)
    }

    fn open_as(
        dev: u32,
        mode: bindings::blk_mode_t,
        holder: Option<&'static Holder>,
    ) -> Result<Self> {
        might_sleep();
        let holder = holder.map_or(core::ptr::null_mut(), Holder::as_ptr);
        // SAFETY: This function may sleep, and the callee accepts any device number. The callee
        // only compares the address of a holder, and null operations are allowed.
        let file = from_err_ptr(unsafe {
            bindings::bdev_file_open_by_dev(dev, mode, holder, core::ptr::null())
        })?;
        // SAFETY: `file` is the file of an open block device, as it is not an error pointer.
        let bdev = unsafe { bindings::file_bdev(file) };
        // INVARIANT: `bdev_file_open_by_dev` returned the file; the value takes over its reference.
        Ok(Self {
            bdev: NonNull::new(bdev).ok_or(ENXIO)?,
            file: NonNull::new(file).ok_or(ENXIO)?,
            blocking: Blocking::unknown(),
        })
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::block_device {
        self.bdev.as_ptr()
    }

    fn raw_limits(&self) -> *const bindings::queue_limits {
        // SAFETY: The device is open by the type invariant, so its disk is live, and so is its
        // queue, which the disk never changes.
        unsafe { &raw const (*(*self.as_raw()).bd_queue).limits }
    }

    /// Returns whether the device is read-only at present.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        // SAFETY: The device is open by the type invariant.
        unsafe { ours::bdev_read_only(self.as_raw()) }
    }

    /// Returns the size in 512 byte sectors at present.
    #[inline]
    pub fn capacity_sectors(&self) -> u64 {
        // SAFETY: The device is open by the type invariant.
        unsafe { ours::bdev_nr_sectors(self.as_raw()) }
    }

    /// Returns whether submitting an I/O to the device currently cannot block; `throttled` says
    /// whether writeback throttling may apply to the I/O.
    #[inline]
    pub(super) fn waits_for_nothing(&self, throttled: bool) -> bool {
        let limits = self.raw_limits();
        // SAFETY: As for the fields in `limits`.
        let features = unsafe { (&raw const (*limits).features).read_volatile() };
        features & ours::BLK_FEAT_NOWAIT != 0
            && !self.may_block()
            && !(throttled && self.has_policies())
    }

    /// Returns whether the driver may sleep in `queue_rq`; true if the answer is not available now.
    #[inline]
    fn may_block(&self) -> bool {
        // SAFETY: The device is open by the type invariant, so its queue is live. The pointer is only
        // compared, and read once, as the queue may get its tag set concurrently.
        let set = unsafe { (&raw const (*(*self.as_raw()).bd_queue).tag_set).read_volatile() };
        self.blocking.get(set.addr()).unwrap_or_else(|| self.ask())
    }

    /// Queries whether the driver may sleep, and caches the answer.
    #[cold]
    fn ask(&self) -> bool {
        let mut set = core::ptr::null();
        // SAFETY: The device is open by the type invariant, so its queue is live. `set` is valid for
        // writes.
        match unsafe { ours::kx_bdev_may_block(self.as_raw(), &mut set) } {
            // The queue is frozen; the next request retries.
            error if error < 0 => true,
            may_block => {
                self.blocking.set(set.addr(), may_block != 0);
                may_block != 0
            }
        }
    }

    /// Returns whether the disk has policies for the quality of service, such as writeback throttling.
    fn has_policies(&self) -> bool {
        // SAFETY: The device is open by the type invariant, so its queue is live. The pointer is only
        // compared, and read once, as policies are added and removed at run time.
        unsafe {
            !(&raw const (*(*self.as_raw()).bd_queue).rq_qos)
                .read_volatile()
                .is_null()
        }
    }

    /// Flushes the device's write cache, which makes all completed writes durable.
    ///
    /// # Context
    ///
    /// *may sleep*, as long as the device takes.
    ///
    /// # Errors
    ///
    /// Errors that the device returns.
    pub fn flush(&self) -> Result {
        might_sleep();
        // SAFETY: The device is open by the type invariant.
        to_result(unsafe { bindings::blkdev_issue_flush(self.as_raw()) })
    }

    /// Returns the device number.
    pub fn dev(&self) -> u32 {
        // SAFETY: The device is open by the type invariant, and its number does not change.
        unsafe { (*self.as_raw()).bd_dev }
    }

    fn raw_disk(&self) -> *mut bindings::gendisk {
        // SAFETY: The device is open by the type invariant, so its disk is live.
        unsafe { (*self.as_raw()).bd_disk }
    }

    /// Returns the unique identifier of the whole disk, if its driver knows one: NVMe and SCSI do.
    ///
    /// A device-mapper target has none here: it would report that of a disk below it, which other
    /// targets may share and which may change.
    ///
    /// # Context
    ///
    /// *may sleep*.
    pub fn unique_id(&self) -> Option<UniqueId> {
        /// The kinds of `enum blk_unique_id`, best first: NAA, EUI-64, T10.
        const KINDS: [bindings::blk_unique_id; 3] = [
            bindings::blk_unique_id_BLK_UID_NAA,
            bindings::blk_unique_id_BLK_UID_EUI64,
            bindings::blk_unique_id_BLK_UID_T10,
        ];

        might_sleep();
        let disk = self.raw_disk();
        // SAFETY: The device is open by the type invariant, so its disk is live; the name and the
        // operations of a live disk do not change.
        let (name, ask) = unsafe { (&(*disk).disk_name, (*(*disk).fops).get_unique_id) };
        if name.starts_with(&[b'd' as c_char, b'm' as c_char, b'-' as c_char]) {
            return None;
        }
        let ask = ask?;
        KINDS.into_iter().find_map(|kind| {
            let mut bytes = [0; UniqueId::MAX];
            // SAFETY: The driver is not unloaded while its disk is open, and the disk is live. By
            // the contract of `get_unique_id`, the driver writes at most 16 bytes.
            let len = unsafe { ask(disk, bytes.as_mut_ptr(), kind) };
            let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
            let len = len.min(UniqueId::MAX);
            Some(UniqueId { bytes, len })
        })
    }

    /// Reads a sysfs attribute of the whole disk, as user space does, for drivers that publish
    /// identifiers only there. Returns the length; text that does not fit into `buf` is truncated.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the disk has no such attribute, or sysfs is not mounted for the first process;
    /// other errors of reading a file; `ENOMEM`.
    pub fn attribute(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        might_sleep();
        // SAFETY: By the type invariant the disk and the device of the whole disk are live. The
        // number is set before a device can be opened, and does not change.
        let dev = unsafe { (*(*self.raw_disk()).part0).bd_dev };
        let (major, minor) = (
            dev >> bindings::MINORBITS,
            dev & ((1 << bindings::MINORBITS) - 1),
        );
        let path = CString::try_from_fmt(fmt!("/sys/dev/block/{major}:{minor}/{name}"))?;
        fs::read_once(&path, buf)
    }

    /// Returns the disk's sequence number, which changes when the disk is removed and added again,
    /// or when its medium is changed.
    pub fn diskseq(&self) -> u64 {
        // SAFETY: The device is open by the type invariant, so its disk is live. The number changes
        // with the medium, so it is read once, as `READ_ONCE()` does.
        unsafe { (&raw const (*self.raw_disk()).diskseq).read_volatile() }
    }

    /// Returns the number of the partition, zero for a whole disk.
    pub fn partition(&self) -> u8 {
        // SAFETY: The device is open by the type invariant.
        unsafe { ours::bdev_partno(self.as_raw()) }
    }

    /// Returns the UUID of the partition as text, as the kernel formats it; `None` for a whole
    /// disk, or if the partition table has none.
    pub fn partition_uuid(&self) -> Option<&[u8]> {
        // SAFETY: The device is open by the type invariant. The block layer sets the information
        // before the device can be opened, and frees it with the device.
        let info = unsafe { (*self.as_raw()).bd_meta_info.as_ref()? };
        let len = info.uuid.iter().position(|byte| *byte == 0)?;
        // CAST: `c_char` is `u8` in the kernel.
        let uuid: &[u8] = info.uuid.get(..len)?;
        (!uuid.is_empty()).then_some(uuid)
    }

    /// Returns the limits and features of the device at present.
    pub fn limits(&self) -> Limits {
        let raw = self.raw_limits();
        /// Reads a field once, as `READ_ONCE()` does: the driver may change its limits
        /// concurrently. Changes are rare, and a reader may then see a mix of old and new limits.
        macro_rules! read {
            ($field:ident) => {
                // SAFETY: The limits are live, as the device is open by the type invariant. The
                // field is an integer of no more than a word, so a volatile read during a change
                // returns the old or the new value.
                unsafe { (&raw const (*raw).$field).read_volatile() }
            };
        }

        // SAFETY: The callee reads the limits of the queue and the first sector of the partition,
        // which are live by the type invariant. It takes no lock, nor does the block layer, which
        // calls it while a driver may change the limits.
        let discard_alignment_bytes = unsafe { bindings::bdev_discard_alignment(self.as_raw()) };
        // SAFETY: As above.
        let alignment = unsafe { bindings::bdev_alignment_offset(self.as_raw()) };
        // SAFETY: As above; the callee reads the features among the limits.
        let fua = unsafe { ours::bdev_fua(self.as_raw()) };
        Limits {
            logical_block_bytes: read!(logical_block_size),
            physical_block_bytes: read!(physical_block_size),
            // Negative if no offset would align the device.
            alignment_offset_bytes: alignment.try_into().unwrap_or(0),
            io_min_bytes: read!(io_min),
            io_opt_bytes: read!(io_opt),
            max_hw_sectors: read!(max_hw_sectors),
            max_segments: read!(max_segments),
            max_segment_bytes: read!(max_segment_size),
            virt_boundary_mask: read!(virt_boundary_mask),
            dma_alignment_mask: read!(dma_alignment),
            max_discard_sectors: read!(max_discard_sectors),
            discard_granularity_bytes: read!(discard_granularity),
            discard_alignment_bytes,
            max_secure_erase_sectors: read!(max_secure_erase_sectors),
            max_write_zeroes_sectors: read!(max_write_zeroes_sectors),
            write_zeroes_unmaps: read!(max_wzeroes_unmap_sectors) != 0,
            write_cache: self.has_write_cache(),
            fua,
            rotational: read!(features) & ours::BLK_FEAT_ROTATIONAL != 0,
            stable_writes: read!(features) & ours::BLK_FEAT_STABLE_WRITES != 0,
        }
    }

    /// Returns whether the device has a volatile write cache at present: an operator can turn it
    /// on and off, and a logical volume can move to other disks.
    #[inline]
    pub fn has_write_cache(&self) -> bool {
        // SAFETY: The device is open by the type invariant.
        unsafe { ours::bdev_write_cache(self.as_raw()) }
    }

    /// Returns whether the device has zones that must be written sequentially.
    pub fn is_zoned(&self) -> bool {
        let limits = self.raw_limits();
        // SAFETY: As for the fields in `limits`.
        unsafe { (&raw const (*limits).features).read_volatile() & ours::BLK_FEAT_ZONED != 0 }
    }

    /// Returns the device in the device model. Not public: a reference to the device may outlive the
    /// open file, which keeps the driver's module.
    pub(crate) fn device(&self) -> &Device {
        // SAFETY: By the type invariant the file has a reference to the `struct device`. The result
        // borrows `self`, which closes the file only when it is dropped.
        unsafe { Device::from_raw(&raw mut (*self.as_raw()).bd_device) }
    }

    /// Writes to the page cache of the device.
    #[cfg(IBTRS_KUNIT)]
    pub(super) fn write_cached(&self, data: &[u8]) -> Result {
        let mut pos = 0;
        // SAFETY: By the type invariant the file is open; the callee checks its mode. The data is valid
        // for reads of its length, and the position for writes.
        let written = unsafe {
            bindings::kernel_write(
                self.file.as_ptr(),
                data.as_ptr().cast(),
                data.len(),
                &mut pos,
            )
        };
        match usize::try_from(written) {
            Ok(written) if written == data.len() => Ok(()),
            Ok(_) => Err(EIO),
            Err(_) => Err(Error::from_errno(i32::try_from(written)?)),
        }
    }

    /// Returns the name of the device, such as `sda1`.
    pub fn name(&self) -> &CStr {
        self.device().name()
    }
}

impl fmt::Debug for BlockDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockDevice({:#x})", self.dev())
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        might_sleep();
        // Close the device before this returns. `fput()` in a kernel thread would leave that to a
        // work item: until it had run, the device's driver could not be unloaded, and other openers
        // would find the device claimed.
        // SAFETY: By the type invariant this value owns the reference, which ends here.
        unsafe { bindings::__fput_sync(self.file.as_ptr()) };
    }
}

/// A location in the file system.
///
/// # Invariants
///
/// A successful look-up has filled the path, whose references this value owns.
struct Path(bindings::path);

impl Path {
    fn lookup(name: &CStr, flags: c_uint) -> Result<Self> {
        let mut path = MaybeUninit::uninit();
        // SAFETY: The name is a C string, and the path is valid for writes.
        to_result(unsafe { ours::kern_path(name.as_char_ptr(), flags, path.as_mut_ptr()) })?;
        // INVARIANT: The look-up succeeded.
        // SAFETY: A look-up that succeeds initializes the path.
        Ok(Self(unsafe { path.assume_init() }))
    }

    /// Looks up a name with this directory as the root.
    fn lookup_below(&self, name: &CStr, flags: c_uint) -> Result<Self> {
        let mut path = MaybeUninit::uninit();
        // SAFETY: By the type invariant `self` owns references to the dentry and the mount. The
        // name is a C string, and the path is valid for writes.
        to_result(unsafe {
            ours::vfs_path_lookup(
                self.0.dentry,
                self.0.mnt,
                name.as_char_ptr(),
                flags,
                path.as_mut_ptr(),
            )
        })?;
        // INVARIANT: The look-up succeeded.
        // SAFETY: A look-up that succeeds initializes the path.
        Ok(Self(unsafe { path.assume_init() }))
    }

    fn block_device_number(&self) -> Result<bindings::dev_t> {
        // SAFETY: By the type invariant a look-up has succeeded, so the dentry is live and has an
        // inode. The mode is read once, as `chmod(2)` may change its permissions concurrently; the
        // file type in it and its device number do not change.
        let (mode, number) = unsafe {
            let inode = ours::d_backing_inode(self.0.dentry);
            (
                (&raw const (*inode).i_mode).read_volatile(),
                (*inode).i_rdev,
            )
        };
        if u32::from(mode) & bindings::S_IFMT != bindings::S_IFBLK {
            return Err(ENOTBLK);
        }
        // SAFETY: By the type invariant the path has a mount.
        if unsafe { ours::path_is_nodev(&self.0) } {
            return Err(EACCES);
        }
        match number {
            0 => Err(ENODEV),
            number => Ok(number),
        }
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns the references, which end here.
        unsafe { bindings::path_put(&self.0) };
    }
}
