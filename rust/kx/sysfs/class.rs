// SPDX-License-Identifier: GPL-2.0

//! Classes of devices, and the class of a module.

use crate::sync::RcuPtr;
use core::ptr::NonNull;
use kernel::{
    bindings,
    error::from_err_ptr,
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    task::might_sleep, //
};

/// A class: the directory `/sys/class/<name>`, removed when the last of its devices is gone.
///
/// # Invariants
///
/// `class` was registered, and belongs to this value.
#[pin_data(PinnedDrop)]
pub struct Class {
    class: NonNull<bindings::class>,
    /// The names of devices, from before they are added until they are deleted.
    #[pin]
    names: Mutex<KVec<CString>>,
}

// SAFETY: A class belongs to no task.
unsafe impl Send for Class {}

// SAFETY: A class never changes, except for fields under the device core's own locks.
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
        let class = NonNull::new(class).ok_or(ENOMEM)?;
        Arc::pin_init(
            // INVARIANT: The class was just registered.
            pin_init!(Self {
                class,
                names <- new_mutex!(KVec::new(), "Class::names"),
            }),
            GFP_KERNEL,
        )
        .inspect_err(|_| {
            // SAFETY: The class was just registered, and nobody has it.
            unsafe { bindings::class_destroy(class.as_ptr()) }
        })
    }

    /// Takes a name for a device.
    ///
    /// The device core would notice too, but with a warning that is meant for programmers.
    ///
    /// # Errors
    ///
    /// - [`EEXIST`] if a device has it,
    /// - [`ENOMEM`]
    pub(super) fn claim(self: &Arc<Self>, name: &CStr) -> Result<Claim> {
        let name = CString::try_from(name)?;
        let own = CString::try_from(&*name)?;
        let mut names = self.names.lock();
        if names.iter().any(|taken| **taken == *name) {
            return Err(EEXIST);
        }
        names.push(own, GFP_KERNEL)?;
        drop(names);
        Ok(Claim {
            class: self.clone(),
            name,
        })
    }

    pub(super) fn as_raw(&self) -> *const bindings::class {
        self.class.as_ptr()
    }
}

#[pinned_drop]
impl PinnedDrop for Class {
    fn drop(self: Pin<&mut Self>) {
        might_sleep();
        // SAFETY: By the type invariant the class belongs to this value. Its devices were deleted,
        // as each holds a reference to it until then.
        unsafe { bindings::class_destroy(self.class.as_ptr()) }
    }
}

/// The name of a device, which no other device of the class gets.
pub(super) struct Claim {
    class: Arc<Class>,
    name: CString,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut names = self.class.names.lock();
        names.retain(|taken| **taken != *self.name);
    }
}

/// The class of a module, in a `static`, where every object with a directory finds it.
pub struct ModuleClass {
    name: &'static CStr,
    class: RcuPtr<Arc<Class>>,
}

impl ModuleClass {
    /// Creates a place for the class `name`.
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            class: RcuPtr::null(),
        }
    }

    /// Creates the class, which is kept until the registration is dropped.
    ///
    /// # Context
    ///
    /// *may sleep*; one registration at a time.
    ///
    /// # Errors
    ///
    /// Those of [`Class::new`].
    pub fn register(&'static self) -> Result<Registration> {
        let class = Class::new(self.name)?;
        drop(self.class.replace(Some(KBox::new(class, GFP_KERNEL)?)));
        Ok(Registration(self))
    }

    /// Returns the class.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// [`ENODEV`] if there is none.
    pub fn get(&self) -> Result<Arc<Class>> {
        self.class.read().get().cloned().ok_or(ENODEV)
    }
}

/// Keeps the class of a module; dropping it *may sleep*.
pub struct Registration(&'static ModuleClass);

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.0.class.replace(None));
    }
}
