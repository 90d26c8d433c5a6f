// SPDX-License-Identifier: GPL-2.0

//! Invalidation of requests' keys, with a server that lies.

use ibtrs_proto::keys::{Bogus, Key, Revoked, Step};
use proptest::prelude::*;
use std::collections::VecDeque;

const KEY: u32 = 0x1234;

fn step(next: Key, invalidate: bool) -> Result<Step, Bogus> {
    Ok(Step { next, invalidate })
}

fn revoked(key: u32) -> Revoked {
    Revoked::NONE.add(key).unwrap()
}

#[test]
fn a_key_that_was_invalidated_before_the_request_was_made_is_another() {
    assert_eq!(revoked(KEY).since(8, 7), Ok(revoked(KEY)));
    assert_eq!(revoked(KEY).since(7, 7), Err(Bogus { key: KEY }));
    assert_eq!(revoked(KEY).since(1, u64::MAX), Err(Bogus { key: KEY }));
    assert_eq!(Revoked::NONE.since(0, 7), Ok(Revoked::NONE));
}

#[test]
fn what_was_invalidated_fits_a_word() {
    assert_eq!(Revoked::NONE.to_bits(), 0);
    for key in [0, 1, KEY, 1 << 31, u32::MAX] {
        let bits = revoked(key).to_bits();
        assert_eq!(bits, 1 << 32 | u64::from(key));
        assert_eq!(Revoked::from_bits(bits), revoked(key));
        // Without the bit that says so there is none.
        assert_eq!(Revoked::from_bits(u64::from(key)), Revoked::NONE);
    }
}

#[test]
fn an_honest_server_saves_the_local_invalidation() {
    let said = Key::Live.answered(KEY, revoked(KEY));
    assert_eq!(said, step(Key::Dead, false));
}

#[test]
fn an_answer_alone_ends_no_read() {
    let said = Key::Live.answered(KEY, Revoked::NONE);
    assert_eq!(said, step(Key::Dying, true));
    assert!(!Key::Dying.is_dead() && !Key::Live.is_dead());
    assert_eq!(Key::Dying.invalidated(), Key::Dead);
    assert!(Key::Dead.is_dead());
}

#[test]
fn a_request_without_key_ends_with_its_answer() {
    assert_eq!(
        Key::Dead.answered(KEY, Revoked::NONE),
        step(Key::Dead, false)
    );
}

#[test]
fn a_local_invalidation_that_is_under_way_is_waited_for() {
    // The answer crosses it, with or without an invalidation of the server's.
    for revoked in [Revoked::NONE, revoked(KEY)] {
        assert_eq!(
            Key::Dying.answered(KEY, revoked),
            step(Key::Dying, false),
            "{revoked:?}"
        );
    }
    assert_eq!(
        Key::Dying.revoke(),
        Key::Dying.answered(KEY, Revoked::NONE).unwrap()
    );
    assert_eq!(Key::Live.invalidated(), Key::Live);
}

#[test]
fn the_key_of_another_costs_the_path() {
    for key in [Key::Dead, Key::Live, Key::Dying] {
        let said = key.answered(KEY, revoked(KEY + 1));
        assert_eq!(said, Err(Bogus { key: KEY + 1 }), "{key:?}");
    }
}

#[test]
fn each_invalidation_has_an_answer() {
    assert_eq!(revoked(KEY).add(7), Err(Bogus { key: 7 }));
    assert_eq!(revoked(KEY).add(KEY), Err(Bogus { key: KEY }));
}

/// The device's knowledge of a slot, and the driver's steps.
#[derive(Clone, Copy)]
struct Slot {
    /// Changes with each registration.
    key: u32,
    /// The device honours it.
    valid: bool,
    /// The driver's view, as long as a request is in the slot.
    flight: Option<Key>,
    answered: bool,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A request, with or without key.
    Submit(usize, bool),
    /// The server invalidates the key of a slot. Of another key the device knows nothing, and
    /// breaks the connection.
    SendInv(usize),
    Answer(usize),
    GiveUp(usize),
    /// The oldest local invalidation completes.
    Completion,
}

const SLOTS: usize = 3;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..SLOTS, any::<bool>()).prop_map(|(at, key)| Op::Submit(at, key)),
        (0..SLOTS).prop_map(Op::SendInv),
        (0..SLOTS).prop_map(Op::Answer),
        (0..SLOTS).prop_map(Op::GiveUp),
        Just(Op::Completion),
    ]
}

/// Ends the request of a slot if it may.
fn finish(slot: &mut Slot, posted: &VecDeque<(usize, u32)>, at: usize) {
    if !slot.answered || !slot.flight.is_some_and(Key::is_dead) {
        return;
    }
    assert!(!slot.valid, "the server can write to memory that is free");
    assert!(
        posted.iter().all(|(of, _)| *of != at),
        "a completion finds the next request"
    );
    slot.flight = None;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]
    #[test]
    fn nothing_ends_while_its_key_is_valid(ops in proptest::collection::vec(op(), 1..60)) {
        let mut slots = [Slot { key: 0, valid: false, flight: None, answered: false }; SLOTS];
        for (at, slot) in slots.iter_mut().enumerate() {
            slot.key = (at as u32 + 1) << 8;
        }
        let mut posted: VecDeque<(usize, u32)> = VecDeque::new();
        let mut last = Revoked::NONE;
        for op in ops {
            match op {
                Op::Submit(at, with_key) => {
                    let slot = &mut slots[at];
                    if slot.flight.is_some() {
                        continue;
                    }
                    slot.answered = false;
                    slot.flight = Some(Key::Dead);
                    if with_key {
                        slot.key += 1;
                        slot.valid = true;
                        slot.flight = Some(Key::Live);
                    }
                }
                Op::SendInv(at) => {
                    slots[at].valid = false;
                    match Revoked::from_bits(last.to_bits()).add(slots[at].key) {
                        Ok(next) => last = next,
                        Err(_) => break,
                    }
                }
                Op::Answer(at) => {
                    let revoked = std::mem::take(&mut last);
                    let slot = &mut slots[at];
                    let Some(key) = slot.flight.filter(|_| !slot.answered) else {
                        break;
                    };
                    let Ok(step) = key.answered(slot.key, revoked) else {
                        break;
                    };
                    slot.answered = true;
                    slot.flight = Some(step.next);
                    if step.invalidate {
                        posted.push_back((at, slot.key));
                    }
                    finish(&mut slots[at], &posted, at);
                }
                Op::GiveUp(at) => {
                    let slot = &mut slots[at];
                    let Some(key) = slot.flight.filter(|_| !slot.answered) else {
                        continue;
                    };
                    let step = key.revoke();
                    slot.flight = Some(step.next);
                    if step.invalidate {
                        posted.push_back((at, slot.key));
                    }
                }
                Op::Completion => {
                    let Some((at, key)) = posted.pop_front() else {
                        continue;
                    };
                    let slot = &mut slots[at];
                    prop_assert_eq!(slot.key, key, "it finds another registration");
                    slot.valid = false;
                    slot.flight = slot.flight.map(Key::invalidated);
                    finish(&mut slots[at], &posted, at);
                }
            }
        }
    }
}
