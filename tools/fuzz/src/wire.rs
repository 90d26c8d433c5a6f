// SPDX-License-Identifier: GPL-2.0

//! Decoders of messages from a peer. A decoded message encodes to the same bytes.

use ibnbd_proto::checksum::{self, examine, Arrived, Intact};
use ibnbd_proto::io_check::{self, Device};
use ibnbd_proto::msg::{
    Details, DiscoverPage, DiscoverRsp, IoHdr, OpenRsp, SessInfoRsp, UserMsg, DISCOVER_RSP_LEN,
    IO_HDR_LEN, MAX_PORTALS, OPEN_RSP_LEN,
};
use ibtrs_proto::handshake::{reject_decode, ConnReq, ConnRsp};
use ibtrs_proto::imm::Imm;
use ibtrs_proto::imm_check::ImmTerms;
use ibtrs_proto::msg::{
    AnswerBody, Bounds, Direction, InfoReq, InfoRsp, InvAnswer, MoreAnswers, RequestHdr, RkeyRsp,
    ServerRequest, Trailer, INV_ANSWER_LEN, MAX_TRAILER_LEN, MORE_ANSWERS_LEN, USUAL_USER_HDR,
};

/// The first `N` bytes, and the others; zeros where there are none.
pub(crate) fn head<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    let n = bytes.len().min(N);
    let mut head = [0; N];
    head[..n].copy_from_slice(&bytes[..n]);
    (head, &bytes[n..])
}

pub(crate) fn handshake(bytes: &[u8]) {
    if let Ok(req) = ConnReq::decode(bytes) {
        assert_eq!(ConnReq::decode(&req.encode()), Ok(req));
        assert!(req.cid < req.cid_num);
    }
    if let Ok(rsp) = ConnRsp::decode(bytes) {
        assert_eq!(ConnRsp::decode(&rsp.encode()), Ok(rsp));
        assert!(rsp.layout().is_ok());
    }
    assert!((1..=4095).contains(&reject_decode(bytes).0));
}

pub(crate) fn messages(bytes: &[u8]) {
    let ([a, b, c, d], rest) = head(bytes);
    let depth = u16::from_le_bytes([a, b]);
    let chunk = u32::from(c) << (d % 24);
    if let Ok(req) = InfoReq::decode(rest) {
        assert_eq!(InfoReq::decode(&req.encode()), Ok(req));
    }
    if let Ok(rsp) = InfoRsp::parse(rest, depth, chunk) {
        assert_eq!(rsp.chunks().count(), usize::from(depth));
    }
    if let Ok(rsp) = RkeyRsp::decode(rest) {
        assert_eq!(RkeyRsp::decode(&rsp.encode()), Ok(rsp));
    }
    let _ = RkeyRsp::decode_for(rest, chunk, depth);
    for new_rkey in [false, true] {
        if let Ok(message) = InvAnswer::decode(rest, new_rkey, depth) {
            let mut again = [0; INV_ANSWER_LEN];
            assert_eq!(message.encode(&mut again), Some(rest.len()));
            assert_eq!(&again[..rest.len()], rest);
            assert!(new_rkey || message.rkey.is_none());
        }
    }
    answer_body(rest);
    if let Ok(more) = MoreAnswers::decode(rest) {
        let mut again = [0; MORE_ANSWERS_LEN];
        assert_eq!(more.encode(&mut again), Some(rest.len()));
        assert_eq!(&again[..rest.len()], rest);
    }
}

/// Bodies of answers, with a key and without: four or eight bytes at the end are a trailer, anything
/// else is none.
fn answer_body(bytes: &[u8]) {
    let key = RkeyRsp::decode(bytes).ok();
    let key_len = key.map_or(0, |key| key.encode().len());
    let trailer = Trailer::decode(&bytes[key_len..]);
    let trailer_len = match bytes.len() - key_len {
        len @ (4 | MAX_TRAILER_LEN) => len,
        _ => 0,
    };
    let mut again = [0xEE; 16];
    let len = AnswerBody { key, trailer }.encode(&mut again);
    let len = len.expect("room for the longest body");
    assert_eq!(len, key_len + trailer_len);
    assert_eq!(&again[..len], &bytes[..len]);
}

