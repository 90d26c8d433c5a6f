// SPDX-License-Identifier: GPL-2.0

//! Failovers of a session: what the last one was like, and how long they took.
//!
//! A failover begins when a path is lost while another one is connected. Paths that are lost before it
//! is over belong to it. It is over once the requests of all these paths have been moved and one of
//! the last has been answered; or none was in flight, or all have ended without an answer.
//!
//! Failovers have numbers, which the lost paths and the requests that were moved keep, so that those of an
//! earlier failover, or of an outage, do not count in a later one. 0 is the number of none. Times are nanoseconds
//! of one monotonic clock.

use super::latency::{bucket, Latencies};
use core::fmt::{Display, Formatter, Result};

/// How long requests waited in a failover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Took {
    /// From the submission of the oldest request that was moved until the loss was noticed. A request
    /// that its disk keeps longer than the heartbeats need to notice a loss counts from then on.
    pub detect_ns: u64,
    /// From then until the first answer to such a request.
    pub move_ns: u64,
}

impl Took {
    /// The whole time.
    pub const fn total_ns(&self) -> u64 {
        self.detect_ns.saturating_add(self.move_ns)
    }
}

/// A failover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Requests that were moved.
    pub moved: u32,
    /// `None` while the failover is not over, if no request was moved, if all that were moved ended
    /// without an answer, and if the other paths were lost before the first answer.
    pub took: Option<Took>,
}

/// A failover that is not over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Open {
    number: u32,
    noticed_ns: u64,
    /// The earliest time from which a request may count.
    earliest_ns: u64,
    oldest_ns: Option<u64>,
    /// The first answer since the last request was moved.
    answered_ns: Option<u64>,
    /// Lost paths whose requests have not all been moved.
    lost_paths: u32,
    /// Requests that were moved and have not ended.
    unanswered: u32,
}

/// The failovers of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failovers {
    open: Option<Open>,
    /// The number of the last one.
    number: u32,
    last: Record,
    times: Latencies,
}

impl Failovers {
    /// A session without failovers.
    pub const fn new() -> Self {
        Self {
            open: None,
            number: 0,
            last: Record {
                moved: 0,
                took: None,
            },
            times: Latencies::NONE,
        }
    }

    /// Notes at `now_ns` that a path was lost and another one is connected; returns the number of the
    /// failover to which the path belongs. The heartbeats notice a loss within `detect_ns`. If the last
    /// failover is not over, both become one.
    pub fn lost(&mut self, now_ns: u64, detect_ns: u64) -> u32 {
        if let Some(open) = &mut self.open {
            open.lost_paths = open.lost_paths.saturating_add(1);
            return open.number;
        }
        self.number = self.number.wrapping_add(1).max(1);
        self.open = Some(Open {
            number: self.number,
            noticed_ns: now_ns,
            earliest_ns: now_ns.saturating_sub(detect_ns),
            oldest_ns: None,
            answered_ns: None,
            lost_paths: 1,
            unanswered: 0,
        });
        self.last = Record {
            moved: 0,
            took: None,
        };
        self.number
    }

    /// The failover with that `number`, unless it is over.
    fn open(&mut self, number: u32) -> Option<&mut Open> {
        self.open.as_mut().filter(|open| open.number == number)
    }

    /// Notes that a request which was submitted at `since_ns` leaves a lost path of failover `path`;
    /// `request` is the number that the request has. Returns its new number.
    pub fn moved(&mut self, path: u32, request: u32, since_ns: u64) -> u32 {
        let Some(open) = self.open(path) else {
            return 0;
        };
        if request != path {
            open.unanswered = open.unanswered.saturating_add(1);
        }
        let since_ns = since_ns.clamp(open.earliest_ns, open.noticed_ns);
        let oldest_ns = open.oldest_ns.unwrap_or(since_ns);
        open.oldest_ns = Some(oldest_ns.min(since_ns));
        open.answered_ns = None;
        self.last.moved = self.last.moved.saturating_add(1);
        path
    }

    /// Notes that all requests have left a lost path of failover `path`; returns whether the failover is
    /// over by that.
    pub fn all_moved(&mut self, path: u32) -> bool {
        if let Some(open) = self.open(path) {
            open.lost_paths = open.lost_paths.saturating_sub(1);
        }
        self.settle()
    }

    /// Notes that another path has brought the answer to a request with the number `request` at `now_ns`;
    /// returns whether the failover is over by that.
    pub fn answered(&mut self, request: u32, now_ns: u64) -> bool {
        if let Some(open) = self.open(request) {
            open.answered_ns.get_or_insert(now_ns);
        }
        self.ended(request)
    }

    /// Notes that a request with the number `request` has ended, maybe without an answer; returns
    /// whether the failover is over by that.
    pub fn ended(&mut self, request: u32) -> bool {
        if let Some(open) = self.open(request) {
            open.unanswered = open.unanswered.saturating_sub(1);
        }
        self.settle()
    }

    /// Notes that the last path was lost, which has the number 0; returns whether a failover ends by
    /// that.
    pub fn cut_off(&mut self) -> bool {
        self.open.take().is_some()
    }

    /// Ends the failover if there is nothing to wait for; returns whether it does.
    fn settle(&mut self) -> bool {
        let Some(open) = self.open.filter(|open| open.lost_paths == 0) else {
            return false;
        };
        match (open.oldest_ns, open.answered_ns) {
            (Some(oldest_ns), Some(answered_ns)) => self.count(Took {
                detect_ns: open.noticed_ns.saturating_sub(oldest_ns),
                move_ns: answered_ns.saturating_sub(open.noticed_ns),
            }),
            (Some(_), None) if open.unanswered > 0 => return false,
            _ => (),
        }
        self.open = None;
        true
    }

    fn count(&mut self, took: Took) {
        self.last.took = Some(took);
        let total_ns = took.total_ns();
        if let Some(count) = self.times.counts.get_mut(bucket(total_ns)) {
            *count = count.saturating_add(1);
        }
        self.times.max_ns = self.times.max_ns.max(total_ns);
    }

    /// The last failover, or the one that is under way.
    pub const fn last(&self) -> Record {
        self.last
    }

    /// How long failovers have taken.
    pub const fn times(&self) -> &Latencies {
        &self.times
    }

    /// Forgets how long failovers have taken.
    pub fn reset_times(&mut self) {
        self.times = Latencies::NONE;
    }
}

impl Default for Failovers {
    fn default() -> Self {
        Self::new()
    }
}

/// The numbers of the file `last_failover`: a name and a value on each line. Values that are not known
/// are missing.
impl Display for Record {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let ms = |ns: u64| ns.checked_div(1_000_000).unwrap_or(0);
        writeln!(f, "requests {}", self.moved)?;
        if let Some(took) = self.took {
            // The parts add up to the whole as they are shown.
            let (total_ms, detect_ms) = (ms(took.total_ns()), ms(took.detect_ns));
            writeln!(f, "total_ms {total_ms}")?;
            writeln!(f, "detect_ms {detect_ms}")?;
            writeln!(f, "move_ms {}", total_ms.saturating_sub(detect_ms))?;
        }
        Ok(())
    }
}
