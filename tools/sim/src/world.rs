// SPDX-License-Identifier: GPL-2.0

//! A run: the time, the pending events, and the checks.

use ibtrs_proto::backoff::Attempts;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::failover::{Call, Outage};
use ibtrs_proto::fsm::{client_path, server_path};

use crate::client::Client;
use crate::driver::Step;
use crate::events::Events;
use crate::history::{linearizable, Seen};
use crate::net::{Io, Link, Msg, Side};
use crate::schedule::{Fault, Kind, Mode, Schedule, Time, MS, SECTORS};
use crate::server::Server;

/// A pending event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ev {
    /// A fault of the schedule begins.
    Fault(u16),
    /// A user makes a request.
    Request(u16),
    /// A message arrives.
    Deliver {
        to: Side,
        attempt: u32,
        cid: u8,
        msg: Msg,
    },
    /// Retransmission of a message of this side has failed.
    QpError { side: Side, attempt: u32 },
    /// Set-up takes too long.
    ConnectTimeout { attempt: u32 },
    /// The worker of an attempt that was lost says so.
    ConnectFailed { attempt: u32 },
    /// The worker of an attempt says that it is up.
    Established { attempt: u32 },
    /// The client's heartbeat.
    ClientTick { attempt: u32 },
    /// The server's heartbeat.
    ServerTick { attempt: u32 },
    /// The back-off is over.
    ReconnectDue { path: u8, timer: u32 },
    /// The user wants a path again.
    UserReconnect { path: u8 },
    /// The user wants a path gone.
    UserRemove { path: u8 },
    /// There may be room in a send queue.
    Requeue,
    /// The client's queue pairs are drained.
    ClientDrained { attempt: u32 },
    /// The queue timeout is over.
    QueueTimeout(Outage),
    /// The disk's driver is called.
    Call(Call),
    /// The call returns.
    CallReturns,
    /// The driver goes on with a request.
    Driver { tag: u8, step: Step },
    /// The driver has the server open the disk again.
    TryOpen { timer: u32 },
    /// The server has answered that.
    Opened { result: Result<u32, Errno> },
    /// The driver looks whether it can submit something.
    Dispatch,
    /// The server looks at a request.
    Accept { attempt: u32, io: Io },
    /// The server's queue pairs are drained.
    ServerDrained { attempt: u32 },
    /// The disk has written, though it does not say so yet; then it does.
    Written { request: u32 },
    /// The disk has done what it was asked for.
    DiskDone { request: u32 },
    /// The server's worker takes a request that has waited.
    Woken,
    /// The timer of a path's set-up.
    Stale { attempt: u32 },
    /// The server starts.
    ServerStart,
}

/// Something that must not be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A request completed a second time.
    Twice(u16),
    /// A request was answered with what belongs to another one.
    Mixed(u16),
    /// Two requests of one chunk number are on the disk at once.
    Together(u16),
    /// A write took effect after it was answered, or after one that was made when it had failed.
    Overtaken(u16),
    /// A retry was overtaken by an attempt that the server had before it.
    OvertakenInServer(u16),
    /// A request reached another session generation than it was made for.
    Foreign(u16),
    /// A request failed though a path was connected all the time.
    Failed(u16),
    /// A path was lost to which nothing had happened.
    Lost(u8),
    /// The server closed, for a fence, the path of an attempt that takes requests.
    Fenced(u32),
    /// No single disk could have answered like that.
    NotLinearizable(u8),
    /// A chunk number is not free although no request uses it.
    Leaked(u8),
    /// The faults are over, and a request was not completed.
    StuckRequest(u16),
    /// The faults are over, and a path did not come back.
    StuckPath(u8),
    /// It goes round in circles.
    Livelock,
    /// A path made more attempts to reconnect than a user allows.
    TooMany(u8),
    /// A path stopped before it had made all attempts that a user allows.
    GaveUp(u8),
    /// An attempt was made too soon after the last one.
    Hasty(u8),
    /// A state machine did not take an event that it has to take.
    Stray,
}

