// SPDX-License-Identifier: GPL-2.0

//! Schedules: everything in a run that the logic does not decide.

use crate::schedule::{Rng, Time, MS};

/// Most paths.
pub const PATHS: usize = 3;
/// Most channels.
pub const CHANNELS: usize = 4;
/// The client, in arrays of both sides.
pub const CLIENT: usize = 0;
/// The server.
pub const SERVER: usize = 1;
/// The longest message.
pub const MAX_MESSAGE: u32 = 120;

/// What a program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Sends a message without an answer.
    Send,
    /// Makes a call.
    Call,
    /// Closes its end, or dies.
    Close,
    /// Writes no more and takes no more, but waits for the outcomes.
    Shut,
}

/// An operation of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// When, counted from when the channel is open.
    pub at: Time,
    /// What.
    pub what: What,
    /// Bytes of the message.
    pub len: u32,
    /// Its time; `None` for no limit.
    pub timeout: Option<Time>,
}

/// What the program at the portal decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Accepts.
    Accept,
    /// Refuses.
    Reject,
    /// Names another address.
    Redirect,
}

/// The terms of one side of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Window in messages.
    pub messages: u32,
    /// Window in bytes.
    pub bytes: u32,
    /// The sender's own limit in messages.
    pub send_messages: u32,
    /// The program takes up to this long to take a message.
    pub think: Time,
}

/// A channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chan {
    /// When it is opened.
    pub at: Time,
    /// How long the program at the portal takes to decide; `None`: it never does.
    pub decide: Option<Time>,
    /// What it decides.
    pub decision: Decision,
    /// When the client's program gives it up, if it is not open by then.
    pub withdraw: Option<Time>,
    /// The terms of both sides.
    pub terms: [Terms; 2],
    /// What the programs of both sides do.
    pub ops: [Vec<Action>; 2],
}

/// The faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing passes in these directions (bit 0: from the client). Short outages are bridged, longer
    /// ones break connections; frames may arrive in the end.
    Cut { path: u8, dirs: u8, time: Time },
    /// Some frames are lost for good, and their connections with them.
    Loss { path: u8, time: Time },
    /// One side sees an error; the other one learns of it later.
    Error { path: u8, side: u8 },
    /// A side takes this much longer to look at frames.
    Slow { side: u8, time: Time, extra: Time },
    /// A side has no memory to post receives again.
    NoMemory { side: u8, time: Time },
    /// A side has no memory for some of the messages that arrive.
    NoRoom { side: u8, time: Time },
    /// A kernel stops at once, and is back after a while.
    Reboot { side: u8, time: Time },
    /// The programs of a side do not read.
    NoReader { side: u8, time: Time },
    /// The client moves a channel, whose connection works, to another connection.
    Relocate { chan: u8 },
}

impl Kind {
    const fn time(&self) -> Time {
        match *self {
            Kind::Cut { time, .. }
            | Kind::Loss { time, .. }
            | Kind::Slow { time, .. }
            | Kind::NoMemory { time, .. }
            | Kind::NoRoom { time, .. }
            | Kind::Reboot { time, .. }
            | Kind::NoReader { time, .. } => time,
            Kind::Error { .. } | Kind::Relocate { .. } => 0,
        }
    }
}

/// Something that goes wrong at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When.
    pub at: Time,
    /// What.
    pub kind: Kind,
}

impl Fault {
    /// Whether it lasts at this time.
    pub const fn during(&self, now: Time) -> bool {
        self.at <= now && now < self.at + self.kind.time()
    }

    /// When it is over.
    pub const fn end(&self) -> Time {
        self.at + self.kind.time()
    }
}

/// A whole run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The seed; the fabric's behaviour follows from it.
    pub seed: u64,
    /// Paths of the session.
    pub paths: u8,
    /// The first message number.
    pub first: u32,
    /// Receives of a connection, on each side.
    pub receives: [u32; 2],
    /// Retransmission ends after this.
    pub retry: Time,
    /// Several messages may travel in a frame.
    pub gather: bool,
    /// The channels.
    pub channels: Vec<Chan>,
    /// The faults.
    pub faults: Vec<Fault>,
}

/// Channels are opened, and faults begin, before this.
const BUSY: Time = 60 * MS;

