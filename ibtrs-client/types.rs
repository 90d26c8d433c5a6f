// SPDX-License-Identifier: GPL-2.0

//! Types that belong to none of their users, below all of them.

use ibtrs_proto::{
    addr::PathAddr,
    auth::{
        KeyId,
        Suite, //
    },
    consts::MAX_REQUEST_HDR_LEN,
    failover::{
        Entry,
        Phase, //
    }, //
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
    /// Returns whether the users of the session know of it: its devices have been opened.
    pub fn is_open(self) -> bool {
        self.0.is_open()
    }

    /// Returns whether both are of one session of the server, in which the users may not have opened
    /// their devices yet in one of the two cases: a number names the same device in both.
    pub fn is_same_session(self, other: Self) -> bool {
        self.0.is_same_generation(other.0)
    }
}

/// The descriptor of a request from its submission to its end: everything but its data and its
/// user header.
#[derive(Clone, Copy)]
pub(crate) struct Info {
    /// The connection to use.
    pub(crate) cid: u16,
    /// Bytes of the user header.
    pub(crate) usr_len: usize,
    pub(crate) tag: u16,
    pub(crate) dir: Dir,
    pub(crate) bytes: u32,
    pub(crate) entry: Entry,
}

/// A request as submitted to a path.
#[derive(Clone, Copy)]
pub(crate) struct Req<'a> {
    pub(crate) info: Info,
    pub(crate) user_hdr: &'a [u8],
    /// Ring the doorbell.
    pub(crate) last: bool,
    /// Count the request among those in flight on the path.
    pub(crate) counted: bool,
    /// See [`Submit::avoid`](crate::session::Submit::avoid).
    pub(crate) avoid: Option<u32>,
}

/// The means by which both sides of a path have proved themselves.
#[derive(Clone, Copy)]
pub(crate) struct Proved {
    pub(crate) key_id: KeyId,
    pub(crate) suite: Suite,
}
