// SPDX-License-Identifier: GPL-2.0

//! One end of a channel: its messages, calls, and what its program is to be told.
//!
//! The lock of the session protects it. [`ibmsg_proto`] decides; this keeps the messages about which it
//! decides, and puts records into frames.
//!
//! | Module | Contents |
//! |---|---|
//! | [`inbox`] | what the program can read |
//! | [`out`] | messages that the program has written |
//! | [`calls`] | requests and replies |
//! | [`serve`] | puts what is due into a frame |
//! | [`write`] | takes messages of the program |
//! | [`publish`] | publish and subscribe |
//! | [`place`] | channels by the time until which they wait |
//! | [`spare`] | memory with which the lists grow |
//! | [`ticket`] | notifies another module |
//! | [`memory`] | PUTs in the queue, records about memory |
//! | [`arrive`] | takes records that have arrived |
//!
//! Whatever may have to be kept later has its place before: a receipt, the reply of the kernel to a call, an
//! event. So nothing is allocated when the end of a channel has to be told.
//!
//! Messages that are not needed any more are collected ([`Out::bury`], [`Chan::close`]) and dropped when the
//! lock is not held: there may be a gibibyte of them.

mod arrive;
mod calls;
mod inbox;
mod memory;
mod out;
mod place;
mod publish;
mod serve;
mod spare;
mod ticket;
mod write;

pub(crate) use arrive::Fault;
pub(crate) use calls::{
    Answered,
    CallTable,
    CallTimes,
    Caller,
    Calls,
    Slot, //
};
pub(crate) use inbox::{
    Inbox,
    Incoming,
    Stack,
    Take,
    Taken, //
};
pub(crate) use memory::Copied;
pub(crate) use out::{
    Reserved,
    Sent, //
};
pub(crate) use place::{
    Place,
    Places, //
};
pub(crate) use publish::{
    Ask,
    Serving, //
};
pub(crate) use serve::Served;
pub(crate) use spare::Stock;
pub(crate) use ticket::{
    Listener,
    Ticket,
    Tickets, //
};

use core::mem::MaybeUninit;
use ibmsg_proto::{
    channel::{
        Channel,
        Conn,
        Move, //
    },
    fair::Deficit,
    gather::Gather,
    history::What,
    outcome::Cause,
    publish::Subscription,
    receive::Due,
    refused::Reason,
    send::Progress,
    window::Window,
    wire::ResumeEntry,
    Outcome,
    Seq, //
};
use ibtrs_proto::Errno;
use inbox::Notice;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    deque::Deque,
    file::{
        uring::Command,
        Ready,
        WaitQueue, //
    }, //
};
use out::{
    About,
    Out, //
};

use crate::{
    history,
    limits::Charge,
    memory::Memory,
    types::{
        Body,
        Event,
        Kind,
        Name,
        Terms,
        F_RECEIPT,
        HEADER_LEN, //
    }, //
};

/// Why channels are closed, for operators.
const BY_OPENER: &str = "by the program that has opened it";
const BY_PORTAL: &str = Reason::Program.as_str();
const GIVEN_UP: &str = "given up before the portal has answered";

/// A record that is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    Nothing,
    Open,
    Resume(ResumeEntry),
    Resumed(ResumeEntry),
    Accept,
    Reject,
}

/// How the channel has begun, for the program that opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begun {
    /// The portal has not answered.
    No,
    /// The channel is open.
    Open,
    /// It is not, and never will be.
    Refused(Errno),
}

/// Why a channel has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// 0: a program has closed it.
    pub(crate) reason: u16,
    /// The program knows.
    pub(crate) is_told: bool,
}

/// What the program has sent and received.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    pub(crate) moves: u32,
}

impl Counts {
    /// The program has taken a message of `len` bytes.
    fn received(&mut self, len: u32) {
        self.received += 1;
        self.received_bytes += u64::from(len);
    }
}

