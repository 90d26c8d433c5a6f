// SPDX-License-Identifier: GPL-2.0

//! State changes of a path: carries out what
//! [`ibtrs_proto::fsm::client_path`] decides.

use super::Path;
use crate::{
    path::{
        attempt::{
            connect,
            Attempt,
            Resources, //
        },
        parent, //
    },
    text::Text, //
};
use ibtrs_core::{
    convert,
    trace, //
};
use ibtrs_proto::{
    fsm::client_path::{
        Action,
        Actions,
        Event,
        State, //
    },
    fsm::Reply,
    steps, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::Arc, //
};
use kx::{
    mm::{
        NoIo,
        Reserve, //
    },
    sync::atomic::Relaxed,
    work::WorkItem, //
};

impl Path {
    /// Skips the back-off before the next attempt.
    pub(crate) fn set_reconnect_now(&self) {
        self.fsm.lock().machine.reconnect_now();
    }

    /// Reports to the state machine that attempt `epoch` has failed with `error`, if it is the
    /// current one.
    pub(crate) fn attempt_failed(self: &Arc<Self>, epoch: u32, error: Error) {
        let nr_cons = self.env.nr_cons();
        let mut fsm = self.fsm.lock();
        if fsm.machine.epoch != epoch {
            return;
        }
        fsm.failure = Some(error);
        let again_ms = fsm.again_in_ms(error, nr_cons);
        if let Some(again_ms) = again_ms {
            fsm.machine.reconnect_in(again_ms);
        }
        drop(fsm);
        let event = match again_ms {
            Some(_) => Event::ConnectAgain,
            None => Event::ConnectFailed,
        };
        self.attempt_event(epoch, event);
    }

