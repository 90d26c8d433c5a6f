// SPDX-License-Identifier: GPL-2.0

//! The last changes of a session, its paths and its disks, for operators who were not there.
//!
//! The history is a ring of a fixed size. It is allocated with the session: a path may be lost while memory is
//! short.

use super::Session;
use crate::{
    path::parent::{
        CONNECTED,
        FAILED, //
    },
    text::Text, //
};
use kernel::{
    fmt,
    new_spinlock_irq,
    prelude::*,
    sync::SpinLockIrq,
    time::{
        ClockSource,
        RealTime, //
    }, //
};
use kx::sysfs::Buf;

/// Number of changes that are kept.
const MAX: usize = 64;

/// Stands for the session in place of a path or a disk.
const SESSION: &str = "-";

/// Returns the milliseconds since 1970.
///
/// # Context
///
/// Any.
pub(super) fn now_ms() -> i64 {
    RealTime::ktime_get() / 1_000_000
}

/// A change of a path, of a disk, or of the session.
#[derive(Clone, Copy)]
struct Change {
    at_ms: i64,
    /// The name of the path or the disk, or [`SESSION`].
    of: Text,
    what: &'static str,
    cause: Text,
}

impl Change {
    /// Returns whether both tell the same of one path.
    fn repeats(&self, former: &Self) -> bool {
        self.what == former.what && self.cause.as_str() == former.cause.as_str()
    }
}

struct Ring {
    /// Has room for [`MAX`] changes; change `n` is at `n % MAX`.
    changes: KVVec<Change>,
    /// Number of changes so far.
    total: usize,
}

impl Ring {
    /// Returns change `number`, unless a later one has taken its place.
    fn get(&self, number: usize) -> Option<&Change> {
        if number >= self.total || self.total - number > MAX {
            return None;
        }
        self.changes.get(number % MAX)
    }

    /// Returns whether an attempt has failed for a reason for which one has failed since its path was connected last:
    /// a path that cannot be connected for hours must not push out everything else.
    fn has_failed_so(&self, change: &Change) -> bool {
        let oldest = self.total.saturating_sub(MAX);
        let kept = (oldest..self.total).rev().filter_map(|n| self.get(n));
        let of_path = kept.filter(|kept| kept.of.as_str() == change.of.as_str());
        let mut since = of_path.take_while(|kept| kept.what != CONNECTED);
        change.what == FAILED && since.any(|former| change.repeats(former))
    }

    fn push(&mut self, change: Change) {
        if self.has_failed_so(&change) {
            return;
        }
        match self.changes.get_mut(self.total % MAX) {
            Some(place) => *place = change,
            // There is room for it.
            None => drop(self.changes.push_within_capacity(change)),
        }
        self.total += 1;
    }
}

/// The history of a session.
#[pin_data]
pub(super) struct History {
    #[pin]
    ring: SpinLockIrq<Ring>,
}

impl History {
    /// Allocates a history.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new() -> Result<impl PinInit<Self>> {
        let ring = Ring {
            changes: KVVec::with_capacity(MAX, GFP_KERNEL)?,
            total: 0,
        };
        Ok(pin_init!(Self {
            ring <- new_spinlock_irq!(ring, "History::ring"),
        }))
    }

    /// Adds a change.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn record(
        &self,
        of: fmt::Arguments<'_>,
        what: &'static str,
        cause: fmt::Arguments<'_>,
    ) {
        let mut change = Change {
            at_ms: 0,
            of: Text::new(of),
            what,
            cause: Text::new(cause),
        };
        let mut ring = self.ring.lock();
        // So that times are in order.
        change.at_ms = now_ms();
        ring.push(change);
    }
}

impl Session {
    /// Adds a change of the session itself to its history.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn record_session(&self, what: &'static str, cause: fmt::Arguments<'_>) {
        self.history.record(fmt!("{SESSION}"), what, cause);
    }

    /// Adds a change of a disk of the session to the session's history.
    ///
    /// # Context
    ///
    /// Any.
    pub fn record_disk(
        &self,
        disk: fmt::Arguments<'_>,
        what: &'static str,
        cause: fmt::Arguments<'_>,
    ) {
        self.history.record(disk, what, cause);
    }

    /// Writes the last changes, the latest first, as many as there is room for.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn show_history(&self, buf: &mut Buf<'_>) -> Result {
        let total = self.history.ring.lock().total;
        for number in (total.saturating_sub(MAX)..total).rev() {
            let Some(change) = self.history.ring.lock().get(number).copied() else {
                break;
            };
            let (s, ms) = (change.at_ms / 1000, change.at_ms % 1000);
            let (of, cause) = (change.of.as_str(), change.cause.as_str());
            let what = change.what;
            if buf.line(fmt!("{s}.{ms:03} {of} {what} {cause}")).is_err() {
                // The last line is cut off, and has no newline.
                break;
            }
        }
        Ok(())
    }
}
