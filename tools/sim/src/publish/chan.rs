// SPDX-License-Identifier: GPL-2.0

//! An end of a channel: what is sent, and what arrives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ibmsg_proto::channel::{Channel, Conn};
use ibmsg_proto::limits::{cost, FIRST};
use ibmsg_proto::publish::PublishTerms;
use ibmsg_proto::receive::{Arrival, Due};
use ibmsg_proto::send::{Item, Next, Progress, Refused, SendLimits};
use ibmsg_proto::window::Window;
use ibmsg_proto::wire::{
    Ack, AckRecord, Kind, Message, MessageHdr, Publication, PublishKind, Record, Records, Resume,
    ResumeEntry,
};
use ibmsg_proto::Seq;

use super::bug::Bug;
use super::check::Violation;
use super::schedule::{Schedule, CLIENT, MAX_ENTRY, SERVER};
use super::world::World;

/// The content of an entry: kept once, however many channels have it queued.
pub type Body = Rc<RefCell<Vec<u8>>>;

/// A message that is not acknowledged.
pub struct Out {
    pub item: Item,
    pub tag: u64,
    pub what: Publication,
    /// Of an entry.
    pub body: Option<Body>,
}

/// A message that the program has not read.
pub struct In {
    pub number: Seq,
    pub tag: u64,
    pub what: Publication,
    pub content: Vec<u8>,
}

/// An end of a channel.
pub struct End {
    pub ch: Channel,
    pub queue: VecDeque<Out>,
    pub inbox: VecDeque<In>,
    /// Subscriptions that the channel may have.
    pub most: usize,
    limits: SendLimits,
}

pub const fn conn(epoch: u32) -> Conn {
    Conn { epoch, cid: 0 }
}

/// How many subscriptions a client makes. The server would serve more.
const SUBSCRIPTIONS: u16 = 3;

impl End {
    /// Both ends of a channel that was just opened.
    pub fn pair(sch: &Schedule, id: u32, epoch: u32) -> [Self; 2] {
        let (messages, bytes) = sch.window;
        let window = |messages, bytes, subscriptions| {
            let window = Window::new(messages, bytes, MAX_ENTRY, 0).expect("terms");
            window.with_publishing(PublishTerms::new(subscriptions))
        };
        let clients = window(messages, bytes, SUBSCRIPTIONS);
        let servers = window(2, 1000, SUBSCRIPTIONS + 1);
        let most = PublishTerms::agreed(clients.publishing(), servers.publishing());
        let limits = SendLimits {
            messages: sch.queue,
            bytes: 1 << 16,
        };
        let none = Seq::new(0);
        let on = conn(epoch);
        let mut client = Channel::opening(id, on, clients, limits, FIRST);
        let mut server = Channel::offered(id, on, none, &clients, servers, limits, FIRST);
        assert!(server.accept());
        assert_eq!(client.accepted(on, none, &servers), Ok(true));
        [client, server].map(|ch| Self {
            ch,
            queue: VecDeque::new(),
            inbox: VecDeque::new(),
            most: usize::from(most),
            limits,
        })
    }

    /// Queues a message.
    pub fn push(&mut self, tag: u64, what: Publication, body: Option<Body>) -> Result<(), Refused> {
        let item = self.ch.tx.queue(len(&what, body.as_ref()))?;
        self.queue.push_back(Out {
            item,
            tag,
            what,
            body,
        });
        Ok(())
    }

