// SPDX-License-Identifier: GPL-2.0

//! The client around its decisions: a session, its paths, and the driver of a disk on top.

use std::collections::VecDeque;

use ibtrs_proto::backoff::Backoff;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::failover::{Admit, Call, Entry, Failover, Next, Offer, Published};
use ibtrs_proto::fsm::client_path::{self, Actions, Event, State};
use ibtrs_proto::handshake::RspExt;
use ibtrs_proto::hb::{HbAction, Heartbeat};
use ibtrs_proto::imm::{Fence, Imm};
use ibtrs_proto::mp::{choose, Candidate};

use crate::net::{Io, Link, Msg, Side, CM, CONS};
use crate::schedule::{Fault, Kind, Mode, Schedule, Time, MS, PATHS, TAGS};
use crate::world::{Bug, Ev, Violation, World};

/// A set-up that takes longer has failed.
const CONNECT_TIMEOUT: Time = 2500 * MS;

/// How far a set-up has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// There is none.
    None,
    /// The service connection.
    First,
    /// The other connections, and INFO.
    Others,
    /// Waiting for the answer to a fence of ghosts.
    Fencing,
    /// Admitted; the worker is about to say so.
    Done,
    /// Lost; the worker is about to say so.
    Lost,
}

#[derive(Debug)]
pub(crate) struct Path {
    state: State,
    pub attempt: u32,
    stage: Stage,
    cons: u8,
    ext: Option<RspExt>,
    fenced: u32,
    /// This attempt failed for a reason that another one does not have.
    again: bool,
    published: Option<Published>,
    previous: u32,
    /// It counts as connected for the session.
    in_set: bool,
    hb: Heartbeat,
    latency: Option<u64>,
    inflight: u32,
    failures: u32,
    timer: u32,
    /// What the path's work has to do, and that it is doing something.
    todo: VecDeque<Actions>,
    busy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    Free,
    InFlight { path: u8, attempt: u32 },
    Parked,
}

#[derive(Clone, Copy, Debug)]
struct Tag {
    slot: Slot,
    entry: Entry,
    io: Io,
}

/// The client.
#[derive(Debug)]
pub(crate) struct Client {
    pub fo: Failover,
    pub paths: Vec<Path>,
    tags: [Tag; TAGS],
    last: Option<usize>,
    /// Requests that wait for the driver.
    pub queue: Vec<u16>,
    quiesced: bool,
    /// Number under which the disk is open; 0 before the first connect.
    device: u32,
    pub retries: u32,
    pub fences: u32,
    pub older: u32,
    pub fresh: u32,
}

impl Client {
    pub(crate) fn new(sch: &Schedule) -> Self {
        let path = || Path {
            state: client_path::initial().next,
            attempt: 0,
            stage: Stage::None,
            cons: 0,
            ext: None,
            fenced: 0,
            again: false,
            published: None,
            previous: 0,
            in_set: false,
            hb: Heartbeat::new(sch.missed),
            latency: None,
            inflight: 0,
            failures: 0,
            timer: 0,
            todo: VecDeque::with_capacity(16),
            busy: false,
        };
        let io = Io {
            tag: 0,
            req: Io::OPEN,
            sector: 0,
            write: false,
            device: 0,
        };
        Self {
            fo: Failover::new(),
            paths: (0..usize::from(sch.paths).min(PATHS))
                .map(|_| path())
                .collect(),
            tags: [Tag {
                slot: Slot::Free,
                entry: Entry::NEW,
                io,
            }; TAGS],
            last: None,
            queue: Vec::with_capacity(sch.requests.len()),
            quiesced: false,
            device: 0,
            retries: 0,
            fences: 0,
            older: 0,
            fresh: 0,
        }
    }

    /// Whether a path takes requests by that attempt.
    pub(crate) fn takes_requests(&self, attempt: u32) -> bool {
        let takes = |p: &Path| p.attempt == attempt && p.in_set;
        self.paths.iter().any(takes)
    }

    /// A path that does not take requests and was not removed.
    pub(crate) fn first_down(&self) -> Option<u8> {
        let down = |p: &Path| !p.usable() && p.state != State::Dead;
        self.paths.iter().position(down).map(|p| p as u8)
    }

    fn path_of(&self, attempt: u32) -> Option<usize> {
        self.paths.iter().position(|p| p.attempt == attempt)
    }

