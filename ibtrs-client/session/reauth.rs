// SPDX-License-Identifier: GPL-2.0

//! Connects paths again after a time, so that both sides prove themselves again.
//!
//! [`ibtrs_proto::reauth`] decides which path is the next. A work item of the session carries that
//! out in steps and waits for nothing, so that it ends soon when the session is closed.

use super::Session;
use crate::path::{
    Path,
    RESETS_FORGIVEN, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    fsm::client_path::State,
    reauth::{
        self,
        Next,
        Seen, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};
use kx::work::WorkItem;

/// How long a path waits for its requests in flight before it is connected again. Those that are
/// left then are sent again over another path.
const DRAIN_MS: i64 = 5000;
/// Time between two looks at the path.
const LOOK_MS: u32 = 50;
/// Time that the server gets to close the former connections of a path.
const RESET_MS: u32 = 200;
/// Time until the next try when the key is missing.
const AGAIN_MS: u32 = 60_000;
/// Time until the next look at the paths when one could not be connected.
const FAILED_MS: u32 = 1000;

/// The path that is authenticating again.
struct Round {
    path: Arc<Path>,
    /// The attempt that is to end.
    epoch: u32,
    began: Instant<Monotonic>,
    /// The number of the path's outcomes before it began to connect again; `None` while its
    /// requests in flight end.
    outcomes: Option<u64>,
    /// Attempts that the server has reset, because it was still closing the former one.
    resets: u32,
    /// The last attempt was reset, and the next one is due.
    was_reset: bool,
}

struct Course {
    round: Option<Round>,
    /// The operator was told that the key is missing.
    is_told: bool,
}

/// What the work item keeps from one run to the next.
#[pin_data]
pub(super) struct Reauth {
    #[pin]
    course: Mutex<Course>,
}

impl Reauth {
    pub(super) fn new() -> impl PinInit<Self> {
        let course = Course {
            round: None,
            is_told: false,
        };
        pin_init!(Self {
            course <- new_mutex!(course, "Reauth::course"),
        })
    }

    fn take_round(&self) -> Option<Round> {
        self.course.lock().round.take()
    }

    /// Lets go of the path. The work item must be disabled.
    pub(super) fn stop(&self) {
        drop(self.take_round());
    }
}

impl Path {
    /// Returns how the path counts when the session chooses the next one, and the epoch of its
    /// attempt if it is connected.
    fn seen(self: &Arc<Self>) -> (Seen, u32) {
        match self.state() {
            State::Connected => {}
            State::Closing | State::Closed | State::Dead => return (Seen::Closed, 0),
            _ => return (Seen::Coming, 0),
        }
        let published = self.session().with_multipath(|multipath| {
            let mut all = multipath.paths.iter().map(|conn| &conn.attempt);
            let own = all.find(|attempt| Arc::ptr_eq(&attempt.path, self))?;
            Some((own.made.elapsed().as_millis(), own.epoch))
        });
        match published.flatten() {
            Some((age_ms, epoch)) => {
                let age_ms = u64::try_from(age_ms).unwrap_or(0);
                (Seen::Connected(age_ms), epoch)
            }
            // It has just been connected or lost.
            None => (Seen::Coming, 0),
        }
    }
}

impl Round {
    /// Takes the next step. Returns after how many milliseconds to take another one, or the outcome
    /// of the round.
    fn step(&mut self) -> Result<u32, Result> {
        let Some(outcomes) = self.outcomes else {
            if self.path.seen().1 != self.epoch {
                // The path was lost, or a user has connected it again.
                return Err(Ok(()));
            }
            if self.path.inflight() > 0 && self.began.elapsed().as_millis() < DRAIN_MS {
                return Ok(LOOK_MS);
            }
            return self.reconnect();
        };
        match self.path.outcome_since(outcomes) {
            None => {
                if core::mem::take(&mut self.was_reset) {
                    self.path.try_now();
                }
                Ok(LOOK_MS)
            }
            // I/O may be waiting, so the back-off is left out.
            Some(Err(ECONNRESET)) if self.resets < RESETS_FORGIVEN => {
                self.resets += 1;
                self.outcomes = Some(outcomes.wrapping_add(1));
                self.was_reset = true;
                Ok(RESET_MS)
            }
            Some(outcome) => Err(outcome),
        }
    }

    fn reconnect(&mut self) -> Result<u32, Result> {
        self.outcomes = self.path.begin_reconnect(self.epoch);
        match self.outcomes {
            Some(_) => Ok(LOOK_MS),
            None => Err(Ok(())),
        }
    }
}

impl Session {
    /// Goes on with the path that is authenticating again, or begins with another one that is due.
    /// Returns after how many milliseconds to do so again; `None` if never.
    fn authenticate_again(self: &Arc<Self>) -> Option<u32> {
        let Some(mut round) = self.reauth.take_round() else {
            let interval_s = self.settings().reauth_interval_s.get();
            return (interval_s > 0).then(|| self.begin_round(interval_s));
        };
        match round.step() {
            Ok(wait_ms) => {
                self.reauth.course.lock().round = Some(round);
                Some(wait_ms)
            }
            Err(outcome) => {
                round.path.set_resting(false);
                // A path that has failed says why, and goes on trying by itself.
                Some(outcome.map_or(FAILED_MS, |()| 0))
            }
        }
    }

    fn begin_round(self: &Arc<Self>, interval_s: u32) -> u32 {
        if !self.is_authenticated() {
            return AGAIN_MS;
        }
        let paths = self.paths.lock();
        let seen = paths.list.iter().map(|path| path.seen().0);
        let (at, is_only) = match reauth::next(u64::from(interval_s).saturating_mul(1000), seen) {
            Next::Drain(at) => (at, false),
            Next::Only(at) => (at, true),
            Next::Wait(ms) => return ms,
        };
        let Some(path) = paths.list.get(at).cloned() else {
            return LOOK_MS;
        };
        drop(paths);
        if !self.has_key_now() {
            return AGAIN_MS;
        }
        let (Seen::Connected(_), epoch) = path.seen() else {
            return LOOK_MS;
        };
        let mut round = Round {
            epoch,
            path,
            began: Instant::now(),
            outcomes: None,
            resets: 0,
            was_reset: false,
        };
        kx::pr_info_ratelimited!(
            "{}: connecting again, to authenticate after {} s\n",
            round.path.log(),
            interval_s
        );
        if is_only {
            // No other path takes its requests, so they would not end.
            let _ = round.reconnect();
        } else {
            round.path.set_resting(true);
        }
        self.reauth.course.lock().round = Some(round);
        LOOK_MS
    }

    /// Returns whether the key is there, without which a path that connects again would not come
    /// back. Tells the operator once.
    fn has_key_now(&self) -> bool {
        let lacks = self.lacks_key();
        let mut course = self.reauth.course.lock();
        let was_told = core::mem::replace(&mut course.is_told, lacks.is_some());
        drop(course);
        let Some(error) = lacks else { return true };
        if !was_told {
            pr_warn!(
                "{}: key {} cannot be used ({}), so the paths do not authenticate again: load it\n",
                self.name(),
                self.key_id().as_str(),
                convert::errno(error).as_str()
            );
        }
        false
    }
}

impl WorkItem<{ crate::session::work::REAUTH }> for Session {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if let Some(wait_ms) = this.authenticate_again() {
            this.reauth_work.enqueue_in(this.clone(), wait_ms);
        }
    }
}