/// One end of a channel.
pub(crate) struct Chan {
    pub(crate) proto: Channel,
    pub(crate) portal: Name,
    pub(crate) terms: Terms,
    wake: Arc<WaitQueue>,
    /// Private data: of OPEN, ACCEPT or REJECT.
    data: KVec<u8>,
    /// Private data of the portal, for the program that opens.
    answer: Body,
    /// Memory for it.
    place: KVec<u8>,
    reason: Errno,
    /// The terms of the peer, once they are known.
    pub(crate) peer: Option<Window>,
    owed: Owed,
    owes_closed: bool,
    out: Out,
    /// Messages that wait for others.
    pub(crate) gather: Gather,
    /// Of the channel, while they do.
    pub(crate) waits: Place,
    inbox: Inbox,
    calls: Calls,
    /// Subscriptions of the other program, at the end of a portal.
    serving: Option<KBox<Serving>>,
    /// Subscriptions of this program, by their tags.
    subscriptions: KVec<(u64, Subscription)>,
    /// This end was opened, not accepted.
    is_opener: bool,
    /// When the time of a message or a call is over next, or earlier; none if none has a time.
    next_expiry: Option<u64>,
    deficit: Deficit,
    is_front: bool,
    /// The connection in whose list it is, and the number of its latest entry in any list.
    pub(crate) ready_on: Option<Conn>,
    pub(crate) entry: u32,
    /// The connection among whose channels it counts.
    pub(crate) counts_on: Option<Conn>,
    /// When to look for memory for messages that were dropped, or refused.
    hungry_at: Option<u64>,
    /// A message of another module was refused for want of memory, or `reply_place` is empty.
    wants_memory: bool,
    /// For the reply of another module if there is no memory when it replies.
    reply_place: Option<KBox<MaybeUninit<Sent>>>,
    /// It is in the list of those that wait for a time, and of those that need memory.
    pub(crate) is_timed: bool,
    pub(crate) is_listed_hungry: bool,
    /// A program has the file.
    pub(crate) has_program: bool,
    /// The program writes no more and takes no more.
    is_shut: bool,
    /// The program wants to be told by an event that the channel is open.
    tells_connected: bool,
    begun: Begun,
    /// Why the peer has closed, if it has.
    peer_reason: u16,
    /// Why this end was closed in the place of its program; 0: it was not.
    own_reason: u16,
    pub(crate) end: Option<End>,
    /// What has happened to the channel and is to be recorded.
    happened: Option<(What, history::Cause)>,
    /// Its end was recorded, or is to be.
    has_noted_end: bool,
    /// `poll` has said that there is no room for the longest message.
    wants_room: bool,
    /// A task could not write for want of room, and may wait for it.
    is_blocked: bool,
    /// Some room has become free since tasks were woken for it.
    has_freed: bool,
    /// The listener is to be notified of room.
    tells_room: bool,
    /// Of a channel of another module, unless it is being used.
    ticket: Option<KBox<Ticket>>,
    is_away: bool,
    /// The peer's kernel has all messages.
    has_all: bool,
    pub(crate) counts: Counts,
    /// Replies that came too late.
    late: Stack,
    /// What is published, and operations on memory; none before the first.
    pub(crate) memory: Option<KBox<Memory>>,
    /// It is in the list of those for whose memory something is to be done that may sleep.
    pub(crate) is_listed_memory: bool,
    /// The next channel that is forgotten.
    pub(crate) next: Option<KBox<Chan>>,
    charge: Option<Charge>,
}

/// What a channel has for another module.
pub(crate) enum Delivery {
    /// What a program would read.
    Item(Taken),
    /// There is room, perhaps, for a message that was refused.
    Room,
}

/// What a program that has closed its end has not read, to be dropped when no lock is held.
pub(crate) type Unread = (Deque<KBox<Incoming>>, Option<Body>);

impl Chan {
    /// An end without messages.
    pub(crate) fn new(
        proto: Channel,
        portal: Name,
        terms: Terms,
        wake: Arc<WaitQueue>,
        charge: Option<Charge>,
    ) -> Self {
        Self {
            proto,
            portal,
            terms,
            wake,
            data: KVec::new(),
            answer: Body::new(),
            place: KVec::new(),
            reason: Errno::EIO,
            peer: None,
            owed: Owed::Nothing,
            owes_closed: false,
            out: Out::new(),
            gather: Gather::default(),
            waits: Place::default(),
            inbox: Inbox::new(),
            calls: Calls::new(),
            serving: None,
            subscriptions: KVec::new(),
            is_opener: false,
            next_expiry: None,
            deficit: Deficit::default(),
            is_front: false,
            ready_on: None,
            entry: 0,
            counts_on: None,
            hungry_at: None,
            wants_memory: false,
            reply_place: None,
            is_timed: false,
            is_listed_hungry: false,
            has_program: false,
            is_shut: false,
            tells_connected: false,
            begun: Begun::No,
            peer_reason: 0,
            own_reason: 0,
            end: None,
            happened: None,
            has_noted_end: false,
            wants_room: false,
            is_blocked: false,
            has_freed: false,
            tells_room: false,
            ticket: None,
            is_away: false,
            has_all: false,
            counts: Counts::default(),
            late: Stack::new(),
            memory: None,
            is_listed_memory: false,
            next: None,
            charge,
        }
    }

    /// The program opens the channel with this private data. `tells`: it does not wait for the portal.
    /// `sends`: there is a connection. `place` is for the private data of the answer.
    pub(crate) fn open(&mut self, data: KVec<u8>, place: KVec<u8>, tells: bool, sends: bool) {
        (self.data, self.place) = (data, place);
        if sends {
            self.owed = Owed::Open;
        }
        self.tells_connected = tells;
        self.has_program = true;
        self.is_opener = true;
    }

