// SPDX-License-Identifier: GPL-2.0

//! The session of a client, with the devices that it has open.

use crate::{
    admin,
    device::Opened,
    export::Exports,
    io::{
        self,
        IoRequest, //
    },
    param,
    stop::Stopping,
    sysfs::View, //
};
use ibnbd_proto::{
    msg::UserMsg,
    path::{
        self,
        PathError, //
    },
};
use ibtrs_proto::name::DevicePath;
use ibtrs_server::{
    Deadline,
    Notices,
    Request,
    ServiceSession,
    SessionInfo, //
};
use kernel::{
    alloc::kvec::InsertError,
    new_mutex, new_spinlock_irq,
    prelude::*,
    str::{
        CStr,
        CString, //
    },
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex,
        SpinLockIrq, //
    },
};
use kx::{
    blk::BioTable,
    mm::NoIo,
    pr_info_ratelimited,
    sync::{
        PercpuArc,
        PercpuOwner,
        RcuPtr, //
    },
    sysfs::Dir,
    work::{
        DelayedWork,
        Options,
        Queue, //
    },
};

/// Returns the parameter `dev_search_path`.
pub(crate) fn search_path() -> Result<&'static str, PathError> {
    let text = core::str::from_utf8(param::dev_search_path.get());
    path::search_path(text.map_err(|_| PathError::NotPrintable)?)
}

/// The service that sessions come to.
pub(crate) struct Service {
    exports: Arc<Exports>,
    /// The queue that watches and closes devices. The owner of the service flushes it after
    /// dropping the service.
    queue: Arc<Queue>,
}

impl Service {
    pub(crate) fn new(exports: Arc<Exports>, queue: Arc<Queue>) -> Self {
        Self { exports, queue }
    }
}

