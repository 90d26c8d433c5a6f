// SPDX-License-Identifier: GPL-2.0

//! The server: carries out its decisions for one session, its paths and the disk.

use std::cell::Cell;
use std::collections::VecDeque;

use ibtrs_proto::chunk_owner::{ChunkOwner, PathId};
use ibtrs_proto::consts::ZOMBIE_TIMEOUT_MS;
use ibtrs_proto::fsm::server_path::{self, Action, Event, State};
use ibtrs_proto::hb::{HbAction, Heartbeat};
use ibtrs_proto::imm::{Fence, Imm};
use ibtrs_proto::join::{decide, Attempt, Decision, Known};
use ibtrs_proto::serving::{self, Claim, Left, Next, Place, Restored, Words};
use ibtrs_proto::tag::Tag;

use crate::net::{Io, Msg, Side, CM, CONS};
use crate::schedule::{Kind, Mode, Time, MS, TAGS};
use crate::world::{Bug, Ev, Violation, World};

#[derive(Debug)]
struct Path {
    attempt: u32,
    path: u8,
    id: PathId,
    state: State,
    hb: Heartbeat,
    /// When the set-up takes too long.
    stale_at: Option<Time>,
    cons: u8,
    /// The drain is over, but requests may still be executed.
    drain_over: bool,
    /// Requests that arrived and were not parsed yet.
    arrived: u32,
    /// Requests that are on the disk or waiting.
    inflight: u32,
    slots: [Slot; TAGS],
}

/// A request that has arrived, and when.
type Arrived = (Io, u32);

/// The place of a path for its request with a number. Clients of the simulator ask for no
/// invalidation of keys.
#[derive(Debug, Default)]
struct Slot {
    waiting: Cell<Option<Arrived>>,
}

impl Place for Slot {
    type Request = Arrived;

    fn put_waiting(&self, request: Arrived) -> Result<(), Arrived> {
        if self.has_waiting() {
            return Err(request);
        }
        self.waiting.set(Some(request));
        Ok(())
    }

    fn take_waiting(&self) -> Option<Arrived> {
        self.waiting.take()
    }

    fn has_waiting(&self) -> bool {
        self.waiting.get().is_some()
    }

    fn put_pending(&self, request: Arrived) -> Result<(), Arrived> {
        Err(request)
    }

    fn take_pending(&self) -> Option<Arrived> {
        None
    }
}

/// The words of a session.
#[derive(Debug)]
struct Owners([Cell<ChunkOwner>; TAGS]);

impl Owners {
    fn new() -> Self {
        Self([const { Cell::new(ChunkOwner::FREE) }; TAGS])
    }

    /// A number that is not free.
    fn used(&self) -> Option<u8> {
        let used = |word: &Cell<ChunkOwner>| word.get() != ChunkOwner::FREE;
        self.0.iter().position(used).map(|tag| tag as u8)
    }
}

impl Words for Owners {
    fn load(&self, tag: Tag) -> Option<ChunkOwner> {
        self.0.get(usize::from(tag)).map(Cell::get)
    }

    fn replace(&self, tag: Tag, old: ChunkOwner, new: ChunkOwner) -> bool {
        let word = &self.0[usize::from(tag)];
        word.get() == old && word.replace(new) == old
    }
}

/// Something that the disk does.
#[derive(Clone, Copy, Debug)]
struct Request {
    attempt: u32,
    io: Io,
    arrival: u32,
    /// The value that a read has read.
    value: u32,
    busy: bool,
    /// Which use of the place this is.
    id: u32,
}

/// The server.
#[derive(Debug)]
pub(crate) struct Server {
    up: bool,
    boot: u32,
    gen: u32,
    session: bool,
    paths: Vec<Path>,
    owners: Owners,
    /// Requests that waited, and have their number now, until the worker serves them.
    woken: VecDeque<(PathId, u8)>,
    /// The fence to answer when it is complete, by the attempt that carried it.
    fences: Vec<(u32, Fence)>,
    requests: Vec<Request>,
    arrivals: u32,
    next_op: u32,
    pub waited: u32,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self {
            up: true,
            boot: 1,
            gen: 0,
            session: false,
            paths: Vec::new(),
            owners: Owners::new(),
            woken: VecDeque::new(),
            fences: Vec::new(),
            requests: Vec::new(),
            arrivals: 0,
            next_op: 0,
            waited: 0,
        }
    }

    pub(crate) fn start(&mut self) {
        // Several crashes may overlap.
        if !self.up {
            self.up = true;
            self.boot += 1;
            self.gen = 0;
        }
    }

    fn find(&self, attempt: u32) -> Option<usize> {
        self.paths.iter().position(|p| p.attempt == attempt)
    }

    fn device(&self) -> u32 {
        self.boot << 16 | self.gen
    }

    fn free_id(&self) -> PathId {
        let used = |n: u16| self.paths.iter().any(|p| p.id.get() == n);
        let n = (1..).find(|n| !used(*n)).unwrap_or(1);
        PathId::new(n).expect("not 0")
    }
}

