// SPDX-License-Identifier: GPL-2.0

//! All sessions and mappings.
//!
//! A session is opened for its first mapping and closed after its last, unless an operator keeps it
//! open. A caller that finds a session while it is being opened or closed waits, so that a name never
//! has two sessions. A discovery uses an existing session, or opens one for itself. A mapping waits for
//! the end of such a session, as it has the paths and the port of the discovery instead of the mapping's
//! own.

use crate::{
    discovery::Discoveries,
    session::{
        Queues,
        Session, //
    }, //
};
use ibnbd_proto::map_opts::{
    MapOptions,
    SessionOptions, //
};
use ibtrs_proto::addr::PathAddr;
use kernel::{
    new_condvar,
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        CondVar,
        Mutex, //
    }, //
};
use kx::{
    blk::DiskOwner,
    sysfs::PlainDir,
    work::{
        Options,
        Queue, //
    }, //
};

/// All sessions and mappings.
#[pin_data]
pub(crate) struct Registry {
    #[pin]
    inner: Mutex<RegistryInner>,
    /// Notified when the state of a session has changed.
    #[pin]
    changed: CondVar,
    disks: DiskOwner,
    /// Runs the work items that reopen devices, and end the pauses of requests; none of them waits
    /// for a disk.
    retries: Arc<Queue>,
    /// Sends uevents of disks; no work that a disk depends on waits for it.
    uevent_queue: Arc<Queue>,
    /// Completes operators' requests, even after the operator's task has exited, and closes devices
    /// that are open without a disk.
    jobs: Arc<Queue>,
    #[pin]
    discoveries: Discoveries,
    /// Sessions that operators keep open without a disk.
    #[pin]
    kept: Mutex<KVec<SessionRef>>,
}

struct RegistryInner {
    sessions: KVec<Entry>,
    places: KVec<Place>,
    /// The directory of links to the disks.
    links: Option<Arc<PlainDir>>,
}

impl RegistryInner {
    /// Returns the lowest disk number that is free.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn free_number(&self) -> Result<u32> {
        // Of the first n + 1 numbers, with n disks, at least one is free.
        let mut taken = KVVec::from_elem(false, self.places.len() + 1, GFP_KERNEL)?;
        for place in &self.places {
            if let Some(taken) = taken.get_mut(place.number as usize) {
                *taken = true;
            }
        }
        let free = taken.iter().position(|taken| !taken).ok_or(ENOSPC)?;
        Ok(u32::try_from(free)?)
    }
}

struct Entry {
    name: CString,
    /// Number of mappings, of attempts to create one, and 1 if an operator keeps the session open.
    disks: usize,
    discoveries: usize,
    /// A mapping waits: no more discoveries begin to use a session without disks.
    wanted: bool,
    state: State,
}

enum State {
    Opening,
    Ready(Arc<Session>),
    Closing,
}

/// The entry of a mapping. It prevents the device from being mapped twice, and the number from
/// being used twice.
struct Place {
    number: u32,
    session: CString,
    device: CString,
    /// Present while the disk can be unmapped.
    mapping: Option<Arc<dyn Unmap>>,
}

/// The registry's interface of a mapped disk.
pub(crate) trait Unmap: Send + Sync {
    /// Unmaps the disk by force.
    ///
    /// # Context
    ///
    /// May sleep until the paths that carry the disk's requests are closed.
    ///
    /// # Errors
    ///
    /// `EALREADY` if another task is unmapping the disk.
    fn unmap_by_force(&self) -> Result;
}

/// A counted reference to a session; dropping the last one closes the session.
pub(crate) struct SessionRef {
    registry: Arc<Registry>,
    session: Arc<Session>,
    user: User,
}

/// The use that a caller has for a session.
#[derive(Clone, Copy)]
pub(crate) enum User {
    /// A mapping, or an operator who keeps the session open.
    Disk(Wanted),
    /// A discovery: a session that exists may have any queues. A new session gets as few as
    /// possible, as no disk ever uses it.
    Discovery,
}

/// The queues that a mapping needs its session to have.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The queues of a session that is opened.
    pub(crate) queues: Queues,
    /// Whether a session that exists may have another number of ordinary queues.
    pub(crate) any_ordinary: bool,
}