impl Schedule {
    /// The schedule of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut r = Rng::new(seed ^ 0x6D73_6773);
        let mut s = Self {
            seed,
            paths: r.between(1, PATHS as u64) as u8,
            first: [0xFFFF_FF00, 0xFFFF_FFFD, 0, 0x7FFF_FFFD][r.below(4) as usize],
            receives: [r.between(8, 12) as u32, r.between(8, 12) as u32],
            retry: r.between(2, 10) * MS,
            gather: r.below(2) == 0,
            channels: Vec::new(),
            faults: Vec::new(),
        };
        for _ in 0..[1, 1, 2, 2, 3, CHANNELS as u64][r.below(6) as usize] {
            s.channels.push(channel(&mut r));
        }
        for _ in 0..[0, 1, 2, 3, 4, 6][r.below(6) as usize] {
            let at = r.below(BUSY);
            let kind = fault(&mut r, s.paths);
            s.faults.push(Fault { at, kind });
        }
        if seed % 8 == 7 {
            s.crowd(&mut r);
        }
        for _ in 0..[0, 0, 1, 2][r.below(4) as usize] {
            let chan = r.below(s.channels.len() as u64) as u8;
            let kind = Kind::Relocate { chan };
            let at = r.below(BUSY);
            s.faults.push(Fault { at, kind });
            // It may come back before the server has heard of either move.
            if r.below(2) == 0 {
                let at = at + r.below(MS);
                s.faults.push(Fault { at, kind });
                s.faults.push(Fault {
                    at: at + r.below(2 * MS),
                    kind: fault(&mut r, s.paths),
                });
            }
        }
        s.faults.sort_by_key(|fault| fault.at);
        s
    }

    /// Makes channels meet faults while they are opened, at a server that looks at frames late.
    fn crowd(&mut self, r: &mut Rng) {
        self.paths = PATHS as u8;
        self.channels
            .resize_with(r.between(2, CHANNELS as u64) as usize, || channel(r));
        for chan in &mut self.channels {
            chan.at = MS + r.below(4 * MS);
            chan.withdraw = (r.below(2) == 0).then(|| r.below(6 * MS));
            chan.terms[SERVER].think = 200;
            for op in &mut chan.ops[CLIENT] {
                (op.at, op.timeout) = (r.below(2 * MS), op.timeout.map(|time| time / 4));
            }
        }
        let slow = Kind::Slow {
            side: SERVER as u8,
            time: 20 * MS,
            extra: 6 * MS,
        };
        self.faults = vec![Fault { at: MS, kind: slow }];
        for _ in 0..r.between(2, 4) {
            let path = r.below(PATHS as u64) as u8;
            let kind = Kind::Error { path, side: 0 };
            self.faults.push(Fault {
                at: 2 * MS + r.below(12 * MS),
                kind,
            });
        }
    }
}

fn terms(r: &mut Rng) -> Terms {
    let cost = u64::from(ibmsg_proto::limits::cost(MAX_MESSAGE));
    Terms {
        messages: r.between(1, 5) as u32,
        bytes: r.between(cost, 4 * cost) as u32,
        send_messages: r.between(1, 6) as u32,
        think: [0, 1, 1, 10][r.below(4) as usize] * MS + 100,
    }
}

fn channel(r: &mut Rng) -> Chan {
    let (to, from) = (
        [2, 5, 8][r.below(3) as usize],
        [0, 2, 5][r.below(3) as usize],
    );
    Chan {
        at: r.below(BUSY / 2),
        decide: (r.below(10) != 0).then(|| r.below(3 * MS)),
        decision: match r.below(12) {
            0 => Decision::Reject,
            1 => Decision::Redirect,
            _ => Decision::Accept,
        },
        withdraw: (r.below(8) == 0).then(|| r.below(5 * MS)),
        terms: [terms(r), terms(r)],
        ops: [ops(r, to), ops(r, from)],
    }
}

fn ops(r: &mut Rng, most: u64) -> Vec<Action> {
    let spread = [1, 10, 60][r.below(3) as usize] * MS;
    let mut ops: Vec<_> = (0..r.below(most + 1))
        .map(|_| Action {
            at: r.below(spread),
            what: match r.below(3) {
                0 => What::Call,
                _ => What::Send,
            },
            len: match r.below(4) {
                0 => 0,
                _ => r.between(1, u64::from(MAX_MESSAGE)) as u32,
            },
            timeout: (r.below(3) == 0).then(|| r.below(20 * MS)),
        })
        .collect();
    if r.below(3) == 0 {
        ops.push(Action {
            at: r.below(2 * spread),
            what: match r.below(3) {
                0 => What::Shut,
                _ => What::Close,
            },
            len: 0,
            timeout: None,
        });
    }
    ops.sort_by_key(|op| op.at);
    ops
}

fn fault(r: &mut Rng, paths: u8) -> Kind {
    let path = r.below(u64::from(paths)) as u8;
    let side = r.below(2) as u8;
    let time = [1, 5, 20, 40][r.below(4) as usize] * MS;
    match r.below(12) {
        0..=3 => Kind::Cut {
            path,
            dirs: r.between(1, 3) as u8,
            time,
        },
        4 | 5 => Kind::Loss { path, time },
        6 | 7 => Kind::Error { path, side },
        8 => Kind::Slow {
            side,
            time,
            extra: r.between(1, 8) * MS,
        },
        9 if r.below(2) == 0 => Kind::NoRoom { side, time },
        9 => Kind::NoMemory { side, time },
        10 => Kind::NoReader { side, time },
        _ if r.below(2) == 0 => Kind::Reboot { side, time },
        _ => Kind::Error { path, side },
    }
}
