// SPDX-License-Identifier: GPL-2.0

//! Layout of a request in its chunk (Documentation/protocol.md, "Requests").
//!
//! ```text
//! 0          data_len      data_len+usr_len
//! | data     | user header | request header |
//! ```
//!
//! A write sends all of it; a read leaves out the data and sends the headers only. In a slot, the
//! headers of a read, and of a write whose data the server fetches, come first.

use crate::consts::{READ_HDR_LEN, SG_DESC_LEN, WRITE_HDR_LEN};
use crate::errno::Errno;

/// The part to send, and its place relative to the start of the chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Where the RDMA write begins, in bytes: 0 for a write, the end of the data for a read.
    pub offset_of_first_byte: u32,
    /// Where the request header begins, in bytes; goes into the immediate.
    pub imm_offset: u32,
    /// Bytes of the RDMA write.
    pub total_len: u32,
}

/// Why a request cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlacementError {
    /// User header and request header are longer than `max_hdr_size`.
    HeaderTooLong,
    /// Data and headers are longer than a chunk.
    ChunkTooSmall,
}

impl PlacementError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::HeaderTooLong => "headers longer than the server takes",
            Self::ChunkTooSmall => "request longer than a chunk",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EMSGSIZE
    }
}

/// Places a request that sends `data_len` bytes.
///
/// # Errors
///
/// When the headers exceed `max_hdr_size` or everything exceeds `chunk_size`.
#[inline]
pub fn write(
    data_len: u32,
    usr_len: u16,
    chunk_size: u32,
    max_hdr_size: u32,
) -> Result<Placement, PlacementError> {
    place(data_len, usr_len, WRITE_HDR_LEN, chunk_size, max_hdr_size).map(|p| Placement {
        offset_of_first_byte: 0,
        imm_offset: p.imm_offset,
        // No overflow: `place` made sure that the sum is at most `chunk_size`.
        total_len: p.offset_of_first_byte.saturating_add(p.total_len),
    })
}

/// Places a request that has only headers in a slot: one that asks for data, or whose data the server
/// fetches. It has a descriptor if `has_data`.
///
/// # Errors
///
/// As [`write()`].
#[inline]
pub fn in_slot(
    has_data: bool,
    usr_len: u16,
    slot_size: u32,
    max_hdr_size: u32,
) -> Result<Placement, PlacementError> {
    place(0, usr_len, read_hdr_len(has_data), slot_size, max_hdr_size)
}

/// Length of the header of a request with a descriptor, if it `has_data`.
#[inline]
const fn read_hdr_len(has_data: bool) -> usize {
    match has_data {
        true => READ_HDR_LEN.saturating_add(SG_DESC_LEN),
        false => READ_HDR_LEN,
    }
}

/// Places a request that asks for `data_len` bytes; it has a descriptor unless that is 0.
///
/// # Errors
///
/// As [`write()`]. Stricter than the C client in one point: the descriptor has to be inside
/// the chunk as well.
#[inline]
pub fn read(
    data_len: u32,
    usr_len: u16,
    chunk_size: u32,
    max_hdr_size: u32,
) -> Result<Placement, PlacementError> {
    let hdr_len = read_hdr_len(data_len > 0);
    place(data_len, usr_len, hdr_len, chunk_size, max_hdr_size)
}

#[inline]
fn place(
    data_len: u32,
    usr_len: u16,
    hdr_len: usize,
    chunk_size: u32,
    max_hdr_size: u32,
) -> Result<Placement, PlacementError> {
    let hdr_len = u32::try_from(hdr_len).map_err(|_| PlacementError::HeaderTooLong)?;
    let headers = u32::from(usr_len).saturating_add(hdr_len);
    if headers > max_hdr_size {
        return Err(PlacementError::HeaderTooLong);
    }
    let total = data_len.checked_add(headers);
    match total {
        Some(total) if total <= chunk_size => Ok(Placement {
            offset_of_first_byte: data_len,
            imm_offset: total.saturating_sub(hdr_len),
            total_len: headers,
        }),
        _ => Err(PlacementError::ChunkTooSmall),
    }
}
