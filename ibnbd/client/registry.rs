// SPDX-License-Identifier: GPL-2.0

//! All sessions and mappings.
//!
//! A session is opened for its first mapping and closed after its last; a discovery counts like a
//! mapping. A caller that finds a session while it is being opened or closed waits, so that a name
//! never has two sessions.

use crate::{
    discovery::Discoveries,
    mapping::Mapping,
    session::Session, //
};
use ibnbd_proto::map_opts::{
    MapOptions,
    SessionOptions, //
};
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
    inner: Mutex<Inner>,
    /// Notified when the state of a session has changed.
    #[pin]
    changed: CondVar,
    disks: DiskOwner,
    /// Runs the work that reopens devices; no work on it waits for a disk.
    retries: Arc<Queue>,
    /// Sends uevents of disks; nothing that a disk needs waits for it.
    uevent_queue: Arc<Queue>,
    /// Completes operators' requests, also when the operator's task has left.
    jobs: Arc<Queue>,
    #[pin]
    discoveries: Discoveries,
}

struct Inner {
    sessions: KVec<Entry>,
    places: KVec<Place>,
    /// The directory of links to the disks.
    links: Option<Arc<PlainDir>>,
}

struct Entry {
    name: CString,
    /// Number of mappings and discoveries, and of attempts to create one.
    users: usize,
    state: State,
}

enum State {
    Opening,
    Ready(Arc<Session>),
    Closing,
}

/// The entry of a mapping. It keeps the device from being mapped twice, and the number from being
/// used twice.
struct Place {
    number: u32,
    session: CString,
    device: CString,
    /// Present as long as the disk can be unmapped.
    mapping: Option<Arc<Mapping>>,
}

/// A counted reference to a session; dropping the last one closes the session.
pub(crate) struct SessionRef {
    registry: Arc<Registry>,
    session: Arc<Session>,
}

/// Why [`Registry::session`] returns no session.
pub(crate) enum NoSession {
    /// The session does not exist, and no path was given to open one.
    NoPath,
    /// The session belongs to another network namespace.
    Foreign,
    /// The session exists, and has poll queues or was asked for with some.
    Polled,
    /// The session exists, and authenticates with another key.
    OtherKey,
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
    pub(crate) fn set_mapping(&self, mapping: Option<Arc<Mapping>>) {
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
        let inner = Inner {
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
        let taken = |number| inner.places.iter().any(|p| p.number == number);
        let number = (0..u32::MAX).find(|&number| !taken(number));
        let number = number.ok_or(ENOSPC)?;
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
    /// opened, with `nr_poll_queues` poll queues; without the number, with none, and a session that
    /// exists may have any.
    ///
    /// As in the C driver, a disk with poll queues has its session to itself: each poll queue is a
    /// connection of the session, so their number cannot change for the next disk.
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
        nr_poll_queues: Option<u16>,
    ) -> Result<SessionRef, NoSession> {
        let name = opts.name.as_bytes();
        let mut inner = self.inner.lock();
        loop {
            let entry = inner
                .sessions
                .iter_mut()
                .find(|e| e.name.to_bytes() == name);
            match entry {
                None => break,
                Some(Entry {
                    users,
                    state: State::Ready(session),
                    ..
                }) => {
                    if !session.is_local() {
                        return Err(NoSession::Foreign);
                    }
                    if nr_poll_queues.is_some_and(|nr| nr > 0 || session.nr_poll_queues() > 0) {
                        return Err(NoSession::Polled);
                    }
                    if opts
                        .key_id
                        .is_some_and(|id| id != session.transport().key_id())
                    {
                        return Err(NoSession::OtherKey);
                    }
                    *users += 1;
                    return Ok(SessionRef {
                        registry: self.clone(),
                        session: session.clone(),
                    });
                }
                Some(_) => {
                    if self.changed.wait_interruptible(&mut inner) {
                        return Err(EINTR.into());
                    }
                }
            }
        }
        if opts.path_count() == 0 {
            return Err(NoSession::NoPath);
        }
        let entry = Entry {
            name: CString::try_from_fmt(fmt!("{}", opts.name.as_str()))?,
            users: 1,
            state: State::Opening,
        };
        inner.sessions.push(entry, GFP_KERNEL)?;
        drop(inner);

        let opened = Session::open(opts, nr_poll_queues.unwrap_or(0))
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
        })
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
            if mapping.unmap(true, || Ok(())).is_err() {
                break;
            }
        }
    }
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
            entry.users -= 1;
            if entry.users > 0 {
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
