// SPDX-License-Identifier: GPL-2.0

//! End-to-end checksums of data (extension; Documentation/protocol.md, "Checksums").
//!
//! The kernel's library computes the CRC-32C; this module decides what it covers. A checksum begins
//! ([`start`]) with the first bytes of the header, so that it covers the device, the sector and the
//! operation, continues over the data, and ends with [`finish`]. [`examine`] decides which messages
//! a server accepts as intact.

use core::fmt;

use ibtrs_proto::msg::Direction;
use ibtrs_proto::Errno;

use crate::io_check::IoError;
use crate::msg::{
    IoHdr, UserMsg, DISCOVER_LEN, IO_HDR_LEN, NAME_AT, NAME_END, OPEN_LEN, SESS_INFO_LEN,
    SESS_INFO_VERSION_END,
};

/// Bytes of an I/O header that its checksum covers: all before the checksum itself.
pub const COVERED: usize = 28;

/// The pauses in milliseconds before a damaged request is sent again. The first attempt does not
/// wait, because a single error is most likely. Later ones do, because the cause of the damage may
/// last for a while, and there may be no other path.
const PAUSES_MS: [u32; 3] = [0, 10, 100];

/// How often a request that was damaged is sent again before it fails.
// CAST: A short table.
pub const MAX_RESENDS: u8 = PAUSES_MS.len() as u8;

/// Begins a CRC-32C with the covered bytes of the header `bytes`; `crc32c(crc, bytes)` is the
/// kernel's, and then continues over the data. A header that has a checksum is not shorter than the
/// covered bytes.
#[inline]
pub fn start(bytes: &[u8], crc32c: impl FnOnce(u32, &[u8]) -> u32) -> u32 {
    crc32c(u32::MAX, bytes.get(..COVERED).unwrap_or(bytes))
}

/// Turns the CRC of header and data into the checksum as it is sent.
#[inline]
pub const fn finish(crc: u32) -> u32 {
    !crc
}

/// A request as its transport header describes it. No checksum covers that header, so any field of
/// it may be wrong.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The user header.
    pub header: &'a [u8],
    /// The direction of the data.
    pub direction: Direction,
    /// Bytes of data: those that came with a write, or those that a read asks for.
    pub data_len: usize,
}

impl Arrived<'_> {
    /// Whether no data came with the request.
    fn is_without_data(&self) -> bool {
        self.direction == Direction::Read || self.data_len == 0
    }

    /// Whether the request is the message without effect that takes the place of a cancelled one.
    /// Damage of its transport header cannot turn another request into this one: a READ of nothing
    /// has no bytes before its headers, but another request has its user header there.
    fn is_nothing(&self) -> bool {
        self.header.is_empty() && self.direction == Direction::Read && self.data_len == 0
    }
}

/// A message that a server accepts as intact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intact {
    /// The message has no checksum, and nothing contradicts its contents.
    Plain,
    /// The message matches its checksum. The value is the CRC of its header, which the CRC of an
    /// answer's data continues.
    Sealed(u32),
}

/// Decides whether a message is intact, in a session that has opened a device with checksums. Any
/// field of the header may be wrong, so the length of the header selects the rule:
///
/// - A header of 32 bytes must match its checksum. The exception is a valid header without
///   checksum, with zeroes after the priority, for a device that has no checksums
///   (`has_checksums`).
/// - An empty header, in a READ of nothing, is the message without effect that takes the place of a
///   cancelled request.
/// - Any other header must be that of an administrative message: exactly its length, the direction
///   of its type, no data, and zeroes where our client sends zeroes.
///
/// `crc32c` is the kernel's. `of_data` continues a CRC over the data of a write; it returns `None`
/// if the data is missing.
///
/// # Errors
///
/// [`IoError::Damaged`] for all other messages.
pub fn examine(
    arrived: &Arrived<'_>,
    has_checksums: impl FnOnce(u32) -> bool,
    crc32c: impl FnOnce(u32, &[u8]) -> u32,
    of_data: impl FnOnce(u32) -> Option<u32>,
) -> Result<Intact, IoError> {
    let header: &[u8; IO_HDR_LEN] = match arrived.header.try_into() {
        Ok(header) => header,
        Err(_) if arrived.is_nothing() || is_admin(arrived) => return Ok(Intact::Plain),
        Err(_) => return Err(IoError::Damaged),
    };
    if let Ok(hdr @ IoHdr { checksum: None, .. }) = IoHdr::decode(header) {
        let is_plain =
            is_zero(header, IoHdr::PRIO_END, IO_HDR_LEN) && !has_checksums(hdr.device_id);
        return match is_plain {
            true => Ok(Intact::Plain),
            false => Err(IoError::Damaged),
        };
    }
    // An unknown type or operation is no damage if the checksum matches: the sender means it.
    let crc = start(header, crc32c);
    let all = match arrived.direction {
        Direction::Write => of_data(crc),
        Direction::Read => Some(crc),
    };
    match all.map(finish) == Some(IoHdr::sent_checksum(header)) {
        true => Ok(Intact::Sealed(crc)),
        false => Err(IoError::Damaged),
    }
}

