// SPDX-License-Identifier: GPL-2.0

//! Devices of a class.

use core::{
    ptr,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    device,
    error::to_result,
    fmt,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::{
    attr::{
        Attr,
        Data, //
    },
    class::{
        Claim,
        Class, //
    },
    name,
    node::{
        Core,
        InSysfs,
        Node, //
    }, //
};

/// The action that a uevent reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Something about it changed.
    Change,
    /// It can be used again.
    Online,
    /// It cannot be used for some time.
    Offline,
}

/// Tells user space that something happened to a kobject.
///
/// # Errors
///
/// [`ENOMEM`], also if there are too many variables.
///
/// # Safety
///
/// `kobj` must be valid, and have been added at some time.
pub(crate) unsafe fn send_uevent(
    kobj: *mut bindings::kobject,
    action: Action,
    variables: &[&CStr],
) -> Result {
    let mut envp: KVec<*mut c_char> = KVec::with_capacity(variables.len() + 1, GFP_KERNEL)?;
    for variable in variables {
        envp.push(variable.as_char_ptr().cast_mut(), GFP_KERNEL)?;
    }
    envp.push(ptr::null_mut(), GFP_KERNEL)?;
    let action = match action {
        Action::Change => bindings::kobject_action_KOBJ_CHANGE,
        Action::Online => bindings::kobject_action_KOBJ_ONLINE,
        Action::Offline => bindings::kobject_action_KOBJ_OFFLINE,
    };
    // SAFETY: The kobject is valid by the function's requirement; the array ends with a null
    // pointer, and C only reads the strings.
    to_result(unsafe { bindings::kobject_uevent_env(kobj, action, envp.as_mut_ptr()) })
}

/// A device without hardware: `/sys/devices/virtual/<class>/<name>`, with files for a `P`.
///
/// Dropping it waits for the functions of its files, and removes whatever is below it from sysfs.
///
/// # Invariants
///
/// `core` points to a device that was added and not deleted, whose data is `data`; one reference to
/// it belongs to this value.
pub struct Device<P> {
    core: NonNull<Core<bindings::device>>,
    /// Boxed, so that its place does not change.
    data: KBox<P>,
    /// Keeps the class too. Behind the device, which is deleted before this is dropped.
    _claim: Claim,
}

// SAFETY: A device belongs to no task, and the data is `Send`.
unsafe impl<P: Send + Sync> Send for Device<P> {}

// SAFETY: The device core has locks of its own, and the data is `Sync`.
unsafe impl<P: Send + Sync> Sync for Device<P> {}

impl<P: Data> Device<P> {
    /// Creates a device with files, and then tells user space. In the name a slash becomes `!`.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`], [`ENAMETOOLONG`] for a name that is none,
    /// - [`EEXIST`] if the class has a device of that name,
    /// - [`ENOMEM`]
    pub fn new(
        class: &Arc<Class>,
        name: fmt::Arguments<'_>,
        data: P,
        attrs: &'static [Attr<P>],
    ) -> Result<Self> {
        let name = name::make(name)?;
        let claim = class.claim(&name)?;
        let data = KBox::new(data, GFP_KERNEL)?;
        let core = new_core(&*data, class)?;
        // SAFETY: The core was just made.
        let dev = unsafe { core.as_ref() }.obj.get();
        // SAFETY: The device is initialised, and the format takes one string.
        let added = to_result(unsafe {
            bindings::dev_set_name(dev, c"%s".as_char_ptr(), name.as_char_ptr())
        })
        .and_then(|()| {
            // No event before there are files.
            // SAFETY: The device is initialised, and nobody else's yet.
            unsafe { ibtrs_bindings::dev_set_uevent_suppress(dev, 1) };
            // SAFETY: The device is initialised, and has name and class.
            to_result(unsafe { bindings::device_add(dev) })
        });
        if let Err(error) = added {
            // SAFETY: This is the only reference.
            unsafe { bindings::put_device(dev) };
            return Err(error);
        }
        // INVARIANT: The device was added, and its initial reference becomes the result's.
        let device = Self {
            core,
            data,
            _claim: claim,
        };
        let node = device.node();
        node.create_files(attrs)?;
        // SAFETY: The device is valid; its events are only sent from here until it is returned.
        unsafe { ibtrs_bindings::dev_set_uevent_suppress(dev, 0) };
        // SAFETY: The device was added. An error means that no program got the uevent, which is no
        // reason to fail.
        unsafe { bindings::kobject_uevent(node.kobj(), bindings::kobject_action_KOBJ_ADD) };
        Ok(device)
    }

