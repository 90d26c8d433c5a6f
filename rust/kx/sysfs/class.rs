// SPDX-License-Identifier: GPL-2.0

//! Classes of devices.

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::from_err_ptr,
    prelude::*,
    sync::Arc,
    task::might_sleep, //
};

/// A class: the directory `/sys/class/<name>`, removed when the last of its devices is gone.
///
/// # Invariants
///
/// `class` was registered, and belongs to this value.
pub struct Class {
    class: NonNull<bindings::class>,
}

// SAFETY: A class belongs to no task.
unsafe impl Send for Class {}

// SAFETY: A class never changes, but for what the device core keeps under its own locks.
unsafe impl Sync for Class {}

impl Class {
    /// Registers a class.
    ///
    /// # Errors
    ///
    /// - [`EEXIST`] if there is one of that name,
    /// - [`ENOMEM`]
    pub fn new(name: &'static CStr) -> Result<Arc<Self>> {
        might_sleep();
        // SAFETY: The name is static.
        let class = from_err_ptr(unsafe { bindings::class_create(name.as_char_ptr()) })?;
        // INVARIANT: The class was just registered.
        let this = Self {
            class: NonNull::new(class).ok_or(ENOMEM)?,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    pub(super) fn as_raw(&self) -> *const bindings::class {
        self.class.as_ptr()
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: By the type invariant the class belongs to this value. Its devices were deleted,
        // as each holds a reference to it until then.
        unsafe { bindings::class_destroy(self.class.as_ptr()) }
    }
}
