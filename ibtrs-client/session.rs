// SPDX-License-Identifier: GPL-2.0

//! Sessions: what the layers above use.
//!
//! See [`crate::set`] for the connected paths, [`crate::park`] and
//! [`crate::pump`] for what happens to requests when these go.

use crate::{
    admin::Admin,
    attempt::{
        Active,
        Attempt, //
    },
    news::News,
    park::{
        Park,
        Places, //
    },
    path::Path,
    request::{
        self,
        Info,
        Req, //
    },
    set::Set,
    settings::Settings,
    sysfs::SessionHook, //
};
use ibtrs_core::trace;
use ibtrs_proto::{
    addr::PathAddr,
    backoff::Attempts,
    consts::MAX_PATHS,
    failover::{
        Admit,
        Entry,
        Offer,
        Published, //
    },
    mp::Policy,
    name::SessionName,
    permit::Shares, //
};
use kernel::{
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    str::CString,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        Mutex,
        SetOnce,
        SpinLockIrq, //
    },
    time::Instant, //
};
use kx::{
    io::{
        IoHandle,
        SyncIo, //
    },
    net::ns::Net,
    percpu::Turns,
    sync::RcuPtr,
    work::{
        DelayedWork,
        Options,
        Queue,
        Work, //
    }, //
};

pub use ibtrs_proto::msg::Direction as Dir;

/// Where a path of a session goes.
#[derive(Clone, Copy)]
pub struct PathSpec {
    /// The addresses of both ends.
    pub addr: PathAddr,
    /// The port that the server listens on.
    pub port: u16,
}

/// What to open.
pub struct SessionConfig<'a> {
    /// The name, as the server's operator will see it.
    pub name: SessionName<'a>,
    /// The paths, at least one. All are tried at once, and those that cannot be
    /// connected go on trying once one of them is.
    pub paths: &'a [PathSpec],
    /// Who is told when the session is cut off and comes back.
    pub link: Arc<dyn LinkEvents>,
}

/// Gets the events of a session.
///
/// They come one at a time, in turns: down, up, down and so on. The first is
/// [`LinkEvents::down`], as [`Session::open`] itself tells of the first
/// connection.
///
/// # Context
///
/// Both are called from a work item of the session. They may sleep and use
/// [`Session::admin`], and must not close the session, nor wait for its requests.
pub trait LinkEvents: Send + Sync {
    /// The last path was lost.
    fn down(&self);

    /// The server can be reached again.
    ///
    /// If `fresh`, the server may have forgotten what was open on the session:
    /// it must be opened anew. Requests are held until this returns, except
    /// for administrative messages. Those that were submitted before end with
    /// `ESTALE` then, as what they name may not exist any more: they are to be
    /// built and submitted again. Should the session be lost meanwhile,
    /// the requests stay where they are, and the next time is fresh as well.
    fn up(&self, fresh: bool);
}

/// A span of a session's life during which the server knows the same devices.
///
/// A request that names a device of an earlier one is not sent: the server may
/// have given its number to another device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life(pub(crate) u32);

/// A request for the server.
pub struct Submit<'a> {
    /// What [`Session::life`] gave before the request was built.
    pub life: Life,
    /// The chunk to use, below [`Session::io_depth`]. No other request may be
    /// in flight with it, nor wait.
    pub tag: u16,
    /// Which way the data goes.
    pub dir: Dir,
    /// What the server's upper layer gets beside the data, at most
    /// [`request::MAX_USER_HDR`] bytes.
    pub user_hdr: &'a [u8],
    /// Bytes of data, the length of the scatter list of `io`; may be zero.
    pub bytes: u32,
    /// Ring the doorbell now. If not, [`Session::commit`] must follow.
    pub last: bool,
    /// The data, and who gets the result.
    pub io: IoHandle,
}

/// Sizes that both sides agreed on.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Chunks of the session.
    pub(crate) queue_depth: u16,
    /// Bytes of data in one request.
    pub(crate) max_io_bytes: u32,
}

/// The paths of a session.
pub(crate) struct Members {
    paths: KVec<Arc<Path>>,
    /// The set that is not published; it has room for one path less than the
    /// published one, so that a path can be taken out without memory.
    spare: Option<KBox<Set>>,
    /// No path is added any more.
    closing: bool,
}

