// SPDX-License-Identifier: GPL-2.0

//! What both sides authenticate with: the keyring, the parameter `auth`, and the code
//! (Documentation/authentication.md).
//!
//! The keyring `.ibtrs` has a key of the type `logon` for each key id of a session, named
//! `ibtrs:ID:SESSION`, of 32 bytes. It exists as long as this module is loaded.

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
        CString,
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

/// A key was seen in it.
static HAD_KEYS: AtomicFlag = AtomicFlag::new(false);

/// Keeps the keyring.
pub(crate) struct Registration(());

impl Registration {
    /// Creates the keyring, which is empty.
    pub(crate) fn new() -> Result<Self> {
        // Nonces are to be random from the first one on.
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

/// Returns whether a key is loaded, of whatever session.
///
/// # Context
///
/// Any.
pub fn has_keys() -> bool {
    keyring().is_some_and(|keyring| !keyring.is_empty())
}

/// Returns whether a key is loaded, or was when somebody asked before.
///
/// # Context
///
/// Any.
pub fn had_keys() -> bool {
    // ORDERING: Nothing else depends on it.
    if has_keys() {
        HAD_KEYS.store(true, Relaxed);
    }
    HAD_KEYS.load(Relaxed)
}

/// Returns the key of that id for a session.
///
/// # Context
///
/// May sleep. Allocates a few hundred bytes.
///
/// # Errors
///
/// `ENOKEY`: there is none; `EKEYEXPIRED`, `EKEYREVOKED`: it is not valid any more; `EKEYREJECTED`:
/// it does not have 32 bytes; `ENOMEM`.
pub fn find_key(id: &KeyId, session: SessionName<'_>) -> Result<Key> {
    let keyring = keyring().ok_or(ENOKEY)?;
    let (id, session) = (id.as_str(), session.as_str());
    let description = CString::try_from_fmt(fmt!("ibtrs:{id}:{session}"))?;
    Key::read_with(|bytes| keyring.read(&description, bytes))
}

/// The kernel's HMAC-SHA256.
pub struct Mac;

impl HmacSha256 for Mac {
    fn hmac(&self, key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; 32] {
        kx::crypto::hmac_sha256(key, parts)
    }
}

/// A message of the exchange of up to `N` bytes, from its arrival until it is handled. Bytes beyond
/// these are left out: the buffers that messages arrive in have none.
#[derive(Clone, Copy)]
pub struct Message<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Message<N> {
    /// Copies a message.
    pub fn new(message: &[u8]) -> Self {
        let mut bytes = [0; N];
        bytes
            .iter_mut()
            .zip(message)
            .for_each(|(to, from)| *to = *from);
        Self {
            bytes,
            len: message.len().min(N),
        }
    }

    /// The message.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The parameter `auth`: auto, none, optional or required.
pub struct AuthParam(SetOnce<Setting>);

impl AuthParam {
    /// Declares the parameter, which is auto unless it is given.
    pub const fn new() -> Self {
        Self(SetOnce::new())
    }

    /// The value.
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
