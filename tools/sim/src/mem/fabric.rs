// SPDX-License-Identifier: GPL-2.0

//! The fabric: queue pairs, regions, and packets in order, of which some are late or lost.
//!
//! A queue pair in error handles no frames, but WRITEs land until it is drained.

use std::collections::{BTreeMap, VecDeque};

use super::check::Violation;
use super::schedule::{Kind, CELL, CLIENT, SERVER};
use super::world::{Ev, World};
use crate::schedule::{Time, MS};

/// A queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Qp {
    /// Takes all.
    Ready,
    /// In error, but not drained.
    Error,
    /// Drained.
    Gone,
}

/// What a key is for.
#[derive(Clone, Copy, Debug)]
pub enum Region {
    /// Published memory, from this offset on.
    Export { mem: usize, start: u64 },
    /// The buffer of a GET, from this place on.
    Landing { op: usize, to: u64 },
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub enum Wr {
    /// A part of a PUT, and the number of the move after which it was posted.
    Put {
        op: usize,
        from: u64,
        place: usize,
        moves: u32,
    },
    /// A part of a GET.
    Get { op: usize, to: u64, place: usize },
    /// A part of the peer's GET.
    Push {
        slot: usize,
        mem: usize,
        offset: u64,
    },
}

/// A READ that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    rkey: u32,
    addr: u64,
    cells: u64,
    wr: Wr,
}

/// A packet.
#[derive(Clone, Debug)]
pub enum Pkt {
    /// Of a SEND.
    Frame(Vec<u8>),
    /// WRITE of that many cells.
    Write {
        rkey: u32,
        addr: u64,
        cells: u64,
        wr: Wr,
    },
    /// READ.
    Read {
        rkey: u32,
        addr: u64,
        cells: u64,
        wr: Wr,
    },
    /// What a READ has got.
    Data { wr: Wr, cells: u64, read: Time },
}

/// A connection attempt: one connection.
#[derive(Debug)]
pub struct Attempt {
    /// Its path.
    pub path: usize,
    /// Of each side.
    pub qp: [Qp; 2],
    /// Each side can use it.
    pub up: [bool; 2],
    /// Valid keys of each side.
    pub keys: [BTreeMap<u32, Region>; 2],
    /// Frames that wait to be handled.
    pub frames: [VecDeque<Vec<u8>>; 2],
    /// The server has accepted it.
    pub accepted: bool,
    last: [Time; 2],
    broken: [bool; 2],
}

impl Default for Attempt {
    fn default() -> Self {
        Self {
            path: 0,
            qp: [Qp::Ready, Qp::Gone],
            up: [false; 2],
            keys: Default::default(),
            frames: Default::default(),
            accepted: false,
            last: [0; 2],
            broken: [false; 2],
        }
    }
}