/// An association with a server.
///
/// Whoever opened it must [`Session::close`] it.
#[pin_data]
pub struct Session {
    name: CString,
    /// Names the session to the server.
    pub(crate) uuid: [u8; 16],
    /// The network namespace of whoever opened it.
    net: ARef<Net>,
    #[pin]
    set: RcuPtr<Set>,
    #[pin]
    members: Mutex<Members>,
    #[pin]
    pub(crate) park: SpinLockIrq<Park>,
    /// The present [`Life`].
    life: Atomic<u32>,
    limits: SetOnce<Limits>,
    settings: Settings,
    /// The server's port, for paths that the operator adds.
    port: u16,
    /// Whose turn it is with round-robin.
    pub(crate) turns: Turns,
    #[pin]
    admin: Admin,
    /// The attempt that asks the server for a session; 0 for none.
    turn: Atomic<u32>,
    #[pin]
    news: News,
    pub(crate) link_events: Arc<dyn LinkEvents>,
    #[pin]
    pub(crate) hook: Mutex<Option<SessionHook>>,
    events_queue: Arc<Queue>,
    slow_queue: Arc<Queue>,
    #[pin]
    pub(crate) pump: Work<Self, 0>,
    #[pin]
    pub(crate) pump_later: DelayedWork<Self, 1>,
    #[pin]
    pub(crate) expiry: DelayedWork<Self, 2>,
    #[pin]
    pub(crate) link: Work<Self, 3>,
}

kx::impl_has_work! {
    impl HasWork<Work<Self, 0>> for Session { self.pump }
    impl HasWork<DelayedWork<Self, 1>> for Session { self.pump_later }
    impl HasWork<DelayedWork<Self, 2>> for Session { self.expiry }
    impl HasWork<Work<Self, 3>> for Session { self.link }
}

/// Making and ending.
impl Session {
    /// Opens a session: connects its paths, and waits for the first of them. The
    /// others go on trying. It belongs to the network namespace of the caller.
    ///
    /// # Context
    ///
    /// May sleep, up to the connect time-out for each step; interruptible.
    ///
    /// # Errors
    ///
    /// When no path could be connected, those of the first path; nothing is left
    /// then.
    ///
    /// - `EINTR`: a signal came.
    /// - `ETIMEDOUT`, `EHOSTUNREACH`, `ECONNREFUSED`, `ECONNRESET` and others of
    ///   the connection manager: there is no way to the server.
    /// - What the server refused with.
    /// - `EINVAL`: no path or too many, or a server whose queue is too short to
    ///   use.
    /// - `EEXIST`: a path that is given twice.
    /// - `EOPNOTSUPP`: the address is a GID.
    /// - `ENOMEM`.
    pub fn open(config: &SessionConfig<'_>) -> Result<Arc<Self>> {
        if config.paths.is_empty() {
            return Err(EINVAL);
        }
        let this = Self::new(config)?;
        if let Err(error) = this.connect_first(config.paths) {
            this.close();
            return Err(error);
        }
        Ok(this)
    }

    fn new(config: &SessionConfig<'_>) -> Result<Arc<Self>> {
        let name = config.name.as_str();
        let unbound = || Options::unbound().mem_reclaim();
        let pump_queue = Queue::new(unbound(), fmt!("ibtrs-p-{}", name))?;
        let events_queue = Queue::new(unbound(), fmt!("ibtrs-e-{}", name))?;
        let slow_queue = Queue::new(unbound(), fmt!("ibtrs-c-{}", name))?;
        let members = Members {
            paths: KVec::new(),
            spare: Some(KBox::new(Set::new(), GFP_KERNEL)?),
            closing: false,
        };
        let park = Park::new();
        Arc::pin_init(
            try_pin_init!(Self {
                name: CString::try_from_fmt(fmt!("{}", name))?,
                uuid: kx::uuid::generate(),
                net: Net::current(),
                set <- RcuPtr::new(Some(KBox::new(Set::new(), GFP_KERNEL)?)),
                members <- new_mutex!(members, "Session::members"),
                life: Atomic::new(park.life().0),
                park <- new_spinlock_irq!(park, "Session::park"),
                limits: SetOnce::new(),
                settings: Settings::new(),
                port: config.paths.first().ok_or(EINVAL)?.port,
                turns: Turns::new()?,
                admin <- Admin::new(),
                turn: Atomic::new(0),
                news <- News::new(),
                link_events: config.link.clone(),
                hook <- new_mutex!(None, "Session::hook"),
                events_queue,
                pump <- kx::new_work!(pump_queue.clone(), "Session::pump"),
                pump_later <- kx::new_delayed_work!(pump_queue.clone(), "Session::pump_later"),
                expiry <- kx::new_delayed_work!(pump_queue, "Session::expiry"),
                link <- kx::new_work!(slow_queue.clone(), "Session::link"),
                slow_queue,
            }? Error),
            GFP_KERNEL,
        )
    }

