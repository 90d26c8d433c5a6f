// SPDX-License-Identifier: GPL-2.0

//! Checksums: what they cover, how they travel, and when a request is sent again.

use ibnbd_proto::access::AccessMode;
use ibnbd_proto::checksum::{
    self, examine, Arrived, BadChecksum, DataChecksum, Intact, Resends, Unconfirmed, COVERED,
    MAX_RESENDS,
};
use ibnbd_proto::io_check::{self, Device, IoError};
use ibnbd_proto::map_opts::{MapError, MapOptions};
use ibnbd_proto::msg::*;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::msg::{Bounds, Direction, ReadHdr, RequestError, RequestHdr, ServerRequest};
use ibtrs_proto::name::DevicePath;
use proptest::prelude::*;

/// As the kernel's `crc32c()`: inverts neither at the beginning nor at the end.
fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 }
        })
    })
}

/// The checksum of a header and its data.
fn of(header: &[u8], data: &[u8]) -> u32 {
    let crc = checksum::start(header, crc32c);
    checksum::finish(crc32c(crc, data))
}

fn header(op: Op) -> IoHdr {
    IoHdr {
        device_id: 0x0403_0201,
        sector: 0x0807_0605_0403_0201,
        op,
        flags: IoFlags::SYNC,
        bytes: 512,
        prio: 0x6001,
        checksum: Some(0),
    }
}

fn sealed(op: Op, data: &[u8]) -> [u8; IO_HDR_LEN] {
    let mut bytes = header(op).encode();
    let checksum = of(&bytes, data);
    IoHdr::set_checksum(&mut bytes, checksum);
    bytes
}

#[test]
fn golden() {
    // The check value of CRC-32C.
    assert_eq!(!crc32c(u32::MAX, b"123456789"), 0xE306_9283);
    let data = [0x5A; 512];
    assert_eq!(
        sealed(Op::Write, &data),
        [
            4, 0, 0, 0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0x11, 0, 0, 0, 2, 0, 0, 1, 0x60, 0,
            0, 0xC8, 0x10, 0xE6, 0x29
        ]
    );
    let read = sealed(Op::Read, &[]);
    assert_eq!(read[COVERED..], [0xEA, 0x8B, 0x61, 0x75]);
    assert_eq!(of(&read, &data), 0xE4E4_A299, "of the answer");
}

#[test]
fn only_whole_headers_have_one() {
    let bytes = sealed(Op::Write, &[0x5A; 512]);
    let io = IoHdr {
        checksum: Some(0x29E6_10C8),
        ..header(Op::Write)
    };
    assert_eq!(IoHdr::decode(&bytes), Ok(io));
    for len in 0..IO_HDR_LEN {
        assert_eq!(IoHdr::decode(&bytes[..len]), Err(MsgError::Short));
    }
    assert_eq!(
        checksum::start(&bytes, crc32c),
        crc32c(u32::MAX, &bytes[..COVERED])
    );
    assert_eq!(io.check_flags(true), Ok(()));
    assert_eq!(io.check_flags(false), Err(MsgError::Flags(0x1000)));
    // Without the flag the bytes are padding, which C clients leave to chance.
    let mut plain = bytes;
    plain[17] &= !0x10;
    let none = IoHdr {
        checksum: None,
        ..io
    };
    assert_eq!(IoHdr::decode(&plain), Ok(none));
    assert_eq!(none.encode()[COVERED..], [0; 4]);
    assert_eq!(none.check_flags(false), Ok(()));
}

/// A device whose requests have checksums; all others have none.
const SEALED: u32 = 0x0403_0201;

