// SPDX-License-Identifier: GPL-2.0

//! Messages between programs: frames, and what a peer may do to a channel.

use std::collections::VecDeque;

use ibmsg_proto::channel::{Channel, Conn};
use ibmsg_proto::limits::{cost, FIRST};
use ibmsg_proto::link::Link;
use ibmsg_proto::memory::export::Unmapping;
use ibmsg_proto::memory::{
    BodyEnd, BodyError, BodyRef, Export, Granted, Handle, Held, Key, Keys, Loan, Range, Rights,
    Unmap, Want, PIECE,
};
use ibmsg_proto::receive::{Arrival, Receiver};
use ibmsg_proto::send::{SendLimits, Sender};
use ibmsg_proto::window::Window;
use ibmsg_proto::wire::{
    Ack, Close, FrameWriter, Live, Record, Records, Redirect, Resume, ResumeEntry,
};
use ibmsg_proto::Seq;

use crate::wire::head;

const LIMITS: SendLimits = SendLimits {
    messages: 8,
    bytes: 4000,
};

/// Decoders: a record that is read, written and read again is the same.
pub(crate) fn frames(bytes: &[u8]) {
    let Ok((limit, records)) = Records::parse(bytes) else {
        return;
    };
    for record in records
        .with_memory()
        .with_publishing()
        .map_while(Result::ok)
    {
        let mut buf = [0; 1024];
        let mut frame = FrameWriter::new(&mut buf, limit).expect("space for the header");
        let written = frame.record(|out| match &record {
            Record::Message(r) => r.encode(out),
            Record::Skip(r) => r.encode(out),
            Record::Ack(r) => r.encode(out),
            Record::Open(r) => r.encode(out),
            Record::Accept(r) => r.encode(out),
            Record::Reject(r) => r.encode(out),
            Record::Redirect(r) => {
                let addresses: Vec<_> = r.addresses().collect();
                Redirect::encode(out, r.channel, r.moves, &addresses)
            }
            Record::Close(r) => r.encode(out),
            Record::Closed(r) => r.encode(out),
            Record::Resume(r) => Some(Resume::encode(out, r.entries())?.0),
            Record::Resumed(r) => Some(Resume::encode_answer(out, r.entries())?.0),
            Record::Live(r) => {
                let epochs: Vec<_> = r.epochs().collect();
                Live::encode(out, r.ends, r.newest, &epochs)
            }
            Record::Drain(r) => r.encode(out),
            Record::Memory(r) => r.encode(out),
        });
        written.expect("no longer than it was");
        let len = frame.finish();
        let (again, records) = Records::parse(&buf[..len]).expect("a frame");
        let mut records = records.with_memory().with_publishing();
        assert_eq!((again, records.next()), (limit, Some(Ok(record))));
    }
}

/// Any answer will do.
fn ignore<T>(_: T) {}

fn seq(byte: u8) -> Seq {
    FIRST.plus(u32::from(byte % 16))
}

fn ack([a, b, c, d]: [u8; 4]) -> Ack {
    Ack {
        next: seq(a),
        taken: seq(b),
        msg_limit: seq(c),
        byte_limit: FIRST.plus(u32::from(d) * 16),
    }
}

/// A receiver is never overrun, and a sender never confused.
pub(crate) fn halves(bytes: &[u8]) {
    let ([messages, size, peer], mut rest) = head(bytes);
    let window = |m: u8, b: u8| Window::new(u32::from(m % 8) + 1, u32::from(b) * 4 + 164, 100, 0);
    let (Ok(own), Ok(other)) = (window(messages, size), window(peer, size)) else {
        unreachable!("possible terms");
    };
    let mut rx = Receiver::new(own, FIRST);
    let mut tx = Sender::new(LIMITS, FIRST);
    tx.open(&other);
    let mut link = Link::new(8, 8);
    let mut inbox: VecDeque<(Seq, u32)> = VecDeque::new();
    let mut items = VecDeque::new();
    let mut first = FIRST;
    while !rest.is_empty() {
        let ([what, a, b, c, d], next) = head(rest);
        rest = next;
        let (total, offset, len) = (u32::from(b % 110), u32::from(c), u32::from(d));
        match what % 12 {
            0 | 1 => {
                let number = if what & 16 == 0 { seq(a) } else { rx.next() };
                let (offset, len) = if what & 32 == 0 {
                    (offset, len)
                } else {
                    (0, total)
                };
                if rx.message(number, total, offset, len, a & 1 != 0) == Ok(Arrival::Queue) {
                    inbox.push_back((number, total));
                }
            }
            2 => {
                let _ = rx.skip(seq(a), total);
            }
            3 => {
                if let Some((_, len)) = inbox.pop_front() {
                    rx.took(len, inbox.front().map(|(number, _)| *number));
                }
            }
            4 => {
                rx.announce();
            }
            5 => {
                let _ = rx.due(u64::from(a));
            }
            6 => {
                if let Ok(item) = tx.queue(total) {
                    items.push_back(item);
                }
            }
            7 => {
                let at = tx.cursor().ahead_of(first).unwrap_or(0) as usize;
                if let Some(item) = items.get_mut(at) {
                    let _ = tx.next(item);
                }
            }
            8 => {
                let _ = tx.acknowledged(&ack([a, b, c, d]));
            }
            9 => tx.lost(),
            10 => {
                let _ = tx.resumed(&ack([a, b, c, d]));
            }
            _ => {
                let _ = (link.send(), link.received(Seq::new(u32::from(a))));
                link.reposted();
            }
        }
        while first.is_before(tx.acked()) {
            tx.release(items.pop_front().expect("a message that was sent"));
            first = first.plus(1);
        }
        assert!(inbox.len() <= own.messages() as usize);
        assert!(inbox.iter().map(|(_, len)| cost(*len)).sum::<u32>() <= own.bytes());
        assert!(!tx.cursor().is_before(tx.acked()) && !tx.high().is_before(tx.cursor()));
    }
}

