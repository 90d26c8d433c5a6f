// SPDX-License-Identifier: GPL-2.0

//! Messages after the handshake.
//!
//! - [`InfoReq`] and [`InfoRsp`] are exchanged once per path, on connection 0;
//! - [`RkeyRsp`] is the body of a response that carries a new key;
//! - [`MoreAnswers`] is the body of a message that carries several responses;
//! - [`InvAnswer`] is the body of a message that carries a response and invalidates a key;
//! - [`AnswerBody`] is the body of any other response;
//! - [`Trailer`] may end a response, [`ServerTimes`] are a part of it;
//! - [`WriteHdr`], [`ReadHdr`] or [`FetchHdr`] end each request, inside its chunk;
//! - [`RequestHdr`] and [`ServerRequest`] are the server's view of them.

mod answers;
mod info;
mod inv_answer;
mod request;
mod rkey;
mod server;
mod times;
mod trailer;

pub use answers::{MoreAnswers, MAX_MORE_ANSWERS, MORE_ANSWERS_LEN};
pub use info::{Chunk, Chunks, InfoReq, InfoRsp};
pub use inv_answer::{InvAnswer, INV_ANSWER_LEN};
pub use request::{Direction, FetchHdr, ReadHdr, WriteHdr};
pub use rkey::RkeyRsp;
pub use server::{Bounds, RequestError, RequestHdr, ServerRequest, USUAL_USER_HDR};
pub use times::{ServerTimes, MAX_SENT_NS};
pub use trailer::{AnswerBody, Trailer, MAX_TRAILER_LEN};

use crate::bytes::{Reader, Writer};
use crate::errno::Errno;

/// Message types, the first field of each message.
pub(crate) const TYPE_INFO_REQ: u16 = 0;
pub(crate) const TYPE_INFO_RSP: u16 = 1;
pub(crate) const TYPE_WRITE: u16 = 2;
pub(crate) const TYPE_READ: u16 = 3;
pub(crate) const TYPE_RKEY_RSP: u16 = 4;
/// A write whose data the server fetches (extension). Differs from WRITE and READ in three bits at
/// least.
pub(crate) const TYPE_FETCH: u16 = 12;
/// Added to the type of a request whose answer is to end with [`ServerTimes`] (extension).
pub(crate) const TIMED: u16 = 1 << 15;

/// Why a message was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MsgError {
    /// Shorter than its format.
    Short,
    /// Another type than the expected one.
    Type(u16),
    /// INFO_REQ without a usable session name.
    Name(crate::name::NameError),
    /// INFO_RSP whose number of descriptors is zero or does not divide the queue depth.
    Count(u16),
    /// INFO_RSP with a descriptor that is empty, no multiple of the chunk size, or beyond the
    /// end of the address space.
    Desc(u16),
    /// INFO_RSP whose descriptors do not cover exactly the session's chunks.
    Coverage,
    /// RKEY_RSP for a chunk that does not exist or that is not the answered one.
    BufId(u16),
    /// A message body with an immediate that is not the expected answer.
    Answer(u32),
    /// The buffer is too small for the message.
    NoRoom,
    /// Queue depth and chunk size of the session make no layout.
    Layout(crate::imm::LayoutError),
}

impl MsgError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Short => "message shorter than its format",
            Self::Type(_) => "message of an unexpected type",
            Self::Name(e) => e.as_str(),
            Self::Count(_) => "number of descriptors does not divide the queue depth",
            Self::Desc(_) => "descriptor is not a run of whole chunks",
            Self::Coverage => "descriptors do not cover the session's chunks",
            Self::BufId(_) => "new key for a wrong chunk",
            Self::Answer(_) => "no such answer",
            Self::NoRoom => "message does not fit its buffer",
            Self::Layout(e) => e.as_str(),
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Name(e) => e.errno(),
            Self::NoRoom => Errno::EMSGSIZE,
            Self::Layout(e) => e.errno(),
            _ => Errno::EPROTO,
        }
    }
}

/// Memory of the peer: 16 bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SgDesc {
    /// Address in the peer's memory region.
    pub addr: u64,
    /// Remote key, as a number in host order.
    pub key: u32,
    /// Length in bytes.
    pub len: u32,
}

impl SgDesc {
    #[inline]
    pub(crate) fn read(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            addr: r.u64()?,
            key: r.u32()?,
            len: r.u32()?,
        })
    }

    #[inline]
    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        w.u64(self.addr);
        w.u32(self.key);
        w.u32(self.len);
    }

    /// Whether the described range ends inside the address space.
    #[inline]
    pub fn fits(&self) -> bool {
        self.addr.checked_add(u64::from(self.len)).is_some()
    }
}
