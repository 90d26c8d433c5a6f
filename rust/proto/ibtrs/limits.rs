// SPDX-License-Identifier: GPL-2.0

//! Limits of the server's configuration, and the values that a client derives
//! (Documentation/protocol.md, "Limits and numbers").

use crate::consts::{MAX_HDR_SIZE, MIN_CHUNK_SIZE};
use crate::errno::Errno;
use crate::handshake::ConnRsp;
use crate::imm::{clog2, ImmLayout};
use crate::permit::DepthSplit;
use crate::slots::group_of;

/// The most chunks that a client uses of a session: `BLK_MQ_MAX_DEPTH`, the most requests that
/// Linux has in flight on a queue of a block device, and those for messages.
pub const MAX_CLIENT_DEPTH: u16 = 10_240 + DepthSplit::MESSAGES;

/// How many chunks a client uses of a server's `queue_depth`: the first ones.
///
/// The client allocates memory, a registration and entries in the queues of each connection for
/// every chunk before the server has answered a request, so the server alone must not decide on
/// their number.
#[inline]
pub const fn client_depth(queue_depth: u16) -> u16 {
    if queue_depth > MAX_CLIENT_DEPTH {
        MAX_CLIENT_DEPTH
    } else {
        queue_depth
    }
}

/// Why a server configuration is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitError {
    /// Chunks too small, or no whole pages of 4096 bytes.
    ChunkSize(u32),
    /// Queue depth not 1..=65535.
    QueueDepth(u32),
    /// Both together need more than 28 bits.
    Both,
    /// More slots than immediates can address.
    Slots,
}

impl LimitError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::ChunkSize(_) => "max_chunk_size is below 8192 or not a multiple of 4096",
            Self::QueueDepth(_) => "sess_queue_depth is not 1 to 65535",
            Self::Both => "max_chunk_size and sess_queue_depth need more than 28 bits together",
            Self::Slots => "sess_queue_depth is above 32768, which is the most with slots",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

/// Chunk sizes of a server are multiples of this, in bytes.
const CHUNK_UNIT: u32 = 4096;

/// Checks the parameters `max_chunk_size` (bytes) and `sess_queue_depth` of a server.
///
/// Unlike with a C server, the size of a chunk need not be a power of two. Headers take 4096 bytes
/// of each chunk: if it has these in addition to a power of two, requests of that power of two are
/// not split.
///
/// # Errors
///
/// When a value is out of its range, or no immediate could address the chunks.
pub fn server_layout(max_chunk_size: u32, queue_depth: u32) -> Result<ImmLayout, LimitError> {
    if max_chunk_size < MIN_CHUNK_SIZE || max_chunk_size % CHUNK_UNIT != 0 {
        return Err(LimitError::ChunkSize(max_chunk_size));
    }
    let depth = match u16::try_from(queue_depth) {
        Ok(depth) if depth > 0 => depth,
        _ => return Err(LimitError::QueueDepth(queue_depth)),
    };
    ImmLayout::new(depth, max_chunk_size).map_err(|_| LimitError::Both)
}

/// The layout of the slots of `bytes` of a server with `queue_depth`.
///
/// # Errors
///
/// When immediates cannot address that many.
pub fn slot_layout(queue_depth: u32, bytes: u32) -> Result<ImmLayout, LimitError> {
    let depth = match u16::try_from(queue_depth) {
        Ok(depth) if depth > 0 => depth,
        _ => return Err(LimitError::QueueDepth(queue_depth)),
    };
    ImmLayout::new(depth, bytes).map_err(|_| LimitError::Slots)
}

/// How many chunks of `max_chunk_size` the clients without slots get, of a server with
/// `queue_depth`: as many as immediates can address.
pub const fn chunk_depth(max_chunk_size: u32, queue_depth: u32) -> u32 {
    let bits = 28u32.saturating_sub(clog2(max_chunk_size));
    let most = 1u32.wrapping_shl(bits);
    if queue_depth > most {
        most
    } else {
        queue_depth
    }
}

/// The acceptance a server sends whose client gets slots: of `layout`, for requests of up to
/// `max_io_size`.
pub const fn slot_response(layout: &ImmLayout, max_io_size: u32, new_rkey: bool) -> ConnRsp {
    ConnRsp {
        max_io_size,
        slot_bytes: Some(layout.chunk_size()),
        ..server_response(layout, new_rkey)
    }
}

