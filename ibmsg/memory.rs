// SPDX-License-Identifier: GPL-2.0

//! Memory of programs on a channel: what this end publishes, and its GETs and PUTs.
//!
//! [`ibmsg_proto::memory`] decides; this keeps the pages and regions about which it decides. The lock of the session
//! protects it. What may sleep is a [`Job`] for a work item of the session: mapping, registration.
//!
//! | Module | Contents |
//! |---|---|
//! | [`exports`] | what is published, and how that ends |
//! | [`bodies`] | what of it is the body of a message, and the bodies of the peer |
//! | [`grants`] | what the peer asks for: keys, pushes |
//! | [`asker`] | keys of the peer's memory, GETs |
//! | [`put`] | a PUT, which stands in the queue of messages |
//! | [`ops`] | tasks and commands that wait for an operation |
//! | [`patience`] | for how long the peer, and the device, may take to let go of memory |
//! | [`job`] | what may sleep |
//!
//! # Where pages go
//!
//! A slot of [`exports`] has its pages until no key of them is valid and no push is under way. An operation has those of
//! its buffer until it has ended. Work requests refer to what they use, and regions own it. So pages are given back when
//! the last of these has gone, in whatever order that is.

mod asker;
mod bodies;
mod exports;
mod grants;
mod job;
mod ops;
mod patience;
mod put;
#[cfg(IBTRS_KUNIT)]
mod tests;

use asker::GetOp;
use exports::Slot;
use grants::{
    Place,
    Push, //
};
use ibmsg_proto::{
    channel::Conn,
    memory::{
        Granted,
        Held,
        Keys,
        MemoryTerms,
        Refusal,
        MAX_BODIES, //
    },
    wire::MemoryRecord, //
};
use ibtrs_core::messages::memory::Device;
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use kx::deque::Deque;
use patience::{
    Course,
    Lack,
    Patience, //
};

pub(crate) use job::{
    Done,
    Job, //
};
pub(crate) use ops::{
    Outcome,
    Waits, //
};
pub(crate) use patience::Advanced;
pub(crate) use put::{
    Next,
    PutOp, //
};

/// Keys of this side's memory that the peer may have at a time, and the other way round: a key is for 2 MiB.
const KEYS: usize = 16;
/// Places for keys of this side's memory: those that the peer may have, and as many that it has returned.
const PLACES: usize = 2 * KEYS;
/// GETs of the peer that may be unanswered.
const PUSHES: u16 = 4;
/// Pushes of which the device has not reported the end: their answers may be there before.
const MAX_PUSHES: usize = 4 * PUSHES as usize;
/// Ranges that may be published on a channel.
const MAX_EXPORTS: usize = 64;
/// Operations at a time.
const MAX_OPS: usize = 64;
/// Records GET of this side that may be unanswered, whatever the peer allows.
const MAX_GETS: usize = 16;
/// Answers to the peer that wait to be sent: more than it can ask for if it keeps to the terms.
const MAX_ANSWERS: usize = 48;
/// Records that wait to be sent: these answers, those for keys and pushes that were still to be made, and for each key
/// that this side uses ASK and RETURN. So no record is lost for want of a place.
const MAX_RECORDS: usize = MAX_ANSWERS + KEYS + MAX_PUSHES + 2 * KEYS + MAX_GETS;
/// Writes of a channel that the connection may have at a time, and reads, so that others have their turn.
const MAX_WRITES: usize = 2;
const MAX_READS: usize = 2;

/// Number of eras so far, of all channels. What was begun in one may end when its channel has gone, and another one has
/// that number, on the same connection: it must not be taken for work of the other one.
static ERAS: Atomic<u64> = Atomic::new(0);

fn next_era() -> u64 {
    ERAS.fetch_add(1, Relaxed)
}

/// For how long registrations wait for a place in a queue, in microseconds, unless work of the channel completes before.
const PAUSE_US: u64 = 5_000;
/// For how long a channel keeps keys of the peer that it does not use, in microseconds, and how exactly: timers of many
/// channels run together.
const IDLE_US: u64 = 1_000_000;
const IDLE_GRID_US: u64 = 250_000;

