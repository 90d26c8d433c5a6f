// SPDX-License-Identifier: GPL-2.0

//! The session of a client, with the devices that it has open.

use crate::{
    config::{
        revoke::CloseDevice,
        Config, //
    },
    device::{
        io::requests::Requests,
        Opened, //
    },
    export::Exports,
    param,
    peer::Peer,
    throttle::HostThrottle, //
};
use ibnbd_proto::{
    checksum::Intact,
    grant,
    io_check::IoError,
    msg::{
        MsgError,
        UserMsg, //
    },
    path::{
        self,
        PathError, //
    },
};
use ibtrs_core::convert::{
    self,
    Shown, //
};
use ibtrs_proto::{
    addr::Addr,
    name::{
        SessionName, //
    },
};
use ibtrs_server::{
    ClientLog,
    Deadline,
    Joining,
    Notices,
    Refusal,
    Request,
    ServiceSession,
    SessionInfo, //
};
use kernel::{
    new_mutex,
    new_spinlock,
    new_spinlock_irq,
    prelude::*,
    str::CStr,
    sync::{
        Arc,
        Mutex,
        SpinLock,
        SpinLockIrq, //
    }, //
};
use kx::{
    mm::NoIo,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            AtomicFlag,
            Full,
            Relaxed, //
        },
        PercpuArc,
        RcuPtr, //
    },
    work::{
        DelayedWork,
        Options,
        Queue, //
    }, //
};
use limit_line::{
    LimitLine,
    LIMIT_LINE, //
};
use open::{
    Closing,
    OpenDevice,
    OpenDevices,
    Table, //
};
use stop::Stopping;
use watch::AllGone;

mod admin;
mod limit_line;
pub(crate) mod open;
mod serve;
mod stop;
pub(crate) mod view;
mod watch;

/// Returns the parameter `dev_search_path`.
pub(crate) fn search_path() -> Result<&'static str, PathError> {
    let text = core::str::from_utf8(param::dev_search_path.get());
    path::search_path(text.map_err(|_| PathError::NotPrintable)?)
}

/// The service that accepts sessions for the transport.
pub(crate) struct Service {
    exports: Arc<Exports>,
    config: Arc<Config>,
    /// The queue that watches and closes devices. The owner of the service flushes it after
    /// dropping the service.
    queue: Arc<Queue>,
    /// The queue that serves the requests which wait for a limit. Separate from the other queue, whose
    /// work items wait for these requests. The owner flushes it, too.
    limits: Arc<Queue>,
}

impl Service {
    pub(crate) fn new(
        exports: Arc<Exports>,
        config: Arc<Config>,
        queue: Arc<Queue>,
        limits: Arc<Queue>,
    ) -> Self {
        Self {
            exports,
            config,
            queue,
            limits,
        }
    }
}

impl ibtrs_server::Service for Service {
    fn session_up(&self, info: SessionInfo<'_>) -> Result<Arc<dyn ServiceSession>, Refusal> {
        // Check again, as the host may have been created after `check_name`.
        self.check_host_name(info.name.to_bytes(), info.authenticated)?;
        let session = self.new_session(info);
        session.map_err(|error| Refusal::new(error, "the session cannot be created"))
    }

    fn check_name(&self, name: SessionName<'_>, authenticated: bool) -> Result<(), Refusal> {
        self.check_host_name(name.as_bytes(), authenticated)
    }

    fn authorize(&self, joining: &Joining<'_>) -> Result<(), Refusal> {
        let used = grant::PathUse {
            paths: joining.paths,
            connections: joining.connections,
            memory: joining.memory,
        };
        let authorized =
            self.config
                .authorize(joining.name, joining.source, &used, joining.closing);
        authorized.map_err(|why| Refusal::new(convert::error(why.errno()), why.as_str()))
    }
}

impl Service {
    fn check_host_name(&self, name: &[u8], authenticated: bool) -> Result<(), Refusal> {
        if !authenticated && self.config.has_host(name) {
            return Err(Refusal::new(
                EACCES,
                "the name is that of a host, and the session is not authenticated",
            ));
        }
        Ok(())
    }

