// SPDX-License-Identifier: GPL-2.0

//! The heartbeat of a path: [`Heartbeat`] with the kernel's clock.

use ibtrs_proto::{
    hb::{
        HbAction,
        Heartbeat, //
    },
    imm::Imm, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::SpinLockIrq,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::sync::atomic::{
    AtomicFlag,
    Relaxed, //
};

const NS_PER_MS: u64 = 1_000_000;

/// The heartbeat of a path.
#[pin_data]
pub struct PathHeartbeat {
    #[pin]
    state: SpinLockIrq<Heartbeat>,
    /// Something was received since the last tick. Kept apart from the state, so that reception on
    /// a busy path only reads a shared cache line.
    heard: AtomicFlag,
    /// Set until something is received after [`PathHeartbeat::listen`].
    silent: AtomicFlag,
    epoch: Instant<Monotonic>,
}

/// Never inlined: lockdep expects one class to have one name, at one address, and every module that
/// inlines this function would have its own copy of the name.
#[inline(never)]
fn new_state(missed_max: u32) -> impl PinInit<SpinLockIrq<Heartbeat>> {
    new_spinlock_irq!(Heartbeat::new(missed_max), "PathHeartbeat::state")
}

impl PathHeartbeat {
    /// Creates the heartbeat of a path, which fails after `missed_max` silent intervals.
    pub fn new(missed_max: u32) -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_state(missed_max),
            heard: AtomicFlag::new(false),
            silent: AtomicFlag::new(false),
            epoch: Instant::now(),
        })
    }

    /// Changes the number of silent intervals after which the path fails.
    ///
    /// # Context
    ///
    /// Any.
    pub fn set_missed_max(&self, missed_max: u32) {
        self.state.lock().set_missed_max(missed_max);
    }

    /// Returns the nanoseconds since the heartbeat was created.
    ///
    /// # Context
    ///
    /// Any.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(0)
    }

    fn tick(&self) -> HbAction {
        let mut state = self.state.lock();
        if self.heard.xchg(false, Relaxed) {
            state.received();
        }
        state.tick(self.now_ns())
    }

    /// Handles the end of an interval. Calls `send` if a heartbeat is due; `EAGAIN` of `send` is
    /// not an error.
    ///
    /// # Context
    ///
    /// The context that `send` requires.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` when the peer has been silent for too long; other errors of `send`.
    pub fn send_due(&self, send: impl FnOnce(Imm) -> Result) -> Result {
        match self.tick() {
            HbAction::Send => match send(Imm::Heartbeat) {
                // A full send queue holds messages that the peer must acknowledge anyway.
                Err(EAGAIN) => Ok(()),
                result => result,
            },
            HbAction::Nothing => Ok(()),
            HbAction::Dead => Err(ETIMEDOUT),
        }
    }

    /// Returns in how many milliseconds the next interval ends. Called at the end of an interval.
    ///
    /// # Context
    ///
    /// Any.
    pub fn next_in_ms(&self, interval_ms: u32) -> u32 {
        let interval = u64::from(interval_ms) * NS_PER_MS;
        let ns = self.state.lock().next_in(self.now_ns(), interval);
        // CAST: At most `interval_ms`.
        (ns / NS_PER_MS) as u32
    }

    /// Returns for how many milliseconds a heartbeat has been overdue; 0 if none is.
    ///
    /// # Context
    ///
    /// Any.
    pub fn overdue_ms(&self) -> u64 {
        if self.heard.load(Relaxed) {
            return 0;
        }
        let overdue = self.state.lock().overdue(self.now_ns());
        overdue.unwrap_or(0) / NS_PER_MS
    }

    /// Records that the peer has sent something.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn received(&self) {
        if !self.heard.load(Relaxed) {
            self.heard.store(true, Relaxed);
        }
        if self.silent.load(Relaxed) {
            self.silent.store(false, Relaxed);
        }
    }

    /// Starts listening for the peer: [`PathHeartbeat::is_silent`] covers the time from now on. To
    /// provoke an answer, the caller then sends an [`Imm::Heartbeat`].
    ///
    /// # Context
    ///
    /// Any.
    pub fn listen(&self) {
        self.silent.store(true, Relaxed);
    }

    /// Returns whether the peer has sent nothing since [`PathHeartbeat::listen`].
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_silent(&self) -> bool {
        self.silent.load(Relaxed)
    }

    /// Records the answer to a heartbeat; returns the round trip in nanoseconds, or `None` if no
    /// heartbeat was sent since the last answer.
    ///
    /// # Context
    ///
    /// Any.
    pub fn answered(&self) -> Option<u64> {
        self.state.lock().ack(self.now_ns())
    }
}
