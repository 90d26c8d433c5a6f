// SPDX-License-Identifier: GPL-2.0

//! Decisions of a session when paths are connected and lost.

use ibtrs_proto::errno::Errno;
use ibtrs_proto::failover::*;
use ibtrs_proto::handshake::{RspExt, MAX_EPOCH};
use proptest::prelude::*;

fn server(boot: u8, gen: u32) -> Option<RspExt> {
    Some(RspExt {
        server_run: [boot; 16],
        session_gen: gen,
    })
}

fn offer(epoch: u32, ext: Option<RspExt>) -> Offer {
    Offer {
        epoch,
        previous: 0,
        ext,
        is_first: false,
        queue_depth: 512,
        max_io_bytes: 1 << 20,
        fenced: 0,
    }
}

fn up(f: &mut Failover, ext: Option<RspExt>) -> Published {
    let epoch = f.begin().unwrap();
    match f.offer(&offer(epoch, ext)) {
        OfferResult::Publish(p) => p,
        other => panic!("{other:?}"),
    }
}

fn lost(path: &Published) -> Entry {
    let mut e = Entry::NEW;
    e.lost(path, Loss::Link);
    e
}

#[test]
fn a_retry_waits_for_its_fence() {
    let mut f = Failover::new();
    let (a, b) = (up(&mut f, server(1, 1)), up(&mut f, server(1, 1)));
    assert_eq!(f.path_lost(&a), None);
    let mut e = lost(&a);
    assert_eq!(f.next(&e, None), Next::Wait);
    assert_eq!(f.next(&e, Some(b.epoch)), Next::Fence(a.epoch));
    assert_eq!(f.next(&e, Some(b.epoch)), Next::Wait, "one at a time");
    f.fence_done(a.epoch);
    assert!(!e.fenced(b.epoch) && e.fenced(a.epoch) && !e.fenced(a.epoch));
    assert_eq!(f.next(&e, Some(b.epoch)), Next::Submit);
}

#[test]
fn a_fence_whose_path_dies_is_sent_again() {
    let mut f = Failover::new();
    let ext = server(1, 1);
    let (a, b, c) = (up(&mut f, ext), up(&mut f, ext), up(&mut f, ext));
    f.path_lost(&a);
    let e = lost(&a);
    assert_eq!(f.next(&e, Some(b.epoch)), Next::Fence(a.epoch));
    f.path_lost(&b);
    assert_eq!(f.next(&e, Some(c.epoch)), Next::Fence(a.epoch));
    assert_eq!(f.next(&lost(&b), Some(c.epoch)), Next::Wait);
    f.fence_done(a.epoch);
    assert_eq!(f.next(&lost(&b), Some(c.epoch)), Next::Fence(b.epoch));
}

/// A path that was declared lost may still bring the answer to its fence, when another fence is under way.
#[test]
fn an_answer_to_a_forgotten_fence_is_not_taken_for_another() {
    let mut f = Failover::new();
    let ext = server(1, 1);
    let (a, b, c, d) = (
        up(&mut f, ext),
        up(&mut f, ext),
        up(&mut f, ext),
        up(&mut f, ext),
    );
    f.path_lost(&a);
    f.path_lost(&b);
    assert_eq!(f.next(&lost(&a), Some(c.epoch)), Next::Fence(a.epoch));
    f.path_lost(&c);
    assert!(!f.awaits_fence(a.epoch));
    assert_eq!(f.next(&lost(&b), Some(d.epoch)), Next::Fence(b.epoch));
    assert!(f.awaits_fence(b.epoch) && !f.awaits_fence(a.epoch));
    f.fence_done(a.epoch);
    assert_eq!(f.next(&lost(&b), Some(d.epoch)), Next::Wait);
    f.fence_done(b.epoch);
    assert_eq!(f.next(&lost(&a), Some(d.epoch)), Next::Fence(a.epoch));
}

