// SPDX-License-Identifier: GPL-2.0

//! Connection requests that wait to be accepted.

use ibtrs_proto::{
    consts::CONN_REQ_LEN,
    handshake::{
        ConnReq,
        HandshakeError, //
    },
    setup, //
};
use kernel::{
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::deque::Deque;
use rdma::cm::ConnRequest;

/// A decoded connection request.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) request: ConnReq,
    /// The request as received.
    pub(crate) bytes: [u8; CONN_REQ_LEN],
}

impl Asked {
    fn decode(private_data: &[u8]) -> Result<Self, HandshakeError> {
        Ok(Self {
            request: ConnReq::decode(private_data)?,
            bytes: *private_data.first_chunk().ok_or(HandshakeError::Short)?,
        })
    }
}

/// A connection request that waits to be accepted.
pub(crate) struct PendingConn {
    pub(crate) id: ConnRequest,
    pub(crate) asked: Result<Asked, HandshakeError>,
    pub(crate) came: Instant<Monotonic>,
}

impl PendingConn {
    /// Creates the request of a client, which now waits for the answer.
    pub(crate) fn new(id: ConnRequest, private_data: &[u8]) -> Self {
        Self {
            id,
            asked: Asked::decode(private_data),
            came: Instant::now(),
        }
    }

    /// Returns the decoded request, unless it is malformed.
    fn asked(&self) -> Option<&Asked> {
        self.asked.as_ref().ok()
    }

    /// Returns whether the request is for a further connection of a path, not its first.
    fn is_further(&self) -> bool {
        self.asked().is_some_and(|asked| asked.request.cid > 0)
    }
}

/// Connection requests that wait to be accepted, the oldest first.
pub(crate) struct Backlog {
    pending: Deque<PendingConn>,
    /// The request being accepted.
    now: Option<Asked>,
}

impl Backlog {
    pub(crate) fn new() -> Result<Self> {
        let mut pending = Deque::new();
        pending.reserve(setup::WAITING_MAX, GFP_KERNEL)?;
        Ok(Self { pending, now: None })
    }

    /// Adds a request; returns it if the backlog is full.
    pub(crate) fn push(&mut self, pending: PendingConn) -> Result<(), ConnRequest> {
        if !setup::may_wait(self.pending.len(), pending.is_further()) {
            return Err(pending.id);
        }
        self.pending.push_back(pending).map_err(|full| full.id)
    }

    /// Takes the next request to be accepted; the accept of the previous one must have ended.
    pub(crate) fn next(&mut self) -> Option<PendingConn> {
        let next = self.pending.pop_front();
        self.now = next.as_ref().and_then(PendingConn::asked).copied();
        next
    }

    /// Returns whether a connection for which `is_meant` returns true is in the backlog or being
    /// accepted.
    pub(crate) fn has(&self, is_meant: impl Fn(&Asked) -> bool) -> bool {
        let waiting = self.pending.iter().filter_map(PendingConn::asked);
        Iterator::chain(self.now.iter(), waiting).any(is_meant)
    }
}
