// SPDX-License-Identifier: GPL-2.0

//! Positions in the order in which work requests complete.

/// A position in the order of all work requests of a send queue, in which they complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The number of the queue, which no other ever has.
    pub(crate) queue: u64,
    /// The number of the request, from 1.
    pub(crate) number: u64,
}
