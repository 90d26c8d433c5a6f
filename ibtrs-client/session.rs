// SPDX-License-Identifier: GPL-2.0

//! Sessions: the interface for the layers above.
//!
//! See [`multipath`] for the connected paths, [`requeue_list`] and
//! [`requeue`] for requests whose path is lost.

use crate::{
    env::{
        urgent_queue,
        Env, //
    },
    path::{
        Path,
        PathDir, //
    },
    types::PathSpec, //
};
use ibtrs_core::messages::Attached;
use ibtrs_proto::{
    addr::{
        Addr,
        PathAddr, //
    },
    auth::KeyId,
    consts::MAX_PATHS,
    mp::{
        first_outcome,
        Policy, //
    },
    name::SessionName,
    permit::DepthSplit,
    steps::Steps, //
};
use kernel::{
    alloc::flags::GFP_NOWAIT,
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLockIrq, //
    }, //
};
use kx::{
    mm::in_reclaim,
    net::Net,
    percpu::RoundRobin,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        RcuPtr,
        SetOnce, //
    },
    work::{
        DelayedWork,
        Work, //
    }, //
};

mod admin;
mod downtime;
mod events;
mod failovers;
mod history;
mod messages;
mod multipath;
mod parent;
mod paths;
mod poll;
mod reauth;
mod requeue;
mod requeue_list;
mod settings;
mod stall;
mod submit;
mod timeout;

use admin::Admin;
use events::Notices;
use failovers::FailoverRecord;
pub(crate) use failovers::Told;
use history::History;
use multipath::Multipath;
use paths::Paths;
pub(crate) use paths::ShownPath;
use reauth::Reauth;
use requeue_list::FailoverState;
use stall::OldestRequest;
pub(crate) use submit::cid_of;

/// Parameters of a session to open.
pub struct SessionConfig<'a> {
    /// The name, as the server's operator will see it.
    pub name: SessionName<'a>,
    /// The paths, at least one. All are tried in parallel; once one is connected, the others keep
    /// retrying in the background.
    pub paths: &'a [PathSpec],
    /// Number of connections of each path for ordinary I/O, at least one. More than one for each
    /// CPU is useless, as a CPU uses only one of them.
    pub nr_queues: u16,
    /// Number of polled connections of each path, in addition to those for ordinary I/O; see
    /// [`Session::poll`].
    pub nr_poll_queues: u16,
    /// Id of the key that the session authenticates with, if client and server authenticate.
    pub key_id: KeyId,
    /// The failover time in milliseconds, unless it is the default.
    pub failover_time_ms: Option<u32>,
    /// Receives the session events.
    pub events: Arc<dyn SessionEvents>,
}

/// Receives the events of a session.
///
/// Calls of [`SessionEvents::down`] and [`SessionEvents::up`] are serialized and alternate. The
/// first is `down`, as [`Session::open`] itself reports the first connection.
///
/// # Context
///
/// The functions are called from a work item of the session. They may sleep and use
/// [`Session::admin`], and must not close the session or wait for its requests.
pub trait SessionEvents: Send + Sync {
    /// The last path was lost.
    fn down(&self);

    /// The server can be reached again.
    /// If `session_lost`, the server may no longer know the devices of the session: open them
    /// again. I/O is quiesced until this returns; administrative messages are not. Requests and
    /// messages submitted earlier end with `ESTALE`, as the objects that they name may no longer
    /// exist: build and submit them again, except messages of [`Session::admin_in`]. If the session
    /// is lost once more during the call, I/O stays quiesced, and the next call reports a lost
    /// session as well.
    fn up(&self, session_lost: bool);

    /// The server's upper layer has sent a notice about object `number`, of which only the lower 28
    /// bits arrive.
    ///
    /// A notice is a hint: it may arrive twice, late, or not at all if a path is lost. The sender
    /// repeats it until the client has reacted. May run concurrently with `down` and `up`.
    fn notice(&self, number: u32);

    /// The server is about to close this session and answers no further requests; whatever it has
    /// answered about object `number` is durable. Only the lower 28 bits of `number` arrive.
    ///
    /// Returns whether the users have recorded this; the server repeats the report until they have. May
    /// be called several times, but never concurrently with [`SessionEvents::notice`].
    fn durable(&self, number: u32) -> bool;

    /// An operator has changed `queue_timeout_s`. Called in the operator's task, perhaps concurrently with
    /// the other functions.
    fn queue_timeout_changed(&self) {}
}

/// The session's directory in sysfs.
pub(crate) trait SessionDir: Send {
    /// Reports by a uevent whether the session can reach its server. One call at a time.
    fn changed(&mut self, connected: bool);

    /// Reports by a uevent that a failover has ended.
    fn failed_over(&self, told: &Told);

