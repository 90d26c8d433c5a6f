// SPDX-License-Identifier: GPL-2.0

//! The user of the current task.
//!
//! # Examples
//!
//! ```
//! if kx::cred::current_uid() == 0 {
//!     // The superuser.
//! }
//! ```
//!
//! C header: [`include/linux/cred.h`](srctree/include/linux/cred.h)

/// The number of the current task's user, as it is outside of all user namespaces.
///
/// # Context
///
/// Of a task.
pub fn current_uid() -> u32 {
    // SAFETY: A task may always look at its own credentials.
    unsafe { ibtrs_bindings::kx_current_uid() }
}
