// SPDX-License-Identifier: GPL-2.0

//! Little-endian fields in byte slices, without indexing.
//!
//! A [`Reader`] answers `None` where the input ends; a [`Writer`] remembers that something did
//! not fit. Both move forward only.

/// Takes fields from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that have not been taken yet.
    #[inline]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes `N` bytes as they are.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    /// Takes `n` bytes without copying them.
    #[inline]
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(head)
    }

    /// Passes over `n` bytes.
    #[inline]
    pub fn skip(&mut self, n: usize) -> Option<()> {
        self.take(n).map(|_| ())
    }

    /// Takes one byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }

    /// Takes a 16-bit field.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Takes a 32-bit field.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes a 64-bit field.
    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Puts fields one after the other into a slice.
///
/// A field that does not fit is dropped as a whole, and so is everything after it;
/// [`Writer::finish`] reports that.
#[derive(Debug)]
pub struct Writer<'a> {
    rest: &'a mut [u8],
    written: usize,
    overflow: bool,
}

impl<'a> Writer<'a> {
    /// Starts at the first byte of `buf`.
    #[inline]
    pub fn new(buf: &'a mut [u8]) -> Self {
        Self {
            rest: buf,
            written: 0,
            overflow: false,
        }
    }

    /// Puts bytes as they are.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        if self.overflow {
            return;
        }
        let buf = core::mem::take(&mut self.rest);
        match buf.split_at_mut_checked(bytes.len()) {
            Some((head, rest)) => {
                head.copy_from_slice(bytes);
                self.rest = rest;
                self.written = self.written.saturating_add(bytes.len());
            }
            None => self.overflow = true,
        }
    }

    /// Puts `n` zero bytes.
    #[inline]
    pub fn zeros(&mut self, n: usize) {
        if self.overflow {
            return;
        }
        let buf = core::mem::take(&mut self.rest);
        match buf.split_at_mut_checked(n) {
            Some((head, rest)) => {
                head.fill(0);
                self.rest = rest;
                self.written = self.written.saturating_add(n);
            }
            None => self.overflow = true,
        }
    }

    /// Puts one byte.
    #[inline]
    pub fn u8(&mut self, v: u8) {
        self.put(&[v]);
    }

    /// Puts a 16-bit field.
    #[inline]
    pub fn u16(&mut self, v: u16) {
        self.put(&v.to_le_bytes());
    }

    /// Puts a 32-bit field.
    #[inline]
    pub fn u32(&mut self, v: u32) {
        self.put(&v.to_le_bytes());
    }

    /// Puts a 64-bit field.
    #[inline]
    pub fn u64(&mut self, v: u64) {
        self.put(&v.to_le_bytes());
    }

    /// Number of bytes written, or `None` if a field did not fit.
    #[inline]
    pub const fn finish(self) -> Option<usize> {
        if self.overflow {
            None
        } else {
            Some(self.written)
        }
    }
}

/// Builds a zeroed array of `N` bytes and lets `fill` write its fields.
///
/// Bytes that `fill` leaves out stay zero: no uninitialised byte ever reaches the wire.
#[inline]
pub fn message<const N: usize>(fill: impl FnOnce(&mut Writer<'_>)) -> [u8; N] {
    let mut buf = [0u8; N];
    let mut w = Writer::new(&mut buf);
    fill(&mut w);
    debug_assert!(w.finish().is_some(), "message longer than its array");
    buf
}
