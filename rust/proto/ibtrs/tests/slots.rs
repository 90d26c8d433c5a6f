// SPDX-License-Identifier: GPL-2.0

//! Slots: requests in them, and who moves the data.

use ibtrs_proto::layout;
use ibtrs_proto::limits::*;
use ibtrs_proto::msg::*;
use ibtrs_proto::slots::*;
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds::Slot {
    bytes: SLOT_BYTES,
    max_io: 131_072,
};

fn desc(len: u32) -> SgDesc {
    SgDesc {
        addr: 0x0102_0304_0506_0708,
        key: 0x1112_1314,
        len,
    }
}

fn fetch(len: u32) -> FetchHdr {
    FetchHdr {
        usr_len: 32,
        need_inval: true,
        timed: false,
        desc: desc(len),
    }
}

fn read(desc: Option<SgDesc>) -> RequestHdr {
    RequestHdr::Read(ReadHdr {
        usr_len: 32,
        need_inval: true,
        timed: false,
        desc,
    })
}

/// A byte on the wire has the size of a slot, in pages; both sides refuse more than these.
#[test]
fn limits_of_slots() {
    assert_eq!(MAX_SLOT_BYTES, 1_044_480);
    assert_eq!(MAX_SLOT_IO, 1_048_576);
    assert!(SLOT_BYTES.is_multiple_of(SLOT_UNIT) && SMALL_SLOT_BYTES.is_multiple_of(SLOT_UNIT));
}

