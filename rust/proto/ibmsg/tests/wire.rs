// SPDX-License-Identifier: GPL-2.0

//! The golden bytes of Documentation/protocol.md, and what decoders refuse.

use ibmsg_proto::limits::*;
use ibmsg_proto::window::{Window, WindowError};
use ibmsg_proto::wire::*;
use ibmsg_proto::Seq;
use ibtrs_proto::Errno;

/// The bytes of a golden value.
fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    let byte = |i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn ack() -> Ack {
    Ack {
        next: Seq::new(0x0403_0201),
        taken: Seq::new(0x0403_0200),
        msg_limit: Seq::new(0x0807_0605),
        byte_limit: Seq::new(0x0C0B_0A09),
    }
}

const ACK: &str = "01020304 00020304 05060708 090a0b0c";

fn window() -> Window {
    Window::new(0x1000, 0x2_0000, 0x1_0000, 0x0102).unwrap()
}

const WINDOW: &str = "00100000 00000200 00000100 0201";

fn record<'a>(frame: &'a [u8]) -> Result<Record<'a>, WireError> {
    let mut records = Records::parse(frame)?.1;
    let first = records.next().expect("a record");
    assert_eq!(records.next(), None);
    first
}

/// The record in a frame with the limit 0x01020304.
fn frame_of(record: &[u8]) -> Vec<u8> {
    let mut frame = hex("01000000 04030201");
    frame.extend(record);
    frame
}

/// Writes a record, compares it with the golden bytes, reads it back, and checks that every shorter or
/// longer one is refused.
fn golden<'a>(
    want: &'a Record<'a>,
    encode: impl FnOnce(&mut [u8]) -> Option<usize>,
    bytes: &str,
    fixed: bool,
) {
    let bytes = hex(bytes);
    let mut buf = [0xEE; 512];
    assert_eq!(encode(&mut buf), Some(bytes.len()));
    assert_eq!(
        buf[..bytes.len()],
        bytes[..],
        "{want:?}: {:02x?}",
        &buf[..bytes.len()]
    );
    let frame = frame_of(&bytes);
    assert_eq!(Records::parse(&frame).unwrap().0, Seq::new(0x0102_0304));
    assert_eq!(record(&frame).as_ref(), Ok(want));
    // Cut off, with the length of the whole and with its own.
    for len in 1..bytes.len() {
        assert!(record(&frame_of(&bytes[..len])).is_err(), "{len}");
    }
    for len in (0..bytes.len()).filter(|_| fixed) {
        let mut short = bytes[..len.max(16)].to_vec();
        short[4] = len as u8;
        assert!(record(&frame_of(&short)).is_err(), "{len}");
    }
    if fixed {
        let mut long = bytes.clone();
        long.extend([0; 8]);
        long[4] += 8;
        assert!(record(&frame_of(&long)).is_err());
    }
    for bit in 0..8 {
        let mut flags = bytes.clone();
        flags[1] ^= 1 << bit;
        let has_one = matches!(want, Record::Message(_) | Record::Close(_) | Record::Ack(_));
        let is_known = bit == 0 && has_one;
        assert_eq!(record(&frame_of(&flags)).is_ok(), is_known);
    }
    let mut channel = bytes;
    channel[8] ^= 0x07;
    let is_none = channel[8] == 0
        || matches!(
            want,
            Record::Resume(_) | Record::Resumed(_) | Record::Live(_) | Record::Drain(_)
        );
    assert_eq!(record(&frame_of(&channel)).is_err(), is_none);
}

