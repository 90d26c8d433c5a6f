// SPDX-License-Identifier: GPL-2.0

//! Each error has an errno, and a text for the log that differs from those of the other errors.

#[macro_use]
mod texts;

use ibtrs_proto::addr::AddrError;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::fsm::{client_path, server_path};
use ibtrs_proto::handshake::HandshakeError;
use ibtrs_proto::imm::{LayoutError, PayloadError};
use ibtrs_proto::imm_check::ImmError;
use ibtrs_proto::layout::PlacementError;
use ibtrs_proto::limits::LimitError;
use ibtrs_proto::listen::ListenError;
use ibtrs_proto::mp::{BadPolicy, Policy};
use ibtrs_proto::msg::{MsgError, RequestError};
use ibtrs_proto::name::NameError;
use ibtrs_proto::opts::{OptError, OptProblem};
use ibtrs_proto::text::TextError;
use ibtrs_proto::{failover, join, quota};
use texts::differ;

#[test]
fn what_users_write() {
    errors! { AddrError:
        AddrError::NotText => EINVAL,
        AddrError::Empty => EINVAL,
        AddrError::TooMany => EINVAL,
        AddrError::Prefix => EINVAL,
        AddrError::Ip => EINVAL,
        AddrError::Gid => EINVAL,
        AddrError::Scope => EINVAL,
        AddrError::Mixed => EINVAL,
        AddrError::Destination => EINVAL,
    }
    errors! { ListenError:
        ListenError::Loopback => EINVAL,
        ListenError::Group => EINVAL,
        ListenError::Mapped => EINVAL,
        ListenError::Scope => EINVAL,
    }
    errors! { NameError:
        NameError::Empty => EINVAL,
        NameError::TooLong => ENAMETOOLONG,
        NameError::SlashOrDot => EINVAL,
        NameError::Unsafe => EINVAL,
        NameError::NotPrintable => EINVAL,
        NameError::NotUtf8 => EINVAL,
        NameError::NoNul => EINVAL,
    }
    errors! { TextError:
        TextError::NotText => EINVAL,
        TextError::Value => EINVAL,
        TextError::Range => ERANGE,
    }
    errors! { LimitError:
        LimitError::ChunkSize(1) => EINVAL,
        LimitError::QueueDepth(0) => EINVAL,
        LimitError::Both => EINVAL,
        LimitError::Slots => EINVAL,
    }
    let problem = |problem| OptError {
        problem,
        option: "path",
    };
    errors! { OptError:
        problem(OptProblem::NotText) => EINVAL,
        problem(OptProblem::Unknown) => EINVAL,
        problem(OptProblem::Doubled) => EINVAL,
        problem(OptProblem::TooMany) => EINVAL,
        problem(OptProblem::NoValue) => EINVAL,
        problem(OptProblem::Missing) => EINVAL,
    }
    assert_eq!(
        BadPolicy.as_str(),
        "policy is not round-robin, min-inflight or min-latency"
    );
    assert_eq!(BadPolicy.errno(), Errno::EINVAL);
}

