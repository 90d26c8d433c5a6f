// SPDX-License-Identifier: GPL-2.0

//! Adds paths to sessions, and gives sessions their names.

use crate::{
    env::audit::ClientLog,
    path::Path,
    refusal::Refusal,
    session::{
        notices::Notices,
        service::{
            Joining,
            SessionInfo, //
        },
        sessions::List,
        sources::Sources, //
        Session,
    },
    sysfs::{
        PathDir,
        SessionDir, //
    },
    types::Place, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    auth::Session as Kind,
    fsm::server_path::Event,
    join::{
        self,
        Decision, //
    },
    name::SessionName, //
};
use kernel::{
    prelude::*,
    str::CString,
    sync::{
        Arc,
        MutexGuard, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Instant,
        Jiffies,
        Monotonic, //
    }, //
};
use kx::{
    mm::NoIo,
    sync::atomic::Relaxed, //
};

/// How long a new session waits for a closing one of the same name.
const GOING_TIMEOUT_MS: u32 = 20_000;
/// Interval at which a waiting path checks whether it has been closed.
const GOING_LOOK_MS: u32 = 500;

/// The reason for refusing a path that was closed while it waited.
const CLOSED_MEANWHILE: &str = "the path was closed before it was complete";

/// How often a new path checks whether another with its addresses is still in sysfs, and the interval
/// between checks.
const HIDE_TRIES: u32 = 500;
const HIDE_PAUSE: Delta = Delta::from_millis(10);

impl Session {
    /// Finds the path of a connection in its session: the one for which `is_own` returns true. Returns
    /// `None` if the path must be created.
    ///
    /// # Errors
    ///
    /// The reason for the refusal. The superseded path of an earlier attempt is then closed.
    pub(crate) fn find_path(
        &self,
        place: &Place,
        is_own: impl Fn(&Arc<Path>) -> bool,
    ) -> Result<Option<Arc<Path>>, Refusal> {
        let paths = self.paths.lock();
        let known = paths
            .iter()
            .map(|path| (path, path.known(place, is_own(path))));
        match join::decide(place.attempt, known) {
            Decision::Join(path) => Ok(Some(path.clone())),
            Decision::New => Ok(None),
            Decision::Refuse(refusal, superseded) => {
                if let Some(path) = superseded {
                    path.superseded();
                }
                Err(refusal.into())
            }
        }
    }

    /// See [`Parent::enter`](crate::path::parent::Parent::enter).
    pub(crate) fn enter(
        self: &Arc<Self>,
        path: &Arc<Path>,
        came: Instant<Monotonic>,
    ) -> Result<(), Refusal> {
        // Not under the next lock: this may wait.
        self.take_uuid(path)?;
        let _joining = self.sessions.joining.lock();
        // The session was found before the client proved itself. If the session has ended, the
        // client may have begun another one under the UUID, and must not get `EKEYREJECTED`.
        self.sessions.lock().has(self)?;
        // Checked before anything in the session changes: the key may be another session's.
        let auth = path.auth.lock();
        self.belongs_to(auth.name().ok_or(EINVAL)?)?;
        drop(auth);
        self.enlist(true)?;
        let joined = self.join(path);
        match joined {
            Ok(()) => path.has_entered(came),
            Err(_) => self.forget_if_unused(),
        }
        joined
    }

    fn join(self: &Arc<Self>, path: &Arc<Path>) -> Result<(), Refusal> {
        let place = Place {
            ends: path.io.ends,
            attempt: path.attempt(),
            cid: 0,
        };
        // An existing path already has a service connection.
        if self
            .find_path(&place, |other| other.uuid == path.uuid)?
            .is_some()
        {
            return Err(Refusal::new(ECONNRESET, "the path exists"));
        }
        // A path owns its id while it is in the session's list, so the check belongs here.
        if self.path(path.io.id).is_some() {
            return Err(Refusal::new(ECONNRESET, "another path has its id"));
        }
        self.authorize(path)?;
        Ok(self.add_path(path.clone())?)
    }

