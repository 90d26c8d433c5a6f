// SPDX-License-Identifier: GPL-2.0

//! Channels that were refused, by the reason.

pub use ibtrs_proto::stats::counter::message_refusals as reasons;
use ibtrs_proto::Errno;

/// How many were refused for each of [`reasons`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Refused([u64; reasons::ALL.len()]);

impl Refused {
    /// None was.
    pub const fn new() -> Self {
        Self([0; reasons::ALL.len()])
    }

    /// One was, for one of [`reasons`].
    pub fn add(&mut self, reason: usize) {
        if let Some(count) = self.0.get_mut(reason) {
            *count = count.saturating_add(1);
        }
    }

    /// How many were refused for one of [`reasons`].
    pub fn get(&self, reason: usize) -> u64 {
        self.0.get(reason).copied().unwrap_or(0)
    }
}

/// The reason for which the other end refuses, as far as its errno tells; none if the session is being closed. A program
/// may refuse with any errno.
pub const fn told(errno: Errno) -> Option<usize> {
    Some(match errno {
        Errno::EACCES => reasons::RULE,
        Errno::EDQUOT => reasons::LIMIT,
        Errno::EAGAIN => reasons::BACKLOG,
        Errno::ENOENT => reasons::UNBOUND,
        Errno::ENOBUFS => reasons::MEMORY,
        Errno::ESHUTDOWN => return None,
        _ => reasons::PROGRAM,
    })
}