    /// Steps the state machine.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn event(self: &Arc<Self>, event: Event) -> Reply {
        self.step(event, None).0
    }

    /// As [`Path::event`], but only if attempt `epoch` is the current one; returns whether the
    /// event was accepted.
    pub(crate) fn attempt_event(self: &Arc<Self>, epoch: u32, event: Event) -> bool {
        self.step(event, Some(epoch)).0.accepted()
    }

    /// As [`Path::event`], for attempt `epoch` if given; also returns the number of outcomes before
    /// the step.
    pub(super) fn step(self: &Arc<Self>, event: Event, epoch: Option<u32>) -> (Reply, u64) {
        let limit = self.env.settings().max_reconnect_attempts();
        let mut fsm = self.fsm.lock();
        let outcomes = fsm.outcomes;
        let from = fsm.machine.state;
        let step = match epoch {
            Some(epoch) => fsm.machine.attempt_step(epoch, event, limit),
            None => fsm.machine.step(event, limit),
        };
        let moved = from != step.next;
        if step.reply.accepted() {
            fsm.is_new = false;
            let outcome = match event {
                Event::Established => Some(Ok(())),
                Event::ConnectFailed => Some(Err(fsm.failure.unwrap_or(ECONNRESET))),
                _ => None,
            };
            if let Some(outcome) = outcome {
                fsm.outcomes += 1;
                fsm.outcome = outcome;
                fsm.nr_again = 0;
                fsm.resets_left = 0;
            }
            if event == Event::UserReconnect {
                fsm.forgive_resets();
            }
        }
        let work = moved || !step.actions.is_empty();
        if !step.actions.is_empty() {
            fsm.todo.push(step.actions, Actions::and);
        }
        if moved {
            fsm.pending_uevents.push(step.next, |_, last| last);
        }
        drop(fsm);
        if moved {
            self.uevents.enqueue(self.clone());
            self.record_step(event, step.next);
            let (from, to) = (from.to_u8(), step.next.to_u8());
            trace::client_path_state(|| (self.env.name(), self.name(), from, to));
        }
        if work {
            self.events.enqueue(self.clone());
            self.changed.notify_all();
            self.env.wait_queue().wake_all();
        }
        (step.reply, outcomes)
    }

    /// Adds a step to the history of the session. [`Path::error`] adds a loss, with its cause.
    fn record_step(&self, event: Event, next: State) {
        if let (State::Closing | State::Closed, Event::UserDisconnect) = (next, event) {
            // Belongs to no attempt: a session that loses its last path like this reports its own
            // cause.
            *self.last_error.lock() = (Text::new(fmt!("disconnected by a user")), 0);
        }
        let (what, cause) = match (next, event) {
            (State::Connected, _) => (parent::CONNECTED, ""),
            (State::Closing | State::Closed, Event::UserDisconnect) => ("closed", "by a user"),
            (State::Closing | State::Closed, Event::UserRemove) => ("closed", "to be removed"),
            (State::Closing | State::Closed, Event::LimitSet | Event::ConnectFailed) => {
                ("closed", "max_reconnect_attempts is reached")
            }
            (State::Reconnecting, Event::UserReconnect) => {
                ("closed", "to be connected again by a user")
            }
            (State::Dead, _) => ("removed", ""),
            _ => return,
        };
        self.parent.record(self.name(), what, cause);
    }

    /// Fails the path if attempt `epoch` is the current one; the path then reconnects. `what` is
    /// the reason for the log.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn error(self: &Arc<Self>, epoch: u32, what: fmt::Arguments<'_>) {
        // The task that adds a path waits for its first attempt and reports the error itself, so no
        // warning is due.
        let was_connected = self.state() == State::Connected;
        let awaited = self.nr_attempts() <= 1 && !was_connected;
        if !self.attempt_event(epoch, Event::Error) {
            return;
        }
        let text = Text::new(what);
        *self.last_error.lock() = (text, epoch);
        let what = if was_connected {
            "lost"
        } else {
            parent::FAILED
        };
        self.parent.record(self.name(), what, text.as_str());
        if awaited {
            kx::pr_info_ratelimited!("{}: {}\n", self.log(), text.as_str());
        } else {
            kx::pr_warn_ratelimited!("{}: {}\n", self.log(), text.as_str());
        }
    }

    /// Performs the actions of a step.
    fn perform(self: &Arc<Self>, actions: Actions) {
        for action in actions.iter() {
            match action {
                Action::AbortConnect => {
                    if let Some(attempt) = &*self.attempt.lock() {
                        attempt.abort();
                    }
                }
                Action::CancelReconnect => {
                    self.timer.cancel();
                }
                Action::TearDown => self.tear_down(),
                Action::CountConnect => self.stats.connected(),
                Action::CountFailure => self.stats.connect_failed(),
                Action::ScheduleReconnect => {
                    let delay_ms = self.reconnect_delay_ms();
                    self.timer.enqueue_in(self.clone(), delay_ms);
                }
                Action::ReconnectNow => {
                    self.event(Event::ReconnectDue);
                }
                Action::StartConnect => {
                    if let Err(error) = self.begin() {
                        self.attempt_failed(0, error);
                    }
                }
                Action::StartHeartbeat => {
                    if let Some(attempt) = self.attempt() {
                        let interval = attempt.plan().hb_interval_ms;
                        self.heartbeat_work.enqueue_in(self.clone(), interval);
                    }
                }
            }
        }
    }

    fn reconnect_delay_ms(&self) -> u32 {
        let backoff = self.env.settings().backoff();
        let random = kx::random::next_u32();
        self.fsm.lock().machine.delay_ms(&backoff, random)
    }

    /// Begins an attempt, unless the path was closed concurrently.
    fn begin(self: &Arc<Self>) -> Result {
        let _reserve = self.parent.is_cut_off().then(Reserve::enter);
        let (epoch, messages) = self.parent.begin_attempt()?;
        let attempt = Attempt::new(self.clone(), epoch, messages.clone()).inspect_err(|_| {
            if let (Some(upper), Ok(id)) = (&messages, self.env.message_conn(epoch)) {
                upper.lost(id);
            }
        })?;
        let mut fsm = self.fsm.lock();
        let begins = fsm.machine.begin(epoch);
        if begins {
            fsm.failure = None;
        }
        drop(fsm);
        if begins {
            self.nr_attempts.fetch_add(1, Relaxed);
            *self.attempt.lock() = Some(attempt);
            self.connect.enqueue(self.clone());
        } else {
            attempt.end_messages();
        }
        Ok(())
    }

    /// Unpublishes the path, closes its connections, and passes the requests in flight to the
    /// session.
    fn tear_down(&self) {
        let Some(attempt) = self.attempt() else {
            return;
        };
        attempt.wait_ended();
        self.fsm.lock().machine.ended();
        self.heartbeat_work.cancel();
        self.parent.clone().unpublish(&attempt);
        let left = attempt.tear_down();
        self.parent.clone().kick_requeue();
        self.keep(&attempt, left);
        let gone = self.attempt.lock().take();
        drop(gone);
    }

    /// Keeps the resources of an attempt, to reserve their memory for the next one.
    fn keep(&self, attempt: &Attempt, left: Resources) {
        let mut kept = self.kept.lock();
        // If resources are already kept, this attempt failed before its large allocations. An
        // attempt that found no memory frees its own, so that the next one finds larger free
        // blocks.
        if kept.is_none() && !attempt.disposable.load(Relaxed) {
            *kept = Some(left);
            return;
        }
        drop(kept);
        drop(left);
    }

    /// Frees the kept resources of the last attempt.
    pub(crate) fn release_kept(&self) {
        let kept = self.kept.lock().take();
        drop(kept);
    }

    /// As [`Path::release_kept`], for contexts that cannot wait for it.
    pub(crate) fn release_soon(self: &Arc<Self>) {
        self.release.enqueue(self.clone());
    }

    /// Applies a new limit of attempts, even to a path that waits for its next one.
    pub(crate) fn attempts_limited(self: &Arc<Self>) {
        self.event(Event::LimitSet);
    }

    /// Sends a uevent for every new state, however soon the next one follows.
    pub(super) fn send_uevents(&self) {
        let mut hook = self.hook.lock();
        steps::carry_out(
            || self.fsm.lock().pending_uevents.take(),
            |state| {
                if let Some(hook) = &mut *hook {
                    hook.changed(self, state);
                }
            },
        );
    }

    /// Returns whether the path is connected, by attempt `epoch`.
    fn is_connected_by(&self, epoch: u32) -> bool {
        let fsm = self.fsm.lock();
        fsm.machine.state == State::Connected && fsm.machine.epoch == epoch
    }

    /// Applies a new time between heartbeats.
    pub(crate) fn heartbeat_changed(self: &Arc<Self>) {
        let attempt = self.attempt.lock();
        let interval = attempt
            .as_ref()
            .map(|attempt| attempt.plan().hb_interval_ms);
        drop(attempt);
        if let Some(interval) = interval.filter(|_| self.state() == State::Connected) {
            self.heartbeat_work.modify(self.clone(), interval);
        }
    }
}

