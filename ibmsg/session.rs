// SPDX-License-Identifier: GPL-2.0

//! One side of a session: its channels, and the connections that carry their records.
//!
//! A session outlives its connections, and ends only when the kernel on the other side no longer has it.
//! Everything is under one lock, which may be taken in any context, for the time of a few frames. What is
//! not needed any more is dropped when it is not held ([`garbage`]).
//!
//! | Module | Contents |
//! |---|---|
//! | [`program`] | what programs do |
//! | [`listening`] | what other modules do |
//! | [`transmit`] | fills frames |
//! | [`arrive`] | looks at frames that have arrived |
//! | [`moves`] | connections come and go |
//! | [`ready`] | channels with something to send |
//! | [`spread`] | which connection a channel is on |
//! | [`gather`] | channels whose messages wait for others |
//! | [`publish`] | what programs publish, and to what they subscribe |
//! | [`news`] | what all programs are told |
//! | [`walk`] | what concerns many channels, in portions |
//! | [`refusals`] | channels that clients were refused |
//! | [`revoke`] | channels that clients may not have any more |
//! | [`finish`] | closes channels in the place of programs |
//! | [`memory`] | memory of programs |
//!
//! A channel that has something to send is in the list of its connection ([`ready`]). The first one in the list fills
//! frames until its quantum is used up, and goes to the end ([`ibmsg_proto::fair`]): so a channel waits for
//! one quantum of each other one, and a program that does not read holds up its own channel only.

mod arrive;
mod finish;
mod garbage;
mod gather;
mod listening;
mod memory;
mod moves;
mod news;
mod program;
mod publish;
mod ready;
mod refusals;
mod revoke;
mod spread;
#[cfg(IBTRS_KUNIT)]
mod tests;
mod transmit;
mod walk;

pub(crate) use listening::End;
pub(crate) use refusals::LogLimits;

use arrive::{
    Answer,
    LiveCopy, //
};
use core::mem::MaybeUninit;
use garbage::Garbage;
use gather::Gathering;
use ibmsg_proto::{
    access::Peer,
    channel::Conn,
    limits::MAX_ATTEMPTS,
    link::Link,
    outcome::Cause,
    wire::Drain, //
};
use ibtrs_core::messages::Role;
use kernel::{
    alloc::Flags,
    new_spinlock_irq,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        SpinLockIrq, //
    },
    time::hrtimer::HrTimer, //
};
use kx::{
    deque::Deque,
    mm::NoIo,
    work::{
        DelayedWork,
        Queue,
        WorkItem, //
    }, //
};
use news::News;
use ready::Ready;
use refusals::Refusals;

use crate::{
    access::Access,
    channel::{
        earlier,
        Chan, //
    },
    history::OfSession,
    limits::Limits,
    link::{
        Connection,
        Frame,
        Upper, //
    },
    portal::Portals,
    types::{
        now,
        Name, //
    }, //
};

/// The most channels of a session.
const MAX_CHANNELS: usize = if cfg!(IBTRS_KUNIT) { 64 } else { 65_536 };
/// The most connections, with those that are not drained.
const MAX_CONNS: usize = 2 * MAX_ATTEMPTS;
/// For how long to wait for memory, in microseconds.
const PAUSE_US: u64 = 10_000;
/// The work item that does what was left.
const MORE: u64 = 1;
/// The work item that waits for memory.
const FEED: u64 = 2;
/// The work item that maps and registers memory of programs.
const MEMORY: u64 = 3;

/// What all sessions share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) portals: Arc<Portals<Side>>,
    pub(crate) access: Arc<Access>,
    pub(crate) log_limits: Arc<LogLimits>,
    pub(crate) limits: Arc<Limits>,
    /// For times that are over, and what is done in portions.
    pub(crate) queue: Arc<Queue>,
}

/// A connection.
pub(super) struct ConnState {
    id: Conn,
    out: Arc<dyn Connection>,
    /// Credits in frames.
    flow: Link,
    /// Channels with something to send, see [`ready`].
    ready: Ready,
    /// Of the client: when channels may move to it from connections that work; none if they have, or were told to.
    spread_at: Option<u64>,
    /// When it came.
    since: u64,
    /// Of the client: number of channels on it, see [`spread`].
    channels: usize,
    /// Answers for channels that do not exist.
    answers: Deque<Answer>,
    /// A frame that was begun and had nothing in it.
    spare: Option<Frame>,
    /// LIVE is to be sent before anything else; whether with `ends`.
    live: Option<bool>,
    /// DRAIN is to be sent.
    drain: Option<Drain>,
    /// Since the present walk began, LIVE was sent by it, or is to be sent.
    is_announced: bool,
    /// It was given up.
    has_failed: bool,
    /// The next one that is not needed any more.
    next: Option<KBox<ConnState>>,
}

