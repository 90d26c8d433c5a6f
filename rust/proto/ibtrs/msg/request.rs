// SPDX-License-Identifier: GPL-2.0

//! Request headers, the last bytes of a request in its chunk
//! (Documentation/protocol.md, "Requests").

use super::{SgDesc, TIMED, TYPE_FETCH, TYPE_READ, TYPE_WRITE};
use crate::bytes::{message, Writer};
use crate::consts::{MAX_REQUEST_HDR_LEN, READ_HDR_LEN, SG_DESC_LEN, WRITE_HDR_LEN};

/// Flag of READ and FETCH: the answer must invalidate the key of the client's memory.
pub(crate) const FLAG_NEED_INVAL: u16 = 1;

/// Which way the data of a request flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From server to client.
    Read,
    /// From client to server.
    Write,
}

/// Header of a request whose data goes to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteHdr {
    /// Bytes of the user header right before this header.
    pub usr_len: u16,
    /// The answer is to end with the server's times (extension).
    pub timed: bool,
}

impl WriteHdr {
    /// Length of the header in bytes.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        WRITE_HDR_LEN
    }

    /// The 4 bytes of the header.
    #[inline]
    pub fn encode(&self) -> [u8; WRITE_HDR_LEN] {
        message(|w| {
            w.u16(timed(TYPE_WRITE, self.timed));
            w.u16(self.usr_len);
        })
    }
}

/// Header of a request whose data comes from the server, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadHdr {
    /// Bytes of the user header right before this header.
    pub usr_len: u16,
    /// The server must invalidate the descriptor's key. Ignored without a descriptor.
    pub need_inval: bool,
    /// The answer is to end with the server's times (extension).
    pub timed: bool,
    /// Client memory that takes the data; its length is the number of bytes to return.
    pub desc: Option<SgDesc>,
}

impl ReadHdr {
    /// Length of the header in bytes: 8 or 24.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        match self.desc {
            Some(_) => READ_HDR_LEN.saturating_add(SG_DESC_LEN),
            None => READ_HDR_LEN,
        }
    }

    /// Writes the header to the front of `buf` and returns its length, or `None` if it does
    /// not fit.
    #[inline]
    pub fn encode(&self, buf: &mut [u8]) -> Option<usize> {
        let inval = self.need_inval && self.desc.is_some();
        let mut w = Writer::new(buf);
        w.u16(timed(TYPE_READ, self.timed));
        w.u16(self.usr_len);
        w.u16(if inval { FLAG_NEED_INVAL } else { 0 });
        w.u16(u16::from(self.desc.is_some()));
        if let Some(desc) = &self.desc {
            desc.write(&mut w);
        }
        w.finish()
    }
}

/// Header of a request whose data the server fetches from the client's memory (extension).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchHdr {
    /// Bytes of the user header right before this header.
    pub usr_len: u16,
    /// The server must invalidate the descriptor's key.
    pub need_inval: bool,
    /// The answer is to end with the server's times.
    pub timed: bool,
    /// Client memory that has the data; its length is the number of bytes to write.
    pub desc: SgDesc,
}

impl FetchHdr {
    /// Length of the header in bytes.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        MAX_REQUEST_HDR_LEN
    }

    /// The 24 bytes of the header.
    #[inline]
    pub fn encode(&self) -> [u8; MAX_REQUEST_HDR_LEN] {
        message(|w| {
            w.u16(timed(TYPE_FETCH, self.timed));
            w.u16(self.usr_len);
            w.u16(if self.need_inval { FLAG_NEED_INVAL } else { 0 });
            w.u16(1);
            self.desc.write(w);
        })
    }
}

#[inline]
const fn timed(kind: u16, timed: bool) -> u16 {
    match timed {
        true => kind | TIMED,
        false => kind,
    }
}
