// SPDX-License-Identifier: GPL-2.0

//! Decisions of the server: paths, access, I/O checks; and states of the client's device.

use ibnbd_proto::access::{Access, AccessMode, Users};
use ibnbd_proto::identity::Difference;
use ibnbd_proto::io_check::*;
use ibnbd_proto::msg::{IoFlags, IoHdr, Op, WrittenThrough};
use ibnbd_proto::path::{below, holds_every_device, root, search_path, PathError, PATH_MAX};
use ibnbd_proto::prio;
use ibnbd_proto::state::{DevState, QueueState, Standing};
use ibtrs_proto::errno::Errno;
use ibtrs_proto::msg::Direction;
use ibtrs_proto::name::{DevicePath, SessionName};
use proptest::prelude::*;

fn joined(search: &str, session: &str, device: &str) -> Result<String, PathError> {
    let (mut dir, mut buf) = ([0xEE; PATH_MAX], [0xEE; PATH_MAX]);
    let session = SessionName::new(session.as_bytes()).unwrap();
    let device = DevicePath::new(device.as_bytes()).unwrap();
    let dir = root(&mut dir, search, session)?;
    let path = below(&mut buf, dir, device)?.to_str().unwrap();
    Ok(format!(
        "{}{path}",
        dir.to_str().unwrap().trim_end_matches('/')
    ))
}

#[test]
fn paths() {
    for (search, device, path) in [
        ("/", "/dev/ram0", "/dev/ram0"),
        ("/", "dev/ram0", "/dev/ram0"),
        ("//", "dev//.//ram0/", "/dev/ram0"),
        ("/dev", "ram0", "/dev/ram0"),
        // By its whole path.
        ("/dev", "/dev/ram0", "/dev/ram0"),
        ("/dev", "/device/ram0", "/dev/device/ram0"),
        ("/x/%SESSNAME%", "/x/host1/d", "/x/host1/d"),
        ("/dev/", "ram0\u{e4}", "/dev/ram0\u{e4}"),
        ("/x/%SESSNAME%", "d", "/x/host1/d"),
        // Hazard 41: what stands after the mark counts, and so does each mark.
        ("/x/%SESSNAME%/disks", "d", "/x/host1/disks/d"),
        (
            "/x/a%SESSNAME%b/%SESSNAME%%SESSNAME%",
            "d",
            "/x/ahost1b/host1host1/d",
        ),
        ("/x/%%SESSNAME%%/%SESS", "d", "/x/%host1%/%SESS/d"),
        // The client does not get to use it.
        ("/x", "%SESSNAME%/d", "/x/%SESSNAME%/d"),
        ("/x", "..d/d..", "/x/..d/d.."),
    ] {
        assert_eq!(
            joined(search, "host1", device).as_deref(),
            Ok(path),
            "{search} {device}"
        );
    }
}

