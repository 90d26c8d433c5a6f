// SPDX-License-Identifier: GPL-2.0

//! A keyring of the kernel, with keys that users load and only the kernel reads.
//!
//! C headers: [`include/linux/key.h`](srctree/include/linux/key.h),
//! [`include/keys/user-type.h`](srctree/include/keys/user-type.h)

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*, //
};

/// A key of any type, `struct key` in C.
///
/// # Invariants
///
/// A reference to the key belongs to this value.
struct Key(NonNull<bindings::key>);

impl Key {
    /// Takes over a reference, or the error in its place.
    ///
    /// # Safety
    ///
    /// `key` must be an error pointer, or a key with a reference that is given away.
    unsafe fn from_raw(key: *mut bindings::key) -> Result<Self> {
        // INVARIANT: By the requirement of this function the reference is now this value's.
        Ok(Self(NonNull::new(from_err_ptr(key)?).ok_or(ENOKEY)?))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: By the type invariant there is a reference, which this gives back.
        unsafe { bindings::key_put(self.0.as_ptr()) };
    }
}

/// A keyring with keys of the type `logon`, which the administrator fills and nobody but the
/// kernel can read.
///
/// It has the keys as long as this value lives: then it is revoked, also if somebody has linked it
/// elsewhere.
pub struct Keyring(Key);

// SAFETY: Keys belong to no task; their references are counted atomically.
unsafe impl Send for Keyring {}

// SAFETY: The functions of C that get the keyring from a shared reference lock what they change, or
// read it under RCU; what they access without either, a time stamp and a counter, are single words.
unsafe impl Sync for Keyring {}

impl Drop for Keyring {
    fn drop(&mut self) {
        // SAFETY: By the invariant of `Key` it is alive. This may sleep, as dropping a key may not
        // be counted on not to; the keyring is dropped where its module is unloaded.
        unsafe { bindings::key_revoke(self.0 .0.as_ptr()) };
    }
}

impl Keyring {
    /// Creates an empty keyring of that name, which the administrator finds in `/proc/keys`. Only
    /// names that begin with a dot are the kernel's alone.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]; those of security modules.
    pub fn new(name: &CStr) -> Result<Self> {
        // SAFETY: The name is a C string, which is copied. The reference that this returns is
        // given to the new value.
        let key = unsafe { Key::from_raw(ibtrs_bindings::kx_keyring_alloc(name.as_char_ptr())) };
        Ok(Self(key?))
    }

    /// Returns whether no key was put in; keys that have expired count until they are collected.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn is_empty(&self) -> bool {
        // SAFETY: By the invariant of `Key` it is alive, and it is a keyring by `Keyring::new`.
        unsafe { ibtrs_bindings::kx_keyring_is_empty(self.0 .0.as_ptr()) }
    }

    /// Reads the key with that description, which has exactly as many bytes as `secret`.
    ///
    /// # Context
    ///
    /// *may sleep*. It does not wait for memory, nor for tasks that change keys.
    ///
    /// # Errors
    ///
    /// - [`ENOKEY`]: there is none.
    /// - `EKEYEXPIRED`, `EKEYREVOKED`: it is not valid any more.
    /// - `EKEYREJECTED`: it has another length.
    /// - [`EACCES`] and others: a security module says so, or the key was made to fail.
    pub fn read(&self, description: &CStr, secret: &mut [u8]) -> Result {
        let (ring, text) = (self.0 .0.as_ptr(), description.as_char_ptr());
        // SAFETY: By the invariant of `Key` the keyring is alive, and the description is a C
        // string. The reference that this returns is given to the new value.
        let key = unsafe { Key::from_raw(ibtrs_bindings::kx_keyring_search(ring, text)) };
        let key = key.map_err(|error| match error {
            // The keyring has no such key, and nobody is asked for one.
            EAGAIN => ENOKEY,
            error => error,
        })?;
        let (to, len) = (secret.as_mut_ptr(), secret.len());
        // SAFETY: The key has the type `logon`, as the search looks for no other; its payload is
        // that of a user's key. `secret` is valid for writing its length.
        to_result(unsafe { ibtrs_bindings::kx_key_read(key.0.as_ptr(), to, len) })
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_keyring)]
mod tests {
    use super::*;

    #[test]
    fn is_empty_at_first() -> Result {
        let ring = Keyring::new(c".kx-test")?;
        assert!(ring.is_empty());
        let mut secret = [0; 32];
        assert_eq!(ring.read(c"kx:none", &mut secret), Err(ENOKEY));
        assert_eq!(secret, [0; 32]);
        Ok(())
    }
}
