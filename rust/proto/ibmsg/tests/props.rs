// SPDX-License-Identifier: GPL-2.0

//! Properties: no input panics, what is decoded encodes to the same, and no peer can break a receiver
//! or a sender.

use ibmsg_proto::channel::{Channel, Conn};
use ibmsg_proto::limits::*;
use ibmsg_proto::receive::{Arrival, Receiver};
use ibmsg_proto::send::{Next, SendLimits, Sender};
use ibmsg_proto::window::Window;
use ibmsg_proto::wire::*;
use ibmsg_proto::Seq;
use proptest::prelude::*;

fn any_ack() -> impl Strategy<Value = Ack> {
    any::<[u32; 4]>().prop_map(|[a, b, c, d]| Ack {
        next: Seq::new(a),
        taken: Seq::new(b),
        msg_limit: Seq::new(c),
        byte_limit: Seq::new(d),
    })
}

/// Numbers near the beginning, as well as any others.
fn near() -> impl Strategy<Value = Seq> {
    prop_oneof![
        (0u32..12).prop_map(|n| FIRST.plus(n)),
        any::<u32>().prop_map(Seq::new)
    ]
}

fn near_ack() -> impl Strategy<Value = Ack> {
    (near(), near(), near(), 0u32..3000).prop_map(|(next, taken, msg_limit, bytes)| Ack {
        next,
        taken,
        msg_limit,
        byte_limit: FIRST.plus(bytes),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400), ty: u8, fix: bool) {
        if fix && bytes.len() >= 24 {
            (bytes[0], bytes[8], bytes[9]) = (1, ty % 14, 0);
            let len = (bytes.len() - 8) as u32;
            bytes[12..16].copy_from_slice(&len.to_le_bytes());
            if ty >= 10 { bytes[16..20].fill(0) }
        }
        if let Ok((_, records)) = Records::parse(&bytes) {
            let count = records.count();
            prop_assert!(count <= bytes.len() / RECORD_HDR_LEN + 1);
        }
    }

    #[test]
    fn messages_round_trip(channel in 1u32.., number: u32, ack in any_ack(), prompt: bool, kind in 0usize..3,
                           content in prop::collection::vec(any::<u8>(), 0..200), offset in 0u32..1000,
                           more in 0u32..1000, id: u64, tag: u64, status: u16) {
        prop_assume!(!ack.next.is_before(ack.taken));
        let total = offset + content.len() as u32 + more;
        prop_assume!(total == 0 || !content.is_empty());
        let hdr = MessageHdr {
            channel, number: Seq::new(number), prompt, body: false, ack, total, offset, id, tag, status,
            kind: [Kind::OneWay, Kind::Request, Kind::Reply][kind],
        };
        let message = Message { hdr, content: &content };
        let skip = Skip { channel, number: Seq::new(number), ack, total };
        let close = Close { channel, end: prompt.then_some(Seq::new(number)), ack, reason: status };
        let mut buf = [0xEE; 600];
        let mut frame = FrameWriter::new(&mut buf, Seq::new(number)).unwrap();
        frame.record(|out| skip.encode(out)).unwrap();
        frame.record(|out| message.encode(out)).unwrap();
        frame.record(|out| close.encode(out)).unwrap();
        let len = frame.finish();
        let (limit, records) = Records::parse(&buf[..len]).unwrap();
        prop_assert_eq!(limit, Seq::new(number));
        let records: Vec<_> = records.map(Result::unwrap).collect();
        prop_assert_eq!(records, [Record::Skip(skip), Record::Message(message), Record::Close(close)]);
    }

    /// A receiver never queues more than its window, whatever a peer sends, and what it takes comes in
    /// order.
    #[test]
    fn a_peer_cannot_overrun_a_receiver(
        messages in 1u32..6, bytes in 164u32..600,
        steps in prop::collection::vec((0u8..5, near(), 0u32..110, 0u32..110, 0u32..110), 0..200),
    ) {
        let mut rx = Receiver::new(Window::new(messages, bytes, 100, 0).unwrap(), FIRST);
        let mut queue = std::collections::VecDeque::new();
        let mut last = None;
        for (what, number, total, offset, len) in steps {
            let before = rx;
            let arrival = match what {
                // A whole message, most often the right one.
                0 => rx.message(rx.next(), total, 0, total, false).map(|arrival| (arrival, before.next())),
                1 => rx.message(number, total, offset, len, true).map(|arrival| (arrival, number)),
                2 => rx.skip(number, total).map(|arrival| (arrival, number)),
                3 => {
                    if let Some((_, len)) = queue.pop_front() {
                        rx.took(len, queue.front().map(|(number, _): &(Seq, u32)| *number));
                    }
                    continue;
                }
                _ => { rx.announce(); continue; }
            };
            match arrival {
                Ok((Arrival::Queue, number)) => {
                    prop_assert!(last.is_none_or(|last: Seq| last.is_before(number)));
                    last = Some(number);
                    queue.push_back((number, total));
                }
                Ok((Arrival::Duplicate, _)) | Err(_) => prop_assert_eq!(rx, before),
                Ok(_) => {}
            }
            prop_assert!(queue.len() <= messages as usize);
            prop_assert!(queue.iter().map(|(_, len)| cost(*len)).sum::<u32>() <= bytes);
        }
    }

    /// A sender stays consistent, whatever is acknowledged: what is not sent is not acknowledged, and
    /// nothing leaves before its turn.
    #[test]
    fn a_peer_cannot_confuse_a_sender(acks in prop::collection::vec((0u8..6, near_ack()), 0..100)) {
        let limits = SendLimits { messages: 100, bytes: 100_000 };
        let mut tx = Sender::new(limits, FIRST);
        tx.open(&Window::new(4, 1000, 100, 0).unwrap());
        let mut items: Vec<_> = (0..10).map(|n| tx.queue(n * 10).unwrap()).collect();
        for (what, ack) in acks {
            match what {
                0 => tx.lost(),
                1 => { let _ = tx.resumed(&ack); }
                2 => { let _ = tx.acknowledged(&ack); }
                _ => {
                    let at = tx.cursor().ahead_of(FIRST).unwrap() as usize;
                    if let Some(item) = items.get_mut(at) {
                        let cursor = tx.cursor();
                        if let Next::Message(number) = tx.next(item) {
                            prop_assert_eq!(number, cursor);
                        }
                    }
                }
            }
            prop_assert!(!tx.cursor().is_before(tx.acked()));
            prop_assert!(!tx.high().is_before(tx.cursor()));
            prop_assert!(!tx.high().is_before(tx.taken()));
        }
    }

    /// Any record in any phase gives an answer or an error.
    #[test]
    fn a_peer_cannot_break_a_channel(server: bool, steps in prop::collection::vec(
        (0u8..16, 1u32..4, 0u32..4, near_ack(), prop::option::of(near()), any::<bool>()), 0..100)) {
        let window = Window::new(4, 1000, 100, 1).unwrap();
        let limits = SendLimits { messages: 4, bytes: 1000 };
        let conn = |epoch| Conn { epoch, cid: 0 };
        let mut ch = match server {
            true => Channel::offered(7, conn(1), Seq::new(0), &window, window, limits, FIRST),
            false => Channel::opening(7, conn(1), window, limits, FIRST),
        };
        for (what, epoch, moves, ack, end, flag) in steps {
            let (from, moves) = (conn(epoch), Seq::new(moves));
            let entry = ResumeEntry { channel: 7, moves, gone: flag, ended: moves == Seq::new(3), ack };
            let was_over = ch.is_over();
            match what {
                0 => { let _ = ch.accepted(from, moves, &window); }
                1 => { let _ = ch.rejected(from, moves); }
                2 => { let _ = ch.accept(); }
                3 => { let _ = ch.reject(); }
                4 => { ch.lost(from); }
                5 => { let _ = ch.move_to(from); }
                6 => { let _ = ch.open_again(from, moves); }
                7 => { let _ = ch.resume(from, &entry); }
                8 => { let _ = ch.resumed(from, &entry); }
                9 => ch.close(0),
                10 => { let _ = ch.close_due(flag); }
                11 => { let _ = ch.peer_closes(from, &Close { channel: 7, end, ack, reason: 0 }); }
                12 => { let _ = ch.closed(from); }
                13 => { let _ = ch.tx.acknowledged(&ack); }
                14 => { let _ = ch.rx.message(ack.next, 5, 0, 5, flag); }
                _ => { let _ = (ch.check_open(), ch.conn(), ch.blocks_live(from), ch.cause()); }
            }
            prop_assert!(!was_over || ch.is_over(), "a channel came back");
            prop_assert!(!(ch.is_over() && ch.is_open()));
        }
    }
}
