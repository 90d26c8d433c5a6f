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

/// A class: the directory `/sys/class/<name>`, removed after the last of its devices.
///
/// # Invariants
///
/// `class` was registered, and this value owns it.
#[pin_data(PinnedDrop)]
pub struct Class {
    class: NonNull<bindings::class>,
    /// The names of devices, from before a device is added until it is deleted.
    #[pin]
    names: Mutex<KVec<CString>>,
}

// SAFETY: A class has no thread affinity.
unsafe impl Send for Class {}

// SAFETY: A class never changes, except for fields that the device core protects with its locks.
unsafe impl Sync for Class {}

impl Class {
    /// Registers a class.
    ///
    /// # Errors
    ///
    /// - [`EEXIST`] if there is a class of that name,
    /// - [`ENOMEM`]
    pub fn new(name: &'static CStr) -> Result<Arc<Self>> {
        might_sleep();
        // SAFETY: The name is a static C string, and this function may sleep.
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
            // SAFETY: The class was just registered, and nobody else uses it.
            unsafe { bindings::class_destroy(class.as_ptr()) }
        })
    }

    /// Claims a name for a device.
    ///
    /// The device core would also refuse a name in use, but with a warning meant for developers.
    ///
    /// # Errors
    ///
    /// - [`EEXIST`] if a device has the name,
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
        // SAFETY: By the type invariant this value owns the class. Its devices were deleted, as
        // each `Device` holds a reference to this value until then, in its `Claim`.
        unsafe { bindings::class_destroy(self.class.as_ptr()) }
    }
}

/// The claim of a device to its name, which no other device of the class can have.
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

/// The class of a module: a `static` from which every object with a directory gets the class.
///
/// # Examples
///
/// ```
/// # use kernel::{prelude::*, sync::Arc};
/// use kx::sysfs::{Class, ModuleClass, Registration};
///
/// static CLASS: ModuleClass = ModuleClass::new(c"example");
///
/// /// The module keeps the result until it is unloaded.
/// fn init() -> Result<Registration> {
///     CLASS.register()
/// }
///
/// fn class_of_a_new_device() -> Result<Arc<Class>> {
///     CLASS.get()
/// }
/// ```
pub struct ModuleClass {
    name: &'static CStr,
    class: RcuPtr<Arc<Class>>,
}

impl ModuleClass {
    /// Creates a slot for the class `name`.
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            class: RcuPtr::null(),
        }
    }

    /// Creates the class, which exists until the registration is dropped.
    ///
    /// # Context
    ///
    /// *may sleep*; one registration at a time.
    ///
    /// # Errors
    ///
    /// Errors of [`Class::new`].
    pub fn register(&'static self) -> Result<Registration> {
        let class = Class::new(self.name)?;
        drop(self.class.replace(Some(KBox::new(class, GFP_KERNEL)?)));
        Ok(Registration(self))
    }

    /// Returns the class of the module.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Errors
    ///
    /// [`ENODEV`] if the class is not registered.
    pub fn get(&self) -> Result<Arc<Class>> {
        self.class.read().get().cloned().ok_or(ENODEV)
    }
}

/// Keeps the class of a module registered; dropping it *may sleep*.
pub struct Registration(&'static ModuleClass);

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.0.class.replace(None));
    }
}
