// SPDX-License-Identifier: GPL-2.0

//! Why a frame was refused.

use ibtrs_proto::Errno;

use crate::window::WindowError;

/// What is wrong with a frame. The receiver fails the path that the frame came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// The frame ends within its header, or within that of a record.
    Frame,
    /// A frame of another format.
    Format(u8),
    /// A record of this type that does not exist.
    Type(u8),
    /// A record that says that it is longer than its frame, or shorter than its header.
    Length {
        /// Type of the record.
        ty: u8,
        /// The length that it claims.
        len: u32,
    },
    /// A record too short for its type.
    Short {
        /// Type of the record.
        ty: u8,
    },
    /// A record with bytes that its type does not have.
    Long {
        /// Type of the record.
        ty: u8,
    },
    /// A record with flags that its type does not have.
    Flags {
        /// Type of the record.
        ty: u8,
        /// All flags of the record.
        flags: u8,
    },
    /// Channel 0 in a record that concerns a channel, or another one in a record that concerns none.
    Channel(u32),
    /// A message of an unknown kind.
    Kind(u8),
    /// A message longer than the protocol allows.
    MessageLength(u32),
    /// A piece that reaches beyond its message, or is empty though its message is not.
    Piece {
        /// Where the piece begins in its message.
        offset: u32,
        /// Bytes of the piece.
        len: u32,
        /// Bytes of the message.
        total: u32,
    },
    /// OPEN or ACCEPT with impossible terms.
    Window(WindowError),
    /// OPEN whose portal has no name, or one with other characters than names have.
    PortalName,
    /// More private data than allowed.
    PrivateData(u16),
    /// REJECT without a reason.
    Reason,
    /// REDIRECT with no address or with too many.
    Addresses(u16),
    /// An address to which nobody can connect, or of an unknown family.
    Address,
    /// LIVE with no connection attempts, too many, or a part of one.
    Attempts(usize),
    /// An acknowledgement whose message that the program has taken comes after those that have arrived.
    Taken,
    /// A handle that no kernel makes.
    Handle(u64),
    /// A range of memory that is empty or wraps around, or rights that do not exist.
    Memory,
    /// A message with a body that is too short to say where that is, or of a kind that has none.
    Body,
    /// A message of this kind of publishing whose content is not that of the kind.
    Publication(u8),
}

impl WireError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Frame => "frame shorter than its header or that of a record",
            Self::Format(_) => "frame of an unknown format",
            Self::Type(_) => "record of an unknown type",
            Self::Length { .. } => "length of a record is not that of its frame",
            Self::Short { .. } => "record shorter than its format",
            Self::Long { .. } => "record longer than its format",
            Self::Flags { .. } => "record with unknown flags",
            Self::Channel(_) => "record for a wrong channel number",
            Self::Kind(_) => "message of an unknown kind",
            Self::MessageLength(_) => "message longer than the protocol allows",
            Self::Piece { .. } => "piece does not fit its message",
            Self::Window(e) => e.as_str(),
            Self::PortalName => "name of a portal is empty or has other characters than names",
            Self::PrivateData(_) => "more private data than the protocol allows",
            Self::Reason => "refusal without a reason",
            Self::Addresses(_) => "redirection to no address or to too many",
            Self::Address => "redirection to an impossible address",
            Self::Attempts(_) => "list of no connection attempts or of too many",
            Self::Taken => "acknowledgement of a message taken before it arrived",
            Self::Handle(_) => "handle of memory that no kernel makes",
            Self::Memory => "empty or impossible range of memory",
            Self::Body => "message with a body does not say where that is",
            Self::Publication(_) => "message of publishing with a wrong content",
        }
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EPROTO
    }
}
