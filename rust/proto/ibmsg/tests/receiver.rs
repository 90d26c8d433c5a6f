// SPDX-License-Identifier: GPL-2.0

//! The receiving half: arrivals, credits, acknowledgement policy.

use ibmsg_proto::limits::*;
use ibmsg_proto::receive::*;
use ibmsg_proto::window::Window;
use ibmsg_proto::wire::Ack;
use ibmsg_proto::Seq;

fn at(n: u32) -> Seq {
    FIRST.plus(n)
}

fn receiver(messages: u32, bytes: u32) -> Receiver {
    Receiver::new(Window::new(messages, bytes, 100, 0).unwrap(), FIRST)
}

/// A whole message.
fn whole(rx: &mut Receiver, n: u32, len: u32) -> Result<Arrival, ArrivalError> {
    rx.message(at(n), len, 0, len, false)
}

#[test]
fn in_order_once_and_without_gaps() {
    let mut rx = receiver(4, 1000);
    assert_eq!(whole(&mut rx, 0, 10), Ok(Arrival::Queue));
    assert_eq!(whole(&mut rx, 0, 10), Ok(Arrival::Duplicate));
    assert_eq!(rx.skip(at(0), 10), Ok(Arrival::Duplicate));
    assert_eq!(whole(&mut rx, 2, 10), Err(ArrivalError::Gap(at(2))));
    assert_eq!(rx.skip(at(2), 10), Err(ArrivalError::Gap(at(2))));
    assert_eq!(whole(&mut rx, 1, 101), Err(ArrivalError::TooLong(101)));
    assert_eq!(rx.skip(at(1), 101), Err(ArrivalError::TooLong(101)));
    assert_eq!(rx.ended(at(2)), Err(ArrivalError::Gap(at(2))));
    assert_eq!(rx.ended(at(1)), Ok(()));
    assert_eq!(rx.next(), at(1));
    for error in [
        ArrivalError::Gap(at(0)),
        ArrivalError::TooLong(0),
        ArrivalError::MessageCredit(at(0)),
        ArrivalError::ByteCredit(0),
        ArrivalError::Piece(0),
    ] {
        assert!(!error.as_str().is_empty());
    }
}

#[test]
fn credits_are_those_that_were_announced() {
    let mut rx = receiver(2, 200);
    assert_eq!(whole(&mut rx, 0, 0), Ok(Arrival::Queue));
    assert_eq!(whole(&mut rx, 1, 73), Err(ArrivalError::ByteCredit(73)));
    assert_eq!(whole(&mut rx, 1, 72), Ok(Arrival::Queue));
    assert_eq!(
        whole(&mut rx, 2, 0),
        Err(ArrivalError::MessageCredit(at(2)))
    );
    rx.took(0, Some(at(1)));
    // The peer does not know that yet.
    assert_eq!(
        whole(&mut rx, 2, 0),
        Err(ArrivalError::MessageCredit(at(2)))
    );
    let told = Ack {
        next: at(2),
        taken: at(1),
        msg_limit: at(3),
        byte_limit: at(264),
    };
    assert_eq!(rx.announce(), told);
    assert_eq!(whole(&mut rx, 2, 0), Ok(Arrival::Queue));
    rx.took(72, Some(at(2)));
    rx.took(0, None);
    let told = Ack {
        next: at(3),
        taken: at(3),
        msg_limit: at(5),
        byte_limit: at(464),
    };
    assert_eq!(rx.ack(), told);
}

#[test]
fn skip_costs_what_its_message_would_have() {
    let mut rx = receiver(4, 1000);
    assert_eq!(rx.skip(at(0), 36), Ok(Arrival::Skipped));
    assert_eq!((rx.ack().taken, rx.ack().byte_limit), (at(1), at(1100)));
    // Behind a message that waits, it counts as taken only after that.
    assert_eq!(whole(&mut rx, 1, 0), Ok(Arrival::Queue));
    assert_eq!(rx.skip(at(2), 36), Ok(Arrival::Skipped));
    assert_eq!((rx.ack().taken, rx.ack().byte_limit), (at(1), at(1200)));
    rx.took(0, None);
    assert_eq!((rx.ack().taken, rx.ack().byte_limit), (at(3), at(1264)));
}

