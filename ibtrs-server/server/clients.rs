// SPDX-License-Identifier: GPL-2.0

//! The service's access to its clients, whose paths it may close.

use crate::session::{
    sessions::Sessions, //
    Session,
};
use ibtrs_proto::{
    addr::Addr,
    fsm::server_path::Event, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The clients of a server.
#[derive(Clone)]
pub struct Clients {
    sessions: Arc<Sessions>,
}

impl Clients {
    pub(crate) fn new(sessions: Arc<Sessions>) -> Self {
        Self { sessions }
    }

    /// Closes the paths of the authenticated session `name` for which `may_stay` returns false, including
    /// paths for which [`Service::authorize`](crate::Service::authorize) was called before this call. The
    /// clients may reconnect these paths, if they are authorized.
    ///
    /// # Context
    ///
    /// May sleep, until the path that is being created is in its session. Call without locks that
    /// `Service::authorize` takes.
    pub fn recheck(&self, name: &CStr, may_stay: impl Fn(&Addr) -> bool) {
        self.disconnect(
            |session| session.is_of_client(name),
            may_stay,
            "the host no longer allows this path",
        );
    }

    /// Closes all paths of the session `name` if it is not authenticated, because the name now
    /// belongs to a client with a key. The service already refuses the name to such sessions
    /// ([`Service::check_name`](crate::Service::check_name)).
    ///
    /// # Context
    ///
    /// As for [`Clients::recheck`].
    pub fn reclaim_name(&self, name: &CStr) {
        self.disconnect(
            |session| !session.authenticated && session.is_named(name),
            |_| false,
            "its session is not authenticated, and its name is now that of a host",
        );
    }

    fn disconnect(
        &self,
        is_meant: impl Fn(&Session) -> bool,
        may_stay: impl Fn(&Addr) -> bool,
        why: &str,
    ) {
        let _joining = self.sessions.joining.lock();
        let sessions = self.sessions.lock();
        for session in sessions.list.iter().filter(|session| is_meant(session)) {
            for path in session.paths.lock().iter() {
                if may_stay(&path.io.ends.src) || !path.event(Event::UserDisconnect) {
                    continue;
                }
                // Not rate-limited, as an operator has caused it: lines of clients must not
                // suppress it.
                pr_info!("{}: disconnected: {}\n", **path, why);
            }
        }
    }
}