    fn connect_first(self: &Arc<Self>, specs: &[PathSpec]) -> Result {
        let hook = SessionHook::new(self)?;
        *self.hook.lock() = Some(hook);
        for spec in specs {
            self.make_path(*spec)?;
        }
        for path in &self.members.lock().paths {
            path.start();
        }
        self.news.wait(|| {
            if self.is_connected() {
                return Some(Ok(()));
            }
            let members = self.members.lock();
            let mut outcomes = members.paths.iter().map(|path| path.outcome_since(0));
            let first = outcomes.next()??;
            outcomes.all(|o| o.is_some()).then_some(first)
        })?
    }

    /// Makes a path and shows it to the operator.
    fn make_path(self: &Arc<Self>, spec: PathSpec) -> Result<Arc<Path>> {
        let path = Path::new(self.clone(), spec)?;
        let mut members = self.members.lock();
        if members.closing {
            return Err(ESHUTDOWN);
        }
        if members.paths.len() >= MAX_PATHS {
            return Err(ENOSPC);
        }
        let same = |other: &Arc<Path>| *other.name() == *path.name();
        if members.paths.iter().any(same) {
            return Err(EEXIST);
        }
        members.paths.push(path.clone(), GFP_KERNEL)?;
        drop(members);
        if let Err(error) = path.show() {
            path.close();
            return Err(error);
        }
        Ok(path)
    }

    /// Adds a path, and waits until it is connected. A path that cannot be is not
    /// added.
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
    /// - `ESTALE`: another server answers there.
    /// - Those of [`Session::open`].
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

    /// Closes the session. Every request has ended when this returns, those
    /// in flight, or waiting, with `ECONNABORTED`. May be called again.
    ///
    /// # Context
    ///
    /// May sleep; not from [`LinkEvents`].
    pub fn close(self: &Arc<Self>) {
        let mut members = self.members.lock();
        members.closing = true;
        for path in &members.paths {
            path.begin_close();
        }
        drop(members);
        self.refuse_all();
        loop {
            let path = self.members.lock().paths.first().cloned();
            match path {
                Some(path) => path.close(),
                None => break,
            }
        }
        self.pump_all();
        self.expiry.disable_sync();
        self.pump_later.disable_sync();
        self.link.disable_sync();
        self.pump.disable_sync();
        let hook = self.hook.lock().take();
        drop(hook);
    }

    /// Takes a path that is dead out of the session.
    pub(crate) fn forget(&self, path: &Arc<Path>) {
        let mut members = self.members.lock();
        let at = members.paths.iter().position(|p| Arc::ptr_eq(p, path));
        let gone = at.and_then(|at| members.paths.remove(at).ok());
        drop(members);
        drop(gone);
    }
}

/// What it is.
impl Session {
    /// Returns the name.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    /// Tells whether requests can reach the server now.
    pub fn is_connected(&self) -> bool {
        self.set
            .read()
            .get()
            .is_some_and(|set| !set.paths.is_empty())
    }

    /// Returns the paths, in the order in which they were made.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn paths(&self) -> Result<KVec<Arc<Path>>> {
        let members = self.members.lock();
        let mut paths = KVec::with_capacity(members.paths.len(), GFP_KERNEL)?;
        for path in &members.paths {
            paths.push(path.clone(), GFP_KERNEL)?;
        }
        Ok(paths)
    }

    /// Tells whether the server knows the extensions of the protocol: if not,
    /// it cannot say whether it is the one that it was (see [`LinkEvents::up`]).
    ///
    /// # Context
    ///
    /// Any.
    pub fn has_extensions(&self) -> bool {
        self.park.lock().failover.has_ext()
    }

    /// Returns the network namespace that it belongs to.
    pub(crate) fn net(&self) -> &Net {
        &self.net
    }

    pub(crate) fn news(&self) -> &News {
        &self.news
    }

    pub(crate) fn events_queue(&self) -> Arc<Queue> {
        self.events_queue.clone()
    }

    pub(crate) fn slow_queue(&self) -> Arc<Queue> {
        self.slow_queue.clone()
    }

    fn limits(&self) -> Limits {
        self.limits.copy().unwrap_or(Limits {
            queue_depth: 0,
            max_io_bytes: 0,
        })
    }

    /// Returns how the chunks are shared.
    pub(crate) fn shares(&self) -> Shares {
        Shares::of_session(self.limits().queue_depth)
    }

    /// Returns the number of tags for I/O: tags below it are chunks of the
    /// server. A few chunks above are left for administrative messages.
    pub fn io_depth(&self) -> u16 {
        self.shares().io()
    }

    /// Returns how many bytes of data one request can carry.
    pub fn max_io_bytes(&self) -> u32 {
        self.limits().max_io_bytes
    }

    /// Returns how many elements the scatter list of a request may have. All
    /// but the first must begin, and all but the last must end, on a page
    /// boundary.
    pub fn max_segments(&self) -> u16 {
        ibtrs_proto::consts::MAX_SEGMENTS as u16
    }

    /// Returns the number of connections for I/O, one for each possible CPU;
    /// they are numbered from zero.
    pub fn nr_queues(&self) -> u32 {
        nr_queues()
    }
}