/// A request survives any number of losses, and few breaches of the protocol.
#[test]
fn a_server_that_breaks_the_protocol_is_not_asked_for_ever() {
    for ext in [server(1, 1), None] {
        let mut f = Failover::new();
        let mut e = Entry::NEW;
        let again = |f: &mut Failover, e: &mut Entry, loss| {
            let a = up(f, ext);
            assert!(f.path_lost(&a).is_some());
            e.lost(&a, loss);
            assert_eq!(f.next(e, None), Next::Wait, "there is no path");
            let b = up(f, ext);
            if e.need() != 0 {
                // Also of one that is not sent again, no message may be on its way.
                assert_eq!(f.next(e, Some(b.epoch)), Next::Fence(a.epoch));
                f.fence_done(a.epoch);
                e.fenced(a.epoch);
            }
            while f.call().is_some() {
                f.returned();
            }
            let next = f.next(e, Some(b.epoch));
            f.path_lost(&b);
            next
        };
        // Servers without extensions count as fresh each time, and end it for that.
        let sent = if ext.is_some() {
            Next::Submit
        } else {
            Next::End(Errno::ESTALE)
        };
        for _ in 0..1000 {
            assert_eq!(again(&mut f, &mut e, Loss::Link), sent);
        }
        for _ in 1..MAX_BREAKS {
            assert_eq!(again(&mut f, &mut e, Loss::Protocol), sent);
            assert!(!e.broke_too_often());
        }
        let last = again(&mut f, &mut e, Loss::Protocol);
        assert!(e.broke_too_often() && !f.unsent(Entry::NEW).broke_too_often());
        if ext.is_some() {
            assert_eq!(last, Next::End(Errno::EIO));
            // The server has ended its part before anything else is sent.
            let epoch = f.begin().unwrap();
            assert!(matches!(f.offer(&offer(epoch, ext)), OfferResult::Fence(_)));
        }
    }
}

#[test]
fn without_extensions_there_is_no_fence() {
    let mut f = Failover::new();
    let (a, _b) = (up(&mut f, None), up(&mut f, None));
    f.path_lost(&a);
    assert_eq!(f.next(&lost(&a), None), Next::Submit);
}

#[test]
fn requests_wait_for_a_path_until_the_timeout() {
    let mut f = Failover::new();
    let a = up(&mut f, server(1, 1));
    let outage = f.path_lost(&a).unwrap();
    let (sent, unsent) = (lost(&a), f.unsent(Entry::NEW));
    assert_eq!(f.next(&sent, None), Next::Wait);
    assert!(f.queue_timeout(outage));
    assert_eq!(f.next(&unsent, None), Next::End(Errno::ETIMEDOUT));
    // Nothing that was sent has failed: the next path needs no fence.
    let a = up(&mut f, server(1, 1));
    assert_eq!(f.next(&unsent, None), Next::Submit);
    // A timer of an outage that is over means nothing.
    assert!(!f.queue_timeout(outage));
    let outage2 = f.path_lost(&a).unwrap();
    assert!(!f.queue_timeout(outage) && f.queue_timeout(outage2));
}

#[test]
fn abandoned_writes_are_fenced_off_before_the_next_path() {
    let mut f = Failover::new();
    let ext = server(1, 1);
    let early = f.begin().unwrap();
    let a = up(&mut f, ext);
    let outage = f.path_lost(&a).unwrap();
    // Its own epoch is fenced, so that it needs nothing; but it may be on the disk.
    let mut e = lost(&a);
    e.fenced(a.epoch);
    f.queue_timeout(outage);
    assert_eq!(f.next(&e, None), Next::End(Errno::ETIMEDOUT));
    // An offer of an early attempt does not count for later ones.
    assert_eq!(f.offer(&offer(early, ext)), OfferResult::Again);
    let epoch = f.begin().unwrap();
    let mut o = offer(epoch, ext);
    assert_eq!(f.offer(&o), OfferResult::Fence(a.epoch));
    o.fenced = a.epoch;
    assert!(matches!(f.offer(&o), OfferResult::Publish(_)));
    up(&mut f, ext);
}

/// A path that refuses a request for good ends it, although the server may still execute an earlier
/// attempt at it.
#[test]
fn a_request_that_cannot_be_sent_again_is_abandoned() {
    for errno in [
        Errno::EINVAL,
        Errno::EMSGSIZE,
        Errno::EBUSY,
        Errno::EIO,
        Errno::ESTALE,
    ] {
        let mut f = Failover::new();
        let ext = server(1, 1);
        let (a, b) = (up(&mut f, ext), up(&mut f, ext));
        f.path_lost(&a);
        let mut e = lost(&a);
        assert_eq!(f.next(&e, Some(b.epoch)), Next::Fence(a.epoch));
        f.fence_done(a.epoch);
        e.fenced(a.epoch);
        assert_eq!(f.next(&e, Some(b.epoch)), Next::Submit);
        assert_eq!(f.not_taken(&e, Errno::EAGAIN), NotTaken::Later);
        assert_eq!(f.not_taken(&e, Errno::ENOMEM), NotTaken::Later);
        assert_eq!(f.not_taken(&e, Errno::ENOTCONN), NotTaken::Wait);
        assert_eq!(f.not_taken(&e, errno), NotTaken::End);
        f.path_lost(&b);
        let epoch = f.begin().unwrap();
        assert_eq!(f.offer(&offer(epoch, ext)), OfferResult::Fence(a.epoch));
    }
}