/// A channel answers any record in any phase, and does not come back when it is over.
pub(crate) fn channel(bytes: &[u8]) {
    let ([side], mut rest) = head(bytes);
    let Ok(window) = Window::new(4, 1000, 100, 1) else {
        unreachable!("possible terms");
    };
    let conn = |epoch: u8| Conn {
        epoch: u32::from(epoch % 4),
        cid: 0,
    };
    let none = Seq::new(0);
    let mut ch = match side % 2 {
        0 => Channel::opening(7, conn(1), window, LIMITS, FIRST),
        _ => Channel::offered(7, conn(1), none, &window, window, LIMITS, FIRST),
    };
    while !rest.is_empty() {
        let ([what, from, moves, a, b, c, d], next) = head(rest);
        rest = next;
        let (from, moves, flag) = (conn(from), Seq::new(u32::from(moves % 8)), a & 64 != 0);
        let ack = ack([a, b, c, d]);
        let entry = ResumeEntry {
            channel: 7,
            moves,
            gone: flag,
            ended: b & 64 != 0,
            ack,
        };
        let was_over = ch.is_over();
        match what % 16 {
            0 => ignore(ch.accepted(from, moves, &window)),
            1 => ignore(ch.rejected(from, moves)),
            2 => ignore(ch.accept()),
            3 => ignore(ch.reject()),
            4 => ignore(ch.lost(from)),
            5 => ignore(ch.move_to(from)),
            6 => ignore(ch.open_again(from, moves)),
            7 => ignore(ch.resume(from, &entry)),
            8 => ignore(ch.resumed(from, &entry)),
            9 => ch.close(1),
            10 => ignore(ch.close_due(flag)),
            11 => {
                let end = flag.then_some(seq(d));
                ignore(ch.peer_closes(
                    from,
                    &Close {
                        channel: 7,
                        end,
                        ack,
                        reason: 0,
                    },
                ));
            }
            12 => ignore(ch.closed(from)),
            13 => ignore(ch.tx.acknowledged(&ack)),
            14 => ignore(ch.rx.message(seq(a), 5, 0, 5, flag)),
            _ => ignore((ch.check_open(), ch.conn(), ch.blocks_live(from), ch.cause())),
        }
        assert!(!was_over || ch.is_over());
        assert!(!(ch.is_over() && ch.is_open()));
    }
}

