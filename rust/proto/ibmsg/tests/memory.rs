// SPDX-License-Identifier: GPL-2.0

//! Memory: golden bytes, and each rule by itself. `tools/sim` has them together.

use ibmsg_proto::limits::FIRST;
use ibmsg_proto::memory::export::Unmapping;
use ibmsg_proto::memory::{
    range, BodyEnd, BodyError, BodyRef, Export, GetStep, GrantError, Granted, Handle, Held, Key,
    Keys, Loan, MemoryTerms, OpOutcome, Put, PutStep, Range, Reading, Refusal, Rights, Unmap, Want,
    MAX_KEYS, MAX_WORK, PIECE,
};
use ibmsg_proto::receive::Receiver;
use ibmsg_proto::send::{Next, SendLimits, Sender};
use ibmsg_proto::window::Window;
use ibmsg_proto::wire::*;
use ibmsg_proto::Seq;

const RW: Rights = Rights {
    read: true,
    write: true,
};
const RO: Rights = Rights {
    read: true,
    write: false,
};
const P: u64 = PIECE as u64;

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    let byte = |i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn handle() -> Handle {
    Handle::from_wire(0x0807_0605_0403_0201).unwrap()
}

fn golden(record: MemoryRecord, bytes: &str) {
    let want = hex(bytes);
    let mut buf = [0xEE; 128];
    let len = record.encode(&mut buf).unwrap();
    assert_eq!(&buf[..len], want);
    for short in 0..len {
        assert_eq!(record.encode(&mut [0; 128][..short]), None);
    }
    let mut read = Records::of(&want).with_memory();
    assert_eq!(read.next(), Some(Ok(Record::Memory(record))));
    // Without memory it is a record that does not exist.
    let ty = want[0];
    let plain = Records::of(&want).next();
    assert_eq!(plain, Some(Err(WireError::Type(ty))));
    // Shorter, or longer.
    for len in [len - 1, len + 8] {
        let mut other = want.clone();
        other.resize(len, 0);
        other[4] = len as u8;
        let read = Records::of(&other).with_memory().next();
        assert!(matches!(read, Some(Err(_))), "{len}");
    }
}

#[test]
fn records_are_those_of_the_page() {
    let handle = handle();
    let ack = Ack {
        next: Seq::new(0x0403_0201),
        taken: Seq::new(0x0403_0200),
        msg_limit: Seq::new(0x0807_0605),
        byte_limit: Seq::new(0x0C0B_0A09),
    };
    let note = Note {
        channel: 7,
        number: Seq::new(0x14),
        kind: NoteKind::Placed,
        ack,
        handle,
        len: 0x0102,
    };
    golden(
        MemoryRecord::Note(note),
        "0e000000 30000000 07000000 14000000 01020304 00020304 05060708 090a0b0c
         01020304 05060708 02010000 00000000",
    );
    golden(
        MemoryRecord::Note(Note {
            kind: NoteKind::Release,
            len: 0,
            ..note
        }),
        "0e000100 30000000 07000000 14000000 01020304 00020304 05060708 090a0b0c
         01020304 05060708 00000000 00000000",
    );
    let (channel, piece) = (7, 0x0102);
    golden(
        MemoryRecord::Ask(Ask {
            channel,
            handle,
            piece,
        }),
        "0f000000 20000000 07000000 00000000 01020304 05060708 02010000 00000000",
    );
    let key = Key {
        rkey: 0x0403_0201,
        addr: 0x1817_1615_1413_1211,
        range: Range::new(0x1000, 0x0010_0000).unwrap(),
        rights: RW,
        readable: false,
    };
    golden(
        MemoryRecord::Key(KeyRecord {
            channel,
            handle,
            piece,
            key: Ok(key),
        }),
        "10000000 40000000 07000000 01020304 01020304 05060708 02010000 00000000
         11121314 15161718 00100000 00000000 00001000 00000000 03000000 00000000",
    );
    let readable = Key {
        readable: true,
        ..key
    };
    golden(
        MemoryRecord::Key(KeyRecord {
            channel,
            handle,
            piece,
            key: Ok(readable),
        }),
        "10010000 40000000 07000000 01020304 01020304 05060708 02010000 00000000
         11121314 15161718 00100000 00000000 00001000 00000000 03000000 00000000",
    );
    golden(
        MemoryRecord::Key(KeyRecord {
            channel,
            handle,
            piece,
            key: Err(Refusal::Stale),
        }),
        "10007400 40000000 07000000 00000000 01020304 05060708 02010000 00000000
         00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000",
    );
    golden(
        MemoryRecord::Return(Return {
            channel,
            handle,
            piece: None,
        }),
        "11010000 20000000 07000000 00000000 01020304 05060708 00000000 00000000",
    );
    golden(
        MemoryRecord::Revoke(Revoke { channel, handle }),
        "12000000 18000000 07000000 00000000 01020304 05060708",
    );
    golden(
        MemoryRecord::Get(Get {
            channel,
            id: 5,
            handle,
            offset: 0x0102,
            len: 0x1000,
            rkey: 0x0403_0201,
            addr: 0x1817_1615_1413_1211,
        }),
        "13000000 38000000 07000000 05000000 01020304 05060708 02010000 00000000
         11121314 15161718 00100000 01020304 00000000 00000000",
    );
    let refusals = [
        (Refusal::Stale, "7400"),
        (Refusal::Access, "0d00"),
        (Refusal::Range, "2200"),
        (Refusal::Resources, "6900"),
        (Refusal::Device, "5f00"),
    ];
    for (refusal, errno) in refusals {
        golden(
            MemoryRecord::Got(Got {
                channel,
                id: 5,
                refused: Some(refusal),
            }),
            &format!("1400{errno} 18000000 07000000 05000000 00000000 00000000"),
        );
    }
}

