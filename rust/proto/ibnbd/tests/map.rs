// SPDX-License-Identifier: GPL-2.0

//! Options of mapping and unmapping.

use ibnbd_proto::access::AccessMode;
use ibnbd_proto::map_opts::OpenOptions;
use ibnbd_proto::map_opts::{MapError, MapOptions, SessionOptions, UnmapMode};
use ibtrs_proto::addr::AddrError;
use ibtrs_proto::auth::KeyId;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::name::NameError;
use ibtrs_proto::opts::{OptError, OptProblem};
use proptest::prelude::*;

#[test]
fn a_whole_line() {
    let line = b"sessname=blya path=ip:10.0.0.2,ip:10.0.0.1 path=gid:fe80::1@gid:fe80::2 \
        device_path=/dev/ram0 access_mode=migration exclusive=1 dest_port=4321 nr_poll_queues=-1 \
        nr_queues=3 key_id=web1-2026 failover_time_ms=2500\n";
    let m = MapOptions::parse(line).unwrap();
    assert_eq!(m.session.name.as_str(), "blya");
    assert_eq!(m.device_path.as_str(), "/dev/ram0");
    assert_eq!(m.access.mode, AccessMode::Migration);
    assert!(m.access.exclusive);
    assert_eq!((m.session.dest_port, m.nr_poll_queues), (4321, -1));
    let paths: Vec<_> = m.session.paths().map(|p| p.to_string()).collect();
    assert_eq!(paths.len(), m.session.path_count());
    assert_eq!(paths[0], "ip:10.0.0.2@ip:10.0.0.1");
    assert!(paths[1].starts_with("gid:fe80:0000:"));
    assert_eq!(m.poll_queues(4), Some(4));
    assert_eq!(m.nr_queues, Some(3));
    assert_eq!(m.session.key_id, KeyId::new(b"web1-2026"));
    assert_eq!(m.session.failover_time_ms, Some(2500));
}

#[test]
fn defaults() {
    let m = MapOptions::parse(b"device_path=d sessname=s").unwrap();
    assert_eq!(m.access.mode, AccessMode::Rw);
    assert!(!m.access.exclusive);
    assert_eq!((m.session.dest_port, m.nr_poll_queues), (1234, 0));
    assert_eq!((m.session.path_count(), m.session.paths().count()), (0, 0));
    assert_eq!(m.poll_queues(4), Some(0));
    assert_eq!((m.session.key_id, m.session.failover_time_ms), (None, None));
    let m = MapOptions::parse(b"device_path=d sessname=s nr_poll_queues=5").unwrap();
    assert_eq!((m.poll_queues(4), m.poll_queues(5)), (None, Some(5)));
}

#[test]
fn no_more_queues_than_cpus() {
    let m = MapOptions::parse(b"device_path=d sessname=s").unwrap();
    assert_eq!(
        (m.nr_queues, m.queues(1), m.queues(4)),
        (None, Some(1), Some(4))
    );
    let m = MapOptions::parse(b"device_path=d sessname=s nr_queues=1").unwrap();
    assert_eq!((m.queues(1), m.queues(4)), (Some(1), Some(1)));
    let m = MapOptions::parse(b"device_path=d sessname=s nr_queues=5").unwrap();
    assert_eq!(
        (m.queues(4), m.queues(5), m.queues(6)),
        (None, Some(5), Some(5))
    );
}