    /// Creates the directory of a path that is about to connect; the directory must keep `shown`,
    /// which counts the path.
    ///
    /// # Errors
    ///
    /// `EEXIST`: the session has a path with these addresses; `ENOMEM`.
    fn show_path(&self, path: &Arc<Path>, shown: ShownPath) -> Result<KBox<dyn PathDir>>;
}

/// The negotiated sizes.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Number of chunks that the session uses.
    pub(crate) queue_depth: u16,
    /// Maximum bytes of data in one request.
    pub(crate) max_io_bytes: u32,
}

/// An association with a server.
///
/// The user that opened the session must close it with [`Session::close`].
#[pin_data]
pub struct Session {
    env: Arc<Env>,
    #[pin]
    multipath: RcuPtr<Multipath>,
    #[pin]
    paths: Mutex<Paths>,
    #[pin]
    pub(crate) failover: SpinLockIrq<FailoverState>,
    /// The bits of the current [`Generation`](crate::Generation), for readers that do not lock
    /// `failover`.
    generation: Atomic<u32>,
    limits: SetOnce<Limits>,
    /// The path selection policy.
    policy: Atomic<u32>,
    /// The server's port, for paths that the operator adds.
    port: u16,
    /// A path has authenticated, so all further paths must.
    authenticated: AtomicFlag,
    /// Cursor of the round-robin policy.
    pub(crate) round_robin: RoundRobin,
    #[pin]
    admin: Admin,
    pub(crate) session_events: Arc<dyn SessionEvents>,
    /// The message service's end of the session.
    #[pin]
    messages: Mutex<Option<Arc<Attached>>>,
    #[pin]
    notices: Notices,
    /// Connecting a path never takes this lock: uevents are sent under it, which waits for other
    /// senders, and these may wait for memory.
    #[pin]
    hook: Mutex<Option<KBox<dyn SessionDir>>>,
    #[pin]
    record: FailoverRecord,
    #[pin]
    history: History,
    #[pin]
    oldest_request: OldestRequest,
    /// Connects and disconnects without a uevent yet.
    #[pin]
    pending_uevents: SpinLockIrq<Steps<bool>>,
    #[pin]
    pub(crate) requeue_work: Work<Self, { work::REQUEUE }>,
    #[pin]
    pub(crate) requeue_later: DelayedWork<Self, { work::REQUEUE_LATER }>,
    #[pin]
    pub(crate) expiry: DelayedWork<Self, { work::EXPIRY }>,
    #[pin]
    pub(crate) notify: Work<Self, { work::NOTIFY }>,
    #[pin]
    pub(crate) poll_work: DelayedWork<Self, { work::POLL }>,
    #[pin]
    pub(crate) notice: Work<Self, { work::NOTICE }>,
    #[pin]
    uevents: Work<Self, { work::UEVENTS }>,
    #[pin]
    reauth: Reauth,
    #[pin]
    reauth_work: DelayedWork<Self, { work::REAUTH }>,
}

/// Ids of the work items of a session.
pub(crate) mod work {
    pub(crate) const REQUEUE: u64 = 0;
    pub(crate) const REQUEUE_LATER: u64 = 1;
    pub(crate) const EXPIRY: u64 = 2;
    pub(crate) const NOTIFY: u64 = 3;
    pub(crate) const POLL: u64 = 4;
    pub(crate) const NOTICE: u64 = 5;
    pub(crate) const UEVENTS: u64 = 6;
    pub(crate) const REAUTH: u64 = 7;
}

kx::impl_has_work! {
    impl HasWork<Work<Self, { work::REQUEUE }>> for Session { self.requeue_work }
    impl HasWork<DelayedWork<Self, { work::REQUEUE_LATER }>> for Session { self.requeue_later }
    impl HasWork<DelayedWork<Self, { work::EXPIRY }>> for Session { self.expiry }
    impl HasWork<Work<Self, { work::NOTIFY }>> for Session { self.notify }
    impl HasWork<DelayedWork<Self, { work::POLL }>> for Session { self.poll_work }
    impl HasWork<Work<Self, { work::NOTICE }>> for Session { self.notice }
    impl HasWork<Work<Self, { work::UEVENTS }>> for Session { self.uevents }
    impl HasWork<DelayedWork<Self, { work::REAUTH }>> for Session { self.reauth_work }
}