#[test]
fn what_peers_send() {
    errors! { HandshakeError:
        HandshakeError::Short => ECONNRESET,
        HandshakeError::Magic(1) => ECONNRESET,
        HandshakeError::Version(1) => ECONNRESET,
        HandshakeError::ConnectionCount(0) => ECONNRESET,
        HandshakeError::ConnectionId(1) => ECONNRESET,
        HandshakeError::Status(1) => ECONNRESET,
        HandshakeError::Sizes => ECONNRESET,
        HandshakeError::ChunkSize => ECONNRESET,
        HandshakeError::Layout(LayoutError::TooBig) => ECONNRESET,
    }
    errors! { LayoutError:
        LayoutError::ZeroDepth => EINVAL,
        LayoutError::ZeroChunk => EINVAL,
        LayoutError::TooBig => EINVAL,
    }
    errors! { PayloadError:
        PayloadError::BufId(1) => EPROTO,
        PayloadError::Offset(1) => EPROTO,
    }
    let refused = [
        ImmError::Unknown,
        ImmError::WrongSide,
        ImmError::NotNegotiated,
        ImmError::NotService,
        ImmError::OwnFence,
        ImmError::Content,
    ];
    differ("ImmError", &refused.map(|error| error.as_str()));
    errors! { PlacementError:
        PlacementError::HeaderTooLong => EMSGSIZE,
        PlacementError::ChunkTooSmall => EMSGSIZE,
    }
    errors! { MsgError:
        MsgError::Short => EPROTO,
        MsgError::Type(1) => EPROTO,
        MsgError::Name(NameError::TooLong) => ENAMETOOLONG,
        MsgError::Count(1) => EPROTO,
        MsgError::Desc(1) => EPROTO,
        MsgError::Coverage => EPROTO,
        MsgError::BufId(1) => EPROTO,
        MsgError::NoRoom => EMSGSIZE,
        MsgError::Layout(LayoutError::TooBig) => EINVAL,
    }
    errors! { RequestError:
        RequestError::Short => EINVAL,
        RequestError::Type(1) => EINVAL,
        RequestError::SgCount(2) => EINVAL,
        RequestError::Offset(1) => EINVAL,
        RequestError::UserLen(1) => EINVAL,
        RequestError::HeaderSize(1) => EMSGSIZE,
        RequestError::NoDesc => EINVAL,
        RequestError::DescLen(0) => EINVAL,
        RequestError::DescAddr(0) => EINVAL,
        RequestError::NoMemory => ENOMEM,
    }
    // A wrong part of a message is reported by its own text.
    let name = NameError::TooLong;
    assert_eq!(MsgError::Name(name).as_str(), name.as_str());
    let layout = LayoutError::ZeroChunk;
    assert_eq!(MsgError::Layout(layout).as_str(), layout.as_str());
    assert_eq!(HandshakeError::Layout(layout).as_str(), layout.as_str());
}

#[test]
fn who_is_refused() {
    errors! { join:
        join::JoinRefusal::PastSetUp => ECONNRESET,
        join::JoinRefusal::OtherAttempt => ECONNRESET,
        join::JoinRefusal::ConnectionCount => ECONNRESET,
        join::JoinRefusal::ConnectionId => ECONNRESET,
        join::JoinRefusal::Paths => ECONNRESET,
        join::JoinRefusal::Addresses => EEXIST,
    }
    errors! { quota:
        quota::QuotaRefusal::Attempts => EBUSY,
        quota::QuotaRefusal::Memory => ENOMEM,
        quota::QuotaRefusal::Begun => ENOMEM,
        quota::QuotaRefusal::AllBegun => ENOMEM,
    }
    errors! { failover:
        failover::OfferRefusal::OtherServer => ESTALE,
        failover::OfferRefusal::QueueDepth => EINVAL,
        failover::OfferRefusal::MaxIo => EINVAL,
        failover::OfferRefusal::Closed => ECONNABORTED,
    }
}

#[test]
fn states_and_events() {
    differ("client", &client_path::State::ALL.map(|s| s.as_str()));
    differ("client", &client_path::Event::ALL.map(|e| e.as_str()));
    differ("server", &server_path::State::ALL.map(|s| s.as_str()));
    let events = server_path::Event::ALL;
    // The two kinds of the first one share its name.
    differ(
        "server",
        &events[1..].iter().map(|e| e.as_str()).collect::<Vec<_>>(),
    );
    assert_eq!(events[0].as_str(), events[1].as_str());
    differ("policies", &Policy::ALL.map(|p| p.name()));
    differ("policies", &Policy::ALL.map(|p| p.sysfs_str()));
    for (policy, shown) in Policy::ALL.iter().zip([
        "round-robin (RR: 0)",
        "min-inflight (MI: 1)",
        "min-latency (ML: 2)",
    ]) {
        assert_eq!(policy.sysfs_str(), shown);
        assert!(shown.starts_with(policy.name()));
    }
    for state in client_path::State::ALL {
        let connected = state == client_path::State::Connected;
        assert_eq!(state.sysfs_str() == "connected", connected);
        assert_eq!(state.sysfs_str() == "disconnected", !connected);
    }
    assert_eq!(Errno::EIO.as_str(), "EIO");
    assert_eq!(Errno(4095).as_str(), "E?");
}