#[test]
fn bad_paths() {
    use PathError::*;
    for (search, device, e) in [
        ("/", "..", Parent),
        ("/x", "../d", Parent),
        ("/x", "a/../../d", Parent),
        ("/x", "d/..", Parent),
        ("/x/..", "d", Parent),
        ("/x", "/", Empty),
        ("/x", "/.//", Empty),
        ("", "d", Relative),
        ("x", "d", Relative),
        ("/x\0", "d", NotPrintable),
        ("/x\ny", "d", NotPrintable),
    ] {
        assert_eq!(joined(search, "s", device), Err(e), "{search:?} {device}");
        assert_eq!(e.errno(), Errno::EINVAL);
    }
    assert_eq!(search_path("/dev\n"), Ok("/dev"));
    let long = format!("/{}", "x".repeat(PATH_MAX - 1));
    assert_eq!(search_path(&long), Err(TooLong));
    // 4095 bytes and a NUL are the most.
    let session = SessionName::new(b"s").unwrap();
    let fits = format!("/{}", "x".repeat(PATH_MAX - 2));
    let mut large = [0xEE; 2 * PATH_MAX];
    assert_eq!(
        root(&mut large, &fits, session).map(|p| p.count_bytes()),
        Ok(PATH_MAX - 1)
    );
    assert_eq!(
        root(&mut large, "/%SESSNAME%x/".repeat(1100).as_str(), session),
        Err(TooLong)
    );
    // Nor do names of sessions make it longer: 256 bytes each, and one less.
    let name = "s".repeat(254);
    let session = SessionName::new(name.as_bytes()).unwrap();
    let most = format!("{}/%SESSNAME%", "/%SESSNAME%x".repeat(15));
    let made = root(&mut large, &most, session);
    assert_eq!(made.map(|p| p.count_bytes()), Ok(PATH_MAX - 1));
    let one_more = format!("{most}x");
    assert_eq!(root(&mut large, &one_more, session), Err(TooLong));
    assert_eq!(TooLong.errno(), Errno::ENAMETOOLONG);
    let marks = "/%SESSNAME%".repeat(300);
    assert_eq!(joined(&marks, &"s".repeat(254), "d"), Err(TooLong));
    // A small buffer is an error, not a panic.
    let (s, d) = (
        SessionName::new(b"s").unwrap(),
        DevicePath::new(b"dev").unwrap(),
    );
    for n in 0..5 {
        assert_eq!(below(&mut [0xEE; 5][..n], c"/", d), Err(TooLong));
    }
    assert_eq!(below(&mut [0xEE; 5], c"/", d), Ok(c"/dev"));
    assert_eq!(root(&mut [0xEE; 1], "/", s), Err(TooLong));
    assert_eq!(root(&mut [0xEE; 2], "/", s), Ok(c"/"));
}

#[test]
fn search_paths_that_hold_every_device() {
    for wide in ["/", "//", "/.", "/dev", "/dev/", "//dev/.", "/./dev"] {
        assert!(holds_every_device(wide), "{wide}");
    }
    for narrow in [
        "/dev/ibnbd-exports",
        "/dev/%SESSNAME%",
        "/srv",
        "/srv/dev",
        "/device",
        "/dev/dev",
        "/%SESSNAME%",
    ] {
        assert!(!holds_every_device(narrow), "{narrow}");
    }
}

#[test]
fn priorities() {
    // None, realtime, best effort, idle, and classes that do not exist; with level 2 and a hint.
    let rest = 1 << 3 | 2;
    for (class, strict, lenient) in [
        (0, Some(0), Some(0)),
        (1, Some(2), Some(1)),
        (2, Some(2), Some(2)),
        (3, Some(3), Some(3)),
        (4, None, None),
        (7, None, None),
    ] {
        let made = |class: Option<u16>| class.map_or(0, |class| class << 13 | rest);
        let asked = made(Some(class));
        assert_eq!(prio::granted(asked, false), made(strict), "class {class}");
        assert_eq!(prio::granted(asked, true), made(lenient), "class {class}");
    }
    for asked in 0..=u16::MAX {
        assert_ne!(prio::granted(asked, false) >> 13, 1);
        assert!(prio::granted(asked, true) >> 13 <= 3);
    }
}

#[test]
fn who_may_open() {
    let [ro, rw, migration] = AccessMode::ALL.map(|mode| Access {
        mode,
        exclusive: false,
    });
    let mut users = Users::default();
    for writers in 0..3 {
        assert_eq!(users.enter(ro), Ok(()));
        let mut more = users;
        let rw_ok = more.enter(rw);
        assert_eq!(rw_ok.is_ok(), writers == 0);
        let entered = users.enter(migration);
        assert_eq!(entered.is_ok(), writers < 2);
        if writers == 2 {
            assert_eq!((rw_ok, entered), (Err(Errno::EPERM), Err(Errno::EPERM)));
        }
    }
    users.leave(migration);
    assert_eq!(users.enter(rw), Err(Errno::EPERM));
    users.leave(migration);
    assert_eq!(users.enter(rw), Ok(()));
    assert!(!AccessMode::Ro.writes() && AccessMode::Migration.writes());
}

