// SPDX-License-Identifier: GPL-2.0

//! Capsules: requests that are messages.

use ibtrs_proto::capsule::*;
use ibtrs_proto::consts::MAX_HDR_SIZE;
use ibtrs_proto::imm::{Imm, ImmLayout};
use ibtrs_proto::layout;
use ibtrs_proto::msg::*;
use ibtrs_proto::tag::Tag;
use proptest::prelude::*;

const CHUNK: Bounds = Bounds::Chunk((1 << 17) + MAX_HDR_SIZE);
const SLOT: Bounds = Bounds::Slot {
    bytes: 8192,
    max_io: 131_072,
};

fn desc(len: u32) -> SgDesc {
    SgDesc {
        addr: 0x0102_0304_0506_0708,
        key: 0x1112_1314,
        len,
    }
}

fn write(usr_len: u16) -> RequestHdr {
    RequestHdr::Write(WriteHdr {
        usr_len,
        timed: false,
    })
}

fn read(usr_len: u16, len: Option<u32>) -> RequestHdr {
    RequestHdr::Read(ReadHdr {
        usr_len,
        need_inval: false,
        timed: false,
        desc: len.map(desc),
    })
}

fn fetch(usr_len: u16, len: u32) -> RequestHdr {
    RequestHdr::Fetch(FetchHdr {
        usr_len,
        need_inval: true,
        timed: false,
        desc: desc(len),
    })
}

#[test]
fn windows() {
    assert_eq!(Window::from_wire(0), None);
    for units in 1..=255 {
        let window = Window::from_wire(units).unwrap();
        assert_eq!(window.to_wire(), units);
        assert_eq!(window.requests(), u32::from(units) * 16 - 3);
    }
    let of = |depth, connections| Window::of_path(depth, connections).requests();
    assert_eq!((of(508, 1), of(509, 1), of(510, 1)), (509, 509, 525));
    assert_eq!((of(508, 2), of(508, 8)), (269, 77));
    let least = [of(508, 9), of(508, 128), of(1, 1), of(1, 0)];
    assert_eq!(least, [61; 4]);
    assert_eq!(
        (of(4077, 1), of(4078, 1), of(u16::MAX, 1)),
        (4077, 4077, 4077)
    );
    assert_eq!(of(u16::MAX, 17), 3869);
}

#[test]
fn what_fits() {
    assert!(fits(0, 0) && fits(MAX_DATA, 40) && fits(1, 32));
    assert!(!fits(MAX_DATA + 1, 32) && !fits(512, 41) && !fits(0, usize::MAX));
}

/// The example of Documentation/protocol.md, "Capsules".
#[test]
fn golden() {
    assert!(fits(4096, 32));
    let place = layout::write(0, 32, HEADERS, HEADERS).unwrap();
    assert_eq!((place.offset_of_first_byte, place.imm_offset), (0, 32));
    let payload = ImmLayout::new(512, 131_072)
        .unwrap()
        .request(Tag::new(5), place.imm_offset)
        .unwrap();
    assert_eq!(Imm::IoReq { payload }.encode(), 0x0028_0020);
    let header = WriteHdr {
        usr_len: 32,
        timed: false,
    };
    assert_eq!(header.encode(), [2, 0, 32, 0]);
    // Padding up to the data.
    assert_eq!((HEADERS - place.total_len, HEADERS + 4096), (28, 4160));
}

#[test]
fn writes() {
    for bounds in [CHUNK, SLOT] {
        let parse = |header: &RequestHdr, at, len, data| {
            ServerRequest::parse(header, at, bounds.capsule(len, data))
        };
        let request = parse(&write(32), 32, 64, 4096).unwrap();
        assert_eq!(
            (request.direction, request.data_len),
            (Direction::Write, 4096)
        );
        assert_eq!(
            (request.usr_at, request.usr_len, request.desc),
            (0, 32, None)
        );
        assert_eq!(parse(&write(32), 32, 36, 0).unwrap().data_len, 0);
        assert_eq!(parse(&write(32), 32, 35, 0), Err(RequestError::Short));
        assert_eq!(parse(&write(60), 60, 64, 512).unwrap().data_len, 512);
        assert_eq!(parse(&write(61), 61, 64, 512), Err(RequestError::Short));
        // More than has room for headers is not one of them.
        assert_eq!(parse(&write(61), 61, 65, 512), Err(RequestError::Short));
        assert_eq!(
            parse(&write(32), 31, 64, 512),
            Err(RequestError::UserLen(32))
        );
        assert_eq!(parse(&write(32), 33, 64, 512), Err(RequestError::Offset(1)));
        assert_eq!(
            parse(&write(0), u32::MAX, 64, 512),
            Err(RequestError::Short)
        );
    }
}

