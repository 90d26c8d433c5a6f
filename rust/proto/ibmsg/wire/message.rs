// SPDX-License-Identifier: GPL-2.0

//! MESSAGE and SKIP: what has a number.

use ibtrs_proto::bytes::{Reader, Writer};

use super::frame::Known;
use super::*;
use crate::limits::{MAX_MESSAGE, MIN_PIECE};
use crate::memory::BODY_LEN;

/// Bytes of MESSAGE before the content.
pub const MESSAGE_HDR_LEN: usize = 64;
/// Bytes of SKIP.
pub const SKIP_LEN: usize = 40;

/// The sender waits for the acknowledgement, so it should not wait for company.
const PROMPT: u8 = 1;
/// The content begins with a [`BodyRef`](crate::memory::BodyRef).
const BODY: u8 = 2;

/// What a message is for the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A message without an answer.
    OneWay,
    /// A request: the peer's program is to answer it.
    Request,
    /// The answer to a request.
    Reply,
    /// Of publishing; only from [`Records::with_publishing`].
    Publish(PublishKind),
}

impl Kind {
    const fn to_wire(self) -> u8 {
        match self {
            Self::OneWay => 0,
            Self::Request => 1,
            Self::Reply => 2,
            Self::Publish(kind) => kind.to_wire(),
        }
    }

    /// Whether messages of this kind may have a body.
    const fn may_have_body(self) -> bool {
        matches!(self, Self::OneWay | Self::Request)
    }

    const fn from_wire(kind: u8, publishing: bool) -> Option<Self> {
        match (kind, PublishKind::from_wire(kind)) {
            (0, _) => Some(Self::OneWay),
            (1, _) => Some(Self::Request),
            (2, _) => Some(Self::Reply),
            (_, Some(kind)) if publishing => Some(Self::Publish(kind)),
            _ => None,
        }
    }
}

/// MESSAGE without its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageHdr {
    /// The channel.
    pub channel: u32,
    /// The number of the message, the same in all pieces and on all connections.
    pub number: Seq,
    /// What the message is for the program.
    pub kind: Kind,
    /// The receiver is to acknowledge at once.
    pub prompt: bool,
    /// The content begins with a [`BodyRef`](crate::memory::BodyRef): of one-way messages and requests; only from
    /// [`Records::with_memory`].
    pub body: bool,
    /// The state of the sender's own receiver.
    pub ack: Ack,
    /// Bytes of the whole message: at most [`MAX_MESSAGE`].
    pub total: u32,
    /// Where this piece begins in the message, in bytes.
    pub offset: u32,
    /// Of a request, and of the reply to it ([`crate::call::CallId`]); of publishing: a position; otherwise 0.
    pub id: u64,
    /// The program's own number; of publishing: names the log.
    pub tag: u64,
    /// Of a reply: an errno in place of an answer, positive; of ENDED: the reason; 0: none.
    pub status: u16,
}

impl MessageHdr {
    /// The 64 bytes that precede `len` bytes of content.
    pub fn encode(&self, len: u32) -> [u8; MESSAGE_HDR_LEN] {
        ibtrs_proto::bytes::message(|w| {
            let mut head = Head::new(TYPE_MESSAGE, self.channel, self.number);
            let flag = |has: bool, flag: u8| if has { flag } else { 0 };
            head.flags = flag(self.prompt, PROMPT) | flag(self.body, BODY);
            head.detail = u16::from(self.kind.to_wire());
            // Lossless: u32 to usize.
            head.write(w, MESSAGE_HDR_LEN.saturating_add(len as usize));
            self.ack.write(w);
            w.u32(self.total);
            w.u32(self.offset);
            w.u64(self.id);
            w.u64(self.tag);
            w.u16(self.status);
        })
    }
}

/// MESSAGE: a message, or a piece of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Its header.
    pub hdr: MessageHdr,
    /// The content of the piece.
    pub content: &'a [u8],
}

impl<'a> Message<'a> {
    /// Whether it is a piece that is too short, without being the last one: the receiver fails the path.
    pub fn is_too_short(&self) -> bool {
        let left = self.hdr.total.saturating_sub(self.hdr.offset);
        // Lossless: u32 to usize.
        self.content.len() < left.min(MIN_PIECE) as usize
    }

    /// Writes the record, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut w = Writer::new(out);
        w.put(&self.hdr.encode(u32::try_from(self.content.len()).ok()?));
        w.put(self.content);
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &'a [u8], known: Known) -> Result<Self, WireError> {
        head.flags_within(if known.memory { PROMPT | BODY } else { PROMPT })?;
        let [kind, _] = head.detail.to_le_bytes();
        let mut r = Reader::new(body);
        let hdr = MessageHdr {
            channel: head.channel,
            number: Seq::new(head.number),
            kind: Kind::from_wire(kind, known.publishing).ok_or(WireError::Kind(kind))?,
            prompt: head.flags & PROMPT != 0,
            body: head.flags & BODY != 0,
            ack: Ack::read(head, &mut r)?,
            total: r.u32().ok_or(head.short())?,
            offset: r.u32().ok_or(head.short())?,
            id: r.u64().ok_or(head.short())?,
            tag: r.u64().ok_or(head.short())?,
            status: r.u16().ok_or(head.short())?,
        };
        r.skip(6).ok_or(head.short())?;
        let content = r.rest();
        if hdr.total > MAX_MESSAGE {
            return Err(WireError::MessageLength(hdr.total));
        }
        let len = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let ends = hdr.offset.checked_add(len);
        let is_inside = ends.is_some_and(|end| end <= hdr.total);
        if !is_inside || (len == 0 && hdr.total != 0) {
            return Err(WireError::Piece {
                offset: hdr.offset,
                len,
                total: hdr.total,
            });
        }
        // CAST: A small constant.
        let may_have_body = hdr.total >= BODY_LEN as u32 && hdr.kind.may_have_body();
        if hdr.body && !may_have_body {
            return Err(WireError::Body);
        }
        match hdr.kind {
            Kind::Publish(of) if !Publication::fits(of, &hdr, content.len()) => {
                Err(WireError::Publication(kind))
            }
            _ => Ok(Self { hdr, content }),
        }
    }
}

/// SKIP: takes the place of a message that the receiver has not got and will not get. The receiver
/// counts it as a message that its program has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skip {
    /// The channel.
    pub channel: u32,
    /// The number of the message.
    pub number: Seq,
    /// The state of the sender's own receiver.
    pub ack: Ack,
    /// Bytes of the message, whose [`crate::limits::cost`] both sides count: at most [`MAX_MESSAGE`].
    pub total: u32,
}

impl Skip {
    /// Writes the record, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut w = Writer::new(out);
        Head::new(TYPE_SKIP, self.channel, self.number).write(&mut w, SKIP_LEN);
        self.ack.write(&mut w);
        w.u32(self.total);
        w.zeros(4);
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &[u8]) -> Result<Self, WireError> {
        head.flags_within(0)?;
        let mut r = Reader::new(body);
        let ack = Ack::read(head, &mut r)?;
        let total = r.u32().ok_or(head.short())?;
        r.skip(4).ok_or(head.short())?;
        exact(head, r.rest())?;
        match total > MAX_MESSAGE {
            true => Err(WireError::MessageLength(total)),
            false => Ok(Self {
                channel: head.channel,
                number: Seq::new(head.number),
                ack,
                total,
            }),
        }
    }
}
