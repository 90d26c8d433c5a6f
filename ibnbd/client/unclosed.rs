// SPDX-License-Identifier: GPL-2.0

//! Devices that the server may have open without a disk.
//!
//! CLOSE cannot be sent while no path is connected, and its answer can be lost; after an OPEN whose
//! answer was lost, the device has no number to close it by. The server closes devices when it loses
//! the session, but it may detect the loss of a path later than the client, and keep the session. The
//! client therefore queries such a device by its name, and closes it if the server has it open: after
//! a while, when a path has reconnected, and before the device is reopened. It retries until the
//! server has answered.
//!
//! As names mean the same in every session generation, the list survives the loss of the session.
//! While a device is in the list, no disk has it open.
//!
//! This does not work with the in-kernel RNBD server, which cannot be queried without opening the
//! device.

use crate::admin;
use ibnbd_proto::Access;
use ibtrs_client::Session;
use ibtrs_proto::backoff::Backoff;
use kernel::{
    alloc::flags::GFP_NOWAIT,
    new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kx::{
    mm::{
        in_reclaim,
        NoIo, //
    },
    work::{
        DelayedWork,
        Queue,
        WorkItem, //
    }, //
};

/// Interval at which to poll for the end of another thread's attempt.
const CHECK_MS: i64 = 20;
/// Delays between attempts.
const RETRY: Backoff = Backoff {
    base_ms: 500,
    max_ms: 30_000,
};
/// Interval at which to poll for the answer to an outstanding message.
const BUSY_MS: u32 = 500;

/// A device that is to be closed.
struct Unwanted {
    name: Arc<CString>,
    access: Access,
    /// A thread is querying or closing the device.
    closing: bool,
}

struct List {
    /// Present until the session is closed.
    transport: Option<Arc<Session>>,
    devices: KVec<Unwanted>,
    /// Failed attempts since the last successful one.
    attempts: u32,
}

impl List {
    /// Returns the device for which `func` returns true.
    fn find(&mut self, func: impl Fn(&Unwanted) -> bool) -> Option<&mut Unwanted> {
        self.devices.iter_mut().find(|device| func(device))
    }
}

/// The result of claiming a device that is to be closed.
enum Claim {
    /// The caller closes the device with this name.
    Close(Arc<Session>, Arc<CString>, Access),
    /// Another thread is closing it.
    Wait,
    /// There is none.
    None,
}

/// The devices of a session that are to be closed.
#[pin_data]
pub(crate) struct Unclosed {
    #[pin]
    list: Mutex<List>,
    #[pin]
    work: DelayedWork<Self>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Unclosed { self.work }
}

impl Unclosed {
    /// Creates an empty list. Work items on `queue` wait for the server.
    pub(crate) fn new(queue: Arc<Queue>) -> Result<Arc<Self>> {
        let list = List {
            transport: None,
            devices: KVec::new(),
            attempts: 0,
        };
        let this = Arc::pin_init(
            try_pin_init!(Self {
                list <- new_mutex!(list, "Unclosed::list"),
                work <- kx::new_delayed_work!(queue, "Unclosed::work"),
            }? Error),
            GFP_KERNEL,
        )?;
        // Reopening a device takes this lock, and reclaim may wait for the device.
        in_reclaim(|| drop(this.list.lock()));
        Ok(this)
    }

    /// Sets the transport of the session.
    pub(crate) fn begin(&self, transport: Arc<Session>) {
        self.list.lock().transport = Some(transport);
    }

    /// Clears the list: closing the session has closed the devices.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn end(&self) {
        self.work.disable_sync();
        let mut list = self.list.lock();
        let transport = list.transport.take();
        let devices = core::mem::take(&mut list.devices);
        drop(list);
        drop((transport, devices));
    }

    /// Records that the server may have the device `name` open with `access` without a disk. If the
    /// allocation fails, it stays open until the session ends.
    ///
    /// # Context
    ///
    /// May sleep, but not for the server.
    pub(crate) fn note(self: &Arc<Self>, name: &CStr, access: Access) {
        let made = CString::try_from(name).and_then(|name| Arc::new(name, GFP_KERNEL));
        let Ok(name) = made else { return };
        let mut list = self.list.lock();
        let Some(transport) = list.transport.clone() else {
            return;
        };
        if !transport.has_extensions() {
            return;
        }
        if list.find(|device| **device.name == **name).is_none() {
            let device = Unwanted {
                name,
                access,
                closing: false,
            };
            let _ = list.devices.push(device, GFP_NOWAIT);
        }
        drop(list);
        self.close_later(&transport);
    }

    /// Schedules the closing of the devices, as a path is connected.
    ///
    /// # Context
    ///
    /// May sleep, but not for the server.
    pub(crate) fn close_soon(self: &Arc<Self>) {
        let mut list = self.list.lock();
        list.attempts = 0;
        let is_empty = list.devices.is_empty();
        drop(list);
        if !is_empty {
            self.work.modify(self.clone(), 0);
        }
    }

    /// Schedules the closing of the devices after a while, if a path is connected. If not,
    /// [`close_soon`](Self::close_soon) follows.
    fn close_later(self: &Arc<Self>, transport: &Session) {
        if transport.is_connected() {
            let attempts = self.list.lock().attempts;
            let delay = RETRY.delay_ms(attempts, kx::random::next_u32());
            self.work.enqueue_in(self.clone(), delay);
        }
    }

    /// Closes the device with that name on the server, if it is in the list.
    ///
    /// # Context
    ///
    /// May sleep, as long as the server takes for its answers.
    ///
    /// # Errors
    ///
    /// The device may still be open: the server has not answered.
    pub(crate) fn close_named(self: &Arc<Self>, name: &CStr) -> Result {
        loop {
            match self.claim(|device| **device.name == *name) {
                Claim::None => return Ok(()),
                Claim::Close(transport, name, access) => self.close(&transport, &name, access)?,
                Claim::Wait => fsleep(Delta::from_millis(CHECK_MS)),
            }
        }
    }

    fn claim(&self, func: impl Fn(&Unwanted) -> bool) -> Claim {
        let mut list = self.list.lock();
        let Some(transport) = list.transport.clone() else {
            return Claim::None;
        };
        match list.find(func) {
            None => Claim::None,
            Some(device) if device.closing => Claim::Wait,
            Some(device) => {
                device.closing = true;
                Claim::Close(transport, device.name.clone(), device.access)
            }
        }
    }

    /// Closes a device that the caller has claimed. If the server has not executed the message, it is
    /// retried later; if the server refuses, there is no remedy.
    fn close(self: &Arc<Self>, transport: &Session, name: &Arc<CString>, access: Access) -> Result {
        let closed = admin::close_named(transport, name, access);
        let closed = closed.or_else(|error| match admin::is_unanswered(error) {
            true => Err(error),
            false => Ok(()),
        });
        let _no_io = NoIo::enter();
        let mut list = self.list.lock();
        let mut places = list.devices.iter();
        let at = places.position(|device| Arc::ptr_eq(&device.name, name));
        let device = at.and_then(|at| list.devices.remove(at).ok());
        match (closed, device) {
            (Err(_), Some(device)) => {
                // At the end of the list, in the place that has just become free.
                let again = Unwanted {
                    closing: false,
                    ..device
                };
                let _ = list.devices.push(again, GFP_NOWAIT);
                list.attempts = list.attempts.saturating_add(1);
                drop(list);
                self.close_later(transport);
            }
            _ => list.attempts = 0,
        }
        closed
    }
}

/// Closes the devices, up to the first for which the server does not answer. An unanswered OPEN may
/// be for one of them, so this first waits for its answer.
impl WorkItem for Unclosed {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let transport = {
            let list = this.list.lock();
            match list.devices.is_empty() {
                true => None,
                false => list.transport.clone(),
            }
        };
        if transport.is_some_and(|transport| transport.has_unanswered()) {
            this.work.enqueue_in(this.clone(), BUSY_MS);
            return;
        }
        while let Claim::Close(transport, name, access) = this.claim(|device| !device.closing) {
            if this.close(&transport, &name, access).is_err() {
                return;
            }
        }
    }
}
