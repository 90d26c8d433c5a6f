// SPDX-License-Identifier: GPL-2.0

//! Schedules: everything in a run that the logic does not decide.

use crate::schedule::{Rng, Time, MS};

/// The client's side.
pub const CLIENT: usize = 0;
/// The server's side.
pub const SERVER: usize = 1;
/// Bytes of a cell of memory.
pub const CELL: u64 = 1 << 19;
/// Memory that each side may publish at once.
pub const SLOTS: usize = 3;

/// What a program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Publishes memory in a slot that is free: first cell, cells, rights.
    Map(u8, u8, u8, u8),
    /// Unmaps a slot, gently or now.
    Unmap(u8, bool),
    /// Puts cells to a slot of the peer: the latest handle, or a former one.
    Put(u8, u8, u8, bool),
    /// Gets cells.
    Get(u8, u8, u8, bool),
    /// Sends a message.
    Send,
    /// Sends a message with a body.
    Body,
    /// The time of the last message with a body is over.
    Late,
    /// Dies: its memory goes, its channel closes.
    Die,
}

/// A program that releases a body before it has taken the message: it has seen its content, and takes it later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Haste {
    /// It does not.
    No,
    /// It does so.
    Releases,
    /// It dies then, and never takes the message.
    Dies,
}

/// A program's step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// When.
    pub at: Time,
    /// Whose.
    pub side: usize,
    /// What.
    pub what: What,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A direction of a path holds everything back, or loses it.
    Cut { path: u8, dir: u8, time: Time },
    /// One side fails a path.
    Error { path: u8, side: u8 },
    /// A kernel stops, and never comes back.
    Crash { side: u8 },
    /// The client moves the channel though its connection works.
    Relocate,
    /// Queue pairs of a side take this long to drain.
    Slow { side: u8, time: Time, drain: Time },
}

/// Something that goes wrong at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When.
    pub at: Time,
    /// What.
    pub kind: Kind,
}

/// A whole run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The fabric's behaviour follows from it.
    pub seed: u64,
    /// Paths.
    pub paths: u8,
    /// Retransmission ends after this.
    pub retry: Time,
    /// Some packets take up to this much longer.
    pub lag: Time,
    /// Queue pairs take up to this to drain.
    pub drain: Time,
    /// Whose device may be trusted with RDMA READ.
    pub reads: [bool; 2],
    /// Keys of each side that the peer may have.
    pub keys: u16,
    /// Programs that release bodies early.
    pub haste: [Haste; 2],
    /// What programs do.
    pub ops: Vec<Action>,
    /// The faults.
    pub faults: Vec<Fault>,
}

const BUSY: Time = 30 * MS;

impl Schedule {
    /// The schedule of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut r = Rng::new(seed ^ 0x6D65_6D6F);
        let mut s = Self {
            seed,
            paths: r.between(1, 3) as u8,
            retry: r.between(1, 8) * MS,
            lag: [100, 1000, 6 * MS][r.below(3) as usize],
            drain: [200, 200, 5 * MS][r.below(3) as usize],
            reads: [[true; 2], [false; 2], [true, false], [false, true]][r.below(4) as usize],
            keys: [1, 2, 4][r.below(3) as usize],
            haste: [Haste::No; 2],
            ops: Vec::new(),
            faults: Vec::new(),
        };
        for side in [CLIENT, SERVER] {
            for slot in 0..r.below(SLOTS as u64 + 1) {
                let what = map(&mut r, slot as u8);
                s.ops.push(Action { at: 0, side, what });
            }
        }
        let spread = [2, 10, 30][r.below(3) as usize] * MS;
        for _ in 0..[3, 6, 12, 16][r.below(4) as usize] {
            let op = Action {
                at: r.below(spread),
                side: r.below(2) as usize,
                what: what(&mut r),
            };
            s.ops.push(op);
        }
        if r.below(4) == 0 {
            let (at, side, what) = (r.below(spread * 2), r.below(2) as usize, What::Die);
            s.ops.push(Action { at, side, what });
        }
        s.ops.sort_by_key(|op| op.at);
        for _ in 0..[0, 1, 2, 4][r.below(4) as usize] {
            // Often while an operation is under way.
            let at = match s.ops.get(r.below(2 * s.ops.len() as u64 + 1) as usize) {
                Some(op) => op.at + r.below(600),
                None => r.below(BUSY.min(spread * 2)),
            };
            let kind = fault(&mut r, s.paths);
            s.faults.push(Fault { at, kind });
        }
        s.faults.sort_by_key(|fault| fault.at);
        for haste in &mut s.haste {
            *haste = match r.below(8) {
                0..=4 => Haste::No,
                5 | 6 => Haste::Releases,
                _ => Haste::Dies,
            };
        }
        s
    }
}

fn map(r: &mut Rng, slot: u8) -> What {
    let rights = [3, 3, 3, 1, 2, 0][r.below(6) as usize];
    What::Map(slot, r.below(6) as u8, r.between(1, 9) as u8, rights)
}

fn what(r: &mut Rng) -> What {
    let slot = r.below(SLOTS as u64) as u8;
    // Mostly inside of what the peer may have published.
    let (first, cells) = (r.below(9) as u8, r.between(1, 6) as u8);
    let stale = r.below(8) == 0;
    match r.below(18) {
        0..=4 => What::Put(slot, first, cells, stale),
        5..=7 => What::Get(slot, first, cells, stale),
        8..=10 => What::Send,
        11 | 16 => What::Body,
        17 => What::Late,
        12 | 13 => What::Unmap(slot, r.below(3) == 0),
        _ => map(r, slot),
    }
}

fn fault(r: &mut Rng, paths: u8) -> Kind {
    let path = r.below(u64::from(paths)) as u8;
    let side = r.below(2) as u8;
    let time = [1, 3, 10, 30][r.below(4) as usize] * MS;
    match r.below(12) {
        0..=3 => Kind::Cut {
            path,
            dir: side,
            time,
        },
        4..=6 => Kind::Error { path, side },
        7 if r.below(4) == 0 => Kind::Crash { side },
        7 | 8 => Kind::Relocate,
        _ => Kind::Slow {
            side,
            time,
            drain: r.between(1, 10) * MS,
        },
    }
}
