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
//! | [`transmit`] | fills frames |
//! | [`arrive`] | looks at frames that have arrived |
//! | [`moves`] | connections come and go |
//! | [`walk`] | what concerns many channels, in portions |
//! | [`refusals`] | channels that clients were refused |
//! | [`revoke`] | channels that clients may not have any more |
//! | [`finish`] | closes channels in the place of programs |
//!
//! A channel that has something to send is in the list of its connection. The first one in the list fills
//! frames until its quantum is used up, and goes to the end ([`ibmsg_proto::fair`]): so a channel waits for
//! one quantum of each other one, and a program that does not read holds up its own channel only.

mod arrive;
mod finish;
mod garbage;
mod moves;
mod program;
mod refusals;
mod revoke;
mod transmit;
mod walk;

pub(crate) use refusals::LogLimits;

use arrive::{
    Answer,
    LiveCopy, //
};
use core::mem::MaybeUninit;
use garbage::Garbage;
use ibmsg_proto::{
    access::Peer,
    channel::Conn,
    limits::MAX_ATTEMPTS,
    link::Link,
    outcome::Cause, //
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
    }, //
};
use kx::{
    deque::Deque,
    work::{
        DelayedWork,
        Queue,
        WorkItem, //
    }, //
};
use refusals::Refusals;

use crate::{
    access::Access,
    channel::{
        earlier,
        Chan, //
    },
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
/// For how long to wait for memory, in microseconds.
const PAUSE_US: u64 = 10_000;
/// The work item that does what was left.
const MORE: u64 = 1;
/// The work item that waits for memory.
const FEED: u64 = 2;

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
    /// Channels with something to send.
    ready: Deque<u32>,
    /// Answers for channels that do not exist.
    answers: Deque<Answer>,
    /// A frame that was begun and had nothing in it.
    spare: Option<Frame>,
    /// LIVE is to be sent before anything else; whether with `ends`.
    live: Option<bool>,
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
    /// When the timer runs.
    timer_at: Option<u64>,
    /// Channels from this number on are to be looked at, as connections have come or gone.
    walk: Option<u32>,
    /// Of the server: what the client has said last, for that.
    live: Option<LiveCopy>,
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
    #[pin]
    state: SpinLockIrq<State>,
    #[pin]
    timer: DelayedWork<Self>,
    #[pin]
    more: DelayedWork<Self, MORE>,
    #[pin]
    feed: DelayedWork<Self, FEED>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Session { self.timer }
    impl HasWork<DelayedWork<Self, MORE>> for Session { self.more }
    impl HasWork<DelayedWork<Self, FEED>> for Session { self.feed }
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
        let garbage;
        let mut state = side.0.state.lock();
        side.step(&mut state, now());
        garbage = core::mem::take(&mut state.garbage);
        drop(state);
        drop(garbage);
    }
}