    fn new_session(&self, info: SessionInfo<'_>) -> Result<Arc<dyn ServiceSession>> {
        let (queue, line_queue) = (self.queue.clone(), self.limits.clone());
        let session = Arc::pin_init(
            try_pin_init!(Session {
                peer: Peer::new(info.name, info.authenticated, info.sources)?,
                log: info.log,
                extensions: info.extensions,
                version: Atomic::new(0),
                checksums: AtomicFlag::new(false),
                limits <- new_spinlock!(None, "Session::limits"),
                exports: self.exports.clone(),
                config: self.config.clone(),
                devices: RcuPtr::new(None),
                open <- new_mutex!(OpenDevices::new(), "Session::open"),
                closing: Atomic::new(0),
                requests: Requests::new(info.queue_depth)?,
                limit_line <- LimitLine::new(info.queue_depth),
                limit_line_work <- kx::new_delayed_work!(line_queue, "Session::limit_line_work"),
                notices <- new_mutex!(info.notices, "Session::notices"),
                watch <- kx::new_delayed_work!(queue, "Session::watch"),
                gone <- new_spinlock!(AllGone::new(), "Session::gone"),
                stopped: Atomic::new(0),
                lost_devices: AtomicFlag::new(false),
                stopping <- new_spinlock_irq!(KVec::new(), "Session::stopping"),
            }? Error),
            GFP_KERNEL,
        )?;
        let messages = Queue::new(Options::ordered(), fmt!("ibnbd-{}", session.name()))?;
        Ok(Arc::new(
            Handle {
                session,
                messages,
                closers: self.queue.clone(),
            },
            GFP_KERNEL,
        )?)
    }
}

/// The session of a client.
#[pin_data]
pub(crate) struct Session {
    peer: Arc<Peer>,
    log: ClientLog,
    /// The client knows the extensions of the messages, which C drivers do not.
    extensions: bool,
    /// The version that both sides speak; 0 until the client has sent SESS_INFO.
    version: Atomic<u32>,
    /// The session has opened a device with checksums. The rules for checksums apply until the
    /// session ends, because requests for the device may arrive after it was closed.
    checksums: AtomicFlag,
    /// The limits of the session's host, if the session has opened a device with checksums: they
    /// also apply to messages that are refused after their checksum was computed. If the operator
    /// removes the host and creates it again, the limits are those of the device that was opened
    /// last.
    #[pin]
    limits: SpinLock<Option<Arc<HostThrottle>>>,
    pub(crate) exports: Arc<Exports>,
    pub(crate) config: Arc<Config>,
    devices: RcuPtr<Table>,
    #[pin]
    pub(crate) open: Mutex<OpenDevices>,
    /// Number of devices that are withdrawn and not closed yet.
    closing: Atomic<usize>,
    pub(crate) requests: Arc<Requests>,
    /// Requests that wait for a limit of the host.
    #[pin]
    pub(crate) limit_line: LimitLine,
    #[pin]
    pub(crate) limit_line_work: DelayedWork<Self, LIMIT_LINE>,
    /// Sends notices; `None` once the session has ended, or if the client does not support them.
    #[pin]
    pub(crate) notices: Mutex<Option<Notices>>,
    /// Checks the sizes of the devices.
    #[pin]
    pub(crate) watch: DelayedWork<Self>,
    /// The devices that an operator has closed, and of which the client may not have been notified.
    #[pin]
    pub(crate) gone: SpinLock<AllGone>,
    /// Nonzero once the session serves no more requests.
    stopped: Atomic<u32>,
    /// See [`Session::has_lost_devices`].
    lost_devices: AtomicFlag,
    /// Devices of the session in a planned stop.
    #[pin]
    pub(crate) stopping: SpinLockIrq<KVec<Arc<Stopping>>>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Session { self.watch }
    impl HasWork<DelayedWork<Self, LIMIT_LINE>> for Session { self.limit_line_work }
}

impl Session {
    pub(crate) fn name(&self) -> &CStr {
        self.peer.name()
    }

