// SPDX-License-Identifier: GPL-2.0

//! Golden bytes and refusals of messages and request headers.

use ibtrs_proto::consts::*;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::imm::{Answer, Imm, LayoutError};
use ibtrs_proto::layout;
use ibtrs_proto::msg::*;
use ibtrs_proto::name::{NameError, SessionName};
use ibtrs_proto::tag::Tag;

fn name(s: &str) -> SessionName<'_> {
    SessionName::new(s.as_bytes()).unwrap()
}

#[test]
fn info_req_golden() {
    let b = InfoReq { name: name("blya") }.encode();
    assert_eq!(b.len(), 272);
    assert_eq!(b[..7], *b"\0\0blya\0");
    assert!(b[6..].iter().all(|&x| x == 0));
    assert_eq!(InfoReq::decode(&b).unwrap().name.as_str(), "blya");
    assert_eq!(InfoReq::decode(&b[..271]), Err(MsgError::Short));
    assert_eq!(InfoReq::decode(&[]), Err(MsgError::Short));
    let mut wrong = b;
    wrong[0] = 1;
    assert_eq!(InfoReq::decode(&wrong), Err(MsgError::Type(1)));
    let mut junk = b;
    junk[7..].fill(0xAA);
    assert_eq!(InfoReq::decode(&junk).unwrap().name.as_str(), "blya");
    // The longest name, and one without its NUL.
    let long = "x".repeat(254);
    let mut b = InfoReq { name: name(&long) }.encode();
    assert_eq!(InfoReq::decode(&b).unwrap().name.as_str(), long);
    b[256] = b'x';
    assert_eq!(InfoReq::decode(&b), Err(MsgError::Name(NameError::NoNul)));
    for (text, e) in [
        (&b"\0"[..], NameError::Empty),
        (b"a/b\0", NameError::SlashOrDot),
        (b"a.b\0", NameError::SlashOrDot),
        (b"a\nb\0", NameError::NotPrintable),
        (b"\xFFb\0", NameError::NotUtf8),
    ] {
        let mut b = [0; 272];
        b[2..2 + text.len()].copy_from_slice(text);
        assert_eq!(InfoReq::decode(&b), Err(MsgError::Name(e)));
    }
}

fn desc(addr: u64, key: u32, len: u32) -> SgDesc {
    SgDesc { addr, key, len }
}