#[test]
fn terms_travel_in_bytes_that_others_ignore() {
    let plain = Window::new(0x1000, 0x2_0000, 0x1_0000, 0x0102).unwrap();
    let window = plain.with_memory(MemoryTerms::new(0x0201, 0x03));
    let portal = PortalName::new(b"kv").unwrap();
    let open = |window| Open {
        channel: 7,
        moves: Seq::new(2),
        window,
        portal,
        data: b"xyz",
    };
    let mut with = [0; 64];
    let len = open(window).encode(&mut with).unwrap();
    assert_eq!(&with[32..40], hex("02 01 0102 0300 0000"));
    assert_eq!(
        Records::of(&with[..len]).next(),
        Some(Ok(Record::Open(open(window))))
    );
    let mut without = [0; 64];
    open(plain).encode(&mut without).unwrap();
    with[33..40].fill(0);
    assert_eq!(with, without);
    let terms = MemoryTerms::new(0x0201, 0x03).map(|terms| terms.with_reads(true));
    let window = plain.with_memory(terms);
    let mut reads = [0; 64];
    open(window).encode(&mut reads).unwrap();
    assert_eq!(&reads[32..40], hex("02 05 0102 0300 0000"));
    assert_eq!(
        Records::of(&reads[..len]).next(),
        Some(Ok(Record::Open(open(window))))
    );
    for (keys, pushes) in [(0, 1), (1, 0), (MAX_KEYS + 1, 1), (1, MAX_KEYS + 1)] {
        assert_eq!(MemoryTerms::new(keys, pushes), None);
    }
}

#[test]
fn ranges_do_not_wrap() {
    assert_eq!(Range::new(0, 0), None);
    assert_eq!(Range::new(u64::MAX, 1), None);
    assert!(Range::new(u64::MAX - 1, 1).is_some());
    let range = Range::new(P - 5, P + 10).unwrap();
    assert_eq!(range.piece(0), Range::new(P - 5, 5));
    assert_eq!(range.piece(1), Range::new(P, P));
    assert_eq!(range.piece(2), Range::new(2 * P, 5));
    assert_eq!(range.piece(3), None);
    assert_eq!(range.piece(u64::MAX), None);
    let mut at = 0;
    while let Some((piece, part)) = range.work(at) {
        assert_eq!(part.start(), range.start() + at);
        assert!(range.piece(piece).unwrap().contains(&part));
        assert!(part.len() <= u64::from(range::MAX_WORK));
        at += part.len();
    }
    assert_eq!(at, range.len());
}

#[test]
fn a_handle_is_used_once() {
    let mut export = Export::new(3);
    let range = Range::new(100, 50).unwrap();
    let old = export.publish(range, RO).unwrap();
    assert_eq!((old.slot(), export.publish(range, RO)), (3, None));
    let part = |start, len| Range::new(start, len).unwrap();
    assert_eq!(export.check(old, &part(100, 50), RO), Ok(()));
    assert_eq!(export.check(old, &part(99, 2), RO), Err(Refusal::Range));
    assert_eq!(export.check(old, &part(149, 2), RO), Err(Refusal::Range));
    assert_eq!(export.check(old, &part(100, 1), RW), Err(Refusal::Access));
    export.granted();
    export.push_begins();
    assert_eq!(export.revoke(Unmap::Gently), Unmapping::Tell);
    assert_eq!(export.check(old, &range, RO), Err(Refusal::Stale));
    assert!(!export.free());
    assert_eq!(export.returned(old), Unmapping::Invalidate);
    export.invalidated();
    assert_eq!(export.unmapping(), Unmapping::Wait);
    assert!(!export.free());
    export.push_ended();
    assert!(export.free());
    let new = export.publish(range, RO).unwrap();
    assert_ne!(old, new);
    assert_eq!(export.live(old), Err(Refusal::Stale));
    // The answer to a former REVOKE ends nothing.
    export.returned(old);
    assert_eq!(export.live(new), Ok(range));
}

