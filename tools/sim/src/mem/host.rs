// SPDX-License-Identifier: GPL-2.0

//! A kernel: a channel, its connections, and what arrives.

use std::collections::VecDeque;

use ibmsg_proto::channel::{Channel, Conn, Move, PeerCloses, Resumed, Resumes};
use ibmsg_proto::limits::FIRST;
use ibmsg_proto::memory::{
    BodyEnd, BodyRef, Export, Get, Granted, Handle, Held, Keys, Loan, MemoryTerms, Put, Unmap,
    BODY_LEN,
};
use ibmsg_proto::outcome::Cause;
use ibmsg_proto::receive::{Arrival, Due};
use ibmsg_proto::send::{Item, SendLimits};
use ibmsg_proto::window::Window;
use ibmsg_proto::wire::{
    AckRecord, Ask, Closed, FrameWriter, Kind, Live, MemoryRecord, Message, MessageHdr, Note,
    NoteKind, Record, Records, Resume, ResumeEntry,
};
use ibmsg_proto::Seq;

use super::bug::Bug;
use super::check::{Mem, Violation};
use super::fabric::{Pkt, Qp};
use super::schedule::{Haste, Schedule, CLIENT, SERVER, SLOTS};
use super::world::{Ev, World};

pub(super) const CHANNEL: u32 = 7;

/// What stands in the queue of a channel.
#[derive(Debug)]
pub enum What {
    /// A message: its operation, and its body.
    Message(usize, Option<BodyRef>),
    /// A PUT: its operation.
    Put(usize, Put),
    /// The note that a body was released.
    Release(Handle),
}

/// An entry of the queue.
#[derive(Debug)]
pub struct Out {
    /// Its place.
    pub item: Item,
    /// What it is.
    pub what: What,
    /// WRITEs of it may land although they were given up.
    pub unfenced: bool,
    /// Its program knows the outcome.
    pub told: bool,
}

/// A kernel.
pub struct Host {
    pub up: bool,
    pub dead: bool,
    pub ch: Channel,
    pub ending: Option<Cause>,
    pub queue: VecDeque<Out>,
    pub gets: Vec<(usize, Get, u32)>,
    pub exports: [Export; SLOTS],
    pub mems: Vec<Mem>,
    /// The slot of each of `mems`, and the latest one of each slot.
    pub slots: Vec<usize>,
    pub mem_of: [usize; SLOTS],
    pub revoke_told: [bool; SLOTS],
    pub granted: Granted<4>,
    /// The keys of `granted`: connection, key, slot.
    pub places: [Option<(u32, u32, usize)>; 4],
    pub asks: VecDeque<Ask>,
    pub pushes: Vec<(u32, usize)>,
    pub keys: Keys<8>,
    pub control: VecDeque<MemoryRecord>,
    pub returns: Vec<Handle>,
    /// The body that each slot is.
    pub loans: [Option<Loan>; SLOTS],
    pub held: Held<SLOTS>,
    /// Operations that get a body.
    pub readings: Vec<(usize, Handle)>,
    pub to_release: VecDeque<Handle>,
    /// The message that the program has seen, and takes later: its number, and its length.
    pub untaken: Option<(Seq, u32)>,
    pub next_id: u32,
    /// CLOSED is to be sent by this connection.
    pub owes_closed: Option<u32>,
    /// The former connection, while an entry of RESUME waits for its fence.
    pub fencing: Option<u32>,
}

impl Host {
    pub(super) fn pair(sch: &Schedule, bug: Option<Bug>) -> [Self; 2] {
        let terms = MemoryTerms::new(sch.keys, 2).map(|terms| terms.with_bodies(true));
        let window = Window::new(6, 4096, 100, 0).expect("terms");
        let window = window.with_memory(terms);
        let limits = SendLimits {
            messages: 64,
            bytes: 1 << 16,
        };
        let conn = Conn { epoch: 1, cid: 0 };
        let none = Seq::new(0);
        let mut client = Channel::opening(CHANNEL, conn, window, limits, FIRST);
        let mut server = Channel::offered(CHANNEL, conn, none, &window, window, limits, FIRST);
        assert!(server.accept());
        assert_eq!(client.accepted(conn, none, &window), Ok(true));
        let limit = match bug {
            Some(Bug::TooManyKeys) => sch.keys + 1,
            _ => sch.keys,
        };
        [client, server].map(|ch| Self {
            up: true,
            dead: false,
            ch,
            ending: None,
            queue: VecDeque::new(),
            gets: Vec::new(),
            exports: [Export::new(0), Export::new(1), Export::new(2)],
            mems: Vec::new(),
            slots: Vec::new(),
            mem_of: [usize::MAX; SLOTS],
            revoke_told: [false; SLOTS],
            granted: Granted::new(sch.keys),
            places: [None; 4],
            asks: VecDeque::new(),
            pushes: Vec::new(),
            keys: Keys::new(limit),
            control: VecDeque::new(),
            returns: Vec::new(),
            loans: [None; SLOTS],
            held: Held::new(),
            readings: Vec::new(),
            to_release: VecDeque::new(),
            untaken: None,
            next_id: 0,
            owes_closed: None,
            fencing: None,
        })
    }
}