impl World<'_> {
    fn with_ext(&self) -> bool {
        self.sch.mode == Mode::Ext
    }

    pub(crate) fn server_receives(&mut self, attempt: u32, cid: u8, msg: Msg) {
        if let Msg::ConnReq { cid, first } = msg {
            return self.conn_req(attempt, cid, first);
        }
        let Some(i) = self.server.find(attempt) else {
            return self.nobody(Side::Server, attempt, cid);
        };
        let dead = !self.links[attempt as usize].alive[Side::Server as usize];
        if msg == Msg::Dreq {
            return self.server_event(attempt, Event::Error);
        }
        if dead {
            return self.nobody(Side::Server, attempt, cid);
        }
        let p = &mut self.server.paths[i];
        p.hb.received();
        match msg {
            Msg::InfoReq => {
                let complete = p.cons == (1 << CONS) - 1;
                self.server_event(attempt, Event::Info { complete });
            }
            Msg::Io(io) if p.state == State::Connected => {
                p.arrived += 1;
                let path = p.path;
                let which = u64::from(attempt) << 32 | u64::from(io.req);
                let lag = self.lag(Side::Server, path, self.chance(20, which)) / 8;
                self.at(self.now + lag, Ev::Accept { attempt, io });
            }
            Msg::Imm(raw) => match Imm::decode(raw) {
                Imm::Heartbeat => {
                    let ack = Imm::HeartbeatAck.encode();
                    self.send(Side::Server, attempt, 0, Msg::Imm(ack));
                }
                Imm::HeartbeatAck => {
                    p.hb.ack(self.now);
                }
                Imm::Fence(fence) => self.fence(attempt, cid, fence),
                _ => self.violate(Violation::Stray),
            },
            _ => self.violate(Violation::Stray),
        }
    }

    fn conn_req(&mut self, attempt: u32, cid: u8, first: bool) {
        if !self.server.up {
            return;
        }
        let path = self.links[attempt as usize].path;
        let ext = self.with_ext();
        let asks = |attempt: u32| Attempt {
            cid_num: CONS as u16,
            epoch: ext.then_some(attempt),
        };
        let known = self.server.paths.iter().map(|p| {
            let known = Known {
                same_uuid: p.path == path,
                same_addrs: p.path == path,
                state: p.state,
                attempt: asks(p.attempt),
                has_cid: p.cons & 1 << cid != 0,
            };
            (p.attempt, known)
        });
        let ok = match decide(asks(attempt), known) {
            Decision::Join(other) => {
                // Without extensions it may be of an attempt that the client has superseded.
                other == attempt
            }
            // It does not know the session.
            Decision::New if !first && self.server.paths.is_empty() => false,
            Decision::New => {
                self.new_path(attempt, path);
                true
            }
            Decision::Refuse(_, superseded) => {
                if let Some(old) = superseded {
                    self.server_event(old, Event::Superseded);
                }
                false
            }
        };
        if ok {
            if let Some(i) = self.server.find(attempt) {
                let p = &mut self.server.paths[i];
                p.cons |= 1 << cid;
                let when = self.now + Time::from(ZOMBIE_TIMEOUT_MS) * MS;
                if p.stale_at.replace(when).is_none() {
                    self.at(when, Ev::Stale { attempt });
                }
            }
        }
        let (boot, gen) = if self.with_ext() {
            (self.server.boot, self.server.gen)
        } else {
            (0, 0)
        };
        let msg = Msg::ConnRsp { cid, ok, boot, gen };
        self.send(Side::Server, attempt, CM, msg);
    }

    fn new_path(&mut self, attempt: u32, path: u8) {
        if !self.server.session {
            self.server.session = true;
            self.server.gen += 1;
            self.server.owners = Owners::new();
        }
        self.links[attempt as usize].alive[Side::Server as usize] = true;
        let id = self.server.free_id();
        self.server.paths.push(Path {
            attempt,
            path,
            id,
            state: server_path::INITIAL,
            hb: Heartbeat::new(self.sch.missed),
            stale_at: None,
            cons: 0,
            drain_over: false,
            arrived: 0,
            inflight: 0,
            slots: Default::default(),
        });
    }

    pub(crate) fn stale(&mut self, attempt: u32) {
        if let Some(i) = self.server.find(attempt) {
            match self.server.paths[i].stale_at {
                Some(when) if when > self.now => self.at(when, Ev::Stale { attempt }),
                Some(_) => self.server_event(attempt, Event::Stale),
                None => {}
            }
        }
    }

    pub(crate) fn server_event(&mut self, attempt: u32, event: Event) {
        let Some(i) = self.server.find(attempt) else {
            return;
        };
        let p = &mut self.server.paths[i];
        let step = server_path::step(p.state, event);
        self.note(format_args!(
            "  server {attempt}: {event:?} -> {:?}",
            step.next
        ));
        let p = &mut self.server.paths[i];
        p.state = step.next;
        let path = p.path;
        for action in step.actions.iter() {
            match action {
                Action::CancelStale => self.server.paths[i].stale_at = None,
                Action::StartHeartbeat => {
                    self.at(self.now + self.sch.hb, Ev::ServerTick { attempt });
                }
                Action::SendInfoRsp => self.send(Side::Server, attempt, 0, Msg::InfoRsp),
                Action::TearDown => {
                    self.links[attempt as usize].alive[Side::Server as usize] = false;
                    self.send(Side::Server, attempt, CM, Msg::Dreq);
                    let lag = self.lag(Side::Server, path, self.chance(21, attempt.into()));
                    self.at(self.now + lag, Ev::ServerDrained { attempt });
                }
                Action::Release => return self.release(attempt),
            }
        }
    }

    pub(crate) fn server_tick(&mut self, attempt: u32) {
        let Some(i) = self.server.find(attempt) else {
            return;
        };
        let p = &mut self.server.paths[i];
        if p.state != State::Connected {
            return;
        }
        match p.hb.tick(self.now) {
            HbAction::Dead => return self.server_event(attempt, Event::Error),
            HbAction::Send => {
                let hb = Imm::Heartbeat.encode();
                self.send(Side::Server, attempt, 0, Msg::Imm(hb));
            }
            HbAction::Nothing => {}
        }
        self.at(self.now + self.sch.hb, Ev::ServerTick { attempt });
    }

    pub(crate) fn server_drained(&mut self, attempt: u32) {
        if let Some(i) = self.server.find(attempt) {
            self.server.paths[i].drain_over = true;
            self.closing(attempt);
        }
    }

    /// Goes on with the tear-down of a path.
    fn closing(&mut self, attempt: u32) {
        let Some(i) = self.server.find(attempt) else {
            return;
        };
        let p = &mut self.server.paths[i];
        if !p.drain_over || p.arrived != 0 {
            return;
        }
        for (tag, slot) in p.slots.iter().enumerate() {
            match serving::leave(&self.server.owners, p.id, Tag::new(tag as u16), slot) {
                Left::Waiting(_) => p.inflight -= 1,
                // Looked at again when the worker has it.
                Left::Nothing | Left::Taken => {}
                Left::Pending((io, _)) => return self.violate(Violation::Together(io.req)),
            }
        }
        if self.server.paths[i].inflight == 0 {
            self.server_event(attempt, Event::CloseDone);
        }
        self.answer_fences();
    }

    fn release(&mut self, attempt: u32) {
        if let Some(i) = self.server.find(attempt) {
            self.server.paths.swap_remove(i);
        }
        if self.server.paths.is_empty() {
            self.server.session = false;
            if let Some(tag) = self.server.owners.used() {
                self.violate(Violation::Leaked(tag));
            }
        }
    }

    fn drop_waiting(&mut self, path: PathId, tag: u8) {
        let Some(p) = self.server.paths.iter_mut().find(|p| p.id == path) else {
            return self.violate(Violation::Stray);
        };
        if p.slots[usize::from(tag)].take_waiting().is_none() {
            return self.violate(Violation::Leaked(tag));
        }
        p.inflight -= 1;
    }

    fn supersede(&mut self, path: PathId) {
        if let Some(p) = self.server.paths.iter().find(|p| p.id == path) {
            let attempt = p.attempt;
            self.server_event(attempt, Event::Superseded);
            self.closing(attempt);
        }
    }

    /// The server looks at a request that arrived while its path was connected.
    pub(crate) fn accept(&mut self, attempt: u32, io: Io) {
        // Gone with a crash.
        let Some(i) = self.server.find(attempt) else {
            return;
        };
        self.server.arrivals += 1;
        let arrival = self.server.arrivals;
        self.server.paths[i].arrived -= 1;
        if self.with_ext() && io.req != Io::OPEN && io.device != self.server.device() {
            self.violate(Violation::Foreign(io.req));
        }
        if self.sch.mode == Mode::OldServer || self.bug == Some(Bug::AlwaysServe) {
            self.server.paths[i].inflight += 1;
            self.serve(attempt, io, arrival);
            return;
        }
        let p = &mut self.server.paths[i];
        let (me, slot) = (p.id, &p.slots[usize::from(io.tag)]);
        let claim = serving::claim(
            &self.server.owners,
            me,
            Tag::new(io.tag.into()),
            slot,
            (io, arrival),
        );
        // The path took requests when this one arrived.
        let late = p.state != State::Connected && self.bug != Some(Bug::HastyFence);
        match claim {
            Claim::Has(_) if late => self.end_service(me, io.tag),
            Claim::Has(_) => {
                p.inflight += 1;
                self.serve(attempt, io, arrival);
            }
            Claim::Waits { close, displaced } => {
                p.inflight += 1;
                self.server.waited += 1;
                match displaced {
                    Some(d) if !late || self.bug == Some(Bug::LateDisplaces) => {
                        self.drop_waiting(d, io.tag);
                        self.supersede(d);
                    }
                    Some(d) => self.restore(i, io.tag, d),
                    None => {}
                }
                if !late || self.bug == Some(Bug::AbandonedCloses) {
                    self.supersede(close);
                }
            }
            Claim::Violation(_) => {
                if self.sch.mode == Mode::Ext {
                    self.violate(Violation::Stray);
                }
                self.server_event(attempt, Event::Error);
            }
        }
        self.closing(attempt);
    }

    /// Lets a displaced request wait again, in place of one that has arrived late.
    fn restore(&mut self, i: usize, tag: u8, displaced: PathId) {
        let p = &mut self.server.paths[i];
        let slot = &p.slots[usize::from(tag)];
        match serving::restore(
            &self.server.owners,
            p.id,
            Tag::new(tag.into()),
            slot,
            displaced,
        ) {
            Restored::Waits(Some(_)) => p.inflight -= 1,
            // Nobody else comes in between here.
            Restored::Waits(None) | Restored::Superseded => self.violate(Violation::Stray),
        }
    }

    fn serve(&mut self, attempt: u32, io: Io, arrival: u32) {
        let same = |request: &Request| request.busy && request.io.tag == io.tag;
        if self.sch.mode != Mode::OldServer && self.server.requests.iter().any(same) {
            self.violate(Violation::Together(io.req));
        }
        self.server.next_op += 1;
        let request = Request {
            attempt,
            io,
            arrival,
            value: 0,
            busy: true,
            id: self.server.next_op,
        };
        let free = self
            .server
            .requests
            .iter()
            .position(|request| !request.busy);
        match free {
            Some(i) => self.server.requests[i] = request,
            None => self.server.requests.push(request),
        }
        let bits = self.chance(22, request.id.into());
        let mut time = 50 + bits % 500;
        for f in &self.sch.faults {
            if let Kind::SlowDisk { extra, .. } = f.kind {
                if f.at <= self.now && self.now < f.end() {
                    time += (bits >> 16) % extra;
                }
            }
        }
        let effect = (bits >> 40) % (time + 1);
        self.at(
            self.now + effect,
            Ev::Written {
                request: request.id,
            },
        );
        self.at(
            self.now + time,
            Ev::DiskDone {
                request: request.id,
            },
        );
    }

    fn request(&self, id: u32) -> Option<usize> {
        self.server
            .requests
            .iter()
            .position(|request| request.busy && request.id == id)
    }

    /// The moment at which it reads or writes.
    pub(crate) fn written(&mut self, request: u32) {
        let Some(i) = self.request(request) else {
            return;
        };
        let Request { io, arrival, .. } = self.server.requests[i];
        self.takes_effect(io, arrival);
        self.server.requests[i].value = if io.req == Io::OPEN {
            self.server.device()
        } else {
            self.disk[usize::from(io.sector)]
        };
    }

    pub(crate) fn disk_done(&mut self, request: u32) {
        let Some(i) = self.request(request) else {
            return;
        };
        self.server.requests[i].busy = false;
        let Request {
            attempt,
            io,
            arrival,
            value,
            ..
        } = self.server.requests[i];
        let Some(i) = self.server.find(attempt) else {
            return self.violate(Violation::Stray);
        };
        self.end_service(self.server.paths[i].id, io.tag);
        if self.server.paths[i].state == State::Connected {
            let msg = Msg::IoRsp { io, value, arrival };
            let cid = self.chance(23, arrival.into()) % (CONS as u64 - 1) + 1;
            self.send(Side::Server, attempt, cid as u8, msg);
        }
        self.server.paths[i].inflight -= 1;
        self.closing(attempt);
    }

    /// Releases a number, and has the worker serve the request that waits for it.
    fn end_service(&mut self, me: PathId, tag: u8) {
        if self.sch.mode == Mode::OldServer || self.bug == Some(Bug::AlwaysServe) {
            return;
        }
        match serving::release(&self.server.owners, me, Tag::new(tag.into())) {
            Next::Nobody => {}
            Next::Wake(waiter) => {
                self.server.woken.push_back((waiter, tag));
                let lag = self.chance(26, self.now) % MS;
                self.at(self.now + lag, Ev::Woken);
            }
            Next::Stray => self.violate(Violation::Stray),
        }
    }

    /// The worker serves a request that has waited, or drops it if its path is being closed.
    pub(crate) fn serve_woken(&mut self) {
        // Gone with a crash.
        let Some((waiter, tag)) = self.server.woken.pop_front() else {
            return;
        };
        let Some(p) = self.server.paths.iter_mut().find(|p| p.id == waiter) else {
            return self.violate(Violation::Stray);
        };
        let Some((io, arrival)) = p.slots[usize::from(tag)].take_waiting() else {
            return self.violate(Violation::Leaked(tag));
        };
        let attempt = p.attempt;
        if p.state == State::Connected && self.bug != Some(Bug::LostWakeup) {
            return self.serve(attempt, io, arrival);
        }
        p.inflight -= 1;
        self.end_service(waiter, tag);
        self.closing(attempt);
    }

    fn fence(&mut self, via: u32, cid: u8, fence: Fence) {
        if !fence.is_valid(cid.into(), self.with_ext().then_some(via)) {
            self.violate(Violation::Stray);
            return;
        }
        self.note(format_args!("  server {via}: {fence:?}"));
        while let Some(p) = self
            .server
            .paths
            .iter()
            .find(|p| self.covers(fence, via, p.attempt) && is_open(p.state))
        {
            let attempt = p.attempt;
            if self.client.takes_requests(attempt) {
                self.violate(Violation::Fenced(attempt));
            }
            self.server_event(attempt, Event::Superseded);
        }
        self.server.fences.push((via, fence));
        self.answer_fences();
    }

    fn covers(&self, fence: Fence, via: u32, attempt: u32) -> bool {
        match self.bug {
            Some(Bug::WideFence) if fence.drain => attempt < via,
            _ => fence.covers(Some(attempt)),
        }
    }

    fn answer_fences(&mut self) {
        let mut n = 0;
        while let Some(&(via, fence)) = self.server.fences.get(n) {
            let drain = fence.drain && self.bug != Some(Bug::NoDrain);
            // A path that is being closed takes no request any more, see `result`.
            let pending = |p: &Path| fence.covers(Some(p.attempt)) && (drain || is_open(p.state));
            if self.server.paths.iter().any(pending) {
                n += 1;
                continue;
            }
            self.server.fences.swap_remove(n);
            if let Some(i) = self.server.find(via) {
                if self.server.paths[i].state == State::Connected {
                    let done = Imm::FenceDone(fence).encode();
                    self.send(Side::Server, via, 0, Msg::Imm(done));
                }
            }
        }
    }

    pub(crate) fn server_fault(&mut self, path: u8, event: Event) {
        let attempt = self.server.paths.iter().find(|p| p.path == path);
        if let Some(attempt) = attempt.map(|p| p.attempt) {
            self.server_event(attempt, event);
        }
    }

    pub(crate) fn forget(&mut self) {
        while let Some(p) = self.server.paths.iter().find(|p| is_open(p.state)) {
            let attempt = p.attempt;
            self.server_event(attempt, Event::UserDisconnect);
        }
    }

    /// Everything is gone at once; the disk may or may not have done what it was asked for.
    pub(crate) fn crash(&mut self) {
        for i in 0..self.server.requests.len() {
            let request = self.server.requests[i];
            if request.busy && self.chance(24, request.id.into()) & 1 != 0 {
                self.takes_effect(request.io, request.arrival);
            }
        }
        self.server.requests.clear();
        self.server.fences.clear();
        self.server.woken.clear();
        for i in 0..self.server.paths.len() {
            let attempt = self.server.paths[i].attempt;
            self.links[attempt as usize].alive[Side::Server as usize] = false;
        }
        self.server.paths.clear();
        self.server.session = false;
        self.server.up = false;
    }
}

fn is_open(state: State) -> bool {
    matches!(state, State::Connecting | State::Connected)
}