/// The server's handling of a message in a session with such a device, in the order of its steps.
fn serve<'a>(
    header: &'a [u8],
    direction: Direction,
    data: &[u8],
) -> Result<(Intact, UserMsg<'a>), Errno> {
    // The transport refuses a READ that wants nothing, but has data in front of its headers.
    let wanted = if header.is_empty() && data.is_empty() {
        0
    } else {
        512
    };
    let arrived = Arrived {
        header,
        direction,
        data_len: match direction {
            Direction::Read => wanted,
            Direction::Write => data.len(),
        },
    };
    let of_data = |crc| Some(crc32c(crc, data));
    let intact = examine(&arrived, |id| id == SEALED, crc32c, of_data).map_err(|e| e.errno())?;
    let message = UserMsg::parse(header, true).map_err(|e| e.errno())?;
    message.check_direction(direction).map_err(|e| e.errno())?;
    if let UserMsg::Io(io) = &message {
        let device = Device {
            nsectors: 1 << 60,
            logical_block_size: 512,
            read_only: false,
        };
        let len = match direction {
            Direction::Read if io.op == Op::Read => 512,
            Direction::Read => 0,
            Direction::Write => u32::try_from(data.len()).unwrap(),
        };
        io_check::check(io, direction, len, &device).map_err(|e| match intact {
            Intact::Plain => e.errno(),
            Intact::Sealed(_) => e.of_sealed().errno(),
        })?;
    }
    Ok((intact, message))
}

fn direction(op: Op) -> Direction {
    match op.is_transport_write() {
        true => Direction::Write,
        false => Direction::Read,
    }
}

/// An operation's data, header and direction.
fn requests() -> impl Iterator<Item = (Op, Vec<u8>, [u8; IO_HDR_LEN])> {
    Op::ALL.into_iter().flat_map(|op| {
        let contents = [vec![0; 512], (0..512).map(|n| n as u8).collect()];
        contents.map(|data| {
            let data = if op == Op::Write { data } else { Vec::new() };
            let mut io = header(op);
            (io.sector, io.flags) = (1 << 20, IoFlags::NONE);
            if op == Op::Flush {
                (io.sector, io.bytes) = (0, 0);
            }
            let mut bytes = io.encode();
            let checksum = of(&bytes, &data);
            IoHdr::set_checksum(&mut bytes, checksum);
            assert!(
                matches!(serve(&bytes, direction(op), &data), Ok((Intact::Sealed(_), UserMsg::Io(is))) if is.op == op)
            );
            (op, data, bytes)
        })
    })
}

/// No wrong bit in a header makes another message of it, nor another error than that of damage:
/// some errors make a client stop using an operation.
#[test]
fn every_bit_of_a_header_counts() {
    for (op, data, bytes) in requests() {
        for bit in 0..8 * IO_HDR_LEN {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            let said = serve(&bad, direction(op), &data);
            assert_eq!(said, Err(Errno::EBADMSG), "{op:?}, bit {bit}");
        }
    }
}

/// As for single bits, for up to 32 in a row of which any are wrong.
#[test]
fn every_burst_in_a_header_counts() {
    let mut random = 1u32;
    for (op, data, bytes) in requests() {
        let data = &data[..data.len().min(64)];
        let mut bytes = bytes;
        let checksum = of(&bytes, data);
        IoHdr::set_checksum(&mut bytes, checksum);
        for start in 0..8 * IO_HDR_LEN {
            for len in 1..=32.min(8 * IO_HDR_LEN - start) {
                for inner in 0..3 {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let inner = [0, u32::MAX, random >> 3][inner];
                    let mut bad = bytes;
                    for at in 0..len {
                        if at == 0 || at == len - 1 || inner >> at & 1 == 1 {
                            bad[(start + at) / 8] ^= 1 << ((start + at) % 8);
                        }
                    }
                    let said = serve(&bad, direction(op), data);
                    assert_eq!(said, Err(Errno::EBADMSG), "{op:?}, {len} bits from {start}");
                }
            }
        }
    }
}

#[test]
fn every_bit_of_the_data_counts() {
    let data: Vec<u8> = (0..512).map(|n| n as u8).collect();
    let bytes = sealed(Op::Write, &data);
    for bit in 0..8 * data.len() {
        let mut bad = data.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let said = serve(&bytes, Direction::Write, &bad);
        assert_eq!(said, Err(Errno::EBADMSG), "bit {bit} of the data");
    }
}

