// SPDX-License-Identifier: GPL-2.0

//! A kernel keyring: users load keys into it, and only the kernel reads them.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::keyring::Keyring;
//!
//! let keys = Keyring::new(c".example")?;
//! let mut secret = [0; 32];
//! // `ENOKEY` if the administrator has added no such key.
//! keys.read(c"example:host", &mut secret)?;
//! # Ok::<(), Error>(())
//! ```
//!
//! C headers: [`include/linux/key.h`](srctree/include/linux/key.h),
//! [`include/keys/user-type.h`](srctree/include/keys/user-type.h)

use crate::sync::atomic::{
    AtomicFlag,
    Relaxed, //
};
use core::{
    ffi::c_int,
    ptr::NonNull, //
};
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
/// This value owns a reference to the key.
struct Key(NonNull<bindings::key>);

impl Key {
    /// Takes over a reference; an error pointer becomes its error.
    ///
    /// # Safety
    ///
    /// `key` must be an error pointer, or a key whose reference passes to the result.
    unsafe fn from_raw(key: *mut bindings::key) -> Result<Self> {
        // INVARIANT: By this function's contract, the new value owns the reference.
        Ok(Self(NonNull::new(from_err_ptr(key)?).ok_or(ENOKEY)?))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, this value owns a reference, which ends here.
        unsafe { bindings::key_put(self.0.as_ptr()) };
    }
}

/// A keyring with keys of the type `logon`, which the administrator loads and only the kernel can
/// read.
///
/// Dropping this value revokes the keyring, even if it is linked elsewhere, and *may sleep*.
///
/// # Invariants
///
/// The key is a keyring.
pub struct Keyring(Key);

// SAFETY: Keys have no thread affinity, and their references are counted atomically.
unsafe impl Send for Keyring {}

// SAFETY: The C functions that get the keyring from a shared reference lock what they change, or
// read it under RCU, except a counter and two time stamps. The counter is one word, read with
// `READ_ONCE()`. The time stamps have two words on 32-bit machines, so a task may see half of an
// update. Nothing reads `last_used_at`, and no pointer or length depends on `expiry`: a torn value
// makes the search find an expired key, or miss a valid one.
unsafe impl Sync for Keyring {}

impl Drop for Keyring {
    fn drop(&mut self) {
        // SAFETY: The key is alive by the invariant of `Key`, as the field is dropped after this.
        unsafe { bindings::key_revoke(self.0 .0.as_ptr()) };
    }
}

/// Whether a key was ever linked to a keyring.
static HAD_KEYS: AtomicFlag = AtomicFlag::new(false);

/// Called by the kernel before it links a key to a keyring; allows it, and uses none of the pointers.
extern "C" fn note_key(
    _keyring: *mut bindings::key,
    _type: *const bindings::key_type,
    _payload: *const bindings::key_payload,
    _other: *mut bindings::key,
) -> c_int {
    // ORDERING: No other data depends on the flag.
    HAD_KEYS.store(true, Relaxed);
    0
}

impl Keyring {
    /// Creates an empty keyring named `name`, as `/proc/keys` shows it. Only the kernel can create
    /// keyrings whose names begin with a dot.
    ///
    /// # Context
    ///
    /// *may sleep*.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]; errors of security modules.
    pub fn new(name: &CStr) -> Result<Self> {
        let check = Some(note_key as unsafe extern "C" fn(_, _, _, _) -> _);
        // SAFETY: The callee copies the name, a C string. The kernel calls `note_key`, which accepts
        // any arguments, only while the keyring is not revoked, and with its semaphore held. `drop`
        // revokes the keyring, which takes the semaphore, before this module can be unloaded. The
        // new value takes over the reference that the callee returns.
        let key =
            unsafe { Key::from_raw(ibtrs_bindings::kx_keyring_alloc(name.as_char_ptr(), check)) };
        // INVARIANT: `keyring_alloc()` returns a keyring.
        Ok(Self(key?))
    }

    /// Returns whether the keyring has no key. Expired keys count until the kernel has collected
    /// them.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn is_empty(&self) -> bool {
        // SAFETY: By the invariants, the key is alive and a keyring, so it has the counter to read.
        unsafe { ibtrs_bindings::kx_keyring_is_empty(self.0 .0.as_ptr()) }
    }

    /// Returns whether a key was ever linked to this keyring, or to another one of this module, even
    /// if it was removed since.
    ///
    /// # Context
    ///
    /// *any*.
    pub fn had_keys(&self) -> bool {
        // ORDERING: No other data depends on the flag.
        HAD_KEYS.load(Relaxed)
    }

    fn find(&self, description: &CStr) -> Result<Key> {
        let (ring, text) = (self.0 .0.as_ptr(), description.as_char_ptr());
        // SAFETY: By the invariants, the key is alive and a keyring; the description is a C string.
        // The new value takes over the reference that the callee returns.
        let key = unsafe { Key::from_raw(ibtrs_bindings::kx_keyring_search(ring, text)) };
        key.map_err(|error| match error {
            // The keyring has no such key, and the kernel does not request one from user space.
            EAGAIN => ENOKEY,
            error => error,
        })
    }

    /// Copies the payload of the key `description` to `secret`, which must have the same length.
    ///
    /// # Context
    ///
    /// *may sleep*, but waits neither for memory reclaim nor for tasks that change keys.
    ///
    /// # Errors
    ///
    /// - [`ENOKEY`]: there is no such key.
    /// - `EKEYEXPIRED`, `EKEYREVOKED`: the key is no longer valid.
    /// - `EKEYREJECTED`: the key has another length.
    /// - [`EACCES`] and others: a security module denies access, or the key was rejected with that
    ///   error.
    pub fn read(&self, description: &CStr, secret: &mut [u8]) -> Result {
        let key = self.find(description)?;
        let (to, len) = (secret.as_mut_ptr(), secret.len());
        // SAFETY: `find` searches for keys of the type `logon` only, whose payload is a `struct
        // user_key_payload`. `secret` is valid for writes of its length.
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

    #[test]
    fn a_key_is_noted_before_it_is_linked() -> Result {
        let ring = Keyring::new(c".kx-test")?;
        let null = core::ptr::null_mut();
        let before = HAD_KEYS.load(Relaxed);
        let allowed = note_key(null, core::ptr::null(), core::ptr::null(), null);
        assert!(allowed == 0 && ring.had_keys());
        // For the server, there was none.
        HAD_KEYS.store(before, Relaxed);
        Ok(())
    }
}
