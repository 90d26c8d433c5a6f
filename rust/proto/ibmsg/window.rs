// SPDX-License-Identifier: GPL-2.0

//! The terms on which one side of a channel receives.

use crate::limits::{cost, MAX_CALLS, MAX_MESSAGE, MAX_WINDOW_BYTES, MAX_WINDOW_MESSAGES};
use crate::memory::terms::MemoryTerms;
use crate::publish::terms::PublishTerms;

/// What a side is ready to receive on a channel. OPEN has the terms of the opener, ACCEPT those of the
/// acceptor; they stay as they are while the channel exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    messages: u32,
    bytes: u32,
    max_message: u32,
    calls: u16,
    memory: Option<MemoryTerms>,
    publish: Option<PublishTerms>,
}

/// Why terms were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowError {
    /// No messages, or more than [`MAX_WINDOW_MESSAGES`].
    Messages(u32),
    /// More bytes than [`MAX_WINDOW_BYTES`], or fewer than the longest message costs: that message
    /// would wait for ever.
    Bytes(u32),
    /// Longer messages than [`MAX_MESSAGE`].
    MaxMessage(u32),
    /// More calls than [`MAX_CALLS`].
    Calls(u16),
    /// Memory with no keys or pushes, or with too many.
    Memory,
    /// No subscriptions, or too many.
    Publish,
}

impl WindowError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Messages(_) => "window of no messages or of too many",
            Self::Bytes(_) => "window of too many bytes, or too few for the longest message",
            Self::MaxMessage(_) => "longest message is longer than the protocol allows",
            Self::Calls(_) => "more calls than the protocol allows",
            Self::Memory => "memory with no keys or with too many",
            Self::Publish => "no subscriptions or too many",
        }
    }
}

impl Window {
    /// Terms of at most `messages` messages of together `bytes` bytes ([`cost`] of each) that the
    /// program has not taken, each of at most `max_message` bytes, and of `calls` unanswered requests.
    ///
    /// # Errors
    ///
    /// When a number is out of range.
    pub const fn new(
        messages: u32,
        bytes: u32,
        max_message: u32,
        calls: u16,
    ) -> Result<Self, WindowError> {
        if messages == 0 || messages > MAX_WINDOW_MESSAGES {
            return Err(WindowError::Messages(messages));
        }
        if max_message > MAX_MESSAGE {
            return Err(WindowError::MaxMessage(max_message));
        }
        if bytes < cost(max_message) || bytes > MAX_WINDOW_BYTES {
            return Err(WindowError::Bytes(bytes));
        }
        if calls > MAX_CALLS {
            return Err(WindowError::Calls(calls));
        }
        Ok(Self {
            messages,
            bytes,
            max_message,
            calls,
            memory: None,
            publish: None,
        })
    }

    /// The same terms, and memory.
    #[must_use]
    pub const fn with_memory(self, memory: Option<MemoryTerms>) -> Self {
        Self { memory, ..self }
    }

    /// The terms of memory; `None`: this side has none. A channel has memory if both sides do.
    pub const fn memory(&self) -> Option<MemoryTerms> {
        self.memory
    }

    /// The same terms, and publishing.
    #[must_use]
    pub const fn with_publishing(self, publish: Option<PublishTerms>) -> Self {
        Self { publish, ..self }
    }

    /// The terms of publishing; `None`: this side has none. See [`PublishTerms::agreed`].
    pub const fn publishing(&self) -> Option<PublishTerms> {
        self.publish
    }

    /// Messages that may wait for the program: 1 to [`MAX_WINDOW_MESSAGES`].
    #[inline]
    pub const fn messages(&self) -> u32 {
        self.messages
    }

    /// Bytes that may wait for the program, [`cost`] of each message.
    #[inline]
    pub const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Bytes of the longest message: at most [`MAX_MESSAGE`].
    #[inline]
    pub const fn max_message(&self) -> u32 {
        self.max_message
    }

    /// Requests that may be unanswered: at most [`MAX_CALLS`]; 0: this side answers no calls.
    #[inline]
    pub const fn calls(&self) -> u16 {
        self.calls
    }
}
