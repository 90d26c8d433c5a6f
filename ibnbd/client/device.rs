// SPDX-License-Identifier: GPL-2.0

//! Devices that the client has opened on the server, and reopens after a restart of the server.
//!
//! Contexts: *may sleep*, unless stated otherwise.

use crate::{
    admin::{
        self,
        OpenDevice, //
    },
    background,
    dispatch::{
        DiskQueue,
        Traits, //
    },
    events::EventHandler,
    registry::{
        PlaceRef,
        SessionRef, //
    },
    request::IbnbdMq, //
};
use ibnbd_proto::{
    checksum::DataChecksum,
    identity::{
        Difference,
        IdentityCheck, //
    },
    msg::{
        OpenRsp,
        MAX_SECTORS, //
    },
    state::{
        DevState,
        Standing, //
    },
    unflushed::{
        CacheHistory,
        Reopened, //
    },
    Access, //
};
use ibtrs_client::Generation;
use ibtrs_core::convert;
use ibtrs_proto::{
    backoff::Backoff,
    name::DevicePath,
    settings, //
};
use kernel::{
    fmt,
    new_mutex,
    prelude::*,
    str::CString,
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
    blk::{
        GenDisk,
        Usage, //
    },
    mm::{
        in_reclaim,
        NoIo, //
    },
    work::{
        DelayedWork,
        Work,
        WorkItem, //
    }, //
};

mod changes;
mod forcing;
mod informed;
mod scanning;
mod uevent;

use uevent::PendingUevents;

/// Delays between attempts to reopen a device.
const RETRY: Backoff = Backoff {
    base_ms: 500,
    max_ms: 30_000,
};

fn device_path(name: &CStr) -> Result<DevicePath<'_>> {
    DevicePath::new(name.to_bytes()).map_err(|error| convert::error(error.errno()))
}

/// The options with which an operator opens a device.
#[derive(Clone, Copy)]
pub(crate) struct WantedDevice {
    /// The access to the device.
    pub(crate) access: Access,
    /// The checksum of its data.
    pub(crate) checksum: DataChecksum,
    /// The policy for a device without identity.
    pub(crate) identity: IdentityCheck,
}

/// A device that the client has opened on the server.
#[pin_data]
pub(crate) struct Device {
    /// Number of the disk, `N` of `ibnbd<N>`.
    number: u32,
    /// Name of the device on the server.
    name: CString,
    access: Access,
    events: Arc<EventHandler>,
    io: Arc<DiskQueue>,
    /// Serializes OPEN and CLOSE messages of the device; held until the server has answered.
    #[pin]
    asking: Mutex<()>,
    #[pin]
    inner: Mutex<DeviceInner>,
    #[pin]
    reopen: DelayedWork<Self, { work::REOPEN }>,
    #[pin]
    refresh: DelayedWork<Self, { work::REFRESH }>,
    #[pin]
    uevents: Work<Self, { work::UEVENTS }>,
    #[pin]
    forcing: DelayedWork<Self, { work::FORCING }>,
    #[pin]
    scanning: DelayedWork<Self, { work::SCANNING }>,
}

/// Ids of the work items of a device.
pub(crate) mod work {
    pub(crate) const REOPEN: u64 = 0;
    pub(crate) const REFRESH: u64 = 1;
    pub(crate) const UEVENTS: u64 = 2;
    pub(crate) const FORCING: u64 = 3;
    pub(crate) const SCANNING: u64 = 4;
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self, { work::REOPEN }>> for Device { self.reopen }
    impl HasWork<DelayedWork<Self, { work::REFRESH }>> for Device { self.refresh }
    impl HasWork<Work<Self, { work::UEVENTS }>> for Device { self.uevents }
    impl HasWork<DelayedWork<Self, { work::FORCING }>> for Device { self.forcing }
    impl HasWork<DelayedWork<Self, { work::SCANNING }>> for Device { self.scanning }
}