#[test]
fn message() {
    let hdr = MessageHdr {
        channel: 7,
        number: Seq::new(0xFFFF_FF02),
        kind: Kind::Reply,
        prompt: true,
        body: false,
        ack: ack(),
        total: 0x0102,
        offset: 0xFF,
        id: 0x0807_0605_0403_0201,
        tag: 0x1817_1615_1413_1211,
        status: 5,
    };
    let message = Message {
        hdr,
        content: b"abc",
    };
    let bytes = format!(
        "01010200 43000000 07000000 02ffffff {ACK} 02010000 ff000000 \
         0102030405060708 1112131415161718 0500 000000000000 616263"
    );
    golden(
        &Record::Message(message),
        |buf| message.encode(buf),
        &bytes,
        false,
    );
    assert_eq!(hdr.encode(3)[..], hex(&bytes)[..64]);
    // Without content.
    let empty = MessageHdr {
        kind: Kind::OneWay,
        prompt: false,
        total: 0,
        offset: 0,
        ..hdr
    };
    let frame = frame_of(&empty.encode(0));
    let Ok(Record::Message(got)) = record(&frame) else {
        panic!();
    };
    assert_eq!((got.hdr, got.content), (empty, &[][..]));
    let wrong = |total, offset, len: u32, error| {
        let mut bytes = MessageHdr {
            total,
            offset,
            ..hdr
        }
        .encode(len)
        .to_vec();
        bytes.extend(vec![0; len as usize]);
        assert_eq!(record(&frame_of(&bytes)), Err(error));
    };
    wrong(
        MAX_MESSAGE + 1,
        0,
        1,
        WireError::MessageLength(MAX_MESSAGE + 1),
    );
    for (total, offset, len) in [
        (0, 0, 1),
        (5, 0, 0),
        (5, 5, 0),
        (5, 3, 3),
        (5, u32::MAX, 2),
        (0, 1, 0),
    ] {
        wrong(total, offset, len, WireError::Piece { offset, len, total });
    }
    let mut kind = frame.clone();
    kind[10] = 3;
    assert_eq!(record(&kind), Err(WireError::Kind(3)));
    let mut taken = frame;
    taken[8 + 20] = 2;
    assert_eq!(record(&taken), Err(WireError::Taken));
}

#[test]
fn skip_ack_close() {
    let skip = Skip {
        channel: 7,
        number: Seq::new(0x14),
        ack: ack(),
        total: 0x102,
    };
    let bytes = format!("02000000 28000000 07000000 14000000 {ACK} 02010000 00000000");
    golden(&Record::Skip(skip), |buf| skip.encode(buf), &bytes, true);
    let mut long = hex(&bytes);
    long[34] = 2;
    assert_eq!(
        record(&frame_of(&long)),
        Err(WireError::MessageLength(0x2_0102))
    );
    let alone = AckRecord {
        channel: 7,
        ack: ack(),
        again: false,
    };
    let bytes = format!("03000000 20000000 07000000 00000000 {ACK}");
    golden(&Record::Ack(alone), |buf| alone.encode(buf), &bytes, true);
    let again = AckRecord {
        again: true,
        ..alone
    };
    let bytes = format!("03010000 20000000 07000000 00000000 {ACK}");
    golden(&Record::Ack(again), |buf| again.encode(buf), &bytes, true);
    let close = Close {
        channel: 7,
        end: Some(Seq::new(0x0102)),
        ack: ack(),
        reason: 104,
    };
    let bytes = format!("08010000 28000000 07000000 02010000 {ACK} 6800 000000000000");
    golden(&Record::Close(close), |buf| close.encode(buf), &bytes, true);
    let stop = Close { end: None, ..close };
    let bytes = format!("08000000 28000000 07000000 00000000 {ACK} 6800 000000000000");
    golden(&Record::Close(stop), |buf| stop.encode(buf), &bytes, true);
    let closed = Closed { channel: 7 };
    let bytes = "09000000 10000000 07000000 00000000";
    golden(
        &Record::Closed(closed),
        |buf| closed.encode(buf),
        bytes,
        true,
    );
    let drain = Drain { seconds: 0x0201 };
    let bytes = "0d000000 10000000 00000000 01020000";
    golden(&Record::Drain(drain), |buf| drain.encode(buf), bytes, true);
}

