// SPDX-License-Identifier: GPL-2.0

//! Finds the path of an incoming connection (server; Documentation/protocol.md, "Connecting").
//!
//! Connections are decided one after the other, so two connections never create the same path
//! twice.

use crate::consts::MAX_PATHS;
use crate::errno::Errno;
use crate::fsm::server_path::State;

/// The path that a connection says it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Connections of the path.
    pub cid_num: u16,
    /// Number of the attempt, if the client knows the extensions.
    pub epoch: Option<u32>,
}

/// A path that the session has, as seen from the connection that asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// It has the UUID of the connection's path.
    pub same_uuid: bool,
    /// It has the addresses of the connection, both of them, of the same families.
    pub same_addrs: bool,
    /// Its state.
    pub state: State,
    /// Its own connections.
    pub attempt: Attempt,
    /// It has a connection of that id.
    pub has_cid: bool,
}

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Its path is past its set-up: connected, or being closed.
    PastSetUp,
    /// It is of another attempt than its path.
    OtherAttempt,
    /// It counts the path's connections differently.
    ConnectionCount,
    /// Its path has a connection of that id.
    ConnectionId,
    /// The session has as many paths as it may have.
    Paths,
    /// Another path has these addresses.
    Addresses,
}

impl Refusal {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::PastSetUp => "the path exists, and is past its set-up",
            Self::OtherAttempt => "the path exists, from another attempt",
            Self::ConnectionCount => "other number of connections than the path's",
            Self::ConnectionId => "the path has that connection",
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
    /// It is one more of that path.
    Join(P),
    /// It is the first of a new path.
    New,
    /// It is refused. The path that is named, if any, is the one that the client has superseded:
    /// it is to be closed, so that the client's next attempt gets in.
    Refuse(Refusal, Option<P>),
}

/// Decides on a connection, given all paths of its session.
///
/// A path that is being closed is in the way of its own UUID, as its I/O may still run, but not
/// of its addresses: the client that takes a path away and adds it again need not wait for that.
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
        return Decision::Refuse(Refusal::Paths, None);
    }
    if collides {
        return Decision::Refuse(Refusal::Addresses, None);
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
        Refusal::PastSetUp
    } else if attempt.epoch != known.attempt.epoch {
        Refusal::OtherAttempt
    } else if attempt.cid_num != known.attempt.cid_num {
        Refusal::ConnectionCount
    } else if known.has_cid {
        Refusal::ConnectionId
    } else {
        return Decision::Join(path);
    };
    Decision::Refuse(refusal, newer.then_some(path))
}
