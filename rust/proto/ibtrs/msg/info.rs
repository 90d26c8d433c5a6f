// SPDX-License-Identifier: GPL-2.0

//! INFO_REQ carries the session name, INFO_RSP the addresses of the chunks
//! (Documentation/protocol.md, "INFO exchange").

use super::{MsgError, SgDesc, TYPE_INFO_REQ, TYPE_INFO_RSP};
use crate::bytes::{message, Reader, Writer};
use crate::consts::{INFO_REQ_LEN, MAX_SESSION_NAME};
use crate::imm::ImmLayout;
use crate::name::{NameError, SessionName};

/// The client's introduction on connection 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InfoReq<'a> {
    /// Name of the session.
    pub name: SessionName<'a>,
}

impl<'a> InfoReq<'a> {
    /// The 272 bytes of the message.
    pub fn encode(&self) -> [u8; INFO_REQ_LEN] {
        message(|w| {
            w.u16(TYPE_INFO_REQ);
            w.put(self.name.as_bytes());
        })
    }

    /// Reads and checks the message; reserved bytes are ignored.
    ///
    /// # Errors
    ///
    /// When it is short, of another type, or its name is not NUL-terminated or not a
    /// [`SessionName`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MsgError> {
        let head = bytes.get(..INFO_REQ_LEN).ok_or(MsgError::Short)?;
        let mut r = Reader::new(head);
        let kind = r.u16().ok_or(MsgError::Short)?;
        if kind != TYPE_INFO_REQ {
            return Err(MsgError::Type(kind));
        }
        let field = r.take(MAX_SESSION_NAME).ok_or(MsgError::Short)?;
        let len = field
            .iter()
            .position(|&b| b == 0)
            .ok_or(MsgError::Name(NameError::NoNul))?;
        let text = field.get(..len).ok_or(MsgError::Short)?;
        SessionName::new(text)
            .map(|name| Self { name })
            .map_err(MsgError::Name)
    }
}

/// The server's answer: where the session's chunks are.
///
/// # Invariants
///
/// `descs` holds whole descriptors of non-empty runs of whole chunks that together make up
/// `layout.queue_depth()` chunks and do not wrap around.
#[derive(Clone, Copy, Debug)]
pub struct InfoRsp<'a> {
    descs: &'a [u8],
    layout: ImmLayout,
}

impl<'a> InfoRsp<'a> {
    /// Writes a message with `descs` to the front of `buf` and returns its length.
    ///
    /// # Errors
    ///
    /// When there is no descriptor or too many, or the message does not fit `buf`.
    pub fn write(
        buf: &mut [u8],
        descs: impl IntoIterator<Item = SgDesc>,
    ) -> Result<usize, MsgError> {
        let (head, rest) = buf.split_first_chunk_mut::<8>().ok_or(MsgError::NoRoom)?;
        let mut w = Writer::new(rest);
        let mut count: u16 = 0;
        for desc in descs {
            count = count.checked_add(1).ok_or(MsgError::NoRoom)?;
            desc.write(&mut w);
        }
        if count == 0 {
            return Err(MsgError::Count(0));
        }
        *head = message(|w| {
            w.u16(TYPE_INFO_RSP);
            w.u16(count);
        });
        w.finish()
            .and_then(|n| n.checked_add(head.len()))
            .ok_or(MsgError::NoRoom)
    }

    /// Reads and checks the message.
    ///
    /// # Errors
    ///
    /// When it is short or of another type, when the number of descriptors does not divide
    /// `queue_depth`, or when they do not cover exactly `queue_depth` chunks of `chunk_size`.
    pub fn parse(bytes: &'a [u8], queue_depth: u16, chunk_size: u32) -> Result<Self, MsgError> {
        let layout = ImmLayout::new(queue_depth, chunk_size).map_err(MsgError::Layout)?;
        let mut r = Reader::new(bytes);
        let kind = r.u16().ok_or(MsgError::Short)?;
        let count = r.u16().ok_or(MsgError::Short)?;
        r.skip(4).ok_or(MsgError::Short)?;
        if kind != TYPE_INFO_RSP {
            return Err(MsgError::Type(kind));
        }
        if count == 0 || queue_depth.checked_rem(count) != Some(0) {
            return Err(MsgError::Count(count));
        }
        let mut descs = Reader::new(r.rest());
        let mut total: u64 = 0;
        for i in 0..count {
            let d = SgDesc::read(&mut descs).ok_or(MsgError::Short)?;
            if d.len == 0 || d.len.checked_rem(chunk_size) != Some(0) || !d.fits() {
                return Err(MsgError::Desc(i));
            }
            total = total.saturating_add(u64::from(d.len));
        }
        if total != u64::from(queue_depth).saturating_mul(u64::from(chunk_size)) {
            return Err(MsgError::Coverage);
        }
        let len = r.rest().len().saturating_sub(descs.rest().len());
        let descs = r.rest().get(..len).ok_or(MsgError::Short)?;
        // INVARIANT: checked above.
        Ok(Self { descs, layout })
    }

    /// The chunks in the order of their ids, exactly as many as the queue is deep.
    pub fn chunks(&self) -> Chunks<'a> {
        Chunks {
            descs: Reader::new(self.descs),
            current: SgDesc::default(),
            chunk_size: self.layout.chunk_size(),
            left: self.layout.queue_depth(),
        }
    }
}

/// The place of a chunk in the server's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Address of its first byte.
    pub addr: u64,
    /// Its remote key, as a number in host order.
    pub rkey: u32,
}

/// Iterator over the chunks of an [`InfoRsp`].
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    descs: Reader<'a>,
    current: SgDesc,
    chunk_size: u32,
    left: u16,
}

impl Iterator for Chunks<'_> {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        self.left = self.left.checked_sub(1)?;
        if self.current.len == 0 {
            self.current = SgDesc::read(&mut self.descs)?;
        }
        let d = self.current;
        self.current.len = d.len.saturating_sub(self.chunk_size);
        // Cannot wrap by the type invariant of `InfoRsp`.
        self.current.addr = d.addr.wrapping_add(u64::from(self.chunk_size));
        Some(Chunk {
            addr: d.addr,
            rkey: d.key,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let n = usize::from(self.left);
        (n, Some(n))
    }
}

impl ExactSizeIterator for Chunks<'_> {}