/// One that was never sent leaves nothing at the server, and one that goes back on the list is not
/// abandoned.
#[test]
fn a_request_that_was_not_sent_needs_no_fence() {
    let mut f = Failover::new();
    let ext = server(1, 1);
    let a = up(&mut f, ext);
    let e = f.unsent(Entry::NEW);
    assert_eq!(f.next(&e, Some(a.epoch)), Next::Submit);
    assert_eq!(f.not_taken(&e, Errno::EINVAL), NotTaken::End);
    let mut sent = lost(&a);
    sent.fenced(a.epoch);
    assert_eq!(f.not_taken(&sent, Errno::EAGAIN), NotTaken::Later);
    f.path_lost(&a);
    up(&mut f, ext);
}

/// Two attempts fence the same abandoned requests: neither minds the other, and what the first one
/// leaves behind when it is lost again is not what the second one's fence was about.
#[test]
fn attempts_that_fence_at_the_same_time() {
    let mut f = Failover::new();
    let ext = server(1, 1);
    let early = f.begin().unwrap();
    let a = up(&mut f, ext);
    let (b, c) = (f.begin().unwrap(), f.begin().unwrap());
    let fail = |f: &mut Failover, path: &Published| {
        let outage = f.path_lost(path).unwrap();
        f.queue_timeout(outage);
        assert_eq!(f.next(&lost(path), None), Next::End(Errno::ETIMEDOUT));
    };
    fail(&mut f, &a);
    let (mut first, mut second) = (offer(b, ext), offer(c, ext));
    assert_eq!(f.offer(&first), OfferResult::Fence(a.epoch));
    assert_eq!(f.offer(&second), OfferResult::Fence(a.epoch));
    first.fenced = a.epoch;
    let OfferResult::Publish(b) = f.offer(&first) else {
        panic!();
    };
    // The second fence may close this one yet, so that it takes no requests.
    assert_eq!(f.offer(&offer(early, ext)), OfferResult::Again);
    fail(&mut f, &b);
    second.fenced = a.epoch;
    assert_eq!(f.offer(&second), OfferResult::Fence(b.epoch));
    second.fenced = b.epoch;
    assert!(matches!(f.offer(&second), OfferResult::Publish(_)));
    up(&mut f, ext);
}

/// As long as a path is connected nothing is fenced for them.
#[test]
fn requests_that_nobody_wants_cost_no_path() {
    let mut f = Failover::new();
    let ext = server(1, 1);
    let (a, b) = (up(&mut f, ext), up(&mut f, ext));
    f.path_lost(&a);
    f.note_abandoned(&lost(&a));
    let c = up(&mut f, ext);
    // But when the next path is the first again, there is nothing to lose.
    f.path_lost(&b);
    f.path_lost(&c);
    let epoch = f.begin().unwrap();
    assert_eq!(f.offer(&offer(epoch, ext)), OfferResult::Fence(a.epoch));
}

#[test]
fn identity() {
    let mut f = Failover::new();
    let slow = f.begin().unwrap();
    let a = up(&mut f, server(1, 1));
    // Learnt before or after? Nobody knows.
    assert_eq!(f.offer(&offer(slow, server(1, 2))), OfferResult::Again);
    assert_eq!(f.offer(&offer(slow, server(2, 1))), OfferResult::Again);
    let next = f.begin().unwrap();
    let other = OfferResult::Refuse(OfferRefusal::OtherServer);
    assert_eq!(f.offer(&offer(next, server(2, 1))), other);
    assert_eq!(f.offer(&offer(next, None)), other);
    assert_eq!(
        f.offer(&offer(next, server(1, 2))),
        OfferResult::SessionLost
    );
    let small = Offer {
        queue_depth: 511,
        ..offer(next, server(1, 1))
    };
    assert_eq!(
        f.offer(&small),
        OfferResult::Refuse(OfferRefusal::QueueDepth)
    );
    let small = Offer {
        max_io_bytes: 1,
        ..offer(next, server(1, 1))
    };
    assert_eq!(f.offer(&small), OfferResult::Refuse(OfferRefusal::MaxIo));
    f.path_lost(&a);
    assert_eq!(f.offer(&offer(slow, server(2, 1))), OfferResult::Again);
    assert!(matches!(
        f.offer(&offer(next, server(2, 1))),
        OfferResult::Publish(_)
    ));
    f.close();
    assert_eq!(
        f.offer(&offer(next, server(2, 1))),
        OfferResult::Refuse(OfferRefusal::Closed)
    );
    assert_eq!(f.next(&Entry::NEW, None), Next::End(Errno::ECONNABORTED));
}