    fn via(&self) -> Option<u32> {
        let usable = self.paths.iter().find(|p| p.usable());
        usable.map(|p| p.attempt)
    }
}

impl Path {
    fn usable(&self) -> bool {
        self.state == State::Connected && self.in_set
    }
}

impl World<'_> {
    pub(crate) fn client_start(&mut self) {
        for p in 0..self.client.paths.len() {
            self.client.paths[p]
                .todo
                .extend(client_path::initial().actions.iter());
            self.work(p);
        }
    }

    // --- the path's state machine and its work

    pub(crate) fn client_event(&mut self, path: u8, event: Event) {
        let i = usize::from(path);
        let Some(p) = self.client.paths.get_mut(i) else {
            return;
        };
        let step = client_path::step(p.state, event);
        let lost = p.state == State::Connected && step.next != State::Connected;
        p.state = step.next;
        p.todo.extend(step.actions.iter());
        self.note(format_args!("  path {path}: {event:?} -> {:?}", step.next));
        if lost && self.sch.mode == Mode::Ext && self.sch.healthy(path) {
            self.violate(Violation::Lost(path));
        }
        self.work(i);
    }

    /// Does what is to be done about a path, until something has to be waited for.
    fn work(&mut self, i: usize) {
        if self.client.paths[i].busy {
            return;
        }
        self.client.paths[i].busy = true;
        loop {
            let p = &mut self.client.paths[i];
            let Some(action) = p.todo.pop_front() else {
                p.busy = false;
                if p.state == State::Closing {
                    self.client_event(i as u8, Event::CloseDone);
                }
                return;
            };
            if self.act(i, action) {
                return;
            }
        }
    }

    /// Does one thing. True when it takes time: [`Ev::ClientDrained`] goes on.
    fn act(&mut self, i: usize, action: Actions) -> bool {
        let p = &mut self.client.paths[i];
        let attempt = p.attempt;
        match action {
            Actions::ABORT_CONNECT => {
                if p.state == State::ConnectingErr {
                    p.stage = Stage::Lost;
                    let lag = self.chance(10, attempt.into()) % (5 * MS);
                    self.at(self.now + lag, Ev::ConnectFailed { attempt });
                } else {
                    p.stage = Stage::None;
                }
            }
            Actions::CANCEL_RECONNECT => p.timer += 1,
            Actions::STOP_AND_DESTROY => return self.stop(i),
            Actions::FAIL_INFLIGHT => self.fail_inflight(i),
            Actions::RESET_ATTEMPTS => p.failures = 0,
            Actions::COUNT_FAILURE => p.failures += u32::from(!p.again),
            Actions::SCHEDULE_RECONNECT => self.schedule_reconnect(i),
            Actions::RECONNECT_NOW => {
                p.timer += 1;
                let (path, timer) = (i as u8, p.timer);
                self.at(self.now, Ev::ReconnectDue { path, timer });
            }
            Actions::START_CONNECT => self.start_connect(i),
            Actions::START_HEARTBEAT => {
                p.hb = Heartbeat::new(self.sch.missed);
                p.latency = None;
                self.at(self.now + self.sch.hb, Ev::ClientTick { attempt });
            }
            Actions::NOTIFY_UP => {
                self.pump();
                self.calls();
                self.at(self.now, Ev::Dispatch);
            }
            // NOTIFY_DOWN comes with the tear-down; nobody waits for a path to be closed.
            _ => {}
        }
        false
    }

    fn stop(&mut self, i: usize) -> bool {
        let p = &mut self.client.paths[i];
        let attempt = p.attempt;
        p.stage = Stage::None;
        self.leave_set(i);
        let link = &mut self.links[attempt as usize];
        if !std::mem::take(&mut link.alive[Side::Client as usize]) {
            return false;
        }
        self.send(Side::Client, attempt, CM, Msg::Dreq);
        let lag = self.lag(Side::Client, i as u8, self.chance(11, attempt.into()));
        self.at(self.now + lag, Ev::ClientDrained { attempt });
        true
    }

    /// The path is no longer one of those that take requests.
    fn leave_set(&mut self, i: usize) {
        let p = &mut self.client.paths[i];
        if !std::mem::take(&mut p.in_set) {
            return;
        }
        let Some(published) = p.published else {
            return self.violate(Violation::Stray);
        };
        if let Some(outage) = self.client.fo.path_lost(&published) {
            if self.sch.queue_timeout == 0 {
                self.client.fo.queue_timeout(outage);
            } else {
                let when = self.now + self.sch.queue_timeout;
                self.at(when, Ev::QueueTimeout(outage));
            }
        }
        self.pump();
        self.calls();
    }

    pub(crate) fn client_drained(&mut self, attempt: u32) {
        if let Some(i) = self.client.path_of(attempt) {
            self.client.paths[i].busy = false;
            self.work(i);
        }
    }

    fn fail_inflight(&mut self, i: usize) {
        let Some(mut path) = self.client.paths[i].published else {
            return self.violate(Violation::Stray);
        };
        if self.bug == Some(Bug::NoFence) {
            path.ext = false;
        }
        let of_path = |t: &Tag| {
            t.slot
                == Slot::InFlight {
                    path: i as u8,
                    attempt: path.epoch,
                }
        };
        // One after the other: the session may be pumped between any two.
        for t in 0..TAGS {
            let tag = &mut self.client.tags[t];
            if of_path(tag) {
                tag.entry.lost(&path);
                tag.slot = Slot::Parked;
                self.client.paths[i].inflight -= 1;
                self.pump();
            }
        }
    }

    fn schedule_reconnect(&mut self, i: usize) {
        let p = &mut self.client.paths[i];
        p.timer += 1;
        let backoff = Backoff {
            base_ms: self.sch.reconnect_ms,
            max_ms: 2000,
        };
        let (path, timer, failures, again) = (i as u8, p.timer, p.failures, p.again);
        let bits = self.chance(12, u64::from(path) << 32 | u64::from(timer)) as u32;
        let delay = if again {
            0
        } else {
            Time::from(backoff.delay_ms(failures, bits)) * MS
        };
        self.at(self.now + delay, Ev::ReconnectDue { path, timer });
    }

    pub(crate) fn reconnect_due(&mut self, path: u8, timer: u32) {
        if self.client.paths[usize::from(path)].timer == timer {
            self.client_event(path, Event::ReconnectDue);
        }
    }

    /// A user tries until it is not in the way of something else.
    pub(crate) fn user_reconnects(&mut self, path: u8) {
        match self.client.paths[usize::from(path)].state {
            State::Connected | State::Dead => {}
            State::Connecting | State::Closing => {
                self.at(self.now + 10 * MS, Ev::UserReconnect { path });
            }
            _ => self.client_event(path, Event::UserReconnect),
        }
    }

    /// A user removes a path: close it, wait, remove it.
    pub(crate) fn user_removes(&mut self, path: u8) {
        self.client_event(path, Event::UserRemove);
        if self.client.paths[usize::from(path)].state != State::Dead {
            self.at(self.now + 10 * MS, Ev::UserRemove { path });
        }
    }

    // --- set-up

    fn start_connect(&mut self, i: usize) {
        let Some(epoch) = self.client.fo.begin() else {
            return self.violate(Violation::Livelock);
        };
        self.links.push(Link::new(i as u8));
        debug_assert_eq!(self.links.len(), epoch as usize + 1);
        let p = &mut self.client.paths[i];
        p.attempt = epoch;
        p.stage = Stage::First;
        p.cons = 0;
        p.ext = None;
        p.fenced = 0;
        p.again = false;
        p.published = None;
        p.inflight = 0;
        self.send(Side::Client, epoch, CM, Msg::ConnReq { cid: 0 });
        let ev = Ev::ConnectTimeout { attempt: epoch };
        self.at(self.now + CONNECT_TIMEOUT, ev);
    }

    fn setting_up(&self, attempt: u32) -> Option<usize> {
        let i = self.client.path_of(attempt)?;
        let stage = self.client.paths[i].stage;
        matches!(stage, Stage::First | Stage::Others | Stage::Fencing).then_some(i)
    }

    pub(crate) fn connect_timeout(&mut self, attempt: u32) {
        if let Some(i) = self.setting_up(attempt) {
            self.attempt_failed(i);
        }
    }

    fn attempt_failed(&mut self, i: usize) {
        self.client.paths[i].stage = Stage::None;
        self.client_event(i as u8, Event::ConnectFailed { retry: true });
    }

    pub(crate) fn connect_failed(&mut self, attempt: u32) {
        if let Some(i) = self.client.path_of(attempt) {
            if self.client.paths[i].stage == Stage::Lost {
                self.attempt_failed(i);
            }
        }
    }

    fn conn_rsp(&mut self, i: usize, cid: u8, ok: bool, ext: Option<RspExt>) {
        let p = &mut self.client.paths[i];
        let attempt = p.attempt;
        if !ok || p.stage == Stage::Others && p.ext != ext {
            return self.attempt_failed(i);
        }
        p.ext = ext;
        p.cons |= 1 << cid;
        if p.stage == Stage::First {
            p.stage = Stage::Others;
            for cid in 1..CONS as u8 {
                self.send(Side::Client, attempt, CM, Msg::ConnReq { cid });
            }
        } else if p.cons == (1 << CONS) - 1 {
            self.send(Side::Client, attempt, 0, Msg::InfoReq);
        }
    }

    fn offer(&mut self, i: usize) {
        let p = &self.client.paths[i];
        let attempt = p.attempt;
        let offer = Offer {
            epoch: attempt,
            previous: p.previous,
            ext: p.ext,
            queue_depth: 512,
            max_io_bytes: 1 << 20,
            fenced: match self.bug {
                Some(Bug::NoOlder) => u32::MAX,
                _ => p.fenced,
            },
        };
        let admit = self.client.fo.offer(&offer);
        self.note(format_args!("  path {i}: {offer:?} {admit:?}"));
        let p = &mut self.client.paths[i];
        match admit {
            Admit::Publish(published) => self.publish(i, published),
            Admit::Fence(epoch) => {
                p.stage = Stage::Fencing;
                self.client.older += 1;
                self.send_fence(attempt, epoch, true);
            }
            Admit::Again => {
                p.again = true;
                self.attempt_failed(i);
            }
            Admit::Forgotten => {
                p.again = true;
                for other in 0..self.client.paths.len() {
                    if other != i && self.client.paths[other].state == State::Connected {
                        self.client_event(other as u8, Event::Error { retry: true });
                    }
                }
                self.attempt_failed(i);
            }
            Admit::Refuse(_) => self.attempt_failed(i),
        }
    }

    fn publish(&mut self, i: usize, published: Published) {
        let p = &mut self.client.paths[i];
        let previous = std::mem::replace(&mut p.previous, published.epoch);
        p.published = Some(published);
        p.in_set = true;
        p.stage = Stage::Done;
        let (attempt, ext) = (p.attempt, p.ext);
        for t in &mut self.client.tags {
            if t.slot == Slot::Parked {
                t.entry.fenced(previous);
            }
        }
        if self.client.device == 0 {
            self.client.device = device(ext);
        }
        let lag = self.chance(13, attempt.into()) % MS;
        self.at(self.now + lag, Ev::Established { attempt });
    }

    pub(crate) fn established(&mut self, attempt: u32) {
        if let Some(i) = self.client.path_of(attempt) {
            if self.client.paths[i].stage == Stage::Done {
                self.client.paths[i].stage = Stage::None;
                self.client_event(i as u8, Event::Established);
            }
        }
    }

    fn send_fence(&mut self, via: u32, epoch: u32, drain: bool) {
        self.client.fences += 1;
        let fence = Imm::Fence(Fence { epoch, drain }).encode();
        self.send(Side::Client, via, 0, Msg::Imm(fence));
    }

    // --- what comes in

    pub(crate) fn client_error(&mut self, attempt: u32) {
        let alive = self.links[attempt as usize].alive[Side::Client as usize];
        if let (true, Some(i)) = (alive, self.client.path_of(attempt)) {
            self.client_event(i as u8, Event::Error { retry: true });
        }
    }

    pub(crate) fn client_receives(&mut self, attempt: u32, cid: u8, msg: Msg) {
        let alive = self.links[attempt as usize].alive[Side::Client as usize];
        if let (Msg::IoRsp { io, value, arrival }, true) = (msg, alive || self.takes_late()) {
            self.answer(attempt, io, value, arrival);
        }
        let Some(i) = self.client.path_of(attempt).filter(|_| alive) else {
            return self.nobody(Side::Client, attempt, cid);
        };
        let now = self.now;
        let p = &mut self.client.paths[i];
        p.hb.received();
        match msg {
            Msg::ConnRsp { cid, ok, run, gen } => {
                let ext = (self.sch.mode == Mode::Ext).then_some(RspExt {
                    server_run: u128::from(run).to_le_bytes(),
                    session_gen: gen,
                });
                if self.setting_up(attempt).is_some() {
                    self.conn_rsp(i, cid, ok, ext);
                }
            }
            Msg::InfoRsp if p.stage == Stage::Others => self.offer(i),
            Msg::Dreq => self.client_error(attempt),
            Msg::Imm(raw) => match Imm::decode(raw) {
                Imm::Heartbeat => {
                    let ack = Imm::HeartbeatAck.encode();
                    self.send(Side::Client, attempt, 0, Msg::Imm(ack));
                }
                Imm::HeartbeatAck => p.latency = p.hb.ack(now).or(p.latency),
                Imm::FenceDone(fence) if fence.drain => {
                    if p.stage == Stage::Fencing {
                        p.fenced = fence.epoch;
                        self.offer(i);
                    }
                }
                Imm::FenceDone(fence) => self.fence_done(fence.epoch),
                _ => self.violate(Violation::Stray),
            },
            _ => {}
        }
    }

    fn takes_late(&self) -> bool {
        self.bug == Some(Bug::LateAnswer)
    }

    fn answer(&mut self, attempt: u32, io: Io, value: u32, arrival: u32) {
        let t = usize::from(io.tag);
        let tag = self.client.tags[t];
        match tag.slot {
            Slot::InFlight { path, attempt: a } if a == attempt => {
                self.client.paths[usize::from(path)].inflight -= 1;
            }
            _ if self.takes_late() => {}
            // A session keeps to the path that it has sent a request by.
            _ => return self.violate(Violation::Mixed(io.req)),
        }
        if tag.io.req != io.req {
            return self.violate(Violation::Mixed(io.req));
        }
        self.end(t, Ok(value), arrival);
    }

    pub(crate) fn client_tick(&mut self, attempt: u32) {
        let Some(i) = self.client.path_of(attempt) else {
            return;
        };
        let now = self.now;
        let p = &mut self.client.paths[i];
        if p.state != State::Connected {
            return;
        }
        match p.hb.tick(now) {
            HbAction::Dead => {
                return self.client_event(i as u8, Event::Error { retry: true });
            }
            HbAction::Send => {
                let hb = Imm::Heartbeat.encode();
                self.send(Side::Client, attempt, 0, Msg::Imm(hb));
            }
            HbAction::Nothing => {}
        }
        self.at(now + self.sch.hb, Ev::ClientTick { attempt });
    }

    // --- requests

    /// Submits what the driver has, as long as there are tags.
    pub(crate) fn dispatch(&mut self) {
        while self.client.device != 0 && !self.client.quiesced && !self.client.queue.is_empty() {
            let io_tags = 1..=usize::from(self.sch.depth);
            let free = |t: &usize| self.client.tags[*t].slot == Slot::Free;
            let Some(t) = io_tags.into_iter().find(free) else {
                return;
            };
            let req = self.client.queue.remove(0);
            let r = self.reqs[usize::from(req)];
            let io = Io {
                tag: t as u8,
                req,
                sector: r.sector,
                write: r.write,
                device: self.client.device,
            };
            self.submit(t, io, Entry::NEW);
        }
    }

    fn submit(&mut self, t: usize, io: Io, entry: Entry) {
        let tag = &mut self.client.tags[t];
        debug_assert_eq!(tag.slot, Slot::Free);
        tag.io = io;
        tag.entry = entry;
        tag.slot = Slot::Parked;
        let hold = self.client.fo.is_held() && io.req != Io::OPEN;
        if hold || !self.post(t) {
            tag_unsent(&mut self.client, t);
            self.pump();
        }
    }

    /// Sends a request by a path, if there is one.
    fn post(&mut self, t: usize) -> bool {
        let c = &mut self.client;
        let candidates = c.paths.iter().map(|p| Candidate {
            usable: p.usable(),
            inflight: p.inflight,
            latency: p.latency,
        });
        let Some(i) = choose(self.sch.policy, c.last, candidates) else {
            return false;
        };
        c.last = Some(i);
        let p = &mut c.paths[i];
        p.inflight += 1;
        let (path, attempt) = (i as u8, p.attempt);
        c.tags[t].slot = Slot::InFlight { path, attempt };
        let io = c.tags[t].io;
        let bits = self.chance(14, u64::from(io.req) << 32 | u64::from(attempt));
        let cid = bits % (CONS as u64 - 1) + 1;
        self.send(Side::Client, attempt, cid as u8, Msg::Io(io));
        true
    }

    /// Looks at each request that is parked.
    pub(crate) fn pump(&mut self) {
        for t in 0..TAGS {
            if self.client.tags[t].slot != Slot::Parked {
                continue;
            }
            let via = self.client.via();
            let mut entry = self.client.tags[t].entry;
            if self.bug == Some(Bug::NoOlderIfFenced) && entry.need() == 0 && via.is_none() {
                entry = self.client.fo.unsent(Entry::NEW);
            }
            let mut next = self.client.fo.next(&entry, via);
            if self.bug == Some(Bug::OldLife) && next == Next::End(Errno::ESTALE) {
                next = Next::Submit;
            }
            match next {
                Next::Submit if self.is_full(t) => {
                    self.at(self.now + 20 * MS, Ev::Pump);
                }
                Next::Submit => self.client.retries += u32::from(self.post(t)),
                Next::Wait => {}
                Next::Fence(epoch) => match via {
                    Some(via) => self.send_fence(via, epoch, false),
                    None => self.violate(Violation::Stray),
                },
                Next::End(errno) => self.end(t, Err(errno), 0),
            }
        }
    }

    fn is_full(&self, t: usize) -> bool {
        let full = |f: &Fault| {
            matches!(f.kind, Kind::Full { .. }) && f.at <= self.now && self.now < f.end()
        };
        self.chance(17, self.now << 8 | t as u64) & 1 != 0 && self.sch.faults.iter().any(full)
    }

    fn fence_done(&mut self, epoch: u32) {
        self.client.fo.fence_done(epoch);
        for t in &mut self.client.tags {
            if t.slot == Slot::Parked {
                t.entry.fenced(epoch);
            }
        }
        if self.bug != Some(Bug::NoPump) {
            self.pump();
        }
    }

    fn end(&mut self, t: usize, result: Result<u32, Errno>, arrival: u32) {
        let tag = &mut self.client.tags[t];
        let io = tag.io;
        tag.slot = Slot::Free;
        if io.req == Io::OPEN {
            return self.opened(result);
        }
        if result == Err(Errno::ESTALE) {
            // To be made anew, before those that wait.
            self.client.queue.insert(0, io.req);
        } else {
            self.complete(io, result, arrival);
        }
        self.at(self.now, Ev::Dispatch);
    }

    // --- what the driver is told

    fn calls(&mut self) {
        let Some(call) = self.client.fo.call() else {
            return;
        };
        self.note(format_args!("  {call:?}"));
        if call == (Call::Up { fresh: true }) {
            self.client.fresh += 1;
            self.client.quiesced = true;
            let io = Io {
                tag: 0,
                req: Io::OPEN,
                ..self.client.tags[0].io
            };
            if self.client.fo.is_connected() {
                self.submit(0, io, Entry::ADMIN);
            } else {
                self.opened(Err(Errno::ENOTCONN));
            }
        } else {
            let lag = self.chance(15, self.now) % MS;
            self.at(self.now + lag, Ev::CallReturns);
        }
    }

    fn opened(&mut self, result: Result<u32, Errno>) {
        if let Ok(device) = result {
            self.client.device = device;
        }
        let lag = self.chance(16, self.now) % MS;
        self.at(self.now + lag, Ev::CallReturns);
    }

    pub(crate) fn call_returns(&mut self) {
        self.client.fo.returned();
        self.client.quiesced = false;
        self.pump();
        self.calls();
        self.dispatch();
    }
}

fn tag_unsent(client: &mut Client, t: usize) {
    let entry = client.tags[t].entry;
    client.tags[t].entry = client.fo.unsent(entry);
}

/// The number of the disk that users were given when they opened it.
fn device(ext: Option<RspExt>) -> u32 {
    ext.map_or(1, |ext| {
        let run = u128::from_le_bytes(ext.server_run) as u32;
        run << 16 | ext.session_gen
    })
}
