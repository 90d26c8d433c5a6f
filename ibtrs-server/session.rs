// SPDX-License-Identifier: GPL-2.0

//! Sessions: the paths of one client, and what they share.

use crate::{
    accept::Refusal,
    chunk_owner::ChunkOwners,
    fence::Fences,
    notices::Notices,
    path::{
        Ends,
        Path, //
    },
    server::{
        Server,
        ServiceSession,
        SessionInfo,
        Sessions, //
    },
    sysfs::SessionDir, //
};
use ibtrs_proto::{
    auth::Session as Kind,
    chunk_owner::PathTag,
    fsm::server_path::{
        Event,
        State, //
    },
    handshake::RspExt,
    name::SessionName,
    quota, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
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
use kx::{
    pr_err_ratelimited,
    pr_info_ratelimited,
    work::Work, //
};

/// The session of a client.
#[pin_data]
pub(crate) struct Session {
    pub(crate) server: Arc<Server>,
    pub(crate) uuid: [u8; 16],
    /// Its clients have proved who they are, all of them.
    authenticated: bool,
    /// Session generation: unlike that of every other session since the module was loaded.
    gen: u32,
    #[pin]
    pub(crate) paths: Mutex<KVec<Arc<Path>>>,
    pub(crate) name: SetOnce<CString>,
    /// The name that the first of its clients has proved, under `Server::joining`.
    owner: SetOnce<CString>,
    /// The service, once the first path is connected.
    pub(crate) upper: SetOnce<Arc<dyn ServiceSession>>,
    #[pin]
    up: Mutex<()>,
    /// The session's directory in sysfs, from its first connected path on.
    #[pin]
    dir: Mutex<Option<Arc<SessionDir>>>,
    /// The last path has gone; under the lock of the list of sessions.
    pub(crate) gone: AtomicFlag,
    /// It was drained, and serves nothing any more: no path joins it, also if some of it is left
    /// when the server takes sessions again. Under the lock of the list of sessions.
    pub(crate) drained: AtomicFlag,
    last_tag: Atomic<u32>,
    #[pin]
    pub(crate) owners: ChunkOwners,
    #[pin]
    pub(crate) fences: Fences,
    /// Serves requests that had to wait for another path's.
    #[pin]
    pub(crate) wake: Work<Self>,
}

kx::impl_has_work! {
    impl HasWork<Work<Self>> for Session { self.wake }
}

/// How long a new session waits for one of the same name that is going.
const GOING_TIMEOUT_MS: u32 = 20_000;

impl Session {
    /// Creates a session without paths, which is not in the list.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(
        server: &Arc<Server>,
        uuid: [u8; 16],
        authenticated: bool,
    ) -> Result<Arc<Self>> {
        let wakes = server.wakes.clone();
        let gen = server.sessions.lock().next_gen();
        Arc::pin_init(
            try_pin_init!(Self {
                server: server.clone(),
                uuid,
                authenticated,
                gen,
                paths <- new_mutex!(KVec::new(), "Session::paths"),
                name: SetOnce::new(),
                owner: SetOnce::new(),
                upper: SetOnce::new(),
                up <- new_mutex!((), "Session::up"),
                dir <- new_mutex!(None, "Session::dir"),
                gone: AtomicFlag::new(false),
                drained: AtomicFlag::new(false),
                last_tag: Atomic::new(0),
                owners <- ChunkOwners::new(server.config.queue_depth),
                fences <- Fences::new(),
                wake <- kx::new_work!(wakes, "Session::wake"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the name; a stand-in until the first path is connected.
    pub(crate) fn name(&self) -> &CStr {
        match self.name.as_ref() {
            Some(name) => name,
            None => c"(unnamed)",
        }
    }

    /// Returns what authentication has to know of the session.
    pub(crate) const fn kind(&self) -> Kind {
        match self.authenticated {
            true => Kind::Authenticated,
            false => Kind::Plain,
        }
    }

    /// Checks that the session is that of an authenticated client's name, which the first one
    /// decides: who has read its UUID on the wire and has the key of another session is none of its
    /// clients.
    ///
    /// # Errors
    ///
    /// `EKEYREJECTED`; `ENOMEM`.
    pub(crate) fn belongs_to(&self, name: SessionName<'_>) -> Result<(), Refusal> {
        let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
        if self.owner.as_ref().is_none() {
            self.owner.populate(name);
            return Ok(());
        }
        match self.owner.as_ref() {
            Some(owner) if **owner == *name => Ok(()),
            _ => Err(Refusal::new(
                EKEYREJECTED,
                "its key is that of another session",
            )),
        }
    }

    /// Puts the session into the list, unless it is there; `known` says that its client is.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The server takes no sessions, or has no room, or the client began the session by another
    /// path; `ENOMEM`.
    pub(crate) fn enlist(self: &Arc<Self>, known: bool) -> Result<(), Refusal> {
        let mut sessions = self.server.sessions.lock();
        sessions.check_open()?;
        match sessions.find(&self.uuid) {
            Some(found) if Arc::ptr_eq(found, self) => return Ok(()),
            Some(_) => return Err(Refusal::new(ECONNRESET, "another path began the session")),
            None if self.gone.load(Relaxed) => {
                return Err(Refusal::new(ECONNRESET, "the session is being closed"))
            }
            None => {}
        }
        sessions.check_room(self.server.config.max_sessions, known)?;
        Ok(sessions
            .list
            .push(self.clone(), GFP_KERNEL)
            .map_err(Error::from)?)
    }

    /// Returns what a client that knows the extensions is told.
    pub(crate) fn rsp_ext(&self) -> RspExt {
        RspExt {
            server_run: self.server.boot_id,
            session_gen: self.gen,
        }
    }

    /// Gives the session its name when its first path comes up.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EPERM` when another session has the name, `EINVAL` when this one has
    /// another; `ENOMEM`.
    pub(crate) fn claim_name(&self, name: SessionName<'_>) -> Result {
        let _up = self.up.lock();
        match self.name.as_ref() {
            None => self.take_name(CString::try_from_fmt(fmt!("{}", name.as_str()))?),
            Some(own) if own.to_bytes() == name.as_str().as_bytes() => Ok(()),
            Some(own) => {
                pr_err_ratelimited!(
                    "{}: the client gave another path of the session a different name\n",
                    **own
                );
                Err(EINVAL)
            }
        }
    }

    /// Gives the session, which has its name, its service when its first path comes
    /// up; that says what the client knows of the extensions.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The error with which the service refused the session; `ENOMEM`.
    pub(crate) fn path_up(self: &Arc<Self>, path: &Path) -> Result {
        let _up = self.up.lock();
        if self.upper.as_ref().is_some() {
            return Ok(());
        }
        let dir = SessionDir::new(self.name())?;
        let notices = path.notices.then(|| Notices::new(self.clone()));
        let upper = self.server.service.session_up(SessionInfo {
            name: self.name(),
            extensions: path.epoch.is_some(),
            notices,
            queue_depth: self.server.config.queue_depth,
            chunk_bytes: self.server.config.chunk_bytes,
        })?;
        self.upper.populate(upper);
        *self.dir.lock() = Some(dir);
        Ok(())
    }

    /// Returns what users see of the session.
    pub(crate) fn dir(&self) -> Option<Arc<SessionDir>> {
        self.dir.lock().clone()
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
                pr_err_ratelimited!(
                    "{}: another client already has a session with this name\n",
                    *name
                );
                return Err(EPERM);
            }
            let emptied = &self.server.emptied;
            left = match emptied.wait_interruptible_timeout(&mut sessions, left) {
                CondVarTimeoutResult::Woken { jiffies } => jiffies,
                _ => 0,
            };
        }
    }

    /// Returns whether no path is left that takes requests, or will.
    fn is_going(&self) -> bool {
        self.paths.lock().iter().all(|path| path.is_closing())
    }

    fn is_named(&self, name: &CStr) -> bool {
        self.name.as_ref().is_some_and(|own| **own == *name)
    }

    /// Takes a path in, which is a candidate no more.
    ///
    /// # Errors
    ///
    /// `ECONNRESET` when the session has gone, the server is closing, or drained, or the path is
    /// being closed, as nobody would take it out again; `ENOMEM`.
    pub(crate) fn add_path(&self, path: Arc<Path>) -> Result {
        let mut sessions = self.server.sessions.lock();
        let leaves = self.gone.load(Relaxed) || self.drained.load(Relaxed) || path.is_closing();
        if sessions.refuses() || leaves {
            return Err(ECONNRESET);
        }
        self.paths.lock().push(path.clone(), GFP_KERNEL)?;
        sessions.drop_candidate(&path);
        Ok(())
    }

    /// Returns a tag that no path of the session has, nor had lately. A path that is added much later
    /// looks again.
    pub(crate) fn next_tag(&self) -> Option<PathTag> {
        let paths = self.paths.lock();
        for _ in 0..=paths.len() + 1 {
            let next = self.last_tag.fetch_add(1, Relaxed).wrapping_add(1);
            // CAST: Numbers begin again after 65535.
            let tag = PathTag::new(next as u16);
            let free = tag.filter(|tag| paths.iter().all(|path| path.tag != *tag));
            if free.is_some() {
                return free;
            }
        }
        None
    }

    /// Returns whether a path is connected, so that its client is who it says.
    pub(crate) fn has_connected_path(&self) -> bool {
        let paths = self.paths.lock();
        paths.iter().any(|path| path.takes_requests())
    }

    /// Finds a path by its tag.
    pub(crate) fn path(&self, tag: PathTag) -> Option<Arc<Path>> {
        let paths = self.paths.lock();
        paths.iter().find(|path| path.tag == tag).cloned()
    }

    /// Returns whether a path of these addresses is shown to users.
    pub(crate) fn shows(&self, ends: Ends) -> bool {
        let paths = self.paths.lock();
        paths
            .iter()
            .any(|path| path.ends == ends && path.is_shown())
    }

    /// Forgets a path that is closed, and the session with its last path.
    ///
    /// # Context
    ///
    /// May sleep, also for long.
    pub(crate) fn path_gone(self: &Arc<Self>, path: &Arc<Path>) {
        // Paths are added under the list's lock, so an empty session stays empty.
        let mut sessions = self.server.sessions.lock();
        sessions.drop_candidate(path);
        let mut paths = self.paths.lock();
        let before = paths.len();
        paths.retain(|other| !Arc::ptr_eq(other, path));
        let was_in = paths.len() < before;
        let last = paths.is_empty() && !self.gone.xchg(true, Relaxed);
        drop(paths);
        drop(sessions);
        // The tag of one that was not in the list may be another's.
        if was_in {
            self.fences.path_gone(path);
        }
        if !last {
            // It may have been the last candidate.
            self.server.emptied.notify_all();
            return;
        }
        // All paths have left the session, so no other task has the directory.
        let dir = self.dir.lock().take();
        drop(dir);
        if let Some(upper) = self.upper.as_ref() {
            upper.down();
            pr_info_ratelimited!("{}: session closed\n", self.name());
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

impl Sessions {
    /// Finds the session of a UUID.
    pub(crate) fn find(&self, uuid: &[u8; 16]) -> Option<&Arc<Session>> {
        self.list.iter().find(|session| session.uuid == *uuid)
    }

    /// Returns the number of a new session.
    fn next_gen(&mut self) -> u32 {
        self.made = self.made.wrapping_add(1);
        self.made
    }

    /// Checks that sessions and paths may come.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        let why = match (self.closing, self.drained) {
            (true, _) => "the server is being unloaded",
            (false, true) => "the server is drained",
            (false, false) => return Ok(()),
        };
        Err(Refusal::new(ECONNREFUSED, why))
    }

    fn check_room(&self, max: usize, known: bool) -> Result<(), Refusal> {
        let count = self.list.len();
        if quota::has_room_for_session(count, max, known) {
            return Ok(());
        }
        let why = match count < max {
            true => "the last of max_sessions are reserved for known clients",
            false => "the server already has max_sessions sessions",
        };
        Err(Refusal::new(ENOSPC, why))
    }

    /// Makes room for a path that is in no session's list yet.
    pub(crate) fn reserve_candidate(&mut self) -> Result {
        Ok(self.candidates.reserve(1, GFP_KERNEL)?)
    }

    /// Takes in a path that is in no session's list yet, for which there is room.
    ///
    /// # Errors
    ///
    /// Those of [`Sessions::check_open`]; `ECONNRESET` when the path is being closed. Until it has
    /// gone it is waited for nevertheless.
    pub(crate) fn add_candidate(&mut self, path: Arc<Path>) -> Result<(), Refusal> {
        let closing = path.is_closing();
        // One that is closed may have been taken out already.
        if path.state() != State::Closed {
            let _ = self.candidates.push_within_capacity(path);
        }
        self.check_open()?;
        match closing {
            true => Err(ECONNRESET.into()),
            false => Ok(()),
        }
    }

    fn drop_candidate(&mut self, path: &Arc<Path>) {
        self.candidates.retain(|other| !Arc::ptr_eq(other, path));
    }

    /// Begins to close the paths whose clients have yet to prove themselves.
    pub(crate) fn close_candidates(&self) {
        for path in &self.candidates {
            path.event(Event::UserDisconnect);
        }
    }
}
