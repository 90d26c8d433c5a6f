// SPDX-License-Identifier: GPL-2.0

//! Forwards session events to the session's devices.
//!
//! When the server has lost the session, each device is reopened by its own work item, so that a
//! slow device does not delay others.

use crate::{
    admin,
    unclosed::Unclosed, //
};
use ibtrs_client::{
    Session,
    SessionEvents, //
};
use kernel::{
    alloc::flags::GFP_NOWAIT,
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::{
    mm::{
        in_reclaim,
        NoIo, //
    },
    work::Queue, //
};

/// A device of a session, which the events of the session concern. No function waits for the server:
/// the lock of [`EventHandler`] may be held.
pub(crate) trait SessionDevice: Send + Sync {
    /// Returns the number of the disk.
    fn number(&self) -> u32;

    /// Updates the state that user space sees; a change queues a uevent.
    fn show(self: Arc<Self>);

    /// Records that the server has lost the session, which is now in `generation`; quiesces the
    /// queue until the device is reopened.
    fn session_lost(self: Arc<Self>, generation: u32);

    /// Queues an immediate attempt to reopen the device, if its standing requires one.
    fn open_soon(self: Arc<Self>);

    /// Records that the last user has closed the disk. A worker then reopens the device if it was refused
    /// for lack of proof that it is the same disk.
    ///
    /// # Context
    ///
    /// May sleep, but not for the server or the disk: the caller holds the disk's open mutex.
    fn unused(self: Arc<Self>);

    /// Queues a refresh of the properties of the device, if the notice with `number` concerns this
    /// device.
    fn noticed(self: Arc<Self>, number: u32);

    /// Applies a new queue timeout to the requests that wait for the device.
    fn queue_timeout_changed(self: Arc<Self>);

    /// Records that a stopping server has flushed the device, if `number` is that of this device: a
    /// new cache generation then means no loss. Returns whether it is; `None` if that is not known, as
    /// the device may be being opened: the number that it has is of an earlier session generation.
    fn durable(&self, number: u32) -> Option<bool>;
}

/// The devices of a session, and its receiver of session events.
#[pin_data]
pub(crate) struct EventHandler {
    name: CString,
    #[pin]
    inner: Mutex<EventHandlerInner>,
    unclosed: Arc<Unclosed>,
}

struct EventHandlerInner {
    /// Present until the session is closed.
    transport: Option<Arc<Session>>,
    devices: KVec<Arc<dyn SessionDevice>>,
    generation: u32,
}

impl EventHandler {
    /// Creates the handler of a session without devices. Work items on `queue` wait for the server.
    pub(crate) fn new(name: &str, queue: &Arc<Queue>) -> Result<Arc<Self>> {
        let inner = EventHandlerInner {
            transport: None,
            devices: KVec::new(),
            generation: 0,
        };
        let this = Arc::pin_init(
            try_pin_init!(Self {
                name: CString::try_from_fmt(fmt!("{name}"))?,
                inner <- new_mutex!(inner, "EventHandler::inner"),
                unclosed: Unclosed::new(queue.clone())?,
            }? Error),
            GFP_KERNEL,
        )?;
        // `up` takes this lock, and reclaim may wait for requests until `up` has returned.
        in_reclaim(|| drop(this.inner.lock()));
        Ok(this)
    }

    /// Sets the transport of the session; `None` once the session is closed.
    pub(crate) fn set_transport(&self, transport: Option<Arc<Session>>) {
        match &transport {
            Some(transport) => self.unclosed.begin(transport.clone()),
            None => self.unclosed.end(),
        }
        let old = core::mem::replace(&mut self.inner.lock().transport, transport);
        drop(old);
    }

    /// Returns how often the server has lost the session.
    ///
    /// The server's description of a device is valid as long as this number stays the same.
    pub(crate) fn generation(&self) -> u32 {
        self.inner.lock().generation
    }

    /// Adds a device that was opened in session generation `generation`. If the server has lost the
    /// session since, a worker reopens the device.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn add(&self, device: Arc<dyn SessionDevice>, generation: u32) -> Result {
        let mut inner = self.inner.lock();
        // No allocation under this lock may wait: reclaim may depend on writes of these very disks.
        inner.devices.push(device.clone(), GFP_NOWAIT)?;
        let session_lost = inner.generation != generation;
        if session_lost {
            device.clone().session_lost(inner.generation);
        }
        drop(inner);
        if session_lost {
            device.open_soon();
        }
        Ok(())
    }

    /// Removes a device, which gets no more session events.
    pub(crate) fn remove(&self, device: &dyn SessionDevice) {
        let mut inner = self.inner.lock();
        let mut places = inner.devices.iter();
        let at = places.position(|other| core::ptr::addr_eq(&**other, device));
        let gone = at.map(|at| inner.devices.remove(at));
        drop(inner);
        drop(gone);
    }

    /// Records that the last user has closed the disk with that number.
    ///
    /// # Context
    ///
    /// May sleep, but not for the server or a disk: the caller holds the disk's open mutex.
    pub(crate) fn disk_closed(&self, number: u32) {
        let _no_io = NoIo::enter();
        let inner = self.inner.lock();
        let mut devices = inner.devices.iter();
        if let Some(device) = devices.find(|device| device.number() == number) {
            device.clone().unused();
        }
    }

    /// Returns the devices that the server may have open without a disk.
    pub(crate) fn unclosed(&self) -> &Arc<Unclosed> {
        &self.unclosed
    }

    /// Calls `func` for each device, under the lock: `func` must not wait for the server.
    fn for_each(&self, func: impl Fn(Arc<dyn SessionDevice>)) {
        self.inner.lock().devices.iter().cloned().for_each(func);
    }
}

impl SessionEvents for EventHandler {
    fn notice(&self, number: u32) {
        let _no_io = NoIo::enter();
        self.for_each(|device| device.noticed(number));
    }

    fn durable(&self, number: u32) -> bool {
        let _no_io = NoIo::enter();
        let inner = self.inner.lock();
        let (mut noted, mut unknown) = (false, false);
        for device in &inner.devices {
            match device.durable(number) {
                Some(is_this) => noted |= is_this,
                None => unknown = true,
            }
        }
        // A number that no device has belongs to one that was unmapped.
        noted || !unknown
    }

    fn queue_timeout_changed(&self) {
        let _no_io = NoIo::enter();
        self.for_each(|device| device.queue_timeout_changed());
    }

    fn down(&self) {
        let _no_io = NoIo::enter();
        kx::pr_info_ratelimited!("{}: disconnected\n", *self.name);
        self.for_each(|device| device.show());
    }

    fn up(&self, session_lost: bool) {
        let _no_io = NoIo::enter();
        if !session_lost {
            kx::pr_info_ratelimited!("{}: connected again\n", *self.name);
            self.for_each(|device| {
                device.clone().show();
                device.open_soon();
            });
            self.unclosed.close_soon();
            return;
        }
        kx::pr_info_ratelimited!(
            "{}: connected again; the server has lost the session, reopening all devices\n",
            *self.name
        );
        let transport = {
            let mut inner = self.inner.lock();
            inner.generation = inner.generation.wrapping_add(1);
            let generation = inner.generation;
            inner
                .devices
                .iter()
                .for_each(|device| device.clone().session_lost(generation));
            inner.transport.clone()
        };
        let Some(transport) = transport else {
            return;
        };
        // A server that does not answer this message may still open devices.
        let _ = admin::introduce(&transport);
        self.for_each(|device| device.open_soon());
        self.unclosed.close_soon();
    }
}
