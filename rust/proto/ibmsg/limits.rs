// SPDX-License-Identifier: GPL-2.0

//! Numbers of the protocol. All sizes are in bytes.

use crate::seq::Seq;

/// The longest message that travels in frames.
pub const MAX_MESSAGE: u32 = 65_536;
/// The shortest piece of a message but its last one, so that memory for pieces is in proportion to their bytes.
pub const MIN_PIECE: u32 = 512;
/// What a message costs of the byte credits beside its content.
pub const MESSAGE_COST: u32 = 64;
/// The largest window of a channel, in messages.
pub const MAX_WINDOW_MESSAGES: u32 = 1 << 16;
/// The most messages that a sender may have that are not acknowledged. An acknowledgement, and the end of a
/// channel, concern all of them at once, so this bounds how long a sender's lock is held.
pub const MAX_QUEUE: u32 = 4096;
/// The largest window of a channel, in bytes.
pub const MAX_WINDOW_BYTES: u32 = 1 << 30;
/// The most calls of a channel that may be unanswered in one direction.
pub const MAX_CALLS: u16 = 4096;
/// The longest name of a portal.
pub const MAX_PORTAL_NAME: usize = 64;
/// The most private data in OPEN, ACCEPT and REJECT.
pub const MAX_PRIVATE_DATA: usize = 256;
/// The most addresses in REDIRECT.
pub const MAX_ADDRESSES: usize = 8;
/// The most connection attempts in LIVE: as many as a session has paths.
pub const MAX_ATTEMPTS: usize = 128;
/// The smallest frame for which a receive must have room, so that every record but MESSAGE and RESUME
/// fits any frame.
pub const MIN_FRAME: u32 = 1024;
/// The smallest window of a connection, in frames.
pub const MIN_FRAMES: u32 = 8;
/// The largest window of a connection, in frames.
pub const MAX_FRAMES: u32 = 1 << 16;
/// Bytes of a frame on a message connection between two machines: each frame costs a completion at either end, so
/// that a message of 4 KiB should be one.
pub const FRAME: u32 = 8192;
/// The window of such a connection, in frames.
pub const FRAMES: u32 = 11;
/// The longest time for which an acknowledgement may wait for a frame that it can travel in, in
/// microseconds.
pub const ACK_DELAY_US: u64 = 1000;
/// The first message number of a channel, and the point from which bytes and frames are counted. Close
/// to the wrap, so that every busy channel soon passes it.
pub const FIRST: Seq = Seq::new(0xFFFF_FF00);

/// What a message of `len` bytes costs of the byte credits.
#[inline]
pub const fn cost(len: u32) -> u32 {
    len.saturating_add(MESSAGE_COST)
}
