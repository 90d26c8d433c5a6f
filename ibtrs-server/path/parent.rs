// SPDX-License-Identifier: GPL-2.0

//! The session of a path, behind an interface.

use crate::{
    path::Path,
    refusal::Refusal, //
    storage::buffers::Holder,
};
use ibtrs_proto::{
    chunk_owner::PathId,
    imm::Fence,
    name::SessionName,
    tag::Tag, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};

/// The interface of a session for its paths.
pub(crate) trait Parent: Send + Sync {
    /// Returns the session as the holder of buffers.
    fn holder(self: Arc<Self>) -> Arc<dyn Holder>;

    /// See [`Control::wake`](crate::data::con::Control::wake).
    fn wake(self: Arc<Self>);

    /// See [`Control::supersede`](crate::data::con::Control::supersede).
    fn supersede(&self, id: PathId, waiting: Option<Tag>);

    /// The client has acknowledged the downtime that a drain has announced.
    fn downtime_seen(&self);

    /// The key with which a path of the session has authenticated is no longer loaded; the path is about to be closed.
    ///
    /// # Context
    ///
    /// May sleep.
    fn key_revoked(&self, why: Error);

    /// Returns whether the session is the one in the list under its UUID.
    ///
    /// # Context
    ///
    /// May sleep.
    fn is_listed(&self) -> bool;

    /// Adds a path to the session, and the session to the list. The client has proved itself with a
    /// message that arrived at `came`.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The reason for refusing the path.
    fn enter(self: Arc<Self>, path: &Arc<Path>, came: Instant<Monotonic>) -> Result<(), Refusal>;

    /// Completes a path whose client has given the session's name, and brings up the session with its
    /// first path.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The reason for the refusal.
    fn complete(self: Arc<Self>, path: &Arc<Path>, name: SessionName<'_>) -> Result<(), Refusal>;

    /// Closes the paths that a fence over `path` covers. Returns whether that completes the fence; if not,
    /// [`Path::fence_done`] follows when they have ended.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn apply_fence(&self, path: &Arc<Path>, fence: Fence) -> Result<bool>;

    /// Removes a closed path, and the session with its last path.
    ///
    /// # Context
    ///
    /// May sleep, possibly for long.
    fn path_gone(self: Arc<Self>, path: &Arc<Path>);
}
