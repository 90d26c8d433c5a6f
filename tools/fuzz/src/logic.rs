// SPDX-License-Identifier: GPL-2.0

//! Decisions of the state machines under any order of events.

use ibnbd_proto::unflushed::{Record, Unflushed};
use ibnbd_proto::window::Window;
use ibtrs_proto::backoff::{Attempts, Backoff};
use ibtrs_proto::chunk_owner::{Arrive, ChunkOwner, Done, Leave, PathId};
use ibtrs_proto::failover::{
    Entry, Failover, Loss, Next, Offer, OfferResult, PhaseCheck, Published,
};
use ibtrs_proto::fsm::{client_path as c, server_path as s};
use ibtrs_proto::handshake::RspExt;
use ibtrs_proto::hb::{HbAction, Heartbeat};
use ibtrs_proto::mp::{choose, Candidate, Policy};

/// An attempt, its heartbeat and the timer of the next one are there when they have to be.
pub(crate) fn client_path(bytes: &[u8]) {
    let mut m = c::Machine::new();
    let (mut attempt, mut heartbeat, mut timer) = (true, false, false);
    let mut limit = Attempts::Forever;
    let mut epoch = 1;
    assert!(m.begin(epoch));
    for byte in bytes {
        let event = c::Event::ALL[usize::from(byte % 16) % c::Event::ALL.len()];
        if event == c::Event::LimitSet {
            limit = Attempts::AtMost(u16::from(byte >> 4));
        }
        let possible = match event {
            c::Event::Established
            | c::Event::ConnectFailed
            | c::Event::ConnectAgain
            | c::Event::Error => attempt,
            c::Event::ReconnectDue => std::mem::take(&mut timer),
            c::Event::CloseDone => m.state == c::State::Closing,
            _ => true,
        };
        if !possible {
            continue;
        }
        let made = m.tries.made;
        let mut step = m.step(event, limit);
        loop {
            let mut now = false;
            for action in step.actions.iter() {
                match action {
                    c::Action::AbortConnect => assert!(attempt),
                    c::Action::CancelReconnect => timer = false,
                    c::Action::TearDown => {
                        assert!(attempt);
                        m.ended();
                        (attempt, heartbeat) = (false, false);
                    }
                    c::Action::ScheduleReconnect => {
                        let backoff = Backoff {
                            base_ms: 10,
                            max_ms: 500,
                        };
                        assert!(!timer);
                        assert!(event == c::Event::ConnectAgain || limit.allow(made));
                        assert!(m.delay_ms(&backoff, u32::from(*byte) << 24) <= 500);
                        timer = true;
                    }
                    c::Action::ReconnectNow => now = true,
                    c::Action::StartConnect => {
                        assert!(!attempt && !timer);
                        attempt = true;
                        epoch += 1;
                        assert!(m.begin(epoch));
                    }
                    c::Action::StartHeartbeat => {
                        assert!(attempt && !heartbeat);
                        heartbeat = true;
                    }
                    c::Action::CountConnect | c::Action::CountFailure => {}
                }
            }
            if !now {
                break;
            }
            step = m.step(c::Event::ReconnectDue, limit);
        }
        let late = m.attempt_step(epoch + 1, c::Event::Error, limit);
        assert!(!late.reply.accepted());
        assert_eq!(heartbeat, m.state == c::State::Connected);
        assert_eq!(timer, m.state == c::State::Reconnecting);
        let ends = matches!(
            m.state,
            c::State::Closing | c::State::Closed | c::State::Dead
        );
        assert!(ends || !m.removing);
    }
}