/// The slot of another channel does not know which handles the first one had.
#[test]
fn a_handle_has_the_number_of_its_owner() {
    let range = Range::new(0, 50).unwrap();
    let named = |number| Export::new(3).publish_as(range, RO, number).unwrap();
    assert_ne!(named(7), named(8));
    for number in [0, 1, u64::MAX >> 16, u64::MAX] {
        // Its generation is never 0.
        let handle = named(number);
        assert_eq!(Handle::from_wire(handle.to_wire()), Some(handle));
        assert_eq!(handle.slot(), 3);
    }
    let mut export = Export::new(3);
    let first = export.publish_as(range, RO, 7);
    assert_eq!(export.publish_as(range, RO, 8), None);
    let _ = export.revoke(Unmap::Now);
    assert!(first.is_some() && export.free());
}

#[test]
fn no_rights_are_no_key() {
    let mut export = Export::new(0);
    let range = Range::new(0, 50).unwrap();
    let handle = export.publish(range, Rights::default()).unwrap();
    assert_eq!(export.key(handle, 0), Err(Refusal::Access));
}

#[test]
fn keys_are_limited_and_returned_once() {
    let mut granted = Granted::<2>::new(2);
    let handle = handle();
    assert_eq!(granted.grant(handle, 0), Ok(Some(0)));
    assert_eq!(granted.grant(handle, 0), Err(GrantError::Twice));
    assert_eq!(granted.grant(handle, 1), Ok(Some(1)));
    assert_eq!(granted.grant(handle, 2), Err(GrantError::TooMany));
    assert_eq!(
        granted.returned(handle, 2, true),
        Err(GrantError::NotGranted)
    );
    assert_eq!(granted.returned(handle, 0, true), Ok(Some(0)));
    assert_eq!(granted.grant(handle, 2), Ok(None));
    assert_eq!(granted.invalidated(1), None);
    assert_eq!(granted.invalidated(0), Some(handle));
    assert_eq!(granted.grant(handle, 2), Ok(Some(0)));
    // The owner has invalidated it by itself: the peer could not know.
    assert!(granted.end_next(handle).is_some() && granted.end_next(handle).is_some());
    assert_eq!(granted.returned(handle, 2, false), Ok(None));
    assert_eq!(granted.fence(), Some(handle));
    assert_eq!(granted.fence(), Some(handle));
    assert_eq!((granted.fence(), granted.is_empty()), (None, true));
    // With more places than keys, one that was returned does not keep the next one waiting.
    let mut granted = Granted::<3>::new(2);
    assert_eq!(granted.grant(handle, 0), Ok(Some(0)));
    assert_eq!(granted.grant(handle, 1), Ok(Some(1)));
    assert_eq!(granted.grant(handle, 2), Err(GrantError::TooMany));
    assert_eq!(granted.returned(handle, 0, true), Ok(Some(0)));
    assert_eq!(granted.grant(handle, 2), Ok(Some(2)));
    assert_eq!(granted.grant(handle, 0), Err(GrantError::TooMany));
}

fn key(range: Range, rights: Rights) -> Key {
    Key {
        rkey: 9,
        addr: 0x5000,
        range,
        rights,
        readable: true,
    }
}

#[test]
fn a_put_is_repeated_until_its_note_has_arrived() {
    let limits = SendLimits {
        messages: 4,
        bytes: 1000,
    };
    let window = Window::new(4, 1000, 100, 0).unwrap();
    let (mut tx, mut rx) = (Sender::new(limits, FIRST), Receiver::new(window, FIRST));
    tx.open(&window);
    let mut keys = Keys::<4>::new(4);
    let range = Range::new(0, u64::from(range::MAX_WORK) + 1).unwrap();
    let mut put = Put::new(handle(), range);
    let mut item = tx.queue(0).unwrap();
    for round in 0..2 {
        assert_eq!(put.step(&mut keys), PutStep::Ask(0));
        assert_eq!(put.step(&mut keys), PutStep::Wait);
        assert_eq!(keys.answered(handle(), 0, Ok(key(range, RW))), Ok(()));
        assert!(keys.answered(handle(), 0, Ok(key(range, RW))).is_err());
        let PutStep::Write { addr, .. } = put.step(&mut keys) else {
            panic!("a write");
        };
        assert_eq!(addr, 0x5000);
        let PutStep::Write { addr, part, .. } = put.step(&mut keys) else {
            panic!("a write");
        };
        assert_eq!((addr, part.len()), (0x5000 + u64::from(range::MAX_WORK), 1));
        assert_eq!(put.step(&mut keys), PutStep::Note);
        assert_eq!(tx.next(&mut item), Next::Message(FIRST));
        if round == 0 {
            assert!(put.is_posted());
            assert_eq!(put.end(tx.progress(&item), false), OpOutcome::Unknown);
            assert_eq!(put.end(tx.progress(&item), true), OpOutcome::Torn);
            put.lost();
            keys.lost();
            tx.lost();
            tx.resumed(&rx.announce()).unwrap();
        }
    }
    rx.note(FIRST).unwrap();
    tx.acknowledged(&rx.announce()).unwrap();
    assert_eq!(put.end(tx.progress(&item), false), OpOutcome::Done);
}

