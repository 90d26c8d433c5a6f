// SPDX-License-Identifier: GPL-2.0

//! Random numbers and UUIDs.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! // May sleep until there is enough entropy.
//! kx::random::wait_seeded()?;
//! let key: [u8; 32] = kx::random::secret();
//! let pause_ms = 500 + kx::random::below(500);
//! # let _ = (key, pause_ms, kx::random::uuid());
//! # Ok::<(), Error>(())
//! ```
//!
//! C headers: [`include/linux/random.h`](srctree/include/linux/random.h),
//! [`include/linux/uuid.h`](srctree/include/linux/uuid.h)

use kernel::{
    bindings,
    error::to_result,
    prelude::*,
    task::might_sleep, //
};

/// Returns a random number of 32 bits.
///
/// # Context
///
/// *any*
#[inline]
pub fn next_u32() -> u32 {
    // SAFETY: The callee has no preconditions.
    unsafe { bindings::get_random_u32() }
}

/// Returns a random number of 64 bits.
///
/// # Context
///
/// *any*
#[inline]
pub fn next_u64() -> u64 {
    // SAFETY: The callee has no preconditions.
    unsafe { bindings::get_random_u64() }
}

/// Waits until the kernel's random number generator is seeded, as [`secret`] requires.
///
/// # Context
///
/// *may sleep*; a signal interrupts the wait.
///
/// # Errors
///
/// `ERESTARTSYS` if a signal arrived.
pub fn wait_seeded() -> Result {
    might_sleep();
    // SAFETY: The callee requires only that the task may sleep, as it may here.
    to_result(unsafe { ibtrs_bindings::wait_for_random_bytes() })
}

/// Returns random bytes for keys and nonces, unpredictable once [`wait_seeded`] has returned.
///
/// # Context
///
/// *any*.
pub fn secret<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

/// Fills `bytes` as [`secret`] does, in place, so that no other copy is left in memory.
///
/// # Context
///
/// *any*.
pub fn fill(bytes: &mut [u8]) {
    // SAFETY: The slice is valid for writes of its length.
    unsafe { bindings::get_random_bytes(bytes.as_mut_ptr().cast(), bytes.len()) };
}

/// Returns a random number below `limit`, or zero if `limit` is zero.
///
/// The result is slightly biased, which is good enough for spreading retries.
///
/// # Context
///
/// *any*
pub fn below(limit: u32) -> u32 {
    let scaled = u64::from(next_u32()) * u64::from(limit);
    // CAST: The product of two `u32` is less than 2^64, so its upper half fits.
    (scaled >> 32) as u32
}

/// Returns a new random UUID (version 4), in the byte order of RFC 9562.
///
/// # Context
///
/// *any*
pub fn uuid() -> [u8; 16] {
    let mut uuid = bindings::uuid_t { b: [0; 16] };
    // SAFETY: The pointer is valid for writes during the call.
    unsafe { bindings::uuid_gen(&mut uuid) };
    uuid.b
}