    /// Returns the client.
    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Returns whether a log line that the client causes from the address `source` is within the
    /// limit for such lines.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn may_log(&self, source: &Addr) -> bool {
        self.log.may_log(source)
    }

    /// Logs why a message from `source` is refused, and returns the error for the answer.
    pub(crate) fn refused(&self, source: &Addr, error: MsgError) -> Error {
        if self.may_log(source) {
            pr_warn!("{}: message refused: {}\n", self.name(), error.as_str());
        }
        convert::error(error.errno())
    }

    /// Logs that a device is closed, within the limit for lines that the client causes.
    pub(crate) fn log_close(&self, device: &OpenDevice, why: &str) {
        if self.may_log(&device.source) {
            self.log_operator_close(device, why);
        }
    }

    /// Closes a withdrawn device for an operator, and notifies the client; `why` is for the log.
    ///
    /// # Context
    ///
    /// May sleep, until the device's I/O has ended.
    pub(crate) fn close_for_operator(self: &Arc<Self>, device: OpenDevice, why: &str) {
        let id = device.id;
        self.log_operator_close(&device, why);
        self.note_gone(&device);
        drop(Closing::new(self, device));
        self.notify_gone(id);
    }

    /// Logs that an operator closes a device, regardless of the limit for the client.
    fn log_operator_close(&self, device: &OpenDevice, why: &str) {
        pr_info!(
            "{}: {}: {}: closed: {}\n",
            self.name(),
            Shown(device.source),
            device.called(),
            why
        );
    }

    /// Returns whether the client knows the extensions of the messages.
    pub(crate) fn has_extensions(&self) -> bool {
        self.extensions
    }

    /// Sets the version that both sides speak.
    pub(crate) fn set_version(&self, version: u8) {
        // ORDERING: The value orders no other access.
        self.version.store(version.into(), Relaxed);
    }

    /// Returns whether the I/O priorities of the client's requests are honoured.
    pub(crate) fn has_prio(&self) -> bool {
        self.version.load(Relaxed) >= 2
    }

    /// Records that the session opens a device with checksums, which has these limits.
    pub(crate) fn set_checksums(&self, limits: Option<Arc<HostThrottle>>) {
        if limits.is_some() {
            let former = core::mem::replace(&mut *self.limits.lock(), limits);
            drop(former);
        }
        // ORDERING: Ordered by the answer to OPEN, before which the client sends no I/O.
        self.checksums.store(true, Relaxed);
    }

    /// Returns the limits of the session's host, if it has opened a device with checksums.
    pub(crate) fn limits(&self) -> Option<Arc<HostThrottle>> {
        self.limits.lock().clone()
    }

    /// Returns whether the session has opened a device with checksums.
    #[inline]
    pub(crate) fn has_checksums(&self) -> bool {
        self.checksums.load(Relaxed)
    }

    /// Returns whether `id` is an open device with checksums.
    pub(crate) fn device_has_checksums(&self, id: u32) -> bool {
        self.device(id).is_some_and(|device| device.has_checksums())
    }

    /// Returns the open device `id`, for I/O.
    pub(crate) fn device(&self, id: u32) -> Option<PercpuArc<Opened>> {
        let table = self.devices.read();
        let table = table.get()?;
        let at = table.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(table.get(at)?.1.clone())
    }

    /// Returns how many devices the session has, including devices that are being closed.
    pub(crate) fn count(&self, open: &OpenDevices) -> usize {
        open.len().saturating_add(self.closing.load(Relaxed))
    }

    /// Returns whether the session has the maximum number of devices.
    pub(crate) fn is_full(&self, open: &OpenDevices) -> bool {
        self.count(open) >= param::max_devices.get() as usize
    }

    /// Returns whether withdrawn devices may have I/O in service.
    pub(crate) fn is_closing(&self) -> bool {
        // ORDERING: Pairs with the drop of `Closing`: later accesses are ordered after the end of
        // that I/O.
        self.closing.load(Acquire) != 0
    }

    /// Calls `func` for each device that is open for I/O.
    ///
    /// # Context
    ///
    /// Any; `func` must not sleep, as it runs in an RCU read section.
    pub(crate) fn for_each_device(&self, mut func: impl FnMut(u32, &Opened)) {
        let table = self.devices.read();
        for (id, device) in table.get().into_iter().flatten() {
            func(*id, device);
        }
    }

    /// Publishes the devices of `open` for I/O. From one call to the next, one device is removed,
    /// or one is added for which space was [reserved](OpenDevices::reserve).
    ///
    /// # Context
    ///
    /// May sleep, but does not allocate.
    pub(crate) fn publish(&self, open: &mut OpenDevices) {
        let table = open.table();
        let former = self.devices.replace(table);
        open.take_back(former);
    }

    /// Removes the device `id` from the session, and returns it; the caller must close it with
    /// [`Closing`]. `None` if the session does not have it open.
    ///
    /// # Context
    ///
    /// May sleep, but does not allocate.
    pub(crate) fn withdraw(&self, id: u32) -> Option<OpenDevice> {
        let mut open = self.open.lock();
        let device = open.take(id)?;
        self.publish(&mut open);
        // ORDERING: Ordered by the lock of `open`: the device is always in one of the two counts.
        self.closing.fetch_add(1, Relaxed);
        Some(device)
    }

    /// Returns whether devices that the client could write to were closed because the session had
    /// ended, flushed or not. Known once [`Self::take_all`] has returned nothing.
    pub(crate) fn has_lost_devices(&self) -> bool {
        self.lost_devices.load(Relaxed)
    }

    /// Stops the session, and returns the devices that were open, which are no longer available for
    /// I/O. `lost` says that they are closed because the session has ended.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn take_all(&self, lost: bool) -> KVec<OpenDevice> {
        // ORDERING: Before the table is removed, see `is_stopped`.
        self.stopped.fetch_add(1, Full);
        // An OPEN holds the lock for as long as its disk takes, but I/O must end now.
        drop(self.devices.replace(None));
        let mut open = self.open.lock();
        let list = core::mem::take(&mut open.list);
        if lost && list.iter().any(|open| open.device.access().writes()) {
            // ORDERING: Written under the lock, which a thread that later finds no devices has
            // taken since.
            self.lost_devices.store(true, Relaxed);
        }
        // Again under the lock: a thread that withdraws a device may have republished the table,
        // with devices that are now being closed.
        drop(self.devices.replace(None));
        list
    }

    /// Returns whether the session is stopped. If so, a device that was not found may have been
    /// open.
    #[cold]
    pub(crate) fn is_stopped(&self) -> bool {
        // ORDERING: A full barrier after the look-up in the table, which is removed after the flag
        // is set.
        self.stopped.fetch_add(0, Full) != 0
    }

    /// Registers a device in a planned stop, whose acknowledgement by the client is expected.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn expect(&self, device: Arc<Stopping>) -> Result {
        Ok(self.stopping.lock().push(device, GFP_ATOMIC)?)
    }

    /// Closes all devices.
    ///
    /// # Context
    ///
    /// May sleep, until their I/O has ended.
    fn close_all(&self) {
        for device in self.take_all(true) {
            self.log_close(&device, "the session has ended");
            drop(device);
        }
    }
}