#[test]
fn a_put_that_fails_says_how_far_it_came() {
    let limits = SendLimits {
        messages: 4,
        bytes: 1000,
    };
    let mut tx = Sender::new(limits, FIRST);
    let range = Range::new(P - 10, 20).unwrap();
    for (second, outcome) in [
        (Err(Refusal::Stale), OpOutcome::Torn),
        (Ok(key(range, RO)), OpOutcome::Torn),
    ] {
        let mut keys = Keys::<4>::new(4);
        let mut put = Put::new(handle(), range);
        let mut item = tx.queue(0).unwrap();
        put.step(&mut keys);
        keys.answered(handle(), 0, Ok(key(range, RW))).unwrap();
        let PutStep::Write { place, .. } = put.step(&mut keys) else {
            panic!("a write");
        };
        assert_eq!(put.step(&mut keys), PutStep::Ask(1));
        keys.answered(handle(), 1, second).unwrap();
        assert_eq!(put.step(&mut keys), PutStep::Wait);
        put.completed(&mut keys, place);
        assert!(matches!(put.step(&mut keys), PutStep::Failed(_)));
        assert_eq!(put.failed(&tx, &mut item), outcome);
        tx.release(item);
    }
    let mut keys = Keys::<4>::new(4);
    let outside = Range::new(P - 10, 30).unwrap();
    let mut put = Put::new(handle(), outside);
    put.step(&mut keys);
    keys.answered(handle(), 0, Ok(key(range, RW))).unwrap();
    // All of it is checked before the first byte is written.
    assert_eq!(put.step(&mut keys), PutStep::Failed(Refusal::Range));
    let mut item = tx.queue(0).unwrap();
    assert_eq!(put.failed(&tx, &mut item), OpOutcome::NotDone);
}

#[test]
fn revoked_keys_are_returned_when_nothing_uses_them() {
    let mut keys = Keys::<4>::new(1);
    let range = Range::new(0, 3 * P).unwrap();
    assert_eq!(keys.want(handle(), 0), Want::Ask);
    assert_eq!(keys.want(handle(), 1), Want::Wait);
    keys.answered(handle(), 0, Ok(key(range, RW))).unwrap();
    let Want::Use(_, place) = keys.want(handle(), 0) else {
        panic!("a key");
    };
    assert_eq!(keys.want(handle(), 1), Want::Wait);
    keys.revoked(handle());
    assert_eq!(keys.want(handle(), 0), Want::Refused(Refusal::Stale));
    assert!(!keys.may_return(handle()));
    keys.done(place);
    assert!(keys.may_return(handle()));
    assert_eq!(keys.want(handle(), 1), Want::Ask);
    keys.answered(handle(), 1, Ok(key(range, RW))).unwrap();
    assert_eq!(keys.want(handle(), 2), Want::Replace(handle(), 1));
}

