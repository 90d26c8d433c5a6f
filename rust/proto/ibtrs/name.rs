// SPDX-License-Identifier: GPL-2.0

//! Names of sessions and of devices.
//!
//! Both become names in sysfs and parts of log lines. In messages, both are NUL-terminated in a
//! field of 255 bytes, which leaves 254 bytes for the name. They are UTF-8 without blanks and
//! control characters.
//!
//! A client chooses the name of its session, which appears in the server's sysfs, log and uevents
//! and may reach scripts. So the name consists of ASCII letters, digits and `-_:@+`, none of which
//! is special to a shell, and does not begin with `-`, as options of commands do.

use crate::consts::MAX_SESSION_NAME;
use crate::errno::Errno;

/// Size of a device name's field on the wire, in bytes, with its closing NUL.
pub const MAX_DEVICE_NAME: usize = 255;

/// Why a name is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameError {
    /// No byte at all.
    Empty,
    /// More than 254 bytes.
    TooLong,
    /// A '/' or '.' in a session name.
    SlashOrDot,
    /// Another character that a session name must not have, or a leading '-'.
    Unsafe,
    /// A NUL, another control character, or a blank.
    NotPrintable,
    /// Not UTF-8.
    NotUtf8,
    /// A field on the wire without closing NUL.
    NoNul,
}

impl NameError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Empty => "name is empty",
            Self::TooLong => "name is longer than 254 bytes (255 with its NUL)",
            Self::SlashOrDot => "name contains '/' or '.'",
            Self::Unsafe => {
                "name has characters other than letters, digits and -_:@+, or begins with -"
            }
            Self::NotPrintable => "name contains a blank or a control character",
            Self::NotUtf8 => "name is not UTF-8",
            Self::NoNul => "name is not terminated by NUL",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::TooLong => Errno::ENAMETOOLONG,
            _ => Errno::EINVAL,
        }
    }
}

fn text(bytes: &[u8], max: usize) -> Result<&str, NameError> {
    if bytes.is_empty() {
        return Err(NameError::Empty);
    }
    if bytes.len() >= max {
        return Err(NameError::TooLong);
    }
    let text = core::str::from_utf8(bytes).map_err(|_| NameError::NotUtf8)?;
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(NameError::NotPrintable);
    }
    Ok(text)
}

/// Name of a session: 1 to 254 letters, digits and `-_:@+`, the first not `-`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionName<'a>(&'a str);

impl<'a> SessionName<'a> {
    /// Checks a name, given without NUL.
    ///
    /// # Errors
    ///
    /// See [`NameError`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, NameError> {
        let name = text(bytes, MAX_SESSION_NAME)?;
        if name.contains(['/', '.']) {
            return Err(NameError::SlashOrDot);
        }
        let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:@+".contains(&byte);
        if name.starts_with('-') || !name.bytes().all(safe) {
            return Err(NameError::Unsafe);
        }
        Ok(Self(name))
    }

    /// The name.
    pub const fn as_str(&self) -> &'a str {
        self.0
    }

    /// The name's bytes, without NUL.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0.as_bytes()
    }
}

/// Name of a device as the client asks for it: 1 to 254 bytes, any path.
///
/// The server decides what the name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DevicePath<'a>(&'a str);

impl<'a> DevicePath<'a> {
    /// Checks a name, given without NUL.
    ///
    /// # Errors
    ///
    /// See [`NameError`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, NameError> {
        text(bytes, MAX_DEVICE_NAME).map(Self)
    }

    /// The name.
    pub const fn as_str(&self) -> &'a str {
        self.0
    }

    /// The name's bytes, without NUL.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0.as_bytes()
    }
}
