// SPDX-License-Identifier: GPL-2.0

//! Requests in service.

use crate::{
    data::{
        con::Request,
        send::answer, //
    }, //
    storage::chunk::Stages,
};
use ibtrs_proto::{
    addr::Addr,
    msg::Direction as Dir,
    tag::Tag, //
};
use kernel::prelude::*;
use kx::mm::Pieces;

impl Request {
    /// Returns the direction of the data: into [`Request::buffer`] for a read.
    #[inline]
    pub fn dir(&self) -> Dir {
        match &self.chunk {
            Some(chunk) => chunk.request.direction,
            None => Dir::Write,
        }
    }

    /// Returns the client's address on the path over which the request arrived.
    #[inline]
    pub fn source(&self) -> Addr {
        self.qp.handler().path.ends.src
    }

    /// Returns whether the request's path has stopped serving, so that no answer can reach the
    /// client.
    #[inline]
    pub fn is_moot(&self) -> bool {
        !self.qp.handler().path.takes_requests()
    }

    /// Returns the user header, a private copy.
    #[inline]
    pub fn user_hdr(&self) -> &[u8] {
        match &self.chunk {
            Some(chunk) => chunk.user_hdr(),
            None => &[],
        }
    }

    /// Returns the number of bytes of data: for a write, the number that arrived; for a read, the
    /// number that the client wants.
    #[inline]
    pub fn data_len(&self) -> usize {
        match &self.chunk {
            Some(chunk) => match chunk.request.direction {
                Dir::Read => chunk.request.return_len() as usize,
                Dir::Write => chunk.request.data_len as usize,
            },
            None => 0,
        }
    }

    /// Returns the tag. No two requests of a session in service have the same tag, whichever paths they arrived on.
    #[inline]
    pub fn tag(&self) -> Tag {
        self.chunk
            .as_ref()
            .map_or(Tag::default(), |chunk| chunk.tag())
    }

    /// Returns the memory of the data, and where in it the data begins; there are at least
    /// [`Request::data_len`] bytes from there on, which are in one piece unless they begin with the
    /// memory. `None` only if there is no data.
    #[inline]
    pub fn buffer(&self) -> Option<(&Pieces, usize)> {
        let chunk = self.chunk.as_ref()?;
        match &chunk.capsule {
            Some(kept) => self.qp.payload(kept),
            None => Some(chunk.buffer()),
        }
    }

    /// Fills the answer to a read with `bytes`, followed by zeroes.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: the client wants fewer bytes.
    pub fn reply_bytes(&mut self, bytes: &[u8]) -> Result {
        let len = self.data_len();
        let (buffer, at) = self.buffer().ok_or(EINVAL)?;
        if bytes.len() > len {
            return Err(EMSGSIZE);
        }
        buffer.copy_in(at, bytes)?;
        buffer.zero(at + bytes.len(), len - bytes.len())
    }

    /// Answers the request; a successful read with its data.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn respond(mut self, result: Result) {
        self.answer(result);
    }

    /// Answers a successful read with its data, and with `trailer` at the end of the answer. A
    /// request without data gets no trailer.
    ///
    /// # Context
    ///
    /// Any.
    pub fn respond_with(mut self, trailer: u32) {
        if let Some(chunk) = &mut self.chunk {
            chunk.trailer = chunk.request.sink().is_some().then_some(trailer);
        }
        self.answer(Ok(()));
    }

    /// Records that the service passes the request to its disk now; the time until now counts as
    /// server queue time. Measured only if the client asks for times.
    #[inline]
    pub fn executing(&mut self) {
        if let Some(stages) = self.stages() {
            stages.executing();
        }
    }

    /// Records that the disk has executed the request. Without this call, the disk's time ends with
    /// the answer.
    #[inline]
    pub fn executed(&mut self) {
        if let Some(stages) = self.stages() {
            stages.executed();
        }
    }

    fn stages(&mut self) -> Option<&mut Stages> {
        self.chunk.as_mut()?.stages()
    }

    /// Ends the request without an answer while the service is being drained, see
    /// [`ServiceSession::drain`](crate::ServiceSession::drain). The client resends the request in
    /// another session.
    ///
    /// # Context
    ///
    /// Any.
    pub fn abandon(mut self) {
        if let Some(chunk) = self.chunk.take() {
            answer::abandon(&self.qp, chunk);
        }
    }

    #[inline]
    fn answer(&mut self, result: Result) {
        if let Some(chunk) = self.chunk.take() {
            answer::respond(&self.qp, chunk, result);
        }
    }
}

impl Drop for Request {
    // Inlined, so that the compiler removes the drop of an answered request.
    #[inline]
    fn drop(&mut self) {
        self.answer(Err(EIO));
    }
}
