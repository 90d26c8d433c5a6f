// SPDX-License-Identifier: GPL-2.0

//! Shared keys and their text form.
//!
//! The text of a key is `ibtrs-key-1:ID:KEY:CHECK`. `KEY` is the 32 bytes as 64 lower-case
//! hexadecimal digits; `CHECK` is the CRC-32C of the text before the last colon, as eight of them.
//! The checksum reveals a truncated or mistyped key when it is loaded, before the peer refuses it.

use crate::bytes::message;
use crate::consts::MAX_SESSION_NAME;
use crate::name::SessionName;
use core::fmt;

/// Bytes of a share of the key exchange.
pub const KEY_SHARE_LEN: usize = 32;

/// One side's part of the key exchange, an X25519 public key. Not secret.
pub type KeyShare = [u8; KEY_SHARE_LEN];

/// Bytes of a key.
pub const KEY_LEN: usize = 32;
/// Bytes of an id on the wire, without a terminating NUL: zeros pad a shorter id.
const ID_LEN: usize = 32;

const PREFIX: &[u8] = b"ibtrs-key-1:";
const KEY_DIGITS: usize = 2 * KEY_LEN;
const CHECK_DIGITS: usize = 8;
/// Bytes of the longest text of a key.
pub const KEY_TEXT_LEN: usize = PREFIX.len() + ID_LEN + 1 + KEY_DIGITS + 1 + CHECK_DIGITS;

const DESCRIPTION: &[u8] = b"ibtrs:";
/// Bytes of the longest description of a key in a keyring, with the closing NUL, which
/// [`MAX_SESSION_NAME`] includes.
pub const DESCRIPTION_LEN: usize = DESCRIPTION.len() + ID_LEN + 1 + MAX_SESSION_NAME;

/// Why the text of a key is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyError {
    /// The text does not begin with `ibtrs-key-1:`.
    Prefix,
    /// The id is empty, too long, or has other characters than letters, digits and `-_.@`.
    Id,
    /// The key is not 64 lower-case hexadecimal digits.
    Digits,
    /// The checksum does not match the text.
    Check,
}

impl KeyError {
    /// One line for the operator.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Prefix => "a key begins with ibtrs-key-1:",
            Self::Id => "a key id is 1 to 32 letters, digits and -_.@",
            Self::Digits => "a key is 64 lower-case hexadecimal digits",
            Self::Check => "the checksum of the key is wrong: a part is missing or was changed",
        }
    }
}

/// Names a key: 1 to 32 ASCII letters, digits and `-_.@`. The id is not secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyId([u8; ID_LEN]);

/// The id of a session's key unless the operator names another one.
const DEFAULT_ID: &[u8] = b"default";

impl Default for KeyId {
    fn default() -> Self {
        Self(message(|w| w.put(DEFAULT_ID)))
    }
}

impl KeyId {
    /// Checks an id, given without padding; `None` if it is invalid.
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut padded = [0; ID_LEN];
        let (head, _) = padded.split_at_mut_checked(id.len())?;
        head.copy_from_slice(id);
        Self::from_wire(padded)
    }

    /// Checks the field of a message; `None` if the id is invalid.
    pub fn from_wire(field: [u8; ID_LEN]) -> Option<Self> {
        let id = Self(field);
        let (text, padding) = field.split_at_checked(id.len())?;
        let safe = |b: &u8| b.is_ascii_alphanumeric() || b"-_.@".contains(b);
        (!text.is_empty() && text.iter().all(safe) && padding.iter().all(|&b| b == 0)).then_some(id)
    }

    /// The id as the field of a message, padded with zeros.
    pub const fn wire(&self) -> &[u8; ID_LEN] {
        &self.0
    }

    /// The id's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.get(..self.len()).unwrap_or_default()
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        // Cannot fail: an id is ASCII.
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The description of the key with this id in a keyring, `ibtrs:ID:SESSION`, followed by at
    /// least one zero.
    pub fn description(&self, session: SessionName<'_>) -> [u8; DESCRIPTION_LEN] {
        message(|w| {
            w.put(DESCRIPTION);
            w.put(self.as_bytes());
            w.put(b":");
            w.put(session.as_bytes());
        })
    }

    fn len(&self) -> usize {
        self.0.iter().position(|&b| b == 0).unwrap_or(ID_LEN)
    }
}

/// A key, or another secret of its size. `Debug` does not show it, and dropping it erases it.
#[derive(Clone)]
pub struct Key([u8; KEY_LEN]);