    /// The program at the portal accepts. Returns whether it still can. `slots` is for requests.
    pub(crate) fn accept(&mut self, data: KVec<u8>, slots: KVec<Slot>) -> bool {
        let counts = self.proto.accept();
        if counts {
            self.data = data;
            self.calls.serve(slots);
            self.owed = Owed::Accept;
            self.has_program = true;
            self.begun = Begun::Open;
            self.happens(What::Opened, history::Cause::None);
        }
        counts
    }

    /// The program at the portal refuses, or there is none. `why` is what the operator is told besides the words for
    /// `reason`. Returns whether it still can.
    pub(crate) fn reject(&mut self, reason: Errno, data: KVec<u8>, why: &'static str) -> bool {
        let counts = self.proto.reject();
        if counts {
            self.ends_for(What::Refused, history::Cause::Refused(reason, why));
            self.data = data;
            self.reason = reason;
            self.owed = Owed::Reject;
        }
        counts
    }

    /// It was refused.
    pub(crate) fn count_refusal(&self, reason: Reason) {
        if let Some(charge) = &self.charge {
            charge.refuse(reason);
        }
    }

    /// Something has happened that is to be recorded.
    fn happens(&mut self, what: What, cause: history::Cause) {
        if !self.has_noted_end {
            self.happened = Some((what, cause));
        }
    }

    /// The channel ends, or does not begin. What comes later is a consequence.
    fn ends_for(&mut self, what: What, cause: history::Cause) {
        self.happens(what, cause);
        self.has_noted_end = true;
    }

    /// What is to be recorded.
    pub(crate) fn take_happened(&mut self) -> Option<(What, history::Cause)> {
        // Hardly ever there is something.
        self.happened.as_ref()?;
        self.happened.take()
    }

    pub(crate) fn waiters(&self) -> &Arc<WaitQueue> {
        &self.wake
    }

    /// Whether nobody needs this any more.
    pub(crate) fn is_done(&self) -> bool {
        !self.has_program
            && self.proto.is_over()
            && !self.proto.owes_close()
            && !self.owes_closed
            && self.owed == Owed::Nothing
            && self.is_memory_quiet()
    }

    /// Whether OPEN or RESUME is still to be sent.
    pub(crate) fn is_about_to_move(&self) -> bool {
        // A channel that is opened the first time is not known elsewhere.
        let is_new = self.proto.moves() == Seq::new(0);
        matches!(self.owed, Owed::Open | Owed::Resume(_)) && !is_new
    }

    /// How the channel has begun.
    pub(crate) fn begun(&self) -> (Begun, &Body) {
        (self.begun, &self.answer)
    }

    /// The program has the portal's answer.
    pub(crate) fn forget_answer(&mut self) {
        self.answer = Body::new();
    }

    /// `enum ibmsg_state`.
    pub(crate) fn state(&self) -> u32 {
        match (self.end, self.begun) {
            (Some(_), _) => 4,
            _ if self.takes_no_more() => 3,
            (None, Begun::Open) => 2,
            (None, _) => 1,
        }
    }

    /// The connection is lost.
    pub(crate) fn lost(&mut self) {
        self.leaves();
        self.is_gone();
    }

    /// What was to be sent by the connection is decided again by the next one.
    fn leaves(&mut self) {
        self.owed = Owed::Nothing;
        self.owes_closed = false;
        self.out.lost();
        self.inbox.lost();
        self.is_front = false;
        self.ready_on = None;
        self.comes_again();
        self.deficit.clear();
    }

    /// Takes requests into these slots.
    pub(crate) fn serve_calls(&mut self, slots: KVec<Slot>) {
        self.calls.serve(slots);
    }

    /// The channel has no connection.
    fn is_gone(&mut self) {
        if self.begun == Begun::Open && !self.is_away {
            self.is_away = true;
            self.tell_event(self.terms.wants.paths, Inbox::path_lost);
        }
    }

    /// Moves to a connection. Returns whether there is something to send by it.
    pub(crate) fn move_to(&mut self, conn: Conn) -> bool {
        self.owed = match self.proto.move_to(conn) {
            None => return false,
            Some(Move::Open(_)) => Owed::Open,
            Some(Move::Resume(entry)) => Owed::Resume(entry),
        };
        true
    }

    /// The connection among whose channels it is to count; none if it has ended.
    pub(crate) fn counted_on(&self) -> Option<Conn> {
        let has_ended = self.proto.is_over() || self.proto.peer_has_ended();
        self.proto.on().filter(|_| !has_ended)
    }

    /// Moves to a connection from one that works. Returns whether there is something to send by it.
    pub(crate) fn relocate(&mut self, conn: Conn) -> bool {
        if !self.may_leave() {
            return false;
        }
        let Some(entry) = self.proto.relocate(conn) else {
            return false;
        };
        self.memory_left();
        self.leaves();
        self.owed = Owed::Resume(entry);
        true
    }