/// A deliberate mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// The client sends requests again without a fence.
    NoFence,
    /// The server answers a fence though it may still take requests that had arrived.
    HastyFence,
    /// A request that had arrived by a path that is being closed counts as the client's latest.
    AbandonedCloses,
    /// After requests failed, the client lets a path take requests without a fence.
    NoOlder,
    /// The same, if only the epoch of the request that failed is fenced.
    NoOlderIfFenced,
    /// The server answers such a fence before the I/O has ended.
    NoDrain,
    /// Such a request takes the place of one that waits.
    LateDisplaces,
    /// The server serves every request at once.
    AlwaysServe,
    /// The server drops a request that waits.
    LostWakeup,
    /// The client takes an answer by a path that it has failed.
    LateAnswer,
    /// The client sends requests of an earlier generation.
    OldGeneration,
    /// The client forgets to requeue when a fence is answered.
    NoRequeue,
    /// The server closes all attempts before the one that carries a fence of abandoned requests.
    WideFence,
    /// The client does not look at the limit of attempts.
    NoLimit,
    /// The client does not count attempts.
    NoCount,
    /// The client counts on after a success.
    NoReset,
    /// The client never waits before the next attempt.
    AlwaysReconnectNow,
    /// The client sends what was built in another phase of the session generation.
    NoPhaseCheck,
    /// The client puts such requests on the requeue list.
    RequeueStale,
    /// The driver reads the phase after the number of the device.
    LatePhase,
    /// The driver takes the answer of a server that is not the present one.
    OldAnswer,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 21] = [
        Bug::NoFence,
        Bug::HastyFence,
        Bug::AbandonedCloses,
        Bug::LateDisplaces,
        Bug::NoOlder,
        Bug::NoOlderIfFenced,
        Bug::NoDrain,
        Bug::AlwaysServe,
        Bug::LostWakeup,
        Bug::LateAnswer,
        Bug::OldGeneration,
        Bug::NoRequeue,
        Bug::WideFence,
        Bug::NoLimit,
        Bug::NoCount,
        Bug::NoReset,
        Bug::AlwaysReconnectNow,
        Bug::NoPhaseCheck,
        Bug::RequeueStale,
        Bug::LatePhase,
        Bug::OldAnswer,
    ];
}

/// A request of a user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Req {
    pub from: Time,
    /// When it completed.
    pub to: Option<Time>,
    /// With success.
    pub ok: bool,
    pub sector: u8,
    pub write: bool,
    pub value: u32,
    /// Which attempt was answered, and its chunk.
    pub arrival: u32,
    pub tag: u8,
}

/// After the last fault everything has to recover within this time: the server's limit for
/// incomplete connections, and some more.
const TIME_LIMIT: Time = 120_000 * MS;
/// More events than any run has that ends.
const MANY: u32 = 400_000;

/// A run of a schedule.
pub struct World<'a> {
    pub(crate) sch: &'a Schedule,
    pub(crate) bug: Option<Bug>,
    pub(crate) now: Time,
    events: Events<Ev>,
    /// Requests and their I/O that are under way somewhere.
    material: u32,
    pub(crate) links: Vec<Link>,
    pub(crate) reqs: Vec<Req>,
    pub(crate) open_reqs: u32,
    pub(crate) disk: [u32; SECTORS],
    /// When the latest request was made that completed with success.
    pub(crate) latest_ok: Time,
    pub(crate) client: Client,
    pub(crate) server: Server,
    pub(crate) violation: Option<Violation>,
    trace: bool,
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The violation, if there was one.
    pub violation: Option<Violation>,
    /// Simulated time.
    pub time: Time,
    /// Events.
    pub events: u32,
    /// Requests that failed to their user.
    pub failed: u32,
    /// Times that requests were sent again.
    pub retries: u32,
    /// Requests that waited in the server for another path's I/O.
    pub waited: u32,
    /// Fences.
    pub fences: u32,
    /// Fences of abandoned requests.
    pub older: u32,
    /// Times that the disk was opened again.
    pub session_lost: u32,
    /// Attempts that succeeded.
    pub connects: u32,
    /// Attempts that failed.
    pub failures: u32,
    /// Paths that had made all attempts that a user allows.
    pub exhausted: u32,
    /// Requests that were built again.
    pub stale: u32,
}