/// An owner never frees memory while the peer has a key of it, and never gives more keys than agreed; an asker
/// never has more.
pub(crate) fn memory(bytes: &[u8]) {
    let ([start, cells, rights], mut rest) = head(bytes);
    let piece = u64::from(PIECE);
    let range = Range::new(
        u64::from(start) * piece / 4,
        (u64::from(cells) + 1) * piece / 4,
    );
    let range = range.expect("a range");
    let rights = Rights {
        read: rights & 1 != 0,
        write: rights & 2 != 0,
    };
    let (mut export, mut granted, mut keys) =
        (Export::new(1), Granted::<4>::new(4), Keys::<4>::new(3));
    let (mut valid, mut pushes, mut freed) = (0u32, 0u32, 0u64);
    while !rest.is_empty() {
        let ([what, a], next) = head(rest);
        rest = next;
        let generation = freed + u64::from(a / 128);
        let handle = Handle::from_wire((generation + 1) << 16 | 1).expect("a handle");
        let at = u64::from(a % 128);
        match what % 12 {
            0 => ignore(export.publish(range, rights)),
            1 => {
                if export.key(handle, at).is_ok() {
                    if let Ok(Some(_)) = granted.grant(handle, at) {
                        export.granted();
                        valid += 1;
                    }
                }
            }
            2 => ignore(granted.returned(handle, at, false)),
            3 => {
                if let Some(handle) = granted.invalidated(usize::from(a % 5)) {
                    assert_eq!(handle, export.handle());
                    export.invalidated();
                    valid -= 1;
                }
            }
            4 => {
                if Range::new(at, 5).is_some_and(|part| export.check(handle, &part, rights).is_ok())
                {
                    export.push_begins();
                    pushes += 1;
                }
            }
            5 if pushes > 0 => {
                export.push_ended();
                pushes -= 1;
            }
            6 => {
                let how = if a & 1 == 0 {
                    Unmap::Gently
                } else {
                    Unmap::Now
                };
                if export.revoke(how) == Unmapping::Invalidate {
                    while granted.end_next(export.handle()).is_some() {}
                }
            }
            7 => ignore(export.returned(handle)),
            8 => {
                if export.free() {
                    assert_eq!((valid, pushes), (0, 0));
                    freed += 1;
                }
            }
            9 => {
                while granted.fence().is_some() {
                    export.invalidated();
                    valid -= 1;
                }
                assert_eq!(valid, 0);
            }
            10 => {
                let key = Key {
                    rkey: 1,
                    addr: 0,
                    range,
                    rights,
                    readable: false,
                };
                ignore(keys.answered(handle, at, Ok(key)));
            }
            _ => match (keys.want(handle, at), a % 4) {
                (Want::Use(_, place), 3) => keys.done(place),
                (_, 0) => keys.revoked(handle),
                (_, 1) => ignore(keys.may_return(handle)),
                _ => {}
            },
        }
        assert!(valid <= 4 && granted.live() <= 4);
        assert!(export.live(export.handle()).is_err() || !export.is_revoked());
    }
}

/// A side never holds more bodies than it may, whatever its peer sends. A body that is lent has one receipt, which says
/// why it has ended first, and not before its memory is free.
pub(crate) fn bodies(bytes: &[u8]) {
    const MOST: usize = 3;
    if let Some(content) = bytes.first_chunk() {
        if let Ok(body) = BodyRef::read(content) {
            assert_eq!(&body.bytes(), content);
        }
    }
    let (mut held, mut model) = (Held::<MOST>::new(), Vec::new());
    let (mut loan, mut end, mut is_out, mut is_free, mut is_told) =
        (Loan::new(7), None, true, false, false);
    let mut rest = bytes;
    while !rest.is_empty() {
        let ([what, a], next) = head(rest);
        rest = next;
        let handle = Handle::from_wire(1 << 16 | u64::from(a % 5)).expect("a handle");
        match what % 9 {
            0 => match held.arrived(handle) {
                Ok(()) => {
                    assert!(!model.contains(&handle));
                    model.push(handle);
                }
                Err(BodyError::Twice) => assert!(model.contains(&handle)),
                Err(e) => assert_eq!((e, model.len()), (BodyError::TooMany, MOST)),
            },
            1 => {
                assert_eq!(held.release(handle), model.contains(&handle));
                model.retain(|other| *other != handle);
            }
            2 => {
                assert_eq!(loan.released().is_ok(), is_out);
                if is_out {
                    end = end.or(Some(BodyEnd::Released));
                }
                is_out = false;
            }
            3 => {
                loan.ends(BodyEnd::TakenBack);
                end = end.or(Some(BodyEnd::TakenBack));
            }
            4 => {
                loan.not_sent();
                is_out = false;
            }
            5 => {
                loan.over();
                end = end.or(Some(BodyEnd::Closed));
                is_out = false;
            }
            6 => {
                loan.freed();
                is_free = true;
            }
            _ => {
                let due = end.filter(|_| is_free && !is_told);
                assert_eq!(loan.receipt().map(|receipt| receipt.end), due);
                is_told |= due.is_some();
            }
        }
        assert_eq!(held.holds(handle), model.contains(&handle));
        assert!(model.len() <= MOST);
        assert_eq!(loan.owes_receipt(), !is_told);
        assert_eq!(loan.is_done(), is_told && !is_out);
        if loan.is_done() {
            (loan, end, is_out, is_free, is_told) = (Loan::new(7), None, true, false, false);
        }
    }
}