    /// The server, which one end of the channel is on, is about to be stopped.
    pub(crate) fn draining(&mut self, seconds: u32) {
        let is_wanted = self.terms.wants.drain && self.begun == Begun::Open;
        self.tell_event(is_wanted, |inbox| inbox.draining(seconds));
    }

    /// The key of the session is of no use any more.
    pub(crate) fn key_revoked(&mut self, why: Errno) {
        let is_wanted = self.terms.wants.key && self.begun == Begun::Open;
        self.tell_event(is_wanted, |inbox| inbox.key_revoked(why));
    }

    /// Tells the program of an event, if it wants that and can still read.
    fn tell_event(&mut self, is_wanted: bool, event: impl FnOnce(&mut Inbox)) {
        if is_wanted && self.has_program && self.end.is_none() {
            event(&mut self.inbox);
            self.wake.wake(Ready::IN | Ready::PRI);
        }
    }

    /// The channel has a connection again.
    fn is_back(&mut self) {
        if self.is_away {
            self.is_away = false;
            self.counts.moves = self.counts.moves.saturating_add(1);
            self.happens(What::Moved, history::Cause::None);
            self.tell_event(self.terms.wants.paths, Inbox::path_back);
        }
    }

    /// When to look at this channel again, for another reason than messages that expire. `due`: see
    /// [`Chan::due`].
    pub(crate) fn next_time(&self, due: Due) -> Option<u64> {
        let due = match due {
            Due::At(at) => Some(at),
            _ => None,
        };
        let hungry_at = self.hungry_at.filter(|_| !self.is_listed_hungry);
        let memory = self.memory.as_ref().and_then(|memory| memory.due());
        earlier(earlier(due, hungry_at), memory)
    }

    /// When to tell the peer what it does not know.
    pub(crate) fn due(&mut self, now: u64) -> Due {
        match self.proto.conn() {
            Some(_) => self.proto.rx.due(now),
            None => Due::Never,
        }
    }

    /// Whether there is something to send now, as far as can be told without looking at credits.
    pub(crate) fn has_work(&mut self, due: Due) -> bool {
        self.owed != Owed::Nothing
            || self.owes_closed
            || self.is_shut
            || self.proto.owes_close()
            || self.next_message().is_some()
            || self.has_news_to_send()
            || due == Due::Now
            || self.has_memory_records()
    }

    /// Where the message is that is to be sent next, and how much of it was sent; none if it waits for others.
    fn next_message(&self) -> Option<(usize, u32)> {
        let (at, offset) = self.out.position(&self.proto.tx)?;
        let waits = self
            .out
            .get(at)
            .is_some_and(|sent| self.gather.holds(sent.batch));
        (!waits).then_some((at, offset))
    }

    // --- the program ---

    /// What `poll` says.
    pub(crate) fn poll(&mut self) -> Ready {
        let has_notice = self.inbox.has_notice();
        let end = self.end_to_tell();
        let is_readable = has_notice || self.inbox.has_message() || end.is_some();
        let is_writable = self.is_writable();
        self.wants_room |= !is_writable;
        Ready::IN.when(is_readable)
            | Ready::PRI.when(has_notice)
            | Ready::OUT.when(is_writable)
            | Ready::HUP.when(end.is_some())
    }

    /// Whether a message of the greatest length can be written, or writing would fail at once.
    fn is_writable(&self) -> bool {
        if self.takes_no_more() {
            return true;
        }
        self.begun == Begun::Open && self.proto.tx.is_writable() && !self.has_many_notices()
    }

    /// Whether nothing can be written any more.
    fn takes_no_more(&self) -> bool {
        self.end.is_some() || self.is_shut || self.proto.tx.is_stopped()
    }

    /// Whether the program does not read what it is told.
    fn has_many_notices(&self) -> bool {
        // Bodies have a limit of their own, and their receipts may take long.
        let notices = self.inbox.notices().saturating_sub(self.lent());
        notices >= self.terms.limits.messages as usize
    }

    /// The next thing that the program can read, if it has room for it.
    pub(crate) fn take(&mut self, room: usize) -> Take {
        match (self.inbox.take(room, &mut self.answer), self.end_to_tell()) {
            (Take::Nothing, None) => Take::Nothing,
            (Take::Nothing, Some(End { is_told: true, .. })) => Take::End,
            (Take::Nothing, Some(end)) => {
                if let Some((tag, position, why)) = self.cut_off() {
                    return inbox::unsubscribed(tag, position, why, room);
                }
                let (taken, queued) = self.progress();
                inbox::closed(end.reason, taken, queued, &mut self.answer, room)
            }
            (take, _) => take,
        }
    }

