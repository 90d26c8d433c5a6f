// SPDX-License-Identifier: GPL-2.0

//! Chunk ownership: each number is in service on one path at a time.

use ibtrs_proto::chunk_owner::{Arrive, ChunkOwner, Done, Leave, PathId, Restore};
use proptest::prelude::*;

fn id(n: u16) -> PathId {
    PathId::new(n).unwrap()
}

fn served(word: ChunkOwner, me: PathId) -> ChunkOwner {
    match word.arrive(me) {
        Arrive::Serve(next) => next,
        other => panic!("{other:?}"),
    }
}

fn waits(word: ChunkOwner, me: PathId) -> (ChunkOwner, PathId, Option<PathId>) {
    match word.arrive(me) {
        Arrive::Wait {
            next,
            close,
            displaced,
        } => (next, close, displaced),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_comes_and_goes() {
    let a = served(ChunkOwner::FREE, id(7));
    assert_eq!((a.owner(), a.waiter()), (Some(id(7)), None));
    assert_eq!(a.done(id(7)), Done::Free(ChunkOwner::FREE));
    assert_eq!(a.done(id(8)), Done::Stray);
    assert_eq!(ChunkOwner::FREE.done(id(7)), Done::Stray);
    assert_eq!(PathId::new(0), None);
}

#[test]
fn twice_by_one_path_is_a_violation() {
    let a = served(ChunkOwner::FREE, id(1));
    assert_eq!(a.arrive(id(1)), Arrive::Violation);
    let (b, _, _) = waits(a, id(2));
    assert_eq!(b.arrive(id(2)), Arrive::Violation);
    assert_eq!(b.arrive(id(1)), Arrive::Violation);
}

#[test]
fn the_second_attempt_waits_for_the_first() {
    let a = served(ChunkOwner::FREE, id(1));
    let (b, close, displaced) = waits(a, id(2));
    assert_eq!((close, displaced), (id(1), None));
    assert_eq!(b.done(id(2)), Done::Stray, "it only waits");
    let Done::Wake { next, waiter } = b.done(id(1)) else {
        panic!();
    };
    assert_eq!(waiter, id(2));
    assert_eq!(next, served(ChunkOwner::FREE, id(2)));
}

#[test]
fn the_third_attempt_displaces_the_second() {
    let (b, _, _) = waits(served(ChunkOwner::FREE, id(1)), id(2));
    let (c, close, displaced) = waits(b, id(3));
    assert_eq!((close, displaced), (id(1), Some(id(2))));
    // The second one's tear-down finds that its request is not its own any more.
    assert_eq!(c.leave(id(2)), Leave::Elsewhere);
    assert_eq!((c.owner(), c.waiter()), (Some(id(1)), Some(id(3))));
}

/// Path 3 has displaced path 2, and is closing.
#[test]
fn the_displaced_attempt_has_its_place_back() {
    let word = |owner, waiter: u16| ChunkOwner::from_bits(u32::from(waiter) << 16 | owner);
    let restored = |owner, waiter| word(owner, waiter).restore(id(3), id(2));
    assert_eq!(restored(1, 3), Restore::Waits(word(1, 2)));
    // Its number has come already; the thread that has taken the request gives it back.
    assert_eq!(restored(3, 0), Restore::Behind(word(3, 2)));
    // Somebody else's may have come in between.
    for (owner, waiter) in [(0, 0), (1, 0), (2, 0), (1, 4), (3, 4), (4, 0), (2, 3)] {
        assert_eq!(restored(owner, waiter), Restore::Superseded);
    }
    // A path never waits for itself.
    assert_eq!(word(2, 0).restore(id(2), id(2)), Restore::Superseded);
}

#[test]
fn a_waiter_leaves() {
    let a = served(ChunkOwner::FREE, id(1));
    let (b, _, _) = waits(a, id(2));
    assert_eq!(b.leave(id(2)), Leave::Left(a));
    assert_eq!(b.leave(id(1)), Leave::Elsewhere);
    assert_eq!(a.leave(id(2)), Leave::Elsewhere);
}

#[test]
fn numbers_for_the_atomic() {
    assert_eq!(ChunkOwner::FREE.to_bits(), 0);
    let (word, _, _) = waits(served(ChunkOwner::FREE, id(1)), id(u16::MAX));
    assert_eq!(word.to_bits(), 0xFFFF_0001);
    assert_eq!(ChunkOwner::from_bits(word.to_bits()), word);
}

/// One chunk number, as a driver drives it, with paths 1..=4.
#[derive(Default)]
struct Driver {
    word: u32,
    waiting: [bool; 5],
    /// Requests of a path that it has to wait for.
    inflight: [u32; 5],
    closing: [bool; 5],
    serving: Option<PathId>,
}

impl Driver {
    fn word(&self) -> ChunkOwner {
        ChunkOwner::from_bits(self.word)
    }

    fn arrive(&mut self, me: PathId) {
        let i = usize::from(me.get());
        if self.closing[i] {
            return;
        }
        match self.word().arrive(me) {
            Arrive::Serve(next) => {
                self.inflight[i] += 1;
                self.word = next.to_bits();
                assert_eq!(self.serving.replace(me), None, "two in service");
            }
            Arrive::Wait {
                next,
                close,
                displaced,
            } => {
                self.inflight[i] += 1;
                assert!(!std::mem::replace(&mut self.waiting[i], true));
                self.word = next.to_bits();
                if let Some(d) = displaced {
                    self.drop_waiting(d);
                    self.close(d);
                }
                self.close(close);
            }
            Arrive::Violation => self.close(me),
        }
    }

    fn drop_waiting(&mut self, path: PathId) {
        let i = usize::from(path.get());
        assert!(std::mem::take(&mut self.waiting[i]), "taken twice");
        self.inflight[i] -= 1;
    }

    fn ended(&mut self) {
        let Some(me) = self.serving.take() else {
            return;
        };
        self.inflight[usize::from(me.get())] -= 1;
        match self.word().done(me) {
            Done::Free(next) => self.word = next.to_bits(),
            Done::Wake { next, waiter } => {
                self.word = next.to_bits();
                let i = usize::from(waiter.get());
                assert!(std::mem::take(&mut self.waiting[i]), "lost wake-up");
                self.serving = Some(waiter);
                if self.closing[i] {
                    self.ended();
                }
            }
            Done::Stray => panic!("{:?}", self.word()),
        }
    }

    fn close(&mut self, path: PathId) {
        self.closing[usize::from(path.get())] = true;
    }

    fn leave(&mut self, path: PathId) {
        let i = usize::from(path.get());
        if !self.closing[i] || !self.waiting[i] {
            return;
        }
        if let Leave::Left(next) = self.word().leave(path) {
            self.word = next.to_bits();
            self.drop_waiting(path);
        }
    }

    /// A path whose tear-down is complete comes back under the same id.
    fn reopen(&mut self, path: PathId) {
        let i = usize::from(path.get());
        if self.closing[i] && !self.waiting[i] && self.inflight[i] == 0 {
            self.closing[i] = false;
        }
    }
}

proptest! {
    /// Whatever arrives in whatever order: one is in service, no waiting request is lost or
    /// taken twice, and in the end the number is free.
    #[test]
    fn one_at_a_time(events in prop::collection::vec((0u8..6, 1u16..5), 0..200)) {
        let mut s = Driver::default();
        for (what, path) in events {
            match what {
                0 | 1 => s.arrive(id(path)),
                2 => s.ended(),
                3 => s.close(id(path)),
                4 => s.leave(id(path)),
                _ => s.reopen(id(path)),
            }
            prop_assert_eq!(s.word().owner(), s.serving);
            prop_assert_eq!(ChunkOwner::from_bits(s.word().to_bits()), s.word());
            let waiter = s.word().waiter().map_or(0, |w| usize::from(w.get()));
            for i in 1..5 {
                prop_assert_eq!(s.waiting[i], i == waiter);
            }
        }
        for path in 1..5 {
            s.close(id(path));
            s.leave(id(path));
        }
        s.ended();
        prop_assert_eq!(s.word(), ChunkOwner::FREE);
        prop_assert_eq!(s.inflight, [0; 5]);
    }
}