#[test]
fn errors_name_the_option() {
    let opt = |problem, option| MapError::Option(OptError { problem, option });
    use OptProblem::*;
    let long = format!("device_path=d sessname={}", "x".repeat(255));
    for (line, e, text) in [
        ("", opt(Missing, "sessname"), "sessname: option is missing"),
        (
            "sessname=s",
            opt(Missing, "device_path"),
            "device_path: option is missing",
        ),
        (
            "sessname=s device_path=d foo=1",
            opt(Unknown, "foo"),
            "foo: no such option",
        ),
        (
            "sessname=s sessname=s device_path=d",
            opt(Doubled, "sessname"),
            "sessname: option given twice",
        ),
        (
            "sessname=s device_path=",
            opt(NoValue, "device_path"),
            "device_path: option without value",
        ),
        (
            "sessname=a/b device_path=d",
            MapError::Session(NameError::SlashOrDot),
            "sessname: name contains '/' or '.'",
        ),
        (
            &long,
            MapError::Session(NameError::TooLong),
            "sessname: name is longer than 254 bytes (255 with its NUL)",
        ),
        (
            "sessname=s device_path=d path=10.0.0.1",
            MapError::Path(AddrError::Prefix, "10.0.0.1"),
            "path=10.0.0.1: address does not begin with ip: or gid:",
        ),
        (
            "sessname=s device_path=d dest_port=0",
            MapError::Port("0"),
            "dest_port=0: port is not 1 to 65535",
        ),
        (
            "sessname=s device_path=d dest_port=65536",
            MapError::Port("65536"),
            "dest_port=65536: port is not 1 to 65535",
        ),
        (
            "sessname=s device_path=d access_mode=RW",
            MapError::AccessMode("RW"),
            "access_mode=RW: access mode is not ro, rw or migration",
        ),
        (
            "sessname=s device_path=d exclusive=yes",
            MapError::Exclusive("yes"),
            "exclusive=yes: exclusive is not 0 or 1",
        ),
        (
            "sessname=s device_path=d nr_queues=0",
            MapError::Queues("0"),
            "nr_queues=0: number of queues is not 1 or more",
        ),
        (
            "sessname=s device_path=d nr_queues=-1",
            MapError::Queues("-1"),
            "nr_queues=-1: number of queues is not 1 or more",
        ),
        (
            "sessname=s device_path=d nr_queues=all",
            MapError::Queues("all"),
            "nr_queues=all: number of queues is not 1 or more",
        ),
        (
            "sessname=s device_path=d nr_queues=2 nr_queues=2",
            opt(Doubled, "nr_queues"),
            "nr_queues: option given twice",
        ),
        (
            "sessname=s device_path=d nr_poll_queues=-2",
            MapError::PollQueues("-2"),
            "nr_poll_queues=-2: number of poll queues is not -1 or more",
        ),
        (
            "sessname=s device_path=d key_id=a:b",
            MapError::KeyId("a:b"),
            "key_id=a:b: a key id is 1 to 32 letters, digits and -_.@",
        ),
        (
            "sessname=s device_path=d failover_time_ms=999",
            MapError::FailoverTime("999"),
            "failover_time_ms=999: failover time is not 1000 to 300000 milliseconds",
        ),
        (
            "sessname=s device_path=d failover_time_ms=5s",
            MapError::FailoverTime("5s"),
            "failover_time_ms=5s: failover time is not 1000 to 300000 milliseconds",
        ),
    ] {
        let got = MapOptions::parse(line.as_bytes()).unwrap_err();
        assert_eq!(got, e, "{line}");
        assert_eq!(got.to_string(), text);
        let errno = match e {
            MapError::Session(NameError::TooLong) => Errno::ENAMETOOLONG,
            _ => Errno::EINVAL,
        };
        assert_eq!(got.errno(), errno);
    }
    let long = format!("sessname=s device_path={}", "x".repeat(255));
    let e = MapOptions::parse(long.as_bytes()).unwrap_err();
    assert_eq!(e, MapError::Device(NameError::TooLong));
}

#[test]
fn as_many_paths_as_a_session_has() {
    let line = |n: usize| {
        let mut line = String::from("sessname=s device_path=d");
        for i in 0..n {
            line += &format!(" path=ip:10.0.0.{i}");
        }
        line
    };
    // 10.0.0.0 is a host like any other here.
    assert_eq!(
        MapOptions::parse(line(128).as_bytes())
            .unwrap()
            .session
            .path_count(),
        128
    );
    let line = line(129);
    assert_eq!(
        MapOptions::parse(line.as_bytes()).unwrap_err(),
        MapError::Option(OptError {
            problem: OptProblem::TooMany,
            option: "path"
        })
    );
}