    /// Bytes that the next read needs.
    pub(crate) fn next_len(&self) -> usize {
        // CAST: Lossless.
        let answer = self.answer.len() as usize;
        match (self.inbox.next_len(answer), self.end_to_tell()) {
            (Some(len), _) => len,
            (None, Some(End { is_told: false, .. })) if self.cut_off().is_some() => HEADER_LEN,
            (None, Some(End { is_told: false, .. })) => HEADER_LEN + answer,
            _ => 0,
        }
    }

    /// The program has got what was taken.
    pub(crate) fn took(&mut self, taken: Taken) {
        match taken {
            Taken::Message(message) => {
                drop(message);
                self.took_copied();
                self.drop_late();
                self.inbox.shrink();
            }
            Taken::Event(header, _) if header.event == Some(Event::Closed) => {
                if let Some(end) = &mut self.end {
                    end.is_told = true;
                }
            }
            Taken::Event(header, _) if header.event == Some(Event::Unsubscribed) => {
                self.subscriptions.retain(|(tag, _)| *tag != header.tag);
            }
            Taken::Notice(_) | Taken::Event(..) => {}
        }
        // What the program is told counts as what it has written.
        self.has_freed = true;
        self.tell_writable();
    }

    /// The program could not take it.
    pub(crate) fn put_back(&mut self, taken: Taken) {
        // Other tasks may have found nothing in the meantime.
        self.inbox.put_back(taken, &mut self.answer);
        self.wake.wake(Ready::IN | Ready::PRI);
    }

    /// Takes replies to calls that have ended without them.
    fn drop_late(&mut self) {
        if !self.inbox.has_late() {
            return;
        }
        let replies = self.calls.front();
        while let Some(late) = self.inbox.pop_late() {
            let front = first(self.inbox.front(), replies);
            self.proto.rx.took(late.body.len(), front);
            self.late.push(late);
        }
    }

    /// Replies that came too late.
    pub(crate) fn late(&mut self) -> &mut Stack {
        &mut self.late
    }

    /// The number of the first message that the program does not have.
    fn front(&self) -> Option<Seq> {
        first(self.inbox.front(), self.calls.front())
    }

    /// How many calls of the program may be unanswered.
    pub(crate) fn most_calls(&self) -> u16 {
        let ours = u16::try_from(self.terms.limits.messages).unwrap_or(u16::MAX);
        self.peer.map_or(0, |peer| peer.calls().min(ours))
    }

    /// Takes the answer to a call of a task or command.
    pub(crate) fn take_answer(&mut self, call: u64) -> Option<Answered> {
        self.calls.take_answer(call)
    }

    /// The task or command has the answer to its call, which has `len` bytes.
    pub(crate) fn took_answer(&mut self, call: u64, len: u32) {
        if self.calls.took_answer(call) {
            self.counts.received(len);
            self.proto.rx.took(len, self.front());
            self.drop_late();
        }
        self.has_freed = true;
        self.tell_writable();
    }

    /// Attaches the command that makes a call.
    pub(crate) fn attach_call(&mut self, call: u64, command: Command) {
        self.calls.attach(call, command);
    }

    /// The command that makes a call is to end at once. Returns it, if it is the caller's to complete.
    pub(crate) fn cancel_call(&mut self, call: u64) -> Option<Command> {
        let command = self.calls.detach(call)?;
        self.expire_request(call);
        Some(command)
    }

    /// The task that waited for the answer to a call has a signal. Returns the answer if it has just come.
    pub(crate) fn give_up_call(&mut self, call: u64) -> Option<Answered> {
        if let Some(answer) = self.calls.take_answer(call) {
            return Some(answer);
        }
        self.calls.leave(call);
        self.expire_request(call);
        None
    }

    /// Has the request of a call expire if it was not sent, and the call.
    fn expire_request(&mut self, call: u64) {
        self.out.expire_request(call);
        self.next_expiry = Some(0);
    }

    /// The message that was being copied counts as taken, unless it did before.
    fn took_copied(&mut self) {
        if let Some(len) = self.inbox.copied() {
            self.counts.received(len);
            self.proto.rx.took(len, self.front());
        }
    }

    /// The program writes no more and takes no more. Returns what it has not read.
    pub(crate) fn close(&mut self) -> Unread {
        // What a task is copying, it has: the final state must say so.
        self.took_copied();
        let front = self.inbox.front();
        let unread = self.inbox.close();
        self.shut(front);
        unread
    }

    /// Closes this end in the place of its program, which may still read what is there, and tells both programs why.
    pub(crate) fn close_for(&mut self, why: Errno) {
        self.is_closed_for(why);
        self.inbox.drop_pieces();
        self.proto.rx.take_all();
        self.shut(None);
    }

    /// The operator does not let the peer use the portal any more: closes this end, tells both programs why, and
    /// sends nothing that was not begun. The program learns at once what has become of its messages, as far as is
    /// known. Returns what it has not read.
    pub(crate) fn revoke(&mut self, why: Errno) -> Unread {
        self.is_closed_for(why);
        self.expire_if(Cause::PeerLost, |_| true);
        self.end_calls(None, Cause::PeerLost);
        // An end that the program has closed has another reason now, as not all that it has written is sent.
        let unread = self.close();
        self.ends(self.own_reason);
        unread
    }

