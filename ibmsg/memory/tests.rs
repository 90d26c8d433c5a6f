// SPDX-License-Identifier: GPL-2.0

//! Tests of what a peer can do to the memory of a channel on which nothing is published, and of operations.
//!
//! Pages need a program: scenarios have those.

use super::*;
use ibmsg_proto::{
    memory::{
        BodyEnd,
        BodyError,
        BodyRef,
        Handle,
        Range,
        Refusal,
        Rights,
        Want, //
    },
    wire::{
        Ask,
        Get,
        Got,
        KeyRecord,
        Return,
        Revoke, //
    },
};
use ibtrs_core::messages::memory::{
    Access,
    Region,
    RegionUse,
    Remote,
    Source,
    Target, //
};
use kernel::sync::Arc;
use kx::user::UserPages;

/// One that has no room for anything, and has completed so much.
struct Full(u32);

impl Device for Full {
    fn map(&self, _pages: &Arc<UserPages>, _at: usize, _len: usize) -> Result<Source> {
        Err(ENOMEM)
    }

    fn register(
        &self,
        _pages: &Arc<UserPages>,
        _at: usize,
        _len: usize,
        _rights: (Access, RegionUse),
    ) -> Result<Region> {
        Err(ENOBUFS)
    }

    fn invalidate(&self, _region: Region, _cookie: u64) {}

    fn write(&self, _from: &Source, _at: usize, _len: usize, _to: Remote, _cookie: u64) {}

    fn can_read(&self) -> bool {
        true
    }

    fn is_readable(&self) -> bool {
        true
    }

    fn map_target(&self, _pages: &Arc<UserPages>, _at: usize, _len: usize) -> Result<Target> {
        Err(ENOMEM)
    }

    fn read(&self, _into: Target, _from: Remote, _cookie: u64) {}

    fn completions(&self) -> u32 {
        self.0
    }
}

const ON: Conn = Conn { epoch: 1, cid: 2 };
const CHANNEL: u32 = 7;

fn memory() -> Result<KBox<Memory>> {
    Memory::new(CHANNEL, TERMS.ok_or(EINVAL)?, GFP_KERNEL)
}

fn handle(number: u64) -> Result<Handle> {
    Handle::from_wire((number + 1) << 16).ok_or(EINVAL)
}

/// Memory that is the body of a message, but for its pages.
fn lent(memory: &mut Memory) -> Result<Handle> {
    let range = Range::new(0, 8).ok_or(EINVAL)?;
    let (_, handle) = memory.publish_range(range, Rights::default())?;
    memory.lend(&BodyRef { handle, range }, 7);
    Ok(handle)
}

/// What the program is told of such a body, once its memory is free.
fn told(memory: &mut Memory, handle: Handle) -> Result<BodyEnd> {
    let slot = memory.slot_of(handle).ok_or(ENOENT)?;
    slot.loan.as_mut().ok_or(ENOENT)?.freed();
    let receipt = memory.next_receipt().ok_or(ENOENT)?;
    Ok(receipt.end)
}

fn arrives(memory: &mut Memory, record: MemoryRecord) -> Result<(), Refused> {
    memory.arrived(ON, &record, &Full(0), 0)
}

fn ask(number: u64) -> Result<MemoryRecord> {
    Ok(MemoryRecord::Ask(Ask {
        channel: CHANNEL,
        handle: handle(number)?,
        piece: 0,
    }))
}

fn revoke(number: u64) -> Result<MemoryRecord> {
    Ok(MemoryRecord::Revoke(Revoke {
        channel: CHANNEL,
        handle: handle(number)?,
    }))
}

/// The records that are to be sent.
fn sent(memory: &mut Memory) -> Result<KVec<MemoryRecord>> {
    let mut all = KVec::with_capacity(MAX_RECORDS, GFP_KERNEL)?;
    while memory.send(ON, |record| all.push_within_capacity(*record).is_ok()) == Some(true) {}
    Ok(all)
}