#[test]
fn pieces() {
    let mut rx = receiver(4, 1000);
    assert_eq!(
        rx.message(at(0), 50, 10, 20, false),
        Err(ArrivalError::Piece(10))
    );
    assert_eq!(rx.message(at(0), 50, 0, 20, false), Ok(Arrival::Piece));
    for (total, offset, len) in [
        (50, 0, 20),
        (50, 19, 20),
        (50, 21, 20),
        (51, 20, 20),
        (50, 20, 31),
    ] {
        assert_eq!(
            rx.message(at(0), total, offset, len, false),
            Err(ArrivalError::Piece(offset))
        );
    }
    assert_eq!(
        rx.message(at(0), 50, 20, u32::MAX, false),
        Err(ArrivalError::Piece(20))
    );
    assert_eq!(rx.ended(at(0)), Err(ArrivalError::Gap(at(0))));
    assert_eq!(rx.message(at(0), 50, 20, 30, false), Ok(Arrival::Queue));
    // A connection that is lost takes its pieces with it, and so does SKIP.
    assert_eq!(rx.message(at(1), 50, 0, 20, false), Ok(Arrival::Piece));
    rx.lost();
    assert_eq!(
        rx.message(at(1), 50, 20, 30, false),
        Err(ArrivalError::Piece(20))
    );
    assert_eq!(rx.message(at(1), 50, 0, 20, false), Ok(Arrival::Piece));
    assert_eq!(rx.skip(at(1), 50), Ok(Arrival::Skipped));
    assert_eq!(whole(&mut rx, 2, 5), Ok(Arrival::Queue));
}

#[test]
fn after_close_nothing_changes() {
    let mut rx = receiver(4, 1000);
    assert_eq!(whole(&mut rx, 0, 10), Ok(Arrival::Queue));
    assert_eq!(whole(&mut rx, 1, 10), Ok(Arrival::Queue));
    rx.took(10, Some(at(1)));
    rx.close();
    let last = rx.announce();
    assert_eq!((last.next, last.taken), (at(2), at(1)));
    assert_eq!(whole(&mut rx, 2, 10), Ok(Arrival::Closed));
    assert_eq!(rx.skip(at(3), 10), Ok(Arrival::Closed));
    rx.took(10, None);
    assert_eq!((rx.ack(), rx.due(0)), (last, Due::Never));
    assert_eq!(rx.ended(at(9)), Ok(()));
}

#[test]
fn acknowledgements_wait_for_a_quarter_or_a_millisecond() {
    let mut rx = receiver(8, 8000);
    assert_eq!(rx.due(0), Due::Never);
    whole(&mut rx, 0, 10).unwrap();
    assert_eq!(rx.due(50), Due::At(50 + ACK_DELAY_US));
    assert_eq!(rx.due(80), Due::At(50 + ACK_DELAY_US));
    assert_eq!(rx.due(50 + ACK_DELAY_US), Due::Now);
    rx.announce();
    assert_eq!(rx.due(5000), Due::Never);
    // Two of eight.
    whole(&mut rx, 1, 10).unwrap();
    whole(&mut rx, 2, 10).unwrap();
    assert_eq!(rx.due(5000), Due::Now);
    rx.announce();
    // The program takes them.
    rx.took(10, Some(at(1)));
    assert_eq!(rx.due(6000), Due::At(6000 + ACK_DELAY_US));
    rx.took(10, Some(at(2)));
    assert_eq!(rx.due(6000), Due::Now);
    rx.announce();
    // The sender waits.
    assert_eq!(rx.message(at(3), 1, 0, 1, true), Ok(Arrival::Queue));
    assert_eq!(rx.due(7000), Due::Now);
    rx.announce();
    // A quarter of the bytes.
    let mut rx = receiver(100, 400);
    whole(&mut rx, 0, 36).unwrap();
    rx.announce();
    rx.took(36, None);
    assert_eq!(rx.due(1), Due::Now);
    // Of a small window, every message.
    let mut rx = receiver(2, 8000);
    whole(&mut rx, 0, 36).unwrap();
    assert_eq!(rx.due(1), Due::Now);
}

