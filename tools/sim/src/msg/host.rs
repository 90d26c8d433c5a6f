// SPDX-License-Identifier: GPL-2.0

//! What the driver in a kernel does: fills frames, looks at those that arrive, moves channels.

use ibmsg_proto::channel::{
    Again, Channel, ChannelError, Conn, Move, PeerCloses, Resumed, Resumes,
};
use ibmsg_proto::limits::cost;
use ibmsg_proto::outcome::Cause;
use ibmsg_proto::receive::{Arrival, Due};
use ibmsg_proto::send::{Next, Progress};
use ibmsg_proto::window::Window;
use ibmsg_proto::wire::{
    Accept, Ack, AckRecord, Address, Closed, FrameWriter, Kind, Live, Message, MessageHdr, Open,
    PortalName, Record as Wire, Records, Redirect, Reject, Resume, ResumeEntry, Skip,
    MESSAGE_HDR_LEN,
};
use ibmsg_proto::Seq;
use ibtrs_proto::Errno;

use super::bug::Bug;
use super::check::Violation;
use super::fabric::Record;
use super::schedule::{Decision, Kind as Fault, CHANNELS, CLIENT, MAX_MESSAGE, SERVER};
use super::world::{End, Ev, Waiting, World, CALLS};
use crate::schedule::{Time, MS};

/// Bytes of a frame.
const FRAME: usize = 320;
/// The most content of a record.
const PIECE: u32 = 48;
/// Bytes that a channel may send in its turn.
const QUANTUM: u32 = 160;

const fn conn(epoch: u32) -> Conn {
    Conn { epoch, cid: 0 }
}

