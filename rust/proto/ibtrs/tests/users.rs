// SPDX-License-Identifier: GPL-2.0

//! Parsers of user input: names, addresses, options, values.

use ibtrs_proto::addr::{Addr, AddrError, PathAddr};
use ibtrs_proto::errno::Errno;
use ibtrs_proto::listen::{self, ListenError};
use ibtrs_proto::name::{DevicePath, NameError, SessionName};
use ibtrs_proto::opts::{Key, OptProblem, Options};
use ibtrs_proto::text::{self, TextError};
use proptest::prelude::*;

#[test]
fn session_names() {
    let new = |b: &'static [u8]| SessionName::new(b).map(|n| n.as_str());
    assert_eq!(new(b"sess-1_A:b@c"), Ok("sess-1_A:b@c"));
    assert_eq!(new(b"host-7@server_1:a+b"), Ok("host-7@server_1:a+b"));
    assert_eq!(new(b""), Err(NameError::Empty));
    // Whatever means something to a shell, and whatever a command takes for an option.
    for byte in b"$`;&|<>()[]{}*?!#~'\"\\^%=," {
        let name = [b'a', *byte, b'b'];
        assert_eq!(SessionName::new(&name), Err(NameError::Unsafe), "{name:?}");
    }
    assert_eq!(new("größe".as_bytes()), Err(NameError::Unsafe));
    assert_eq!(new(b"-rf"), Err(NameError::Unsafe));
    assert_eq!(NameError::Unsafe.errno(), Errno::EINVAL);
    for bad in [&b"a/b"[..], b"a.b", b".", b"..", b"/"] {
        assert_eq!(new(bad), Err(NameError::SlashOrDot));
    }
    for bad in [
        &b"a b"[..],
        b"a\0b",
        b"a\tb",
        b"a\x7fb",
        "a\u{a0}b".as_bytes(),
    ] {
        assert_eq!(new(bad), Err(NameError::NotPrintable));
    }
    assert_eq!(new(b"\xff"), Err(NameError::NotUtf8));
    assert!(SessionName::new(&[b'x'; 254]).is_ok());
    let long = SessionName::new(&[b'x'; 255]);
    assert_eq!(long, Err(NameError::TooLong));
    assert_eq!(NameError::TooLong.errno(), Errno::ENAMETOOLONG);
    assert_eq!(NameError::SlashOrDot.errno(), Errno::EINVAL);
}

#[test]
fn device_paths() {
    assert_eq!(DevicePath::new(b"/dev/ram0").unwrap().as_str(), "/dev/ram0");
    assert!(DevicePath::new(&[b'x'; 254]).is_ok());
    assert_eq!(DevicePath::new(&[b'x'; 255]), Err(NameError::TooLong));
    assert_eq!(DevicePath::new(b""), Err(NameError::Empty));
    assert_eq!(DevicePath::new(b"a\nb"), Err(NameError::NotPrintable));
}

#[test]
fn addresses_print_their_canonical_form() {
    for (text, canonical) in [
        ("ip:10.0.0.1", "ip:10.0.0.1"),
        ("ip:fe80:0:0:0:0:0:0:1", "ip:fe80::1"),
        ("ip:fe80::1%eth0", "ip:fe80::1%eth0"),
        ("ip:fe80::1%3", "ip:fe80::1%3"),
        ("ip:2001:DB8::0:1", "ip:2001:db8::1"),
        (
            "gid:fe80::202:c903:0:1",
            "gid:fe80:0000:0000:0000:0202:c903:0000:0001",
        ),
        ("ip:10.0.0.2,ip:10.0.0.1", "ip:10.0.0.2@ip:10.0.0.1"),
        ("ip:10.0.0.2@ip:10.0.0.1", "ip:10.0.0.2@ip:10.0.0.1"),
        ("ip:::1,ip:::2", "ip:::1@ip:::2"),
    ] {
        let a = PathAddr::parse(text).unwrap();
        assert_eq!(a.to_string(), canonical);
        assert_eq!(PathAddr::parse(canonical), Ok(a));
    }
    let a = PathAddr::parse_line(b" ip:1.2.3.4\n").unwrap();
    assert_eq!(a.dst, Addr::V4([1, 2, 3, 4]));
    assert_eq!(a.src, None);
}

