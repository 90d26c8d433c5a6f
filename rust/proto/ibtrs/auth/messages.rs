// SPDX-License-Identifier: GPL-2.0

//! AUTH1 and AUTH2, the messages of the exchange on connection 0.

use super::{AuthError, KeyId, KeyShare, Suite, KEY_SHARE_LEN};
use crate::bytes::{message, Reader, Writer};
use crate::consts::MAX_SESSION_NAME;
use crate::errno::Errno;
use crate::name::{NameError, SessionName};

/// Bytes of a nonce in these messages.
pub const NONCE_LEN: usize = 32;
/// Bytes of a proof.
pub(super) const PROOF_LEN: usize = 32;
/// Bytes of AUTH1.
pub const AUTH1_LEN: usize = AUTH1_BODY + PROOF_LEN;
/// Bytes of AUTH2.
pub const AUTH2_LEN: usize = AUTH2_BODY + PROOF_LEN;

/// Bytes of AUTH1 before its proof.
pub const AUTH1_BODY: usize = 360;
/// Bytes of AUTH2 before its proof.
pub const AUTH2_BODY: usize = 72;

const TYPE_AUTH1: u16 = 5;
const TYPE_AUTH2: u16 = 6;
/// Bytes of the name field: one more than [`MAX_SESSION_NAME`], so that the next field is aligned.
const NAME_FIELD: usize = MAX_SESSION_NAME + 1;
/// Reserved bytes between the suite and the first field.
const HEAD_RESERVED: usize = 5;

/// AUTH1 without its proof: the client's claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Auth1<'a> {
    /// The id of the key that made the proof.
    pub key_id: KeyId,
    /// The session of the path.
    pub name: SessionName<'a>,
    /// Fresh random bytes.
    pub nonce: [u8; NONCE_LEN],
    /// The client's part of the key exchange, in suite 2.
    pub share: Option<KeyShare>,
}

impl<'a> Auth1<'a> {
    /// The message up to its proof.
    pub fn body(&self) -> [u8; AUTH1_BODY] {
        message(|w| {
            head(w, TYPE_AUTH1, self.suite());
            w.zeros(HEAD_RESERVED);
            w.put(self.key_id.wire());
            let name = self.name.as_bytes();
            w.put(name);
            w.zeros(NAME_FIELD.saturating_sub(name.len()));
            w.put(&self.nonce);
            w.put(&self.share.unwrap_or_default());
        })
    }

    /// The suite of the message.
    pub const fn suite(&self) -> Suite {
        suite_of(self.share.as_ref())
    }

    /// Decodes and checks the message; the caller checks its proof.
    ///
    /// # Errors
    ///
    /// The message has another length or type, a byte that must be zero and is not, or a suite,
    /// key id or name that is not valid.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, AuthError> {
        let (mut r, suite) = typed(bytes, AUTH1_LEN, TYPE_AUTH1)?;
        zeros(r.take(HEAD_RESERVED).ok_or(AuthError::Length)?)?;
        let key_id = r.array().ok_or(AuthError::Length)?;
        let field = r.take(NAME_FIELD).ok_or(AuthError::Length)?;
        let len = field
            .iter()
            .position(|&b| b == 0)
            .ok_or(AuthError::Name(NameError::NoNul))?;
        let (name, padding) = field.split_at_checked(len).ok_or(AuthError::Length)?;
        zeros(padding)?;
        let nonce = r.array().ok_or(AuthError::Length)?;
        let share = share(&mut r, suite)?;
        Ok(Self {
            key_id: KeyId::from_wire(key_id).ok_or(AuthError::KeyId)?,
            name: SessionName::new(name).map_err(AuthError::Name)?,
            nonce,
            share,
        })
    }
}

/// AUTH2 without its proof: the server's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Auth2 {
    /// The reason for which the server refuses the path of an authenticated client.
    pub refusal: Option<Errno>,
    /// Fresh random bytes.
    pub nonce: [u8; NONCE_LEN],
    /// The server's part of the key exchange, in suite 2.
    pub share: Option<KeyShare>,
}

impl Auth2 {
    /// The message up to its proof.
    pub fn body(&self) -> [u8; AUTH2_BODY] {
        message(|w| {
            head(w, TYPE_AUTH2, self.suite());
            w.zeros(1);
            w.u16(self.refusal.map_or(0, magnitude));
            w.zeros(HEAD_RESERVED - 3);
            w.put(&self.nonce);
            w.put(&self.share.unwrap_or_default());
        })
    }

    /// The suite of the message.
    pub const fn suite(&self) -> Suite {
        suite_of(self.share.as_ref())
    }

    /// Decodes and checks the message; the caller checks its proof.
    ///
    /// # Errors
    ///
    /// The message has another length or type, a byte that must be zero and is not, or a suite
    /// that is not valid.
    pub fn decode(bytes: &[u8]) -> Result<Self, AuthError> {
        let (mut r, suite) = typed(bytes, AUTH2_LEN, TYPE_AUTH2)?;
        zeros(r.take(1).ok_or(AuthError::Length)?)?;
        let refusal = match r.u16().ok_or(AuthError::Length)? {
            0 => None,
            number if number > Errno::MAX_IMM => return Err(AuthError::Reserved),
            number => Some(Errno::from_peer(number)),
        };
        zeros(r.take(HEAD_RESERVED - 3).ok_or(AuthError::Length)?)?;
        let nonce = r.array().ok_or(AuthError::Length)?;
        let share = share(&mut r, suite)?;
        Ok(Self {
            refusal,
            nonce,
            share,
        })
    }
}

/// The suite of a message with this share.
const fn suite_of(share: Option<&KeyShare>) -> Suite {
    match share {
        None => Suite::HmacSha256,
        Some(_) => Suite::X25519,
    }
}

fn head(w: &mut Writer<'_>, kind: u16, suite: Suite) {
    w.u16(kind);
    w.u8(suite.wire());
}

/// The number of an error on the wire; one that does not fit there becomes ECONNRESET.
fn magnitude(errno: Errno) -> u16 {
    match u16::try_from(errno.get()) {
        Ok(number) if number <= Errno::MAX_IMM => number,
        _ => Errno::ECONNRESET.to_imm(),
    }
}

/// Checks length and type of a message; returns a reader behind the suite, and the suite.
fn typed(bytes: &[u8], len: usize, due: u16) -> Result<(Reader<'_>, Suite), AuthError> {
    if bytes.len() != len {
        return Err(AuthError::Length);
    }
    let mut r = Reader::new(bytes);
    let kind = r.u16().ok_or(AuthError::Length)?;
    if kind != due {
        return Err(AuthError::Type(kind));
    }
    let suite = r.u8().ok_or(AuthError::Length)?;
    let suite = Suite::from_wire(suite).ok_or(AuthError::Suite(suite))?;
    Ok((r, suite))
}

/// Reads the field of the share, which suite 1 reserves.
fn share(r: &mut Reader<'_>, suite: Suite) -> Result<Option<KeyShare>, AuthError> {
    match suite {
        Suite::HmacSha256 => zeros(r.take(KEY_SHARE_LEN).ok_or(AuthError::Length)?).map(|()| None),
        Suite::X25519 => r.array().map(Some).ok_or(AuthError::Length),
    }
}

/// Checks reserved bytes. Only in these messages they must be zero, so each value has one encoding.
fn zeros(bytes: &[u8]) -> Result<(), AuthError> {
    if bytes.iter().all(|&b| b == 0) {
        Ok(())
    } else {
        Err(AuthError::Reserved)
    }
}