    fn acknowledged(&mut self, ack: &Ack) -> Result<(), &'static str> {
        self.ch.tx.acknowledged(ack).map_err(|e| e.as_str())?;
        self.pop();
        Ok(())
    }

    fn pop(&mut self) {
        while let Some(front) = self.queue.front() {
            if self.ch.tx.progress(&front.item) == Progress::Pending {
                return;
            }
            let out = self.queue.pop_front().expect("a message");
            self.ch.tx.release(out.item);
        }
    }

    /// Whether all that is queued was sent. What a subscriber has no credits for stays in the log.
    pub fn has_sent_all(&self) -> bool {
        let is_sent = |out: &Out| out.item.number().is_some();
        self.queue.iter().all(is_sent)
    }

    /// Whether the queue and what has arrived keep to the terms.
    pub fn is_within_terms(&self) -> bool {
        let window = self.ch.rx.window();
        let queued: u32 = self
            .inbox
            .iter()
            .map(|m| cost(m.content.len() as u32))
            .sum();
        self.queue.len() <= self.limits.messages.max(1) as usize
            && self.inbox.len() <= window.messages() as usize
            && queued <= window.bytes()
    }
}

/// Bytes of a message's content.
pub fn len(what: &Publication, body: Option<&Body>) -> u32 {
    match body {
        Some(body) => body.borrow().len() as u32,
        None => what.fields().content().len() as u32,
    }
}