#[test]
fn fetch_golden() {
    let mut header = fetch(0x2000);
    let bytes = header.encode();
    assert_eq!(bytes[..8], [12, 0, 32, 0, 1, 0, 1, 0]);
    assert_eq!(bytes[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(bytes[16..], [0x14, 0x13, 0x12, 0x11, 0, 0x20, 0, 0]);
    let parsed = RequestHdr::parse(&bytes, false);
    assert_eq!(parsed, Ok(RequestHdr::Fetch(header)));
    header.timed = true;
    header.need_inval = false;
    assert_eq!(header.encode()[..8], [12, 0x80, 32, 0, 0, 0, 1, 0]);
    let parsed = RequestHdr::parse(&header.encode(), true);
    assert_eq!(parsed, Ok(RequestHdr::Fetch(header)));
    for count in [0, 2, 255] {
        let mut bytes = bytes;
        bytes[6] = count;
        let refused = RequestHdr::parse(&bytes, true);
        assert_eq!(refused, Err(RequestError::SgCount(count.into())));
    }
    for len in 0..bytes.len() {
        let short = RequestHdr::parse(&bytes[..len], true);
        assert_eq!(short, Err(RequestError::Short));
    }
}

/// No error of two bits makes one type of a request out of another, if one of them is FETCH.
#[test]
fn types_are_far_apart() {
    for other in [2u16, 3, 0x8002, 0x8003] {
        for fetch in [12u16, 0x800c] {
            assert!((other ^ fetch).count_ones() >= 3);
        }
    }
}

#[test]
fn fetched_writes() {
    let parse = |len, at| ServerRequest::parse(&RequestHdr::Fetch(fetch(len)), at, BOUNDS);
    let request = parse(16_384, 32).unwrap();
    assert_eq!(request.direction, Direction::Write);
    assert_eq!(
        (request.data_len, request.usr_at, request.usr_len),
        (16_384, 0, 32)
    );
    assert_eq!(request.source(), Some(desc(16_384)));
    assert_eq!((request.sink(), request.return_len()), (None, 0));
    assert!(request.need_inval);
    assert!(parse(131_072, 32).is_ok() && parse(1, 32).is_ok());
    for len in [0, 131_073, u32::MAX] {
        assert_eq!(parse(len, 32), Err(RequestError::DescLen(len)));
    }
    assert_eq!(parse(512, 31), Err(RequestError::UserLen(32)));
    assert_eq!(parse(512, 33), Err(RequestError::Offset(1)));
    let mut over = fetch(4096);
    over.desc.addr = u64::MAX - 4094;
    let over = ServerRequest::parse(&RequestHdr::Fetch(over), 32, BOUNDS);
    assert_eq!(over, Err(RequestError::DescAddr(u64::MAX - 4094)));
    // A session with chunks has no such request.
    let chunk = Bounds::Chunk(1 << 17);
    let refused = ServerRequest::parse(&RequestHdr::Fetch(fetch(4096)), 4128, chunk);
    assert_eq!(refused, Err(RequestError::Type(12)));
}

#[test]
fn reads_and_writes_in_slots() {
    let parse = |header: &RequestHdr, at| ServerRequest::parse(header, at, BOUNDS);
    let request = parse(&read(Some(desc(131_072))), 32).unwrap();
    assert_eq!((request.data_len, request.usr_at), (131_072, 0));
    assert_eq!(request.return_len(), 131_072);
    assert_eq!((request.source(), request.need_inval), (None, true));
    for len in [0, 131_073] {
        let refused = parse(&read(Some(desc(len))), 32);
        assert_eq!(refused, Err(RequestError::DescLen(len)));
    }
    let refused = parse(&read(Some(desc(512))), 512 + 32);
    assert_eq!(refused, Err(RequestError::Offset(512)));
    let request = parse(&read(None), 32).unwrap();
    assert_eq!((request.data_len, request.desc), (0, None));
    assert!(parse(&read(None), 33).is_err());
    // The data of a WRITE is in the slot.
    let write = RequestHdr::Write(WriteHdr {
        usr_len: 32,
        timed: false,
    });
    let request = parse(&write, 4128).unwrap();
    assert_eq!((request.data_len, request.usr_at), (4096, 4096));
    assert!(parse(&write, SLOT_BYTES - 4).is_ok());
    assert_eq!(parse(&write, SLOT_BYTES - 3), Err(RequestError::Short));
}

#[test]
fn placements_in_slots() {
    let place = |has_data, usr_len| layout::in_slot(has_data, usr_len, SLOT_BYTES, 4096);
    let placement = |imm_offset, total_len| {
        Ok(layout::Placement {
            offset_of_first_byte: 0,
            imm_offset,
            total_len,
        })
    };
    assert_eq!(place(true, 32), placement(32, 56));
    assert_eq!(place(false, 32), placement(32, 40));
    assert_eq!(
        place(true, 4073),
        Err(layout::PlacementError::HeaderTooLong)
    );
}

#[test]
fn small_writes_are_pushed() {
    assert!(is_pushed(4096, 32, SLOT_BYTES) && is_pushed(0, 0, SLOT_BYTES));
    assert!(is_pushed(SLOT_BYTES - 36, 32, SLOT_BYTES));
    assert!(!is_pushed(SLOT_BYTES - 35, 32, SLOT_BYTES));
    assert!(!is_pushed(u32::MAX, u16::MAX, u32::MAX - 1));
}

#[test]
fn groups_divide_the_depth() {
    for depth in 1..=u16::MAX {
        let group = group_of(depth);
        assert!(group.is_power_of_two() && group <= 32 && depth % group == 0);
        assert!(group == 32 || depth % (2 * group) != 0);
    }
    assert_eq!(group_of(0), 1);
    assert_eq!((group_of(512), group_of(4096), group_of(7)), (32, 32, 1));
}

/// The memory that a path takes although nobody uses it.
#[test]
fn idle_paths_are_small() {
    let layout = slot_layout(512, SLOT_BYTES).unwrap();
    assert_eq!((layout.queue_depth(), layout.chunk_size()), (512, 8192));
    let groups = 16 * (4096 + 2048);
    let all = (4 << 20) + groups + 512 * 1024;
    assert_eq!(slots_bytes(&layout, 4096), all);
    assert_eq!(slots_bytes(&layout, 65_536), all);
    // A group is as small as a slot, if the depth is odd.
    let odd = slot_layout(3, SLOT_BYTES).unwrap();
    assert_eq!(slots_bytes(&odd, 4096), 3 * (8192 + 128 + 2048 + 1024));
    assert_eq!(slots_bytes(&odd, 65_536), 3 * (65_536 + 128 + 2048 + 1024));
    let deep = slots_bytes(&slot_layout(4096, SLOT_BYTES).unwrap(), 4096);
    assert!(deep < 40 << 20, "{deep}");
}

#[test]
fn depths_of_slots_and_chunks() {
    assert!(slot_layout(32_768, SLOT_BYTES).is_ok());
    assert_eq!(slot_layout(32_769, SLOT_BYTES), Err(LimitError::Slots));
    for bad in [0, 65_536] {
        assert_eq!(
            slot_layout(bad, SLOT_BYTES),
            Err(LimitError::QueueDepth(bad))
        );
    }
    // Clients with chunks get as many as an immediate can name.
    for (chunk, most) in [
        (135_168, 1024),
        (131_072, 2048),
        (8192, 32_768),
        (1 << 20, 256),
    ] {
        assert_eq!(chunk_depth(chunk, 512), 512.min(most));
        assert_eq!(chunk_depth(chunk, 65_535), most);
        assert!(server_layout(chunk, most).is_ok());
        assert!(server_layout(chunk, most + 1).is_err());
    }
    let rsp = slot_response(&slot_layout(4096, SLOT_BYTES).unwrap(), 131_072, true);
    assert_eq!((rsp.queue_depth, rsp.max_io_size), (4096, 131_072));
    assert_eq!((rsp.slot_bytes, rsp.chunk_size()), (Some(8192), 8192));
    assert!(rsp.new_rkey);
}

proptest! {
    /// What the client pushes is a WRITE that fits a slot, and the server reads the same numbers.
    #[test]
    fn client_meets_server(data_len in 0u32..140_000, usr_len in 0u16..5000, units in 1u32..5) {
        let bytes = units * SLOT_UNIT;
        let bounds = Bounds::Slot { bytes, max_io: 131_072 };
        let request = if is_pushed(data_len, usr_len, bytes) {
            let Ok(place) = layout::write(data_len, usr_len, bytes, 4096) else {
                prop_assert!(u32::from(usr_len) + 4 > 4096);
                return Ok(());
            };
            let header = RequestHdr::Write(WriteHdr { usr_len, timed: false });
            ServerRequest::parse(&header, place.imm_offset, bounds)
        } else {
            prop_assert!(layout::write(data_len, usr_len, bytes, 4096).is_err());
            let Ok(place) = layout::in_slot(true, usr_len, bytes, 4096) else {
                return Ok(());
            };
            let header = FetchHdr { usr_len, need_inval: true, timed: false, desc: SgDesc {
                addr: 0, key: 1, len: data_len,
            } };
            ServerRequest::parse(&RequestHdr::Fetch(header), place.imm_offset, bounds)
        };
        match request {
            Ok(request) => {
                prop_assert_eq!((request.data_len, request.usr_len), (data_len, usr_len));
                prop_assert_eq!(request.direction, Direction::Write);
            }
            Err(error) => {
                prop_assert!(data_len > 131_072 || data_len == 0, "{error:?}");
            }
        }
    }

    /// Whatever the server accepts stays inside the slot, and has no more data than allowed.
    #[test]
    fn accepted_requests_fit(b in prop::collection::vec(any::<u8>(), 24), kind in prop::sample::select(vec![2u8, 3, 12]),
                             sg in 0u8..2, offset in 0u32..20_000, units in 1u32..4, max_io in 0u32..200_000) {
        let mut b = b;
        (b[0], b[1], b[6], b[7], b[3], b[22], b[23]) = (kind, 0, sg, 0, b[3] & 0x1F, b[22] & 1, 0);
        let bytes = units * SLOT_UNIT;
        let Ok(header) = RequestHdr::parse(&b, false) else {
            return Ok(());
        };
        let Ok(request) = ServerRequest::parse(&header, offset, Bounds::Slot { bytes, max_io }) else {
            return Ok(());
        };
        let end = request.usr_at + u32::from(request.usr_len) + header.wire_len() as u32;
        prop_assert!(end <= bytes);
        match request.desc {
            Some(desc) => {
                prop_assert_eq!((request.data_len, request.usr_at), (desc.len, 0));
                prop_assert!(desc.len > 0 && desc.len <= max_io);
            }
            None => prop_assert!(request.data_len == request.usr_at),
        }
        prop_assert_eq!(request.source().is_some(), kind == 12);
    }
}
