// SPDX-License-Identifier: GPL-2.0

//! Limits of the server's configuration, and the values that a client derives
//! (Documentation/protocol.md, "Limits and numbers").

use crate::consts::{MAX_HDR_SIZE, MIN_CHUNK_SIZE};
use crate::errno::Errno;
use crate::handshake::ConnRsp;
use crate::imm::ImmLayout;
use crate::permit::DepthSplit;

/// The most chunks that a client uses of a session: as many as Linux lets requests of a block
/// device be in flight (`BLK_MQ_MAX_DEPTH`), and those for messages.
pub const MAX_CLIENT_DEPTH: u16 = 10_240 + DepthSplit::MESSAGES;

/// How many chunks a client uses of a server's `queue_depth`: the first ones.
///
/// The client has memory and a registration for each of them, and entries in the queues of each
/// connection, all before the server has answered a request. A server is not to decide on that
/// alone.
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
}

impl LimitError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::ChunkSize(_) => "max_chunk_size is below 8192 or not a multiple of 4096",
            Self::QueueDepth(_) => "sess_queue_depth is not 1 to 65535",
            Self::Both => "max_chunk_size and sess_queue_depth need more than 28 bits together",
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
/// A chunk need not be a power of two, unlike that of a C server, whose headers take a part of the
/// last request's space: with 4096 bytes more than a power of two, requests of that size are not
/// split.
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

/// The acceptance a server with `layout` sends.
///
/// Its header size does not depend on the server's page size.
pub const fn server_response(layout: &ImmLayout, new_rkey: bool) -> ConnRsp {
    ConnRsp {
        queue_depth: layout.queue_depth(),
        max_io_size: layout.chunk_size().saturating_sub(MAX_HDR_SIZE),
        max_hdr_size: MAX_HDR_SIZE,
        new_rkey,
        ext: None,
    }
}

/// Bytes that one page of a chunk takes in the tables of a registration.
const PAGE_TABLE_SHARE: u32 = 4096 / 8;
/// Bytes that a request takes on the server, and a registration besides its table.
const REQUEST_BYTES: u64 = 1536;
/// Bytes that a chunk number takes, with a request or without.
const NUMBER_BYTES: u64 = 512;
/// An entry of a send queue and of its completion queue, as drivers have them, and ours of it.
const SEND_ENTRY_BYTES: u64 = 320;
/// The same for receives.
const RECV_ENTRY_BYTES: u64 = 128;
/// A connection beside its queues.
const CONNECTION_BYTES: u64 = 16384;

/// Bytes of memory that a path takes for its chunks: the chunks themselves, `private_bytes`
/// for each that no client can write to, both in whole pages of `page_bytes`, and about what
/// belongs to a chunk beside that.
pub fn chunks_bytes(layout: &ImmLayout, private_bytes: u32, page_bytes: u32) -> u64 {
    let whole_pages = |bytes: u32| u64::from(bytes).next_multiple_of(u64::from(page_bytes.max(1)));
    let tables = u64::from(layout.chunk_size() / PAGE_TABLE_SHARE);
    let each = whole_pages(layout.chunk_size())
        .saturating_add(whole_pages(private_bytes))
        .saturating_add(tables.saturating_add(REQUEST_BYTES));
    each.saturating_mul(u64::from(layout.queue_depth()))
}

/// Bytes of memory that a path takes from its first connection on, beside its connections.
pub fn numbers_bytes(layout: &ImmLayout) -> u64 {
    NUMBER_BYTES.saturating_mul(u64::from(layout.queue_depth()))
}

/// Estimates the memory of a connection with queues of `sends` and `recvs` entries, in bytes.
/// The size of an entry depends on the device's driver; the estimate is on the high side.
pub fn connection_bytes(sends: u32, recvs: u32) -> u64 {
    let sends = u64::from(sends).saturating_mul(SEND_ENTRY_BYTES);
    let recvs = u64::from(recvs).saturating_mul(RECV_ENTRY_BYTES);
    CONNECTION_BYTES.saturating_add(sends).saturating_add(recvs)
}

/// How many bytes all paths may take: `limit_mib` if it is not zero, else half of
/// the machine's `total` bytes.
pub const fn memory_limit(limit_mib: u32, total: u64) -> u64 {
    if limit_mib == 0 {
        total / 2
    } else {
        // Lossless: u32 to u64.
        (limit_mib as u64).saturating_mul(1 << 20)
    }
}
