// SPDX-License-Identifier: GPL-2.0

//! Golden bytes, round trips, and every short or garbled message.

use ibnbd_proto::access::AccessMode;
use ibnbd_proto::identity::Identity;
use ibnbd_proto::msg::*;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::msg::Direction;
use ibtrs_proto::name::{DevicePath, NameError};
use proptest::prelude::*;

fn dev(s: &str) -> DevicePath<'_> {
    DevicePath::new(s.as_bytes()).unwrap()
}

/// Fails for every length short of `need`, and reads the same with whatever follows.
fn lengths<T: PartialEq + std::fmt::Debug>(
    msg: &[u8],
    need: usize,
    decode: impl Fn(&[u8]) -> Result<T, MsgError>,
) {
    for n in 0..need {
        assert_eq!(decode(&msg[..n]), Err(MsgError::Short), "{n} bytes");
    }
    let mut long = msg.to_vec();
    long.extend([0xEE; 100]);
    assert_eq!(decode(&long), decode(msg));
    long[0] = 0x77;
    assert_eq!(decode(&long), Err(MsgError::Type(0x77)));
}

#[test]
fn sess_info_golden() {
    let b = SessInfo { ver: 2 }.encode();
    assert_eq!(b.len(), 36);
    assert_eq!(b[..5], [0, 0, 0, 0, 2]);
    assert!(b[5..].iter().all(|&x| x == 0));
    lengths(&b, 36, SessInfo::decode);
    let rsp = SessInfo { ver: 9 }.answer();
    assert_eq!(rsp.ver, 2);
    assert_eq!(SessInfo { ver: 1 }.answer().ver, 1);
    let b = rsp.encode();
    assert_eq!(b.len(), 36);
    assert_eq!(b[..5], [1, 0, 0, 0, 2]);
    assert!(b[5..].iter().all(|&x| x == 0));
    lengths(&b, 36, SessInfoRsp::decode);
    assert_eq!(
        SessInfoRsp::decode(&SessInfoRsp { ver: 7 }.encode()),
        Ok(rsp)
    );
}

#[test]
fn open_golden() {
    let open = Open {
        access_mode: AccessMode::Migration,
        exclusive: false,
        dev_name: dev("ram0"),
        only_known: false,
        checksums: false,
    };
    let alone = Open {
        exclusive: true,
        ..open
    };
    assert_eq!(alone.encode()[..7], *b"\x02\0\0\0\x02\x01r");
    assert_eq!(Open::decode(&alone.encode()), Ok(alone));
    assert!(alone.access(true).exclusive && !alone.access(false).exclusive);
    let asked = Open {
        only_known: true,
        ..open
    };
    assert_eq!(asked.encode()[..11], *b"\x02\0\0\0\x02\x02ram0\0");
    let sealed = Open {
        checksums: true,
        ..open
    };
    assert_eq!(sealed.encode()[..11], *b"\x02\0\0\0\x02\x04ram0\0");
    assert_eq!(Open::decode(&sealed.encode()), Ok(sealed));
    let b = open.encode();
    assert_eq!(b.len(), 264);
    assert_eq!(b[..11], *b"\x02\0\0\0\x02\0ram0\0");
    assert!(b[10..].iter().all(|&x| x == 0));
    assert_eq!(Open::decode(&b), Ok(open));
    for n in 0..264 {
        assert_eq!(Open::decode(&b[..n]), Err(MsgError::Short));
    }
    // C clients send their stack as padding and behind the name's NUL.
    let mut junk = b;
    junk[2..4].fill(0xAA);
    junk[5] = 0xA8;
    junk[11..].fill(0xAA);
    assert_eq!(Open::decode(&junk), Ok(open));
    let mut bad = b;
    bad[4] = 3;
    assert_eq!(Open::decode(&bad), Err(MsgError::AccessMode(3)));
    let mut bad = b;
    bad[6] = 0;
    assert_eq!(Open::decode(&bad), Err(MsgError::Name(NameError::Empty)));
    // The NUL has to be inside the 255 bytes of the name.
    let mut bad = b;
    bad[6..].fill(b'x');
    bad[261..].fill(0);
    assert_eq!(Open::decode(&bad), Err(MsgError::Name(NameError::NoNul)));
    bad[260] = 0;
    assert_eq!(Open::decode(&bad).unwrap().dev_name.as_str().len(), 254);
}

