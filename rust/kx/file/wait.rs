// SPDX-License-Identifier: GPL-2.0

//! Tasks that wait for a file, in a call or by `poll`.

use core::{
    ops::BitOr,
    ptr, //
};
use kernel::{
    bindings,
    error::to_result,
    prelude::*,
    processor::cpu_relax,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        LockClassKey, //
    },
    task::{
        might_sleep,
        TASK_INTERRUPTIBLE,
        TASK_NORMAL, //
    },
    time::{
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic,
        Msecs, //
    },
    types::Opaque, //
};

/// Creates an initializer of a [`WaitQueue`] from its name.
#[macro_export]
macro_rules! new_wait_queue {
    ($name:literal) => {
        $crate::file::WaitQueue::new(::kernel::c_str!($name), ::kernel::static_lock_class!())
    };
}

/// The operations on a file that would not block, for `poll`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready(u32);

impl Ready {
    /// No operation.
    pub const NONE: Self = Self(0);
    /// Reading.
    pub const IN: Self = Self(bindings::POLLIN | bindings::POLLRDNORM);
    /// Writing.
    pub const OUT: Self = Self(bindings::POLLOUT | bindings::POLLWRNORM);
    /// Reading something exceptional.
    pub const PRI: Self = Self(bindings::POLLPRI);
    /// The other end is closed.
    pub const HUP: Self = Self(bindings::POLLHUP | bindings::POLLRDHUP);

    /// The bits for C.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns `self` if `condition` holds, otherwise [`Self::NONE`].
    #[must_use]
    pub const fn when(self, condition: bool) -> Self {
        match condition {
            true => self,
            false => Self::NONE,
        }
    }

    /// Whether all of `other` is in this.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Ready {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A queue of tasks that wait until something has changed.
///
/// # Invariants
///
/// `head` is an initialised `struct wait_queue_head` that does not move.
#[pin_data]
pub struct WaitQueue {
    #[pin]
    head: Opaque<bindings::wait_queue_head>,
    /// The number of wake-ups, for [`WaitQueue::spin`].
    wakes: Atomic<u32>,
}

// SAFETY: A `struct wait_queue_head` may be used from any task.
unsafe impl Send for WaitQueue {}

// SAFETY: A `struct wait_queue_head` has its own lock; every method relies on it.
unsafe impl Sync for WaitQueue {}

impl WaitQueue {
    /// Creates an empty queue; see [`new_wait_queue!`](crate::new_wait_queue).
    pub fn new(name: &'static CStr, key: Pin<&'static LockClassKey>) -> impl PinInit<Self> {
        pin_init!(Self {
            // INVARIANT: The C function initialises the whole struct, and `Self` is pinned.
            head <- Opaque::ffi_init(move |slot| {
                // SAFETY: `slot` is valid for writes and pinned; name and key are static.
                unsafe {
                    bindings::__init_waitqueue_head(slot, name.as_char_ptr(), key.as_ptr())
                }
            }),
            wakes: Atomic::new(0),
        })
    }

    pub(super) fn as_raw(&self) -> *mut bindings::wait_queue_head {
        self.head.get()
    }

    /// Wakes the tasks that poll for one of `ready`, and all tasks in [`WaitQueue::wait`]. The caller
    /// must first have changed the condition, under a lock that the waiters take, too.
    ///
    /// # Context
    ///
    /// *any*
    pub fn wake(&self, ready: Ready) {
        self.wakes.fetch_add(1, Release);
        // CAST: The kernel passes the events as a pointer.
        let key = ptr::without_provenance_mut(ready.bits() as usize);
        // SAFETY: By the type invariant the queue is initialised. The key is for the callbacks of `poll`,
        // which take it for a number.
        unsafe { bindings::__wake_up(self.head.get(), TASK_NORMAL, 0, key) };
    }

    /// Polls for at most `us` microseconds until `ready` returns a value. Stops early if another task is to run
    /// on this processor, or if a signal is pending. `ready` is called once at the start, and then after each
    /// wake-up of the queue.
    ///
    /// # Context
    ///
    /// *may sleep*: it does not, but keeps the processor.
    pub fn spin<R>(&self, us: u32, mut ready: impl FnMut() -> Option<R>) -> Option<R> {
        let begin = Instant::<Monotonic>::now();
        let limit = Delta::from_micros(us.into());
        loop {
            // ORDERING: Pairs with `wake`: a change that `ready` does not see is followed by another number.
            let seen = self.wakes.load(Acquire);
            if let Some(value) = ready() {
                return Some(value);
            }
            loop {
                // SAFETY: This only reads flags of the current task.
                let is_wanted = unsafe { ibtrs_bindings::kx_need_resched() };
                if is_wanted || current!().signal_pending() || begin.elapsed() >= limit {
                    return None;
                }
                if self.wakes.load(Relaxed) != seen {
                    break;
                }
                cpu_relax();
            }
        }
    }

    /// Waits until `ready` returns a value, for at most `limit` milliseconds. `ready` is called again each
    /// time that the queue is woken. It must not sleep.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// - [`ETIMEDOUT`] if `limit` has expired,
    /// - [`ERESTARTSYS`] if interrupted by a signal.
    pub fn wait<R>(&self, limit: Option<Msecs>, mut ready: impl FnMut() -> Option<R>) -> Result<R> {
        might_sleep();
        let mut left = match limit {
            // CAST: `schedule_timeout` takes the greatest value for no limit; the others fit.
            Some(ms) => msecs_to_jiffies(ms).min(isize::MAX as usize - 1) as isize,
            None => isize::MAX,
        };
        let entry = Opaque::<bindings::wait_queue_entry>::uninit();
        // SAFETY: The entry is valid for writes, and stays where it is until this function returns.
        unsafe { bindings::init_wait_entry(entry.get(), 0) };
        let result = loop {
            // SAFETY: By the type invariant the queue is initialised, and the entry was, above. The call
            // puts it into the queue, and `finish_wait` below removes it before it goes.
            let signal = unsafe {
                bindings::prepare_to_wait_event(
                    self.head.get(),
                    entry.get(),
                    TASK_INTERRUPTIBLE as c_int,
                )
            };
            if let Some(value) = ready() {
                break Ok(value);
            }
            // CAST: The result is 0 or an errno.
            if let Err(e) = to_result(signal as c_int) {
                break Err(e);
            }
            if left == 0 {
                break Err(ETIMEDOUT);
            }
            // SAFETY: The task may sleep. It is in the queue, so a change since `ready` wakes it.
            left = unsafe { bindings::schedule_timeout(left) };
        };
        // SAFETY: As for `prepare_to_wait_event`. Afterwards nothing refers to the entry.
        unsafe { bindings::finish_wait(self.head.get(), entry.get()) };
        result
    }
}