/// Runs a schedule.
pub fn run(sch: &Schedule, bug: Option<Bug>) -> Outcome {
    World::new(sch, bug, false).run()
}

/// Runs a schedule and prints each event.
pub fn trace(sch: &Schedule, bug: Option<Bug>) -> Outcome {
    World::new(sch, bug, true).run()
}

impl<'a> World<'a> {
    fn new(sch: &'a Schedule, bug: Option<Bug>, trace: bool) -> Self {
        Self {
            sch,
            bug,
            now: 0,
            events: Events::new(),
            material: 0,
            // There is no attempt 0.
            links: vec![Link::new(0)],
            reqs: Vec::with_capacity(sch.requests.len()),
            open_reqs: sch.requests.len() as u32,
            disk: [0; SECTORS],
            latest_ok: 0,
            client: Client::new(sch),
            server: Server::new(),
            violation: None,
            trace,
        }
    }

    pub(crate) fn at(&mut self, when: Time, ev: Ev) {
        self.material += u32::from(is_material(&ev));
        self.events.add(when, ev);
    }

    pub(crate) fn violate(&mut self, violation: Violation) {
        if self.trace {
            println!("{:>12} VIOLATION {violation:?}", self.now);
        }
        self.violation.get_or_insert(violation);
    }

    pub(crate) fn note(&self, what: std::fmt::Arguments<'_>) {
        if self.trace {
            println!("{:>12} {what}", self.now);
        }
    }

    fn run(mut self) -> Outcome {
        for (i, f) in self.sch.faults.iter().enumerate() {
            self.at(f.at, Ev::Fault(i as u16));
        }
        for (i, q) in self.sch.requests.iter().enumerate() {
            self.at(q.at, Ev::Request(i as u16));
            self.reqs.push(Req {
                from: 0,
                to: None,
                ok: false,
                sector: q.sector,
                write: q.write,
                value: i as u32 + 1,
                arrival: 0,
                tag: 0,
            });
        }
        self.client_start();
        let quiet = self.sch.quiet();
        let last_request = self.sch.requests.last().map_or(0, |q| q.at);
        let deadline = quiet.max(last_request) + self.sch.queue_timeout + TIME_LIMIT;
        let mut events = 0;
        while let Some((when, ev)) = self.events.pop() {
            self.now = when;
            events += 1;
            self.material -= u32::from(is_material(&ev));
            self.happen(ev);
            if self.violation.is_some() {
                break;
            }
            if self.open_reqs == 0 && self.material == 0 && self.now > quiet && self.all_up() {
                break;
            }
            if when > deadline {
                self.stuck();
                break;
            }
            if events == MANY {
                self.violate(Violation::Livelock);
            }
        }
        if self.violation.is_none() {
            self.check_history();
        }
        Outcome {
            violation: self.violation,
            time: self.now,
            events,
            failed: self.reqs.iter().filter(|r| !r.ok).count() as u32,
            retries: self.client.retries,
            waited: self.server.waited,
            fences: self.client.fences,
            older: self.client.older,
            session_lost: self.client.session_lost,
            connects: self.client.connects,
            failures: self.client.failures,
            exhausted: self.client.exhausted,
            stale: self.client.stale,
        }
    }

    fn stuck(&mut self) {
        if let Some(i) = self.reqs.iter().position(|r| r.to.is_none()) {
            self.violate(Violation::StuckRequest(i as u16));
        }
        if let Some(p) = self.client.first_down() {
            self.violate(Violation::StuckPath(p));
        }
    }

