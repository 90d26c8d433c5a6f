// SPDX-License-Identifier: GPL-2.0

//! A kernel: memory, and the operations of its programs.

use ibmsg_proto::memory::export::Unmapping;
use ibmsg_proto::memory::{
    BodyEnd, BodyRef, Export, Get, GetStep, Handle, Key, KeysError, Loan, OpOutcome, Put, PutStep,
    Range, Reading, Rights, Unmap, BODY_LEN,
};
use ibmsg_proto::outcome::{Cause, Outcome};
use ibmsg_proto::send::{Next, Progress};
use ibmsg_proto::wire::{Ask, Got, KeyRecord, MemoryRecord, Note, NoteKind, Return, Revoke};
use ibmsg_proto::Seq;

use super::bug::Bug;
use super::check::{Mem, Operation, Sort, Violation};
use super::fabric::{Pkt, Qp, Region, Wr};
use super::host::{What, CHANNEL};
use super::schedule::{self, Haste, CELL, SLOTS};
use super::world::{Ev, World};
use crate::schedule::MS;

const BOTH: Rights = Rights {
    read: true,
    write: true,
};
const READ: Rights = Rights {
    read: true,
    write: false,
};

const fn of_message(outcome: Outcome) -> OpOutcome {
    match outcome {
        Outcome::Delivered => OpOutcome::Done,
        Outcome::NotDelivered => OpOutcome::NotDone,
        Outcome::Unknown => OpOutcome::Unknown,
    }
}

fn cells(range: &Range) -> u64 {
    range.len() / CELL
}

