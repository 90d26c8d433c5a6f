// SPDX-License-Identifier: GPL-2.0

//! Connects paths again after a time, so that both sides prove themselves again.
//!
//! [`ibtrs_proto::reauth`] decides which path is the next. A work item of the session carries that
//! out in steps and waits for nothing, so that it ends soon when the session is closed.

use super::Session;
use crate::path::Path;
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
use kx::{
    mm::NoIo,
    work::WorkItem, //
};

/// How long a path waits for its requests in flight before it is connected again. Those that are
/// left then are sent again over another path.
const DRAIN_MS: i64 = 5000;
/// How long an only path waits for administrative messages, which no other path carries, before
/// the round is put off.
const MESSAGES_MS: i64 = 1000;
/// Time between two looks at the path.
const LOOK_MS: u32 = 50;
/// Time until the next try when something is missing that the operator has to see to.
const AGAIN_MS: u32 = 60_000;
/// Time until the next look at the paths when one of them, or the session, is not ready.
const NOT_READY_MS: u32 = 1000;

/// The path that is authenticating again.
struct Round {
    path: Arc<Path>,
    /// The attempt that is to end.
    epoch: u32,
    is_only: bool,
    began: Instant<Monotonic>,
    /// The number of the path's outcomes before it began to connect again; `None` while its
    /// requests in flight end.
    outcomes: Option<u64>,
}

/// How a round has ended.
enum End {
    /// The path is back, or has been lost or closed before it was connected again, or is to stay
    /// connected.
    Over,
    /// The path could not be connected. It says why, and goes on trying as its limit allows.
    Failed,
    /// The path stays connected; the next round begins after this many milliseconds.
    PutOff(u32),
}

/// What the operator has been told once, until it changes.
#[derive(Clone, Copy, Default)]
struct Told {
    no_key: bool,
    no_waiting: bool,
    late: bool,
}

struct Course {
    round: Option<Round>,
    /// UUID of the path that could not be connected in its round, until it is back.
    failed: Option<[u8; 16]>,
    told: Told,
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
            failed: None,
            told: Told::default(),
        };
        pin_init!(Self {
            course <- new_mutex!(course, "Reauth::course"),
        })
    }

    fn take_round(&self) -> Option<Round> {
        self.course.lock().round.take()
    }

    fn failed(&self) -> Option<[u8; 16]> {
        self.course.lock().failed
    }

    /// Sets one of the flags of [`Told`]; returns whether the operator is to be told now.
    fn tells(&self, is_so: bool, which: impl FnOnce(&mut Told) -> &mut bool) -> bool {
        let mut course = self.course.lock();
        let was_told = core::mem::replace(which(&mut course.told), is_so);
        is_so && !was_told
    }

    /// Lets go of the path. The work item must be disabled.
    pub(super) fn stop(&self) {
        drop(self.take_round());
    }
}

