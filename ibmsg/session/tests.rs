// SPDX-License-Identifier: GPL-2.0

//! Tests of sessions: two sides with a link by hand, which is lost after each frame in turn.

use super::*;
use crate::{
    channel::{
        Caller,
        Calls,
        Take,
        Taken, //
    },
    limits::{
        Account,
        Accounts,
        Denied,
        NONE, //
    },
    link::Arrived,
    portal::{
        Owner,
        Reader, //
    },
    types::{
        Body,
        Event,
        Header,
        Kind,
        Terms,
        Wants,
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

const OWNER: Owner = Owner {
    uid: 0,
    takes_unauthenticated: false,
    max_channels: 0,
};

/// Outside of the function of a test, `assert!` would end the kernel.
macro_rules! ensure {
    ($holds:expr) => {
        if !$holds {
            pr_err!("line {}: {}\n", line!(), stringify!($holds));
            return Err(EINVAL);
        }
    };
}

mod bodies;
mod gather;
mod history;
mod publish;
mod spread;

/// Frames by the side to which they go.
#[pin_data]
struct Wire {
    #[pin]
    lanes: SpinLockIrq<[Deque<Frame>; 2]>,
}

impl Wire {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                lanes <- new_spinlock_irq!([Deque::new(), Deque::new()], "Wire::lanes"),
            }),
            GFP_KERNEL,
        )
    }

    fn connect(self: &Arc<Self>, sides: &[Side; 2], id: Conn) -> Result {
        for to in [0, 1] {
            let end = End {
                wire: self.clone(),
                to,
            };
            let end: Arc<dyn Connection> = Arc::new(end, GFP_KERNEL)?;
            sides[1 - to].connected(id, end, 8)?;
        }
        Ok(())
    }
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
    /// The channel in use.
    chan: u32,
}