#[test]
fn info_rsp_golden() {
    let mut buf = [0xEE; 64];
    let descs = [desc(0x1122_3344_5566_7788, 0x0A0B_0C0D, 8192 * 3)];
    let n = InfoRsp::write(&mut buf, descs).unwrap();
    assert_eq!(n, info_rsp_len(1));
    assert_eq!(buf[..8], [1, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(
        buf[8..24],
        [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x0D, 0x0C, 0x0B, 0x0A, 0, 0x60, 0, 0]
    );
    assert!(buf[24..].iter().all(|&x| x == 0xEE));
    let rsp = InfoRsp::parse(&buf, 3, 8192).unwrap();
    let chunks: Vec<_> = rsp.chunks().collect();
    assert_eq!(chunks.len(), 3);
    for (i, c) in chunks.iter().enumerate() {
        assert_eq!(c.addr, 0x1122_3344_5566_7788 + 8192 * i as u64);
        assert_eq!(c.rkey, 0x0A0B_0C0D);
    }
}

#[test]
fn info_rsp_refusals() {
    let parse = |descs: &[SgDesc], qd, chunk| {
        let mut buf = [0; 4096];
        let n = InfoRsp::write(&mut buf, descs.iter().copied()).unwrap();
        for short in 0..n {
            assert!(InfoRsp::parse(&buf[..short], qd, chunk).is_err());
        }
        InfoRsp::parse(&buf[..n], qd, chunk).map(|r| r.chunks().len())
    };
    let c = 8192;
    assert_eq!(parse(&[desc(0, 1, c), desc(c.into(), 2, c)], 2, c), Ok(2));
    // Unequal runs are fine as long as they are whole chunks.
    assert_eq!(parse(&[desc(0, 1, c), desc(0, 2, 3 * c)], 4, c), Ok(4));
    assert_eq!(parse(&[desc(0, 1, c); 3], 4, c), Err(MsgError::Count(3)));
    assert_eq!(parse(&[desc(0, 1, c); 4], 2, c), Err(MsgError::Count(4)));
    assert_eq!(parse(&[desc(0, 1, 0)], 1, c), Err(MsgError::Desc(0)));
    assert_eq!(parse(&[desc(0, 1, c + 1)], 1, c), Err(MsgError::Desc(0)));
    assert_eq!(
        parse(&[desc(0, 1, c), desc(u64::MAX - 100, 1, c)], 2, c),
        Err(MsgError::Desc(1))
    );
    assert_eq!(parse(&[desc(0, 1, c)], 2, c), Err(MsgError::Coverage));
    assert_eq!(parse(&[desc(0, 1, 3 * c)], 2, c), Err(MsgError::Coverage));
    assert_eq!(
        parse(&[desc(0, 1, c)], 0, c),
        Err(MsgError::Layout(LayoutError::ZeroDepth))
    );
    let mut buf = [0; 24];
    assert!(InfoRsp::write(&mut buf, []).is_err());
    assert!(InfoRsp::write(&mut buf, [desc(0, 0, 1); 2]).is_err());
    assert!(InfoRsp::write(&mut [], [desc(0, 0, 1)]).is_err());
    assert!(InfoRsp::write(&mut buf, (0..).map(|_| desc(0, 0, 1)).take(70_000)).is_err());
    assert_eq!(InfoRsp::write(&mut buf, [desc(0, 0, c)]), Ok(24));
    buf[2..4].fill(0);
    assert!(matches!(
        InfoRsp::parse(&buf, 1, c),
        Err(MsgError::Count(0))
    ));
    buf[0] = 0;
    assert!(matches!(InfoRsp::parse(&buf, 1, c), Err(MsgError::Type(0))));
}

#[test]
fn rkey_rsp() {
    let m = RkeyRsp {
        tag: Tag::new(0x0102),
        rkey: 0x0304_0506,
    };
    assert_eq!(m.encode(), [4, 0, 2, 1, 6, 5, 4, 3]);
    assert_eq!(RkeyRsp::decode(&m.encode()), Ok(m));
    assert_eq!(RkeyRsp::decode_for(&m.encode(), 0x0102, 0x0103), Ok(m));
    assert_eq!(
        RkeyRsp::decode_for(&m.encode(), 0x0102, 0x0102),
        Err(MsgError::BufId(0x0102))
    );
    assert_eq!(
        RkeyRsp::decode_for(&m.encode(), 0x0103, 512),
        Err(MsgError::BufId(0x0102))
    );
    for n in 0..8 {
        assert_eq!(RkeyRsp::decode(&m.encode()[..n]), Err(MsgError::Short));
    }
    assert_eq!(
        RkeyRsp::decode(&[3, 0, 0, 0, 0, 0, 0, 0]),
        Err(MsgError::Type(3))
    );
}

#[test]
fn more_answers_golden() {
    // The example of Documentation/protocol.md.
    let mut example = MoreAnswers::NONE;
    assert!(example.push(Answer { id: 6, errno: 0 }) && example.push(Answer { id: 258, errno: 5 }));
    let mut body = [0; MORE_ANSWERS_LEN];
    assert_eq!(example.encode(&mut body), Some(8));
    assert_eq!(body[..8], [6, 0, 0, 0x60, 2, 1, 0x28, 0x60]);
    let answers = [(6, 0), (0x102, 5), (7, 600)].map(|(id, errno)| Answer { id, errno });
    let mut more = MoreAnswers::NONE;
    assert!(answers.into_iter().all(|answer| more.push(answer)));
    let mut out = [0xEE; MORE_ANSWERS_LEN];
    assert_eq!(more.encode(&mut out), Some(12));
    let bytes = [6, 0, 0, 0x60, 2, 1, 0x28, 0x60, 7, 0, 0x28, 0x60];
    assert_eq!(out[..12], bytes);
    assert_eq!(MoreAnswers::decode(&bytes), Ok(more));
    // An error that does not fit the immediate is EIO.
    let [first, second, third] = answers;
    let third = Answer { errno: 5, ..third };
    assert!(more.iter().eq([first, second, third]));
    assert_eq!(more.encode(&mut [0; 11]), None);
}

#[test]
fn more_answers_are_few_and_nothing_else() {
    let mut more = MoreAnswers::NONE;
    assert!(more.is_empty() && more.iter().next().is_none());
    for id in 0..7 {
        assert!(!more.is_full() && more.push(Answer { id, errno: 0 }));
    }
    assert!(more.is_full() && !more.is_empty());
    assert!(!more.push(Answer { id: 7, errno: 0 }));
    assert!(more.iter().map(|answer| answer.id).eq(0..7));
    let mut bytes = [0; MORE_ANSWERS_LEN + 4];
    assert_eq!(more.encode(&mut bytes), Some(MORE_ANSWERS_LEN));
    for len in 0..=MORE_ANSWERS_LEN {
        let whole = len > 0 && len % 4 == 0;
        assert_eq!(MoreAnswers::decode(&bytes[..len]).is_ok(), whole);
    }
    bytes[MORE_ANSWERS_LEN..].copy_from_slice(&0x6000_0007u32.to_le_bytes());
    assert_eq!(MoreAnswers::decode(&bytes), Err(MsgError::NoRoom));
    for kind in (0..16u32).filter(|kind| *kind != 6) {
        let imm = kind << 28 | 5;
        assert_eq!(
            MoreAnswers::decode(&imm.to_le_bytes()),
            Err(MsgError::Answer(imm))
        );
    }
    assert!(matches!(
        Imm::decode(0xB000_0005),
        Imm::IoRspMore { id: 5, errno: 0 }
    ));
}

#[test]
fn inv_answer_golden() {
    let decode = |bytes: &[u8]| InvAnswer::decode(bytes, true, 512);
    let mut out = [0xEE; INV_ANSWER_LEN];
    let same = InvAnswer {
        answer: Answer { id: 258, errno: 5 },
        rkey: None,
        trailer: Trailer::None,
    };
    assert_eq!(same.encode(&mut out), Some(4));
    assert_eq!(out[..5], [2, 1, 0x28, 0x60, 0xEE]);
    assert_eq!(decode(&out[..4]), Ok(same));
    assert_eq!(InvAnswer::decode(&out[..4], false, 512), Ok(same));
    let other = InvAnswer {
        answer: Answer { id: 258, errno: 0 },
        rkey: Some(0x0304_0506),
        trailer: Trailer::None,
    };
    assert_eq!(other.encode(&mut out), Some(12));
    assert_eq!(out[..12], [2, 1, 0, 0x20, 4, 0, 2, 1, 6, 5, 4, 3]);
    assert_eq!(decode(&out[..12]), Ok(other));
    // An error that does not fit the immediate is EIO.
    let answer = Answer { id: 5, errno: 600 };
    let eio = InvAnswer { answer, ..same };
    assert_eq!(eio.encode(&mut out), Some(4));
    assert_eq!(decode(&out[..4]).unwrap().answer.errno, 5);
    // Values that do not fit.
    for len in 0..12 {
        assert_eq!(other.encode(&mut out[..len]), None);
        assert_eq!(same.encode(&mut out[..len]).is_some(), len >= 4);
    }
    let beyond = Answer {
        id: 1 << 16,
        errno: 0,
    };
    let rkey = Some(1);
    assert_eq!(
        InvAnswer {
            answer: beyond,
            rkey,
            trailer: Trailer::None
        }
        .encode(&mut out),
        None
    );
}

#[test]
fn inv_answer_is_exact() {
    let decode = |bytes: &[u8]| InvAnswer::decode(bytes, true, 512);
    let with_key = [
        2, 1, 0, 0x20, 4, 0, 2, 1, 6, 5, 4, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    for len in 0..with_key.len() {
        let valid = [12, 16, 20].contains(&len);
        assert_eq!(decode(&with_key[..len]).is_ok(), valid, "{len} bytes");
        let without = InvAnswer::decode(&with_key[..len], false, 512);
        assert!(without.is_err(), "a key in a session without");
    }
    let mut same = with_key;
    same[3] = 0x60;
    for len in 0..same.len() {
        let valid = [4, 8, 12].contains(&len);
        assert_eq!(decode(&same[..len]).is_ok(), valid, "{len} bytes");
    }
    for kind in 0..16u8 {
        let mut bytes = with_key;
        bytes[3] = kind << 4;
        assert_eq!(decode(&bytes[..4]).is_ok(), kind == 6);
        assert_eq!(decode(&bytes[..8]).is_ok(), kind == 6);
        assert_eq!(decode(&bytes[..12]).is_ok(), [2, 6].contains(&kind));
        assert_eq!(decode(&bytes[..16]).is_ok(), kind == 2);
    }
    // The key of another chunk, of one that does not exist, and what is no key.
    let other = |at: usize, value: u8| {
        let mut bytes = with_key;
        bytes[at] = value;
        decode(&bytes[..12])
    };
    assert_eq!(other(6, 3), Err(MsgError::BufId(259)));
    assert_eq!(other(4, 5), Err(MsgError::Type(5)));
    let beyond = InvAnswer::decode(&with_key[..12], true, 258);
    assert_eq!(beyond, Err(MsgError::BufId(258)));
}

#[test]
fn trailers_golden() {
    let trailer_of = |bytes: &[u8]| InvAnswer::decode(bytes, true, 512).map(|a| a.trailer);
    let mut out = [0xEE; INV_ANSWER_LEN];
    let same = InvAnswer {
        answer: Answer { id: 258, errno: 0 },
        rkey: None,
        trailer: Trailer::One(0x1413_1211),
    };
    assert_eq!(same.encode(&mut out), Some(8));
    assert_eq!(
        out[..9],
        [2, 1, 0, 0x60, 0x11, 0x12, 0x13, 0x14, 0xEE],
        "behind the answer"
    );
    assert_eq!(InvAnswer::decode(&out[..8], false, 512), Ok(same));
    assert_eq!(trailer_of(&out[..4]), Ok(Trailer::None));
    let both = InvAnswer {
        trailer: Trailer::Two(0x1413_1211, 0x2423_2221),
        ..same
    };
    assert_eq!(both.encode(&mut out), Some(12));
    assert_eq!(
        out[4..13],
        [0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0xEE]
    );
    assert_eq!(InvAnswer::decode(&out[..12], false, 512), Ok(both));
    let other = InvAnswer {
        rkey: Some(0x0304_0506),
        ..both
    };
    assert_eq!(other.encode(&mut out), Some(20));
    let want = [
        2, 1, 0, 0x20, 4, 0, 2, 1, 6, 5, 4, 3, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24,
    ];
    assert_eq!(out, want, "behind the key");
    assert_eq!(InvAnswer::decode(&out, true, 512), Ok(other));
    assert_eq!(trailer_of(&out[..16]), Ok(Trailer::One(0x1413_1211)));
    assert_eq!(trailer_of(&out[..12]), Ok(Trailer::None));
    for len in 0..INV_ANSWER_LEN {
        assert_eq!(other.encode(&mut out[..len]), None);
    }

    let key = RkeyRsp {
        tag: Tag::new(258),
        rkey: 0x0304_0506,
    };
    let (upper, times) = (0x1413_1211, 0x2423_2221);
    let numbers = [0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24];
    for (trailer, want) in [
        (Trailer::None, &numbers[..0]),
        (Trailer::One(upper), &numbers[..4]),
        (Trailer::Two(upper, times), &numbers[..]),
    ] {
        for key in [None, Some(key)] {
            let start = key.map_or(Vec::new(), |key| key.encode().to_vec());
            let want = [&start, want].concat();
            let body = AnswerBody { key, trailer };
            let mut out = [0xEE; MORE_ANSWERS_LEN];
            assert_eq!(body.encode(&mut out), Some(want.len()));
            assert_eq!(out[..want.len()], *want);
            assert_eq!(Trailer::decode(&want[start.len()..]), trailer);
            for len in 0..want.len() {
                assert_eq!(body.encode(&mut out[..len]), None);
            }
        }
    }
    for len in (0..20).filter(|len| ![4, 8].contains(len)) {
        assert_eq!(Trailer::decode(&[1; 20][..len]), Trailer::None, "{len}");
    }
}

/// Which number is which depends on what the request has asked for.
#[test]
fn parts_of_trailers() {
    for (trailer, plain, timed) in [
        (Trailer::None, (None, None), (None, None)),
        (Trailer::One(1), (Some(1), None), (None, Some(1))),
        // Nobody has asked for the second number.
        (Trailer::Two(1, 2), (None, None), (Some(1), Some(2))),
    ] {
        assert_eq!(trailer.parts(false), plain);
        assert_eq!(trailer.parts(true), timed);
    }
    for (upper, times) in [
        (None, None),
        (Some(1), None),
        (None, Some(2)),
        (Some(1), Some(2)),
    ] {
        let trailer = Trailer::new(upper, times);
        assert_eq!(trailer.parts(times.is_some()), (upper, times));
    }
}

#[test]
fn times_golden() {
    let times = |queue_ns, disk_ns| ServerTimes { queue_ns, disk_ns };
    for (measured, number, read) in [
        (times(0, 0), 0, times(0, 0)),
        (times(1, 2047), 0x07FF_0001, times(1, 2047)),
        (times(2048, 2049), 0x0C00_0C00, times(2048, 2048)),
        (times(4095, 4096), 0x1400_0FFF, times(4094, 4096)),
        // 150 us, and 5 ms.
        (
            times(150_000, 5_000_000),
            0x64C4_3C93,
            times(149_888, 4_997_120),
        ),
        (
            times(MAX_SENT_NS, u64::MAX),
            0xFFFF_FFFF,
            times(MAX_SENT_NS, MAX_SENT_NS),
        ),
    ] {
        assert_eq!(measured.encode(), number, "{measured:?}");
        assert_eq!(ServerTimes::decode(number), read);
    }
    assert_eq!(MAX_SENT_NS / 1_000_000_000 / 60, 73);
}

#[test]
fn request_headers_golden() {
    let parse = |bytes: &[u8]| RequestHdr::parse(bytes, true);
    let mut w = WriteHdr {
        usr_len: 0x0120,
        timed: false,
    };
    assert_eq!(w.encode(), [2, 0, 0x20, 1]);
    w.timed = true;
    assert_eq!(w.encode(), [2, 0x80, 0x20, 1]);
    assert_eq!(parse(&w.encode()), Ok(RequestHdr::Write(w)));
    let refused = RequestHdr::parse(&w.encode(), false);
    assert_eq!(refused, Err(RequestError::Type(0x8002)));
    let mut buf = [0xEE; 32];
    let mut h = ReadHdr {
        usr_len: 32,
        need_inval: true,
        timed: false,
        desc: Some(desc(0x0102_0304_0506_0708, 0x1112_1314, 0x2000)),
    };
    assert_eq!(h.encode(&mut buf), Some(24));
    assert_eq!(buf[..8], [3, 0, 32, 0, 1, 0, 1, 0]);
    assert_eq!(buf[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(buf[16..25], [0x14, 0x13, 0x12, 0x11, 0, 0x20, 0, 0, 0xEE]);
    assert_eq!(parse(&buf), Ok(RequestHdr::Read(h)));
    assert_eq!(h.encode(&mut buf[..23]), None);
    h.timed = true;
    assert_eq!(h.encode(&mut buf), Some(24));
    assert_eq!(buf[..8], [3, 0x80, 32, 0, 1, 0, 1, 0]);
    assert_eq!(parse(&buf), Ok(RequestHdr::Read(h)));
    let refused = RequestHdr::parse(&buf, false);
    assert_eq!(refused, Err(RequestError::Type(0x8003)));
    h.timed = false;
    // Without descriptor there is nothing to invalidate.
    h.desc = None;
    assert_eq!(h.encode(&mut buf), Some(8));
    assert_eq!(buf[..8], [3, 0, 32, 0, 0, 0, 0, 0]);
    buf[4] = 0xFF;
    h.need_inval = false;
    assert_eq!(parse(&buf[..8]), Ok(RequestHdr::Read(h)));
    buf[6] = 2;
    assert_eq!(parse(&buf), Err(RequestError::SgCount(2)));
    buf[6] = 1;
    for n in 0..24 {
        assert_eq!(parse(&buf[..n]), Err(RequestError::Short));
    }
    for kind in [0u8, 1, 4, 5, 13, 255] {
        buf[0] = kind;
        assert_eq!(parse(&buf), Err(RequestError::Type(kind.into())));
        // Only requests may ask for times.
        buf[1] = 0x80;
        assert_eq!(
            parse(&buf),
            Err(RequestError::Type(u16::from(kind) | 0x8000))
        );
        buf[1] = 0;
    }
}

/// The placements behind the golden immediates of Documentation/protocol.md, "Immediates".
#[test]
fn placements_of_the_protocol() {
    let p = |a, b, c| {
        Ok(layout::Placement {
            offset_of_first_byte: a,
            imm_offset: b,
            total_len: c,
        })
    };
    assert_eq!(layout::write(4096, 32, 131_072, 4096), p(0, 4128, 4132));
    assert_eq!(layout::read(4096, 32, 131_072, 4096), p(4096, 4128, 56));
    assert_eq!(layout::read(56, 264, 131_072, 4096), p(56, 320, 288));
    assert_eq!(layout::read(36, 36, 131_072, 4096), p(36, 72, 60));
    assert_eq!(layout::write(0, 8, 131_072, 4096), p(0, 8, 12));
    assert_eq!(layout::read(0, 32, 131_072, 4096), p(0, 32, 40));
}

#[test]
fn placement_limits() {
    use layout::PlacementError::*;
    let (c, h) = (8192, 4096);
    assert!(layout::write(c - 36, 32, c, h).is_ok());
    assert_eq!(layout::write(c - 35, 32, c, h), Err(ChunkTooSmall));
    assert!(layout::read(c - 56, 32, c, h).is_ok());
    assert_eq!(layout::read(c - 55, 32, c, h), Err(ChunkTooSmall));
    assert_eq!(layout::write(u32::MAX, 32, c, h), Err(ChunkTooSmall));
    assert!(layout::write(0, 4092, c, h).is_ok());
    assert_eq!(layout::write(0, 4093, c, h), Err(HeaderTooLong));
    assert!(layout::read(1, 4072, c, h).is_ok());
    assert_eq!(layout::read(1, 4073, c, h), Err(HeaderTooLong));
    assert!(layout::read(0, 4088, c, h).is_ok());
}

#[test]
fn server_requests() {
    let read = |usr_len, d: Option<SgDesc>| {
        RequestHdr::Read(ReadHdr {
            usr_len,
            need_inval: true,
            timed: false,
            desc: d,
        })
    };
    let parse = |h: &RequestHdr, off| ServerRequest::parse(h, off, Bounds::Chunk(8192));
    let w = RequestHdr::Write(WriteHdr {
        usr_len: 32,
        timed: false,
    });
    let r = parse(&w, 4128).unwrap();
    assert_eq!((r.data_len, r.usr_len, r.return_len()), (4096, 32, 0));
    assert_eq!((r.direction, r.need_inval), (Direction::Write, false));
    assert!(!r.timed);
    let timed = RequestHdr::Write(WriteHdr {
        usr_len: 32,
        timed: true,
    });
    assert!(parse(&timed, 4128).unwrap().timed);
    assert_eq!(parse(&w, 32).unwrap().data_len, 0);
    assert_eq!(parse(&w, 31), Err(RequestError::UserLen(32)));
    assert!(parse(&w, 8188).is_ok());
    assert_eq!(parse(&w, 8189), Err(RequestError::Short));
    assert_eq!(parse(&w, u32::MAX), Err(RequestError::Short));

    let d = |len| Some(desc(0x1000, 7, len));
    let r = parse(&read(32, d(4096)), 4128).unwrap();
    assert_eq!(
        (r.data_len, r.return_len(), r.need_inval),
        (4096, 4096, true)
    );
    // Hazard 5: never more than the data, never nothing.
    assert_eq!(
        parse(&read(32, d(4097)), 4128),
        Err(RequestError::DescLen(4097))
    );
    assert_eq!(parse(&read(32, d(0)), 4128), Err(RequestError::DescLen(0)));
    assert_eq!(parse(&read(32, d(1)), 32), Err(RequestError::DescLen(1)));
    assert!(parse(&read(32, d(1)), 4128).is_ok());
    assert!(parse(&read(32, d(1)), 8168).is_ok());
    assert_eq!(parse(&read(32, d(1)), 8169), Err(RequestError::Short));
    let over = Some(desc(u64::MAX - 4094, 7, 4096));
    assert_eq!(
        parse(&read(32, over), 4128),
        Err(RequestError::DescAddr(u64::MAX - 4094))
    );
    let r = parse(&read(32, None), 32).unwrap();
    assert_eq!((r.data_len, r.return_len(), r.need_inval), (0, 0, false));
    assert_eq!(parse(&read(32, None), 33), Err(RequestError::NoDesc));
    // Headers stay inside the space for headers.
    let w = RequestHdr::Write(WriteHdr {
        usr_len: 4093,
        timed: false,
    });
    assert_eq!(parse(&w, 8000), Err(RequestError::HeaderSize(4093)));
    let w = RequestHdr::Write(WriteHdr {
        usr_len: 4092,
        timed: false,
    });
    assert!(parse(&w, 8000).is_ok());
    assert_eq!(RequestError::HeaderSize(1).errno(), Errno::EMSGSIZE);
    assert_eq!(RequestError::UserLen(1).errno(), Errno::EINVAL);
}