#[test]
fn close_golden() {
    let close = Close {
        device_id: 0x0403_0201,
    };
    assert_eq!(close.encode(), [5, 0, 0, 0, 1, 2, 3, 4]);
    assert_eq!(Close::decode(&close.encode()), Ok(close));
    lengths(&close.encode(), 8, Close::decode);
}

#[test]
fn open_rsp_golden() {
    let rsp = OpenRsp {
        device_id: 0x0403_0201,
        nsectors: 0x000C_0B0A_0908_0706,
        max_hw_sectors: 0x1413_1211,
        max_write_zeroes_sectors: 0x1817_1615,
        max_discard_sectors: 0x2423_2221,
        discard_granularity: 0x2827_2625,
        discard_alignment: 0x3433_3231,
        physical_block_size: 4096,
        logical_block_size: 512,
        max_segments: 0x4241,
        secure_discard: 0x4443,
        cache: CachePolicy {
            writeback: true,
            fua: false,
        },
        identity: Identity::from_wire(0x5857_5655_5453_5251),
        details: None,
    };
    let b = rsp.encode();
    let want = [
        3, 0, 0, 0, 1, 2, 3, 4, 6, 7, 8, 9, 0x0A, 0x0B, 0x0C, 0, 0x11, 0x12, 0x13, 0x14, 0x15,
        0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34,
        0, 0x10, 0, 2, 0x41, 0x42, 0x43, 0x44, 0, 2, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57,
        0x58, 0, 0,
    ];
    assert_eq!(b, want);
    assert_eq!(OpenRsp::decode(&b), Ok(rsp));
    lengths(&b, 56, OpenRsp::decode);
    let mut fua = b;
    (fua[44], fua[45]) = (1, 0xFD);
    fua[46..].fill(0xFF);
    let cache = OpenRsp::decode(&fua).unwrap().cache;
    assert_eq!((cache.writeback, cache.fua), (false, true));
}

#[test]
fn details_golden() {
    let details = Details {
        physical_block_size: 0x0403_0201,
        io_min: 0x0807_0605,
        io_opt: 0x0C0B_0A09,
        max_secure_erase_sectors: 0x1413_1211,
        alignment_offset: 0x1817_1615,
        rotational: true,
        zeroes_unmap: true,
        checksums: true,
        cache_run: Identity::from_wire(0x2827_2625_2423_2221),
    };
    let mut answer = [0xEE; OPEN_RSP_LONG_LEN];
    answer[OPEN_RSP_LEN..].copy_from_slice(&details.encode());
    let want = [
        1, 7, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x0A, 0x0B, 0x0C, 0x11, 0x12, 0x13, 0x14, 0x15,
        0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
    ];
    assert_eq!(answer[OPEN_RSP_LEN..], want);
    assert_eq!(Details::decode(&answer), Some(details));
    // Those of a later version are these, with more behind them.
    answer[OPEN_RSP_LEN] = 9;
    assert_eq!(
        Details::decode(&[&answer[..], &[0xEE; 8]].concat()),
        Some(details)
    );
    let none = Details::default().encode();
    answer[OPEN_RSP_LEN..].copy_from_slice(&none);
    assert_eq!(Details::decode(&answer), Some(Details::default()));
    // A server that knows none fills what it is asked for with zeroes.
    answer[OPEN_RSP_LEN..].fill(0);
    assert_eq!(Details::decode(&answer), None);
    for len in 0..OPEN_RSP_LONG_LEN {
        assert_eq!(Details::decode(&answer[..len]), None);
    }
}

