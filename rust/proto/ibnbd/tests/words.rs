// SPDX-License-Identifier: GPL-2.0

//! Each error has an errno, and a text for the log that differs from those of the other errors.

#[macro_use]
#[path = "../../ibtrs/tests/texts/mod.rs"]
mod texts;

use ibnbd_proto::access::{Access, AccessMode, BadAccessMode};
use ibnbd_proto::grant::{Grant, GrantRefusal, PathRefusal};
use ibnbd_proto::identity::{Difference, Identity};
use ibnbd_proto::io_check::IoError;
use ibnbd_proto::map_opts::{BadUnmapMode, MapError};
use ibnbd_proto::msg::{MsgError, Op};
use ibnbd_proto::path::PathError;
use ibnbd_proto::prefix::{Prefix, PrefixError};
use ibnbd_proto::state::DevState;
use ibtrs_proto::addr::AddrError;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::name::NameError;
use ibtrs_proto::opts::{OptError, OptProblem};
use texts::differ;

#[test]
fn what_users_write() {
    let option = OptError {
        problem: OptProblem::Missing,
        option: "sessname",
    };
    errors! { MapError:
        MapError::Option(option) => EINVAL,
        MapError::Session(NameError::Empty) => EINVAL,
        MapError::Device(NameError::TooLong) => ENAMETOOLONG,
        MapError::Path(AddrError::Ip, "ip:") => EINVAL,
        MapError::Port("0") => EINVAL,
        MapError::AccessMode("wo") => EINVAL,
        MapError::Exclusive("2") => EINVAL,
        MapError::PollQueues("-2") => EINVAL,
    }
    // A wrong value of an option is reported by its own text.
    assert_eq!(MapError::Option(option).as_str(), option.as_str());
    let path = AddrError::Gid;
    assert_eq!(MapError::Path(path, "gid:").as_str(), path.as_str());
    errors! { PathError:
        PathError::Empty => EINVAL,
        PathError::Parent => EINVAL,
        PathError::TooLong => ENAMETOOLONG,
        PathError::NotPrintable => EINVAL,
        PathError::Relative => EINVAL,
    }
    errors! { PrefixError:
        PrefixError::NotText => EINVAL,
        PrefixError::Address => EINVAL,
        PrefixError::Length => EINVAL,
        PrefixError::HostBits(Prefix::Any) => EINVAL,
        PrefixError::TooMany => E2BIG,
    }
    assert_eq!(BadUnmapMode.as_str(), "write normal or force");
    assert_eq!(BadUnmapMode.errno(), Errno::EINVAL);
    let modes = "access mode is not ro, rw or migration";
    assert_eq!(BadAccessMode.as_str(), modes);
    assert_eq!(MapError::AccessMode("wo").as_str(), modes);
    assert_eq!(BadAccessMode.errno(), Errno::EINVAL);
}

#[test]
fn what_the_server_lets() {
    errors! { GrantRefusal:
        GrantRefusal::Unknown => ENOENT,
        GrantRefusal::Hidden => EACCES,
        GrantRefusal::NoHost => EACCES,
        GrantRefusal::Host => EACCES,
        GrantRefusal::Authentication => EACCES,
        GrantRefusal::Address => EACCES,
        GrantRefusal::Disabled => ENODEV,
        GrantRefusal::Mode => EACCES,
        GrantRefusal::Devices => ENOSPC,
    }
    errors! { PathRefusal:
        PathRefusal::Address => EACCES,
        PathRefusal::Paths => EDQUOT,
        PathRefusal::Connections => EDQUOT,
        PathRefusal::Memory => EDQUOT,
    }
    differ(
        "Grant",
        &[Grant::Host, Grant::AnyHost, Grant::Addresses].map(|grant| grant.as_str()),
    );
}

#[test]
fn what_peers_send() {
    errors! { MsgError:
        MsgError::Short => EINVAL,
        MsgError::Long => EINVAL,
        MsgError::Type(9) => EINVAL,
        MsgError::AccessMode(9) => EINVAL,
        MsgError::Name(NameError::TooLong) => ENAMETOOLONG,
        MsgError::Op(9) => EOPNOTSUPP,
        MsgError::Flags(9) => EOPNOTSUPP,
        MsgError::BlockSize(9) => EINVAL,
        MsgError::Capacity(9) => EFBIG,
        MsgError::Direction => EINVAL,
        MsgError::Portal => EINVAL,
        MsgError::Endless => EINVAL,
        MsgError::Order => EINVAL,
    }
    let name = NameError::NoNul;
    assert_eq!(MsgError::Name(name).as_str(), name.as_str());
    errors! { IoError:
        IoError::Direction => EINVAL,
        IoError::ReadOnly => EROFS,
        IoError::Length => EINVAL,
        IoError::Empty => EINVAL,
        IoError::Data => EINVAL,
        IoError::Flags => EINVAL,
        IoError::Alignment => EINVAL,
        IoError::Range => EIO,
    }
}

#[test]
fn names() {
    differ("operations", &Op::ALL.map(|op| op.as_str()));
    differ("states", &DevState::ALL.map(|state| state.as_str()));
    let modes = [AccessMode::Ro, AccessMode::Rw, AccessMode::Migration];
    let all = modes
        .iter()
        .flat_map(|&mode| [false, true].map(|exclusive| Access { mode, exclusive }));
    let all: Vec<_> = all.collect();
    differ(
        "access",
        &all.iter().map(|a| a.as_str()).collect::<Vec<_>>(),
    );
    for access in all {
        let name = access.mode.as_str();
        assert!(access.as_str().starts_with(name));
        assert_eq!(access.as_str().ends_with(", exclusive"), access.exclusive);
        // A reader that does not exclude others claims nothing.
        let reads = access.mode == AccessMode::Ro;
        assert_eq!(access.claims(), access.exclusive || !reads, "{access:?}");
    }
    differ(
        "differences",
        &[
            Difference::Identity.as_str(),
            Difference::BlockSize.as_str(),
            Difference::Smaller.as_str(),
            Difference::Unproven.as_str(),
        ],
    );
    let identity = format!("{:?}", Identity::from_wire(0x1234));
    assert_eq!(identity, "Identity(0x0000000000001234)");
}
