// SPDX-License-Identifier: GPL-2.0

//! The 32-bit immediate of an RDMA write or send (Documentation/protocol.md, "Immediates").
//!
//! Values here are in host order. On the wire the immediate is big-endian: the caller converts.

use crate::errno::Errno;
use crate::tag::Tag;

const TYPE_SHIFT: u32 = 28;
const PAYLOAD_MASK: u32 = (1 << TYPE_SHIFT) - 1;
const ID_BITS: u32 = 19;
const ID_MASK: u32 = (1 << ID_BITS) - 1;

const IO_REQ: u32 = 0;
const IO_RSP: u32 = 1;
const IO_RSP_INV: u32 = 2;
const FENCE: u32 = 3;
const FENCE_DONE: u32 = 4;
const NOTICE: u32 = 5;
const IO_RSP_SAME_KEY: u32 = 6;
const DURABLE: u32 = 7;
const HB_MSG: u32 = 8;
const HB_ACK: u32 = 9;
const DURABLE_SEEN: u32 = 10;
const IO_RSP_MORE: u32 = 11;
const NOP: u32 = 12;
const DOWNTIME: u32 = 13;

const FENCE_DRAIN: u32 = 1 << 27;
/// The client's answer to [`Imm::Downtime`].
const DOWNTIME_SEEN: u32 = 1 << 27;

/// The connection attempts of a session that a fence closes (extension;
/// Documentation/protocol.md).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// Path epoch (27 bits).
    pub epoch: u32,
    /// The fence also covers all earlier attempts, and those without an epoch; its answer waits
    /// until all their I/O has ended.
    pub drain: bool,
}

impl Fence {
    /// Whether the protocol allows this fence on connection `cid` of attempt `carrier`, which is
    /// `None` without extensions.
    pub const fn is_valid(&self, cid: u16, carrier: Option<u32>) -> bool {
        match carrier {
            Some(carrier) => cid == 0 && !self.covers(Some(carrier)),
            None => false,
        }
    }

    /// Whether the fence covers the path of attempt `epoch`, which is `None` without extensions.
    pub const fn covers(&self, epoch: Option<u32>) -> bool {
        match epoch {
            Some(epoch) if self.drain => epoch <= self.epoch,
            Some(epoch) => epoch == self.epoch,
            None => self.drain,
        }
    }

    const fn encode(self) -> u32 {
        let drain = if self.drain { FENCE_DRAIN } else { 0 };
        self.epoch & (FENCE_DRAIN - 1) | drain
    }

    const fn decode(payload: u32) -> Self {
        Self {
            epoch: payload & (FENCE_DRAIN - 1),
            drain: payload & FENCE_DRAIN != 0,
        }
    }
}

/// A server's answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The request's chunk (19 bits).
    pub id: u32,
    /// As in [`Imm::IoRsp`].
    pub errno: u16,
}

/// A decoded immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Imm {
    /// A request, client to server. See [`ImmLayout`] for the payload (28 bits).
    IoReq {
        /// Chunk and offset, packed.
        payload: u32,
    },
    /// A response, server to client.
    IoRsp {
        /// The request's chunk (19 bits).
        id: u32,
        /// Positive magnitude, 0 for success. [`Imm::encode`] sends EIO for more than 511.
        errno: u16,
    },
    /// A response before which the server invalidated the client's key.
    IoRspInv {
        /// The request's chunk (19 bits).
        id: u32,
        /// As in [`Imm::IoRsp`].
        errno: u16,
    },
    /// A response that leaves the key of the chunk as it was, even if other responses of the
    /// session bring new keys. It is one message with the data of a read, if any. Extension.
    IoRspSameKey {
        /// The request's chunk (19 bits).
        id: u32,
        /// As in [`Imm::IoRsp`].
        errno: u16,
    },
    /// As [`Imm::IoRspSameKey`], without data; the message has more answers in its body, see
    /// [`MoreAnswers`](crate::msg::MoreAnswers). Extension.
    IoRspMore {
        /// The request's chunk (19 bits).
        id: u32,
        /// As in [`Imm::IoRsp`].
        errno: u16,
    },
    /// Client to server, connection 0: take no more requests of an attempt, and report when that
    /// is so. Extension.
    Fence(Fence),
    /// The answer to [`Imm::Fence`], with the same payload.
    FenceDone(Fence),
    /// Server to client, connection 0: a notice about the object with this number (28 bits), which
    /// the layers above understand. Extension.
    Notice(u32),
    /// Server to client, connection 0: everything that this session has answered, and will answer,
    /// about the object with this number (28 bits) is durable. Extension.
    Durable(u32),
    /// The answer to [`Imm::Durable`], with the same number: the client has taken note.
    DurableSeen(u32),
    /// Server to client, connection 0: the server is about to be stopped, and expects to be away for
    /// this number of seconds (27 bits), see [`Downtime::from_wire`]. Extension.
    ///
    /// [`Downtime::from_wire`]: crate::downtime::Downtime::from_wire
    Downtime(u32),
    /// The answer to [`Imm::Downtime`], with the same number: the client has taken note.
    DowntimeSeen(u32),
    /// A heartbeat, both directions, connection 0.
    Heartbeat,
    /// The answer to [`Imm::Heartbeat`].
    HeartbeatAck,
    /// Server to client: nothing. When the device has acknowledged it, the client has what was sent
    /// before. Extension.
    Nop,
    /// Any other type, as received; a protocol error.
    Unknown(u32),
}

