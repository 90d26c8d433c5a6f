// SPDX-License-Identifier: GPL-2.0

//! For how long the peer's kernel, and the device, may take to let go of memory that nobody needs any more.
//!
//! | what is waited for | at most | then |
//! |---|---|---|
//! | RETURN, as a handle is revoked | [`PEER_US`] | its keys are invalidated |
//! | GOT, as nobody waits for a GET | [`PEER_US`] | the key of the landing zone is invalidated |
//! | room for a key or a landing zone | [`ROOM_US`] | the operation fails with `ENOBUFS` |
//! | the device: invalidations, pushes, the writes of a PUT and the reads of a GET that nobody waits for | [`DEVICE_US`] without a completion of the connection | the connection is given up, and drained |
//!
//! So whatever the peer does, the pages of a program that has gone are given back: after the time of the peer, when the
//! device has done what was posted before, or when it does nothing any more. The peer's time is long, as its answer
//! may be behind what many channels have posted on a slow link, and a key that is invalidated under its WRITE breaks
//! the path.

/// For how long the peer may take, in microseconds.
pub(super) const PEER_US: u64 = 30_000_000;
/// For how long the device may complete nothing, in microseconds.
pub(super) const DEVICE_US: u64 = 10_000_000;

/// For how long an operation waits for a region that others of the connection have, in microseconds.
pub(super) const ROOM_US: u64 = 10_000_000;

/// Since when there has been no region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lack(Option<u64>);

impl Lack {
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// There is none at `now`. Returns whether to wait for one. If that has taken too long, the next one has its own time.
    pub(super) fn may_wait(&mut self, now: u64) -> bool {
        let since = *self.0.get_or_insert(now);
        let may = now.saturating_sub(since) < ROOM_US;
        if !may {
            self.0 = None;
        }
        may
    }
}

/// How long something has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Patience {
    /// [`Self::NEVER`] if nothing is waited for.
    until: u64,
    /// [`Device::completions`](ibtrs_core::messages::memory::Device::completions) when the time began.
    completions: u32,
}

impl Patience {
    const NEVER: u64 = u64::MAX;

    /// It has not been waited for.
    pub(super) const fn new() -> Self {
        Self {
            until: Self::NEVER,
            completions: 0,
        }
    }
}

/// What was seen while the memory of a channel was looked at.
pub(super) struct Course {
    pub(super) now: u64,
    /// Of the connection.
    pub(super) completions: u32,
    /// When to look again.
    pub(super) due: Option<u64>,
    /// The device does not let go of memory.
    pub(super) is_stuck: bool,
}

impl Course {
    /// The peer is waited for. Returns whether it has taken too long; then its time begins again.
    pub(super) fn is_peer_late(&mut self, patience: &mut Patience) -> bool {
        self.is_over(patience, PEER_US)
    }

    /// The device is waited for. Its time begins again with each completion of the connection.
    pub(super) fn wait_for_device(&mut self, patience: &mut Patience) {
        if patience.completions != self.completions {
            *patience = Patience {
                until: Patience::NEVER,
                completions: self.completions,
            };
        }
        self.is_stuck |= self.is_over(patience, DEVICE_US);
    }

    /// As [`Course::wait_for_device`], for what the peer was waited for until now.
    pub(super) fn turn_to_device(&mut self, patience: &mut Patience) {
        *patience = Patience::new();
        self.wait_for_device(patience);
    }

    fn is_over(&mut self, patience: &mut Patience, limit_us: u64) -> bool {
        let is_over = patience.until <= self.now;
        if is_over || patience.until == Patience::NEVER {
            patience.until = self.now + limit_us;
        }
        self.looks_again_at(patience.until);
        is_over
    }

    /// Looks at the memory again at a time, or before.
    pub(super) fn looks_again_at(&mut self, at: u64) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

/// What has come of [`Memory::advance`](super::Memory::advance).
pub(crate) struct Advanced {
    /// Pages were given back: a task may wait for that.
    pub(crate) has_freed: bool,
    /// The connection is to be given up, as it does not let go of memory.
    pub(crate) is_stuck: bool,
    /// The peer has no region for a key: another channel of the connection is to return one.
    pub(crate) needs_room: bool,
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibmsg_memory_patience)]
mod tests {
    use super::*;

    fn course(now: u64) -> Course {
        Course {
            now,
            completions: 0,
            due: None,
            is_stuck: false,
        }
    }

    #[test]
    fn patience_ends_and_begins_again() {
        let mut patience = Patience::new();
        let mut first = course(7);
        assert!(!first.is_peer_late(&mut patience));
        assert_eq!(first.due, Some(7 + PEER_US));
        let mut early = course(6 + PEER_US);
        assert!(!early.is_peer_late(&mut patience));
        assert_eq!(early.due, Some(7 + PEER_US));
        let mut late = course(7 + PEER_US);
        assert!(late.is_peer_late(&mut patience));
        assert_eq!(late.due, Some(7 + 2 * PEER_US));
        assert!(!course(8 + PEER_US).is_peer_late(&mut patience));
        assert!(course(7 + 2 * PEER_US).is_peer_late(&mut patience));
    }

    #[test]
    fn a_device_that_goes_on_has_time() {
        let mut patience = Patience::new();
        let mut look = |now, completions| {
            let mut course = Course {
                completions,
                ..course(now)
            };
            course.wait_for_device(&mut patience);
            course.is_stuck
        };
        assert!(!look(1, 5));
        assert!(!look(DEVICE_US, 6));
        assert!(!look(2 * DEVICE_US - 1, 6));
        assert!(look(2 * DEVICE_US, 6));
        assert!(!look(3 * DEVICE_US, 7));
    }

    #[test]
    fn room_is_waited_for_as_long_as_it_may_take() {
        let mut lack = Lack::none();
        assert!(lack.may_wait(5) && lack.may_wait(4 + ROOM_US));
        assert!(!lack.may_wait(5 + ROOM_US));
        // The next operation has its own time.
        assert!(lack.may_wait(6 + ROOM_US) && lack.may_wait(5 + 2 * ROOM_US));
    }

    #[test]
    fn the_first_of_several_is_due() {
        let (mut old, mut new) = (Patience::new(), Patience::new());
        assert!(!course(1).is_peer_late(&mut old));
        let mut both = course(10);
        assert!(!both.is_peer_late(&mut new) && !both.is_peer_late(&mut old));
        assert_eq!(both.due, Some(1 + PEER_US));
    }
}
