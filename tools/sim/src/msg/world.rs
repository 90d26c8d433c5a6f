// SPDX-License-Identifier: GPL-2.0

//! Runs a schedule: time, events, and the state of both kernels.

use std::collections::VecDeque;

use ibmsg_proto::call::{CalleeSlot, CallerSlot};
use ibmsg_proto::channel::Channel;
use ibmsg_proto::fair::Deficit;
use ibmsg_proto::send::Item;
use ibmsg_proto::Seq;

use super::bug::Bug;
use super::check::{Log, Violation};
use super::fabric::{Attempt, Record};
use super::schedule::{Kind, Schedule, CLIENT, PATHS, SERVER};
use crate::events::Events;
use crate::schedule::{mix, Time};

/// Slots for calls on each side of a channel.
pub const CALLS: usize = 2;

/// What happens.
#[derive(Clone, Debug)]
pub enum Ev {
    /// The client tries to connect a path.
    Connect { path: usize },
    /// Its request is at the server.
    ConnReq { epoch: u32, client: u32 },
    /// The server's acceptance is at the client.
    ConnRsp { epoch: u32, server: u32 },
    /// A side notices that a connection attempt is lost, or has failed.
    Down { side: usize, epoch: u32 },
    /// A frame is in a receive of a side.
    Arrive {
        side: usize,
        epoch: u32,
        frame: Vec<u8>,
    },
    /// A side looks at the oldest frame that it has not looked at.
    Process { side: usize, epoch: u32 },
    /// A receive is posted again.
    Repost { side: usize, epoch: u32 },
    /// A record is sent that was sent before.
    Repeat {
        side: usize,
        epoch: u32,
        record: Record,
    },
    /// An acknowledgement may be due.
    Timer { side: usize },
    /// A channel is opened.
    Open { chan: usize },
    /// The program at the portal decides.
    Decide { chan: usize, boot: u32 },
    /// A program does something.
    Op {
        chan: usize,
        side: usize,
        op: usize,
        boot: u32,
    },
    /// There is memory for messages of a channel.
    Room { chan: usize, side: usize, boot: u32 },
    /// A program reads.
    Read { chan: usize, side: usize, boot: u32 },
    /// A program answers a request.
    Answer {
        chan: usize,
        side: usize,
        boot: u32,
        request: u32,
        id: u64,
        again: bool,
    },
    /// The time of a message is over.
    Expire {
        chan: usize,
        side: usize,
        boot: u32,
        id: u32,
    },
    /// With [`Bug::AckBeforeQueue`]: a message gets into the queue.
    LateQueue {
        chan: usize,
        side: usize,
        epoch: u32,
        waiting: Waiting,
    },
    /// The client's program gives up a channel that is not open yet.
    Withdraw { chan: usize, boot: u32 },
    /// A fault begins.
    Fault(usize),
    /// A kernel is back.
    Boot { side: usize },
}

/// A message in the queue of a sender.
#[derive(Debug)]
pub struct Sent {
    /// Its state.
    pub item: Item,
    /// Its number in the log.
    pub id: u32,
    /// Id of its call; 0: none.
    pub call: u64,
    /// It is a reply.
    pub reply: bool,
    /// It was sent at least once.
    pub sent: bool,
}

/// A message in the queue of a program.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Its number in the channel.
    pub number: Seq,
    /// Its number in the log.
    pub id: u32,
    /// Id of its call; 0: none.
    pub call: u64,
    /// It is a reply.
    pub reply: bool,
}

