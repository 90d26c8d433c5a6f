// SPDX-License-Identifier: GPL-2.0

//! Looks at frames that have arrived.

use ibmsg_proto::{
    channel::{
        Channel,
        Conn, //
    },
    history::What,
    limits::{
        FIRST,
        MAX_ATTEMPTS, //
    },
    wire::{
        Live,
        Message,
        Open,
        Record,
        Records,
        Resume,
        ResumeEntry,
        RECORD_HDR_LEN, //
    },
    Seq, //
};
use ibtrs_proto::Errno;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    refusals::Why,
    Role,
    Seat,
    Side,
    State,
    MAX_CHANNELS, //
};
use crate::{
    channel::{
        Chan,
        Fault,
        Incoming,
        Stack, //
    },
    limits::Denied,
    link::Arrived,
    memory,
    types::{
        now,
        Name, //
    }, //
};

/// The answer for a channel that does not exist.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// To an entry of RESUME.
    Resumed(ResumeEntry),
    /// To OPEN: number, number of the move, reason. Nothing is kept, so that it costs nothing to refuse.
    Refused(u32, Seq, Errno),
}

/// Bytes of the longest LIVE.
const LIVE_LEN: usize = RECORD_HDR_LEN + 4 * MAX_ATTEMPTS;

/// What LIVE has said.
pub(super) struct LiveCopy {
    bytes: [u8; LIVE_LEN],
    len: usize,
}

impl LiveCopy {
    fn new(live: &Live<'_>) -> Option<Self> {
        let mut copy = Self {
            bytes: [0; LIVE_LEN],
            len: 0,
        };
        let mut epochs = [0; MAX_ATTEMPTS];
        let mut count = 0;
        for (place, epoch) in epochs.iter_mut().zip(live.epochs()) {
            *place = epoch;
            count += 1;
        }
        let epochs = epochs.get(..count)?;
        copy.len = Live::encode(&mut copy.bytes, live.ends, live.newest, epochs)?;
        Some(copy)
    }

    /// The record.
    pub(super) fn record(&self) -> Option<Live<'_>> {
        match Records::of(self.bytes.get(..self.len)?).next() {
            Some(Ok(Record::Live(live))) => Some(live),
            _ => None,
        }
    }
}

/// How much of a frame was taken, as the link keeps it: the header and whole records, and entries of RESUME
/// after those.
struct Done<'a>(&'a mut usize);

impl Done<'_> {
    const ENTRY: usize = 1 << 16;

    fn whole(&self) -> usize {
        *self.0 % Self::ENTRY
    }

    fn entries(&self) -> usize {
        *self.0 / Self::ENTRY
    }

    fn entry(&mut self) {
        *self.0 += Self::ENTRY;
    }

    /// The header, or a record, is taken.
    fn next(&mut self) {
        *self.0 = self.whole() + 1;
    }
}

/// Messages of a frame, with memory for them, in its order.
struct Parcels(Stack);

impl Parcels {
    /// Copies the messages among the records, but for the first `from`, as far as there is memory.
    fn new(records: Records<'_>, from: usize) -> Self {
        let mut copied = Stack::new();
        for (at, record) in records.enumerate().skip(from) {
            if let Ok(Record::Message(message)) = record {
                if let Ok(incoming) = Incoming::new(&message, at, GFP_ATOMIC | __GFP_NOWARN) {
                    copied.push(incoming);
                }
            }
        }
        // The first one comes first.
        let mut parcels = Self::none();
        copied.move_to(&mut parcels.0);
        parcels
    }

    /// No messages, as if there were no memory.
    const fn none() -> Self {
        Self(Stack::new())
    }

    /// The memory for the message at a place, if there is any.
    fn take(&mut self, at: usize) -> Option<KBox<Incoming>> {
        let is_it = self.0.first().is_some_and(|first| first.at == at);
        is_it.then(|| self.0.pop()).flatten()
    }
}

impl Side {
    /// Takes the records of a frame, but for those that are `done`.
    pub(super) fn frame(&self, id: Conn, frame: &[u8], done: &mut usize) -> Arrived {
        let mut done = Done(done);
        let from = done.whole().saturating_sub(1);
        // What is copied, and what is not used, is so without the lock.
        let mut parcels = match Records::parse(frame) {
            Ok((_, records)) => Parcels::new(self.readable(records), from),
            Err(_) => Parcels::none(),
        };
        let mut state = self.0.state.lock();
        let arrived = self.take_frame(&mut state, id, frame, &mut done, &mut parcels);
        let mut garbage = core::mem::take(&mut state.garbage);
        let refused = state.refusals.take();
        drop(state);
        let tickets = garbage.tickets.take();
        drop((garbage, parcels));
        refused.log(self);
        tickets.arrived();
        arrived
    }

