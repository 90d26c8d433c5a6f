// SPDX-License-Identifier: GPL-2.0

//! The sending half: numbers, credits, retention, outcomes.

use ibmsg_proto::limits::*;
use ibmsg_proto::outcome::Cause;
use ibmsg_proto::send::*;
use ibmsg_proto::window::Window;
use ibmsg_proto::wire::Ack;
use ibmsg_proto::{Outcome, Seq};

const LIMITS: SendLimits = SendLimits {
    messages: 4,
    bytes: 1000,
};

fn sender(messages: u32, bytes: u32) -> Sender {
    let mut tx = Sender::new(LIMITS, FIRST);
    tx.open(&Window::new(messages, bytes, 100, 0).unwrap());
    tx
}

fn at(n: u32) -> Seq {
    FIRST.plus(n)
}

/// The acknowledgement of a receiver that has `next` messages, of which its program took `taken`.
fn ack(next: u32, taken: u32, messages: u32, bytes: u32) -> Ack {
    Ack {
        next: at(next),
        taken: at(taken),
        msg_limit: at(messages),
        byte_limit: at(bytes),
    }
}

#[test]
fn numbers_begin_before_the_wrap_and_pass_it() {
    let mut tx = sender(300, 64 * 300 + 100);
    for n in 0..300 {
        let mut item = tx.queue(0).unwrap();
        assert_eq!((item.number(), item.len()), (None, 0));
        assert_eq!(
            tx.next(&mut item),
            Next::Message(Seq::new(0xFFFF_FF00u32.wrapping_add(n)))
        );
        assert_eq!(
            tx.acknowledged(&ack(n + 1, n, 300 + n, 64 * 300 + 100 + 64 * n)),
            Ok(true)
        );
        assert_eq!(tx.progress(&item), Progress::Queued);
        tx.release(item);
    }
    assert!(tx.is_caught_up());
    assert_eq!(
        (tx.high(), tx.acked(), tx.taken()),
        (at(300), at(300), at(299))
    );
}

#[test]
fn credits_in_messages_and_bytes() {
    let mut tx = sender(2, 200);
    let mut items: Vec<_> = (0..3).map(|_| tx.queue(60).unwrap()).collect();
    assert_eq!(tx.next(&mut items[0]), Next::Message(at(0)));
    // 124 of 200 are used.
    assert_eq!(tx.next(&mut items[1]), Next::NoByteCredit);
    assert_eq!(items[1].number(), None);
    assert_eq!(tx.acknowledged(&ack(1, 1, 2, 324)), Ok(true));
    assert_eq!(tx.next(&mut items[1]), Next::Message(at(1)));
    assert_eq!(tx.next(&mut items[2]), Next::NoMessageCredit);
    // Repeated, and older: nothing changes.
    for old in [ack(1, 1, 2, 324), ack(0, 0, 2, 200), ack(1, 0, 1, 10)] {
        assert_eq!(tx.acknowledged(&old), Ok(false));
        assert_eq!(tx.next(&mut items[2]), Next::NoMessageCredit);
    }
    assert_eq!(tx.acknowledged(&ack(1, 1, 3, 324)), Ok(true));
    assert_eq!(tx.next(&mut items[2]), Next::NoByteCredit);
    assert_eq!(
        (tx.msg_limit(), tx.byte_limit(), tx.bytes()),
        (at(3), at(324), at(248))
    );
}

#[test]
fn what_would_be_sent_at_once() {
    let limits = SendLimits {
        messages: 2,
        bytes: 400,
    };
    let mut tx = Sender::new(limits, FIRST);
    assert!(!tx.has_credit(0));
    tx.open(&Window::new(3, 500, 300, 0).unwrap());
    assert!(tx.may_be_long(300) && !tx.may_be_long(301));
    // One message may always wait; credits in bytes: 500.
    assert!(tx.has_credit(400) && !tx.has_credit(437));
    let mut first = tx.queue(100).unwrap();
    assert!(tx.has_credit(100) && !tx.has_credit(173));
    assert!(matches!(tx.next(&mut first), Next::Message(_)));
    let mut second = tx.queue(0).unwrap();
    assert!(matches!(tx.next(&mut second), Next::Message(_)));
    // Two are in the queue; then one; then the credits are used up.
    assert!(!tx.has_credit(0));
    tx.release(second);
    assert!(tx.has_credit(0) && !tx.has_credit(210));
    let mut third = tx.queue(0).unwrap();
    assert!(matches!(tx.next(&mut third), Next::Message(_)));
    tx.release(third);
    assert!(!tx.has_credit(0));
    tx.lost();
    assert!(!tx.has_credit(0));
}

