// SPDX-License-Identifier: GPL-2.0

//! Capsules: requests that are messages, with the data of small writes (Documentation/protocol.md,
//! "Capsules").
//!
//! A capsule needs no chunk or slot, and once it has arrived, the client cannot change it any more.
//! So the server writes its data to the disk from where it is, without a copy.

use crate::consts::MAX_REQUEST_HDR_LEN;

/// The data of a capsule begins here, in bytes. The headers come before it.
pub const HEADERS: u32 = 64;
/// The most bytes of data of a capsule.
pub const MAX_DATA: u32 = 4096;

/// A server's acceptance has the window of a connection in multiples of this, less [`SPARE`].
const WINDOW_UNIT: u32 = 16;
/// A queue with as many entries as a multiple of [`WINDOW_UNIT`] has room for this many beside the
/// requests of the window: for one that is answered before its receive is posted again, the marker of
/// a drain, and the entry that soft-RoCE leaves free.
const SPARE: u32 = 3;
/// The smallest window of this server, in units.
const MIN_UNITS: u32 = 4;

/// The most requests of a path that may be in flight on each of its connections for I/O, as the
/// acceptance has it: not 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window(u8);

impl Window {
    /// The window on the wire; `None` for 0, which says that the path has no capsules.
    pub const fn from_wire(units: u8) -> Option<Self> {
        match units {
            0 => None,
            units => Some(Self(units)),
        }
    }

    /// The number on the wire.
    pub const fn to_wire(self) -> u8 {
        self.0
    }

    /// The window of a path with `queue_depth` requests and `connections` for I/O: all of these together
    /// have room for all requests, unless that is more than the number on the wire can say.
    pub const fn of_path(queue_depth: u16, connections: u16) -> Self {
        let connections = if connections == 0 { 1 } else { connections };
        // Lossless: u16 to u32.
        let each = (queue_depth as u32).div_ceil(connections as u32);
        let units = each.saturating_add(SPARE).div_ceil(WINDOW_UNIT);
        if units < MIN_UNITS {
            return Self(MIN_UNITS as u8);
        }
        match units > u8::MAX as u32 {
            true => Self(u8::MAX),
            // Lossless: just compared.
            false => Self(units as u8),
        }
    }

    /// The number of requests: 13 to 4077.
    #[inline]
    pub const fn requests(self) -> u32 {
        // Lossless: u8 to u32.
        (self.0 as u32)
            .saturating_mul(WINDOW_UNIT)
            .saturating_sub(SPARE)
    }
}

/// Whether a request with a user header of `usr_len` bytes fits a capsule, whichever header follows. It
/// has `data_len` bytes of data in the message.
#[inline]
pub const fn fits(data_len: u32, usr_len: usize) -> bool {
    // Lossless: u32 to usize.
    data_len <= MAX_DATA && usr_len.saturating_add(MAX_REQUEST_HDR_LEN) <= HEADERS as usize
}
