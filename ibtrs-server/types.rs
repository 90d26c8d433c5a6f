// SPDX-License-Identifier: GPL-2.0

//! Types that several layers share, below all of them.

use crate::ends::Ends;
use ibtrs_proto::{
    capsule::Window,
    join::Attempt, //
};
use kernel::{
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};

/// Data of up to this many bytes is copied through memory that no client can write to, which costs
/// less than an invalidation.
pub(crate) const SMALL_BYTES: usize = 16384;

/// Maximum number of scatter elements of a work request. With more, rxe would take twice the memory
/// for a send queue.
pub(crate) const MAX_SGES: u32 = 3;
/// The purpose of a connection, which selects the service for its requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Requests for block devices.
    Blocks,
}

impl Purpose {
    /// All purposes, in the order of their numbers.
    const ALL: [Self; 1] = [Self::Blocks];
}

/// At most one entry for each purpose.
pub(crate) struct Table<T>([Option<Arc<T>>; Purpose::ALL.len()])
where
    T: ?Sized;

impl<T: ?Sized> Table<T> {
    /// Without entries.
    pub(crate) const fn new() -> Self {
        Self([const { None }; Purpose::ALL.len()])
    }

    /// Sets the entry of a purpose.
    pub(crate) fn set(&mut self, purpose: Purpose, entry: Arc<T>) {
        // CAST: The number of the purpose.
        if let Some(place) = self.0.get_mut(purpose as usize) {
            *place = Some(entry);
        }
    }

    /// Returns the entry of a purpose.
    #[inline]
    pub(crate) fn of(&self, purpose: Purpose) -> Option<&T> {
        // CAST: The number of the purpose.
        self.0.get(purpose as usize)?.as_deref()
    }

    /// Returns all entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Purpose, &T)> {
        let purposes = Purpose::ALL.into_iter();
        purposes.filter_map(|purpose| Some((purpose, self.of(purpose)?)))
    }
}

/// A time by which something must be done.
#[derive(Clone, Copy)]
pub struct Deadline {
    from: Instant<Monotonic>,
    limit_ms: u32,
}

impl Deadline {
    /// Returns the deadline `limit_ms` milliseconds from now.
    pub fn in_ms(limit_ms: u32) -> Self {
        Self {
            from: Instant::now(),
            limit_ms,
        }
    }

    /// Returns the milliseconds left; 0 if the deadline has passed.
    pub fn left_ms(self) -> u32 {
        let passed = u32::try_from(self.from.elapsed().as_millis()).unwrap_or(u32::MAX);
        self.limit_ms.saturating_sub(passed)
    }

    /// Returns whether the deadline has passed.
    pub fn has_passed(self) -> bool {
        self.left_ms() == 0
    }
}

/// Where the requests of a path land.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// In chunks, which can hold the largest request.
    Chunks,
    /// In slots, which hold only little data; more data is in buffers.
    Slots,
}

/// The terms of a path, which the server states when it accepts a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) shape: Shape,
    /// How many requests may be in flight on an I/O connection, if the client sends capsules.
    pub(crate) window: Option<Window>,
    /// The client may open a message connection.
    pub(crate) messages: bool,
}

/// The place of a connection among the paths of its session.
pub(crate) struct Place {
    pub(crate) ends: Ends,
    pub(crate) attempt: Attempt,
    pub(crate) cid: u16,
}

/// The number of a round of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Round(pub(crate) u32);

impl Round {
    /// Returns whether this round began before `other`, one of the next 2^31.
    #[inline]
    pub(crate) fn is_before(self, other: Self) -> bool {
        // CAST: The difference as a signed number.
        (other.0.wrapping_sub(self.0) as i32) > 0
    }
}