    /// The same, without memory for messages.
    #[cfg(IBTRS_KUNIT)]
    pub(super) fn starved(&self, id: Conn, frame: &[u8], done: &mut usize) -> Arrived {
        let mut state = self.0.state.lock();
        self.take_frame(&mut state, id, frame, &mut Done(done), &mut Parcels::none())
    }

    fn take_frame(
        &self,
        state: &mut State,
        id: Conn,
        frame: &[u8],
        done: &mut Done<'_>,
        parcels: &mut Parcels,
    ) -> Arrived {
        let Some(conn) = state
            .conns
            .iter_mut()
            .find(|conn| conn.id == id && !conn.has_failed)
        else {
            return Arrived::Done;
        };
        let (limit, records) = match Records::parse(frame) {
            Ok(parsed) => parsed,
            Err(e) => {
                conn.fail(e.as_str());
                return Arrived::Done;
            }
        };
        if done.whole() == 0 {
            if let Err(e) = conn.flow.received(limit) {
                conn.fail(e.as_str());
                return Arrived::Done;
            }
            done.next();
        }
        let now = now();
        let mut arrived = Arrived::Done;
        let from = done.whole() - 1;
        let records = self.readable(records);
        // The channel of the messages before, which is to be looked after.
        let mut changed = None;
        for (at, record) in records.enumerate().skip(from) {
            let of = match &record {
                Ok(Record::Message(message)) => Some(message.hdr.channel),
                _ => None,
            };
            if changed != of {
                self.attend_to(state, changed, now);
                changed = of;
            }
            let result = match &record {
                Ok(Record::Message(message)) => {
                    self.message(state, id, message, parcels.take(at), now)
                }
                Ok(Record::Resume(resume)) if self.0.role == Role::Server => {
                    self.resume(state, id, resume, done, now)
                }
                Ok(Record::Memory(record)) => self.memory_record(state, id, record, now),
                Ok(record) => self.record(state, id, record, now),
                Err(e) => Err(Fault::Protocol(e.as_str())),
            };
            match result {
                Ok(()) => done.next(),
                Err(Fault::NoMemory) => {
                    arrived = Arrived::Later;
                    break;
                }
                Err(Fault::Protocol(why)) => {
                    self.attend_to(state, changed, now);
                    if let Some(conn) = state.conns.iter_mut().find(|conn| conn.id == id) {
                        conn.fail(why);
                    }
                    return Arrived::Done;
                }
            }
        }
        self.attend_to(state, changed, now);
        if arrived == Arrived::Done {
            // LIVE may have ended it.
            if let Some(conn) = state.conns.iter_mut().find(|conn| conn.id == id) {
                conn.flow.reposted();
            }
        }
        self.step(state, now);
        arrived
    }

