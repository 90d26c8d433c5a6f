// SPDX-License-Identifier: GPL-2.0

//! Requests that wait for a path, and the failover state of the session.
//!
//! The list has one slot for each tag, allocated when the session is opened, so that the loss of a
//! path allocates nothing. A caller that adds a request must then call
//! [`Session::kick_requeue`](crate::session::Session::kick_requeue).

use crate::types::{
    Announcement,
    Descriptor,
    Dir,
    Generation,
    MAX_USER_HDR, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    failover::{
        Failover,
        Loss,
        Outage,
        Published, //
    },
    tag::Tag, //
};
use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::io::IoHandle;

/// A request on the requeue list.
pub(crate) struct Waiting {
    pub(crate) request: Descriptor,
    pub(crate) io: IoHandle,
    /// The request was cancelled, and has ended for its user.
    pub(crate) ended: bool,
}

impl Waiting {
    /// Returns whether the request was cancelled, and has yet to end for its user.
    pub(crate) fn is_to_end(&self) -> bool {
        !self.ended && self.io.is_cancelled()
    }

    /// Ends a cancelled request for its user, and turns it into a message without effect. The
    /// server may still be executing the request in the same chunk, and answers the message only
    /// after that.
    pub(crate) fn make_noop(&mut self, header: &mut Header) {
        if !core::mem::replace(&mut self.ended, true) {
            self.io.end_early(ETIMEDOUT);
        }
        self.request.dir = Dir::Read;
        self.request.bytes = 0;
        self.request.usr_len = 0;
        header.len = 0;
    }
}

/// The memory of the requeue list: one slot for each tag.
pub(crate) struct RequeueList {
    slots: KVVec<Option<Waiting>>,
    /// The user headers, by tag.
    headers: KVVec<u8>,
    count: usize,
}

/// The failover state of a session, protected by `Session::failover`.
pub(crate) struct FailoverState {
    pub(crate) logic: Failover,
    list: RequeueList,
    /// The outage and its start, while requests wait for a path.
    pub(crate) outage: Option<(Outage, Instant<Monotonic>)>,
    /// When the last path was lost, while no path is connected.
    pub(crate) away: Option<Away>,
    /// Epoch of a fence that the server has answered, until the requeue handles the answer.
    pub(crate) answered: Option<u32>,
    /// The server's announcement of a planned stop.
    pub(crate) announcement: Option<Announcement>,
}

/// The time for which a session has been without a path, in milliseconds since 1970.
#[derive(Clone, Copy)]
pub(crate) struct Away {
    /// When the last path was lost.
    pub(crate) since_ms: i64,
    /// When requests began to fail, if they do.
    pub(crate) failing_since_ms: Option<i64>,
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

    /// Allocates slots for `depth` tags.
    pub(crate) fn new(depth: u16) -> Result<Self> {
        let depth = usize::from(depth);
        let mut slots = KVVec::with_capacity(depth, GFP_KERNEL)?;
        for _ in 0..depth {
            slots.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            headers: KVVec::zeroed(depth * MAX_USER_HDR, GFP_KERNEL)?,
            count: 0,
        })
    }

    fn header(&mut self, tag: Tag) -> Option<&mut [u8]> {
        let start = usize::from(tag) * MAX_USER_HDR;
        self.headers.get_mut(start..start + MAX_USER_HDR)
    }

    fn put(&mut self, waiting: Waiting, user_hdr: &[u8]) -> Result<(), IoHandle> {
        let tag = waiting.request.tag;
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
            away: None,
            answered: None,
            announcement: None,
        }
    }

    /// Returns the current [`Generation`].
    pub(crate) fn generation(&self) -> Generation {
        Generation(self.logic.phase())
    }

    /// Adds a request that was built for `generation` and that no path has accepted.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the tag is out of range or on the list already, or the header is too long.
    /// `ENOTCONN`, `ESTALE`, `ETIMEDOUT` as for [`Session::submit`].
    ///
    /// [`Session::submit`]: crate::session::Session::submit
    pub(crate) fn put(
        &mut self,
        generation: Generation,
        req: &Descriptor,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Result<(), (Error, IoHandle)> {
        if let Err(errno) = self.logic.may_requeue(generation.0) {
            return Err((convert::error(errno), io));
        }
        let waiting = Waiting {
            request: Descriptor {
                entry: self.logic.unsent(req.entry),
                ..*req
            },
            io,
            ended: false,
        };
        self.list.put(waiting, user_hdr).map_err(|io| (EINVAL, io))
    }

    /// Adds a request of a lost path.
    ///
    /// # Errors
    ///
    /// Returns the I/O if the slot of its tag is in use, which the rules for tags exclude.
    pub(crate) fn put_lost(
        &mut self,
        (path, loss): (&Published, Loss),
        mut request: Descriptor,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Result<(), IoHandle> {
        request.entry.lost(path, loss);
        let waiting = Waiting {
            request,
            io,
            ended: false,
        };
        self.list.put(waiting, user_hdr)
    }

    /// Puts back a request that [`FailoverState::take`] has taken out.
    pub(crate) fn put_back(&mut self, waiting: Waiting) -> Result<(), Waiting> {
        // The header is still in the list.
        match self.list.slots.get_mut(usize::from(waiting.request.tag)) {
            Some(place @ None) => {
                *place = Some(waiting);
                self.list.count += 1;
                Ok(())
            }
            _ => Err(waiting),
        }
    }

    /// Returns the request with tag `tag`.
    pub(crate) fn get_mut(&mut self, tag: Tag) -> Option<&mut Waiting> {
        self.list.slots.get_mut(usize::from(tag))?.as_mut()
    }

    /// Takes out the request with tag `tag`, and copies its user header to `header`.
    pub(crate) fn take(&mut self, tag: Tag, header: &mut Header) -> Option<Waiting> {
        let waiting = self.list.slots.get_mut(usize::from(tag))?.take()?;
        self.list.count -= 1;
        let len = waiting.request.usr_len;
        header.len = 0;
        let from = self.list.header(tag).and_then(|h| h.get(..len));
        if let (Some(from), Some(to)) = (from, header.bytes.get_mut(..len)) {
            to.copy_from_slice(from);
            header.len = len;
        }
        Some(waiting)
    }

    /// Takes the memory of `new` if the list has none yet.
    pub(crate) fn set_list(&mut self, new: &mut RequeueList) {
        if self.list.slots.is_empty() {
            core::mem::swap(&mut self.list, new);
        }
    }

    /// Returns the number of requests on the list.
    pub(crate) fn count(&self) -> usize {
        self.list.count
    }
}
