// SPDX-License-Identifier: GPL-2.0

//! The requests of a session: a bio for each chunk, and a place for each request that waits.
//!
//! No two requests in service have the same chunk number, so each finds its bio free and its place
//! empty. All memory is allocated with the session.

use super::IoRequest;
use crate::throttle::HostThrottle;
use ibtrs_server::Request;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    blk::BioTable,
    sync::TakeCell, //
};

/// A request that waits: for its disk, or for a limit of its host.
pub(crate) enum Waiting {
    Io(IoRequest),
    /// The request is refused, and charged with the data whose checksum was computed.
    Refused {
        request: Request,
        error: Error,
        limits: Arc<HostThrottle>,
        bytes: u32,
    },
}

impl Waiting {
    fn number(&self) -> u16 {
        match self {
            Self::Io(io) => io.number(),
            Self::Refused { request, .. } => request.buf_id(),
        }
    }
}

/// See the module.
pub(crate) struct Requests {
    pub(crate) bios: BioTable<IoRequest>,
    places: KVVec<TakeCell<Waiting>>,
}

impl Requests {
    /// Creates a table for `depth` chunk numbers.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(depth: u16) -> Result<Arc<Self>> {
        let depth = usize::from(depth);
        let mut places = KVVec::with_capacity(depth, GFP_KERNEL)?;
        for _ in 0..depth {
            places.push(TakeCell::empty(), GFP_KERNEL)?;
        }
        let bios = BioTable::new(depth)?;
        Ok(Arc::new(Self { bios, places }, GFP_KERNEL)?)
    }

    /// Keeps a request in the place of its number, which is returned for [`Self::take`]. `None`, and
    /// the request ends with `EIO`, if another one is there, which does not happen.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn keep(&self, waiting: Waiting) -> Option<u16> {
        let number = waiting.number();
        let place = self.places.get(usize::from(number));
        let is_kept = place.is_some_and(|place| place.put(waiting).is_ok());
        (!kernel::warn_on!(!is_kept)).then_some(number)
    }

    /// Takes back a request that was kept.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn take(&self, number: u16) -> Option<Waiting> {
        let waiting = self.places.get(usize::from(number))?.take();
        let _ = kernel::warn_on!(waiting.is_none());
        waiting
    }
}