    fn is_closed_for(&mut self, why: Errno) {
        self.own_reason = inbox::status(why);
        if self.begun == Begun::No {
            self.begun = Begun::Refused(why);
        }
    }

    /// This end is closed: tells operators why.
    fn note_shut(&mut self) {
        let cause = match (self.own_reason, self.begun, self.is_opener) {
            (0, Begun::No, true) => history::Cause::Text(GIVEN_UP),
            (0, _, true) => history::Cause::Text(BY_OPENER),
            (0, _, false) => history::Cause::Text(BY_PORTAL),
            (reason, ..) => history::Cause::closed(Errno::from_peer(reason)),
        };
        self.ends_for(What::Closed, cause);
    }

    /// The other end is closed, with a reason: tells operators.
    fn note_peer_closed(&mut self, reason: u16) {
        let cause = match (reason, self.begun, self.is_opener) {
            (0, Begun::No, false) => history::Cause::Text(GIVEN_UP),
            (0, _, true) => history::Cause::Text(BY_PORTAL),
            (0, _, false) => history::Cause::Text(BY_OPENER),
            (reason, ..) => history::Cause::closed(Errno::from_peer(reason)),
        };
        self.ends_for(What::Closed, cause);
    }

    /// The program writes no more. `front` is the number of the first message that it has not read.
    fn shut(&mut self, front: Option<Seq>) {
        self.note_shut();
        self.is_shut = true;
        self.serving = None;
        self.gather.release();
        (self.hungry_at, self.wants_memory) = (None, false);
        // What a task or command is copying, it has: the final state must say so.
        let (counts, rx) = (&mut self.counts, &mut self.proto.rx);
        self.calls.takes_replies(|len| {
            counts.received(len);
            rx.took(len, front);
        });
        self.proto.close(self.own_reason);
        self.calls.close();
        if self.proto.is_over() && self.end.is_none() {
            self.ends(0);
        }
        self.wake.wake(Ready::IN | Ready::OUT | Ready::HUP);
    }

    /// Whether the program has closed its end, or that was done in its place.
    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// The number after the last message that the program has written, if all have numbers by then.
    pub(crate) fn goal(&self) -> Seq {
        // CAST: There are at most `MAX_QUEUE`.
        self.proto.tx.acked().plus(self.out.len() as u32)
    }

    /// Whether the peer's kernel has everything before `goal`; and if this end is closed, knows that.
    pub(crate) fn is_settled(&self, goal: Seq) -> bool {
        let is_known = self.proto.is_over() && !self.proto.owes_close() && !self.owes_closed;
        // Messages that expire, or that the peer's program will not take, have no number and get none.
        let tx = &self.proto.tx;
        let is_done = self.out.len() == 0 || tx.is_stopped() || !tx.acked().is_before(goal);
        is_known || (!self.is_shut && is_done)
    }

    /// The program has gone. Returns what nobody needs any more.
    pub(crate) fn release(&mut self) -> (Unread, Inbox, Calls) {
        let unread = self.close();
        self.has_program = false;
        let inbox = core::mem::replace(&mut self.inbox, Inbox::new());
        let calls = core::mem::replace(&mut self.calls, Calls::new());
        (unread, inbox, calls)
    }

    /// Messages that are not needed any more, to be dropped when no lock is held.
    pub(crate) fn take_gone(&mut self) -> Option<KBox<Sent>> {
        self.out.take_gone()
    }