/// Another channel of the connection may need the room.
#[test]
fn idle_keys_are_given_up_and_refusals_forgotten() {
    let mut keys = Keys::<4>::new(4);
    let range = Range::new(0, 4 * P).unwrap();
    assert_eq!((keys.idle(), keys.give_up()), (0, None));
    for piece in 0..3 {
        assert_eq!(keys.want(handle(), piece), Want::Ask);
        // Not one that is on its way.
        assert_eq!(keys.idle() as u64, piece);
        keys.answered(handle(), piece, Ok(key(range, RW))).unwrap();
    }
    let Want::Use(_, first) = keys.want(handle(), 0) else {
        panic!("a key");
    };
    // One is in use; of the others, the one that was used least recently goes first.
    assert_eq!(keys.idle(), 2);
    assert_eq!(keys.give_up(), Some((handle(), 1)));
    keys.done(first);
    assert_eq!(keys.give_up(), Some((handle(), 2)));
    assert_eq!(keys.give_up(), Some((handle(), 0)));
    assert_eq!((keys.idle(), keys.give_up()), (0, None));
    assert!(keys.is_empty());
    // It is asked for again, unless the refusal is to be told.
    for tells in [false, true] {
        assert_eq!(keys.want(handle(), 3), Want::Ask);
        keys.forget_refusal(handle(), 3);
        assert_eq!(keys.want(handle(), 3), Want::Wait);
        let full = Err(Refusal::Resources);
        keys.answered(handle(), 3, full).unwrap();
        assert_eq!(keys.idle(), 0);
        if tells {
            let told = keys.want(handle(), 3);
            assert_eq!(told, Want::Refused(Refusal::Resources));
        } else {
            keys.forget_refusal(handle(), 3);
        }
    }
    assert!(keys.is_empty());
    // Those of a revoked handle are returned as a whole.
    assert_eq!(keys.want(handle(), 0), Want::Ask);
    keys.answered(handle(), 0, Ok(key(range, RW))).unwrap();
    keys.revoked(handle());
    assert_eq!((keys.idle(), keys.give_up()), (0, None));
}

#[test]
fn a_push_ends_when_its_landing_key_is_invalid() {
    let mut keys = Keys::<4>::new(1);
    let most = u64::from(MAX_WORK);
    let range = Range::new(3, most + 1).unwrap();
    let mut get = memory_get(range);
    assert_eq!(get.step(&mut keys, None, Reading::No), GetStep::Wait);
    let request = |start, len, to, id| GetStep::Request {
        part: Range::new(start, len).unwrap(),
        to,
        id,
    };
    assert_eq!(
        get.step(&mut keys, Some(5), Reading::No),
        request(3, most, 0, 5)
    );
    assert!(!get.got(6, None));
    assert!(get.got(5, None));
    assert!(!get.got(5, None));
    assert_eq!(
        get.step(&mut keys, Some(6), Reading::No),
        GetStep::Invalidate
    );
    assert_eq!(get.step(&mut keys, Some(6), Reading::No), GetStep::Wait);
    get.invalidated();
    // The rest is asked for when the first landing zone is closed.
    assert_eq!(
        get.step(&mut keys, Some(6), Reading::No),
        request(3 + most, 1, most, 6)
    );
    assert!(get.got(6, None));
    assert_eq!(
        get.step(&mut keys, Some(7), Reading::No),
        GetStep::Invalidate
    );
    get.invalidated();
    assert_eq!(
        get.step(&mut keys, Some(7), Reading::No),
        GetStep::Ended(None)
    );
}

fn memory_get(range: Range) -> ibmsg_proto::memory::Get {
    ibmsg_proto::memory::Get::new(handle(), range)
}

#[test]
fn a_read_needs_a_key_that_allows_it_and_a_buffer() {
    let mut keys = Keys::<4>::new(4);
    let most = u64::from(MAX_WORK);
    let range = Range::new(0, most + 1).unwrap();
    let mut get = memory_get(range);
    // A GET that begins nothing new asks for nothing.
    assert_eq!(get.step(&mut keys, None, Reading::No), GetStep::Wait);
    assert_eq!(get.step(&mut keys, None, Reading::Now), GetStep::Ask(0));
    assert_eq!(get.step(&mut keys, None, Reading::Now), GetStep::Wait);
    keys.answered(handle(), 0, Ok(key(range, RW))).unwrap();
    let part = |start, len| Range::new(start, len).unwrap();
    let map = |start, len| GetStep::Map {
        part: part(start, len),
        to: start,
    };
    let read = |start, len| GetStep::Read {
        part: part(start, len),
        to: start,
        rkey: 9,
        addr: 0x5000 + start,
        place: 0,
    };
    assert_eq!(get.step(&mut keys, None, Reading::Now), map(0, most));
    assert_eq!(get.step(&mut keys, None, Reading::Now), GetStep::Wait);
    assert!(!get.is_posted() && keys.may_return(handle()));
    // The key has gone meanwhile; the buffer stays mapped.
    get.mapped();
    assert_eq!(get.step(&mut keys, None, Reading::Now), GetStep::Ask(0));
    keys.answered(handle(), 0, Ok(key(range, RW))).unwrap();
    assert_eq!(get.step(&mut keys, None, Reading::Now), read(0, most));
    assert!(get.is_posted() && !keys.may_return(handle()));
    // The rest is mapped while the first part is on its way.
    assert_eq!(get.step(&mut keys, None, Reading::Now), map(most, 1));
    get.mapped();
    assert_eq!(get.step(&mut keys, None, Reading::Now), read(most, 1));
    assert_eq!(get.step(&mut keys, None, Reading::Now), GetStep::Wait);
    get.completed(&mut keys, 0);
    get.completed(&mut keys, 0);
    assert_eq!(
        get.step(&mut keys, None, Reading::Now),
        GetStep::Ended(None)
    );
    assert!(keys.may_return(handle()));
}

