// SPDX-License-Identifier: GPL-2.0

//! Sessions: the paths of one client, and what they share.

use crate::{
    audit::ClientLog,
    buffers::Share,
    chunk_owner::ChunkOwners,
    clients::Sources,
    ends::Ends,
    env::Env,
    fence::Fences,
    notices::Notices,
    path::Path,
    refusal::Refusal,
    service::{
        Joining,
        SessionInfo, //
    },
    sessions::{
        List,
        Sessions, //
    },
    sysfs::SessionDir,
    types::Purpose,
    upper::{
        ServiceSession,
        Uppers, //
    }, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    auth::Session as Kind,
    chunk_owner::PathTag,
    fsm::server_path::Event,
    handshake::RspExt,
    name::SessionName, //
};
use kernel::{
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex,
        MutexGuard, //
    },
    time::{
        msecs_to_jiffies,
        Jiffies, //
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
        Completion,
        SetOnce, //
    },
    work::Work, //
};

/// The session of a client.
#[pin_data]
pub(crate) struct Session {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) env: Arc<Env>,
    pub(crate) uuid: [u8; 16],
    /// All of its clients have proved themselves.
    pub(crate) authenticated: bool,
    /// Session generation; no other session of this server has the same.
    gen: u32,
    #[pin]
    pub(crate) paths: Mutex<KVec<Arc<Path>>>,
    pub(crate) name: SetOnce<CString>,
    /// The name that the session's first client has proved; set under `Sessions::joining`.
    owner: SetOnce<CString>,
    /// What the services have for the session, once its first path is connected.
    pub(crate) uppers: SetOnce<Uppers>,
    #[pin]
    up: Mutex<()>,
    /// The session's directory in sysfs, from its first connected path on.
    #[pin]
    dir: Mutex<Option<Arc<SessionDir>>>,
    /// The last path has gone; changes under the lock of the list of sessions.
    pub(crate) gone: AtomicFlag,
    /// The session was drained, or gives way to that of an authenticated client: no path joins it,
    /// even if it is still there when the server accepts sessions again. Changes under the lock of
    /// the list of sessions.
    pub(crate) ending: AtomicFlag,
    /// The service has finished with the session, in a drain.
    pub(crate) is_served: AtomicFlag,
    /// The client has acknowledged the downtime that a drain has announced.
    #[pin]
    pub(crate) downtime_seen: Completion,
    last_tag: Atomic<u32>,
    #[pin]
    pub(crate) owners: ChunkOwners,
    #[pin]
    pub(crate) share: Share,
    #[pin]
    pub(crate) fences: Fences,
    /// Serves requests that had to wait for another path.
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

/// How long a new session waits for a closing one of the same name.
const GOING_TIMEOUT_MS: u32 = 20_000;
/// Time after which a path that waits notices that it has been closed.
const GOING_LOOK_MS: u32 = 500;

