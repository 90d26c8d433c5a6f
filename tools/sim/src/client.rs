// SPDX-License-Identifier: GPL-2.0

//! The client: carries out its decisions for a session and its paths. [`crate::driver`] has the
//! driver of a disk on top.

use std::collections::VecDeque;

use ibtrs_proto::backoff::{Attempts, Backoff};
use ibtrs_proto::errno::Errno;
use ibtrs_proto::failover::{Entry, Failover, Loss, Next, Offer, OfferResult, Phase, Published};
use ibtrs_proto::fsm::client_path::{self, Action, Event, Machine, State};
use ibtrs_proto::fsm::Reply;
use ibtrs_proto::handshake::RspExt;
use ibtrs_proto::hb::{HbAction, Heartbeat};
use ibtrs_proto::imm::{Fence, Imm};
use ibtrs_proto::mp::{choose, Candidate};

use crate::driver::Disk;
use crate::net::{Io, Link, Msg, Side, CM, CONS};
use crate::schedule::{Fault, Kind, Mode, Schedule, Time, MS, PATHS, TAGS};
use crate::world::{Bug, Ev, Violation, World};

/// A set-up that takes longer has failed.
const CONNECT_TIMEOUT: Time = 2500 * MS;

/// Longest back-off, in milliseconds.
const MAX_DELAY_MS: u32 = 2000;

/// How far a set-up has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// There is none.
    None,
    /// The service connection.
    First,
    /// The other connections, and INFO.
    Others,
    /// Waiting for the answer to a fence of abandoned requests.
    Fencing,
    /// Accepted; the worker is about to say so.
    Done,
    /// Lost; the worker is about to say so.
    Lost,
}

#[derive(Debug)]
pub(crate) struct Path {
    machine: Machine,
    pub attempt: u32,
    stage: Stage,
    cons: u8,
    /// The attempt asks the server to create the session if it does not know it.
    is_first: bool,
    ext: Option<RspExt>,
    fenced: u32,
    published: Option<Published>,
    previous: u32,
    /// It counts as connected for the session.
    in_set: bool,
    hb: Heartbeat,
    latency: Option<u64>,
    inflight: u32,
    timer: u32,
    tally: Tally,
    /// The pending actions of the path's work item, and whether it is running.
    todo: VecDeque<Action>,
    busy: bool,
}

/// The checks' knowledge of a path's attempts.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    /// Attempts to reconnect since the last success, or since a user asked.
    made: u32,
    /// A user has asked for the next one.
    asked: bool,
    /// The present attempt has learnt what makes another one succeed.
    again: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    Free,
    /// The driver has it.
    Driver,
    /// The driver keeps it until the queue state changes.
    Queued,
    InFlight {
        path: u8,
        attempt: u32,
    },
    Requeue,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    pub slot: Slot,
    pub entry: Entry,
    pub io: Io,
    /// The phase of the session generation in which it was built.
    pub built: Phase,
}

/// The client.
#[derive(Debug)]
pub(crate) struct Client {
    pub fo: Failover,
    pub paths: Vec<Path>,
    pub tags: [Tag; TAGS],
    pub disk: Disk,
    /// The phase that a driver reads when it builds a request.
    pub phase: Phase,
    /// The phase of the set of paths.
    pub set_phase: Phase,
    pub limit: Attempts,
    turn: u64,
    pub retries: u32,
    pub fences: u32,
    pub older: u32,
    pub session_lost: u32,
    pub connects: u32,
    pub failures: u32,
    pub exhausted: u32,
    pub stale: u32,
}