/// An exclusive user stays alone, and a user that wants to be exclusive waits for the others to leave.
#[test]
fn who_may_be_alone() {
    for mode in AccessMode::ALL {
        let alone = Access {
            mode,
            exclusive: true,
        };
        assert!(alone.claims());
        let mut users = Users::default();
        assert_eq!(users.enter(alone), Ok(()));
        for other in AccessMode::ALL {
            for exclusive in [false, true] {
                let other = Access {
                    mode: other,
                    exclusive,
                };
                assert_eq!(users.enter(other), Err(Errno::EBUSY));
            }
        }
        users.leave(alone);
        assert!(users.is_empty());
        let ro = Access {
            mode: AccessMode::Ro,
            exclusive: false,
        };
        assert_eq!(users.enter(ro), Ok(()));
        assert_eq!(users.enter(alone), Err(Errno::EBUSY));
        users.leave(ro);
        assert_eq!(users.enter(alone), Ok(()));
    }
}

#[test]
fn device_states() {
    use DevState::*;
    assert_eq!(Closed.may_remap(), Ok(()));
    assert_eq!(Open.may_remap(), Err(Errno::EALREADY));
    assert_eq!(Unmapped.may_remap(), Err(Errno::ENODEV));
    assert_eq!(Init.may_remap(), Err(Errno::EBUSY));
    assert_eq!(Open.may_resize(), Ok(()));
    assert_eq!(Closed.may_resize(), Err(Errno::ENOENT));
    let names = DevState::ALL.map(|s| s.as_str());
    assert_eq!(names, ["init", "open", "closed", "unmapped"]);
}

/// Requests are never sent to what may be another disk, and never wait for nothing.
#[test]
fn standing() {
    use Standing::*;
    assert_eq!(Standing::answered(Ok(())), Open);
    assert_eq!(Standing::answered(Err(Difference::Smaller)), Refused);
    assert_eq!(Standing::answered(Err(Difference::Unproven)), Unproven);
    for s in Standing::ALL {
        assert_eq!(s.queue_state() == QueueState::Live, s == Open);
        assert_eq!(s.cause().is_empty(), s == Open);
        // While requests wait, the device is retried.
        assert!(s.queue_state() != QueueState::Quiesced || s.is_retried());
        // A decision that is left to the operator, or to the users of the disk, is not retried.
        assert_eq!(s.is_retried(), matches!(s, Reopening | TimedOut), "{s:?}");
        assert_eq!(s.failed(false), s);
        assert_ne!(s.failed(true).queue_state(), QueueState::Quiesced);
        assert_eq!(s.failed(true).is_retried(), s.is_retried());
        // A close changes nothing about the requests that are on their way.
        assert_eq!(s.unused().queue_state(), s.queue_state());
        assert_eq!(s.unused() == s, s != Unproven);
    }
    assert!(Unproven.unused().is_retried());
    assert_eq!(Reopening.failed(true), TimedOut);
    assert_eq!(TimedOut.queue_state(), QueueState::Failing);
}

const DEV: Device = Device {
    nsectors: 1000,
    logical_block_size: 512,
    read_only: false,
};

fn io(op: Op, sector: u64, bytes: u32) -> IoHdr {
    IoHdr {
        device_id: 0,
        sector,
        op,
        flags: IoFlags::NONE,
        bytes,
        prio: 3,
        checksum: None,
    }
}

fn direction(op: Op) -> Direction {
    match op {
        Op::Read | Op::Flush => Direction::Read,
        _ => Direction::Write,
    }
}

/// Checked with as much data as the operation has.
fn run(hdr: &IoHdr, dev: &Device) -> Result<CheckedIo, IoError> {
    let data = if hdr.op.has_data() { hdr.bytes } else { 0 };
    check(hdr, direction(hdr.op), data, dev)
}