struct DeviceInner {
    standing: Standing,
    /// The policy if the device has no identity when it is reopened.
    identity_check: IdentityCheck,
    /// The server's last answer to OPEN that described this device.
    rsp: OpenRsp,
    /// The session generation in which the device has the number in `rsp`.
    open_in: Generation,
    /// The cache generation that the server last reported, and whether all of it is durable.
    cache_history: CacheHistory,
    /// The session generation that `standing` refers to.
    generation: u32,
    /// Present from when the partition table was read until the disk is unmapped.
    disk: Option<Arc<GenDisk<IbnbdMq>>>,
    /// The state that user space sees.
    shown: DevState,
    pending_uevents: PendingUevents,
    /// The time of the last refresh.
    refreshed: Option<Instant<Monotonic>>,
    /// Failed attempts to reopen the device since the session was lost.
    attempts: u32,
    /// When the server lost the session; starts the queue timeout of waiting requests.
    since: Instant<Monotonic>,
    last_error: Option<Error>,
    /// The device is closed permanently, and not reopened.
    closed: bool,
}

impl Device {
    fn new(
        session: &SessionRef,
        number: u32,
        name: DevicePath<'_>,
        wanted: WantedDevice,
        generation: u32,
        open: OpenDevice,
    ) -> Result<Arc<Self>> {
        let rsp = open.rsp;
        let access = wanted.access;
        let traits = Traits {
            number,
            group: session.group().clone(),
            devices: session.events().clone(),
            device_id: rsp.device_id,
            read_only: !access.writes(),
            prio: session.wants_prio(),
            safe: !rsp.cache.writeback,
            checksum: wanted.checksum,
            work_queue: session.registry().retries().clone(),
        };
        let inner = DeviceInner {
            standing: Standing::Open,
            identity_check: wanted.identity,
            rsp,
            open_in: open.generation,
            cache_history: CacheHistory::new(rsp.cache_run()),
            generation,
            disk: None,
            shown: DevState::Init,
            pending_uevents: PendingUevents::default(),
            refreshed: None,
            attempts: 0,
            since: Instant::now(),
            last_error: None,
            closed: false,
        };
        let queue = session.registry().retries().clone();
        let uevents = session.registry().uevent_queue().clone();
        let this = Arc::pin_init(
            try_pin_init!(Self {
                number,
                name: CString::try_from_fmt(fmt!("{}", name.as_str()))?,
                access,
                events: session.events().clone(),
                io: DiskQueue::new(session.transport().clone(), &traits)?,
                asking <- new_mutex!((), "Device::asking"),
                inner <- new_mutex!(inner, "Device::inner"),
                reopen <- kx::new_delayed_work!(queue.clone(), "Device::reopen"),
                refresh <- kx::new_delayed_work!(queue.clone(), "Device::refresh"),
                forcing <- kx::new_delayed_work!(queue.clone(), "Device::forcing"),
                scanning <- kx::new_delayed_work!(queue, "Device::scanning"),
                uevents <- kx::new_work!(uevents, "Device::uevents"),
            }? Error),
            GFP_KERNEL,
        )?;
        // Reopening the device takes both locks, and reclaim may wait for the reopened device.
        in_reclaim(|| drop(this.asking.lock()));
        in_reclaim(|| drop(this.inner.lock()));
        Ok(this)
    }

    /// Returns the name of the device on the server.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Returns the access that the device is opened with.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Returns the queue data of the disk.
    pub(crate) fn io(&self) -> &Arc<DiskQueue> {
        &self.io
    }

    /// Returns the server's last description of the device.
    pub(crate) fn rsp(&self) -> OpenRsp {
        self.inner.lock().rsp
    }

    /// Returns the policy if the device has no identity when it is reopened.
    pub(crate) fn identity_check(&self) -> IdentityCheck {
        self.inner.lock().identity_check
    }

    /// Sets the policy if the device has no identity when it is reopened.
    pub(crate) fn set_identity_check(&self, check: IdentityCheck) {
        self.inner.lock().identity_check = check;
    }

    /// Warns if the device has no identity, which distinguishes it from other devices of its name.
    pub(crate) fn warn_without_identity(&self) {
        let inner = self.inner.lock();
        let rsp = &inner.rsp;
        if rsp.identity.is_known() {
            return;
        }
        let what = match inner.identity_check {
            IdentityCheck::None => "any disk of this name and size is used after a restart of the server, as identity is none",
            IdentityCheck::Auto if rsp.cache_run().is_known() => "after a restart of the server it is not used while it is open: export a partition, a logical volume or a disk with a serial number, or set identity to none",
            IdentityCheck::Auto => "the server tells nothing about it, so any disk of this name and size is used after a restart of the server",
        };
        pr_warn!(
            "ibnbd{}: {} has no identity: {}\n",
            self.number,
            *self.name,
            what
        );
    }