impl Imm {
    /// Packs the immediate, host order.
    ///
    /// Ids beyond 19 bits and payloads beyond 28 bits do not occur with a valid [`ImmLayout`]
    /// and are masked. An errno above 511 is sent as EIO, never truncated.
    // Callers know the kind, so only one arm of the match remains.
    #[inline(always)]
    pub const fn encode(self) -> u32 {
        match self {
            Imm::IoReq { payload } => typed(IO_REQ, payload & PAYLOAD_MASK),
            Imm::IoRsp { id, errno } => typed(IO_RSP, response(id, errno)),
            Imm::IoRspInv { id, errno } => typed(IO_RSP_INV, response(id, errno)),
            Imm::IoRspSameKey { id, errno } => typed(IO_RSP_SAME_KEY, response(id, errno)),
            Imm::IoRspMore { id, errno } => typed(IO_RSP_MORE, response(id, errno)),
            Imm::Fence(fence) => typed(FENCE, fence.encode()),
            Imm::FenceDone(fence) => typed(FENCE_DONE, fence.encode()),
            Imm::Notice(number) => typed(NOTICE, notice_number(number)),
            Imm::Durable(number) => typed(DURABLE, notice_number(number)),
            Imm::DurableSeen(number) => typed(DURABLE_SEEN, notice_number(number)),
            Imm::Downtime(seconds) => typed(DOWNTIME, seconds & (DOWNTIME_SEEN - 1)),
            Imm::DowntimeSeen(seconds) => {
                typed(DOWNTIME, seconds & (DOWNTIME_SEEN - 1) | DOWNTIME_SEEN)
            }
            Imm::Heartbeat => typed(HB_MSG, 0),
            Imm::HeartbeatAck => typed(HB_ACK, 0),
            Imm::Nop => typed(NOP, 0),
            Imm::Unknown(raw) => raw,
        }
    }

    /// Unpacks an immediate in host order. Every value has a meaning, if only [`Imm::Unknown`].
    #[inline]
    pub const fn decode(raw: u32) -> Self {
        let payload = raw & PAYLOAD_MASK;
        let id = payload & ID_MASK;
        // CAST: 9 bits.
        let errno = (payload >> ID_BITS) as u16;
        match raw >> TYPE_SHIFT {
            IO_REQ => Imm::IoReq { payload },
            IO_RSP => Imm::IoRsp { id, errno },
            IO_RSP_INV => Imm::IoRspInv { id, errno },
            IO_RSP_SAME_KEY => Imm::IoRspSameKey { id, errno },
            IO_RSP_MORE => Imm::IoRspMore { id, errno },
            FENCE => Imm::Fence(Fence::decode(payload)),
            FENCE_DONE => Imm::FenceDone(Fence::decode(payload)),
            NOTICE => Imm::Notice(payload),
            DURABLE => Imm::Durable(payload),
            DURABLE_SEEN => Imm::DurableSeen(payload),
            DOWNTIME if payload & DOWNTIME_SEEN == 0 => Imm::Downtime(payload),
            DOWNTIME => Imm::DowntimeSeen(payload & (DOWNTIME_SEEN - 1)),
            HB_MSG => Imm::Heartbeat,
            HB_ACK => Imm::HeartbeatAck,
            NOP => Imm::Nop,
            _ => Imm::Unknown(raw),
        }
    }
}

/// An immediate of type `kind`, with a payload of at most 28 bits.
#[inline]
const fn typed(kind: u32, payload: u32) -> u32 {
    (kind << TYPE_SHIFT) | payload
}

/// The part of a number that a notice carries: its lower 28 bits.
#[inline]
pub const fn notice_number(number: u32) -> u32 {
    number & PAYLOAD_MASK
}

