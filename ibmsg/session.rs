// SPDX-License-Identifier: GPL-2.0

//! One side of a session: its channels, and the connections that carry their records.
//!
//! A session outlives its connections, and ends only when the kernel on the other side no longer has it.
//! Everything is under one lock, which may be taken in any context, for the time of one frame.
//!
//! | Module | Contents |
//! |---|---|
//! | [`program`] | what programs do |
//! | [`transmit`] | fills frames |
//! | [`arrive`] | looks at frames that have arrived |
//! | [`moves`] | connections come and go |
//!
//! A channel that has something to send is in the list of its connection. The first one in the list fills
//! frames until its quantum is used up, and goes to the end ([`ibmsg_proto::fair`]): so a channel waits for
//! one quantum of each other one, and a program that does not read holds up its own channel only.

mod arrive;
mod moves;
mod program;
mod transmit;

use ibmsg_proto::{
    channel::Conn,
    link::Link,
    wire::ResumeEntry, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    rbtree::RBTree,
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

use crate::{
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
const MAX_CHANNELS: usize = 65_536;
/// For how long to wait for memory, in microseconds.
const PAUSE_US: u64 = 10_000;

/// Which side this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// It opens channels, and moves them.
    Client,
    /// It has portals.
    Server,
}

/// A connection.
struct ConnState {
    id: Conn,
    out: Arc<dyn Connection>,
    /// Credits in frames.
    flow: Link,
    /// Channels with something to send.
    ready: Deque<u32>,
    /// A frame that was begun and had nothing in it.
    spare: Option<Frame>,
    /// LIVE is to be sent before anything else; whether with `ends`.
    live: Option<bool>,
    /// It was given up.
    has_failed: bool,
}

pub(crate) struct State {
    conns: KVec<ConnState>,
    /// Boxed, as nodes of the tree move when they are inserted.
    chans: RBTree<u32, KBox<Chan>>,
    len: usize,
    /// The number of the last channel that was opened here.
    last: u32,
    /// Channels that wait for a time.
    timed: Deque<u32>,
    /// When the timer runs.
    timer_at: Option<u64>,
    /// Answers to RESUME for channels that do not exist.
    unknown: KVec<(Conn, ResumeEntry)>,
    /// LIVE with `ends` is to be sent when all channels have moved.
    live_due: bool,
    newest: u32,
    is_over: bool,
}

/// A side of a session.
#[pin_data]
pub(crate) struct Session {
    role: Role,
    name: Name,
    portals: Arc<Portals<Side>>,
    limits: Arc<Limits>,
    #[pin]
    state: SpinLockIrq<State>,
    #[pin]
    timer: DelayedWork<Self>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Session { self.timer }
}

impl WorkItem for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        Side(this).timer();
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
    pub(crate) fn new(
        role: Role,
        name: Name,
        portals: Arc<Portals<Side>>,
        limits: Arc<Limits>,
        queue: Arc<Queue>,
    ) -> Result<Self> {
        let state = State {
            conns: KVec::new(),
            chans: RBTree::new(),
            len: 0,
            last: 0,
            timed: Deque::new(),
            timer_at: None,
            unknown: KVec::new(),
            live_due: false,
            newest: 0,
            is_over: false,
        };
        Ok(Self(Arc::pin_init(
            pin_init!(Session {
                role,
                name,
                portals,
                limits,
                state <- new_spinlock_irq!(state, "Session::state"),
                timer <- kx::new_delayed_work!(queue, "Session::timer"),
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

    /// Ends the session. Its channels have no programs any more, or learn that the other side is gone.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(crate) fn close(&self) {
        let mut state = self.0.state.lock();
        state.is_over = true;
        let mut cursor = state.chans.cursor_front_mut();
        while let Some(mut at) = cursor {
            let (_, chan) = at.current_mut();
            chan.abandon(ibmsg_proto::outcome::Cause::PeerLost);
            cursor = at.move_next();
        }
        drop(state);
        self.0.timer.disable_sync();
        // One by one, as they are many.
        loop {
            let mut state = self.0.state.lock();
            let first = state.chans.keys().next().copied();
            let chan = first.and_then(|id| state.chans.remove(&id));
            drop(state);
            if chan.is_none() {
                break;
            }
        }
    }

    /// Times are over.
    fn timer(&self) {
        let mut state = self.0.state.lock();
        state.timer_at = None;
        let now = now();
        for _ in 0..state.timed.len() {
            let Some(id) = state.timed.pop_front() else {
                break;
            };
            if let Some(chan) = state.chans.get_mut(&id) {
                chan.is_timed = false;
            }
            self.attend(&mut state, id, now);
        }
        self.transmit(&mut state, now);
    }

    /// Looks after a channel that has changed: puts it into the list of its connection, or of those that
    /// wait for a time, or forgets it.
    fn attend(&self, state: &mut State, id: u32, now: u64) {
        let Some(chan) = state.chans.get_mut(&id) else {
            return;
        };
        if chan.is_done() {
            let chan = state.chans.remove(&id);
            state.len = state.len.saturating_sub(usize::from(chan.is_some()));
            return;
        }
        let deadline = chan.expire(now);
        if chan.has_work(now) && !chan.is_ready {
            let conn = state
                .conns
                .iter_mut()
                .find(|conn| chan.proto.takes_from(conn.id));
            if let Some(conn) = conn {
                // There is a place for every channel.
                chan.is_ready = conn.ready.push_back(id).is_ok();
            }
        }
        let due = match chan.due(now) {
            ibmsg_proto::receive::Due::At(at) => Some(at),
            _ => None,
        };
        if let Some(at) = earlier(deadline, due) {
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
    fn reserve(state: &mut State) -> Result {
        if state.len >= MAX_CHANNELS {
            return Err(ENOBUFS);
        }
        // A list may still have channels that have gone; all that there are may be added to those.
        let more = state.len + 1;
        let flags = GFP_ATOMIC | __GFP_NOWARN;
        state.timed.reserve(more, flags)?;
        for conn in &mut state.conns {
            conn.ready.reserve(more, flags)?;
        }
        Ok(())
    }

    /// Adds a channel, after [`Side::reserve`].
    fn insert(state: &mut State, chan: Chan) -> Result {
        let flags = GFP_ATOMIC | __GFP_NOWARN;
        let id = chan.proto.id();
        let chan = KBox::new(chan, flags)?;
        let former = state.chans.try_create_and_insert(id, chan, flags)?;
        state.len += usize::from(former.is_none());
        Ok(())
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibmsg_session)]
mod tests {
    //! Two sides with a link by hand, which is lost after each frame in turn.

    use super::*;
    use crate::{
        channel::{
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

        fn fail(&self) {
            // No test breaks the protocol.
            pr_err!("a connection has failed\n");
        }
    }

    struct World {
        sides: [Side; 2],
        portals: Arc<Portals<Side>>,
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
            let name = Name::new(b"test")?;
            let side = |role| Side::new(role, name, portals.clone(), limits.clone(), queue.clone());
            let wire = Arc::pin_init(
                pin_init!(Wire {
                    lanes <- new_spinlock_irq!([Deque::new(), Deque::new()], "Wire::lanes"),
                }),
                GFP_KERNEL,
            )?;
            let mut world = Self {
                sides: [side(Role::Client)?, side(Role::Server)?],
                portals: portals.clone(),
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

        fn send(&mut self, side: usize, kind: Kind, id: u64, tag: u64, len: usize) -> Result {
            let header = Header {
                // CAST: Small.
                len: len as u32,
                flags: if kind == Kind::Msg { F_RECEIPT } else { 0 },
                id,
                tag,
                ..Header::new(kind)
            };
            let reserved = self.sides[side].reserve_message(1, &header)?;
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
        let charge = world.sides[0].0.limits.charge(uid, 0)?;
        let portal = world.portals.bind(name, terms()?, uid, 4, charge)?;
        let (id, _) = world.sides[0].open(uid, name, terms()?, KVec::new(), false)?;
        ensure!(id == 1);
        world.run()?;
        let seen = portal
            .read(100, Reader::current(), Side::name)
            .ok_or(ENOENT)??;
        let offer = portal.remove(seen.id).ok_or(ENOENT)?;
        ensure!(offer.from == world.sides[1] && offer.channel == 1);
        ensure!(world.sides[1].accept(1, KVec::new()));
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
        let charge = world.sides[0].0.limits.charge(uid, 0)?;
        let portal = world.portals.bind(name, terms()?, uid, 4, charge)?;
        world.sides[0].open(uid, name, terms()?, KVec::new(), false)?;
        world.run()?;
        let seen = portal.read(100, Reader::current(), Side::name);
        let offer = portal.remove(seen.ok_or(ENOENT)??.id).ok_or(ENOENT)?;
        ensure!(offer.from.accept(1, KVec::new()));
        world.run()?;
        Ok((world, portal))
    }

    #[test]
    fn a_late_reply_does_not_count_a_message_that_is_being_copied() -> Result {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-test"))?;
        let (mut world, portal) = opened(&queue)?;
        let header = Header {
            timeout_ms: 1,
            ..Header::new(Kind::Request)
        };
        let reserved = world.sides[0].reserve_message(1, &header)?;
        let place = KBox::new_uninit(GFP_KERNEL)?;
        world.sides[0].send(1, reserved, Body::new(), place)?;
        world.run()?;
        let (request, _) = world.take(1).ok_or(ENOENT)?;
        kernel::time::delay::fsleep(kernel::time::Delta::from_millis(50));
        let (told, _) = world.take(0).ok_or(ENOENT)?;
        assert!(told.kind == Kind::Reply && told.flags != 0);
        world.send(1, Kind::Msg, 0, 1, 1)?;
        world.run()?;
        let Take::Item(taken) = world.sides[0].take(1, 1 << 20) else {
            return Err(ENOENT);
        };
        world.send(1, Kind::Reply, request.id, 0, 0)?;
        world.run()?;
        // It could not be copied, and the program goes.
        world.sides[0].put_back(1, taken);
        world.sides[0].release(1);
        world.run()?;
        let (receipt, _) = world.take(1).ok_or(ENOENT)?;
        assert!(receipt.kind == Kind::Receipt && receipt.status == 0);
        let (closed, _) = world.take(1).ok_or(ENOENT)?;
        assert_eq!((closed.event, closed.tag), (Some(Event::Closed), 0));
        world.sides[1].release(1);
        world.run()?;
        world.portals.unbind(&portal);
        Ok(())
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
