// SPDX-License-Identifier: GPL-2.0

//! Puts what is due for a channel into a frame.

use core::iter::once;
use ibmsg_proto::{
    channel::Conn,
    limits::MIN_PIECE,
    receive::Due,
    send::Next,
    wire::{
        Accept,
        AckRecord,
        Closed,
        FrameWriter,
        Kind as WireKind,
        MessageHdr,
        Open,
        Reject,
        Resume,
        Skip,
        ACK_LEN,
        CLOSED_LEN,
        CLOSE_LEN,
        MESSAGE_HDR_LEN, //
    }, //
};

use ibtrs_core::messages::memory::Device;

use super::{
    Chan,
    Owed, //
};
use crate::types::{
    Kind,
    F_BODY,
    F_RECEIPT, //
};

/// Bytes that a channel may send in its turn: at least the longest record, so that each turn sends one.
const QUANTUM: u32 = ibmsg_proto::limits::FRAME;
/// A message is not cut into smaller pieces for the sake of a frame's rest.
// CAST: A small constant.
const LEAST_PIECE: usize = MIN_PIECE as usize;

/// How far a channel has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// Everything that can be sent now is in frames.
    All,
    /// The frame has no room for the next record.
    Full,
    /// It is another channel's turn.
    Turn,
}

impl Chan {
    /// Adds records to a frame for the connection `on`, and their number to `records`. `device`: what the connection
    /// does with memory.
    pub(crate) fn serve(
        &mut self,
        (on, device): (Conn, Option<&dyn Device>),
        frame: &mut FrameWriter<'_>,
        records: &mut u32,
        now: u64,
    ) -> Served {
        if !self.proto.is_on(on) {
            return Served::All;
        }
        // What waits for others is sent now if its time is over: the caller takes what is left for lack of credits.
        self.gather.expire(now);
        let served = self.serve_records((on, device), frame, records, now);
        match served {
            None => Served::Full,
            Some(Served::All) => {
                self.is_front = false;
                self.deficit.clear();
                Served::All
            }
            Some(served) => served,
        }
    }

    /// None if the frame is full.
    fn serve_records(
        &mut self,
        (on, device): (Conn, Option<&dyn Device>),
        frame: &mut FrameWriter<'_>,
        records: &mut u32,
        now: u64,
    ) -> Option<Served> {
        if self.owed != Owed::Nothing {
            self.put_owed(frame)?;
            self.owed = Owed::Nothing;
            *records += 1;
        }
        if self.proto.conn() == Some(on) {
            if !self.is_front {
                self.is_front = true;
                self.deficit.begin(QUANTUM);
            }
            self.put_memory(on, frame, records)?;
            loop {
                match self.put_message((on, device), frame)? {
                    Put::Record => *records += 1,
                    Put::Again => {}
                    Put::Nothing if self.serve_subscribers(now) => {}
                    Put::Nothing => break,
                    Put::NoQuantum => {
                        self.is_front = false;
                        return Some(Served::Turn);
                    }
                }
            }
            // A PUT may have asked for a key.
            self.put_memory(on, frame, records)?;
        }
        // A record that is lost for want of room would not be made again.
        if frame.room() < CLOSE_LEN {
            return None;
        }
        // Either lets the peer invalidate keys without being asked. A READ is not ordered before them.
        let may_end = !self.is_reading();
        let close = match may_end {
            true => self.proto.close_due(self.out.is_numbered()),
            false => None,
        };
        if let Some(close) = close {
            frame.record(|out| close.encode(out))?;
            *records += 1;
        }
        if self.owes_closed && may_end {
            if frame.room() < CLOSED_LEN {
                return None;
            }
            let channel = self.proto.id();
            frame.record(|out| Closed { channel }.encode(out))?;
            self.owes_closed = false;
            *records += 1;
        }
        if self.due(now) == Due::Now {
            if frame.room() < ACK_LEN {
                return None;
            }
            let (ack, again) = self.proto.rx.announce_alone();
            let record = AckRecord {
                channel: self.proto.id(),
                ack,
                again,
            };
            frame.record(|out| record.encode(out))?;
            *records += 1;
        }
        Some(Served::All)
    }

