// SPDX-License-Identifier: GPL-2.0

//! An extension of the answer to OPEN, behind its 56 bytes.
//!
//! In a session with extensions, a client that knows this extension asks for the longer answer. A
//! server that does not know it fills the rest with zeroes, which stand for "unknown".

use ibtrs_proto::bytes::message;

use super::*;
use crate::identity::Identity;

/// Length of the details, in bytes.
pub const DETAILS_LEN: usize = 32;
/// Length of the answer to OPEN with its details, in bytes.
pub const OPEN_RSP_LONG_LEN: usize = OPEN_RSP_LEN + DETAILS_LEN;

const VERSION: u8 = 1;
const ROTATIONAL: u8 = 1;
const ZEROES_UNMAP: u8 = 2;
const CHECKSUMS: u8 = 4;

/// Further properties of the device, as the server's kernel reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Details {
    /// Block size the device works with internally, in bytes, not limited to 16 bits.
    pub physical_block_size: u32,
    /// Smallest efficient I/O, in bytes.
    pub io_min: u32,
    /// Best I/O size, in bytes; 0 if there is none.
    pub io_opt: u32,
    /// Largest secure erase in sectors, 0 if not supported.
    pub max_secure_erase_sectors: u32,
    /// Where the first physical block starts, in bytes.
    pub alignment_offset: u32,
    /// The disk rotates: seeks take time.
    pub rotational: bool,
    /// Writing zeroes frees the space, unless the request forbids it.
    pub zeroes_unmap: bool,
    /// As OPEN has asked for, the server expects a checksum in each request to the device and
    /// returns the checksums of data; see [`crate::checksum`].
    pub checksums: bool,
    /// The cache generation of the device; see [`crate::unflushed`].
    pub cache_run: Identity,
}

impl Details {
    /// The 32 bytes.
    pub fn encode(&self) -> [u8; DETAILS_LEN] {
        let rotational = if self.rotational { ROTATIONAL } else { 0 };
        let zeroes_unmap = if self.zeroes_unmap { ZEROES_UNMAP } else { 0 };
        let checksums = if self.checksums { CHECKSUMS } else { 0 };
        message(|w| {
            w.u8(VERSION);
            w.u8(rotational | zeroes_unmap | checksums);
            w.zeros(2);
            w.u32(self.physical_block_size);
            w.u32(self.io_min);
            w.u32(self.io_opt);
            w.u32(self.max_secure_erase_sectors);
            w.u32(self.alignment_offset);
            w.u64(self.cache_run.to_wire());
        })
    }

    /// Decodes the details of a long answer to OPEN; `None` if the answer has none.
    pub fn decode(answer: &[u8]) -> Option<Self> {
        let mut r = Reader::new(answer.get(OPEN_RSP_LEN..OPEN_RSP_LONG_LEN)?);
        // Zero stands for no details; later versions only add fields.
        if r.u8()? == 0 {
            return None;
        }
        let flags = r.u8()?;
        r.skip(2)?;
        Some(Self {
            physical_block_size: r.u32()?,
            io_min: r.u32()?,
            io_opt: r.u32()?,
            max_secure_erase_sectors: r.u32()?,
            alignment_offset: r.u32()?,
            rotational: flags & ROTATIONAL != 0,
            zeroes_unmap: flags & ZEROES_UNMAP != 0,
            checksums: flags & CHECKSUMS != 0,
            cache_run: Identity::from_wire(r.u64()?),
        })
    }
}