impl Host {
    /// The body with a handle, which this side has lent.
    pub(super) fn loan_of(&mut self, handle: Handle) -> Option<&mut Loan> {
        let slot = usize::from(handle.slot());
        let is_it = self.exports.get(slot)?.handle() == handle;
        self.loans.get_mut(slot)?.as_mut().filter(|_| is_it)
    }

    /// It is known why all bodies end.
    pub(super) fn end_loans(&mut self, end: BodyEnd) {
        for loan in self.loans.iter_mut().flatten() {
            loan.ends(end);
        }
    }
}

pub(super) const fn conn(epoch: u32) -> Conn {
    Conn { epoch, cid: 0 }
}

impl World<'_> {
    fn frame(&mut self, side: usize, epoch: u32, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
        let mut buf = [0; 512];
        let mut frame = FrameWriter::new(&mut buf, Seq::new(0)).expect("room");
        frame.record(write).expect("a short record");
        let len = frame.finish();
        self.transmit(side, epoch, Pkt::Frame(buf[..len].to_vec()));
    }

    pub(super) fn send_memory(&mut self, side: usize, epoch: u32, record: &MemoryRecord) {
        self.frame(side, epoch, |out| record.encode(out));
    }

    pub(super) fn send_skip(&mut self, side: usize, epoch: u32, number: Seq, total: u32) {
        let skip = ibmsg_proto::wire::Skip {
            channel: CHANNEL,
            number,
            ack: self.hosts[side].ch.rx.announce(),
            total,
        };
        self.frame(side, epoch, |out| skip.encode(out));
    }

    pub(super) fn send_message(
        &mut self,
        side: usize,
        epoch: u32,
        number: Seq,
        op: usize,
        body: Option<BodyRef>,
    ) {
        let content = body.map(|body| body.bytes());
        let content = content.as_ref().map_or(&[][..], |bytes| bytes);
        let hdr = MessageHdr {
            channel: CHANNEL,
            number,
            kind: Kind::OneWay,
            prompt: true,
            body: body.is_some(),
            ack: self.hosts[side].ch.rx.announce(),
            total: content.len() as u32,
            offset: 0,
            id: 0,
            tag: op as u64,
            status: 0,
        };
        let message = Message { hdr, content };
        self.frame(side, epoch, |out| message.encode(out));
    }

    pub(super) fn send_ack(&mut self, side: usize, epoch: u32) {
        match self.hosts[side].ch.rx.due(self.now) {
            Due::Now => {}
            Due::Never => return,
            Due::At(at) => {
                let lag = at - self.now;
                self.after(lag, Ev::Pump);
                return;
            }
        }
        let record = AckRecord {
            channel: CHANNEL,
            ack: self.hosts[side].ch.rx.announce(),
            again: false,
        };
        self.frame(side, epoch, |out| record.encode(out));
    }

    /// Whether a READ is under way: the peer must not be told that nothing follows.
    fn is_reading(&self, side: usize) -> bool {
        let mut gets = self.hosts[side].gets.iter();
        gets.any(|(_, get, _)| get.is_reading()) && !self.is(Bug::HastyClose)
    }

    pub(super) fn send_closed(&mut self, side: usize) {
        let Some(epoch) = self.hosts[side].owes_closed else {
            return;
        };
        if !self.is_reading(side) {
            self.hosts[side].owes_closed = None;
            let closed = Closed { channel: CHANNEL };
            self.frame(side, epoch, |out| closed.encode(out));
        }
    }

    pub(super) fn send_close(&mut self, side: usize) {
        if self.is_reading(side) {
            return;
        }
        let host = &mut self.hosts[side];
        let is_empty = host.queue.iter().all(|out| out.item.number().is_some());
        let Some(on) = host.ch.answers_on() else {
            return;
        };
        if self.attempts[on.epoch as usize].qp[side] != Qp::Ready {
            return;
        }
        if let Some(close) = self.hosts[side].ch.close_due(is_empty) {
            self.frame(side, on.epoch, |out| close.encode(out));
        }
    }

    /// An attempt is not usable any more, but may not be drained.
    pub fn failed(&mut self, side: usize, epoch: u32) {
        if side == CLIENT && self.is(Bug::NoClientFence) {
            self.lost(side, epoch);
        }
        if self.is(Bug::HastyGet) {
            for n in 0..self.hosts[side].gets.len() {
                let (op, get, _) = self.hosts[side].gets[n];
                if get.is_posted() && self.log.ops[op].told.is_none() {
                    self.log.told(op, ibmsg_proto::memory::OpOutcome::NotDone);
                }
            }
        }
    }

    /// An attempt is lost, and this side's queue pair drained.
    pub fn lost(&mut self, side: usize, epoch: u32) {
        let host = &mut self.hosts[side];
        if !host.up {
            return;
        }
        for (_, slot) in host.pushes.iter().filter(|(on, _)| *on == epoch) {
            host.exports[*slot].push_ended();
        }
        host.pushes.retain(|(on, _)| *on != epoch);
        for at in 0..host.places.len() {
            if matches!(host.places[at], Some((on, _, _)) if on == epoch) {
                host.places[at] = None;
            }
        }
        if host.fencing == Some(epoch) {
            host.fencing = None;
            self.leave(side);
        } else if host.ch.is_on(conn(epoch)) {
            self.leave(side);
            self.hosts[side].ch.lost(conn(epoch));
            if side == CLIENT {
                self.move_channel();
            }
        }
    }

    /// The channel leaves its connection, on which nothing of it is under way any more.
    fn leave(&mut self, side: usize) {
        let keeps = self.is(Bug::OldKeys);
        let forgets = self.is(Bug::ForgottenKeys);
        let host = &mut self.hosts[side];
        while let Some(handle) = host.granted.fence() {
            if !forgets {
                host.exports[usize::from(handle.slot())].invalidated();
            }
        }
        if !keeps {
            host.keys.lost();
        }
        for out in &mut host.queue {
            if let What::Put(_, put) = &mut out.what {
                out.unfenced |= put.is_posted();
                self.seen.repeated += u32::from(put.is_posted());
                put.lost();
            }
        }
        for (_, get, _) in &mut host.gets {
            get.lost();
        }
        host.control.clear();
        host.asks.clear();
        host.returns.clear();
        host.revoke_told = [false; SLOTS];
    }

    /// The client moves its channel to an attempt that it can use.
    pub fn move_channel(&mut self) {
        let Some(epoch) = self.attempts.iter().rposition(|a| a.up[CLIENT]) else {
            return;
        };
        let moving = self.hosts[CLIENT].ch.move_to(conn(epoch as u32));
        match moving {
            Some(Move::Resume(entry)) => self.send_resume(epoch as u32, entry),
            Some(Move::Open(_)) => self.log.fail(Violation::Protocol("OPEN again")),
            None => self.send_live(epoch as u32),
        }
    }

    fn send_live(&mut self, epoch: u32) {
        let live: Vec<u32> = (1..self.attempts.len() as u32)
            .filter(|e| self.attempts[*e as usize].qp[CLIENT] == Qp::Ready)
            .collect();
        let newest = self.attempts.len() as u32 - 1;
        let ends = !self.hosts[CLIENT].ch.blocks_live(conn(epoch));
        self.frame(CLIENT, epoch, |out| Live::encode(out, ends, newest, &live));
    }

    fn send_resume(&mut self, epoch: u32, entry: ResumeEntry) {
        let live: Vec<u32> = (1..self.attempts.len() as u32)
            .filter(|e| self.attempts[*e as usize].qp[CLIENT] == Qp::Ready)
            .collect();
        let newest = self.attempts.len() as u32 - 1;
        self.frame(CLIENT, epoch, |out| Live::encode(out, false, newest, &live));
        self.frame(CLIENT, epoch, |out| {
            Some(Resume::encode(out, [entry].into_iter())?.0)
        });
        self.seen.moves += 1;
    }

    /// The client moves the channel, although its connection works, if nothing is under way.
    pub fn relocate(&mut self) {
        let host = &self.hosts[CLIENT];
        let is_idle = host.granted.is_empty()
            && host.pushes.is_empty()
            && host.gets.iter().all(|(_, get, _)| !get.is_posted())
            && host.queue.iter().all(|out| match &out.what {
                What::Put(_, put) => !put.is_posted(),
                _ => true,
            });
        if !is_idle && !self.is(Bug::HastyRelocation) {
            return;
        }
        let on = host.ch.on();
        let to = (1..self.attempts.len() as u32)
            .find(|e| self.attempts[*e as usize].up[CLIENT] && on != Some(conn(*e)));
        let Some(to) = to else {
            return;
        };
        if let Some(entry) = self.hosts[CLIENT].ch.relocate(conn(to)) {
            self.leave(CLIENT);
            self.frame(CLIENT, to, |out| {
                Some(Resume::encode(out, [entry].into_iter())?.0)
            });
            self.seen.moves += 1;
        }
    }

    /// Handles the frames of a connection, up to one that has to wait.
    pub fn handle_frames(&mut self, side: usize, epoch: u32) {
        while let Some(frame) = self.attempts[epoch as usize].frames[side].front().cloned() {
            if !self.hosts[side].up || !self.handle(side, epoch, &frame) {
                return;
            }
            self.attempts[epoch as usize].frames[side].pop_front();
        }
    }

    fn handle(&mut self, side: usize, epoch: u32, frame: &[u8]) -> bool {
        let (_, records) = Records::parse(frame).expect("a frame");
        for record in records.with_memory() {
            match self.record(side, epoch, record.expect("a record")) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(why) => self.log.fail(Violation::Protocol(why)),
            }
        }
        true
    }

    fn record(&mut self, side: usize, epoch: u32, rec: Record<'_>) -> Result<bool, &'static str> {
        let from = conn(epoch);
        match rec {
            Record::Live(live) => {
                for old in 1..self.attempts.len() as u32 {
                    if live.has_lost(old) {
                        self.fail(SERVER, old);
                    }
                }
                if self.hosts[side].ch.left_behind(&live) {
                    self.channel_ends(side, Cause::PeerLost);
                }
                return Ok(true);
            }
            Record::Resume(resume) => {
                let entry = resume.entries().next().expect("an entry");
                return self.resume(epoch, &entry);
            }
            Record::Resumed(resumed) => {
                let entry = resumed.entries().next().expect("an entry");
                self.resumed(epoch, &entry)?;
                return Ok(true);
            }
            _ => {}
        }
        if !self.hosts[side].ch.takes_from(from) {
            return Ok(true);
        }
        let host = &mut self.hosts[side];
        match rec {
            Record::Message(Message { hdr, content }) => {
                host.ch.check_open().map_err(|e| e.as_str())?;
                host.ch.tx.acknowledged(&hdr.ack).map_err(|e| e.as_str())?;
                let len = hdr.total;
                let arrival = host.ch.rx.message(hdr.number, len, 0, len, hdr.prompt);
                if arrival.map_err(|e| e.as_str())? == Arrival::Queue {
                    let hastes = self.sch.haste[side] != Haste::No;
                    if hdr.body && hastes && host.untaken.is_none() && !host.dead {
                        host.untaken = Some((hdr.number, len));
                    } else {
                        host.ch.rx.took(len, host.untaken.map(|(number, _)| number));
                    }
                    self.log.delivered(hdr.tag as usize);
                    let body = content.first_chunk::<BODY_LEN>().filter(|_| hdr.body);
                    if let Some(body) = body.map(BodyRef::read) {
                        let body = body.map_err(|e| e.as_str())?;
                        self.body_arrives(side, hdr.number, &body)?;
                    }
                }
            }
            Record::Skip(skip) => {
                host.ch.check_open().map_err(|e| e.as_str())?;
                host.ch.tx.acknowledged(&skip.ack).map_err(|e| e.as_str())?;
                host.ch
                    .rx
                    .skip(skip.number, skip.total)
                    .map_err(|e| e.as_str())?;
            }
            Record::Ack(ack) => {
                host.ch.check_open().map_err(|e| e.as_str())?;
                host.ch.acknowledged(&ack).map_err(|e| e.as_str())?;
            }
            Record::Close(close) => {
                let is_over = host.ch.is_over();
                match host.ch.peer_closes(from, &close).map_err(|e| e.as_str())? {
                    PeerCloses::Stale => {}
                    PeerCloses::Stops => self.channel_ends(side, Cause::Closed),
                    PeerCloses::Ends => {
                        if !is_over {
                            self.channel_ends(side, Cause::Closed);
                        }
                        self.send_close(side);
                        self.hosts[side].owes_closed = Some(epoch);
                        self.send_closed(side);
                    }
                }
            }
            Record::Closed(_) => {
                host.ch.closed(from).map_err(|e| e.as_str())?;
                if self.hosts[side].ch.is_over() {
                    self.channel_ends(side, Cause::Closed);
                }
            }
            Record::Memory(MemoryRecord::Note(note)) => self.note(side, &note)?,
            Record::Memory(record) => self.memory_record(side, epoch, &record)?,
            _ => return Err("a record that nobody sends"),
        }
        Ok(true)
    }

    fn note(&mut self, side: usize, note: &Note) -> Result<(), &'static str> {
        let host = &mut self.hosts[side];
        host.ch.check_open().map_err(|e| e.as_str())?;
        host.ch.tx.acknowledged(&note.ack).map_err(|e| e.as_str())?;
        let arrival = host.ch.rx.note(note.number).map_err(|e| e.as_str())?;
        if arrival != Arrival::Skipped {
            return Ok(());
        }
        match note.kind {
            NoteKind::Placed => {}
            NoteKind::Release => {
                let slot = usize::from(note.handle.slot());
                let loan = host.loan_of(note.handle);
                let unknown = ibmsg_proto::memory::BodyError::Unknown;
                let released = loan.ok_or(unknown).and_then(Loan::released);
                released.map_err(|e| e.as_str())?;
                self.unmap(side, slot, Unmap::Gently);
            }
        }
        Ok(())
    }

    /// The server has an entry of RESUME: it answers when the fence holds.
    fn resume(&mut self, epoch: u32, entry: &ResumeEntry) -> Result<bool, &'static str> {
        if self.hosts[SERVER].ch.is_over() {
            let unknown = Channel::unknown(entry);
            self.send_resumed(epoch, unknown);
            return Ok(true);
        }
        let moves = self.hosts[SERVER].ch.moves();
        let is_newer = entry.moves.since(moves) > 0;
        let host = &mut self.hosts[SERVER];
        if let Some(on) = host.ch.on().filter(|_| is_newer) {
            // From now on nothing counts that arrives by it.
            host.ch.lost(on);
            host.fencing = Some(on.epoch);
        }
        if let Some(on) = host.fencing {
            if !self.fence(on) {
                self.seen.fenced += 1;
                return Ok(false);
            }
            self.hosts[SERVER].fencing = None;
        }
        let answer = self.hosts[SERVER].ch.resume(conn(epoch), entry);
        match answer.map_err(|e| e.as_str())? {
            Resumes::Stale => {}
            Resumes::Another(answer) => self.send_resumed(epoch, answer),
            Resumes::Answer(answer) => {
                self.fenced(SERVER);
                self.send_resumed(epoch, answer);
            }
            Resumes::Ended(answer) => {
                self.fenced(SERVER);
                self.send_resumed(epoch, answer);
                self.channel_ends(SERVER, Cause::Closed);
            }
        }
        Ok(true)
    }

    /// Whether nothing lands in the server's memory by the channel's former connection any more.
    fn fence(&mut self, on: u32) -> bool {
        let qp = self.attempts[on as usize].qp[SERVER];
        if qp == Qp::Error && !self.is(Bug::NoServerFence) {
            return false;
        }
        // It works, and other channels may use it: only the keys of this one go.
        if qp == Qp::Ready {
            self.invalidate_all(SERVER, on);
            if !self.hosts[SERVER].granted.is_empty() {
                return false;
            }
        }
        self.leave(SERVER);
        true
    }

    /// The peer has fenced.
    fn fenced(&mut self, side: usize) {
        for out in &mut self.hosts[side].queue {
            out.unfenced = false;
        }
    }

    fn send_resumed(&mut self, epoch: u32, entry: ResumeEntry) {
        self.frame(SERVER, epoch, |out| {
            Some(Resume::encode_answer(out, [entry].into_iter())?.0)
        });
    }

    fn resumed(&mut self, epoch: u32, entry: &ResumeEntry) -> Result<(), &'static str> {
        let answer = self.hosts[CLIENT].ch.resumed(conn(epoch), entry);
        match answer.map_err(|e| e.as_str())? {
            Resumed::Stale => {}
            Resumed::Live => self.fenced(CLIENT),
            Resumed::Ended | Resumed::Known | Resumed::Gone => {
                self.channel_ends(CLIENT, Cause::Closed);
            }
        }
        Ok(())
    }
}
