// SPDX-License-Identifier: GPL-2.0

//! Connects, disconnects and removes a path for its users, and waits for that.

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
    sync::{
        atomic::{
            Full,
            Relaxed, //
        },
        Arc, //
    },
};

/// How often a server may answer a user's wish to reconnect with a reset: it does
/// as long as it is busy closing the path's former connections.
const RESETS_FORGIVEN: u32 = 3;

impl Fsm {
    /// Returns the outcome of a failed attempt, or `None` if the attempt asks for another one at
    /// once (`EAGAIN`) and is allowed one. A server asks for that when it remembers connections
    /// from before a reboot of this machine: at most `nr_cons`, and a few of other sessions.
    pub(super) fn again(&mut self, error: Error, is_last: bool, nr_cons: u32) -> Option<Result> {
        const OTHERS: u32 = 8;
        if error != EAGAIN || is_last || self.nr_again >= nr_cons.saturating_add(OTHERS) {
            return Some(Err(error));
        }
        self.nr_again += 1;
        None
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
    /// Waits until `ready` gives something about the state.
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

    /// Returns the outcome of the attempts since the first `outcomes`, if there was one;
    /// `ECONNABORTED` when the path is closed instead.
    pub(crate) fn outcome_since(&self, outcomes: u64) -> Option<Result> {
        self.fsm.lock().outcome_since(outcomes)
    }

    /// Waits for the outcome of an attempt after the first `outcomes`.
    ///
    /// # Errors
    ///
    /// `EINTR`; `ECONNABORTED` when the path is closed instead; why the attempt
    /// failed.
    pub(crate) fn wait_outcome(&self, outcomes: u64) -> Result {
        self.wait(|fsm| fsm.outcome_since(outcomes))?
    }

    /// Waits until the path is torn down for good.
    fn wait_closed(&self) -> Result {
        self.wait(|fsm| matches!(fsm.machine.state, State::Closed | State::Dead).then_some(()))
    }

    fn is_closing(&self) -> bool {
        matches!(self.state(), State::Closing | State::Closed | State::Dead)
    }

    /// Reconnects the path at once, whether it is connected or not, and waits
    /// for that.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `EBUSY`: it is connecting, or being closed.
    /// - `ENODEV`: it was removed.
    /// - `EINTR`: a signal came; the attempt goes on.
    /// - The error of the attempt; others follow as the settings say.
    pub fn reconnect(self: &Arc<Self>) -> Result {
        let (reply, mut outcomes) = self.step(Event::UserReconnect, None);
        reply.result().map_err(convert::error)?;
        for _ in 0..RESETS_FORGIVEN {
            match self.wait_outcome(outcomes) {
                Err(error) if error == ECONNRESET && !self.is_closing() => outcomes += 1,
                result => return result,
            }
        }
        self.wait_outcome(outcomes)
    }

    /// Closes the path until a user wants it again, and waits for that.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `ENODEV`: it was removed.
    /// - `EINTR`: a signal came; it is closed nevertheless.
    pub fn disconnect(self: &Arc<Self>) -> Result {
        match self.ask(Event::UserDisconnect) {
            Err(error) if error != EALREADY => Err(error),
            _ => self.wait_closed(),
        }
    }

    /// Moves the session's requests to other paths, or ends that. As long as there is another path
    /// that is connected and not drained, this one takes none; those in flight end as they
    /// would. It stays connected.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn set_drained(&self, on: bool) {
        // ORDERING: It is read when the set of paths is built again, under its lock.
        if self.drained.xchg(on, Full) == on {
            return;
        }
        self.session.drained_changed();
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

    /// Returns whether the path takes requests only if no other one does.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Relaxed)
    }

    /// Closes the path, and takes it out of the session. Before it goes `unlink`
    /// is called, which may refuse.
    ///
    /// # Context
    ///
    /// May sleep; interruptible.
    ///
    /// # Errors
    ///
    /// - `ENODEV`: it was removed.
    /// - `EINTR`: a signal came; it is closed, but still there.
    /// - Those of `unlink`.
    pub fn remove(self: &Arc<Self>, unlink: impl FnOnce() -> Result) -> Result {
        while self.state() != State::Closed {
            match self.ask(Event::UserDisconnect) {
                // Another task may be closing the path.
                Ok(()) | Err(EALREADY) => self.wait_closed()?,
                Err(error) => return Err(error),
            }
        }
        unlink()?;
        // Another task may have connected the path again.
        self.ask(Event::UserRemove)?;
        if self.state() != State::Dead {
            self.close();
            return Ok(());
        }
        self.forget();
        Ok(())
    }

    /// Closes the path and removes it, no matter what.
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

    /// Begins to close the path.
    pub(crate) fn begin_close(self: &Arc<Self>) {
        let _ = self.ask(Event::UserDisconnect);
    }

    /// Takes a dead path out of the session.
    fn forget(self: &Arc<Self>) {
        // Should the worker not have come to it.
        self.send_uevents();
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook.removed(self);
        }
        self.session.forget(self);
        self.timer.cancel_sync();
        self.heartbeat_work.cancel_sync();
        self.probe_timeout.cancel_sync();
        self.drain.flush();
        self.connect.flush();
        self.events.flush();
        self.release.flush();
        self.release_kept();
        self.uevents.flush();
    }

    fn ask(self: &Arc<Self>, event: Event) -> Result {
        self.event(event).result().map_err(convert::error)
    }
}