#[test]
fn open_accept_reject() {
    let portal = PortalName::new(b"kv").unwrap();
    let open = Open {
        channel: 7,
        moves: Seq::new(2),
        window: window(),
        portal,
        data: b"xyz",
    };
    let bytes =
        format!("04000000 2d000000 07000000 02000000 {WINDOW} 0300 02 00000000000000 6b76 78797a");
    golden(&Record::Open(open), |buf| open.encode(buf), &bytes, true);
    let at = |i: usize, byte: u8| {
        let mut bytes = hex(&bytes);
        bytes[i] = byte;
        record(&frame_of(&bytes)).map(|_| ()).unwrap_err()
    };
    assert_eq!(at(40, b' '), WireError::PortalName);
    assert_eq!(at(32, 0), WireError::PortalName);
    assert_eq!(at(31, 2), WireError::PrivateData(0x203));
    assert_eq!(at(17, 0), WireError::Window(WindowError::Messages(0)));
    assert_eq!(
        at(19, 1),
        WireError::Window(WindowError::Messages(0x0100_1000))
    );
    assert_eq!(at(22, 1), WireError::Window(WindowError::Bytes(0x1_0000)));
    assert_eq!(
        at(24, 1),
        WireError::Window(WindowError::MaxMessage(0x1_0001))
    );
    assert_eq!(at(29, 0x11), WireError::Window(WindowError::Calls(0x1102)));

    let accept = Accept {
        channel: 7,
        moves: Seq::new(2),
        window: window(),
        data: b"xyz",
    };
    let bytes =
        format!("05000000 2b000000 07000000 02000000 {WINDOW} 0300 0000000000000000 78797a");
    golden(
        &Record::Accept(accept),
        |buf| accept.encode(buf),
        &bytes,
        true,
    );
    let reject = Reject {
        channel: 7,
        moves: Seq::new(2),
        reason: Errno::EACCES,
        data: b"xyz",
    };
    let bytes = "06000000 1b000000 07000000 02000000 0d00 0300 00000000 78797a";
    golden(
        &Record::Reject(reject),
        |buf| reject.encode(buf),
        bytes,
        true,
    );
    let mut none = hex(bytes);
    none[16] = 0;
    assert_eq!(record(&frame_of(&none)), Err(WireError::Reason));
    // What user space does not have is EIO on both sides.
    let mut buf = [0; 64];
    let internal = Reject {
        reason: Errno::ERESTARTSYS,
        ..reject
    };
    internal.encode(&mut buf).unwrap();
    assert_eq!(buf[16..18], [5, 0]);
    let too_much = [0; MAX_PRIVATE_DATA + 1];
    let mut buf = [0; 1024];
    assert_eq!(
        Reject {
            data: &too_much,
            ..reject
        }
        .encode(&mut buf),
        None
    );
    assert_eq!(
        Accept {
            data: &too_much,
            ..accept
        }
        .encode(&mut buf),
        None
    );
    assert_eq!(
        Open {
            data: &too_much,
            ..open
        }
        .encode(&mut buf),
        None
    );
}

#[test]
fn the_longest_records_fit_the_smallest_frame() {
    let mut buf = [0; MIN_FRAME as usize];
    let name = [b'a'; MAX_PORTAL_NAME];
    let open = Open {
        channel: 1,
        moves: Seq::new(0),
        window: window(),
        portal: PortalName::new(&name).unwrap(),
        data: &[0; MAX_PRIVATE_DATA],
    };
    let mut frame = FrameWriter::new(&mut buf, Seq::new(0)).unwrap();
    assert_eq!(frame.record(|buf| open.encode(buf)), Some(()));
    assert_eq!(frame.finish(), FRAME_HDR_LEN + MAX_OPEN_LEN);
    let mut frame = FrameWriter::new(&mut buf, Seq::new(0)).unwrap();
    assert_eq!(
        frame.record(|buf| Live::encode(buf, true, 1, &[1; MAX_ATTEMPTS])),
        Some(())
    );
}

#[test]
fn names() {
    for name in [&b"a"[..], b"kv.v2", b"a-b_c:d@e+f", &[b'x'; 64]] {
        assert_eq!(PortalName::new(name).unwrap().as_str().as_bytes(), name);
    }
    for name in [
        &b""[..],
        b"-a",
        b".a",
        b"a/b",
        b"a b",
        b"\xc3\xa4",
        b"a\0",
        &[b'x'; 65],
    ] {
        assert_eq!(PortalName::new(name), Err(WireError::PortalName));
    }
}