/// A side of a channel.
#[derive(Debug)]
pub struct End {
    /// The state machines.
    pub ch: Channel,
    /// Messages that are not acknowledged.
    pub queue: VecDeque<Sent>,
    /// The message of which pieces are being sent, and where the next one begins.
    pub piece: Option<(Seq, u32)>,
    /// Requests that are acknowledged and not answered: number, message, call.
    pub acked: Vec<(Seq, u32, u64)>,
    /// Messages for the program.
    pub inbox: VecDeque<Waiting>,
    /// Calls of the program, with their messages.
    pub calls: [(CallerSlot, u32); CALLS],
    /// Calls that the program is to answer.
    pub callee: [CalleeSlot; CALLS],
    /// Fair queueing.
    pub deficit: Deficit,
    /// It is at the front of the list.
    pub front: bool,
    /// The program has it open.
    pub program: bool,
    /// The program writes no more and takes no more.
    pub shut: bool,
    /// A [`Ev::Read`] is on its way.
    pub reading: bool,
    /// A [`Ev::Room`] is on its way.
    pub hungry: bool,
    /// The last acknowledgement that arrived, for [`Bug::AddCredits`].
    pub last_taken: Seq,
}

/// A kernel.
#[derive(Debug, Default)]
pub struct Host {
    /// It runs.
    pub up: bool,
    /// How often it was started; 0 is the first time.
    pub boot: u32,
    /// Its channels, by their numbers less 1.
    pub ends: Vec<Option<Box<End>>>,
    /// Of the client: the paths' attempts.
    pub attempts: [Option<u32>; PATHS],
    /// Of the client: those that are connected, in the order in which they came.
    pub usable: Vec<u32>,
    /// Which boot of the peer the session is with.
    pub peer: Option<u32>,
    /// The channel that sends first.
    pub turn: usize,
    /// Of the client: the server is to learn which attempts there are.
    pub live_due: bool,
    /// Something may be sent.
    pub dirty: bool,
    /// Time of the next [`Ev::Timer`].
    pub timer: Time,
}

/// What a run has seen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Outcome {
    /// The broken property.
    pub violation: Option<Violation>,
    /// Events.
    pub events: u32,
    /// Time at the end.
    pub time: Time,
    /// Messages that kernels took over.
    pub messages: u32,
    /// Those that were sent again.
    pub resent: u32,
    /// SKIPs.
    pub skips: u32,
    /// Moves of channels.
    pub moves: u32,
    /// Calls that were answered.
    pub calls: u32,
    /// Messages whose outcome is unknown.
    pub unknown: u32,
    /// Messages that were not delivered.
    pub undelivered: u32,
    /// Frames that waited for credits.
    pub starved: u32,
    /// Records that were repeated.
    pub repeated: u32,
    /// Frames that arrived when the receiver had closed their connection.
    pub late: u32,
    /// Kernels that rebooted.
    pub reboots: u32,
    /// Messages, or pieces, for which there was no memory.
    pub dropped: u32,
    /// Channels that were moved although their connections worked.
    pub relocated: u32,
}

/// The world.
pub struct World<'a> {
    pub sch: &'a Schedule,
    pub bug: Option<Bug>,
    pub trace: bool,
    pub now: Time,
    events: Events<Ev>,
    pub attempts: Vec<Attempt>,
    pub hosts: [Host; 2],
    pub log: Log,
    pub seen: Outcome,
    chances: u64,
    /// Channels that the client's program wanted while no path was connected.
    pub unopened: Vec<usize>,
}

/// More events than any run has that ends.
const ENDLESS: u32 = 30_000;

