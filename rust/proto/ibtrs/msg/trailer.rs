// SPDX-License-Identifier: GPL-2.0

//! A number of the upper layer at the end of an answer (extension; Documentation/protocol.md,
//! "Trailers").

use super::RkeyRsp;
use crate::bytes::Writer;

/// Bytes of a trailer.
pub const TRAILER_LEN: usize = 4;

/// The body of a message with an immediate that is an answer: both parts may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnswerBody {
    /// The key of the chunk from now on.
    pub key: Option<RkeyRsp>,
    /// The trailer.
    pub trailer: Option<u32>,
}

impl AnswerBody {
    /// Writes the body to `out`, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut w = Writer::new(out);
        if let Some(key) = &self.key {
            w.put(&key.encode());
        }
        if let Some(trailer) = self.trailer {
            w.u32(trailer);
        }
        w.finish()
    }
}

/// The trailer of an answer: `rest` is its body, without the key if the answer has one. Anything
/// but four bytes is none.
#[inline]
pub fn trailer(rest: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(rest.try_into().ok()?))
}
