// SPDX-License-Identifier: GPL-2.0

//! Types that several layers share, below all of them.

use ibtrs_proto::{
    addr::PathAddr,
    auth::{
        KeyId,
        Suite, //
    },
    consts::MAX_REQUEST_HDR_LEN,
    downtime::{
        Announced,
        Downtime, //
    },
    failover::{
        Entry,
        Phase, //
    },
    tag::Tag, //
};
use kernel::time::{
    Instant,
    Monotonic, //
};

pub use ibtrs_proto::msg::Direction as Dir;

/// Maximum length of a user header, in bytes.
pub const MAX_USER_HDR: usize = 512 - MAX_REQUEST_HDR_LEN;
/// Time limit of an administrative message.
pub(crate) const ADMIN_TIMEOUT_MS: u32 = 30_000;

/// Destination of a path, and optionally the source.
#[derive(Clone, Copy)]
pub struct PathSpec {
    /// The addresses of both ends.
    pub addr: PathAddr,
    /// The port on which the server listens.
    pub port: u16,
}

/// A session generation: while it lasts, the server knows the same devices.
///
/// A request built for an earlier generation is not sent: the server may have given its device
/// number to another device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generation(pub(crate) Phase);

impl Generation {
    /// Returns whether the users of the session have opened their devices in this generation.
    pub fn is_open(self) -> bool {
        self.0.is_open()
    }

    /// Returns whether both belong to the same session on the server, so that a number names the
    /// same device in both. They may differ in whether the users have opened their devices.
    pub fn is_same_session(self, other: Self) -> bool {
        self.0.is_same_generation(other.0)
    }
}

/// A request for the server from its submission to its end: everything but its user header and its data.
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// The tag, which selects the chunk; below [`Session::io_depth`](crate::Session::io_depth). No
    /// other request with this tag may be in flight or waiting.
    pub tag: Tag,
    /// Direction of the data transfer.
    pub dir: Dir,
    /// Bytes of data, the length of the scatter list of the I/O; may be zero.
    pub bytes: u32,
    /// Ring the doorbell now. If not, [`Session::commit`](crate::Session::commit) must follow.
    pub last: bool,
    /// The epoch of a path to avoid, as reported by [`Io::note_answer`](kx::io::Io::note_answer):
    /// it gets the request only if no other path accepts it.
    pub avoid: Option<u32>,
    /// The connection to use.
    pub(crate) cid: u16,
    /// Bytes of the user header.
    pub(crate) usr_len: usize,
    /// Count the request as in flight on the path.
    pub(crate) counted: bool,
    /// The number of the failover that last moved the request; 0 if none has.
    pub(crate) failover: u32,
    pub(crate) entry: Entry,
}

impl Descriptor {
    /// Describes a request for I/O whose doorbell is rung at once.
    #[inline]
    pub fn new(tag: Tag, dir: Dir, bytes: u32) -> Self {
        Self {
            tag,
            dir,
            bytes,
            last: true,
            avoid: None,
            cid: 0,
            usr_len: 0,
            counted: false,
            failover: 0,
            entry: Entry::NEW,
        }
    }
}

/// The server's announcement of a planned stop, and when it arrived.
#[derive(Clone, Copy)]
pub(crate) struct Announcement {
    pub(crate) downtime: Downtime,
    pub(crate) at: Instant<Monotonic>,
}

impl Announcement {
    /// Returns the announcement with the time that has passed since.
    pub(crate) fn now(&self) -> Announced {
        Announced {
            downtime: self.downtime,
            passed_ms: u64::try_from(self.at.elapsed().as_millis()).unwrap_or(0),
        }
    }
}

/// The means by which both sides of a path have proved themselves.
#[derive(Clone, Copy)]
pub(crate) struct Proved {
    pub(crate) key_id: KeyId,
    pub(crate) suite: Suite,
}
