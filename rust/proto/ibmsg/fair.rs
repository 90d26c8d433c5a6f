// SPDX-License-Identifier: GPL-2.0

//! Fair queueing of the channels of a connection: deficit round robin by bytes.
//!
//! The channels that can send something are in a circular list, which the caller has. The first one
//! sends frames as long as its quantum lasts, then goes to the end of the list. A channel without
//! anything to send leaves the list. So each channel gets the same number of bytes, however long its
//! messages are, and waits at most for one quantum and one frame of each other channel.

/// Bytes that a channel may still send before it is the next one's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deficit(u32);

impl Deficit {
    /// The channel has come to the front of the list. It gets `quantum` bytes: at least the longest
    /// frame, so that it can send one.
    pub fn begin(&mut self, quantum: u32) {
        self.0 = self
            .0
            .saturating_add(quantum)
            .min(quantum.saturating_mul(2));
    }

    /// Whether the channel may send a frame of `len` bytes now. If not, it goes to the end of the list,
    /// and keeps what it has left.
    #[must_use]
    pub fn spend(&mut self, len: u32) -> bool {
        match self.0.checked_sub(len) {
            Some(left) => {
                self.0 = left;
                true
            }
            None => false,
        }
    }

    /// The channel has nothing to send, and leaves the list: it saves nothing up.
    pub fn clear(&mut self) {
        self.0 = 0;
    }
}
