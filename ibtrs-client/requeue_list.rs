// SPDX-License-Identifier: GPL-2.0

//! Requests that wait for a path, and the failover state of the session.
//!
//! The list has one slot for each tag, allocated when the session is opened, so that
//! the loss of a path allocates nothing. The caller that adds a request calls
//! [`Session::kick_requeue`](crate::session::Session::kick_requeue) afterwards.

use crate::{
    request::{
        Info,
        Req,
        MAX_USER_HDR, //
    },
    session::{
        Dir,
        Generation, //
    }, //
};
use ibtrs_core::convert;
use ibtrs_proto::failover::{
    Failover,
    Loss,
    Outage,
    Published, //
};
use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::io::IoHandle;

/// A request that waits.
pub(crate) struct Waiting {
    pub(crate) info: Info,
    pub(crate) io: IoHandle,
}

impl Waiting {
    /// Ends a cancelled request for its user, and turns it into a message without
    /// effect. The server may still execute the request, with the chunk that it
    /// names: it answers the message when that is over.
    pub(crate) fn make_noop(&mut self, header: &mut Header) {
        self.io.end_early(ETIMEDOUT);
        self.info.dir = Dir::Read;
        self.info.bytes = 0;
        self.info.usr_len = 0;
        header.len = 0;
    }
}

/// The memory for requests that wait.
pub(crate) struct RequeueList {
    slots: KVVec<Option<Waiting>>,
    /// The user headers, by tag.
    headers: KVVec<u8>,
    count: usize,
}

/// The part that the session's lock protects.
pub(crate) struct FailoverState {
    pub(crate) logic: Failover,
    list: RequeueList,
    /// Since when there is no path, while requests wait for one.
    pub(crate) outage: Option<(Outage, Instant<Monotonic>)>,
    /// The epoch that the server has fenced last.
    pub(crate) answered: Option<u32>,
}

/// A copy of a user header.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    bytes: [u8; MAX_USER_HDR],
    len: usize,
}

impl Header {
    pub(crate) const EMPTY: Self = Self {
        bytes: [0; MAX_USER_HDR],
        len: 0,
    };

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
}

impl RequeueList {
    const EMPTY: Self = Self {
        slots: KVVec::new(),
        headers: KVVec::new(),
        count: 0,
    };

    /// Makes places for `depth` tags.
    pub(crate) fn new(depth: u16) -> Result<Self> {
        let depth = usize::from(depth);
        let mut slots = KVVec::with_capacity(depth, GFP_KERNEL)?;
        for _ in 0..depth {
            slots.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            headers: KVVec::from_elem(0, depth * MAX_USER_HDR, GFP_KERNEL)?,
            count: 0,
        })
    }

    fn header(&mut self, tag: u16) -> Option<&mut [u8]> {
        let start = usize::from(tag) * MAX_USER_HDR;
        self.headers.get_mut(start..start + MAX_USER_HDR)
    }

    fn put(&mut self, waiting: Waiting, user_hdr: &[u8]) -> Result<(), IoHandle> {
        let tag = waiting.info.tag;
        let room = self.header(tag).and_then(|h| h.get_mut(..user_hdr.len()));
        let Some(room) = room else {
            return Err(waiting.io);
        };
        room.copy_from_slice(user_hdr);
        match self.slots.get_mut(usize::from(tag)) {
            Some(place @ None) => {
                *place = Some(waiting);
                self.count += 1;
                Ok(())
            }
            _ => Err(waiting.io),
        }
    }
}

impl FailoverState {
    pub(crate) fn new() -> Self {
        Self {
            logic: Failover::new(),
            list: RequeueList::EMPTY,
            outage: None,
            answered: None,
        }
    }

    /// Returns the present [`Generation`].
    pub(crate) fn generation(&self) -> Generation {
        Generation(self.logic.phase())
    }

    /// Adds a request that no path has taken, and that was built for `generation`.
    ///
    /// # Errors
    ///
    /// `EBUSY`, `EINVAL`, `EMSGSIZE` for a tag or a header that is out of order,
    /// `ENOTCONN`, `ESTALE`, `ETIMEDOUT` as for [`Session::submit`].
    ///
    /// [`Session::submit`]: crate::session::Session::submit
    pub(crate) fn put(
        &mut self,
        generation: Generation,
        req: &Req<'_>,
        io: IoHandle,
    ) -> Result<(), (Error, IoHandle)> {
        if let Err(errno) = self.logic.may_requeue(generation.0) {
            return Err((convert::error(errno), io));
        }
        let waiting = Waiting {
            info: Info {
                entry: self.logic.unsent(req.info.entry),
                ..req.info
            },
            io,
        };
        self.list
            .put(waiting, req.user_hdr)
            .map_err(|io| (EINVAL, io))
    }

    /// Adds a request of a lost path.
    ///
    /// # Errors
    ///
    /// The I/O comes back if its place is taken, which the rules for tags exclude.
    pub(crate) fn put_lost(
        &mut self,
        (path, loss): (&Published, Loss),
        mut info: Info,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Result<(), IoHandle> {
        info.entry.lost(path, loss);
        let waiting = Waiting { info, io };
        self.list.put(waiting, user_hdr)
    }

    /// Puts a request back that was taken out.
    pub(crate) fn put_back(&mut self, waiting: Waiting) -> Result<(), IoHandle> {
        // The header is where it was.
        match self.list.slots.get_mut(usize::from(waiting.info.tag)) {
            Some(place @ None) => {
                *place = Some(waiting);
                self.list.count += 1;
                Ok(())
            }
            _ => Err(waiting.io),
        }
    }

    /// Returns the request of that tag.
    pub(crate) fn get_mut(&mut self, tag: u16) -> Option<&mut Waiting> {
        self.list.slots.get_mut(usize::from(tag))?.as_mut()
    }

    /// Takes the request of that tag out, and copies its user header to `header`.
    pub(crate) fn take(&mut self, tag: u16, header: &mut Header) -> Option<Waiting> {
        let waiting = self.list.slots.get_mut(usize::from(tag))?.take()?;
        self.list.count -= 1;
        let len = waiting.info.usr_len;
        header.len = 0;
        let from = self.list.header(tag).and_then(|h| h.get(..len));
        if let (Some(from), Some(to)) = (from, header.bytes.get_mut(..len)) {
            to.copy_from_slice(from);
            header.len = len;
        }
        Some(waiting)
    }

    /// Takes the memory of `new` if there is none yet.
    pub(crate) fn set_list(&mut self, new: &mut RequeueList) {
        if self.list.slots.is_empty() {
            core::mem::swap(&mut self.list, new);
        }
    }

    /// Returns the number of requests that wait.
    pub(crate) fn count(&self) -> usize {
        self.list.count
    }
}