pub(crate) fn requests(bytes: &[u8]) {
    let (numbers, rest) = head::<8>(bytes);
    let [a, b, c, d, e, f, g, h] = numbers;
    let offset = u32::from_le_bytes([a, b, c, d]);
    let chunk = u32::from_le_bytes([e, f, g, h]) % (1 << 25);
    usual_capsule(rest, u32::from(h) << 5, chunk);
    let Ok(hdr) = RequestHdr::parse(rest, true) else {
        return;
    };
    // Without the right to ask for times the request is refused, and nothing else changes.
    assert_eq!(RequestHdr::parse(rest, false).is_err(), hdr.timed());
    let slot = Bounds::Slot {
        bytes: chunk,
        max_io: offset.rotate_left(7),
    };
    let whole = Bounds::Chunk(chunk);
    let capsule = |bounds: Bounds| bounds.capsule(u32::from(f), u32::from(e) << 4);
    for bounds in [whole, slot, capsule(whole), capsule(slot)] {
        let Ok(req) = ServerRequest::parse(&hdr, offset, bounds) else {
            continue;
        };
        let end = u64::from(req.usr_at) + u64::from(req.usr_len) + hdr.wire_len() as u64;
        assert!(end <= u64::from(bounds.bytes()));
        assert!(req.return_len() <= req.data_len);
        assert_eq!(req.sink().is_some(), req.return_len() > 0);
        assert_eq!(req.desc, req.sink().or(req.source()));
        match (req.desc, bounds) {
            (None, Bounds::Capsule { data, .. }) => assert_eq!(req.data_len, data),
            (None, _) => assert_eq!(req.data_len, req.usr_at),
            (Some(_), _) => {}
        }
    }
}

/// What is taken for a usual capsule is what any capsule is parsed to.
fn usual_capsule(bytes: &[u8], data: u32, max_io: u32) {
    let bounds = Bounds::Slot {
        bytes: max_io,
        max_io,
    };
    let Some(usual) = ServerRequest::usual(bytes, USUAL_USER_HDR as u32, data, bounds) else {
        return;
    };
    let hdr = bytes.get(USUAL_USER_HDR..).unwrap_or_default();
    let parsed = RequestHdr::parse(hdr, true).map(|hdr| {
        ServerRequest::parse(
            &hdr,
            USUAL_USER_HDR as u32,
            bounds.capsule(bytes.len() as u32, data),
        )
    });
    assert_eq!(parsed, Ok(Ok(usual)));
}

pub(crate) fn immediates(bytes: &[u8]) {
    let (raw, rest) = head::<4>(bytes);
    let imm = Imm::decode(u32::from_le_bytes(raw));
    assert_eq!(Imm::decode(imm.encode()), imm);
    let ([flags, cid], request) = head::<2>(rest);
    let ext = ConnReq::decode(request).ok().and_then(|req| req.ext);
    let terms = ImmTerms::new(ext, flags & 1 != 0);
    let of_server = terms.check_from_server(imm, cid.into(), flags & 2 != 0);
    let of_client = terms.check_from_client(imm, cid.into(), flags & 2 != 0);
    if !matches!(imm, Imm::Heartbeat | Imm::HeartbeatAck) {
        assert!(of_server.is_err() || of_client.is_err());
    }
}

pub(crate) fn user_messages(bytes: &[u8]) {
    match UserMsg::parse(bytes, true) {
        Ok(UserMsg::SessInfo(m)) => {
            assert_eq!(UserMsg::parse(&m.encode(), true), Ok(UserMsg::SessInfo(m)))
        }
        Ok(UserMsg::Open(m)) => assert_eq!(UserMsg::parse(&m.encode(), true), Ok(UserMsg::Open(m))),
        Ok(UserMsg::Close(m)) => {
            assert_eq!(UserMsg::parse(&m.encode(), true), Ok(UserMsg::Close(m)))
        }
        Ok(UserMsg::Io(m)) => assert_eq!(UserMsg::parse(&m.encode(), true), Ok(UserMsg::Io(m))),
        Ok(UserMsg::Discover(m)) => {
            assert_eq!(UserMsg::parse(&m.encode(), true), Ok(UserMsg::Discover(m)))
        }
        Err(error) => assert!(!error.as_str().is_empty() && error.errno().0 > 0),
    }
    if let Ok(rsp) = SessInfoRsp::decode(bytes) {
        assert_eq!(SessInfoRsp::decode(&rsp.encode()), Ok(rsp));
    }
    if let Ok(rsp) = OpenRsp::decode(bytes) {
        assert_eq!(OpenRsp::decode(&rsp.encode()), Ok(rsp));
        assert!(rsp.physical_block_size_bytes().is_power_of_two());
    }
    if let Some(details) = Details::decode(bytes) {
        let mut again = vec![0; OPEN_RSP_LEN];
        again.extend(details.encode());
        assert_eq!(Details::decode(&again), Some(details));
    }
}