/// A record of its own, to be sent in a frame.
fn encoded(write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Record {
    let mut buf = [0; FRAME];
    let len = write(&mut buf).expect("a record that fits a frame");
    buf[..len].to_vec()
}

impl World<'_> {
    /// The end of a channel on a side.
    pub fn end(&mut self, side: usize, chan: usize) -> Option<&mut End> {
        self.hosts[side].ends[chan].as_deref_mut()
    }

    /// The terms of a side.
    pub fn window(&self, side: usize, chan: usize) -> Window {
        let terms = self.sch.channels[chan].terms[side];
        Window::new(terms.messages, terms.bytes, MAX_MESSAGE, CALLS as u16).expect("possible terms")
    }

    /// Sends a record that is not a message, perhaps again later.
    pub fn control(&mut self, side: usize, epoch: u32, record: Record) {
        // The client sends OPEN once on a connection.
        let may_repeat = record.first() != Some(&4);
        if may_repeat && self.chance() % 16 == 0 {
            let delay = self.chance() % (5 * MS);
            let record = record.clone();
            self.after(
                delay,
                Ev::Repeat {
                    side,
                    epoch,
                    record,
                },
            );
        }
        self.attempts[epoch as usize].control[side].push_back(record);
        self.hosts[side].dirty = true;
    }

    /// Whether a record still says what is so. A CLOSE with an end does not once its sender, which was asked to, sends
    /// the messages before it again.
    pub fn may_repeat(&mut self, side: usize, record: &[u8]) -> bool {
        let Some(Ok(Wire::Close(close))) = Records::of(record).next() else {
            return true;
        };
        let end = self.end(side, close.channel as usize - 1);
        close.end.is_none() || end.is_none_or(|end| end.piece.is_none() && end.ch.tx.is_caught_up())
    }

    /// Sends all frames of a side that can be sent.
    pub fn transmit_all(&mut self, side: usize) {
        for epoch in (1..self.attempts.len()).rev() {
            let attempt = &self.attempts[epoch];
            let usable = attempt.alive[side] && (side == SERVER || attempt.connected);
            while usable && self.transmit(side, epoch as u32) {}
        }
        self.set_timer(side);
    }

    /// Sends a frame, if there is something to send.
    fn transmit(&mut self, side: usize, epoch: u32) -> bool {
        let at = epoch as usize;
        let owes = self.attempts[at].link[side].owes_credits() && !self.has(Bug::NoCreditFrames);
        let is_idle = self.attempts[at].control[side].is_empty()
            && !self.hosts[side]
                .ends
                .iter()
                .flatten()
                .any(|end| end.ch.is_on(conn(epoch)));
        if is_idle && !owes {
            return false;
        }
        let mut link = self.attempts[at].link[side];
        let Some(limit) = link.send() else {
            self.seen.starved += 1;
            return false;
        };
        let mut buf = [0; FRAME];
        let mut frame = FrameWriter::new(&mut buf, limit).expect("space for the header");
        let mut records = 0;
        while let Some(record) = self.attempts[at].control[side].front() {
            let copy = |out: &mut [u8]| {
                out.get_mut(..record.len())?.copy_from_slice(record);
                Some(record.len())
            };
            if frame.record(copy).is_none() {
                break;
            }
            self.attempts[at].control[side].pop_front();
            records += 1;
        }
        let most = if self.sch.gather { 4 } else { 1 };
        // Records that the channel's end depends on come first.
        if self.attempts[at].control[side].is_empty() {
            for _ in 0..most {
                let room = frame.room();
                let Some(record) = self.next_message(side, epoch, room) else {
                    break;
                };
                let copy = |out: &mut [u8]| {
                    out.get_mut(..record.len())?.copy_from_slice(&record);
                    Some(record.len())
                };
                frame.record(copy).expect("space was checked");
                records += 1;
            }
            records += self.closes(side, epoch, &mut frame);
            records += self.acks(side, epoch, records > 0 || owes, &mut frame);
        }
        if records == 0 && !owes {
            return false;
        }
        let len = frame.finish();
        self.attempts[at].link[side] = link;
        self.send_frame(side, epoch, buf[..len].to_vec());
        true
    }

    /// The next message, piece or SKIP of the channels on a connection, in turn.
    fn next_message(&mut self, side: usize, epoch: u32, room: usize) -> Option<Record> {
        let channels = self.sch.channels.len();
        // Each channel may need two looks: for a quantum that is used up, and for a new one.
        for _ in 0..2 * channels + 1 {
            let chan = self.hosts[side].turn % channels;
            let len = self.next_len(side, chan, epoch);
            if let (Some(len), Some(end)) = (len, self.end(side, chan)) {
                if len as usize > room {
                    return None;
                }
                if !end.front {
                    end.front = true;
                    end.deficit.begin(QUANTUM);
                }
                if end.deficit.spend(len) {
                    if let Some(record) = self.message(side, chan) {
                        return Some(record);
                    }
                    if let Some(end) = self.end(side, chan) {
                        end.deficit.clear();
                    }
                }
            } else if let Some(end) = self.end(side, chan) {
                end.deficit.clear();
            }
            if let Some(end) = self.end(side, chan) {
                end.front = false;
            }
            self.hosts[side].turn += 1;
        }
        None
    }

    /// Where the message to be sent next is in the queue.
    fn position(end: &End) -> Option<usize> {
        let first = end.queue.front()?.item.number();
        let cursor = end.piece.map_or(end.ch.tx.cursor(), |(number, _)| number);
        let at = first.map_or(0, |first| cursor.ahead_of(first).unwrap_or(0) as usize);
        (at < end.queue.len()).then_some(at)
    }

    /// Bytes of the next record of a channel on this connection.
    fn next_len(&mut self, side: usize, chan: usize, epoch: u32) -> Option<u32> {
        let end = self.end(side, chan)?;
        if end.ch.conn() != Some(conn(epoch)) {
            return None;
        }
        let offset = end.piece.map_or(0, |(_, offset)| offset);
        let len = end.queue[Self::position(end)?].item.len();
        Some(MESSAGE_HDR_LEN as u32 + (len - offset).min(PIECE))
    }

    fn message(&mut self, side: usize, chan: usize) -> Option<Record> {
        let (release, early, free) = (
            self.has(Bug::ReleaseOnPost),
            self.has(Bug::CompletionIsDelivery),
            self.has(Bug::SkipIsFree),
        );
        let end = self.hosts[side].ends[chan].as_deref_mut()?;
        let at = Self::position(end)?;
        let channel = end.ch.id();
        let sent = &mut end.queue[at];
        let (number, offset) = match end.piece {
            Some(piece) => piece,
            None => match end.ch.tx.next(&mut sent.item) {
                Next::Message(number) => (number, 0),
                Next::Skip(number) => {
                    let calls = end.calls.iter_mut().filter(|_| !sent.reply);
                    for (slot, _) in calls {
                        slot.skipped(ibmsg_proto::call::CallId::from_wire(sent.call));
                    }
                    self.seen.skips += 1;
                    let total = if free { 0 } else { sent.item.len() };
                    let ack = end.ch.rx.announce();
                    let skip = Skip {
                        channel,
                        number,
                        ack,
                        total,
                    };
                    return Some(encoded(|out| skip.encode(out)));
                }
                _ => return None,
            },
        };
        self.seen.resent += u32::from(sent.sent && offset == 0);
        sent.sent = true;
        let total = sent.item.len();
        let len = (total - offset).min(PIECE);
        end.piece = (offset + len < total).then_some((number, offset + len));
        let kind = match (sent.call, sent.reply) {
            (0, _) => Kind::OneWay,
            (_, false) => Kind::Request,
            (_, true) => Kind::Reply,
        };
        let hdr = MessageHdr {
            channel,
            number,
            kind,
            prompt: sent.id % 4 == 0,
            body: false,
            ack: end.ch.rx.announce(),
            total,
            offset,
            id: sent.call,
            tag: u64::from(sent.id),
            status: 0,
        };
        let (id, is_last) = (sent.id, end.piece.is_none());
        if release && is_last {
            let sent = end.queue.remove(at)?;
            end.ch.tx.release(sent.item);
        }
        if early && is_last {
            self.log.told(id, ibmsg_proto::Outcome::Delivered);
        }
        let content = [0; PIECE as usize];
        let message = Message {
            hdr,
            content: &content[..len as usize],
        };
        Some(encoded(|out| message.encode(out)))
    }

    fn closes(&mut self, side: usize, epoch: u32, frame: &mut FrameWriter<'_>) -> u32 {
        let early = self.has(Bug::EarlyEnd);
        let mut records = 0;
        for chan in 0..self.sch.channels.len() {
            let Some(end) = self.end(side, chan) else {
                continue;
            };
            let no_space = frame.room() < ibmsg_proto::wire::CLOSE_LEN;
            if no_space || !end.ch.is_on(conn(epoch)) {
                continue;
            }
            let is_empty = end.queue.iter().all(|sent| sent.item.number().is_some());
            let is_empty = (is_empty && end.piece.is_none()) || early;
            if let Some(close) = end.ch.close_due(is_empty) {
                frame
                    .record(|out| close.encode(out))
                    .expect("space was checked");
                records += 1;
                if self.chance() % 8 == 0 {
                    let record = encoded(|out| close.encode(out));
                    let delay = self.chance() % (5 * MS);
                    self.after(
                        delay,
                        Ev::Repeat {
                            side,
                            epoch,
                            record,
                        },
                    );
                }
            }
        }
        records
    }

    fn acks(&mut self, side: usize, epoch: u32, ride: bool, frame: &mut FrameWriter<'_>) -> u32 {
        let (now, no_timer) = (self.now, self.has(Bug::NoAckTimer));
        let mut records = 0;
        let mut ride = ride;
        // Once more for those that can travel with the first one.
        for _ in 0..2 {
            for chan in 0..self.sch.channels.len() {
                let Some(end) = self.end(side, chan) else {
                    continue;
                };
                if end.ch.conn() != Some(conn(epoch)) || frame.room() < ibmsg_proto::wire::ACK_LEN {
                    continue;
                }
                let due = match end.ch.rx.due(now) {
                    Due::Never => false,
                    Due::Now => !no_timer || ride,
                    Due::At(_) => ride,
                };
                if !due {
                    continue;
                }
                let (ack, again) = end.ch.rx.announce_alone();
                let record = AckRecord {
                    channel: end.ch.id(),
                    ack,
                    again,
                };
                frame
                    .record(|out| record.encode(out))
                    .expect("space was checked");
                records += 1;
                ride = true;
                if !again && self.chance() % 8 == 0 {
                    let record = encoded(|out| record.encode(out));
                    let delay = self.chance() % (5 * MS);
                    self.after(
                        delay,
                        Ev::Repeat {
                            side,
                            epoch,
                            record,
                        },
                    );
                }
            }
        }
        records
    }

    /// When an acknowledgement is due next.
    fn set_timer(&mut self, side: usize) {
        let now = self.now;
        let mut next = Time::MAX;
        for chan in 0..self.sch.channels.len() {
            let Some(end) = self.end(side, chan) else {
                continue;
            };
            if end.ch.conn().is_some() {
                if let Due::At(at) = end.ch.rx.due(now) {
                    next = next.min(at);
                }
            }
        }
        if next < self.hosts[side].timer {
            self.hosts[side].timer = next;
            self.after(next - now, Ev::Timer { side });
        }
    }

    /// Looks at the oldest frame.
    pub fn process(&mut self, side: usize, epoch: u32) {
        let attempt = &mut self.attempts[epoch as usize];
        if !attempt.alive[side] {
            return;
        }
        let Some(frame) = attempt.arrived[side].pop_front() else {
            return;
        };
        self.hosts[side].dirty = true;
        let (limit, records) = match Records::parse(&frame) {
            Ok(parsed) => parsed,
            Err(e) => return self.log.fail(Violation::Protocol(e.as_str())),
        };
        if let Err(e) = self.attempts[epoch as usize].link[side].received(limit) {
            return self.log.fail(Violation::Protocol(e.as_str()));
        }
        self.after(5, Ev::Repost { side, epoch });
        for record in records {
            let result = match record {
                Ok(record) => self.record(side, epoch, &record),
                Err(e) => return self.log.fail(Violation::Protocol(e.as_str())),
            };
            if let Err(e) = result {
                return self.log.fail(Violation::Protocol(e.as_str()));
            }
            if side == CLIENT {
                self.send_live();
            }
            // LIVE may have closed this one.
            if !self.attempts[epoch as usize].alive[side] {
                return;
            }
        }
    }

    /// The channel of a record that came by its connection.
    fn addressee(&mut self, side: usize, epoch: u32, channel: u32) -> Option<(usize, &mut End)> {
        let (any, early) = (self.has(Bug::AnyConnection), self.has(Bug::EarlyRecords));
        let chan = channel as usize - 1;
        let end = self.hosts[side].ends[chan].as_deref_mut()?;
        let is_early = early && end.ch.is_on(conn(epoch));
        if !end.ch.takes_from(conn(epoch)) && !any && !is_early {
            return None;
        }
        Some((chan, end))
    }

    fn record(&mut self, side: usize, epoch: u32, record: &Wire<'_>) -> Result<(), ChannelError> {
        let from = conn(epoch);
        match record {
            Wire::Message(m) => {
                let lacks_memory = self.faults().any(
                    |f| matches!(f, Fault::NoRoom { side: poor, .. } if usize::from(poor) == side),
                ) && self.chance() % 2 == 0;
                let boot = self.hosts[side].boot;
                let Some((chan, end)) = self.addressee(side, epoch, m.hdr.channel) else {
                    return Ok(());
                };
                end.ch.check_open()?;
                let len = m.content.len() as u32;
                let hdr = &m.hdr;
                let rx = &mut end.ch.rx;
                let arrival = match lacks_memory {
                    true => rx.no_memory(hdr.number, hdr.total, hdr.offset)?,
                    false => rx.message(hdr.number, hdr.total, hdr.offset, len, hdr.prompt)?,
                };
                if arrival == Arrival::Dropped {
                    let is_first = !core::mem::replace(&mut end.hungry, true);
                    self.seen.dropped += 1;
                    if is_first {
                        let delay = self.chance() % (4 * MS);
                        self.after(delay, Ev::Room { chan, side, boot });
                    }
                }
                self.acknowledged(side, chan, &hdr.ack)?;
                if arrival == Arrival::Queue {
                    let waiting = Waiting {
                        number: hdr.number,
                        id: hdr.tag as u32,
                        call: hdr.id,
                        reply: hdr.kind == Kind::Reply,
                    };
                    if self.has(Bug::AckBeforeQueue) {
                        let delay = self.chance() % (2 * MS);
                        self.after(
                            delay,
                            Ev::LateQueue {
                                chan,
                                side,
                                epoch,
                                waiting,
                            },
                        );
                    } else {
                        self.queue_for_program(chan, side, waiting);
                    }
                }
            }
            Wire::Skip(skip) => {
                let Some((chan, end)) = self.addressee(side, epoch, skip.channel) else {
                    return Ok(());
                };
                end.ch.check_open()?;
                end.ch.rx.skip(skip.number, skip.total)?;
                self.acknowledged(side, chan, &skip.ack)?;
            }
            Wire::Ack(alone) => {
                let Some((chan, end)) = self.addressee(side, epoch, alone.channel) else {
                    return Ok(());
                };
                if !end.ch.peer_has_ended() {
                    end.ch.check_open()?;
                    if alone.again && end.ch.acknowledged(alone)? {
                        end.piece = None;
                    }
                    self.acknowledged(side, chan, &alone.ack)?;
                }
            }
            Wire::Open(open) => self.open_arrives(epoch, open)?,
            Wire::Accept(accept) => {
                let chan = accept.channel as usize - 1;
                let Some(end) = self.end(side, chan) else {
                    return Ok(());
                };
                if end.ch.accepted(from, accept.moves, &accept.window)? {
                    self.program_starts(chan, side);
                }
            }
            Wire::Reject(reject) => self.refused(side, epoch, reject.channel, reject.moves)?,
            Wire::Redirect(redirect) => {
                self.refused(side, epoch, redirect.channel, redirect.moves)?;
            }
            Wire::Close(close) => {
                let chan = close.channel as usize - 1;
                let closed = Closed {
                    channel: close.channel,
                };
                let Some(end) = self.end(side, chan) else {
                    return Ok(());
                };
                let had_ended = end.ch.peer_has_ended();
                let was = end.ch.peer_closes(from, close)?;
                // Before CLOSED, as that would say that everything was delivered.
                let own = match end.ch.owes_close() {
                    true => end.ch.close_due(false),
                    false => None,
                };
                if let Some(own) = own.filter(|_| !self.has(Bug::NoLateClose)) {
                    self.control(side, epoch, encoded(|out| own.encode(out)));
                }
                if was == PeerCloses::Ends && !self.has(Bug::NoClosed) {
                    self.control(side, epoch, encoded(|out| closed.encode(out)));
                }
                if was != PeerCloses::Stale && !had_ended {
                    self.peer_closed(chan, side, was == PeerCloses::Ends);
                }
            }
            Wire::Closed(closed) => {
                let chan = closed.channel as usize - 1;
                let Some(end) = self.end(side, chan) else {
                    return Ok(());
                };
                end.ch.closed(from)?;
                if end.ch.is_over() {
                    self.all_arrived(chan, side);
                    self.hosts[side].ends[chan] = None;
                }
            }
            Wire::Resume(resume) => self.resume_arrives(epoch, resume)?,
            Wire::Resumed(resumed) => {
                for entry in resumed.entries() {
                    self.resumed(epoch, &entry)?;
                }
            }
            Wire::Live(live) => self.live_arrives(live),
            // It changes nothing but what programs know, and is not simulated.
            Wire::Drain(_) | Wire::Memory(_) => {}
        }
        Ok(())
    }

    fn acknowledged(&mut self, side: usize, chan: usize, ack: &Ack) -> Result<(), ChannelError> {
        let add = self.has(Bug::AddCredits);
        let Some(end) = self.hosts[side].ends[chan].as_deref_mut() else {
            return Ok(());
        };
        let mut ack = *ack;
        if add {
            let more = ack.taken.since(end.last_taken).max(0) as u32;
            end.last_taken = ack.taken;
            ack.msg_limit = end.ch.tx.msg_limit().plus(more);
        }
        end.ch.tx.acknowledged(&ack)?;
        self.pop_acknowledged(side, chan);
        Ok(())
    }

    /// Releases messages that the peer's kernel has.
    fn pop_acknowledged(&mut self, side: usize, chan: usize) {
        let Some(end) = self.hosts[side].ends[chan].as_deref_mut() else {
            return;
        };
        while let Some(front) = end.queue.front() {
            if end.ch.tx.progress(&front.item) == Progress::Pending {
                break;
            }
            let Some(sent) = end.queue.pop_front() else {
                break;
            };
            if !sent.item.is_expired() {
                self.log.told(sent.id, ibmsg_proto::Outcome::Delivered);
            }
            if let Some(number) = sent.item.number().filter(|_| sent.call != 0 && !sent.reply) {
                end.acked.push((number, sent.id, sent.call));
            }
            end.ch.tx.release(sent.item);
        }
    }

    /// There is memory for messages of a channel.
    pub fn room(&mut self, chan: usize, side: usize, boot: u32) {
        let asks = !self.has(Bug::NoAgain);
        if self.hosts[side].boot != boot {
            return;
        }
        if let Some(end) = self.end(side, chan) {
            end.hungry = false;
            if asks {
                end.ch.rx.ask_again();
            }
            self.hosts[side].dirty = true;
        }
    }

    /// A message is in the queue of its program.
    pub fn queue_for_program(&mut self, chan: usize, side: usize, waiting: Waiting) {
        let early = self.has(Bug::EarlyCredits);
        let Some(end) = self.hosts[side].ends[chan]
            .as_deref_mut()
            .filter(|end| end.program)
        else {
            return;
        };
        self.log.queued(waiting.id);
        end.inbox.push_back(waiting);
        if early {
            let len = self.log.messages[waiting.id as usize].len;
            end.ch.rx.took(len, None);
        }
        if waiting.call != 0 && !waiting.reply {
            let id = ibmsg_proto::call::CallId::from_wire(waiting.call);
            let slot = end.callee.get_mut(usize::from(id.slot()));
            if slot.is_none_or(|slot| slot.request(id).is_err()) {
                return self
                    .log
                    .fail(Violation::Protocol("request in a slot that is in use"));
            }
        }
        let costs = end
            .inbox
            .iter()
            .map(|w| cost(self.log.messages[w.id as usize].len));
        let window = end.ch.rx.window();
        if end.inbox.len() > window.messages() as usize || costs.sum::<u32>() > window.bytes() {
            return self.log.fail(Violation::Memory(chan));
        }
        self.wake_reader(chan, side);
    }

    /// The connection of an attempt is lost on a side.
    pub fn lost(&mut self, side: usize, epoch: u32) {
        let keep = self.has(Bug::KeepPieces);
        for end in self.hosts[side].ends.iter_mut().flatten() {
            let rx = end.ch.rx;
            if end.ch.lost(conn(epoch)) {
                end.piece = None;
                if keep {
                    end.ch.rx = rx;
                }
            }
        }
    }

    /// The client moves all channels that have no connection: to any, but for those that wait for their portal.
    pub fn move_channels(&mut self) {
        let usable = self.hosts[CLIENT].usable.clone();
        let Some(home) = usable.first().copied() else {
            return;
        };
        let (once, silent) = (self.has(Bug::MoveOnce), self.has(Bug::SilentEnd));
        let anywhere = self.has(Bug::OpeningAnywhere);
        let mut entries: Vec<(u32, ResumeEntry)> = Vec::new();
        let mut announced = Vec::new();
        for chan in 0..self.sch.channels.len() {
            let any = usable[self.chance() as usize % usable.len()];
            let Some(end) = self.end(CLIENT, chan) else {
                continue;
            };
            if once && end.ch.moves().get() > 0 {
                continue;
            }
            if silent && end.ch.peer_has_ended() {
                continue;
            }
            let to = match end.ch.is_opening() && !anywhere {
                true => home,
                false => any,
            };
            let Some(how) = end.ch.move_to(conn(to)) else {
                continue;
            };
            if !announced.contains(&to) {
                announced.push(to);
                self.list_attempts(to, false);
            }
            match how {
                Move::Open(moves) => self.send_open(chan, to, moves),
                Move::Resume(entry) => entries.push((to, entry)),
            }
            self.seen.moves += 1;
        }
        for to in announced {
            let mut its = entries.iter().filter(|(on, _)| *on == to).peekable();
            if its.peek().is_some() {
                let its = its.map(|(_, entry)| *entry);
                let record = encoded(|out| Some(Resume::encode(out, its)?.0));
                self.control(CLIENT, to, record);
            }
        }
        self.hosts[CLIENT].live_due = true;
        self.send_live();
    }

    /// The client moves a channel to another connection, although the present one works.
    pub fn relocate(&mut self, chan: usize) {
        // A schedule that was shrunk may not have the channel.
        let Some(Some(end)) = self.hosts[CLIENT].ends.get(chan) else {
            return;
        };
        let on = end.ch.on();
        let mut others = self.hosts[CLIENT].usable.clone();
        others.retain(|epoch| on != Some(conn(*epoch)));
        if others.is_empty() {
            return;
        }
        let epoch = others[self.chance() as usize % others.len()];
        let (silent, keep) = (self.has(Bug::SilentRelocation), self.has(Bug::KeepPieces));
        let Some(end) = self.end(CLIENT, chan) else {
            return;
        };
        let rx = end.ch.rx;
        let Some(entry) = end.ch.relocate(conn(epoch)) else {
            return;
        };
        end.piece = None;
        if keep {
            end.ch.rx = rx;
        }
        self.seen.relocated += 1;
        if !silent {
            let record = encoded(|out| Some(Resume::encode(out, core::iter::once(entry))?.0));
            self.control(CLIENT, epoch, record);
        }
    }

    /// Tells the server which attempts there are, if no channel is on its way by another connection.
    fn send_live(&mut self) {
        if !self.hosts[CLIENT].live_due || self.has(Bug::NoLive) {
            return;
        }
        let (hasty, silent) = (self.has(Bug::HastyLive), self.has(Bug::SilentEnd));
        let home = self.hosts[CLIENT].usable.first().copied();
        let free = home.filter(|epoch| {
            let mut ends = self.hosts[CLIENT].ends.iter().flatten();
            !ends.any(|end| {
                let is_moved = !silent || !end.ch.peer_has_ended();
                is_moved && !hasty && end.ch.blocks_live(conn(*epoch))
            })
        });
        if let Some(epoch) = free {
            self.list_attempts(epoch, true);
            self.hosts[CLIENT].live_due = false;
        }
    }

    fn list_attempts(&mut self, epoch: u32, ends: bool) {
        let live: Vec<u32> = self.hosts[CLIENT]
            .attempts
            .iter()
            .copied()
            .flatten()
            .collect();
        let newest = self.attempts.len() as u32 - 1;
        self.control(
            CLIENT,
            epoch,
            encoded(|out| Live::encode(out, ends, newest, &live)),
        );
    }

    fn send_open(&mut self, chan: usize, epoch: u32, moves: Seq) {
        let open = Open {
            channel: chan as u32 + 1,
            moves,
            window: self.window(CLIENT, chan),
            portal: PortalName::new(b"portal").expect("a name"),
            data: &[chan as u8],
        };
        self.control(CLIENT, epoch, encoded(|out| open.encode(out)));
    }

    /// The client's program opens a channel.
    pub fn open(&mut self, chan: usize) {
        if !self.hosts[CLIENT].up {
            return;
        }
        let usable = self.hosts[CLIENT].usable.clone();
        if usable.is_empty() {
            self.unopened.push(chan);
            return;
        }
        let epoch = usable[self.chance() as usize % usable.len()];
        let first = Seq::new(self.sch.first);
        let limits = self.send_limits(CLIENT, chan);
        let window = self.window(CLIENT, chan);
        let ch = Channel::opening(chan as u32 + 1, conn(epoch), window, limits, first);
        self.hosts[CLIENT].ends[chan] = Some(Box::new(End::new(ch)));
        self.send_open(chan, epoch, Seq::new(0));
        if let Some(delay) = self.sch.channels[chan].withdraw {
            let boot = self.hosts[CLIENT].boot;
            self.after(delay, Ev::Withdraw { chan, boot });
        }
    }

    fn open_arrives(&mut self, epoch: u32, open: &Open<'_>) -> Result<(), ChannelError> {
        let chan = open.channel as usize - 1;
        if let Some(end) = self.end(SERVER, chan) {
            match end.ch.open_again(conn(epoch), open.moves)? {
                Again::Stale | Again::Wait => {}
                Again::Accept | Again::Reject => {
                    end.piece = None;
                    self.answer_open(chan);
                }
            }
            return Ok(());
        }
        assert!(chan < CHANNELS);
        let first = Seq::new(self.sch.first);
        let ch = Channel::offered(
            open.channel,
            conn(epoch),
            open.moves,
            &open.window,
            self.window(SERVER, chan),
            self.send_limits(SERVER, chan),
            first,
        );
        self.hosts[SERVER].ends[chan] = Some(Box::new(End::new(ch)));
        let boot = self.hosts[SERVER].boot;
        if let Some(decide) = self.sch.channels[chan].decide {
            self.after(decide, Ev::Decide { chan, boot });
        }
        Ok(())
    }

    /// The program at the portal decides.
    pub fn decide(&mut self, chan: usize, boot: u32) {
        if self.hosts[SERVER].boot != boot {
            return;
        }
        let accepts = self.sch.channels[chan].decision == Decision::Accept;
        let Some(end) = self.end(SERVER, chan) else {
            return;
        };
        let counts = match accepts {
            true => end.ch.accept(),
            false => end.ch.reject(),
        };
        if counts {
            self.answer_open(chan);
            if accepts {
                self.program_starts(chan, SERVER);
            }
        }
    }

    /// Sends what the program at the portal has decided.
    fn answer_open(&mut self, chan: usize) {
        let window = self.window(SERVER, chan);
        let decision = self.sch.channels[chan].decision;
        let Some(end) = self.end(SERVER, chan) else {
            return;
        };
        let (channel, moves) = (end.ch.id(), end.ch.moves());
        let Some(on) = end.ch.answers_on() else {
            return;
        };
        let record = encoded(|out| match decision {
            Decision::Accept => Accept {
                channel,
                moves,
                window,
                data: b"hello",
            }
            .encode(out),
            Decision::Reject => Reject {
                channel,
                moves,
                reason: Errno::EACCES,
                data: b"no",
            }
            .encode(out),
            Decision::Redirect => {
                Redirect::encode(out, channel, moves, &[Address::V4([10, 0, 0, 1], 1)])
            }
        });
        self.control(SERVER, on.epoch, record);
    }

    fn refused(
        &mut self,
        side: usize,
        epoch: u32,
        channel: u32,
        moves: Seq,
    ) -> Result<(), ChannelError> {
        let chan = channel as usize - 1;
        let Some(end) = self.end(side, chan) else {
            return Ok(());
        };
        if end.ch.rejected(conn(epoch), moves)? {
            self.hosts[side].ends[chan] = None;
            self.control(side, epoch, encoded(|out| Closed { channel }.encode(out)));
        }
        Ok(())
    }

    fn resume_arrives(&mut self, epoch: u32, resume: &Resume<'_>) -> Result<(), ChannelError> {
        let (old, unsaid) = (self.has(Bug::OldResume), self.has(Bug::UnsaidEnd));
        let mut answers = Vec::new();
        for mut entry in resume.entries() {
            let chan = entry.channel as usize - 1;
            let Some(end) = self.end(SERVER, chan) else {
                answers.push(Channel::unknown(&entry));
                continue;
            };
            if old && entry.moves.since(end.ch.moves()) <= 0 {
                entry.moves = end.ch.moves().plus(1);
            }
            let (answer, has_ended) = match end.ch.resume(conn(epoch), &entry)? {
                Resumes::Stale => continue,
                Resumes::Another(answer) => {
                    answers.push(answer);
                    continue;
                }
                Resumes::Answer(answer) => (answer, false),
                Resumes::Ended(answer) => (answer, true),
            };
            end.piece = None;
            answers.push(match (answer.ended, unsaid) {
                (true, true) => Channel::unknown(&entry),
                _ => answer,
            });
            let is_over = end.ch.is_over();
            self.pop_acknowledged(SERVER, chan);
            if has_ended {
                self.all_arrived(chan, SERVER);
            }
            if is_over {
                self.hosts[SERVER].ends[chan] = None;
            }
        }
        if !answers.is_empty() {
            let record = encoded(|out| Some(Resume::encode_answer(out, answers.into_iter())?.0));
            self.control(SERVER, epoch, record);
        }
        Ok(())
    }

    fn resumed(&mut self, epoch: u32, entry: &ResumeEntry) -> Result<(), ChannelError> {
        let again = self.has(Bug::CallAgain);
        let chan = entry.channel as usize - 1;
        let Some(end) = self.end(CLIENT, chan) else {
            return Ok(());
        };
        match end.ch.resumed(conn(epoch), entry)? {
            Resumed::Stale | Resumed::Known => {}
            Resumed::Ended => {
                self.all_arrived(chan, CLIENT);
                self.hosts[CLIENT].ends[chan] = None;
            }
            Resumed::Gone if end.shut => {
                let cause = end.ch.cause();
                self.end_all(chan, CLIENT, cause);
            }
            Resumed::Gone if end.program => self.end_all(chan, CLIENT, Cause::PeerLost),
            Resumed::Gone => self.hosts[CLIENT].ends[chan] = None,
            Resumed::Live => {
                end.piece = None;
                self.pop_acknowledged(CLIENT, chan);
                if again {
                    self.call_again(chan);
                }
            }
        }
        Ok(())
    }

    /// LIVE has arrived: closes the attempts that the client has given up.
    fn live_arrives(&mut self, live: &Live<'_>) {
        for epoch in 1..self.attempts.len() as u32 {
            let takes_late = self.has(Bug::NoFence) || self.has(Bug::AnyConnection);
            if self.attempts[epoch as usize].alive[SERVER] && live.has_lost(epoch) && !takes_late {
                self.kill(SERVER, epoch);
                self.lost(SERVER, epoch);
            }
        }
        for chan in 0..self.sch.channels.len() {
            let Some(end) = self.end(SERVER, chan) else {
                continue;
            };
            if end.ch.left_behind(live) {
                let cause = end.ch.cause();
                self.end_all(chan, SERVER, cause);
            }
        }
    }
}
