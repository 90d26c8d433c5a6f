// SPDX-License-Identifier: GPL-2.0

//! Re-authentication: periodically reconnects paths, so that both sides prove themselves again.
//!
//! [`ibtrs_proto::reauth`] chooses the next path. A work item of the session executes the decision
//! in steps and never waits, so that closing the session is fast.

use super::Session;
use crate::path::Path;
use ibtrs_core::convert;
use ibtrs_proto::{
    fsm::client_path::State,
    reauth::{
        self,
        Next,
        PathStatus, //
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

/// How long a path waits for its requests in flight before it is reconnected. Requests that are
/// still in flight are then resent over another path.
const DRAIN_MS: i64 = 5000;
/// How long a session's only path waits for administrative messages before the round is postponed.
/// No other path could carry the messages.
const MESSAGES_MS: i64 = 1000;
/// Time between two checks of the path.
const CHECK_MS: u32 = 50;
/// Time until the next attempt when the operator must act first.
const AGAIN_MS: u32 = 60_000;
/// Time until the next check of the paths when one of them, or the session, is not ready.
const NOT_READY_MS: u32 = 1000;

/// One path's re-authentication.
struct Round {
    path: Arc<Path>,
    /// The attempt that the reconnect ends.
    epoch: u32,
    is_only: bool,
    began: Instant<Monotonic>,
    /// The number of the path's outcomes before it began to reconnect; `None` while its requests in
    /// flight complete.
    outcomes: Option<u64>,
}

/// The end of a round.
enum End {
    /// The path has reconnected, was lost or closed before the reconnect, or no longer needs to
    /// reconnect.
    Over,
    /// The path could not be connected. It logs the reason, and keeps retrying within its limit of
    /// attempts.
    Failed,
    /// The path stays connected; the next round begins after this many milliseconds.
    Postponed(u32),
}

/// The conditions that were logged, and are not logged again while they persist.
#[derive(Clone, Copy, Default)]
struct Logged {
    no_key: bool,
    no_waiting: bool,
    late: bool,
}

struct ReauthState {
    round: Option<Round>,
    /// UUID of the path that could not be connected in its round, until it is connected again.
    failed: Option<[u8; 16]>,
    logged: Logged,
}

/// The state of a session's re-authentication between two runs of the work item.
#[pin_data]
pub(super) struct Reauth {
    #[pin]
    state: Mutex<ReauthState>,
}

impl Reauth {
    pub(super) fn new() -> impl PinInit<Self> {
        let state = ReauthState {
            round: None,
            failed: None,
            logged: Logged::default(),
        };
        pin_init!(Self {
            state <- new_mutex!(state, "Reauth::state"),
        })
    }

    fn take_round(&self) -> Option<Round> {
        self.state.lock().round.take()
    }

    fn failed(&self) -> Option<[u8; 16]> {
        self.state.lock().failed
    }

    /// Sets one of the flags of [`Logged`]; returns whether the condition is to be logged now.
    fn log_once(&self, is_so: bool, which: impl FnOnce(&mut Logged) -> &mut bool) -> bool {
        let mut state = self.state.lock();
        let was_logged = core::mem::replace(which(&mut state.logged), is_so);
        is_so && !was_logged
    }

    /// Drops the reference to the path. The work item must be disabled.
    pub(super) fn stop(&self) {
        drop(self.take_round());
    }
}

impl Round {
    /// Takes the next step. Returns the milliseconds until the following step, or how the round has
    /// ended.
    fn step(&mut self, session: &Session) -> Result<u32, End> {
        let Some(outcomes) = self.outcomes else {
            return self.prepare(session);
        };
        match self.path.outcome_since(outcomes) {
            None => Ok(CHECK_MS),
            Some(Ok(())) => Err(End::Over),
            Some(Err(_)) if self.path.is_closed_since(outcomes) => Err(End::Over),
            Some(Err(_)) => Err(End::Failed),
        }
    }

    /// Reconnects the path once it has no requests or messages in flight.
    fn prepare(&mut self, session: &Session) -> Result<u32, End> {
        if session.reauth_status(&self.path, None).1 != self.epoch {
            // The path was lost, or a user has reconnected it.
            return Err(End::Over);
        }
        if session.settings().reauth_interval_s.get() == 0 {
            return Err(End::Over);
        }
        // The other paths may have been lost since the round began.
        if !session.may_reconnect(self) {
            return Err(End::Postponed(NOT_READY_MS));
        }
        let waited_ms = self.began.elapsed().as_millis();
        if self.is_only {
            // Requests wait on the requeue list during the reconnect, but messages would fail.
            if session.admin.is_busy() {
                return match waited_ms < MESSAGES_MS {
                    true => Ok(CHECK_MS),
                    false => Err(End::Postponed(AGAIN_MS)),
                };
            }
        } else if self.path.stats().in_flight() > 0 && waited_ms < DRAIN_MS {
            return Ok(CHECK_MS);
        }
        if !session.has_key_now() {
            return Err(End::Postponed(AGAIN_MS));
        }
        self.outcomes = self.path.begin_reconnect(self.epoch);
        if self.outcomes.is_none() {
            return Err(End::Over);
        }
        kx::pr_info_ratelimited!("{}: connecting again, to authenticate\n", self.path.log());
        Ok(CHECK_MS)
    }
}

impl Session {
    /// Called when the operator has changed a setting that rounds depend on: resets the failed path
    /// and the logged conditions, and checks the paths at once.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn reauth_settings_changed(self: &Arc<Self>) {
        let mut state = self.reauth.state.lock();
        state.failed = None;
        state.logged = Logged::default();
        drop(state);
        self.reauth_work.modify(self.clone(), 0);
    }

    /// Returns the path's status for the choice of the next path, and the epoch of its attempt if
    /// it is connected. `failed` is the UUID of the path whose round has failed.
    fn reauth_status(&self, path: &Arc<Path>, failed: Option<[u8; 16]>) -> (PathStatus, u32) {
        match path.state() {
            State::Connected => {}
            State::Closing | State::Closed | State::Dead if failed == Some(path.uuid) => {
                return (PathStatus::Failed, 0)
            }
            State::Closing | State::Closed | State::Dead => return (PathStatus::Closed, 0),
            _ => return (PathStatus::Connecting, 0),
        }
        let published = self.with_multipath(|multipath| {
            let mut all = multipath.paths.iter().map(|conn| &conn.attempt);
            let own = all.find(|attempt| Arc::ptr_eq(&attempt.path, path))?;
            Some((
                own.published_at.as_ref()?.elapsed().as_millis(),
                own.epoch(),
            ))
        });
        match published.flatten() {
            Some((age_ms, epoch)) => {
                let age_ms = u64::try_from(age_ms).unwrap_or(0);
                (PathStatus::Connected(age_ms), epoch)
            }
            // The path has just been connected or lost.
            None => (PathStatus::Connecting, 0),
        }
    }

    /// Continues the current round, or begins one if a path is due. Returns the milliseconds until
    /// the next call; `None` for never.
    fn authenticate_again(self: &Arc<Self>) -> Option<u32> {
        let Some(mut round) = self.reauth.take_round() else {
            let interval_s = self.settings().reauth_interval_s.get();
            return (interval_s > 0).then(|| self.begin_round(interval_s));
        };
        let end = match round.step(self) {
            Ok(wait_ms) => {
                self.reauth.state.lock().round = Some(round);
                return Some(wait_ms);
            }
            Err(end) => end,
        };
        round.path.set_drained_for_reauth(false);
        Some(match end {
            End::Over => 0,
            End::Failed => {
                self.reauth.state.lock().failed = Some(round.path.uuid);
                NOT_READY_MS
            }
            End::Postponed(wait_ms) => wait_ms,
        })
    }

    fn begin_round(self: &Arc<Self>, interval_s: u32) -> u32 {
        if !self.is_authenticated() {
            return AGAIN_MS;
        }
        // A short interval must not prevent the users from reopening their devices.
        if self.failover.lock().logic.is_quiesced() {
            return NOT_READY_MS;
        }
        let interval_ms = u64::from(interval_s).saturating_mul(1000);
        let failed = self.forget_failed();
        let paths = self.paths.lock();
        let statuses = || {
            paths
                .list
                .iter()
                .map(|path| self.reauth_status(path, failed).0)
        };
        let path = |at: usize| paths.list.get(at).cloned();
        let (chosen, is_only) = match reauth::next(interval_ms, statuses()) {
            Next::Drain(at) => (path(at), false),
            Next::Only(at) => (path(at), true),
            Next::Wait(wait_ms) => {
                let late = reauth::late(interval_ms, statuses());
                let late = late.and_then(|(due, away)| Some((path(due)?, path(away)?)));
                drop(paths);
                self.log_late(late);
                return wait_ms;
            }
        };
        drop(paths);
        self.log_late(None);
        let Some(path) = chosen else {
            return CHECK_MS;
        };
        if is_only && !self.waits_for_paths() || !self.has_key_now() {
            return AGAIN_MS;
        }
        let (PathStatus::Connected(_), epoch) = self.reauth_status(&path, None) else {
            return CHECK_MS;
        };
        path.set_drained_for_reauth(!is_only);
        self.reauth.state.lock().round = Some(Round {
            path,
            epoch,
            is_only,
            began: Instant::now(),
            outcomes: None,
        });
        match is_only {
            true => 0,
            false => CHECK_MS,
        }
    }

    /// Returns whether the conditions under which the path of the round was chosen still hold.
    fn may_reconnect(&self, round: &Round) -> bool {
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
        reauth::may_proceed(
            chosen,
            paths
                .list
                .iter()
                .map(|path| self.reauth_status(path, failed).0),
        )
    }

    /// Returns the UUID of the path whose round has failed, unless that path is connected again or
    /// was removed.
    fn forget_failed(&self) -> Option<[u8; 16]> {
        let failed = self.reauth.failed()?;
        let paths = self.paths.lock();
        let mut failing = paths.list.iter().filter(|path| path.uuid == failed);
        let stays = failing.any(|path| path.state() != State::Connected);
        drop(paths);
        if !stays {
            self.reauth.state.lock().failed = None;
        }
        stays.then_some(failed)
    }

    /// Logs once that a path cannot authenticate again because another path is not connected.
    fn log_late(&self, late: Option<(Arc<Path>, Arc<Path>)>) {
        let logged = self
            .reauth
            .log_once(late.is_some(), |logged| &mut logged.late);
        if let (Some((due, away)), true) = (late, logged) {
            pr_warn!(
                "{}: has not authenticated again for three intervals, as {} is not connected: connect or remove that path\n",
                due.log(),
                away.name()
            );
        }
    }

    /// Returns whether requests wait while there is no path. If they do not, they would fail
    /// whenever the only path reconnects, which is logged once.
    fn waits_for_paths(&self) -> bool {
        let fails = self.settings().queue_timeout_s.get() == 0;
        if self.reauth.log_once(fails, |logged| &mut logged.no_waiting) {
            pr_warn!(
                "{}: the only path does not authenticate again, as requests would fail with queue_timeout_s 0: add a path\n",
                self.name()
            );
        }
        !fails
    }

    /// Returns whether the key is loaded. Without it, a path could not reconnect, which is logged
    /// once.
    fn has_key_now(&self) -> bool {
        let lacks = self.env.lacks_key();
        let tells = self
            .reauth
            .log_once(lacks.is_some(), |logged| &mut logged.no_key);
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
        // Closing the session waits for this work item, and memory reclaim may wait for requests.
        let _scope = NoIo::enter();
        if let Some(wait_ms) = this.authenticate_again() {
            this.reauth_work.enqueue_in(this.clone(), wait_ms);
        }
    }
}