/// A list that was read has entries that a user can take, and is written to the same entries.
pub(crate) fn discover(bytes: &[u8]) {
    // After a valid type, so that the lists are decoded.
    let mut message = vec![7, 0, 0, 0];
    message.extend(bytes);
    message.truncate(DISCOVER_RSP_LEN);
    let Ok(rsp) = DiscoverRsp::decode(&message, None) else {
        return;
    };
    let (portals, exports): (Vec<_>, Vec<_>) = (rsp.portals().collect(), rsp.exports().collect());
    assert!(portals.len() <= MAX_PORTALS);
    assert!(!rsp.more || rsp.last.is_some());
    let more = rsp.more && !exports.is_empty();
    let mut again = vec![0xEE; DISCOVER_RSP_LEN];
    let mut page = DiscoverPage::new(&mut again).expect("room");
    assert!(portals.iter().all(|portal| page.add_portal(portal)));
    assert!(exports.iter().all(|export| page.add_export(export)));
    let len = page.finish(more, rsp.unlisted);
    let again = DiscoverRsp::decode(&again[..len], None).expect("what was just written");
    assert_eq!((again.more, again.unlisted), (more, rsp.unlisted));
    assert!(again.portals().eq(portals) && again.exports().eq(exports));
}

pub(crate) fn io(bytes: &[u8]) {
    let ([flags, shift, a, b, c, d, e, f, g, h], rest) = head(bytes);
    let Ok(hdr) = IoHdr::decode(rest) else {
        return;
    };
    let direction = match flags & 1 {
        0 => Direction::Read,
        _ => Direction::Write,
    };
    let dev = Device {
        nsectors: u64::from(u32::from_le_bytes([a, b, c, d])) << (shift >> 4),
        logical_block_size: 512 << (shift % 7),
        read_only: flags & 2 != 0,
    };
    let len = u32::from_le_bytes([e, f, g, h]);
    let Ok(io) = io_check::check(&hdr, direction, len, &dev) else {
        return;
    };
    assert!(io.sector + u64::from(io.sectors()) <= dev.nsectors);
    assert_eq!(io.bytes % dev.logical_block_size, 0);
    assert!(!(dev.read_only && io.op.modifies()));
    assert!(!io.op.has_data() || io.bytes == len);
}

/// As the kernel's `crc32c()`.
fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 }
        })
    })
}

/// Messages to a disk with checksums: one that is believed has not been changed, and is not
/// believed any more after one bit of it has.
pub(crate) fn checksums(bytes: &[u8]) {
    let ([flags, bit, len], rest) = head(bytes);
    let (header, data) = rest.split_at(usize::from(len).min(rest.len()));
    let direction = match flags & 1 {
        0 => Direction::Read,
        _ => Direction::Write,
    };
    let (data, data_len) = match direction {
        Direction::Read => (&[][..], usize::from(bit)),
        Direction::Write => (data, data.len()),
    };
    let believed = |header: &[u8], data: &[u8], all_have: bool| {
        let arrived = Arrived {
            header,
            direction,
            data_len,
        };
        let is_there = flags & 2 == 0;
        let of_data = |crc| is_there.then(|| crc32c(crc, data));
        examine(&arrived, |_| all_have, crc32c, of_data)
    };
    let mut header = header.to_vec();
    if let (Ok(sealed), 0) = (
        <&mut [u8; IO_HDR_LEN]>::try_from(&mut header[..]),
        flags & 4,
    ) {
        let crc = crc32c(checksum::start(sealed, crc32c), data);
        IoHdr::set_checksum(sealed, checksum::finish(crc));
        let is_there = direction == Direction::Read || flags & 2 == 0;
        // A header that says that it has none is not believed with one.
        let has_one = !matches!(IoHdr::decode(&header), Ok(IoHdr { checksum: None, .. }));
        assert_eq!(believed(&header, data, true).is_ok(), is_there && has_one);
    }
    let has_any = flags & 8 == 0;
    match believed(&header, data, has_any) {
        Ok(Intact::Sealed(crc)) => {
            let sent = checksum::finish(crc32c(crc, data));
            assert_eq!(&header[checksum::COVERED..], sent.to_le_bytes());
            let mut changed = [&header[..], data].concat();
            let at = (usize::from(bit) | usize::from(flags) << 8) % (8 * changed.len());
            changed[at / 8] ^= 1 << (at % 8);
            let (header, data) = changed.split_at(IO_HDR_LEN);
            assert!(believed(header, data, true).is_err());
        }
        // The message that a client sends in place of a cancelled request.
        Ok(Intact::Plain) if header.is_empty() => {
            assert!(direction == Direction::Read && data_len == 0);
        }
        Ok(Intact::Plain) => match UserMsg::parse(&header, true) {
            Ok(UserMsg::Io(io)) => {
                // Nobody looks at the two bytes behind the type.
                header[2..4].fill(0);
                assert!(!has_any && io.encode()[..] == header);
            }
            Ok(message) => assert!(data.is_empty() && message.check_direction(direction).is_ok()),
            Err(error) => panic!("believed, but no message: {error:?}"),
        },
        Err(_) => {}
    }
}
