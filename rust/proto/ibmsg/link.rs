// SPDX-License-Identifier: GPL-2.0

//! Flow control of a connection: no frame is sent for which no receive is posted.
//!
//! The credits of channels bound memory; these bound frames, of all channels of a connection. Each
//! frame carries a cumulative limit. The last credit is kept for a frame that gives credits to the
//! peer, so that two sides cannot wait for each other.

use crate::limits::MAX_FRAMES;
use crate::seq::Seq;

/// What is wrong with a frame. The receiver fails the path that it came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// More frames than the largest window has.
    Limit(Seq),
    /// The peer has sent more frames than it may.
    Overrun,
}

impl FrameError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Limit(_) => "credits for more frames than the largest window has",
            Self::Overrun => "more frames than credits",
        }
    }
}

/// Frames of one connection, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Frames sent, and how many may be.
    sent: Seq,
    limit: Seq,
    /// Frames received, how many there are receives for, and what the peer knows of that.
    received: Seq,
    posted: Seq,
    announced: Seq,
    /// Half of the receives. With much less, one frame that goes out for credits alone makes the next one due at the
    /// peer while messages go to and fro, and so on for ever.
    half: u32,
}

impl Link {
    /// A new connection: `peer` receives are posted there, and `own` here. Both were told by the
    /// connection messages; they are at least [`crate::limits::MIN_FRAMES`].
    pub const fn new(own: u32, peer: u32) -> Self {
        let none = Seq::new(0);
        Self {
            sent: none,
            limit: none.plus(peer),
            received: none,
            posted: none.plus(own),
            announced: none.plus(own),
            half: match own / 2 {
                // An answer to each credit would be a conversation without an end.
                0 | 1 => 2,
                half => half,
            },
        }
    }

    /// Frames that the peer may send beyond what it knows.
    const fn unannounced(&self) -> u32 {
        self.posted.get().wrapping_sub(self.announced.get())
    }

    /// Whether a frame may be sent.
    pub const fn may_send(&self) -> bool {
        match self.limit.since(self.sent) {
            ..=0 => false,
            1 => self.unannounced() > 0,
            2.. => true,
        }
    }

    /// Sends a frame: returns the limit for its header, or `None` if none may be sent.
    pub fn send(&mut self) -> Option<Seq> {
        if !self.may_send() {
            return None;
        }
        self.sent = self.sent.plus(1);
        self.announced = self.posted;
        Some(self.announced)
    }

    /// Whether a frame is to be sent, without a record if need be, because the peer runs out of
    /// credits. [`Link::may_send`] decides whether it can be.
    pub const fn owes_credits(&self) -> bool {
        self.unannounced() >= self.half
    }

    /// A frame has arrived, with this limit in its header.
    ///
    /// # Errors
    ///
    /// When the limit is impossible, or the peer had no credit for the frame.
    pub fn received(&mut self, limit: Seq) -> Result<(), FrameError> {
        if limit.is_beyond(self.sent, MAX_FRAMES) {
            return Err(FrameError::Limit(limit));
        }
        let received = self.received.plus(1);
        if self.announced.is_before(received) {
            return Err(FrameError::Overrun);
        }
        self.received = received;
        self.limit = self.limit.later(limit);
        Ok(())
    }

    /// A receive was posted again.
    pub fn reposted(&mut self) {
        self.posted = self.posted.plus(1);
    }
}
