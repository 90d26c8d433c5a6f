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

/// The action of a uevent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The object has changed.
    Change,
    /// The object can be used again.
    Online,
    /// The object cannot be used for some time.
    Offline,
}

/// Sends a uevent of a kobject.
///
/// # Context
///
/// *may sleep*.
///
/// # Errors
///
/// [`ENOMEM`], also for too many variables.
///
/// # Safety
///
/// `kobj` must be valid, must have been added, and must not be deleted during the call.
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
    // SAFETY: The kobject is as required by this function's contract. The array ends with a null
    // pointer, and the callee only reads the strings.
    to_result(unsafe { bindings::kobject_uevent_env(kobj, action, envp.as_mut_ptr()) })
}

/// A device without hardware: the directory `/sys/devices/virtual/<class>/<name>`, with files for a
/// `P`.
///
/// Dropping it waits for the functions of its files, and removes everything below it from sysfs.
///
/// # Invariants
///
/// `core` points to a device that was added and not deleted, whose data is `data`; this value owns
/// one reference to it.
pub struct Device<P> {
    core: NonNull<Core<bindings::device>>,
    /// Boxed, so that its address does not change.
    data: KBox<P>,
    /// Keeps the name and the class until the drop of this value has deleted the device.
    _claim: Claim,
}

// SAFETY: A device has no thread affinity, and the data is `Send`.
unsafe impl<P: Send + Sync> Send for Device<P> {}

// SAFETY: The device core has its own locks, and the data is `Sync`.
unsafe impl<P: Send + Sync> Sync for Device<P> {}

impl<P: Data> Device<P> {
    /// Creates a device with files, and then sends the uevent `add`. A slash in the name becomes
    /// `!`.
    ///
    /// # Errors
    ///
    /// - [`EINVAL`], [`ENAMETOOLONG`] for an invalid name,
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
        // SAFETY: The core was just created, so the pointer is valid.
        let dev = unsafe { core.as_ref() }.obj.get();
        // SAFETY: The device is initialised, and the format takes one string.
        let added = to_result(unsafe {
            bindings::dev_set_name(dev, c"%s".as_char_ptr(), name.as_char_ptr())
        })
        .and_then(|()| {
            // User space gets no event before the files exist.
            // SAFETY: The device is initialised, and nobody else uses it yet.
            unsafe { ibtrs_bindings::dev_set_uevent_suppress(dev, 1) };
            // SAFETY: The device is initialised, and has a name and a class.
            to_result(unsafe { bindings::device_add(dev) })
        });
        if let Err(error) = added {
            // SAFETY: This function owns the reference that `new_core` returned, which ends here.
            unsafe { bindings::put_device(dev) };
            return Err(error);
        }
        // INVARIANT: The device was added, and the result owns its initial reference.
        let device = Self {
            core,
            data,
            _claim: claim,
        };
        let node = device.node();
        // SAFETY: `new_core` has created the node for a `P`. The device was added above, and only
        // dropping `device` deletes it.
        unsafe { node.create_files(attrs) }?;
        // SAFETY: The device is valid, and only this task sends events for it before this function
        // returns.
        unsafe { ibtrs_bindings::dev_set_uevent_suppress(dev, 0) };
        // An error means that no program received the uevent, which is no reason to fail.
        // SAFETY: The device was added, and is deleted only when `device` is dropped.
        unsafe { bindings::kobject_uevent(node.kobj(), bindings::kobject_action_KOBJ_ADD) };
        Ok(device)
    }

    /// Returns the reference to the data.
    pub fn data(&self) -> &P {
        &self.data
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &CStr {
        // The kernel crate's type is not exposed: an `ARef` of it could outlive the class, whose
        // name the kernel reads when it prints the device.
        // SAFETY: By the type invariant the device is valid as long as `self`.
        let device: &device::Device =
            unsafe { device::Device::from_raw(self.core.as_ref().obj.get()) };
        device.name()
    }

    /// Sends a uevent of the device, with variables (`KEY=value`).
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], also for too many variables.
    pub fn uevent(&self, action: Action, variables: &[&CStr]) -> Result {
        // SAFETY: By the type invariant the device was added, and is not deleted before `self` is
        // dropped.
        unsafe { send_uevent(self.node().kobj(), action, variables) }
    }
}

impl<P> Device<P> {
    fn node(&self) -> &Node {
        // SAFETY: By the type invariant this value owns a reference to the device, so the core is
        // valid.
        unsafe { &self.core.as_ref().node }
    }
}

// SAFETY: By the type invariant the device was added, and is not deleted before `self` is dropped.
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
        // SAFETY: By the type invariant the device was added and not deleted. The call waits for
        // the functions of files, so nobody uses the data afterwards.
        unsafe { bindings::device_del(self.core.as_ref().obj.get()) };
        // SAFETY: By the type invariant this value owns the reference. It does not use the core any
        // more.
        unsafe { bindings::put_device(self.core.as_ref().obj.get()) };
    }
}

/// Creates a device that is not added yet, for files with this data.
///
/// The caller owns its only reference.
fn new_core<P: Data>(data: &P, class: &Class) -> Result<NonNull<Core<bindings::device>>> {
    let core = KBox::pin_init::<Error>(
        try_pin_init!(&this in Core {
            obj <- Opaque::ffi_init(|dev: *mut bindings::device| {
                // SAFETY: `dev` is valid for writes, and nobody else uses it yet. The callee below
                // expects zeroes.
                unsafe { dev.write_bytes(0, 1) };
                // SAFETY: As above.
                unsafe { bindings::device_initialize(dev) };
                // The caller keeps the class registered until the device was deleted, see `Claim`.
                // SAFETY: These fields may be set before the device is added.
                unsafe {
                    (*dev).class = class.as_raw();
                    (*dev).release = Some(release);
                }
            }),
            // SAFETY: The kobject is the first field of the device, which is the first field of the
            // core; `Device` keeps the data until it has deleted the device.
            node <- unsafe { Node::new(this.as_ptr().cast(), data) },
        }? Error),
        GFP_KERNEL,
    )?;
    // SAFETY: The core is not moved: `release` makes a box of it again, and drops it in place.
    let core = unsafe { Pin::into_inner_unchecked(core) };
    Ok(NonNull::from(KBox::leak(core)))
}

/// Called by the kernel when the last reference to a device was dropped.
///
/// # Safety
///
/// `dev` must be part of a core created by [`new_core`], and must not be used afterwards.
unsafe extern "C" fn release(dev: *mut bindings::device) {
    // CAST: The device is the first field of a `repr(C)` struct.
    // SAFETY: By this function's contract `new_core` has leaked the box, and nobody uses it any
    // more.
    drop(unsafe { KBox::from_raw(dev.cast::<Core<bindings::device>>()) });
}

// Required by the cast in `new_core`.
kernel::static_assert!(core::mem::offset_of!(bindings::device, kobj) == 0);