#[test]
fn reads() {
    for bounds in [CHUNK, SLOT] {
        let parse =
            |header: &RequestHdr, data| ServerRequest::parse(header, 32, bounds.capsule(56, data));
        let request = parse(&read(32, Some(131_072)), 0).unwrap();
        assert_eq!((request.data_len, request.return_len()), (131_072, 131_072));
        assert_eq!(request.sink(), Some(desc(131_072)));
        for len in [0, 131_073, u32::MAX] {
            let refused = parse(&read(32, Some(len)), 0);
            assert_eq!(refused, Err(RequestError::DescLen(len)));
        }
        assert_eq!(parse(&read(32, None), 0).unwrap().data_len, 0);
        assert_eq!(parse(&read(32, Some(512)), 1), Err(RequestError::Data(1)));
        assert_eq!(parse(&read(32, None), 4096), Err(RequestError::Data(4096)));
    }
}

/// As elsewhere, only a session with slots has requests whose data the server fetches.
#[test]
fn fetches() {
    let parse = |bounds: Bounds, data| {
        ServerRequest::parse(&fetch(32, 16_384), 32, bounds.capsule(56, data))
    };
    let request = parse(SLOT, 0).unwrap();
    assert_eq!(
        (request.source(), request.data_len),
        (Some(desc(16_384)), 16_384)
    );
    assert!(request.need_inval);
    assert_eq!(parse(SLOT, 8), Err(RequestError::Data(8)));
    assert_eq!(parse(CHUNK, 0), Err(RequestError::Type(12)));
    assert_eq!(parse(CHUNK.capsule(1, 1), 0), Err(RequestError::Type(12)));
    assert!(parse(SLOT.capsule(1, 1), 0).is_ok());
}

/// The headers of a capsule with `hdr` behind a user header of 32 bytes.
fn headers(hdr: &RequestHdr) -> Vec<u8> {
    let mut bytes = vec![0xa5; USUAL_USER_HDR];
    match hdr {
        RequestHdr::Write(hdr) => bytes.extend(hdr.encode()),
        RequestHdr::Fetch(hdr) => bytes.extend(hdr.encode()),
        RequestHdr::Read(hdr) => {
            let mut encoded = [0; 24];
            let len = hdr.encode(&mut encoded).unwrap();
            bytes.extend(&encoded[..len]);
        }
    }
    bytes
}

/// A read to that address.
fn read_to(addr: u64, len: u32) -> RequestHdr {
    RequestHdr::Read(ReadHdr {
        usr_len: 32,
        need_inval: false,
        timed: false,
        desc: Some(SgDesc { addr, ..desc(len) }),
    })
}

/// What decides about any capsule.
fn parse_any(
    bytes: &[u8],
    offset: u32,
    data: u32,
    bounds: Bounds,
) -> Result<ServerRequest, RequestError> {
    let hdr = bytes.get(offset as usize..).ok_or(RequestError::Short)?;
    let hdr = RequestHdr::parse(hdr, true)?;
    ServerRequest::parse(&hdr, offset, bounds.capsule(bytes.len() as u32, data))
}

