// SPDX-License-Identifier: GPL-2.0

//! Links from one directory to another.

use core::ops::Deref;
use kernel::{
    bindings,
    error::to_result,
    fmt,
    prelude::*,
    str::CString, //
};

use super::{
    name,
    node::InSysfs, //
};

/// A link in the directory that `D` refers to, for example an `Arc<Dir<_>>`.
///
/// Dropping it removes the link; dropping the target first leaves a dangling link.
pub struct Link<D>
where
    D: Deref<Target: InSysfs>,
{
    dir: D,
    name: CString,
}

impl<D> Link<D>
where
    D: Deref<Target: InSysfs>,
{
    /// Creates a link to `target`. A slash in the name becomes `!`.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`], [`ENAMETOOLONG`] for an invalid name,
    /// - [`EEXIST`] if the directory has an entry of that name,
    /// - [`ENOENT`], [`ENODEV`] if the directory or the target was removed,
    /// - [`ENOMEM`]
    pub fn new(dir: D, target: &impl InSysfs, name: fmt::Arguments<'_>) -> Result<Self> {
        let name = name::make(name)?;
        dir.with_kobject(|dir| {
            target.with_kobject(|target| {
                // SAFETY: By the contract of `InSysfs` both kobjects were added, and are not
                // deleted during the call. The name is a C string.
                to_result(unsafe {
                    bindings::sysfs_create_link_nowarn(dir, target, name.as_char_ptr())
                })
            })
        })?;
        Ok(Self { dir, name })
    }
}

impl<D> Drop for Link<D>
where
    D: Deref<Target: InSysfs>,
{
    fn drop(&mut self) {
        // If the directory was removed, the link was removed with it.
        let _ = self.dir.with_kobject(|dir| {
            // SAFETY: By the contract of `InSysfs` the kobject was added, and is not deleted during
            // the call. The name is a C string.
            unsafe { bindings::sysfs_remove_link(dir, self.name.as_char_ptr()) };
            Ok(())
        });
    }
}
