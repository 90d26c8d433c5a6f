// SPDX-License-Identifier: GPL-2.0

//! Block devices of other drivers, opened by path.
//!
//! C header: [`include/linux/blkdev.h`](srctree/include/linux/blkdev.h)

use crate::{
    blk::limits::Limits,
    fs::{
        self,
        InitFs, //
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

/// The holder of a claim on a block device: openers with the same holder share the device, all
/// others that want it exclusively are kept away.
///
/// The address identifies the holder, so it belongs into a `static`.
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

/// How a block device is to be opened.
#[derive(Clone, Copy)]
pub struct OpenSpec {
    /// Not only for reading.
    pub write: bool,
    /// The holder of the claim; none claims nothing.
    pub holder: Option<&'static Holder>,
}

/// The number that the maker of a disk gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl UniqueId {
    const MAX: usize = 16;

    /// Returns the number, 8 to 16 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// An open block device, whole disk or partition; it is closed on drop.
///
/// # Invariants
///
/// `file` is a file that `bdev_file_open_by_dev` returned, to which a reference
/// is held; `bdev` is its device.
pub struct BlockDevice {
    bdev: NonNull<bindings::block_device>,
    file: NonNull<bindings::file>,
}

// SAFETY: An open device belongs to no thread.
unsafe impl Send for BlockDevice {}
// SAFETY: The methods only read what the block layer lets anyone read.
unsafe impl Sync for BlockDevice {}

impl BlockDevice {
    /// Finds the number of the device at `path` below the directory `root`, for
    /// [`Self::open`]. Symbolic links are followed as long as they stay below it; with `/`
    /// as the root, all are.
    ///
    /// `root` itself starts at the root of the first process.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// - `EXDEV` for a `..` that leads out of the root, and for a link with an
    ///   absolute path, unless the root is `/`.
    /// - `ENOENT` and others of a path look-up, `ELOOP` for a link of procfs.
    /// - `ENOTBLK` if it is no block device, `EACCES` if it is on a file system
    ///   that holds none.
    pub fn find(root: &CStr, path: &CStr) -> Result<u32> {
        /// How often names may have changed during a look-up.
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
                // Something was renamed or mounted while a `..` was followed.
                Err(error) if error == EAGAIN => {}
                found => return found?.block_device_number(),
            }
        }
        Err(EAGAIN)
    }

    /// Opens the device with the number `dev`, as [`Self::find`] and [`Self::dev`] return it.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// - `EACCES` if it is read-only and `write` is wanted.
    /// - `EBUSY` if someone else has claimed it.
    /// - `ENXIO` if there is no such device.
    /// - Others of the device's driver.
    pub fn open(dev: u32, spec: OpenSpec) -> Result<Self> {
        might_sleep();
        let mut mode = ours::BLK_OPEN_READ;
        if spec.write {
            mode |= ours::BLK_OPEN_WRITE;
        }
        let holder = spec.holder.map_or(core::ptr::null_mut(), Holder::as_ptr);
        // SAFETY: May sleep; any number may be asked for. A holder may be any address, and
        // needs no operations.
        let file = from_err_ptr(unsafe {
            bindings::bdev_file_open_by_dev(dev, mode, holder, core::ptr::null())
        })?;
        // SAFETY: `file` is an open block device.
        let bdev = unsafe { bindings::file_bdev(file) };
        // INVARIANT: Opened as required; the reference is passed on.
        let this = Self {
            bdev: NonNull::new(bdev).ok_or(ENXIO)?,
            file: NonNull::new(file).ok_or(ENXIO)?,
        };
        if spec.write && this.is_read_only() {
            return Err(EACCES);
        }
        Ok(this)
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::block_device {
        self.bdev.as_ptr()
    }

    fn raw_limits(&self) -> *const bindings::queue_limits {
        // SAFETY: The device is open by the type invariant, so its disk is live, and with it
        // its queue, which is another one for no disk.
        unsafe { &raw const (*(*self.as_raw()).bd_queue).limits }
    }

    /// Returns whether the device cannot be written to at present.
    pub fn is_read_only(&self) -> bool {
        // SAFETY: The device is open by the type invariant.
        unsafe { ours::bdev_read_only(self.as_raw()) }
    }

    /// Returns the size in 512 byte sectors at present.
    pub fn capacity_sectors(&self) -> u64 {
        // SAFETY: The device is open by the type invariant.
        unsafe { ours::bdev_nr_sectors(self.as_raw()) }
    }

    /// Makes durable what the device has answered so far.
    ///
    /// # Context
    ///
    /// *may sleep*, as long as the device takes.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn flush(&self) -> Result {
        might_sleep();
        // SAFETY: The device is open by the type invariant.
        to_result(unsafe { bindings::blkdev_issue_flush(self.as_raw()) })
    }

    /// Returns the number that the device is known by in this kernel.
    pub fn dev(&self) -> u32 {
        // SAFETY: The device is open by the type invariant; the number stays.
        unsafe { (*self.as_raw()).bd_dev }
    }

    fn raw_disk(&self) -> *mut bindings::gendisk {
        // SAFETY: The device is open by the type invariant, so its disk is live.
        unsafe { (*self.as_raw()).bd_disk }
    }

    /// Returns the number that the whole disk has from its maker, if its driver
    /// knows one: NVMe and SCSI do.
    ///
    /// That of a device-mapper target is none of its own but a disk's below it,
    /// which other targets may share and which may change; so there is none.
    ///
    /// # Context
    ///
    /// *may sleep*.
    pub fn unique_id(&self) -> Option<UniqueId> {
        /// As `enum blk_unique_id`, the best first: NAA, EUI-64, T10.
        const KINDS: [bindings::blk_unique_id; 3] = [
            bindings::blk_unique_id_BLK_UID_NAA,
            bindings::blk_unique_id_BLK_UID_EUI64,
            bindings::blk_unique_id_BLK_UID_T10,
        ];

        might_sleep();
        let disk = self.raw_disk();
        // SAFETY: The disk is live; name and operations do not change.
        let (name, ask) = unsafe { (&(*disk).disk_name, (*(*disk).fops).get_unique_id) };
        if name.starts_with(&[b'd' as c_char, b'm' as c_char, b'-' as c_char]) {
            return None;
        }
        let ask = ask?;
        KINDS.into_iter().find_map(|kind| {
            let mut bytes = [0; UniqueId::MAX];
            // SAFETY: The driver is not unloaded while its disk is open, and writes
            // at most 16 bytes.
            let len = unsafe { ask(disk, bytes.as_mut_ptr(), kind) };
            let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
            let len = len.min(UniqueId::MAX);
            Some(UniqueId { bytes, len })
        })
    }

    /// Reads an attribute of the whole disk in sysfs, as user space does, for drivers that publish
    /// their disks' names only there. Returns the length; text that does not fit into `buf` is cut.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the disk has none of that name, or sysfs is not mounted for the first
    /// process; others of reading a file; `ENOMEM`.
    pub fn attribute(&self, name: &CStr, buf: &mut [u8]) -> Result<usize> {
        might_sleep();
        // SAFETY: The disk is live, and with it its first block device.
        let dev = unsafe { (*(*self.raw_disk()).part0).bd_dev };
        let (major, minor) = (
            dev >> bindings::MINORBITS,
            dev & ((1 << bindings::MINORBITS) - 1),
        );
        let path = CString::try_from_fmt(fmt!("/sys/dev/block/{major}:{minor}/{name}"))?;
        fs::read_once(&path, buf)
    }

    /// Returns the number that the disk has had since it was found: another one after it was
    /// away, or its medium was changed.
    pub fn diskseq(&self) -> u64 {
        // SAFETY: The disk is live. The number changes with the medium, so it is read once, as
        // `READ_ONCE()` does.
        unsafe { (&raw const (*self.raw_disk()).diskseq).read_volatile() }
    }

    /// Returns the number of the partition, zero for a whole disk.
    pub fn partition(&self) -> u8 {
        // SAFETY: The device is open by the type invariant.
        unsafe { ours::bdev_partno(self.as_raw()) }
    }

    /// Returns the UUID that the partition table has for this partition, as the
    /// text that the kernel makes of it; none for a whole disk, or if the table has
    /// none.
    pub fn partition_uuid(&self) -> Option<&[u8]> {
        // SAFETY: The device is open by the type invariant; the information was set
        // before it could be opened, and goes with it.
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
        /// meanwhile. They rarely do; a mix of old and new is what other readers get, too.
        macro_rules! read {
            ($field:ident) => {
                // SAFETY: The limits are live and initialized by `raw_limits`, and the field
                // is an integer of no more than a word: a volatile read of it while the
                // block layer writes it gets the old or the new value.
                unsafe { (&raw const (*raw).$field).read_volatile() }
            };
        }

        // SAFETY: The device is open by the type invariant.
        let discard_alignment_bytes = unsafe { bindings::bdev_discard_alignment(self.as_raw()) };
        // SAFETY: As above.
        let alignment = unsafe { bindings::bdev_alignment_offset(self.as_raw()) };
        // SAFETY: As above.
        let (write_cache, fua) = unsafe {
            (
                ours::bdev_write_cache(self.as_raw()),
                ours::bdev_fua(self.as_raw()),
            )
        };
        Limits {
            logical_block_bytes: read!(logical_block_size),
            physical_block_bytes: read!(physical_block_size),
            // Negative if no offset fits: then none is better than another.
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
            write_cache,
            fua,
            rotational: read!(features) & ours::BLK_FEAT_ROTATIONAL != 0,
        }
    }

    /// Returns whether the device has zones that must be written from their start on.
    pub fn is_zoned(&self) -> bool {
        let limits = self.raw_limits();
        // SAFETY: As in `limits`.
        unsafe { (&raw const (*limits).features).read_volatile() & ours::BLK_FEAT_ZONED != 0 }
    }

    /// Returns the device in the device model.
    pub fn device(&self) -> &Device {
        // SAFETY: The device is open by the type invariant, which keeps it.
        unsafe { Device::from_raw(&raw mut (*self.as_raw()).bd_device) }
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
        // A kernel thread leaves the closing to someone else, if it is not done at
        // once. It is here, as the device's driver cannot be unloaded before, and
        // whoever is waiting for it to be free would still find it claimed.
        // SAFETY: The reference is ours by the type invariant, and given back.
        unsafe { bindings::__fput_sync(self.file.as_ptr()) };
    }
}

