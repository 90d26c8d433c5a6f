// SPDX-License-Identifier: GPL-2.0

//! Constants of the protocol (Documentation/protocol.md, "Limits and numbers").

/// Magic number of the connection messages.
pub const MAGIC: u16 = 0x1BBD;
/// Protocol version: major in the high byte, minor in the low byte.
pub const VERSION: u16 = 0x0200;
/// Major protocol version, the only part a peer compares.
pub const VERSION_MAJOR: u8 = 2;

/// Port in the TCP port space that a server listens on unless configured otherwise.
pub const DEFAULT_PORT: u16 = 1234;

/// Depth of the service connection (connection 0), in messages.
pub const SERVICE_QUEUE_DEPTH: u16 = 512;
/// Most paths one session may have.
pub const MAX_PATHS: usize = 128;
/// Most connections one path may have, the service connection included.
pub const MAX_CONNECTIONS: u16 = 4096;

/// Smallest chunk a server may be configured to, in bytes.
pub const MIN_CHUNK_SIZE: u32 = 8192;
/// Bytes of each chunk that this server sets aside for headers; announced as `max_hdr_size`.
pub const MAX_HDR_SIZE: u32 = 4096;
/// Smallest `max_hdr_size` a client can work with: a READ header with one descriptor.
pub const MIN_HDR_SIZE: u32 = 24;
/// Most segments of a client request.
pub const MAX_SEGMENTS: usize = 128;

/// Time between two heartbeat ticks of mainline, in milliseconds.
pub const HB_INTERVAL_MS: u32 = 5000;
/// Default number of silent ticks, after a heartbeat was sent, at which a path counts as dead.
pub const HB_MISSED_MAX: u32 = 5;
/// Retransmissions of a packet that is not acknowledged.
pub const RETRY_COUNT: u8 = 7;
/// Longest wait for each step of connecting, in milliseconds: address, route,
/// connection, and the INFO exchange.
pub const CONNECT_TIMEOUT_MS: u32 = 30_000;
/// Time after which a half-connected server path may be closed, in milliseconds.
pub const ZOMBIE_TIMEOUT_MS: u32 = 30_000;
/// Default of the longest delay before the first reconnect attempt, in milliseconds.
pub const RECONNECT_BACKOFF_MS: u32 = 1000;

/// Length of the private data of a connection request, in bytes.
pub const CONN_REQ_LEN: usize = 56;
/// Length of the private data of an accept or a reject, in bytes.
pub const CONN_RSP_LEN: usize = 56;
/// Length of an INFO_REQ message, in bytes.
pub const INFO_REQ_LEN: usize = 272;
/// Length of an INFO_RSP message without its descriptors, in bytes.
pub const INFO_RSP_HDR_LEN: usize = 8;
/// Length of an RKEY_RSP message, in bytes.
pub const RKEY_RSP_LEN: usize = 8;
/// Length of a WRITE header, in bytes.
pub const WRITE_HDR_LEN: usize = 4;
/// Length of a READ header without descriptor, in bytes.
pub const READ_HDR_LEN: usize = 8;
/// Length of a memory descriptor, in bytes.
pub const SG_DESC_LEN: usize = 16;
/// Longest request header, in bytes: READ with one descriptor.
pub const MAX_REQUEST_HDR_LEN: usize = 24;

/// Size of the session name's field on the wire, in bytes, with its closing NUL.
pub const MAX_SESSION_NAME: usize = 255;

/// Size of an INFO_RSP with `sg_cnt` descriptors, in bytes.
#[inline]
pub const fn info_rsp_len(sg_cnt: u16) -> usize {
    // At most 8 + 16 * 65535, so it never saturates.
    INFO_RSP_HDR_LEN.saturating_add(SG_DESC_LEN.saturating_mul(sg_cnt as usize))
}
