// SPDX-License-Identifier: GPL-2.0

//! Serial numbers, calls, credits in frames, fair queueing, outcomes.

use ibmsg_proto::call::*;
use ibmsg_proto::fair::Deficit;
use ibmsg_proto::limits::*;
use ibmsg_proto::link::*;
use ibmsg_proto::outcome::*;
use ibmsg_proto::Seq;
use ibtrs_proto::Errno;
use proptest::prelude::*;

#[test]
fn calls() {
    let mut caller = CallerSlot::new(3);
    let mut callee = CalleeSlot::default();
    assert!(caller.is_free());
    let id = caller.call().unwrap();
    assert_eq!(
        (id.to_wire(), id.slot(), caller.call()),
        (0x1_0003, 3, None)
    );
    assert_eq!(callee.request(id), Ok(()));
    assert_eq!(callee.request(id), Err(CallError::Busy(id)));
    assert_eq!(callee.unanswered(), Some(id));
    let other = CallId::from_wire(0x2_0003);
    assert!(!callee.reply(other) && callee.reply(id) && !callee.reply(id));
    assert_eq!(caller.reply(other), Err(CallError::NoCall(other)));
    assert_eq!(caller.reply(id), Ok(Answer::Program));
    assert_eq!(caller.reply(id), Err(CallError::NoCall(id)));
    // Abandoned: the slot is free when the reply has come.
    let id = caller.call().unwrap();
    assert_eq!(id, other);
    assert_eq!(caller.abandon(Outcome::Unknown), Some(CallOutcome::Unknown));
    assert_eq!(caller.abandon(Outcome::Unknown), None);
    assert_eq!(caller.call(), None);
    assert_eq!(caller.reply(id), Ok(Answer::Late));
    // Or it is certain that the request will not arrive.
    let id = caller.call().unwrap();
    assert_eq!(
        caller.abandon(Outcome::Delivered),
        Some(CallOutcome::Unanswered)
    );
    caller.skipped(other);
    assert!(!caller.is_free());
    caller.skipped(id);
    assert!(caller.is_free());
    let id = caller.call().unwrap();
    caller.skipped(id);
    assert_eq!(
        caller.abandon(Outcome::NotDelivered),
        Some(CallOutcome::NotDelivered)
    );
    assert!(caller.is_free());
    for error in [
        CallError::Slot(1),
        CallError::Busy(id),
        CallError::NoCall(id),
    ] {
        assert!(!error.as_str().is_empty());
    }
}

#[test]
fn errnos() {
    let message = |outcome: Outcome, cause| outcome.errno(cause).map_or(0, Errno::get);
    let call = |outcome: CallOutcome, cause| outcome.errno(cause).get();
    for cause in [Cause::Timeout, Cause::Closed, Cause::PeerLost] {
        assert_eq!(message(Outcome::Delivered, cause), 0);
        assert_eq!(message(Outcome::NotDelivered, cause), 125);
        assert_eq!(call(CallOutcome::NotDelivered, cause), 125);
    }
    assert_eq!(message(Outcome::Unknown, Cause::Timeout), 110);
    assert_eq!(message(Outcome::Unknown, Cause::PeerLost), 103);
    assert_eq!(call(CallOutcome::Unanswered, Cause::Timeout), 110);
    assert_eq!(call(CallOutcome::Unanswered, Cause::Closed), 104);
    assert_eq!(call(CallOutcome::Unanswered, Cause::PeerLost), 104);
    assert_eq!(call(CallOutcome::Unknown, Cause::PeerLost), 103);
}

#[test]
fn the_last_credit_is_for_credits() {
    let mut link = Link::new(8, 8);
    for _ in 0..7 {
        assert!(link.send().is_some());
    }
    assert!(!link.may_send() && link.send().is_none() && !link.owes_credits());
    // One frame of the peer has come and its receive is posted again: that may be told.
    link.received(Seq::new(8)).unwrap();
    assert!(!link.may_send());
    link.reposted();
    assert!(link.may_send() && !link.owes_credits());
    assert_eq!(link.send(), Some(Seq::new(9)));
    assert!(!link.may_send());
    for _ in 0..4 {
        assert!(!link.owes_credits());
        link.received(Seq::new(8)).unwrap();
        link.reposted();
    }
    assert!(link.owes_credits() && !link.may_send());
    // A limit that is repeated, or older, gives nothing.
    link.received(Seq::new(3)).unwrap();
    assert!(!link.may_send());
    let far = Seq::new(8 + MAX_FRAMES + 1);
    assert_eq!(link.received(far), Err(FrameError::Limit(far)));
    link.received(Seq::new(10)).unwrap();
    assert!(link.may_send());
    let mut link = Link::new(8, 8);
    for _ in 0..8 {
        link.received(Seq::new(8)).unwrap();
    }
    assert_eq!(link.received(Seq::new(8)), Err(FrameError::Overrun));
    assert!(
        !FrameError::Overrun.as_str().is_empty() && !FrameError::Limit(far).as_str().is_empty()
    );
}

