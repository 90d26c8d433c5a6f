// SPDX-License-Identifier: GPL-2.0

//! Common parts of directories and devices.

use crate::sync::Completion;
use core::ptr::NonNull;
use kernel::{
    bindings,
    new_spinlock,
    prelude::*,
    sync::SpinLock,
    types::Opaque, //
};

/// An object with a directory in sysfs, in which other entries can be created.
///
/// # Safety
///
/// [`Self::with_kobject`] must call the function with a kobject that was added, and that is not
/// deleted before the function has returned.
pub unsafe trait InSysfs {
    /// Calls a function with the kobject.
    ///
    /// # Context
    ///
    /// *may sleep*; takes the open mutex of a disk.
    ///
    /// # Errors
    ///
    /// - [`ENODEV`] if the kobject was deleted,
    /// - errors of the function.
    fn with_kobject<R, F>(&self, func: F) -> Result<R>
    where
        F: FnOnce(*mut bindings::kobject) -> Result<R>;
}

/// The part of a directory that serves its files.
///
/// # Invariants
///
/// - `kobj` is the kobject of the object around this value.
/// - `data` points to the data for the directory's attributes, of the type for which the node was
///   created. The data is valid and only shared until the kobject has been deleted.
#[pin_data]
pub(super) struct Node {
    kobj: *mut bindings::kobject,
    data: *const c_void,
    #[pin]
    removal: SpinLock<Removal>,
    /// Completed when a file that removes itself no longer uses the kobject.
    #[pin]
    idle: Completion,
}

/// The state of a directory's removal.
struct Removal {
    /// The owner is about to remove the whole directory.
    closed: bool,
    /// A file of the directory has started to remove itself. The task that wrote to the file will
    /// drop the directory.
    leaving: bool,
    /// The file is removing itself right now.
    busy: bool,
}

/// This function is neither generic nor inlined, so that the name of the lock class has one
/// address, as lockdep requires. A generic or inlined function would be copied into each module,
/// together with the name.
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
    /// Creates the node of the directory of `kobj`, with `data` for its attributes.
    ///
    /// # Safety
    ///
    /// `kobj` must be the kobject of the object around the new value. `data` must be valid, and may
    /// only be shared, until the kobject has been deleted.
    pub(super) unsafe fn new<P>(
        kobj: *mut bindings::kobject,
        data: *const P,
    ) -> impl PinInit<Self> {
        // INVARIANT: By this function's contract.
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

    /// Removes a file from within its own function.
    ///
    /// Returns whether this caller has removed its file. Of all callers, for any file of the
    /// directory, only the first does. The C function would make the others wait until the first
    /// caller's function has returned, and that function waits for theirs when it drops the
    /// directory.
    ///
    /// The node is passed as a pointer, because a reference would have to be valid until this
    /// returns: once the file is removed, another task may drop the directory and free the node.
    ///
    /// # Safety
    ///
    /// The caller must run inside the function of the file `attr`, in the directory of the node
    /// `this`, and must not have removed the file before. It must not use the node afterwards.
    pub(super) unsafe fn remove_self(
        this: NonNull<Self>,
        attr: *const bindings::attribute,
    ) -> bool {
        {
            // SAFETY: By this function's contract the file exists, and sysfs waits for its function
            // before it deletes the directory. The node is therefore valid.
            let mut removal = unsafe { this.as_ref() }.removal.lock();
            if removal.closed || removal.leaving {
                return false;
            }
            removal.leaving = true;
            removal.busy = true;
        }
        // SAFETY: As above, and the kobject is that of the object around the node.
        let kobj = unsafe { this.as_ref() }.kobj;
        // SAFETY: The caller runs inside the file's function, so the file exists. From here on sysfs
        // does not wait for that function, but `Dir` and `Device` call `close` before they delete
        // the kobject, and `close` waits until `busy` is reset.
        let removed = unsafe { bindings::sysfs_remove_file_self(kobj, attr) };
        let awaited = {
            // SAFETY: `busy` is set, so no task has left `close`, and the node is valid until the
            // lock is released below. A task that then sees `busy` cleared has acquired the lock,
            // so this task's last access was to release it.
            let mut removal = unsafe { this.as_ref() }.removal.lock();
            removal.busy = false;
            removal.closed
        };
        // If the node was not closed, no task waits, and the node may be freed already.
        if awaited {
            // SAFETY: A task in `close` has seen `busy` set, and waits for this completion before
            // it returns, after which the node may be freed. The node is therefore valid until the
            // task is woken, which is the last access.
            unsafe { this.as_ref() }.idle.complete_all();
        }
        removed
    }

    /// Waits for a file that is removing itself, and prevents others from starting to.
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

/// A C object with a kobject, and the node for its files.
///
/// The kobject's release function frees it when the last reference to the kobject is dropped.
#[repr(C)]
#[pin_data]
pub(super) struct Core<K> {
    #[pin]
    pub(super) obj: Opaque<K>,
    #[pin]
    pub(super) node: Node,
}