    /// See [`Parent::complete`](crate::path::parent::Parent::complete).
    pub(crate) fn complete(
        self: &Arc<Self>,
        path: &Arc<Path>,
        name: SessionName<'_>,
    ) -> Result<(), Refusal> {
        path.auth.lock().introduced(name)?;
        let cons = path.io.cons.lock();
        let is_whole = cons.qps.iter().all(Option::is_some);
        let has_messages = cons.messages.is_some();
        drop(cons);
        if !is_whole || path.io.terms.messages != has_messages {
            let why = "the client has not set up all connections";
            return Err(Refusal::new(EPROTO, why));
        }
        // The name is checked before the chunks are created, which is the most expensive step.
        let services = &self.sessions.services;
        services.check_name(name, self.kind() == Kind::Authenticated)?;
        self.claim_name(name, path)?;
        if path.is_closing() {
            return Err(Refusal::new(ECONNRESET, CLOSED_MEANWHILE));
        }
        path.make_chunks()?;
        self.path_up(path)?;
        if has_messages {
            let attached = self
                .messages()
                .and_then(|upper| path.attach_messages(upper));
            attached
                .map_err(|error| Refusal::new(error, "its message connection cannot be used"))?;
        }
        self.wait_hidden(path)
            .and_then(|()| self.show(path))
            .map_err(|error| Refusal::new(error, "its files in sysfs cannot be created"))
    }

    /// Waits until no path with the same addresses is shown any more: such a path is being closed, as
    /// otherwise this one would not have been accepted.
    fn wait_hidden(&self, path: &Path) -> Result {
        let is_same = |other: &Arc<Path>| other.io.ends == path.io.ends && other.is_shown();
        for _ in 0..HIDE_TRIES {
            if !self.paths.lock().iter().any(is_same) {
                return Ok(());
            }
            fsleep(HIDE_PAUSE);
        }
        Err(EEXIST)
    }

    /// Creates the directory of a path, which is connected, in sysfs.
    fn show(&self, path: &Arc<Path>) -> Result {
        let session = self.dir.lock().clone().ok_or(ENODEV)?;
        // Before the uevent, as a path without a directory has no uevent.
        let room = KBox::new_uninit(GFP_KERNEL)?;
        path.is_shown_in(room.write(PathDir::new(&session, path)?));
        Ok(())
    }

