// SPDX-License-Identifier: GPL-2.0

//! Split of the queue depth between I/O and administrative messages.
//!
//! A request may only use a chunk whose permit it holds. The tag of a block request is its permit;
//! a few chunks at the end are reserved for messages: ids `0..io` are for I/O, `io..queue_depth`
//! for messages.

/// Most chunks that are ever reserved for messages.
pub const MAX_RESERVED: u16 = 64;

/// The split of a queue.
///
/// # Invariants
///
/// `0 < reserved < queue_depth` unless the queue holds a single chunk, which both share then
/// (`reserved == 0`); `reserved <= MAX_RESERVED`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DepthSplit {
    queue_depth: u16,
    reserved: u16,
}

impl DepthSplit {
    /// Reserves `wanted` of `queue_depth` chunks for messages: at least one, but at most
    /// [`MAX_RESERVED`] and at most half of them.
    pub const fn new(queue_depth: u16, wanted: u16) -> Self {
        let mut reserved = wanted;
        if reserved == 0 {
            reserved = 1;
        }
        if reserved > MAX_RESERVED {
            reserved = MAX_RESERVED;
        }
        let half = queue_depth >> 1;
        if reserved > half {
            reserved = half;
        }
        // INVARIANT: half is 0 only for a depth of 1 or 0.
        Self {
            queue_depth,
            reserved,
        }
    }

    /// Chunks that are reserved for messages of a session, unless the queue is very short.
    pub const MESSAGES: u16 = 4;

    /// Splits a queue of `queue_depth` chunks as sessions do.
    pub const fn of_session(queue_depth: u16) -> Self {
        Self::new(
            queue_depth,
            if queue_depth < 16 { 1 } else { Self::MESSAGES },
        )
    }

    /// Number of all chunks.
    #[inline]
    pub const fn queue_depth(&self) -> u16 {
        self.queue_depth
    }

    /// Number of chunks reserved for messages: the last ones.
    #[inline]
    pub const fn reserved(&self) -> u16 {
        self.reserved
    }

    /// Number of chunks for I/O: the first ones.
    #[inline]
    pub const fn io(&self) -> u16 {
        self.queue_depth.saturating_sub(self.reserved)
    }
}

/// Free ids out of at most 64, as a plain value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeIds {
    all: u64,
    free: u64,
}

impl FreeIds {
    /// Ids `0..count`, all free; [`MAX_RESERVED`] ids at most.
    pub const fn new(count: u16) -> Self {
        // Lossless: u16 to u32.
        let all = match 1u64.checked_shl(count as u32) {
            Some(bit) => bit.wrapping_sub(1),
            None => u64::MAX,
        };
        Self { all, free: all }
    }

    /// Takes the lowest free id.
    pub fn take(&mut self) -> Option<u16> {
        let id = u16::try_from(self.free.trailing_zeros()).ok()?;
        let bit = 1u64.checked_shl(u32::from(id))?;
        self.free &= !bit;
        Some(id)
    }

    /// Whether no id is taken.
    pub const fn all_are_free(&self) -> bool {
        self.free == self.all
    }

    /// Frees an id; returns `false` if it was not taken.
    pub fn give(&mut self, id: u16) -> bool {
        match 1u64.checked_shl(u32::from(id)) {
            Some(bit) if self.all & bit != 0 && self.free & bit == 0 => {
                self.free |= bit;
                true
            }
            _ => false,
        }
    }
}
