// SPDX-License-Identifier: GPL-2.0

//! What must hold.

use ibmsg_proto::memory::{Handle, OpOutcome, Rights};

use super::schedule::CELL;
use crate::schedule::Time;

/// A broken property. The number is that of the operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Bytes landed after the outcome said that none would.
    Late(usize),
    /// Bytes landed after a later PUT was done, after a later message was delivered, or by a former connection
    /// after bytes that came by a later one.
    Overtaken(usize),
    /// Bytes landed in, or were read from, memory that was given back, or is another handle's.
    Freed(usize),
    /// Bytes landed where they may not, or a GET got what it may not.
    Rights(usize),
    /// A program was told that its operation is done, and it is not.
    NotThere(usize),
    /// A program was told that nothing was written, and something was.
    NotNothing(usize),
    /// A program was told nothing definite, although both kernels live, and nobody has closed.
    Uncertain(usize),
    /// An operation ended twice.
    Twice(usize),
    /// A READ of memory whose device may lose bytes of it.
    LossyRead(usize),
    /// A GET got bytes that were never there in its time.
    OldBytes(usize),
    /// A message was delivered before a PUT that precedes it.
    Early(usize),
    /// Messages out of order, or twice.
    Order(usize),
    /// A work request met an invalid key although both kernels keep to the protocol.
    Access,
    /// The peer has more keys than the terms allow.
    Keys,
    /// The receipt of a body did not come, or too early.
    Receipt,
    /// The receiver of a body could not get it.
    BodyGone(usize),
    /// A kernel takes the other one for broken.
    Protocol(&'static str),
    /// Nothing happens any more, and an operation has not ended.
    Stuck(usize),
    /// Nothing happens any more, and memory that was unmapped is not given back.
    Leak,
    /// Memory of a dead program is still published.
    Undead,
    /// It never ends.
    Endless,
}

/// What an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// PUT.
    Put,
    /// GET.
    Get,
    /// A message.
    Message,
}

/// An operation of a program.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Whose.
    pub side: usize,
    /// What.
    pub sort: Sort,
    /// When it began.
    pub since: Time,
    /// What the program was told.
    pub told: Option<OpOutcome>,
    /// PUT: cells that have landed. GET: what each cell got, with the time since which that was there no more.
    pub cells: Vec<Option<Time>>,
    /// The message was delivered.
    pub delivered: bool,
    /// Its program has died.
    pub orphan: bool,
    /// Its time was over: its program may not know what has become of it.
    pub timed: bool,
}

/// A published range of the model.
#[derive(Clone, Debug)]
pub struct Mem {
    /// Its handle.
    pub handle: Handle,
    /// The first cell's offset.
    pub start: u64,
    /// Rights.
    pub rights: Rights,
    /// Each cell's version, and when it became that.
    pub cells: Vec<(u64, Time)>,
    /// Its pages were given back.
    pub freed: bool,
}

/// The operations of a run.
#[derive(Default)]
pub struct Log {
    /// All of them.
    pub ops: Vec<Operation>,
    /// The first violation.
    pub violation: Option<Violation>,
    /// The latest PUT that is done, or message that was delivered, by the side that sent it.
    last: [Option<usize>; 2],
    /// The latest message that was delivered.
    message: [Option<usize>; 2],
    /// The move after which the bytes of a PUT were posted that have landed last.
    moves: [u32; 2],
    /// A kernel has crashed, or a program has closed: outcomes may be unknown.
    pub excused: bool,
}

impl Log {
    /// Something is broken.
    pub fn fail(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// Bytes of a PUT land.
    #[allow(clippy::too_many_arguments)]
    pub fn landed(
        &mut self,
        id: usize,
        moves: u32,
        mem: &mut Mem,
        addr: u64,
        cells: u64,
        from: u64,
        now: Time,
    ) {
        let op = &mut self.ops[id];
        let mut broken = None;
        if mem.freed {
            broken = Some(Violation::Freed(id));
        } else if !mem.rights.write {
            broken = Some(Violation::Rights(id));
        } else if matches!(op.told, Some(told) if told != OpOutcome::Unknown) {
            broken = Some(Violation::Late(id));
        } else if self.last[op.side].is_some_and(|last| last > id) || moves < self.moves[op.side] {
            broken = Some(Violation::Overtaken(id));
        }
        self.moves[op.side] = moves;
        for n in 0..cells {
            let at = (addr - mem.start) / CELL + n;
            mem.cells[at as usize] = (mem.cells[at as usize].0 + 1, now);
            op.cells[(from / CELL + n) as usize] = Some(now);
        }
        if let Some(violation) = broken {
            self.fail(violation);
        }
    }

    /// A message is delivered.
    pub fn delivered(&mut self, id: usize) {
        let side = self.ops[id].side;
        if self.ops[id].delivered || self.message[side].is_some_and(|last| last > id) {
            self.fail(Violation::Order(id));
        }
        self.ops[id].delivered = true;
        self.message[side] = Some(id);
        self.last[side] = self.last[side].max(Some(id));
        let early = self.ops[..id].iter().position(|op| {
            let is_done = op.cells.iter().all(Option::is_some);
            op.side == side && op.sort == Sort::Put && op.told.is_none() && !is_done && !op.orphan
        });
        if let Some(put) = early {
            self.fail(Violation::Early(put));
        }
    }

    /// A program is told the outcome of its operation.
    pub fn told(&mut self, id: usize, outcome: OpOutcome) {
        let op = &mut self.ops[id];
        let twice = op.told.replace(outcome).is_some();
        let (all, any) = match op.sort {
            Sort::Message => (op.delivered, op.delivered),
            Sort::Put | Sort::Get => (
                op.cells.iter().all(Option::is_some),
                op.cells.iter().any(Option::is_some),
            ),
        };
        let (sort, side, timed) = (op.sort, op.side, op.timed);
        if outcome == OpOutcome::Done && sort == Sort::Put {
            self.last[side] = self.last[side].max(Some(id));
        }
        if twice {
            self.fail(Violation::Twice(id));
        }
        match outcome {
            OpOutcome::Done if !all => self.fail(Violation::NotThere(id)),
            OpOutcome::NotDone if any && sort == Sort::Put => self.fail(Violation::NotNothing(id)),
            OpOutcome::Unknown if !self.excused && !timed => self.fail(Violation::Uncertain(id)),
            OpOutcome::Done if sort == Sort::Get => {
                let op = &self.ops[id];
                // Each cell was current at some time of the operation.
                if op.cells.iter().flatten().any(|until| *until < op.since) {
                    self.fail(Violation::OldBytes(id));
                }
            }
            _ => {}
        }
    }
}