/// The transport's header has no checksum: neither a wrong direction nor a wrong length of the
/// user's header makes another message of the bytes there.
#[test]
fn the_transports_header_is_not_believed() {
    for (op, data, bytes) in requests() {
        let chunk = [&data[..], &bytes].concat();
        for usr_len in 0..=chunk.len() {
            let (data, user) = chunk.split_at(chunk.len() - usr_len);
            for other in [Direction::Read, Direction::Write] {
                // A flush may come in either direction, as it has no data.
                let is_same = op == Op::Flush || other == direction(op);
                if usr_len == IO_HDR_LEN && is_same {
                    continue;
                }
                let said = serve(user, other, data);
                assert_eq!(said, Err(Errno::EBADMSG), "{op:?}, {usr_len} bytes");
            }
        }
    }
    // Data that is all of a message but its end, where the header is.
    let name = DevicePath::new(b"ram0").unwrap();
    let open = Open {
        access_mode: AccessMode::Rw,
        exclusive: false,
        dev_name: name,
        only_known: false,
        checksums: true,
    };
    let discover = Discover { after: Some(name) };
    for message in [open.encode(), discover.encode()] {
        let data = &message[..OPEN_LEN - IO_HDR_LEN];
        let user = [data, &sealed(Op::Write, data)].concat();
        assert_eq!(user.len(), OPEN_LEN);
        assert!(UserMsg::parse(&user, true).is_ok(), "but for the rule");
        assert_eq!(serve(&user, Direction::Read, &[]), Err(Errno::EBADMSG));
    }
}

/// The message that takes the place of a cancelled request is refused as ever, and no damage makes
/// another request pass for it: the transport refuses what it looks like then.
#[test]
fn nothing_is_intact() {
    let said = |direction, data_len| {
        let arrived = Arrived {
            header: &[],
            direction,
            data_len,
        };
        examine(&arrived, |_| true, crc32c, Some)
    };
    assert_eq!(said(Direction::Read, 0), Ok(Intact::Plain));
    assert_eq!(said(Direction::Read, 512), Err(IoError::Damaged));
    assert_eq!(said(Direction::Write, 0), Err(IoError::Damaged));
    assert_eq!(said(Direction::Write, 512), Err(IoError::Damaged));
    let refused = serve(&[], Direction::Read, &[]);
    assert_eq!(refused, Err(Errno::EINVAL), "not executed");
    let mut flush = [0; 8];
    let read = ReadHdr {
        usr_len: 0,
        need_inval: false,
        desc: None,
        timed: false,
    };
    assert_eq!(read.encode(&mut flush), Some(flush.len()));
    let parsed = RequestHdr::parse(&flush, true).unwrap();
    let at = |offset| ServerRequest::parse(&parsed, offset, Bounds::Chunk(1 << 17));
    assert!(at(0).is_ok());
    for offset in 1..600 {
        assert_eq!(at(offset), Err(RequestError::NoDesc));
    }
}

/// A message whose checksum matches is what its sender means, with the errors as ever.
#[test]
fn what_matches_is_believed() {
    let forged = |change: fn(&mut [u8; IO_HDR_LEN])| {
        let mut bytes = header(Op::Discard).encode();
        change(&mut bytes);
        let checksum = of(&bytes, &[]);
        IoHdr::set_checksum(&mut bytes, checksum);
        serve(&bytes, Direction::Write, &[]).map(|_| ()).err()
    };
    assert_eq!(forged(|bytes| bytes[16] = 9), Some(Errno::EOPNOTSUPP));
    assert_eq!(forged(|bytes| bytes[19] = 1), Some(Errno::EOPNOTSUPP));
    assert_eq!(forged(|bytes| bytes[0] = 9), Some(Errno::EINVAL));
    // CLOSE of 32 bytes is none, even so.
    assert_eq!(forged(|bytes| bytes[0] = 5), Some(Errno::EINVAL));
    // Without the flag it is no sealed header.
    assert_eq!(forged(|bytes| bytes[17] &= !0x10), Some(Errno::EBADMSG));
    assert_eq!(forged(|bytes| bytes[20] = 1), Some(Errno::EINVAL));
}