#[inline]
const fn response(id: u32, errno: u16) -> u32 {
    let errno = if errno > Errno::MAX_IMM {
        Errno::EIO.to_imm()
    } else {
        errno
    };
    // Lossless: u16 to u32.
    ((errno as u32) << ID_BITS) | (id & ID_MASK)
}

/// Bits needed to hold `n - 1`; 0 for 0 and 1.
#[inline]
pub const fn clog2(n: u32) -> u32 {
    u32::BITS.saturating_sub(n.saturating_sub(1).leading_zeros())
}

/// Why a queue depth and a chunk size do not make a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LayoutError {
    /// The queue depth is zero.
    ZeroDepth,
    /// The chunk size is zero.
    ZeroChunk,
    /// Both together need more than 28 bits.
    TooBig,
}

impl LayoutError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::ZeroDepth => "queue depth is zero",
            Self::ZeroChunk => "chunk size is zero",
            Self::TooBig => "queue depth and chunk size do not fit the 28 bits of an immediate",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

/// Why the payload of a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PayloadError {
    /// The chunk does not exist.
    BufId(u32),
    /// The offset is not inside the chunk.
    Offset(u32),
}

impl PayloadError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::BufId(_) => "request names a chunk beyond the queue depth",
            Self::Offset(_) => "request header outside of its chunk",
        }
    }

    /// The errno to return. The caller closes the path: there is no request to answer.
    pub const fn errno(&self) -> Errno {
        Errno::EPROTO
    }
}

/// How chunk and offset share the 28 bits of a request's payload.
///
/// # Invariants
///
/// `queue_depth` and `chunk_size` are not zero and need at most 28 bits together;
/// `mem_bits` is `28 - clog2(queue_depth)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImmLayout {
    queue_depth: u16,
    chunk_size: u32,
    mem_bits: u32,
}

impl ImmLayout {
    /// The layout for `queue_depth` chunks of `chunk_size` bytes.
    ///
    /// # Errors
    ///
    /// When either is zero, or both do not fit 28 bits together.
    pub const fn new(queue_depth: u16, chunk_size: u32) -> Result<Self, LayoutError> {
        if queue_depth == 0 {
            return Err(LayoutError::ZeroDepth);
        }
        if chunk_size == 0 {
            return Err(LayoutError::ZeroChunk);
        }
        // Lossless: u16 to u32.
        let id_bits = clog2(queue_depth as u32);
        if id_bits.saturating_add(clog2(chunk_size)) > TYPE_SHIFT {
            return Err(LayoutError::TooBig);
        }
        // INVARIANT: checked above.
        Ok(Self {
            queue_depth,
            chunk_size,
            mem_bits: TYPE_SHIFT.saturating_sub(id_bits),
        })
    }

    /// Number of chunks.
    #[inline]
    pub const fn queue_depth(&self) -> u16 {
        self.queue_depth
    }

    /// Size of a chunk in bytes.
    #[inline]
    pub const fn chunk_size(&self) -> u32 {
        self.chunk_size
    }

    /// Bits of the payload that hold the offset.
    #[inline]
    pub const fn mem_bits(&self) -> u32 {
        self.mem_bits
    }

    /// The payload for the chunk of `tag` with the header at byte `offset`; `None` when either is
    /// out of bounds.
    #[inline]
    pub fn request(&self, tag: Tag, offset: u32) -> Option<u32> {
        if tag.get() >= self.queue_depth || offset >= self.chunk_size {
            return None;
        }
        // With one chunk `mem_bits` is 28 and the tag 0, so no bit is ever shifted out.
        Some(u32::from(tag).wrapping_shl(self.mem_bits) | offset)
    }

    /// Splits a payload into chunk and offset, without looking at their bounds.
    #[inline]
    pub const fn split(&self, payload: u32) -> (u32, u32) {
        let payload = payload & PAYLOAD_MASK;
        let mask = 1u32.wrapping_shl(self.mem_bits).wrapping_sub(1);
        (payload.wrapping_shr(self.mem_bits), payload & mask)
    }

    /// Splits a payload and bounds both parts.
    ///
    /// # Errors
    ///
    /// When the chunk is not below the queue depth, or the offset not below the chunk size.
    #[inline]
    pub fn check(&self, payload: u32) -> Result<(Tag, u32), PayloadError> {
        let (chunk, offset) = self.split(payload);
        let tag = match Tag::try_from(chunk) {
            Ok(tag) if tag.get() < self.queue_depth => tag,
            _ => return Err(PayloadError::BufId(chunk)),
        };
        if offset >= self.chunk_size {
            return Err(PayloadError::Offset(offset));
        }
        Ok((tag, offset))
    }
}
