// SPDX-License-Identifier: GPL-2.0

//! Requests in service.

use crate::{
    body::Body,
    con::Con,
    respond, //
};
use ibtrs_proto::msg::Direction as Dir;
use kernel::prelude::*;
use kx::{
    mm::PageBlock,
    sync::PercpuArc, //
};
use rdma::qp::QueuePair;

/// A request that the service has to answer.
///
/// As long as it lives, nobody else uses the memory of the request, and with
/// `always_invalidate` the client cannot write to it. Dropping it answers with
/// `EIO`.
pub struct Op {
    qp: PercpuArc<QueuePair<Con>>,
    index: u32,
    /// Present until the request is answered.
    body: Option<KBox<Body>>,
}

impl Op {
    pub(crate) fn new(qp: PercpuArc<QueuePair<Con>>, index: u32, body: KBox<Body>) -> Self {
        Self {
            qp,
            index,
            body: Some(body),
        }
    }

    /// Returns which way the data goes: into [`Op::buffer`] for a read.
    pub fn dir(&self) -> Dir {
        match &self.body {
            Some(body) => body.request.direction,
            None => Dir::Write,
        }
    }

    /// Returns the user header, a private copy.
    pub fn user_hdr(&self) -> &[u8] {
        match &self.body {
            Some(body) => body.user_hdr(),
            None => &[],
        }
    }

    /// Returns the number of bytes of data: those that a write brought, or that
    /// the client wants of a read.
    pub fn data_len(&self) -> usize {
        match &self.body {
            Some(body) => match body.request.direction {
                Dir::Read => body.request.return_len() as usize,
                Dir::Write => body.request.data_len as usize,
            },
            None => 0,
        }
    }

    /// Returns the number of the chunk. No two requests of a session in service
    /// have the same, whatever paths they came by.
    pub fn buf_id(&self) -> u16 {
        // A table has no more slots than chunks.
        self.index as u16
    }

    /// Returns the memory of the data, which begins at its start and is at least
    /// [`Op::data_len`] bytes long; none only if that is zero.
    pub fn buffer(&self) -> Option<&PageBlock> {
        Some(self.body.as_ref()?.buffer())
    }

    /// Fills the answer to a read with `bytes` and zeroes.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` when the client wants less.
    pub fn reply_bytes(&mut self, bytes: &[u8]) -> Result {
        let len = self.data_len();
        let buffer = self.buffer().ok_or(EINVAL)?;
        if bytes.len() > len {
            return Err(EMSGSIZE);
        }
        buffer.copy_in(0, bytes)?;
        buffer.zero(bytes.len(), len - bytes.len())
    }

    /// Answers the request: with its data if it is a read that succeeded.
    ///
    /// # Context
    ///
    /// Any.
    pub fn respond(mut self, result: Result) {
        self.answer(result);
    }

    fn answer(&mut self, result: Result) {
        if let Some(body) = self.body.take() {
            respond::respond(&self.qp, self.index, body, result);
        }
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        self.answer(Err(EIO));
    }
}
