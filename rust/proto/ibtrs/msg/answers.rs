// SPDX-License-Identifier: GPL-2.0

//! Several answers in one message (extension; Documentation/protocol.md).

use super::MsgError;
use crate::imm::{Answer, Imm};

/// Most answers that follow the one of the immediate.
pub const MAX_MORE_ANSWERS: usize = 7;
/// Bytes of one answer.
const ENTRY_LEN: usize = 4;
/// Bytes of the longest message.
pub const MORE_ANSWERS_LEN: usize = MAX_MORE_ANSWERS * ENTRY_LEN;

/// The answers that a message carries beside the one of its immediate.
///
/// # Invariants
///
/// `count` is at most [`MAX_MORE_ANSWERS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoreAnswers {
    entries: [u32; MAX_MORE_ANSWERS],
    // Narrow, as a server keeps these for each request number.
    count: u8,
}

impl MoreAnswers {
    /// No answers.
    pub const NONE: Self = Self {
        entries: [0; MAX_MORE_ANSWERS],
        count: 0,
    };

    /// Returns whether there are no answers.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns whether there is no room for another answer.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.len() == MAX_MORE_ANSWERS
    }

    #[inline]
    const fn len(&self) -> usize {
        self.count as usize
    }

    /// Removes all answers.
    #[inline]
    pub fn clear(&mut self) {
        // INVARIANT: Zero is not too many.
        self.count = 0;
    }

    /// Adds an answer; returns `false` if there is no room for it.
    #[inline]
    pub fn push(&mut self, Answer { id, errno }: Answer) -> bool {
        let count = self.len();
        let Some(place) = self.entries.get_mut(count) else {
            return false;
        };
        *place = Imm::IoRspSameKey { id, errno }.encode();
        // INVARIANT: There was a place.
        self.count = self.count.saturating_add(1);
        true
    }

    /// Writes the body of the message to `out`, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let len = self.len().saturating_mul(ENTRY_LEN);
        let places = out.get_mut(..len)?.chunks_exact_mut(ENTRY_LEN);
        for (place, entry) in places.zip(&self.entries) {
            place.copy_from_slice(&entry.to_le_bytes());
        }
        Some(len)
    }

    /// Reads the body of a message.
    ///
    /// # Errors
    ///
    /// When it has no answer, more than [`MAX_MORE_ANSWERS`], part of an answer, or an immediate
    /// other than [`Imm::IoRspSameKey`]. The caller tears the path down: nothing of the message
    /// counts.
    pub fn decode(bytes: &[u8]) -> Result<Self, MsgError> {
        let mut answers = Self::NONE;
        let entries = bytes.chunks_exact(ENTRY_LEN);
        if !entries.remainder().is_empty() || bytes.is_empty() {
            return Err(MsgError::Short);
        }
        for entry in entries {
            let entry = u32::from_le_bytes(entry.try_into().map_err(|_| MsgError::Short)?);
            let Imm::IoRspSameKey { id, errno } = Imm::decode(entry) else {
                return Err(MsgError::Answer(entry));
            };
            if !answers.push(Answer { id, errno }) {
                return Err(MsgError::NoRoom);
            }
        }
        Ok(answers)
    }

    /// Iterates over the answers.
    pub fn iter(&self) -> impl Iterator<Item = Answer> + '_ {
        let used = self.entries.iter().take(self.len());
        used.filter_map(|entry| match Imm::decode(*entry) {
            Imm::IoRspSameKey { id, errno } => Some(Answer { id, errno }),
            _ => None,
        })
    }
}
