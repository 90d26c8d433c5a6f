// SPDX-License-Identifier: GPL-2.0

//! The buffer for the text of an attribute.

use kernel::{
    fmt,
    prelude::*, //
};

/// The text of an attribute, of at most a page less one byte.
///
/// # Invariants
///
/// `pos <= page.len()`
pub struct Buf<'a> {
    page: &'a mut [u8],
    pos: usize,
}

impl<'a> Buf<'a> {
    /// Starts at the beginning of a page, or of a part of one. Its last byte stays free for the
    /// terminator of a C string.
    pub(crate) fn new(page: &'a mut [u8]) -> Self {
        let (_last, page) = page.split_last_mut().unwrap_or((&mut 0, &mut []));
        // INVARIANT: Zero is not greater than any length.
        Self { page, pos: 0 }
    }

    /// Appends formatted text.
    ///
    /// # Errors
    ///
    /// [`ENOSPC`] if the page is full; the part that fits was appended.
    pub fn write(&mut self, args: fmt::Arguments<'_>) -> Result {
        fmt::Write::write_fmt(self, args).map_err(|_| ENOSPC)
    }

    /// Appends formatted text, and a newline.
    ///
    /// # Errors
    ///
    /// [`ENOSPC`] if the page is full; the part that fits was appended.
    pub fn line(&mut self, args: fmt::Arguments<'_>) -> Result {
        self.write(args)?;
        self.bytes(b"\n")
    }

    /// Appends bytes as they are.
    ///
    /// # Errors
    ///
    /// [`ENOSPC`] if the page is full; the part that fits was appended.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result {
        let room = self.page.get_mut(self.pos..).unwrap_or_default();
        let len = bytes.len().min(room.len());
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
        }
        // INVARIANT: `len` is no more than was left.
        self.pos += len;
        if len < bytes.len() {
            return Err(ENOSPC);
        }
        Ok(())
    }

    /// Returns the number of bytes written.
    pub fn len(&self) -> usize {
        self.pos
    }

    /// Returns whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.pos == 0
    }
}

impl fmt::Write for Buf<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.bytes(s.as_bytes()).map_err(|_| fmt::Error)
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_sysfs_buf)]
mod tests {
    use super::*;
    use kernel::page::PAGE_SIZE;

    #[test]
    fn stops_at_the_end() -> Result {
        let mut page = KBox::init(pin_init::init_zeroed::<[u8; PAGE_SIZE]>(), GFP_KERNEL)?;
        let mut buf = Buf::new(&mut *page);
        assert!(buf.is_empty());
        buf.line(fmt!("{} {}", 1, "two"))?;
        assert_eq!(buf.len(), 6);
        while buf.bytes(b"0123456789").is_ok() {}
        assert_eq!(buf.len(), PAGE_SIZE - 1);
        assert_eq!(buf.write(fmt!("x")), Err(ENOSPC));
        assert!(page.starts_with(b"1 two\n0123"));
        assert_eq!(page.last(), Some(&0));
        Ok(())
    }
}