pub(crate) fn server_path(bytes: &[u8]) {
    let mut state = s::INITIAL;
    let (mut cons, mut heartbeat, mut released) = (true, false, false);
    for byte in bytes {
        let event = s::Event::ALL[usize::from(*byte) % s::Event::ALL.len()];
        if event == s::Event::CloseDone && cons {
            continue;
        }
        let step = s::step(state, event);
        state = step.next;
        for action in step.actions.iter() {
            match action {
                s::Action::CancelStale | s::Action::SendInfoRsp => assert!(cons),
                s::Action::StartHeartbeat => {
                    assert!(!heartbeat);
                    heartbeat = true;
                }
                s::Action::TearDown => {
                    assert!(cons);
                    (cons, heartbeat) = (false, false);
                }
                s::Action::Release => {
                    assert!(!cons && !released);
                    released = true;
                }
            }
        }
        assert_eq!(heartbeat, state == s::State::Connected);
        assert_eq!(released, state == s::State::Closed);
    }
}

/// A submitted request waits for no fence, has a path, and is of the present generation.
pub(crate) fn failover(bytes: &[u8]) {
    let mut f = Failover::new();
    let mut up: Vec<Published> = Vec::new();
    let mut waiting = [None::<Entry>; 4];
    let mut outages = Vec::new();
    let mut server = 0u8;
    for pair in bytes.chunks_exact(2) {
        let (what, n) = (pair[0], pair[1]);
        let at = usize::from(n % 4);
        match what % 12 {
            0..=2 => {
                let ext = (n & 128 == 0).then_some(RspExt {
                    server_run: [server; 16],
                    session_gen: u32::from(n & 1),
                });
                let Some(epoch) = f.begin() else { return };
                let mut offer = Offer {
                    epoch,
                    previous: u32::from(n >> 4),
                    ext,
                    is_first: n & 64 != 0,
                    queue_depth: 4,
                    max_io_bytes: 4096,
                    fenced: 0,
                };
                let mut result = f.offer(&offer);
                if let OfferResult::Fence(abandoned) = result {
                    assert!(abandoned < epoch && up.is_empty());
                    offer.fenced = abandoned;
                    result = f.offer(&offer);
                    assert!(matches!(result, OfferResult::Publish(_)));
                }
                if let OfferResult::Publish(path) = result {
                    up.push(path);
                }
            }
            3 => server = n % 3,
            4 if !up.is_empty() => {
                let path = up.remove(usize::from(n) % up.len());
                let last = up.is_empty();
                let outage = f.path_lost(&path);
                assert_eq!(outage.is_some(), last);
                outages.extend(outage);
                if waiting[at].is_none() {
                    let mut entry = Entry::NEW;
                    // The server has broken the protocol up to seven times under it.
                    for _ in 0..n >> 5 {
                        entry.lost(&path, Loss::Protocol);
                    }
                    entry.lost(&path, Loss::Link);
                    waiting[at] = Some(entry);
                }
            }
            5 => {
                if let Some(outage) = outages.pop() {
                    assert!(!f.queue_timeout(outage) || up.is_empty());
                }
            }
            6 => {
                let fenced = u32::from(n);
                f.fence_done(fenced);
                for entry in waiting.iter_mut().flatten() {
                    entry.fenced(fenced);
                    assert!(fenced == 0 || entry.need() != fenced);
                }
            }
            7 => {
                let phase = f.phase();
                if f.may_requeue(phase).is_ok() && waiting[at].is_none() {
                    let entry = if n & 64 == 0 {
                        Entry::NEW
                    } else {
                        Entry::ADMIN
                    };
                    waiting[at] = Some(f.unsent(entry));
                }
                assert_eq!(phase.check(phase) == PhaseCheck::Submit, !f.is_quiesced());
            }
            8 => drop(f.call().map(|_| ())),
            9 => f.returned(),
            10 if n == 255 => f.close(),
            _ => {
                let via = up.first().map(|path| path.epoch);
                let Some(entry) = waiting[at] else { continue };
                match f.next(&entry, via) {
                    Next::Submit => {
                        assert!(entry.need() == 0 && !up.is_empty() && !entry.broke_too_often());
                        waiting[at] = None;
                    }
                    Next::Fence(epoch) => assert!(epoch == entry.need() && via.is_some()),
                    Next::End(errno) => {
                        assert!(errno.0 > 0);
                        waiting[at] = None;
                    }
                    Next::Wait => assert!(up.is_empty() || f.is_quiesced() || entry.need() != 0),
                }
            }
        }
        assert_eq!(f.is_connected(), !up.is_empty());
    }
}