fn terms() -> Result<Terms> {
    Ok(Terms {
        window: Window::new(4, 20_000, 10_000, 4).map_err(|_| EINVAL)?,
        limits: SendLimits {
            messages: 8,
            bytes: 100_000,
        },
        timeout_ms: 0,
        wants: Wants {
            paths: false,
            drain: true,
            key: true,
            bodies: false,
        },
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
        let wire = Wire::new()?;
        let mut world = Self {
            sides: [side(Role::Client)?, side(Role::Server)?],
            portals: portals.clone(),
            access,
            wire,
            id: Conn { epoch: 0, cid: 0 },
            left,
            chan: 1,
        };
        world.connect()?;
        Ok(world)
    }

    fn connect(&mut self) -> Result {
        self.id.epoch += 1;
        self.wire.connect(&self.sides, self.id)
    }

    /// Delivers frames until there are none. The link is lost once, with all that are on their way.
    fn run(&mut self) -> Result {
        loop {
            self.flush();
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
                let arrived = self.sides[to].arrived(self.id, &frame.bytes[..frame.len], &mut done);
                ensure!(arrived == Arrived::Done);
            }
            if is_idle {
                return Ok(());
            }
        }
    }

    /// Sends what was gathered.
    fn flush(&self) {
        for side in &self.sides {
            side.locked(|state| side.step(state, now()));
        }
    }

    fn reserve(&mut self, side: usize, header: &Header) -> Result<crate::channel::Reserved> {
        let chan = self.chan;
        match self.sides[side].reserve_message(chan, header, Caller::Reader) {
            Err(ENOMEM) => {
                self.sides[side].grow(chan)?;
                self.sides[side].reserve_message(chan, header, Caller::Reader)
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
        self.sides[side].send(self.chan, reserved, body, KBox::new_uninit(GFP_KERNEL)?)
    }

    fn take(&mut self, side: usize) -> Option<(Header, bool)> {
        let Take::Item(taken) = self.sides[side].take(self.chan, None, 1 << 20) else {
            return None;
        };
        let header = taken.header();
        let mut content = KVec::from_elem(0, header.len as usize, GFP_KERNEL).ok()?;
        let is_whole = taken
            .body()
            .is_none_or(|body| body.copy_out(0, &mut content));
        let is_right = matches!(taken, Taken::Event(..))
            || content.iter().all(|byte| *byte == header.tag as u8);
        self.sides[side].took(self.chan, taken);
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
    let portal = world.portals.bind(name, terms()?, &OWNER, 4, charge)?;
    let (id, _) = world.sides[0].open(uid, &NONE, name, terms()?, KVec::new(), false)?;
    ensure!(id == 1);
    world.run()?;
    let seen = portal.read(100, Reader::current()).ok_or(ENOENT)??;
    let offer = portal.remove(seen.id).ok_or(ENOENT)?;
    ensure!(offer.from == world.sides[1] && offer.channel == 1);
    ensure!(offer.end().accept(KVec::new(), Calls::slots(4)?, None));
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
    ensure!(matches!(
        world.sides[1].take(1, None, HEADER_LEN),
        Take::End
    ));
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
    let portal = world.portals.bind(name, terms()?, &OWNER, 4, charge)?;
    world.sides[0].open(uid, &NONE, name, terms()?, KVec::new(), false)?;
    world.run()?;
    let seen = portal.read(100, Reader::current());
    let offer = portal.remove(seen.ok_or(ENOENT)??.id).ok_or(ENOENT)?;
    ensure!(offer.end().accept(KVec::new(), Calls::slots(4)?, None));
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
    let Take::Item(taken) = world.sides[1].take(1, None, 1 << 20) else {
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
    ensure!(matches!(
        world.sides[1].take(1, None, HEADER_LEN),
        Take::End
    ));
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

/// The operator revokes a host while a program that has closed its end, or gone, still has messages for it: the client
/// does not take what has arrived for all there was.
fn revoked_late(queue: &Arc<Queue>, is_released: bool) -> Result {
    let (mut world, portal) = opened(queue)?;
    for tag in 0..6 {
        world.send(1, Kind::Msg, 0, tag, 10)?;
    }
    world.run()?;
    match is_released {
        true => world.sides[1].release(1),
        false => world.sides[1].shut_down(1),
    }
    world.run()?;
    world.access.add(crate::access::Kind::Portal, portal.name)?;
    let nobody = crate::access::List::new(core::iter::empty()).map_err(|_| ENOMEM)?;
    let former = world.access.with_portal(&portal.name, |rule| {
        core::mem::replace(&mut rule.hosts, nobody)
    })?;
    drop(former);
    world.sides[1].recheck(&portal.name);
    world.run()?;
    for side in [0, 1] {
        if side == 1 && is_released {
            break;
        }
        let mut messages = 0;
        let closed = loop {
            let (header, _) = world.take(side).ok_or(ENOENT)?;
            match header.kind {
                Kind::Msg => messages += 1,
                Kind::Receipt => {}
                _ => break header,
            }
        };
        ensure!(messages == if side == 0 { 4 } else { 0 });
        ensure!(closed.event == Some(Event::Closed));
        ensure!(i32::from(closed.status) == Errno::EACCES.get());
    }
    for side in [0, 1] {
        world.sides[side].release(1);
        world.run()?;
    }
    ensure!((world.len(0), world.len(1)) == (0, 0));
    world.portals.unbind(&portal);
    Ok(())
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
    let again = world.sides[0].open(0, &NONE, portal.name, terms()?, KVec::new(), false);
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

/// The server is about to be stopped: both programs are told, once, of the latest time.
fn announced(queue: &Arc<Queue>) -> Result {
    let (mut world, portal) = opened(queue)?;
    let told = |world: &mut World, side| {
        world
            .take(side)
            .map(|(header, _)| (header.event, header.tag))
    };
    world.sides[1].draining(0);
    world.run()?;
    ensure!(told(&mut world, 1) == Some((Some(Event::Draining), 0)));
    world.sides[1].draining(30);
    world.run()?;
    for side in [0, 1] {
        ensure!(told(&mut world, side) == Some((Some(Event::Draining), 30)));
        ensure!(world.take(side).is_none());
    }
    // The channel goes on.
    world.send(0, Kind::Msg, 0, 5, 5)?;
    world.run()?;
    ensure!(world.take(1).map(|(header, _)| header.tag) == Some(5));
    world.sides[0].release(1);
    world.sides[1].release(1);
    world.run()?;
    world.portals.unbind(&portal);
    Ok(())
}

/// The key is of no use any more: the program of that side is told when there is no connection, once until there is a
/// new one.
fn key_is_told(queue: &Arc<Queue>) -> Result {
    let (mut world, portal) = opened(queue)?;
    let told = |world: &mut World| {
        world
            .take(1)
            .map(|(header, _)| (header.event, i32::from(header.status)))
    };
    let expected = |errno: Errno| Some((Some(Event::KeyRevoked), errno.get()));
    let cut = |world: &World| world.sides.iter().for_each(|side| side.lost(world.id));
    world.sides[1].key_revoked(EKEYEXPIRED);
    world.run()?;
    // Messages still pass.
    ensure!(world.take(1).is_none());
    cut(&world);
    world.run()?;
    ensure!(told(&mut world) == expected(Errno::EKEYEXPIRED));
    ensure!(world.take(0).is_none() && world.take(1).is_none());
    for why in [EKEYEXPIRED, ENOKEY, ENOKEY] {
        world.sides[1].key_revoked(why);
        world.run()?;
    }
    ensure!(told(&mut world) == expected(Errno::ENOKEY));
    ensure!(world.take(1).is_none());
    world.connect()?;
    world.run()?;
    // A path that has come back with another key.
    world.sides[1].key_revoked(ENOKEY);
    world.connect()?;
    cut(&world);
    world.run()?;
    ensure!(world.take(1).is_none());
    world.sides[0].release(1);
    world.sides[1].release(1);
    world.run()?;
    world.portals.unbind(&portal);
    Ok(())
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
    let Take::Item(taken) = world.sides[0].take(1, None, 1 << 20) else {
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
    world.sides[0].open(0, &NONE, name, terms()?, KVec::new(), false)?;
    world.run()?;
    let seen = portal.read(100, Reader::current());
    let offer = portal.remove(seen.ok_or(ENOENT)??.id).ok_or(ENOENT)?;
    ensure!(offer.end().accept(KVec::new(), Calls::slots(4)?, None));
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
    let Take::Item(other) = world.sides[1].take(2, None, 1 << 20) else {
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

/// The work item that finds memory does not wait for I/O: lockdep reports it otherwise, as reclaim may wait for the lock.
fn thrift(queue: &Arc<Queue>) -> Result {
    let (mut world, portal) = opened(queue)?;
    // It runs here.
    world.sides[1].0.feed.disable_sync();
    world.send(0, Kind::Msg, 0, 7, 2500)?;
    world.flush();
    while !world.wire.lanes.lock()[1].is_empty() {
        starve(&mut world, 1)?;
    }
    ensure!(world.take(1).is_none());
    let lock = Arc::pin_init(kernel::new_mutex!((), "tests::thrift"), GFP_KERNEL)?;
    kx::mm::in_reclaim(|| drop(lock.lock()));
    let mut next = None;
    for _ in 0..1000 {
        let held = lock.lock();
        <Session as WorkItem<FEED>>::run(world.sides[1].0.clone());
        drop(held);
        world.run()?;
        next = world.take(1);
        if next.is_some() {
            break;
        }
        kernel::time::delay::fsleep(kernel::time::Delta::from_millis(1));
    }
    ensure!(next.map(|(message, _)| message.tag) == Some(7));
    world.portals.unbind(&portal);
    Ok(())
}

/// The server has as many channels as it may, of which the client has forgotten all.
fn crowd(queue: &Arc<Queue>) -> Result {
    let (mut world, portal) = opened(queue)?;
    let name = Name::new(b"kv")?;
    world.sides[0].release(1);
    // CAST: Few.
    for id in 2..MAX_CHANNELS as u32 + 1 {
        world.sides[0].open(0, &NONE, name, terms()?, KVec::new(), false)?;
        world.run()?;
        let seen = portal.read(100, Reader::current());
        let offer = portal.remove(seen.ok_or(ENOENT)??.id).ok_or(ENOENT)?;
        ensure!(offer.end().accept(KVec::new(), Calls::slots(4)?, None));
        world.run()?;
        world.sides[0].release(id);
        world.run()?;
    }
    ensure!((world.len(0), world.len(1)) == (0, MAX_CHANNELS));
    let (id, _) = world.sides[0].open(0, &NONE, name, terms()?, KVec::new(), false)?;
    world.run()?;
    let refused = world.sides[0].answer(id).and_then(|answer| answer.refused);
    ensure!(refused == u16::try_from(ENOBUFS.to_errno().unsigned_abs()).ok());
    world.sides[0].release(id);
    world.run()?;
    ensure!(world.len(0) == 0);
    // One that ends makes room for another one.
    world.sides[1].release(5);
    let (id, _) = world.sides[0].open(0, &NONE, name, terms()?, KVec::new(), false)?;
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

/// Opens a channel that is refused, at once or by the portal's program.
fn refused(world: &mut World, accounts: &Accounts, name: &[u8], errno: Error) -> Result {
    let name = Name::new(name)?;
    let opened = world.sides[0].open(0, accounts, name, terms()?, KVec::new(), false);
    let (id, _) = match opened {
        Err(error) => {
            ensure!(error == errno);
            return Ok(());
        }
        Ok(opened) => opened,
    };
    world.run()?;
    if world.sides[0].answer(id).is_none() {
        let portal = world.portals.find(&name).ok_or(ENOENT)?;
        let offer = portal.remove_any().ok_or(ENOENT)?;
        ensure!(offer.end().reject(errno, KVec::new()));
        ensure!(!offer.end().reject(errno, KVec::new()));
        world.run()?;
    }
    let answer = world.sides[0].answer(id).and_then(|answer| answer.refused);
    ensure!(answer == u16::try_from(errno.to_errno().unsigned_abs()).ok());
    world.sides[0].release(id);
    world.run()
}

/// Channels that are refused count at the portal, for the host, and for the session of the client.
fn counted(queue: &Arc<Queue>) -> Result {
    let (mut world, portal) = opened(queue)?;
    let own = Account::new()?;
    let accounts = [Some((own.clone(), Denied::Session)), None, None];
    let of = |kind, name: &[u8]| world.access.add(kind, Name::new(name)?);
    let rule = of(crate::access::Kind::Portal, b"kv")?;
    let host = of(crate::access::Kind::Host, b"test")?;
    refused(&mut world, &accounts, b"nobody", ENOENT)?;
    refused(&mut world, &accounts, b"kv", EPERM)?;
    rule.change(|account| account.max_bytes = 1);
    refused(&mut world, &accounts, b"kv", EDQUOT)?;
    rule.change(|account| account.max_bytes = 0);
    let nobody = crate::access::List::new(core::iter::empty()).map_err(|_| ENOMEM)?;
    let (access, name) = (world.access.clone(), portal.name);
    let swap = |hosts| access.with_portal(&name, |rule| core::mem::replace(&mut rule.hosts, hosts));
    let any = swap(nobody)?;
    refused(&mut world, &accounts, b"kv", EACCES)?;
    drop(swap(any)?);
    // It takes four offers; the ends of those are not told.
    for _ in 0..4 {
        world.sides[0].open(0, &NONE, name, terms()?, KVec::new(), false)?;
    }
    world.run()?;
    refused(&mut world, &accounts, b"kv", EAGAIN)?;
    // The limit of the client's own session.
    own.change(|account| account.max_bytes = 1);
    refused(&mut world, &accounts, b"kv", EDQUOT)?;
    let counts = |account: &Account| {
        use ibmsg_proto::refused::reasons::*;
        let refused = *account.get().refused();
        [RULE, LIMIT, BACKLOG, UNBOUND, MEMORY, PROGRAM].map(|reason| refused.get(reason))
    };
    ensure!(counts(&rule) == [1, 1, 1, 0, 0, 1]);
    ensure!(counts(&portal.account) == [1, 1, 1, 0, 0, 1]);
    ensure!(counts(&host) == [1, 1, 1, 1, 0, 1]);
    ensure!(counts(&own) == [1, 2, 1, 1, 0, 1]);
    // Offers at a portal that is closed.
    world.portals.unbind(&portal);
    while let Some(offer) = portal.remove_any() {
        offer.end().unbound();
    }
    world.run()?;
    ensure!(counts(&host) == [1, 1, 1, 5, 0, 1]);
    Ok(())
}

/// Numbers of channels begin again when all were used.
fn numbers(queue: &Arc<Queue>) -> Result {
    let (mut world, portal) = opened(queue)?;
    world.sides[0].0.state.lock().last = u32::MAX - 1;
    let mut open = || {
        let name = Name::new(b"kv")?;
        let (id, _) = world.sides[0].open(0, &NONE, name, terms()?, KVec::new(), false)?;
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
    let (id, _) = world.sides[0].open(0, &NONE, name, terms()?, KVec::new(), false)?;
    world.run()?;
    ensure!(id == 1);
    let refused = world.sides[0].answer(1).and_then(|answer| answer.refused);
    ensure!(refused == u16::try_from(EADDRNOTAVAIL.to_errno().unsigned_abs()).ok());
    // Both ends tell their operators the same.
    let cause = crate::history::Cause::Refused(Errno::EADDRNOTAVAIL, "");
    for side in &world.sides {
        let mut entries = KVVec::with_capacity(crate::history::OfChannels::MAX, GFP_KERNEL)?;
        side.history().copy(&mut entries);
        ensure!(entries.iter().any(|entry| entry.event.cause == cause));
    }
    // The answer has ended what the client had.
    world.sides[0].release(1);
    world.run()?;
    ensure!((world.len(0), world.len(1)) == (2, 3));
    world.sides[1].release(1);
    world.run()?;
    let (id, _) = world.sides[0].open(0, &NONE, name, terms()?, KVec::new(), false)?;
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

/// The client gives the number of a channel that the server still has to another one, which it withdraws as
/// the link is lost.
fn number_in_doubt(queue: &Arc<Queue>) -> Result {
    let (mut world, portal) = opened(queue)?;
    world.sides[0].release(1);
    world.run()?;
    ensure!((world.len(0), world.len(1)) == (0, 1));
    world.sides[0].0.state.lock().last = 0;
    world.sides[0].open(0, &NONE, Name::new(b"kv")?, terms()?, KVec::new(), false)?;
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

/// The owner of a portal has an offer, but has not answered it. The client withdraws it, and offers another channel
/// with the same number to another portal.
fn number_of_another(queue: &Arc<Queue>) -> Result {
    let mut world = World::new(0, queue)?;
    let names = [Name::new(b"kv")?, Name::new(b"kv2")?];
    let mut offers = KVec::new();
    let mut portals = KVec::new();
    for name in names {
        let charge = world.sides[0].0.limits.charge_portal(0, 0)?;
        let portal = world.portals.bind(name, terms()?, &OWNER, 4, charge)?;
        world.sides[0].0.state.lock().last = 0;
        world.sides[0].open(0, &NONE, name, terms()?, KVec::new(), false)?;
        world.run()?;
        offers.push(portal.remove_any().ok_or(ENOENT)?, GFP_KERNEL)?;
        portals.push(portal, GFP_KERNEL)?;
        if name == names[0] {
            world.sides[0].release(1);
            world.run()?;
            ensure!((world.len(0), world.len(1)) == (0, 0));
        }
    }
    let [former, offer] = offers.as_slice() else {
        return Err(EINVAL);
    };
    ensure!((former.channel, offer.channel) == (1, 1));
    ensure!(!former.end().accept(KVec::new(), Calls::slots(4)?, None));
    ensure!(!former.end().reject(EPERM, KVec::new()));
    former.end().release();
    world.run()?;
    ensure!(world.sides[0].answer(1).is_none());
    ensure!(offer.end().accept(KVec::new(), Calls::slots(4)?, None));
    former.end().release();
    world.run()?;
    let answer = world.sides[0].answer(1).ok_or(ENOENT)?;
    ensure!(answer.refused.is_none());
    world.send(0, Kind::Msg, 0, 5, 5)?;
    world.run()?;
    ensure!(world.take(1).map(|(header, _)| header.tag) == Some(5));
    for side in [0, 1] {
        world.sides[side].release(1);
    }
    world.run()?;
    ensure!((world.len(0), world.len(1)) == (0, 0));
    for portal in &portals {
        world.portals.unbind(portal);
    }
    Ok(())
}

#[kernel::macros::kunit_tests(ibmsg_session)]
mod suite {
    use super::*;

    #[test]
    fn a_host_that_is_revoked() -> Result {
        revoked(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn a_host_that_is_revoked_after_the_end() -> Result {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-test"))?;
        revoked_late(&queue, false)?;
        revoked_late(&queue, true)
    }

    #[test]
    fn a_session_that_is_closed_on_purpose() -> Result {
        finished(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn a_planned_stop_is_announced() -> Result {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-drain"))?;
        announced(&queue)
    }

    #[test]
    fn a_key_of_no_use_is_told() -> Result {
        key_is_told(&Queue::new(Options::unbound(), fmt!("ibmsg-key"))?)
    }

    #[test]
    fn a_late_reply_does_not_count_a_message_that_is_being_copied() -> Result {
        late_reply(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn a_channel_waits_for_memory_alone() -> Result {
        hunger(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn memory_is_found_without_io() -> Result {
        thrift(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn refused_channels_are_counted() -> Result {
        counted(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn too_many_channels_are_refused() -> Result {
        crowd(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn numbers_are_used_again() -> Result {
        numbers(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
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

    #[test]
    fn channels_are_spread_over_connections() -> Result {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-spread"))?;
        super::spread::spread(&queue)
    }

    #[test]
    fn a_new_connection_has_to_settle() -> Result {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-settle"))?;
        super::spread::settles(&queue)
    }

    #[test]
    fn channels_that_have_left_do_not_fill_a_list() -> Result {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-ready"))?;
        super::spread::left_behind(&queue)
    }

    #[test]
    fn a_message_does_not_wait_longer_than_its_time() -> Result {
        super::gather::late(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn subscribers_have_all_although_the_link_is_lost() -> Result {
        super::publish::lives(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn subscribers_that_go_hold_nobody_up() -> Result {
        super::publish::leaves(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn subscriptions_end_when_the_publisher_exits() -> Result {
        super::publish::exits(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn what_is_wrong_of_publishing_is_refused() -> Result {
        super::publish::refuses(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn bodies_are_taken_and_released() -> Result {
        super::bodies::taken(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn a_body_without_memory_stalls_no_connection() -> Result {
        super::bodies::dropped(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn the_place_for_bodies_is_of_the_channel_that_was_offered() -> Result {
        super::bodies::renumbered(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn what_is_wrong_of_bodies_is_refused() -> Result {
        super::bodies::refused(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn the_life_of_a_channel_is_recorded() -> Result {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-history"))?;
        super::history::life(&queue, 0)?;
        super::history::life(&queue, 1)
    }

    #[test]
    fn channels_that_come_and_go_leave_what_is_important() -> Result {
        let queue = Queue::new(Options::unbound(), fmt!("ibmsg-history"))?;
        super::history::flood(&queue)?;
        super::history::portals(&queue)
    }

    #[test]
    fn a_number_in_doubt() -> Result {
        number_in_doubt(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
    }

    #[test]
    fn an_offer_that_was_withdrawn_is_not_another_one() -> Result {
        number_of_another(&Queue::new(Options::unbound(), fmt!("ibmsg-test"))?)
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