#[test]
fn a_get_is_a_push_where_the_owner_cannot_be_read() {
    let mut keys = Keys::<4>::new(4);
    let range = Range::new(0, 8).unwrap();
    let mut get = memory_get(range);
    assert_eq!(get.step(&mut keys, Some(1), Reading::Now), GetStep::Ask(0));
    let lossy = Key {
        readable: false,
        ..key(range, RW)
    };
    keys.answered(handle(), 0, Ok(lossy)).unwrap();
    let request = GetStep::Request {
        part: range,
        to: 0,
        id: 1,
    };
    assert_eq!(get.step(&mut keys, Some(1), Reading::Now), request);
    // The key is not in use, and the next GET does not ask.
    assert!(keys.may_return(handle()));
    let mut next = memory_get(range);
    let request = GetStep::Request {
        part: range,
        to: 0,
        id: 2,
    };
    assert_eq!(next.step(&mut keys, Some(2), Reading::Now), request);
    // By another connection, the owner may have another device.
    get.lost();
    keys.lost();
    assert_eq!(get.step(&mut keys, Some(3), Reading::Now), GetStep::Ask(0));
}

#[test]
fn a_get_is_a_push_where_there_is_no_room_for_a_read() {
    let range = Range::new(0, 8).unwrap();
    let request = |id| GetStep::Request {
        part: range,
        to: 0,
        id,
    };
    // No mapping.
    let mut keys = Keys::<4>::new(1);
    let mut get = memory_get(range);
    assert_eq!(get.step(&mut keys, None, Reading::Now), GetStep::Ask(0));
    keys.answered(handle(), 0, Ok(key(range, RW))).unwrap();
    let step = get.step(&mut keys, None, Reading::Now);
    assert!(matches!(step, GetStep::Map { .. }));
    get.not_mapped();
    // It was not mapped, so it is not mapped later.
    get.mapped();
    assert_eq!(get.step(&mut keys, Some(1), Reading::Now), request(1));
    // No place for another key: none is given back for a GET.
    let far = Range::new(P, 8).unwrap();
    let mut other = memory_get(far);
    let step = other.step(&mut keys, Some(2), Reading::Now);
    assert!(matches!(step, GetStep::Request { id: 2, .. }));
    assert_eq!(keys.want(handle(), 1), Want::Replace(handle(), 0));
    // The peer has none.
    let mut keys = Keys::<4>::new(1);
    let mut get = memory_get(range);
    assert_eq!(get.step(&mut keys, Some(3), Reading::Now), GetStep::Ask(0));
    keys.answered(handle(), 0, Err(Refusal::Resources)).unwrap();
    assert_eq!(get.step(&mut keys, Some(3), Reading::Now), request(3));
    let mut get = memory_get(range);
    assert_eq!(get.step(&mut keys, Some(3), Reading::Now), GetStep::Ask(0));
    keys.answered(handle(), 0, Err(Refusal::Resources)).unwrap();
    keys.forget_refusal(handle(), 0);
    get.has_no_room(handle(), 1);
    get.has_no_room(handle(), 0);
    assert_eq!(get.step(&mut keys, Some(3), Reading::Now), request(3));
    // By another connection it is read again.
    get.lost();
    keys.lost();
    // Not while the peer is short of regions, unless the key is there.
    assert_eq!(get.step(&mut keys, Some(4), Reading::WithKey), request(4));
    let mut get = memory_get(range);
    assert_eq!(get.step(&mut keys, Some(4), Reading::Now), GetStep::Ask(0));
    keys.answered(handle(), 0, Ok(key(range, RW))).unwrap();
    let step = get.step(&mut keys, Some(4), Reading::WithKey);
    assert!(matches!(step, GetStep::Map { .. }));
    // A refusal that nobody has seen does not take a place.
    let mut keys = Keys::<4>::new(1);
    assert_eq!(keys.want(handle(), 1), Want::Ask);
    keys.answered(handle(), 1, Err(Refusal::Stale)).unwrap();
    let mut get = memory_get(range);
    assert_eq!(get.step(&mut keys, Some(5), Reading::Now), GetStep::Ask(0));
}

