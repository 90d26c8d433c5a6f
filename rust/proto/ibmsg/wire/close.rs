// SPDX-License-Identifier: GPL-2.0

//! CLOSE and CLOSED: the end of a channel.

use ibtrs_proto::bytes::{Reader, Writer};

use super::*;

/// Bytes of CLOSE.
pub const CLOSE_LEN: usize = 40;
/// Bytes of CLOSED.
pub const CLOSED_LEN: usize = RECORD_HDR_LEN;

/// The sender has sent its last message, too.
const END: u8 = 1;

/// CLOSE: the sender's program takes no more messages, and the acknowledgement in it is the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Close {
    /// The channel.
    pub channel: u32,
    /// The number after the sender's last message, if it has sent that; `None`: messages that were
    /// written before are still to come.
    pub end: Option<Seq>,
    /// The final state of the sender's receiver.
    pub ack: Ack,
    /// Why, as an errno, positive; 0: the program has closed the channel.
    pub reason: u16,
}

impl Close {
    /// Writes the record, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut w = Writer::new(out);
        let mut head = Head::new(TYPE_CLOSE, self.channel, self.end.unwrap_or_default());
        head.flags = if self.end.is_some() { END } else { 0 };
        head.write(&mut w, CLOSE_LEN);
        self.ack.write(&mut w);
        w.u16(self.reason);
        w.zeros(6);
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &[u8]) -> Result<Self, WireError> {
        head.flags_within(END)?;
        let mut r = Reader::new(body);
        let ack = Ack::read(head, &mut r)?;
        let reason = r.u16().ok_or(head.short())?;
        r.skip(6).ok_or(head.short())?;
        exact(head, r.rest())?;
        Ok(Self {
            channel: head.channel,
            end: (head.flags & END != 0).then_some(Seq::new(head.number)),
            ack,
            reason,
        })
    }
}

/// CLOSED: the answer to REJECT, to REDIRECT, and to CLOSE with an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed {
    /// The channel.
    pub channel: u32,
}

impl Closed {
    /// Writes the record, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut w = Writer::new(out);
        Head::new(TYPE_CLOSED, self.channel, Seq::new(0)).write(&mut w, CLOSED_LEN);
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &[u8]) -> Result<Self, WireError> {
        head.flags_within(0)?;
        exact(head, body)?;
        Ok(Self {
            channel: head.channel,
        })
    }
}
