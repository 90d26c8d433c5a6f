// SPDX-License-Identifier: GPL-2.0

//! Devices that the server may have open for no disk.
//!
//! When a disk is unmapped while no path is connected, CLOSE cannot be sent, and its answer can be
//! lost. The server closes the device when it loses the session, but it may find a lost path later
//! than the client does, and keep the session. So CLOSE is sent again when a path is connected
//! again, and before the device is opened for another disk, which would get its number.
//!
//! Not with the kernel's own server, which says nothing of whether it has kept the session.

use crate::admin;
use ibtrs_client::Session;
use kernel::{
    alloc::flags::GFP_NOWAIT,
    new_mutex,
    prelude::*,
    str::CString,
    sync::Mutex,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kx::mm::NoIo;

/// Interval at which the end of another thread's CLOSE is looked for.
const CHECK_MS: i64 = 20;

/// A device that is to be closed.
struct Unwanted {
    id: u32,
    name: CString,
    /// A thread has sent CLOSE, and waits for the answer.
    closing: bool,
}

struct List {
    /// The session generation in which the devices were opened.
    generation: u32,
    devices: KVec<Unwanted>,
}

impl List {
    /// Returns the device that `func` holds for.
    fn find(&mut self, func: impl Fn(&Unwanted) -> bool) -> Option<&mut Unwanted> {
        self.devices.iter_mut().find(|device| func(device))
    }
}

/// What becomes of a device that is to be closed.
enum Claim {
    /// The caller closes the device with this id, of this session generation.
    Close(u32, u32),
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
}

impl Unclosed {
    /// Creates an empty list, for session generation 0.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(List { generation: 0, devices: KVec::new() }, "Unclosed::list"),
        })
    }

    /// Notes that device `id` of session generation `generation`, whose name is `name`, is to be
    /// closed. Without memory, it stays open until the session ends.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn note(&self, generation: u32, id: u32, name: &CStr) {
        let Ok(name) = CString::try_from(name) else {
            return;
        };
        let mut list = self.list.lock();
        if list.generation == generation {
            let device = Unwanted {
                id,
                name,
                closing: false,
            };
            let _ = list.devices.push(device, GFP_NOWAIT);
        }
    }

    /// Forgets all devices, as the server has lost the session; the next generation begins.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn session_lost(&self, generation: u32) {
        let mut list = self.list.lock();
        list.generation = generation;
        list.devices.clear();
    }

    /// Returns whether there are devices to be closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.lock().devices.is_empty()
    }

    /// Has the server close the devices, up to the first that it does not close.
    ///
    /// # Context
    ///
    /// May sleep, as long as the server takes for its answers.
    pub(crate) fn close_all(&self, transport: &Session) {
        while let Claim::Close(generation, id) = self.claim(|device| !device.closing) {
            if self.close(transport, generation, id).is_err() {
                return;
            }
        }
    }

    /// Has the server close the device with that name, if it is to be closed.
    ///
    /// # Context
    ///
    /// May sleep, as long as the server takes for its answers.
    ///
    /// # Errors
    ///
    /// The device may still be open: as [`admin::close_device`].
    pub(crate) fn close_named(&self, transport: &Session, name: &[u8]) -> Result {
        loop {
            match self.claim(|device| device.name.to_bytes() == name) {
                Claim::None => return Ok(()),
                Claim::Close(generation, id) => self.close(transport, generation, id)?,
                Claim::Wait => fsleep(Delta::from_millis(CHECK_MS)),
            }
        }
    }

    fn claim(&self, func: impl Fn(&Unwanted) -> bool) -> Claim {
        let mut list = self.list.lock();
        let generation = list.generation;
        match list.find(func) {
            None => Claim::None,
            Some(device) if device.closing => Claim::Wait,
            Some(device) => {
                device.closing = true;
                Claim::Close(generation, device.id)
            }
        }
    }

    fn close(&self, transport: &Session, generation: u32, id: u32) -> Result {
        let closed = {
            let _no_io = NoIo::enter();
            // A session that has begun since does not know the device.
            match transport.generation().is_open() {
                true => admin::close_device(transport, id),
                false => Err(ENOTCONN),
            }
        };
        let mut list = self.list.lock();
        if list.generation == generation {
            match closed {
                Ok(()) => list.devices.retain(|device| device.id != id),
                Err(_) => {
                    if let Some(device) = list.find(|device| device.id == id) {
                        device.closing = false;
                    }
                }
            }
        }
        closed
    }
}
