// SPDX-License-Identifier: GPL-2.0

//! The upper layers of a session, one for each purpose that connections have.

use super::Request;
use crate::{
    refusal::Refusal,
    types::{
        Deadline,
        Purpose,
        Table, //
    }, //
};
use ibtrs_proto::addr::Addr;
use kernel::prelude::*;

/// The service of one session, an upper layer.
pub trait ServiceSession: Send + Sync + 'static {
    /// A request has arrived, on any path. [`Request::respond`] answers it, possibly later and in
    /// another context.
    ///
    /// # Context
    ///
    /// A work queue that also handles the completions of this connection and of all others: may sleep,
    /// but must not wait for a disk or for a client. A request that waits does so elsewhere, until
    /// [`Request::is_moot`].
    fn request(&self, request: Request);

    /// Returns the error for the answer to a request whose transport header is bad, `error` by
    /// default. A service whose requests have checksums knows that the request was damaged.
    ///
    /// # Context
    ///
    /// As for [`Self::request`].
    fn bad_request(&self, error: Error) -> Error;

    /// A session without authentication is about to get a path from `source`. The service calls
    /// `add`, which adds the path to the session's [`Sources`] or fails. The service must make no
    /// decision that depends on the sources concurrently with `add`. If the session already had the
    /// path in [`Service::session_up`](crate::Service::session_up), `add` does nothing.
    ///
    /// # Context
    ///
    /// As for [`Service::authorize`](crate::Service::authorize).
    ///
    /// # Errors
    ///
    /// Errors of `add`; the reason for refusing the path, whose errno is sent to the client.
    fn join(
        &self,
        source: Addr,
        add: &mut dyn FnMut() -> Result<(), Refusal>,
    ) -> Result<(), Refusal>;

    /// Drains the session: from here on it ends its requests with [`Request::abandon`], makes all
    /// answered writes durable, and notifies its client ([`Notices::durable`]). Must return by
    /// `limit`; the paths are then closed.
    ///
    /// # Context
    ///
    /// May sleep. Called once for each drain of the server; called again for a session that is left
    /// over from an earlier drain.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: writes are not durable, or requests are still in service.
    fn drain(&self, limit: Deadline) -> Result;

    /// The client has received the report of [`Notices::durable`] about object `number`.
    ///
    /// # Context
    ///
    /// Any. The client chooses the number and the time.
    fn durable_seen(&self, number: u32);

    /// The session has ended with its last path: all of its requests were answered, and no more
    /// will arrive.
    ///
    /// # Context
    ///
    /// May sleep.
    fn down(&self);
}

/// The upper layers of a session.
pub(crate) type Uppers = Table<dyn ServiceSession>;

impl Uppers {
    /// As [`ServiceSession::join`], for all services.
    ///
    /// # Errors
    ///
    /// Errors of `add`; the first reason for refusing the path.
    pub(crate) fn join(
        &self,
        source: Addr,
        add: &mut dyn FnMut() -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        join_all(&mut self.iter(), source, add)
    }

    /// As [`ServiceSession::drain`], for all services in sequence.
    pub(crate) fn drain(&self, limit: Deadline) -> Result {
        let drained = self.iter().map(|(_, upper)| upper.drain(limit));
        drained.fold(Ok(()), Result::and)
    }

    /// As [`ServiceSession::down`], for all services.
    pub(crate) fn down(&self) {
        self.iter().for_each(|(_, upper)| upper.down());
    }
}

/// Lets each of `uppers` decide about a path before `add` is called.
fn join_all<'a>(
    uppers: &mut dyn Iterator<Item = (Purpose, &'a dyn ServiceSession)>,
    source: Addr,
    add: &mut dyn FnMut() -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    match uppers.next() {
        Some((_, upper)) => upper.join(source, &mut || join_all(uppers, source, add)),
        None => add(),
    }
}