impl Client {
    pub(crate) fn new(sch: &Schedule) -> Self {
        let path = || Path {
            machine: Machine::new(),
            attempt: 0,
            stage: Stage::None,
            cons: 0,
            is_first: false,
            ext: None,
            fenced: 0,
            published: None,
            previous: 0,
            in_set: false,
            hb: Heartbeat::new(sch.missed),
            latency: None,
            inflight: 0,
            timer: 0,
            tally: Tally::default(),
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
        let fo = Failover::new();
        Self {
            fo,
            paths: (0..usize::from(sch.paths).min(PATHS))
                .map(|_| path())
                .collect(),
            tags: [Tag {
                slot: Slot::Free,
                entry: Entry::NEW,
                io,
                built: Phase::NONE,
            }; TAGS],
            disk: Disk::new(sch),
            phase: fo.phase(),
            set_phase: Phase::NONE,
            limit: sch.limit,
            turn: 0,
            retries: 0,
            fences: 0,
            older: 0,
            session_lost: 0,
            connects: 0,
            failures: 0,
            exhausted: 0,
            stale: 0,
        }
    }

    /// Whether a path takes requests by that attempt.
    pub(crate) fn takes_requests(&self, attempt: u32) -> bool {
        let takes = |p: &Path| p.attempt == attempt && p.in_set;
        self.paths.iter().any(takes)
    }

    /// A path that is not connected and was not removed.
    pub(crate) fn first_down(&self) -> Option<u8> {
        let down = |p: &Path| {
            let up = p.machine.state == State::Connected && p.in_set;
            !up && p.machine.state != State::Dead
        };
        self.paths.iter().position(down).map(|p| p as u8)
    }

    fn path_of(&self, attempt: u32) -> Option<usize> {
        self.paths.iter().position(|p| p.attempt == attempt)
    }

    fn via(&self) -> Option<u32> {
        self.paths.iter().find(|p| p.in_set).map(|p| p.attempt)
    }
}

impl Tally {
    /// Notes an event that was taken; says what must not be.
    fn note(&mut self, event: Event, next: State, path: u8, limit: Attempts) -> Option<Violation> {
        match event {
            Event::Established => *self = Self::default(),
            Event::UserReconnect => {
                *self = Self {
                    asked: true,
                    ..Self::default()
                }
            }
            Event::ReconnectDue => {
                let asked = std::mem::take(&mut self.asked);
                self.again = false;
                self.made += 1;
                let most = match limit {
                    Attempts::Forever => return None,
                    Attempts::AtMost(n) => u32::from(n),
                };
                return (!asked && self.made > most).then_some(Violation::TooMany(path));
            }
            Event::ConnectFailed | Event::Error | Event::LimitSet if next == State::Closing => {
                let over = matches!(limit, Attempts::AtMost(n) if self.made >= u32::from(n));
                return (!over).then_some(Violation::GaveUp(path));
            }
            _ => {}
        }
        None
    }

    /// Whether the next attempt begins so soon after the last one has failed that it should not.
    fn is_hasty(&self, base_ms: u32, delay_ms: u32) -> bool {
        let mut least = base_ms;
        for _ in 0..self.made {
            least = (2 * least).min(MAX_DELAY_MS);
        }
        !self.again && delay_ms < least / 2
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
        if let Some(p) = self.client.paths.get(usize::from(path)) {
            let epoch = p.machine.epoch;
            self.attempt_event(path, epoch, event);
        }
    }

    fn limit(&self) -> Attempts {
        match self.bug {
            Some(Bug::NoLimit) => Attempts::Forever,
            _ => self.client.limit,
        }
    }

    /// An event of the attempt of that number.
    fn attempt_event(&mut self, path: u8, epoch: u32, event: Event) {
        let i = usize::from(path);
        let limit = self.limit();
        let Some(p) = self.client.paths.get_mut(i) else {
            return;
        };
        let before = p.machine;
        let step = p.machine.attempt_step(epoch, event, limit);
        match self.bug {
            Some(Bug::NoCount) if event == Event::ReconnectDue => p.machine.tries = before.tries,
            Some(Bug::NoReset) if event == Event::Established => p.machine.tries = before.tries,
            _ => {}
        }
        let lost = before.state == State::Connected && step.next != State::Connected;
        p.todo.extend(step.actions.iter());
        if step.reply == Reply::Accepted {
            let limit = self.client.limit;
            if let Some(violation) = p.tally.note(event, step.next, path, limit) {
                self.violate(violation);
            }
            let alone = matches!(event, Event::ConnectFailed | Event::Error | Event::LimitSet);
            if alone && step.next == State::Closing {
                // A user sees to it.
                self.client.exhausted += 1;
                self.at(self.now + 500 * MS, Ev::UserReconnect { path });
            }
        }
        self.note(format_args!("  path {path}: {event:?} -> {:?}", step.next));
        if lost && self.sch.mode == Mode::Ext && self.sch.healthy(path) {
            self.violate(Violation::Lost(path));
        }
        self.work(i);
    }