/// How far it is known that channels do not stand in the way of LIVE with `ends`.
#[derive(Clone, Copy)]
struct LiveDue {
    /// Those before this number do not.
    from: u32,
    /// By this connection.
    to: Option<Conn>,
}

pub(crate) struct State {
    conns: KVec<KBox<ConnState>>,
    /// Attempts that have begun and have no connection yet.
    begun: KVec<u32>,
    /// Connections that are not used any more, and may not be drained: the device may still use memory by them.
    undrained: KVec<Conn>,
    /// Boxed, as nodes of the tree move when they are inserted.
    chans: RBTree<u32, KBox<Chan>>,
    len: usize,
    /// The number of the last channel that was opened here.
    last: u32,
    /// Channels that wait for a time.
    timed: Deque<u32>,
    /// How many of them, from the first one on, are to be looked at now.
    timed_left: usize,
    /// How many of them do not exist any more.
    stale: usize,
    /// Channels that need memory for what arrives.
    hungry: Deque<u32>,
    /// Channels whose messages wait for others.
    gathering: Gathering,
    /// Channels for whose memory something is to be done that may sleep.
    sleepers: Deque<u32>,
    /// The channel from which on one is looked for that can return a key.
    looks_from: u32,
    /// When the timer runs.
    timer_at: Option<u64>,
    /// Channels from this number on are to be looked at, as connections have come or gone.
    walk: Option<u32>,
    /// Of the server: what the client has said last, for that.
    live: Option<LiveCopy>,
    /// Of which programs are told in the same course.
    news: News,
    /// Of the client: for how long channels do not move to a new connection from one that works.
    spread_after: u64,
    /// The present walk moves them.
    is_spreading: bool,
    /// LIVE with `ends` is to be sent when all channels have moved.
    live_due: Option<LiveDue>,
    newest: u32,
    garbage: Garbage,
    /// Of the server.
    refusals: Refusals,
    /// The other machine takes message connections, as far as is known.
    is_supported: bool,
    /// The session is about to be closed on purpose: no channels are opened.
    is_closing: bool,
    is_over: bool,
}

/// Memory for a channel.
struct Seat {
    chan: KBox<MaybeUninit<Chan>>,
    node: RBTreeNodeReservation<u32, KBox<Chan>>,
}

impl Seat {
    fn new(flags: Flags) -> Result<Self> {
        Ok(Self {
            chan: KBox::new_uninit(flags)?,
            node: RBTreeNodeReservation::new(flags)?,
        })
    }
}

/// A side of a session.
#[pin_data]
pub(crate) struct Session {
    /// The client opens channels, and moves them; the server has portals.
    role: Role,
    name: Name,
    /// The other machine.
    peer: Peer,
    portals: Arc<Portals<Side>>,
    access: Arc<Access>,
    log_limits: Arc<LogLimits>,
    limits: Arc<Limits>,
    history: Arc<OfSession>,
    #[pin]
    state: SpinLockIrq<State>,
    #[pin]
    timer: DelayedWork<Self>,
    #[pin]
    more: DelayedWork<Self, MORE>,
    #[pin]
    feed: DelayedWork<Self, FEED>,
    /// See [`gather`].
    #[pin]
    alarm: HrTimer<Self>,
    #[pin]
    memory: DelayedWork<Self, MEMORY>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Session { self.timer }
    impl HasWork<DelayedWork<Self, MORE>> for Session { self.more }
    impl HasWork<DelayedWork<Self, FEED>> for Session { self.feed }
    impl HasWork<DelayedWork<Self, MEMORY>> for Session { self.memory }
}

impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        Side(this).timer();
    }
}

impl WorkItem<MORE> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let side = Side(this);
        side.locked(|state| {
            let now = now();
            let is_timely = side.on_alarm(state, now);
            side.step(state, now);
            if !is_timely {
                side.0.more.enqueue(side.0.clone());
            }
        });
    }
}

impl WorkItem<FEED> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // Closing the session waits for this work item, and reclaim may wait for a disk of the next session.
        let _scope = NoIo::enter();
        Side(this).feed();
    }
}

impl WorkItem<MEMORY> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        // It has a reference to the connection meanwhile, for which the teardown of the path waits, and reclaim may
        // wait for a disk that needs this path.
        let _scope = NoIo::enter();
        Side(this).memory_work();
    }
}

/// A reference to a side.
#[derive(Clone)]
pub(crate) struct Side(Arc<Session>);