#[test]
fn messages_without_memory_are_asked_for_again() {
    let mut rx = receiver(8, 1000);
    assert_eq!(whole(&mut rx, 0, 10), Ok(Arrival::Queue));
    rx.ask_again();
    assert!(!rx.is_dropping() && rx.announce_alone() == (rx.ack(), false));
    // The second piece has no memory: nothing of the message counts, nor does what follows.
    assert_eq!(rx.message(at(1), 20, 0, 10, false), Ok(Arrival::Piece));
    assert_eq!(rx.no_memory(at(0), 10, 0), Ok(Arrival::Duplicate));
    assert_eq!(rx.no_memory(at(1), 101, 0), Err(ArrivalError::TooLong(101)));
    assert_eq!(rx.no_memory(at(1), 20, 10), Ok(Arrival::Dropped));
    assert!(rx.is_dropping() && rx.due(0) == Due::Never);
    assert_eq!(whole(&mut rx, 2, 10), Ok(Arrival::Dropped));
    assert_eq!(rx.skip(at(3), 10), Ok(Arrival::Dropped));
    rx.ask_again();
    assert_eq!((rx.due(0), rx.is_dropping()), (Due::Now, true));
    assert_eq!(rx.message(at(1), 20, 10, 10, false), Ok(Arrival::Dropped));
    let ack = rx.ack();
    assert_eq!(ack.next, at(1));
    assert_eq!(rx.announce_alone(), (ack, true));
    assert_eq!((rx.announce_alone(), rx.due(0)), ((ack, false), Due::Never));
    // What was under way, then the message from its beginning, without memory once more.
    assert_eq!(rx.message(at(1), 20, 10, 10, false), Ok(Arrival::Dropped));
    assert_eq!(whole(&mut rx, 4, 10), Ok(Arrival::Dropped));
    assert_eq!(rx.no_memory(at(1), 20, 0), Ok(Arrival::Dropped));
    rx.ask_again();
    assert!(rx.announce_alone().1);
    assert_eq!(rx.message(at(1), 20, 0, 10, false), Ok(Arrival::Piece));
    assert!(!rx.is_dropping());
    assert_eq!(rx.message(at(1), 20, 10, 10, false), Ok(Arrival::Queue));
    // SKIP may come in its place; a lost connection and a program that closes end it.
    assert_eq!(rx.no_memory(at(2), 10, 0), Ok(Arrival::Dropped));
    assert_eq!(rx.skip(at(2), 10), Ok(Arrival::Skipped));
    assert_eq!(rx.no_memory(at(3), 10, 0), Ok(Arrival::Dropped));
    rx.lost();
    assert_eq!(whole(&mut rx, 3, 10), Ok(Arrival::Queue));
    assert_eq!(rx.no_memory(at(4), 10, 0), Ok(Arrival::Dropped));
    rx.close();
    assert!(!rx.is_dropping() && rx.ended(at(9)).is_ok());
    assert_eq!(rx.no_memory(at(4), 10, 0), Ok(Arrival::Closed));
}

/// A program whose end is closed in its place reads what is there: the final state says that it has that.
#[test]
fn what_will_be_read_counts_as_taken() {
    let mut rx = receiver(4, 1000);
    for n in 0..3 {
        assert_eq!(whole(&mut rx, n, 10), Ok(Arrival::Queue));
    }
    rx.took(10, Some(at(1)));
    rx.take_all();
    rx.close();
    let Ack { next, taken, .. } = rx.ack();
    assert_eq!((next, taken), (at(3), at(3)));
    assert_eq!(whole(&mut rx, 3, 10), Ok(Arrival::Closed));
    // The end is final.
    rx.take_all();
    assert_eq!(rx.ack().taken, at(3));
}
