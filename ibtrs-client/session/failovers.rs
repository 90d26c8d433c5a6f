// SPDX-License-Identifier: GPL-2.0

//! Reports of failovers, in sysfs and by uevents.

use super::Session;
use crate::{
    path::attempt::Attempt,
    text::Text, //
};
use ibtrs_core::convert::Shown;
use ibtrs_proto::stats::{
    failover::{
        Failovers,
        Record, //
    },
    latency::Single, //
};
use kernel::{
    fmt,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
    time::{
        ClockSource,
        Instant,
        Monotonic,
        RealTime, //
    }, //
};

/// A path that was lost while another one was connected.
#[derive(Clone, Copy)]
pub(crate) struct Lost {
    /// When the loss was detected, in milliseconds since 1970.
    at_ms: i64,
    path: Text,
    cause: Text,
}

/// A completed failover.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    pub(crate) lost: Lost,
    pub(crate) record: Record,
}

struct State {
    failovers: Failovers,
    /// The last path that was lost.
    lost: Option<Lost>,
    /// A failover without a uevent yet.
    unsent: Option<Told>,
}

impl State {
    /// Marks the last failover for a uevent.
    fn tell(&mut self) {
        let record = self.failovers.last();
        self.unsent = self.lost.map(|lost| Told { lost, record });
    }
}

/// The record of a session's failovers.
#[pin_data]
pub(super) struct FailoverRecord {
    #[pin]
    state: SpinLockIrq<State>,
    epoch: Instant<Monotonic>,
}

impl FailoverRecord {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_spinlock_irq!(
                State {
                    failovers: Failovers::new(),
                    lost: None,
                    unsent: None,
                },
                "FailoverRecord::state"
            ),
            epoch: Instant::now(),
        })
    }

    fn ns(&self, at: Instant<Monotonic>) -> u64 {
        u64::try_from((at - self.epoch).as_nanos()).unwrap_or(0)
    }
}

impl Session {
    /// Records that a path was lost while another one is connected.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn failover_begins(&self, attempt: &Attempt) {
        let lost = Lost {
            at_ms: RealTime::ktime_get() / 1_000_000,
            path: Text::new(fmt!("{}", attempt.path.name())),
            cause: attempt.path.cause(attempt.epoch()),
        };
        let now_ns = self.record.ns(Instant::now());
        let detect_ns = u64::from(attempt.plan().detect_ms()) * 1_000_000;
        let mut state = self.record.state.lock();
        let number = state.failovers.lost(now_ns, detect_ns);
        state.lost = Some(lost);
        drop(state);
        attempt.failover.populate(number);
    }

    /// Records that the failover `path` moves a request off a lost path. The request was submitted at
    /// `since`, and was last moved by the failover `request`. Returns the new value of
    /// `Descriptor::failover`.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn request_moved(&self, path: u32, request: u32, since: Instant<Monotonic>) -> u32 {
        let since_ns = self.record.ns(since);
        let mut state = self.record.state.lock();
        state.failovers.moved(path, request, since_ns)
    }

    /// Records that all requests have left a lost path of failover `number`.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn requests_moved(self: &Arc<Self>, number: u32) {
        self.failover_step(|failovers| failovers.all_moved(number));
    }

    /// Records an answer to a request that failover `number` has moved.
    ///
    /// # Context
    ///
    /// Any.
    #[cold]
    pub(super) fn moved_request_answered(self: &Arc<Self>, number: u32) {
        let now_ns = self.record.ns(Instant::now());
        self.failover_step(|failovers| failovers.answered(number, now_ns));
    }

    /// Records that a request which failover `number` has moved ends in another way.
    ///
    /// # Context
    ///
    /// Any.
    #[cold]
    pub(super) fn moved_request_ended(self: &Arc<Self>, number: u32) {
        self.failover_step(|failovers| failovers.ended(number));
    }

    /// Records that the last path was lost.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn failover_is_cut_off(self: &Arc<Self>) {
        self.failover_step(Failovers::cut_off);
    }

    /// Applies `step`, and sends a uevent if it completes the failover.
    fn failover_step(self: &Arc<Self>, step: impl FnOnce(&mut Failovers) -> bool) {
        let mut state = self.record.state.lock();
        let is_over = step(&mut state.failovers);
        if is_over {
            state.tell();
        }
        drop(state);
        if is_over {
            self.uevents.enqueue(self.clone());
        }
    }

    /// Takes the failover whose uevent is still to be sent.
    pub(super) fn take_unsent(&self) -> Option<Told> {
        self.record.state.lock().unsent.take()
    }

    /// Returns the last failover, which may be in progress.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn last_failover(&self) -> Option<Told> {
        let state = self.record.state.lock();
        let record = state.failovers.last();
        state.lost.map(|lost| Told { lost, record })
    }

    /// Calls `show` with the text of the times that failovers have taken.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn show_failover_times(&self, show: impl FnOnce(Single<'_>) -> Result) -> Result {
        let times = *self.record.state.lock().failovers.times();
        show(Single(&times))
    }

    /// Resets the times that failovers have taken.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn reset_failover_times(&self) {
        self.record.state.lock().failovers.reset_times();
    }
}

impl Told {
    pub(crate) fn path(&self) -> &str {
        self.lost.path.as_str()
    }

    pub(crate) fn cause(&self) -> &str {
        self.lost.cause.as_str()
    }
}

/// The contents of the file `last_failover`.
impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, ms) = (self.lost.at_ms / 1000, self.lost.at_ms % 1000);
        f.write_fmt(fmt!("time {}.{:03}\n", s, ms))?;
        f.write_fmt(fmt!("path {}\n", self.path()))?;
        f.write_fmt(fmt!("cause {}\n", self.cause()))?;
        f.write_fmt(fmt!("{}", Shown(self.record)))
    }
}