/// Settings.
impl Session {
    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets how paths are chosen.
    pub fn set_policy(&self, policy: Policy) {
        self.settings.set_policy(policy);
    }

    /// Limits the attempts to reconnect; paths that have made as many are closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn set_max_reconnect_attempts(&self, attempts: Attempts) {
        self.settings.set_max_reconnect_attempts(attempts);
        for path in &self.members.lock().paths {
            path.attempts_limited();
        }
    }

    /// Sets the time between two heartbeats, in milliseconds.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` out of range.
    pub fn set_hb_interval_ms(&self, ms: u32) -> Result {
        self.settings.hb_interval_ms.set(ms)?;
        for path in &self.members.lock().paths {
            path.heartbeat_changed();
        }
        Ok(())
    }

    /// Sets how many heartbeats may be missed.
    ///
    /// # Errors
    ///
    /// `EINVAL` out of range.
    pub fn set_hb_missed_max(&self, missed: u32) -> Result {
        self.settings.hb_missed_max.set(missed)
    }

    /// Sets the longest delay before the first attempt to reconnect, in
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// `EINVAL` out of range.
    pub fn set_reconnect_delay_ms(&self, ms: u32) -> Result {
        self.settings.reconnect_delay_ms.set(ms)
    }

    /// Sets how long requests wait for a path, in seconds; those that wait
    /// already, too.
    ///
    /// # Errors
    ///
    /// `EINVAL` out of range.
    pub fn set_queue_timeout_s(self: &Arc<Self>, s: u32) -> Result {
        self.settings.queue_timeout_s.set(s)?;
        // It looks for itself how much time is left.
        self.expiry.modify(self.clone(), 0);
        Ok(())
    }
}

