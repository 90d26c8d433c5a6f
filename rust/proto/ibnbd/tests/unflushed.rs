// SPDX-License-Identifier: GPL-2.0

//! Unflushed writes, with a server that loses its power or is stopped at any time.

use ibnbd_proto::identity::Identity;
use ibnbd_proto::unflushed::{cache_generation, CacheHistory, Late, Record, Reopened, Unflushed};
use std::collections::BTreeSet;

/// A small pseudo-random generator, so that failures can be reproduced.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % n
    }
}

/// A request: a write of a block, or a flush.
#[derive(Clone)]
struct Request {
    tag: u16,
    generation: u32,
    /// None for a flush.
    block: Option<u32>,
    /// The writes that had been answered when the flush was submitted.
    covers: BTreeSet<u32>,
    done: bool,
}

/// Mistakes of a driver that is broken on purpose.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    No,
    /// It ignores the generation of an answer.
    Generations,
    /// Every flush clears the whole record.
    Tags,
    /// The server continues to serve after its report that everything is durable.
    Serves,
    /// The server sends the report before the requests in service have ended.
    Early,
    /// It accepts a report to an earlier session.
    Stale,
}

/// The report of a planned stop.
#[derive(Clone, Copy, PartialEq)]
enum Words {
    /// Nothing.
    None,
    /// It is on its way.
    Sent,
    /// The client has it.
    Heard,
}

/// The server's disk, requests and answers on the way, and the client's memory.
struct World {
    broken: Broken,
    cached: BTreeSet<u32>,
    durable: BTreeSet<u32>,
    sent: Vec<Request>,
    answered: BTreeSet<u32>,
    bits: u64,
    /// Names the server's boot.
    boot: u64,
    /// The client's knowledge of it.
    cache: CacheHistory,
    /// The server is being stopped: it serves nothing.
    stopped: bool,
    words: Words,
    /// The server has restarted, and the client has not found that out.
    unnoticed: bool,
    /// Flushes fail.
    alarm: bool,
    next: u32,
    good_flushes: u32,
    alarms: u32,
    quiet_losses: u32,
    planned: u32,
}

/// The number that tells one boot from another.
fn cache_of(boot: u64) -> Identity {
    cache_generation(&boot.to_le_bytes(), 1)
}

impl World {
    fn new(broken: Broken) -> Self {
        Self {
            broken,
            cached: BTreeSet::new(),
            durable: BTreeSet::new(),
            sent: Vec::new(),
            answered: BTreeSet::new(),
            bits: Record::NEW.to_bits(),
            boot: 0,
            cache: CacheHistory::new(cache_of(0)),
            stopped: false,
            words: Words::None,
            unnoticed: false,
            alarm: false,
            next: 0,
            good_flushes: 0,
            alarms: 0,
            quiet_losses: 0,
            planned: 0,
        }
    }

    fn record(&self) -> Record {
        Record::from_bits(self.bits)
    }

    fn send(&mut self, tag: u16, block: Option<u32>, covers: BTreeSet<u32>) {
        if block.is_none() {
            self.bits = self.record().flushing(tag).to_bits();
        }
        let generation = self.record().generation();
        self.sent.push(Request {
            tag,
            generation,
            block,
            covers,
            done: false,
        });
    }

    fn submit(&mut self, random: &mut Random) {
        let tag = random.below(6) as u16;
        if self.unnoticed || self.sent.iter().any(|rq| rq.tag == tag) {
            return;
        }
        if random.below(3) > 0 {
            self.next += 1;
            self.send(tag, Some(self.next), BTreeSet::new());
        } else if !self.alarm {
            self.send(tag, None, self.answered.clone());
        }
    }

    /// The server does something that it was sent.
    fn serve(&mut self, random: &mut Random) {
        let open: Vec<_> = (0..self.sent.len())
            .filter(|at| !self.sent[*at].done)
            .collect();
        if self.unnoticed || self.stopped || open.is_empty() {
            return;
        }
        let request = &mut self.sent[open[random.below(open.len())]];
        request.done = true;
        match request.block {
            Some(block) => drop(self.cached.insert(block)),
            None => self.durable.append(&mut self.cached),
        }
    }