#[test]
fn good_requests() {
    for op in [
        Op::Read,
        Op::Write,
        Op::Discard,
        Op::SecureErase,
        Op::WriteZeroes,
    ] {
        let c = run(&io(op, 992, 4096), &DEV).unwrap();
        assert_eq!((c.op, c.sector, c.bytes), (op, 992, 4096));
        assert_eq!((c.sectors(), c.prio), (8, 3));
    }
    // C clients send FUA and PREFLUSH with a flush, and any sector.
    let mut f = io(Op::Flush, u64::MAX, 0);
    f.flags = IoFlags::FUA.and(IoFlags::PREFLUSH).and(IoFlags::SYNC);
    let c = run(&f, &DEV).unwrap();
    assert_eq!((c.sector, c.bytes, c.flags), (0, 0, IoFlags::NONE));
    assert!(check(&f, Direction::Write, 0, &DEV).is_ok());
    // NOUNMAP is for write-zeroes.
    let mut w = io(Op::Write, 0, 512);
    w.flags = IoFlags::NOUNMAP.and(IoFlags::FUA).and(IoFlags::PREFLUSH);
    assert_eq!(
        run(&w, &DEV).unwrap().flags,
        IoFlags::FUA.and(IoFlags::PREFLUSH)
    );
    w.op = Op::WriteZeroes;
    w.flags = IoFlags::NOUNMAP.and(IoFlags::SYNC);
    assert_eq!(run(&w, &DEV).unwrap().flags, w.flags);
    // A discard may be larger than any transfer.
    let big = Device {
        nsectors: 1 << 40,
        ..DEV
    };
    assert!(run(&io(Op::Discard, 8, u32::MAX - 511), &big).is_ok());
}

#[test]
fn bad_requests() {
    use IoError::{Alignment, Data, Empty, Flags, Length, Range};
    use Op::*;
    let err = |op, sector, bytes| run(&io(op, sector, bytes), &DEV).unwrap_err();
    for op in [Read, Write, Discard, SecureErase, WriteZeroes] {
        assert_eq!(err(op, 0, 0), Empty, "{op:?}");
        assert_eq!(err(op, 0, 513), Alignment);
        assert_eq!(err(op, 0, 1), Alignment);
        assert_eq!(err(op, 999, 1024), Range);
        assert_eq!(err(op, 1000, 512), Range);
        assert_eq!(err(op, u64::MAX, 512), Range);
        assert_eq!(err(op, u64::MAX - 3, 4096), Range);
        let wrong = match direction(op) {
            Direction::Read => Direction::Write,
            Direction::Write => Direction::Read,
        };
        let hdr = io(op, 0, 512);
        assert_eq!(check(&hdr, wrong, 512, &DEV), Err(IoError::Direction));
    }
    // Hazard 7: bytes without data.
    for op in [Read, Write] {
        let hdr = io(op, 0, 512);
        assert_eq!(check(&hdr, direction(op), 0, &DEV), Err(Data));
        assert_eq!(check(&hdr, direction(op), 1024, &DEV), Err(Length));
    }
    for op in [Discard, SecureErase, WriteZeroes] {
        let hdr = io(op, 0, 512);
        assert_eq!(check(&hdr, Direction::Write, 512, &DEV), Err(Data));
    }
    assert_eq!(
        check(&io(Flush, 0, 0), Direction::Read, 512, &DEV),
        Err(Data)
    );
    assert_eq!(
        check(&io(Flush, 0, 512), Direction::Read, 0, &DEV),
        Err(Length)
    );
    // Hazard 37.
    for op in [Read, Discard, SecureErase, WriteZeroes] {
        for flags in [IoFlags::FUA, IoFlags::PREFLUSH] {
            let hdr = IoHdr {
                flags,
                ..io(op, 0, 512)
            };
            assert_eq!(run(&hdr, &DEV), Err(Flags));
        }
    }
    let big = Device {
        logical_block_size: 4096,
        ..DEV
    };
    assert_eq!(run(&io(Read, 1, 4096), &big), Err(Alignment));
    assert_eq!(run(&io(Read, 8, 512), &big), Err(Alignment));
    assert!(run(&io(Read, 8, 8192), &big).is_ok());
    // Nonsense about the device is no division by zero.
    let zero = Device {
        logical_block_size: 0,
        ..DEV
    };
    assert!(run(&io(Read, 8, 512), &zero).is_ok());
    assert_eq!(Range.errno(), Errno::EIO);
    assert_eq!(Alignment.errno(), Errno::EINVAL);
}