impl World<'_> {
    /// A program's step.
    pub fn step(&mut self, n: usize) {
        let schedule::Action { side, what, .. } = self.sch.ops[n];
        let host = &self.hosts[side];
        if !host.up || host.dead || host.ending.is_some() {
            return;
        }
        match what {
            schedule::What::Map(slot, first, cells, rights) => {
                let rights = Rights {
                    read: rights & 1 != 0,
                    write: rights & 2 != 0,
                };
                self.map(side, usize::from(slot), first, cells, rights);
            }
            schedule::What::Unmap(slot, now) => {
                let how = if now { Unmap::Now } else { Unmap::Gently };
                let slot = usize::from(slot);
                if let Some(loan) = &mut self.hosts[side].loans[slot] {
                    loan.ends(BodyEnd::TakenBack);
                }
                self.unmap(side, slot, how);
            }
            schedule::What::Put(slot, first, cells, stale) => {
                let handle = self.pick(1 - side, usize::from(slot), stale);
                let range = Range::new(u64::from(first) * CELL, u64::from(cells) * CELL);
                let put = Put::new(handle, range.expect("a range"));
                let op = self.begin(side, Sort::Put, cells);
                self.queue(side, What::Put(op, put));
            }
            schedule::What::Get(slot, first, cells, stale) => {
                let handle = self.pick(1 - side, usize::from(slot), stale);
                let range = Range::new(u64::from(first) * CELL, u64::from(cells) * CELL);
                let op = self.begin(side, Sort::Get, cells);
                let get = Get::new(handle, range.expect("a range"));
                self.hosts[side].gets.push((op, get, 0));
            }
            schedule::What::Send => {
                let op = self.begin(side, Sort::Message, 0);
                self.queue(side, What::Message(op, None));
            }
            schedule::What::Body => self.send_body(side),
            schedule::What::Late => self.late_body(side),
            schedule::What::Die => self.die(side),
        }
    }

    fn begin(&mut self, side: usize, sort: Sort, cells: u8) -> usize {
        self.log.ops.push(Operation {
            side,
            sort,
            since: self.now,
            told: None,
            cells: vec![None; usize::from(cells)],
            delivered: false,
            orphan: false,
            timed: false,
        });
        self.log.ops.len() - 1
    }

    /// Sends a message with a body.
    fn send_body(&mut self, side: usize) {
        let slot = SLOTS - 1;
        let Some(handle) = self.map(side, slot, 1, 4, Rights::default()) else {
            return;
        };
        let op = self.begin(side, Sort::Message, 0);
        let host = &mut self.hosts[side];
        let range = host.exports[slot]
            .lend(handle)
            .expect("memory without rights");
        let mem = host.mem_of[slot];
        host.mems[mem].rights = READ;
        host.loans[slot] = Some(Loan::new(op as u64));
        self.queue(side, What::Message(op, Some(BodyRef { handle, range })));
    }

    /// The message with a number, which has a body, has arrived: the program gets that, and releases it then.
    pub(super) fn body_arrives(
        &mut self,
        side: usize,
        number: Seq,
        body: &BodyRef,
    ) -> Result<(), &'static str> {
        let host = &mut self.hosts[side];
        host.held.arrived(body.handle).map_err(|e| e.as_str())?;
        if self.is(Bug::UnmapOnDelivery) {
            self.unmap(1 - side, usize::from(body.handle.slot()), Unmap::Gently);
        }
        if self.hosts[side].dead {
            return Ok(());
        }
        if matches!(self.hosts[side].untaken, Some((untaken, _)) if untaken == number) {
            self.lets_go_early(side, body.handle);
            return Ok(());
        }
        let op = self.begin(side, Sort::Get, cells(&body.range) as u8);
        let get = Get::new(body.handle, body.range);
        let host = &mut self.hosts[side];
        host.gets.push((op, get, 0));
        host.readings.push((op, body.handle));
        Ok(())
    }

    /// The program releases a body of which it has not taken the message, which it takes later, or never.
    fn lets_go_early(&mut self, side: usize, handle: Handle) {
        self.seen.early += 1;
        self.release(side, handle);
        let lag = 10 + self.chance(10 * MS);
        self.after(lag, Ev::Take(side));
        if self.sch.haste[side] == Haste::Dies {
            // What it has released before is still told.
            self.queue_releases(side);
            self.die(side);
        }
    }

    /// The program takes the message that it has seen before.
    pub(super) fn take_late(&mut self, side: usize) {
        let host = &mut self.hosts[side];
        if let Some((_, len)) = host.untaken.take() {
            host.ch.rx.took(len, None);
        }
    }

    fn queue_releases(&mut self, side: usize) {
        while let Some(handle) = self.hosts[side].to_release.pop_front() {
            self.queue(side, What::Release(handle));
        }
    }

    /// The program has got a body, or cannot, and releases it.
    fn body_is_read(&mut self, side: usize, op: usize, outcome: OpOutcome) {
        let mut readings = self.hosts[side].readings.iter();
        let Some(at) = readings.position(|(reading, _)| *reading == op) else {
            return;
        };
        let (_, handle) = self.hosts[side].readings.remove(at);
        // It is the receiver's as long as nothing has happened to the loan.
        let ops = self.log.ops.len() as u64;
        let loan = self.hosts[1 - side].loan_of(handle).copied();
        let is_lent = loan.is_some_and(|loan| (0..ops).any(|op| loan == Loan::new(op)));
        if outcome != OpOutcome::Done && is_lent && !self.log.excused {
            self.log.fail(Violation::BodyGone(op));
        }
        self.release(side, handle);
    }

    /// The time of the last message with a body is over.
    fn late_body(&mut self, side: usize) {
        let host = &mut self.hosts[side];
        let mut queue = host.queue.iter_mut().enumerate().rev();
        let late = queue.find_map(|(at, out)| match out.what {
            What::Message(op, Some(body)) => {
                Some((at, op, body, host.ch.tx.expire(&mut out.item)?))
            }
            _ => None,
        });
        let Some((at, op, body, outcome)) = late else {
            return;
        };
        host.queue[at].told = true;
        let may_have = host.ch.tx.may_have(&host.queue[at].item, outcome);
        let is_unsent = host.queue[at].item.number().is_none();
        if is_unsent {
            if let Some(out) = host.queue.remove(at) {
                host.ch.tx.release(out.item);
            }
        }
        self.log.ops[op].timed = true;
        self.message_ends(side, (op, body), outcome, may_have);
    }

    /// A message with a body was not delivered, or perhaps not. `may_have`: the peer may release the body.
    fn message_ends(
        &mut self,
        side: usize,
        (op, body): (usize, BodyRef),
        outcome: Outcome,
        may_have: bool,
    ) {
        let may_have = match self.is(Bug::QueuedIsUnsent) {
            true => outcome != Outcome::NotDelivered,
            false => may_have,
        };
        self.seen.untaken += u32::from(may_have && outcome == Outcome::NotDelivered);
        self.tell(op, of_message(outcome));
        let keeps = self.is(Bug::ForgottenBody);
        let Some(errno) = outcome.errno(Cause::Timeout) else {
            return;
        };
        if let Some(loan) = self.hosts[side].loan_of(body.handle) {
            loan.ends(BodyEnd::Message(errno));
            if !may_have && !keeps {
                loan.not_sent();
            }
            self.unmap(side, usize::from(body.handle.slot()), Unmap::Gently);
        }
    }

    /// Receipts of bodies, and slots that may be used again.
    fn give_receipts(&mut self, side: usize) {
        for slot in 0..SLOTS {
            let host = &mut self.hosts[side];
            let is_over = host.ch.is_over() || host.ch.peer_has_ended();
            let mem = host.mem_of[slot];
            let Some(loan) = &mut host.loans[slot] else {
                continue;
            };
            if is_over {
                loan.over();
            }
            if self.bug == Some(Bug::EarlyReceipt) {
                loan.freed();
            }
            if loan.receipt().is_some() {
                self.seen.receipts += 1;
                if !host.mems[mem].freed {
                    self.log.fail(Violation::Receipt);
                }
            }
            if loan.is_done() {
                host.loans[slot] = None;
            }
        }
    }

    fn queue(&mut self, side: usize, what: What) {
        let len = match what {
            What::Message(_, Some(_)) => BODY_LEN as u32,
            _ => 0,
        };
        let host = &mut self.hosts[side];
        match host.ch.tx.queue(len) {
            Ok(item) => host.queue.push_back(super::host::Out {
                item,
                what,
                unfenced: false,
                told: false,
            }),
            Err(_) => {
                if let What::Message(_, Some(body)) = what {
                    self.hosts[side].loans[usize::from(body.handle.slot())] = None;
                    self.unmap(side, usize::from(body.handle.slot()), Unmap::Gently);
                }
                if let What::Message(op, _) | What::Put(op, _) = what {
                    self.log.told(op, OpOutcome::NotDone);
                }
            }
        }
    }

    fn map(
        &mut self,
        side: usize,
        slot: usize,
        first: u8,
        n: u8,
        rights: Rights,
    ) -> Option<Handle> {
        let start = u64::from(first) * CELL;
        let range = Range::new(start, u64::from(n) * CELL)?;
        let reuses = self.is(Bug::ReuseLent);
        let host = &mut self.hosts[side];
        if host.loans[slot].is_some() && !reuses {
            return None;
        }
        let handle = host.exports[slot].publish(range, rights)?;
        host.loans[slot] = None;
        host.mem_of[slot] = host.mems.len();
        host.revoke_told[slot] = false;
        host.slots.push(slot);
        host.mems.push(Mem {
            handle,
            start,
            rights,
            cells: vec![(0, 0); usize::from(n)],
            freed: false,
        });
        Some(handle)
    }

    /// A handle that the program has been told, or one that it invents.
    fn pick(&mut self, owner: usize, slot: usize, stale: bool) -> Handle {
        let host = &self.hosts[owner];
        let mut known: Vec<_> = (0..host.mems.len())
            .filter(|m| host.slots[*m] == slot)
            .collect();
        if stale {
            known.pop();
        }
        let foreign = Handle::from_wire(0x0009_0000 | slot as u64).expect("a handle");
        known.last().map_or(foreign, |m| host.mems[*m].handle)
    }

    pub(super) fn unmap(&mut self, side: usize, slot: usize, how: Unmap) {
        let how = match self.is(Bug::ImpatientUnmap) {
            true => Unmap::Now,
            false => {
                self.access_excused |= how == Unmap::Now;
                self.reads_excused[side] |= how == Unmap::Now;
                how
            }
        };
        self.hosts[side].exports[slot].revoke(how);
    }

    /// A program dies: no memory of it stays reachable, and its channel closes.
    fn die(&mut self, side: usize) {
        self.log.excused = true;
        self.hosts[side].dead = true;
        self.hosts[side].end_loans(BodyEnd::TakenBack);
        for slot in 0..SLOTS {
            let is_idle = self.hosts[side].granted.is_empty();
            if !(is_idle && self.is(Bug::DeathSparesIdle)) {
                self.unmap(side, slot, Unmap::Now);
            }
        }
        let mut exports = self.hosts[side].exports.iter();
        if exports.any(|e| e.live(e.handle()).is_ok()) {
            self.log.fail(Violation::Undead);
        }
        for op in self.log.ops.iter_mut().filter(|op| op.side == side) {
            op.orphan = true;
        }
        self.hosts[side].ch.close(0);
    }

    /// The channel has ended: so do operations, when nothing of them is under way, and its handles.
    pub(super) fn channel_ends(&mut self, side: usize, cause: Cause) {
        self.log.excused = true;
        self.access_excused = true;
        self.hosts[side].ending.get_or_insert(cause);
        // The peer's READs have ended: it has said that it ends only then.
        let reads_excused = self.reads_excused;
        for slot in 0..SLOTS {
            self.unmap(side, slot, Unmap::Now);
        }
        self.reads_excused = reads_excused;
    }

    fn release(&mut self, side: usize, handle: Handle) {
        if self.hosts[side].held.release(handle) {
            self.hosts[side].to_release.push_back(handle);
        }
        if self.is(Bug::ReleaseTwice) {
            self.hosts[side].to_release.push_back(handle);
        }
        self.after(1, Ev::Pump);
    }

    /// Does all that can be done now.
    pub fn serve(&mut self, side: usize) {
        if !self.hosts[side].up {
            return;
        }
        self.unmap_all(side);
        self.give_receipts(side);
        // What is only queued there was not taken if the peer has closed.
        if self.hosts[side].ending.is_some() {
            self.end_operations(side);
        }
        self.retire(side);
        self.send_close(side);
        self.send_closed(side);
        let Some(on) = self.hosts[side].ch.conn() else {
            return;
        };
        let epoch = on.epoch;
        if self.attempts[epoch as usize].qp[side] != Qp::Ready {
            return;
        }
        if !self.hosts[side].dead {
            self.queue_releases(side);
        }
        self.answer_asks(side, epoch);
        for n in (0..self.hosts[side].returns.len()).rev() {
            let handle = self.hosts[side].returns[n];
            if self.hosts[side].keys.may_return(handle) || self.is(Bug::HastyReturn) {
                self.hosts[side].returns.remove(n);
                let back = Return {
                    channel: CHANNEL,
                    handle,
                    piece: None,
                };
                self.hosts[side]
                    .control
                    .push_back(MemoryRecord::Return(back));
            }
        }
        self.serve_queue(side, epoch);
        self.serve_gets(side, epoch);
        while let Some(record) = self.hosts[side].control.pop_front() {
            self.send_memory(side, epoch, &record);
        }
        self.send_ack(side, epoch);
        self.send_close(side);
    }

    fn unmap_all(&mut self, side: usize) {
        for slot in 0..SLOTS {
            let export = &self.hosts[side].exports[slot];
            if !export.is_revoked() {
                continue;
            }
            let handle = export.handle();
            match export.unmapping() {
                Unmapping::Tell => {
                    let told = std::mem::replace(&mut self.hosts[side].revoke_told[slot], true);
                    if !told && !self.is(Bug::NoRevoke) {
                        let revoke = Revoke {
                            channel: CHANNEL,
                            handle,
                        };
                        let control = &mut self.hosts[side].control;
                        control.push_back(MemoryRecord::Revoke(revoke));
                    }
                }
                Unmapping::Invalidate => {
                    while let Some(at) = self.hosts[side].granted.end_next(handle) {
                        self.post_invalidation(side, at);
                    }
                    if self.is(Bug::FreeBeforeInvalid) {
                        self.give_back(side, slot);
                    }
                }
                Unmapping::Wait | Unmapping::Done => {}
            }
            if self.hosts[side].exports[slot].free() {
                self.give_back(side, slot);
                self.seen.freed += 1;
            }
        }
    }

    fn give_back(&mut self, side: usize, slot: usize) {
        let mem = self.hosts[side].mem_of[slot];
        self.hosts[side].mems[mem].freed = true;
        if let Some(loan) = &mut self.hosts[side].loans[slot] {
            loan.freed();
        }
    }

    fn post_invalidation(&mut self, side: usize, at: usize) {
        if let Some((epoch, _, _)) = self.hosts[side].places[at] {
            let lag = 5 + self.chance(self.sch.drain);
            self.after(lag, Ev::Invalid(side, epoch, at));
        }
    }

    /// The channel leaves a connection that works.
    pub(super) fn invalidate_all(&mut self, side: usize, _on: u32) {
        for slot in 0..SLOTS {
            for m in 0..self.hosts[side].mems.len() {
                if self.hosts[side].slots[m] == slot {
                    let handle = self.hosts[side].mems[m].handle;
                    while let Some(at) = self.hosts[side].granted.end_next(handle) {
                        self.post_invalidation(side, at);
                    }
                }
            }
        }
    }

    /// LOCAL_INV has completed.
    pub fn invalid(&mut self, side: usize, epoch: u32, at: usize) {
        let is_ready = self.attempts[epoch as usize].qp[side] == Qp::Ready;
        let Some((on, rkey, _)) = self.hosts[side].places[at].filter(|_| is_ready) else {
            return;
        };
        if on != epoch {
            return;
        }
        self.hosts[side].places[at] = None;
        self.attempts[epoch as usize].keys[side].remove(&rkey);
        if let Some(handle) = self.hosts[side].granted.invalidated(at) {
            self.hosts[side].exports[usize::from(handle.slot())].invalidated();
        }
        // An entry of RESUME may have waited for that.
        for epoch in 1..self.attempts.len() as u32 {
            self.handle_frames(side, epoch);
        }
    }

    /// A record of memory, but for notes.
    pub(super) fn memory_record(
        &mut self,
        side: usize,
        epoch: u32,
        record: &MemoryRecord,
    ) -> Result<(), &'static str> {
        let host = &mut self.hosts[side];
        match record {
            MemoryRecord::Note(_) => {}
            MemoryRecord::Ask(ask) => host.asks.push_back(*ask),
            MemoryRecord::Key(key) => {
                let taken = host.keys.answered(key.handle, key.piece, key.key);
                taken.map_err(|e| e.as_str())?;
            }
            MemoryRecord::Return(back) => {
                let slot = usize::from(back.handle.slot());
                let Some(export) = host.exports.get_mut(slot) else {
                    return Err("return of no handle");
                };
                match back.piece {
                    None => {
                        export.returned(back.handle);
                    }
                    Some(piece) => {
                        let is_live = export.live(back.handle).is_ok();
                        let place = host.granted.returned(back.handle, piece, is_live);
                        if let Some(at) = place.map_err(|e| e.as_str())? {
                            self.post_invalidation(side, at);
                        }
                    }
                }
            }
            MemoryRecord::Revoke(revoke) => {
                host.keys.revoked(revoke.handle);
                host.returns.push(revoke.handle);
            }
            MemoryRecord::Get(get) => self.push(side, epoch, get)?,
            MemoryRecord::Got(got) => {
                let mut taken = false;
                for (_, get, _) in &mut host.gets {
                    taken |= get.got(got.id, got.refused);
                }
                // A GET ends with its channel, without an answer.
                if !taken && host.ending.is_none() {
                    return Err(KeysError::NoGet(got.id).as_str());
                }
            }
        }
        Ok(())
    }

    fn answer_asks(&mut self, side: usize, epoch: u32) {
        while let Some(ask) = self.hosts[side].asks.front().copied() {
            let key = match self.grant(side, epoch, &ask) {
                Ok(None) => return,
                Ok(Some(key)) => Ok(key),
                Err(refusal) => Err(refusal),
            };
            self.hosts[side].asks.pop_front();
            let answer = KeyRecord {
                channel: CHANNEL,
                handle: ask.handle,
                piece: ask.piece,
                key,
            };
            self.hosts[side]
                .control
                .push_back(MemoryRecord::Key(answer));
        }
    }

    fn grant(
        &mut self,
        side: usize,
        epoch: u32,
        ask: &Ask,
    ) -> Result<Option<Key>, ibmsg_proto::memory::Refusal> {
        let slot = usize::from(ask.handle.slot());
        let any = self.is(Bug::AnyGeneration);
        let no_rights = self.is(Bug::NoRights);
        let limit = usize::from(self.sch.keys);
        let host = &mut self.hosts[side];
        let export: &Export = host
            .exports
            .get(slot)
            .ok_or(ibmsg_proto::memory::Refusal::Stale)?;
        let handle = match any {
            true => export.handle(),
            false => ask.handle,
        };
        let (range, rights, part) = export.key(handle, ask.piece)?;
        let place = match host.granted.grant(handle, ask.piece) {
            Ok(Some(place)) => place,
            Ok(None) => return Ok(None),
            Err(e) => {
                self.log.fail(Violation::Protocol(e.as_str()));
                return Ok(None);
            }
        };
        host.exports[slot].granted();
        self.next_key += 1;
        let rkey = self.next_key;
        host.places[place] = Some((epoch, rkey, slot));
        // What was returned and is not invalid yet does not count.
        if host.granted.live() > limit {
            self.log.fail(Violation::Keys);
        }
        let mem = match any {
            // Another range than the one that the peer was told.
            true => host
                .mems
                .iter()
                .position(|m| m.handle == ask.handle)
                .unwrap_or(host.mem_of[slot]),
            false => host.mem_of[slot],
        };
        let start = part.start();
        let region = Region::Export { mem, start };
        self.attempts[epoch as usize].keys[side].insert(rkey, region);
        Ok(Some(Key {
            rkey,
            addr: u64::from(rkey) << 32,
            range,
            rights: if no_rights { BOTH } else { rights },
            readable: self.sch.reads[side] || self.is(Bug::WrongReadable),
        }))
    }

    /// GET has arrived: the kernel writes.
    fn push(
        &mut self,
        side: usize,
        epoch: u32,
        get: &ibmsg_proto::wire::Get,
    ) -> Result<(), &'static str> {
        let slot = usize::from(get.handle.slot());
        let counts = !self.is(Bug::UncountedPush);
        let host = &mut self.hosts[side];
        let part = Range::new(get.offset, u64::from(get.len)).expect("checked");
        let stale = ibmsg_proto::memory::Refusal::Stale;
        let export = host.exports.get_mut(slot).ok_or(stale);
        let checked = export.and_then(|e| e.check(get.handle, &part, READ).map(|()| e));
        let refused = match checked {
            Ok(export) => {
                if counts {
                    export.push_begins();
                    host.pushes.push((epoch, slot));
                }
                let wr = Wr::Push {
                    slot,
                    mem: host.mem_of[slot],
                    offset: get.offset,
                };
                let pkt = Pkt::Write {
                    rkey: get.rkey,
                    addr: get.addr,
                    cells: cells(&part),
                    wr,
                };
                self.transmit(side, epoch, pkt);
                None
            }
            Err(refusal) => Some(refusal),
        };
        let got = Got {
            channel: CHANNEL,
            id: get.id,
            refused,
        };
        self.send_memory(side, epoch, &MemoryRecord::Got(got));
        Ok(())
    }

    /// A work request has completed.
    pub fn completed(&mut self, side: usize, epoch: u32, wr: Wr) {
        let tells = self.is(Bug::CompletionIsDone);
        let host = &mut self.hosts[side];
        match wr {
            Wr::Put { op, place, .. } => {
                let of =
                    |out: &&mut super::host::Out| matches!(out.what, What::Put(o, _) if o == op);
                let mut queue = host.queue.iter_mut();
                let Some(out) = queue.find(of) else {
                    host.keys.done(place);
                    return;
                };
                if let What::Put(_, put) = &mut out.what {
                    put.completed(&mut host.keys, place);
                    let all = self.log.ops[op].cells.iter().all(Option::is_some);
                    if tells && all && !put.is_posted() && self.log.ops[op].told.is_none() {
                        self.log.told(op, OpOutcome::Done);
                    }
                }
            }
            Wr::Get { op, place, .. } => {
                if let Some((_, get, _)) = host.gets.iter_mut().find(|g| g.0 == op) {
                    get.completed(&mut host.keys, place);
                }
            }
            Wr::Push { slot, .. } => {
                if let Some(at) = host.pushes.iter().position(|p| *p == (epoch, slot)) {
                    host.pushes.remove(at);
                    host.exports[slot].push_ended();
                }
            }
        }
    }

    fn tell(&mut self, op: usize, outcome: OpOutcome) {
        let side = self.log.ops[op].side;
        if self.log.ops[op].sort == Sort::Get {
            self.body_is_read(side, op, outcome);
        }
        let told_before = self.is(Bug::CompletionIsDone) && self.log.ops[op].told.is_some();
        if self.log.ops[op].orphan || told_before {
            return;
        }
        match outcome {
            OpOutcome::Torn => self.seen.torn += 1,
            OpOutcome::Unknown => self.seen.unknown += 1,
            OpOutcome::NotDone => self.seen.undone += 1,
            OpOutcome::Done => {}
        }
        let outcome = match outcome {
            OpOutcome::Torn if self.is(Bug::TornIsNotDone) => OpOutcome::NotDone,
            outcome => outcome,
        };
        self.log.told(op, outcome);
    }

    /// What the peer has acknowledged leaves the queue.
    fn retire(&mut self, side: usize) {
        loop {
            let host = &mut self.hosts[side];
            let Some(front) = host.queue.front() else {
                return;
            };
            if host.ch.tx.progress(&front.item) == Progress::Pending {
                return;
            }
            let Some(out) = host.queue.pop_front() else {
                return;
            };
            host.ch.tx.release(out.item);
            if let (What::Message(op, _) | What::Put(op, _), false) = (out.what, out.told) {
                self.tell(op, OpOutcome::Done);
            }
        }
    }

    /// The channel has ended.
    fn end_operations(&mut self, side: usize) {
        let cause = self.hosts[side].ending.unwrap_or(Cause::Closed);
        let on = self.hosts[side].ch.on();
        let alive = on.is_some_and(|c| self.attempts[c.epoch as usize].qp[side] == Qp::Ready);
        let mut rest = std::collections::VecDeque::new();
        while let Some(mut out) = self.hosts[side].queue.pop_front() {
            let tx = &self.hosts[side].ch.tx;
            match &out.what {
                What::Put(_, put) if put.is_posted() && on.is_some() => rest.push_back(out),
                What::Put(op, put) => {
                    let (op, told) = (*op, out.told);
                    let fenced = !out.unfenced;
                    let outcome = put.end(tx.progress(&out.item), fenced);
                    if !told {
                        self.tell(op, outcome);
                    }
                }
                What::Message(op, body) => {
                    let (op, body) = (*op, *body);
                    let outcome = tx.end(&mut out.item, cause);
                    let may_have = outcome.map(|outcome| tx.may_have(&out.item, outcome));
                    match (outcome.zip(may_have), body) {
                        (Some((outcome, may_have)), Some(body)) => {
                            self.message_ends(side, (op, body), outcome, may_have);
                        }
                        (Some((outcome, _)), None) => self.tell(op, of_message(outcome)),
                        (None, _) => {}
                    }
                }
                What::Release(_) => {}
            }
        }
        self.hosts[side].queue = rest;
        for n in (0..self.hosts[side].gets.len()).rev() {
            let (op, get, rkey) = self.hosts[side].gets[n];
            if get.is_requested() && alive {
                // No answer will come: the landing key goes first.
                if let Some(on) = on {
                    self.hosts[side].gets[n].2 = 0;
                    if rkey != 0 {
                        let lag = 5 + self.chance(100);
                        self.after(lag, Ev::Closed(side, on.epoch, op, rkey));
                    }
                }
            }
            if !get.is_posted() {
                self.hosts[side].gets.remove(n);
                if self.log.ops[op].told.is_none() {
                    self.tell(op, OpOutcome::NotDone);
                }
            }
        }
    }

    fn serve_queue(&mut self, side: usize, epoch: u32) {
        loop {
            let host = &mut self.hosts[side];
            let tx = &host.ch.tx;
            let at = tx.cursor().ahead_of(tx.acked()).unwrap_or(0) as usize;
            let Some(out) = host.queue.get_mut(at) else {
                return;
            };
            let (mut ask, mut back) = (None, None);
            if let (What::Put(op, put), false) = (&mut out.what, out.told) {
                let op = *op;
                let step = put.step(&mut host.keys);
                let handle = put.handle();
                match step {
                    PutStep::Ask(piece) => ask = Some((handle, piece)),
                    PutStep::Return(old, piece) => back = Some((old, piece)),
                    PutStep::Wait => return,
                    PutStep::Write {
                        part,
                        from,
                        rkey,
                        addr,
                        place,
                    } => {
                        let moves = host.ch.moves().get();
                        let wr = Wr::Put {
                            op,
                            from,
                            place,
                            moves,
                        };
                        let cells = cells(&part);
                        let pkt = Pkt::Write {
                            rkey,
                            addr,
                            cells,
                            wr,
                        };
                        let whole = put.range().len();
                        if !(self.is(Bug::EarlyNote) && from + part.len() >= whole && whole > CELL)
                        {
                            self.transmit(side, epoch, pkt);
                            continue;
                        }
                        // The note first.
                        let note = self.number(side, at);
                        if let Some(note) = note {
                            self.send_memory(side, epoch, &note);
                        }
                        self.transmit(side, epoch, pkt);
                        continue;
                    }
                    PutStep::Failed(_) => {
                        self.put_failed(side, at, op);
                        continue;
                    }
                    PutStep::Note => {}
                }
            }
            if let Some((handle, piece)) = ask {
                self.ask(side, handle, piece);
                return;
            }
            if let Some((handle, piece)) = back {
                self.give_key_back(side, handle, piece);
                continue;
            }
            if !self.send_numbered(side, epoch, at) {
                return;
            }
        }
    }

    /// The note of a PUT, under its number.
    fn number(&mut self, side: usize, at: usize) -> Option<MemoryRecord> {
        let host = &mut self.hosts[side];
        let out = host.queue.get_mut(at)?;
        let Next::Message(number) = host.ch.tx.next(&mut out.item) else {
            return None;
        };
        let (kind, handle) = match &out.what {
            What::Put(_, put) => (NoteKind::Placed, put.handle()),
            What::Release(handle) => (NoteKind::Release, *handle),
            What::Message(..) => return None,
        };
        Some(MemoryRecord::Note(Note {
            channel: CHANNEL,
            number,
            kind,
            ack: host.ch.rx.announce(),
            handle,
            len: 0,
        }))
    }

    fn send_numbered(&mut self, side: usize, epoch: u32, at: usize) -> bool {
        let host = &mut self.hosts[side];
        let out = &mut host.queue[at];
        if out.item.is_expired() {
            let total = out.item.len();
            let body = match out.what {
                What::Message(_, body) => body,
                _ => None,
            };
            return match host.ch.tx.next(&mut out.item) {
                Next::Skip(number) => {
                    if let Some(loan) = body.and_then(|body| host.loan_of(body.handle)) {
                        loan.not_sent();
                    }
                    self.send_skip(side, epoch, number, total);
                    true
                }
                _ => false,
            };
        }
        if let What::Message(op, body) = out.what {
            return match host.ch.tx.next(&mut out.item) {
                Next::Message(number) => {
                    self.send_message(side, epoch, number, op, body);
                    true
                }
                _ => false,
            };
        }
        match self.number(side, at) {
            Some(note) => {
                self.send_memory(side, epoch, &note);
                true
            }
            None => false,
        }
    }

    fn put_failed(&mut self, side: usize, at: usize, op: usize) {
        let drops = self.is(Bug::NoSkip);
        let host = &mut self.hosts[side];
        let out = &mut host.queue[at];
        let What::Put(_, put) = &out.what else {
            return;
        };
        let outcome = put.failed(&host.ch.tx, &mut out.item);
        out.told = true;
        if out.item.number().is_none() || drops {
            if let Some(out) = host.queue.remove(at) {
                host.ch.tx.release(out.item);
            }
        }
        self.tell(op, outcome);
    }

    fn ask(&mut self, side: usize, handle: Handle, piece: u64) {
        let ask = Ask {
            channel: CHANNEL,
            handle,
            piece,
        };
        self.hosts[side].control.push_back(MemoryRecord::Ask(ask));
    }

    fn give_key_back(&mut self, side: usize, handle: Handle, piece: u64) {
        self.seen.replaced += 1;
        let back = Return {
            channel: CHANNEL,
            handle,
            piece: Some(piece),
        };
        self.hosts[side]
            .control
            .push_back(MemoryRecord::Return(back));
    }

    fn serve_gets(&mut self, side: usize, epoch: u32) {
        let mut n = 0;
        while n < self.hosts[side].gets.len() {
            let host = &mut self.hosts[side];
            let asked = host.gets.iter().filter(|g| g.1.is_requested()).count();
            // What has ended begins nothing new.
            let is_ending = host.ending.is_some();
            let id = (asked < 2 && !is_ending).then_some(host.next_id);
            let (op, get, _) = &mut host.gets[n];
            let op = *op;
            let handle = get.handle();
            // Once the channel closes, the peer invalidates keys without asking.
            let reading = match self.sch.reads[side] && !host.dead && !is_ending {
                true => Reading::Now,
                false => Reading::No,
            };
            match get.step(&mut host.keys, id, reading) {
                GetStep::Ask(piece) => self.ask(side, handle, piece),
                GetStep::Return(old, piece) => {
                    self.give_key_back(side, old, piece);
                    continue;
                }
                GetStep::Map { .. } => {
                    let lag = 1 + self.chance(100);
                    self.after(lag, Ev::Mapped(side, epoch, op));
                }
                GetStep::Read {
                    part,
                    to,
                    rkey,
                    addr,
                    place,
                } => {
                    if !self.sch.reads[1 - side] {
                        self.log.fail(Violation::LossyRead(op));
                    }
                    let wr = Wr::Get { op, to, place };
                    let cells = cells(&part);
                    let pkt = Pkt::Read {
                        rkey,
                        addr,
                        cells,
                        wr,
                    };
                    self.transmit(side, epoch, pkt);
                    continue;
                }
                GetStep::Request { part, to, id } => self.request(side, epoch, n, part, to, id),
                GetStep::Invalidate => {
                    let rkey = host.gets[n].2;
                    let lag = 5 + self.chance(100);
                    self.after(lag, Ev::Closed(side, epoch, op, rkey));
                }
                GetStep::Wait => {}
                GetStep::Ended(refused) => {
                    host.gets.remove(n);
                    self.tell(
                        op,
                        match refused {
                            None => OpOutcome::Done,
                            Some(_) => OpOutcome::NotDone,
                        },
                    );
                    continue;
                }
            }
            n += 1;
        }
    }

    fn request(&mut self, side: usize, epoch: u32, n: usize, part: Range, to: u64, id: u32) {
        self.next_key += 1;
        let rkey = self.next_key;
        let host = &mut self.hosts[side];
        host.next_id += 1;
        host.gets[n].2 = rkey;
        let (op, handle) = (host.gets[n].0, host.gets[n].1.handle());
        self.attempts[epoch as usize].keys[side].insert(rkey, Region::Landing { op, to });
        let get = ibmsg_proto::wire::Get {
            channel: CHANNEL,
            id,
            handle,
            offset: part.start(),
            len: part.len() as u32,
            rkey,
            addr: u64::from(rkey) << 32,
        };
        self.hosts[side].control.push_back(MemoryRecord::Get(get));
    }

    /// The buffer of a GET is mapped for a READ.
    pub(super) fn landing_mapped(&mut self, side: usize, op: usize) {
        let mut gets = self.hosts[side].gets.iter_mut();
        if let Some((_, get, _)) = gets.find(|g| g.0 == op) {
            get.mapped();
        }
    }

    /// The landing key of a GET is invalid.
    pub(super) fn landing_closed(&mut self, side: usize, op: usize) {
        let ends = self.hosts[side].ending.is_some();
        if let Some((_, get, _)) = self.hosts[side].gets.iter_mut().find(|g| g.0 == op) {
            // READs of it may be under way.
            if ends {
                get.abandoned();
            } else {
                get.invalidated();
            }
        }
    }
}