impl Path {
    /// Returns how the path counts when the session chooses the next one, and the epoch of its
    /// attempt if it is connected. `failed` is the UUID of the path whose round has failed.
    fn seen(self: &Arc<Self>, failed: Option<[u8; 16]>) -> (Seen, u32) {
        match self.state() {
            State::Connected => {}
            State::Closing | State::Closed | State::Dead if failed == Some(self.uuid) => {
                return (Seen::Failed, 0)
            }
            State::Closing | State::Closed | State::Dead => return (Seen::Closed, 0),
            _ => return (Seen::Coming, 0),
        }
        let published = self.session().with_multipath(|multipath| {
            let mut all = multipath.paths.iter().map(|conn| &conn.attempt);
            let own = all.find(|attempt| Arc::ptr_eq(&attempt.path, self))?;
            Some((own.published_at.as_ref()?.elapsed().as_millis(), own.epoch))
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
    /// Takes the next step. Returns after how many milliseconds to take another one, or how the
    /// round has ended.
    fn step(&mut self) -> Result<u32, End> {
        let Some(outcomes) = self.outcomes else {
            return self.get_ready();
        };
        match self.path.outcome_since(outcomes) {
            None => Ok(LOOK_MS),
            Some(Ok(())) => Err(End::Over),
            Some(Err(_)) if self.path.is_closed_since(outcomes) => Err(End::Over),
            Some(Err(_)) => Err(End::Failed),
        }
    }

    /// Connects the path again as soon as nothing is left that waits for it.
    fn get_ready(&mut self) -> Result<u32, End> {
        let session = self.path.session().clone();
        if self.path.seen(None).1 != self.epoch {
            // The path was lost, or a user has connected it again.
            return Err(End::Over);
        }
        if session.settings().reauth_interval_s.get() == 0 {
            return Err(End::Over);
        }
        // The others may have been lost since the round began.
        if !session.may_leave(self) {
            return Err(End::PutOff(NOT_READY_MS));
        }
        let waited_ms = self.began.elapsed().as_millis();
        if self.is_only {
            // Requests wait for the path, so it does not wait for them; but messages would fail.
            if session.admin.is_busy() {
                return match waited_ms < MESSAGES_MS {
                    true => Ok(LOOK_MS),
                    false => Err(End::PutOff(AGAIN_MS)),
                };
            }
        } else if self.path.stats().in_flight() > 0 && waited_ms < DRAIN_MS {
            return Ok(LOOK_MS);
        }
        if !session.has_key_now() {
            return Err(End::PutOff(AGAIN_MS));
        }
        self.outcomes = self.path.begin_reconnect(self.epoch);
        if self.outcomes.is_none() {
            return Err(End::Over);
        }
        kx::pr_info_ratelimited!("{}: connecting again, to authenticate\n", self.path.log());
        Ok(LOOK_MS)
    }
}

impl Session {
    /// The operator has changed a setting that rounds depend on: forgets the path that has failed
    /// and what was said, and looks at the paths at once.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn reauth_set(self: &Arc<Self>) {
        let mut course = self.reauth.course.lock();
        course.failed = None;
        course.told = Told::default();
        drop(course);
        self.reauth_work.modify(self.clone(), 0);
    }

    /// Goes on with the path that is authenticating again, or begins with another one that is due.
    /// Returns after how many milliseconds to do so again; `None` if never.
    fn authenticate_again(self: &Arc<Self>) -> Option<u32> {
        let Some(mut round) = self.reauth.take_round() else {
            let interval_s = self.settings().reauth_interval_s.get();
            return (interval_s > 0).then(|| self.begin_round(interval_s));
        };
        let end = match round.step() {
            Ok(wait_ms) => {
                self.reauth.course.lock().round = Some(round);
                return Some(wait_ms);
            }
            Err(end) => end,
        };
        round.path.set_resting(false);
        Some(match end {
            End::Over => 0,
            End::Failed => {
                self.reauth.course.lock().failed = Some(round.path.uuid);
                NOT_READY_MS
            }
            End::PutOff(wait_ms) => wait_ms,
        })
    }

    fn begin_round(self: &Arc<Self>, interval_s: u32) -> u32 {
        if !self.is_authenticated() {
            return AGAIN_MS;
        }
        // Otherwise short intervals could keep the users from opening their devices again.
        if self.failover.lock().logic.is_quiesced() {
            return NOT_READY_MS;
        }
        let interval_ms = u64::from(interval_s).saturating_mul(1000);
        let failed = self.forget_failed();
        let paths = self.paths.lock();
        let seen = || paths.list.iter().map(|path| path.seen(failed).0);
        let path = |at: usize| paths.list.get(at).cloned();
        let (chosen, is_only) = match reauth::next(interval_ms, seen()) {
            Next::Drain(at) => (path(at), false),
            Next::Only(at) => (path(at), true),
            Next::Wait(wait_ms) => {
                let late = reauth::late(interval_ms, seen());
                let late = late.and_then(|(due, away)| Some((path(due)?, path(away)?)));
                drop(paths);
                self.tell_late(late);
                return wait_ms;
            }
        };
        drop(paths);
        self.tell_late(None);
        let Some(path) = chosen else {
            return LOOK_MS;
        };
        if is_only && !self.waits_for_paths() || !self.has_key_now() {
            return AGAIN_MS;
        }
        let (Seen::Connected(_), epoch) = path.seen(None) else {
            return LOOK_MS;
        };
        path.set_resting(!is_only);
        self.reauth.course.lock().round = Some(Round {
            path,
            epoch,
            is_only,
            began: Instant::now(),
            outcomes: None,
        });
        match is_only {
            true => 0,
            false => LOOK_MS,
        }
    }

    /// Returns whether the path of the round may connect again in the way that was chosen.
    fn may_leave(&self, round: &Round) -> bool {
        let failed = self.reauth.failed();
        let paths = self.paths.lock();
        let at = paths
            .list
            .iter()
            .position(|path| Arc::ptr_eq(path, &round.path));
        let Some(at) = at else { return false };
        let chosen = match round.is_only {
            true => Next::Only(at),
            false => Next::Drain(at),
        };
        reauth::still(chosen, paths.list.iter().map(|path| path.seen(failed).0))
    }

    /// Returns the UUID of the path whose round has failed, unless that path is back or removed.
    fn forget_failed(&self) -> Option<[u8; 16]> {
        let failed = self.reauth.failed()?;
        let paths = self.paths.lock();
        let mut failing = paths.list.iter().filter(|path| path.uuid == failed);
        let stays = failing.any(|path| path.state() != State::Connected);
        drop(paths);
        if !stays {
            self.reauth.course.lock().failed = None;
        }
        stays.then_some(failed)
    }

    /// Tells the operator once that a path cannot authenticate again, because another one is away.
    fn tell_late(&self, late: Option<(Arc<Path>, Arc<Path>)>) {
        let told = self.reauth.tells(late.is_some(), |told| &mut told.late);
        if let (Some((due, away)), true) = (late, told) {
            pr_warn!(
                "{}: has not authenticated again for three intervals, as {} is not connected: connect or remove that path\n",
                due.log(),
                away.name()
            );
        }
    }

    /// Returns whether requests wait while there is no path; if not, they would fail whenever the
    /// only path connects again. Tells the operator once.
    fn waits_for_paths(&self) -> bool {
        let fails = self.settings().queue_timeout_s.get() == 0;
        if self.reauth.tells(fails, |told| &mut told.no_waiting) {
            pr_warn!(
                "{}: the only path does not authenticate again, as requests would fail with queue_timeout_s 0: add a path\n",
                self.name()
            );
        }
        !fails
    }

    /// Returns whether the key is there, without which a path that connects again would not come
    /// back. Tells the operator once.
    fn has_key_now(&self) -> bool {
        let lacks = self.lacks_key();
        let tells = self.reauth.tells(lacks.is_some(), |told| &mut told.no_key);
        let Some(error) = lacks else { return true };
        if tells {
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
        // The end of the session waits for this, and requests wait for that.
        let _scope = NoIo::enter();
        if let Some(wait_ms) = this.authenticate_again() {
            this.reauth_work.enqueue_in(this.clone(), wait_ms);
        }
    }
}