impl World<'_> {
    /// Random bits.
    pub fn chance(&mut self) -> u64 {
        self.chances = self.chances.wrapping_add(1);
        mix(self.sch.seed ^ mix(self.chances))
    }

    /// Whether the run has this mistake.
    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Something happens later.
    pub fn after(&mut self, delay: Time, ev: Ev) {
        self.events.add(self.now + delay, ev);
    }

    /// The faults that last now.
    pub fn faults(&self) -> impl Iterator<Item = Kind> + '_ {
        let now = self.now;
        self.sch
            .faults
            .iter()
            .filter(move |f| f.during(now))
            .map(|f| f.kind)
    }

    fn step(&mut self, ev: Ev) {
        match ev {
            Ev::Connect { path } => self.connect(path),
            Ev::ConnReq { epoch, client } => self.conn_req(epoch, client),
            Ev::ConnRsp { epoch, server } => self.conn_rsp(epoch, server),
            Ev::Down { side, epoch } => self.down(side, epoch),
            Ev::Arrive { side, epoch, frame } => self.arrive(side, epoch, frame),
            Ev::Process { side, epoch } => self.process(side, epoch),
            Ev::Repost { side, epoch } => self.repost(side, epoch),
            Ev::Repeat {
                side,
                epoch,
                record,
            } => {
                if self.attempts[epoch as usize].alive[side] && self.may_repeat(side, &record) {
                    self.seen.repeated += 1;
                    self.control(side, epoch, record);
                }
            }
            Ev::Timer { side } => {
                if self.hosts[side].timer <= self.now {
                    self.hosts[side].timer = Time::MAX;
                    self.hosts[side].dirty = true;
                }
            }
            Ev::Open { chan } => self.open(chan),
            Ev::Decide { chan, boot } => self.decide(chan, boot),
            Ev::Op {
                chan,
                side,
                op,
                boot,
            } => self.op(chan, side, op, boot),
            Ev::Room { chan, side, boot } => self.room(chan, side, boot),
            Ev::Read { chan, side, boot } => self.read(chan, side, boot),
            Ev::Answer {
                chan,
                side,
                boot,
                request,
                id,
                again,
            } => {
                self.answer(chan, side, boot, request, id, again);
            }
            Ev::Expire {
                chan,
                side,
                boot,
                id,
            } => self.expire(chan, side, boot, id),
            Ev::LateQueue {
                chan,
                side,
                epoch,
                waiting,
            } => {
                if self.attempts[epoch as usize].alive[side] {
                    self.queue_for_program(chan, side, waiting);
                }
            }
            Ev::Withdraw { chan, boot } => self.withdraw(chan, boot),
            Ev::Fault(at) => self.fault(at),
            Ev::Boot { side } => self.boot(side),
        }
    }

    fn fault(&mut self, at: usize) {
        match self.sch.faults[at].kind {
            Kind::Error { path, side } => {
                let epoch = self.attempts.iter().rposition(|attempt| {
                    attempt.path == usize::from(path) && attempt.alive[usize::from(side)]
                });
                if let Some(epoch) = epoch {
                    self.down(usize::from(side), epoch as u32);
                }
            }
            Kind::Reboot { side, time } => self.reboot(usize::from(side), time),
            Kind::Relocate { chan } => self.relocate(usize::from(chan)),
            _ => {}
        }
    }

    /// A kernel stops: all that it had is gone, and so are its programs.
    fn reboot(&mut self, side: usize, time: Time) {
        if !self.hosts[side].up {
            return;
        }
        self.seen.reboots += 1;
        for epoch in 0..self.attempts.len() {
            if self.attempts[epoch].alive[side] {
                self.kill(side, epoch as u32);
            }
        }
        for m in self.log.messages.iter_mut().filter(|m| m.from == side) {
            m.orphan = true;
        }
        let host = &mut self.hosts[side];
        for (chan, end) in host.ends.iter_mut().enumerate() {
            if end.take().is_some() {
                self.log.peer_lost[chan] = true;
            }
        }
        // The peer may have channels that this kernel has forgotten, or does not know yet.
        for (chan, end) in self.hosts[1 - side].ends.iter().enumerate() {
            if end.is_some() {
                self.log.peer_lost[chan] = true;
            }
        }
        if side == CLIENT {
            self.unopened.clear();
        }
        let host = &mut self.hosts[side];
        host.up = false;
        host.boot += 1;
        host.peer = None;
        host.attempts = [None; PATHS];
        host.usable.clear();
        host.live_due = false;
        self.after(time, Ev::Boot { side });
    }

    fn boot(&mut self, side: usize) {
        self.hosts[side].up = true;
        if side == CLIENT {
            for path in 0..usize::from(self.sch.paths) {
                self.after(0, Ev::Connect { path });
            }
        }
    }

    fn go(&mut self) {
        while let Some((at, ev)) = self.events.pop() {
            self.now = at;
            if self.trace {
                println!("{at:8} {ev:?}");
            }
            self.seen.events += 1;
            self.step(ev);
            for side in [CLIENT, SERVER] {
                if core::mem::take(&mut self.hosts[side].dirty) {
                    self.transmit_all(side);
                }
            }
            if self.seen.events > ENDLESS {
                self.log.fail(Violation::Endless);
            }
            if self.log.violation.is_some() {
                return;
            }
        }
        self.finish();
    }

    /// Nothing happens any more.
    fn finish(&mut self) {
        let channels = self.sch.channels.len();
        let mut live = vec![false; channels];
        for (chan, live) in live.iter_mut().enumerate() {
            let [client, server] =
                [CLIENT, SERVER].map(|side| self.hosts[side].ends[chan].as_deref());
            match (client, server) {
                (None, None) => {}
                (Some(client), Some(server)) => {
                    *live = client.ch.is_open() && server.ch.is_open();
                    let waits = self.sch.channels[chan].decide.is_none() && client.ch.is_opening();
                    if waits {
                        continue;
                    }
                    if !*live {
                        self.log.fail(Violation::Leak(chan));
                        continue;
                    }
                    for (from, to) in [(client, server), (server, client)] {
                        let told = to.ch.rx.ack();
                        let credits = (from.ch.tx.msg_limit(), from.ch.tx.byte_limit());
                        let high = from.ch.tx.high();
                        let window = to.ch.rx.window();
                        let is_right = credits == (told.msg_limit, told.byte_limit)
                            && told.msg_limit == high.plus(window.messages())
                            && told.byte_limit == from.ch.tx.bytes().plus(window.bytes());
                        if from.queue.is_empty() && to.inbox.is_empty() && !is_right {
                            self.log.fail(Violation::Credits(chan));
                        }
                    }
                }
                _ => self.log.fail(Violation::Leak(chan)),
            }
        }
        self.log.finish(&live);
    }
}

