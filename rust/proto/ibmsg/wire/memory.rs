// SPDX-License-Identifier: GPL-2.0

//! The records of memory: only between kernels that both have it ([`crate::memory`]).

use ibtrs_proto::bytes::{Reader, Writer};
use ibtrs_proto::Errno;

use super::*;
use crate::memory::{Handle, Key, Range, Refusal, Rights};

/// Bytes of NOTE.
pub const NOTE_LEN: usize = 48;
const ASK_LEN: usize = 32;
const KEY_LEN: usize = 64;
const RETURN_LEN: usize = 32;
const REVOKE_LEN: usize = 24;
const GET_LEN: usize = 56;
const GOT_LEN: usize = 24;

/// RETURN: of the whole handle.
const ALL: u8 = 1;
/// KEY: RDMA READ may be used.
const READABLE: u8 = 1;
/// KEY and GOT: no refusal.
const OK: u16 = 0;

/// What NOTE says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoteKind {
    /// Everything that the sender wrote to memory before it, by the same connection, is in its place.
    Placed,
    /// The receiver of a message has released its body.
    Release,
}

impl NoteKind {
    const fn to_wire(self) -> u16 {
        match self {
            Self::Placed => 0,
            Self::Release => 1,
        }
    }
}

/// NOTE: has a number like a message, and costs as much as an empty one, but is for the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// The channel.
    pub channel: u32,
    /// Its number among the messages.
    pub number: Seq,
    /// What it says.
    pub kind: NoteKind,
    /// The state of the sender's own receiver.
    pub ack: Ack,
    /// The memory, of the receiver of the note.
    pub handle: Handle,
    /// `Placed`: bytes that were written; otherwise 0.
    pub len: u64,
}

/// ASK: asks for the key of a piece of memory, for the connection that carries this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The channel.
    pub channel: u32,
    /// The memory.
    pub handle: Handle,
    /// The piece.
    pub piece: u64,
}

/// KEY: the answer to ASK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRecord {
    /// The channel.
    pub channel: u32,
    /// The memory.
    pub handle: Handle,
    /// The piece.
    pub piece: u64,
    /// The key, or why there is none.
    pub key: Result<Key, Refusal>,
}

/// RETURN: the sender uses the key of a piece, or any of a handle, no more, by this connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Return {
    /// The channel.
    pub channel: u32,
    /// The memory.
    pub handle: Handle,
    /// The piece; `None`: the answer to REVOKE.
    pub piece: Option<u64>,
}

/// REVOKE: the handle is not valid any more. The answer is RETURN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revoke {
    /// The channel.
    pub channel: u32,
    /// The memory.
    pub handle: Handle,
}

/// GET: asks the peer's kernel to write a part of its memory to a landing zone of the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Get {
    /// The channel.
    pub channel: u32,
    /// The sender's number of the request, for GOT.
    pub id: u32,
    /// The peer's memory.
    pub handle: Handle,
    /// Where to begin there.
    pub offset: u64,
    /// Bytes: at most [`crate::memory::PIECE`].
    pub len: u32,
    /// The key of the landing zone.
    pub rkey: u32,
    /// Its address.
    pub addr: u64,
}

/// GOT: the answer to GET. If there is no refusal, the bytes were written before it, by the same
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Got {
    /// The channel.
    pub channel: u32,
    /// From GET.
    pub id: u32,
    /// Why there are no bytes.
    pub refused: Option<Refusal>,
}

/// A record of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryRecord {
    /// NOTE.
    Note(Note),
    /// ASK.
    Ask(Ask),
    /// KEY.
    Key(KeyRecord),
    /// RETURN.
    Return(Return),
    /// REVOKE.
    Revoke(Revoke),
    /// GET.
    Get(Get),
    /// GOT.
    Got(Got),
}

fn handle(head: &Head, r: &mut Reader<'_>) -> Result<Handle, WireError> {
    let bits = r.u64().ok_or(head.short())?;
    Handle::from_wire(bits).ok_or(WireError::Handle(bits))
}