impl PartialEq for Side {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The word for a side.
fn word(peer: Peer, role: Role) -> &'static str {
    match (peer, role) {
        (Peer::Local, _) => "local",
        (_, Role::Client) => "client",
        (_, Role::Server) => "server",
    }
}

impl Side {
    /// A side without connections.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(role: Role, name: Name, peer: Peer, shared: &Shared) -> Result<Self> {
        let Shared {
            portals,
            access,
            log_limits,
            limits,
            queue,
        } = shared.clone();
        let state = State {
            conns: KVec::new(),
            begun: KVec::with_capacity(MAX_ATTEMPTS, GFP_KERNEL)?,
            undrained: KVec::with_capacity(MAX_CONNS, GFP_KERNEL)?,
            chans: RBTree::new(),
            len: 0,
            last: 0,
            timed: Deque::new(),
            timed_left: 0,
            stale: 0,
            hungry: Deque::new(),
            gathering: Gathering::new(),
            sleepers: Deque::new(),
            looks_from: 0,
            timer_at: None,
            walk: None,
            live: None,
            news: News::new(),
            spread_after: spread::MIN_AFTER_US,
            is_spreading: false,
            live_due: None,
            newest: 0,
            garbage: Garbage::new(),
            refusals: Refusals::new(peer),
            is_supported: true,
            is_closing: false,
            is_over: false,
        };
        let of = (word(peer, role), name);
        let history = OfSession::new(of, peer != Peer::Unauthenticated)?;
        let (for_more, for_feed) = (queue.clone(), queue.clone());
        let for_memory = queue.clone();
        Ok(Self(Arc::pin_init(
            pin_init!(Session {
                role,
                name,
                peer,
                portals,
                access,
                log_limits,
                limits,
                history,
                state <- new_spinlock_irq!(state, "Session::state"),
                timer <- kx::new_delayed_work!(queue, "Session::timer"),
                more <- kx::new_delayed_work!(for_more, "Session::more"),
                feed <- kx::new_delayed_work!(for_feed, "Session::feed"),
                alarm <- HrTimer::new(),
                memory <- kx::new_delayed_work!(for_memory, "Session::memory"),
            }),
            GFP_KERNEL,
        )?))
    }

    /// For a link.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn as_upper(&self) -> Result<Arc<dyn Upper>> {
        let upper: Arc<dyn Upper> = Arc::new(self.clone(), GFP_KERNEL)?;
        Ok(upper)
    }

    /// The name for programs.
    pub(crate) fn name(&self) -> Name {
        self.0.name
    }

    /// Whether this side opens channels.
    pub(crate) fn is_client(&self) -> bool {
        self.0.role == Role::Client
    }

    /// Whether the other machine has proved that it has a key of that name, or is this one.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.0.history.is_authenticated()
    }

    /// Whether there is a channel that was accepted: a program has it, or has written messages that are still
    /// to be delivered.
    pub(crate) fn is_used(&self) -> bool {
        let state = self.0.state.lock();
        let mut chans = state.chans.values();
        chans.any(|chan| chan.has_program || chan.proto.is_established())
    }

    /// Ends the session. Programs learn that the other side is gone, and keep their channels until they close
    /// them.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn close(&self) {
        let mut state = self.0.state.lock();
        state.is_over = true;
        for conn in &mut state.conns {
            conn.fail("its session has ended");
        }
        let alarm = state.gathering.stop();
        drop(state);
        drop(alarm);
        self.0.timer.disable_sync();
        self.0.more.disable_sync();
        self.0.feed.disable_sync();
        self.0.memory.disable_sync();
        self.each_chan(|state, id| {
            Self::settle_memory(state, id);
            if let Some(chan) = state.chans.get_mut(&id) {
                chan.abandon(Cause::PeerLost);
                let portal = chan.portal;
                if self.0.role == Role::Server && !chan.has_program {
                    self.withdraw(id, &portal);
                }
            }
            // Forgets it if it has no program.
            self.attend(state, id, now());
            Some(())
        });
    }

    /// What has happened to its channels.
    pub(crate) fn history(&self) -> &Arc<OfSession> {
        &self.0.history
    }

    /// Whether its events are recorded: of channels inside this machine, the side with portals records them.
    fn is_recorded(&self) -> bool {
        self.0.peer != Peer::Local || self.0.role == Role::Server
    }

    /// Drops it, and tells whether nothing else had a reference to it.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn into_last(self) -> bool {
        Arc::into_unique_or_drop(self.0).is_some()
    }

    /// Records an event.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn seems_used(&self) {
        let (what, cause) = (
            ibmsg_proto::history::What::Opened,
            crate::history::Cause::None,
        );
        self.0.history.record(what, self.0.name, 1, cause);
    }

    /// Calls a function under the lock. What is not needed any more is dropped afterwards.
    fn locked<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.0.state.lock();
        let result = f(&mut state);
        let garbage = core::mem::take(&mut state.garbage);
        drop(state);
        drop(garbage);
        result
    }

    /// Times are over.
    fn timer(&self) {
        self.locked(|state| {
            let now = now();
            state.timer_at = None;
            state.timed_left = state.timed.len();
            self.begin_spread(state, now);
            self.step(state, now);
        });
    }

    /// Looks after a channel that has changed: puts it into the list of its connection, or of those that
    /// wait for a time, or forgets it.
    fn attend(&self, state: &mut State, id: u32, now: u64) {
        let Some(chan) = state.chans.get_mut(&id) else {
            return;
        };
        if chan.memory.is_some() {
            let crowded = self.attend_memory(chan, &mut state.conns, &mut state.sleepers, now);
            if let Some(on) = crowded {
                Self::make_room(state, on, now);
            }
        }
        let Some(chan) = state.chans.get_mut(&id) else {
            return;
        };
        if let Some(gone) = chan.take_gone() {
            state.garbage.add_sent(gone);
        }
        chan.late().move_to(&mut state.garbage.unwanted);
        if let Some((what, cause)) = chan.take_happened().filter(|_| self.is_recorded()) {
            self.0.history.record(what, chan.portal, id, cause);
        }
        if chan.is_done() {
            let was_timed = chan.is_timed;
            if let Some(mut chan) = state.chans.remove(&id) {
                state.len -= 1;
                state.count_off(&chan);
                Self::gathers_no_more(state, id, &mut chan.waits);
                state.garbage.add_chan(chan);
            }
            if was_timed {
                Self::untimed(state);
            }
            return;
        }
        chan.gather.expire(now);
        let deadline = chan.expire(now);
        if let Some(gone) = chan.take_gone() {
            state.garbage.add_sent(gone);
        }
        let due = chan.due(now);
        if chan.is_hungry(now) && !chan.is_listed_hungry {
            chan.is_listed_hungry = state.hungry.push_back(id).is_ok();
            self.0.feed.enqueue(self.0.clone());
        }
        if let Some(ticket) = chan.due_ticket() {
            state.garbage.tickets.push(ticket);
        }
        let time = earlier(deadline, chan.next_time(due));
        if time.is_some() && !chan.is_timed {
            chan.is_timed = state.timed.push_back(id).is_ok();
        }
        let is_placed = chan.waits.until() == chan.gather.until();
        let mut is_listed = true;
        if chan.ready_on != chan.proto.on() && chan.has_work(due) {
            let mut conns = state.conns.iter_mut();
            if let Some(conn) = conns.find(|conn| chan.proto.is_on(conn.id)) {
                let of = conn.id;
                is_listed = conn.ready.push(of, chan);
            }
        }
        let is_counted = self.0.role == Role::Server || chan.counts_on == chan.counted_on();
        if let Some(at) = time {
            self.wake_at(state, at, now);
        }
        if !is_listed {
            state.list_ready(id);
        }
        if !is_placed {
            self.gathers(state, id, now);
        }
        if !is_counted {
            state.count(id);
        }
    }

    /// Lets the timer run at a time, or before.
    fn wake_at(&self, state: &mut State, at: u64, now: u64) {
        if state.is_over || state.timer_at.is_some_and(|timer| timer <= at) {
            return;
        }
        state.timer_at = Some(at);
        let ms = at.saturating_sub(now).div_ceil(1000).max(1);
        let ms = u32::try_from(ms).unwrap_or(u32::MAX);
        self.0.timer.modify(self.0.clone(), ms);
    }

    /// Makes room for another channel in all lists.
    ///
    /// # Errors
    ///
    /// [`ENOBUFS`] if there are too many, [`ENOMEM`].
    fn reserve(state: &mut State) -> Result {
        if state.len >= MAX_CHANNELS {
            return Err(ENOBUFS);
        }
        // A list may still have channels that have gone; all that there are may be added to those.
        let more = state.len + 1;
        let flags = GFP_ATOMIC | __GFP_NOWARN;
        state.timed.reserve(more, flags)?;
        state.hungry.reserve(more, flags)?;
        state.sleepers.reserve(more, flags)?;
        for conn in &mut state.conns {
            conn.ready.reserve(more, flags)?;
        }
        Ok(())
    }

    /// Adds a channel, after [`Side::reserve`].
    fn insert(state: &mut State, seat: Seat, chan: Chan) {
        let id = chan.proto.id();
        let node = seat.node.into_node(id, KBox::write(seat.chan, chan));
        let former = state.chans.insert(node);
        state.len += usize::from(former.is_none());
    }
}