#[test]
fn messages_without_checksum() {
    let plain = |device_id| {
        let io = IoHdr {
            device_id,
            checksum: None,
            ..header(Op::Discard)
        };
        io.encode()
    };
    let io = |bytes: &[u8]| serve(bytes, Direction::Write, &[]).map(|(intact, _)| intact);
    assert_eq!(io(&plain(SEALED)), Err(Errno::EBADMSG));
    // Devices with checksums and without have one session.
    let bytes = plain(SEALED + 1);
    assert_eq!(io(&bytes), Ok(Intact::Plain));
    // It has the rest of a checksum, and so may have been another one.
    for bit in 8 * 26..8 * IO_HDR_LEN {
        let mut bad = bytes;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(io(&bad), Err(Errno::EBADMSG), "bit {bit}");
    }
    for len in (0..60).filter(|&len| len != IO_HDR_LEN) {
        let other = [&bytes[..], &[0; 60]].concat();
        assert_eq!(io(&other[..len]), Err(Errno::EBADMSG), "{len} bytes");
    }
    let name = DevicePath::new(b"ram0").unwrap();
    let open = Open {
        access_mode: AccessMode::Rw,
        exclusive: false,
        dev_name: name,
        only_known: true,
        checksums: false,
    };
    let close = Close { device_id: SEALED }.encode();
    for (message, direction, zero) in [
        (
            SessInfo { ver: 2 }.encode().to_vec(),
            Direction::Read,
            Some(9),
        ),
        (open.encode().to_vec(), Direction::Read, Some(99)),
        (
            Discover { after: Some(name) }.encode().to_vec(),
            Direction::Read,
            Some(99),
        ),
        (
            Discover { after: None }.encode().to_vec(),
            Direction::Read,
            Some(99),
        ),
        (close.to_vec(), Direction::Write, None),
    ] {
        let said = |bytes: &[u8], direction, data: &[u8]| {
            serve(bytes, direction, data).map(|(intact, _)| intact)
        };
        assert_eq!(said(&message, direction, &[]), Ok(Intact::Plain));
        let damaged = Err(Errno::EBADMSG);
        let wrong = match direction {
            Direction::Read => Direction::Write,
            Direction::Write => Direction::Read,
        };
        assert_eq!(said(&message, wrong, &[]), damaged);
        // The bytes in front of a READ's headers are those that it wants, and none that came with it.
        let with_data = match direction {
            Direction::Write => damaged,
            Direction::Read => Ok(Intact::Plain),
        };
        assert_eq!(said(&message, direction, &[0; 24]), with_data);
        assert_eq!(
            said(&[&message[..], &[0]].concat(), direction, &[]),
            damaged
        );
        assert_eq!(said(&message[..message.len() - 1], direction, &[]), damaged);
        if let Some(zero) = zero {
            let mut other = message.clone();
            other[zero] = 1;
            assert_eq!(said(&other, direction, &[]), damaged);
        }
    }
}

/// Only contradictions between both headers are signs of damage; of a request without checksum,
/// nothing is.
#[test]
fn errors_of_intact_headers() {
    use IoError::*;
    for error in [Direction, Length, Data] {
        assert_eq!(error.of_sealed(), Contradiction);
    }
    assert_eq!(Contradiction.errno(), Damaged.errno());
    for error in [ReadOnly, Empty, Flags, Alignment, Range, Damaged] {
        assert_eq!(error.of_sealed(), error);
    }
}

#[test]
fn close_has_its_length() {
    let close = Close { device_id: 7 };
    let mut long = close.encode().to_vec();
    for extensions in [false, true] {
        assert_eq!(UserMsg::parse(&long, extensions), Ok(UserMsg::Close(close)));
    }
    long.push(0);
    assert_eq!(UserMsg::parse(&long, true), Err(MsgError::Long));
    assert_eq!(UserMsg::parse(&long, false), Ok(UserMsg::Close(close)));
}

