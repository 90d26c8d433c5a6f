// SPDX-License-Identifier: GPL-2.0

//! For how long the peer's kernel, and the device, may take to let go of memory that nobody needs any more.
//!
//! | what is waited for | after [`LIMIT_US`] |
//! |---|---|
//! | RETURN, as a handle is revoked | its keys are invalidated |
//! | GOT, as nobody waits for a GET | the key of the landing zone is invalidated |
//! | the device: invalidations, pushes, and the writes of a PUT that nobody waits for | the connection is given up, and drained |
//!
//! So the pages of a program that has gone are given back within twice that time and the end of a connection, whatever
//! the peer does.

/// For how long, in microseconds.
pub(super) const LIMIT_US: u64 = 10_000_000;

/// How long something has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Patience {
    until: Option<u64>,
}

impl Patience {
    /// It has not been waited for.
    pub(super) const fn new() -> Self {
        Self { until: None }
    }
}

/// What was seen while the memory of a channel was looked at.
pub(super) struct Course {
    pub(super) now: u64,
    /// When to look again.
    pub(super) due: Option<u64>,
    /// The device does not let go of memory.
    pub(super) is_stuck: bool,
}

impl Course {
    /// Something is waited for. Returns whether it has taken too long; then its time begins again.
    pub(super) fn is_over(&mut self, patience: &mut Patience) -> bool {
        let begun = *patience.until.get_or_insert(self.now + LIMIT_US);
        let is_over = begun <= self.now;
        let until = match is_over {
            true => self.now + LIMIT_US,
            false => begun,
        };
        patience.until = Some(until);
        self.due = Some(self.due.map_or(until, |due| due.min(until)));
        is_over
    }
}

/// What has come of [`Memory::advance`](super::Memory::advance).
pub(crate) struct Advanced {
    /// Pages were given back: a task may wait for that.
    pub(crate) has_freed: bool,
    /// The connection is to be given up, as it does not let go of memory.
    pub(crate) is_stuck: bool,
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibmsg_memory_patience)]
mod tests {
    use super::*;

    fn course(now: u64) -> Course {
        Course {
            now,
            due: None,
            is_stuck: false,
        }
    }

    #[test]
    fn patience_ends_and_begins_again() {
        let mut patience = Patience::new();
        let mut first = course(7);
        assert!(!first.is_over(&mut patience));
        assert_eq!(first.due, Some(7 + LIMIT_US));
        let mut early = course(6 + LIMIT_US);
        assert!(!early.is_over(&mut patience));
        assert_eq!(early.due, Some(7 + LIMIT_US));
        let mut late = course(7 + LIMIT_US);
        assert!(late.is_over(&mut patience));
        assert_eq!(late.due, Some(7 + 2 * LIMIT_US));
        assert!(!course(8 + LIMIT_US).is_over(&mut patience));
        assert!(course(7 + 2 * LIMIT_US).is_over(&mut patience));
    }

    #[test]
    fn the_first_of_several_is_due() {
        let (mut old, mut new) = (Patience::new(), Patience::new());
        assert!(!course(1).is_over(&mut old));
        let mut both = course(10);
        assert!(!both.is_over(&mut new) && !both.is_over(&mut old));
        assert_eq!(both.due, Some(1 + LIMIT_US));
    }
}