#[test]
fn reads_take_turns_and_end_all_the_same() {
    let mut keys = Keys::<4>::new(1);
    let range = Range::new(0, 8).unwrap();
    let mut get = memory_get(range);
    assert_eq!(get.step(&mut keys, None, Reading::Later), GetStep::Wait);
    assert_eq!(get.step(&mut keys, None, Reading::Now), GetStep::Ask(0));
    keys.answered(handle(), 0, Ok(key(range, RW))).unwrap();
    let step = get.step(&mut keys, None, Reading::Now);
    assert!(matches!(step, GetStep::Map { .. }));
    get.mapped();
    assert_eq!(get.step(&mut keys, None, Reading::Later), GetStep::Wait);
    let step = get.step(&mut keys, None, Reading::Now);
    assert!(matches!(step, GetStep::Read { .. }));
    // One whose landing zone has gone still waits for what it reads.
    get.abandoned();
    assert!(get.is_reading() && keys.give_up().is_none());
    assert_eq!(get.step(&mut keys, None, Reading::Later), GetStep::Wait);
    get.completed(&mut keys, 0);
    assert_eq!(
        get.step(&mut keys, None, Reading::Later),
        GetStep::Ended(None)
    );
    assert_eq!(keys.give_up(), Some((handle(), 0)));
    assert!(keys.is_empty());
}

fn body() -> BodyRef {
    BodyRef {
        handle: handle(),
        range: Range::new(0x0102, 0x0010_0000).unwrap(),
    }
}

#[test]
fn a_message_says_where_its_body_is() {
    let ack = Ack {
        next: Seq::new(0x0403_0201),
        taken: Seq::new(0x0403_0200),
        msg_limit: Seq::new(0x0807_0605),
        byte_limit: Seq::new(0x0C0B_0A09),
    };
    let hdr = MessageHdr {
        channel: 7,
        number: Seq::new(0x14),
        kind: Kind::OneWay,
        prompt: false,
        body: true,
        ack,
        total: 27,
        offset: 0,
        id: 0,
        tag: 0x1817_1615_1413_1211,
        status: 0,
    };
    let mut content = body().bytes().to_vec();
    content.extend(b"abc");
    let encoded = |hdr: MessageHdr| {
        let mut bytes = hdr.encode(content.len() as u32).to_vec();
        bytes.extend(&content);
        bytes
    };
    let want = hex(
        "01020000 5b000000 07000000 14000000 01020304 00020304 05060708 090a0b0c
         1b000000 00000000 00000000 00000000 11121314 15161718 00000000 00000000
         01020304 05060708 02010000 00000000 00001000 00000000 616263",
    );
    assert_eq!(encoded(hdr), want);
    let Some(Ok(Record::Message(read))) = Records::of(&want).with_memory().next() else {
        panic!();
    };
    assert_eq!((read.hdr, read.content), (hdr, &content[..]));
    assert_eq!(
        BodyRef::read(read.content.first_chunk().unwrap()),
        Ok(body())
    );
    // Without memory there is no such flag, and not all kinds have a body.
    let plain = Records::of(&want).next();
    assert_eq!(plain, Some(Err(WireError::Flags { ty: 1, flags: 2 })));
    let read = |hdr| {
        let bytes = encoded(hdr);
        Records::of(&bytes).with_memory().next().unwrap().map(drop)
    };
    let kind = |kind| MessageHdr { kind, ..hdr };
    assert_eq!(read(kind(Kind::Request)), Ok(()));
    assert_eq!(read(kind(Kind::Reply)), Err(WireError::Body));
    content.truncate(23);
    let short = MessageHdr { total: 23, ..hdr };
    let mut bytes = short.encode(23).to_vec();
    bytes.extend(&content);
    let read = Records::of(&bytes).with_memory().next();
    assert_eq!(read, Some(Err(WireError::Body)));
}

#[test]
fn a_body_that_lies_is_refused() {
    let with = |at: usize, value: u64| {
        let mut bytes = body().bytes();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        BodyRef::read(&bytes)
    };
    assert_eq!(with(0, 5), Err(WireError::Handle(5)));
    assert_eq!(with(16, 0), Err(WireError::Memory));
    assert_eq!(with(8, u64::MAX), Err(WireError::Memory));
    assert!(with(16, 1 << 62).is_ok());
}

#[test]
fn the_terms_say_whether_there_are_bodies() {
    let plain = Window::new(0x1000, 0x2_0000, 0x1_0000, 0x0102).unwrap();
    let terms = MemoryTerms::new(0x0201, 0x03);
    let terms = terms.map(|terms| terms.with_reads(true).with_bodies(true));
    let open = Open {
        channel: 7,
        moves: Seq::new(2),
        window: plain.with_memory(terms),
        portal: PortalName::new(b"kv").unwrap(),
        data: b"xyz",
    };
    let mut bytes = [0; 64];
    let len = open.encode(&mut bytes).unwrap();
    assert_eq!(&bytes[32..40], hex("02 0d 0102 0300 0000"));
    let read = Records::of(&bytes[..len]).next();
    assert_eq!(read, Some(Ok(Record::Open(open))));
}