#[test]
fn redirect() {
    let v6 = [0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let gid = [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let addresses = [
        Address::V4([10, 0, 1, 1], 1234),
        Address::V6(v6, 0x0201),
        Address::Gid(gid, 1234),
    ];
    let bytes = hex("07000000 54000000 07000000 02000000 0300 000000000000 \
         0100d204 0a000101 000000000000000000000000 \
         02000102 fd000000000000000000000000000001 \
         0300d204 fe800000000000000000000000000002");
    let mut buf = [0; 128];
    assert_eq!(
        Redirect::encode(&mut buf, 7, Seq::new(2), &addresses),
        Some(bytes.len())
    );
    assert_eq!(buf[..bytes.len()], bytes[..]);
    let frame = frame_of(&bytes);
    let Ok(Record::Redirect(got)) = record(&frame) else {
        panic!();
    };
    assert_eq!((got.channel, got.moves), (7, Seq::new(2)));
    assert!(got.addresses().eq(addresses));
    assert_eq!(Redirect::encode(&mut buf, 7, Seq::new(2), &[]), None);
    assert_eq!(
        Redirect::encode(&mut buf, 7, Seq::new(2), &[addresses[0]; 9]),
        None
    );
    let at = |i: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[i] = byte;
        record(&frame_of(&bytes)).map(|_| ()).unwrap_err()
    };
    assert_eq!(at(16, 0), WireError::Addresses(0));
    assert_eq!(at(16, 9), WireError::Addresses(9));
    assert_eq!(at(16, 2), WireError::Long { ty: 7 });
    assert_eq!(at(16, 4), WireError::Short { ty: 7 });
    for (i, byte) in [
        (24, 0),
        (24, 4),
        (28, 0),
        (28, 224),
        (39, 1),
        (48, 0xFF),
        (68, 0xFF),
    ] {
        assert_eq!(at(i, byte), WireError::Address, "{i}");
    }
    let mut port = bytes.clone();
    port[26..28].fill(0);
    assert_eq!(record(&frame_of(&port)), Err(WireError::Address));
}

#[test]
fn resume_and_live() {
    let entry = ResumeEntry {
        channel: 7,
        moves: Seq::new(2),
        gone: false,
        ended: false,
        ack: ack(),
    };
    let other = ResumeEntry {
        channel: 8,
        gone: true,
        ..entry
    };
    let ended = ResumeEntry {
        channel: 9,
        ended: true,
        ..entry
    };
    let entries = format!(
        "07000000 02000000 00000000 00000000 {ACK} 08000000 02000000 01000000 00000000 {ACK}"
    );
    for (ty, answer) in [("0a", false), ("0b", true)] {
        let bytes = hex(&format!("{ty}000000 50000000 00000000 00000000 {entries}"));
        let mut buf = [0; 120];
        let list = [entry, other, entry, other].into_iter();
        // Only three fit.
        let (len, count) = match answer {
            false => Resume::encode(&mut buf, list.clone()),
            true => Resume::encode_answer(&mut buf, list.clone()),
        }
        .unwrap();
        assert_eq!((len, count), (112, 3));
        let (len, _) = match answer {
            false => Resume::encode(&mut buf, list.take(2)),
            true => Resume::encode_answer(&mut buf, list.take(2)),
        }
        .unwrap();
        assert_eq!(buf[..len], bytes[..]);
        let frame = frame_of(&bytes);
        let resume = match record(&frame) {
            Ok(Record::Resume(resume)) if !answer => resume,
            Ok(Record::Resumed(resume)) if answer => resume,
            other => panic!("{other:?}"),
        };
        assert!(resume.entries().eq([entry, other]));
        for len in 16..bytes.len() {
            let mut short = bytes[..len].to_vec();
            short[4] = len as u8;
            assert_eq!(record(&frame_of(&short)).is_ok(), len == 48);
        }
        for (i, byte, error) in [
            (16, 0, WireError::Channel(0)),
            (
                56,
                4,
                WireError::Flags {
                    ty: bytes[0],
                    flags: 4,
                },
            ),
            (68, 2, WireError::Taken),
        ] {
            let mut wrong = bytes.clone();
            wrong[i] = byte;
            assert_eq!(record(&frame_of(&wrong)), Err(error));
        }
    }
    // One entry, as on the page.
    let one = |ty: &str, entry: ResumeEntry, fields: &str| {
        let mut buf = [0; 48];
        let list = [entry].into_iter();
        let encoded = match ty {
            "0a" => Resume::encode(&mut buf, list),
            _ => Resume::encode_answer(&mut buf, list),
        };
        assert_eq!(encoded, Some((48, 1)));
        assert_eq!(
            buf[..],
            hex(&format!(
                "{ty}000000 30000000 00000000 00000000 {fields} {ACK}"
            ))[..]
        );
    };
    one("0a", entry, "07000000 02000000 00000000 00000000");
    one("0b", other, "08000000 02000000 01000000 00000000");
    one("0a", ended, "09000000 02000000 02000000 00000000");
    assert_eq!(Resume::encode(&mut [0; 47], [entry].into_iter()), None);
    assert_eq!(Resume::encode(&mut [0; 48], [].into_iter()), None);

    let bytes = hex("0c010000 18000000 00000000 02010000 05000000 01010000");
    let mut buf = [0; 32];
    assert_eq!(Live::encode(&mut buf, true, 0x102, &[5, 0x101]), Some(24));
    assert_eq!(buf[..24], bytes[..]);
    let frame = frame_of(&bytes);
    let Ok(Record::Live(live)) = record(&frame) else {
        panic!();
    };
    assert!(live.ends && live.newest == 0x102 && live.epochs().eq([5, 0x101]));
    let lost: Vec<_> = [4, 5, 6, 0x101, 0x102, 0x103]
        .map(|epoch| live.has_lost(epoch))
        .into();
    assert_eq!(lost, [true, false, true, false, true, false]);
    for len in [16usize, 17, 19, 22, 23] {
        let mut short = bytes[..len].to_vec();
        short[4] = len as u8;
        assert!(matches!(
            record(&frame_of(&short)),
            Err(WireError::Attempts(_))
        ));
    }
    assert_eq!(
        Live::encode(&mut [0; 1024], false, 1, &[1; MAX_ATTEMPTS + 1]),
        None
    );
    assert_eq!(Live::encode(&mut buf, false, 1, &[]), None);
}

#[test]
fn frames() {
    assert_eq!(Records::parse(&[]).unwrap_err(), WireError::Frame);
    assert_eq!(
        Records::parse(&hex("01000000 040302")).unwrap_err(),
        WireError::Frame
    );
    assert_eq!(
        Records::parse(&hex("02000000 04030201")).unwrap_err(),
        WireError::Format(2)
    );
    // Credits alone.
    let credits = hex("01000000 04030201");
    let (limit, mut records) = Records::parse(&credits).unwrap();
    assert_eq!((limit, records.next()), (Seq::new(0x0102_0304), None));
    // Two records, the first one with padding, the last one without.
    let mut buf = [0xEE; 200];
    let reject = Reject {
        channel: 7,
        moves: Seq::new(0),
        reason: Errno::EACCES,
        data: b"xyz",
    };
    let closed = Closed { channel: 9 };
    let mut frame = FrameWriter::new(&mut buf, Seq::new(5)).unwrap();
    let room = frame.room();
    assert_eq!(frame.record(|buf| closed.encode(buf)), Some(()));
    assert_eq!(frame.room(), room - 16);
    assert_eq!(frame.record(|buf| reject.encode(buf)), Some(()));
    assert_eq!(frame.room(), room - 16 - 32);
    assert_eq!(frame.record(|_| None), None);
    assert_eq!(frame.record(|buf| closed.encode(buf)), Some(()));
    assert_eq!(frame.record(|buf| reject.encode(buf)), Some(()));
    let len = frame.finish();
    assert_eq!(len, 8 + 16 + 32 + 16 + 27);
    let records: Vec<_> = Records::parse(&buf[..len])
        .unwrap()
        .1
        .map(Result::unwrap)
        .collect();
    let (reject, closed) = (Record::Reject(reject), Record::Closed(closed));
    assert_eq!(records, [closed, reject, closed, reject]);
    assert_eq!(buf[8 + 16 + 27..8 + 16 + 32], [0; 5]);
    // Nothing is read behind an error.
    buf[8 + 16] = 99;
    let mut records = Records::parse(&buf[..len]).unwrap().1;
    assert_eq!(records.next(), Some(Ok(closed)));
    assert_eq!(records.next(), Some(Err(WireError::Type(99))));
    assert_eq!(records.next(), None);
    // A length of less than the header, or of more than there is.
    for length in [0u32, 15, 17, u32::MAX] {
        let mut bytes = hex("09000000 10000000 07000000 00000000");
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        assert_eq!(
            record(&frame_of(&bytes)),
            Err(WireError::Length { ty: 9, len: length })
        );
    }
    assert!(FrameWriter::new(&mut [0; 7], Seq::new(0)).is_none());
    let mut small = [0; 9];
    let mut frame = FrameWriter::new(&mut small, Seq::new(0)).unwrap();
    assert_eq!(frame.record(|_| Some(1)), Some(()));
    assert_eq!((frame.room(), frame.record(|_| Some(0))), (0, None));
}

/// What a later version puts into reserved bytes does not make a record another one.
#[test]
fn reserved_bytes_make_no_difference() {
    let entry = ResumeEntry {
        channel: 7,
        moves: Seq::new(2),
        gone: false,
        ended: false,
        ack: ack(),
    };
    let mut buf = [0; 512];
    let (len, _) = Resume::encode(&mut buf, [entry].into_iter()).unwrap();
    let resume = frame_of(&buf[..len]);
    let addresses = [Address::V4([10, 0, 1, 1], 1234)];
    let len = Redirect::encode(&mut buf, 7, Seq::new(2), &addresses).unwrap();
    let redirect = frame_of(&buf[..len]);
    // In the entry behind the flags; behind the number of addresses, and behind the family of one.
    for (frame, places) in [(resume, &[36, 39][..]), (redirect, &[26, 31, 33][..])] {
        let mut marked = frame.clone();
        for at in places {
            marked[*at] = 0xA5;
        }
        assert_eq!(record(&marked), record(&frame));
        marked[16] ^= 1;
        assert_ne!(record(&marked), record(&frame), "another channel");
    }
}