/// Whether a message is exactly an administrative message as our client sends it.
fn is_admin(arrived: &Arrived<'_>) -> bool {
    let header = arrived.header;
    let Ok(message) = UserMsg::parse(header, true) else {
        return false;
    };
    let after_name = |name: usize| NAME_AT.saturating_add(name);
    let (len, zeroes_from, to) = match &message {
        UserMsg::Io(_) => return false,
        UserMsg::SessInfo(_) => (SESS_INFO_LEN, SESS_INFO_VERSION_END, SESS_INFO_LEN),
        UserMsg::Open(open) => {
            let name = open.dev_name.as_bytes().len();
            (OPEN_LEN, after_name(name), NAME_END)
        }
        UserMsg::Discover(discover) => {
            let name = discover.after.map_or(0, |name| name.as_bytes().len());
            (DISCOVER_LEN, after_name(name), NAME_END)
        }
        UserMsg::Close(_) => (header.len(), 0, 0),
    };
    header.len() == len
        && arrived.is_without_data()
        && message.check_direction(arrived.direction).is_ok()
        && is_zero(header, zeroes_from, to)
}

fn is_zero(bytes: &[u8], from: usize, to: usize) -> bool {
    bytes
        .get(from..to)
        .is_some_and(|part| part.iter().all(|&byte| byte == 0))
}

/// The checksum of a disk's data, as operators write it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DataChecksum {
    /// None.
    #[default]
    None,
    /// CRC-32C.
    Crc32c,
}

/// A text that is not the name of a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadChecksum;

impl BadChecksum {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        "checksum is not none or crc32c"
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

/// The answer to OPEN contradicts the client's choice about checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unconfirmed {
    /// The server would refuse all requests to the device, as they have a checksum.
    Missing,
    /// The server would refuse all requests to the device, as they have no checksum.
    Unasked,
}

impl Unconfirmed {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Missing => {
                "the server does not know data_checksum: update it, or map the device without"
            }
            Self::Unasked => {
                "the server expects checksums that it was not asked for: the message was damaged on the way, try again"
            }
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Missing => Errno::EOPNOTSUPP,
            Self::Unasked => Errno::EPROTO,
        }
    }
}

impl DataChecksum {
    /// All values.
    pub const ALL: [Self; 2] = [Self::None, Self::Crc32c];

    /// The text of the option and of the attribute.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Crc32c => "crc32c",
        }
    }

    /// Whether requests carry a checksum.
    #[inline]
    pub const fn is_on(&self) -> bool {
        matches!(self, Self::Crc32c)
    }

    /// Checks that the server uses this checksum for a device that it has opened; `confirmed` comes
    /// from [its answer](crate::msg::OpenRsp::has_checksums). OPEN has no checksum of its own, so
    /// damage may have changed its flags.
    ///
    /// # Errors
    ///
    /// [`Unconfirmed`].
    pub const fn check_confirmed(&self, confirmed: bool) -> Result<(), Unconfirmed> {
        match (self.is_on(), confirmed) {
            (true, false) => Err(Unconfirmed::Missing),
            (false, true) => Err(Unconfirmed::Unasked),
            (true, true) | (false, false) => Ok(()),
        }
    }

    /// Parses the text of the option.
    ///
    /// # Errors
    ///
    /// [`BadChecksum`].
    pub fn parse(text: &str) -> Result<Self, BadChecksum> {
        let mut all = Self::ALL.into_iter();
        all.find(|known| known.as_str() == text).ok_or(BadChecksum)
    }
}

impl fmt::Display for DataChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Number of times that a request was sent again because it was damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resends(u8);

impl Resends {
    /// A request that was not sent again.
    pub const NONE: Self = Self(0);

    /// Counts another attempt; returns the pause before it in milliseconds, or `None` if there were
    /// too many and the request fails.
    #[must_use]
    pub fn again(&mut self) -> Option<u32> {
        let pause_ms = PAUSES_MS.get(usize::from(self.0)).copied()?;
        self.0 = self.0.saturating_add(1);
        Some(pause_ms)
    }
}