    /// Lets the service decide whether a path whose client has proved itself may join.
    ///
    /// # Context
    ///
    /// May sleep. Call under `Sessions::joining`.
    ///
    /// # Errors
    ///
    /// The service's reason for refusing the path.
    fn authorize(&self, path: &Path) -> Result<(), Refusal> {
        let owner = self.io.owner.as_ref().ok_or(EINVAL)?;
        let name = SessionName::new(owner.to_bytes())
            .map_err(|error| Refusal::new(convert::error(error.errno()), error.as_str()))?;
        let mut joining = Joining {
            name,
            source: path.io.ends.src,
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
            let connections = u32::from(path.cid_num) + u32::from(path.io.terms.messages);
            joining.connections = joining.connections.saturating_add(connections);
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

    /// Checks that `name`, which a client has proved, is the name of the session; the first client
    /// decides it. This keeps out a client that has read the session's UUID on the wire but has the
    /// key of another session.
    ///
    /// # Errors
    ///
    /// `EKEYREJECTED`: the session has another name; `ENOMEM`.
    fn belongs_to(&self, name: SessionName<'_>) -> Result<(), Refusal> {
        match self.io.owner.as_ref() {
            None => {
                let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
                self.io.owner.populate(name);
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
    /// for its end. Without this, a stranger who has seen the UUID could lock out the client of
    /// `path`, which has proved a key. No other unauthenticated session can use the UUID until the
    /// path is in its session or closed.
    ///
    /// # Context
    ///
    /// May sleep. Call without `Sessions::joining`.
    ///
    /// # Errors
    ///
    /// Errors of [`List::check_open`]; `ECONNRESET`: it takes too long.
    fn take_uuid(&self, path: &Path) -> Result<(), Refusal> {
        let mut left = msecs_to_jiffies(GOING_TIMEOUT_MS);
        let mut sessions = self.sessions.lock();
        loop {
            sessions.check_open()?;
            let holder = sessions.find(&self.io.uuid);
            let Some(holder) = holder.filter(|holder| !holder.authenticated) else {
                return Ok(());
            };
            holder.evict(path, "under its UUID");
            if left == 0 {
                let why = "the session without authentication under its UUID is being closed";
                return Err(Refusal::new(ECONNRESET, why));
            }
            left = self.wait_for_other(path, &mut sessions, left)?;
        }
    }

    /// Waits briefly, at most for `left`, for the end of another session, and returns the remaining
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

    /// Adds the session to the list, unless it is listed; `known` says whether its client is known.
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
        if !self.authenticated && sessions.is_claimed(&self.io.uuid) {
            let why = "a client that has proved a key begins a session under its UUID";
            return Err(Refusal::new(ECONNRESET, why));
        }
        sessions.check_room(self.io.env.config.max_sessions, known)?;
        Ok(sessions
            .list
            .push(self.clone(), GFP_KERNEL)
            .map_err(Error::from)?)
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
    fn claim_name(&self, name: SessionName<'_>, path: &Path) -> Result<(), Refusal> {
        let _up = self.up.lock();
        match self.io.name.as_ref() {
            None => self.take_name(CString::try_from_fmt(fmt!("{}", name.as_str()))?, path),
            Some(own) if own.to_bytes() == name.as_str().as_bytes() => Ok(()),
            Some(_) => Err(Refusal::new(
                EINVAL,
                "the client gave another path of the session a different name",
            )),
        }
    }

    /// Brings up the services of the session, which has its name, with its first path. The path
    /// determines whether the client knows the extensions.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// A service's reason to refuse the session; `ENOMEM`.
    fn path_up(self: &Arc<Self>, path: &Path) -> Result<(), Refusal> {
        let _up = self.up.lock();
        if self.io.uppers.as_ref().is_some() {
            return Ok(());
        }
        let dir = SessionDir::new(self.io.name())?;
        let uppers = self.sessions.services.session_up(|| SessionInfo {
            name: self.io.name(),
            authenticated: self.authenticated,
            sources: Sources::new(self.clone()),
            extensions: path.io.epoch.is_some(),
            log: ClientLog::new(self.io.env.audit.clone(), self.authenticated),
            notices: path.notices.then(|| Notices::new(self.clone())),
            queue_depth: self.io.env.config.queue_depth,
            chunk_bytes: self.io.env.config.chunk_bytes,
        })?;
        self.io.uppers.populate(uppers);
        *self.dir.lock() = Some(dir);
        Ok(())
    }

    /// Gives the session its name, once a closing session with this name has ended and its devices
    /// are closed. A client that continues under a new UUID relies on this: by then, its requests in
    /// the former session of the same name have ended.
    fn take_name(&self, name: CString, path: &Path) -> Result<(), Refusal> {
        let mut left = msecs_to_jiffies(GOING_TIMEOUT_MS);
        let mut sessions = self.sessions.lock();
        loop {
            // While an authenticated client waits for the name, no unauthenticated session gets it,
            // as it would lose the name again at once.
            let is_proved = |other: &Session| !self.authenticated && other.is_of_client(&name);
            let holder = sessions.list.iter().find(|other| {
                other.io.uuid != self.io.uuid && (other.is_named(&name) || is_proved(other))
            });
            let Some(holder) = holder else {
                self.io.name.populate(name);
                return Ok(());
            };
            if self.authenticated && !holder.authenticated {
                holder.evict(path, "of its name");
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
    fn evict(&self, path: &Path, which: &str) {
        // Set first, so that its client cannot keep the session alive by adding paths.
        self.ending.store(true, Relaxed);
        for own in self.paths.lock().iter() {
            if own.event(Event::UserDisconnect) && path.may_log() {
                pr_warn!(
                    "{}: disconnected: its session is not authenticated, and the client at {} has proved a key {}\n",
                    **own,
                    path.io.ends,
                    which
                );
            }
        }
    }
}
