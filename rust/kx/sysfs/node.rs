// SPDX-License-Identifier: GPL-2.0

//! Common parts of directories and devices.

use crate::{
    blk::{
        BlockDevice,
        GenDisk,
        Operations, //
    },
    sync::Completion, //
};
use core::ptr;
use kernel::{
    bindings,
    device::Device,
    error::to_result,
    new_spinlock,
    prelude::*,
    sync::SpinLock,
    types::{
        Opaque,
        ScopeGuard, //
    }, //
};

use super::attr::{
    Attr,
    Data,
    RawAttr, //
};

/// Something that has a directory in sysfs, in which others can be made.
///
/// # Safety
///
/// [`Self::with_kobject`] calls the function with a kobject that was added, and is not deleted
/// before the function has returned.
pub unsafe trait InSysfs {
    /// Calls a function with the kobject.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if it was deleted,
    /// - what the function returns.
    fn with_kobject<R, F>(&self, func: F) -> Result<R>
    where
        F: FnOnce(*mut bindings::kobject) -> Result<R>;
}

/// Calls a function with the kobject of a disk, or of a partition of it.
///
/// # Errors
///
/// - [`ENODEV`] if the disk was deleted,
/// - what the function returns.
///
/// # Safety
///
/// `device` must be valid, a disk's or a partition's.
unsafe fn with_block_kobject<R>(
    device: &Device,
    func: impl FnOnce(*mut bindings::kobject) -> Result<R>,
) -> Result<R> {
    // CAST: `Device` is transparent.
    let device = ptr::from_ref(device).cast::<bindings::device>().cast_mut();
    // SAFETY: By the function's requirement.
    if !unsafe { ibtrs_bindings::kx_hold_disk(device) } {
        return Err(ENODEV);
    }
    let _release = ScopeGuard::new(move || {
        // SAFETY: The disk was held above.
        unsafe { ibtrs_bindings::kx_release_disk(device) }
    });
    // SAFETY: The device is valid, so the field is in bounds.
    func(unsafe { &raw mut (*device).kobj })
}

// SAFETY: Deleting a disk takes its open mutex, after which it is not live, before it deletes the
// disk's device.
unsafe impl<D: Operations> InSysfs for GenDisk<D> {
    fn with_kobject<R, F>(&self, func: F) -> Result<R>
    where
        F: FnOnce(*mut bindings::kobject) -> Result<R>,
    {
        // SAFETY: The disk is valid while it is borrowed, and this is its device.
        unsafe { with_block_kobject(self.device(), func) }
    }
}

// SAFETY: As above; a partition is deleted with its disk, or under the same mutex.
unsafe impl InSysfs for BlockDevice {
    fn with_kobject<R, F>(&self, func: F) -> Result<R>
    where
        F: FnOnce(*mut bindings::kobject) -> Result<R>,
    {
        // SAFETY: The device is valid while it is open.
        unsafe { with_block_kobject(self.device(), func) }
    }
}

/// Part of a directory that the functions of its files get to see.
///
/// # Invariants
///
/// - `kobj` is the kobject around this value.
/// - `data` points to the data that the directory's attributes are for; it is valid, and shared,
///   until the kobject has been deleted.
#[pin_data]
pub(super) struct Node {
    kobj: *mut bindings::kobject,
    data: *const c_void,
    #[pin]
    removal: SpinLock<Removal>,
    /// Completed when a file that removes itself is done with the kobject.
    #[pin]
    idle: Completion,
}

/// The state of the removal.
struct Removal {
    /// The directory is about to be removed as a whole.
    closed: bool,
    /// A file of the directory has begun to remove itself: the task that wrote to it drops the
    /// directory.
    leaving: bool,
    /// It is just doing so.
    busy: bool,
}

/// Not a part of a generic function, whose lock would have the same class but
/// another name in each module.
#[inline(never)]
fn new_removal() -> impl PinInit<SpinLock<Removal>> {
    new_spinlock!(
        Removal {
            closed: false,
            leaving: false,
            busy: false,
        },
        "sysfs::Node::removal"
    )
}

impl Node {
    /// Creates the node of the directory with `kobj`, whose attributes are for `data`.
    ///
    /// # Safety
    ///
    /// Pointers and types must be such that the type invariants hold.
    pub(super) unsafe fn new<P: Data>(
        kobj: *mut bindings::kobject,
        data: *const P,
    ) -> impl PinInit<Self> {
        // INVARIANT: By the function's requirement.
        pin_init!(Self {
            kobj,
            data: data.cast(),
            removal <- new_removal(),
            idle <- Completion::new(),
        })
    }

    pub(super) fn kobj(&self) -> *mut bindings::kobject {
        self.kobj
    }

    pub(super) fn data(&self) -> *const c_void {
        self.data
    }

    /// Creates files. If one fails, the former ones are there.
    pub(super) fn create_files<P: Data>(&self, attrs: &'static [Attr<P>]) -> Result {
        for attr in attrs {
            // SAFETY: The caller has added the kobject and not deleted it; the attribute is static.
            to_result(unsafe {
                bindings::sysfs_create_file_ns(self.kobj, attr.as_raw().as_c(), ptr::null())
            })?;
        }
        Ok(())
    }

    /// Removes a file from within its own function.
    ///
    /// Returns whether it was this caller who removed it; of all that try, with any file of the
    /// directory, the first. C would let others wait until the first one's function has returned,
    /// which waits for theirs when it drops the directory.
    pub(super) fn remove_self(&self, attr: &RawAttr) -> bool {
        {
            let mut removal = self.removal.lock();
            if removal.closed || removal.leaving {
                return false;
            }
            removal.leaving = true;
            removal.busy = true;
        }
        // SAFETY: The caller runs inside the file's function, so the file is there; the kobject is
        // not deleted before `busy` is reset, by `close`.
        let removed = unsafe { bindings::sysfs_remove_file_self(self.kobj, attr.as_c()) };
        let awaited = {
            let mut removal = self.removal.lock();
            removal.busy = false;
            removal.closed
        };
        // The task that waits in `close` frees this value after that. If it was not closed, no task
        // does, and the lock is the last access.
        if awaited {
            self.idle.complete_all();
        }
        removed
    }

    /// Waits until no file removes itself, and lets none begin.
    pub(super) fn close(&self) {
        let busy = {
            let mut removal = self.removal.lock();
            removal.closed = true;
            removal.busy
        };
        if busy {
            self.idle.wait();
        }
    }
}

/// A C object with a kobject, and the part for its files.
///
/// C frees it when the last reference to the kobject is put.
#[repr(C)]
#[pin_data]
pub(super) struct Core<K> {
    #[pin]
    pub(super) obj: Opaque<K>,
    #[pin]
    pub(super) node: Node,
}
