// SPDX-License-Identifier: GPL-2.0

//! The run of a schedule.

use ibmsg_proto::outcome::Cause;

use super::bug::Bug;
use super::check::{Log, Violation};
use super::fabric::{Asked, Attempt, Pkt, Qp, Wr};
use super::host::Host;
use super::schedule::{Kind, Schedule, CLIENT, SERVER};
use crate::events::Events;
use crate::schedule::{Rng, Time, MS};

/// What happens.
#[derive(Clone, Debug)]
pub enum Ev {
    /// A program's step.
    Step(usize),
    /// A fault begins.
    Fault(usize),
    /// A packet is at a side.
    Arrive(usize, u32, Pkt),
    /// A work request of a side has completed.
    Completed(usize, u32, Wr),
    /// A side notices that an attempt is lost.
    Down(usize, u32),
    /// A queue pair of a side is drained.
    Drained(usize, u32),
    /// LOCAL_INV of a key of published memory, by its place, has completed.
    Invalid(usize, u32, usize),
    /// LOCAL_INV of a landing key has completed.
    Closed(usize, u32, usize, u32),
    /// A READ is answered by this side.
    Answer(usize, u32, Asked),
    /// The buffer of a GET is mapped for this attempt.
    Mapped(usize, u32, usize),
    /// The program of a side takes the message that it has seen.
    Take(usize),
    /// The client tries to connect a path.
    Connect(usize),
    /// An attempt is complete.
    Accepted(u32),
    /// A side looks whether there is something to send.
    Pump,
    /// A side learns that the other kernel is gone.
    PeerGone(usize),
}

/// What happened in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// WRITEs of PUTs that landed.
    pub writes: u32,
    /// Reads that landed at the asker.
    pub reads: u32,
    /// WRITEs that landed by a queue pair in error.
    pub late: u32,
    /// Work requests that met an invalid key.
    pub refused: u32,
    /// Moves of the channel.
    pub moves: u32,
    /// PUTs that were written again.
    pub repeated: u32,
    /// Operations that were torn.
    pub torn: u32,
    /// Operations whose outcome is unknown.
    pub unknown: u32,
    /// Operations that were refused, untouched.
    pub undone: u32,
    /// Ranges that were given back.
    pub freed: u32,
    /// Receipts of bodies.
    pub receipts: u32,
    /// Bodies that were released before their message was taken.
    pub early: u32,
    /// Bodies of messages that were queued there and never taken.
    pub untaken: u32,
    /// Entries of RESUME that waited for the fence.
    pub fenced: u32,
    /// Keys that were returned to make room.
    pub replaced: u32,
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