/// The answer to OPEN says whether the server has understood what OPEN asks for, which may have been
/// damaged on the way; otherwise no request to the device would succeed.
#[test]
fn servers_confirm() {
    let limits = DeviceLimits {
        logical_block_size: 512,
        ..DeviceLimits::default()
    };
    let mut rsp = OpenRsp::new(7, &limits).unwrap();
    assert!(!rsp.has_checksums(), "a server without details");
    rsp.details = Some(Details::default());
    assert!(!rsp.has_checksums(), "a server without checksums");
    for is_on in [false, true] {
        rsp.details = Some(limits.details(is_on));
        assert_eq!(rsp.has_checksums(), is_on);
        let mut answer = [0; OPEN_RSP_LONG_LEN];
        answer[OPEN_RSP_LEN..].copy_from_slice(&limits.details(is_on).encode());
        assert_eq!(answer[57] & 4, 4 * u8::from(is_on));
        assert_eq!(Details::decode(&answer).unwrap().checksums, is_on);
        answer[57] ^= 4;
        assert_eq!(Details::decode(&answer).unwrap().checksums, !is_on);
    }
    let missing = DataChecksum::Crc32c.check_confirmed(false).unwrap_err();
    assert_eq!(
        (missing, missing.errno()),
        (Unconfirmed::Missing, Errno::EOPNOTSUPP)
    );
    let unasked = DataChecksum::None.check_confirmed(true).unwrap_err();
    assert_eq!(
        (unasked, unasked.errno()),
        (Unconfirmed::Unasked, Errno::EPROTO)
    );
    assert_ne!(missing.as_str(), unasked.as_str());
    for known in DataChecksum::ALL {
        assert_eq!(known.check_confirmed(known.is_on()), Ok(()));
    }
}

#[test]
fn options_and_words() {
    for known in DataChecksum::ALL {
        assert_eq!(DataChecksum::parse(known.as_str()), Ok(known));
        assert_eq!(known.to_string(), known.as_str());
        let line = format!("sessname=s device_path=d data_checksum={known}");
        let opts = MapOptions::parse(line.as_bytes()).unwrap();
        assert_eq!(opts.data_checksum, known);
    }
    let plain = MapOptions::parse(b"sessname=s device_path=d").unwrap();
    assert_eq!(plain.data_checksum, DataChecksum::None);
    assert!(!DataChecksum::default().is_on() && DataChecksum::Crc32c.is_on());
    for bad in ["CRC32C", "crc32", "1", "crc32c "] {
        assert_eq!(DataChecksum::parse(bad), Err(BadChecksum));
        assert_eq!(BadChecksum.errno(), Errno::EINVAL);
    }
    let error = MapOptions::parse(b"sessname=s device_path=d data_checksum=md5").unwrap_err();
    assert_eq!(error, MapError::DataChecksum("md5"));
    assert_eq!(error.errno(), Errno::EINVAL);
    assert_eq!(
        error.to_string(),
        "data_checksum=md5: checksum is not none or crc32c"
    );
    // The block layer has another error for damaged data of the server's own disk.
    assert_eq!(IoError::Damaged.errno(), Errno::EBADMSG);
}

#[test]
fn a_request_is_sent_again_a_few_times() {
    let mut resends = Resends::NONE;
    let pauses: Vec<u32> = std::iter::from_fn(|| resends.again()).take(300).collect();
    assert_eq!(pauses, [0, 10, 100]);
    assert_eq!(pauses.len(), usize::from(MAX_RESENDS));
    assert_eq!(resends.again(), None);
    assert_eq!(Resends::default().again(), Some(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// However the data is cut into pieces, the checksum is the same.
    #[test]
    fn pieces_do_not_matter(data in prop::collection::vec(any::<u8>(), 0..3000), at: usize) {
        let bytes = sealed(Op::Write, &data);
        let (one, two) = data.split_at(at % (data.len() + 1));
        let crc = checksum::start(&bytes, crc32c);
        let sum = checksum::finish(crc32c(crc32c(crc, one), two));
        prop_assert_eq!(IoHdr::decode(&bytes).unwrap().checksum, Some(sum));
    }

    /// Neither the same data of another sector nor that of another device passes.
    #[test]
    fn another_place_has_another_checksum(sector: u64, device_id: u32) {
        let io = header(Op::Read);
        prop_assume!(sector != io.sector || device_id != io.device_id);
        let other = IoHdr { sector, device_id, ..io };
        let data = [1; 64];
        prop_assert_ne!(of(&io.encode(), &data), of(&other.encode(), &data));
    }
}
