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
/// Dropping it waits for the functions of its files, and removes whatever is below it from sysfs.
///
/// # Invariants
///
/// `core` points to a kobject that was added and not deleted, whose data is `data`; one reference
/// to it belongs to this value.
pub struct Dir<P> {
    core: NonNull<Core<bindings::kobject>>,
    /// Boxed, so that its place does not change.
    data: KBox<P>,
}

/// A directory that only holds others, and links.
pub type PlainDir = Dir<&'static ()>;

// SAFETY: A kobject belongs to no task, and the data is `Send`.
unsafe impl<P: Send + Sync> Send for Dir<P> {}

// SAFETY: sysfs has locks of its own, and the data is `Sync`.
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
    /// Creates a directory below `parent`, with files. In the name a slash becomes `!`.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`], [`ENAMETOOLONG`] for a name that is none,
    /// - [`EEXIST`] if the parent has something of that name. If two are made at the same time, the
    ///   kernel may also print a warning,
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
        // SAFETY: The core was just made.
        let kobj = unsafe { core.as_ref() }.obj.get();
        let added = parent.with_kobject(|parent| {
            // SAFETY: The parent is in sysfs.
            if unsafe { has(parent, &name) } {
                return Err(EEXIST);
            }
            // SAFETY: Both kobjects are initialised, the parent is in sysfs, and the format takes
            // one string.
            to_result(unsafe {
                bindings::kobject_add(kobj, parent, c"%s".as_char_ptr(), name.as_char_ptr())
            })
        });
        if let Err(error) = added {
            // SAFETY: This is the only reference.
            unsafe { bindings::kobject_put(kobj) };
            return Err(error);
        }
        // INVARIANT: The kobject was added, and its initial reference becomes the result's.
        let dir = Self { core, data };
        dir.node().create_files(attrs)?;
        Ok(dir)
    }

    /// The reference to the data.
    pub fn data(&self) -> &P {
        &self.data
    }

    /// Gives the directory another name, in which a slash becomes `!`.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`], [`ENAMETOOLONG`] for a name that is none,
    /// - [`EEXIST`] if the parent has something of that name,
    /// - [`ENOMEM`]
    pub fn rename(&mut self, name: fmt::Arguments<'_>) -> Result {
        let name = name::make(name)?;
        // SAFETY: By the type invariant the kobject is in sysfs. It is not renamed by anybody else
        // now, as `self` is borrowed exclusively.
        to_result(unsafe { bindings::kobject_rename(self.node().kobj(), name.as_char_ptr()) })
    }
}

impl<P> Dir<P> {
    fn node(&self) -> &Node {
        // SAFETY: By the type invariant the core is valid.
        unsafe { &self.core.as_ref().node }
    }
}

// SAFETY: By the type invariant the kobject was added and is not deleted before `self` is dropped.
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
        // SAFETY: By the type invariant the kobject is in sysfs. This waits for the functions of
        // files, so that nobody uses the data any more.
        unsafe { bindings::kobject_del(kobj) };
        // SAFETY: By the type invariant the reference is this value's, which does not use the core
        // any more.
        unsafe { bindings::kobject_put(kobj) };
    }
}

/// Returns whether a directory has something of that name.
///
/// # Safety
///
/// `parent` must be in sysfs.
unsafe fn has(parent: *mut bindings::kobject, name: &CStr) -> bool {
    // SAFETY: By the function's requirement the parent has a directory, which has no namespaces.
    let found = unsafe {
        bindings::kernfs_find_and_get_ns((*parent).sd, name.as_char_ptr(), core::ptr::null())
    };
    if !found.is_null() {
        // SAFETY: The reference was just taken.
        unsafe { bindings::kernfs_put(found) };
    }
    !found.is_null()
}

/// Creates a kobject that was not added, for directories with these data.
///
/// Its only reference is the caller's.
fn new_core<P: Data>(data: &P) -> Result<NonNull<Core<bindings::kobject>>> {
    let core = KBox::pin_init::<Error>(
        try_pin_init!(&this in Core {
            obj <- Opaque::ffi_init(|kobj: *mut bindings::kobject| {
                // SAFETY: The memory is nobody's yet; zeros are what C expects.
                unsafe { kobj.write(pin_init::zeroed()) };
                // SAFETY: As above, and the type is static.
                unsafe { bindings::kobject_init(kobj, &KTYPE.0) };
            }),
            // SAFETY: The kobject is the first field of what is around it, and `Dir` keeps the
            // data until it has deleted that.
            node <- unsafe { Node::new(this.as_ptr().cast(), data) },
        }? Error),
        GFP_KERNEL,
    )?;
    // SAFETY: Freed by `release` as a box again, and never moved.
    let core = unsafe { Pin::into_inner_unchecked(core) };
    Ok(NonNull::from(KBox::leak(core)))
}

/// The type of our kobjects.
struct KType(bindings::kobj_type);

// SAFETY: It never changes.
unsafe impl Sync for KType {}

/// Like all that C may call after a directory was dropped, in this crate and not the driver's.
static KTYPE: KType = KType(bindings::kobj_type {
    release: Some(release),
    sysfs_ops: &bindings::sysfs_ops {
        show: Some(kobject_show),
        store: Some(kobject_store),
    },
    ..pin_init::zeroed()
});

/// Called by C when the last reference to a kobject was put.
///
/// # Safety
///
/// `kobj` must be part of a core made by [`new_core`], and not be used afterwards.
unsafe extern "C" fn release(kobj: *mut bindings::kobject) {
    // CAST: The kobject is the first field of a `repr(C)` struct.
    // SAFETY: By the function's requirement.
    drop(unsafe { KBox::from_raw(kobj.cast::<Core<bindings::kobject>>()) });
}
