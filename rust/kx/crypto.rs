// SPDX-License-Identifier: GPL-2.0

//! Message authentication codes, from the kernel's crypto library.
//!
//! C header: [`include/crypto/sha2.h`](srctree/include/crypto/sha2.h)

use core::mem::MaybeUninit;
use ibtrs_bindings as bindings;

/// Bytes of an HMAC-SHA256.
pub const HMAC_SHA256_LEN: usize = 32;

/// Returns the HMAC-SHA256 (RFC 2104) of the concatenated `parts` with `key`.
///
/// Runs in a time that depends on the lengths only.
///
/// # Context
///
/// *any* except hard interrupts, because it may use vector registers. Uses a few hundred bytes of
/// stack.
pub fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; HMAC_SHA256_LEN] {
    let mut ctx = MaybeUninit::<bindings::hmac_sha256_ctx>::uninit();
    let mut mac = [0; HMAC_SHA256_LEN];
    // SAFETY: The context is valid for writes, the key for reads of its length.
    unsafe { bindings::hmac_sha256_init_usingrawkey(ctx.as_mut_ptr(), key.as_ptr(), key.len()) };
    for part in parts {
        // SAFETY: The context was initialised above, and the part is valid for reads of its length.
        unsafe { bindings::kx_hmac_sha256_update(ctx.as_mut_ptr(), part.as_ptr(), part.len()) };
    }
    // SAFETY: The context was initialised above and is not used after this call, which erases the
    // key material in it. `mac` has the length of the code.
    unsafe { bindings::hmac_sha256_final(ctx.as_mut_ptr(), mac.as_mut_ptr()) };
    mac
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_crypto)]
mod tests {
    use super::*;

    fn starts(mac: [u8; HMAC_SHA256_LEN]) -> [u8; 8] {
        core::array::from_fn(|i| mac[i])
    }

    /// Cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn hmac_of_the_standard() {
        let mac = hmac_sha256(&[0x0b; 20], &[b"Hi There"]);
        assert_eq!(starts(mac), 0xb034_4c61_d8db_3853_u64.to_be_bytes());
        let mac = hmac_sha256(b"Jefe", &[b"what do ya want for nothing?"]);
        assert_eq!(starts(mac), 0x5bdc_c146_bf60_754e_u64.to_be_bytes());
        let text = b"Test Using Larger Than Block-Size Key - Hash Key First";
        let mac = hmac_sha256(&[0xaa; 131], &[text]);
        assert_eq!(starts(mac), 0x60e4_3159_1ee0_b67f_u64.to_be_bytes());
    }

    #[test]
    fn parts_follow_one_another() {
        let whole = hmac_sha256(b"key", &[b"one two"]);
        assert_eq!(hmac_sha256(b"key", &[b"one", b"", b" two"]), whole);
        assert_ne!(hmac_sha256(b"key", &[b"two", b"one "]), whole);
        assert_ne!(hmac_sha256(b"kez", &[b"one two"]), whole);
    }
}