/// A refusal as a number; one of the peer that is not known is taken for a lack of resources.
fn refusal(number: u16) -> Option<Refusal> {
    (number != OK).then(|| Refusal::from_errno(Errno::from_peer(number)))
}

fn refused(refusal: Option<Refusal>) -> u16 {
    // Lossless: not negative, and small.
    refusal.map_or(OK, |refusal| refusal.errno().get() as u16)
}

impl MemoryRecord {
    /// The channel.
    pub const fn channel(&self) -> u32 {
        match self {
            Self::Note(r) => r.channel,
            Self::Ask(r) => r.channel,
            Self::Key(r) => r.channel,
            Self::Return(r) => r.channel,
            Self::Revoke(r) => r.channel,
            Self::Get(r) => r.channel,
            Self::Got(r) => r.channel,
        }
    }

    /// Writes the record, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut w = Writer::new(out);
        match self {
            Self::Note(note) => note.write(&mut w),
            Self::Ask(ask) => ask.write(&mut w),
            Self::Key(key) => key.write(&mut w),
            Self::Return(back) => back.write(&mut w),
            Self::Revoke(revoke) => revoke.write(&mut w),
            Self::Get(get) => get.write(&mut w),
            Self::Got(got) => got.write(&mut w),
        }
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &[u8]) -> Result<Self, WireError> {
        head.flags_within(match head.ty {
            TYPE_RETURN => ALL,
            TYPE_KEY => READABLE,
            _ => 0,
        })?;
        let mut r = Reader::new(body);
        let record = match head.ty {
            TYPE_NOTE => Self::Note(Note::read(head, &mut r)?),
            TYPE_ASK => Self::Ask(Ask::read(head, &mut r)?),
            TYPE_KEY => Self::Key(KeyRecord::read(head, &mut r)?),
            TYPE_RETURN => Self::Return(Return::read(head, &mut r)?),
            TYPE_REVOKE => Self::Revoke(Revoke {
                channel: head.channel,
                handle: handle(head, &mut r)?,
            }),
            TYPE_GET => Self::Get(Get::read(head, &mut r)?),
            _ => Self::Got(Got::read(head, &mut r)?),
        };
        exact(head, r.rest())?;
        Ok(record)
    }
}

impl Note {
    fn write(&self, w: &mut Writer<'_>) {
        let mut head = Head::new(TYPE_NOTE, self.channel, self.number);
        head.detail = self.kind.to_wire();
        head.write(w, NOTE_LEN);
        self.ack.write(w);
        w.u64(self.handle.to_wire());
        w.u64(self.len);
    }

    fn read(head: &Head, r: &mut Reader<'_>) -> Result<Self, WireError> {
        let [low, _] = head.detail.to_le_bytes();
        let kind = match head.detail {
            0 => NoteKind::Placed,
            1 => NoteKind::Release,
            _ => return Err(WireError::Kind(low)),
        };
        Ok(Self {
            channel: head.channel,
            number: Seq::new(head.number),
            kind,
            ack: Ack::read(head, r)?,
            handle: handle(head, r)?,
            len: r.u64().ok_or(head.short())?,
        })
    }
}

impl Ask {
    fn write(&self, w: &mut Writer<'_>) {
        Head::new(TYPE_ASK, self.channel, Seq::new(0)).write(w, ASK_LEN);
        w.u64(self.handle.to_wire());
        w.u64(self.piece);
    }

    fn read(head: &Head, r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            channel: head.channel,
            handle: handle(head, r)?,
            piece: r.u64().ok_or(head.short())?,
        })
    }
}

