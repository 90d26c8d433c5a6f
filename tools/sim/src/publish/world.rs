// SPDX-License-Identifier: GPL-2.0

//! The run of a schedule.

use std::collections::BTreeSet;

use super::bug::Bug;
use super::check::{Check, Violation};
use super::fabric::Attempt;
use super::publisher::{Publisher, Served};
use super::schedule::{Kind, Schedule, What, CLIENT, SERVER, TAGS};
use super::subscriber::Client;
use crate::events::Events;
use crate::schedule::{Rng, Time, MS};

/// What happens.
#[derive(Clone, Debug)]
pub enum Ev {
    /// A program's step.
    Step(usize),
    /// A fault begins.
    Fault(usize),
    /// A frame is at a side of a session.
    Arrive(usize, usize, u32, Vec<u8>),
    /// A side notices that an attempt is lost.
    Down(usize, usize, u32),
    /// The client tries to connect a path.
    Connect(usize, usize),
    /// An attempt is complete.
    Accepted(usize, u32),
    /// A program reads.
    Read(usize),
    /// Both sides look whether there is something to send.
    Serve,
    /// A subscriber's kernel is back.
    ClientUp(usize),
    /// The publisher's kernel is back.
    ServerUp,
}

/// What happened in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Entries that were put into the queue of a channel.
    pub entries: u32,
    /// LOST.
    pub lost: u32,
    /// Entries that a log has dropped.
    pub dropped: u32,
    /// Subscriptions that were closed because they were slow.
    pub closed: u32,
    /// Subscriptions that were refused because they were exact.
    pub refused: u32,
    /// Times that the publisher had to wait.
    pub waits: u32,
    /// Times that a subscriber had no credits.
    pub slow: u32,
    /// Moves of channels.
    pub moves: u32,
    /// Subscriptions that go on where another one has ended.
    pub renewed: u32,
    /// Subscriptions that have met another log.
    pub other_log: u32,
    /// Portals that were closed and bound again.
    pub restarts: u32,
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// What is broken.
    pub violation: Option<Violation>,
    /// Events.
    pub events: u32,
    /// What happened.
    pub seen: Seen,
}

/// A subscriber's session with the publisher's kernel.
pub struct Session {
    pub attempts: Vec<Attempt>,
    pub client: Client,
    pub server: Served,
}

/// The world of a run.
pub struct World<'s> {
    pub(super) sch: &'s Schedule,
    bug: Option<Bug>,
    pub(super) now: Time,
    rng: Rng,
    events: Events<Ev>,
    serves_at: BTreeSet<Time>,
    pub(super) sessions: Vec<Session>,
    pub(super) publisher: Publisher,
    pub(super) channels: u32,
    pub(super) check: Check,
    pub(super) seen: Seen,
    trace: bool,
}

/// Runs a schedule.
pub fn run(sch: &Schedule, bug: Option<Bug>) -> Outcome {
    World::new(sch, bug, false).run()
}

/// Runs a schedule, and prints every event.
pub fn trace(sch: &Schedule, bug: Option<Bug>) -> Outcome {
    World::new(sch, bug, true).run()
}

impl<'s> World<'s> {
    fn new(sch: &'s Schedule, bug: Option<Bug>, trace: bool) -> Self {
        let session = || Session {
            attempts: vec![Attempt::none()],
            client: Client::new(),
            server: Served::default(),
        };
        let mut world = Self {
            sch,
            bug,
            now: 0,
            rng: Rng::new(sch.seed),
            events: Events::new(),
            serves_at: BTreeSet::new(),
            sessions: (0..sch.sessions).map(|_| session()).collect(),
            publisher: Publisher::new(),
            channels: 0,
            check: Check::default(),
            seen: Seen::default(),
            trace,
        };
        world.bind();
        world
    }

    pub(super) fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(super) fn chance(&mut self, below: u64) -> u64 {
        self.rng.below(below)
    }

    /// Both sides look at that time whether there is something to send.
    pub(super) fn serve_at(&mut self, at: Time) {
        if self.serves_at.insert(at) {
            self.after(at - self.now, Ev::Serve);
        }
    }

    pub(super) fn after(&mut self, lag: Time, ev: Ev) {
        self.events.add(self.now + lag, ev);
    }

    fn run(mut self) -> Outcome {
        for who in 0..self.sessions.len() {
            for path in 0..usize::from(self.sch.paths) {
                self.after(100 * path as Time, Ev::Connect(who, path));
            }
        }
        for (n, step) in self.sch.steps.iter().enumerate() {
            self.after(step.at, Ev::Step(n));
        }
        for (n, fault) in self.sch.faults.iter().enumerate() {
            self.after(fault.at, Ev::Fault(n));
        }
        let mut events = 0;
        while let Some((at, ev)) = self.events.pop() {
            self.now = at;
            if self.trace {
                println!("{at:>8} {ev:?}");
            }
            events += 1;
            self.event(ev);
            self.settle();
            if self.check.violation.is_some() {
                break;
            }
            if events > 100_000 || at > 2_000 * MS {
                self.check.fail(Violation::Endless);
            }
        }
        if self.check.violation.is_none() {
            self.finish();
        }
        Outcome {
            violation: self.check.violation,
            events,
            seen: self.seen,
        }
    }