#[test]
fn bad_addresses() {
    use AddrError::*;
    for (text, e) in [
        ("", Empty),
        (",", Empty),
        ("ip:1.2.3.4@", Empty),
        ("@ip:1.2.3.4", Empty),
        ("1.2.3.4", Prefix),
        ("IP:1.2.3.4", Prefix),
        ("ib:1.2.3.4", Prefix),
        ("ip:", Ip),
        ("ip:1.2.3", Ip),
        ("ip:1.2.3.4.5", Ip),
        ("ip:01.2.3.4", Ip),
        ("ip:1.2.3.256", Ip),
        ("ip:1.2.3.4:1234", Ip),
        ("ip:1.2.3.4%eth0", Ip),
        ("ip:[::1]", Ip),
        ("ip:1::2::3", Ip),
        ("ip: 1.2.3.4", Ip),
        ("gid:", Gid),
        ("gid:fe80", Gid),
        ("gid:1.2.3.4", Gid),
        ("gid:fe80::1%eth0", Gid),
        ("ip:fe80::1%", Scope),
        ("ip:fe80::1%abcdefghijklmnop", Scope),
        ("ip:fe80::1%a%b", Scope),
        ("ip:fe80::1%a/b", Scope),
        ("ip:2001:db8::1%eth0", Scope),
        ("ip:1.2.3.4,ip:1.2.3.5,ip:1.2.3.6", TooMany),
        ("ip:1.2.3.4@ip:1.2.3.5,", TooMany),
        ("ip:1.2.3.4,ip:::1", Mixed),
        ("gid:fe80::1,ip:fe80::1", Mixed),
        ("ip:0.0.0.0", Destination),
        ("ip:255.255.255.255", Destination),
        ("ip:224.0.0.1", Destination),
        ("ip:::", Destination),
        ("ip:ff02::1", Destination),
        ("gid:::", Destination),
    ] {
        assert_eq!(PathAddr::parse(text), Err(e), "{text:?}");
        assert_eq!(e.errno(), Errno::EINVAL);
    }
    assert_eq!(PathAddr::parse_line(b"ip:1.2.3.4\0"), Err(NotText));
    assert_eq!(PathAddr::parse_line(b"\xFF"), Err(NotText));
    assert!(PathAddr::parse("ip:fe80::1%abcdefghijklmno").is_ok());
}

#[test]
fn address_details() {
    let mapped = Addr::parse("ip:::ffff:1.2.3.4").unwrap();
    assert_eq!(mapped.unmapped(), Addr::V4([1, 2, 3, 4]));
    assert_eq!(
        Addr::parse("ip:::1").unwrap().unmapped(),
        Addr::parse("ip:::1").unwrap()
    );
    let gid = |text: &str| Addr::parse(text).unwrap().roce_gid();
    assert_eq!(gid("ip:1.2.3.4"), gid("gid:::ffff:1.2.3.4"));
    assert_eq!(gid("ip:fe80::1%eth0"), gid("gid:fe80::1"));
    assert_ne!(gid("ip:1.2.3.4"), gid("ip:1.2.3.5"));
    assert_eq!(mapped.roce_gid(), mapped.unmapped().roce_gid());
    let scope = |t: &str| match Addr::parse(t) {
        Ok(Addr::V6(_, Some(s))) => s,
        other => panic!("{other:?}"),
    };
    assert_eq!(scope("ip:fe80::1%ib0.8001").as_str(), "ib0.8001");
    assert_eq!(scope("ip:fe80::1%ib0").index(), None);
    assert_eq!(scope("ip:fe80::1%17").index(), Some(17));
    assert_eq!(scope("ip:fe80::1%99999999999").index(), None);
}