    /// Returns the state that user space sees.
    pub(crate) fn state(&self) -> DevState {
        self.inner.lock().shown
    }

    /// Sets the disk that user space sees; pending uevents of the former one have been sent when this
    /// returns. `None` means that the disk is unmapped: the device does not touch it again, and later
    /// calls have no effect.
    ///
    /// # Context
    ///
    /// May sleep until uevents are sent, so the caller must not hold a lock that reopening a device
    /// takes.
    pub(crate) fn set_disk(self: &Arc<Self>, disk: Option<Arc<GenDisk<IbnbdMq>>>) {
        let mut inner = self.inner.lock();
        match &disk {
            Some(_) if inner.shown == DevState::Unmapped => return,
            Some(_) => (),
            None => inner.shown = DevState::Unmapped,
        }
        let old = core::mem::replace(&mut inner.disk, disk);
        if old.is_some() && inner.disk.is_none() {
            self.record("unmapped", fmt!("{}", *self.name));
        }
        let sectors = inner.rsp.nsectors;
        self.set_size(&mut inner, sectors);
        self.show_locked(&mut inner);
        // During the partition scan, it counted as in use.
        self.open_if_unused(&mut inner);
        drop(inner);
        self.uevents.flush();
        drop(old);
    }

    fn show_locked(self: &Arc<Self>, inner: &mut DeviceInner) {
        if inner.disk.is_none() {
            return;
        }
        let open = inner.standing == Standing::Open && self.io.transport().is_connected();
        let state = if open {
            DevState::Open
        } else {
            DevState::Closed
        };
        if inner.shown == state {
            return;
        }
        let is_new = inner.shown == DevState::Init;
        inner.shown = state;
        inner.pending_uevents.state(open);
        self.tell_soon();
        if is_new {
            self.record("mapped", fmt!("{}", *self.name));
        }
        match (open, inner.standing) {
            (true, _) if is_new => (),
            (true, _) => self.record("open", fmt!("")),
            (false, Standing::Open) => self.record("closed", fmt!("no path to the server")),
            (false, standing) => self.record("closed", fmt!("{}", standing.cause())),
        }
    }

    /// Adds a change of the disk to the history of its session.
    fn record(&self, what: &'static str, cause: fmt::Arguments<'_>) {
        self.io
            .transport()
            .record_disk(("ibnbd", self.number), what, cause);
    }

    /// As [`unused`](crate::events::SessionDevice::unused), unless the disk is open or unmapped. If
    /// a task is opening or closing the disk, the next attempt will see the result.
    fn open_if_unused(self: &Arc<Self>, inner: &mut DeviceInner) {
        let usage = inner.disk.as_ref().map(|disk| disk.usage());
        if matches!(usage, Some(Usage::None | Usage::Changing)) {
            self.retry_refused(inner);
        }
    }

    fn retry_refused(self: &Arc<Self>, inner: &mut DeviceInner) {
        let standing = inner.standing.unused();
        if inner.closed || inner.standing == standing {
            return;
        }
        inner.standing = standing;
        inner.attempts = 0;
        inner.last_error = None;
        // Programs that probe disks may open and close it many times a second.
        self.reopen.modify(self.clone(), RETRY.base_ms);
    }

    /// Reopens the device at an operator's request. If a signal ends the wait, a worker continues.
    ///
    /// # Errors
    ///
    /// - `EALREADY` if the device is open, `ENODEV` if it is being unmapped, `EBUSY` if its
    ///   mapping is not complete.
    /// - `ESTALE` if the server now has another disk under this name.
    /// - `EAGAIN` if the server has lost the session during the call; `EINTR` if a signal arrived.
    /// - Errors of [`admin::open_device`].
    pub(crate) fn remap(self: &Arc<Self>, queue: &kx::work::Queue) -> Result {
        let state = self.state();
        state.may_remap().map_err(convert::error)?;
        let this = self.clone();
        background::attempt(queue, move || this.try_open())?
    }