impl World<'_> {
    /// The client begins an attempt.
    pub fn connect(&mut self, path: usize) {
        let busy = |a: &Attempt| a.path == path && a.qp[CLIENT] != Qp::Gone;
        // Nobody waits for a server that is gone.
        let is_gone = self.hosts[CLIENT].ending.is_some() && !self.hosts[SERVER].up;
        if self.attempts.iter().skip(1).any(busy) || !self.hosts[CLIENT].up || is_gone {
            return;
        }
        let epoch = self.attempts.len() as u32;
        self.attempts.push(Attempt {
            path,
            ..Attempt::default()
        });
        let is_cut = self.cut(path, CLIENT).is_some() || self.cut(path, SERVER).is_some();
        if is_cut || !self.hosts[SERVER].up {
            self.after(self.sch.retry, Ev::Down(CLIENT, epoch));
        } else {
            let lag = 50 + self.chance(300);
            self.after(lag, Ev::Accepted(epoch));
        }
    }

    /// The server has accepted an attempt, and the client knows.
    pub fn accepted(&mut self, epoch: u32) {
        let attempt = &mut self.attempts[epoch as usize];
        let again = std::mem::replace(&mut attempt.accepted, true);
        if again || attempt.qp[CLIENT] != Qp::Ready || !self.hosts[SERVER].up {
            return;
        }
        self.attempts[epoch as usize].qp[SERVER] = Qp::Ready;
        self.attempts[epoch as usize].up = [true; 2];
        self.move_channel();
    }

    /// How long a direction of a path is held back.
    fn cut(&self, path: usize, from: usize) -> Option<Time> {
        let all = self.sch.faults.iter().filter(|f| f.at <= self.now);
        all.filter_map(|f| match f.kind {
            Kind::Cut { path: p, dir, time }
                if usize::from(p) == path && usize::from(dir) == from && self.now < f.at + time =>
            {
                Some(f.at + time - self.now)
            }
            _ => None,
        })
        .max()
    }

    /// Sends a packet.
    pub fn transmit(&mut self, side: usize, epoch: u32, pkt: Pkt) {
        let path = self.attempts[epoch as usize].path;
        if self.attempts[epoch as usize].broken[side] {
            return;
        }
        let mut lag = 5 + self.chance(60);
        if self.chance(8) == 0 {
            lag += self.chance(self.sch.lag);
        }
        if let Some(rest) = self.cut(path, side) {
            // What was sent into a cut may be lost, or arrive when it ends, or later.
            if rest > self.sch.retry {
                self.after(self.sch.retry, Ev::Down(side, epoch));
            }
            if self.chance(3) == 0 {
                self.attempts[epoch as usize].broken[side] = true;
                self.after(self.sch.retry, Ev::Down(side, epoch));
                return;
            }
            lag = rest + self.chance(4 * MS);
        }
        let attempt = &mut self.attempts[epoch as usize];
        let at = (self.now + lag).max(attempt.last[side] + 1);
        attempt.last[side] = at;
        self.after(at - self.now, Ev::Arrive(1 - side, epoch, pkt));
    }

    /// A packet is at a queue pair.
    pub fn arrive(&mut self, side: usize, epoch: u32, pkt: Pkt) {
        let qp = self.attempts[epoch as usize].qp[side];
        if qp == Qp::Gone {
            self.after(self.sch.retry, Ev::Down(1 - side, epoch));
            return;
        }
        match pkt {
            Pkt::Frame(frame) => {
                if qp == Qp::Ready {
                    self.attempts[epoch as usize].frames[side].push_back(frame);
                    self.handle_frames(side, epoch);
                }
            }
            Pkt::Write {
                rkey,
                addr,
                cells,
                wr,
            } => {
                let Some(region) = self.region(side, epoch, rkey, self.access_excused) else {
                    return;
                };
                self.seen.late += u32::from(qp == Qp::Error);
                // The sender may read its memory again until its queue pair is drained.
                let reads = self.attempts[epoch as usize].qp[1 - side] != Qp::Gone;
                if let (Wr::Push { mem, offset, .. }, true) = (wr, reads) {
                    self.read(1 - side, mem, offset, cells, wr);
                }
                self.land(side, region, addr - (u64::from(rkey) << 32), cells, wr);
                let lag = 5 + self.chance(40);
                self.after(lag, Ev::Completed(1 - side, epoch, wr));
            }
            Pkt::Read {
                rkey,
                addr,
                cells,
                wr,
            } => {
                // What was sent after it may be handled before.
                let lag = match self.chance(2) {
                    0 => 0,
                    _ => self.chance(self.sch.lag),
                };
                let asked = Asked {
                    rkey,
                    addr,
                    cells,
                    wr,
                };
                self.after(lag, Ev::Answer(side, epoch, asked));
            }
            Pkt::Data { wr, cells, read } => {
                if let Wr::Get { op, to, .. } = wr {
                    self.fill(op, to, cells, read);
                }
                self.after(1, Ev::Completed(side, epoch, wr));
            }
        }
    }

    /// A queue pair answers a READ.
    pub fn answer_read(&mut self, side: usize, epoch: u32, asked: Asked) {
        let Asked {
            rkey,
            addr,
            cells,
            wr,
        } = asked;
        if self.attempts[epoch as usize].qp[side] == Qp::Gone {
            return;
        }
        let excused = self.reads_excused[side];
        let region = self.region(side, epoch, rkey, excused);
        let Some(Region::Export { mem, start }) = region else {
            return;
        };
        let skip = addr - (u64::from(rkey) << 32);
        self.read(side, mem, start + skip, cells, wr);
        let read = self.now;
        self.transmit(side, epoch, Pkt::Data { wr, cells, read });
    }

    /// The region of a key; without one, both queue pairs go into error.
    fn region(&mut self, side: usize, epoch: u32, rkey: u32, excused: bool) -> Option<Region> {
        let region = self.attempts[epoch as usize].keys[side].get(&rkey).copied();
        if region.is_none() {
            if !excused {
                self.log.fail(Violation::Access);
            }
            self.seen.refused += 1;
            self.fail(side, epoch);
            self.fail(1 - side, epoch);
        }
        region
    }

    fn land(&mut self, side: usize, region: Region, skip: u64, cells: u64, wr: Wr) {
        match (region, wr) {
            (
                Region::Export { mem, start },
                Wr::Put {
                    op, from, moves, ..
                },
            ) => {
                let now = self.now;
                let mem = &mut self.hosts[side].mems[mem];
                self.log
                    .landed(op, moves, mem, start + skip, cells, from, now);
                self.seen.writes += 1;
            }
            (Region::Landing { op, to }, Wr::Push { .. }) => {
                let read = self.now;
                self.fill(op, to + skip, cells, read);
            }
            _ => self.log.fail(Violation::Access),
        }
    }

    /// Memory is read, by a READ or for a push.
    fn read(&mut self, side: usize, mem: usize, offset: u64, cells: u64, wr: Wr) {
        let mem = &self.hosts[side].mems[mem];
        let op = match wr {
            Wr::Put { op, .. } | Wr::Get { op, .. } => op,
            Wr::Push { .. } => 0,
        };
        let inside = offset >= mem.start
            && offset + cells * CELL <= mem.start + mem.cells.len() as u64 * CELL;
        if mem.freed {
            self.log.fail(Violation::Freed(op));
        } else if !mem.rights.read || !inside {
            self.log.fail(Violation::Rights(op));
        }
    }

    /// Bytes land in the buffer of a GET.
    fn fill(&mut self, op: usize, to: u64, cells: u64, read: Time) {
        if self.log.ops[op].told.is_some() {
            self.log.fail(Violation::Late(op));
        }
        for n in 0..cells {
            self.log.ops[op].cells[(to / CELL + n) as usize] = Some(read);
        }
        self.seen.reads += 1;
    }

    /// A queue pair goes into error.
    pub fn fail(&mut self, side: usize, epoch: u32) {
        let attempt = &mut self.attempts[epoch as usize];
        if attempt.qp[side] != Qp::Ready {
            return;
        }
        attempt.qp[side] = Qp::Error;
        attempt.up[side] = false;
        attempt.frames[side].clear();
        let mut drain = self.sch.drain;
        for fault in &self.sch.faults {
            if let Kind::Slow {
                side: slow,
                time,
                drain: long,
            } = fault.kind
            {
                let is_now = fault.at <= self.now && self.now < fault.at + time;
                if usize::from(slow) == side && is_now {
                    drain = long;
                }
            }
        }
        let drain = 1 + self.chance(drain);
        self.after(drain, Ev::Drained(side, epoch));
        let notice = 50 + self.chance(8 * MS);
        self.after(notice, Ev::Down(1 - side, epoch));
        self.failed(side, epoch);
    }

    /// A queue pair is drained: nothing lands by it any more.
    pub fn drained(&mut self, side: usize, epoch: u32) {
        let attempt = &mut self.attempts[epoch as usize];
        attempt.qp[side] = Qp::Gone;
        attempt.keys[side].clear();
        self.lost(side, epoch);
        if side == CLIENT {
            let path = self.attempts[epoch as usize].path;
            let back_off = 500 + self.chance(4 * MS);
            self.after(back_off, Ev::Connect(path));
        }
        // An entry of RESUME may have waited for that.
        for epoch in 1..self.attempts.len() as u32 {
            self.handle_frames(side, epoch);
        }
    }
}
