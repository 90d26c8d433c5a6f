// SPDX-License-Identifier: GPL-2.0

//! Publish and subscribe: the logs of a portal. [`ibmsg_proto::publish`] decides.
//!
//! An entry is kept once, and by reference in the queue of each channel that is to get it. Locks: that of a session
//! comes before that of the logs. So subscribers are notified when the latter is not held.

mod logs;

pub(crate) use logs::{
    Logs,
    Unpublished, //
};

use ibmsg_proto::publish::{
    LogTerms,
    Policy, //
};
use kernel::prelude::*;

/// Gets what is published.
pub(crate) trait Follower: Send + Sync {
    /// There may be something to send.
    ///
    /// # Context
    ///
    /// *any*. The caller holds no locks.
    fn serve(&self);
}

/// Entries and bytes of a log whose program says nothing.
const ENTRIES: u32 = 256;
const BYTES: u64 = 256 << 10;
/// The most of both.
const MAX_ENTRIES: u32 = 1 << 20;
const MAX_BYTES: u64 = 1 << 30;
/// Memory of an entry beside its content.
const ENTRY: u64 = 96;

/// Terms that a program has said. 0 stands for the default.
///
/// # Errors
///
/// [`EINVAL`]
pub(crate) fn terms(entries: u32, bytes: u64, policy: u32) -> Result<LogTerms> {
    let policy = match policy {
        0 => Policy::Wait,
        1 => Policy::Drop,
        2 => Policy::Close,
        _ => return Err(EINVAL),
    };
    let entries = if entries == 0 { ENTRIES } else { entries };
    let bytes = if bytes == 0 { BYTES } else { bytes };
    if entries > MAX_ENTRIES || bytes > MAX_BYTES {
        return Err(EINVAL);
    }
    LogTerms::new(entries, bytes, policy).ok_or(EINVAL)
}

/// The number of a policy.
pub(crate) const fn policy(terms: &LogTerms) -> u32 {
    match terms.policy() {
        Policy::Wait => 0,
        Policy::Drop => 1,
        Policy::Close => 2,
    }
}

/// The memory of a log.
pub(crate) fn memory(terms: &LogTerms) -> u64 {
    terms.bytes() + u64::from(terms.entries()) * ENTRY
}
