// SPDX-License-Identifier: GPL-2.0

//! A line of text in a fixed buffer.

use core::fmt::{
    self,
    Write, //
};

/// Maximum length of a line, in bytes.
const LEN: usize = 160;

/// A line of text, truncated if it is too long.
///
/// # Invariants
///
/// The first `len` bytes are whole characters.
#[derive(Clone, Copy)]
pub struct Text {
    bytes: [u8; LEN],
    len: usize,
}

impl Text {
    /// The empty line.
    pub const EMPTY: Self = Self {
        bytes: [0; LEN],
        len: 0,
    };

    /// Formats a line.
    ///
    /// # Context
    ///
    /// Any.
    pub fn new(args: fmt::Arguments<'_>) -> Self {
        let mut text = Self::EMPTY;
        // An error means that the line was truncated.
        let _ = text.write_fmt(args);
        text
    }

    /// Returns the line.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or(&[]);
        core::str::from_utf8(bytes).unwrap_or("")
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        // Under the lock of a ring, each change is compared with each other one.
        self.len == other.len && self.bytes.get(..self.len) == other.bytes.get(..other.len)
    }
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = LEN - self.len;
        let mut take = s.len().min(room);
        while !s.is_char_boundary(take) {
            take -= 1;
        }
        let (Some(to), Some(from)) = (
            self.bytes.get_mut(self.len..self.len + take),
            s.as_bytes().get(..take),
        ) else {
            return Err(fmt::Error);
        };
        to.copy_from_slice(from);
        // INVARIANT: The added text ends with a whole character.
        self.len += take;
        if take < s.len() {
            return Err(fmt::Error);
        }
        Ok(())
    }
}