#[test]
fn details_have_room_for_everything() {
    let limits = DeviceLimits {
        logical_block_size: 4096,
        physical_block_size: 65_536,
        io_min: 1 << 20,
        io_opt: 3 << 20,
        max_secure_erase_sectors: 65_536,
        alignment_offset: 512,
        rotational: true,
        cache_run: Identity::from_wire(5),
        ..DeviceLimits::default()
    };
    let mut rsp = OpenRsp::new(7, &limits).unwrap();
    assert_eq!(rsp.physical_block_size_bytes(), 32_768);
    assert_eq!(rsp.cache_run(), Identity::UNKNOWN);
    rsp.details = Some(limits.details(false));
    assert_eq!(rsp.physical_block_size_bytes(), 65_536);
    assert_eq!(rsp.cache_run(), limits.cache_run);
    let details = limits.details(false);
    assert_eq!((details.io_min, details.io_opt), (1 << 20, 3 << 20));
    assert_eq!(details.max_secure_erase_sectors, 65_536);
    assert_eq!(details.alignment_offset, 512);
    assert!(details.rotational && !details.zeroes_unmap);
}

#[test]
fn open_rsp_refusals() {
    let good = OpenRsp {
        logical_block_size: 512,
        physical_block_size: 512,
        ..OpenRsp::default()
    };
    for bad in [0u16, 1, 256, 513, 1000, 65_535] {
        let rsp = OpenRsp {
            logical_block_size: bad,
            ..good
        };
        let e = OpenRsp::decode(&rsp.encode()).unwrap_err();
        assert_eq!(e, MsgError::BlockSize(bad.into()));
        assert_eq!(e.errno(), Errno::EINVAL);
    }
    let huge = |nsectors| OpenRsp::decode(&OpenRsp { nsectors, ..good }.encode());
    // A byte more than an offset can count.
    assert!(huge((1 << 54) - 1).is_ok());
    assert_eq!(huge(1 << 54), Err(MsgError::Capacity(1 << 54)));
    assert_eq!(MAX_SECTORS, (1 << 54) - 1);
}

/// Hazard 33: nothing is cut off bit by bit.
#[test]
fn limits_are_clamped_or_refused() {
    let l = DeviceLimits {
        nsectors: 1 << 20,
        logical_block_size: 4096,
        physical_block_size: 65_536,
        max_segments: 65_536,
        max_secure_erase_sectors: 65_536,
        max_hw_sectors: u32::MAX,
        ..DeviceLimits::default()
    };
    let rsp = OpenRsp::new(7, &l).unwrap();
    assert_eq!(rsp.physical_block_size, 32_768);
    assert_eq!(rsp.logical_block_size, 4096);
    assert_eq!(rsp.max_segments, 65_535);
    assert_ne!(rsp.secure_discard, 0);
    assert_eq!(rsp.max_hw_sectors, u32::MAX);
    assert_eq!(OpenRsp::decode(&rsp.encode()), Ok(rsp));
    let with = |f: &dyn Fn(&mut DeviceLimits)| {
        let mut l = l;
        f(&mut l);
        OpenRsp::new(7, &l)
    };
    for bad in [0, 511, 768, 65_536] {
        assert_eq!(
            with(&|l| l.logical_block_size = bad),
            Err(MsgError::BlockSize(bad))
        );
    }
    assert!(with(&|l| l.logical_block_size = 32_768).is_ok());
    assert_eq!(
        with(&|l| l.nsectors = u64::MAX),
        Err(MsgError::Capacity(u64::MAX))
    );
    let small = with(&|l| l.physical_block_size = 0).unwrap();
    assert_eq!(small.physical_block_size, 4096);
    assert_eq!(
        with(&|l| l.max_secure_erase_sectors = 0)
            .unwrap()
            .secure_discard,
        0
    );
}

#[test]
fn physical_block_size_of_c_servers() {
    let size = |physical_block_size, logical_block_size| {
        OpenRsp {
            physical_block_size,
            logical_block_size,
            ..OpenRsp::default()
        }
        .physical_block_size_bytes()
    };
    assert_eq!(size(4096, 512), 4096);
    assert_eq!(size(0, 4096), 4096, "64 KiB cut to 16 bits");
    assert_eq!(size(512, 4096), 4096);
    assert_eq!(size(5000, 512), 512);
}

