// SPDX-License-Identifier: GPL-2.0

//! Message authentication codes and key exchange, from the kernel's crypto library.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::crypto::{hmac_sha256, x25519, x25519_public, HAS_X25519};
//!
//! let tag = hmac_sha256(b"key", &[b"one part", b"and another"]);
//! if HAS_X25519 {
//!     let secret = kx::random::secret();
//!     let public = x25519_public(&secret).ok_or(EINVAL)?;
//!     let mut shared = [0; 32];
//!     if !x25519(&secret, &public, &mut shared) {
//!         return Err(EINVAL);
//!     }
//! }
//! # let _ = tag;
//! # Ok::<(), Error>(())
//! ```
//!
//! C headers: [`include/crypto/sha2.h`](srctree/include/crypto/sha2.h),
//! [`include/crypto/curve25519.h`](srctree/include/crypto/curve25519.h)

use core::mem::MaybeUninit;
use ibtrs_bindings as bindings;

/// Bytes of an HMAC-SHA256.
pub const HMAC_SHA256_LEN: usize = 32;
/// Bytes of each input and output of X25519.
pub const X25519_LEN: usize = 32;
/// Whether the kernel was built with X25519. If not, [`x25519_public`] and [`x25519`] always fail.
pub const HAS_X25519: bool = cfg!(CONFIG_CRYPTO_LIB_CURVE25519);

/// Returns the HMAC-SHA256 (RFC 2104) of the concatenated `parts` with `key`.
///
/// The running time depends only on the lengths.
///
/// # Context
///
/// *any* except hard interrupts, because it may use vector registers. Uses a few hundred bytes of
/// stack.
pub fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; HMAC_SHA256_LEN] {
    let mut ctx = MaybeUninit::<bindings::hmac_sha256_ctx>::uninit();
    let mut mac = [0; HMAC_SHA256_LEN];
    // SAFETY: The context is valid for writes, and the key for reads of its length.
    unsafe { bindings::hmac_sha256_init_usingrawkey(ctx.as_mut_ptr(), key.as_ptr(), key.len()) };
    for part in parts {
        // SAFETY: The context was initialised above, and the part is valid for reads of its length.
        unsafe { bindings::kx_hmac_sha256_update(ctx.as_mut_ptr(), part.as_ptr(), part.len()) };
    }
    // SAFETY: The context was initialised above and is not used after this call, which erases the
    // key material in it. `mac` has the length that the callee writes.
    unsafe { bindings::hmac_sha256_final(ctx.as_mut_ptr(), mac.as_mut_ptr()) };
    mac
}

/// Returns the X25519 public key (RFC 7748) of `secret`, which must be 32 random bytes. Returns
/// `None` if all bytes are zero, or without [`HAS_X25519`].
///
/// The running time does not depend on the secret; it is some 100 us on slow machines.
///
/// # Context
///
/// *may sleep*: the computation takes too long for atomic context. Uses up to 2 KiB of stack; the
/// kernel's library erases most of what depends on the secret there.
pub fn x25519_public(secret: &[u8; X25519_LEN]) -> Option<[u8; X25519_LEN]> {
    kernel::task::might_sleep();
    let mut public = [0; X25519_LEN];
    c::public(&mut public, secret).then_some(public)
}

/// Writes the result of the X25519 function of `secret` and the other side's `public` key to
/// `agreed`. Returns `false` if the result is zero, as it is for each public key of low order,
/// whatever the secret. Also returns `false` without [`HAS_X25519`].
///
/// The running time depends neither on the secret nor on the public key.
///
/// # Context
///
/// As [`x25519_public`].
#[must_use]
pub fn x25519(
    secret: &[u8; X25519_LEN],
    public: &[u8; X25519_LEN],
    agreed: &mut [u8; X25519_LEN],
) -> bool {
    kernel::task::might_sleep();
    c::agree(agreed, secret, public)
}