fn is_breach(result: Result<(), Refused>) -> bool {
    matches!(result, Err(Refused::Breach(_)))
}

#[kernel::macros::kunit_tests(ibmsg_memory)]
mod cases {
    use super::*;

    #[test]
    fn what_is_not_there_is_refused_as_long_as_answers_are_taken() -> Result {
        let mut memory = memory()?;
        for _ in 0..3 {
            for number in 0..MAX_ANSWERS as u64 {
                assert_eq!(arrives(&mut memory, ask(number)?), Ok(()));
            }
            assert!(is_breach(arrives(&mut memory, ask(0)?)));
            // A record of this side has a place all the same.
            memory.queue(ask(99)?);
            let all = sent(&mut memory)?;
            assert_eq!(all.len(), MAX_ANSWERS + 1);
            for (number, record) in all.iter().take(MAX_ANSWERS).enumerate() {
                assert_eq!(
                    *record,
                    MemoryRecord::Key(KeyRecord {
                        channel: CHANNEL,
                        handle: handle(number as u64)?,
                        piece: 0,
                        key: Err(Refusal::Stale),
                    })
                );
            }
            assert_eq!(all.last(), Some(&ask(99)?));
        }
        assert!(memory.is_quiet() && !memory.needs_fence());
        Ok(())
    }

    #[test]
    fn bodies_that_are_not_there() -> Result {
        let mut memory = memory()?;
        let body = BodyRef {
            handle: handle(3)?,
            range: Range::new(0, 8).ok_or(EINVAL)?,
        };
        assert_eq!(memory.may_lend(&body), Err(ESTALE));
        memory.lend(&body, 7);
        memory.body_ends(body.handle, ibtrs_proto::Errno::ECANCELED, false);
        memory.body_is_skipped(body.handle);
        memory.bodies_end(true, BodyEnd::TakenBack);
        assert!(memory.next_receipt().is_none() && !memory.owes_receipts());
        let released = memory.body_is_released(body.handle);
        assert_eq!(released, Err(BodyError::Unknown));
        Ok(())
    }

    #[test]
    fn a_body_that_the_peer_has_may_be_released_after_its_message_has_ended() -> Result {
        let mut memory = memory()?;
        let (queued, unsent) = (lent(&mut memory)?, lent(&mut memory)?);
        memory.body_ends(queued, ibtrs_proto::Errno::ECANCELED, true);
        // Nothing else may happen by which it would be looked at.
        assert_eq!(memory.due(), Some(0));
        memory.body_ends(unsent, ibtrs_proto::Errno::ECANCELED, false);
        assert_eq!(memory.body_is_released(queued), Ok(()));
        for handle in [queued, unsent] {
            assert_eq!(memory.body_is_released(handle), Err(BodyError::Unknown));
        }
        // The first reason counts.
        assert_eq!(
            told(&mut memory, queued)?,
            BodyEnd::Message(ibtrs_proto::Errno::ECANCELED)
        );
        Ok(())
    }

    #[test]
    fn a_body_is_taken_back_until_its_owner_has_the_receipt() -> Result {
        let mut memory = memory()?;
        let handle = lent(&mut memory)?;
        // It is revoked then, and perhaps still in reach.
        assert_eq!(memory.body_is_released(handle), Ok(()));
        assert_eq!(memory.take_back(handle), Ok(()));
        assert_eq!(memory.take_back(handle), Ok(()));
        assert_eq!(told(&mut memory, handle)?, BodyEnd::Released);
        assert_eq!(memory.take_back(handle), Err(ESTALE));
        Ok(())
    }

    #[test]
    fn what_is_closed_in_the_place_of_the_program_was_not_taken_back() -> Result {
        let mut memory = memory()?;
        let handle = lent(&mut memory)?;
        memory.bodies_end(false, BodyEnd::Closed);
        assert_eq!(told(&mut memory, handle)?, BodyEnd::Closed);
        Ok(())
    }