#[test]
fn io_golden() {
    let io = IoHdr {
        device_id: 0x0403_0201,
        sector: 0x0807_0605_0403_0201,
        op: Op::WriteZeroes,
        flags: IoFlags::SYNC
            .and(IoFlags::FUA)
            .and(IoFlags::PREFLUSH)
            .and(IoFlags::NOUNMAP),
        bytes: 0x1413_1211,
        prio: 0x6001,
        checksum: None,
    };
    let b = io.encode();
    let want = [
        4, 0, 0, 0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 5, 0x0F, 0, 0, 0x11, 0x12, 0x13, 0x14,
        0x01, 0x60, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(b, want);
    assert_eq!(IoHdr::decode(&b), Ok(io));
    for n in 0..24 {
        assert_eq!(IoHdr::decode(&b[..n]), Err(MsgError::Short));
    }
    // Older forms have no priority, or one that C servers do not look at.
    for n in 24..32 {
        assert_eq!(IoHdr::decode(&b[..n]), Ok(IoHdr { prio: 0, ..io }));
    }
    let mut junk = b.to_vec();
    junk[2..4].fill(0xAA);
    junk[26..].fill(0xAA);
    junk.extend([0xAA; 9]);
    assert_eq!(IoHdr::decode(&junk), Ok(io));
    for op in 6..=255 {
        let mut bad = b;
        bad[16] = op;
        let e = IoHdr::decode(&bad).unwrap_err();
        assert_eq!(e, MsgError::Op(op));
        assert_eq!(e.errno(), Errno::EOPNOTSUPP);
    }
    let mut bad = b;
    bad[17] |= 0x20;
    assert_eq!(IoHdr::decode(&bad), Err(MsgError::Flags(0x2F00)));
    let bits = [
        (IoFlags::SYNC, 1),
        (IoFlags::FUA, 2),
        (IoFlags::PREFLUSH, 4),
        (IoFlags::NOUNMAP, 8),
    ];
    for (flags, bit) in bits {
        assert_eq!(IoHdr { flags, ..io }.encode()[17], bit);
    }
    assert_eq!(format!("{:?}", IoFlags::FUA), r#"{"FUA"}"#);
    let both = IoFlags::FUA.and(IoFlags::SYNC);
    assert!(both.contains(IoFlags::FUA) && both.contains(both));
    assert_eq!(both.and(IoFlags::FUA), both);
    assert!(!IoFlags::FUA.contains(both) && !IoFlags::FUA.contains(IoFlags::SYNC));
    assert!(!IoFlags::NONE.contains(IoFlags::FUA) && IoFlags::FUA.contains(IoFlags::NONE));
}

#[test]
fn numbers_of_ops_and_modes() {
    for (i, op) in Op::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(op.to_wire()), i);
        assert_eq!(Op::try_from(i as u8), Ok(op));
    }
    for (i, mode) in AccessMode::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(mode.to_wire()), i);
        assert_eq!(AccessMode::try_from(i as u8), Ok(mode));
        assert_eq!(AccessMode::parse(&mode.to_string()), Ok(mode));
    }
    for bad in 3..=255 {
        assert!(AccessMode::try_from(bad).is_err());
    }
    for bad in ["", "RO", "r", "rw ", "migrate"] {
        assert!(AccessMode::parse(bad).is_err());
    }
}

#[test]
fn user_messages_by_type() {
    let name = dev("d");
    let open = Open {
        access_mode: AccessMode::Ro,
        exclusive: false,
        dev_name: name,
        only_known: true,
        checksums: false,
    };
    assert_eq!(
        UserMsg::parse(&open.encode(), true),
        Ok(UserMsg::Open(open))
    );
    let info = SessInfo { ver: 2 };
    assert_eq!(
        UserMsg::parse(&info.encode(), true),
        Ok(UserMsg::SessInfo(info))
    );
    let close = Close { device_id: 1 };
    assert_eq!(
        UserMsg::parse(&close.encode(), true),
        Ok(UserMsg::Close(close))
    );
    for kind in [1u8, 3, 7, 99] {
        let mut b = [0; 300];
        b[0] = kind;
        let e = UserMsg::parse(&b, true).unwrap_err();
        assert_eq!((e, e.errno()), (MsgError::Type(kind.into()), Errno::EINVAL));
    }
    assert_eq!(UserMsg::parse(&[], true), Err(MsgError::Short));
    assert_eq!(UserMsg::parse(&[4], true), Err(MsgError::Short));
    let discover = Discover { after: None }.encode();
    let unknown = Err(MsgError::Type(6));
    assert_eq!(UserMsg::parse(&discover, false), unknown, "no extensions");
}

