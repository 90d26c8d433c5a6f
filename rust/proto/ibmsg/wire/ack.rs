// SPDX-License-Identifier: GPL-2.0

//! Acknowledgement and credits of a channel.

use ibtrs_proto::bytes::{Reader, Writer};

use super::*;

/// Bytes of ACK.
pub const ACK_LEN: usize = 32;
/// The receiver wants everything from `next` on once more.
const AGAIN: u8 = 0x01;

/// The state of one receiver. All four places only ever move forward, and each is absolute: an
/// acknowledgement that is repeated, or comes after a later one, changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// All messages before this one are in the queue of the receiver's program.
    pub next: Seq,
    /// All messages before this one were taken by the receiver's program.
    pub taken: Seq,
    /// Messages from this one on may not be sent.
    pub msg_limit: Seq,
    /// The [`crate::limits::cost`] of all messages since the channel was opened may not exceed this.
    pub byte_limit: Seq,
}

impl Ack {
    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        w.u32(self.next.get());
        w.u32(self.taken.get());
        w.u32(self.msg_limit.get());
        w.u32(self.byte_limit.get());
    }

    pub(crate) fn read(head: &Head, r: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut place = || r.u32().map(Seq::new).ok_or(head.short());
        let ack = Self {
            next: place()?,
            taken: place()?,
            msg_limit: place()?,
            byte_limit: place()?,
        };
        match ack.next.is_before(ack.taken) {
            true => Err(WireError::Taken),
            false => Ok(ack),
        }
    }
}

/// ACK: an acknowledgement that travels without a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckRecord {
    /// The channel.
    pub channel: u32,
    /// The state of its receiver.
    pub ack: Ack,
    /// The receiver had no memory, and has dropped what came after `next`: the sender sends it again. A
    /// record that says so is not repeated.
    pub again: bool,
}

impl AckRecord {
    /// Writes the record, and returns its length; `None` if it does not fit.
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let mut w = Writer::new(out);
        let mut head = Head::new(TYPE_ACK, self.channel, Seq::new(0));
        head.flags = if self.again { AGAIN } else { 0 };
        head.write(&mut w, ACK_LEN);
        self.ack.write(&mut w);
        w.finish()
    }

    pub(crate) fn decode(head: &Head, body: &[u8]) -> Result<Self, WireError> {
        head.flags_within(AGAIN)?;
        let mut r = Reader::new(body);
        let ack = Ack::read(head, &mut r)?;
        exact(head, r.rest())?;
        Ok(Self {
            channel: head.channel,
            ack,
            again: head.flags & AGAIN != 0,
        })
    }
}
