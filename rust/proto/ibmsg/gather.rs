// SPDX-License-Identifier: GPL-2.0

//! Gathering: messages that a program writes with `IBMSG_F_MORE` wait for others, to share a frame with them.
//!
//! The messages that wait are always the last ones of the channel's queue. They form a *batch*, whose number each of
//! them keeps. The batch is sent when the next message would not fit its frame, when a message without the flag is
//! written, when the time of its first message is over, or when the caller says so.

use crate::limits::FRAME;
use crate::wire::{FRAME_HDR_LEN, MESSAGE_HDR_LEN};

/// The least and the greatest watermark, in bytes.
pub const MIN_WATERMARK: u32 = 256;
/// See [`MIN_WATERMARK`].
pub const MAX_WATERMARK: u32 = 65_536;
/// The default: what fits a frame.
// CAST: Small constants.
pub const WATERMARK: u32 = FRAME.saturating_sub(FRAME_HDR_LEN as u32);
/// The shortest and the longest time for which a message may wait, in microseconds.
pub const MIN_WAIT_US: u32 = 100;
/// See [`MIN_WAIT_US`].
pub const MAX_WAIT_US: u32 = 1_000_000;
/// The default.
pub const WAIT_US: u32 = 1000;

/// The number of a batch. It is unique among the batches whose messages are unsent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Batch(u32);

/// The messages of a channel that wait for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gather {
    watermark: u32,
    wait_us: u32,
    /// Of the batch that waits, or of the next one.
    batch: Batch,
    /// Bytes of its records.
    bytes: u32,
    /// When its time is over; none if no message waits.
    until: Option<u64>,
}

impl Default for Gather {
    fn default() -> Self {
        Self {
            watermark: WATERMARK,
            wait_us: WAIT_US,
            batch: Batch(0),
            bytes: 0,
            until: None,
        }
    }
}

impl Gather {
    /// Sets the watermark in bytes, and the time for which a message may wait, in microseconds. What waits is not
    /// affected by the latter. Returns `false` if one of them is out of its range: then nothing has changed.
    #[must_use]
    pub fn tune(&mut self, watermark: u32, wait_us: u32) -> bool {
        let is_legal = (MIN_WATERMARK..=MAX_WATERMARK).contains(&watermark)
            && (MIN_WAIT_US..=MAX_WAIT_US).contains(&wait_us);
        if is_legal {
            (self.watermark, self.wait_us) = (watermark, wait_us);
        }
        is_legal
    }

    /// The watermark, and the time for which a message may wait.
    pub const fn tuning(&self) -> (u32, u32) {
        (self.watermark, self.wait_us)
    }

    /// A message of `len` bytes is added to the queue at `now`, in microseconds; `more` are to follow. It does not wait
    /// for more than half of the time that it has until its `deadline`. Returns its batch. Whether it waits, and which
    /// of the earlier ones, is then what [`Gather::holds`] says.
    pub fn add(&mut self, len: u32, more: bool, now: u64, deadline: Option<u64>) -> Batch {
        // CAST: A small constant.
        let record = len
            .saturating_add(MESSAGE_HDR_LEN as u32)
            .checked_next_multiple_of(8)
            .unwrap_or(u32::MAX);
        if !more || self.bytes.saturating_add(record) > self.watermark {
            self.release();
        }
        let batch = self.batch;
        if more && record <= self.watermark {
            self.bytes = self.bytes.saturating_add(record);
            let left = deadline.map_or(u64::MAX, |deadline| deadline.saturating_sub(now));
            let until = now.saturating_add(u64::from(self.wait_us).min(left / 2));
            self.until = Some(self.until.map_or(until, |former| former.min(until)));
        } else {
            // It does not wait, and the next one that does is of another batch.
            self.next();
        }
        batch
    }

    /// Sends what waits. Returns whether there was anything.
    pub fn release(&mut self) -> bool {
        let was_waiting = self.until.is_some();
        if was_waiting {
            self.next();
        }
        was_waiting
    }

    /// Sends what waits if its time is over. Returns whether there was anything.
    pub fn expire(&mut self, now: u64) -> bool {
        self.until.is_some_and(|until| until <= now) && self.release()
    }

    /// Whether a message of that batch waits.
    pub fn holds(&self, batch: Batch) -> bool {
        self.until.is_some() && self.batch == batch
    }

    /// When the time of what waits is over.
    pub const fn until(&self) -> Option<u64> {
        self.until
    }

    fn next(&mut self) {
        self.batch = Batch(self.batch.0.wrapping_add(1));
        self.bytes = 0;
        self.until = None;
    }
}