impl CloseDevice for Session {
    fn close_device(self: Arc<Self>, id: u32, why: &str) {
        if let Some(device) = self.withdraw(id) {
            self.close_for_operator(device, why);
        }
    }
}

/// The receiver of the session's requests.
struct Handle {
    session: Arc<Session>,
    /// The queue that serves the session's administrative messages, one at a time.
    messages: Arc<Queue>,
    /// Runs the work items that close the session's devices.
    closers: Arc<Queue>,
}

impl ServiceSession for Handle {
    fn drain(&self, limit: Deadline) -> Result {
        self.session.watch.disable_sync();
        // The client's requests wait until the paths are closed, and the client's reclaim may wait
        // for these requests.
        let _no_io = NoIo::enter();
        // An OPEN that arrived earlier may still be in service; it will see that the session is
        // stopped.
        self.session.stop(&self.closers, limit)
    }

    fn durable_seen(&self, number: u32) {
        self.session.durable_seen(number);
    }

    fn join(
        &self,
        source: Addr,
        add: &mut dyn FnMut() -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let joined = self.session.config.join(&self.session.peer, source, add);
        joined.map_err(|refusal| {
            refusal.unwrap_or(Refusal::new(
                EACCES,
                "its session has an export open that allow_unauthenticated does not let from this address",
            ))
        })
    }

    fn request(&self, request: Request) {
        let session = &self.session;
        // First, because any field of a damaged header may be wrong.
        let intact = match session.has_checksums() {
            true => match serve::examine(session, &request) {
                Ok(intact) => intact,
                Err(error) => return serve::damaged(session, request, error),
            },
            false => Intact::Plain,
        };
        match UserMsg::parse(request.user_hdr(), session.has_extensions()) {
            Ok(UserMsg::Io(hdr)) => serve::serve(session, &hdr, intact, request),
            Ok(_) => {
                // Opening and closing devices takes time, and other requests of the connection must
                // not wait for it. Without memory the request is dropped, which answers it.
                let session = self.session.clone();
                let closers = self.closers.clone();
                let _no_io = NoIo::enter();
                let _ = self.messages.spawn(GFP_KERNEL, move || {
                    admin::serve(&session, &closers, request);
                });
            }
            Err(error) => {
                let error = session.refused(&request.source(), error);
                match intact {
                    Intact::Sealed(_) => serve::charge(session, request, error),
                    Intact::Plain => request.respond(Err(error)),
                }
            }
        }
    }

    fn bad_request(&self, error: Error) -> Error {
        match self.session.has_checksums() {
            true => convert::error(IoError::Damaged.errno()),
            false => error,
        }
    }

    fn down(&self) {
        self.session.watch.disable_sync();
        // The line is empty, but its work item may still be pending.
        self.session.limit_line_work.disable_sync();
        let notices = self.session.notices.lock().take();
        drop(notices);
        self.session.peer.gone();
        // All messages of the session are answered, so their work items are about to return.
        // `closers` also runs work items of other sessions, which may wait for their disks, so it
        // is not flushed here.
        self.messages.flush();
        self.session.close_all();
    }
}
