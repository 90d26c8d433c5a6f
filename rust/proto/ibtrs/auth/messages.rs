// SPDX-License-Identifier: GPL-2.0

//! AUTH1 and AUTH2, the messages of the exchange on connection 0.

use super::{AuthError, KeyId, Suite};
use crate::bytes::{message, Reader};
use crate::consts::MAX_SESSION_NAME;
use crate::name::{NameError, SessionName};

/// Bytes of a nonce in these messages.
pub const NONCE_LEN: usize = 32;
/// Bytes of a share: of zeros where the suite has none.
pub const SHARE_LEN: usize = 32;
/// Bytes of a proof.
pub(super) const PROOF_LEN: usize = 32;
/// Bytes of AUTH1.
pub const AUTH1_LEN: usize = AUTH1_BODY + PROOF_LEN;
/// Bytes of AUTH2.
pub const AUTH2_LEN: usize = AUTH2_BODY + PROOF_LEN;

/// Bytes of AUTH1 before its proof.
pub(super) const AUTH1_BODY: usize = 360;
/// Bytes of AUTH2 before its proof.
pub(super) const AUTH2_BODY: usize = 72;

const TYPE_AUTH1: u16 = 5;
const TYPE_AUTH2: u16 = 6;
/// The field of the name, with one byte more than [`MAX_SESSION_NAME`] to keep what follows even.
const NAME_FIELD: usize = MAX_SESSION_NAME + 1;

/// What a client says of itself, without its proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Auth1<'a> {
    /// The suite of the acceptance.
    pub suite: Suite,
    /// Names the key that the proof is made with.
    pub key_id: KeyId,
    /// The session that the path is for.
    pub name: SessionName<'a>,
    /// Fresh random bytes.
    pub nonce: [u8; NONCE_LEN],
    /// The public value of a fresh secret, or zeros.
    pub share: [u8; SHARE_LEN],
}

impl<'a> Auth1<'a> {
    /// The message but for its proof.
    pub(super) fn body(&self) -> [u8; AUTH1_BODY] {
        message(|w| {
            w.u16(TYPE_AUTH1);
            w.u8(self.suite.wire());
            w.zeros(5);
            w.put(self.key_id.wire());
            let name = self.name.as_bytes();
            w.put(name);
            w.zeros(NAME_FIELD.saturating_sub(name.len()));
            w.put(&self.nonce);
            w.put(&self.share);
        })
    }

    /// Reads and checks all but the proof.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, AuthError> {
        let mut r = typed(bytes, AUTH1_LEN, TYPE_AUTH1)?;
        let suite = r.u8().ok_or(AuthError::Short)?;
        r.skip(5).ok_or(AuthError::Short)?;
        let key_id = r.array().ok_or(AuthError::Short)?;
        let field = r.take(NAME_FIELD).ok_or(AuthError::Short)?;
        let len = field
            .iter()
            .position(|&b| b == 0)
            .ok_or(AuthError::Name(NameError::NoNul))?;
        let name = field.get(..len).ok_or(AuthError::Short)?;
        Ok(Self {
            suite: Suite::from_wire(suite).ok_or(AuthError::Suite(suite))?,
            key_id: KeyId::from_wire(key_id).ok_or(AuthError::KeyId)?,
            name: SessionName::new(name).map_err(AuthError::Name)?,
            nonce: r.array().ok_or(AuthError::Short)?,
            share: r.array().ok_or(AuthError::Short)?,
        })
    }
}

/// What a server answers, without its proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Auth2 {
    /// The suite of the acceptance.
    pub suite: Suite,
    /// Fresh random bytes.
    pub nonce: [u8; NONCE_LEN],
    /// The public value of a fresh secret, or zeros.
    pub share: [u8; SHARE_LEN],
}

impl Auth2 {
    /// The message but for its proof.
    pub(super) fn body(&self) -> [u8; AUTH2_BODY] {
        message(|w| {
            w.u16(TYPE_AUTH2);
            w.u8(self.suite.wire());
            w.zeros(5);
            w.put(&self.nonce);
            w.put(&self.share);
        })
    }

    /// Reads and checks all but the proof.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, AuthError> {
        let mut r = typed(bytes, AUTH2_LEN, TYPE_AUTH2)?;
        let suite = r.u8().ok_or(AuthError::Short)?;
        r.skip(5).ok_or(AuthError::Short)?;
        Ok(Self {
            suite: Suite::from_wire(suite).ok_or(AuthError::Suite(suite))?,
            nonce: r.array().ok_or(AuthError::Short)?,
            share: r.array().ok_or(AuthError::Short)?,
        })
    }
}

/// What follows the type of a message that has exactly `len` bytes.
fn typed(bytes: &[u8], len: usize, due: u16) -> Result<Reader<'_>, AuthError> {
    let mut r = Reader::new(bytes.get(..len).ok_or(AuthError::Short)?);
    match r.u16() {
        Some(kind) if kind == due => Ok(r),
        Some(kind) => Err(AuthError::Type(kind)),
        None => Err(AuthError::Short),
    }
}