/// Opening and closing.
impl Session {
    /// Creates a session without paths.
    pub(crate) fn new(config: &SessionConfig<'_>) -> Result<Arc<Self>> {
        let requeue_queue = urgent_queue('p', config.name.as_str())?;
        let env = Env::new(
            config.name,
            config.nr_queues,
            config.nr_poll_queues,
            config.key_id,
        )?;
        let slow_queue = env.slow_queue();
        let paths = Paths::new()?;
        let failover = FailoverState::new();
        let this = Arc::pin_init(
            try_pin_init!(Self {
                multipath <- RcuPtr::new(Some(Multipath::new()?)),
                paths <- new_mutex!(paths, "Session::paths"),
                generation: Atomic::new(failover.generation().0.to_bits()),
                failover <- new_spinlock_irq!(failover, "Session::failover"),
                limits: SetOnce::new(),
                policy: Atomic::new(Policy::MinInflight.to_u8().into()),
                port: config.paths.first().ok_or(EINVAL)?.port,
                authenticated: AtomicFlag::new(false),
                round_robin: RoundRobin::new()?,
                admin <- Admin::new(),
                session_events: config.events.clone(),
                messages <- new_mutex!(None, "Session::messages"),
                notices <- Notices::new(),
                hook <- new_mutex!(None, "Session::hook"),
                record <- FailoverRecord::new(),
                history <- History::new()?,
                oldest_request <- OldestRequest::new(),
                pending_uevents <- new_spinlock_irq!(Steps::default(), "Session::pending_uevents"),
                uevents <- kx::new_work!(env.uevent_queue(), "Session::uevents"),
                requeue_work <- kx::new_work!(requeue_queue.clone(), "Session::requeue_work"),
                requeue_later <- kx::new_delayed_work!(requeue_queue.clone(), "Session::requeue_later"),
                expiry <- kx::new_delayed_work!(requeue_queue.clone(), "Session::expiry"),
                poll_work <- kx::new_delayed_work!(requeue_queue, "Session::poll_work"),
                notify <- kx::new_work!(slow_queue.clone(), "Session::notify"),
                notice <- kx::new_work!(slow_queue.clone(), "Session::notice"),
                reauth <- Reauth::new(),
                reauth_work <- kx::new_delayed_work!(slow_queue, "Session::reauth_work"),
                env,
            }? Error),
            GFP_KERNEL,
        )?;
        in_reclaim(|| drop(this.paths.lock()));
        in_reclaim(|| drop(this.messages.lock()));
        this.admin.needed_in_reclaim();
        Ok(this)
    }

    /// Connects paths to `specs`, and waits until the first is connected; `hook` is the session's
    /// directory in sysfs.
    pub(crate) fn connect_first(
        self: &Arc<Self>,
        hook: KBox<dyn SessionDir>,
        specs: &[PathSpec],
    ) -> Result {
        *self.hook.lock() = Some(hook);
        for spec in specs {
            self.make_path(*spec)?;
        }
        for path in &self.paths.lock().list {
            path.start();
        }
        self.env.wait_queue().wait(|| {
            if self.is_connected() {
                return Some(Ok(()));
            }
            let paths = self.paths.lock();
            if paths.list.is_empty() {
                // Users have removed all paths.
                return Some(Err(ECONNABORTED));
            }
            first_outcome(paths.list.iter().map(|path| path.outcome_since(0)))
        })?
    }

    /// Creates a path and its directory in sysfs.
    fn make_path(self: &Arc<Self>, spec: PathSpec) -> Result<Arc<Path>> {
        let path = Path::new(self.clone(), self.env.clone(), spec)?;
        self.enlist(&path)?;
        if let Err(error) = path.show(|| self.show_path(&path)) {
            path.close();
            return Err(error);
        }
        Ok(path)
    }

    fn show_path(self: &Arc<Self>, path: &Arc<Path>) -> Result<KBox<dyn PathDir>> {
        let shown = ShownPath::new(self)?;
        match &*self.hook.lock() {
            Some(hook) => hook.show_path(path, shown),
            None => Err(ESHUTDOWN),
        }
    }

    /// Adds a path that has not started yet to the path list.
    fn enlist(&self, path: &Arc<Path>) -> Result {
        let mut paths = self.paths.lock();
        if paths.closing {
            return Err(ESHUTDOWN);
        }
        if paths.list.len() >= MAX_PATHS {
            return Err(ENOSPC);
        }
        let same = |other: &Arc<Path>| *other.name() == *path.name();
        if paths.list.iter().any(same) {
            return Err(EEXIST);
        }
        // No allocation under the lock may wait: reclaim may depend on requests that wait for a
        // path.
        paths.list.push(path.clone(), GFP_NOWAIT)?;
        Ok(())
    }

    /// Adds a path, and waits until it is connected. If that fails, the path is not added.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `EEXIST`: the session has a path with these addresses.
    /// - `ENOSPC`: the session has 128 paths.
    /// - `ESHUTDOWN`: the session is being closed.
    /// - `ESTALE`: a different server answers at that address.
    /// - Errors of [`Session::open`].
    pub fn add_path(self: &Arc<Self>, spec: PathSpec) -> Result<Arc<Path>> {
        let path = self.make_path(spec)?;
        path.start();
        match path.wait_outcome(0) {
            Ok(()) => Ok(path),
            Err(error) => {
                path.close();
                Err(error)
            }
        }
    }

