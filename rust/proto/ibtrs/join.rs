// SPDX-License-Identifier: GPL-2.0

//! Finds the path of an incoming connection (server; Documentation/protocol.md, "Connecting").
//!
//! Connections are decided one after the other, so two connections never create the same path
//! twice.

use crate::consts::MAX_PATHS;
use crate::errno::Errno;
use crate::fsm::server_path::State;

/// The connection attempt that a connection claims to belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Number of connections of the path.
    pub cid_num: u16,
    /// Path epoch, if the client knows the extensions.
    pub epoch: Option<u32>,
}

/// A path of the session, compared with the incoming connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The path has the UUID that the connection names.
    pub same_uuid: bool,
    /// The path has both addresses of the connection, of the same families.
    pub same_addrs: bool,
    /// State of the path.
    pub state: State,
    /// The connection attempt of the path.
    pub attempt: Attempt,
    /// The path has a connection with the id of the incoming one.
    pub has_cid: bool,
}

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JoinRefusal {
    /// The path is past its setup: connected, or closing.
    PastSetUp,
    /// The connection is of another attempt than the path.
    OtherAttempt,
    /// The connection names another number of connections than the path has.
    ConnectionCount,
    /// The path already has a connection with this id.
    ConnectionId,
    /// The connection has other addresses than the path.
    OtherAddresses,
    /// The session has the maximum number of paths.
    Paths,
    /// Another path of the session has these addresses.
    Addresses,
}

impl JoinRefusal {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::PastSetUp => "the path exists, and is past its set-up",
            Self::OtherAttempt => "the path exists, from another attempt",
            Self::ConnectionCount => "other number of connections than the path's",
            Self::ConnectionId => "the path has that connection",
            Self::OtherAddresses => "the path has other addresses",
            Self::Paths => "the session has 128 paths",
            Self::Addresses => "another path of the session has the same addresses",
        }
    }

    /// The errno to refuse with.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Addresses => Errno::EEXIST,
            _ => Errno::ECONNRESET,
        }
    }
}

/// The decision about a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision<P> {
    /// The connection joins this path.
    Join(P),
    /// The connection is the first of a new path.
    New,
    /// The connection is refused. The path, if there is one, is superseded by the client and must
    /// be closed, so that the client's next attempt is accepted.
    Refuse(JoinRefusal, Option<P>),
}

/// Decides on a connection, given all paths of its session.
///
/// A closing path blocks its UUID, because its I/O may still run, but not its addresses: a client
/// that removes a path and adds it again need not wait for the end of the old one.
pub fn decide<P>(attempt: Attempt, paths: impl Iterator<Item = (P, Known)>) -> Decision<P> {
    let mut count = 0usize;
    let mut collides = false;
    for (path, known) in paths {
        if known.same_uuid {
            return own_path(attempt, path, &known);
        }
        count = count.saturating_add(1);
        let live = matches!(known.state, State::Connecting | State::Connected);
        collides |= live && known.same_addrs;
    }
    if count >= MAX_PATHS {
        return Decision::Refuse(JoinRefusal::Paths, None);
    }
    if collides {
        return Decision::Refuse(JoinRefusal::Addresses, None);
    }
    Decision::New
}

fn own_path<P>(attempt: Attempt, path: P, known: &Known) -> Decision<P> {
    // A late connection of an older attempt does not end a newer one.
    let newer = match (attempt.epoch, known.attempt.epoch) {
        (Some(new), Some(old)) => new > old,
        (Some(_), None) => true,
        (None, _) => false,
    };
    let refusal = if known.state != State::Connecting {
        JoinRefusal::PastSetUp
    } else if attempt.epoch != known.attempt.epoch {
        JoinRefusal::OtherAttempt
    } else if attempt.cid_num != known.attempt.cid_num {
        JoinRefusal::ConnectionCount
    } else if known.has_cid {
        JoinRefusal::ConnectionId
    } else if !known.same_addrs {
        // The addresses of a path's first connection decide which requests may be served.
        JoinRefusal::OtherAddresses
    } else {
        return Decision::Join(path);
    };
    Decision::Refuse(refusal, newer.then_some(path))
}