/// The acceptance a server with `layout` sends.
///
/// Its header size does not depend on the server's page size.
pub const fn server_response(layout: &ImmLayout, new_rkey: bool) -> ConnRsp {
    ConnRsp {
        queue_depth: layout.queue_depth(),
        max_io_size: layout.chunk_size().saturating_sub(MAX_HDR_SIZE),
        max_hdr_size: MAX_HDR_SIZE,
        new_rkey,
        times: false,
        messages: false,
        slot_bytes: None,
        window: None,
        ext: None,
    }
}

/// Bytes of a chunk for each byte that describes it. A page takes 8 bytes in the table of each of two
/// registrations, and 48 if it is a [piece](crate::pieces) of its own.
const PAGE_SHARE: u32 = 4096 / 64;
/// Bytes that a request on the server and two registrations without their tables take together.
const REQUEST_BYTES: u64 = 2048;
/// Bytes that a chunk number takes, with a request or without.
const NUMBER_BYTES: u64 = 512;
/// Bytes of an entry of a send queue and of its completion queue, in the device's driver and in
/// this one.
const SEND_ENTRY_BYTES: u64 = 320;
/// The same for an entry of a receive queue.
const RECV_ENTRY_BYTES: u64 = 128;
/// Bytes of a connection without its queues.
const CONNECTION_BYTES: u64 = 16384;

/// Estimates the memory that a path takes for its chunks, in bytes: each chunk itself and
/// `private_bytes` that no client can write to, both in whole pages of `page_bytes`, and the
/// chunk's request and registrations.
pub fn chunks_bytes(layout: &ImmLayout, private_bytes: u32, page_bytes: u32) -> u64 {
    let whole_pages = |bytes: u32| u64::from(bytes).next_multiple_of(u64::from(page_bytes.max(1)));
    let described = layout.chunk_size().saturating_add(private_bytes);
    let tables = u64::from(described / PAGE_SHARE);
    let each = whole_pages(layout.chunk_size())
        .saturating_add(whole_pages(private_bytes))
        .saturating_add(tables.saturating_add(REQUEST_BYTES));
    each.saturating_mul(u64::from(layout.queue_depth()))
}

/// Bytes that a request on the server takes if it is in a slot.
const SLOT_REQUEST_BYTES: u64 = 1024;
/// Bytes of a group of slots and its registration.
const GROUP_BYTES: u64 = 2048;

/// Estimates the memory that a path takes for its slots, in bytes: each slot itself in whole pages
/// of `page_bytes`, the slot's request, and the registrations of the groups.
pub fn slots_bytes(layout: &ImmLayout, page_bytes: u32) -> u64 {
    let depth = layout.queue_depth();
    let page = u64::from(page_bytes.max(1));
    let group = u64::from(group_of(depth));
    let memory = group.saturating_mul(layout.chunk_size().into());
    let tables = memory.checked_div(PAGE_SHARE.into()).unwrap_or(0);
    let each = memory
        .next_multiple_of(page)
        .saturating_add(tables.saturating_add(GROUP_BYTES));
    let groups = u64::from(depth).checked_div(group).unwrap_or(0);
    let requests = SLOT_REQUEST_BYTES.saturating_mul(depth.into());
    each.saturating_mul(groups).saturating_add(requests)
}

/// Estimates the memory that a path takes from its first connection on, besides its connections,
/// in bytes.
pub fn numbers_bytes(layout: &ImmLayout) -> u64 {
    NUMBER_BYTES.saturating_mul(u64::from(layout.queue_depth()))
}

/// Estimates the memory of a connection with queues of `sends` and `recvs` entries, in bytes.
/// The size of an entry depends on the device's driver. Soft-RoCE, which rounds queues up to a power
/// of two, takes up to twice as much.
pub fn connection_bytes(sends: u32, recvs: u32) -> u64 {
    let sends = u64::from(sends).saturating_mul(SEND_ENTRY_BYTES);
    let recvs = u64::from(recvs).saturating_mul(RECV_ENTRY_BYTES);
    CONNECTION_BYTES.saturating_add(sends).saturating_add(recvs)
}

/// How many bytes all paths may take: `limit_mib` MiB unless that is zero, else half of the
/// machine's `total` bytes.
pub const fn memory_limit(limit_mib: u32, total: u64) -> u64 {
    if limit_mib == 0 {
        total / 2
    } else {
        // Lossless: u32 to u64.
        (limit_mib as u64).saturating_mul(1 << 20)
    }
}