/// Two sides with little to say come to rest: credits alone do not ask for credits.
#[test]
fn credits_do_not_call_for_credits() {
    let mut links = [Link::new(8, 8), Link::new(8, 8)];
    let mut frames = 0;
    links[0].send().unwrap();
    let mut arriving = vec![(1, Seq::new(8))];
    while let Some((to, limit)) = arriving.pop() {
        links[to].received(limit).unwrap();
        links[to].reposted();
        frames += 1;
        if links[to].owes_credits() {
            arriving.push((1 - to, links[to].send().unwrap()));
        }
        assert!(frames < 100);
    }
}

/// A frame too many does not bring about another one for each message of a request and a reply.
#[test]
fn a_frame_for_credits_does_not_go_round() {
    for window in [MIN_FRAMES, FRAMES, 32] {
        let mut links = [Link::new(window, window), Link::new(window, window)];
        // What goes beside the message, whose sides take turns.
        let mut beside: [Vec<Seq>; 2] = Default::default();
        beside[1].push(links[0].send().unwrap());
        let mut message = links[0].send().unwrap();
        let mut alone = 0;
        for turn in 1..1000 {
            let side = turn % 2;
            for limit in std::mem::take(&mut beside[side])
                .into_iter()
                .chain([message])
            {
                links[side].received(limit).unwrap();
                links[side].reposted();
            }
            if links[side].owes_credits() {
                alone += 1;
                beside[1 - side].push(links[side].send().unwrap());
            }
            message = links[side].send().unwrap();
        }
        assert_eq!(alone, 0, "{window}");
    }
}

proptest! {
    /// No receive is missing, and a side that has a frame to send can send it in the end.
    #[test]
    fn two_sides_never_wait_for_each_other(own in 8u32..20, peer in 8u32..20,
                                           steps in prop::collection::vec(0u8..8, 0..400)) {
        let mut links = [Link::new(own, peer), Link::new(peer, own)];
        let mut free = [own, peer];
        let mut way: [std::collections::VecDeque<Seq>; 2] = Default::default();
        let mut backlog = [0u32; 2];
        let mut step = |what: u8| {
            let side = usize::from(what & 1);
            match what >> 1 {
                0 => if let Some(limit) = links[side].send() { way[1 - side].push_back(limit) },
                1 => if let Some(limit) = way[side].pop_front() {
                    assert!(free[side] > 0, "no receive");
                    free[side] -= 1;
                    backlog[side] += 1;
                    links[side].received(limit).unwrap();
                },
                2 => if backlog[side] > 0 {
                    backlog[side] -= 1;
                    free[side] += 1;
                    links[side].reposted();
                },
                _ => if links[side].owes_credits() {
                    if let Some(limit) = links[side].send() { way[1 - side].push_back(limit) }
                },
            }
        };
        for what in steps { step(what) }
        // Everything arrives, all receives are posted, and credits are sent.
        for _ in 0..200 { for what in [2, 3, 4, 5, 6, 7] { step(what) } }
        prop_assert!(links.iter().all(Link::may_send));
    }

    /// Every channel that has something to send gets its part, however long its frames are.
    #[test]
    fn queueing_is_fair(lens in prop::collection::vec(1u32..=4096, 2..8), rounds in 50usize..200) {
        let quantum = 4096;
        let mut deficits = vec![Deficit::default(); lens.len()];
        let mut sent = vec![0u64; lens.len()];
        for _ in 0..rounds {
            for (chan, len) in lens.iter().enumerate() {
                deficits[chan].begin(quantum);
                let before = sent[chan];
                while deficits[chan].spend(*len) { sent[chan] += u64::from(*len) }
                prop_assert!(sent[chan] > before);
                prop_assert!(sent[chan] - before < 2 * u64::from(quantum));
            }
        }
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        prop_assert!(most - least <= 4096, "{sent:?}");
        // A channel that was idle has saved nothing.
        deficits[0].clear();
        prop_assert!(!deficits[0].spend(1));
    }

    #[test]
    fn serial_numbers(a: u32, distance in 0u32..0x8000_0000, n: u32) {
        let (first, second) = (Seq::new(a), Seq::new(a).plus(distance));
        prop_assert_eq!(second.ahead_of(first), Some(distance));
        prop_assert_eq!(first.is_before(second), distance > 0);
        prop_assert_eq!(first.later(second), second);
        prop_assert_eq!(second.later(first), second);
        prop_assert_eq!(second.is_beyond(first, n), distance > n);
        prop_assert!(!first.is_beyond(second, n));
        if distance > 0 { prop_assert_eq!(first.ahead_of(second), None) }
    }
}