    /// A user sets how many attempts may be made in a row.
    pub(crate) fn set_limit(&mut self, limit: Attempts) {
        self.client.limit = limit;
        for path in 0..self.client.paths.len() {
            self.client_event(path as u8, Event::LimitSet);
        }
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
                if p.machine.state == State::Closing {
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
    fn act(&mut self, i: usize, action: Action) -> bool {
        let p = &mut self.client.paths[i];
        let attempt = p.attempt;
        match action {
            Action::AbortConnect => {
                if p.machine.state == State::ConnectingErr {
                    p.stage = Stage::Lost;
                    let lag = self.chance(10, attempt.into()) % (5 * MS);
                    self.at(self.now + lag, Ev::ConnectFailed { attempt });
                } else {
                    p.stage = Stage::None;
                }
            }
            Action::CancelReconnect => p.timer += 1,
            Action::TearDown => return self.tear_down(i),
            Action::CountConnect => self.client.connects += 1,
            Action::CountFailure => self.client.failures += 1,
            Action::ScheduleReconnect => self.schedule_reconnect(i),
            Action::ReconnectNow => self.client_event(i as u8, Event::ReconnectDue),
            Action::StartConnect => self.start_connect(i),
            Action::StartHeartbeat => {
                self.at(self.now + self.sch.hb, Ev::ClientTick { attempt });
            }
        }
        false
    }

    fn tear_down(&mut self, i: usize) -> bool {
        let p = &mut self.client.paths[i];
        let attempt = p.attempt;
        p.stage = Stage::None;
        p.machine.ended();
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
        self.client.set_phase = self.client.fo.phase();
        if let Some(outage) = self.client.fo.path_lost(&published) {
            if self.sch.queue_timeout == 0 {
                self.client.fo.queue_timeout(outage);
            } else {
                let when = self.now + self.sch.queue_timeout;
                self.at(when, Ev::QueueTimeout(outage));
            }
        }
        self.requeue_all();
        self.calls();
    }

    pub(crate) fn client_drained(&mut self, attempt: u32) {
        if let Some(i) = self.client.path_of(attempt) {
            self.fail_over(i);
            self.client.paths[i].busy = false;
            self.work(i);
        }
    }

    /// The requests that a path had are left to the others.
    fn fail_over(&mut self, i: usize) {
        let Some(mut path) = self.client.paths[i].published else {
            return;
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
        // One after the other: the session may requeue between any two.
        for t in 0..TAGS {
            let tag = &mut self.client.tags[t];
            if of_path(tag) {
                tag.entry.lost(&path, Loss::Link);
                tag.slot = Slot::Requeue;
                self.client.paths[i].inflight -= 1;
                self.requeue_all();
            }
        }
    }

    fn schedule_reconnect(&mut self, i: usize) {
        let p = &mut self.client.paths[i];
        p.timer += 1;
        let backoff = Backoff {
            base_ms: self.sch.reconnect_ms,
            max_ms: MAX_DELAY_MS,
        };
        let (path, timer) = (i as u8, p.timer);
        let (machine, tally) = (p.machine, p.tally);
        let bits = self.chance(12, u64::from(path) << 32 | u64::from(timer)) as u32;
        let delay_ms = machine.delay_ms(&backoff, bits);
        if tally.is_hasty(backoff.base_ms, delay_ms) {
            self.violate(Violation::Hasty(path));
        }
        let when = self.now + Time::from(delay_ms) * MS;
        self.at(when, Ev::ReconnectDue { path, timer });
    }

    pub(crate) fn reconnect_due(&mut self, path: u8, timer: u32) {
        if self.client.paths[usize::from(path)].timer == timer {
            self.client_event(path, Event::ReconnectDue);
        }
    }

    /// A user tries until it is not in the way of something else.
    pub(crate) fn user_reconnects(&mut self, path: u8) {
        match self.client.paths[usize::from(path)].machine.state {
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
        if self.client.paths[usize::from(path)].machine.state != State::Dead {
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
        if !p.machine.begin(epoch) {
            self.links[epoch as usize].alive[Side::Client as usize] = false;
            return;
        }
        p.attempt = epoch;
        p.stage = Stage::First;
        p.cons = 0;
        p.ext = None;
        p.fenced = 0;
        p.published = None;
        p.inflight = 0;
        p.hb = Heartbeat::new(self.sch.missed);
        p.latency = None;
        p.is_first = self.client.fo.may_create();
        let first = p.is_first;
        self.send(Side::Client, epoch, CM, Msg::ConnReq { cid: 0, first });
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
        let p = &mut self.client.paths[i];
        p.stage = Stage::None;
        if self.bug == Some(Bug::AlwaysReconnectNow) {
            p.machine.reconnect_now();
        }
        let epoch = p.attempt;
        self.attempt_event(i as u8, epoch, Event::ConnectFailed);
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
                let first = false;
                self.send(Side::Client, attempt, CM, Msg::ConnReq { cid, first });
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
            is_first: p.is_first,
            queue_depth: 512,
            max_io_bytes: 1 << 20,
            fenced: match self.bug {
                Some(Bug::NoOlder) => u32::MAX,
                _ => p.fenced,
            },
        };
        let result = self.client.fo.offer(&offer);
        self.note(format_args!("  path {i}: {offer:?} {result:?}"));
        let p = &mut self.client.paths[i];
        match result {
            OfferResult::Publish(published) => self.publish(i, published),
            OfferResult::Fence(epoch) => {
                p.stage = Stage::Fencing;
                self.client.older += 1;
                self.send_fence(attempt, epoch, true);
            }
            OfferResult::Again | OfferResult::Join => self.reconnect_now(i),
            OfferResult::SessionLost => {
                for other in 0..self.client.paths.len() {
                    let p = &self.client.paths[other];
                    if p.in_set {
                        let epoch = p.attempt;
                        self.attempt_event(other as u8, epoch, Event::Error);
                    }
                }
                self.reconnect_now(i);
            }
            OfferResult::Refuse(_) => self.attempt_failed(i),
        }
    }

    /// The knowledge of the attempt is out of date: another one need not wait.
    fn reconnect_now(&mut self, i: usize) {
        let p = &mut self.client.paths[i];
        p.machine.reconnect_now();
        p.tally.again = true;
        self.attempt_failed(i);
    }

    fn publish(&mut self, i: usize, published: Published) {
        let p = &mut self.client.paths[i];
        let previous = std::mem::replace(&mut p.previous, published.epoch);
        p.published = Some(published);
        p.in_set = true;
        p.stage = Stage::Done;
        let (attempt, ext) = (p.attempt, p.ext);
        self.client.phase = self.client.fo.phase();
        self.client.set_phase = self.client.fo.phase();
        for t in &mut self.client.tags {
            if t.slot == Slot::Requeue {
                t.entry.fenced(previous);
            }
        }
        self.client.disk.first_connected(ext);
        let lag = self.chance(13, attempt.into()) % MS;
        self.at(self.now + lag, Ev::Established { attempt });
        self.requeue_all();
        self.calls();
        self.at(self.now, Ev::Dispatch);
    }

    pub(crate) fn established(&mut self, attempt: u32) {
        if let Some(i) = self.client.path_of(attempt) {
            if self.client.paths[i].stage == Stage::Done {
                self.client.paths[i].stage = Stage::None;
                self.attempt_event(i as u8, attempt, Event::Established);
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
        let path = self.links[attempt as usize].path;
        self.attempt_event(path, attempt, Event::Error);
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
            Msg::ConnRsp { cid, ok, boot, gen } => {
                let ext = (self.sch.mode == Mode::Ext).then_some(RspExt {
                    server_run: u128::from(boot).to_le_bytes(),
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
        if p.machine.state != State::Connected || p.machine.epoch != attempt {
            return;
        }
        match p.hb.tick(now) {
            HbAction::Dead => {
                return self.attempt_event(i as u8, attempt, Event::Error);
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

    /// Sends a request by a path, if there is one.
    pub(crate) fn post(&mut self, t: usize) -> bool {
        let c = &mut self.client;
        let candidates = c.paths.iter().map(|p| Candidate {
            usable: p.in_set,
            inflight: p.inflight,
            latency: p.latency,
        });
        let Some(i) = choose(self.sch.policy, c.turn, candidates) else {
            return false;
        };
        c.turn += 1;
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

    /// Handles each request on the requeue list.
    pub(crate) fn requeue_all(&mut self) {
        for t in 0..TAGS {
            if self.client.tags[t].slot != Slot::Requeue {
                continue;
            }
            let via = self.client.via();
            let mut entry = self.client.tags[t].entry;
            if self.bug == Some(Bug::NoOlderIfFenced) && entry.need() == 0 && via.is_none() {
                entry = self.client.fo.unsent(Entry::NEW);
            }
            let mut next = self.client.fo.next(&entry, via);
            if self.bug == Some(Bug::OldGeneration) && next == Next::End(Errno::ESTALE) {
                next = Next::Submit;
            }
            match next {
                Next::Submit if self.is_full(t) => {
                    self.at(self.now + 20 * MS, Ev::Requeue);
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
        if !self.client.fo.awaits_fence(epoch) {
            return;
        }
        self.client.fo.fence_done(epoch);
        for t in &mut self.client.tags {
            if t.slot == Slot::Requeue {
                t.entry.fenced(epoch);
            }
        }
        if self.bug != Some(Bug::NoRequeue) {
            self.requeue_all();
        }
    }
}
