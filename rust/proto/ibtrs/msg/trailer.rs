// SPDX-License-Identifier: GPL-2.0

//! Numbers at the end of an answer (extension; Documentation/protocol.md, "Trailers").

use super::RkeyRsp;
use crate::bytes::{Reader, Writer};

/// Bytes of one number.
const NUMBER_LEN: usize = 4;
/// Bytes of the longest trailer.
pub const MAX_TRAILER_LEN: usize = 2 * NUMBER_LEN;

/// The numbers after an answer and its key. The meaning of a single number depends on the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trailer {
    /// Nothing.
    #[default]
    None,
    /// The number of the upper layer, or the times.
    One(u32),
    /// The number of the upper layer, and the times.
    Two(u32, u32),
}

impl Trailer {
    /// The trailer of an answer with the number of the upper layer, and with
    /// [`ServerTimes`](super::ServerTimes) if the request has asked for them.
    #[inline]
    pub const fn new(upper: Option<u32>, times: Option<u32>) -> Self {
        match (upper, times) {
            (None, None) => Self::None,
            (Some(number), None) | (None, Some(number)) => Self::One(number),
            (Some(upper), Some(times)) => Self::Two(upper, times),
        }
    }

    /// Returns the number of the upper layer, and the times if the request was `timed`, that is,
    /// asked for times. Other answers have no second number.
    #[inline]
    pub const fn parts(self, timed: bool) -> (Option<u32>, Option<u32>) {
        match (self, timed) {
            (Self::One(upper), false) => (Some(upper), None),
            (Self::One(times), true) => (None, Some(times)),
            (Self::Two(upper, times), true) => (Some(upper), Some(times)),
            (Self::None, _) | (Self::Two(..), false) => (None, None),
        }
    }

    /// Reads the rest of an answer, after its key if it has one. A rest of a wrong length counts as
    /// no trailer.
    #[inline]
    pub fn decode(rest: &[u8]) -> Self {
        Self::exact(rest).unwrap_or(Self::None)
    }

    /// Reads a trailer; `None` if no trailer has this length.
    #[inline]
    pub(super) fn exact(rest: &[u8]) -> Option<Self> {
        let mut r = Reader::new(rest);
        match rest.len() {
            0 => Some(Self::None),
            NUMBER_LEN => Some(Self::One(r.u32()?)),
            MAX_TRAILER_LEN => Some(Self::Two(r.u32()?, r.u32()?)),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn write(self, w: &mut Writer<'_>) {
        match self {
            Self::None => {}
            Self::One(number) => w.u32(number),
            Self::Two(upper, times) => {
                w.u32(upper);
                w.u32(times);
            }
        }
    }
}

/// The body of a message whose immediate is an answer. Both parts may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnswerBody {
    /// The key of the chunk from now on.
    pub key: Option<RkeyRsp>,
    /// The trailer.
    pub trailer: Trailer,
}

impl AnswerBody {
    /// Writes the body to `out`, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut w = Writer::new(out);
        if let Some(key) = &self.key {
            w.put(&key.encode());
        }
        self.trailer.write(&mut w);
        w.finish()
    }
}