#[test]
fn a_session_without_a_device() {
    let line = b"sessname=blya path=ip:10.0.0.2,ip:10.0.0.1 dest_port=4321 key_id=k\n";
    let m = SessionOptions::parse(line).unwrap();
    assert_eq!((m.name.as_str(), m.dest_port), ("blya", 4321));
    assert_eq!((m.path_count(), m.paths().count()), (1, 1));
    assert_eq!(m.key_id, KeyId::new(b"k"));
    let m = SessionOptions::parse(b"sessname=s").unwrap();
    assert_eq!((m.path_count(), m.dest_port, m.key_id), (0, 1234, None));
    for option in [
        "device_path",
        "access_mode",
        "exclusive",
        "nr_queues",
        "nr_poll_queues",
        "failover_time_ms",
        "x",
    ] {
        let line = format!("sessname=s {option}=1");
        let problem = OptProblem::Unknown;
        let e = SessionOptions::parse(line.as_bytes()).unwrap_err();
        assert_eq!(e, MapError::Option(OptError { problem, option }));
    }
    assert!(SessionOptions::parse(b"path=ip:10.0.0.1").is_err());
    assert_eq!(
        SessionOptions::parse(b"sessname=s path=10.0.0.1").unwrap_err(),
        MapError::Path(AddrError::Prefix, "10.0.0.1")
    );
}

#[test]
fn unmap() {
    assert_eq!(UnmapMode::parse(b"normal\n"), Ok(UnmapMode::Normal));
    assert_eq!(UnmapMode::parse(b"force"), Ok(UnmapMode::Force));
    assert!(UnmapMode::Force.force() && !UnmapMode::Normal.force());
    for bad in [&b""[..], b"Force", b"1", b"force force", b"normal\0"] {
        assert_eq!(UnmapMode::parse(bad).unwrap_err().errno(), Errno::EINVAL);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn four_kib_of_anything(b in prop::collection::vec(any::<u8>(), 4096)) {
        prop_assert!(MapOptions::parse(&b).is_err());
        let _ = UnmapMode::parse(&b);
    }

    #[test]
    fn lines_that_look_right(
        s in "((sessname|device_path|path|dest_port|access_mode|x)=[a-z0-9:.,@/-]{0,9}[ \t\n]){0,9}",
    ) {
        if let Ok(m) = MapOptions::parse(s.as_bytes()) {
            prop_assert_eq!(m.session.paths().count(), m.session.path_count());
        }
    }

    #[test]
    fn four_kib_of_options(words in prop::collection::vec(
        "(sessname|device_path|path|dest_port)=(ip:1\\.2\\.3\\.[1-9]|s|[1-9])", 1..300)) {
        let line = words.join(" ");
        if let Ok(m) = MapOptions::parse(line.as_bytes()) {
            prop_assert!(m.session.path_count() <= 128);
        }
    }
}

/// A session without a disk has the options of its paths, and no others.
#[test]
fn open_session_options() {
    let line =
        b"sessname=s path=ip:10.0.0.1 dest_port=99 nr_queues=3 key_id=k failover_time_ms=2000";
    let open = OpenOptions::parse(line).unwrap();
    assert_eq!(open.session.name.as_str(), "s");
    assert_eq!((open.session.dest_port, open.session.path_count()), (99, 1));
    assert_eq!(open.session.key_id.unwrap().as_str(), "k");
    assert_eq!(open.session.failover_time_ms, Some(2000));
    assert_eq!((open.queues(4), open.queues(2)), (Some(3), None));
    assert_eq!(
        OpenOptions::parse(b"sessname=s").unwrap().queues(8),
        Some(8)
    );
    for other in [
        "device_path=d",
        "access_mode=ro",
        "nr_poll_queues=1",
        "data_checksum=none",
        "nr_queues=0",
    ] {
        let line = format!("sessname=s path=ip:10.0.0.1 {other}");
        assert!(OpenOptions::parse(line.as_bytes()).is_err(), "{other}");
    }
    assert!(OpenOptions::parse(b"path=ip:10.0.0.1").is_err());
}
