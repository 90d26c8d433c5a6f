// SPDX-License-Identifier: GPL-2.0

//! Sessions: the paths of one client, and their shared state.

use crate::{
    data::con::SessionIo,
    path::{
        parent::Parent,
        Path, //
    },
    refusal::Refusal,
    session::{
        fences::Fences,
        sessions::Sessions, //
    },
    storage::buffers::Holder,
    sysfs::SessionDir, //
};
use ibtrs_core::messages::Attached;
use ibtrs_proto::{
    auth::Session as Kind,
    chunk_owner::PathId,
    fsm::server_path::Event,
    handshake::RspExt,
    imm::Fence,
    name::SessionName,
    tag::Tag, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    mm::NoIo,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        Completion, //
    },
    work::Work, //
};

mod fences;
mod join;
mod lines;
mod messages;
pub(crate) mod notices;
pub(crate) mod service;
pub(crate) mod sessions;
pub(crate) mod sources;
mod woken;

/// The session of a client.
#[pin_data]
pub(crate) struct Session {
    pub(crate) io: Arc<SessionIo>,
    pub(crate) sessions: Arc<Sessions>,
    /// All of its clients have proved themselves.
    pub(crate) authenticated: bool,
    /// Session generation; no other session of this server has the same.
    gen: u32,
    #[pin]
    pub(crate) paths: Mutex<KVec<Arc<Path>>>,
    #[pin]
    pub(crate) up: Mutex<()>,
    /// The message service's end of the session, set by the first path with a message connection.
    #[pin]
    messages: Mutex<Option<Arc<Attached>>>,
    /// The session's directory in sysfs, from its first connected path on.
    #[pin]
    pub(crate) dir: Mutex<Option<Arc<SessionDir>>>,
    /// The last path has ended; changes under the lock of the list of sessions.
    pub(crate) gone: AtomicFlag,
    /// The session was drained, or is being replaced by that of an authenticated client: no path
    /// joins it, even if it still exists when the server accepts sessions again. Changes under the
    /// lock of the list of sessions.
    pub(crate) ending: AtomicFlag,
    /// The service has finished with the session, in a drain.
    pub(crate) is_served: AtomicFlag,
    /// The client has acknowledged the downtime that a drain has announced.
    #[pin]
    pub(crate) downtime_seen: Completion,
    last_id: Atomic<u32>,
    #[pin]
    pub(crate) fences: Fences,
    /// Serves requests that have waited for another path.
    #[pin]
    pub(crate) wake: Work<Self>,
    /// Gives buffers to the requests in the line. Unlike `wake`, it never waits for a disk.
    #[pin]
    pub(crate) line_work: Work<Self, LINE>,
}

/// The number of `Session::line_work`.
pub(crate) const LINE: u64 = 1;

kx::impl_has_work! {
    impl HasWork<Work<Self>> for Session { self.wake }
    impl HasWork<Work<Self, LINE>> for Session { self.line_work }
}