    #[test]
    fn a_place_that_was_made_before_the_peer_was_known() -> Result {
        let mut memory = memory()?;
        let peer = MemoryTerms::new(1, 2).ok_or(EINVAL)?;
        memory.agreed(CHANNEL + 1, peer);
        assert_eq!((memory.channel, memory.most_gets), (CHANNEL + 1, 2));
        assert!(!memory.peer_knows_reads);
        Ok(())
    }

    #[test]
    fn a_push_of_what_is_not_there() -> Result {
        let mut memory = memory()?;
        let get = Get {
            channel: CHANNEL,
            id: 5,
            handle: handle(3)?,
            offset: 0,
            len: 8,
            rkey: 1,
            addr: 2,
        };
        assert_eq!(arrives(&mut memory, MemoryRecord::Get(get)), Ok(()));
        let got = MemoryRecord::Got(Got {
            channel: CHANNEL,
            id: 5,
            refused: Some(Refusal::Stale),
        });
        assert_eq!(sent(&mut memory)?.as_slice(), &[got]);
        Ok(())
    }

    #[test]
    fn answers_to_nothing() -> Result {
        let mut memory = memory()?;
        let (channel, handle) = (CHANNEL, handle(0)?);
        let answers = [
            MemoryRecord::Key(KeyRecord {
                channel,
                handle,
                piece: 0,
                key: Err(Refusal::Stale),
            }),
            MemoryRecord::Got(Got {
                channel,
                id: 0,
                refused: None,
            }),
            MemoryRecord::Return(Return {
                channel,
                handle,
                piece: Some(0),
            }),
            MemoryRecord::Return(Return {
                channel,
                handle,
                piece: None,
            }),
        ];
        for answer in answers {
            assert!(is_breach(arrives(&mut memory, answer)));
        }
        assert!(sent(&mut memory)?.is_empty());
        Ok(())
    }

    #[test]
    fn handles_are_returned_once_and_not_without_end() -> Result {
        let mut memory = memory()?;
        for _ in 0..2 {
            for number in 0..KEYS as u64 {
                for _ in 0..2 {
                    assert_eq!(arrives(&mut memory, revoke(number)?), Ok(()));
                }
            }
            assert!(is_breach(arrives(&mut memory, revoke(KEYS as u64)?)));
            assert_eq!(sent(&mut memory)?.len(), KEYS);
        }
        Ok(())
    }

    #[test]
    fn records_belong_to_a_connection() -> Result {
        let mut memory = memory()?;
        assert_eq!(arrives(&mut memory, ask(0)?), Ok(()));
        let other = Conn { epoch: 2, cid: 2 };
        let later = memory.arrived(other, &ask(1)?, &Full(0), 0);
        assert_eq!(later, Err(Refused::Later));
        assert_eq!(memory.send(other, |_| true), Some(false));
        // They go with it.
        memory.left();
        assert!(sent(&mut memory)?.is_empty());
        assert_eq!(memory.arrived(other, &ask(1)?, &Full(0), 0), Ok(()));
        assert_eq!(memory.send(other, |_| true), Some(true));
        Ok(())
    }

    /// The number of a channel may be used again while a buffer of the former one is being mapped.
    #[test]
    fn what_was_mapped_for_another_channel_is_not_for_this_one() -> Result {
        let (former, mut memory) = (memory()?, memory()?);
        let number = 1;
        let mapped = |era| Done::MappedPut {
            era,
            number,
            source: Err(ENOMEM),
        };
        assert!(memory.did(mapped(former.era), &Full(0), 0).is_none());
        let own = memory.era;
        assert!(memory.did(mapped(own), &Full(0), 0).is_some());
        memory.left();
        assert!(memory.did(mapped(own), &Full(0), 0).is_none());
        assert!(memory.era != own && memory.era != former.era);
        Ok(())
    }