    /// How many messages of this end the other program has taken, and how many its kernel has queued.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let tx = &self.proto.tx;
        let behind = |place: Seq| u64::from(tx.high().ahead_of(place).unwrap_or(0));
        let count = |place| self.counts.sent.saturating_sub(behind(place));
        let queued = match self.has_all {
            true => self.counts.sent,
            false => count(tx.acked()),
        };
        (count(tx.taken()), queued)
    }

    /// Calls of the program that have a reply, and requests to which it has replied.
    pub(crate) fn call_times(&self) -> (CallTimes, CallTimes) {
        (self.calls.answered, self.calls.served)
    }

    /// Messages that wait for the program, and those that the peer has not acknowledged.
    pub(crate) fn queued(&self) -> (usize, usize) {
        (self.inbox.messages(), self.out.len())
    }

    // --- other modules ---

    /// Keeps the ticket until there is something to deliver.
    pub(crate) fn rest(&mut self, ticket: &mut Option<KBox<Ticket>>) {
        self.ticket = ticket.take();
    }

    /// The ticket, if it is not in use, and there is something to deliver.
    pub(crate) fn due_ticket(&mut self) -> Option<KBox<Ticket>> {
        // A program's channel has none.
        self.ticket.as_ref()?;
        let has_end = self.end_to_tell().is_some_and(|end| !end.is_told);
        let is_due =
            self.tells_room || has_end || self.inbox.has_notice() || self.inbox.has_message();
        is_due.then(|| self.ticket.take()).flatten()
    }

    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn has_ticket(&self) -> bool {
        self.ticket.is_some()
    }

    /// The ticket, if it is not in use. Nothing is delivered any more.
    pub(crate) fn leave(&mut self) -> Option<KBox<Ticket>> {
        self.ticket.take()
    }

    /// What is to be delivered next.
    pub(crate) fn delivery(&mut self) -> Option<Delivery> {
        if core::mem::take(&mut self.tells_room) && self.end.is_none() {
            return Some(Delivery::Room);
        }
        match self.take(usize::MAX) {
            Take::Item(taken) => Some(Delivery::Item(taken)),
            Take::TooLong | Take::Nothing | Take::End => None,
        }
    }

    // --- ends and outcomes ---

    /// Nothing more will arrive.
    fn ends(&mut self, reason: u16) {
        if self.end.is_none() {
            self.end = Some(End {
                reason: if reason == 0 { self.own_reason } else { reason },
                is_told: false,
            });
        }
        self.wake
            .wake(Ready::IN | Ready::OUT | Ready::PRI | Ready::HUP);
    }

    /// The peer's kernel no longer has the channel.
    pub(crate) fn abandon(&mut self, cause: Cause) {
        let why = history::Cause::Error("the other machine no longer has it", Errno::ECONNABORTED);
        self.ends_for(What::Closed, why);
        self.proto.abandon();
        self.owed = Owed::Nothing;
        self.owes_closed = false;
        self.end_messages(cause);
        self.end_calls(None, cause);
        if self.begun == Begun::No {
            self.begun = Begun::Refused(Errno::ECONNABORTED);
        }
        self.ends(match cause {
            Cause::Closed => self.peer_reason,
            _ if self.own_reason != 0 => self.own_reason,
            _ => inbox::status(Errno::ECONNABORTED),
        });
    }

    /// The peer takes no more messages: tells what has become of those of the program.
    fn end_messages(&mut self, cause: Cause) {
        self.serving = None;
        self.out.lost();
        while let Some(mut sent) = self.out.pop() {
            let is_queued = self.proto.tx.progress(&sent.item) == Progress::Queued;
            if let Some(outcome) = self.proto.tx.end(&mut sent.item, cause) {
                // A task of the peer's program may have got a reply before the messages in front of it.
                let outcome = match (sent.about.kind, outcome) {
                    (Kind::Reply, Outcome::NotDelivered) if is_queued => Outcome::Unknown,
                    _ => outcome,
                };
                self.tell_sent(&sent, outcome, cause);
            }
            self.proto.tx.release(sent.item.take());
            self.out.bury(sent);
        }
        if cause == Cause::Closed {
            self.end_calls(Some(self.proto.tx.taken()), cause);
        }
    }

    /// Tells the program what has become of what stands in the queue.
    fn tell_sent(&mut self, sent: &Sent, outcome: Outcome, cause: Cause) {
        match &sent.put {
            Some(put) => self.tell_put(sent, put, outcome, cause),
            None => {
                self.tell(sent.about, outcome, cause);
                self.end_body(sent, outcome, cause);
            }
        }
    }

    /// Tells the program what has become of a message.
    fn tell(&mut self, about: About, outcome: Outcome, cause: Cause) {
        let errno = outcome.errno(cause);
        let notice = match about.kind {
            Kind::Request => match self.calls.abandon(about.id, outcome, cause) {
                Some(notice) => Some(notice),
                // It was told before, or a task waits for it.
                None => return,
            },
            // Without a receipt, only the program that has set a time is told, and only of failure.
            _ if about.flags & F_RECEIPT == 0 && (cause != Cause::Timeout || errno.is_none()) => {
                None
            }
            _ => Some(Notice {
                kind: Kind::Receipt,
                flags: 0,
                tag: about.tag,
                status: errno.map_or(0, inbox::status),
            }),
        };
        if about.may_tell {
            self.inbox.owes_less();
        }
        if let Some(notice) = notice.filter(|_| self.has_program) {
            self.inbox.tell(notice);
            self.wake.wake(Ready::IN | Ready::PRI);
        }
    }

    /// The peer's kernel has answered the end of this side: it has all messages, unless its program takes no
    /// more.
    fn all_arrived(&mut self) {
        if self.proto.tx.is_stopped() {
            return;
        }
        self.has_all = true;
        self.out.lost();
        while let Some(mut sent) = self.out.pop() {
            match sent.about.kind {
                Kind::Request => {
                    self.calls.queued(sent.about.id, sent.item.number());
                    // From now on, it is the time of the call.
                    self.expires_at(sent.deadline);
                }
                _ if !sent.item.is_expired() => {
                    self.tell_sent(&sent, Outcome::Delivered, Cause::Closed);
                }
                _ => {}
            }
            self.proto.tx.release(sent.item.take());
            self.out.bury(sent);
        }
    }

    /// Ends calls without an answer: those whose request the peer has not taken before `taken`, or all.
    fn end_calls(&mut self, taken: Option<Seq>, cause: Cause) {
        let mut from = 0;
        while let Some(notice) = self.calls.end(taken, cause, &mut from) {
            self.inbox.owes_less();
            self.inbox.tell(notice);
            self.wake.wake(Ready::IN | Ready::PRI);
        }
    }

    /// Notes that a time is over at `deadline`.
    fn expires_at(&mut self, deadline: Option<u64>) {
        self.next_expiry = earlier(self.next_expiry, deadline);
    }

    /// Tells about messages and calls whose time is over. Returns when the next one's is, or earlier.
    pub(crate) fn expire(&mut self, now: u64) -> Option<u64> {
        if self.next_expiry.is_some_and(|next| next <= now) {
            self.next_expiry = self.expire_all(now);
            self.has_freed = true;
        }
        self.tell_writable();
        self.next_expiry
    }

    /// Does that, in one pass over all that waits.
    #[cold]
    fn expire_all(&mut self, now: u64) -> Option<u64> {
        let is_late = |deadline: Option<u64>| deadline.is_some_and(|deadline| deadline <= now);
        let next = self.expire_if(Cause::Timeout, is_late);
        let mut from = 0;
        while let Some(notice) = self.calls.expire(now, &mut from) {
            self.inbox.owes_less();
            self.inbox.tell(notice);
            self.wake.wake(Ready::IN | Ready::PRI);
        }
        let memory = self.memory.as_mut();
        let gets = memory.and_then(|memory| memory.expire_gets(now));
        earlier(earlier(next, self.calls.deadline()), gets)
    }

    /// Gives up messages, by their deadlines, and tells what has become of them. Those that were sent are still
    /// sent again if that is needed. Returns the first deadline of the others.
    fn expire_if(&mut self, cause: Cause, is_late: impl Fn(Option<u64>) -> bool) -> Option<u64> {
        let (mut next, mut gone) = (None, None);
        let mut out = core::mem::replace(&mut self.out, Out::new());
        out.retain(|mut sent| {
            let deadline = sent.deadline.filter(|_| !sent.item.is_expired());
            if !is_late(deadline) {
                next = earlier(next, deadline);
                return Some(sent);
            }
            let is_unsent = sent.item.number().is_none();
            let Some(outcome) = self.proto.tx.expire(&mut sent.item) else {
                return Some(sent);
            };
            self.tell_sent(&sent, outcome, cause);
            if !is_unsent {
                if let Some(put) = &mut sent.put {
                    put.give_up();
                }
                return Some(sent);
            }
            self.proto.tx.release(sent.item.take());
            sent.next = gone.take();
            gone = Some(sent);
            None
        });
        self.out = out;
        while let Some(mut sent) = gone {
            gone = sent.next.take();
            self.out.bury(sent);
        }
        next
    }

    /// Wakes tasks that want to write, if they can, or perhaps can: what they have may be shorter than the
    /// longest message.
    fn tell_writable(&mut self) {
        let has_freed = core::mem::take(&mut self.has_freed);
        let is_wanted = self.wants_room && self.is_writable();
        if is_wanted || (has_freed && self.is_blocked) {
            self.wants_room &= !is_wanted;
            self.is_blocked = false;
            self.tells_room = true;
            self.wake.wake(Ready::OUT);
        }
    }

    /// Releases messages that the peer's kernel has.
    fn pop_acknowledged(&mut self) {
        let mut has_popped = false;
        while let Some(front) = self.out.front() {
            if self.proto.tx.progress(&front.item) == Progress::Pending {
                break;
            }
            let Some(mut sent) = self.out.pop() else {
                break;
            };
            has_popped = true;
            match sent.about.kind {
                Kind::Request => {
                    self.calls.queued(sent.about.id, sent.item.number());
                    // From now on, it is the time of the call.
                    self.expires_at(sent.deadline);
                }
                _ if !sent.item.is_expired() => {
                    self.tell_sent(&sent, Outcome::Delivered, Cause::Closed);
                }
                _ => {}
            }
            self.proto.tx.release(sent.item.take());
            self.out.bury(sent);
        }
        if has_popped {
            self.has_freed = true;
            self.tell_writable();
        }
    }
}

/// The first of two numbers of messages.
fn first(a: Option<Seq>, b: Option<Seq>) -> Option<Seq> {
    match (a, b) {
        (Some(a), Some(b)) if b.is_before(a) => Some(b),
        (a, b) => a.or(b),
    }
}

/// The earlier of two times.
pub(crate) fn earlier(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
