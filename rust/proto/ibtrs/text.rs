// SPDX-License-Identifier: GPL-2.0

//! Values that users write to attributes.

use core::num::IntErrorKind;

use crate::errno::Errno;

/// Why a text is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextError {
    /// The text is not UTF-8, or has a control character.
    NotText,
    /// Not a number, or another value than the ones allowed.
    Value,
    /// A number out of range.
    Range,
}

impl TextError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotText => "not a line of text",
            Self::Value => "not one of the values allowed",
            Self::Range => "number out of range",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Range => Errno::ERANGE,
            _ => Errno::EINVAL,
        }
    }
}

/// Whether `c` separates words on a line: blank, tab, newline.
#[inline]
pub const fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n')
}

/// The text of a write, without blanks around it.
///
/// # Errors
///
/// When it is not UTF-8, or contains NUL or a control character other than tab and newline.
pub fn line(bytes: &[u8]) -> Result<&str, TextError> {
    let text = core::str::from_utf8(bytes).map_err(|_| TextError::NotText)?;
    if text.chars().any(|c| c.is_control() && !is_blank(c)) {
        return Err(TextError::NotText);
    }
    Ok(text.trim_matches(is_blank))
}

/// An unsigned number: decimal, or hexadecimal after `0x`, or octal after `0`.
///
/// # Errors
///
/// When it is empty or has other characters, or does not fit 64 bits.
pub fn number(bytes: &[u8]) -> Result<u64, TextError> {
    let text = line(bytes)?;
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (text.get(2..).unwrap_or(""), 16),
        [b'0', _, ..] => (text.get(1..).unwrap_or(""), 8),
        _ => (text, 10),
    };
    // `from_str_radix` would accept a sign.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(TextError::Value);
    }
    u64::from_str_radix(digits, radix).map_err(|e| match e.kind() {
        IntErrorKind::PosOverflow => TextError::Range,
        _ => TextError::Value,
    })
}

/// A decimal number of `min..=max`, with an optional minus sign.
///
/// # Errors
///
/// When it is not a number, or out of range.
pub fn decimal(bytes: &[u8], min: i64, max: i64) -> Result<i64, TextError> {
    let text = line(bytes)?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(TextError::Value);
    }
    match text.parse::<i64>() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(TextError::Range),
    }
}

/// Checks that a trigger attribute was written "1".
///
/// # Errors
///
/// For any other text.
pub fn one(bytes: &[u8]) -> Result<(), TextError> {
    match line(bytes)? {
        "1" => Ok(()),
        _ => Err(TextError::Value),
    }
}

/// Checks that a statistics attribute was written "0" or "1": both reset it.
///
/// # Errors
///
/// For any other text.
pub fn reset(bytes: &[u8]) -> Result<(), TextError> {
    match line(bytes)? {
        "0" | "1" => Ok(()),
        _ => Err(TextError::Value),
    }
}