    /// As [`Session::add_path`], with the port of the session's first path.
    pub(crate) fn add_path_to(self: &Arc<Self>, addr: PathAddr) -> Result {
        let port = self.port;
        self.add_path(PathSpec { addr, port }).map(drop)
    }

    /// Closes the session. Every request has ended when this returns; requests that were in flight
    /// or waiting end with `ECONNABORTED`. May be called again.
    ///
    /// # Context
    ///
    /// May sleep; not from [`SessionEvents`].
    pub fn close(self: &Arc<Self>) {
        // Before the paths are closed: this connects paths.
        self.reauth_work.disable_sync();
        self.reauth.stop();
        self.finish_messages();
        let mut paths = self.paths.lock();
        paths.closing = true;
        for path in &paths.list {
            path.begin_close();
        }
        drop(paths);
        self.refuse_all();
        loop {
            let path = self.paths.lock().list.first().cloned();
            match path {
                Some(path) => path.close(),
                None => break,
            }
        }
        self.flush_requeue();
        self.expiry.disable_sync();
        self.requeue_later.disable_sync();
        self.notify.disable_sync();
        self.notice.disable_sync();
        self.requeue_work.disable_sync();
        self.poll_work.disable_sync();
        // No more snapshots are published. Wait for readers now, so that dropping the session does not.
        self.paths.lock().settle();
        self.uevents.flush();
        self.uevents.disable_sync();
        self.end_messages();
        // Another task that closed a path may still be removing its directory.
        self.wait_hidden();
        let hook = self.hook.lock().take();
        drop(hook);
    }
}

/// Properties.
impl Session {
    pub(crate) fn env(&self) -> &Arc<Env> {
        &self.env
    }

    /// Returns the name.
    pub fn name(&self) -> &CStr {
        self.env.name()
    }

    /// Returns the id of the key that paths authenticate with from their next connection on, if
    /// client and server authenticate.
    ///
    /// # Context
    ///
    /// Any.
    pub fn key_id(&self) -> KeyId {
        self.env.key_id()
    }

    /// Sets the id of the key; already connected paths keep theirs.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn set_key_id(self: &Arc<Self>, id: KeyId) {
        self.env.set_key_id(id);
        self.reauth_settings_changed();
    }

    /// Returns whether a path has ever authenticated.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.authenticated.load(Relaxed)
    }

    /// Returns whether requests can reach the server now.
    pub fn is_connected(&self) -> bool {
        self.multipath
            .read()
            .get()
            .is_some_and(|multipath| !multipath.paths.is_empty())
    }

    /// Returns whether the server supports the protocol extensions. A server without them cannot
    /// report whether it still knows the session (see [`SessionEvents::up`]).
    ///
    /// # Context
    ///
    /// Any.
    pub fn has_extensions(&self) -> bool {
        self.failover.lock().logic.has_ext()
    }

    /// Returns the server's port, which paths that the operator adds use.
    ///
    /// # Context
    ///
    /// Any.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns whether the session has a path to the address.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn leads_to(&self, dst: &Addr) -> bool {
        let paths = self.paths.lock();
        let mut specs = paths.list.iter().map(|path| path.spec());
        specs.any(|spec| spec.addr.dst == *dst)
    }

    /// Returns whether the session belongs to the network namespace of the caller.
    ///
    /// # Context
    ///
    /// Process context.
    pub fn is_local(&self) -> bool {
        *self.env.net() == *Net::current()
    }

    fn limits(&self) -> Limits {
        self.limits.copy().unwrap_or(Limits {
            queue_depth: 0,
            max_io_bytes: 0,
        })
    }

    /// Returns how the chunks are split between I/O and administrative messages.
    pub(crate) fn depth_split(&self) -> DepthSplit {
        DepthSplit::of_session(self.limits().queue_depth)
    }

    /// Returns the number of tags for I/O. The few tags above it are reserved for administrative
    /// messages.
    pub fn io_depth(&self) -> u16 {
        self.depth_split().io()
    }

    /// Returns the maximum number of data bytes of a request.
    pub fn max_io_bytes(&self) -> u32 {
        self.limits().max_io_bytes
    }

    /// Returns the maximum number of scatter list elements of a request. Every element but the
    /// first must begin on a page boundary, and every element but the last must end on one.
    pub fn max_segments(&self) -> u16 {
        ibtrs_proto::consts::MAX_SEGMENTS as u16
    }

    /// Returns the number of connections of a path for ordinary I/O; they are numbered from zero.
    #[inline]
    pub fn nr_queues(&self) -> u32 {
        self.env.nr_queues()
    }

    /// Returns the number of polled connections, see [`Session::poll`]; they are numbered after
    /// those for ordinary I/O.
    pub fn nr_poll_queues(&self) -> u32 {
        self.env.nr_poll_queues()
    }
}
