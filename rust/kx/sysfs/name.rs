// SPDX-License-Identifier: GPL-2.0

//! Names of directories and links.

use kernel::{
    fmt,
    prelude::*,
    str::CString, //
};

/// The longest name that user space can look up.
const NAME_MAX: usize = 255;

/// Creates a name. A slash becomes `!`, as everywhere in sysfs.
///
/// # Errors
///
/// - [`EINVAL`] if the name is empty, `.` or `..`, or contains a NUL,
/// - [`ENAMETOOLONG`] if it has more than 255 bytes,
/// - [`ENOMEM`]
pub(super) fn make(args: fmt::Arguments<'_>) -> Result<CString> {
    let mut name = CString::try_from_fmt(args)?;
    match name.to_bytes() {
        b"" | b"." | b".." => return Err(EINVAL),
        bytes if bytes.len() > NAME_MAX => return Err(ENAMETOOLONG),
        bytes if !bytes.contains(&b'/') => return Ok(name),
        _ => {}
    }
    let mut bytes = KVec::with_capacity(name.to_bytes_with_nul().len(), GFP_KERNEL)?;
    bytes.extend_from_slice(name.to_bytes_with_nul(), GFP_KERNEL)?;
    for byte in bytes.iter_mut().filter(|byte| **byte == b'/') {
        *byte = b'!';
    }
    name = CString::try_from(CStr::from_bytes_with_nul(&bytes).map_err(|_| EINVAL)?)?;
    Ok(name)
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_sysfs_name)]
mod tests {
    use super::*;

    #[test]
    fn keeps_all_but_slashes() -> Result {
        assert_eq!(make(fmt!("ip:{}@x y", 1))?.to_bytes(), b"ip:1@x y");
        assert_eq!(make(fmt!("/dev/sda"))?.to_bytes(), b"!dev!sda");
        assert_eq!(make(fmt!("..."))?.to_bytes(), b"...");
        Ok(())
    }

    #[test]
    fn refuses_what_cannot_be_found() {
        for bad in ["", ".", "..", "a\0b"] {
            assert!(matches!(make(fmt!("{bad}")), Err(e) if e == EINVAL));
        }
        assert!(make(fmt!("{:255}", 1)).is_ok());
        assert!(matches!(make(fmt!("{:256}", 1)), Err(e) if e == ENAMETOOLONG));
    }
}