/// Why a path is refused whose client has not waited.
pub(crate) const CLOSED_MEANWHILE: &str = "the path was closed before it was complete";

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
                sessions: sessions.clone(),
                env: env.clone(),
                uuid,
                authenticated,
                gen,
                paths <- new_mutex!(KVec::new(), "Session::paths"),
                name: SetOnce::new(),
                owner: SetOnce::new(),
                uppers: SetOnce::new(),
                up <- new_mutex!((), "Session::up"),
                dir <- new_mutex!(None, "Session::dir"),
                gone: AtomicFlag::new(false),
                ending: AtomicFlag::new(false),
                is_served: AtomicFlag::new(false),
                downtime_seen <- Completion::new(),
                last_tag: Atomic::new(0),
                owners <- ChunkOwners::new(env.config.queue_depth),
                share <- Share::new(env.buffers.clone(), env.config.queue_depth),
                fences <- Fences::new(),
                wake <- kx::new_work!(wakes, "Session::wake"),
                line_work <- kx::new_work!(line_queue, "Session::line_work"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the name. Until the first path is connected, that is the name that a client has
    /// proved, or a placeholder.
    pub(crate) fn name(&self) -> &CStr {
        self.known_name().unwrap_or(c"(unnamed)")
    }

    /// Returns the name, if it is known already.
    pub(crate) fn known_name(&self) -> Option<&CStr> {
        self.name
            .as_ref()
            .or(self.owner.as_ref())
            .map(|name| &**name)
    }

    /// Returns whether this is an authenticated session of that name.
    pub(crate) fn is_of_client(&self, name: &CStr) -> bool {
        self.owner.as_ref().is_some_and(|owner| **owner == *name)
    }

    /// Asks the service whether a path whose client has proved itself may join.
    ///
    /// # Context
    ///
    /// May sleep. Call under `Sessions::joining`.
    ///
    /// # Errors
    ///
    /// The service's reason for refusing the path.
    pub(crate) fn authorize(&self, path: &Path) -> Result<(), Refusal> {
        let owner = self.owner.as_ref().ok_or(EINVAL)?;
        let name = SessionName::new(owner.to_bytes())
            .map_err(|error| Refusal::new(convert::error(error.errno()), error.as_str()))?;
        let mut joining = Joining {
            name,
            source: path.ends.src,
            paths: 0,
            connections: 0,
            memory: 0,
            closing: 0,
        };
        let mut add = |path: &Path, is_closing| {
            let needs = path.needs();
            if is_closing {
                joining.closing = joining.closing.saturating_add(needs);
                return;
            }
            joining.paths = joining.paths.saturating_add(1);
            joining.connections = joining.connections.saturating_add(path.cid_num.into());
            joining.memory = joining.memory.saturating_add(needs);
        };
        add(path, false);
        // A client may have begun several sessions; only INFO gives one of them the name.
        let sessions = self.sessions.lock();
        let of_client = |session: &&Arc<Session>| session.is_of_client(owner);
        for session in sessions.list.iter().filter(of_client) {
            let paths = session.paths.lock();
            paths.iter().for_each(|path| add(path, path.is_closing()));
        }
        drop(sessions);
        self.sessions.services.authorize(&joining)
    }

    /// Returns the session's kind, for authentication.
    pub(crate) const fn kind(&self) -> Kind {
        match self.authenticated {
            true => Kind::Authenticated,
            false => Kind::Plain,
        }
    }

    /// Checks that `name`, which a client has proved, is the name of the session; the first client
    /// decides it. This keeps out a client that has read the session's UUID on the wire but has the
    /// key of another session.
    ///
    /// # Errors
    ///
    /// `EKEYREJECTED`: the session has another name; `ENOMEM`.
    pub(crate) fn belongs_to(&self, name: SessionName<'_>) -> Result<(), Refusal> {
        match self.owner.as_ref() {
            None => {
                let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
                self.owner.populate(name);
                Ok(())
            }
            Some(owner) if owner.to_bytes() == name.as_str().as_bytes() => Ok(()),
            Some(_) => Err(Refusal::new(
                EKEYREJECTED,
                "its key is that of another session",
            )),
        }
    }

    /// Closes the unauthenticated session that has the UUID of this one, if there is one, and waits
    /// until it is gone. Otherwise a stranger who has seen the UUID could keep out the client of
    /// `path`, which has proved a key. No other unauthenticated session gets the UUID until the path
    /// is in its session or closed.
    ///
    /// # Context
    ///
    /// May sleep. Call without `Sessions::joining`.
    ///
    /// # Errors
    ///
    /// Those of [`List::check_open`]; `ECONNRESET`: it takes too long.
    pub(crate) fn take_uuid(&self, path: &Path) -> Result<(), Refusal> {
        let mut left = msecs_to_jiffies(GOING_TIMEOUT_MS);
        let mut sessions = self.sessions.lock();
        loop {
            sessions.check_open()?;
            let holder = sessions.find(&self.uuid);
            let Some(holder) = holder.filter(|holder| !holder.authenticated) else {
                return Ok(());
            };
            holder.give_way(path, "under its UUID");
            if left == 0 {
                let why = "the session without authentication under its UUID is being closed";
                return Err(Refusal::new(ECONNRESET, why));
            }
            left = self.wait_for_other(path, &mut sessions, left)?;
        }
    }

    /// Waits for some time, at most `left`, until another session is gone, and returns the remaining
    /// time.
    ///
    /// # Errors
    ///
    /// `ECONNRESET`: `path`, for which this waits, is closed.
    fn wait_for_other(
        &self,
        path: &Path,
        sessions: &mut MutexGuard<'_, List>,
        left: Jiffies,
    ) -> Result<Jiffies, Refusal> {
        if path.is_closing() {
            return Err(Refusal::new(ECONNRESET, CLOSED_MEANWHILE));
        }
        let most = left.min(msecs_to_jiffies(GOING_LOOK_MS));
        let unused = self.sessions.wait_for_end(sessions, most);
        Ok(left - most + unused)
    }

    /// Checks that the session is in the list, or may be added.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Those of [`List::has`].
    pub(crate) fn check_present(&self) -> Result<(), Refusal> {
        self.sessions.lock().has(self).map(drop)
    }

    /// Adds the session to the list, unless it is there; `known` tells whether its client is known.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The server accepts no sessions or has no room; the session is being closed; the client has
    /// begun it over another path; the session is not authenticated and [`Session::take_uuid`] was
    /// called for its UUID; `ENOMEM`.
    pub(crate) fn enlist(self: &Arc<Self>, known: bool) -> Result<(), Refusal> {
        // Operators wait for this lock, so no allocation under it waits for I/O.
        let _no_io = NoIo::enter();
        let mut sessions = self.sessions.lock();
        sessions.check_open()?;
        if sessions.has(self)? {
            return Ok(());
        }
        if !self.authenticated && sessions.is_claimed(&self.uuid) {
            let why = "a client that has proved a key begins a session under its UUID";
            return Err(Refusal::new(ECONNRESET, why));
        }
        sessions.check_room(self.env.config.max_sessions, known)?;
        Ok(sessions
            .list
            .push(self.clone(), GFP_KERNEL)
            .map_err(Error::from)?)
    }

    /// Returns the extensions' part of an acceptance.
    pub(crate) fn rsp_ext(&self) -> RspExt {
        RspExt {
            server_run: self.env.boot_id,
            session_gen: self.gen,
        }
    }

    /// Gives the session its name when its first path, `path`, comes up. If the client has proved a
    /// key for that name, the session takes the name from an unauthenticated session.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EPERM`: another session has the name; `EINVAL`: this one has another name; `ENOMEM`.
    pub(crate) fn claim_name(&self, name: SessionName<'_>, path: &Path) -> Result<(), Refusal> {
        let _up = self.up.lock();
        match self.name.as_ref() {
            None => self.take_name(CString::try_from_fmt(fmt!("{}", name.as_str()))?, path),
            Some(own) if own.to_bytes() == name.as_str().as_bytes() => Ok(()),
            Some(_) => Err(Refusal::new(
                EINVAL,
                "the client gave another path of the session a different name",
            )),
        }
    }

    /// Brings up the services of the session, which has its name, with its first path. That path
    /// tells whether the client knows the extensions.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// A service's reason to refuse the session; `ENOMEM`.
    pub(crate) fn path_up(self: &Arc<Self>, path: &Path) -> Result<(), Refusal> {
        let _up = self.up.lock();
        if self.uppers.as_ref().is_some() {
            return Ok(());
        }
        let dir = SessionDir::new(self.name())?;
        let uppers = self.sessions.services.session_up(|| SessionInfo {
            name: self.name(),
            authenticated: self.authenticated,
            sources: Sources::new(self.clone()),
            extensions: path.epoch.is_some(),
            log: ClientLog::new(self.env.audit.clone(), self.authenticated),
            notices: path.notices.then(|| Notices::new(self.clone())),
            queue_depth: self.env.config.queue_depth,
            chunk_bytes: self.env.config.chunk_bytes,
        })?;
        self.uppers.populate(uppers);
        *self.dir.lock() = Some(dir);
        Ok(())
    }

    /// Returns what the service of a purpose has for the session, once a path is connected.
    #[inline]
    pub(crate) fn upper(&self, purpose: Purpose) -> Option<&dyn ServiceSession> {
        self.uppers.as_ref()?.of(purpose)
    }

    /// Returns the session's directory in sysfs.
    pub(crate) fn dir(&self) -> Option<Arc<SessionDir>> {
        self.dir.lock().clone()
    }

    /// Gives the session its name, once a closing session with this name is gone and its devices
    /// are closed. A client that continues under a new UUID relies on that: by then, its requests in
    /// the former session, which had the same name, have ended.
    fn take_name(&self, name: CString, path: &Path) -> Result<(), Refusal> {
        let mut left = msecs_to_jiffies(GOING_TIMEOUT_MS);
        let mut sessions = self.sessions.lock();
        loop {
            // While an authenticated client waits for the name, no other session takes it, as it
            // would have to give the name up again.
            let is_proved = |other: &Session| !self.authenticated && other.is_of_client(&name);
            let holder = sessions.list.iter().find(|other| {
                other.uuid != self.uuid && (other.is_named(&name) || is_proved(other))
            });
            let Some(holder) = holder else {
                self.name.populate(name);
                return Ok(());
            };
            if self.authenticated && !holder.authenticated {
                holder.give_way(path, "of its name");
            }
            if !holder.is_going() || left == 0 {
                let why = "another client already has a session with this name";
                return Err(Refusal::new(EPERM, why));
            }
            left = self.wait_for_other(path, &mut sessions, left)?;
        }
    }

    /// Closes an unauthenticated session, because the client of `path` has proved a key, and needs
    /// the session's name or UUID; `which` completes the log line. Call under the lock of the list
    /// of sessions.
    fn give_way(&self, path: &Path, which: &str) {
        // Otherwise its client could keep the session by adding paths.
        self.ending.store(true, Relaxed);
        for own in self.paths.lock().iter() {
            if own.event(Event::UserDisconnect) && path.may_log() {
                pr_warn!(
                    "{}: disconnected: its session is not authenticated, and the client at {} has proved a key {}\n",
                    **own,
                    path.ends,
                    which
                );
            }
        }
    }

    /// Returns whether all paths are closing or closed.
    fn is_going(&self) -> bool {
        self.paths.lock().iter().all(|path| path.is_closing())
    }

    pub(crate) fn is_named(&self, name: &CStr) -> bool {
        self.name.as_ref().is_some_and(|own| **own == *name)
    }

    /// Adds a path, which is then no longer a candidate.
    ///
    /// # Errors
    ///
    /// `ECONNRESET`: the session has gone or is ending, the server is closing or drained, or the
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

    /// Returns a tag that no path of the session has, or has had recently. A path that is added
    /// much later must check its tag again.
    pub(crate) fn next_tag(&self) -> Option<PathTag> {
        let paths = self.paths.lock();
        for _ in 0..=paths.len() + 1 {
            let next = self.last_tag.fetch_add(1, Relaxed).wrapping_add(1);
            // CAST: Tags start again after 65535.
            let tag = PathTag::new(next as u16);
            let free = tag.filter(|tag| paths.iter().all(|path| path.tag != *tag));
            if free.is_some() {
                return free;
            }
        }
        None
    }

    /// Returns whether a path is connected, which makes its client known.
    pub(crate) fn has_connected_path(&self) -> bool {
        let paths = self.paths.lock();
        paths.iter().any(|path| path.takes_requests())
    }

    /// Finds a path by its tag.
    pub(crate) fn path(&self, tag: PathTag) -> Option<Arc<Path>> {
        let paths = self.paths.lock();
        paths.iter().find(|path| path.tag == tag).cloned()
    }

    /// Returns whether a path with these addresses is shown in sysfs.
    pub(crate) fn shows(&self, ends: Ends) -> bool {
        let paths = self.paths.lock();
        paths
            .iter()
            .any(|path| path.ends == ends && path.is_shown())
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
        // A path that was not in the list may have the same tag as one that is.
        if was_in {
            self.fences.path_gone(path);
        }
        if !last {
            // The path may have been the last candidate.
            self.sessions.one_has_gone();
            return;
        }
        // All paths have left the session, so no other task uses the directory.
        let dir = self.dir.lock().take();
        drop(dir);
        if let Some(uppers) = self.uppers.as_ref() {
            uppers.down();
            if path.may_log() {
                pr_info!("{}: session closed\n", self.name());
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
