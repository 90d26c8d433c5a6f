// SPDX-License-Identifier: GPL-2.0

//! Prefixes of addresses, and who may open an export.

use ibnbd_proto::access::{Access, AccessMode};
use ibnbd_proto::grant::{
    authorize, decide, export_name, may_come_from, unknown, Client, Grant, GrantRefusal,
    PathRefusal, PathUse, Rules,
};
use ibnbd_proto::prefix::{contains, list, Prefix, PrefixError, MAX_PREFIXES};
use ibtrs_proto::addr::Addr;
use proptest::prelude::*;

fn prefixes(text: &str) -> Result<Vec<Prefix>, PrefixError> {
    list(text.as_bytes())?.collect()
}

fn addr(text: &str) -> Addr {
    Addr::parse(text).unwrap()
}

#[test]
fn prefixes_are_shown_in_one_form() {
    for (text, shown) in [
        ("any", "any"),
        ("10.0.1.2", "10.0.1.2"),
        ("10.0.1.2/32", "10.0.1.2"),
        ("10.0.1.0/24", "10.0.1.0/24"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("10.0.0.0/9", "10.0.0.0/9"),
        ("FE80:0::0/10", "fe80::/10"),
        ("fd00::1", "fd00::1"),
        ("fd00::1/128", "fd00::1"),
        ("fd00::e/127", "fd00::e/127"),
        ("::/0", "::/0"),
        ("::ffff:10.0.1.2", "10.0.1.2"),
        ("::ffff:10.0.1.0/120", "10.0.1.0/24"),
        ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
        ("::fffe:0:0/95", "::fffe:0:0/95"),
        ("10.0.1.0/024", "10.0.1.0/24"),
    ] {
        let prefix = Prefix::parse(text).unwrap();
        assert_eq!(prefix.to_string(), shown);
        assert_eq!(Prefix::parse(shown), Ok(prefix));
    }
}

#[test]
fn what_is_no_prefix() {
    for text in [
        "",
        "Any",
        "x",
        "10.0.1",
        "10.0.1.256",
        "/24",
        "ip:10.0.1.2",
        "fe80::1%eth0",
        "10.0.1.2:1",
        "host1",
    ] {
        assert_eq!(Prefix::parse(text), Err(PrefixError::Address), "{text}");
    }
    for text in [
        "10.0.1.2/",
        "10.0.1.2/33",
        "10.0.1.2/+8",
        "10.0.1.2/-1",
        "fe80::/129",
        "fe80::/1/1",
        "10.0.1.2/999",
    ] {
        assert_eq!(Prefix::parse(text), Err(PrefixError::Length), "{text}");
    }
}

/// Nobody writes them on purpose: the length is wrong, or the address.
#[test]
fn host_bits_are_refused() {
    for (text, meant) in [
        ("10.0.1.2/24", "10.0.1.0/24"),
        ("10.0.1.1/31", "10.0.1.0/31"),
        ("10.0.1.2/9", "10.0.0.0/9"),
        ("10.0.1.2/0", "0.0.0.0/0"),
        ("fe80::1/10", "fe80::/10"),
        ("fd00::f/127", "fd00::e/127"),
        ("::1/0", "::/0"),
        ("::ffff:10.0.1.2/120", "10.0.1.0/24"),
        ("::ffff:10.0.1.2/96", "0.0.0.0/0"),
        ("::ffff:10.0.1.2/95", "::fffe:0:0/95"),
    ] {
        let meant = PrefixError::HostBits(Prefix::parse(meant).unwrap());
        assert_eq!(Prefix::parse(text), Err(meant), "{text}");
        assert_eq!(prefixes(&format!("any {text}")), Err(meant), "{text}");
    }
}

#[test]
fn lists() {
    let both = [Prefix::V4(0x0a00_0100, 24), Prefix::Any];
    for text in [
        "10.0.1.0/24 any",
        "10.0.1.0/24,any\n",
        "  10.0.1.0/24\t,\n any, ",
    ] {
        assert_eq!(prefixes(text).unwrap(), both, "{text:?}");
    }
    assert_eq!(prefixes(" ,\n"), Ok(vec![]));
    assert_eq!(prefixes("any x"), Err(PrefixError::Address));
    assert_eq!(prefixes("any\0"), Err(PrefixError::NotText));
    assert_eq!(list(b"\xff").err(), Some(PrefixError::NotText));
    let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127 ";
    let most = longest.repeat(MAX_PREFIXES);
    let shown: String = prefixes(&most)
        .unwrap()
        .iter()
        .map(|prefix| format!("{prefix} "))
        .collect();
    assert_eq!(shown, most);
    // They fit into a file.
    assert!(most.len() < 4095);
    assert_eq!(prefixes(&format!("{most} any")), Err(PrefixError::TooMany));
}

#[test]
fn addresses_of_prefixes() {
    for (text, inside, outside) in [
        (
            "10.0.1.0/24",
            &[
                "ip:10.0.1.0",
                "ip:10.0.1.255",
                "ip:::ffff:10.0.1.7",
                "gid:::ffff:10.0.1.7",
            ][..],
            &[
                "ip:10.0.0.255",
                "ip:10.0.2.0",
                "ip:fd00::1",
                "gid:::10.0.1.1",
            ][..],
        ),
        (
            "0.0.0.0/0",
            &["ip:255.255.255.255", "ip:::ffff:1.2.3.4"],
            &["ip:::1", "gid:fe80::1"],
        ),
        (
            "fe80::/10",
            &["ip:fe80::1%eth0", "ip:febf::1", "gid:fe80::2:c903:1:2"],
            &["ip:fec0::1", "ip:254.128.0.1"],
        ),
        (
            "::/0",
            &["ip:fd00::1", "gid:fe80::1"],
            &["ip:10.0.1.2", "ip:::ffff:10.0.1.2"],
        ),
        ("any", &["ip:fd00::1", "gid:fe80::1", "ip:10.0.1.2"], &[]),
        ("", &[], &["ip:fd00::1", "ip:10.0.1.2"]),
        (
            "10.0.1.2 fd00::1",
            &["ip:10.0.1.2", "ip:fd00::1"],
            &["ip:10.0.1.3", "ip:fd00::2"],
        ),
    ] {
        let prefixes = prefixes(text).unwrap();
        for one in inside {
            assert!(contains(&prefixes, &addr(one)), "{text} {one}");
        }
        for one in outside {
            assert!(!contains(&prefixes, &addr(one)), "{text} {one}");
        }
    }
}

const RW: Access = Access {
    mode: AccessMode::Rw,
    exclusive: false,
};
const LINKED: Client = Client::Authenticated {
    known: true,
    allowed: true,
};
const KNOWN: Client = Client::Authenticated {
    known: true,
    allowed: false,
};
const STRANGER: Client = Client::Authenticated {
    known: false,
    allowed: false,
};
const NOBODY: Client = Client::Unauthenticated;

fn nowhere(_: &[Prefix]) -> bool {
    false
}

#[test]
fn who_may_open() {
    let near = prefixes("10.0.1.0/24").unwrap();
    let rules = |any_host, unauthenticated| Rules {
        mode: AccessMode::Rw,
        any_host,
        unauthenticated,
        enabled: true,
    };
    let (inside, both): (&[_], &[_]) = (
        &["ip:10.0.1.2", "ip:10.0.1.3"],
        &["ip:10.0.1.2", "ip:10.0.2.2"],
    );
    for (any_host, unauthenticated, client, sources, expected) in [
        (false, &[][..], LINKED, both, Ok(Grant::Host)),
        (true, &[], LINKED, both, Ok(Grant::Host)),
        (false, &[], KNOWN, both, Err(GrantRefusal::Host)),
        (true, &[], KNOWN, both, Ok(Grant::AnyHost)),
        (false, &[], STRANGER, both, Err(GrantRefusal::NoHost)),
        (true, &[], STRANGER, both, Ok(Grant::AnyHost)),
        // Strangers and authenticated sessions have different rights.
        (false, &near, KNOWN, inside, Err(GrantRefusal::Host)),
        (true, &[], NOBODY, inside, Err(GrantRefusal::Authentication)),
        (true, &near, NOBODY, inside, Ok(Grant::Addresses)),
        (false, &near, NOBODY, inside, Ok(Grant::Addresses)),
        (true, &near, NOBODY, both, Err(GrantRefusal::Address)),
        (true, &near, NOBODY, &[], Err(GrantRefusal::Address)),
    ] {
        let from = |list: &[Prefix]| {
            !sources.is_empty() && sources.iter().all(|one| contains(list, &addr(one)))
        };
        let result = decide(&rules(any_host, unauthenticated), client, from, RW);
        assert_eq!(
            result, expected,
            "{any_host} {unauthenticated:?} {client:?}"
        );
    }
    let disabled = Rules {
        enabled: false,
        ..rules(true, &near)
    };
    assert_eq!(
        decide(&disabled, LINKED, nowhere, RW),
        Err(GrantRefusal::Disabled)
    );
    // A session that may not open it does not learn whether it is enabled.
    let disabled = Rules {
        enabled: false,
        ..rules(false, &near)
    };
    assert_eq!(
        decide(&disabled, KNOWN, nowhere, RW),
        Err(GrantRefusal::Host)
    );
}

#[test]
fn modes() {
    use AccessMode::{Migration, Ro, Rw};
    for (widest, yes) in [
        (Ro, &[(Ro, false)][..]),
        (Rw, &[(Ro, false), (Ro, true), (Rw, false), (Rw, true)]),
        (
            Migration,
            &[
                (Ro, false),
                (Ro, true),
                (Rw, false),
                (Rw, true),
                (Migration, false),
                (Migration, true),
            ],
        ),
    ] {
        for mode in AccessMode::ALL {
            for exclusive in [false, true] {
                let rules = Rules {
                    mode: widest,
                    any_host: false,
                    unauthenticated: &[],
                    enabled: true,
                };
                let granted =
                    decide(&rules, LINKED, nowhere, Access { mode, exclusive }) == Ok(Grant::Host);
                assert_eq!(
                    granted,
                    yes.contains(&(mode, exclusive)),
                    "{widest} {mode} {exclusive}"
                );
            }
        }
    }
}

#[test]
fn paths_of_hosts() {
    let near = prefixes("10.0.1.0/24").unwrap();
    let (inside, outside) = (addr("ip:10.0.1.2"), addr("ip:10.0.2.2"));
    let of = |paths, connections, memory| PathUse {
        paths,
        connections,
        memory,
    };
    let (any, most) = (of(0, 0, 0), of(u32::MAX, u32::MAX, u64::MAX));
    assert_eq!(authorize(&[], &any, &outside, &most, u64::MAX), Ok(()));
    assert_eq!(authorize(&near, &any, &inside, &most, u64::MAX), Ok(()));
    assert_eq!(
        authorize(&near, &any, &outside, &of(1, 1, 1), 0),
        Err(PathRefusal::Address)
    );
    for (limits, refusal) in [
        (of(2, 0, 0), PathRefusal::Paths),
        (of(0, 2, 0), PathRefusal::Connections),
        (of(0, 0, 2), PathRefusal::Memory),
    ] {
        assert_eq!(authorize(&near, &limits, &inside, &of(2, 2, 2), 2), Ok(()));
        assert_eq!(
            authorize(&near, &limits, &inside, &of(3, 3, 3), 0),
            Err(refusal)
        );
        assert_eq!(authorize(&[], &limits, &inside, &most, 0), Err(refusal));
    }
    // Paths that are being closed keep their memory: twice the limit with them.
    let (limits, one) = (of(0, 0, 2), of(1, 1, 1));
    assert_eq!(authorize(&[], &limits, &inside, &one, 3), Ok(()));
    assert_eq!(
        authorize(&[], &limits, &inside, &one, 4),
        Err(PathRefusal::Memory)
    );
    assert!(
        may_come_from(&[], &outside)
            && may_come_from(&near, &inside)
            && !may_come_from(&near, &outside)
    );
}

#[test]
fn names_of_exports() {
    for (device, name) in [
        ("disk1", "disk1"),
        ("/disk1", "disk1"),
        ("//disk1", "/disk1"),
        ("/dev/disk1", "dev/disk1"),
        ("/", ""),
    ] {
        assert_eq!(export_name(device), name);
    }
}

/// The prefix with these first bits, whatever is behind them.
fn beginning(text: &str) -> Prefix {
    match Prefix::parse(text) {
        Err(PrefixError::HostBits(prefix)) => prefix,
        other => other.unwrap(),
    }
}

#[test]
fn only_hosts_learn_which_exports_exist() {
    let closed = Rules {
        mode: AccessMode::Rw,
        any_host: false,
        unauthenticated: &[],
        enabled: true,
    };
    for client in [STRANGER, NOBODY] {
        let refused = decide(&closed, client, nowhere, RW);
        let errno = refused.map_err(|refusal| refusal.errno());
        assert_eq!(errno, Err(unknown(false).errno()));
    }
    assert_eq!(unknown(true), GrantRefusal::Unknown);
}

fn any_prefix() -> impl Strategy<Value = Prefix> {
    prop_oneof![
        1 => Just(Prefix::Any),
        4 => (any::<[u8; 4]>(), 0u8..=32).prop_map(|(a, bits)| {
            beginning(&format!("{}/{bits}", std::net::Ipv4Addr::from(a)))
        }),
        4 => (any::<[u8; 16]>(), 0u8..=128).prop_map(|(a, bits)| {
            beginning(&format!("{}/{bits}", std::net::Ipv6Addr::from(a)))
        }),
    ]
}

proptest! {
    #[test]
    fn what_is_shown_is_read(prefix in any_prefix()) {
        prop_assert_eq!(Prefix::parse(&prefix.to_string()), Ok(prefix));
    }

    /// An address is in the prefix exactly if its first bits are those, bit by bit.
    #[test]
    fn the_first_bits_decide(prefix in any::<[u8; 16]>(), bits in 0u8..=128, flip in 0u8..=128) {
        // Others are IPv4 addresses.
        prop_assume!(prefix[0] != 0);
        let mut other = u128::from_be_bytes(prefix);
        if flip < 128 {
            other ^= 1 << (127 - flip);
        }
        prop_assume!(other.to_be_bytes()[0] != 0);
        let text = format!("{}/{bits}", std::net::Ipv6Addr::from(prefix));
        let prefix = beginning(&text);
        prop_assert_eq!(prefix.contains(&Addr::Gid(other.to_be_bytes())), flip >= bits);
        prop_assert_eq!(prefix.contains(&Addr::V6(other.to_be_bytes(), None)), flip >= bits);
    }

    #[test]
    fn the_first_bits_of_ipv4(prefix in any::<u32>(), bits in 0u8..=32, other in any::<u32>()) {
        let text = format!("{}/{bits}", std::net::Ipv4Addr::from(prefix));
        let same = (prefix ^ other).leading_zeros() >= u32::from(bits);
        prop_assert_eq!(beginning(&text).contains(&Addr::V4(other.to_be_bytes())), same);
    }

    /// A client without authentication is refused from an address outside of all prefixes, whatever
    /// else is set.
    #[test]
    fn strangers_come_from_prefixes(
        list in prop::collection::vec(any_prefix(), 0..4),
        sources in prop::collection::vec(any::<[u8; 4]>(), 0..4),
        any_host: bool,
        enabled: bool,
    ) {
        let rules = Rules { mode: AccessMode::Migration, any_host, unauthenticated: &list, enabled };
        let sources: Vec<_> = sources.into_iter().map(Addr::V4).collect();
        let from = |list: &[Prefix]| !sources.is_empty() && sources.iter().all(|one| contains(list, one));
        let granted = decide(&rules, NOBODY, from, RW).is_ok();
        let all_in = !sources.is_empty() && sources.iter().all(|addr| contains(&list, addr));
        prop_assert_eq!(granted, enabled && all_in);
    }

    #[test]
    fn no_text_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(words) = list(&bytes) {
            for word in words.flatten() {
                prop_assert_eq!(Prefix::parse(&word.to_string()), Ok(word));
            }
        }
    }
}