    /// Sends one OPEN, unless the device is open, and acts on the answer.
    fn try_open(self: &Arc<Self>) -> Result {
        let _no_io = NoIo::enter();
        let _asking = self.asking.lock();
        let generation = {
            let inner = self.inner.lock();
            if inner.closed {
                return Err(ENODEV);
            }
            if inner.standing == Standing::Open {
                return Ok(());
            }
            inner.generation
        };
        let name = device_path(&self.name)?;
        let checksum = self.io.damage().checksum();
        let unclosed = self.events.unclosed();
        let answer = unclosed
            .close_named(&self.name)
            .and_then(|()| admin::open_device(self.io.transport(), name, self.access, checksum));
        let mut inner = self.inner.lock();
        if inner.generation != generation {
            // The session was lost during the call; the loss has already queued another OPEN.
            return Err(EAGAIN);
        }
        let open = match answer {
            Ok(open) => open,
            Err(error) => {
                self.failed(&mut inner, error);
                return Err(error);
            }
        };
        let known = admin::check_checksum(self.io.transport(), name, checksum, &open.rsp);
        if let Err(error) = known {
            self.failed(&mut inner, error);
            drop(inner);
            self.close_on_server(&open);
            return Err(error);
        }
        let same = self.compare(&inner, &open.rsp);
        inner.standing = Standing::answered(same);
        let Err(difference) = same else {
            self.opened(&mut inner, open);
            return Ok(());
        };
        self.log_refusal(difference);
        self.io.set_queue_state(inner.standing.queue_state());
        self.show_locked(&mut inner);
        if difference == Difference::Unproven {
            // The last user may have closed the disk before the queue state showed the refusal, see
            // `DiskQueue::closed`.
            self.open_if_unused(&mut inner);
        }
        drop(inner);
        // This client must not block other users of the other disk.
        self.close_on_server(&open);
        Err(ESTALE)
    }

    /// Compares the server's answer with the former disk.
    ///
    /// # Errors
    ///
    /// The first difference.
    fn compare(&self, inner: &DeviceInner, rsp: &OpenRsp) -> Result<(), Difference> {
        // Until the disk is complete, the partition scan uses it. A task that closes it may be writing
        // back data.
        let usage = inner.disk.as_ref().map(|disk| disk.usage());
        let in_use = usage != Some(Usage::None);
        let proof = inner.identity_check.wants_proof(in_use);
        rsp.same_disk(&inner.rsp, proof)?;
        if rsp.same_disk(&inner.rsp, true).is_err() {
            kx::pr_warn_ratelimited!(
                "ibnbd{}: {} is used without proof that it is the same disk: {}\n",
                self.number,
                *self.name,
                if in_use {
                    "identity is none"
                } else {
                    "it is not open"
                }
            );
            // A task that opens or closes the disk may be its only user.
            let may_read = matches!(usage, Some(Usage::None | Usage::Changing));
            if let Some(disk) = inner.disk.as_ref().filter(|_| may_read) {
                disk.read_partitions_at_next_open();
            }
        }
        Ok(())
    }

    fn log_refusal(&self, difference: Difference) {
        self.record("refused", fmt!("{}", difference.as_str()));
        match difference {
            Difference::Unproven => kx::pr_err_ratelimited!(
                "ibnbd{}: {} may be another disk: {}; the disk is not used while it is open: unmount it, or, if it is the right one, write none to identity, then 1 to remap_device\n",
                self.number,
                *self.name,
                difference.as_str()
            ),
            _ => kx::pr_err_ratelimited!(
                "ibnbd{}: the server now has another disk under this name: {}: {}; the disk is not used: restore the original disk on the server, then write 1 to remap_device\n",
                self.number,
                *self.name,
                difference.as_str()
            ),
        }
    }

    /// Closes the device that the server has opened for this one.
    fn close_on_server(&self, open: &OpenDevice) {
        let transport = self.io.transport();
        if admin::close_device(transport, open.generation, open.rsp.device_id).is_err() {
            self.events.unclosed().note(&self.name, self.access);
        }
    }

