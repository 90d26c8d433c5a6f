// SPDX-License-Identifier: GPL-2.0

//! Files without a name.

use core::ptr::NonNull;
use ibtrs_bindings as ours;
use kernel::{
    bindings,
    error::from_err_ptr,
    fs::{
        file::FileDescriptorReservation,
        File, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use super::{
    ops::Vtable,
    FileOps, //
};

/// A file that the calling program does not have yet. It is released if it is dropped.
pub struct NewFile {
    fd: FileDescriptorReservation,
    file: ARef<File>,
}

impl NewFile {
    /// Makes a file for reading and writing that is closed by `execve`; with `is_nonblock`, it does not make
    /// its users wait. `name` is for /proc/PID/fd.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, [`ENOMEM`]. The object is not released then.
    pub fn new<T: FileOps>(name: &'static CStr, object: Arc<T>, is_nonblock: bool) -> Result<Self> {
        let flags = bindings::O_RDWR
            | bindings::O_CLOEXEC
            | match is_nonblock {
                true => bindings::O_NONBLOCK,
                false => 0,
            };
        let fd = FileDescriptorReservation::get_unused_fd_flags(flags)?;
        let object = Arc::into_raw(object);
        // SAFETY: The name is a C string. The operations are those of files with objects of this type, and
        // static, and the reference passes to the file. CAST: C's type for pointers to anything; flags.
        let file = from_err_ptr(unsafe {
            ours::anon_inode_getfile(
                name.as_char_ptr(),
                Vtable::<T>::MADE,
                object.cast_mut().cast(),
                flags as c_int,
            )
        });
        let file = match file {
            Ok(file) => file,
            Err(e) => {
                // SAFETY: There is no file, so the reference is still this function's.
                drop(unsafe { Arc::from_raw(object) });
                return Err(e);
            }
        };
        // SAFETY: The file is new, with these operations and a reference.
        unsafe { Vtable::<T>::set_up(file) };
        let file = NonNull::new(file).ok_or(ENOMEM)?;
        Ok(Self {
            fd,
            // SAFETY: `anon_inode_getfile` has returned a reference, which this value owns from now on.
            // CAST: `File` is transparent.
            file: unsafe { ARef::from_raw(file.cast()) },
        })
    }

    /// Gives the file to the calling program. Returns its number.
    pub fn install(self) -> usize {
        let fd = self.fd.reserved_fd();
        self.fd.fd_install(self.file);
        // CAST: Lossless.
        fd as usize
    }
}
