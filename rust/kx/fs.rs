// SPDX-License-Identifier: GPL-2.0

//! Reading files of procfs and sysfs, for values that no kernel function returns.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! let mut text = [0; 64];
//! let len = kx::fs::read_once(c"/proc/sys/kernel/random/boot_id", &mut text)?;
//! let id = text.get(..len).unwrap_or_default().trim_ascii();
//! # let _ = id;
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/fs.h`](srctree/include/linux/fs.h)

use ibtrs_bindings as ours;
use kernel::{
    bindings,
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    task::might_sleep,
    types::NotThreadSafe, //
};

/// Makes the current thread look up paths as the first process does, while this value lives.
///
/// Kernel threads otherwise see an empty file system. Guards of one thread must be dropped in the
/// reverse order of their creation.
pub(crate) struct InitFs {
    former: *mut bindings::fs_struct,
    _thread: NotThreadSafe,
}

impl InitFs {
    pub(crate) fn enter() -> Self {
        Self {
            // SAFETY: The call changes only the current thread's own pointer. This thread undoes
            // that on drop, as the type is not `Send`.
            former: unsafe { ours::__override_init_fs() },
            _thread: NotThreadSafe,
        }
    }
}

impl Drop for InitFs {
    fn drop(&mut self) {
        // SAFETY: `former` is the result of the override that this thread made in `enter`.
        unsafe { ours::__revert_init_fs(self.former) };
    }
}

/// Reads once from the beginning of a file, whose path is looked up from the root of the first
/// process. Returns the number of bytes read, which is less than the length of the file if the file
/// is longer than `buf`, or if its file system returns fewer bytes at a time.
///
/// # Context
///
/// *may sleep*.
///
/// # Errors
///
/// `ENOENT` if there is no such file; other errors of opening and reading a file.
pub fn read_once(path: &CStr, buf: &mut [u8]) -> Result<usize> {
    might_sleep();
    let _fs = InitFs::enter();
    // CAST: A small number.
    let flags = bindings::O_RDONLY as c_int;
    // SAFETY: The path is a C string, and this function may sleep.
    let file = from_err_ptr(unsafe { bindings::filp_open(path.as_char_ptr(), flags, 0) })?;
    let mut pos = 0;
    // SAFETY: The file is open for reading, and the buffer is valid for writes of its length.
    let len = unsafe { bindings::kernel_read(file, buf.as_mut_ptr().cast(), buf.len(), &mut pos) };
    // SAFETY: `filp_open` has returned this reference, which ends here.
    unsafe { bindings::__fput_sync(file) };
    to_result(c_int::try_from(len).unwrap_or(0).min(0))?;
    // CAST: The length is not negative, as errors were returned above.
    Ok((len as usize).min(buf.len()))
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_fs)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there() -> Result {
        let mut buf = [0; 64];
        let len = read_once(c"/proc/sys/kernel/random/boot_id", &mut buf)?;
        // A UUID and a newline, the same each time.
        assert_eq!(len, 37);
        let mut again = [0; 8];
        assert_eq!(
            read_once(c"/proc/sys/kernel/random/boot_id", &mut again)?,
            8
        );
        assert_eq!(buf.get(..8), Some(&again[..]));
        assert_eq!(read_once(c"/proc/sys/kernel/none", &mut buf), Err(ENOENT));
        Ok(())
    }
}