    /// Sets the size of the disk at an operator's request, for servers that send no notices.
    ///
    /// # Errors
    ///
    /// `ENOENT` unless the device is open; `EINVAL` if `sectors` is zero or not a multiple of the
    /// logical block size; `EFBIG` above [`MAX_SECTORS`].
    pub(crate) fn resize(self: &Arc<Self>, sectors: u64) -> Result {
        let mut inner = self.inner.lock();
        inner.shown.may_resize().map_err(convert::error)?;
        let block = u64::from(inner.rsp.logical_block_size >> 9).max(1);
        // `%` would generate a call of a panic function that objtool of 7.3 does not know.
        if sectors == 0 || sectors.checked_rem(block) != Some(0) {
            return Err(EINVAL);
        }
        if sectors > MAX_SECTORS {
            return Err(EFBIG);
        }
        self.set_size(&mut inner, sectors);
        drop(inner);
        self.uevents.flush();
        Ok(())
    }

    fn opened(self: &Arc<Self>, inner: &mut DeviceInner, open: OpenDevice) {
        let rsp = open.rsp;
        match inner.cache_history.reopened(rsp.cache_run()) {
            Reopened::Same => (),
            Reopened::Kept => self.io.write_cache().kept(),
            Reopened::Lost => self.cache_lost(inner),
        }
        self.io.write_cache().set_safe(!rsp.cache.writeback);
        let identity = rsp.identity_after(&inner.rsp);
        let cache = inner.rsp.cache;
        inner.rsp = rsp;
        inner.open_in = open.generation;
        inner.rsp.identity = identity;
        // The block layer keeps the properties that the disk was created with.
        inner.rsp.cache = cache;
        inner.attempts = 0;
        inner.last_error = None;
        let write_through = rsp.cache.writeback && !cache.writeback;
        kx::pr_info_ratelimited!("ibnbd{}: {} is open again\n", self.number, *self.name);
        if write_through {
            kx::pr_info_ratelimited!(
                "ibnbd{}: the server's disk has a write cache now, which is written through until the disk is mapped again\n",
                self.number
            );
        }
        self.set_size(inner, rsp.nsectors);
        self.io.open(rsp.device_id, write_through);
        self.show_locked(inner);
    }

    fn failed(&self, inner: &mut DeviceInner, error: Error) {
        inner.attempts = inner.attempts.saturating_add(1);
        let standing = inner.standing.failed(self.is_late(inner));
        if standing.is_retried() && inner.last_error != Some(error) {
            kx::pr_warn_ratelimited!(
                "ibnbd{}: {} cannot be opened again yet: {} ({}); trying again\n",
                self.number,
                *self.name,
                convert::errno(error).as_str(),
                error.to_errno()
            );
        }
        inner.last_error = Some(error);
        self.end_wait(inner);
    }

    /// Fails the requests that wait for the device, if the queue timeout has passed.
    fn end_wait(&self, inner: &mut DeviceInner) {
        let standing = inner.standing.failed(self.is_late(inner));
        if inner.standing == standing {
            return;
        }
        inner.standing = standing;
        pr_err!(
            "ibnbd{}: I/O fails until {} can be opened again\n",
            self.number,
            *self.name
        );
        self.record("failing", fmt!("it could not be opened again in time"));
        self.io.set_queue_state(standing.queue_state());
    }

    /// Returns whether the queue timeout has passed.
    fn is_late(&self, inner: &DeviceInner) -> bool {
        self.left_ms(inner) == 0
    }

