// SPDX-License-Identifier: GPL-2.0

//! Frames and records (Documentation/protocol.md, "Messages").
//!
//! Each SEND of a message connection is a *frame*: a header of 8 bytes, then any number of *records*,
//! each beginning at a multiple of 8. A record concerns one channel, except for RESUME, RESUMED, LIVE
//! and DRAIN. All fields are little-endian.
//!
//! Decoding never panics, needs no memory, and reads each byte at most once.

mod ack;
mod close;
mod drain;
mod error;
mod frame;
mod memory;
mod message;
mod offer;
mod publish;
mod redirect;
mod resume;

pub use ack::{Ack, AckRecord, ACK_LEN};
pub use close::{Close, Closed, CLOSED_LEN, CLOSE_LEN};
pub use drain::{Drain, DRAIN_LEN};
pub use error::WireError;
pub use frame::{FrameWriter, Record, Records, FRAME_HDR_LEN, RECORD_HDR_LEN};
pub use memory::{
    Ask, Get, Got, KeyRecord, MemoryRecord, Note, NoteKind, Return, Revoke, NOTE_LEN,
};
pub use message::{Kind, Message, MessageHdr, Skip, MESSAGE_HDR_LEN, SKIP_LEN};
pub use offer::{Accept, Open, PortalName, Reject, MAX_OPEN_LEN};
pub use publish::{Publication, PublicationFields, PublishKind};
pub use redirect::{Address, Redirect, ADDRESS_LEN};
pub use resume::{Entries, Live, Resume, ResumeEntry, ENTRY_LEN};

use ibtrs_proto::bytes::Writer;

use crate::seq::Seq;

pub(crate) const TYPE_MESSAGE: u8 = 1;
pub(crate) const TYPE_SKIP: u8 = 2;
pub(crate) const TYPE_ACK: u8 = 3;
pub(crate) const TYPE_OPEN: u8 = 4;
pub(crate) const TYPE_ACCEPT: u8 = 5;
pub(crate) const TYPE_REJECT: u8 = 6;
pub(crate) const TYPE_REDIRECT: u8 = 7;
pub(crate) const TYPE_CLOSE: u8 = 8;
pub(crate) const TYPE_CLOSED: u8 = 9;
pub(crate) const TYPE_RESUME: u8 = 10;
pub(crate) const TYPE_RESUMED: u8 = 11;
pub(crate) const TYPE_LIVE: u8 = 12;
pub(crate) const TYPE_DRAIN: u8 = 13;
pub(crate) const TYPE_NOTE: u8 = 14;
pub(crate) const TYPE_ASK: u8 = 15;
pub(crate) const TYPE_KEY: u8 = 16;
pub(crate) const TYPE_RETURN: u8 = 17;
pub(crate) const TYPE_REVOKE: u8 = 18;
pub(crate) const TYPE_GET: u8 = 19;
pub(crate) const TYPE_GOT: u8 = 20;

/// The header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) ty: u8,
    pub(crate) flags: u8,
    /// The two bytes at 2, which mean something in few records.
    pub(crate) detail: u16,
    /// Channel; 0 in records that concern none.
    pub(crate) channel: u32,
    /// Message number, number of a move, or what else the type says.
    pub(crate) number: u32,
}

impl Head {
    pub(crate) const fn new(ty: u8, channel: u32, number: Seq) -> Self {
        Self {
            ty,
            flags: 0,
            detail: 0,
            channel,
            number: number.get(),
        }
    }

    /// Writes the header of a record of `len` bytes, header included.
    pub(crate) fn write(&self, w: &mut Writer<'_>, len: usize) {
        w.u8(self.ty);
        w.u8(self.flags);
        w.u16(self.detail);
        // Records are at most a frame long, so nothing is cut off; a longer one would not fit its buffer.
        w.u32(u32::try_from(len).unwrap_or(u32::MAX));
        w.u32(self.channel);
        w.u32(self.number);
    }

    /// Refuses flags other than `known`.
    pub(crate) const fn flags_within(&self, known: u8) -> Result<(), WireError> {
        match self.flags & !known {
            0 => Ok(()),
            _ => Err(WireError::Flags {
                ty: self.ty,
                flags: self.flags,
            }),
        }
    }

    pub(crate) const fn short(&self) -> WireError {
        WireError::Short { ty: self.ty }
    }
}

/// The body of a record that must be used up: `Err` if bytes are left.
pub(crate) const fn exact(head: &Head, rest: &[u8]) -> Result<(), WireError> {
    match rest.is_empty() {
        true => Ok(()),
        false => Err(WireError::Long { ty: head.ty }),
    }
}
