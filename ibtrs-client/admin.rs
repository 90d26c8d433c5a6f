// SPDX-License-Identifier: GPL-2.0

//! Permits for administrative messages: chunks at the end of the queue that no
//! I/O uses.

use crate::session::Session;
use kernel::{
    new_condvar, new_mutex,
    prelude::*,
    sync::{
        CondVar,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::msecs_to_jiffies,
};

/// The reserved chunks that nobody holds.
#[pin_data]
pub(crate) struct Admin {
    #[pin]
    held: Mutex<u32>,
    #[pin]
    returned: CondVar,
}

impl Admin {
    /// Chunks that are reserved in a queue of `depth` chunks.
    pub(crate) const fn reserved(depth: u16) -> u16 {
        if depth < 16 {
            1
        } else {
            4
        }
    }

    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            held <- new_mutex!(0, "Admin::held"),
            returned <- new_condvar!("Admin::returned"),
        })
    }

    /// Waits for a permit.
    ///
    /// A chunk whose message was given up by its sender is busy until the
    /// server has answered, so that holding no permit is not enough.
    ///
    /// # Errors
    ///
    /// `EINTR`; `ENOTCONN` when the session is cut off.
    pub(crate) fn get<'a>(&'a self, session: &Session) -> Result<Permit<'a>> {
        let depth = session.queue_depth();
        let first = depth - Self::reserved(depth).min(depth);
        let mut held = self.held.lock();
        loop {
            if !session.is_connected() {
                return Err(ENOTCONN);
            }
            for nr in 0..Self::reserved(depth) {
                let tag = first + nr;
                if *held & (1 << nr) == 0 && session.is_idle(tag) {
                    *held |= 1 << nr;
                    return Ok(Permit {
                        admin: self,
                        nr,
                        tag,
                    });
                }
            }
            // Now and then, as an answer to a message that was given up wakes
            // nobody.
            let pause = msecs_to_jiffies(100);
            if let CondVarTimeoutResult::Signal { .. } =
                self.returned.wait_interruptible_timeout(&mut held, pause)
            {
                return Err(EINTR);
            }
        }
    }
}

/// The right to use a chunk for an administrative message.
pub(crate) struct Permit<'a> {
    admin: &'a Admin,
    nr: u16,
    tag: u16,
}

impl Permit<'_> {
    pub(crate) fn tag(&self) -> u16 {
        self.tag
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.admin.held.lock() &= !(1 << self.nr);
        self.admin.returned.notify_one();
    }
}