    /// Returns how long requests may still wait for the device, in milliseconds; `u32::MAX` means
    /// no limit.
    fn left_ms(&self, inner: &DeviceInner) -> u32 {
        let limit_s = self.io.transport().settings().queue_timeout_s.get();
        let waited_ms = u64::try_from(inner.since.elapsed().as_millis()).unwrap_or(0);
        let left_ms = settings::left_ms(limit_s, waited_ms);
        left_ms.map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Schedules the next attempt to reopen the device, if its standing requires one.
    fn try_later(self: &Arc<Self>) {
        let inner = self.inner.lock();
        if !inner.standing.is_retried() {
            return;
        }
        let mut delay = if self.io.transport().is_connected() {
            RETRY.delay_ms(inner.attempts, kx::random::next_u32())
        } else {
            // The session event `up` queues the next attempt.
            u32::MAX
        };
        if inner.standing == Standing::Reopening {
            // An attempt after the queue timeout, even a hopeless one, fails the waiting requests.
            delay = delay.min(self.left_ms(&inner).saturating_add(1));
        }
        drop(inner);
        if delay == u32::MAX {
            return;
        }
        self.reopen.enqueue_in(self.clone(), delay);
    }

    /// Closes the device on the server.
    fn close(self: &Arc<Self>, queue: &kx::work::Queue) {
        self.reopen.disable_sync();
        self.refresh.disable_sync();
        self.uevents.disable_sync();
        self.forcing.disable_sync();
        self.scanning.disable_sync();
        self.io.paused().end();
        self.close_asking(queue);
        // Last: until it is closed, the device must be notified if the server loses the session.
        self.events.remove(&**self);
    }

    fn close_asking(&self, queue: &kx::work::Queue) {
        let _no_io = NoIo::enter();
        let _asking = self.asking.lock();
        let (standing, generation, device_id) = {
            let mut inner = self.inner.lock();
            inner.closed = true;
            (inner.standing, inner.open_in, inner.rsp.device_id)
        };
        let transport = self.io.transport();
        let note = || self.events.unclosed().note(&self.name, self.access);
        if standing != Standing::Open || !transport.is_connected() {
            // An OPEN may be unanswered.
            return note();
        }
        // On a worker, which is not interrupted by signals: if this returned with the message in
        // flight, it could close the device after it was mapped again.
        let closed = {
            let transport = transport.clone();
            background::complete(queue, move || {
                admin::close_device(&transport, generation, device_id)
            })
        };
        let closed = closed.unwrap_or_else(|_| {
            // The worker could not be started for lack of memory.
            admin::close_device(transport, generation, device_id)
        });
        if closed.is_err() {
            note();
        }
    }
}

/// An attempt to reopen the device.
impl WorkItem<{ work::REOPEN }> for Device {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.try_open().is_err() {
            this.try_later();
        }
    }
}

/// An open device with its references to the session and to its place. Drop closes the device on
/// the server, then releases the session, then the place.
pub(crate) struct Opened {
    device: Arc<Device>,
    session: SessionRef,
    place: PlaceRef,
}

impl Opened {
    /// Opens a device on the server.
    ///
    /// If a signal ends the wait, a worker waits for the server's answer and closes the device.
    ///
    /// # Errors
    ///
    /// `EINTR` if a signal arrived; `ENOMEM`; errors of [`admin::open_device`].
    pub(crate) fn open(
        session: SessionRef,
        place: PlaceRef,
        name: DevicePath<'_>,
        wanted: WantedDevice,
    ) -> Result<Self> {
        let queue = session.registry().jobs().clone();
        let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
        background::attempt(&queue, move || {
            Self::open_now(session, place, &name, wanted)
        })?
    }

    fn open_now(
        session: SessionRef,
        place: PlaceRef,
        name: &CStr,
        wanted: WantedDevice,
    ) -> Result<Self> {
        let WantedDevice {
            access, checksum, ..
        } = wanted;
        let path = device_path(name)?;
        let transport = session.transport().clone();
        let events = session.events().clone();
        let note = || events.unclosed().note(name, access);
        events.unclosed().close_named(name)?;
        let generation = events.generation();
        let answer = admin::open_device(&transport, path, access, checksum);
        let open = answer.inspect_err(|&error| {
            if admin::is_unanswered(error) {
                note();
            }
        })?;
        let number = place.number();
        let device = admin::check_checksum(&transport, path, checksum, &open.rsp)
            .and_then(|()| Device::new(&session, number, path, wanted, generation, open))
            .and_then(|device| events.add(device.clone(), generation).map(|()| device));
        match device {
            Ok(device) => Ok(Self {
                device,
                session,
                place,
            }),
            Err(error) => {
                if admin::close_device(&transport, open.generation, open.rsp.device_id).is_err() {
                    note();
                }
                Err(error)
            }
        }
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the session.
    pub(crate) fn session(&self) -> &SessionRef {
        &self.session
    }

    /// Returns the place.
    pub(crate) fn place(&self) -> &PlaceRef {
        &self.place
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.device.close(self.session.registry().jobs());
    }
}