impl Key {
    /// Place for a secret.
    pub(super) const EMPTY: Self = Self([0; KEY_LEN]);

    /// Creates a key of these bytes.
    pub const fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// Creates a key whose bytes `read` writes in place, so that no other copy is left in memory.
    ///
    /// # Errors
    ///
    /// The error of `read`.
    pub fn read_with<E>(read: impl FnOnce(&mut [u8; KEY_LEN]) -> Result<(), E>) -> Result<Self, E> {
        let mut key = Self([0; KEY_LEN]);
        read(&mut key.0)?;
        Ok(key)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// The bytes, to be written in place.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8; KEY_LEN] {
        &mut self.0
    }

    /// Erases the bytes.
    pub(super) fn erase(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from removing the stores above, which nothing reads.
        core::hint::black_box(&self.0);
    }

    /// Parses the text of a key, which may end with a newline.
    ///
    /// # Errors
    ///
    /// See [`KeyError`].
    pub fn parse(text: &[u8]) -> Result<(KeyId, Self), KeyError> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let rest = text.strip_prefix(PREFIX).ok_or(KeyError::Prefix)?;
        let colon = rest.iter().position(|&b| b == b':').ok_or(KeyError::Id)?;
        let (id, rest) = rest.split_at_checked(colon).ok_or(KeyError::Id)?;
        let id = KeyId::new(id).ok_or(KeyError::Id)?;
        let digits = rest.get(1..).ok_or(KeyError::Digits)?;
        let (digits, check) = digits
            .split_at_checked(KEY_DIGITS)
            .ok_or(KeyError::Digits)?;
        let key = Self(from_hex(digits).ok_or(KeyError::Digits)?);
        let check = check.strip_prefix(b":").ok_or(KeyError::Check)?;
        let said = u32::from_be_bytes(from_hex(check).ok_or(KeyError::Check)?);
        let checked = text.len().saturating_sub(CHECK_DIGITS).saturating_sub(1);
        if crc32c(text.get(..checked).ok_or(KeyError::Check)?) != said {
            return Err(KeyError::Check);
        }
        Ok((id, key))
    }

    /// Writes the text of a key named `id`, without newline, to the front of `buf`, and returns
    /// its length.
    pub fn write(&self, id: &KeyId, buf: &mut [u8; KEY_TEXT_LEN]) -> usize {
        let mut text = crate::bytes::Writer::new(buf);
        text.put(PREFIX);
        text.put(id.as_bytes());
        text.put(b":");
        for byte in self.0 {
            text.put(&to_hex(byte));
        }
        let checked = text.finish().unwrap_or(0);
        let check = crc32c(buf.get(..checked).unwrap_or_default());
        let mut rest = crate::bytes::Writer::new(buf.get_mut(checked..).unwrap_or_default());
        rest.put(b":");
        for byte in check.to_be_bytes() {
            rest.put(&to_hex(byte));
        }
        // It fits: an id has at most as many bytes as KEY_TEXT_LEN counts for it.
        checked.saturating_add(rest.finish().unwrap_or(0))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.erase();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

const fn to_hex(byte: u8) -> [u8; 2] {
    [digit(byte >> 4), digit(byte & 15)]
}

const fn digit(value: u8) -> u8 {
    if value < 10 {
        b'0'.wrapping_add(value)
    } else {
        b'a'.wrapping_add(value.wrapping_sub(10))
    }
}

const fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit.wrapping_sub(b'0')),
        b'a'..=b'f' => Some(digit.wrapping_sub(b'a').wrapping_add(10)),
        _ => None,
    }
}

/// Decodes `N` bytes from exactly `2 * N` digits.
fn from_hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let mut pairs = digits.chunks_exact(2);
    for byte in &mut bytes {
        let &[high, low] = pairs.next()? else {
            return None;
        };
        *byte = value(high)? << 4 | value(low)?;
    }
    (pairs.next().is_none() && pairs.remainder().is_empty()).then_some(bytes)
}

/// CRC-32C (Castagnoli), bit by bit: keys are read rarely.
fn crc32c(bytes: &[u8]) -> u32 {
    const REVERSED: u32 = 0x82F6_3B78;
    let step = |crc: u32, _| {
        if crc & 1 == 1 {
            crc >> 1 ^ REVERSED
        } else {
            crc >> 1
        }
    };
    let crc = bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), step)
    });
    !crc
}
