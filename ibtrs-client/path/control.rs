// SPDX-License-Identifier: GPL-2.0

//! Connects, disconnects and removes a path on behalf of users, and waits for the result.

use super::{
    Fsm,
    Path, //
};
use ibtrs_core::convert;
use ibtrs_proto::fsm::client_path::{
    Event,
    State, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sync::atomic::{
    Full,
    Relaxed, //
};

/// Number of resets that do not fail a user's reconnect: the server resets new connections while it
/// is still closing earlier ones of the path.
const RESETS_FORGIVEN: u32 = 5;
/// Pause after the first reset, which gives the server time to close them; doubled after each
/// further one.
const RESET_MS: u32 = 200;

impl Fsm {
    /// Returns the milliseconds after which an attempt that has failed with `error` is repeated
    /// without counting; `None` if it counts as failed.
    ///
    /// `EAGAIN` has three causes. First, the server may still have connections from before a reboot
    /// of this machine: at most `nr_cons`, and a few of other sessions. Second, the session may
    /// have a new UUID. Third, another path may have come up first ([`OfferResult::Join`]), which
    /// happens once in an outage.
    ///
    /// [`OfferResult::Join`]: ibtrs_proto::failover::OfferResult::Join
    pub(super) fn again_in_ms(&mut self, error: Error, nr_cons: u32) -> Option<u32> {
        const OTHERS: u32 = 8;
        if error == EAGAIN && self.nr_again < nr_cons.saturating_add(OTHERS) {
            self.nr_again += 1;
            return Some(0);
        }
        if error == ECONNRESET && self.resets_left > 0 {
            let before = RESETS_FORGIVEN.saturating_sub(self.resets_left);
            self.resets_left -= 1;
            return Some(RESET_MS.checked_shl(before).unwrap_or(RESET_MS));
        }
        None
    }

    /// Records that the path connects at the request of a user.
    pub(super) fn forgive_resets(&mut self) {
        self.nr_again = 0;
        self.resets_left = RESETS_FORGIVEN;
    }

    /// See [`Path::outcome_since`].
    fn outcome_since(&self, outcomes: u64) -> Option<Result> {
        if self.outcomes != outcomes {
            return Some(self.outcome);
        }
        matches!(
            self.machine.state,
            State::Closing | State::Closed | State::Dead
        )
        .then_some(Err(ECONNABORTED))
    }
}

impl Path {
    /// Waits until `ready` returns a value for the state.
    ///
    /// # Errors
    ///
    /// `EINTR`: interrupted by a signal.
    fn wait<R>(&self, mut ready: impl FnMut(&Fsm) -> Option<R>) -> Result<R> {
        let mut fsm = self.fsm.lock();
        loop {
            if let Some(value) = ready(&fsm) {
                return Ok(value);
            }
            if self.changed.wait_interruptible(&mut fsm) {
                return Err(EINTR);
            }
        }
    }

    /// Returns the last outcome if there was one after the first `outcomes`; `ECONNABORTED` if the
    /// path was closed instead; `None` otherwise.
    pub(crate) fn outcome_since(&self, outcomes: u64) -> Option<Result> {
        self.fsm.lock().outcome_since(outcomes)
    }

    /// Returns whether the path was closed, and has had no outcome since the first `outcomes`.
    pub(crate) fn is_closed_since(&self, outcomes: u64) -> bool {
        let fsm = self.fsm.lock();
        fsm.outcomes == outcomes && fsm.outcome_since(outcomes).is_some()
    }

    /// Waits for the outcome of an attempt after the first `outcomes`.
    ///
    /// # Errors
    ///
    /// `EINTR`; `ECONNABORTED` if the path is closed instead; the error of the attempt.
    pub(crate) fn wait_outcome(&self, outcomes: u64) -> Result {
        self.wait(|fsm| fsm.outcome_since(outcomes))?
    }

    /// Waits while the path is being closed. Another task may have reconnected it since.
    fn wait_closed(&self) -> Result {
        self.wait(|fsm| (fsm.machine.state != State::Closing).then_some(()))
    }

    /// Reconnects the path at once, whether it is connected or not, and waits for the outcome.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `EBUSY`: the path is connecting or being closed.
    /// - `ENODEV`: the path was or is being removed.
    /// - `EINTR`: interrupted by a signal; the attempt continues.
    /// - The error of the attempt; further attempts follow as set.
    pub fn reconnect(self: &Arc<Self>) -> Result {
        let (reply, outcomes) = self.step(Event::UserReconnect, None);
        reply.result().map_err(convert::error)?;
        self.wait_outcome(outcomes)
    }

    /// Closes the path until a user reconnects it, and waits until it is closed, or connected again.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `ENODEV`: the path was removed.
    /// - `EINTR`: interrupted by a signal; the path closes nevertheless.
    pub fn disconnect(self: &Arc<Self>) -> Result {
        match self.ask(Event::UserDisconnect) {
            Err(error) if error != EALREADY => Err(error),
            _ => self.wait_closed(),
        }
    }

    /// Drains the path, or undoes that. A drained path takes no new requests while another path is
    /// connected and not drained. Requests in flight are unaffected, and the path stays connected.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn set_drained(&self, on: bool) {
        // ORDERING: `drained` is read when the multipath is rebuilt, under the lock of the path
        // list.
        if self.drained.xchg(on, Full) == on {
            return;
        }
        let (what, variable) = match on {
            true => ("drained", c"IBTRS_DRAINED=1"),
            false => ("undrained", c"IBTRS_DRAINED=0"),
        };
        self.ranked(what, variable);
        pr_info!(
            "{}: {}\n",
            self.log(),
            if on {
                "drained by a user: requests take other paths"
            } else {
                "takes requests again"
            }
        );
    }

    /// Returns whether the operator has drained the path.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Relaxed)
    }

    /// Drains the path until it has been reconnected, whether or not the operator has drained it.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn set_drained_for_reauth(&self, on: bool) {
        // ORDERING: As in `set_drained`.
        if self.drained_for_reauth.xchg(on, Full) != on {
            self.parent.ranks_changed();
        }
    }

    /// Returns whether the path takes requests only if no other one does, not even one on standby.
    pub(crate) fn takes_last(&self) -> bool {
        self.is_drained() || self.drained_for_reauth.load(Relaxed)
    }

    /// Puts the path on standby, or makes it active again. A path on standby takes no new requests while
    /// a path is connected that is neither on standby nor drained. Requests in flight are unaffected,
    /// and the path stays connected.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn set_standby(&self, on: bool) {
        // ORDERING: As in `set_drained`.
        if self.standby.xchg(on, Full) == on {
            return;
        }
        let (what, variable) = match on {
            true => ("standby", c"IBTRS_STANDBY=1"),
            false => ("active", c"IBTRS_STANDBY=0"),
        };
        self.ranked(what, variable);
        pr_info!(
            "{}: {}\n",
            self.log(),
            if on {
                "on standby: requests take other paths while one is connected"
            } else {
                "takes requests as other paths do"
            }
        );
    }

    /// Applies a change by the operator to subsequent requests, and reports it to user space.
    fn ranked(&self, what: &'static str, variable: &CStr) {
        self.parent.ranks_changed();
        self.parent.record(self.name(), what, "by a user");
        if let Some(hook) = &*self.hook.lock() {
            hook.ranked(self, variable);
        }
    }

    /// Returns whether the operator has put the path on standby.
    pub(crate) fn is_standby(&self) -> bool {
        self.standby.load(Relaxed)
    }

    /// Begins to reconnect the path, if attempt `epoch` is still the current one. Returns the number
    /// of outcomes so far, for [`Path::outcome_since`].
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn begin_reconnect(self: &Arc<Self>, epoch: u32) -> Option<u64> {
        let (reply, outcomes) = self.step(Event::UserReconnect, Some(epoch));
        reply.accepted().then_some(outcomes)
    }

    /// Closes the path and removes it from the session. Before the removal, `unlink` is called,
    /// which may refuse it.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `ENODEV`: the path was removed.
    /// - `EINTR`: interrupted by a signal; the path closes, but is not removed.
    /// - Errors of `unlink`.
    pub fn remove(self: &Arc<Self>, unlink: impl FnOnce() -> Result) -> Result {
        while self.state() != State::Closed {
            match self.ask(Event::UserDisconnect) {
                // Another task may be closing the path.
                Ok(()) | Err(EALREADY) => self.wait_closed()?,
                Err(error) => return Err(error),
            }
        }
        unlink()?;
        // Other tasks may have reconnected the path or be about to close it. In any case, only this
        // task can still remove it.
        self.close();
        Ok(())
    }

    /// Closes and removes the path, whatever its state.
    pub(crate) fn close(self: &Arc<Self>) {
        while self.state() != State::Dead {
            let _ = self.ask(Event::UserRemove);
            let mut fsm = self.fsm.lock();
            while !matches!(fsm.machine.state, State::Closed | State::Dead) {
                self.changed.wait(&mut fsm);
            }
        }
        self.forget();
    }

    /// Begins to close the path for [`Path::close`]; does not wait. From here on, the path cannot be
    /// connected.
    pub(crate) fn begin_close(self: &Arc<Self>) {
        let _ = self.ask(Event::UserRemove);
    }

    /// Removes a dead path from sysfs and from the session.
    fn forget(self: &Arc<Self>) {
        // Wait for `show`, or the directory could outlive the path. `show` cannot hold `Path::hook`
        // instead: it drops a directory that it could not complete, which waits for the functions
        // of that directory's files, and these may take `Path::hook`.
        let mut fsm = self.fsm.lock();
        while fsm.being_shown {
            self.changed.wait(&mut fsm);
        }
        drop(fsm);
        // The work item may not have run yet.
        self.send_uevents();
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook.removed(self);
        }
        self.parent.forget(self);
        self.timer.cancel_sync();
        self.heartbeat_work.cancel_sync();
        self.probe_timeout.cancel_sync();
        self.drain.flush();
        self.connect.flush();
        self.events.flush();
        // This waits for a running handler of a device removal, and no other call of it follows. The
        // handler may have queued the work item.
        self.release_kept();
        self.release.disable_sync();
        self.uevents.flush();
    }

    fn ask(self: &Arc<Self>, event: Event) -> Result {
        self.event(event).result().map_err(convert::error)
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_client_path)]
mod tests {
    use super::*;
    use crate::{
        path::attempt::Attempt,
        session::{
            Session,
            SessionConfig,
            SessionEvents, //
        }, //
        types::PathSpec, //
    };
    use ibtrs_proto::{
        addr::PathAddr,
        auth::KeyId,
        name::SessionName, //
    };