impl WorkItem<FEED> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        Side(this).feed();
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
            chans: RBTree::new(),
            len: 0,
            last: 0,
            timed: Deque::new(),
            timed_left: 0,
            stale: 0,
            hungry: Deque::new(),
            timer_at: None,
            walk: None,
            live: None,
            live_due: None,
            newest: 0,
            garbage: Garbage::new(),
            refusals: Refusals::new(peer),
            is_supported: true,
            is_closing: false,
            is_over: false,
        };
        let (for_more, for_feed) = (queue.clone(), queue.clone());
        Ok(Self(Arc::pin_init(
            pin_init!(Session {
                role,
                name,
                peer,
                portals,
                access,
                log_limits,
                limits,
                state <- new_spinlock_irq!(state, "Session::state"),
                timer <- kx::new_delayed_work!(queue, "Session::timer"),
                more <- kx::new_delayed_work!(for_more, "Session::more"),
                feed <- kx::new_delayed_work!(for_feed, "Session::feed"),
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

    /// Whether the other machine has proved that it has a key of that name, or is this one.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.0.peer != Peer::Unauthenticated
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
        drop(state);
        self.0.timer.disable_sync();
        self.0.more.disable_sync();
        self.0.feed.disable_sync();
        // One by one, as they are many.
        let mut next = Some(0);
        while let Some(from) = next {
            let mut state = self.0.state.lock();
            let Some(id) = state.next_chan(from) else {
                break;
            };
            if let Some(chan) = state.chans.get_mut(&id) {
                chan.abandon(Cause::PeerLost);
                let portal = chan.portal;
                if self.0.role == Role::Server && !chan.has_program {
                    self.withdraw(id, &portal);
                }
            }
            // Forgets it if it has no program.
            self.attend(&mut state, id, now());
            let garbage = core::mem::take(&mut state.garbage);
            drop(state);
            drop(garbage);
            next = id.checked_add(1);
        }
    }

    /// Times are over.
    fn timer(&self) {
        let garbage;
        let mut state = self.0.state.lock();
        state.timer_at = None;
        state.timed_left = state.timed.len();
        self.step(&mut state, now());
        garbage = core::mem::take(&mut state.garbage);
        drop(state);
        drop(garbage);
    }

    /// Looks after a channel that has changed: puts it into the list of its connection, or of those that
    /// wait for a time, or forgets it.
    fn attend(&self, state: &mut State, id: u32, now: u64) {
        let Some(chan) = state.chans.get_mut(&id) else {
            return;
        };
        if let Some(gone) = chan.take_gone() {
            state.garbage.add_sent(gone);
        }
        chan.late().move_to(&mut state.garbage.unwanted);
        if chan.is_done() {
            let was_timed = chan.is_timed;
            if let Some(chan) = state.chans.remove(&id) {
                state.len -= 1;
                state.garbage.add_chan(chan);
            }
            if was_timed {
                Self::untimed(state);
            }
            return;
        }
        let deadline = chan.expire(now);
        if let Some(gone) = chan.take_gone() {
            state.garbage.add_sent(gone);
        }
        let due = chan.due(now);
        if chan.has_work(due) {
            let conn = state
                .conns
                .iter_mut()
                .find(|conn| chan.proto.takes_from(conn.id));
            if let Some(conn) = conn.filter(|conn| chan.ready_on != Some(conn.id)) {
                // There is a place for every channel.
                chan.ready_on = conn.ready.push_back(id).is_ok().then_some(conn.id);
            }
        }
        if chan.is_hungry(now) && !chan.is_listed_hungry {
            chan.is_listed_hungry = state.hungry.push_back(id).is_ok();
            self.0.feed.enqueue(self.0.clone());
        }
        let time = earlier(deadline, chan.next_time(due));
        if let Some(at) = time {
            if !chan.is_timed {
                chan.is_timed = state.timed.push_back(id).is_ok();
            }
            self.wake_at(state, at, now);
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

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibmsg_session)]
mod tests {
    //! Two sides with a link by hand, which is lost after each frame in turn.

    use super::*;
    use crate::{
        channel::{
            Caller,
            Calls,
            Take,
            Taken, //
        },
        link::Arrived,
        portal::Reader,
        types::{
            Body,
            Event,
            Header,
            Kind,
            Terms,
            F_RECEIPT,
            HEADER_LEN, //
        },
    };
    use ibmsg_proto::{
        send::SendLimits,
        window::Window, //
    };
    use ibtrs_proto::Errno;
    use kx::work::Options;

    /// Outside of the function of a test, `assert!` would end the kernel.
    macro_rules! ensure {
        ($holds:expr) => {
            if !$holds {
                pr_err!("line {}: {}\n", line!(), stringify!($holds));
                return Err(EINVAL);
            }
        };
    }

    /// Frames by the side to which they go.
    #[pin_data]
    struct Wire {
        #[pin]
        lanes: SpinLockIrq<[Deque<Frame>; 2]>,
    }

    struct End {
        wire: Arc<Wire>,
        to: usize,
    }

    impl Connection for End {
        fn room(&self) -> Option<Frame> {
            let bytes = KVec::from_elem(0, 1024, GFP_ATOMIC).ok()?;
            Some(Frame { bytes, len: 0 })
        }

        fn send(&self, frame: Frame) {
            if let Some(lane) = self.wire.lanes.lock().get_mut(self.to) {
                let _ = lane.reserve(1, GFP_ATOMIC);
                let _ = lane.push_back(frame);
            }
        }

        fn fail(&self, why: &str) {
            // No test breaks the protocol.
            pr_err!("a connection has failed: {}\n", why);
        }
    }

    struct World {
        sides: [Side; 2],
        portals: Arc<Portals<Side>>,
        access: Arc<Access>,
        wire: Arc<Wire>,
        id: Conn,
        /// Frames until the link is lost.
        left: u32,
    }

    fn terms() -> Result<Terms> {
        Ok(Terms {
            window: Window::new(4, 20_000, 10_000, 4).map_err(|_| EINVAL)?,
            limits: SendLimits {
                messages: 8,
                bytes: 100_000,
            },
            timeout_ms: 0,
            wants_paths: false,
        })
    }

    impl World {
        fn new(left: u32, queue: &Arc<Queue>) -> Result<Self> {
            let portals = Portals::new()?;
            let limits = Limits::new(1 << 40, 1 << 40)?;
            let access = Access::new()?;
            let name = Name::new(b"test")?;
            let shared = Shared {
                portals: portals.clone(),
                access: access.clone(),
                log_limits: LogLimits::new()?,
                limits,
                queue: queue.clone(),
            };
            let side = |role| Side::new(role, name, Peer::Authenticated, &shared);
            let wire = Arc::pin_init(
                pin_init!(Wire {
                    lanes <- new_spinlock_irq!([Deque::new(), Deque::new()], "Wire::lanes"),
                }),
                GFP_KERNEL,
            )?;
            let mut world = Self {
                sides: [side(Role::Client)?, side(Role::Server)?],
                portals: portals.clone(),
                access,
                wire,
                id: Conn { epoch: 0, cid: 0 },
                left,
            };
            world.connect()?;
            Ok(world)
        }

        fn connect(&mut self) -> Result {
            self.id.epoch += 1;
            for to in [0, 1] {
                let end = End {
                    wire: self.wire.clone(),
                    to,
                };
                let end: Arc<dyn Connection> = Arc::new(end, GFP_KERNEL)?;
                self.sides[1 - to].connected(self.id, end, 8)?;
            }
            Ok(())
        }

        /// Delivers frames until there are none. The link is lost once, with all that are on their way.
        fn run(&mut self) -> Result {
            loop {
                let mut is_idle = true;
                for to in [0, 1] {
                    let frame = self.wire.lanes.lock()[to].pop_front();
                    let Some(frame) = frame else {
                        continue;
                    };
                    is_idle = false;
                    self.left = self.left.wrapping_sub(1);
                    if self.left == 0 {
                        // Which side learns first varies.
                        for side in [to, 1 - to] {
                            while self.wire.lanes.lock()[side].pop_front().is_some() {}
                            self.sides[side].lost(self.id);
                        }
                        self.connect()?;
                        break;
                    }
                    let mut done = 0;
                    let arrived =
                        self.sides[to].arrived(self.id, &frame.bytes[..frame.len], &mut done);
                    ensure!(arrived == Arrived::Done);
                }
                if is_idle {
                    return Ok(());
                }
            }
        }

        fn reserve(&mut self, side: usize, header: &Header) -> Result<crate::channel::Reserved> {
            match self.sides[side].reserve_message(1, header, Caller::Reader) {
                Err(ENOMEM) => {
                    self.sides[side].grow(1)?;
                    self.sides[side].reserve_message(1, header, Caller::Reader)
                }
                reserved => reserved,
            }
        }

        fn send(&mut self, side: usize, kind: Kind, id: u64, tag: u64, len: usize) -> Result {
            let header = Header {
                // CAST: Small.
                len: len as u32,
                flags: if kind == Kind::Msg { F_RECEIPT } else { 0 },
                id,
                tag,
                ..Header::new(kind)
            };
            let reserved = self.reserve(side, &header)?;
            let content = KVec::from_elem(tag as u8, len, GFP_KERNEL)?;
            let body = Body::piece(&content, GFP_KERNEL)?;
            self.sides[side].send(1, reserved, body, KBox::new_uninit(GFP_KERNEL)?)
        }

        fn take(&mut self, side: usize) -> Option<(Header, bool)> {
            let Take::Item(taken) = self.sides[side].take(1, 1 << 20) else {
                return None;
            };
            let header = taken.header();
            let mut content = KVec::from_elem(0, header.len as usize, GFP_KERNEL).ok()?;
            let is_whole = taken
                .body()
                .is_none_or(|body| body.copy_out(0, &mut content));
            let is_right = matches!(taken, Taken::Event(..))
                || content.iter().all(|byte| *byte == header.tag as u8);
            self.sides[side].took(1, taken);
            Some((header, is_whole && is_right))
        }

        fn len(&self, side: usize) -> usize {
            self.sides[side].0.state.lock().len
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            for side in &self.sides {
                side.lost(self.id);
                side.close();
            }
        }
    }

    /// The whole life of a channel: returns how many frames it took.
    fn life(left: u32, queue: &Arc<Queue>) -> Result<u32> {
        let mut world = World::new(left, queue)?;
        let (name, uid) = (Name::new(b"kv")?, 0);
        let charge = world.sides[0].0.limits.charge_portal(uid, 0)?;
        let portal = world.portals.bind(name, terms()?, uid, 4, false, charge)?;
        let (id, _) =
            world.sides[0].open(uid, &[None, None], name, terms()?, KVec::new(), false)?;
        ensure!(id == 1);
        world.run()?;
        let seen = portal.read(100, Reader::current()).ok_or(ENOENT)??;
        let offer = portal.remove(seen.id).ok_or(ENOENT)?;
        ensure!(offer.from == world.sides[1] && offer.channel == 1);
        ensure!(world.sides[1].accept(1, KVec::new(), Calls::slots(4)?));
        world.run()?;
        ensure!(world.sides[0]
            .answer(1)
            .is_some_and(|answer| answer.refused.is_none()));
        // More than a window, in one piece and in many.
        let mut next = [0, 0];
        for tag in 0..9 {
            let len = [0, 100, 1500, 3000][tag as usize % 4];
            for side in [0, 1] {
                world.send(side, Kind::Msg, 0, tag, len)?;
            }
            if tag % 3 == 2 {
                world.run()?;
                for side in [0, 1] {
                    while let Some((header, is_right)) = world.take(side) {
                        world.run()?;
                        ensure!(is_right);
                        if header.kind == Kind::Msg {
                            ensure!(header.tag == next[side]);
                            next[side] += 1;
                        } else {
                            ensure!(header.kind == Kind::Receipt && header.status == 0);
                        }
                    }
                }
            }
        }
        ensure!(next == [9, 9]);
        // A call is executed once.
        world.send(0, Kind::Request, 0, 77, 10)?;
        world.run()?;
        let (request, _) = world.take(1).ok_or(ENOENT)?;
        ensure!(request.kind == Kind::Request && request.tag == 77);
        world.send(1, Kind::Reply, request.id, 0, 0)?;
        ensure!(world.send(1, Kind::Reply, request.id, 0, 0) == Err(ENOENT));
        world.run()?;
        let reply = world.take(0).map(|(header, _)| (header.kind, header.tag));
        ensure!(reply == Some((Kind::Reply, 77)));
        ensure!(world.take(0).is_none() && world.take(1).is_none());
        // One end closes with a message on its way.
        world.send(0, Kind::Msg, 0, 5, 5)?;
        world.sides[0].release(1);
        world.run()?;
        ensure!(world.take(1).map(|(header, _)| header.tag) == Some(5));
        let (closed, _) = world.take(1).ok_or(ENOENT)?;
        ensure!(closed.event == Some(Event::Closed) && closed.status == 0 && closed.tag == 10);
        ensure!(matches!(world.sides[1].take(1, HEADER_LEN), Take::End));
        world.sides[1].release(1);
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (0, 0));
        world.portals.unbind(&portal);
        Ok(u32::MAX - world.left)
    }

    /// A world with a channel that is open.
    fn opened(queue: &Arc<Queue>) -> Result<(World, Arc<crate::portal::Portal<Side>>)> {
        let mut world = World::new(0, queue)?;
        let (name, uid) = (Name::new(b"kv")?, 0);
        let charge = world.sides[0].0.limits.charge_portal(uid, 0)?;
        let portal = world.portals.bind(name, terms()?, uid, 4, false, charge)?;
        world.sides[0].open(uid, &[None, None], name, terms()?, KVec::new(), false)?;
        world.run()?;
        let seen = portal.read(100, Reader::current());
        let offer = portal.remove(seen.ok_or(ENOENT)??.id).ok_or(ENOENT)?;
        ensure!(offer.from.accept(1, KVec::new(), Calls::slots(4)?));
        world.run()?;
        Ok((world, portal))
    }

    /// The operator revokes a host while a message of its is being copied to a program, others wait, and messages
    /// for it have no credits.
    fn revoked(queue: &Arc<Queue>) -> Result {
        let (mut world, portal) = opened(queue)?;
        for tag in [7, 8] {
            world.send(0, Kind::Request, 0, tag, 10)?;
        }
        // The window has four.
        for tag in 0..6 {
            world.send(1, Kind::Msg, 0, tag, 10)?;
        }
        world.run()?;
        let mut said = [0; 6];
        for _ in 0..4 {
            let (header, _) = world.take(1).ok_or(ENOENT)?;
            ensure!(header.kind == Kind::Receipt);
            said[header.tag as usize] = i32::from(header.status);
        }
        let Take::Item(taken) = world.sides[1].take(1, 1 << 20) else {
            return Err(ENOENT);
        };
        let name = portal.name;
        world.access.add(crate::access::Kind::Portal, name)?;
        // The rule admits hosts that have proved a key.
        world.sides[1].recheck(&name);
        ensure!(world.sides[1].info(1).is_some_and(|info| info.state == 2));
        let nobody = crate::access::List::new(core::iter::empty()).map_err(|_| ENOMEM)?;
        let former = world
            .access
            .with_portal(&name, |rule| core::mem::replace(&mut rule.hosts, nobody))?;
        drop(former);
        world.sides[1].recheck(&name);
        // The server's program learns at once what it can: four were queued, two were never sent.
        for _ in 0..2 {
            let (header, _) = world.take(1).ok_or(ENOENT)?;
            ensure!(header.kind == Kind::Receipt);
            said[header.tag as usize] = i32::from(header.status);
        }
        let canceled = Errno::ECANCELED.get();
        ensure!(said == [0, 0, 0, 0, canceled, canceled]);
        let (closed, _) = world.take(1).ok_or(ENOENT)?;
        ensure!(closed.event == Some(Event::Closed));
        ensure!(i32::from(closed.status) == Errno::EACCES.get());
        ensure!(matches!(world.sides[1].take(1, HEADER_LEN), Take::End));
        world.sides[1].took(1, taken);
        world.run()?;
        // The request that was being copied was delivered, the other one was not.
        let mut ends = [0; 2];
        for _ in 0..2 {
            let (reply, _) = world.take(0).ok_or(ENOENT)?;
            ensure!(reply.kind == Kind::Reply);
            ends[reply.tag as usize - 7] = i32::from(reply.status);
        }
        ensure!(ends == [Errno::ECONNRESET.get(), canceled]);
        for tag in 0..4 {
            let read = world.take(0).map(|(header, _)| (header.kind, header.tag));
            ensure!(read == Some((Kind::Msg, tag)));
        }
        let (closed, _) = world.take(0).ok_or(ENOENT)?;
        ensure!(closed.event == Some(Event::Closed) && closed.tag == 1);
        ensure!(i32::from(closed.status) == Errno::EACCES.get());
        for side in [0, 1] {
            world.sides[side].release(1);
            world.run()?;
        }
        ensure!((world.len(0), world.len(1)) == (0, 0));
        world.portals.unbind(&portal);
        Ok(())
    }

    #[test]
    fn a_host_that_is_revoked() -> Result {
        revoked(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    /// The session is closed on purpose: what is there can still be read, and counts as read.
    fn finished(queue: &Arc<Queue>) -> Result {
        let (mut world, portal) = opened(queue)?;
        for tag in 0..3 {
            world.send(0, Kind::Msg, 0, tag, 10)?;
            world.send(1, Kind::Msg, 0, tag, 10)?;
        }
        world.run()?;
        world.sides[0].finish(0);
        ensure!(world.send(0, Kind::Msg, 0, 3, 10) == Err(EPIPE));
        let again =
            world.sides[0].open(0, &[None, None], portal.name, terms()?, KVec::new(), false);
        ensure!(again.is_err_and(|error| error == ENODEV));
        world.run()?;
        for side in [0, 1] {
            let (mut receipts, mut messages) = (0, 0);
            let closed = loop {
                let (header, is_right) = world.take(side).ok_or(ENOENT)?;
                ensure!(is_right);
                match header.kind {
                    Kind::Receipt if header.status == 0 => receipts += 1,
                    Kind::Msg if header.tag == messages => messages += 1,
                    _ => break header,
                }
            };
            ensure!((receipts, messages) == (3, 3));
            ensure!(closed.event == Some(Event::Closed));
            ensure!(i32::from(closed.status) == Errno::ESHUTDOWN.get());
            // Whatever the client has counts as read.
            ensure!(side == 0 || closed.tag == 3);
            world.sides[side].release(1);
        }
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (0, 0));
        world.portals.unbind(&portal);
        Ok(())
    }

    #[test]
    fn a_session_that_is_closed_on_purpose() -> Result {
        finished(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    fn late_reply(queue: &Arc<Queue>) -> Result {
        let (mut world, portal) = opened(queue)?;
        let header = Header {
            // Long enough for the request to arrive.
            timeout_ms: 500,
            ..Header::new(Kind::Request)
        };
        let reserved = world.reserve(0, &header)?;
        let place = KBox::new_uninit(GFP_KERNEL)?;
        world.sides[0].send(1, reserved, Body::new(), place)?;
        world.run()?;
        let request = world.take(1).map(|(request, _)| request);
        ensure!(request.is_some());
        let id = request.map_or(0, |request| request.id);
        let mut told = None;
        for _ in 0..1000 {
            kernel::time::delay::fsleep(kernel::time::Delta::from_millis(10));
            told = told.or_else(|| world.take(0));
            if told.is_some() {
                break;
            }
        }
        ensure!(told.is_some_and(|(told, _)| told.kind == Kind::Reply && told.flags != 0));
        world.send(1, Kind::Msg, 0, 1, 1)?;
        world.run()?;
        let Take::Item(taken) = world.sides[0].take(1, 1 << 20) else {
            return Err(ENOENT);
        };
        ensure!(taken.header().kind == Kind::Msg);
        world.send(1, Kind::Reply, id, 0, 0)?;
        world.run()?;
        // It could not be copied, and the program goes.
        world.sides[0].put_back(1, taken);
        world.sides[0].release(1);
        world.run()?;
        let receipt = world.take(1).map(|(receipt, _)| receipt.kind);
        ensure!(receipt == Some(Kind::Receipt));
        let closed = world.take(1).map(|(closed, _)| (closed.event, closed.tag));
        ensure!(closed == Some((Some(Event::Closed), 0)));
        world.sides[1].release(1);
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (0, 0));
        world.portals.unbind(&portal);
        Ok(())
    }

    #[test]
    fn a_late_reply_does_not_count_a_message_that_is_being_copied() -> Result {
        late_reply(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    /// Delivers the next frame to a side without memory for messages.
    fn starve(world: &mut World, side: usize) -> Result {
        let frame = world.wire.lanes.lock()[side].pop_front();
        let frame = frame.ok_or(ENOENT)?;
        let (id, mut done) = (world.id, 0);
        let arrived = world.sides[side].starved(id, &frame.bytes[..frame.len], &mut done);
        ensure!(arrived == Arrived::Done);
        Ok(())
    }

    /// Messages of one channel have no memory; the other one goes on.
    fn hunger(queue: &Arc<Queue>) -> Result {
        let (mut world, portal) = opened(queue)?;
        let name = Name::new(b"kv")?;
        world.sides[0].open(0, &[None, None], name, terms()?, KVec::new(), false)?;
        world.run()?;
        let seen = portal.read(100, Reader::current());
        let offer = portal.remove(seen.ok_or(ENOENT)??.id).ok_or(ENOENT)?;
        ensure!(offer.from.accept(2, KVec::new(), Calls::slots(4)?));
        world.run()?;
        // In three frames, of which the second one has no memory.
        for round in 0..3 {
            world.send(0, Kind::Msg, 0, 1 + round, 2500)?;
            match round {
                1 => {
                    while !world.wire.lanes.lock()[1].is_empty() {
                        starve(&mut world, 1)?;
                    }
                }
                _ => world.run()?,
            }
        }
        // The work item may have had memory already, or not.
        ensure!(world.take(1).map(|(first, _)| first.tag) == Some(1));
        let header = Header {
            len: 3,
            ..Header::new(Kind::Msg)
        };
        world.sides[0].grow(2)?;
        let reserved = world.sides[0].reserve_message(2, &header, Caller::Reader)?;
        let body = Body::piece(b"abc", GFP_KERNEL)?;
        world.sides[0].send(2, reserved, body, KBox::new_uninit(GFP_KERNEL)?)?;
        world.sides[0].release(1);
        world.run()?;
        let Take::Item(other) = world.sides[1].take(2, 1 << 20) else {
            pr_err!("the other channel has got nothing\n");
            return Err(EINVAL);
        };
        world.sides[1].took(2, other);
        // What was dropped comes when there is memory, and the end behind it.
        let mut tags = [0; 3];
        for place in &mut tags {
            let mut next = None;
            for _ in 0..2000 {
                kernel::time::delay::fsleep(kernel::time::Delta::from_millis(1));
                world.run()?;
                next = world.take(1);
                if next.is_some() {
                    break;
                }
            }
            let (header, is_right) = next.ok_or(ETIMEDOUT)?;
            ensure!(is_right);
            *place = header.tag;
        }
        // The end says how many messages of the server were read.
        ensure!(tags == [2, 3, 0]);
        for (side, id) in [(1, 1), (0, 2), (1, 2)] {
            world.sides[side].release(id);
        }
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (0, 0));
        world.portals.unbind(&portal);
        Ok(())
    }

    #[test]
    fn a_channel_waits_for_memory_alone() -> Result {
        hunger(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    /// The server has as many channels as it may, of which the client has forgotten all.
    fn crowd(queue: &Arc<Queue>) -> Result {
        let (mut world, portal) = opened(queue)?;
        let name = Name::new(b"kv")?;
        world.sides[0].release(1);
        // CAST: Few.
        for id in 2..MAX_CHANNELS as u32 + 1 {
            world.sides[0].open(0, &[None, None], name, terms()?, KVec::new(), false)?;
            world.run()?;
            let seen = portal.read(100, Reader::current());
            let offer = portal.remove(seen.ok_or(ENOENT)??.id).ok_or(ENOENT)?;
            ensure!(offer.from.accept(id, KVec::new(), Calls::slots(4)?));
            world.run()?;
            world.sides[0].release(id);
            world.run()?;
        }
        ensure!((world.len(0), world.len(1)) == (0, MAX_CHANNELS));
        let (id, _) = world.sides[0].open(0, &[None, None], name, terms()?, KVec::new(), false)?;
        world.run()?;
        let refused = world.sides[0].answer(id).and_then(|answer| answer.refused);
        ensure!(refused == u16::try_from(ENOBUFS.to_errno().unsigned_abs()).ok());
        world.sides[0].release(id);
        world.run()?;
        ensure!(world.len(0) == 0);
        // One that ends makes room for another one.
        world.sides[1].release(5);
        let (id, _) = world.sides[0].open(0, &[None, None], name, terms()?, KVec::new(), false)?;
        world.run()?;
        ensure!(world.sides[0].answer(id).is_none());
        world.sides[0].release(id);
        // CAST: Few.
        for id in 1..MAX_CHANNELS as u32 + 1 {
            world.sides[1].release(id);
        }
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (0, 0));
        world.portals.unbind(&portal);
        Ok(())
    }

    #[test]
    fn too_many_channels_are_refused() -> Result {
        crowd(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    /// Numbers of channels begin again when all were used.
    fn numbers(queue: &Arc<Queue>) -> Result {
        let (mut world, portal) = opened(queue)?;
        world.sides[0].0.state.lock().last = u32::MAX - 1;
        let mut open = || {
            let name = Name::new(b"kv")?;
            let (id, _) =
                world.sides[0].open(0, &[None, None], name, terms()?, KVec::new(), false)?;
            world.run()?;
            Ok::<_, Error>(id)
        };
        // 1 is in use.
        ensure!(open()? == u32::MAX);
        ensure!(open()? == 2);
        // The client has forgotten 1, but the program of the server has not.
        world.sides[0].release(1);
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (2, 3));
        world.sides[0].0.state.lock().last = 0;
        let name = Name::new(b"kv")?;
        let (id, _) = world.sides[0].open(0, &[None, None], name, terms()?, KVec::new(), false)?;
        world.run()?;
        ensure!(id == 1);
        let refused = world.sides[0].answer(1).and_then(|answer| answer.refused);
        ensure!(refused == u16::try_from(EADDRNOTAVAIL.to_errno().unsigned_abs()).ok());
        // The answer has ended what the client had.
        world.sides[0].release(1);
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (2, 3));
        world.sides[1].release(1);
        world.run()?;
        let (id, _) = world.sides[0].open(0, &[None, None], name, terms()?, KVec::new(), false)?;
        world.run()?;
        ensure!(id == 3 && world.sides[0].answer(3).is_none());
        for id in [u32::MAX, 2, 3] {
            world.sides[0].release(id);
        }
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (0, 0));
        world.portals.unbind(&portal);
        Ok(())
    }

    #[test]
    fn numbers_are_used_again() -> Result {
        numbers(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    /// A program ends its side, and waits for what becomes of its message. Returns how many frames it took.
    fn end(left: u32, queue: &Arc<Queue>, side: usize) -> Result<u32> {
        let (mut world, portal) = opened(queue)?;
        world.left = left;
        world.send(side, Kind::Msg, 0, 5, 1500)?;
        world.sides[side].shut_down(1);
        world.run()?;
        let (receipt, _) = world.take(side).ok_or(ENOENT)?;
        ensure!(receipt.kind == Kind::Receipt && receipt.status == 0);
        let (closed, _) = world.take(side).ok_or(ENOENT)?;
        ensure!(closed.event == Some(Event::Closed) && closed.status == 0);
        ensure!(world.take(1 - side).map(|(header, _)| header.tag) == Some(5));
        let (closed, _) = world.take(1 - side).ok_or(ENOENT)?;
        ensure!(closed.event == Some(Event::Closed) && closed.status == 0);
        let frames = left.wrapping_sub(world.left);
        for side in &world.sides {
            side.release(1);
        }
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (0, 0));
        world.portals.unbind(&portal);
        Ok(frames)
    }

    #[test]
    fn an_end_is_not_in_doubt_when_the_link_is_lost() -> Result {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-test"))?;
        for side in [0, 1] {
            let frames = end(0, &queue, side)?;
            assert!(frames >= 3);
            for left in 1..=frames {
                end(left, &queue, side).inspect_err(|_| {
                    pr_err!("side {}: the link was lost after frame {}\n", side, left)
                })?;
            }
        }
        Ok(())
    }

    /// The client gives the number of a channel that the server still has to another one, which it withdraws as
    /// the link is lost.
    fn number_in_doubt(queue: &Arc<Queue>) -> Result {
        let (mut world, portal) = opened(queue)?;
        world.sides[0].release(1);
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (0, 1));
        world.sides[0].0.state.lock().last = 0;
        world.sides[0].open(
            0,
            &[None, None],
            Name::new(b"kv")?,
            terms()?,
            KVec::new(),
            false,
        )?;
        world.sides[0].release(1);
        for _ in 0..3 {
            for to in [0, 1] {
                while world.wire.lanes.lock()[to].pop_front().is_some() {}
                world.sides[to].lost(world.id);
            }
            world.connect()?;
        }
        world.run()?;
        ensure!((world.len(0), world.len(1)) == (0, 1));
        world.sides[1].release(1);
        world.run()?;
        ensure!(world.len(1) == 0);
        world.portals.unbind(&portal);
        Ok(())
    }

    #[test]
    fn a_number_in_doubt() -> Result {
        number_in_doubt(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn the_link_is_lost_after_each_frame() -> Result {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-test"))?;
        let frames = life(0, &queue)?;
        assert!(frames > 30);
        for left in 1..=frames {
            life(left, &queue)
                .inspect_err(|_| pr_err!("the link was lost after frame {}\n", left))?;
        }
        Ok(())
    }
}