/// Performs state changes.
impl WorkItem<{ crate::path::work::EVENTS }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _scope = NoIo::enter();
        steps::carry_out(
            || this.fsm.lock().todo.take(),
            |actions| this.perform(actions),
        );
        // Another step may have been added since. In `State::Closing` none is added any more.
        let fsm = this.fsm.lock();
        let state = fsm.machine.state;
        let closed = state == State::Closing && fsm.todo.is_empty();
        drop(fsm);
        if matches!(state, State::Closing | State::Closed | State::Dead) {
            // There may be no next attempt that needs them.
            this.release_kept();
        }
        if closed {
            this.event(Event::CloseDone);
        }
    }
}

/// Frees the resources of an attempt whose device is being removed.
impl WorkItem<{ crate::path::work::RELEASE }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.release_kept();
    }
}

/// Sends uevents.
impl WorkItem<{ crate::path::work::UEVENTS }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.send_uevents();
    }
}

/// Runs a connection attempt.
impl WorkItem<{ crate::path::work::CONNECT }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _scope = NoIo::enter();
        let attempt = this.attempt();
        if let Some(attempt) = attempt {
            connect::run(&attempt);
        }
    }
}

/// Begins the next attempt when its back-off has expired.
impl WorkItem<{ crate::path::work::TIMER }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.event(Event::ReconnectDue);
    }
}

/// Sends heartbeats, and fails the path if the server is silent.
impl WorkItem<{ crate::path::work::HEARTBEAT }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(attempt) = this.attempt() else {
            return;
        };
        // The teardown cancels the timer, but not a running call of this function, which may queue it
        // once more. The timer may therefore expire during the next attempt, whose first heartbeat is
        // not due yet.
        if !this.is_connected_by(attempt.epoch()) {
            return;
        }
        match attempt.heartbeat_due() {
            Ok(()) => {
                let interval = attempt.plan().hb_interval_ms;
                let wait = attempt.link.heartbeat.next_in_ms(interval);
                this.heartbeat_work.enqueue_in(this.clone(), wait);
            }
            Err(error) => attempt.error(fmt!(
                "no heartbeat from the server ({})",
                convert::errno(error).as_str()
            )),
        }
    }
}