impl World<'_> {
    /// The end of a side.
    pub fn end(&mut self, who: usize, side: usize) -> Option<&mut End> {
        let session = &mut self.sessions[who];
        match side {
            CLIENT => session.client.end.as_mut(),
            _ => session.server.end.as_mut(),
        }
    }

    /// Sends what can be sent.
    pub fn send_all(&mut self, who: usize, side: usize) {
        while let Some((epoch, hdr, content)) = self.next_message(who, side) {
            let message = Message {
                hdr,
                content: &content,
            };
            self.frame(who, side, epoch, |out| message.encode(out));
        }
        self.send_ack(who, side);
    }

    fn next_message(&mut self, who: usize, side: usize) -> Option<(u32, MessageHdr, Vec<u8>)> {
        let end = self.end(who, side)?;
        let on = end.ch.conn()?;
        let first = end.queue.front()?.item.number();
        let cursor = end.ch.tx.cursor();
        let at = first.map_or(0, |first| cursor.ahead_of(first).unwrap_or(0) as usize);
        let out = end.queue.get_mut(at)?;
        let Next::Message(number) = end.ch.tx.next(&mut out.item) else {
            return None;
        };
        let fields = out.what.fields();
        let content = match &out.body {
            Some(body) => body.borrow().clone(),
            None => fields.content().to_vec(),
        };
        let hdr = MessageHdr {
            channel: end.ch.id(),
            number,
            kind: Kind::Publish(fields.kind),
            prompt: false,
            body: false,
            ack: end.ch.rx.announce(),
            total: content.len() as u32,
            offset: 0,
            id: fields.id,
            tag: out.tag,
            status: fields.status,
        };
        Some((on.epoch, hdr, content))
    }

    fn send_ack(&mut self, who: usize, side: usize) {
        let now = self.now;
        let Some(end) = self.end(who, side) else {
            return;
        };
        let Some(on) = end.ch.conn() else {
            return;
        };
        match end.ch.rx.due(now) {
            Due::Now => {}
            Due::Never => return,
            Due::At(at) => return self.serve_at(at),
        }
        let record = AckRecord {
            channel: end.ch.id(),
            ack: end.ch.rx.announce(),
            again: false,
        };
        self.frame(who, side, on.epoch, |out| record.encode(out));
    }

    /// Handles a frame.
    pub fn handle(&mut self, who: usize, side: usize, epoch: u32, frame: &[u8]) {
        let (_, records) = Records::parse(frame).expect("a frame");
        for record in records.with_publishing() {
            if let Err(why) = self.record(who, side, epoch, record.expect("a record")) {
                self.check.fail(Violation::Protocol(why));
            }
        }
    }

    fn record(
        &mut self,
        who: usize,
        side: usize,
        epoch: u32,
        record: Record<'_>,
    ) -> Result<(), &'static str> {
        match record {
            Record::Resume(resume) => {
                let entry = resume.entries().next().expect("an entry");
                return self.resume(who, epoch, &entry);
            }
            Record::Resumed(resumed) => {
                let entry = resumed.entries().next().expect("an entry");
                return self.resumed(who, epoch, &entry);
            }
            _ => {}
        }
        let (Record::Message(Message {
            hdr: MessageHdr { channel, .. },
            ..
        })
        | Record::Ack(AckRecord { channel, .. })) = record
        else {
            return Err("a record that nobody sends");
        };
        let Some(end) = self.end(who, side) else {
            return Ok(());
        };
        if end.ch.id() != channel || !end.ch.takes_from(conn(epoch)) {
            return Ok(());
        }
        end.ch.check_open().map_err(|e| e.as_str())?;
        match record {
            Record::Message(message) => self.message(who, side, &message)?,
            Record::Ack(ack) => end.acknowledged(&ack.ack)?,
            _ => {}
        }
        if side == SERVER && !self.is(Bug::NoServeOnCredits) {
            self.sessions[who].server.is_dirty = true;
        }
        Ok(())
    }

    fn message(
        &mut self,
        who: usize,
        side: usize,
        message: &Message<'_>,
    ) -> Result<(), &'static str> {
        let hdr = &message.hdr;
        let Kind::Publish(kind) = hdr.kind else {
            return Err("a message that nobody sends");
        };
        let what = Publication::decode(kind, message).map_err(|e| e.as_str())?;
        let end = self.end(who, side).expect("an end");
        end.acknowledged(&hdr.ack)?;
        let for_kernel = matches!(kind, PublishKind::Subscribe | PublishKind::Unsubscribe);
        if for_kernel {
            let arrival = end.ch.rx.skip(hdr.number, hdr.total);
            if arrival.map_err(|e| e.as_str())? == Arrival::Skipped {
                return self.asked(who, hdr.tag, &what);
            }
            return Ok(());
        }
        let rx = &mut end.ch.rx;
        let arrival = rx.message(hdr.number, hdr.total, 0, hdr.total, hdr.prompt);
        if arrival.map_err(|e| e.as_str())? != Arrival::Queue {
            return Ok(());
        }
        end.inbox.push_back(In {
            number: hdr.number,
            tag: hdr.tag,
            what,
            content: message.content.to_vec(),
        });
        self.arrived(who, hdr.tag, &what)
    }

    fn resume(&mut self, who: usize, epoch: u32, entry: &ResumeEntry) -> Result<(), &'static str> {
        use ibmsg_proto::channel::Resumes;
        let Some(end) = self.end(who, SERVER).filter(|e| e.ch.id() == entry.channel) else {
            let unknown = Channel::unknown(entry);
            self.send_resumed(who, epoch, unknown);
            return Ok(());
        };
        match end.ch.resume(conn(epoch), entry).map_err(|e| e.as_str())? {
            Resumes::Stale => {}
            Resumes::Answer(answer) => {
                end.pop();
                self.send_resumed(who, epoch, answer);
                self.moved(who);
            }
            Resumes::Another(_) | Resumes::Ended(_) => return Err("an end that nobody has sent"),
        }
        Ok(())
    }

    fn send_resumed(&mut self, who: usize, epoch: u32, entry: ResumeEntry) {
        self.frame(who, SERVER, epoch, |out| {
            Some(Resume::encode_answer(out, [entry].into_iter())?.0)
        });
    }

    fn resumed(&mut self, who: usize, epoch: u32, entry: &ResumeEntry) -> Result<(), &'static str> {
        use ibmsg_proto::channel::Resumed;
        let Some(end) = self.end(who, CLIENT).filter(|e| e.ch.id() == entry.channel) else {
            return Ok(());
        };
        match end.ch.resumed(conn(epoch), entry).map_err(|e| e.as_str())? {
            Resumed::Stale => {}
            Resumed::Live => end.pop(),
            Resumed::Gone => self.channel_is_gone(who),
            Resumed::Ended | Resumed::Known => return Err("an end that nobody has sent"),
        }
        Ok(())
    }
}