impl User {
    /// Returns the queues of a session that is opened.
    fn queues(self) -> Queues {
        match self {
            Self::Disk(wanted) => wanted.queues,
            Self::Discovery => Queues {
                ordinary: 1,
                polled: 0,
            },
        }
    }
}

impl Entry {
    fn users(&mut self, user: User) -> &mut usize {
        match user {
            User::Disk(_) => &mut self.disks,
            User::Discovery => &mut self.discoveries,
        }
    }

    /// Returns the session, unless the caller must wait for another one. An entry without disks
    /// never gets any.
    fn usable(&self, user: User) -> Option<&Arc<Session>> {
        let may_use = match user {
            User::Disk(_) => self.disks > 0,
            User::Discovery => self.disks > 0 || !self.wanted,
        };
        match &self.state {
            State::Ready(session) if may_use => Some(session),
            _ => None,
        }
    }
}

/// Why [`Registry::session`] returns no session.
pub(crate) enum NoSession {
    /// The session does not exist, and no path was given to open one.
    NoPath,
    /// The session belongs to another network namespace.
    Foreign,
    /// The session exists, and either it or the request has poll queues.
    Polled,
    /// The session exists, with another number of queues than requested.
    OtherQueues,
    /// The session exists, and authenticates with another key.
    OtherKey,
    /// The session has another failover time.
    OtherFailoverTime,
    /// The session exists, without a path to any of the addresses of the discovery.
    OtherServer,
    /// `EINTR` if a signal arrived; `ENOMEM`; errors of [`Session::open`].
    Failed(Error),
}

impl<E> From<E> for NoSession
where
    Error: From<E>,
{
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl SessionRef {
    /// Returns the registry of the session.
    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }
}