fn run_with(sch: &Schedule, bug: Option<Bug>, trace: bool) -> Outcome {
    let channels = sch.channels.len();
    let host = || Host {
        up: true,
        ends: (0..channels).map(|_| None).collect(),
        timer: Time::MAX,
        ..Host::default()
    };
    let mut world = World {
        sch,
        bug,
        trace,
        now: 0,
        events: Events::new(),
        // Epoch 0 is none.
        attempts: vec![Attempt::none()],
        hosts: [host(), host()],
        log: Log::new(channels),
        seen: Outcome::default(),
        chances: 0,
        unopened: Vec::new(),
    };
    for path in 0..usize::from(sch.paths) {
        world.after(0, Ev::Connect { path });
    }
    for (chan, channel) in sch.channels.iter().enumerate() {
        world.after(channel.at, Ev::Open { chan });
    }
    for (at, fault) in sch.faults.iter().enumerate() {
        world.after(fault.at, Ev::Fault(at));
    }
    world.go();
    let mut seen = world.seen;
    seen.violation = world.log.violation;
    seen.time = world.now;
    seen.messages = world.log.messages.len() as u32;
    for m in &world.log.messages {
        seen.calls += u32::from(m.answered);
        seen.unknown += u32::from(m.told == Some(ibmsg_proto::Outcome::Unknown));
        seen.undelivered += u32::from(m.told == Some(ibmsg_proto::Outcome::NotDelivered));
    }
    seen
}

/// Runs a schedule, with a mistake or without.
pub fn run(sch: &Schedule, bug: Option<Bug>) -> Outcome {
    run_with(sch, bug, false)
}

/// The same, and prints what happens.
pub fn trace(sch: &Schedule, bug: Option<Bug>) -> Outcome {
    run_with(sch, bug, true)
}
