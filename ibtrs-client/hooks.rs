// SPDX-License-Identifier: GPL-2.0

//! What the operator sees of sessions and paths.
//!
//! Each object here is made right after what it shows, and dropped before that
//! goes, both where it may sleep.

use crate::{
    path::Path,
    session::Session, //
};
use ibtrs_proto::fsm::client_path::State;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A session as the operator sees it.
pub(crate) struct SessionHook;

impl SessionHook {
    /// Shows a session that has no path yet.
    ///
    /// # Errors
    ///
    /// `EEXIST` for a name that there is already; `ENOMEM`.
    pub(crate) fn new(_session: &Arc<Session>) -> Result<Self> {
        Ok(Self)
    }

    /// The session can, or can no longer, reach its server. One call at a time.
    pub(crate) fn changed(&mut self, _session: &Session, _connected: bool) {}
}

/// A path as the operator sees it.
pub(crate) struct PathHook;

impl PathHook {
    /// Shows a path that is about to connect.
    ///
    /// # Errors
    ///
    /// `EEXIST` for addresses that the session has already; `ENOMEM`.
    pub(crate) fn new(_path: &Arc<Path>) -> Result<Self> {
        Ok(Self)
    }

    /// The path may be in another state than before. One call at a time.
    pub(crate) fn changed(&mut self, _path: &Path, _state: State) {}
}