/// Requests.
impl Session {
    /// Names the present span of the session's life. Another one begins when
    /// the server turns out to be fresh (see [`LinkEvents::up`]), and again when
    /// that call returns.
    ///
    /// To be asked before anything is looked at that a fresh server changes,
    /// such as the number of a device.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn life(&self) -> Life {
        // ORDERING: Pairs with the release in `set_life`: what the users did
        // before they let I/O go is seen.
        Life(self.life.load(Acquire))
    }

    /// Publishes the life that `park` is in.
    pub(crate) fn set_life(&self, park: &Park) {
        // ORDERING: See `life`.
        self.life.store(park.life().0, Release);
    }

    /// Hands a request to the connection `queue` of a path. When it ends, `io` is
    /// told. While there is no path it waits for one.
    ///
    /// # Context
    ///
    /// Any but hardirq.
    ///
    /// # Errors
    ///
    /// The I/O comes back with
    /// - `EAGAIN`: the connection's queue is full, try again later;
    /// - `ESTALE`: it was built for an earlier life, see [`Submit::life`];
    /// - `ETIMEDOUT`: the session is cut off from the server, and was so for too
    ///   long; before that, requests wait;
    /// - `ENOTCONN`: the session is closed;
    /// - `EMSGSIZE`, `EINVAL`: the request is too long or malformed;
    /// - `EIO`: its memory could not be mapped.
    ///
    /// The I/O itself may end with these, too, and with `ECONNABORTED` when the
    /// session is closed; else with what the server answers.
    pub fn submit(
        self: &Arc<Self>,
        queue: u32,
        submit: Submit<'_>,
    ) -> Result<(), (Error, IoHandle)> {
        let Submit { life, mut io, .. } = submit;
        let Some(cid) = queue.checked_add(1).and_then(|cid| u16::try_from(cid).ok()) else {
            return Err((EINVAL, io));
        };
        let req = Req {
            info: Info {
                tag: submit.tag,
                dir: submit.dir,
                bytes: submit.bytes,
                entry: Entry::NEW,
            },
            user_hdr: submit.user_hdr,
            last: submit.last,
            counted: false,
        };
        if req.user_hdr.len() > request::MAX_USER_HDR || submit.bytes > self.max_io_bytes() {
            return Err((EMSGSIZE, io));
        }
        let set = self.set.read();
        if let Some(set) = set.get().filter(|set| set.open) {
            if set.life != life {
                return Err((ESTALE, io));
            }
            match set.submit(&self.settings, &self.turns, cid, req, io) {
                Ok(_) => return Ok(()),
                Err((ENOTCONN, back)) => io = back,
                Err(refused) => return Err(refused),
            }
        }
        drop(set);
        self.park.lock().put(life, cid, &req, io)?;
        trace::client_park(|| (self.name(), submit.tag, 0));
        self.pump();
        Ok(())
    }

    /// Rings the doorbell of the connection `queue` for the requests that were
    /// submitted without.
    ///
    /// # Context
    ///
    /// As [`Session::submit`].
    pub fn commit(&self, queue: u32) {
        let Some(cid) = queue.checked_add(1).and_then(|cid| u16::try_from(cid).ok()) else {
            return;
        };
        if let Some(set) = self.set.read().get() {
            for path in &set.paths {
                path.commit(cid);
            }
        }
    }

    /// Sends an administrative message and waits for its answer; gives the
    /// number of bytes that were put into `reply`, all of it. It is sent again
    /// when its path is lost and another one is connected.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN`: the session is cut off; messages do not wait for a path.
    /// - `ECONNABORTED`: its last path was lost.
    /// - `EINTR`, `ETIMEDOUT`, `EMSGSIZE`, `ENOMEM`; what the server answered.
    pub fn admin(&self, dir: Dir, user_hdr: &[u8], reply: &mut [u8]) -> Result<usize> {
        if user_hdr.len() > request::MAX_USER_HDR {
            return Err(EMSGSIZE);
        }
        let io = SyncIo::new(reply.len())?;
        let permit = self.admin.get(self)?;
        let req = Req {
            info: Info {
                tag: permit.tag(),
                dir,
                bytes: u32::try_from(reply.len())?,
                entry: Entry::ADMIN,
            },
            user_hdr,
            last: true,
            counted: false,
        };
        let handle = io.handle()?;
        let set = self.set.read();
        let sent = match set.get() {
            Some(set) => set
                .submit(&self.settings, &self.turns, 0, req, handle)
                .map(drop),
            None => Err((ENOTCONN, handle)),
        };
        drop(set);
        sent.map_err(|(error, _io)| error)?;
        if let Err(error) = io.wait_interruptible_timeout(request::ADMIN_TIMEOUT_MS) {
            if io.result() == Err(EINPROGRESS) {
                permit.give_up(io);
            }
            return Err(if error == ERESTARTSYS { EINTR } else { error });
        }
        if !reply.is_empty() {
            let bytes = io.bytes()?.get(..reply.len()).ok_or(EIO)?;
            reply.copy_from_slice(bytes);
        }
        Ok(reply.len())
    }
}

/// Paths that come and go.
impl Session {
    /// Returns the number of an attempt that begins.
    pub(crate) fn next_epoch(&self) -> Result<u32> {
        self.park.lock().failover.begin().ok_or(EOVERFLOW)
    }

    /// Takes the turn to ask the server for a session, unless another attempt
    /// has it.
    pub(crate) fn take_turn(&self, epoch: u32) -> bool {
        // ORDERING: Nothing else depends on it.
        self.turn.cmpxchg(0, epoch, Relaxed).is_ok()
    }

    /// Gives the turn back.
    pub(crate) fn give_turn(&self, epoch: u32) {
        let _ = self.turn.cmpxchg(epoch, 0, Relaxed);
    }

    /// Calls `f` with the set of connected paths, for what may not sleep.
    pub(crate) fn with_set<R>(&self, f: impl FnOnce(&Set) -> R) -> Option<R> {
        self.set.read().get().map(f)
    }

