// SPDX-License-Identifier: GPL-2.0

//! The life of a channel, both sides.

use ibmsg_proto::channel::*;
use ibmsg_proto::limits::FIRST;
use ibmsg_proto::outcome::Cause;
use ibmsg_proto::receive::ArrivalError;
use ibmsg_proto::send::{Next, SendLimits};
use ibmsg_proto::window::Window;
use ibmsg_proto::wire::*;
use ibmsg_proto::Seq;

const LIMITS: SendLimits = SendLimits {
    messages: 4,
    bytes: 1000,
};
const A: Conn = Conn { epoch: 1, cid: 1 };
const B: Conn = Conn { epoch: 2, cid: 1 };
const C: Conn = Conn { epoch: 3, cid: 1 };

fn window() -> Window {
    Window::new(4, 1000, 100, 1).unwrap()
}

fn moves(n: u32) -> Seq {
    Seq::new(n)
}

/// A client and a server, before the portal's program has decided.
fn offered() -> (Channel, Channel) {
    let client = Channel::opening(7, A, window(), LIMITS, FIRST);
    let server = Channel::offered(7, A, moves(0), &window(), window(), LIMITS, FIRST);
    (client, server)
}

fn open() -> (Channel, Channel) {
    let (mut client, mut server) = offered();
    assert!(server.accept());
    assert_eq!(client.accepted(A, moves(0), &window()), Ok(true));
    assert!(client.is_open() && server.is_open());
    (client, server)
}