    /// An answer arrives; some are under way for long.
    fn answer(&mut self, random: &mut Random) {
        let done: Vec<_> = (0..self.sent.len())
            .filter(|at| self.sent[*at].done)
            .collect();
        if done.is_empty() {
            return;
        }
        let request = self.sent.swap_remove(done[random.below(done.len())]);
        let (record, tag) = (self.record(), request.tag);
        let generation = if self.broken == Broken::Generations {
            record.generation()
        } else {
            request.generation
        };
        let Some(block) = request.block else {
            let tag = match record.unflushed() {
                Unflushed::Before(last) if self.broken == Broken::Tags => last,
                _ => tag,
            };
            self.bits = record.flushed(generation, tag).to_bits();
            self.good_flushes += 1;
            let lost = request.covers.difference(&self.durable).next();
            assert_eq!(lost, None, "a flush vouches for what is gone");
            return;
        };
        match record.written(generation) {
            Ok(next) => {
                self.bits = next.to_bits();
                self.answered.insert(block);
            }
            // As if it had not been answered.
            Err(Late) => self.send(tag, Some(block), BTreeSet::new()),
        }
    }

    fn cut_power(&mut self) {
        self.cached.clear();
        self.boot += 1;
        self.unnoticed = true;
    }

    /// The server is stopped on purpose: no more requests are served, the disk is flushed, and the
    /// client is told.
    fn stop(&mut self) {
        if self.unnoticed || self.stopped {
            return;
        }
        self.stopped = self.broken != Broken::Serves;
        if self.broken == Broken::Early {
            self.words = Words::Sent;
            // Those in service have not ended: their data comes into the cache afterwards.
            self.durable.append(&mut self.cached);
            self.stopped = false;
            while self.serve_one() {}
            self.stopped = true;
            return;
        }
        self.durable.append(&mut self.cached);
        self.words = Words::Sent;
    }

    fn serve_one(&mut self) -> bool {
        let Some(request) = self.sent.iter_mut().find(|rq| !rq.done) else {
            return false;
        };
        request.done = true;
        if let Some(block) = request.block {
            self.cached.insert(block);
        }
        true
    }

    /// The client is told, if it is not too late.
    fn hear(&mut self) {
        let in_time = !self.unnoticed || self.broken == Broken::Stale;
        if self.words == Words::Sent && in_time {
            self.words = Words::Heard;
            self.cache.durable();
        }
    }

    /// The server restarts after a stop: its machine was rebooted, or only its modules
    /// were exchanged, which leaves the cache as it is.
    fn restart(&mut self, rebooted: bool) {
        if !self.stopped {
            return;
        }
        if rebooted {
            self.cut_power();
        }
        self.unnoticed = true;
    }

    /// The client opens the device again, and sends again what has no answer.
    fn notice(&mut self) {
        if !core::mem::take(&mut self.unnoticed) {
            return;
        }
        self.stopped = false;
        let told = self.words == Words::Heard;
        if self.broken != Broken::Stale || told {
            self.words = Words::None;
        }
        let before = self.record();
        match self.cache.reopened(cache_of(self.boot)) {
            Reopened::Same => (),
            Reopened::Kept => {
                self.bits = before.lost().to_bits();
                self.planned += u32::from(before.unflushed() != Unflushed::Nothing);
            }
            Reopened::Lost => {
                assert!(!told, "a flush fails after a planned stop");
                self.bits = before.lost().to_bits();
                if before.unflushed() == Unflushed::Nothing {
                    self.quiet_losses += 1;
                } else {
                    self.alarm = true;
                    self.alarms += 1;
                }
            }
        }
        let (late, again) = core::mem::take(&mut self.sent)
            .into_iter()
            .partition(|rq| rq.done);
        self.sent = late;
        let again: Vec<Request> = again;
        for request in again {
            match request.block {
                Some(_) => self.send(request.tag, request.block, request.covers),
                // Those that were under way are told, too.
                None if self.alarm => (),
                None => self.send(request.tag, None, request.covers),
            }
        }
    }

    fn act(&mut self, random: &mut Random) {
        match random.below(44) {
            0 => self.cut_power(),
            1..=3 => self.notice(),
            40 => self.stop(),
            41 | 42 => self.hear(),
            43 => {
                let rebooted = random.below(2) > 0;
                self.restart(rebooted);
            }
            // All know of it, and do not count on what is gone.
            4 if self.alarm && !self.unnoticed => {
                self.alarm = false;
                let there =
                    |block: &u32| self.durable.contains(block) || self.cached.contains(block);
                self.answered = self.answered.iter().copied().filter(there).collect();
            }
            5..=15 => self.submit(random),
            16..=27 => self.serve(random),
            _ => self.answer(random),
        }
    }
}