impl Session {
    /// Creates a session without paths; the session is not in the list yet.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(
        sessions: &Arc<Sessions>,
        uuid: [u8; 16],
        authenticated: bool,
    ) -> Result<Arc<Self>> {
        let env = &sessions.env;
        let (wakes, line_queue) = (env.wakes.clone(), env.queue.clone());
        let gen = sessions.lock().next_gen();
        Arc::pin_init(
            try_pin_init!(Self {
                io: SessionIo::new(env, uuid)?,
                sessions: sessions.clone(),
                authenticated,
                gen,
                paths <- new_mutex!(KVec::new(), "Session::paths"),
                up <- new_mutex!((), "Session::up"),
                messages <- new_mutex!(None, "Session::messages"),
                dir <- new_mutex!(None, "Session::dir"),
                gone: AtomicFlag::new(false),
                ending: AtomicFlag::new(false),
                is_served: AtomicFlag::new(false),
                downtime_seen <- Completion::new(),
                last_id: Atomic::new(0),
                fences <- Fences::new(),
                wake <- kx::new_work!(wakes, "Session::wake"),
                line_work <- kx::new_work!(line_queue, "Session::line_work"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns whether this is an authenticated session of that name.
    pub(crate) fn is_of_client(&self, name: &CStr) -> bool {
        self.io.owner.as_ref().is_some_and(|owner| **owner == *name)
    }

    /// Returns the session's kind, for authentication.
    pub(crate) const fn kind(&self) -> Kind {
        match self.authenticated {
            true => Kind::Authenticated,
            false => Kind::Plain,
        }
    }

    /// Returns the extensions' part of an acceptance.
    pub(crate) fn rsp_ext(&self) -> RspExt {
        RspExt {
            server_run: self.io.env.boot_id,
            session_gen: self.gen,
        }
    }

    /// Returns whether all paths are closing or closed.
    pub(crate) fn is_going(&self) -> bool {
        self.paths.lock().iter().all(|path| path.is_closing())
    }

    pub(crate) fn is_named(&self, name: &CStr) -> bool {
        self.io.name.as_ref().is_some_and(|own| **own == *name)
    }

    /// Adds a path, which is then no longer a candidate.
    ///
    /// # Errors
    ///
    /// `ECONNRESET`: the session has ended or is ending, the server is closing or drained, or the
    /// path is being closed, so that nothing would remove it again; `ENOMEM`.
    pub(crate) fn add_path(&self, path: Arc<Path>) -> Result {
        // As in `enlist`.
        let _no_io = NoIo::enter();
        let mut sessions = self.sessions.lock();
        let leaves = self.gone.load(Relaxed) || self.ending.load(Relaxed) || path.is_closing();
        if sessions.check_open().is_err() || leaves {
            return Err(ECONNRESET);
        }
        self.paths.lock().push(path.clone(), GFP_KERNEL)?;
        sessions.drop_candidate(&path);
        Ok(())
    }

    /// Returns an id that no path of the session has, or has had recently. A path that is added
    /// much later must check its id again.
    pub(crate) fn next_id(&self) -> Option<PathId> {
        let paths = self.paths.lock();
        for _ in 0..=paths.len() + 1 {
            let next = self.last_id.fetch_add(1, Relaxed).wrapping_add(1);
            // CAST: Ids start again after 65535.
            let id = PathId::new(next as u16);
            let free = id.filter(|id| paths.iter().all(|path| path.io.id != *id));
            if free.is_some() {
                return free;
            }
        }
        None
    }

    /// Returns whether a path is connected, which makes its client known.
    pub(crate) fn has_connected_path(&self) -> bool {
        let paths = self.paths.lock();
        paths.iter().any(|path| path.io.takes_requests())
    }

    /// Finds a path by its id.
    pub(crate) fn path(&self, id: PathId) -> Option<Arc<Path>> {
        let paths = self.paths.lock();
        paths.iter().find(|path| path.io.id == id).cloned()
    }

    /// Removes a closed path, and the session with its last path.
    ///
    /// # Context
    ///
    /// May sleep, possibly for long.
    pub(crate) fn path_gone(self: &Arc<Self>, path: &Arc<Path>) {
        // Paths are added under the list's lock, so an empty session stays empty.
        let mut sessions = self.sessions.lock();
        sessions.drop_candidate(path);
        let mut paths = self.paths.lock();
        let before = paths.len();
        paths.retain(|other| !Arc::ptr_eq(other, path));
        let was_in = paths.len() < before;
        let last = paths.is_empty() && !self.gone.xchg(true, Relaxed);
        drop(paths);
        drop(sessions);
        // A path that was not in the list may have the same id as one that is.
        if was_in {
            self.fences.path_gone(path);
        }
        if !last {
            // The path may have been the last candidate.
            self.sessions.one_has_gone();
            return;
        }
        // The session has no paths any more, so no other task uses the directory.
        let dir = self.dir.lock().take();
        drop(dir);
        // Before another session can get the name.
        self.end_messages();
        if let Some(uppers) = self.io.uppers.as_ref() {
            uppers.down();
            if path.may_log() {
                pr_info!("{}: session closed\n", self.io.name());
            }
        }
        self.forget();
    }

    fn forget(self: &Arc<Self>) {
        let mut sessions = self.sessions.lock();
        sessions.list.retain(|other| !Arc::ptr_eq(other, self));
        drop(sessions);
        self.sessions.one_has_gone();
    }

    /// Removes a session whose first path could not be created.
    pub(crate) fn forget_if_unused(self: &Arc<Self>) {
        let sessions = self.sessions.lock();
        let unused = self.paths.lock().is_empty() && !self.gone.xchg(true, Relaxed);
        drop(sessions);
        if unused {
            self.forget();
        }
    }

    /// Begins to close all paths.
    pub(crate) fn close(&self) {
        for path in self.paths.lock().iter() {
            path.event(Event::UserDisconnect);
        }
    }
}

impl Parent for Session {
    fn holder(self: Arc<Self>) -> Arc<dyn Holder> {
        self
    }

    fn wake(self: Arc<Self>) {
        self.wake.enqueue(self.clone());
    }

    fn key_revoked(&self, why: Error) {
        Session::key_revoked(self, why);
    }

    fn supersede(&self, id: PathId, waiting: Option<Tag>) {
        self.close_superseded(id, waiting);
    }

    fn downtime_seen(&self) {
        self.downtime_seen.complete_all();
    }

    fn is_listed(&self) -> bool {
        self.sessions.lock().has_this(self)
    }

    fn enter(self: Arc<Self>, path: &Arc<Path>, came: Instant<Monotonic>) -> Result<(), Refusal> {
        Session::enter(&self, path, came)
    }

    fn complete(self: Arc<Self>, path: &Arc<Path>, name: SessionName<'_>) -> Result<(), Refusal> {
        Session::complete(&self, path, name)
    }

    fn apply_fence(&self, path: &Arc<Path>, fence: Fence) -> Result<bool> {
        Session::apply_fence(self, path, fence)
    }

    fn path_gone(self: Arc<Self>, path: &Arc<Path>) {
        Session::path_gone(&self, path);
    }
}
