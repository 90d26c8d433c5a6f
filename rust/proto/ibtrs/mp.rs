// SPDX-License-Identifier: GPL-2.0

//! Path selection.

use crate::errno::Errno;
use crate::text;

/// The policy for choosing paths.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// One after the other.
    RoundRobin,
    /// The one with the fewest requests in flight.
    #[default]
    MinInflight,
    /// The one whose last heartbeat was answered fastest.
    MinLatency,
}

/// A text that names no policy, or more than one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPolicy;

impl BadPolicy {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        "policy is not round-robin, min-inflight or min-latency"
    }

    /// The errno to return.
    pub const fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

impl Policy {
    /// All policies, in the order of their numbers.
    pub const ALL: [Policy; 3] = [Policy::RoundRobin, Policy::MinInflight, Policy::MinLatency];

    /// The whole name.
    pub const fn name(&self) -> &'static str {
        match self {
            Policy::RoundRobin => "round-robin",
            Policy::MinInflight => "min-inflight",
            Policy::MinLatency => "min-latency",
        }
    }

    const fn abbreviation(&self) -> &'static str {
        match self {
            Policy::RoundRobin => "rr",
            Policy::MinInflight => "mi",
            Policy::MinLatency => "ml",
        }
    }

    /// The number, for sysfs and for atomics.
    pub const fn to_u8(self) -> u8 {
        match self {
            Policy::RoundRobin => 0,
            Policy::MinInflight => 1,
            Policy::MinLatency => 2,
        }
    }

    /// The policy of a number from [`Policy::to_u8`].
    pub const fn from_u8(n: u8) -> Option<Self> {
        match n {
            0 => Some(Policy::RoundRobin),
            1 => Some(Policy::MinInflight),
            2 => Some(Policy::MinLatency),
            _ => None,
        }
    }

    /// The text of the attribute.
    pub const fn sysfs_str(&self) -> &'static str {
        match self {
            Policy::RoundRobin => "round-robin (RR: 0)",
            Policy::MinInflight => "min-inflight (MI: 1)",
            Policy::MinLatency => "min-latency (ML: 2)",
        }
    }

    /// Parses what an operator wrote: a number, an abbreviation, or an unambiguous beginning of a
    /// name. Case does not matter.
    ///
    /// # Errors
    ///
    /// For any other text.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadPolicy> {
        let text = text::line(bytes).map_err(|_| BadPolicy)?;
        match text {
            "0" => return Ok(Policy::RoundRobin),
            "1" => return Ok(Policy::MinInflight),
            "2" => return Ok(Policy::MinLatency),
            _ => {}
        }
        let short = |p: &Policy| p.abbreviation().eq_ignore_ascii_case(text);
        if let Some(p) = Self::ALL.into_iter().find(short) {
            return Ok(p);
        }
        let mut hits = Self::ALL.into_iter().filter(|p| {
            let head = p.name().get(..text.len());
            head.is_some_and(|h| h.eq_ignore_ascii_case(text))
        });
        match (hits.next(), hits.next()) {
            (Some(p), None) => Ok(p),
            _ => Err(BadPolicy),
        }
    }
}

/// The properties of a path that the selection depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Candidate {
    /// The path is connected, and this request has not been tried on it.
    pub usable: bool,
    /// Requests in flight.
    pub inflight: u32,
    /// Answer time of the last heartbeat since the path connected, in any unit. `None` before the
    /// first one: the path counts as the slowest, as it would draw all requests otherwise.
    pub latency: Option<u64>,
}

/// Chooses a path and returns its index in `paths`, or `None` if none is usable.
///
/// `turn` is for [`Policy::RoundRobin`]: consecutive turns go to consecutive usable paths, so that each
/// has the same share, however many paths between them are not usable. Of equal paths the first one
/// wins.
#[inline]
pub fn choose(
    policy: Policy,
    turn: u64,
    paths: impl IntoIterator<Item = Candidate, IntoIter: Clone>,
) -> Option<usize> {
    let mut usable = paths.into_iter().enumerate().filter(|(_, p)| p.usable);
    let best = match policy {
        Policy::RoundRobin => {
            let turn = turn.checked_rem(usable.clone().count() as u64)?;
            // CAST: Less than the number of paths.
            usable.nth(turn as usize)
        }
        Policy::MinInflight => usable.min_by_key(|(_, p)| p.inflight),
        Policy::MinLatency => usable.min_by_key(|(_, p)| p.latency.unwrap_or(u64::MAX)),
    };
    best.map(|(i, _)| i)
}

/// Returns the outcome of the first attempts to connect the paths of a session, of which each has one
/// some time: success as soon as one path is connected, the first error when all have failed, and
/// `None` until then. Without paths there is no outcome.
pub fn first_outcome<E>(
    outcomes: impl IntoIterator<Item = Option<Result<(), E>>>,
) -> Option<Result<(), E>> {
    let (mut error, mut some_connect) = (None, false);
    for outcome in outcomes {
        match outcome {
            Some(Ok(())) => return Some(Ok(())),
            Some(Err(failed)) => error = error.or(Some(failed)),
            None => some_connect = true,
        }
    }
    error.filter(|_| !some_connect).map(Err)
}
