// SPDX-License-Identifier: GPL-2.0

//! Authentication code that both sides use: the keyring, the parameter `auth`, and the message
//! authentication code (Documentation/authentication.md).
//!
//! The keyring `.ibtrs` has a key of the type `logon` for each key id of a session: 32 bytes, named
//! `ibtrs:ID:SESSION`. The keyring exists as long as this module is loaded.

use ibtrs_proto::{
    auth::{
        HmacSha256,
        Key,
        KeyId,
        Setting,
        KEY_LEN, //
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
    sync::{
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        Arc,
        SetOnce, //
    },
};
use kx::{
    keyring::Keyring,
    param::Param,
    sync::RcuPtr, //
};

/// The keyring, while the module is loaded.
static KEYRING: RcuPtr<Arc<Keyring>> = RcuPtr::null();

/// Whether a key has ever been seen in the keyring.
static HAD_KEYS: AtomicFlag = AtomicFlag::new(false);

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

/// Returns whether the keyring holds a key, for whichever session.
///
/// # Context
///
/// Any.
pub fn has_keys() -> bool {
    keyring().is_some_and(|keyring| !keyring.is_empty())
}

/// Returns whether the keyring holds a key, or held one at an earlier call.
///
/// # Context
///
/// Any.
pub fn had_keys() -> bool {
    // ORDERING: No other data depends on the flag.
    if has_keys() {
        HAD_KEYS.store(true, Relaxed);
    }
    HAD_KEYS.load(Relaxed)
}

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
pub fn key_has_gone(
    id: &KeyId,
    session: SessionName<'_>,
    is_same: impl FnOnce(&Key) -> bool,
) -> Option<Error> {
    let error = match find_key(id, session) {
        Ok(key) if is_same(&key) => return None,
        Ok(_) => EKEYREJECTED,
        Err(error) => error,
    };
    let gone = [ENOKEY, EKEYEXPIRED, EKEYREVOKED, EKEYREJECTED];
    gone.contains(&error).then_some(error)
}

/// The kernel's HMAC-SHA256.
pub struct Mac;

impl HmacSha256 for Mac {
    fn hmac(&self, key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; 32] {
        kx::crypto::hmac_sha256(key, parts)
    }
}

/// The parameter `auth`: auto, none, optional or required.
pub struct AuthParam(SetOnce<Setting>);

impl AuthParam {
    /// Declares the parameter; it defaults to `auto`.
    pub const fn new() -> Self {
        Self(SetOnce::new())
    }

    /// Returns the setting.
    pub fn get(&self) -> Setting {
        self.0.copy().unwrap_or_default()
    }
}

impl Default for AuthParam {
    fn default() -> Self {
        Self::new()
    }
}

impl Param for AuthParam {
    const TYPE: &'static str = "string";

    fn set(&self, arg: &BStr) -> Result {
        let setting = Setting::parse(arg).ok_or(EINVAL)?;
        match self.0.populate(setting) {
            true => Ok(()),
            false => Err(EEXIST),
        }
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        fmt::Write::write_str(f, self.get().as_str())
    }
}
