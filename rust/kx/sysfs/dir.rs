// SPDX-License-Identifier: GPL-2.0

//! Directories below other directories.

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::to_result,
    fmt,
    prelude::*,
    types::Opaque, //
};

use super::{
    attr::{
        kobject_show,
        kobject_store,
        Attr,
        Data, //
    },
    name,
    node::{
        Core,
        InSysfs,
        Node, //
    }, //
};

/// A directory with files for a `P`.
///
/// Dropping it waits for the functions of its files, and removes everything below it from sysfs.
///
/// # Invariants
///
/// `core` points to a kobject that was added and not deleted, whose data is `data`; this value owns
/// one reference to it.
pub struct Dir<P> {
    core: NonNull<Core<bindings::kobject>>,
    /// Boxed, so that its address does not change.
    data: KBox<P>,
}

/// A directory without files, for other directories and links.
pub type PlainDir = Dir<&'static ()>;

// SAFETY: A kobject has no thread affinity, and the data is `Send`.
unsafe impl<P: Send + Sync> Send for Dir<P> {}

// SAFETY: sysfs has its own locks, and the data is `Sync`.
unsafe impl<P: Send + Sync> Sync for Dir<P> {}

impl PlainDir {
    /// Creates a directory without files.
    ///
    /// # Errors
    ///
    /// As [`Dir::new`].
    pub fn plain(parent: &impl InSysfs, name: fmt::Arguments<'_>) -> Result<Self> {
        Self::new(parent, name, &(), &[])
    }
}

impl<P: Data> Dir<P> {
    /// Creates a directory below `parent`, with files. A slash in the name becomes `!`.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`], [`ENAMETOOLONG`] for an invalid name,
    /// - [`EEXIST`] if the parent has an entry of that name. If two tasks create an entry of the
    ///   same name at the same time, the kernel may also print a warning,
    /// - [`ENOENT`], [`ENODEV`] if the parent was removed,
    /// - [`ENOMEM`]
    pub fn new(
        parent: &impl InSysfs,
        name: fmt::Arguments<'_>,
        data: P,
        attrs: &'static [Attr<P>],
    ) -> Result<Self> {
        let name = name::make(name)?;
        let data = KBox::new(data, GFP_KERNEL)?;
        let core = new_core(&*data)?;
        // SAFETY: The core was just created, so the pointer is valid.
        let kobj = unsafe { core.as_ref() }.obj.get();
        let added = parent.with_kobject(|parent| {
            // SAFETY: By the contract of `InSysfs` the parent was added and is not deleted during
            // the call.
            if unsafe { has(parent, &name) } {
                return Err(EEXIST);
            }
            // SAFETY: As above for the parent. `new_core` has initialised `kobj`, and the format
            // takes one string.
            to_result(unsafe {
                bindings::kobject_add(kobj, parent, c"%s".as_char_ptr(), name.as_char_ptr())
            })
        });
        if let Err(error) = added {
            // SAFETY: This function owns the reference that `new_core` returned, which ends here.
            unsafe { bindings::kobject_put(kobj) };
            return Err(error);
        }
        // INVARIANT: The kobject was added, and the result owns its initial reference.
        let dir = Self { core, data };
        dir.add_files(attrs)?;
        Ok(dir)
    }

    /// Creates further files in the directory, which exist as long as the directory does.
    ///
    /// # Errors
    ///
    /// [`EEXIST`] if it has a file of one of the names; [`ENOMEM`]. Some of the files may exist then.
    pub fn add_files(&self, attrs: &'static [Attr<P>]) -> Result {
        // SAFETY: `new_core` has created the node for a `P`. By the type invariant the kobject was
        // added, and only dropping `self` deletes it.
        unsafe { self.node().create_files(attrs) }
    }

    /// Returns the reference to the data.
    pub fn data(&self) -> &P {
        &self.data
    }

    /// Renames the directory. A slash in the name becomes `!`.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`], [`ENAMETOOLONG`] for an invalid name,
    /// - [`EEXIST`] if the parent has an entry of that name,
    /// - [`ENOMEM`]
    pub fn rename(&mut self, name: fmt::Arguments<'_>) -> Result {
        let name = name::make(name)?;
        // SAFETY: By the type invariant the kobject was added and not deleted. Nobody else renames
        // it now, as `self` is borrowed exclusively.
        to_result(unsafe { bindings::kobject_rename(self.node().kobj(), name.as_char_ptr()) })
    }
}

