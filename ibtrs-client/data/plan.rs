// SPDX-License-Identifier: GPL-2.0

//! Plans how a request is sent: pure functions of the negotiated parameters.

use crate::{
    data::wire::Wire,
    types::{
        Descriptor,
        Dir, //
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

/// The properties of a request's data on which the plan depends.
#[derive(Clone, Copy)]
pub(crate) enum Data {
    None,
    /// It goes through the buffer of the tag.
    Buffered,
    /// The device can reach it, in this number of pieces.
    Mapped(u32),
}

/// How the data of a request gets to the server, or from there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// There is none.
    NoData,
    /// A small read: the server writes to the buffer of the tag.
    IntoBuffer,
    /// A small write: the message takes the data from the buffer of the tag.
    FromBuffer,
    /// A write: the message takes the data from the request's memory.
    Direct,
    /// A read, or a write with more pieces than a message can have: through the slot's memory region.
    Region,
    /// A write: the server fetches the data through the slot's memory region.
    Fetch,
}

/// How a request is sent.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) transfer: Transfer,
    /// The request is a [capsule], and does not go to its chunk.
    pub(crate) is_capsule: bool,
}

impl Plan {
    /// Returns whether the data is mapped in the slot's memory region.
    #[inline]
    pub(crate) fn has_region(self) -> bool {
        matches!(self.transfer, Transfer::Region | Transfer::Fetch)
    }
}

impl Wire {
    /// Plans a request with such data.
    #[inline]
    pub(crate) fn plan(&self, req: &Descriptor, data: Data) -> Plan {
        let transfer = match (data, req.dir) {
            (Data::None, _) => Transfer::NoData,
            (Data::Buffered, Dir::Read) => Transfer::IntoBuffer,
            (Data::Buffered, Dir::Write) => Transfer::FromBuffer,
            (Data::Mapped(_), Dir::Read) => Transfer::Region,
            (Data::Mapped(pieces), Dir::Write) if self.is_pushed(req) && pieces < self.max_sges => {
                Transfer::Direct
            }
            // A capsule has no data from a region.
            (Data::Mapped(_), Dir::Write) if self.fits_landing(req) => Transfer::Region,
            (Data::Mapped(_), Dir::Write) => Transfer::Fetch,
        };
        Plan {
            transfer,
            is_capsule: self.is_capsule(req, transfer),
        }
    }

    /// Returns whether a request that is sent like that goes in a capsule.
    #[inline]
    fn is_capsule(&self, req: &Descriptor, transfer: Transfer) -> bool {
        let data = match (transfer, req.dir) {
            (Transfer::NoData | Transfer::IntoBuffer | Transfer::Fetch, _) => 0,
            (Transfer::FromBuffer | Transfer::Direct, _) => req.bytes,
            (Transfer::Region, Dir::Read) => 0,
            (Transfer::Region, Dir::Write) => return false,
        };
        self.fits_capsule(req, data)
    }

    /// Returns whether a chunk, or the slot in its place, has room for the data of a write.
    #[inline]
    fn fits_landing(&self, req: &Descriptor) -> bool {
        match (self.rsp.slot_bytes, u16::try_from(req.usr_len)) {
            (Some(slot), Ok(usr_len)) => slots::is_pushed(req.bytes, usr_len, slot),
            _ => true,
        }
    }

    /// Returns whether a capsule has room for a request with `data` bytes of data in the message.
    #[inline]
    fn fits_capsule(&self, req: &Descriptor, data: u32) -> bool {
        self.capsules && req.cid > 0 && capsule::fits(data, req.usr_len)
    }

    /// Returns whether the client pushes the data of a write, unless the data is in too many
    /// pieces. If not, the server fetches it.
    #[inline]
    pub(crate) fn is_pushed(&self, req: &Descriptor) -> bool {
        self.fits_landing(req) || self.fits_capsule(req, req.bytes)
    }

    /// Returns the placement of a request with a user header of `usr_len` bytes.
    #[inline]
    pub(crate) fn place(&self, req: &Descriptor, usr_len: u16, plan: Plan) -> Result<Placement> {
        let (chunk_size, max_hdr) = (self.rsp.chunk_size(), self.rsp.max_hdr_size);
        let bytes = req.bytes;
        let is_write = req.dir == Dir::Write && plan.transfer != Transfer::Fetch;
        let place = match (is_write, self.rsp.slot_bytes) {
            (true, _) if plan.is_capsule => layout::write(0, usr_len, capsule::HEADERS, max_hdr),
            (false, _) if plan.is_capsule => {
                layout::in_slot(bytes > 0, usr_len, capsule::HEADERS, max_hdr)
            }
            (true, _) => layout::write(bytes, usr_len, chunk_size, max_hdr),
            (false, Some(slot)) => layout::in_slot(bytes > 0, usr_len, slot, max_hdr),
            (false, None) => layout::read(bytes, usr_len, chunk_size, max_hdr),
        };
        place.map_err(|error| convert::error(error.errno()))
    }
}