/// A place in the file system.
///
/// # Invariants
///
/// A path that a look-up has filled, with its references.
struct Path(bindings::path);

impl Path {
    fn lookup(name: &CStr, flags: c_uint) -> Result<Self> {
        let mut path = MaybeUninit::uninit();
        // SAFETY: The name is a C string, the path valid for writing.
        to_result(unsafe { ours::kern_path(name.as_char_ptr(), flags, path.as_mut_ptr()) })?;
        // INVARIANT: Filled by the look-up.
        // SAFETY: Initialized as it has succeeded.
        Ok(Self(unsafe { path.assume_init() }))
    }

    /// Looks a name up with this place as the root.
    fn lookup_below(&self, name: &CStr, flags: c_uint) -> Result<Self> {
        let mut path = MaybeUninit::uninit();
        // SAFETY: `self` is a valid directory, the name a C string, and the path
        // valid for writing.
        to_result(unsafe {
            ours::vfs_path_lookup(
                self.0.dentry,
                self.0.mnt,
                name.as_char_ptr(),
                flags,
                path.as_mut_ptr(),
            )
        })?;
        // INVARIANT: Filled by the look-up.
        // SAFETY: Initialized as it has succeeded.
        Ok(Self(unsafe { path.assume_init() }))
    }

    fn block_device_number(&self) -> Result<bindings::dev_t> {
        // SAFETY: The path is valid by the type invariant, and a look-up that has
        // succeeded has found an inode.
        let inode = unsafe { &*ours::d_backing_inode(self.0.dentry) };
        if u32::from(inode.i_mode) & bindings::S_IFMT != bindings::S_IFBLK {
            return Err(ENOTBLK);
        }
        // SAFETY: The path is valid by the type invariant.
        if unsafe { ours::path_is_nodev(&self.0) } {
            return Err(EACCES);
        }
        if inode.i_rdev == 0 {
            return Err(ENODEV);
        }
        Ok(inode.i_rdev)
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        // SAFETY: The references are ours by the type invariant.
        unsafe { bindings::path_put(&self.0) };
    }
}
