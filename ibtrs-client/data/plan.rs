// SPDX-License-Identifier: GPL-2.0

//! The ways in which a request can be sent.

use crate::{
    data::wire::Wire,
    types::{
        Dir,
        Req, //
    }, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    capsule,
    layout::{
        self,
        Placement, //
    },
    slots, //
};
use kernel::prelude::*;

/// The way in which the data of a request is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transfer {
    None,
    /// The message takes the data from the request's memory.
    Direct,
    /// The data goes through the slot's memory region.
    Region,
    /// The server fetches the data through the slot's memory region.
    Fetch,
    /// The message takes the data from the [`IoBuffer`](crate::data::io_buffer::IoBuffer) of the tag.
    Buffer,
}

/// How a request is sent.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) transfer: Transfer,
    /// The request is a [capsule], and does not go to its chunk.
    pub(crate) is_capsule: bool,
}

impl Wire {
    /// Returns whether a request that is sent like that goes in a capsule.
    #[inline]
    pub(crate) fn is_capsule(&self, req: &Req<'_>, transfer: Transfer) -> bool {
        let data = match (req.info.dir, transfer) {
            (Dir::Read, _) | (_, Transfer::None | Transfer::Fetch) => 0,
            (Dir::Write, Transfer::Direct | Transfer::Buffer) => req.info.bytes,
            (Dir::Write, Transfer::Region) => return false,
        };
        self.fits_capsule(req, data)
    }

    /// Returns whether a chunk, or the slot in its place, has room for the data of a write.
    #[inline]
    pub(crate) fn fits_landing(&self, req: &Req<'_>) -> bool {
        match (self.rsp.slot_bytes, u16::try_from(req.user_hdr.len())) {
            (Some(slot), Ok(usr_len)) => slots::is_pushed(req.info.bytes, usr_len, slot),
            _ => true,
        }
    }

    /// Returns whether a capsule has room for a request with `data` bytes of data in the message.
    #[inline]
    pub(crate) fn fits_capsule(&self, req: &Req<'_>, data: u32) -> bool {
        self.capsules && req.info.cid > 0 && capsule::fits(data, req.user_hdr.len())
    }

    /// Returns whether a write takes its data to the server, unless that is in too many pieces.
    /// Otherwise the server fetches it.
    #[inline]
    pub(crate) fn is_pushed(&self, req: &Req<'_>) -> bool {
        self.fits_landing(req) || self.fits_capsule(req, req.info.bytes)
    }

    /// Returns the placement of a request with a user header of `usr_len` bytes.
    #[inline]
    pub(crate) fn place(&self, req: &Req<'_>, usr_len: u16, way: Way) -> Result<Placement> {
        let (chunk_size, max_hdr) = (self.rsp.chunk_size(), self.rsp.max_hdr_size);
        let bytes = req.info.bytes;
        let is_write = req.info.dir == Dir::Write && way.transfer != Transfer::Fetch;
        let place = match (is_write, self.rsp.slot_bytes) {
            (true, _) if way.is_capsule => layout::write(0, usr_len, capsule::HEADERS, max_hdr),
            (false, _) if way.is_capsule => {
                layout::in_slot(bytes > 0, usr_len, capsule::HEADERS, max_hdr)
            }
            (true, _) => layout::write(bytes, usr_len, chunk_size, max_hdr),
            (false, Some(slot)) => layout::in_slot(bytes > 0, usr_len, slot, max_hdr),
            (false, None) => layout::read(bytes, usr_len, chunk_size, max_hdr),
        };
        place.map_err(|error| convert::error(error.errno()))
    }
}
