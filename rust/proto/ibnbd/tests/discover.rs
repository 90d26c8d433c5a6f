// SPDX-License-Identifier: GPL-2.0

//! Discovery: the golden bytes of Documentation/protocol.md, and lists that are false.

use ibnbd_proto::access::AccessMode;
use ibnbd_proto::msg::{
    Discover, DiscoverPage, DiscoverRsp, Listed, MsgError, Portal, UserMsg, DISCOVER_LEN,
    DISCOVER_RSP_LEN, MAX_PORTALS, MAX_SECTORS,
};
use ibtrs_proto::addr::Addr;
use ibtrs_proto::name::{DevicePath, NameError};
use proptest::prelude::*;

fn name(text: &str) -> DevicePath<'_> {
    DevicePath::new(text.as_bytes()).unwrap()
}

fn portal(text: &str, port: u16) -> Option<Portal> {
    Portal::new(Addr::parse(text).unwrap(), port)
}

fn listed(text: &str) -> Listed<'_> {
    Listed {
        name: name(text),
        access_mode: AccessMode::Rw,
        nsectors: 0x0007_0605_0403_0201,
        logical_block_size: 4096,
    }
}

/// An answer of the golden bytes, in a buffer that was used before.
fn page(portals: &[Portal], exports: &[Listed<'_>], more: bool, unlisted: bool) -> Vec<u8> {
    let mut buf = vec![0xEE; DISCOVER_RSP_LEN + 8];
    let mut page = DiscoverPage::new(&mut buf).unwrap();
    assert!(portals.iter().all(|portal| page.add_portal(portal)));
    assert!(exports.iter().all(|export| page.add_export(export)));
    assert_eq!(usize::from(page.exports()), exports.len());
    let len = page.finish(more, unlisted);
    assert!(buf[DISCOVER_RSP_LEN..] == [0xEE; 8]);
    buf.truncate(len);
    buf
}

const HEAD: usize = 16;
const PORTAL: usize = 20;
const EXPORT: usize = 12;

#[test]
fn request_golden() {
    let first = Discover { after: None };
    let mut want = [0; DISCOVER_LEN];
    want[0] = 6;
    assert_eq!(first.encode(), want);
    assert_eq!(Discover::decode(&want), Ok(first));
    let next = Discover {
        after: Some(name("ram0")),
    };
    want[6..10].copy_from_slice(b"ram0");
    assert_eq!(next.encode(), want);
    assert_eq!(UserMsg::parse(&want, true), Ok(UserMsg::Discover(next)));
    // Padding and reserved bytes do not count, nor does what follows the message.
    want[2..6].fill(0xAA);
    want[11..261].fill(0xAA);
    want[261..].fill(0xAA);
    assert_eq!(
        Discover::decode(&[&want[..], &[0xAA; 9]].concat()),
        Ok(next)
    );
    for len in 0..DISCOVER_LEN {
        assert_eq!(Discover::decode(&want[..len]), Err(MsgError::Short));
    }
    want[6..].fill(b'A');
    assert_eq!(
        Discover::decode(&want),
        Err(MsgError::Name(NameError::NoNul))
    );
    want[6..12].copy_from_slice(b"a b\0cc");
    assert_eq!(
        Discover::decode(&want),
        Err(MsgError::Name(NameError::NotPrintable))
    );
    want[0] = 2;
    assert_eq!(Discover::decode(&want), Err(MsgError::Type(2)));
}

#[test]
fn answer_golden() {
    let portals = [
        portal("ip:10.0.1.1", 1234).unwrap(),
        portal("ip:fd00::1", 0x0201).unwrap(),
        portal("gid:fe80::2", 1234).unwrap(),
    ];
    let exports = [
        Listed {
            access_mode: AccessMode::Ro,
            nsectors: 0,
            logical_block_size: 0,
            ..listed("d")
        },
        listed("ram0"),
    ];
    let bytes = page(&portals, &exports, true, false);
    let mut want = vec![7, 0, 0, 0, 2, 0, 3, 1];
    want.extend([0; 8]);
    want.extend([1, 0, 0xD2, 4, 10, 0, 1, 1]);
    want.extend([0; 12]);
    want.extend([2, 0, 1, 2, 0xFD]);
    want.extend([0; 14]);
    want.push(1);
    want.extend([3, 0, 0xD2, 4, 0xFE, 0x80]);
    want.extend([0; 13]);
    want.push(2);
    want.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    want.extend(b"d");
    want.extend([4, 1, 0, 0x10, 1, 2, 3, 4, 5, 6, 7, 0]);
    want.extend(b"ram0");
    assert_eq!(bytes, want);
    let rsp = DiscoverRsp::decode(&bytes, None).unwrap();
    assert!(rsp.more && !rsp.unlisted);
    assert_eq!(rsp.last, Some(name("ram0")));
    assert!(rsp.portals().eq(portals) && rsp.exports().eq(exports));
    with_zeroes_behind(&bytes);
    // Cut anywhere, an entry is missing.
    for len in 0..bytes.len() {
        assert_eq!(
            DiscoverRsp::decode(&bytes[..len], None),
            Err(MsgError::Short)
        );
    }
    let none = page(&[], &[], false, true);
    assert_eq!(none, [7, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    let rsp = DiscoverRsp::decode(&none, None).unwrap();
    assert!(!rsp.more && rsp.unlisted);
    assert_eq!((rsp.portals().count(), rsp.exports().count()), (0, 0));
}

/// Zeroes behind an answer, up to the length that was asked for, change nothing.
fn with_zeroes_behind(bytes: &[u8]) {
    let mut longer = bytes.to_vec();
    longer.resize(DISCOVER_RSP_LEN, 0);
    let (short, long) = (
        DiscoverRsp::decode(bytes, None),
        DiscoverRsp::decode(&longer, None),
    );
    let (short, long) = (short.unwrap(), long.unwrap());
    assert!(short.exports().eq(long.exports()) && short.portals().eq(long.portals()));
}

#[test]
fn a_portal_is_where_others_can_connect() {
    for bad in [
        "ip:127.0.0.1",
        "ip:0.0.0.0",
        "ip:0.1.2.3",
        "ip:240.0.0.1",
        "ip:255.1.2.3",
        "ip:224.0.0.1",
        "ip:255.255.255.255",
        "ip:::",
        "ip:::1",
        "ip:ff02::1",
        "ip:::ffff:10.0.0.1",
        // Its scope is that of the server.
        "ip:fe80::1",
        "ip:fe80::1%3",
        "gid:::",
        "gid:ff02::1",
        "gid:::ffff:10.0.0.1",
    ] {
        assert_eq!(portal(bad, 1234), None, "{bad}");
    }
    assert_eq!(portal("ip:10.0.0.1", 0), None);
    let portal = portal("gid:fe80::1", 1).unwrap();
    let shown = "gid:fe80:0000:0000:0000:0000:0000:0000:0001";
    assert_eq!(portal.addr().to_string(), shown);
    assert_eq!(portal.port(), 1);
}

#[test]
fn false_lists() {
    let good = page(
        &[portal("ip:10.0.1.1", 1234).unwrap()],
        &[listed("ram0")],
        false,
        false,
    );
    let with = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        DiscoverRsp::decode(&bad, None).map(|_| ())
    };
    assert_eq!(with(0, &[7]), Ok(()));
    assert_eq!(with(0, &[6]), Err(MsgError::Type(6)));
    // More entries than there are.
    assert_eq!(with(4, &[2]), Err(MsgError::Short));
    assert_eq!(with(4, &[0xFF, 0xFF]), Err(MsgError::Short));
    // The export's 16 bytes are none.
    assert_eq!(with(6, &[2]), Err(MsgError::Short));
    assert_eq!(with(6, &[65]), Err(MsgError::Portal));
    assert_eq!(with(6, &[255]), Err(MsgError::Portal));
    // None, and yet more.
    assert_eq!(with(4, &[0, 0, 0, 1]), Err(MsgError::Endless));
    // Bits that are not there yet, and reserved bytes.
    assert_eq!(with(7, &[0xFC; 9]), Ok(()));
    let at = HEAD;
    assert_eq!(with(at + 2, &[0, 0]), Err(MsgError::Portal));
    assert_eq!(with(at + 4, &[127]), Err(MsgError::Portal));
    let at = HEAD + PORTAL;
    assert_eq!(with(at, &[0]), Err(MsgError::Name(NameError::Empty)));
    assert_eq!(with(at, &[5]), Err(MsgError::Short));
    assert_eq!(with(at, &[255]), Err(MsgError::Short));
    assert_eq!(with(at + 2, &[1, 2]), Err(MsgError::BlockSize(0x201)));
    assert_eq!(with(at + 2, &[0, 1]), Err(MsgError::BlockSize(256)));
    let huge = MAX_SECTORS + 1;
    assert_eq!(
        with(at + 4, &huge.to_le_bytes()),
        Err(MsgError::Capacity(huge))
    );
    assert_eq!(with(at + 4, &MAX_SECTORS.to_le_bytes()), Ok(()));
    for bad in [b"a am", b"a\nam", b"a\0am", b"a\x1bam"] {
        let e = with(at + EXPORT, bad).unwrap_err();
        assert_eq!(e, MsgError::Name(NameError::NotPrintable));
    }
    assert_eq!(
        with(at + EXPORT, b"\xff"),
        Err(MsgError::Name(NameError::NotUtf8))
    );
    // A name of 255 bytes does not fit the field of OPEN.
    let mut long = good[..at].to_vec();
    long[4] = 1;
    long.extend([255, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    long.extend([b'x'; 255]);
    assert_eq!(
        DiscoverRsp::decode(&long, None),
        Err(MsgError::Name(NameError::TooLong))
    );
}

#[test]
fn names_increase() {
    let names = |names: &[&str], after| {
        let exports: Vec<_> = names.iter().map(|name| listed(name)).collect();
        let bytes = page(&[], &exports, false, false);
        DiscoverRsp::decode(&bytes, after).map(|rsp| rsp.exports().count())
    };
    assert_eq!(names(&["B", "a", "a-", "aa", "é"], None), Ok(5));
    for bad in [["a", "a"], ["b", "a"], ["aa", "a"], ["a", "B"]] {
        assert_eq!(names(&bad, None), Err(MsgError::Order), "{bad:?}");
    }
    // From page to page as well, so that no list goes on for ever.
    assert_eq!(names(&["b", "c"], Some(name("a"))), Ok(2));
    assert_eq!(names(&[], Some(name("a"))), Ok(0));
    for after in ["b", "bb", "c"] {
        let found = names(&["b", "c"], Some(name(after)));
        assert_eq!(found, Err(MsgError::Order), "{after}");
    }
}

/// A later version of the protocol may have more of them.
#[test]
fn unknown_families_and_modes_are_left_out() {
    let portals = [
        portal("ip:10.0.1.1", 1234).unwrap(),
        portal("ip:10.0.2.1", 1234).unwrap(),
    ];
    let mut bytes = page(&portals, &[listed("a"), listed("b")], true, false);
    for family in [0, 4, 255] {
        bytes[HEAD] = family;
        let rsp = DiscoverRsp::decode(&bytes, None).unwrap();
        assert!(rsp.portals().eq([portals[1]]));
        assert_eq!(rsp.exports().count(), 2);
    }
    let second = HEAD + 2 * PORTAL + EXPORT + 1;
    for mode in [3, 255] {
        bytes[second + 1] = mode;
        let rsp = DiscoverRsp::decode(&bytes, None).unwrap();
        assert!(rsp.exports().eq([listed("a")]));
        // The next question is about what follows it.
        assert_eq!((rsp.last, rsp.more), (Some(name("b")), true));
    }
    // They have the order of the others, and are checked as these are.
    bytes[second + EXPORT] = b'a';
    assert_eq!(DiscoverRsp::decode(&bytes, None), Err(MsgError::Order));
    bytes[second + EXPORT] = b' ';
    let bad = MsgError::Name(NameError::NotPrintable);
    assert_eq!(DiscoverRsp::decode(&bytes, None), Err(bad));
}

#[test]
fn a_page_has_an_end() {
    let mut short = [0; DISCOVER_RSP_LEN - 1];
    assert!(DiscoverPage::new(&mut short).is_none());
    let mut buf = [0; DISCOVER_RSP_LEN];
    let mut page = DiscoverPage::new(&mut buf).unwrap();
    let long = "x".repeat(254);
    let portal = portal("ip:10.0.1.1", 1234).unwrap();
    let mut portals = 0;
    while page.add_portal(&portal) {
        portals += 1;
    }
    assert_eq!(portals, MAX_PORTALS);
    let rest = DISCOVER_RSP_LEN - HEAD - PORTAL * MAX_PORTALS;
    let (whole, left) = (rest / (EXPORT + 254), rest % (EXPORT + 254));
    for number in 0..whole {
        assert!(page.add_export(&listed(&format!("{number:0254}"))));
    }
    // A shorter entry may still fit.
    assert!(!page.add_export(&listed(&long)));
    assert_eq!(usize::from(page.exports()), whole);
    let last = "y".repeat(left - EXPORT);
    assert!(page.add_export(&listed(&last)));
    assert!(!page.add_export(&listed("z")) && !page.add_portal(&portal));
    let exports = page.exports();
    assert_eq!(page.finish(true, true), DISCOVER_RSP_LEN);
    let rsp = DiscoverRsp::decode(&buf, None).unwrap();
    assert_eq!(rsp.portals().count(), portals);
    assert_eq!(rsp.exports().count(), usize::from(exports));
    assert_eq!(rsp.exports().last(), Some(listed(&last)));
    // However long the names are, a page has exports even with all portals.
    assert!(whole > 1);
}

#[test]
fn a_size_that_no_client_takes_is_unknown() {
    let listed = |nsectors, block| {
        let listed = Listed::new(name("d"), AccessMode::Ro, nsectors, block);
        let bytes = page(&[], &[listed], false, false);
        let rsp = DiscoverRsp::decode(&bytes, None).unwrap();
        let found = rsp.exports().next().unwrap();
        assert_eq!(found, listed);
        (found.nsectors, found.logical_block_size)
    };
    assert_eq!(listed(8, 512), (8, 512));
    assert_eq!(listed(MAX_SECTORS, 32_768), (MAX_SECTORS, 32_768));
    assert_eq!(listed(0, 4096), (0, 4096));
    for (nsectors, block) in [
        (8, 0),
        (8, 256),
        (8, 513),
        (8, 65_536),
        (8, 66_048),
        (MAX_SECTORS + 1, 512),
        (u64::MAX, 512),
    ] {
        assert_eq!(listed(nsectors, block), (0, 0));
    }
}

#[test]
fn no_portal_comes_after_an_export() {
    let mut buf = [0; DISCOVER_RSP_LEN];
    let mut page = DiscoverPage::new(&mut buf).unwrap();
    assert!(page.add_export(&listed("d")));
    assert!(!page.add_portal(&portal("ip:10.0.1.1", 1234).unwrap()));
    let len = page.finish(false, false);
    let rsp = DiscoverRsp::decode(&buf[..len], None).unwrap();
    assert_eq!((rsp.portals().count(), rsp.exports().count()), (0, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_written_is_read(
        names in prop::collection::btree_set("[a-z/é]{1,60}", 0..40),
        hosts in prop::collection::vec((1u8..224, any::<[u8; 3]>(), 1u16..), 0..MAX_PORTALS),
        sizes in prop::collection::vec((0..=MAX_SECTORS, 0usize..8, 0usize..3), 40),
        more: bool,
        unlisted: bool,
    ) {
        let portals: Vec<_> = hosts
            .iter()
            .filter_map(|(a, [b, c, d], port)| Portal::new(Addr::V4([*a, *b, *c, *d]), *port))
            .collect();
        let blocks = [0, 512, 1024, 2048, 4096, 8192, 16384, 32768];
        let exports: Vec<_> = names
            .iter()
            .zip(&sizes)
            .map(|(text, (nsectors, block, mode))| Listed {
                name: name(text),
                access_mode: AccessMode::ALL[*mode],
                nsectors: *nsectors,
                logical_block_size: blocks[*block],
            })
            .collect();
        let mut buf = vec![0xEE; DISCOVER_RSP_LEN];
        let mut page = DiscoverPage::new(&mut buf).unwrap();
        prop_assert!(portals.iter().all(|portal| page.add_portal(portal)));
        let fitted = exports.iter().take_while(|export| page.add_export(export)).count();
        let more = more && fitted > 0;
        let len = page.finish(more, unlisted);
        let rsp = DiscoverRsp::decode(&buf[..len], None).unwrap();
        prop_assert_eq!((rsp.more, rsp.unlisted), (more, unlisted));
        prop_assert!(rsp.portals().eq(portals));
        prop_assert!(rsp.exports().eq(exports.into_iter().take(fitted)));
    }

    #[test]
    fn anything(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let message = [&[7, 0, 0, 0][..], &bytes].concat();
        if let Ok(rsp) = DiscoverRsp::decode(&message, None) {
            prop_assert!(rsp.portals().count() <= MAX_PORTALS);
            prop_assert!(!rsp.more || rsp.last.is_some());
        }
        let _ = Discover::decode(&bytes);
    }
}
