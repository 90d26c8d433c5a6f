// SPDX-License-Identifier: GPL-2.0

//! Messages of the block device (Documentation/protocol.md, "Block device messages").
//!
//! The client's messages are the user headers of transport requests; the server's are the data
//! of answers to reads. Each begins with its type (16 bits) and 16 bits of padding. All padding
//! and all reserved bytes are sent as zeroes, and ignored when received: C clients send what
//! was on their stack.

mod admin;
mod details;
mod discover;
mod io;
mod open_rsp;

pub use admin::{Close, Open, SessInfo, SessInfoRsp};
pub use details::{Details, DETAILS_LEN, OPEN_RSP_LONG_LEN};
pub use discover::{
    Discover, DiscoverPage, DiscoverRsp, Listed, Portal, DISCOVER_LEN, DISCOVER_RSP_LEN,
    MAX_PORTALS,
};
pub use io::{IoFlags, IoHdr, Op, WrittenThrough};
pub use open_rsp::{CachePolicy, DeviceLimits, OpenRsp, MAX_SECTORS};

use ibtrs_proto::bytes::{Reader, Writer};
use ibtrs_proto::msg::Direction;
use ibtrs_proto::name::{NameError, MAX_DEVICE_NAME};
use ibtrs_proto::Errno;

/// Highest major version that these drivers speak; the lower one of both sides is used.
pub const VERSION_MAJOR: u8 = 2;

/// Length of SESS_INFO and of its answer, in bytes.
pub const SESS_INFO_LEN: usize = 36;
/// End of the version in SESS_INFO.
pub(crate) const SESS_INFO_VERSION_END: usize = 5;
/// Length of OPEN, in bytes.
pub const OPEN_LEN: usize = 264;
/// Where the field of the name begins and ends in OPEN and DISCOVER.
pub(crate) const NAME_AT: usize = 6;
pub(crate) const NAME_END: usize = NAME_AT + MAX_DEVICE_NAME;
/// Length of the answer to OPEN, in bytes.
pub const OPEN_RSP_LEN: usize = 56;
/// Length of CLOSE, in bytes.
pub const CLOSE_LEN: usize = 8;
/// Length of an I/O header as these drivers send it, in bytes.
pub const IO_HDR_LEN: usize = 32;

const TYPE_SESS_INFO: u16 = 0;
const TYPE_SESS_INFO_RSP: u16 = 1;
const TYPE_OPEN: u16 = 2;
const TYPE_OPEN_RSP: u16 = 3;
const TYPE_IO: u16 = 4;
const TYPE_CLOSE: u16 = 5;
const TYPE_DISCOVER: u16 = 6;
const TYPE_DISCOVER_RSP: u16 = 7;

/// Why a message was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MsgError {
    /// Shorter than its format.
    Short,
    /// Longer than its format, where that must not be.
    Long,
    /// The type is not the expected one, or unknown.
    Type(u16),
    /// OPEN with an unknown access mode.
    AccessMode(u8),
    /// OPEN with an unusable device name.
    Name(NameError),
    /// I/O with an unknown operation.
    Op(u8),
    /// I/O with unknown flags.
    Flags(u32),
    /// Device with a block size that is no power of two from 512 to 32768.
    BlockSize(u32),
    /// Device beyond 2^63 - 1 bytes.
    Capacity(u64),
    /// A message in a transport request of the wrong direction.
    Direction,
    /// A portal without an address or a port number that clients can connect to, or one too many.
    Portal,
    /// A list that goes on, without an entry.
    Endless,
    /// A list whose names do not increase.
    Order,
}

