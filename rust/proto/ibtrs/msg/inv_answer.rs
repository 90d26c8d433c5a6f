// SPDX-License-Identifier: GPL-2.0

//! An answer in the message that invalidates the key of its request (extension;
//! Documentation/protocol.md).

use super::{MsgError, RkeyRsp, Trailer, MAX_TRAILER_LEN, MORE_ANSWERS_LEN};
use crate::bytes::Writer;
use crate::consts::RKEY_RSP_LEN;
use crate::imm::{Answer, Imm};
use crate::tag::Tag;

/// Bytes of the immediate that the body begins with.
const IMM_LEN: usize = 4;
/// Bytes of the longest body.
pub const INV_ANSWER_LEN: usize = IMM_LEN + RKEY_RSP_LEN + MAX_TRAILER_LEN;

// The receives of clients have room for any answer.
const _: () = assert!(INV_ANSWER_LEN <= MORE_ANSWERS_LEN);

/// The body of a SEND WITH INV that is the whole answer, but for the data: 4 bytes, 8 more with a
/// key, and 4 or 8 more with a trailer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvAnswer {
    /// The answer.
    pub answer: Answer,
    /// The new key of the chunk; `None` if the key stays as it was.
    pub rkey: Option<u32>,
    /// The trailer.
    pub trailer: Trailer,
}

impl InvAnswer {
    /// Writes the body to `out`, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let Answer { id, errno } = self.answer;
        let imm = match self.rkey {
            None => Imm::IoRspSameKey { id, errno },
            Some(_) => Imm::IoRspInv { id, errno },
        };
        let mut w = Writer::new(out);
        w.u32(imm.encode());
        if let Some(rkey) = self.rkey {
            let tag = Tag::try_from(id).ok()?;
            w.put(&RkeyRsp { tag, rkey }.encode());
        }
        self.trailer.write(&mut w);
        w.finish()
    }

    /// Reads the body. `new_rkey` says whether answers of the session may bring new keys;
    /// `queue_depth` is the number of its chunks.
    ///
    /// # Errors
    ///
    /// When it has another length than its type allows, another type, a key that is not for the
    /// answered chunk, or a key in a session without new keys. The caller tears the path down.
    pub fn decode(bytes: &[u8], new_rkey: bool, queue_depth: u16) -> Result<Self, MsgError> {
        let (head, rest) = bytes.split_first_chunk().ok_or(MsgError::Short)?;
        let imm = u32::from_le_bytes(*head);
        match Imm::decode(imm) {
            Imm::IoRspSameKey { id, errno } => Ok(Self {
                answer: Answer { id, errno },
                rkey: None,
                trailer: Trailer::exact(rest).ok_or(MsgError::Answer(imm))?,
            }),
            Imm::IoRspInv { id, errno } if new_rkey => {
                let parts = rest
                    .split_at_checked(RKEY_RSP_LEN)
                    .and_then(|(key, rest)| Some((key, Trailer::exact(rest)?)));
                let (key, trailer) = parts.ok_or(MsgError::Answer(imm))?;
                let RkeyRsp { rkey, .. } = RkeyRsp::decode_for(key, id, queue_depth)?;
                Ok(Self {
                    answer: Answer { id, errno },
                    rkey: Some(rkey),
                    trailer,
                })
            }
            _ => Err(MsgError::Answer(imm)),
        }
    }
}
