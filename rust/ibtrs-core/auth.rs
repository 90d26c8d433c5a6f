// SPDX-License-Identifier: GPL-2.0

//! Authentication code that both sides use: the keyring, the parameters `auth` and `auth_suites`,
//! and the cryptography (Documentation/authentication.md).
//!
//! The keyring `.ibtrs` has a key of the type `logon` for each key id of a session: 32 bytes, named
//! `ibtrs:ID:SESSION`. The keyring exists as long as this module is loaded.

use ibtrs_proto::{
    auth::{
        HmacSha256,
        Key,
        KeyId,
        KeyShare,
        Setting,
        Suite,
        Suites,
        KEY_LEN,
        X25519, //
    },
    name::SessionName, //
};
use kernel::{
    fmt,
    prelude::*,
    str::{
        BStr,
        CStr,
        Formatter, //
    },
    sync::Arc, //
};
use kx::{
    keyring::Keyring,
    param::{
        Last,
        Param, //
    },
    sync::RcuPtr, //
};

/// The keyring, while the module is loaded.
static KEYRING: RcuPtr<Arc<Keyring>> = RcuPtr::null();

/// Publishes the keyring; dropping it revokes the keyring.
pub(crate) struct Registration(());

impl Registration {
    /// Creates an empty keyring.
    pub(crate) fn new() -> Result<Self> {
        // Even the first nonce must be random.
        kx::random::wait_seeded()?;
        let keyring = Arc::new(Keyring::new(c".ibtrs")?, GFP_KERNEL)?;
        KEYRING.replace(Some(KBox::new(keyring, GFP_KERNEL)?));
        Ok(Self(()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(KEYRING.replace(None));
    }
}

fn keyring() -> Option<Arc<Keyring>> {
    KEYRING.read().get().cloned()
}

/// Returns whether the keyring holds a key, regardless of the session.
///
/// # Context
///
/// Any.
pub fn has_keys() -> bool {
    keyring().is_some_and(|keyring| !keyring.is_empty())
}

/// Returns whether the keyring holds a key, or held one since this module was loaded.
///
/// # Context
///
/// Any.
pub fn had_keys() -> bool {
    keyring().is_some_and(|keyring| keyring.had_keys())
}

/// The errors of an unusable key: it is not loaded, has expired, was revoked, or is not the one of the peer.
pub const KEY_ERRORS: [Error; 4] = [ENOKEY, EKEYEXPIRED, EKEYREVOKED, EKEYREJECTED];

/// Returns the key `id` of `session`.
///
/// # Context
///
/// May sleep, but never waits for memory reclaim.
///
/// # Errors
///
/// `ENOKEY`: there is no such key; `EKEYEXPIRED`, `EKEYREVOKED`: the key is no longer valid;
/// `EKEYREJECTED`: the key is not 32 bytes long.
pub fn find_key(id: &KeyId, session: SessionName<'_>) -> Result<Key> {
    let keyring = keyring().ok_or(ENOKEY)?;
    let description = id.description(session);
    let text = CStr::from_bytes_until_nul(&description).map_err(|_| EINVAL)?;
    Key::read_with(|bytes| keyring.read(text, bytes))
}

/// Returns why `session` no longer has the key `id` for which `is_same` holds: an error of
/// [`find_key`], or `EKEYREJECTED` if another key has the id. Returns `None` if the session still
/// has the key, or if the look-up fails for another reason.
///
/// # Context
///
/// As [`find_key`].
pub fn key_vanished(
    id: &KeyId,
    session: SessionName<'_>,
    is_same: impl FnOnce(&Key) -> bool,
) -> Option<Error> {
    let error = match find_key(id, session) {
        Ok(key) if is_same(&key) => return None,
        Ok(_) => EKEYREJECTED,
        Err(error) => error,
    };
    KEY_ERRORS.contains(&error).then_some(error)
}

/// The kernel's HMAC-SHA256, and its X25519, which is for contexts that may sleep.
pub struct Crypto;

/// The suites that the kernel can compute.
const COMPUTABLE: Suites = match kx::crypto::HAS_X25519 {
    true => Suites::ALL,
    false => Suites::only(Suite::HmacSha256),
};

impl HmacSha256 for Crypto {
    fn hmac(&self, key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; 32] {
        kx::crypto::hmac_sha256(key, parts)
    }
}

impl X25519 for Crypto {
    fn generate(&self, secret: &mut [u8; KEY_LEN]) -> KeyShare {
        kx::random::fill(secret);
        // Only a secret of zeros has no share (suite 2 is in use only if the kernel has X25519); the
        // peer would refuse the zeros that are sent instead.
        kx::crypto::x25519_public(secret).unwrap_or_default()
    }

    fn agree(&self, secret: &[u8; KEY_LEN], share: &KeyShare, agreed: &mut [u8; KEY_LEN]) -> bool {
        kx::crypto::x25519(secret, share, agreed)
    }
}

/// A value of a [`WordParam`].
pub trait Word: Copy + Send + Sync + 'static {
    /// The value unless the operator chooses another one.
    const DEFAULT: Self;

    /// Returns the value that `word` names.
    ///
    /// # Errors
    ///
    /// `EINVAL`: none; `EOPNOTSUPP`: one that this kernel cannot have.
    fn parse(word: &[u8]) -> Result<Self>;

    /// The word.
    fn as_str(self) -> &'static str;
}

impl Word for Setting {
    const DEFAULT: Self = Self::Auto;

    fn parse(word: &[u8]) -> Result<Self> {
        Self::parse(word).ok_or(EINVAL)
    }

    fn as_str(self) -> &'static str {
        self.as_str()
    }
}

impl Word for Suites {
    const DEFAULT: Self = Self::ALL;

    fn parse(word: &[u8]) -> Result<Self> {
        let suites = Self::parse(word).ok_or(EINVAL)?;
        if suites.and(COMPUTABLE) == Self::NONE {
            pr_err!(
                "auth_suites: this kernel was built without X25519: use hmac, or a kernel with CONFIG_CRYPTO_LIB_CURVE25519, which CONFIG_WIREGUARD selects\n"
            );
            return Err(EOPNOTSUPP);
        }
        Ok(suites)
    }

    fn as_str(self) -> &'static str {
        self.as_str()
    }
}

/// A parameter that takes one of several words.
pub struct WordParam<T: Word>(Last<T>);

/// The parameter `auth`: auto, none, optional or required.
pub type AuthParam = WordParam<Setting>;

/// The parameter `auth_suites`: any, x25519 or hmac.
pub type SuitesParam = WordParam<Suites>;

impl<T: Word> WordParam<T> {
    /// Declares the parameter with its default.
    pub const fn new() -> Self {
        Self(Last::new())
    }

    /// Returns the value.
    pub fn get(&self) -> T {
        self.0.get().copied().unwrap_or(T::DEFAULT)
    }
}

impl SuitesParam {
    /// Returns the suites that the operator allows and this kernel can compute. The parameter itself
    /// keeps the operator's choice, which may be saved and used on another kernel.
    pub fn usable(&self) -> Suites {
        self.get().and(COMPUTABLE)
    }
}

impl<T: Word> Default for WordParam<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Word> Param for WordParam<T> {
    const TYPE: &'static str = "string";

    fn set(&self, arg: &BStr) -> Result {
        self.0.set(T::parse(arg)?)
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        fmt::Write::write_str(f, self.get().as_str())
    }
}