    #[test]
    fn memory_that_the_device_does_not_see_is_refused_in_its_own_way() {
        assert_eq!(
            refusal_of(EOPNOTSUPP).errno(),
            ibtrs_proto::Errno::EOPNOTSUPP
        );
        for error in [ENOMEM, ENOBUFS, EINVAL] {
            assert_eq!(refusal_of(error), Refusal::Resources);
        }
    }

    #[test]
    fn a_peer_without_room_is_asked_again_and_other_channels_return_keys() -> Result {
        let mut memory = memory()?;
        let (handle, piece) = (handle(0)?, 0);
        let refused = |memory: &mut Memory, now| {
            let record = MemoryRecord::Key(KeyRecord {
                channel: CHANNEL,
                handle,
                piece,
                key: Err(Refusal::Resources),
            });
            assert_eq!(memory.keys.want(handle, piece), Want::Ask);
            assert_eq!(memory.arrived(ON, &record, &Full(0), now), Ok(()));
        };
        let look = |memory: &mut Memory, now| {
            let advanced = memory.advance(Some((ON, &Full(0))), false, false, now);
            (advanced.needs_room, memory.due())
        };
        memory.put_waits = true;
        refused(&mut memory, 5);
        assert_eq!(look(&mut memory, 6), (true, Some(5 + PAUSE_US)));
        // Once for each refusal.
        assert_eq!(look(&mut memory, 7), (false, Some(5 + PAUSE_US)));
        assert_eq!(look(&mut memory, 5 + PAUSE_US), (false, None));
        refused(&mut memory, 4 + patience::ROOM_US);
        assert!(look(&mut memory, 4 + patience::ROOM_US).0);
        // It has taken too long: the program is told.
        refused(&mut memory, 5 + patience::ROOM_US);
        assert!(!look(&mut memory, 5 + patience::ROOM_US).0);
        let told = Want::Refused(Refusal::Resources);
        assert_eq!(memory.keys.want(handle, piece), told);
        // A channel that has keys returns one that it does not use.
        assert_eq!(memory.keys.want(handle, piece), Want::Ask);
        memory.put_waits = false;
        memory.give_up_key(0);
        assert!(sent(&mut memory)?.is_empty());
        let key = ibmsg_proto::memory::Key {
            rkey: 1,
            addr: 2,
            range: Range::new(0, 1).ok_or(EINVAL)?,
            rights: Rights::default(),
            readable: false,
        };
        let record = MemoryRecord::Key(KeyRecord {
            channel: CHANNEL,
            handle,
            piece,
            key: Ok(key),
        });
        assert_eq!(arrives(&mut memory, record), Ok(()));
        assert_eq!(memory.idle_keys(), 1);
        memory.give_up_key(0);
        let back = MemoryRecord::Return(Return {
            channel: CHANNEL,
            handle,
            piece: Some(piece),
        });
        assert_eq!(sent(&mut memory)?.as_slice(), &[back]);
        assert_eq!(memory.idle_keys(), 0);
        Ok(())
    }

    /// A GET is a push without a key, so nobody is to make room.
    #[test]
    fn nobody_returns_a_key_for_a_get() -> Result {
        let mut memory = memory()?;
        let (handle, piece) = (handle(0)?, 0);
        assert_eq!(memory.keys.want(handle, piece), Want::Ask);
        let record = MemoryRecord::Key(KeyRecord {
            channel: CHANNEL,
            handle,
            piece,
            key: Err(Refusal::Resources),
        });
        assert_eq!(memory.arrived(ON, &record, &Full(0), 5), Ok(()));
        let advanced = memory.advance(Some((ON, &Full(0))), false, false, 6);
        assert!(!advanced.needs_room && memory.due().is_none() && memory.keys.is_empty());
        // None is asked for in the next second.
        assert_eq!(memory.asks_not_until, 5 + IDLE_US);
        Ok(())
    }

