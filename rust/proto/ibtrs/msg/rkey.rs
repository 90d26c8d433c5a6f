// SPDX-License-Identifier: GPL-2.0

//! RKEY_RSP: a response that carries the chunk's next key (Documentation/protocol.md, "Keys").

use super::{MsgError, TYPE_RKEY_RSP};
use crate::bytes::{message, Reader};
use crate::consts::RKEY_RSP_LEN;
use crate::tag::Tag;

/// Body of a response in the mode "new key with every answer".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RkeyRsp {
    /// The tag of the chunk.
    pub tag: Tag,
    /// Its key on this path from now on, as a number in host order.
    pub rkey: u32,
}

impl RkeyRsp {
    /// The 8 bytes of the message.
    #[inline]
    pub fn encode(&self) -> [u8; RKEY_RSP_LEN] {
        message(|w| {
            w.u16(TYPE_RKEY_RSP);
            w.u16(self.tag.get());
            w.u32(self.rkey);
        })
    }

    /// Reads the message.
    ///
    /// # Errors
    ///
    /// When it is short or of another type.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, MsgError> {
        let mut r = Reader::new(bytes);
        let mut fields = || Some((r.u16()?, r.u16()?, r.u32()?));
        match fields() {
            None => Err(MsgError::Short),
            Some((TYPE_RKEY_RSP, tag, rkey)) => Ok(Self {
                tag: Tag::new(tag),
                rkey,
            }),
            Some((other, _, _)) => Err(MsgError::Type(other)),
        }
    }

    /// Reads the message, and checks that it is about chunk `id`, that of the immediate, and that
    /// the chunk exists.
    ///
    /// # Errors
    ///
    /// As [`RkeyRsp::decode`], and when the chunk is another one. The caller tears the path down.
    #[inline]
    pub fn decode_for(bytes: &[u8], id: u32, queue_depth: u16) -> Result<Self, MsgError> {
        let msg = Self::decode(bytes)?;
        if msg.tag.get() >= queue_depth || u32::from(msg.tag) != id {
            return Err(MsgError::BufId(msg.tag.get()));
        }
        Ok(msg)
    }
}