/// A message is refused when its request goes the wrong way: there would be no answer, or one that
/// nobody has written.
#[test]
fn user_messages_by_direction() {
    let open = Open {
        access_mode: AccessMode::Ro,
        exclusive: false,
        dev_name: dev("d"),
        only_known: false,
        checksums: false,
    };
    for (msg, due, other) in [
        (
            UserMsg::SessInfo(SessInfo { ver: 2 }),
            Direction::Read,
            Direction::Write,
        ),
        (UserMsg::Open(open), Direction::Read, Direction::Write),
        (
            UserMsg::Discover(Discover { after: None }),
            Direction::Read,
            Direction::Write,
        ),
        (
            UserMsg::Close(Close { device_id: 1 }),
            Direction::Write,
            Direction::Read,
        ),
    ] {
        assert_eq!(msg.check_direction(due), Ok(()));
        assert_eq!(msg.check_direction(other), Err(MsgError::Direction));
    }
    assert_eq!(MsgError::Direction.errno(), Errno::EINVAL);
}

fn any_io() -> impl Strategy<Value = IoHdr> {
    let flags = prop::array::uniform4(any::<bool>()).prop_map(|[s, f, p, n]| {
        IoFlags::when(IoFlags::SYNC, s)
            .and(IoFlags::when(IoFlags::FUA, f))
            .and(IoFlags::when(IoFlags::PREFLUSH, p))
            .and(IoFlags::when(IoFlags::NOUNMAP, n))
    });
    let op = prop::sample::select(Op::ALL.to_vec());
    (any::<(u32, u64, u32, u16, Option<u32>)>(), op, flags).prop_map(
        |((device_id, sector, bytes, prio, checksum), op, flags)| IoHdr {
            device_id,
            sector,
            op,
            flags,
            bytes,
            prio,
            checksum,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(b in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..7) {
        let mut b = b;
        let _ = UserMsg::parse(&b, true);
        if b.len() > 2 {
            (b[0], b[1]) = (kind, 0);
        }
        let _ = UserMsg::parse(&b, true);
        let _ = SessInfoRsp::decode(&b);
        let _ = OpenRsp::decode(&b);
    }

    #[test]
    fn io_round_trip(io in any_io()) {
        let b = io.encode();
        prop_assert_eq!(UserMsg::parse(&b, true), Ok(UserMsg::Io(io)));
    }

    #[test]
    fn open_round_trip(name in "[!-~]{1,254}", mode in 0u8..3, only_known: bool,
                       checksums: bool) {
        let open = Open {
            access_mode: AccessMode::try_from(mode).unwrap(),
            exclusive: mode == 1,
            dev_name: dev(&name),
            only_known,
            checksums,
        };
        let b = open.encode();
        prop_assert_eq!(UserMsg::parse(&b, true), Ok(UserMsg::Open(open)));
    }

    /// Every device that can be offered comes out as it went in.
    #[test]
    fn open_rsp_round_trip(a: [u32; 8], shift in 9u32..16, nsectors in 0u64..1 << 54,
                           writeback: bool, fua: bool) {
        let l = DeviceLimits {
            nsectors,
            max_hw_sectors: a[0],
            max_write_zeroes_sectors: a[1],
            max_discard_sectors: a[2],
            discard_granularity: a[3],
            discard_alignment: a[4],
            physical_block_size: a[5],
            logical_block_size: 1 << shift,
            max_segments: a[6],
            max_secure_erase_sectors: a[7],
            cache: CachePolicy { writeback, fua },
            ..DeviceLimits::default()
        };
        let rsp = OpenRsp::new(a[0], &l).unwrap();
        prop_assert_eq!(OpenRsp::decode(&rsp.encode()), Ok(rsp));
        prop_assert_eq!(rsp.secure_discard == 0, a[7] == 0);
        prop_assert!(rsp.physical_block_size >= rsp.logical_block_size);
        let physical = rsp.physical_block_size_bytes();
        prop_assert!(physical.is_power_of_two() && physical >= 1 << shift);
    }
}
