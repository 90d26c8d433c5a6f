// SPDX-License-Identifier: GPL-2.0

//! Tasks that wait until a session or a path has changed.

use kernel::{
    new_condvar,
    new_spinlock_irq,
    prelude::*,
    sync::{
        CondVar,
        SpinLockIrq, //
    }, //
};

/// Wakes tasks after a change; each checks its own condition.
#[pin_data]
pub(crate) struct WaitQueue {
    #[pin]
    count: SpinLockIrq<u64>,
    #[pin]
    changed: CondVar,
}

impl WaitQueue {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            count <- new_spinlock_irq!(0, "WaitQueue::count"),
            changed <- new_condvar!("WaitQueue::changed"),
        })
    }

    /// Wakes all waiting tasks.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn wake_all(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until `ready` returns a value; `ready` is called again after each change.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// `EINTR`.
    pub(crate) fn wait<R>(&self, mut ready: impl FnMut() -> Option<R>) -> Result<R> {
        loop {
            let seen = *self.count.lock();
            if let Some(value) = ready() {
                return Ok(value);
            }
            let mut count = self.count.lock();
            while *count == seen {
                if self.changed.wait_interruptible(&mut count) {
                    return Err(EINTR);
                }
            }
        }
    }
    /// Waits until `ready` returns true, for conditions that are certain to become true soon.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn wait_uninterruptible(&self, mut ready: impl FnMut() -> bool) {
        loop {
            let seen = *self.count.lock();
            if ready() {
                return;
            }
            let mut count = self.count.lock();
            while *count == seen {
                self.changed.wait(&mut count);
            }
        }
    }
}
