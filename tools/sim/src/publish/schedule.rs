// SPDX-License-Identifier: GPL-2.0

//! Schedules: everything in a run that the logic does not decide.

use ibmsg_proto::publish::Policy;

use crate::schedule::{Rng, Time, MS};

/// The client's side of a session.
pub const CLIENT: usize = 0;
/// The server's side, where the publisher is.
pub const SERVER: usize = 1;
/// Tags.
pub const TAGS: usize = 3;

/// What a program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// The publisher publishes: tag, bytes.
    Publish(u8, u8),
    /// A subscriber subscribes: tag, with what comes next (not with what the log has), exactly.
    Subscribe(u8, u8, bool, bool),
    /// It wants no more.
    Unsubscribe(u8, u8),
    /// It reads nothing for a while.
    Sleep(u8, Time),
    /// The publisher closes its portal, and binds another one.
    Restart,
}

/// A program's step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// When.
    pub at: Time,
    /// What.
    pub what: What,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A direction of a path holds everything back, or loses it.
    Cut {
        session: u8,
        path: u8,
        dir: u8,
        time: Time,
    },
    /// One side fails a path.
    Error { session: u8, path: u8, side: u8 },
    /// The client moves the channel though its connection works.
    Relocate { session: u8 },
    /// The server ends the channel of a client that has not come back in time.
    Forget { session: u8 },
    /// A subscriber's kernel is restarted. Its program knows what it had read.
    RestartClient { session: u8, time: Time },
    /// The publisher's kernel is restarted.
    RestartServer { time: Time },
}

/// Something that goes wrong at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When.
    pub at: Time,
    /// What.
    pub kind: Kind,
}

/// The terms of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Entries.
    pub entries: u32,
    /// Bytes.
    pub bytes: u64,
    /// What happens to slow subscribers.
    pub policy: Policy,
}

/// A whole run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The fabric's behaviour follows from it.
    pub seed: u64,
    /// Subscribers.
    pub sessions: u8,
    /// Paths of each session.
    pub paths: u8,
    /// Retransmission ends after this.
    pub retry: Time,
    /// Some frames take up to this much longer.
    pub lag: Time,
    /// What each subscriber receives: messages and bytes.
    pub window: (u32, u32),
    /// What waits for acknowledgements of a channel: messages.
    pub queue: u32,
    /// The log of each tag.
    pub logs: [Terms; TAGS],
    /// What programs do.
    pub steps: Vec<Step>,
    /// The faults.
    pub faults: Vec<Fault>,
}

/// The longest entry.
pub const MAX_ENTRY: u32 = 60;
/// The shortest one, which says where it belongs.
pub const MIN_ENTRY: u32 = 16;

impl Schedule {
    /// The schedule of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut r = Rng::new(seed ^ 0x7075_6273);
        let mut log = || {
            let policy = match r.below(3) {
                0 => Policy::Wait,
                1 => Policy::Drop,
                _ => Policy::Close,
            };
            Terms {
                entries: [1, 2, 3, 8][r.below(4) as usize],
                bytes: [60, 130, 1000][r.below(3) as usize],
                policy,
            }
        };
        let logs = [log(), log(), log()];
        let mut s = Self {
            seed,
            sessions: r.between(1, 3) as u8,
            paths: r.between(1, 2) as u8,
            retry: r.between(1, 8) * MS,
            lag: [100, 1000, 6 * MS][r.below(3) as usize],
            window: (
                [1, 2, 4, 16][r.below(4) as usize],
                [130, 300, 4000][r.below(3) as usize],
            ),
            queue: [1, 4, 32][r.below(3) as usize],
            logs,
            steps: Vec::new(),
            faults: Vec::new(),
        };
        let spread = [2, 10, 40][r.below(3) as usize] * MS;
        // Few tags, so that they have subscribers and entries.
        let tags = r.between(1, TAGS as u64);
        for who in 0..s.sessions {
            for tag in 0..tags {
                if r.below(3) > 0 {
                    let at = r.below(spread / 4);
                    let what = subscribe(&mut r, who, tag as u8);
                    s.steps.push(Step { at, what });
                }
            }
        }
        for _ in 0..[4, 10, 20, 30][r.below(4) as usize] {
            let at = r.below(spread);
            let what = what(&mut r, s.sessions, tags);
            s.steps.push(Step { at, what });
        }
        s.steps.sort_by_key(|step| step.at);
        for _ in 0..[0, 1, 2, 4][r.below(4) as usize] {
            // Often while something is under way.
            let at = match s.steps.get(r.below(2 * s.steps.len() as u64) as usize) {
                Some(step) => step.at + r.below(600),
                None => r.below(spread * 2),
            };
            let kind = fault(&mut r, &s);
            s.faults.push(Fault { at, kind });
        }
        s.faults.sort_by_key(|fault| fault.at);
        s
    }
}

fn subscribe(r: &mut Rng, who: u8, tag: u8) -> What {
    What::Subscribe(who, tag, r.below(2) == 0, r.below(4) == 0)
}

fn what(r: &mut Rng, sessions: u8, tags: u64) -> What {
    let who = r.below(u64::from(sessions)) as u8;
    let tag = r.below(tags) as u8;
    match r.below(32) {
        0..=19 => {
            let len = r.between(u64::from(MIN_ENTRY), u64::from(MAX_ENTRY));
            What::Publish(tag, len as u8)
        }
        20..=23 => subscribe(r, who, tag),
        24..=26 => What::Unsubscribe(who, tag),
        27..=30 => What::Sleep(who, [1, 5, 20][r.below(3) as usize] * MS),
        _ => What::Restart,
    }
}

fn fault(r: &mut Rng, s: &Schedule) -> Kind {
    let session = r.below(u64::from(s.sessions)) as u8;
    let path = r.below(u64::from(s.paths)) as u8;
    let side = r.below(2) as u8;
    let time = [1, 3, 10, 30][r.below(4) as usize] * MS;
    match r.below(16) {
        0..=4 => Kind::Cut {
            session,
            path,
            dir: side,
            time,
        },
        5..=8 => Kind::Error {
            session,
            path,
            side,
        },
        9 | 10 => Kind::Relocate { session },
        11 | 12 => Kind::Forget { session },
        13 | 14 => Kind::RestartClient { session, time },
        _ => Kind::RestartServer { time },
    }
}
