// SPDX-License-Identifier: GPL-2.0

//! The service's access to the addresses of a client.

use crate::session::Session;
use ibtrs_proto::addr::Addr;
use kernel::sync::Arc;

/// The source addresses of the paths of a session.
///
/// Holds a reference to the session, so the service must drop it when the session has ended
/// ([`ServiceSession::down`](crate::ServiceSession::down)).
pub struct Sources {
    session: Arc<Session>,
}

impl Sources {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }

    /// Returns whether `func` returns true for the addresses of all paths. Paths that are being
    /// connected count, paths that are being closed do not. A session that has lost its paths
    /// temporarily therefore keeps its grants, and
    /// [`ServiceSession::join`](crate::ServiceSession::join) checks each path that reconnects.
    ///
    /// # Context
    ///
    /// May sleep. `func` may sleep as well, but must not wait for a path.
    pub fn all(&self, mut func: impl FnMut(&Addr) -> bool) -> bool {
        let paths = self.session.paths.lock();
        let mut open = paths.iter().filter(|path| !path.is_closing());
        open.all(|path| func(&path.io.ends.src))
    }

    /// Returns whether the session has a path that is not being closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn any(&self) -> bool {
        let paths = self.session.paths.lock();
        let mut paths = paths.iter();
        paths.any(|path| !path.is_closing())
    }
}
