// SPDX-License-Identifier: GPL-2.0

//! Notices of the server for the users of a session, and uevents that report whether the server can
//! be reached.
//!
//! Sending a uevent waits for other senders, and these may wait for memory, which may wait for one
//! of our disks. So a worker sends it, for which nothing else waits.

use super::Session;
use ibtrs_core::steps;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
};
use kx::work::WorkItem;

/// Notices that wait, at most. More are dropped, as they come again.
const MAX: usize = 64;

/// Notices that have come in.
#[pin_data]
pub(super) struct Notices {
    #[pin]
    waiting: SpinLockIrq<Waiting>,
}

struct Waiting {
    numbers: [u32; MAX],
    count: usize,
}

impl Notices {
    pub(super) fn new() -> impl PinInit<Self> {
        let waiting = Waiting {
            numbers: [0; MAX],
            count: 0,
        };
        pin_init!(Self {
            waiting <- new_spinlock_irq!(waiting, "Notices::waiting"),
        })
    }

    fn add(&self, number: u32) {
        let mut waiting = self.waiting.lock();
        let count = waiting.count;
        let known = waiting.numbers.iter().take(count).any(|n| *n == number);
        if known {
            return;
        }
        if let Some(place) = waiting.numbers.get_mut(count) {
            *place = number;
            waiting.count += 1;
        }
    }

    fn take(&self) -> Option<u32> {
        let mut waiting = self.waiting.lock();
        let last = waiting.count.checked_sub(1)?;
        waiting.count = last;
        waiting.numbers.get(last).copied()
    }
}

impl Session {
    /// The server has sent a notice.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn noticed(self: &Arc<Self>, number: u32) {
        self.notices.add(number);
        self.notice.enqueue(self.clone());
    }
}

/// Notices for the users of the session.
impl WorkItem<{ crate::session::work::NOTICE }> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        while let Some(number) = this.notices.take() {
            this.session_events.notice(number);
        }
    }
}

impl Session {
    /// Queues a uevent: the server can be reached, or no longer.
    pub(crate) fn queue_uevent(self: &Arc<Self>, connected: bool) {
        self.pending_uevents.lock().push(connected, |_, last| last);
        self.uevents.enqueue(self.clone());
    }
}

impl WorkItem<{ crate::session::work::UEVENTS }> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let mut hook = this.hook.lock();
        steps::carry_out(
            || this.pending_uevents.lock().take(),
            |connected| {
                if let Some(hook) = &mut *hook {
                    hook.changed(&this, connected);
                }
            },
        );
    }
}