    fn event(&mut self, ev: Ev) {
        match ev {
            Ev::Step(n) => self.step_of(self.sch.steps[n].what),
            Ev::Fault(n) => self.fault(self.sch.faults[n].kind),
            Ev::Arrive(who, side, epoch, frame) => self.arrive(who, side, epoch, &frame),
            Ev::Down(who, side, epoch) => self.fail(who, side, epoch),
            Ev::Connect(who, path) => self.connect(who, path),
            Ev::Accepted(who, epoch) => self.accepted(who, epoch),
            Ev::Read(who) => self.read(who),
            Ev::Serve => {}
            Ev::ClientUp(who) => {
                self.sessions[who].client.up = true;
                self.reconnect(who);
            }
            Ev::ServerUp => {
                self.publisher.up = true;
                self.bind();
            }
        }
    }

    fn step_of(&mut self, what: What) {
        match what {
            What::Publish(tag, len) => self.publish(usize::from(tag), u32::from(len)),
            What::Subscribe(who, tag, next, exact) => {
                self.wants(usize::from(who), usize::from(tag), next, exact);
            }
            What::Unsubscribe(who, tag) => self.wants_no_more(usize::from(who), usize::from(tag)),
            What::Sleep(who, time) => self.sleep(usize::from(who), time),
            What::Restart => self.rebind(),
        }
    }

    fn fault(&mut self, kind: Kind) {
        match kind {
            Kind::Cut { .. } => {}
            Kind::Error {
                session,
                path,
                side,
            } => {
                let (who, side) = (usize::from(session), usize::from(side));
                let of = |a: &Attempt| a.path == usize::from(path) && a.up[side];
                if let Some(epoch) = self.sessions[who].attempts.iter().rposition(of) {
                    self.fail(who, side, epoch as u32);
                }
            }
            Kind::Relocate { session } => self.relocate(usize::from(session)),
            Kind::Forget { session } => {
                let who = usize::from(session);
                for epoch in 1..self.sessions[who].attempts.len() {
                    self.fail(who, SERVER, epoch as u32);
                }
                self.forget(who);
            }
            Kind::RestartClient { session, time } => self.stop_client(usize::from(session), time),
            Kind::RestartServer { time } => self.stop_server(time),
        }
    }

    fn reconnect(&mut self, who: usize) {
        for path in 0..usize::from(self.sch.paths) {
            self.after(1, Ev::Connect(who, path));
        }
    }

    fn stop_server(&mut self, time: Time) {
        if !self.publisher.up {
            return;
        }
        self.publisher.up = false;
        for entries in &mut self.publisher.logs {
            entries.pending.clear();
        }
        for who in 0..self.sessions.len() {
            self.forget(who);
            for epoch in 1..self.sessions[who].attempts.len() {
                self.sessions[who].attempts[epoch].up[SERVER] = false;
                let notice = 50 + self.chance(8 * MS);
                self.after(notice, Ev::Down(who, CLIENT, epoch as u32));
            }
        }
        self.after(time, Ev::ServerUp);
    }

    /// Both sides do what they can do now.
    fn settle(&mut self) {
        let mut is_busy = true;
        while is_busy {
            is_busy = self.publish_pending();
            for who in 0..self.sessions.len() {
                self.ask_again(who);
                self.send_all(who, CLIENT);
                is_busy |= self.serve_feeds(who);
                self.send_all(who, SERVER);
            }
        }
        let logs = self.publisher.logs.iter();
        let is_long = logs.zip(self.sch.logs).any(|(entries, terms)| {
            entries.log.len() > u64::from(terms.entries) || entries.log.bytes() > terms.bytes
        });
        let mut ends = (self.sessions.iter())
            .flat_map(|session| [session.client.end.as_ref(), session.server.end.as_ref()])
            .flatten();
        let waits = |session: &Session| {
            let end = session.server.end.as_ref();
            end.is_some_and(|end| !end.has_sent_all())
        };
        let waits = self.sessions.iter().any(waits);
        if is_long || waits || ends.any(|end| !end.is_within_terms()) {
            self.check.fail(Violation::Memory);
        }
    }

    fn finish(&mut self) {
        for tag in 0..TAGS {
            if !self.publisher.logs[tag].pending.is_empty() {
                self.check.fail(Violation::Stuck(tag));
            }
        }
        for (who, tag) in Check::all(self.sessions.len()) {
            let id = self.publisher.logs[tag].log.id();
            match self.sessions[who].client.wants(tag) {
                (true, true) => self.check.has_all(who, tag, id),
                (true, false) => self.check.fail(Violation::Missing(who, tag)),
                (false, true) => self.check.fail(Violation::NotEnded(who, tag)),
                (false, false) => {}
            }
        }
    }
}