impl KeyRecord {
    fn write(&self, w: &mut Writer<'_>) {
        let mut head = Head::new(TYPE_KEY, self.channel, Seq::new(0));
        head.detail = refused(self.key.err());
        let key = self.key.ok();
        head.flags = match key {
            Some(Key { readable: true, .. }) => READABLE,
            _ => 0,
        };
        head.number = key.map_or(0, |key| key.rkey);
        head.write(w, KEY_LEN);
        w.u64(self.handle.to_wire());
        w.u64(self.piece);
        w.u64(key.map_or(0, |key| key.addr));
        w.u64(key.map_or(0, |key| key.range.start()));
        w.u64(key.map_or(0, |key| key.range.len()));
        w.u8(key.map_or(0, |key| key.rights.to_wire()));
        w.zeros(7);
    }

    fn read(head: &Head, r: &mut Reader<'_>) -> Result<Self, WireError> {
        let handle = handle(head, r)?;
        let mut field = || r.u64().ok_or(head.short());
        let (piece, addr, start, len) = (field()?, field()?, field()?, field()?);
        let rights = r.u8().ok_or(head.short())?;
        r.skip(7).ok_or(head.short())?;
        let key = match refusal(head.detail) {
            Some(refusal) => Err(refusal),
            None => Ok(Key {
                rkey: head.number,
                addr,
                range: Range::new(start, len).ok_or(WireError::Memory)?,
                rights: Rights::from_wire(rights).ok_or(WireError::Memory)?,
                readable: head.flags & READABLE != 0,
            }),
        };
        Ok(Self {
            channel: head.channel,
            handle,
            piece,
            key,
        })
    }
}

impl Return {
    fn write(&self, w: &mut Writer<'_>) {
        let mut head = Head::new(TYPE_RETURN, self.channel, Seq::new(0));
        head.flags = if self.piece.is_none() { ALL } else { 0 };
        head.write(w, RETURN_LEN);
        w.u64(self.handle.to_wire());
        w.u64(self.piece.unwrap_or(0));
    }

    fn read(head: &Head, r: &mut Reader<'_>) -> Result<Self, WireError> {
        let handle = handle(head, r)?;
        let piece = r.u64().ok_or(head.short())?;
        Ok(Self {
            channel: head.channel,
            handle,
            piece: (head.flags & ALL == 0).then_some(piece),
        })
    }
}

impl Revoke {
    fn write(&self, w: &mut Writer<'_>) {
        Head::new(TYPE_REVOKE, self.channel, Seq::new(0)).write(w, REVOKE_LEN);
        w.u64(self.handle.to_wire());
    }
}

impl Get {
    fn write(&self, w: &mut Writer<'_>) {
        Head::new(TYPE_GET, self.channel, Seq::new(self.id)).write(w, GET_LEN);
        w.u64(self.handle.to_wire());
        w.u64(self.offset);
        w.u64(self.addr);
        w.u32(self.len);
        w.u32(self.rkey);
        w.zeros(8);
    }

    fn read(head: &Head, r: &mut Reader<'_>) -> Result<Self, WireError> {
        let handle = handle(head, r)?;
        let mut field = || r.u64().ok_or(head.short());
        let (offset, addr) = (field()?, field()?);
        let len = r.u32().ok_or(head.short())?;
        let rkey = r.u32().ok_or(head.short())?;
        r.skip(8).ok_or(head.short())?;
        let fits = Range::new(offset, u64::from(len)).is_some()
            && Range::new(addr, u64::from(len)).is_some()
            && len <= crate::memory::PIECE;
        match fits {
            false => Err(WireError::Memory),
            true => Ok(Self {
                channel: head.channel,
                id: head.number,
                handle,
                offset,
                len,
                rkey,
                addr,
            }),
        }
    }
}

impl Got {
    fn write(&self, w: &mut Writer<'_>) {
        let mut head = Head::new(TYPE_GOT, self.channel, Seq::new(self.id));
        head.detail = refused(self.refused);
        head.write(w, GOT_LEN);
        w.zeros(8);
    }

    fn read(head: &Head, r: &mut Reader<'_>) -> Result<Self, WireError> {
        r.skip(8).ok_or(head.short())?;
        Ok(Self {
            channel: head.channel,
            id: head.number,
            refused: refusal(head.detail),
        })
    }
}