impl MsgError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Short => "message shorter than its format",
            Self::Long => "message longer than its format",
            Self::Type(_) => "message of an unexpected type",
            Self::AccessMode(_) => "unknown access mode",
            Self::Name(e) => e.as_str(),
            Self::Op(_) => "unknown operation",
            Self::Flags(_) => "unknown request flags",
            Self::BlockSize(_) => "block size is not a power of two from 512 to 32768",
            Self::Capacity(_) => "device is larger than 2^63 - 1 bytes",
            Self::Direction => "message against the direction of the transport",
            Self::Portal => "portal that no client can connect to, or too many portals",
            Self::Endless => "list that goes on without an entry",
            Self::Order => "list that is not in the order of its names",
        }
    }

    /// The errno to return or to answer with.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Name(e) => e.errno(),
            Self::Op(_) | Self::Flags(_) => Errno::EOPNOTSUPP,
            Self::Capacity(_) => Errno::EFBIG,
            _ => Errno::EINVAL,
        }
    }
}

/// A message from a client, as the server sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserMsg<'a> {
    /// The client's version of the protocol.
    SessInfo(SessInfo),
    /// Opens a device.
    Open(Open<'a>),
    /// Closes a device.
    Close(Close),
    /// An I/O request.
    Io(IoHdr),
    /// Asks for a list of exports. Extension: counts only if the session has extensions.
    Discover(Discover<'a>),
}

impl<'a> UserMsg<'a> {
    /// Reads a user header of a session with `extensions` or without. It may be longer than its
    /// message, except that in a session with extensions CLOSE has exactly its own length: an I/O
    /// header whose type is damaged must not pass for one, as the answer to both is a bare success.
    ///
    /// # Errors
    ///
    /// When it is short, of a type that clients do not send in such a session, or malformed.
    #[inline]
    pub fn parse(bytes: &'a [u8], extensions: bool) -> Result<Self, MsgError> {
        let kind = Reader::new(bytes).u16().ok_or(MsgError::Short)?;
        match kind {
            TYPE_IO => IoHdr::decode(bytes).map(Self::Io),
            TYPE_SESS_INFO => SessInfo::decode(bytes).map(Self::SessInfo),
            TYPE_OPEN => Open::decode(bytes).map(Self::Open),
            TYPE_CLOSE if extensions && bytes.len() > CLOSE_LEN => Err(MsgError::Long),
            TYPE_CLOSE => Close::decode(bytes).map(Self::Close),
            TYPE_DISCOVER if extensions => Discover::decode(bytes).map(Self::Discover),
            other => Err(MsgError::Type(other)),
        }
    }

    /// Checks the direction of the transport request: a READ if the message has an answer, a WRITE
    /// if it has none. A READ without an answer would return whatever the memory held before.
    /// [`io_check`](crate::io_check) does the same for I/O.
    ///
    /// # Errors
    ///
    /// [`MsgError::Direction`].
    pub fn check_direction(&self, direction: Direction) -> Result<(), MsgError> {
        let due = match self {
            Self::SessInfo(_) | Self::Open(_) | Self::Discover(_) => Direction::Read,
            Self::Close(_) => Direction::Write,
            Self::Io(_) => return Ok(()),
        };
        if direction == due {
            Ok(())
        } else {
            Err(MsgError::Direction)
        }
    }
}

/// Writes the common header.
#[inline]
fn put_type(w: &mut Writer<'_>, kind: u16) {
    w.u16(kind);
    w.zeros(2);
}

/// Checks that the common header is of type `kind`, and returns a reader of what follows it.
#[inline]
fn body(bytes: &[u8], kind: u16) -> Result<Reader<'_>, MsgError> {
    let mut r = Reader::new(bytes);
    match r.u16() {
        Some(k) if k == kind => {}
        Some(k) => return Err(MsgError::Type(k)),
        None => return Err(MsgError::Short),
    }
    r.skip(2).ok_or(MsgError::Short)?;
    Ok(r)
}

/// The bytes of a name's field before its NUL.
fn until_nul(field: &[u8]) -> Result<&[u8], MsgError> {
    let len = field.iter().position(|&b| b == 0);
    let name = len.and_then(|len| field.get(..len));
    name.ok_or(MsgError::Name(NameError::NoNul))
}