fn run(broken: Broken, seeds: u64) -> (u32, u32, u32, u32) {
    let mut sums = (0, 0, 0, 0);
    for seed in 0..seeds {
        let mut random = Random(seed);
        let mut world = World::new(broken);
        for _ in 0..300 {
            world.act(&mut random);
        }
        sums.0 += world.good_flushes;
        sums.1 += world.alarms;
        sums.2 += world.quiet_losses;
        sums.3 += world.planned;
    }
    sums
}

#[test]
fn no_flush_vouches_for_what_is_gone() {
    let (good, alarms, quiet, planned) = run(Broken::No, 5_000);
    // Each way happens, and often.
    assert!(
        good > 20_000 && alarms > 2_000 && quiet > 500 && planned > 500,
        "{good} {alarms} {quiet} {planned}"
    );
}

#[test]
fn broken_drivers_are_caught() {
    for broken in [
        Broken::Generations,
        Broken::Tags,
        Broken::Serves,
        Broken::Early,
        Broken::Stale,
    ] {
        assert!(std::panic::catch_unwind(|| run(broken, 5_000)).is_err());
    }
}

#[test]
fn all_is_flushed_in_the_end() {
    let written = Record::NEW.written(0).unwrap();
    assert_eq!(written.unflushed(), Unflushed::Something);
    // The later flush is for what the earlier one is for, and not the other way round.
    let both = written.flushing(7).flushing(9);
    assert_eq!(both.flushed(0, 7).unflushed(), Unflushed::Before(9));
    assert_eq!(both.flushed(0, 9).unflushed(), Unflushed::Nothing);
    assert_eq!(
        both.written(0).unwrap().flushed(0, 9).unflushed(),
        Unflushed::Something
    );
    assert_eq!(Record::NEW.flushing(7), Record::NEW);
    let later = both.lost();
    assert_eq!(
        (later.generation(), later.unflushed()),
        (1, Unflushed::Nothing)
    );
    assert_eq!(later.written(0), Err(Late));
    for tag in [0, 1, u16::MAX] {
        let record = later.written(1).unwrap().flushing(tag);
        assert_eq!(record.unflushed(), Unflushed::Before(tag));
        assert_eq!(Record::from_bits(record.to_bits()), record);
    }
}

#[test]
fn a_planned_stop_counts_once() {
    let mut cache = CacheHistory::new(cache_of(1));
    cache.durable();
    // A client that opens the device after two planned stops has lost nothing either.
    cache.durable();
    assert_eq!(cache.reopened(cache_of(2)), Reopened::Kept);
    assert_eq!(cache.reopened(cache_of(2)), Reopened::Same);
    assert_eq!(cache.reopened(cache_of(3)), Reopened::Lost);
    // The modules were exchanged, and the cache is the same: what was in it was flushed.
    cache.durable();
    assert_eq!(cache.reopened(cache_of(3)), Reopened::Kept);
    assert_eq!(cache.reopened(cache_of(3)), Reopened::Same);
    cache.durable();
    assert_eq!(cache.reopened(Identity::UNKNOWN), Reopened::Kept);
    assert_eq!(cache.reopened(cache_of(3)), Reopened::Same);
    assert_eq!(cache.reopened(cache_of(4)), Reopened::Lost);
}

#[test]
fn generations_of_a_cache() {
    let generation = cache_generation(b"one boot", 1);
    assert!(generation.may_be(cache_generation(b"one boot", 1)));
    for other in [
        cache_generation(b"one boot", 2),
        cache_generation(b"another", 1),
    ] {
        assert!(!generation.may_be(other) && !other.may_be(generation));
    }
    let unknown = cache_generation(b"", 1);
    assert_eq!(unknown, Identity::UNKNOWN);
    assert!(unknown.may_be(generation) && generation.may_be(unknown));
    assert_eq!(
        (
            unknown.or(generation),
            generation.or(cache_generation(b"another", 1))
        ),
        (generation, generation)
    );
    assert_eq!(Identity::from_wire(generation.to_wire()), generation);
}