/// The world of a run.
pub struct World<'s> {
    pub(super) sch: &'s Schedule,
    pub(super) bug: Option<Bug>,
    pub(super) now: Time,
    pub(super) rng: Rng,
    events: Events<Ev>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) hosts: [Host; 2],
    pub(super) log: Log,
    pub(super) seen: Seen,
    pub(super) next_key: u32,
    /// A work request may meet an invalid key: an owner has not waited.
    pub(super) access_excused: bool,
    pub(super) reads_excused: [bool; 2],
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
        let mut world = Self {
            sch,
            bug,
            now: 0,
            rng: Rng::new(sch.seed),
            events: Events::new(),
            attempts: Vec::new(),
            hosts: Host::pair(sch, bug),
            log: Log::default(),
            seen: Seen::default(),
            next_key: 0,
            access_excused: false,
            reads_excused: [false; 2],
            trace,
        };
        // No attempt has the number 0.
        let mut none = Attempt::default();
        (none.path, none.qp) = (usize::MAX, [Qp::Gone; 2]);
        world.attempts.push(none);
        world
    }

    pub(super) fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(super) fn chance(&mut self, below: u64) -> u64 {
        self.rng.below(below)
    }

    pub(super) fn after(&mut self, lag: Time, ev: Ev) {
        self.events.add(self.now + lag, ev);
    }

    fn run(mut self) -> Outcome {
        // The channel was opened by the first connection.
        self.connect(0);
        self.attempts[1].qp = [Qp::Ready; 2];
        self.attempts[1].up = [true; 2];
        self.attempts[1].accepted = true;
        for path in 1..usize::from(self.sch.paths) {
            self.after(100 * path as Time, Ev::Connect(path));
        }
        for (n, op) in self.sch.ops.iter().enumerate() {
            self.after(op.at, Ev::Step(n));
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
            for side in [CLIENT, SERVER] {
                self.serve(side);
            }
            if self.log.violation.is_some() {
                break;
            }
            if events > 100_000 || at > 2_000 * MS {
                self.log.fail(Violation::Endless);
            }
        }
        if self.log.violation.is_none() {
            self.finish();
        }
        Outcome {
            violation: self.log.violation,
            events,
            seen: self.seen,
        }
    }

    fn event(&mut self, ev: Ev) {
        match ev {
            Ev::Step(n) => self.step(n),
            Ev::Fault(n) => self.fault(n),
            Ev::Arrive(side, epoch, pkt) => self.arrive(side, epoch, pkt),
            Ev::Completed(side, epoch, wr) => {
                if self.attempts[epoch as usize].qp[side] == Qp::Ready {
                    self.completed(side, epoch, wr);
                }
            }
            Ev::Down(side, epoch) => self.fail(side, epoch),
            Ev::Drained(side, epoch) => self.drained(side, epoch),
            Ev::Invalid(side, epoch, place) => self.invalid(side, epoch, place),
            Ev::Closed(side, epoch, op, rkey) => {
                if self.attempts[epoch as usize].qp[side] == Qp::Ready {
                    self.attempts[epoch as usize].keys[side].remove(&rkey);
                    self.landing_closed(side, op);
                }
            }
            Ev::Answer(side, epoch, asked) => self.answer_read(side, epoch, asked),
            Ev::Mapped(side, epoch, op) => {
                if self.attempts[epoch as usize].qp[side] == Qp::Ready {
                    self.landing_mapped(side, op);
                }
            }
            Ev::Take(side) => self.take_late(side),
            Ev::Connect(path) => self.connect(path),
            Ev::Accepted(epoch) => self.accepted(epoch),
            Ev::Pump => {}
            Ev::PeerGone(side) => {
                self.hosts[side].ch.abandon();
                self.channel_ends(side, Cause::PeerLost);
                for epoch in 1..self.attempts.len() as u32 {
                    self.fail(side, epoch);
                }
            }
        }
    }

    fn fault(&mut self, n: usize) {
        match self.sch.faults[n].kind {
            Kind::Error { path, side } => {
                let of = |a: &Attempt| a.path == usize::from(path) && a.up[usize::from(side)];
                if let Some(epoch) = self.attempts.iter().rposition(of) {
                    self.fail(usize::from(side), epoch as u32);
                }
            }
            Kind::Crash { side } => {
                let side = usize::from(side);
                self.log.excused = true;
                self.hosts[side].up = false;
                for epoch in 1..self.attempts.len() {
                    self.attempts[epoch].qp[side] = Qp::Gone;
                    self.attempts[epoch].up[side] = false;
                    let notice = 50 + self.chance(8 * MS);
                    self.after(notice, Ev::Down(1 - side, epoch as u32));
                }
                for op in self.log.ops.iter_mut().filter(|op| op.side == side) {
                    op.orphan = true;
                }
                let lag = 10 * MS + self.chance(10 * MS);
                self.after(lag, Ev::PeerGone(1 - side));
            }
            Kind::Relocate => self.relocate(),
            Kind::Cut { .. } | Kind::Slow { .. } => {}
        }
    }

    fn finish(&mut self) {
        for id in 0..self.log.ops.len() {
            let op = &self.log.ops[id];
            if op.told.is_none() && !op.orphan {
                self.log.fail(Violation::Stuck(id));
            }
        }
        for side in [CLIENT, SERVER] {
            let host = &self.hosts[side];
            if !host.up {
                continue;
            }
            if host.exports.iter().any(|e| e.is_revoked()) {
                self.log.fail(Violation::Leak);
            }
            if host.dead && host.mems.iter().any(|m| !m.freed) {
                self.log.fail(Violation::Undead);
            }
            let mut loans = host.loans.iter().flatten();
            if loans.any(|loan| loan.owes_receipt()) {
                self.log.fail(Violation::Receipt);
            }
            if host.loans.iter().any(Option::is_some) && !self.log.excused {
                self.log.fail(Violation::Leak);
            }
        }
    }
}