#[cfg(CONFIG_CRYPTO_LIB_CURVE25519)]
mod c {
    //! The C functions.

    use super::{
        bindings,
        X25519_LEN, //
    };

    pub(super) fn public(public: &mut [u8; X25519_LEN], secret: &[u8; X25519_LEN]) -> bool {
        // SAFETY: Both have the length that the callee requires, and `public` is valid for writes.
        unsafe { bindings::curve25519_generate_public(public.as_mut_ptr(), secret.as_ptr()) }
    }

    pub(super) fn agree(
        agreed: &mut [u8; X25519_LEN],
        secret: &[u8; X25519_LEN],
        public: &[u8; X25519_LEN],
    ) -> bool {
        // SAFETY: All three have the length that the callee requires, and `agreed` is valid for
        // writes.
        unsafe { bindings::curve25519(agreed.as_mut_ptr(), secret.as_ptr(), public.as_ptr()) }
    }
}

#[cfg(not(CONFIG_CRYPTO_LIB_CURVE25519))]
mod c {
    //! Replacements for functions that this kernel was built without.

    use super::X25519_LEN;

    pub(super) fn public(_: &mut [u8; X25519_LEN], _: &[u8; X25519_LEN]) -> bool {
        false
    }

    pub(super) fn agree(
        agreed: &mut [u8; X25519_LEN],
        _: &[u8; X25519_LEN],
        _: &[u8; X25519_LEN],
    ) -> bool {
        agreed.fill(0);
        false
    }
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

    /// Bytes from 64 digits.
    fn bytes(digits: &str) -> [u8; X25519_LEN] {
        let value = |digit: u8| match digit {
            b'a'..=b'f' => digit - b'a' + 10,
            _ => digit - b'0',
        };
        let digits = digits.as_bytes();
        core::array::from_fn(|i| value(digits[2 * i]) << 4 | value(digits[2 * i + 1]))
    }

    fn agree(secret: &str, public: &str) -> [u8; X25519_LEN] {
        let mut agreed = [0; X25519_LEN];
        assert_eq!(
            x25519(&bytes(secret), &bytes(public), &mut agreed),
            HAS_X25519
        );
        agreed
    }

    /// The expected result of X25519: zeros if the kernel was built without it.
    fn or_zero(agreed: &str) -> [u8; X25519_LEN] {
        match HAS_X25519 {
            true => bytes(agreed),
            false => [0; X25519_LEN],
        }
    }

    /// The vectors of RFC 7748, sections 5.2 and 6.1.
    #[test]
    fn x25519_of_the_standard() {
        for (secret, public, agreed) in [
            (
                "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
                "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
                "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
            ),
            (
                "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
                "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
                "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
            ),
        ] {
            assert_eq!(agree(secret, public), or_zero(agreed));
        }
        let alice = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a";
        let of_alice = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a";
        let bob = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb";
        let of_bob = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f";
        let both = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742";
        let made = |public| HAS_X25519.then(|| bytes(public));
        assert_eq!(x25519_public(&bytes(alice)), made(of_alice));
        assert_eq!(x25519_public(&bytes(bob)), made(of_bob));
        assert_eq!(agree(alice, of_bob), or_zero(both));
        assert_eq!(agree(bob, of_alice), or_zero(both));
    }

    /// Points of the orders 1, 2, 4 and 8, in several encodings.
    #[test]
    fn points_of_low_order_agree_on_nothing() {
        let secret = [0x77; X25519_LEN];
        for public in [
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0100000000000000000000000000000000000000000000000000000000000000",
            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "0000000000000000000000000000000000000000000000000000000000000080",
        ] {
            let mut agreed = [1; X25519_LEN];
            assert!(!x25519(&secret, &bytes(public), &mut agreed));
            assert_eq!(agreed, [0; X25519_LEN]);
        }
        assert_eq!(x25519_public(&[0; X25519_LEN]), None);
    }
}
