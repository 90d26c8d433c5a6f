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
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        Arc,
        CondVarTimeoutResult,
        Mutex,
        SetOnce, //
    },
    time::msecs_to_jiffies,
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
    /// The last path has gone; under the lock of the list of sessions.
    pub(crate) gone: AtomicFlag,
}

/// How long a new session waits for one of the same name that is going.
const GOING_TIMEOUT_MS: u32 = 20_000;

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
                gone: AtomicFlag::new(false),
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
        self.take_name(CString::try_from_fmt(fmt!("{}", name.as_str()))?)?;
        let upper = self.server.service.session_up(&SessionInfo {
            name: self.name(),
            queue_depth: self.server.config.queue_depth,
            chunk_bytes: self.server.config.chunk_bytes,
        })?;
        self.upper.populate(upper);
        Ok(())
    }

    /// Gives the session its name, once a session that had it and is going is
    /// gone, and its devices are closed.
    fn take_name(&self, name: CString) -> Result {
        let mut left = msecs_to_jiffies(GOING_TIMEOUT_MS);
        let mut sessions = self.server.sessions.lock();
        loop {
            let holder = sessions
                .list
                .iter()
                .find(|other| other.uuid != self.uuid && other.is_named(&name));
            let Some(holder) = holder else {
                self.name.populate(name);
                return Ok(());
            };
            if !holder.is_going() || left == 0 {
                pr_err!("{}: another client has a session of that name\n", *name);
                return Err(EPERM);
            }
            let emptied = &self.server.emptied;
            left = match emptied.wait_interruptible_timeout(&mut sessions, left) {
                CondVarTimeoutResult::Woken { jiffies } => jiffies,
                _ => 0,
            };
        }
    }

    /// Tells whether no path is left that takes requests, or will.
    fn is_going(&self) -> bool {
        self.paths.lock().iter().all(|path| path.is_closing())
    }

    fn is_named(&self, name: &CStr) -> bool {
        self.name.as_ref().is_some_and(|own| **own == *name)
    }

    /// Takes a path in.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` when the session has gone or the server is closing; `ENOMEM`.
    pub(crate) fn add_path(&self, path: Arc<Path>) -> Result {
        let sessions = self.server.sessions.lock();
        if sessions.closing || self.gone.load(Relaxed) {
            return Err(ECONNRESET);
        }
        self.paths.lock().push(path, GFP_KERNEL)?;
        Ok(())
    }

    /// Forgets a path that is closed, and the session with its last path.
    pub(crate) fn path_gone(self: &Arc<Self>, path: &Arc<Path>) {
        // Paths are added under the list's lock, so an empty session stays empty.
        let sessions = self.server.sessions.lock();
        let mut paths = self.paths.lock();
        paths.retain(|other| !Arc::ptr_eq(other, path));
        let last = paths.is_empty() && !self.gone.xchg(true, Relaxed);
        drop(paths);
        drop(sessions);
        if !last {
            return;
        }
        if let Some(upper) = self.upper.as_ref() {
            upper.down();
            pr_info!("{}: session closed\n", self.name());
        }
        self.forget();
    }

    fn forget(self: &Arc<Self>) {
        let mut sessions = self.server.sessions.lock();
        sessions.list.retain(|other| !Arc::ptr_eq(other, self));
        drop(sessions);
        self.server.emptied.notify_all();
    }

    /// Forgets a session whose first path could not be made.
    pub(crate) fn forget_if_unused(self: &Arc<Self>) {
        let sessions = self.server.sessions.lock();
        let unused = self.paths.lock().is_empty() && !self.gone.xchg(true, Relaxed);
        drop(sessions);
        if unused {
            self.forget();
        }
    }

    /// Starts to close all paths.
    pub(crate) fn close(&self) {
        for path in self.paths.lock().iter() {
            path.event(Event::UserDisconnect);
        }
    }
}