    fn put_owed(&self, frame: &mut FrameWriter<'_>) -> Option<()> {
        let (channel, moves) = (self.proto.id(), self.proto.moves());
        let window = *self.proto.rx.window();
        let data = self.data.as_slice();
        frame.record(|out| match self.owed {
            Owed::Nothing => Some(0),
            Owed::Open => Open {
                channel,
                moves,
                window,
                portal: self.portal.portal()?,
                data,
            }
            .encode(out),
            Owed::Resume(entry) => Some(Resume::encode(out, once(entry))?.0),
            Owed::Resumed(entry) => Some(Resume::encode_answer(out, once(entry))?.0),
            Owed::Accept => Accept {
                channel,
                moves,
                window,
                data,
            }
            .encode(out),
            Owed::Reject => Reject {
                channel,
                moves,
                reason: self.reason,
                data,
            }
            .encode(out),
        })
    }

    /// Adds the next message, or a piece of it. None if the frame has no room.
    fn put_message(
        &mut self,
        on: (Conn, Option<&dyn Device>),
        frame: &mut FrameWriter<'_>,
    ) -> Option<Put> {
        let Some((at, offset)) = self.next_message() else {
            return Some(Put::Nothing);
        };
        let channel = self.proto.id();
        let partial = self.out.partial();
        let Some(sent) = self.out.get_mut(at) else {
            return Some(Put::Nothing);
        };
        if sent.put.is_some() && !sent.item.is_expired() {
            return self.put_put(at, on, frame);
        }
        if let Some(handle) = sent.release.filter(|_| !sent.item.is_expired()) {
            return self.put_release((at, handle), frame);
        }
        let total = sent.item.len();
        let left = total.saturating_sub(offset);
        let room = frame.room().checked_sub(MESSAGE_HDR_LEN)?;
        // CAST: Lossless; and at most `left`.
        let len = room.min(left as usize) as u32;
        if len < left && room < LEAST_PIECE {
            return None;
        }
        // CAST: Small constants.
        if !self.deficit.spend(MESSAGE_HDR_LEN as u32 + len) {
            return Some(Put::NoQuantum);
        }
        let number = match partial {
            Some(number) => number,
            None => {
                let is_new = sent.item.number().is_none();
                let next = self.proto.tx.next(&mut sent.item);
                if is_new && matches!(next, Next::Message(_) | Next::Skip(_)) {
                    self.counts.sent += 1;
                    self.counts.sent_bytes += u64::from(total);
                }
                match next {
                    Next::Message(number) => number,
                    Next::Skip(number) => {
                        if sent.about.kind == Kind::Request {
                            self.calls.skipped(sent.about.id);
                            // The slot of a call may be free.
                            self.has_freed = true;
                        }
                        let memory = self.memory.as_mut();
                        if let (Some(body), Some(memory)) = (sent.lends(), memory) {
                            memory.body_is_skipped(body.handle);
                        }
                        let skip = Skip {
                            channel,
                            number,
                            ack: self.proto.rx.announce(),
                            total,
                        };
                        // It is shorter than the header of a message.
                        frame.record(|out| skip.encode(out))?;
                        return Some(Put::Record);
                    }
                    _ => return Some(Put::Nothing),
                }
            }
        };
        let header = MessageHdr {
            channel,
            number,
            kind: match (sent.about.kind, sent.about.publish) {
                (_, Some(kind)) => WireKind::Publish(kind),
                (Kind::Request, None) => WireKind::Request,
                (Kind::Reply, None) => WireKind::Reply,
                (_, None) => WireKind::OneWay,
            },
            prompt: sent.about.flags & F_RECEIPT != 0,
            body: sent.about.flags & F_BODY != 0,
            ack: self.proto.rx.announce(),
            total,
            offset,
            id: sent.about.id,
            tag: sent.about.tag,
            status: sent.status,
        };
        let body = &sent.body;
        frame.record(|out| {
            let (head, rest) = out.split_at_mut_checked(MESSAGE_HDR_LEN)?;
            head.copy_from_slice(&header.encode(len));
            // CAST: Lossless.
            let content = rest.get_mut(..len as usize)?;
            body.copy_out(offset as usize, content)
                .then_some(MESSAGE_HDR_LEN + len as usize)
        })?;
        let end = offset + len;
        self.out.sent(number, (end < total).then_some(end));
        Some(Put::Record)
    }
}

/// What was done for the next message.
pub(super) enum Put {
    Record,
    /// Nothing was sent: it has left the queue, or SKIP takes its place.
    Again,
    Nothing,
    NoQuantum,
}