    struct Nobody;

    impl SessionEvents for Nobody {
        fn down(&self) {}
        fn up(&self, _session_lost: bool) {}
        fn notice(&self, _number: u32) {}
        fn durable(&self, _number: u32) -> bool {
            true
        }
    }

    /// Creates a path that does not connect and is not in sysfs.
    fn path() -> Result<Arc<Path>> {
        let addr = PathAddr::parse("ip:10.0.0.1").map_err(|_| EINVAL)?;
        let spec = PathSpec { addr, port: 1234 };
        let session = Session::new(&SessionConfig {
            name: SessionName::new(b"kunit").map_err(|_| EINVAL)?,
            paths: &[spec],
            nr_queues: 1,
            nr_poll_queues: 0,
            key_id: KeyId::default(),
            failover_time_ms: None,
            events: Arc::new(Nobody, GFP_KERNEL)?,
        })?;
        let path = Path::new(session.clone(), session.env().clone(), spec)?;
        // The path gets no directory.
        match path.show(|| Err(ESHUTDOWN)) {
            Err(error) if error == ESHUTDOWN => Ok(path),
            _ => Err(EINVAL),
        }
    }

    #[test]
    fn a_path_is_removed_whatever_others_do() {
        for _ in 0..20 {
            let Ok(path) = path() else {
                assert!(false);
                return;
            };
            let removed = path.remove(|| {
                // The path's file is removed. The path is most likely still closing when this
                // returns.
                let again = path.event(Event::UserReconnect).accepted();
                let closed = path.event(Event::UserDisconnect).accepted();
                (again && closed).then_some(()).ok_or(EINVAL)
            });
            assert_eq!(removed, Ok(()));
            assert!(path.state() == State::Dead);
        }
    }

