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

proptest! {
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
