// SPDX-License-Identifier: GPL-2.0

//! The key exchange of suite 2, which derives a secret that stays unknown even if the shared key
//! becomes known later.

use super::{AuthError, HmacSha256, Key, KeyShare, KEY_LEN};

/// Label of the MAC that mixes the key and the agreed secret; as long as those of the proofs.
const SECRET: &[u8; 16] = b"ibtrs-1 secret  ";

/// X25519 (RFC 7748), in a time that does not depend on secrets.
pub trait X25519 {
    /// Writes a fresh random secret to `secret`, and returns its share.
    fn generate(&self, secret: &mut [u8; KEY_LEN]) -> KeyShare;

    /// Writes to `agreed` what `secret` and the share of the other side agree on. Returns `false`
    /// if that is zero, as with each share of low order: then everybody knows it.
    fn agree(&self, secret: &[u8; KEY_LEN], share: &KeyShare, agreed: &mut [u8; KEY_LEN]) -> bool;
}

/// The secret of one exchange, which takes the place of the key in all later proofs of the path.
///
/// It cannot be computed without the key, nor without one of the sides' own secrets, which both
/// erase when they have this one.
///
/// # Errors
///
/// [`AuthError::KeyShare`].
pub(super) fn mix(
    crypto: &(impl HmacSha256 + X25519),
    key: &Key,
    own: &Key,
    peers: &KeyShare,
) -> Result<Key, AuthError> {
    let mut agreed = Key::EMPTY;
    if !crypto.agree(own.as_bytes(), peers, agreed.bytes_mut()) {
        return Err(AuthError::KeyShare);
    }
    let parts: [&[u8]; 2] = [SECRET, agreed.as_bytes()];
    Ok(Key::new(crypto.hmac(key.as_bytes(), &parts)))
}