/// A server without extensions that was restarted creates a session for any path that asks, and does not
/// say so.
#[test]
fn a_path_that_may_belong_to_a_new_session() {
    let mut f = Failover::new();
    let first = |epoch, ext| Offer {
        is_first: true,
        ..offer(epoch, ext)
    };
    assert!(f.may_create());
    let epoch = f.begin().unwrap();
    let OfferResult::Publish(a) = f.offer(&first(epoch, None)) else {
        panic!("nothing is connected");
    };
    assert!(!f.may_create());
    let next = f.begin().unwrap();
    assert_eq!(f.offer(&first(next, None)), OfferResult::Join);
    let b = up(&mut f, None);
    assert_eq!(b.generation, a.generation);
    f.path_lost(&a);
    assert!(!f.may_create());
    f.path_lost(&b);
    assert!(f.may_create());
    let epoch = f.begin().unwrap();
    let OfferResult::Publish(c) = f.offer(&first(epoch, None)) else {
        panic!("nothing is connected");
    };
    assert_ne!(c.generation, a.generation);

    // The answers of others tell which session they are for.
    let mut f = Failover::new();
    up(&mut f, server(1, 1));
    assert!(f.may_create());
    let epoch = f.begin().unwrap();
    assert!(matches!(
        f.offer(&first(epoch, server(1, 1))),
        OfferResult::Publish(_)
    ));
    // A server without extensions is another one, whatever it was asked.
    let epoch = f.begin().unwrap();
    let other = OfferResult::Refuse(OfferRefusal::OtherServer);
    assert_eq!(f.offer(&first(epoch, None)), other);
}

#[test]
fn a_lost_session() {
    let mut f = Failover::new();
    let a = up(&mut f, server(1, 1));
    assert_eq!(f.call(), None, "the first connect is not told");
    f.path_lost(&a);
    assert_eq!(f.call(), Some(Call::Down));
    f.returned();
    assert_eq!(f.call(), None);
    let old = f.unsent(Entry::NEW);
    let b = up(&mut f, server(2, 1));
    assert!(f.is_quiesced() && b.generation != a.generation);
    assert_eq!(f.call(), Some(Call::Up { session_lost: true }));
    let quiesced = f.unsent(Entry::NEW);
    for e in [old, quiesced, lost(&a)] {
        assert_eq!(f.next(&e, Some(b.epoch)), Next::Wait);
    }
    // Lost while devices are opened: all over again.
    f.path_lost(&b);
    f.returned();
    assert!(f.is_quiesced());
    assert_eq!(f.call(), Some(Call::Down));
    let c = up(&mut f, server(2, 1));
    f.returned();
    assert_eq!(f.call(), Some(Call::Up { session_lost: true }));
    f.returned();
    assert!(!f.is_quiesced());
    assert_eq!(f.call(), None);
    for e in [old, quiesced, lost(&a), lost(&b)] {
        assert_eq!(f.next(&e, Some(c.epoch)), Next::End(Errno::ESTALE));
    }
    let new = f.unsent(Entry::NEW);
    assert_eq!(f.next(&new, Some(c.epoch)), Next::Submit);
}

#[test]
fn a_short_outage_is_told_as_such() {
    let mut f = Failover::new();
    let a = up(&mut f, server(1, 1));
    f.path_lost(&a);
    up(&mut f, server(1, 1));
    assert!(!f.is_quiesced());
    assert_eq!(f.call(), Some(Call::Down));
    f.returned();
    assert_eq!(
        f.call(),
        Some(Call::Up {
            session_lost: false
        })
    );
    f.returned();
    assert_eq!(f.call(), None);
}