    #[test]
    fn keys_that_are_not_used_are_returned_and_the_channel_may_move() -> Result {
        let mut memory = memory()?;
        let (handle, piece) = (handle(0)?, 0);
        let key = ibmsg_proto::memory::Key {
            rkey: 1,
            addr: 2,
            range: Range::new(0, 1).ok_or(EINVAL)?,
            rights: Rights::default(),
            readable: true,
        };
        assert_eq!(memory.keys.want(handle, piece), Want::Ask);
        let record = MemoryRecord::Key(KeyRecord {
            channel: CHANNEL,
            handle,
            piece,
            key: Ok(key),
        });
        let came = 3 * IDLE_US;
        assert_eq!(memory.arrived(ON, &record, &Full(0), came), Ok(()));
        let look = |memory: &mut Memory, now| {
            let _ = memory.advance(Some((ON, &Full(0))), false, false, now);
            memory.due()
        };
        // It is not taken from the operation that has asked for it.
        assert_eq!(look(&mut memory, came), Some(came + IDLE_US));
        memory.has_used_keys = true;
        let used = came + 1;
        let due = look(&mut memory, used).ok_or(EINVAL)?;
        assert!(due >= used + IDLE_US && due < used + IDLE_US + IDLE_GRID_US);
        assert!(sent(&mut memory)?.is_empty() && !memory.may_leave(due));
        assert_eq!(look(&mut memory, due), None);
        assert!(!memory.may_leave(due));
        assert_eq!(sent(&mut memory)?.len(), 1);
        // The peer has to end it first.
        assert!(!memory.may_leave(due + 2 * IDLE_US - 1));
        assert!(memory.may_leave(due + 2 * IDLE_US));
        Ok(())
    }

    /// A GET waits for a landing zone in the same way.
    #[test]
    fn a_full_queue_is_not_asked_again_at_once() -> Result {
        let mut memory = memory()?;
        let full = |memory: &mut Memory, now| {
            // Nothing is granted, so the place is wanted for ever.
            memory.places[0] = Place::Busy(handle(0)?, 0, true);
            let done = Done::Registered {
                era: memory.era,
                at: 0,
                key: (Range::new(0, 1).ok_or(EINVAL)?, Rights::default()),
                region: Err(EAGAIN),
            };
            assert!(memory.did(done, &Full(0), now).is_none());
            assert!(matches!(memory.places[0], Place::Wanted(..)));
            assert!(!memory.has_job() && memory.next_job().is_none());
            Ok::<(), Error>(())
        };
        let look = |memory: &mut Memory, now| {
            let _ = memory.advance(Some((ON, &Full(0))), false, false, now);
            (memory.has_job(), memory.due())
        };
        full(&mut memory, 7)?;
        assert_eq!(look(&mut memory, 8), (false, Some(7 + PAUSE_US)));
        assert_eq!(look(&mut memory, 7 + PAUSE_US), (true, None));
        // Work that has completed has left a place.
        full(&mut memory, 20)?;
        let _ = memory.completed(Cookie::Push(3).to_bits(CHANNEL));
        assert!(memory.has_job());
        // So has a connection that is lost.
        full(&mut memory, 30)?;
        memory.left();
        assert!(!memory.has_job() && look(&mut memory, 31).1.is_none());
        Ok(())
    }

