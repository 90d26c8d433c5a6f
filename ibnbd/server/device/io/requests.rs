// SPDX-License-Identifier: GPL-2.0

//! The requests of a session: a bio for each chunk, and a place for each request that waits.
//!
//! No two requests in service have the same tag, so the bio and the place of a tag are always free
//! for its request. All memory is allocated with the session.

use super::IoRequest;
use crate::throttle::HostThrottle;
use ibtrs_server::{
    Request,
    Tag, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    blk::BioTable,
    sync::{
        SetOnce,
        TakeCell, //
    },
    work::{
        Options,
        Queue, //
    }, //
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
    fn tag(&self) -> Tag {
        match self {
            Self::Io(io) => io.tag(),
            Self::Refused { request, .. } => request.tag(),
        }
    }
}

/// The table of a session's requests, see the module.
pub(crate) struct Requests {
    pub(crate) bios: BioTable<IoRequest>,
    places: KVVec<TakeCell<Waiting>>,
    depth: u16,
    /// Runs the workers of the devices' backlogs, from the first opened device on.
    workers: SetOnce<Arc<Queue>>,
}

impl Requests {
    /// Creates a table for `depth` tags.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(depth: u16) -> Result<Arc<Self>> {
        let len = usize::from(depth);
        let mut places = KVVec::with_capacity(len, GFP_KERNEL)?;
        for _ in 0..len {
            places.push(TakeCell::empty(), GFP_KERNEL)?;
        }
        let this = Self {
            bios: BioTable::new(len)?,
            places,
            depth,
            workers: SetOnce::new(),
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Returns the number of tags.
    pub(crate) fn depth(&self) -> u16 {
        self.depth
    }

    /// Returns the queue that runs the workers of the devices' backlogs. The first device of `session`
    /// creates it: it has a rescuer thread for memory reclaim, which a session without devices does
    /// not need.
    ///
    /// # Context
    ///
    /// May sleep. One task at a time.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn workers(&self, session: &CStr) -> Result<&Arc<Queue>> {
        if self.workers.as_ref().is_none() {
            let options = Options::unbound().mem_reclaim();
            self.workers
                .populate(Queue::new(options, fmt!("ibnbd-io-{}", session))?);
        }
        self.workers.as_ref().ok_or(ENOMEM)
    }

    /// Stores a request in the place of its tag; returns the tag for [`Self::take`]. If the place
    /// is occupied, which never happens, returns `None`, and the request ends with `EIO`.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn keep(&self, waiting: Waiting) -> Option<Tag> {
        let tag = waiting.tag();
        let place = self.places.get(usize::from(tag));
        let is_kept = place.is_some_and(|place| place.put(waiting).is_ok());
        (!kernel::warn_on!(!is_kept)).then_some(tag)
    }

    /// Takes a stored request out again.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn take(&self, tag: Tag) -> Option<Waiting> {
        let waiting = self.places.get(usize::from(tag))?.take();
        let _ = kernel::warn_on!(waiting.is_none());
        waiting
    }
}