impl ibtrs_server::Service for Service {
    fn session_up(&self, info: SessionInfo<'_>) -> Result<Arc<dyn ServiceSession>> {
        let queue = self.queue.clone();
        let session = Arc::pin_init(
            try_pin_init!(Session {
                name: CString::try_from(info.name)?,
                extensions: info.extensions,
                version: Atomic::new(0),
                exports: self.exports.clone(),
                devices: RcuPtr::new(None),
                open <- new_mutex!(OpenDevices::new(), "Session::open"),
                closing: Atomic::new(0),
                bios: BioTable::new(usize::from(info.queue_depth))?,
                notices <- new_mutex!(info.notices, "Session::notices"),
                watch <- kx::new_delayed_work!(queue, "Session::watch"),
                stopped: Atomic::new(0),
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

/// A device as the session keeps it.
pub(crate) struct OpenDevice {
    pub(crate) id: u32,
    /// The number of the block device in this kernel, which no other has while it is open.
    pub(crate) dev: u32,
    /// As the client named it.
    pub(crate) name: CString,
    /// The device's directory in sysfs; dropped before the directory that contains it.
    pub(crate) _dir: Option<Dir<Arc<View>>>,
    pub(crate) device: PercpuOwner<Opened>,
}

/// A device that its session no longer lists, and that counts as one of the session's until
/// this is dropped, which closes it.
///
/// # Context
///
/// Dropping it may sleep, until the device's I/O has ended. Not under the lock of the session's
/// devices, which the files of the device take.
pub(crate) struct Closing {
    device: Option<OpenDevice>,
    session: Arc<Session>,
}

impl Closing {
    /// Takes a device that was [withdrawn](Session::withdraw).
    pub(crate) fn new(session: &Arc<Session>, device: OpenDevice) -> Self {
        Self {
            device: Some(device),
            session: session.clone(),
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        drop(self.device.take());
        // ORDERING: After the end of the device's I/O, see `is_closing`.
        self.session.closing.fetch_sub(1, Full);
    }
}

/// The devices that a session has open.
pub(crate) struct OpenDevices {
    /// By their ids, the lowest first.
    list: KVec<OpenDevice>,
    /// The next id to be used. Ids are not used again before four billion others
    /// were, and another session begins elsewhere, so that a late request does not
    /// hit another device.
    next_id: u32,
}

impl OpenDevices {
    fn new() -> Self {
        Self {
            list: KVec::new(),
            next_id: kx::random::next_u32(),
        }
    }

    /// Finds the device that the client calls so.
    pub(crate) fn by_name(&self, name: DevicePath<'_>) -> Option<&OpenDevice> {
        let mut list = self.list.iter();
        list.find(|device| device.name.to_bytes() == name.as_bytes())
    }

    /// Returns whether the block device with the number `dev` is open, by whatever name.
    pub(crate) fn has_device(&self, dev: u32) -> bool {
        self.list.iter().any(|device| device.dev == dev)
    }

    /// Returns how many devices there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns an id that no device has.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is none.
    pub(crate) fn new_id(&mut self) -> Result<u32> {
        for _ in 0..=self.list.len() {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            if self.place(id).is_err() {
                return Ok(id);
            }
        }
        Err(ENOSPC)
    }

    /// Returns where the device with that id is, or would be.
    fn place(&self, id: u32) -> Result<usize, usize> {
        self.list.binary_search_by_key(&id, |device| device.id)
    }

    /// Reserves a place for one more device.
    pub(crate) fn reserve(&mut self) -> Result {
        Ok(self.list.reserve(1, GFP_KERNEL)?)
    }

    /// Puts a device in, for which there must be [room](Self::reserve); else it comes back.
    pub(crate) fn insert(&mut self, device: OpenDevice) -> Result<(), OpenDevice> {
        let at = match self.place(device.id) {
            Ok(_) => return Err(device),
            Err(at) => at,
        };
        self.list
            .insert_within_capacity(at, device)
            .map_err(|error| match error {
                InsertError::IndexOutOfBounds(device) | InsertError::OutOfCapacity(device) => {
                    device
                }
            })
    }

    /// Takes a device out.
    pub(crate) fn take(&mut self, id: u32) -> Option<OpenDevice> {
        let at = self.place(id).ok()?;
        self.list.remove(at).ok()
    }
}

/// The devices by their ids, the lowest first, for I/O.
type Table = KVec<(u32, PercpuArc<Opened>)>;

/// The session of a client.
#[pin_data]
pub(crate) struct Session {
    name: CString,
    /// The client takes what C drivers do not know.
    extensions: bool,
    /// The version that the client and we speak; zero before it said so.
    version: Atomic<u32>,
    pub(crate) exports: Arc<Exports>,
    devices: RcuPtr<Table>,
    #[pin]
    pub(crate) open: Mutex<OpenDevices>,
    /// How many devices are withdrawn, and not closed yet.
    closing: Atomic<usize>,
    /// A bio for each chunk.
    pub(crate) bios: BioTable<IoRequest>,
    /// Until the session has gone, if the client takes notices.
    #[pin]
    pub(crate) notices: Mutex<Option<Notices>>,
    /// Looks for devices that have changed.
    #[pin]
    pub(crate) watch: DelayedWork<Self>,
    /// Not zero: it serves nothing any more.
    stopped: Atomic<u32>,
    /// Its devices that are being stopped.
    #[pin]
    pub(crate) stopping: SpinLockIrq<KVec<Arc<Stopping>>>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Session { self.watch }
}

impl Session {
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Returns whether the client knows the extensions of the messages.
    pub(crate) fn has_extensions(&self) -> bool {
        self.extensions
    }

    /// Says which version the client and we speak.
    pub(crate) fn set_version(&self, version: u8) {
        // ORDERING: Nothing else depends on it.
        self.version.store(version.into(), Relaxed);
    }

    /// Returns whether the priorities of the client's requests count.
    pub(crate) fn has_prio(&self) -> bool {
        self.version.load(Relaxed) >= 2
    }

    /// Finds an open device for an I/O.
    pub(crate) fn device(&self, id: u32) -> Option<PercpuArc<Opened>> {
        let table = self.devices.read();
        let table = table.get()?;
        let at = table.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(table.get(at)?.1.clone())
    }

    /// Returns whether the session has the maximum number of devices, counting those that are being
    /// closed.
    pub(crate) fn is_full(&self, open: &OpenDevices) -> bool {
        let closing = self.closing.load(Relaxed);
        open.len().saturating_add(closing) >= param::max_devices.get() as usize
    }

    /// Returns whether devices that were withdrawn have I/O in service, maybe.
    pub(crate) fn is_closing(&self) -> bool {
        // ORDERING: What follows comes after the end of that I/O.
        self.closing.load(Acquire) != 0
    }

    /// Calls a function for each device that I/O finds.
    ///
    /// # Context
    ///
    /// Any; the function must not sleep.
    pub(crate) fn for_each_device(&self, mut func: impl FnMut(u32, &Opened)) {
        let table = self.devices.read();
        for (id, device) in table.get().into_iter().flatten() {
            func(*id, device);
        }
    }

    /// Lets I/O find the devices of `open`, and no others.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn publish(&self, open: &OpenDevices) -> Result {
        let mut table = KVec::with_capacity(open.list.len(), GFP_KERNEL)?;
        for device in &open.list {
            table.push((device.id, device.device.get()), GFP_KERNEL)?;
        }
        drop(self.devices.replace(Some(KBox::new(table, GFP_KERNEL)?)));
        Ok(())
    }

    /// Takes the device `id` out of the session, if it is in there. It is to be closed then, by
    /// [`Closing`].
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the device stays.
    pub(crate) fn withdraw(&self, id: u32) -> Result<Option<OpenDevice>> {
        let mut open = self.open.lock();
        let Some(device) = open.take(id) else {
            return Ok(None);
        };
        if let Err(error) = self.publish(&open) {
            // The table has room for the device, which I/O could find all the time.
            let _ = open.insert(device);
            return Err(error);
        }
        // ORDERING: Under the lock, so that the device is always in one of the two counts.
        self.closing.fetch_add(1, Relaxed);
        Ok(Some(device))
    }

    /// Stops serving, and hands over the devices that were open: I/O finds none of them any more.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn take_all(&self) -> KVec<OpenDevice> {
        let mut open = self.open.lock();
        // ORDERING: Before the table goes, see `is_stopped`.
        self.stopped.fetch_add(1, Full);
        let list = core::mem::take(&mut open.list);
        // Under the lock: otherwise a thread that withdraws a device could publish the table again,
        // with devices that are already being closed.
        drop(self.devices.replace(None));
        list
    }

    /// Returns whether the session serves nothing any more: a device that was not found may have
    /// been open.
    #[cold]
    pub(crate) fn is_stopped(&self) -> bool {
        // ORDERING: A full barrier after the look into the table, which went after the flag was set.
        self.stopped.fetch_add(0, Full) != 0
    }

    /// Waits for the client's word about a device.
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
        for device in self.take_all() {
            pr_info_ratelimited!("{}: closed {}\n", *self.name, *device.name);
            drop(device);
        }
    }
}

/// The receiver of the session's requests.
struct Handle {
    session: Arc<Session>,
    /// The queue that serves the session's administrative messages, one at a time.
    messages: Arc<Queue>,
    /// Where its devices are closed.
    closers: Arc<Queue>,
}

impl ServiceSession for Handle {
    fn drain(&self, limit: Deadline) -> Result {
        self.session.watch.disable_sync();
        // Until the paths are closed, nobody has an answer: also not one that memory waits for.
        let _no_io = NoIo::enter();
        // What came before the session was stopped may open a device yet, and finds it stopped.
        self.session.stop(&self.closers, limit)
    }

    fn durable_seen(&self, number: u32) {
        self.session.durable_seen(number);
    }

    fn request(&self, request: Request) {
        match UserMsg::parse(request.user_hdr()) {
            Ok(UserMsg::Io(hdr)) => io::serve(&self.session, &hdr, request),
            Ok(_) => {
                // Opening and closing devices takes time, which the other
                // requests of the connection must not wait for. If there is no
                // memory the request is dropped, which answers it.
                let session = self.session.clone();
                let closers = self.closers.clone();
                let _no_io = NoIo::enter();
                let _ = self.messages.spawn(GFP_KERNEL, move || {
                    admin::serve(&session, &closers, request);
                });
            }
            Err(error) => {
                let error = admin::refused(&self.session, error);
                request.respond(Err(error));
            }
        }
    }

    fn down(&self) {
        self.session.watch.disable_sync();
        let notices = self.session.notices.lock().take();
        drop(notices);
        // Each message of the session was answered; only the last instructions of those works are
        // left. `closers` also has works of other sessions, which may wait for their disks, so it
        // is not flushed here.
        self.messages.flush();
        self.session.close_all();
    }
}