/// What the memory of a channel is charged for: everything that it may ever need.
const CHARGE: u64 = 48 << 10;

/// What a channel is charged for memory, if both sides may have it.
pub(crate) const fn charge(has_memory: bool) -> u64 {
    match has_memory {
        true => CHARGE,
        false => 0,
    }
}

const _: () = {
    /// Bytes of a list, as the allocator has them.
    const fn list<T>(len: usize) -> usize {
        (len * size_of::<T>()).next_power_of_two()
    }
    let most = list::<Memory>(1)
        + list::<Slot>(MAX_EXPORTS)
        + list::<Push>(MAX_PUSHES)
        + list::<GetOp>(MAX_OPS)
        + list::<ops::Waiter>(MAX_OPS)
        + list::<MemoryRecord>(MAX_RECORDS.next_power_of_two());
    // CAST: A small constant.
    assert!(most <= CHARGE as usize);
    // The peer never has more bodies than it may.
    assert!(MAX_EXPORTS <= MAX_BODIES);
};

/// The terms of this side. The numbers are in range.
pub(crate) const TERMS: Option<MemoryTerms> = match MemoryTerms::new(KEYS as u16, PUSHES) {
    Some(terms) => Some(terms.with_reads(true)),
    None => None,
};

/// Why a record was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Not now: it comes again.
    Later,
    /// The peer must not send that.
    Breach(&'static str),
}

/// Why an operation fails whose memory could not be mapped or registered.
fn refusal_of(error: Error) -> Refusal {
    match error {
        EOPNOTSUPP => Refusal::Device,
        _ => Refusal::Resources,
    }
}

/// What a completed work request was for: [`Upper::completed`](crate::link::Upper::completed) has it as a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cookie {
    /// The key at this place is invalid.
    Key(usize),
    /// A push has been written.
    Push(u32),
    /// A part of a PUT has been written, with the key at this place.
    Put(u32, usize),
    /// A part of a GET has been read, with the key at this place.
    Get(u32, usize),
    /// The landing zone of a GET has no key any more.
    Landing(u32),
}

impl Cookie {
    /// The number, for this channel. Operations have numbers of 24 bits.
    fn to_bits(self, channel: u32) -> u64 {
        // CAST: Lossless; places are small.
        let (kind, place, number) = match self {
            Self::Key(place) => (0, place as u64, 0),
            Self::Push(number) => (1, 0, number),
            Self::Put(number, place) => (2, place as u64, number),
            Self::Landing(number) => (3, 0, number),
            Self::Get(number, place) => (4, place as u64, number),
        };
        u64::from(channel) << 32 | kind << 29 | place << 24 | u64::from(number & NUMBER)
    }

    fn from_bits(bits: u64) -> Self {
        // CAST: The masks leave what fits.
        let (place, number) = ((bits >> 24 & 0x1f) as usize, bits as u32 & NUMBER);
        match bits >> 29 & 7 {
            0 => Self::Key(place),
            1 => Self::Push(number),
            2 => Self::Put(number, place),
            3 => Self::Landing(number),
            _ => Self::Get(number, place),
        }
    }
}

/// The bits of the number of an operation.
const NUMBER: u32 = 0xff_ffff;
const _: () = assert!(PLACES <= 0x20);

/// The channel of a cookie.
pub(crate) fn channel_of(cookie: u64) -> u32 {
    // CAST: The upper half.
    (cookie >> 32) as u32
}

