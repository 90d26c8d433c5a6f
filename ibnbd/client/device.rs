// SPDX-License-Identifier: GPL-2.0

//! Devices that the client has opened on the server, and opens again after a restart of the server.
//!
//! Contexts: *may sleep*, where nothing else is said.

use crate::{
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
    request::Queue,
    session, //
};
use ibnbd_proto::{
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
use ibtrs_core::convert;
use ibtrs_proto::{
    backoff::Backoff,
    name::DevicePath, //
};
use kernel::{
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
    blk::GenDisk,
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
mod uevent;

use uevent::PendingUevents;

/// When the server is asked again.
const RETRY: Backoff = Backoff {
    base_ms: 500,
    max_ms: 30_000,
};

fn device_path(name: &CStr) -> Result<DevicePath<'_>> {
    DevicePath::new(name.to_bytes()).map_err(|error| convert::error(error.errno()))
}

/// A device on the server.
#[pin_data]
pub(crate) struct Device {
    /// Number of its disk.
    number: u32,
    /// Its name on the server.
    name: CString,
    access: Access,
    events: Arc<EventHandler>,
    io: Arc<DiskQueue>,
    /// Held while the server is asked.
    #[pin]
    asking: Mutex<()>,
    #[pin]
    inner: Mutex<Inner>,
    #[pin]
    reopen: DelayedWork<Self, { work::REOPEN }>,
    #[pin]
    look: DelayedWork<Self, { work::LOOK }>,
    #[pin]
    uevents: Work<Self, { work::UEVENTS }>,
    #[pin]
    forcing: DelayedWork<Self, { work::FORCING }>,
}

/// Names of the works of a device.
pub(crate) mod work {
    pub(crate) const REOPEN: u64 = 0;
    pub(crate) const LOOK: u64 = 1;
    pub(crate) const UEVENTS: u64 = 2;
    pub(crate) const FORCING: u64 = 3;
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self, { work::REOPEN }>> for Device { self.reopen }
    impl HasWork<DelayedWork<Self, { work::LOOK }>> for Device { self.look }
    impl HasWork<Work<Self, { work::UEVENTS }>> for Device { self.uevents }
    impl HasWork<DelayedWork<Self, { work::FORCING }>> for Device { self.forcing }
}

struct Inner {
    standing: Standing,
    /// The server's last answer to OPEN that described this device.
    rsp: OpenRsp,
    /// The cache generation that the server has reported.
    cache_history: CacheHistory,
    /// The session generation that `standing` is about.
    generation: u32,
    /// Present from when user space can see the disk until it is unmapped.
    disk: Option<Arc<GenDisk<Queue>>>,
    /// The state that user space sees.
    shown: DevState,
    pending_uevents: PendingUevents,
    /// When the server was asked what has changed.
    looked: Option<Instant<Monotonic>>,
    /// Attempts to open it again that came to nothing.
    attempts: u32,
    /// When it was found to be closed.
    since: Instant<Monotonic>,
    last_error: Option<Error>,
    /// The device was closed for good.
    closed: bool,
}

impl Device {
    fn new(
        session: &SessionRef,
        number: u32,
        name: DevicePath<'_>,
        access: Access,
        (generation, rsp): (u32, OpenRsp),
    ) -> Result<Arc<Self>> {
        let traits = Traits {
            number,
            group: session.group().clone(),
            device_id: rsp.device_id,
            read_only: !access.writes(),
            prio: session.wants_prio(),
            safe: !rsp.cache.writeback,
        };
        let inner = Inner {
            standing: Standing::Open,
            rsp,
            cache_history: CacheHistory::new(rsp.cache_run()),
            generation,
            disk: None,
            shown: DevState::Init,
            pending_uevents: PendingUevents::default(),
            looked: None,
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
                look <- kx::new_delayed_work!(queue.clone(), "Device::look"),
                forcing <- kx::new_delayed_work!(queue, "Device::forcing"),
                uevents <- kx::new_work!(uevents, "Device::uevents"),
            }? Error),
            GFP_KERNEL,
        )?;
        // To open the device again takes both.
        in_reclaim(|| drop(this.asking.lock()));
        in_reclaim(|| drop(this.inner.lock()));
        Ok(this)
    }

    /// Returns the name of the device on the server.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Returns how the device is used.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Returns what requests need to know.
    pub(crate) fn io(&self) -> &Arc<DiskQueue> {
        &self.io
    }

    /// Returns what the server said of the device.
    pub(crate) fn rsp(&self) -> OpenRsp {
        self.inner.lock().rsp
    }

    /// Returns the state that user space sees.
    pub(crate) fn state(&self) -> DevState {
        self.inner.lock().shown
    }

    /// Sets the disk that user space sees from now on; its uevents have been sent when this
    /// returns. `None` stands for an unmapped disk, which the device does not touch again.
    ///
    /// # Context
    ///
    /// Under no lock that a disk needs to come back: waits for user space.
    pub(crate) fn set_disk(self: &Arc<Self>, disk: Option<Arc<GenDisk<Queue>>>) {
        let mut inner = self.inner.lock();
        if disk.is_none() {
            inner.shown = DevState::Unmapped;
        }
        let old = core::mem::replace(&mut inner.disk, disk);
        let sectors = inner.rsp.nsectors;
        self.set_size(&mut inner, sectors);
        self.show_locked(&mut inner);
        drop(inner);
        self.uevents.flush();
        drop(old);
    }

    /// Shows the state, should it be another one.
    pub(crate) fn show(self: &Arc<Self>) {
        self.show_locked(&mut self.inner.lock());
    }

    fn show_locked(self: &Arc<Self>, inner: &mut Inner) {
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
        inner.shown = state;
        inner.pending_uevents.state(open);
        self.tell_soon();
    }

    /// The server has lost the session; the queue is quiesced from now on.
    pub(crate) fn session_lost(self: &Arc<Self>, generation: u32) {
        let mut inner = self.inner.lock();
        inner.generation = generation;
        inner.standing = Standing::Reopening;
        inner.attempts = 0;
        inner.since = Instant::now();
        inner.last_error = None;
        self.io.set_queue_state(inner.standing.queue_state());
        self.show_locked(&mut inner);
    }

    /// Has a worker open the device again, if it is not.
    pub(crate) fn open_soon(self: &Arc<Self>) {
        if self.inner.lock().standing.is_retried() {
            self.reopen.modify(self.clone(), 0);
        }
    }

    /// Opens the device again at a user's request. If that is interrupted, a worker continues.
    ///
    /// # Errors
    ///
    /// - `EALREADY` if it is open, `ENODEV` if it is being unmapped, `EBUSY` if its
    ///   mapping is not complete.
    /// - `ESTALE` if the server has another disk under the name.
    /// - The server's; those of [`session::open_device`].
    pub(crate) fn remap(self: &Arc<Self>, queue: &kx::work::Queue) -> Result {
        let state = self.state();
        state.may_remap().map_err(convert::error)?;
        let this = self.clone();
        background::attempt(queue, move || this.try_open())?
    }

    /// Asks the server for the device, once.
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
        let answer = session::open_device(self.io.transport(), name, self.access);
        let mut inner = self.inner.lock();
        if inner.generation != generation {
            // The session was lost meanwhile; the loss has already queued another OPEN.
            return Err(EAGAIN);
        }
        let rsp = match answer {
            Ok(rsp) => rsp,
            Err(error) => {
                self.failed(&mut inner, error);
                return Err(error);
            }
        };
        let same = rsp.same_disk(&inner.rsp);
        inner.standing = Standing::answered(same);
        let Err(difference) = same else {
            self.opened(&mut inner, rsp);
            return Ok(());
        };
        pr_err!(
            "ibnbd{}: the server now has another disk under this name: {}: {}; the disk is not used: restore the original disk on the server, then write 1 to remap_device\n",
            self.number,
            *self.name,
            difference.as_str()
        );
        self.io.set_queue_state(inner.standing.queue_state());
        self.show_locked(&mut inner);
        drop(inner);
        // We do not keep it from others.
        session::close_device(self.io.transport(), rsp.device_id);
        Err(ESTALE)
    }

    /// Takes over a size that a user has found out, for a server that sends no notices.
    ///
    /// # Errors
    ///
    /// `ENOENT` unless the disk is open; `EINVAL` for a size that is no whole number
    /// of blocks, or zero; `EFBIG` for one that no disk can have.
    pub(crate) fn resize(self: &Arc<Self>, sectors: u64) -> Result {
        let mut inner = self.inner.lock();
        inner.shown.may_resize().map_err(convert::error)?;
        let block = u64::from(inner.rsp.logical_block_size >> 9).max(1);
        // A plain remainder leaves a panic that objtool of 7.3 does not know.
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

    fn opened(self: &Arc<Self>, inner: &mut Inner, rsp: OpenRsp) {
        match inner.cache_history.reopened(rsp.cache_run()) {
            Reopened::Same => (),
            Reopened::Kept => self.io.write_cache().kept(),
            Reopened::Lost => self.cache_lost(inner),
        }
        self.io.write_cache().set_safe(!rsp.cache.writeback);
        let known = inner.rsp.identity;
        let cache = inner.rsp.cache;
        inner.rsp = rsp;
        inner.rsp.identity = rsp.identity.or(known);
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

    fn failed(&self, inner: &mut Inner, error: Error) {
        inner.attempts = inner.attempts.saturating_add(1);
        let late = self.left_ms(inner) == 0;
        let standing = inner.standing.failed(late);
        if inner.last_error != Some(error) {
            kx::pr_warn_ratelimited!(
                "ibnbd{}: {} cannot be opened again yet: {} ({})\n",
                self.number,
                *self.name,
                convert::errno(error).as_str(),
                error.to_errno()
            );
        }
        inner.last_error = Some(error);
        if inner.standing != standing {
            inner.standing = standing;
            pr_err!(
                "ibnbd{}: I/O fails until {} can be opened again\n",
                self.number,
                *self.name
            );
            self.io.set_queue_state(standing.queue_state());
        }
    }

    /// Returns how long requests may still wait, in milliseconds.
    fn left_ms(&self, inner: &Inner) -> u32 {
        let limit_ms = i64::from(session::queue_timeout_s(self.io.transport())) * 1000;
        let left = limit_ms.saturating_sub(inner.since.elapsed().as_millis());
        u32::try_from(left.max(0)).unwrap_or(u32::MAX)
    }

    /// Asks again later, if there is a point in that.
    fn try_later(self: &Arc<Self>) {
        let inner = self.inner.lock();
        if !inner.standing.is_retried() {
            return;
        }
        let mut delay = if self.io.transport().is_connected() {
            RETRY.delay_ms(inner.attempts, kx::random::next_u32())
        } else {
            // The server is asked when the session is connected again.
            u32::MAX
        };
        if inner.standing == Standing::Reopening {
            // Requests do not wait longer than they should.
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
        self.look.disable_sync();
        self.uevents.disable_sync();
        self.forcing.disable_sync();
        self.close_asking(queue);
        // Not before: it has to know when the server has lost the session.
        self.events.remove(self);
    }

    fn close_asking(&self, queue: &kx::work::Queue) {
        let _no_io = NoIo::enter();
        let _asking = self.asking.lock();
        let (standing, device_id) = {
            let mut inner = self.inner.lock();
            inner.closed = true;
            (inner.standing, inner.rsp.device_id)
        };
        let transport = self.io.transport();
        if standing != Standing::Open || !transport.is_connected() {
            return;
        }
        if !kernel::current!().signal_pending() {
            session::close_device(transport, device_id);
            return;
        }
        let transport = transport.clone();
        // Without memory, the session's end closes it.
        let _ = background::complete(queue, move || {
            session::close_device(&transport, device_id);
        });
    }
}

/// Being opened again.
impl WorkItem<{ work::REOPEN }> for Device {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.try_open().is_err() {
            this.try_later();
        }
    }
}

/// A device that is open, with its part in a session and its place. On drop it is
/// closed on the server, then the session is left, then the place is free.
pub(crate) struct Opened {
    device: Arc<Device>,
    session: SessionRef,
    place: PlaceRef,
}

impl Opened {
    /// Has the server open a device.
    ///
    /// If this is interrupted, a worker waits for the server's answer, and closes
    /// the device.
    ///
    /// # Errors
    ///
    /// `EINTR` if a signal came; those of [`session::open_device`].
    pub(crate) fn open(
        session: SessionRef,
        place: PlaceRef,
        name: DevicePath<'_>,
        access: Access,
    ) -> Result<Self> {
        let queue = session.registry().jobs().clone();
        let name = CString::try_from_fmt(fmt!("{}", name.as_str()))?;
        background::attempt(&queue, move || {
            Self::open_now(session, place, &name, access)
        })?
    }

    fn open_now(session: SessionRef, place: PlaceRef, name: &CStr, access: Access) -> Result<Self> {
        let name = device_path(name)?;
        let generation = session.events().generation();
        let transport = session.transport().clone();
        let rsp = session::open_device(&transport, name, access)?;
        let opened = (generation, rsp);
        let device = Device::new(&session, place.number(), name, access, opened)
            .and_then(|device| session.events().add(&device, generation).map(|()| device));
        match device {
            Ok(device) => Ok(Self {
                device,
                session,
                place,
            }),
            Err(error) => {
                session::close_device(&transport, rsp.device_id);
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
