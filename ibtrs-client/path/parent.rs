// SPDX-License-Identifier: GPL-2.0

//! The session of a path.

use crate::{
    path::{
        attempt::{
            Attempt,
            PathConn, //
        },
        Path, //
    },
    types::Descriptor, //
};
use ibtrs_core::messages::Attached;
use ibtrs_proto::{
    auth::{
        AuthError,
        Session as Kind, //
    },
    failover::{
        Loss,
        Offer,
        OfferResult,
        Published, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::io::IoHandle;

/// Of [`Parent::record`]: the path takes requests.
pub(crate) const CONNECTED: &str = "connected";
/// Of [`Parent::record`]: an attempt to connect the path has failed.
pub(crate) const FAILED: &str = "failed";

/// The interface of a session for its paths and their attempts.
pub(crate) trait Parent: Send + Sync {
    /// Returns the epoch of a new attempt, and the message service's end of the session, if there is
    /// a service. The service was notified of the begin of the attempt; the caller must notify it of
    /// the end.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EOVERFLOW`: the session has used up its epochs.
    fn begin_attempt(&self) -> Result<(u32, Option<Arc<Attached>>)>;

    /// Returns the UUID with which a new attempt identifies the session to the server.
    ///
    /// # Context
    ///
    /// May sleep.
    fn uuid(&self) -> [u8; 16];

    /// Gives the session a new UUID, because the server has proved that the UUID of `attempt` belongs
    /// to the session of another client. Without this, another client with a key could lock this
    /// client out by beginning a session under its UUID while it is not connected.
    ///
    /// The server knows no session under the new UUID and begins another generation, as after a
    /// restart. If requests of an earlier session are still in progress there, the new session waits
    /// for them: both have the same name, which the server gives to the new session only when the
    /// earlier one has ended.
    ///
    /// Returns the error for the attempt: `EAGAIN`, after which the next attempt begins at once, or
    /// `EKEYREJECTED`, after which it waits, because the other client seems to learn each new UUID.
    /// Returns `None` if a path is connected, which uses the UUID at some other server.
    ///
    /// # Context
    ///
    /// May sleep.
    fn take_new_uuid(&self, attempt: &Attempt) -> Option<Error>;

    /// Returns the session's kind, for the authentication of an attempt that begins.
    ///
    /// # Context
    ///
    /// May sleep.
    fn kind(&self) -> Kind;

    /// Records that a path has authenticated: all further paths must.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// [`AuthError::Mixed`]: a path without authentication is connected.
    fn set_authenticated(&self) -> Result<(), AuthError>;

    /// Returns whether requests can reach the server now.
    fn is_connected(&self) -> bool;

    /// Returns whether users of the session wait for a path. An attempt may then use the memory
    /// reserve, as reclaim may depend on the users' writes.
    fn is_cut_off(&self) -> bool;

    /// Returns whether a path that the server has accepted before may request the creation of the
    /// session.
    ///
    /// # Context
    ///
    /// Any.
    fn may_create(&self) -> bool;

    /// Returns whether the server supports the protocol extensions.
    ///
    /// # Context
    ///
    /// Any.
    fn has_extensions(&self) -> bool;

    /// Offers the connected path `conn` to the session. With [`OfferResult::Publish`], submitters
    /// may use the path from here on.
    ///
    /// # Context
    ///
    /// May sleep.
    fn offer(self: Arc<Self>, offer: &Offer, conn: &Arc<PathConn>) -> Result<OfferResult>;

    /// Adds a change of `path` to the history of the session.
    ///
    /// # Context
    ///
    /// Any.
    fn record(&self, path: &CStr, what: &'static str, cause: &str);

    /// Rebuilds the multipath after a path was drained, put on standby, or made active again.
    ///
    /// # Context
    ///
    /// May sleep.
    fn ranks_changed(&self);

    /// Removes a path from the multipath. When this returns, no submitter uses the path.
    ///
    /// # Context
    ///
    /// May sleep.
    fn unpublish(self: Arc<Self>, attempt: &Attempt);

    /// Records that the failover `path` moves a request off a lost path. The request was submitted at
    /// `since`, and was last moved by the failover `request`. Returns the new value of
    /// `Descriptor::failover`.
    ///
    /// # Context
    ///
    /// Any.
    fn request_moved(&self, path: u32, request: u32, since: Instant<Monotonic>) -> u32;

    /// Puts a request of a lost path on the requeue list; returns its I/O if the list refuses it.
    fn requeue_lost(
        self: Arc<Self>,
        path: (&Published, Loss),
        request: Descriptor,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Option<IoHandle>;

    /// Records that all requests have left a lost path of `failover`.
    ///
    /// # Context
    ///
    /// Any.
    fn requests_moved(self: Arc<Self>, failover: u32);

    /// Records an answer to a request that `failover` has moved.
    ///
    /// # Context
    ///
    /// Any.
    fn moved_request_answered(self: Arc<Self>, failover: u32);

    /// Records that a request which `failover` has moved ends in another way.
    ///
    /// # Context
    ///
    /// Any.
    fn moved_request_ended(self: Arc<Self>, failover: u32);

    /// Queues the work item that resubmits or fails the requests on the requeue list.
    ///
    /// # Context
    ///
    /// Any.
    fn kick_requeue(self: Arc<Self>);

    /// Records that the server has answered the fence of `epoch`.
    ///
    /// # Context
    ///
    /// Any.
    fn fence_done(self: Arc<Self>, epoch: u32);

    /// Queues a notice about object `number` for the users.
    ///
    /// # Context
    ///
    /// Any.
    fn noticed(self: Arc<Self>, number: u32);

    /// Queues the server's report, received by attempt `epoch`, that object `number` is durable.
    ///
    /// # Context
    ///
    /// Any.
    fn durable(self: Arc<Self>, epoch: u32, number: u32);

    /// Records for how many seconds the server of `attempt` expects to be down; 0 if it has
    /// withdrawn the announcement. Returns `false` if the attempt is not connected yet, or if the
    /// server has lost its session since.
    ///
    /// # Context
    ///
    /// Any.
    fn downtime_announced(self: Arc<Self>, attempt: &Attempt, seconds: u32) -> bool;

    /// Removes a dead path from the path list.
    fn forget(&self, path: &Arc<Path>);
}