impl<P> Dir<P> {
    fn node(&self) -> &Node {
        // SAFETY: By the type invariant this value owns a reference to the kobject, so the core is
        // valid.
        unsafe { &self.core.as_ref().node }
    }
}

// SAFETY: By the type invariant the kobject was added, and is not deleted before `self` is dropped.
unsafe impl<P> InSysfs for Dir<P> {
    fn with_kobject<R, F>(&self, func: F) -> Result<R>
    where
        F: FnOnce(*mut bindings::kobject) -> Result<R>,
    {
        func(self.node().kobj())
    }
}

impl<P> Drop for Dir<P> {
    fn drop(&mut self) {
        let kobj = self.node().kobj();
        self.node().close();
        // SAFETY: By the type invariant the kobject was added and not deleted. The call waits for
        // the functions of files, so nobody uses the data afterwards.
        unsafe { bindings::kobject_del(kobj) };
        // SAFETY: By the type invariant this value owns the reference. It does not use the core any
        // more.
        unsafe { bindings::kobject_put(kobj) };
    }
}

/// Returns whether a directory has an entry of that name.
///
/// # Safety
///
/// `parent` must have been added, and must not be deleted during the call.
unsafe fn has(parent: *mut bindings::kobject, name: &CStr) -> bool {
    // SAFETY: By this function's contract the parent has a directory, to which it holds a reference
    // even if sysfs has removed the directory with one above. No directory here has namespaces.
    let found = unsafe {
        bindings::kernfs_find_and_get_ns((*parent).sd, name.as_char_ptr(), core::ptr::null())
    };
    if !found.is_null() {
        // SAFETY: The call above has returned this reference, which ends here.
        unsafe { bindings::kernfs_put(found) };
    }
    !found.is_null()
}

/// Creates a kobject that is not added yet, for directories with this data.
///
/// The caller owns its only reference.
fn new_core<P: Data>(data: &P) -> Result<NonNull<Core<bindings::kobject>>> {
    let core = KBox::pin_init::<Error>(
        try_pin_init!(&this in Core {
            obj <- Opaque::ffi_init(|kobj: *mut bindings::kobject| {
                // SAFETY: `kobj` is valid for writes, and nobody else uses it yet. The callee below
                // expects zeroes.
                unsafe { kobj.write(pin_init::zeroed()) };
                // SAFETY: As above, and the type is static.
                unsafe { bindings::kobject_init(kobj, &KTYPE.0) };
            }),
            // SAFETY: The kobject is the first field of the core, and `Dir` keeps the data until it
            // has deleted the kobject.
            node <- unsafe { Node::new(this.as_ptr().cast(), data) },
        }? Error),
        GFP_KERNEL,
    )?;
    // SAFETY: The core is not moved: `release` makes a box of it again, and drops it in place.
    let core = unsafe { Pin::into_inner_unchecked(core) };
    Ok(NonNull::from(KBox::leak(core)))
}

/// The type of this crate's kobjects.
struct KType(bindings::kobj_type);

// SAFETY: The value never changes.
unsafe impl Sync for KType {}

/// The kernel may call `release` after a directory was dropped, so it is in this crate and not in
/// the driver.
static KTYPE: KType = KType(bindings::kobj_type {
    release: Some(release),
    sysfs_ops: &bindings::sysfs_ops {
        show: Some(kobject_show),
        store: Some(kobject_store),
    },
    ..pin_init::zeroed()
});

/// Called by the kernel when the last reference to a kobject was dropped.
///
/// # Safety
///
/// `kobj` must be part of a core created by [`new_core`], and must not be used afterwards.
unsafe extern "C" fn release(kobj: *mut bindings::kobject) {
    // CAST: The kobject is the first field of a `repr(C)` struct.
    // SAFETY: By this function's contract `new_core` has leaked the box, and nobody uses it any
    // more.
    drop(unsafe { KBox::from_raw(kobj.cast::<Core<bindings::kobject>>()) });
}
