// SPDX-License-Identifier: GPL-2.0

//! Rate-limited printing.
//!
//! A message that a peer, a user or a failing device can cause repeatedly is printed with
//! [`pr_err_ratelimited!`](crate::pr_err_ratelimited) or one of its siblings. Each place in the
//! source prints up to ten lines in five seconds, and later the number of suppressed lines.
//!
//! # Examples
//!
//! ```
//! # const __LOG_PREFIX: &[u8] = b"example\0";
//! # fn main() {
//! use kx::{log::RateLimit, pr_err_ratelimited};
//!
//! static OF_PEERS: RateLimit = RateLimit::new();
//!
//! pr_err_ratelimited!("a peer has sent {} bytes too many\n", 3);
//! if OF_PEERS.allow(c"lines about peers") {
//!     // Print one.
//! }
//! # }
//! ```
//!
//! C header: [`include/linux/ratelimit.h`](srctree/include/linux/ratelimit.h)

use kernel::{
    bindings,
    prelude::*,
    types::Opaque, //
};

/// A limit on how often an action may be taken.
///
/// # Invariants
///
/// `state` is an initialised `struct ratelimit_state`.
pub struct RateLimit {
    state: Opaque<bindings::ratelimit_state>,
}

// SAFETY: The only access is `___ratelimit()`, which takes the lock of the state or uses atomics.
unsafe impl Sync for RateLimit {}

impl RateLimit {
    /// Creates a limit of ten times in five seconds, the kernel's default.
    ///
    /// Only for a `static`: with lock debugging on, the address of the lock is its class.
    pub const fn new() -> Self {
        Self::with(
            ibtrs_bindings::DEFAULT_RATELIMIT_INTERVAL,
            ibtrs_bindings::DEFAULT_RATELIMIT_BURST,
        )
    }

    /// Creates a limit of `burst` times in `interval` jiffies.
    ///
    /// Only for a `static`, like [`Self::new`].
    pub const fn with(interval: c_int, burst: c_int) -> Self {
        let mut state: bindings::ratelimit_state = pin_init::zeroed();
        state.interval = interval;
        state.burst = burst;
        #[cfg(CONFIG_DEBUG_SPINLOCK)]
        {
            state.lock.magic = bindings::SPINLOCK_MAGIC;
            state.lock.owner_cpu = u32::MAX;
            state.lock.owner = core::ptr::without_provenance_mut(usize::MAX);
        }
        #[cfg(CONFIG_DEBUG_LOCK_ALLOC)]
        {
            state.lock.dep_map.name = kernel::str::as_char_ptr_in_const_context(c"ratelimit");
            // CAST: One of a few small constants.
            state.lock.dep_map.wait_type_inner = bindings::lockdep_wait_type_LD_WAIT_SPIN as u8;
        }
        // INVARIANT: These are the values of `RATELIMIT_STATE_INIT()`.
        Self {
            state: Opaque::new(state),
        }
    }

    /// Returns whether the action may be taken now. The log later shows `name` with the number of
    /// times this has returned `false`.
    ///
    /// # Context
    ///
    /// *any*
    pub fn allow(&self, name: &CStr) -> bool {
        // SAFETY: By the type invariant the state is initialised. The callee reads the name only
        // during the call.
        unsafe { bindings::___ratelimit(self.state.get(), name.as_char_ptr()) != 0 }
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns whether this place in the source may print now.
#[doc(hidden)]
#[macro_export]
macro_rules! __may_print {
    () => {{
        static LIMIT: $crate::log::RateLimit = $crate::log::RateLimit::new();
        LIMIT.allow(::kernel::c_str!(::core::module_path!()))
    }};
}

/// Prints an error (level 3), unless this place in the source has reached its limit.
#[macro_export]
macro_rules! pr_err_ratelimited {
    ($($arg:tt)*) => {
        if $crate::__may_print!() {
            ::kernel::pr_err!($($arg)*)
        }
    };
}

/// Prints a warning (level 4), unless this place in the source has reached its limit.
#[macro_export]
macro_rules! pr_warn_ratelimited {
    ($($arg:tt)*) => {
        if $crate::__may_print!() {
            ::kernel::pr_warn!($($arg)*)
        }
    };
}

/// Prints an informational message (level 6), unless this place in the source has reached its
/// limit.
#[macro_export]
macro_rules! pr_info_ratelimited {
    ($($arg:tt)*) => {
        if $crate::__may_print!() {
            ::kernel::pr_info!($($arg)*)
        }
    };
}

pub use crate::{
    pr_err_ratelimited,
    pr_info_ratelimited,
    pr_warn_ratelimited, //
};

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_rate_limit)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        // An interval of at least 1000 seconds.
        static LIMIT: RateLimit = RateLimit::with(1_000_000, 3);
        let allowed = (0..10).filter(|_| LIMIT.allow(c"test")).count();
        assert_eq!(allowed, 3);
    }

    #[test]
    fn each_place_has_its_own() {
        let may_print = || crate::__may_print!();
        assert_eq!((0..20).filter(|_| may_print()).count(), 10);
        assert!(crate::__may_print!());
    }
}