/// Reads and writes of a disk are usual ones, and what is parsed of them is the same.
#[test]
fn usual_capsules() {
    for bounds in [CHUNK, SLOT] {
        let mut padded = headers(&write(32));
        padded.resize(HEADERS as usize, 0);
        for (bytes, data) in [
            (headers(&read(32, Some(1))), 0),
            (headers(&read(32, Some(131_072))), 0),
            (padded.clone(), 4096),
            (padded, 0),
        ] {
            let usual = ServerRequest::usual(&bytes, 32, data, bounds);
            assert_eq!(usual, Some(parse_any(&bytes, 32, data, bounds).unwrap()));
        }
        for len in [0, 131_073] {
            let bytes = headers(&read(32, Some(len)));
            assert_eq!(ServerRequest::usual(&bytes, 32, 0, bounds), None);
        }
        let wraps = headers(&read_to(u64::MAX - 4094, 4096));
        assert_eq!(ServerRequest::usual(&wraps, 32, 0, bounds), None);
        let refused = Err(RequestError::DescAddr(u64::MAX - 4094));
        assert_eq!(parse_any(&wraps, 32, 0, bounds), refused);
        let fits = headers(&read_to(u64::MAX - 4096, 4096));
        assert!(ServerRequest::usual(&fits, 32, 0, bounds).is_some());
    }
    let asks_for_more = RequestHdr::Read(ReadHdr {
        usr_len: 32,
        need_inval: true,
        timed: false,
        desc: Some(desc(512)),
    });
    for other in [asks_for_more, read(31, Some(1)), fetch(32, 512)] {
        assert_eq!(ServerRequest::usual(&headers(&other), 32, 0, SLOT), None);
    }
}

proptest! {
    /// No bytes are taken for a usual capsule that are refused, or parsed to something else.
    #[test]
    fn usual_capsules_are_as_any_other(
        (hdr, len, data) in prop_oneof![
            (Just(write(32)), 30usize..70, prop_oneof![Just(0u32), 0u32..5000]),
            (Just(read(32, Some(4096))), 30usize..70, prop_oneof![3 => Just(0u32), 1 => 0u32..5000]),
            ((u64::MAX - 4200..).prop_map(|addr| read_to(addr, 4096)), Just(56usize), Just(0u32)),
        ],
        (at, byte) in (0usize..70, prop_oneof![any::<u8>(), 0u8..4]),
        offset in prop_oneof![9 => Just(32u32), 1 => 0u32..70],
        has_slots: bool,
    ) {
        let mut bytes = headers(&hdr);
        bytes.resize(len, 0);
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
        let bounds = if has_slots { SLOT } else { CHUNK };
        let any = parse_any(&bytes, offset, data, bounds);
        if let Some(usual) = ServerRequest::usual(&bytes, offset, data, bounds) {
            prop_assert_eq!(any, Ok(usual));
        }
        // The server writes as many bytes to the disk without another check.
        if let Ok(request) = any {
            let is_write = request.direction == Direction::Write && request.data_len == data;
            prop_assert!(data == 0 || is_write);
        }
    }

    /// All connections together have room for all requests, as far as the number goes.
    #[test]
    fn windows_hold_all(depth in 1u16.., connections in 1u16..=4096) {
        let window = Window::of_path(depth, connections);
        prop_assert_eq!(Window::from_wire(window.to_wire()), Some(window));
        let all = window.requests() * u32::from(connections);
        prop_assert!(window.to_wire() == 255 || all >= u32::from(depth));
        // None of them is larger than need be, but for rounding up.
        prop_assert!(window.requests() < u32::from(depth.div_ceil(connections)).max(61) + 16);
    }

    /// Whatever fits is placed where the server finds it.
    #[test]
    fn placement_meets_server(data_len in 0u32..5000, usr_len in 0u16..70, kind in 0u8..3) {
        prop_assume!(fits(data_len, usr_len.into()));
        let (hdr, place) = match kind {
            0 => (write(usr_len), layout::write(0, usr_len, HEADERS, HEADERS)),
            1 => {
                let len = (data_len > 0).then_some(data_len);
                (read(usr_len, len), layout::in_slot(data_len > 0, usr_len, HEADERS, HEADERS))
            }
            _ => (fetch(usr_len, data_len + 1), layout::in_slot(true, usr_len, HEADERS, HEADERS)),
        };
        let place = place.unwrap();
        prop_assert_eq!(place.offset_of_first_byte, 0);
        let data = if kind == 0 { data_len } else { 0 };
        let len = if data > 0 { HEADERS } else { place.total_len };
        let request = ServerRequest::parse(&hdr, place.imm_offset, SLOT.capsule(len, data)).unwrap();
        prop_assert_eq!((request.usr_at, request.usr_len), (0, usr_len));
        prop_assert_eq!(request.data_len, data_len + u32::from(kind == 2));
    }
}
