// SPDX-License-Identifier: GPL-2.0

//! The credentials of the current task.
//!
//! User and group ids are those of the initial user namespace.
//!
//! # Examples
//!
//! ```
//! if kx::cred::current_uid() == 0 {
//!     // The superuser.
//! }
//! let may_open = kx::cred::current_euid() == 1000 || kx::cred::is_in_egroup(100);
//! // Last, as it may be logged.
//! let may_configure = may_open && kx::cred::is_net_admin();
//! # let _ = may_configure;
//! ```
//!
//! C header: [`include/linux/cred.h`](srctree/include/linux/cred.h)

use kernel::prelude::*;

/// Returns the real user id of the current task.
///
/// # Context
///
/// Of a task.
pub fn current_uid() -> u32 {
    // SAFETY: A task may always read its own credentials.
    unsafe { ibtrs_bindings::kx_current_uid() }
}

/// Returns the effective user id of the current task.
///
/// # Context
///
/// Of a task.
pub fn current_euid() -> u32 {
    // SAFETY: As for `current_uid`.
    unsafe { ibtrs_bindings::kx_current_euid() }
}

/// Returns whether the current task is in a group: by its effective group id, or a supplementary one.
///
/// # Context
///
/// Of a task.
pub fn is_in_egroup(gid: u32) -> bool {
    // SAFETY: As for `current_uid`.
    unsafe { ibtrs_bindings::kx_in_egroup(gid) }
}

/// Returns whether the current task has `CAP_NET_ADMIN` in the initial user namespace. A security module may
/// log a denial, so call this only if no other rule permits the task.
///
/// # Context
///
/// Of a task; *may sleep*.
pub fn is_net_admin() -> bool {
    // CAST: A small constant.
    // SAFETY: Any task may query its own capabilities.
    unsafe { kernel::bindings::capable(kernel::bindings::CAP_NET_ADMIN as c_int) }
}