#[test]
fn memory_is_the_body_of_one_message() {
    let mut export = Export::new(1);
    let range = Range::new(0, 64).unwrap();
    let handle = export.publish(range, Rights::default()).unwrap();
    // The peer may guess the handle, and gets nothing.
    assert_eq!(export.check(handle, &range, RO), Err(Refusal::Access));
    assert_eq!(export.key(handle, 0), Err(Refusal::Access));
    assert_eq!(export.lend(handle), Ok(range));
    assert_eq!(export.lend(handle), Err(Refusal::Access));
    assert_eq!(export.check(handle, &range, RO), Ok(()));
    assert_eq!(export.check(handle, &range, RW), Err(Refusal::Access));
    export.revoke(Unmap::Gently);
    assert_eq!(export.lend(handle), Err(Refusal::Stale));
    assert!(export.free());
    let handle = export.publish(range, RO).unwrap();
    assert_eq!(export.lend(handle), Err(Refusal::Access));
}

/// The handle of slot 1 with that generation.
fn nth(generation: u64) -> Handle {
    Handle::from_wire(generation << 16 | 1).unwrap()
}

#[test]
fn a_receipt_comes_when_the_memory_is_free() {
    let mut loan = Loan::new(7);
    loan.released().unwrap();
    assert_eq!(loan.receipt(), None);
    loan.freed();
    assert!(loan.owes_receipt() && !loan.is_done());
    let receipt = loan.receipt().unwrap();
    assert_eq!((receipt.tag, receipt.end), (7, BodyEnd::Released));
    assert_eq!(receipt.end.errno(), None);
    // Once.
    assert_eq!(loan.receipt(), None);
    assert!(loan.is_done() && !loan.owes_receipt());
    assert_eq!(loan.released(), Err(BodyError::Unknown));
}

#[test]
fn a_body_that_is_taken_back_has_its_place_until_it_is_released() {
    let mut loan = Loan::new(1);
    loan.ends(BodyEnd::TakenBack);
    // The first reason counts.
    loan.ends(BodyEnd::Closed);
    loan.freed();
    let receipt = loan.receipt().unwrap();
    assert_eq!(receipt.end.errno(), Some(ibtrs_proto::Errno::ESTALE));
    assert!(!loan.is_done());
    loan.released().unwrap();
    assert!(loan.is_done());
    assert_eq!(loan.released(), Err(BodyError::Unknown));
    assert_eq!(loan.receipt(), None);
}

#[test]
fn a_body_that_was_not_sent_is_not_released() {
    let mut loan = Loan::new(1);
    loan.ends(BodyEnd::Message(ibtrs_proto::Errno::ECANCELED));
    loan.not_sent();
    assert_eq!(loan.released(), Err(BodyError::Unknown));
    assert!(loan.owes_receipt());
    loan.freed();
    let receipt = loan.receipt().unwrap();
    assert_eq!(receipt.end.errno(), Some(ibtrs_proto::Errno::ECANCELED));
    assert!(loan.is_done());
}

#[test]
fn the_end_of_the_channel_ends_each_body() {
    let ended = |ends: fn(&mut Loan)| {
        let mut loan = Loan::new(1);
        ends(&mut loan);
        loan.over();
        loan.freed();
        let errno = loan.receipt().unwrap().end.errno();
        assert!(loan.is_done());
        errno
    };
    let lost = ibtrs_proto::Errno::ECONNABORTED;
    assert_eq!(ended(|loan| loan.released().unwrap()), None);
    assert_eq!(
        ended(|loan| loan.ends(BodyEnd::Message(ibtrs_proto::Errno::ECONNABORTED))),
        Some(lost)
    );
    assert_eq!(ended(|_| {}), Some(ibtrs_proto::Errno::ECONNRESET));
}

#[test]
fn a_program_lets_go_of_what_it_holds() {
    let mut held = Held::<2>::default();
    assert!(!held.release(nth(1)));
    held.arrived(nth(1)).unwrap();
    assert_eq!(held.arrived(nth(1)), Err(BodyError::Twice));
    held.arrived(nth(2)).unwrap();
    assert_eq!(held.arrived(nth(3)), Err(BodyError::TooMany));
    assert!(held.holds(nth(2)) && held.release(nth(2)) && !held.release(nth(2)));
    held.arrived(nth(3)).unwrap();
}