    /// Replaces the set by one that `change` was applied to; no submitter uses
    /// what is not in it any more when this returns.
    fn swap(&self, members: &mut Members, change: impl FnOnce(&mut KVec<Arc<Active>>)) {
        // It is always there, but to look is easier than to prove it.
        let Some(mut next) = members.spare.take() else {
            return;
        };
        next.paths.clear();
        let set = self.set.read();
        for path in set.get().into_iter().flat_map(|set| set.paths.iter()) {
            // There is room, see `Members::spare`.
            let _ = next.paths.push_within_capacity(path.clone());
        }
        drop(set);
        change(&mut next.paths);
        let park = self.park.lock();
        next.life = park.life();
        next.open = !park.failover.is_held();
        drop(park);
        members.spare = self.set.replace(Some(next));
        if let Some(old) = &mut members.spare {
            old.paths.clear();
        }
    }

    /// Offers a path that is about to come up; if it is taken, submitters find it
    /// from now on.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn offer(self: &Arc<Self>, offer: &Offer, active: &Arc<Active>) -> Result<Admit> {
        let depth = offer.queue_depth;
        if Shares::of_session(depth).reserved() == 0 {
            active
                .attempt
                .error(fmt!("the server's queue depth {} is too short", depth));
            return Err(EINVAL);
        }
        let mut places = match self.limits.as_ref() {
            None => Some(Places::new(depth)?),
            Some(_) => None,
        };
        let mut members = self.members.lock();
        self.reserve(&mut members)?;
        let mut park = self.park.lock();
        let admit = park.failover.offer(offer);
        let Admit::Publish(published) = admit else {
            drop(park);
            if let Admit::Forgotten = admit {
                self.forgotten();
            }
            return Ok(admit);
        };
        if let Some(places) = &mut places {
            park.set_places(places);
        }
        park.outage = None;
        self.set_life(&park);
        drop(park);
        self.limits.populate(Limits {
            queue_depth: depth,
            max_io_bytes: offer.max_io_bytes,
        });
        active.attempt.published.populate(published);
        active.attempt.path.set_previous(offer.epoch);
        self.swap(&mut members, |paths| {
            // There is room.
            let _ = paths.push_within_capacity(active.clone());
        });
        drop(members);
        self.fenced(offer.previous);
        self.expiry.cancel();
        self.link.enqueue(self.clone());
        self.news.post();
        self.pump();
        Ok(admit)
    }

    /// Makes room for one more path in the set that will be published.
    fn reserve(&self, members: &mut Members) -> Result {
        let count = self.with_set(|set| set.paths.len()).unwrap_or(0);
        let Some(spare) = &mut members.spare else {
            return Err(ENOMEM);
        };
        // It is empty.
        spare.paths.reserve(count + 1, GFP_KERNEL)?;
        Ok(())
    }

    /// The server has forgotten the paths that are connected.
    fn forgotten(&self) {
        let set = self.set.read();
        for path in set.get().into_iter().flat_map(|set| set.paths.iter()) {
            path.attempt
                .error(fmt!("the server has forgotten this path"));
        }
    }

    /// Hides a path; no submitter is in it any more when this returns.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn unpublish(self: &Arc<Self>, attempt: &Attempt) {
        let Some(published) = attempt.published.copy() else {
            return;
        };
        let mut members = self.members.lock();
        self.swap(&mut members, |paths| {
            paths.retain(|path| path.attempt.epoch != attempt.epoch)
        });
        let mut park = self.park.lock();
        let outage = park.failover.path_lost(&published);
        if let Some(outage) = outage {
            park.outage = Some((outage, Instant::now()));
        }
        let closing = park.closed;
        drop(park);
        drop(members);
        if outage.is_none() {
            return;
        }
        if !closing {
            pr_warn!("{}: no path to the server is left\n", self.name());
        }
        self.expiry.modify(self.clone(), 0);
        self.link.enqueue(self.clone());
    }

    /// I/O that was held goes on if there is no reason any more.
    pub(crate) fn link_returned(&self) {
        let mut members = self.members.lock();
        let mut park = self.park.lock();
        park.failover.returned();
        self.set_life(&park);
        drop(park);
        self.swap(&mut members, |_| ());
    }

    /// Puts a request aside that a path leaves behind; gives it back if that is
    /// not possible.
    pub(crate) fn park_lost(
        &self,
        path: &Published,
        info: Info,
        user_hdr: &[u8],
        cid: u16,
        io: IoHandle,
    ) -> Option<IoHandle> {
        let parked = self.park.lock().put_lost(path, info, user_hdr, cid, io);
        parked.err()
    }
}

/// Returns the number of I/O connections of a path.
pub(crate) fn nr_queues() -> u32 {
    kernel::cpu::nr_cpu_ids()
}