#[test]
fn the_queue_has_limits() {
    let mut tx = sender(10, 10_000);
    assert_eq!(tx.queue(101), Err(Refused::TooLong));
    let items: Vec<_> = (0..4).map(|_| tx.queue(0).unwrap()).collect();
    assert_eq!(tx.queue(0), Err(Refused::Full));
    assert!(!tx.is_writable());
    items.into_iter().for_each(|item| tx.release(item));
    let items: Vec<_> = (0..3).map(|_| tx.queue(100).unwrap()).collect();
    assert!(tx.is_writable());
    items.into_iter().for_each(|item| tx.release(item));
    // One message may always wait.
    let mut tx = Sender::new(
        SendLimits {
            messages: 0,
            bytes: 0,
        },
        FIRST,
    );
    tx.open(&Window::new(1, 200, 100, 0).unwrap());
    assert!(tx.is_writable());
    let item = tx.queue(100).unwrap();
    assert!(!tx.is_writable());
    assert_eq!(tx.queue(0), Err(Refused::Full));
    tx.release(item);
    assert!(tx.is_writable());
}

#[test]
fn impossible_acknowledgements() {
    let mut tx = sender(4, 1000);
    let mut items: Vec<_> = (0..2).map(|_| tx.queue(10).unwrap()).collect();
    for item in &mut items {
        tx.next(item);
    }
    let before = tx;
    let wrong = [
        (ack(3, 0, 4, 1000), AckError::Unsent(at(3))),
        (ack(0, 3, 4, 1000), AckError::Unsent(at(3))),
        (
            ack(0x7FFF_FFFF, 0, 4, 1000),
            AckError::Unsent(at(0x7FFF_FFFF)),
        ),
        (
            ack(0, 0, 3 + MAX_WINDOW_MESSAGES, 1000),
            AckError::MessageCredits(at(3 + MAX_WINDOW_MESSAGES)),
        ),
        (
            ack(0, 0, 4, 149 + MAX_WINDOW_BYTES),
            AckError::ByteCredits(at(149 + MAX_WINDOW_BYTES)),
        ),
    ];
    for (ack, error) in wrong {
        assert_eq!(tx.acknowledged(&ack), Err(error));
        assert!(!error.as_str().is_empty());
        assert_eq!(tx, before);
    }
    assert_eq!(
        tx.acknowledged(&ack(2, 2, 2 + MAX_WINDOW_MESSAGES, 148 + MAX_WINDOW_BYTES)),
        Ok(true)
    );
}

#[test]
fn after_a_move_the_rest_is_sent_again_under_the_same_numbers() {
    let mut tx = sender(10, 10_000);
    let mut items: Vec<_> = (0..4).map(|_| tx.queue(10).unwrap()).collect();
    for (n, item) in items.iter_mut().take(3).enumerate() {
        assert_eq!(tx.next(item), Next::Message(at(n as u32)));
    }
    let bytes = tx.bytes();
    tx.lost();
    assert_eq!(tx.next(&mut items[3]), Next::NotNow);
    assert_eq!(tx.resumed(&ack(1, 0, 10, 10_000)), Ok(()));
    assert!(!tx.is_caught_up());
    assert_eq!(tx.progress(&items[0]), Progress::Queued);
    assert_eq!(tx.next(&mut items[3]), Next::OutOfOrder);
    assert_eq!(tx.next(&mut items[2]), Next::OutOfOrder);
    assert_eq!(tx.next(&mut items[1]), Next::Message(at(1)));
    assert_eq!(tx.next(&mut items[2]), Next::Message(at(2)));
    assert!(tx.is_caught_up());
    // Credits were used once.
    assert_eq!(tx.bytes(), bytes);
    assert_eq!(tx.next(&mut items[3]), Next::Message(at(3)));
    // A peer may not forget.
    tx.lost();
    assert_eq!(
        tx.resumed(&ack(0, 0, 10, 10_000)),
        Err(AckError::Forgot(at(0)))
    );
    assert_eq!(tx.restart(), Err(AckError::Forgot(at(0))));
    assert_eq!(tx.next(&mut items[1]), Next::NotNow);
}

