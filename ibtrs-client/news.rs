// SPDX-License-Identifier: GPL-2.0

//! Waiting for something to change somewhere.

use kernel::{
    new_condvar,
    new_spinlock_irq,
    prelude::*,
    sync::{
        CondVar,
        SpinLockIrq, //
    }, //
};

/// Says that something has changed; whoever waits looks for himself what it is.
#[pin_data]
pub(crate) struct News {
    #[pin]
    count: SpinLockIrq<u64>,
    #[pin]
    posted: CondVar,
}

impl News {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            count <- new_spinlock_irq!(0, "News::count"),
            posted <- new_condvar!("News::posted"),
        })
    }

    /// Wakes all who wait.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn post(&self) {
        *self.count.lock() += 1;
        self.posted.notify_all();
    }

    /// Waits until `ready` gives something; it is asked again after each change.
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
                if self.posted.wait_interruptible(&mut count) {
                    return Err(EINTR);
                }
            }
        }
    }
}
