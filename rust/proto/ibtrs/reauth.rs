// SPDX-License-Identifier: GPL-2.0

//! When the paths of a session authenticate again (client).
//!
//! The operator may set an interval after which both sides of each path prove themselves again. A
//! path does so by connecting again, and only one does at a time. Others take its requests
//! meanwhile: no path connects again while another one of the session is not back. Only a session
//! that has no other path to use connects its only one again, and its requests wait for that.

/// A path of an authenticated session, as this module sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// It was connected so many milliseconds ago.
    Connected(u64),
    /// It is lost, or being connected.
    Coming,
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
    /// Ask again after so many milliseconds.
    Wait(u32),
}

/// Shortest and longest time between two questions: paths come and go.
const LEAST_WAIT_MS: u32 = 1000;
/// See [`LEAST_WAIT_MS`].
const MOST_WAIT_MS: u32 = 60_000;

/// Chooses the path that was connected for the longest time, if that is at least `interval_ms`.
pub fn next(interval_ms: u64, paths: impl Iterator<Item = Seen>) -> Next {
    let (mut oldest, mut connected, mut coming) = (None, 0u32, false);
    for (at, path) in paths.enumerate() {
        match path {
            Seen::Connected(age_ms) => {
                connected = connected.saturating_add(1);
                if oldest.is_none_or(|(_, most)| age_ms > most) {
                    oldest = Some((at, age_ms));
                }
            }
            Seen::Coming => coming = true,
            Seen::Closed => {}
        }
    }
    let Some((at, age_ms)) = oldest else {
        return Next::Wait(match coming {
            true => LEAST_WAIT_MS,
            false => MOST_WAIT_MS,
        });
    };
    let left_ms = interval_ms.saturating_sub(age_ms);
    if left_ms > 0 {
        let left_ms = u32::try_from(left_ms).unwrap_or(MOST_WAIT_MS);
        return Next::Wait(left_ms.clamp(LEAST_WAIT_MS, MOST_WAIT_MS));
    }
    match (connected, coming) {
        (_, true) => Next::Wait(LEAST_WAIT_MS),
        (1, false) => Next::Only(at),
        (_, false) => Next::Drain(at),
    }
}