    /// Records as the other machine may send them.
    fn readable<'a>(&self, records: Records<'a>) -> Records<'a> {
        match self.memory_terms() {
            Some(_) => records.with_publishing().with_memory(),
            None => records.with_publishing(),
        }
    }

    /// Takes a message, after which its channel is to be looked after.
    fn message(
        &self,
        state: &mut State,
        from: Conn,
        message: &Message<'_>,
        incoming: Option<KBox<Incoming>>,
        now: u64,
    ) -> Result<(), Fault> {
        let id = message.hdr.channel;
        // A channel takes records from its connection only.
        let chan = state.chans.get_mut(&id);
        if let Some(chan) = chan.filter(|chan| chan.proto.takes_from(from)) {
            chan.message(message, incoming, now)?;
        }
        Ok(())
    }

    /// Looks after the channel that messages were for.
    fn attend_to(&self, state: &mut State, changed: Option<u32>, now: u64) {
        if let Some(id) = changed {
            self.attend(state, id, now);
        }
    }

    fn record(
        &self,
        state: &mut State,
        from: Conn,
        record: &Record<'_>,
        now: u64,
    ) -> Result<(), Fault> {
        let is_client = self.0.role == Role::Client;
        match record {
            // What only the other side sends.
            Record::Open(_) | Record::Resume(_) | Record::Live(_) if is_client => {
                return Err(Fault::Protocol("record of a client from a server"));
            }
            Record::Accept(_)
            | Record::Reject(_)
            | Record::Redirect(_)
            | Record::Resumed(_)
            | Record::Drain(_)
                if !is_client =>
            {
                return Err(Fault::Protocol("record of a server from a client"));
            }
            Record::Open(open) => return self.open_arrives(state, from, open, now),
            Record::Live(live) => {
                self.live_arrives(state, live);
                return Ok(());
            }
            Record::Drain(drain) => {
                state.tell_draining(*drain);
                return Ok(());
            }
            Record::Resumed(resumed) => {
                for entry in resumed.entries() {
                    if let Some(chan) = state.chans.get_mut(&entry.channel) {
                        chan.resumed(from, &entry)?;
                        self.attend(state, entry.channel, now);
                    }
                }
                return Ok(());
            }
            _ => {}
        }
        let id = match record {
            Record::Skip(skip) => skip.channel,
            Record::Ack(ack) => ack.channel,
            Record::Accept(accept) => accept.channel,
            Record::Reject(reject) => reject.channel,
            Record::Redirect(redirect) => redirect.channel,
            Record::Close(close) => close.channel,
            Record::Closed(closed) => closed.channel,
            _ => return Ok(()),
        };
        // A channel takes records from its connection only.
        let chan = state.chans.get_mut(&id);
        let Some(chan) = chan.filter(|chan| chan.proto.takes_from(from)) else {
            return Ok(());
        };
        match record {
            Record::Skip(skip) => chan.skip(skip)?,
            Record::Ack(ack) => chan.ack(ack)?,
            Record::Accept(accept) => chan.accepted(from, accept)?,
            Record::Reject(reject) => {
                chan.refused(from, reject.moves, reject.reason, reject.data)?
            }
            // Nothing asks for other addresses yet.
            Record::Redirect(redirect) => {
                chan.refused(from, redirect.moves, Errno::EREMCHG, &[])?
            }
            Record::Close(close) => {
                let was_over = chan.proto.is_over();
                chan.peer_closes(from, close)?;
                if chan.proto.is_over() && !was_over && !is_client {
                    let portal = chan.portal;
                    self.withdraw(id, &portal);
                }
            }
            Record::Closed(_) => chan.closed(from)?,
            _ => {}
        }
        self.attend(state, id, now);
        Ok(())
    }

    /// The client no longer wants a channel; perhaps it is still offered at the portal.
    pub(super) fn withdraw(&self, id: u32, portal: &Name) {
        if let Some(portal) = self.0.portals.find(portal) {
            portal.withdraw(self, id);
        }
    }

    fn open_arrives(
        &self,
        state: &mut State,
        from: Conn,
        open: &Open<'_>,
        now: u64,
    ) -> Result<(), Fault> {
        if !Self::fence_memory(state, from, (open.channel, open.moves))? {
            return Err(Fault::NoMemory);
        }
        if let Some(chan) = state.chans.get_mut(&open.channel) {
            // The client has forgotten the channel, and begins another one with its number.
            if chan.proto.peer_has_ended() || chan.proto.is_over() {
                return self.refuse(state, from, open, Why::Number, now);
            }
            chan.open_again(from, open)?;
            self.attend(state, open.channel, now);
            return Ok(());
        }
        match self.open_new(state, from, open) {
            Ok(()) => {
                self.attend(state, open.channel, now);
                Ok(())
            }
            Err(why) => self.refuse(state, from, open, why, now),
        }
    }

    /// Counts a channel that is refused before it is made.
    fn count_refusal(&self, portal: &Name, why: Why) {
        let (session, reason) = (&*self.0, why.reason());
        if let Some(bound) = session.portals.find(portal) {
            bound.account.refuse(reason);
        }
        session
            .access
            .refuse_peer(portal, session.peer, &session.name, reason);
    }

    /// Refuses a channel, of which nothing is kept.
    fn refuse(
        &self,
        state: &mut State,
        from: Conn,
        open: &Open<'_>,
        why: Why,
        now: u64,
    ) -> Result<(), Fault> {
        // Without memory for the answer, the record comes again: it counts once.
        let answer = Answer::Refused(open.channel, open.moves, why.errno());
        Self::answers(state, from, answer)?;
        if let Ok(portal) = Name::new(open.portal.as_str().as_bytes()) {
            self.count_refusal(&portal, why);
            state.refusals.note(&self.0.log_limits, portal, why, now);
            let (id, cause) = (open.channel, why.cause());
            self.0.history.record(What::Refused, portal, id, cause);
        }
        Ok(())
    }

    fn answers(state: &mut State, to: Conn, answer: Answer) -> Result<(), Fault> {
        if let Some(conn) = state.conns.iter_mut().find(|conn| conn.id == to) {
            if conn.answers.len() >= MAX_CHANNELS {
                return Err(Fault::Protocol("answers are not taken"));
            }
            conn.answers.reserve(1, GFP_ATOMIC | __GFP_NOWARN)?;
            let _ = conn.answers.push_back(answer);
        }
        Ok(())
    }

    /// Makes a channel and offers it at its portal.
    fn open_new(&self, state: &mut State, from: Conn, open: &Open<'_>) -> Result<(), Why> {
        let session = &*self.0;
        let name = Name::new(open.portal.as_str().as_bytes()).map_err(|_| Why::NoPortal)?;
        let portal = session.portals.find(&name);
        let asks = portal
            .as_ref()
            .is_none_or(|portal| portal.takes_unauthenticated);
        // A peer that the operator does not admit does not learn whether a program has bound the name.
        let accounts = session
            .access
            .check_peer(&name, session.peer, &session.name, asks)?;
        let portal = portal.ok_or(Why::NoPortal)?;
        let [of_rule, of_host, _] = accounts;
        let of_owner = (portal.account.clone(), Denied::Owner);
        let accounts = [of_rule, of_host, Some(of_owner)];
        // What the portal promises to take must be there.
        let terms = portal.terms;
        let has_memory = self.memory_terms().is_some() && open.window.memory().is_some();
        let bytes = terms.memory() + memory::charge(has_memory);
        let charge = session.limits.charge(portal.uid, bytes, &accounts)?;
        Self::reserve(state).map_err(|error| match error {
            ENOBUFS => Why::Session,
            _ => Why::NoMemory,
        })?;
        let no_memory = |_| Why::NoMemory;
        let flags = GFP_ATOMIC | __GFP_NOWARN;
        let seat = Seat::new(flags).map_err(no_memory)?;
        let wake = Arc::pin_init(kx::new_wait_queue!("Chan::wake"), flags).map_err(no_memory)?;
        let proto = Channel::offered(
            open.channel,
            from,
            open.moves,
            &open.window,
            terms.window.with_memory(self.memory_terms_for(&terms)),
            terms.limits,
            FIRST,
        );
        let mut chan = Chan::new(proto, name, terms, wake.clone(), Some(charge));
        chan.peer = Some(open.window);
        Self::insert(state, seat, chan);
        portal.offer(self, open, wake).map_err(|error| {
            // Nobody has heard of it, and its charge is not kept.
            if let Some(chan) = state.chans.remove(&open.channel) {
                state.len -= 1;
                state.garbage.add_chan(chan);
            }
            match error {
                ENOENT => Why::NoPortal,
                EAGAIN => Why::Backlog,
                _ => Why::NoMemory,
            }
        })
    }

    /// Takes the entries of RESUME, but for those that are done.
    fn resume(
        &self,
        state: &mut State,
        from: Conn,
        resume: &Resume<'_>,
        done: &mut Done<'_>,
        now: u64,
    ) -> Result<(), Fault> {
        for entry in resume.entries().skip(done.entries()) {
            if !Self::fence_memory(state, from, (entry.channel, entry.moves))? {
                return Err(Fault::NoMemory);
            }
            let State { conns, chans, .. } = &mut *state;
            let chan = chans.get_mut(&entry.channel);
            let answer = match chan.filter(|chan| !chan.proto.is_over()) {
                Some(chan) => {
                    // LIVE, which the client sends before it moves what was on a lost connection, has ended that here.
                    let works = conns
                        .iter()
                        .any(|conn| chan.proto.is_on(conn.id) && !conn.has_failed);
                    chan.resume(from, &entry, works)?
                }
                None => Some(Channel::unknown(&entry)),
            };
            if let Some(answer) = answer {
                Self::answers(state, from, Answer::Resumed(answer))?;
            }
            self.attend(state, entry.channel, now);
            done.entry();
        }
        Ok(())
    }

    fn live_arrives(&self, state: &mut State, live: &Live<'_>) {
        while let Some(lost) = state
            .conns
            .iter_mut()
            .find(|conn| live.has_lost(conn.id.epoch))
        {
            let id = lost.id;
            lost.has_failed = true;
            lost.out.fail("the client has given the attempt up");
            // There is a place: connections are refused before.
            let _ = state.undrained.push_within_capacity(id);
            self.forget(state, id);
        }
        state.live = LiveCopy::new(live);
        state.walk_again(self.0.role);
    }
}
