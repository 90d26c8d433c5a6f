// SPDX-License-Identifier: GPL-2.0

//! End-to-end checksums of data (extension; Documentation/protocol.md, "Checksums").
//!
//! Only the decisions are here: the kernel's library computes the CRC-32C. [`start`] and
//! [`finish`] say how: it begins with the first bytes of the header, so that it also covers the
//! device, the sector and the operation, and continues over the data. [`examine`] decides which
//! messages a server believes.

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

/// The pause before each further attempt to send a request that was damaged, in milliseconds. What
/// damages it may last for a while, and there may be no other path. The first pause is none, as a
/// single error is most likely.
const PAUSES_MS: [u32; 3] = [0, 10, 100];

/// How often a request that was damaged is sent again before it fails.
// CAST: A short table.
pub const MAX_RESENDS: u8 = PAUSES_MS.len() as u8;

/// Begins a CRC-32C over the covered bytes of the header `bytes`, with the kernel's
/// `crc32c(crc, bytes)`, which then continues it over the data. A header that has a checksum is not
/// shorter than the covered bytes.
#[inline]
pub fn start(bytes: &[u8], crc32c: impl FnOnce(u32, &[u8]) -> u32) -> u32 {
    crc32c(u32::MAX, bytes.get(..COVERED).unwrap_or(bytes))
}

/// The checksum as it travels, from what [`start`] and the data have resulted in.
#[inline]
pub const fn finish(crc: u32) -> u32 {
    !crc
}

/// A request as its transport header describes it. No checksum covers that header, so all of it may
/// be wrong.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The user header.
    pub header: &'a [u8],
    /// Which way the data flows.
    pub direction: Direction,
    /// Bytes of data: of a write, those that came with it; of a read, those that it wants.
    pub data_len: usize,
}

impl Arrived<'_> {
    /// Whether no data came with the request.
    fn is_without_data(&self) -> bool {
        self.direction == Direction::Read || self.data_len == 0
    }

    /// Whether the request is the message without effect that takes the place of a cancelled one.
    /// No damage of a transport header makes it of another request: a READ that wants nothing has
    /// nothing in front of its headers, so the header of the other one would have to be there.
    fn is_nothing(&self) -> bool {
        self.header.is_empty() && self.direction == Direction::Read && self.data_len == 0
    }
}

/// A message that a server believes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intact {
    /// It has no checksum, and may be what it seems to be.
    Plain,
    /// It matches its checksum; with the CRC of its header, which that of an answer's data
    /// continues.
    Sealed(u32),
}

/// Decides whether a server believes a message of a session that has opened a device with
/// checksums. Nothing in the header says which rule applies, as anything in it may be wrong:
///
/// - 32 bytes are a sealed I/O header, which has to match its checksum,
/// - unless they are a valid header without checksum, whose bytes behind the priority are zeroes,
///   for a device of which `has_checksums` does not say that it has some.
/// - No bytes, in a READ of nothing, are the message without effect that takes the place of a
///   cancelled request.
/// - Anything else is an administrative message of exactly its length, with the direction of its
///   type, without data, and with zeroes where these drivers have some.
///
/// `crc32c` is the kernel's, and `of_data` continues a CRC over the data of a write; without
/// result, the data is not there.
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
    // Even if its type or its operation are unknown: if it matches, its sender means that.
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

/// Whether a message that is no I/O is exactly what these drivers send.
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

/// What the answer to OPEN says about checksums is not what the client wants.
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

    /// Checks that a server that has opened a device for this checksum will do the same as its
    /// client: `confirmed` is what its answer [says](crate::msg::OpenRsp::has_checksums). OPEN has
    /// no checksum of its own, and damage may have changed what it asks for.
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

/// How often a request was sent again because its data was damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resends(u8);

impl Resends {
    /// A request that was not sent again.
    pub const NONE: Self = Self(0);

    /// Counts one more; returns the pause before it, in milliseconds, or `None` if the request
    /// fails.
    #[must_use]
    pub fn again(&mut self) -> Option<u32> {
        let pause_ms = PAUSES_MS.get(usize::from(self.0)).copied()?;
        self.0 = self.0.saturating_add(1);
        Some(pause_ms)
    }
}
