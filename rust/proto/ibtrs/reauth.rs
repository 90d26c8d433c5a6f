// SPDX-License-Identifier: GPL-2.0

//! When the paths of a session authenticate again (client).
//!
//! The operator may set an interval after which both sides of each path prove themselves again. A
//! path does so by connecting again, and only one does at a time. Others take its requests
//! meanwhile: no path connects again while another one of the session is not back. Only a session
//! that has no other path to use connects its only one again, and its requests wait for that.
//!
//! A key that does not fit costs one path, and not the session: as long as the path that could not
//! authenticate again is not back, no other one tries. That path may have used up its attempts.

/// A path of an authenticated session, as this module sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// It has been connected for this many milliseconds.
    Connected(u64),
    /// It is lost, or being connected.
    Coming,
    /// It could not authenticate again, and has given up.
    Failed,
    /// A user has closed it.
    Closed,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Next {
    /// Drain the path with this index, and connect it again.
    Drain(usize),
    /// Connect the path with this index again, the only one of the session.
    Only(usize),
    /// Ask again after this many milliseconds.
    Wait(u32),
}

/// Shortest and longest time between two questions: paths come and go.
const LEAST_WAIT_MS: u32 = 1000;
/// See [`LEAST_WAIT_MS`].
const MOST_WAIT_MS: u32 = 60_000;
/// After this many intervals without authentication the operator is told what a path waits for.
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
    fn of(paths: impl Iterator<Item = Seen>) -> Self {
        let mut counts = Self {
            oldest: None,
            connected: 0,
            away: None,
        };
        for (at, path) in paths.enumerate() {
            match path {
                Seen::Connected(age_ms) => {
                    counts.connected = counts.connected.saturating_add(1);
                    if counts.oldest.is_none_or(|(_, most)| age_ms > most) {
                        counts.oldest = Some((at, age_ms));
                    }
                }
                Seen::Coming | Seen::Failed => counts.away = counts.away.or(Some(at)),
                Seen::Closed => {}
            }
        }
        counts
    }
}

/// Chooses the path that has been connected for the longest time, if that is at least
/// `interval_ms`.
pub fn next(interval_ms: u64, paths: impl Iterator<Item = Seen>) -> Next {
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

/// Whether the path that was chosen may still connect again, in the same way. Draining takes a
/// while: by then the path may be the last one.
pub fn still(chosen: Next, paths: impl Iterator<Item = Seen>) -> bool {
    let (chosen, alone) = match chosen {
        Next::Drain(at) => (at, false),
        Next::Only(at) => (at, true),
        Next::Wait(_) => return false,
    };
    let mut is_there = false;
    let paths = paths.enumerate().inspect(|(at, path)| {
        is_there |= *at == chosen && matches!(path, Seen::Connected(_));
    });
    let counts = Counts::of(paths.map(|(_, path)| path));
    is_there && counts.away.is_none() && alone == (counts.connected == 1)
}

/// Returns the path that should have authenticated two intervals ago, and the lost one that it
/// waits for; `None` if no path is that late.
pub fn late(interval_ms: u64, paths: impl Iterator<Item = Seen>) -> Option<(usize, usize)> {
    let counts = Counts::of(paths);
    let (at, age_ms) = counts.oldest?;
    let is_late = age_ms >= interval_ms.saturating_mul(LATE);
    is_late.then_some((at, counts.away?))
}