    #[test]
    fn operations_have_places_numbers_and_one_outcome() -> Result {
        let mut memory = memory()?;
        memory.number = NUMBER - 3;
        let mut numbers = KVec::with_capacity(MAX_OPS, GFP_KERNEL)?;
        for _ in 0..MAX_OPS {
            let number = memory.begin_op(Waits::Command(None))?;
            assert!(number <= NUMBER && !numbers.contains(&number));
            numbers.push_within_capacity(number)?;
        }
        assert_eq!(memory.begin_op(Waits::Command(None)), Err(EAGAIN));
        let first = numbers[0];
        assert_eq!(memory.take_outcome(first), None);
        assert!(memory.may_begin(first));
        memory.end_op(first, Ok(()));
        memory.end_op(first, Err(ibtrs_proto::Errno::EIO));
        assert!(!memory.may_begin(first));
        assert_eq!(memory.take_outcome(first), Some(Ok(())));
        assert_eq!(memory.take_outcome(first), None);
        // After as many as there are numbers, one that is in use is left out.
        memory.number = numbers[1].wrapping_sub(1) & NUMBER;
        let another = memory.begin_op(Waits::Command(None))?;
        assert!(!numbers.contains(&another));
        for number in numbers {
            memory.leave_op(number);
        }
        memory.leave_op(another);
        assert!(memory.waiters.is_empty());
        Ok(())
    }

    /// As the ring of a program may go while a worker issues its commands.
    #[test]
    fn a_command_that_is_cancelled_while_it_is_issued_does_not_begin() -> Result {
        let mut memory = memory()?;
        for _ in 0..2 * MAX_OPS {
            let number = memory.begin_op(Waits::Command(None))?;
            // It is not attached yet, so it is not this caller's to complete.
            assert!(memory.detach_op(number).is_none());
            assert!(!memory.may_begin(number) && memory.waiters.is_empty());
            assert!(memory.detach_op(number).is_none());
        }
        // One that is being completed stays so.
        let number = memory.begin_op(Waits::Command(None))?;
        memory.end_op(number, Ok(()));
        assert!(memory.detach_op(number).is_none());
        assert_eq!(memory.take_outcome(number), Some(Ok(())));
        Ok(())
    }

    #[test]
    fn writes_that_nobody_waits_for_end_or_the_connection_does() -> Result {
        let mut memory = memory()?;
        memory.on = Some(ON);
        memory.writes = 2;
        memory.abandon_writes();
        // Another one is posted behind them.
        memory.writes += 1;
        let look = |memory: &mut Memory, now| {
            let completions = 3 - memory.writes as u32;
            memory.advance(Some((ON, &Full(completions))), false, false, now)
        };
        assert!(!look(&mut memory, 1).is_stuck);
        let due = memory.due().ok_or(EINVAL)?;
        assert!(!look(&mut memory, due - 1).is_stuck);
        assert!(look(&mut memory, due).is_stuck);
        let done = Cookie::Put(1, 0).to_bits(CHANNEL);
        assert!(memory.completed(done).is_some());
        // One has completed, so the device goes on.
        assert!(!look(&mut memory, 5 * due).is_stuck);
        assert!(memory.completed(done).is_some());
        assert!(!look(&mut memory, 10 * due).is_stuck);
        assert_eq!((memory.due(), memory.writes), (None, 1));
        Ok(())
    }

    #[test]
    fn a_read_whose_get_has_gone_is_fenced_until_it_completes() -> Result {
        let mut memory = memory()?;
        memory.on = Some(ON);
        memory.reads = 1;
        assert!(memory.needs_fence() && !memory.may_leave(u64::MAX) && !memory.is_quiet());
        let done = Cookie::Get(5, 0).to_bits(CHANNEL);
        assert_eq!(memory.completed(done), None);
        assert!(!memory.needs_fence() && memory.is_quiet());
        memory.reads = 1;
        memory.left();
        assert!(!memory.needs_fence());
        Ok(())
    }

    #[test]
    fn cookies() {
        let all = [
            Cookie::Key(PLACES - 1),
            Cookie::Push(NUMBER),
            Cookie::Put(NUMBER, KEYS - 1),
            Cookie::Put(0, 0),
            Cookie::Landing(1),
            Cookie::Get(NUMBER, KEYS - 1),
        ];
        for cookie in all {
            let bits = cookie.to_bits(u32::MAX);
            assert_eq!(
                (Cookie::from_bits(bits), channel_of(bits)),
                (cookie, u32::MAX)
            );
        }
    }
}
