// SPDX-License-Identifier: GPL-2.0

//! Bodies: a message travels without its body, which the receiver gets from the sender's memory.
//!
//! The sender publishes the body, and queues a note and the message behind it. The numbers of both are
//! consecutive, so the receiver's kernel joins them. When the receiver's program lets go of the body, its kernel
//! queues a note in the other direction, and the sender's program gets its receipt. Both notes arrive exactly once.

use super::range::Handle;

/// What the peer must not do. The receiver fails the path that the note came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyError {
    /// A note after a note: there is no message between.
    Twice,
}

impl BodyError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Twice => "two bodies for a message",
        }
    }
}

/// What to do with the memory of a body, which the sender published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// Give the program its receipt, and unmap the memory, gently.
    Receipt,
    /// The peer has let go of what it did not have, or of it twice.
    Unknown,
}

/// The body that waits for its message, in the order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bodies {
    next: Option<(Handle, u64)>,
}

impl Bodies {
    /// A note has arrived, and it is the one that comes next.
    ///
    /// # Errors
    ///
    /// When the former one has no message yet.
    pub fn note(&mut self, handle: Handle, len: u64) -> Result<(), BodyError> {
        match self.next.replace((handle, len)) {
            None => Ok(()),
            Some(_) => Err(BodyError::Twice),
        }
    }

    /// A message was queued: its body, and the bytes of it.
    pub fn message(&mut self) -> Option<(Handle, u64)> {
        self.next.take()
    }

    /// SKIP has come in place of the message: the body that the kernel lets go of, if there was one.
    pub fn skipped(&mut self) -> Option<Handle> {
        self.next.take().map(|(handle, _)| handle)
    }

    /// The peer has let go of `handle`: `lent` are those of the messages whose receipts are outstanding.
    pub fn released(handle: Handle, mut lent: impl Iterator<Item = Handle>) -> Released {
        match lent.any(|other| other == handle) {
            true => Released::Receipt,
            false => Released::Unknown,
        }
    }
}