/// At most one path serves, and a waiting path is woken or leaves.
pub(crate) fn owner(bytes: &[u8]) {
    let mut word = ChunkOwner::FREE;
    for byte in bytes {
        let Some(me) = PathId::new(u16::from(byte % 4) + 1) else {
            return;
        };
        let before = word;
        match byte >> 6 {
            0 | 1 => match word.arrive(me) {
                Arrive::Serve(next) => {
                    assert_eq!((before.owner(), next.owner()), (None, Some(me)));
                    word = next;
                }
                Arrive::Wait {
                    next,
                    close,
                    displaced,
                } => {
                    assert_eq!(
                        (Some(close), next.owner()),
                        (before.owner(), before.owner())
                    );
                    assert_eq!((displaced, next.waiter()), (before.waiter(), Some(me)));
                    word = next;
                }
                Arrive::Violation => {
                    assert!(before.owner() == Some(me) || before.waiter() == Some(me))
                }
            },
            2 => match word.done(me) {
                Done::Free(next) => {
                    assert_eq!(next, ChunkOwner::FREE);
                    word = next;
                }
                Done::Wake { next, waiter } => {
                    assert_eq!(
                        (before.waiter(), next.owner()),
                        (Some(waiter), Some(waiter))
                    );
                    word = next;
                }
                Done::Stray => assert_ne!(before.owner(), Some(me)),
            },
            _ => match word.leave(me) {
                Leave::Left(next) => {
                    assert_eq!((before.owner(), None), (next.owner(), next.waiter()));
                    word = next;
                }
                Leave::Elsewhere => assert_ne!(before.waiter(), Some(me)),
            },
        }
        assert!(word.owner().is_some() || word.waiter().is_none());
        assert!(word.waiter().is_none() || word.owner() != word.waiter());
        assert_eq!(ChunkOwner::from_bits(word.to_bits()), word);
    }
}

/// Heartbeat, choice of path, window, and what was not flushed.
pub(crate) fn small(bytes: &[u8]) {
    let mut hb = Heartbeat::new(3);
    let mut window = Window::new();
    let mut record = Record::NEW;
    let (mut now, mut silent) = (0u64, 0u32);
    for eight in bytes.chunks_exact(8) {
        let [what, a, b, ..] = *eight else { return };
        let took = u64::from_le_bytes([a, b, eight[3], eight[4], eight[5], eight[6], eight[7], 0]);
        now = now.wrapping_add(took);
        match what % 8 {
            0 => {
                silent += 1;
                let dead = hb.tick(now) == HbAction::Dead;
                assert_eq!(dead, silent > 3);
            }
            1 => {
                hb.received();
                silent = 0;
            }
            2 => {
                let _ = hb.ack(now);
                silent = 0;
            }
            3 => window.ended(took, now),
            4 => {
                let path = |n: u8| Candidate {
                    usable: a & (1 << n) != 0,
                    inflight: u32::from(b >> n),
                    latency: (b & 1 << n != 0).then_some(took >> n),
                };
                let policy = Policy::ALL[usize::from(b) % 3];
                let chosen = choose(policy, b.into(), (0..4).map(path));
                assert_eq!(chosen.is_some(), a & 15 != 0);
                assert!(chosen.is_none_or(|n| n < 4 && path(n as u8).usable));
            }
            5 => record = record.written(record.generation()).unwrap_or(record),
            6 => record = record.flushing(u16::from(a)),
            _ if what & 64 == 0 => record = record.flushed(u32::from(b & 1), u16::from(a)),
            _ => {
                record = record.lost();
                assert_eq!(record.unflushed(), Unflushed::Nothing);
            }
        }
        assert!(window.limit() >= Window::MIN);
        assert_eq!(Record::from_bits(record.to_bits()), record);
    }
}