#[test]
fn admin_messages_wait_for_no_path() {
    let mut f = Failover::new();
    let (a, b) = (up(&mut f, server(1, 1)), up(&mut f, server(1, 1)));
    f.path_lost(&a);
    let mut e = Entry::ADMIN;
    e.lost(&a, Loss::Link);
    assert_eq!(f.next(&e, Some(b.epoch)), Next::Fence(a.epoch));
    f.path_lost(&b);
    assert_eq!(f.next(&e, None), Next::End(Errno::ECONNABORTED));
    // Devices are opened again by admin messages; one of before is not to be sent again.
    let c = up(&mut f, server(2, 1));
    assert!(f.is_quiesced());
    let open = f.unsent(Entry::ADMIN);
    assert_eq!(f.next(&open, None), Next::Submit);
    assert_eq!(f.next(&e, Some(c.epoch)), Next::End(Errno::ESTALE));
}

#[test]
fn epochs_end() {
    let mut f = Failover::new();
    assert_eq!((f.begin(), f.begin()), (Some(1), Some(2)));
    // 27 bits of them, and no number comes twice.
    assert_eq!(MAX_EPOCH, 0x07FF_FFFF);
    for _ in 3..MAX_EPOCH {
        f.begin();
    }
    assert_eq!((f.begin(), f.begin()), (Some(MAX_EPOCH), None));
    assert_eq!(f.begin(), None);
}

#[test]
fn who_is_known_to_have_extensions() {
    let mut f = Failover::new();
    assert!(!f.has_ext());
    let a = up(&mut f, server(1, 1));
    assert!(f.has_ext());
    // Also as long as nobody is connected.
    f.path_lost(&a);
    assert!(f.has_ext());
    up(&mut f, None);
    assert!(!f.has_ext());
}

#[test]
fn users_are_called_one_call_at_a_time() {
    let mut f = Failover::new();
    let a = up(&mut f, server(1, 1));
    assert_eq!(f.call(), None);
    f.path_lost(&a);
    assert_eq!(f.call(), Some(Call::Down));
    assert_eq!(f.call(), None, "it has not returned");
    up(&mut f, server(1, 1));
    assert_eq!(f.call(), None, "it has not returned");
    f.returned();
    assert_eq!(
        f.call(),
        Some(Call::Up {
            session_lost: false
        })
    );
    assert_eq!(f.call(), None, "it has not returned");
    f.returned();
    assert_eq!(f.call(), None);
    let mut f = Failover::new();
    let a = up(&mut f, server(1, 1));
    f.path_lost(&a);
    assert!(!f.is_closed());
    f.close();
    assert!(f.is_closed());
    assert_eq!(f.call(), None, "it is closed");
}

#[test]
fn requests_queued_during_a_reopen_keep_the_previous_generation() {
    let mut f = Failover::new();
    let a = up(&mut f, server(1, 1));
    f.path_lost(&a);
    let b = up(&mut f, server(2, 1));
    assert!(f.is_quiesced());
    let waiting = f.unsent(Entry::NEW);
    assert_eq!(f.call(), Some(Call::Down));
    f.returned();
    assert_eq!(f.call(), Some(Call::Up { session_lost: true }));
    f.returned();
    assert!(!f.is_quiesced());
    // No path takes it a second time.
    let waiting = f.unsent(waiting);
    assert_eq!(f.next(&waiting, Some(b.epoch)), Next::End(Errno::ESTALE));
}

