// SPDX-License-Identifier: GPL-2.0

//! Notices of the server for the users of a session, and uevents that report whether a path is
//! connected.
//!
//! Sending a uevent waits for other senders, and these may wait for memory, which may wait for one
//! of our disks. A separate worker therefore sends it, which nothing else waits for.

use super::Session;
use ibtrs_core::convert;
use ibtrs_proto::{
    imm::Imm,
    steps, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
};
use kx::work::WorkItem;

/// Maximum number of pending notices. Further ones are dropped, as the server repeats them.
const MAX: usize = 64;

/// Received notices that were not passed to the users yet.
#[pin_data]
pub(super) struct Notices {
    #[pin]
    waiting: SpinLockIrq<Waiting>,
}

/// A notice from the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notice {
    /// The object of this number has changed.
    Changed(u32),
    /// The object `number` is durable, according to the server of attempt `epoch`.
    Durable { epoch: u32, number: u32 },
}

struct Waiting {
    notices: [Notice; MAX],
    count: usize,
}

impl Notices {
    pub(super) fn new() -> impl PinInit<Self> {
        let waiting = Waiting {
            notices: [Notice::Changed(0); MAX],
            count: 0,
        };
        pin_init!(Self {
            waiting <- new_spinlock_irq!(waiting, "Notices::waiting"),
        })
    }

    fn add(&self, notice: Notice) {
        let mut waiting = self.waiting.lock();
        let count = waiting.count;
        let known = waiting
            .notices
            .iter()
            .take(count)
            .any(|other| *other == notice);
        if known {
            return;
        }
        if let Some(place) = waiting.notices.get_mut(count) {
            *place = notice;
            waiting.count += 1;
        }
    }

    fn take(&self) -> Option<Notice> {
        let mut waiting = self.waiting.lock();
        let last = waiting.count.checked_sub(1)?;
        waiting.count = last;
        waiting.notices.get(last).copied()
    }
}

impl Session {
    /// Queues a notice about object `number` for the users.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn noticed(self: &Arc<Self>, number: u32) {
        self.notices.add(Notice::Changed(number));
        self.notice.enqueue(self.clone());
    }

    /// Queues the server's report, received by attempt `epoch`, that object `number` is durable.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn durable(self: &Arc<Self>, epoch: u32, number: u32) {
        self.notices.add(Notice::Durable { epoch, number });
        self.notice.enqueue(self.clone());
    }

    /// Notifies the users that object `number` is durable, and confirms this to the server. Does
    /// neither if attempt `epoch` is no longer connected: it may belong to an earlier session
    /// generation, whose numbers are no longer valid.
    fn note_durable(&self, epoch: u32, number: u32) {
        let via = self.with_multipath(|multipath| {
            let mut paths = multipath.paths.iter();
            paths.find(|path| path.attempt.epoch() == epoch).cloned()
        });
        let Some(via) = via.flatten() else { return };
        if !self.session_events.durable(number) {
            return;
        }
        if let Err(error) = via.send_imm(Imm::DurableSeen(number)) {
            kx::pr_info_ratelimited!(
                "{}: cannot confirm the server's planned stop ({}); the server asks again\n",
                self.name(),
                convert::errno(error).as_str()
            );
        }
    }
}

/// Delivers notices to the users of the session.
impl WorkItem<{ crate::session::work::NOTICE }> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        while let Some(notice) = this.notices.take() {
            match notice {
                Notice::Changed(number) => this.session_events.notice(number),
                Notice::Durable { epoch, number } => this.note_durable(epoch, number),
            }
        }
    }
}

impl Session {
    /// Queues a uevent that reports whether the server can be reached.
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
                    hook.changed(connected);
                }
            },
        );
        if let (Some(hook), Some(told)) = (&*hook, this.take_unsent()) {
            hook.failed_over(&told);
        }
    }
}
