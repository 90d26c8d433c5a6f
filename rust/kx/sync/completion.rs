// SPDX-License-Identifier: GPL-2.0

//! Waiting for one event, with time-outs.
//!
//! [`kernel::sync::Completion`] waits without a limit; this one adds limits and signals.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! use kx::sync::Completion;
//!
//! let done = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
//! // By another task:
//! done.complete_all();
//! // `ETIMEDOUT` if it does not come within a second.
//! done.wait_timeout(1000)?;
//! # Ok::<(), Error>(())
//! ```
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

use kernel::{
    bindings,
    error::to_result,
    ffi::c_int,
    prelude::*,
    task::might_sleep,
    time::{
        msecs_to_jiffies,
        Msecs, //
    },
    types::Opaque, //
};

/// An event for which tasks wait. It happens once.
///
/// # Invariants
///
/// `inner` is an initialised `struct completion` that does not move.
#[pin_data]
pub struct Completion {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A `struct completion` may be used from any task.
unsafe impl Send for Completion {}

// SAFETY: A `struct completion` has its own lock; every method that takes `&self` relies on it.
unsafe impl Sync for Completion {}

impl Completion {
    /// Creates an event that has not happened.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: The C function initialises the whole struct, and `Self` is pinned.
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` points to memory of the right size that nobody else uses yet.
                unsafe { bindings::init_completion(slot) }
            }),
        })
    }

    /// Makes the event happen: all waiters return, and later calls of them return at once. May be
    /// called again.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn complete_all(&self) {
        // SAFETY: By the type invariant this is an initialised completion.
        unsafe { bindings::complete_all(self.inner.get()) }
    }

    /// Returns whether the event has happened.
    ///
    /// # Context
    ///
    /// *any*
    #[inline]
    pub fn is_done(&self) -> bool {
        // SAFETY: By the type invariant this is an initialised completion.
        unsafe { bindings::completion_done(self.inner.get()) }
    }

    /// Waits for the event.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub fn wait(&self) {
        might_sleep();
        // SAFETY: By the type invariant this is an initialised completion.
        unsafe { bindings::wait_for_completion(self.inner.get()) }
    }

    /// Waits for the event, or until a signal kills the task. A signal that the task handles does not
    /// end the wait.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ERESTARTSYS`] if the task is being killed.
    pub fn wait_killable(&self) -> Result {
        might_sleep();
        // SAFETY: By the type invariant this is an initialised completion.
        to_result(unsafe { bindings::wait_for_completion_killable(self.inner.get()) })
    }

    /// Waits for the event, for at most `ms` milliseconds.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ETIMEDOUT`] if the event did not happen in time.
    pub fn wait_timeout(&self, ms: Msecs) -> Result {
        might_sleep();
        // SAFETY: By the type invariant this is an initialised completion.
        let left = unsafe {
            bindings::wait_for_completion_timeout(self.inner.get(), msecs_to_jiffies(ms))
        };
        timed_out(left == 0)
    }

    /// Like [`Self::wait_timeout`], but returns early when a signal arrives.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// - [`ETIMEDOUT`] if the event did not happen in time,
    /// - [`ERESTARTSYS`] if interrupted by a signal.
    pub fn wait_interruptible_timeout(&self, ms: Msecs) -> Result {
        might_sleep();
        // SAFETY: By the type invariant this is an initialised completion.
        let ret = unsafe {
            bindings::wait_for_completion_interruptible_timeout(
                self.inner.get(),
                msecs_to_jiffies(ms),
            )
        };
        // The result is a negative errno, zero for a time-out, or the number of jiffies left.
        // CAST: An errno fits into any integer; larger values are not negative.
        to_result(ret.min(0) as c_int)?;
        timed_out(ret == 0)
    }
}

fn timed_out(timed_out: bool) -> Result {
    if timed_out {
        Err(ETIMEDOUT)
    } else {
        Ok(())
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_completion)]
mod tests {
    use super::*;

    #[test]
    fn times_out() -> Result {
        let event = KBox::pin_init(Completion::new(), GFP_KERNEL)?;
        assert!(!event.is_done());
        assert_eq!(event.wait_timeout(1), Err(ETIMEDOUT));
        assert_eq!(event.wait_interruptible_timeout(1), Err(ETIMEDOUT));
        Ok(())
    }

    #[test]
    fn stays_done() -> Result {
        let event = KBox::pin_init(Completion::new(), GFP_KERNEL)?;
        event.complete_all();
        event.complete_all();
        assert!(event.is_done());
        event.wait();
        assert_eq!(event.wait_killable(), Ok(()));
        assert_eq!(event.wait_timeout(0), Ok(()));
        assert_eq!(event.wait_interruptible_timeout(1), Ok(()));
        Ok(())
    }
}
