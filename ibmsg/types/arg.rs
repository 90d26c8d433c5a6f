// SPDX-License-Identifier: GPL-2.0

//! Structures that ioctls take.

use kernel::{
    prelude::*,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

/// The longest structure that a later version may have.
const MAX_SIZE: usize = 4096;

/// A structure of `N` bytes in the memory of the calling program, and a copy of it. It begins with its size,
/// which may be greater if nothing but zeroes follows.
pub(crate) struct Arg<const N: usize> {
    at: UserPtr,
    bytes: [u8; N],
}

impl<const N: usize> Arg<N> {
    /// Reads the structure at an address.
    ///
    /// # Errors
    ///
    /// [`EFAULT`]; [`EINVAL`] for a size that is too small, [`E2BIG`] for fields that this version does not
    /// know.
    pub(crate) fn read(address: usize) -> Result<Self> {
        let at = UserPtr::from_addr(address);
        let mut size = [0; 4];
        UserSlice::new(at, 4).reader().read_slice(&mut size)?;
        // Lossless.
        let len = u32::from_ne_bytes(size) as usize;
        if len < N {
            return Err(EINVAL);
        }
        if len > MAX_SIZE {
            return Err(E2BIG);
        }
        let mut bytes = [0; N];
        let mut reader = UserSlice::new(at, len).reader();
        reader.read_slice(&mut bytes)?;
        // What counts is the size that was checked, whatever is there now.
        if let Some(first) = bytes.first_chunk_mut() {
            *first = size;
        }
        while !reader.is_empty() {
            let mut rest = [0; 32];
            let len = reader.len().min(rest.len());
            let rest = rest.get_mut(..len).ok_or(E2BIG)?;
            reader.read_slice(rest)?;
            if rest.iter().any(|byte| *byte != 0) {
                return Err(E2BIG);
            }
        }
        Ok(Self { at, bytes })
    }

    /// The fields, after the size.
    pub(crate) fn fields(&self) -> Bytes<'_> {
        Bytes(self.bytes.get(4..).unwrap_or(&[]))
    }

    /// Replaces the bytes from `offset` on in the program's memory.
    ///
    /// # Errors
    ///
    /// [`EFAULT`]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result {
        UserSlice::new(self.at.wrapping_byte_add(offset), bytes.len())
            .writer()
            .write_slice(bytes)
    }
}

/// Fields of a structure, one after the other.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next `len` bytes.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if there are fewer.
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(EINVAL)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(EINVAL)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// The next 16 bits.
    ///
    /// # Errors
    ///
    /// As [`Bytes::take`].
    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_ne_bytes(self.array()?))
    }

    /// The next 32 bits.
    ///
    /// # Errors
    ///
    /// As [`Bytes::take`].
    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_ne_bytes(self.array()?))
    }

    /// The next 64 bits.
    ///
    /// # Errors
    ///
    /// As [`Bytes::take`].
    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_ne_bytes(self.array()?))
    }

    /// An address of the program, of 64 bits.
    ///
    /// # Errors
    ///
    /// As [`Bytes::take`]; [`EFAULT`] if no address is so long.
    pub(crate) fn address(&mut self) -> Result<usize> {
        usize::try_from(self.u64()?).map_err(|_| EFAULT)
    }

    /// A reserved field of 32 bits.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if it is not 0.
    pub(crate) fn reserved(&mut self) -> Result {
        match self.u32()? {
            0 => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Flags of 32 bits, which must be among `known`.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if there are others.
    pub(crate) fn flags(&mut self, known: u32) -> Result<u32> {
        match self.u32()? {
            flags if flags & !known == 0 => Ok(flags),
            _ => Err(EINVAL),
        }
    }
}
