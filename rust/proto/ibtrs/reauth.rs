// SPDX-License-Identifier: GPL-2.0

//! Re-authentication: chooses the path of a session that authenticates again next (client).
//!
//! The operator may set an interval after which both sides of each path prove themselves again. A
//! path authenticates again by reconnecting. One path of a session reconnects at a time, and only
//! while all others are connected, so that these take its requests. If a session has one path only,
//! requests wait until that has reconnected.
//!
//! A wrong key costs one path and not the session: while a path that failed to authenticate again
//! is not connected, no other path tries, even if that path has used up its attempts.

/// The status of a path of an authenticated session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathStatus {
    /// It has been connected for this many milliseconds.
    Connected(u64),
    /// It is lost, or being connected.
    Connecting,
    /// It could not authenticate again, and makes no more attempts.
    Failed,
    /// A user has closed it.
    Closed,
}

/// The next action of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Next {
    /// Drain the path with this index, and reconnect it.
    Drain(usize),
    /// Reconnect the path with this index, the only one of the session.
    Only(usize),
    /// Ask again after this many milliseconds.
    Wait(u32),
}

/// Shortest and longest time between two calls of [`next`]: paths are added, lost and connected in
/// between.
const LEAST_WAIT_MS: u32 = 1000;
/// See [`LEAST_WAIT_MS`].
const MOST_WAIT_MS: u32 = 60_000;
/// Number of intervals without authentication after which the log says what a path waits for.
const LATE: u64 = 3;

/// The paths of a session, counted.
struct Counts {
    /// Index and age of the path that has been connected for the longest time.
    oldest: Option<(usize, u64)>,
    connected: u32,
    /// Index of the first path that is not back.
    away: Option<usize>,
}

impl Counts {
    fn of(paths: impl Iterator<Item = PathStatus>) -> Self {
        let mut counts = Self {
            oldest: None,
            connected: 0,
            away: None,
        };
        for (at, path) in paths.enumerate() {
            match path {
                PathStatus::Connected(age_ms) => {
                    counts.connected = counts.connected.saturating_add(1);
                    if counts.oldest.is_none_or(|(_, most)| age_ms > most) {
                        counts.oldest = Some((at, age_ms));
                    }
                }
                PathStatus::Connecting | PathStatus::Failed => {
                    counts.away = counts.away.or(Some(at))
                }
                PathStatus::Closed => {}
            }
        }
        counts
    }
}

/// Chooses the path that has been connected for the longest time, if that is at least
/// `interval_ms`.
pub fn next(interval_ms: u64, paths: impl Iterator<Item = PathStatus>) -> Next {
    let counts = Counts::of(paths);
    let Some((at, age_ms)) = counts.oldest else {
        return Next::Wait(match counts.away {
            Some(_) => LEAST_WAIT_MS,
            None => MOST_WAIT_MS,
        });
    };
    let left_ms = interval_ms.saturating_sub(age_ms);
    if left_ms > 0 {
        let left_ms = u32::try_from(left_ms).unwrap_or(MOST_WAIT_MS);
        return Next::Wait(left_ms.clamp(LEAST_WAIT_MS, MOST_WAIT_MS));
    }
    match (counts.connected, counts.away) {
        (_, Some(_)) => Next::Wait(LEAST_WAIT_MS),
        (1, None) => Next::Only(at),
        (_, None) => Next::Drain(at),
    }
}

/// Whether the chosen path may still reconnect as it was chosen. Draining takes a while, and the
/// path may be the last connected one by then.
pub fn may_proceed(chosen: Next, paths: impl Iterator<Item = PathStatus>) -> bool {
    let (chosen, alone) = match chosen {
        Next::Drain(at) => (at, false),
        Next::Only(at) => (at, true),
        Next::Wait(_) => return false,
    };
    let mut is_there = false;
    let paths = paths.enumerate().inspect(|(at, path)| {
        is_there |= *at == chosen && matches!(path, PathStatus::Connected(_));
    });
    let counts = Counts::of(paths.map(|(_, path)| path));
    is_there && counts.away.is_none() && alone == (counts.connected == 1)
}

/// Returns the path that should have authenticated two intervals ago, and the lost path that it
/// waits for; `None` if no path is that late.
pub fn late(interval_ms: u64, paths: impl Iterator<Item = PathStatus>) -> Option<(usize, usize)> {
    let counts = Counts::of(paths);
    let (at, age_ms) = counts.oldest?;
    let is_late = age_ms >= interval_ms.saturating_mul(LATE);
    is_late.then_some((at, counts.away?))
}