impl core::ops::Deref for SessionRef {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

/// A reserved disk number and device of a session; drop releases both.
pub(crate) struct PlaceRef {
    registry: Arc<Registry>,
    number: u32,
}

impl PlaceRef {
    /// Returns the number of the disk.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Sets the mapping that [`Registry::unmap_all`] finds; `None` hides it.
    pub(crate) fn set_mapping(&self, mapping: Option<Arc<dyn Unmap>>) {
        let mut inner = self.registry.inner.lock();
        let place = inner.places.iter_mut().find(|p| p.number == self.number);
        let old = place.map(|p| core::mem::replace(&mut p.mapping, mapping));
        drop(inner);
        drop(old);
    }
}

impl Registry {
    /// Creates an empty registry.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let inner = RegistryInner {
            sessions: KVec::new(),
            places: KVec::new(),
            links: None,
        };
        Arc::pin_init(
            try_pin_init!(Self {
                inner <- new_mutex!(inner, "Registry::inner"),
                changed <- new_condvar!("Registry::changed"),
                disks: DiskOwner::new()?,
                retries: Queue::new(Options::unbound().mem_reclaim(), fmt!("ibnbd-retry"))?,
                uevent_queue: Queue::new(Options::unbound().mem_reclaim(), fmt!("ibnbd-uevent"))?,
                jobs: Queue::new(Options::unbound(), fmt!("ibnbd-client"))?,
                discoveries <- Discoveries::new(),
                kept <- new_mutex!(KVec::new(), "Registry::kept"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the owner of the disks, which waits for them when the module is unloaded.
    pub(crate) fn disks(&self) -> &DiskOwner {
        &self.disks
    }

    /// Returns the workqueue that reopens devices.
    pub(crate) fn retries(&self) -> &Arc<Queue> {
        &self.retries
    }

    /// Returns the workqueue that sends uevents of disks.
    pub(crate) fn uevent_queue(&self) -> &Arc<Queue> {
        &self.uevent_queue
    }

    /// Returns the workqueue that completes operators' requests. It must be flushed before the
    /// registry is dropped.
    pub(crate) fn jobs(&self) -> &Arc<Queue> {
        &self.jobs
    }

    /// Returns the results of discoveries.
    pub(crate) fn discoveries(&self) -> &Discoveries {
        &self.discoveries
    }

    /// Sets the directory of links to the disks.
    pub(crate) fn set_links(&self, links: Option<Arc<PlainDir>>) {
        let old = core::mem::replace(&mut self.inner.lock().links, links);
        drop(old);
    }

    /// Returns the directory of links to the disks.
    pub(crate) fn links(&self) -> Option<Arc<PlainDir>> {
        self.inner.lock().links.clone()
    }

    /// Reserves the device that the options name, and a disk number.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the device is mapped or being mapped; `ENOSPC` if no number is free; `ENOMEM`.
    pub(crate) fn place(self: &Arc<Self>, opts: &MapOptions<'_>) -> Result<PlaceRef> {
        let (session, device) = (opts.session.name.as_bytes(), opts.device_path.as_bytes());
        let session_name = CString::try_from_fmt(fmt!("{}", opts.session.name.as_str()))?;
        let device_name = CString::try_from_fmt(fmt!("{}", opts.device_path.as_str()))?;
        let mut inner = self.inner.lock();
        let is_it = |p: &Place| p.session.to_bytes() == session && p.device.to_bytes() == device;
        if inner.places.iter().any(is_it) {
            return Err(EEXIST);
        }
        let number = inner.free_number()?;
        let place = Place {
            number,
            session: session_name,
            device: device_name,
            mapping: None,
        };
        inner.places.push(place, GFP_KERNEL)?;
        Ok(PlaceRef {
            registry: self.clone(),
            number,
        })
    }

    /// Returns a reference to the session that the options name. A session that does not exist is
    /// opened.
    ///
    /// Each queue is a connection of the session's paths, so their number cannot change for the next
    /// disk. As in the C driver, a disk with poll queues does not share its session.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// See [`NoSession`].
    pub(crate) fn session(
        self: &Arc<Self>,
        opts: &SessionOptions<'_>,
        user: User,
    ) -> Result<SessionRef, NoSession> {
        let name = opts.name.as_bytes();
        let mut inner = self.inner.lock();
        loop {
            let entry = inner
                .sessions
                .iter_mut()
                .find(|e| e.name.to_bytes() == name);
            let Some(entry) = entry else { break };
            if let Some(session) = entry.usable(user).cloned() {
                check(&session, opts, user)?;
                *entry.users(user) += 1;
                let found = SessionRef {
                    registry: self.clone(),
                    session,
                    user,
                };
                // Do not take locks of sessions under this lock, or drop a session.
                drop(inner);
                return match is_asked(&found, opts, user) {
                    true => Ok(found),
                    false => Err(NoSession::OtherServer),
                };
            }
            // Without this, new discoveries could keep the session open.
            entry.wanted |= matches!(user, User::Disk(_));
            if self.changed.wait_interruptible(&mut inner) {
                return Err(EINTR.into());
            }
        }
        if opts.path_count() == 0 {
            return Err(NoSession::NoPath);
        }
        let mut entry = Entry {
            name: CString::try_from_fmt(fmt!("{}", opts.name.as_str()))?,
            disks: 0,
            discoveries: 0,
            wanted: false,
            state: State::Opening,
        };
        *entry.users(user) = 1;
        inner.sessions.push(entry, GFP_KERNEL)?;
        drop(inner);

        let opened = Session::open(opts, user.queues(), &self.jobs)
            .and_then(|s| Ok(Arc::new(s, GFP_KERNEL)?));
        let mut inner = self.inner.lock();
        if let Ok(session) = &opened {
            let mut entries = inner.sessions.iter_mut();
            if let Some(entry) = entries.find(|e| e.name.to_bytes() == name) {
                entry.state = State::Ready(session.clone());
            }
        } else {
            inner.sessions.retain(|e| e.name.to_bytes() != name);
        }
        drop(inner);
        self.changed.notify_all();
        Ok(SessionRef {
            registry: self.clone(),
            session: opened?,
            user,
        })
    }

    /// Keeps a session open until [`Registry::end_keeping`].
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EEXIST` if it is already kept open; `ENOMEM`.
    pub(crate) fn keep(&self, session: SessionRef) -> Result {
        let mut kept = self.kept.lock();
        // On an error, the session is dropped after the lock is released, as closing it may take
        // long.
        if kept.iter().any(|other| *other.name() == *session.name()) {
            return Err(EEXIST);
        }
        kept.reserve(1, GFP_KERNEL)?;
        Ok(kept.push_within_capacity(session)?)
    }

    /// Closes the session `name` if it has no disk; otherwise it is closed with its last disk.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOENT`: no session of that name is kept open.
    pub(crate) fn end_keeping(&self, name: &[u8]) -> Result {
        let session = self.take_kept(|session| session.name().to_bytes() == name);
        session.map(drop).ok_or(ENOENT)
    }

    /// Calls `f` with the name of each session that is kept open.
    ///
    /// # Errors
    ///
    /// The first error of `f`.
    pub(crate) fn for_each_kept(&self, mut f: impl FnMut(&CStr) -> Result) -> Result {
        self.kept
            .lock()
            .iter()
            .try_for_each(|session| f(session.name()))
    }

    fn take_kept(&self, is_it: impl Fn(&SessionRef) -> bool) -> Option<SessionRef> {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(is_it)?;
        kept.remove(at).ok()
    }

    /// As [`Registry::end_keeping`], for all sessions, when the module is unloaded.
    pub(crate) fn end_keeping_all(&self) {
        while let Some(session) = self.take_kept(|_| true) {
            drop(session);
        }
    }

    /// Unmaps all disks by force.
    pub(crate) fn unmap_all(&self) {
        loop {
            let mapping = {
                let inner = self.inner.lock();
                inner.places.iter().find_map(|p| p.mapping.clone())
            };
            let Some(mapping) = mapping else { break };
            // Fails only if another task is unmapping the disk, which would keep the module
            // loaded.
            if mapping.unmap_by_force().is_err() {
                break;
            }
        }
    }
}

/// Checks that a session which exists is the one that the options describe.
fn check(session: &Session, opts: &SessionOptions<'_>, user: User) -> Result<(), NoSession> {
    if !session.is_local() {
        return Err(NoSession::Foreign);
    }
    if let User::Disk(wanted) = user {
        if wanted.queues.polled > 0 || session.nr_poll_queues() > 0 {
            return Err(NoSession::Polled);
        }
        if !wanted.any_ordinary && u32::from(wanted.queues.ordinary) != session.nr_queues() {
            return Err(NoSession::OtherQueues);
        }
    }
    let transport = session.transport();
    if opts.key_id.is_some_and(|id| id != transport.key_id()) {
        return Err(NoSession::OtherKey);
    }
    let time_ms = transport.settings().failover_time_ms.get();
    if opts.failover_time_ms.is_some_and(|ms| ms != time_ms) {
        return Err(NoSession::OtherFailoverTime);
    }
    Ok(())
}

/// Returns whether a session leads to the server of a discovery: with other addresses, another
/// server might answer.
fn is_asked(session: &Session, opts: &SessionOptions<'_>, user: User) -> bool {
    let leads_to = |path: PathAddr| session.transport().leads_to(&path.dst);
    matches!(user, User::Disk(_)) || opts.path_count() == 0 || opts.paths().any(leads_to)
}

impl Drop for PlaceRef {
    fn drop(&mut self) {
        let mut inner = self.registry.inner.lock();
        let at = inner.places.iter().position(|p| p.number == self.number);
        let place = at.and_then(|at| inner.places.remove(at).ok());
        drop(inner);
        drop(place);
    }
}

impl Drop for SessionRef {
    fn drop(&mut self) {
        let name = self.session.name();
        {
            let mut inner = self.registry.inner.lock();
            let mut entries = inner.sessions.iter_mut();
            let Some(entry) = entries.find(|e| *e.name == *name) else {
                return;
            };
            *entry.users(self.user) -= 1;
            if entry.disks > 0 || entry.discoveries > 0 {
                return;
            }
            // `self.session` is another reference, so this drops no session under the lock.
            entry.state = State::Closing;
        }
        self.session.close();
        self.registry
            .inner
            .lock()
            .sessions
            .retain(|e| *e.name != *name);
        self.registry.changed.notify_all();
    }
}