#[test]
fn outcomes_of_time() {
    let mut tx = sender(3, 10_000);
    let mut items: Vec<_> = (0..4).map(|_| tx.queue(10).unwrap()).collect();
    for item in items.iter_mut().take(3) {
        tx.next(item);
    }
    assert_eq!(tx.acknowledged(&ack(1, 0, 3, 10_000)), Ok(true));
    // Queued there, sent, never sent.
    assert_eq!(tx.expire(&mut items[0]), Some(Outcome::Delivered));
    assert_eq!(tx.expire(&mut items[1]), Some(Outcome::Unknown));
    assert_eq!(tx.expire(&mut items[1]), None);
    assert!(items[1].is_expired());
    assert_eq!(tx.expire(&mut items[3]), Some(Outcome::NotDelivered));
    tx.lost();
    // The peer has not got it, so it is certain, and SKIP takes its place.
    assert_eq!(tx.resumed(&ack(1, 0, 3, 10_000)), Ok(()));
    assert_eq!(tx.expire(&mut items[2]), Some(Outcome::NotDelivered));
    assert_eq!(tx.next(&mut items[1]), Next::Skip(at(1)));
    assert_eq!(tx.next(&mut items[2]), Next::Skip(at(2)));
}

#[test]
fn nothing_is_certain_between_loss_and_resume() {
    let mut tx = sender(3, 10_000);
    let mut item = tx.queue(10).unwrap();
    tx.next(&mut item);
    tx.lost();
    assert_eq!(tx.expire(&mut item), Some(Outcome::Unknown));
    assert_eq!(tx.resumed(&ack(1, 0, 3, 10_000)), Ok(()));
    assert_eq!(tx.progress(&item), Progress::Queued);
}

#[test]
fn outcomes_at_the_end() {
    let state = || {
        let mut tx = sender(4, 10_000);
        let mut items: Vec<_> = (0..4).map(|_| tx.queue(10).unwrap()).collect();
        for item in items.iter_mut().take(3) {
            tx.next(item);
        }
        (tx, items)
    };
    let all = |tx: &Sender, items: Vec<Item>, cause| -> Vec<_> {
        items
            .into_iter()
            .map(|mut item| {
                let outcome = tx.end(&mut item, cause);
                assert_eq!(tx.end(&mut item, cause), None);
                outcome.unwrap()
            })
            .collect()
    };
    use Outcome::*;
    // The peer's program took one of two.
    let (mut tx, items) = state();
    assert_eq!(tx.stopped(&ack(2, 1, 4, 10_000)), Ok(()));
    assert!(tx.is_stopped() && tx.is_writable());
    assert_eq!(tx.queue(1), Err(Refused::Closed));
    assert_eq!(
        all(&tx, items, Cause::Closed),
        [Delivered, NotDelivered, NotDelivered, NotDelivered]
    );
    // The peer's kernel is gone, and had acknowledged one.
    let (mut tx, items) = state();
    assert_eq!(tx.acknowledged(&ack(1, 0, 4, 10_000)), Ok(true));
    assert_eq!(
        all(&tx, items, Cause::PeerLost),
        [Delivered, Unknown, Unknown, NotDelivered]
    );
    let (mut tx, items) = state();
    assert_eq!(tx.acknowledged(&ack(1, 0, 4, 10_000)), Ok(true));
    assert_eq!(
        all(&tx, items, Cause::Timeout),
        [Delivered, Unknown, Unknown, NotDelivered]
    );
}

/// The program may have looked at it, and the kernel may have more to say about it.
#[test]
fn the_peer_has_what_it_has_queued_whatever_becomes_of_it() {
    let mut tx = sender(3, 1000);
    let mut items: Vec<_> = (0..4).map(|_| tx.queue(0).unwrap()).collect();
    for (n, item) in items.iter_mut().enumerate().take(3) {
        assert_eq!(tx.next(item), Next::Message(at(n as u32)));
    }
    // The last word of a peer that has taken the first one, and queued the second one.
    tx.stopped(&ack(2, 1, 3, 1000)).unwrap();
    let mut ends = items.iter_mut().map(|item| {
        let outcome = tx.end(item, Cause::Closed).unwrap();
        (outcome, tx.may_have(item, outcome))
    });
    assert_eq!(ends.next(), Some((Outcome::Delivered, true)));
    assert_eq!(ends.next(), Some((Outcome::NotDelivered, true)));
    assert_eq!(ends.next(), Some((Outcome::NotDelivered, false)));
    assert_eq!(ends.next(), Some((Outcome::NotDelivered, false)));
    // One that is late may be on its way, unless it was never sent.
    let mut tx = sender(1, 1000);
    let (mut sent, mut unsent) = (tx.queue(0).unwrap(), tx.queue(0).unwrap());
    assert_eq!(tx.next(&mut sent), Next::Message(at(0)));
    for (item, may_have) in [(&mut sent, true), (&mut unsent, false)] {
        let outcome = tx.expire(item).unwrap();
        assert_eq!(tx.may_have(item, outcome), may_have);
    }
}
