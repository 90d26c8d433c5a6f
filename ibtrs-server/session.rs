// SPDX-License-Identifier: GPL-2.0

//! Sessions: chunks of memory and the paths that lead to them.

use crate::{
    path::Path,
    server::{
        Server,
        ServiceSession,
        SessionInfo, //
    },
};
use ibtrs_proto::{
    fsm::server_path::Event,
    name::SessionName, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex,
        SetOnce, //
    },
};
use kx::mm::{
    Node,
    PageBlock, //
};

/// The session of a client.
#[pin_data]
pub(crate) struct Session {
    pub(crate) server: Arc<Server>,
    pub(crate) uuid: [u8; 16],
    pub(crate) chunks: KVVec<Arc<PageBlock>>,
    #[pin]
    pub(crate) paths: Mutex<KVec<Arc<Path>>>,
    pub(crate) name: SetOnce<CString>,
    /// The service, once the first path is connected.
    pub(crate) upper: SetOnce<Arc<dyn ServiceSession>>,
    #[pin]
    up: Mutex<()>,
}

impl Session {
    /// Makes a session with its chunks.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(server: &Arc<Server>, uuid: [u8; 16]) -> Result<Arc<Self>> {
        let depth = usize::from(server.config.queue_depth);
        let mut chunks = KVVec::with_capacity(depth, GFP_KERNEL)?;
        for _ in 0..depth {
            let block = PageBlock::with_len(server.config.chunk_bytes as usize, Node::ANY)?;
            chunks.push(Arc::new(block, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Arc::pin_init(
            try_pin_init!(Self {
                server: server.clone(),
                uuid,
                chunks,
                paths <- new_mutex!(KVec::new(), "Session::paths"),
                name: SetOnce::new(),
                upper: SetOnce::new(),
                up <- new_mutex!((), "Session::up"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the name, for the log.
    pub(crate) fn name(&self) -> &CStr {
        match self.name.as_ref() {
            Some(name) => name,
            None => c"(unnamed)",
        }
    }

    /// Gives the session its name and its service when its first path comes up.
    ///
    /// # Errors
    ///
    /// `EPERM` when another session has the name; what the service refused
    /// with.
    pub(crate) fn path_up(&self, name: SessionName<'_>) -> Result {
        let _up = self.up.lock();
        if self.upper.as_ref().is_some() {
            return Ok(());
        }
        let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
        let sessions = self.server.sessions.lock();
        let taken = sessions
            .list
            .iter()
            .any(|other| other.uuid != self.uuid && other.is_named(&name));
        if taken {
            pr_err!("{}: another client has a session of that name\n", *name);
            return Err(EPERM);
        }
        self.name.populate(name);
        drop(sessions);
        let upper = self.server.service.session_up(&SessionInfo {
            name: self.name(),
            queue_depth: self.server.config.queue_depth,
            chunk_bytes: self.server.config.chunk_bytes,
        })?;
        self.upper.populate(upper);
        Ok(())
    }

    fn is_named(&self, name: &CStr) -> bool {
        self.name.as_ref().is_some_and(|own| **own == *name)
    }

    /// Forgets a path that is closed, and the session with its last path.
    pub(crate) fn path_gone(self: &Arc<Self>, path: &Arc<Path>) {
        let mut sessions = self.server.sessions.lock();
        let mut paths = self.paths.lock();
        paths.retain(|other| !Arc::ptr_eq(other, path));
        let last = paths.is_empty();
        drop(paths);
        if last {
            sessions.list.retain(|other| !Arc::ptr_eq(other, self));
        }
        drop(sessions);
        if last {
            if let Some(upper) = self.upper.as_ref() {
                upper.down();
                pr_info!("{}: session closed\n", self.name());
            }
            self.server.emptied.notify_all();
        }
    }

    /// Forgets a session whose first path could not be made.
    pub(crate) fn forget_if_unused(self: &Arc<Self>) {
        let mut sessions = self.server.sessions.lock();
        if self.paths.lock().is_empty() {
            sessions.list.retain(|other| !Arc::ptr_eq(other, self));
            self.server.emptied.notify_all();
        }
    }

    /// Starts to close all paths.
    pub(crate) fn close(&self) {
        for path in self.paths.lock().iter() {
            path.event(Event::UserDisconnect);
        }
    }
}