    /// The reference to the data.
    pub fn data(&self) -> &P {
        &self.data
    }

    /// The name of the device.
    pub fn name(&self) -> &CStr {
        // The kernel crate's type stays private: a reference to it that outlives the class would
        // have its name printed. SAFETY: By the type invariant the device is valid while `self` is.
        let device: &device::Device =
            unsafe { device::Device::from_raw(self.core.as_ref().obj.get()) };
        device.name()
    }

    /// Tells user space that something happened, with variables (`KEY=value`).
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], also if there are too many variables.
    pub fn uevent(&self, action: Action, variables: &[&CStr]) -> Result {
        // SAFETY: By the type invariant the device was added.
        unsafe { send_uevent(self.node().kobj(), action, variables) }
    }
}

impl<P> Device<P> {
    fn node(&self) -> &Node {
        // SAFETY: By the type invariant the core is valid.
        unsafe { &self.core.as_ref().node }
    }
}

// SAFETY: By the type invariant the device was added and is not deleted before `self` is dropped.
unsafe impl<P> InSysfs for Device<P> {
    fn with_kobject<R, F>(&self, func: F) -> Result<R>
    where
        F: FnOnce(*mut bindings::kobject) -> Result<R>,
    {
        func(self.node().kobj())
    }
}

impl<P> Drop for Device<P> {
    fn drop(&mut self) {
        self.node().close();
        // SAFETY: By the type invariant the device was added. This waits for the functions of
        // files, so that nobody uses the data any more.
        unsafe { bindings::device_del(self.core.as_ref().obj.get()) };
        // SAFETY: By the type invariant the reference is this value's, which does not use the core
        // any more.
        unsafe { bindings::put_device(self.core.as_ref().obj.get()) };
    }
}

/// Creates a device that was not added, for files with these data.
///
/// Its only reference is the caller's.
fn new_core<P: Data>(data: &P, class: &Class) -> Result<NonNull<Core<bindings::device>>> {
    let core = KBox::pin_init::<Error>(
        try_pin_init!(&this in Core {
            obj <- Opaque::ffi_init(|dev: *mut bindings::device| {
                // SAFETY: The memory is nobody's yet; zeros are what C expects.
                unsafe { dev.write_bytes(0, 1) };
                // SAFETY: As above.
                unsafe { bindings::device_initialize(dev) };
                // SAFETY: The fields are ours to set before the device is added. The class stays
                // registered until the device was deleted.
                unsafe {
                    (*dev).class = class.as_raw();
                    (*dev).release = Some(release);
                }
            }),
            // SAFETY: The kobject is the first field of the device, which is the first field of
            // what is around it; `Device` keeps the data until it has deleted that.
            node <- unsafe { Node::new(this.as_ptr().cast(), data) },
        }? Error),
        GFP_KERNEL,
    )?;
    // SAFETY: Freed by `release` as a box again, and never moved.
    let core = unsafe { Pin::into_inner_unchecked(core) };
    Ok(NonNull::from(KBox::leak(core)))
}

/// Called by C when the last reference to a device was put.
///
/// # Safety
///
/// `dev` must be part of a core made by [`new_core`], and not be used afterwards.
unsafe extern "C" fn release(dev: *mut bindings::device) {
    // CAST: The device is the first field of a `repr(C)` struct.
    // SAFETY: By the function's requirement.
    drop(unsafe { KBox::from_raw(dev.cast::<Core<bindings::device>>()) });
}

// The cast in `new_core` relies on this.
kernel::static_assert!(core::mem::offset_of!(bindings::device, kobj) == 0);
