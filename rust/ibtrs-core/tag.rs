// SPDX-License-Identifier: GPL-2.0

//! The tags of slots: a queue pair of requests has a slot for each tag.

use ibtrs_proto::tag::Tag;
use rdma::{
    qp::Handler,
    slot::Slot, //
};

/// A slot in a table with one for each tag.
pub trait Tagged {
    /// Returns the tag of the requests of the slot.
    fn tag(&self) -> Tag;
}

impl<H: Handler> Tagged for Slot<H> {
    #[inline]
    fn tag(&self) -> Tag {
        Tag::new(self.index())
    }
}