    fn all_up(&self) -> bool {
        self.client.first_down().is_none()
    }

    fn happen(&mut self, ev: Ev) {
        let tick = matches!(ev, Ev::ClientTick { .. } | Ev::ServerTick { .. });
        if self.trace && !tick {
            println!("{:>12} {ev:?}", self.now);
        }
        match ev {
            Ev::Fault(i) => self.fault(self.sch.faults[usize::from(i)].kind),
            Ev::Request(i) => {
                self.reqs[usize::from(i)].from = self.now;
                self.client.disk.queue.push(i);
                self.dispatch();
            }
            Ev::Deliver {
                to: Side::Client,
                attempt,
                cid,
                msg,
            } => self.client_receives(attempt, cid, msg),
            Ev::Deliver {
                to: Side::Server,
                attempt,
                cid,
                msg,
            } => self.server_receives(attempt, cid, msg),
            Ev::QpError {
                side: Side::Client,
                attempt,
            } => self.client_error(attempt),
            Ev::QpError {
                side: Side::Server,
                attempt,
            } => self.server_event(attempt, server_path::Event::Error),
            Ev::ConnectTimeout { attempt } => self.connect_timeout(attempt),
            Ev::ConnectFailed { attempt } => self.connect_failed(attempt),
            Ev::Established { attempt } => self.established(attempt),
            Ev::ClientTick { attempt } => self.client_tick(attempt),
            Ev::ServerTick { attempt } => self.server_tick(attempt),
            Ev::ReconnectDue { path, timer } => self.reconnect_due(path, timer),
            Ev::UserReconnect { path } => self.user_reconnects(path),
            Ev::UserRemove { path } => self.user_removes(path),
            Ev::Requeue => self.requeue_all(),
            Ev::ClientDrained { attempt } => self.client_drained(attempt),
            Ev::QueueTimeout(outage) => {
                if self.client.fo.queue_timeout(outage) {
                    self.requeue_all();
                }
            }
            Ev::Call(call) => self.called(call),
            Ev::CallReturns => self.call_returns(),
            Ev::Driver { tag, step } => self.driver_step(tag.into(), step),
            Ev::TryOpen { timer } => self.try_open(timer),
            Ev::Opened { result } => self.opened(result),
            Ev::Dispatch => self.dispatch(),
            Ev::Accept { attempt, io } => self.accept(attempt, io),
            Ev::ServerDrained { attempt } => self.server_drained(attempt),
            Ev::Written { request } => self.written(request),
            Ev::DiskDone { request } => self.disk_done(request),
            Ev::Woken => self.serve_woken(),
            Ev::Stale { attempt } => self.stale(attempt),
            Ev::ServerStart => self.server.start(),
        }
    }

    fn fault(&mut self, kind: Kind) {
        let by = |w: &mut Self, path, ev| w.client_event(path, ev);
        match kind {
            Kind::ClientError { path } => {
                let attempt = self.client.paths[usize::from(path)].attempt;
                self.client_error(attempt);
            }
            Kind::Reconnect { path } => by(self, path, client_path::Event::UserReconnect),
            Kind::Disconnect { path, time } => {
                by(self, path, client_path::Event::UserDisconnect);
                self.at(self.now + time, Ev::UserReconnect { path });
            }
            Kind::Remove { path } => self.user_removes(path),
            Kind::ServerError { path } => self.server_fault(path, server_path::Event::Error),
            Kind::ServerDevice { path } => {
                self.server_fault(path, server_path::Event::DeviceRemoved);
            }
            Kind::Limit { most } => self.set_limit(Attempts::AtMost(most)),
            Kind::Forget => self.forget(),
            Kind::Crash { time } => {
                self.crash();
                self.at(self.now + time, Ev::ServerStart);
            }
            // The others are looked up when they matter.
            Kind::Cut { .. }
            | Kind::Delay { .. }
            | Kind::Loss { .. }
            | Kind::SlowClient { .. }
            | Kind::SlowServer { .. }
            | Kind::SlowDisk { .. }
            | Kind::SlowDriver { .. }
            | Kind::Full { .. } => {}
        }
    }