const TABLE: [Key; 3] = [
    Key::required("name"),
    Key::optional("mode"),
    Key::repeatable("path", 3),
];

#[test]
fn options() {
    let o = Options::parse(b"  path=a\tname=n=1\n\npath=b  mode=rw\n", &TABLE).unwrap();
    assert_eq!(o.get("name"), Some("n=1"));
    assert_eq!(o.get("mode"), Some("rw"));
    assert_eq!(o.all("path").collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(o.count("path"), 2);
    assert_eq!(o.get("nope"), None);
    // A name is not a prefix of another.
    assert_eq!(o.get("pat"), None);
}

#[test]
fn bad_options() {
    use OptProblem::*;
    for (line, problem, option) in [
        (&b""[..], Missing, "name"),
        (b" \t\n", Missing, "name"),
        (b"mode=rw", Missing, "name"),
        (b"name=n nam=x", Unknown, "nam"),
        (b"name=n Name=x", Unknown, "Name"),
        (b"name=n =x", Unknown, ""),
        (b"name=n x", Unknown, "x"),
        (b"name=n name=n", Doubled, "name"),
        (b"mode=a name=n mode=b", Doubled, "mode"),
        (b"path=a path=b path=c path=d name=n", TooMany, "path"),
        (b"name=", NoValue, "name"),
        (b"name", NoValue, "name"),
        (b"name =n", NoValue, "name"),
        (b"name=a\0b", NotText, ""),
        (b"name=a\rb", NotText, ""),
        (b"name=a\x1b[31m", NotText, ""),
        (b"name=\xff", NotText, ""),
    ] {
        let e = Options::parse(line, &TABLE).unwrap_err();
        assert_eq!((e.problem, e.option), (problem, option), "{line:?}");
        assert_eq!(e.errno(), Errno::EINVAL);
    }
    let e = Options::parse(b"name=n nam=x", &TABLE).unwrap_err();
    assert_eq!(e.to_string(), "nam: no such option");
    let e = Options::parse(b"\0", &TABLE).unwrap_err();
    assert_eq!(e.to_string(), "options are not printable text");
}

#[test]
fn small_texts() {
    assert_eq!(text::line(b" a b \n"), Ok("a b"));
    assert_eq!(text::line(b"a\0"), Err(TextError::NotText));
    for (t, n) in [
        (&b"0"[..], 0),
        (b"42\n", 42),
        (b"0x1F", 31),
        (b"0XfF", 255),
        (b"017", 15),
        (b"18446744073709551615", u64::MAX),
    ] {
        assert_eq!(text::number(t), Ok(n));
    }
    for t in [
        &b""[..],
        b"-1",
        b"+1",
        b"0x",
        b"0x+1",
        b"0x-1",
        b"08",
        b"1f",
        b"1 2",
        "0\u{e4}".as_bytes(),
    ] {
        assert_eq!(text::number(t), Err(TextError::Value), "{t:?}");
    }
    assert_eq!(text::number(b"18446744073709551616"), Err(TextError::Range));
    assert_eq!(TextError::Range.errno(), Errno::ERANGE);
    assert_eq!(text::one(b"1\n"), Ok(()));
    assert_eq!(text::one(b"0"), Err(TextError::Value));
    assert_eq!(text::one(b"11"), Err(TextError::Value));
    assert_eq!(text::reset(b"0\n"), Ok(()));
    assert_eq!(text::reset(b"1"), Ok(()));
    assert_eq!(text::reset(b"2"), Err(TextError::Value));
    assert_eq!(text::decimal(b"-5", -5, 5), Ok(-5));
    assert_eq!(text::decimal(b"6", -5, 5), Err(TextError::Range));
    assert_eq!(text::decimal(b"--5", -5, 5), Err(TextError::Value));
}

/// Texts that look like addresses.
fn addressish() -> impl Strategy<Value = String> {
    "(ip:|gid:|)[0-9a-f:.%@, ]{0,40}"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_text_never_panics(b in prop::collection::vec(any::<u8>(), 0..300), s in ".{0,80}") {
        let _ = SessionName::new(&b);
        let _ = DevicePath::new(&b);
        let _ = PathAddr::parse_line(&b);
        let _ = PathAddr::parse(&s);
        let _ = Options::parse(&b, &TABLE);
        let _ = Options::parse(s.as_bytes(), &TABLE);
        let _ = text::number(&b);
        let _ = text::number(s.as_bytes());
        let _ = text::decimal(&b, i64::MIN, i64::MAX);
    }

    #[test]
    fn what_parses_prints_and_parses_again(s in addressish()) {
        if let Ok(a) = PathAddr::parse(&s) {
            prop_assert_eq!(PathAddr::parse(&a.to_string()), Ok(a));
        }
    }

    #[test]
    fn addresses_round_trip(v4: [u8; 4], v6: [u8; 16], gid: [u8; 16]) {
        for a in [Addr::V4(v4), Addr::V6(v6, None), Addr::Gid(gid)] {
            prop_assert_eq!(Addr::parse(&a.to_string()), Ok(a));
        }
    }

    #[test]
    fn options_round_trip(pairs in prop::collection::vec("[a-z!-~&&[^=]]{1,9}", 1..4)) {
        let mut line = String::from("name=n");
        for p in &pairs {
            line += &format!(" \tpath={p}");
        }
        let o = Options::parse(line.as_bytes(), &TABLE).unwrap();
        prop_assert_eq!(o.all("path").collect::<Vec<_>>(), pairs);
    }

    #[test]
    fn numbers_round_trip(n: u64) {
        prop_assert_eq!(text::number(format!("{n}\n").as_bytes()), Ok(n));
        prop_assert_eq!(text::number(format!("{n:#x}").as_bytes()), Ok(n));
        prop_assert_eq!(text::number(format!("0{n:o}").as_bytes()), Ok(n));
    }
}

#[test]
fn where_a_server_listens() {
    let check = |text| listen::check(&Addr::parse(text).unwrap());
    for good in [
        "ip:10.0.1.1",
        "ip:0.0.0.0",
        "ip:::",
        "gid:::",
        "ip:fd00::1",
        "ip:fe80::1%2",
        "gid:fe80::1",
    ] {
        assert_eq!(check(good), Ok(()), "{good}");
    }
    for (bad, why) in [
        // The connection manager takes these for the unspecified address.
        ("ip:127.0.0.1", ListenError::Loopback),
        ("ip:127.255.0.9", ListenError::Loopback),
        ("ip:::1", ListenError::Loopback),
        ("gid:::1", ListenError::Loopback),
        ("ip:::ffff:127.0.0.1", ListenError::Mapped),
        ("ip:::ffff:10.0.1.1", ListenError::Mapped),
        ("ip:224.0.0.1", ListenError::Group),
        ("ip:255.255.255.255", ListenError::Group),
        ("ip:ff02::1", ListenError::Group),
        ("ip:fe80::1", ListenError::Scope),
        ("ip:fe80::1%0", ListenError::Scope),
        ("ip:fe80::1%eth0", ListenError::Scope),
    ] {
        assert_eq!(check(bad), Err(why), "{bad}");
    }
}

#[test]
fn addresses_overlap() {
    let overlap =
        |one, other| listen::overlap(&Addr::parse(one).unwrap(), &Addr::parse(other).unwrap());
    for (one, other, expected) in [
        ("ip:10.0.1.1", "ip:10.0.1.1", true),
        ("ip:10.0.1.1", "ip:10.0.1.2", false),
        ("ip:10.0.1.1", "ip:0.0.0.0", true),
        ("ip:10.0.1.1", "ip:::", false),
        ("ip:fd00::1", "ip:::", true),
        ("ip:fd00::1", "gid:::", false),
        ("gid:fe80::1", "gid:::", true),
    ] {
        assert_eq!(overlap(one, other), expected, "{one} {other}");
        assert_eq!(overlap(other, one), expected, "{other} {one}");
    }
}
