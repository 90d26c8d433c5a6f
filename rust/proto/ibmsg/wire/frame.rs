// SPDX-License-Identifier: GPL-2.0

//! A frame: header and records.

use ibtrs_proto::bytes::{Reader, Writer};

use super::*;

/// Bytes of a frame before its first record.
pub const FRAME_HDR_LEN: usize = 8;
/// Bytes of a record before what its type has.
pub const RECORD_HDR_LEN: usize = 16;

const FORMAT: u8 = 1;
/// Records begin at multiples of this.
const ALIGN: usize = 8;

/// Bytes from the end of something `len` bytes long to where the next record begins.
const fn padding(len: usize) -> usize {
    len.wrapping_neg() & (ALIGN.wrapping_sub(1))
}

/// A record, borrowed from its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// MESSAGE: a message, or a piece of one.
    Message(Message<'a>),
    /// SKIP: takes the place of a message.
    Skip(Skip),
    /// ACK: an acknowledgement alone.
    Ack(AckRecord),
    /// OPEN: asks a portal for a channel.
    Open(Open<'a>),
    /// ACCEPT: the portal accepts.
    Accept(Accept<'a>),
    /// REJECT: the portal refuses.
    Reject(Reject<'a>),
    /// REDIRECT: the portal names other addresses.
    Redirect(Redirect<'a>),
    /// CLOSE: a program has closed its end of a channel.
    Close(Close),
    /// CLOSED: nothing more is to come for a channel.
    Closed(Closed),
    /// RESUME: channels move to the connection that carries this; from the client.
    Resume(Resume<'a>),
    /// RESUMED: the answer to RESUME.
    Resumed(Resume<'a>),
    /// LIVE: channels that are still on another connection attempt have ended; from the client.
    Live(Live<'a>),
    /// DRAIN: the server is about to be stopped.
    Drain(Drain),
    /// A record of memory; only from [`Records::with_memory`].
    Memory(MemoryRecord),
}

impl<'a> Record<'a> {
    fn decode(head: &Head, body: &'a [u8], known: Known) -> Result<Self, WireError> {
        let concerns_channel =
            !matches!(head.ty, TYPE_RESUME | TYPE_RESUMED | TYPE_LIVE | TYPE_DRAIN);
        let is_memory = known.memory && matches!(head.ty, TYPE_NOTE..=TYPE_GOT);
        if !is_memory && !matches!(head.ty, TYPE_MESSAGE..=TYPE_DRAIN) {
            return Err(WireError::Type(head.ty));
        }
        if concerns_channel != (head.channel != 0) {
            return Err(WireError::Channel(head.channel));
        }
        Ok(match head.ty {
            TYPE_MESSAGE => Self::Message(Message::decode(head, body, known)?),
            TYPE_SKIP => Self::Skip(Skip::decode(head, body)?),
            TYPE_ACK => Self::Ack(AckRecord::decode(head, body)?),
            TYPE_OPEN => Self::Open(Open::decode(head, body)?),
            TYPE_ACCEPT => Self::Accept(Accept::decode(head, body)?),
            TYPE_REJECT => Self::Reject(Reject::decode(head, body)?),
            TYPE_REDIRECT => Self::Redirect(Redirect::decode(head, body)?),
            TYPE_CLOSE => Self::Close(Close::decode(head, body)?),
            TYPE_CLOSED => Self::Closed(Closed::decode(head, body)?),
            TYPE_RESUME => Self::Resume(Resume::decode(head, body)?),
            TYPE_RESUMED => Self::Resumed(Resume::decode(head, body)?),
            TYPE_LIVE => Self::Live(Live::decode(head, body)?),
            TYPE_DRAIN => Self::Drain(Drain::decode(head, body)?),
            _ => Self::Memory(MemoryRecord::decode(head, body)?),
        })
    }
}

/// What the receiving kernel knows beside messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) memory: bool,
    pub(crate) publishing: bool,
}

const NOTHING: Known = Known {
    memory: false,
    publishing: false,
};

/// The records of a received frame, one after the other.
///
/// A frame is refused as a whole path's fault: after an error there are no further records.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: Reader<'a>,
    known: Known,
}

impl<'a> Records<'a> {
    /// Reads the header of a frame. Returns the peer's limit of frames
    /// ([`crate::link::Link::received`]) and the records.
    ///
    /// # Errors
    ///
    /// When the frame is shorter than its header, or of another format.
    pub fn parse(frame: &'a [u8]) -> Result<(Seq, Self), WireError> {
        let mut rest = Reader::new(frame);
        let header: [u8; 4] = rest.array().ok_or(WireError::Frame)?;
        let limit = rest.u32().ok_or(WireError::Frame)?;
        match header {
            [FORMAT, ..] => Ok((
                Seq::new(limit),
                Self {
                    rest,
                    known: NOTHING,
                },
            )),
            [format, ..] => Err(WireError::Format(format)),
        }
    }

    /// Records without the header of a frame.
    pub const fn of(records: &'a [u8]) -> Self {
        Self {
            rest: Reader::new(records),
            known: NOTHING,
        }
    }

    /// The records of a kernel that has memory: without this, those of memory are of an unknown type.
    #[must_use]
    pub const fn with_memory(self) -> Self {
        Self {
            known: Known {
                memory: true,
                ..self.known
            },
            ..self
        }
    }

    /// The records of a kernel that has publishing: without this, messages of its kinds are of an unknown kind.
    #[must_use]
    pub const fn with_publishing(self) -> Self {
        Self {
            known: Known {
                publishing: true,
                ..self.known
            },
            ..self
        }
    }

    fn record(&mut self) -> Result<Record<'a>, WireError> {
        let r = &mut self.rest;
        let [ty, flags] = r.array().ok_or(WireError::Frame)?;
        let detail = r.u16().ok_or(WireError::Frame)?;
        let len = r.u32().ok_or(WireError::Frame)?;
        let head = Head {
            ty,
            flags,
            detail,
            channel: r.u32().ok_or(WireError::Frame)?,
            number: r.u32().ok_or(WireError::Frame)?,
        };
        let wrong = WireError::Length { ty, len };
        let whole = usize::try_from(len).map_err(|_| wrong)?;
        let body = whole
            .checked_sub(RECORD_HDR_LEN)
            .and_then(|body| r.take(body))
            .ok_or(wrong)?;
        // The last record may come without padding.
        let _ = r.skip(padding(whole).min(r.rest().len()));
        Record::decode(&head, body, self.known)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.rest().is_empty() {
            return None;
        }
        let record = self.record();
        if record.is_err() {
            self.rest = Reader::new(&[]);
        }
        Some(record)
    }
}

/// Builds a frame in a buffer: the header, then records.
///
/// The content of a message may lie elsewhere: then [`FrameWriter::record`] takes only the header of
/// the message, as the last record, and the content follows in another scatter entry.
#[derive(Debug)]
pub struct FrameWriter<'b> {
    buf: &'b mut [u8],
    used: usize,
}

impl<'b> FrameWriter<'b> {
    /// Begins a frame with the number of frames that the peer may send, from
    /// [`crate::link::Link::send`]. `None` if the buffer is shorter than the header.
    pub fn new(buf: &'b mut [u8], limit: Seq) -> Option<Self> {
        let head = buf.first_chunk_mut::<FRAME_HDR_LEN>()?;
        let mut w = Writer::new(head);
        w.put(&[FORMAT, 0, 0, 0]);
        w.u32(limit.get());
        Some(Self {
            buf,
            used: FRAME_HDR_LEN,
        })
    }

    /// Adds a record that `write` writes; it returns `None` if the record does not fit. Then nothing
    /// is added, and this returns `None`, too.
    pub fn record(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Option<()> {
        let at = self.used.checked_add(padding(self.used))?;
        self.buf.get_mut(self.used..at)?.fill(0);
        let len = write(self.buf.get_mut(at..)?)?;
        self.used = at.checked_add(len)?;
        Some(())
    }

    /// Bytes that another record may have.
    pub fn room(&self) -> usize {
        let used = self.used.saturating_add(padding(self.used));
        self.buf.len().saturating_sub(used)
    }

    /// The length of the frame.
    pub const fn finish(self) -> usize {
        self.used
    }
}