/// The memory of a channel.
pub(crate) struct Memory {
    channel: u32,
    /// The connection that keys, work requests and records belong to.
    on: Option<Conn>,
    /// One that no channel has had before, since the channel has left its last connection.
    era: u64,
    /// The number of the last operation.
    number: u32,
    /// The number of the last record GET.
    request: u32,
    exports: KVec<Slot>,
    /// How many of them are bodies, and the peer's bodies that the program has.
    lent: usize,
    held: Held<MAX_BODIES>,
    granted: Granted<PLACES>,
    places: [Place; PLACES],
    pushes: KVec<Push>,
    keys: Keys<KEYS>,
    gets: KVec<GetOp>,
    /// Reads for GETs that have not completed.
    reads: usize,
    /// Which GET has its turn first.
    turn: usize,
    /// Keys of the peer were used since this side has looked, and when it saw that last.
    has_used_keys: bool,
    used_keys_at: u64,
    /// A PUT waits for a key.
    put_waits: bool,
    /// Until when GETs ask for no key: the peer is short of regions.
    asks_not_until: u64,
    /// The peer knows what a key says about RDMA READ.
    peer_knows_reads: bool,
    /// What the peer has revoked, and gets back when no work request uses it.
    revoked: KVec<ibmsg_proto::memory::Handle>,
    records: Deque<MemoryRecord>,
    /// How many of them are answers.
    answers: usize,
    waiters: KVec<ops::Waiter>,
    /// Writes for PUTs that have not completed.
    writes: usize,
    /// How many of them, the first ones, are for PUTs that nobody waits for, and for how long the device may take.
    abandoned: usize,
    patience: Patience,
    /// When to look again at what does not let go of memory.
    due: Option<u64>,
    /// The PUT whose buffer is to be mapped.
    to_map: Option<put::ToMap>,
    /// Until when there is no registration, as there was no place in a queue.
    pause: Option<u64>,
    /// The peer has had no region for a key: until when nothing is asked for, since when, and whether another channel is to
    /// return a key.
    ask_again: Option<u64>,
    key_lack: Lack,
    needs_room: bool,
    /// Since when this side has had none for a landing zone.
    landing_lack: Lack,
    /// GETs of this side that may be unanswered.
    most_gets: usize,
}