    #[test]
    fn a_path_that_is_removed_is_not_connected_again() {
        let Ok(path) = path() else {
            assert!(false);
            return;
        };
        path.begin_close();
        assert!(!path.event(Event::UserReconnect).accepted());
        assert_eq!(path.wait_closed(), Ok(()));
        assert!(!path.event(Event::UserReconnect).accepted());
        path.close();
        assert!(path.state() == State::Dead);
    }

    #[test]
    fn a_late_heartbeat_leaves_the_next_attempt_alone() {
        const EPOCH: u32 = 2;
        let Ok(path) = path() else {
            assert!(false);
            return;
        };
        // An attempt without a connection or a worker.
        let Ok(attempt) = Attempt::new(path.clone(), EPOCH, None) else {
            assert!(false);
            return;
        };
        attempt.set_ended();
        assert!(path.fsm.lock().machine.begin(EPOCH));
        *path.attempt.lock() = Some(attempt);
        path.heartbeat_work.enqueue(path.clone());
        path.heartbeat_work.flush();
        assert!(path.state() == State::Connecting);
        path.close();
    }

    #[test]
    fn a_removed_path_queues_no_release() {
        let Ok(path) = path() else {
            assert!(false);
            return;
        };
        path.release_soon();
        path.close();
        assert!(!path.release.enqueue(path.clone()));
    }
}
