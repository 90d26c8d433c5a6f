// SPDX-License-Identifier: GPL-2.0

//! A device with a name in /dev.

use core::marker::PhantomData;
use kernel::{
    bindings,
    container_of,
    error::{
        from_result,
        to_result, //
    },
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::{
    ops::Vtable,
    FileOps, //
};

/// The object of a file that is opened by way of a device.
pub trait DeviceOps: FileOps {
    /// Data that all files of the device share.
    type Data: Send + Sync + 'static;

    /// A program opens the device.
    ///
    /// # Errors
    ///
    /// Any error, with which opening fails.
    fn open(data: &Self::Data) -> Result<Arc<Self>>;
}

/// A registered device. Dropping it removes the device; open files remain usable.
///
/// # Invariants
///
/// `misc` is registered, with the operations of this type.
#[repr(C)]
#[pin_data(PinnedDrop)]
pub struct Device<T: DeviceOps> {
    #[pin]
    misc: Opaque<bindings::miscdevice>,
    data: T::Data,
    _object: PhantomData<fn(T)>,
}

// SAFETY: A device may be removed by any task, and the data may be sent.
unsafe impl<T: DeviceOps> Send for Device<T> {}

// SAFETY: Shared references give access to the data only, which may be shared.
unsafe impl<T: DeviceOps> Sync for Device<T> {}

impl<T: DeviceOps> Device<T> {
    const OPENED: &'static bindings::file_operations = &bindings::file_operations {
        open: Some(Self::open),
        ..Vtable::<T>::operations()
    };

    /// Registers a device with this name and these permissions. Its owner is root, unless udev changes that.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// Errors of `misc_register`.
    pub fn new(name: &'static CStr, mode: u16, data: T::Data) -> impl PinInit<Self, Error> {
        // The data comes first: a program may open the device before registration has returned.
        try_pin_init!(Self {
            data,
            misc <- Opaque::try_ffi_init(move |slot: *mut bindings::miscdevice| {
                let misc = bindings::miscdevice {
                    // CAST: 255.
                    minor: bindings::MISC_DYNAMIC_MINOR as c_int,
                    name: name.as_char_ptr(),
                    fops: Self::OPENED,
                    mode,
                    ..pin_init::zeroed()
                };
                // SAFETY: `slot` is valid for writes.
                unsafe { slot.write(misc) };
                // INVARIANT: If this succeeds, the device is registered.
                // SAFETY: The struct is pinned, and is unregistered before it goes.
                to_result(unsafe { bindings::misc_register(slot) })
            }),
            _object: PhantomData,
        })
    }

    /// # Safety
    ///
    /// Called by `misc_open`, for a file of a device of this type, whose `private_data` is the device.
    unsafe extern "C" fn open(_inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        from_result(|| {
            // SAFETY: By this function's contract. `misc_open` holds the lock that unregistering takes, so
            // the device is valid during the call.
            let misc = unsafe { (*file).private_data.cast::<bindings::miscdevice>() };
            // SAFETY: The struct is the field of a `Device<T>`, by this function's contract.
            // CAST: `Opaque` is transparent.
            let device = unsafe { container_of!(misc.cast::<Opaque<_>>(), Self, misc) };
            // SAFETY: The field was initialised before the device was registered, and is only read.
            let object = T::open(unsafe { &(*device).data })?;
            // SAFETY: Nobody else uses a file that is being opened. The reference passes to it.
            unsafe { (*file).private_data = Arc::into_raw(object).cast_mut().cast() };
            // SAFETY: The file has these operations, and now its reference.
            unsafe { Vtable::<T>::set_up(file) };
            Ok(0)
        })
    }
}

#[pinned_drop]
impl<T: DeviceOps> PinnedDrop for Device<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant the device is registered.
        unsafe { bindings::misc_deregister(self.misc.get()) };
    }
}
