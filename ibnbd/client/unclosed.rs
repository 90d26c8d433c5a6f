// SPDX-License-Identifier: GPL-2.0

//! Devices that the server may have open for no disk.
//!
//! When a disk is unmapped while no path is connected, CLOSE cannot be sent. The server closes the
//! device when it loses the session, but it may find a lost path later than the client does, and
//! keep the session. So CLOSE is sent when a path is connected again, and before another device is
//! opened: that could be the same one, which would get its former number.

use crate::admin;
use ibtrs_client::Session;
use kernel::{
    alloc::flags::GFP_NOWAIT,
    new_mutex,
    prelude::*,
    sync::Mutex, //
};
use kx::mm::NoIo;

/// The devices of a session that are to be closed.
#[pin_data]
pub(crate) struct Unclosed {
    #[pin]
    list: Mutex<List>,
    /// Held while they are being closed.
    #[pin]
    closing: Mutex<()>,
}

struct List {
    /// The session generation in which the devices were opened.
    generation: u32,
    ids: KVec<u32>,
}

impl Unclosed {
    /// Creates an empty list, for session generation 0.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(List { generation: 0, ids: KVec::new() }, "Unclosed::list"),
            closing <- new_mutex!((), "Unclosed::closing"),
        })
    }

    /// Notes that device `id` of session generation `generation` is to be closed. Without memory, it
    /// stays open until the session ends.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn note(&self, generation: u32, id: u32) {
        let mut list = self.list.lock();
        if list.generation == generation {
            let _ = list.ids.push(id, GFP_NOWAIT);
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
        list.ids.clear();
    }

    /// Returns whether there are devices to be closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.lock().ids.is_empty()
    }

    /// Has the server close the devices, as far as a path is connected.
    ///
    /// # Context
    ///
    /// May sleep, as long as the server takes for its answers.
    pub(crate) fn close_all(&self, transport: &Session) {
        let _no_io = NoIo::enter();
        let _one = self.closing.lock();
        while transport.is_connected() {
            let mut list = self.list.lock();
            let (generation, id) = (list.generation, list.ids.pop());
            drop(list);
            let Some(id) = id else { return };
            if admin::close_device(transport, id).is_err() && !transport.is_connected() {
                self.note(generation, id);
            }
        }
    }
}
