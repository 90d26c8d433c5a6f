// SPDX-License-Identifier: GPL-2.0

//! What is remembered of writes, against a server that loses its power at any time.

use ibnbd_proto::identity::Identity;
use ibnbd_proto::unflushed::{cache_generation, Late, Record, Unflushed};
use std::collections::BTreeSet;

/// A small generator of numbers, so that a failure can be had again.
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
    /// What had been answered when a flush was asked for.
    covers: BTreeSet<u32>,
    done: bool,
}

/// What a driver that is broken on purpose leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    No,
    /// It does not look at the run of an answer.
    Runs,
    /// It clears what any flush is for.
    Tags,
}

/// The server's disk, requests and answers on the way, and the client's memory.
struct World {
    broken: Broken,
    cached: BTreeSet<u32>,
    durable: BTreeSet<u32>,
    sent: Vec<Request>,
    answered: BTreeSet<u32>,
    bits: u64,
    /// The server has lost its power, and the client has not found that out.
    unnoticed: bool,
    /// Flushes fail.
    alarm: bool,
    next: u32,
    good_flushes: u32,
    alarms: u32,
    quiet_losses: u32,
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
            unnoticed: false,
            alarm: false,
            next: 0,
            good_flushes: 0,
            alarms: 0,
            quiet_losses: 0,
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
        if self.unnoticed || open.is_empty() {
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
        let generation = if self.broken == Broken::Runs {
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
        self.unnoticed = true;
    }

    /// The client opens the device again, and sends again what has no answer.
    fn notice(&mut self) {
        if !core::mem::take(&mut self.unnoticed) {
            return;
        }
        let before = self.record();
        self.bits = before.lost().to_bits();
        if before.unflushed() == Unflushed::Nothing {
            self.quiet_losses += 1;
        } else {
            self.alarm = true;
            self.alarms += 1;
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
        match random.below(40) {
            0 => self.cut_power(),
            1..=3 => self.notice(),
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

fn run(broken: Broken, seeds: u64) -> (u32, u32, u32) {
    let mut sums = (0, 0, 0);
    for seed in 0..seeds {
        let mut random = Random(seed);
        let mut world = World::new(broken);
        for _ in 0..300 {
            world.act(&mut random);
        }
        sums.0 += world.good_flushes;
        sums.1 += world.alarms;
        sums.2 += world.quiet_losses;
    }
    sums
}

#[test]
fn no_flush_vouches_for_what_is_gone() {
    let (good, alarms, quiet) = run(Broken::No, 5_000);
    // Each way happens, and often.
    assert!(
        good > 20_000 && alarms > 2_000 && quiet > 500,
        "{good} {alarms} {quiet}"
    );
}

#[test]
fn broken_shells_are_caught() {
    for broken in [Broken::Runs, Broken::Tags] {
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
fn runs_of_a_cache() {
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
