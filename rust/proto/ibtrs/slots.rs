// SPDX-License-Identifier: GPL-2.0

//! Slots: small places for requests, in sessions whose large data is not in chunks
//! (Documentation/protocol.md, "Slots").
//!
//! A chunk has room for the largest request, so a path takes `queue_depth` times as much memory even
//! if its client sends nothing. A slot has room for the headers and for the data of small writes.
//! The server fetches the data of larger writes from the client's memory, when it has memory for
//! them; the data of reads never was in a chunk.

use crate::consts::WRITE_HDR_LEN;

/// The size of a slot is a multiple of this, in bytes.
pub const SLOT_UNIT: u32 = 4096;
/// The greatest size of a slot, in bytes.
pub const MAX_SLOT_BYTES: u32 = SLOT_UNIT * 255;
/// The greatest number of bytes of data of a request in a session with slots. It bounds what a server
/// makes its clients allocate.
pub const MAX_SLOT_IO: u32 = 1 << 20;
/// The size of the slots of this server, in bytes: room for 4096 bytes of data, and for headers.
pub const SLOT_BYTES: u32 = 8192;
/// The same of clients that send [capsules](crate::capsule): room for headers.
pub const SMALL_SLOT_BYTES: u32 = 4096;

/// Most slots that share a memory region.
const MAX_GROUP: u16 = 32;

/// Whether the client writes the data of a WRITE to the slot, with its headers. Otherwise the
/// server fetches the data.
#[inline]
pub const fn is_pushed(data_len: u32, usr_len: u16, slot_bytes: u32) -> bool {
    // Lossless: u16 to u32, and a length of four.
    let headers = (usr_len as u32).saturating_add(WRITE_HDR_LEN as u32);
    data_len.saturating_add(headers) <= slot_bytes
}

/// How many slots share a memory region: a power of two that divides `queue_depth`, as the number
/// of descriptors in INFO_RSP must.
pub const fn group_of(queue_depth: u16) -> u16 {
    if queue_depth == 0 {
        return 1;
    }
    let divisor = 1u16.wrapping_shl(queue_depth.trailing_zeros());
    if divisor > MAX_GROUP {
        MAX_GROUP
    } else {
        divisor
    }
}