/// What changes the disk is either made durable by FUA, which then is accepted, or refused; a discard
/// promises nothing.
#[test]
fn written_through() {
    for op in Op::ALL {
        let durable = IoHdr {
            flags: IoFlags::FUA,
            ..io(op, 0, if op == Op::Flush { 0 } else { 512 })
        };
        match op.written_through() {
            WrittenThrough::WithFua => assert!(run(&durable, &DEV).is_ok(), "{op:?}"),
            WrittenThrough::Never => assert_eq!(run(&durable, &DEV), Err(IoError::Flags)),
            WrittenThrough::AsItIs => assert!(!op.modifies() || op == Op::Discard, "{op:?}"),
        }
        assert_eq!(
            op.written_through() == WrittenThrough::WithFua,
            op == Op::Write
        );
    }
}

/// Hazard 8.
#[test]
fn read_only_means_read_only() {
    let ro = Device {
        read_only: true,
        ..DEV
    };
    for op in Op::ALL {
        let hdr = io(op, 0, if op == Op::Flush { 0 } else { 512 });
        let want = match op {
            Op::Read | Op::Flush => Ok(()),
            _ => Err(IoError::ReadOnly),
        };
        assert_eq!(run(&hdr, &ro).map(|_| ()), want);
    }
    assert_eq!(IoError::ReadOnly.errno(), Errno::EROFS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn checked_means_inside_the_device(
        op in prop::sample::select(Op::ALL.to_vec()),
        sector in prop_oneof![0u64..3000, any::<u64>()],
        blocks in prop_oneof![0u32..300, any::<u32>()],
        nsectors in prop_oneof![0u64..3000, any::<u64>()],
        shift in 9u32..16, exact: bool, data_len: u32, write: bool, read_only: bool,
    ) {
        let bytes = if exact { (blocks << shift) & 0x00FF_FFFF } else { blocks };
        let hdr = io(op, sector, bytes);
        let dev = Device { nsectors, logical_block_size: 1 << shift, read_only };
        let dir = if write { Direction::Write } else { Direction::Read };
        let data_len = if exact && op.has_data() { bytes } else if exact { 0 } else { data_len };
        if let Ok(c) = check(&hdr, dir, data_len, &dev) {
            prop_assert!(c.sector.checked_add(c.sectors().into()).unwrap() <= nsectors);
            prop_assert_eq!(c.bytes % dev.logical_block_size, 0);
            prop_assert_eq!((c.sector << 9) % u64::from(dev.logical_block_size), 0);
            prop_assert!(op == Op::Flush || c.bytes > 0);
            prop_assert!(!(read_only && op.modifies()));
            let data = if op.has_data() { c.bytes } else { 0 };
            prop_assert_eq!(data, data_len);
        }
    }

    /// Whatever the names: the result stays below the search path.
    #[test]
    fn joined_paths_stay_below(device in "[./a%]{1,40}", session in "[a@:+]{1,10}") {
        if let Ok(p) = joined("/x/%SESSNAME%", &session, &device) {
            let below = format!("/x/{session}/");
            prop_assert!(p.starts_with(&below) && p.len() > below.len(), "{}", p);
            prop_assert!(p.split('/').skip(1).all(|c| !c.is_empty() && c != "." && c != ".."));
        }
    }
}
