// SPDX-License-Identifier: GPL-2.0

//! After how many timeouts a client cancels a request.
//!
//! The operator sets the limit of a disk in use; without a limit, requests wait for the server. The
//! first readers of a new disk are the kernel's partition scan and udev. Udev kills a worker after
//! 180 s, so the reads of a new disk have a shorter limit.

/// How long a disk that is not in use counts as new, in milliseconds: the longest scan, and some
/// time for udev.
pub const NEW_MS: i64 = 180_000;

/// Time for a request of a new disk, in milliseconds.
pub const FIRST_READS_MS: u32 = 30_000;

/// Time after which a partition scan submits no more reads, in milliseconds.
pub const SCAN_MS: u32 = 90_000;

/// The limit for a request that times out after `after_ms` milliseconds; 0 for none.
///
/// `set` is the operator's limit; `age_ms` is the age of the disk, `None` once it was used.
pub fn limit(set: u32, age_ms: Option<i64>, after_ms: u32) -> u32 {
    if set > 0 || age_ms.is_none_or(|age| age >= NEW_MS) {
        return set;
    }
    let after_ms = after_ms.max(1);
    let rounded_up = FIRST_READS_MS.saturating_add(after_ms.saturating_sub(1));
    rounded_up.checked_div(after_ms).unwrap_or(1).max(1)
}