impl Memory {
    /// The memory of a channel on which nothing is published, with a peer of these terms.
    ///
    /// # Context
    ///
    /// That of `flags`.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(
        channel: u32,
        peer: MemoryTerms,
        flags: kernel::alloc::Flags,
    ) -> Result<KBox<Self>> {
        let mut records = Deque::new();
        records.reserve(MAX_RECORDS, flags)?;
        let this = Self {
            channel,
            on: None,
            era: next_era(),
            number: 0,
            request: 0,
            exports: KVec::with_capacity(MAX_EXPORTS, flags)?,
            lent: 0,
            held: Held::new(),
            // CAST: A small number.
            granted: Granted::new(KEYS as u16),
            places: [const { Place::Free }; PLACES],
            pushes: KVec::with_capacity(MAX_PUSHES, flags)?,
            // CAST: A small number.
            keys: Keys::new(peer.keys().min(KEYS as u16)),
            gets: KVec::with_capacity(MAX_OPS, flags)?,
            reads: 0,
            turn: 0,
            has_used_keys: false,
            used_keys_at: 0,
            put_waits: false,
            asks_not_until: 0,
            peer_knows_reads: peer.reads(),
            revoked: KVec::with_capacity(KEYS, flags)?,
            records,
            answers: 0,
            waiters: KVec::with_capacity(MAX_OPS, flags)?,
            writes: 0,
            abandoned: 0,
            patience: Patience::new(),
            due: None,
            to_map: None,
            pause: None,
            ask_again: None,
            key_lack: Lack::none(),
            needs_room: false,
            landing_lack: Lack::none(),
            most_gets: usize::from(peer.pushes()).min(MAX_GETS),
        };
        Ok(KBox::new(this, flags)?)
    }

    /// The channel, and the terms of its peer, which were not known when the place was made. It was not used before.
    pub(crate) fn agreed(&mut self, channel: u32, peer: MemoryTerms) {
        self.channel = channel;
        // CAST: A small number.
        self.keys = Keys::new(peer.keys().min(KEYS as u16));
        self.peer_knows_reads = peer.reads();
        self.most_gets = usize::from(peer.pushes()).min(MAX_GETS);
    }

    /// The connection that something of the channel belongs to.
    pub(crate) fn on(&self) -> Option<Conn> {
        self.on
    }

    /// Whether what is under way must have ended on the connection before the channel is on another one.
    pub(crate) fn needs_fence(&self) -> bool {
        !self.granted.is_empty()
            || !self.pushes.is_empty()
            || self.writes > 0
            || self.reads > 0
            || self.gets.iter().any(|op| op.get.is_posted())
    }

    /// Whether the client may move the channel away from a connection that works: the peer must have no key there, and must
    /// have ended those that were returned.
    pub(crate) fn may_leave(&self, now: u64) -> bool {
        let has_settled = now >= self.used_keys_at.saturating_add(2 * IDLE_US);
        !self.needs_fence() && self.keys.is_empty() && self.records.is_empty() && has_settled
    }

    /// Whether nothing of the channel is left: pages, keys, work requests.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.needs_fence()
            && self.gets.is_empty()
            && self.exports.iter().all(|slot| slot.pages.is_none())
    }

    /// Works on `conn` from now on, unless something is left on another one.
    fn begins_on(&mut self, conn: Conn) -> bool {
        *self.on.get_or_insert(conn) == conn
    }

    /// The channel has left its connection, by which nothing reaches memory any more: keys, work requests and records
    /// have gone with it.
    pub(crate) fn left(&mut self) {
        self.on = None;
        self.era = next_era();
        while let Some(handle) = self.granted.fence() {
            if let Some(slot) = self.slot_of(handle) {
                slot.export.invalidated();
            }
        }
        for place in &mut self.places {
            *place = Place::Free;
        }
        while let Some(push) = self.pushes.pop() {
            if let Some(slot) = self.slot_of(push.handle) {
                slot.export.push_ended();
            }
        }
        self.keys.lost();
        self.revoked.clear();
        while self.records.pop_front().is_some() {}
        self.answers = 0;
        (self.writes, self.abandoned, self.reads) = (0, 0, 0);
        (self.put_waits, self.asks_not_until) = (false, 0);
        (self.to_map, self.pause, self.ask_again) = (None, None, None);
        (self.key_lack, self.landing_lack) = (Lack::none(), Lack::none());
        self.needs_room = false;
        for slot in &mut self.exports {
            slot.is_told = false;
        }
        for op in &mut self.gets {
            op.lost();
        }
        self.end_gets();
    }

    /// Whether there are records to send.
    pub(crate) fn has_records(&mut self) -> bool {
        !self.records.is_empty()
            || self.exports.iter().any(Slot::is_to_tell)
            || self.next_return(false).is_some()
    }

    /// Adds the next record with `put`, which returns whether there was room. Returns whether there was a record.
    pub(crate) fn send(
        &mut self,
        on: Conn,
        put: impl FnOnce(&MemoryRecord) -> bool,
    ) -> Option<bool> {
        if self.on != Some(on) {
            return Some(false);
        }
        if let Some(record) = self.records.front() {
            if !put(record) {
                return None;
            }
            let is_answer = matches!(record, MemoryRecord::Key(_) | MemoryRecord::Got(_));
            self.answers -= usize::from(is_answer);
            let _ = self.records.pop_front();
            return Some(true);
        }
        if let Some(record) = self.next_revoke(false) {
            if !put(&record) {
                return None;
            }
            let _ = self.next_revoke(true);
            return Some(true);
        }
        if let Some(record) = self.next_return(false) {
            if !put(&record) {
                return None;
            }
            let _ = self.next_return(true);
            return Some(true);
        }
        Some(false)
    }

    /// Queues a record of this side, for which there is a place.
    fn queue(&mut self, record: MemoryRecord) {
        let _ = self.records.push_back(record);
    }

    /// Queues an answer, for which there is a place.
    fn queue_answer(&mut self, record: MemoryRecord) {
        self.answers += 1;
        self.queue(record);
    }

    /// Whether the peer may ask for something.
    ///
    /// # Errors
    ///
    /// [`Refused::Breach`] if too many answers wait: the peer does not take those that were sent before, or asks for
    /// more than it may.
    fn may_ask(&self) -> Result<(), Refused> {
        match self.answers >= MAX_ANSWERS {
            true => Err(Refused::Breach("answers about memory are not taken")),
            false => Ok(()),
        }
    }

    /// Takes a record that has arrived by `from`, which the channel is on. NOTE is not for this.
    ///
    /// # Errors
    ///
    /// [`Refused`]
    pub(crate) fn arrived(
        &mut self,
        from: Conn,
        record: &MemoryRecord,
        device: &dyn Device,
        now: u64,
    ) -> Result<(), Refused> {
        if !self.begins_on(from) {
            return Err(Refused::Later);
        }
        match record {
            MemoryRecord::Note(_) => Ok(()),
            MemoryRecord::Ask(ask) => self.asked(ask),
            MemoryRecord::Return(back) => self.returned(back, device),
            MemoryRecord::Get(get) => self.asked_to_push(get),
            MemoryRecord::Key(key) => self.key_arrived(key, now),
            MemoryRecord::Revoke(revoke) => self.is_revoked(revoke.handle),
            MemoryRecord::Got(got) => self.got(got),
        }
    }

    /// A work request has completed. Returns the PUT that a write was for, and the place of its key.
    pub(crate) fn completed(&mut self, cookie: u64) -> Option<(u32, usize)> {
        // It has left its place in the queue.
        self.pause = None;
        self.has_used_keys = true;
        match Cookie::from_bits(cookie) {
            Cookie::Key(place) => self.key_is_invalid(place),
            Cookie::Push(number) => self.pushed(number),
            Cookie::Landing(number) => self.landing_is_closed(number),
            Cookie::Get(number, place) => self.was_read(number, place),
            Cookie::Put(number, place) => {
                self.writes = self.writes.saturating_sub(1);
                // They complete in the order in which they were posted, so the next one is on its way now.
                self.abandoned = self.abandoned.saturating_sub(1);
                return Some((number, place));
            }
        }
        None
    }

    /// Goes on with what can. `is_ending`: the channel has ended, or is about to; `is_over`: nothing of the peer
    /// follows.
    pub(crate) fn advance(
        &mut self,
        conn: Option<(Conn, &dyn Device)>,
        is_ending: bool,
        is_over: bool,
        now: u64,
    ) -> Advanced {
        let device = match conn {
            Some((on, device)) if self.on.is_none_or(|mine| mine == on) => Some((on, device)),
            _ => None,
        };
        let mut course = Course {
            now,
            completions: device.map_or(0, |(_, device)| device.completions()),
            due: None,
            is_stuck: false,
        };
        let has_freed = self.advance_exports(
            device.map(|(_, device)| device),
            is_ending,
            is_over,
            &mut course,
        );
        self.advance_gets(device, (is_ending, is_over), &mut course);
        if device.is_some() && !is_over {
            self.return_idle_keys(&mut course);
        }
        if self.abandoned > 0 {
            course.wait_for_device(&mut self.patience);
        }
        self.pause = self.pause.filter(|until| *until > now);
        self.ask_again = self.ask_again.filter(|at| *at > now);
        for at in Iterator::chain(self.pause.iter(), &self.ask_again) {
            course.looks_again_at(*at);
        }
        self.due = course.due;
        Advanced {
            has_freed,
            is_stuck: course.is_stuck,
            needs_room: core::mem::take(&mut self.needs_room),
        }
    }

    /// When to call [`Memory::advance`] again although nothing has happened.
    pub(crate) fn due(&self) -> Option<u64> {
        self.due
    }

    /// A PUT has ended for its program, which does not wait for the writes that were posted so far.
    pub(crate) fn abandon_writes(&mut self) {
        // The next one says so itself.
        self.put_waits = false;
        if self.abandoned == 0 {
            self.patience = Patience::new();
        }
        self.abandoned = self.writes;
        if self.abandoned > 0 {
            // Their time begins then.
            self.due = Some(0);
        }
    }

    /// A number for a record GET, which none has that is unanswered.
    fn next_request(&self) -> u32 {
        let mut id = self.request;
        loop {
            id = id.wrapping_add(1);
            // There are fewer than numbers.
            if self.gets.iter().all(|op| op.get.unanswered() != Some(id)) {
                return id;
            }
        }
    }

    /// A number for an operation, which none has that is under way.
    fn next_number(&mut self) -> u32 {
        loop {
            self.number = self.number.wrapping_add(1) & NUMBER;
            let number = self.number;
            let is_used = self.waiters.iter().any(|waiter| waiter.number == number)
                || self.gets.iter().any(|op| op.number == number)
                || self.pushes.iter().any(|push| push.number == number);
            // There are fewer operations than numbers.
            if !is_used {
                return number;
            }
        }
    }
}