fn answered(resumes: Result<Resumes, ChannelError>) -> ResumeEntry {
    match resumes {
        Ok(Resumes::Answer(answer) | Resumes::Ended(answer) | Resumes::Another(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

/// RESUME and its answer.
fn resume(client: &mut Channel, server: &mut Channel, conn: Conn) -> Resumed {
    let Some(Move::Resume(entry)) = client.move_to(conn) else {
        panic!();
    };
    let answer = answered(server.resume(conn, &entry));
    client.resumed(conn, &answer).unwrap()
}

/// LIVE with these attempts, of three.
fn live(epochs: &[u32], check: impl FnOnce(&Live<'_>)) {
    let mut buf = [0; 64];
    let mut frame = FrameWriter::new(&mut buf, Seq::new(0)).unwrap();
    frame
        .record(|out| Live::encode(out, true, 3, epochs))
        .unwrap();
    let len = frame.finish();
    match Records::parse(&buf[..len]).unwrap().1.next() {
        Some(Ok(Record::Live(live))) => check(&live),
        other => panic!("{other:?}"),
    }
}

#[test]
fn accepted() {
    let (mut client, mut server) = offered();
    assert_eq!((client.conn(), server.conn()), (None, None));
    assert_eq!(client.check_open(), Err(ChannelError::Phase));
    // By another connection, of another move, twice.
    assert_eq!(client.accepted(B, moves(0), &window()), Ok(false));
    assert_eq!(client.accepted(A, moves(1), &window()), Ok(false));
    assert!(server.accept() && !server.accept() && !server.reject());
    assert_eq!(client.accepted(A, moves(0), &window()), Ok(true));
    assert_eq!(client.accepted(A, moves(0), &window()), Ok(false));
    assert_eq!(client.rejected(A, moves(0)), Err(ChannelError::Phase));
    assert_eq!((client.conn(), server.conn()), (Some(A), Some(A)));
    assert_eq!((client.check_open(), server.check_open()), (Ok(()), Ok(())));
    assert_eq!((client.id(), client.moves()), (7, moves(0)));
}

#[test]
fn rejected() {
    let (mut client, mut server) = offered();
    assert!(server.reject() && !server.reject() && !server.accept());
    assert_eq!(client.rejected(B, moves(0)), Ok(false));
    assert_eq!(client.rejected(A, moves(0)), Ok(true));
    assert!(client.is_over() && !server.is_over());
    assert_eq!(
        client.accepted(A, moves(0), &window()),
        Err(ChannelError::Phase)
    );
    assert_eq!(server.closed(B), Ok(()));
    assert!(!server.is_over());
    assert_eq!(server.closed(A), Ok(()));
    assert!(server.is_over());
}

#[test]
fn a_channel_leaves_a_connection_that_works() {
    // Not before it is open, nor to where it is, nor when an end is closed, nor while it moves.
    let (mut client, _) = offered();
    assert_eq!(client.relocate(B), None);
    let (mut client, _) = open();
    assert_eq!(client.relocate(A), None);
    client.close(0);
    assert_eq!(client.relocate(B), None);

    let (mut client, mut server) = open();
    let entry = client.relocate(B).unwrap();
    assert_eq!(
        (entry.moves, client.on(), client.conn()),
        (moves(1), Some(B), None)
    );
    assert_eq!(client.relocate(C), None);
    // What the server sends by the former connection, and by the new one before RESUMED, does not count.
    assert!(client.is_on(B) && !client.takes_from(A) && !client.takes_from(B));
    assert!(client.blocks_live(A) && !client.blocks_live(B));
    let answer = answered(server.resume(B, &entry));
    assert_eq!(client.resumed(A, &answer), Ok(Resumed::Stale));
    assert_eq!(client.resumed(B, &answer), Ok(Resumed::Live));
    assert_eq!((client.conn(), server.conn()), (Some(B), Some(B)));
    assert!(client.takes_from(B) && !client.blocks_live(A));

    // Back again, of which the server hears first by the connection that is lost, then by the former one.
    let first = client.relocate(A).unwrap();
    assert!(client.lost(A));
    let Some(Move::Resume(second)) = client.move_to(B) else {
        panic!();
    };
    assert!(!client.takes_from(B));
    let answer = answered(server.resume(B, &second));
    assert_eq!(server.resume(A, &first), Ok(Resumes::Stale));
    assert_eq!(client.resumed(B, &answer), Ok(Resumed::Live));
    assert!(client.takes_from(B) && server.takes_from(B));
}

#[test]
fn open_is_sent_again_until_it_is_answered() {
    let (mut client, mut server) = offered();
    assert_eq!(client.move_to(B), None);
    assert!(client.lost(A) && !client.lost(A));
    assert_eq!(client.move_to(B), Some(Move::Open(moves(1))));
    assert_eq!(server.open_again(B, moves(1)), Ok(Again::Wait));
    assert_eq!(server.open_again(B, moves(1)), Ok(Again::Stale));
    assert_eq!(server.open_again(A, moves(0)), Ok(Again::Stale));
    assert!(server.accept());
    // ACCEPT is lost, too, with a message behind it.
    let mut item = server.tx.queue(5).unwrap();
    assert_eq!(server.tx.next(&mut item), Next::Message(FIRST));
    assert!(server.lost(B) && client.lost(B));
    assert_eq!(server.answers_on(), None);
    assert_eq!(client.move_to(C), Some(Move::Open(moves(2))));
    assert_eq!(server.open_again(C, moves(2)), Ok(Again::Accept));
    assert_eq!((server.answers_on(), server.moves()), (Some(C), moves(2)));
    assert_eq!(client.accepted(C, moves(2), &window()), Ok(true));
    assert_eq!(server.tx.next(&mut item), Next::Message(FIRST));
    // A refusal likewise.
    let (mut client, mut server) = offered();
    assert!(server.reject());
    client.lost(A);
    assert_eq!(client.move_to(B), Some(Move::Open(moves(1))));
    assert_eq!(server.open_again(B, moves(1)), Ok(Again::Reject));
    assert_eq!(client.rejected(B, moves(1)), Ok(true));
    // A client that was accepted does not ask again.
    let (_, mut server) = open();
    let mut item = server.tx.queue(5).unwrap();
    server.tx.next(&mut item);
    let ack = Ack {
        next: FIRST.plus(1),
        ..client.rx.ack()
    };
    server.tx.acknowledged(&ack).unwrap();
    assert!(matches!(
        server.open_again(B, moves(1)),
        Err(ChannelError::Ack(_))
    ));
}

#[test]
fn a_move_is_one_round_trip_and_fences_the_former_connection() {
    let (mut client, mut server) = open();
    let mut item = client.tx.queue(5).unwrap();
    client.tx.next(&mut item);
    assert!(client.lost(A));
    assert_eq!((client.conn(), client.takes_from(A)), (None, false));
    assert!(client.blocks_live(B));
    let Some(Move::Resume(entry)) = client.move_to(B) else {
        panic!();
    };
    assert!(client.blocks_live(A) && !client.blocks_live(B));
    assert_eq!(client.conn(), None);
    // The server has not noticed anything: its channel moves all the same.
    assert!(server.takes_from(A));
    let answer = answered(server.resume(B, &entry));
    assert!(!server.takes_from(A) && server.takes_from(B) && server.conn() == Some(B));
    assert_eq!(server.resume(B, &entry), Ok(Resumes::Stale));
    assert_eq!(client.resumed(A, &answer), Ok(Resumed::Stale));
    assert_eq!(
        client.resumed(
            B,
            &ResumeEntry {
                moves: moves(2),
                ..answer
            }
        ),
        Ok(Resumed::Stale)
    );
    assert_eq!(client.resumed(B, &answer), Ok(Resumed::Live));
    assert_eq!(client.resumed(B, &answer), Ok(Resumed::Stale));
    assert!(!client.blocks_live(A));
    assert_eq!(client.tx.next(&mut item), Next::Message(FIRST));
    // Two moves in a row: the first one arrives late.
    client.lost(B);
    let Some(Move::Resume(first)) = client.move_to(C) else {
        panic!();
    };
    client.lost(C);
    let Some(Move::Resume(second)) = client.move_to(A) else {
        panic!();
    };
    answered(server.resume(A, &second));
    assert_eq!(server.resume(C, &first), Ok(Resumes::Stale));
    assert_eq!(server.conn(), Some(A));
    // A client cannot forget, nor have what was not sent.
    let entry = |next| ResumeEntry {
        moves: moves(9),
        ack: Ack {
            next,
            taken: FIRST,
            ..first.ack
        },
        ..first
    };
    assert!(matches!(
        server.resume(B, &entry(FIRST.plus(1))),
        Err(ChannelError::Ack(_))
    ));
}

#[test]
fn an_unknown_channel_is_gone() {
    let (mut client, _) = open();
    client.lost(A);
    let Some(Move::Resume(entry)) = client.move_to(B) else {
        panic!();
    };
    let answer = Channel::unknown(&entry);
    assert!(answer.gone);
    assert_eq!(client.resumed(B, &answer), Ok(Resumed::Gone));
    assert_eq!((client.is_over(), client.cause()), (true, Cause::PeerLost));
}

#[test]
fn channels_that_the_client_forgot_end() {
    let (_, mut server) = open();
    live(&[1, 3], |live| assert!(!server.left_behind(live)));
    live(&[2, 3], |live| assert!(server.left_behind(live)));
    assert!(server.is_over());
    live(&[2, 3], |live| assert!(!server.left_behind(live)));
    // What has arrived is still there for the program.
    let (client, mut server) = open();
    let close = Close {
        channel: 7,
        end: Some(FIRST),
        ack: client.rx.ack(),
        reason: 0,
    };
    assert_eq!(server.peer_closes(A, &close), Ok(PeerCloses::Ends));
    live(&[2, 3], |live| assert!(!server.left_behind(live)));
}

#[test]
fn close_tells_at_once_and_ends_after_the_last_message() {
    let (mut client, mut server) = open();
    assert_eq!(client.close_due(true), None);
    let mut item = client.tx.queue(5).unwrap();
    client.close(104);
    assert!(!client.is_open());
    // The message has no number yet.
    let stop = client.close_due(false).unwrap();
    assert_eq!((stop.end, stop.reason), (None, 104));
    assert_eq!(client.close_due(false), None);
    assert_eq!(server.peer_closes(B, &stop), Ok(PeerCloses::Stale));
    assert_eq!(server.peer_closes(A, &stop), Ok(PeerCloses::Stops));
    assert!(server.tx.is_stopped());
    client.tx.next(&mut item);
    let end = client.close_due(true).unwrap();
    assert_eq!(end.end, Some(FIRST.plus(1)));
    assert_eq!(client.close_due(true), None);
    // The message is missing.
    let missing = Err(ChannelError::Arrival(ArrivalError::Gap(FIRST.plus(1))));
    assert_eq!(server.peer_closes(A, &end), missing);
    server.rx.message(FIRST, 5, 0, 5, false).unwrap();
    assert_eq!(server.peer_closes(A, &end), Ok(PeerCloses::Ends));
    assert_eq!(server.peer_closes(A, &end), Ok(PeerCloses::Ends));
    assert_eq!(server.peer_closes(A, &stop), Ok(PeerCloses::Stale));
    assert_eq!(server.check_open(), Err(ChannelError::Phase));
    assert_eq!(
        (server.conn(), server.cause(), server.is_over()),
        (None, Cause::Closed, false)
    );
    assert_eq!(client.closed(A), Ok(()));
    assert!(client.is_over());
    server.close(0);
    assert!(server.is_over());
    // Nothing to answer.
    let (mut client, _) = open();
    assert_eq!(client.closed(A), Err(ChannelError::Phase));
}

#[test]
fn close_survives_a_move() {
    let (mut client, mut server) = open();
    client.close(0);
    let end = client.close_due(true).unwrap();
    // Lost on its way.
    client.lost(A);
    assert_eq!(resume(&mut client, &mut server, B), Resumed::Live);
    assert_eq!(client.close_due(true).unwrap().end, end.end);
    // It arrives, and its answer is lost.
    assert_eq!(server.peer_closes(B, &end), Ok(PeerCloses::Ends));
    client.lost(B);
    assert_eq!(resume(&mut client, &mut server, C), Resumed::Ended);
    assert!(client.is_over() && !server.is_over());
}

/// The end of the server has arrived, and its answer is lost.
#[test]
fn the_client_says_that_an_end_has_arrived() {
    let (mut client, mut server) = open();
    let mut item = server.tx.queue(5).unwrap();
    server.tx.next(&mut item);
    server.close(0);
    let end = server.close_due(true).unwrap();
    client.rx.message(FIRST, 5, 0, 5, false).unwrap();
    assert_eq!(client.peer_closes(A, &end), Ok(PeerCloses::Ends));
    assert!(client.lost(A) && server.lost(A));
    // Until the server knows, it must not end what the client has left behind.
    assert!(client.blocks_live(B));
    assert_eq!(resume(&mut client, &mut server, B), Resumed::Known);
    assert!(server.is_over() && server.tx.acked() == end.end.unwrap());
    assert!(client.is_over() && client.peer_has_ended() && !client.blocks_live(B));
    // A program that closes meanwhile changes nothing about what the server learns.
    let (mut client, mut server) = open();
    server.close(0);
    let end = server.close_due(true).unwrap();
    client.peer_closes(A, &end).unwrap();
    assert!(client.lost(A) && server.lost(A));
    let Some(Move::Resume(entry)) = client.move_to(B) else {
        panic!();
    };
    client.close(0);
    assert!(entry.ended && client.is_over());
    assert!(matches!(server.resume(B, &entry), Ok(Resumes::Ended(_))));
    // It says so of an end that was not sent, or of messages that it does not have.
    let (mut client, mut server) = open();
    client.lost(A);
    let Some(Move::Resume(entry)) = client.move_to(B) else {
        panic!();
    };
    let entry = ResumeEntry {
        ended: true,
        ..entry
    };
    assert_eq!(server.resume(B, &entry), Err(ChannelError::Phase));
    let (_, mut server) = open();
    let mut item = server.tx.queue(5).unwrap();
    server.tx.next(&mut item);
    server.close(0);
    assert_eq!(server.resume(B, &entry), Err(ChannelError::Phase));
    server.close_due(true).unwrap();
    let moves = entry.moves.plus(1);
    let entry = ResumeEntry { moves, ..entry };
    assert_eq!(server.resume(C, &entry), Err(ChannelError::Phase));
}

/// The server still has a channel that the client has forgotten, and to which it gives the same number.
#[test]
fn a_number_that_is_used_again_and_withdrawn() {
    for first_moves in [1, 2, 3, 9] {
        let (mut client, mut server) = open();
        for conn in [B, C].into_iter().cycle().take(first_moves) {
            client.lost(client.on().unwrap());
            assert_eq!(resume(&mut client, &mut server, conn), Resumed::Live);
        }
        let on = client.on().unwrap();
        client.close(0);
        let end = client.close_due(true).unwrap();
        assert_eq!(server.peer_closes(on, &end), Ok(PeerCloses::Ends));
        assert_eq!(client.closed(on), Ok(()));
        let (mut client, _) = offered();
        client.close(0);
        for conn in [B, C] {
            client.lost(client.on().unwrap());
            let Some(Move::Resume(entry)) = client.move_to(conn) else {
                panic!();
            };
            let answer = answered(server.resume(conn, &entry));
            if conn == C {
                assert_eq!(client.resumed(conn, &answer), Ok(Resumed::Gone));
            }
        }
        assert!(client.is_over());
        // The server's program may go on to take what has arrived.
        assert!(!server.is_over());
    }
}

#[test]
fn both_close() {
    let (mut client, mut server) = open();
    // Each has a message that the other does not take.
    let (_, _) = (client.tx.queue(5).unwrap(), server.tx.queue(5).unwrap());
    client.close(0);
    server.close(0);
    let (from_client, from_server) = (
        client.close_due(false).unwrap(),
        server.close_due(false).unwrap(),
    );
    assert_eq!(server.peer_closes(A, &from_client), Ok(PeerCloses::Stops));
    assert_eq!(client.peer_closes(A, &from_server), Ok(PeerCloses::Stops));
    // Neither waits for its queue.
    let (from_client, from_server) = (
        client.close_due(false).unwrap(),
        server.close_due(false).unwrap(),
    );
    assert_eq!(
        (from_client.end, from_server.end),
        (Some(FIRST), Some(FIRST))
    );
    assert_eq!(server.peer_closes(A, &from_client), Ok(PeerCloses::Ends));
    assert_eq!(client.peer_closes(A, &from_server), Ok(PeerCloses::Ends));
    assert!(client.is_over() && server.is_over());
}

#[test]
fn withdrawn() {
    let (mut client, mut server) = offered();
    client.close(0);
    let close = client.close_due(true).unwrap();
    assert_eq!(close.end, Some(FIRST));
    assert_eq!(server.peer_closes(A, &close), Ok(PeerCloses::Ends));
    assert!(server.is_over() && !server.accept());
    assert_eq!(client.closed(A), Ok(()));
    assert!(client.is_over());
    // ACCEPT crosses CLOSE.
    let (mut client, mut server) = offered();
    assert!(server.accept());
    client.close(0);
    let close = client.close_due(true).unwrap();
    assert_eq!(client.accepted(A, moves(0), &window()), Ok(false));
    assert_eq!(server.peer_closes(A, &close), Ok(PeerCloses::Ends));
    // The connection is lost before CLOSE: the channel moves as one that was open.
    let (mut client, mut server) = offered();
    client.close(0);
    client.lost(A);
    assert_eq!(resume(&mut client, &mut server, B), Resumed::Live);
    let close = client.close_due(true).unwrap();
    assert_eq!(server.peer_closes(B, &close), Ok(PeerCloses::Ends));
    // Or it was refused.
    let (mut client, mut server) = offered();
    assert!(server.reject());
    client.close(0);
    client.lost(A);
    assert_eq!(resume(&mut client, &mut server, B), Resumed::Gone);
    assert!(client.is_over() && server.is_over());
}

#[test]
fn a_session_that_is_lost_ends_the_channel() {
    let (mut client, _) = open();
    let mut item = client.tx.queue(5).unwrap();
    client.abandon();
    assert_eq!(
        (client.is_over(), client.tx.next(&mut item)),
        (true, Next::NotNow)
    );
    assert_eq!(client.cause(), Cause::PeerLost);
}

/// The server's program closes, and the client's end arrives before CLOSE was sent.
#[test]
fn an_end_that_overtakes_close() {
    let (mut client, mut server) = open();
    let mut item = client.tx.queue(10).unwrap();
    assert!(matches!(client.tx.next(&mut item), Next::Message(_)));
    server.close(0);
    client.close(0);
    let end = client.close_due(true).unwrap();
    assert!(end.end.is_some() && !server.owes_close());
    // The message is dropped, and CLOSED alone would say that it was delivered.
    assert_eq!(server.peer_closes(A, &end), Ok(PeerCloses::Ends));
    assert!(server.is_over() && server.owes_close());
    let close = server.close_due(false).unwrap();
    assert!(!server.owes_close() && server.close_due(true).is_none());
    assert_eq!(client.peer_closes(A, &close), Ok(PeerCloses::Ends));
    assert_eq!(client.cause(), Cause::Closed);
    assert_eq!(
        client.tx.end(&mut item, Cause::Closed),
        Some(ibmsg_proto::Outcome::NotDelivered)
    );
    assert_eq!(client.closed(A), Ok(()));
    assert_eq!(server.closed(A), Ok(()));
    // A connection that is lost in between: the server forgets the channel.
    let (mut client, mut server) = open();
    server.close(0);
    client.close(0);
    let end = client.close_due(true).unwrap();
    assert_eq!(server.peer_closes(A, &end), Ok(PeerCloses::Ends));
    assert!(server.lost(A) && !server.owes_close() && server.close_due(true).is_none());
    // A program that closes after that has nothing to tell.
    let (mut client, mut server) = open();
    client.close(0);
    let end = client.close_due(true).unwrap();
    assert_eq!(server.peer_closes(A, &end), Ok(PeerCloses::Ends));
    server.close(0);
    assert!(server.is_over() && !server.owes_close() && server.close_due(true).is_none());
}

/// The server has no memory for a message: it is sent again, and so is the end behind it.
#[test]
fn messages_are_sent_again_with_the_end() {
    let (mut client, mut server) = open();
    let mut item = client.tx.queue(10).unwrap();
    let Next::Message(number) = client.tx.next(&mut item) else {
        panic!();
    };
    client.close(0);
    let end = client.close_due(true).unwrap();
    assert!(end.end.is_some());
    assert!(server.rx.no_memory(number, 10, 0).is_ok());
    assert_eq!(server.peer_closes(A, &end), Ok(PeerCloses::Stops));
    server.rx.ask_again();
    let (ack, again) = server.rx.announce_alone();
    let record = AckRecord {
        channel: 7,
        ack,
        again,
    };
    assert!(again && client.close_due(true).is_none());
    assert_eq!(client.acknowledged(&record), Ok(true));
    // It is not sent a second time before the message.
    assert!(client.close_due(true).is_none());
    assert_eq!(client.tx.next(&mut item), Next::Message(number));
    let end = client.close_due(true).unwrap();
    assert!(server.rx.message(number, 10, 0, 10, false).is_ok());
    assert_eq!(server.peer_closes(A, &end), Ok(PeerCloses::Ends));
    // An acknowledgement without it, and one that is older than what is known.
    let (mut client, server) = open();
    let plain = AckRecord {
        channel: 7,
        ack: server.rx.ack(),
        again: false,
    };
    assert_eq!(client.acknowledged(&plain), Ok(false));
    client.lost(A);
    let late = AckRecord {
        again: true,
        ..plain
    };
    assert_eq!(client.acknowledged(&late), Ok(false));
}

/// An end that was closed before gets another reason, if there is one: not all that was written may be sent.
#[test]
fn a_later_reason_counts() {
    let (_, mut server) = open();
    server.close(0);
    assert_eq!(server.close_due(false).map(|close| close.reason), Some(0));
    server.close(13);
    let close = server.close_due(true).unwrap();
    assert_eq!((close.reason, close.end.is_some()), (13, true));
    server.close(0);
    server.lost(A);
    assert!(server.close_due(true).is_none());
    assert!(server.move_to(B).is_some());
}