proptest! {
    /// Paths come and go, requests wait: nothing is sent unfenced, to nobody or for
    /// another generation, nothing times out while a path is up, abandoned requests are fenced off.
    #[test]
    fn any_course(events in prop::collection::vec((0u8..9, 0usize..4), 0..120)) {
        let mut f = Failover::new();
        let mut boot = 1;
        let mut paths: [Option<Published>; 4] = [None; 4];
        let mut before = [0; 4];
        let mut waiting: Vec<Entry> = Vec::new();
        let mut abandoned = 0;
        let mut outage = None;
        let mut fences: Vec<(u32, u32)> = Vec::new();
        for (what, i) in events {
            let count = paths.iter().flatten().count();
            prop_assert_eq!(f.is_connected(), count != 0);
            match what {
                0 | 1 if paths[i].is_none() => {
                    let epoch = f.begin().unwrap();
                    let mut o = offer(epoch, server(boot, 1));
                    o.previous = before[i];
                    let mut got = f.offer(&o);
                    if let OfferResult::Fence(upto) = got {
                        prop_assert!(upto == abandoned && abandoned < epoch);
                        o.fenced = upto;
                        got = f.offer(&o);
                    } else if matches!(got, OfferResult::Publish(_)) && !f.is_quiesced() {
                        prop_assert_eq!(abandoned, 0);
                    }
                    if let OfferResult::Publish(p) = got {
                        for e in &mut waiting {
                            e.fenced(before[i]);
                        }
                        before[i] = p.epoch;
                        paths[i] = Some(p);
                        abandoned = 0;
                    } else {
                        prop_assert_eq!(got, OfferResult::Refuse(OfferRefusal::OtherServer));
                    }
                }
                2 | 3 => if let Some(p) = paths[i].take() {
                    fences.retain(|(_, via)| *via != p.epoch);
                    if let Some(o) = f.path_lost(&p) {
                        prop_assert_eq!(count, 1);
                        outage = Some(o);
                    }
                    waiting.push(lost(&p));
                },
                4 => { waiting.push(f.unsent(Entry::NEW)); }
                5 => if let Some(o) = outage { f.queue_timeout(o); },
                6 => if let Some((epoch, _)) = fences.pop() {
                    f.fence_done(epoch);
                    for e in &mut waiting {
                        e.fenced(epoch);
                    }
                },
                7 => if f.call().is_some() { f.returned() },
                _ => if i == 0 && count == 0 { boot += 1 },
            }
            let via = paths.iter().flatten().next().map(|p| p.epoch);
            waiting.retain(|e| match f.next(e, via) {
                Next::Submit => {
                    assert!(via.is_some() && e.need() == 0 && !f.is_quiesced());
                    false
                }
                Next::Wait => true,
                Next::Fence(epoch) => {
                    assert!(fences.is_empty() && epoch == e.need());
                    fences.push((epoch, via.unwrap()));
                    true
                }
                Next::End(Errno::ETIMEDOUT) => {
                    assert_eq!(via, None);
                    if e.need() != 0 {
                        abandoned = abandoned.max(e.need());
                    }
                    false
                }
                Next::End(errno) => {
                    assert_eq!(errno, Errno::ESTALE);
                    false
                }
            });
        }
    }
}

/// A request that was built in one phase is not sent in another, and does not wait there.
#[test]
fn requests_belong_to_their_generation() {
    let mut f = Failover::new();
    let new = f.phase();
    assert_ne!(new, Phase::NONE);
    assert_eq!(Phase::from_bits(new.to_bits()), new);
    assert!(new.is_open() && !Phase::NONE.is_open());
    assert_eq!(Phase::NONE.check(new), PhaseCheck::Requeue);
    assert_eq!(new.check(new), PhaseCheck::Submit);
    assert_eq!(f.may_requeue(new), Ok(()));
    // The same server again: the same generation.
    let a = up(&mut f, server(1, 1));
    let first = f.phase();
    assert_eq!(first, new);
    f.path_lost(&a);
    assert_eq!(f.call(), Some(Call::Down));
    f.returned();
    assert_eq!(f.phase(), first);
    // Another one: everything waits until the users have opened their devices.
    up(&mut f, server(2, 1));
    let quiesced = f.phase();
    assert!(!quiesced.is_open() && quiesced != first);
    assert_eq!(
        (quiesced.check(first), quiesced.check(quiesced)),
        (PhaseCheck::Requeue, PhaseCheck::Requeue)
    );
    assert_eq!(
        (f.may_requeue(first), f.may_requeue(quiesced)),
        (Ok(()), Ok(()))
    );
    assert_eq!(f.call(), Some(Call::Up { session_lost: true }));
    f.returned();
    let second = f.phase();
    assert!(second.is_open());
    assert!(second.is_same_generation(quiesced) && !second.is_same_generation(first));
    for (built, checked, requeue) in [
        (first, PhaseCheck::Stale, Err(Errno::ESTALE)),
        (quiesced, PhaseCheck::Stale, Err(Errno::ESTALE)),
        (second, PhaseCheck::Submit, Ok(())),
    ] {
        assert_eq!(
            (second.check(built), f.may_requeue(built)),
            (checked, requeue)
        );
    }
}

#[test]
fn nothing_is_queued_without_hope() {
    let mut f = Failover::new();
    let a = up(&mut f, server(1, 1));
    let phase = f.phase();
    let outage = f.path_lost(&a).unwrap();
    assert_eq!(f.may_requeue(phase), Ok(()));
    f.queue_timeout(outage);
    assert_eq!(f.may_requeue(phase), Err(Errno::ETIMEDOUT));
    f.close();
    assert_eq!(f.may_requeue(phase), Err(Errno::ENOTCONN));
}