    /// The effect of the current fault, if there is one.
    pub(crate) fn during<T>(&self, which: impl Fn(&Kind) -> Option<T>) -> Option<T> {
        let now = self.now;
        let on = |f: &&Fault| f.at <= now && now < f.end();
        self.sch
            .faults
            .iter()
            .filter(on)
            .find_map(|f| which(&f.kind))
    }

    /// A request ends for its user.
    pub(crate) fn complete(&mut self, io: Io, result: Result<u32, Errno>, arrival: u32) {
        let req = io.req;
        let now = self.now;
        self.note(format_args!("request {req}: {result:?}"));
        let r = &mut self.reqs[usize::from(req)];
        if r.to.is_some() {
            return self.violate(Violation::Twice(req));
        }
        r.to = Some(now);
        r.arrival = arrival;
        r.tag = io.tag;
        self.open_reqs -= 1;
        match result {
            Ok(value) => {
                r.ok = true;
                if !r.write {
                    r.value = value;
                }
                self.latest_ok = self.latest_ok.max(r.from);
            }
            Err(errno) => {
                let healthy =
                    self.sch.mode == Mode::Ext && (0..self.sch.paths).any(|p| self.sch.healthy(p));
                // Timed out and nothing else: all other errors are for the driver.
                if errno != Errno::ETIMEDOUT || healthy || self.client.fo.is_connected() {
                    self.violate(Violation::Failed(req));
                }
            }
        }
    }

    /// A write takes effect.
    pub(crate) fn takes_effect(&mut self, io: Io, arrival: u32) {
        if io.req == Io::OPEN || !io.write {
            return;
        }
        let r = self.reqs[usize::from(io.req)];
        let late = match (self.sch.mode, r.to) {
            (_, None) | (Mode::OldServer, _) => false,
            (Mode::Ext, Some(_)) if r.ok => true,
            (Mode::Ext, Some(failed)) => self.latest_ok > failed,
            (Mode::OldClient, Some(_)) => r.ok && io.tag == r.tag && arrival < r.arrival,
        };
        if late {
            self.violate(match self.sch.mode {
                Mode::Ext => Violation::Overtaken(io.req),
                _ => Violation::OvertakenInServer(io.req),
            });
        }
        self.disk[usize::from(io.sector)] = r.value;
    }

    fn check_history(&mut self) {
        if self.sch.mode != Mode::Ext {
            return;
        }
        for sector in 0..SECTORS as u8 {
            let mut seen = [Seen::default(); crate::schedule::REQUESTS];
            let mut n = 0;
            for r in self.reqs.iter().filter(|r| r.sector == sector) {
                if !r.ok && !r.write {
                    continue;
                }
                let until = r.to.unwrap_or(Time::MAX);
                seen[n] = Seen {
                    from: r.from,
                    to: if r.ok { until } else { Time::MAX },
                    until,
                    write: r.write,
                    value: r.value,
                };
                n += 1;
            }
            if !linearizable(&seen[..n]) {
                self.violate(Violation::NotLinearizable(sector));
            }
        }
    }
}

fn is_material(ev: &Ev) -> bool {
    matches!(
        ev,
        Ev::Deliver {
            msg: Msg::Io(_) | Msg::IoRsp { .. },
            ..
        } | Ev::Accept { .. }
            | Ev::DiskDone { .. }
            | Ev::Woken
            | Ev::Written { .. }
            | Ev::Request(_)
            | Ev::Call(_)
            | Ev::CallReturns
            | Ev::Driver { .. }
            | Ev::Opened { .. }
            | Ev::Dispatch
    )
}
