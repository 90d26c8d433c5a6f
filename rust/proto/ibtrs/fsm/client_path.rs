// SPDX-License-Identifier: GPL-2.0

//! State machine of a path of the client.
//!
//! ```text
//!            +------------------- RECONNECTING <-----------+
//!            v                       ^   ^                 |
//!       CONNECTING --> CONNECTING_ERR    |                 |
//!            |                           |                 |
//!            +--> CONNECTED -------------+                 |
//!       (any of these) --> CLOSING --> CLOSED --> DEAD     |
//!                                         +---(user)-------+
//! ```

use super::{actions, ActionSet};
use crate::backoff::{Attempts, Backoff};
use crate::errno::Errno;

/// State of a client path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// An attempt to connect is under way.
    Connecting,
    /// The attempt has failed; its worker has not noticed yet. [`Event::Established`] is
    /// ignored here: a worker that learns this reports [`Event::ConnectFailed`].
    ConnectingErr,
    /// The path takes requests.
    Connected,
    /// The path has failed; it is being torn down, or waits for its next attempt.
    Reconnecting,
    /// The path is being torn down, for good or until an operator reconnects it.
    Closing,
    /// The path is torn down. Only an operator's request leads out of this state.
    Closed,
    /// The path is removed. Nothing leads out of this state.
    Dead,
}

impl State {
    /// All states.
    pub const ALL: [State; 7] = [
        State::Connecting,
        State::ConnectingErr,
        State::Connected,
        State::Reconnecting,
        State::Closing,
        State::Closed,
        State::Dead,
    ];

    /// The name for logs and traces.
    pub const fn as_str(&self) -> &'static str {
        match self {
            State::Connecting => "connecting",
            State::ConnectingErr => "connecting_err",
            State::Connected => "connected",
            State::Reconnecting => "reconnecting",
            State::Closing => "closing",
            State::Closed => "closed",
            State::Dead => "dead",
        }
    }

    /// The text of the attribute `state`.
    pub const fn sysfs_str(&self) -> &'static str {
        match self {
            State::Connected => "connected",
            _ => "disconnected",
        }
    }

    /// A number for atomics and traces; the inverse of [`State::from_u8`].
    pub const fn to_u8(self) -> u8 {
        match self {
            State::Connecting => 0,
            State::ConnectingErr => 1,
            State::Connected => 2,
            State::Reconnecting => 3,
            State::Closing => 4,
            State::Closed => 5,
            State::Dead => 6,
        }
    }

    /// The state of a number from [`State::to_u8`].
    pub const fn from_u8(n: u8) -> Option<Self> {
        match n {
            0 => Some(State::Connecting),
            1 => Some(State::ConnectingErr),
            2 => Some(State::Connected),
            3 => Some(State::Reconnecting),
            4 => Some(State::Closing),
            5 => Some(State::Closed),
            6 => Some(State::Dead),
            _ => None,
        }
    }
}

/// The events of a client path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The attempt succeeded: a valid INFO_RSP has arrived.
    Established,
    /// The worker of the attempt reports that it has failed.
    ConnectFailed,
    /// As [`Event::ConnectFailed`], but only because the server was not ready: another attempt
    /// follows, and the limit of attempts does not count this one. The driver limits how often.
    ConnectAgain,
    /// Something broke: a work completion, the connection, the heartbeat, a post; or the RDMA
    /// device goes away. The path tries again, as its addresses may lead to another device, or to
    /// this one when it is back.
    Error,
    /// The delay before the next attempt is over.
    ReconnectDue,
    /// An operator has set the limit of reconnect attempts.
    LimitSet,
    /// An operator reconnects the path (attribute `reconnect`).
    UserReconnect,
    /// An operator closes the path (attribute `disconnect`), also to remove it (`remove_path`).
    UserDisconnect,
    /// The path is removed, as the session ends or as an operator wants (attribute `remove_path`,
    /// once its file is gone). The first time this closes the path; once the path is CLOSED, it
    /// removes it. From the first time on, no operator can reconnect the path.
    UserRemove,
    /// The teardown that CLOSING asked for is complete.
    CloseDone,
}

impl Event {
    /// All events.
    pub const ALL: [Event; 10] = [
        Event::Established,
        Event::ConnectFailed,
        Event::ConnectAgain,
        Event::Error,
        Event::ReconnectDue,
        Event::LimitSet,
        Event::UserReconnect,
        Event::UserDisconnect,
        Event::UserRemove,
        Event::CloseDone,
    ];

    /// The name for logs and traces.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Event::Established => "established",
            Event::ConnectFailed => "connect failed",
            Event::ConnectAgain => "connect again",
            Event::Error => "error",
            Event::ReconnectDue => "reconnect due",
            Event::LimitSet => "limit of attempts set",
            Event::UserReconnect => "reconnect by user",
            Event::UserDisconnect => "disconnect by user",
            Event::UserRemove => "remove by user",
            Event::CloseDone => "closed",
        }
    }
}

actions! {
    /// The actions of the caller after a step, in this order.
    Action,
    /// The actions that a step asks for.
    Actions {
        /// Make a running attempt to connect return early, so that its last event counts for this
        /// attempt and not for the next one.
        AbortConnect,
        /// Cancel the timer of the next attempt.
        CancelReconnect,
        /// Tear the attempt down, if there is one: wait for its worker, call [`Machine::ended`],
        /// stop the heartbeat, let no new request start, disconnect and drain the QPs, and fail
        /// over the requests that were in flight.
        TearDown,
        /// Count a successful attempt in the statistics.
        CountConnect,
        /// Count a failed attempt in the statistics.
        CountFailure,
        /// Start the timer of the next attempt, with [`Machine::delay_ms`].
        ScheduleReconnect,
        /// Make the next attempt at once: [`Event::ReconnectDue`] without delay.
        ReconnectNow,
        /// Begin an attempt to connect, if [`Machine::begin`] allows it.
        StartConnect,
        /// Start the heartbeat.
        StartHeartbeat,
    }
}

/// Outcome of an event.
pub type Step = super::Step<State, Actions>;

/// The first step of a new path.
pub const fn initial() -> Step {
    Step::to(State::Connecting, Actions::of(Action::StartConnect))
}

/// The state of a path, and everything else that its steps depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// The state.
    pub state: State,
    /// Epoch of the attempt whose events count; 0 for none.
    pub epoch: u32,
    /// The attempts to reconnect.
    pub tries: Tries,
    /// The path is being removed: nobody can connect it again.
    pub removing: bool,
}

/// Attempts to reconnect in a row.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tries {
    /// Number of attempts since the last success, or since an operator's reconnect.
    pub made: u32,
    /// The last attempt does not count: it is repeated, see [`Event::ConnectAgain`].
    pub repeats: bool,
    /// The delay before the next attempt in milliseconds, in place of the back-off.
    pub delay_ms: Option<u32>,
}

impl Tries {
    const NONE: Self = Self {
        made: 0,
        repeats: false,
        delay_ms: None,
    };

    /// Number of attempts that count.
    const fn counted(&self) -> u32 {
        // Lossless: 0 or 1.
        self.made.saturating_sub(self.repeats as u32)
    }
}

impl Machine {
    /// A path before its [first step](initial) is carried out.
    pub const fn new() -> Self {
        Self {
            state: initial().next,
            epoch: 0,
            tries: Tries::NONE,
            removing: false,
        }
    }

    /// Handles an event of the path. `limit` is how many attempts an operator allows in a row.
    pub fn step(&mut self, event: Event, limit: Attempts) -> Step {
        match event {
            // Also while the path is closing: it could be connected again before the task that removes
            // it has seen that it is closed.
            Event::UserRemove => self.removing = true,
            Event::UserReconnect if self.removing => {
                return Step::refuse(self.state, Errno::ENODEV)
            }
            _ => {}
        }
        let step = step(self.state, event, limit.allow(self.tries.counted()));
        self.state = step.next;
        if step.reply.accepted() {
            match event {
                Event::ReconnectDue => {
                    self.tries = Tries {
                        made: match self.tries.repeats {
                            true => self.tries.made,
                            false => self.tries.made.saturating_add(1),
                        },
                        ..Tries::NONE
                    };
                }
                Event::ConnectAgain => self.tries.repeats = true,
                Event::Established | Event::UserReconnect => self.tries = Tries::NONE,
                _ => {}
            }
        }
        step
    }

    /// Handles an event of the attempt `epoch`, which is ignored unless that is the current one.
    pub fn attempt_step(&mut self, epoch: u32, event: Event, limit: Attempts) -> Step {
        if epoch == self.epoch {
            self.step(event, limit)
        } else {
            Step::ignore(self.state)
        }
    }

    /// Begins the attempt `epoch`: its events count from now on. Returns whether it may begin: not
    /// if the path was closed meanwhile, because then nothing might tear it down.
    #[must_use]
    pub fn begin(&mut self, epoch: u32) -> bool {
        let may = matches!(self.state, State::Connecting);
        if may {
            self.epoch = epoch;
        }
        may
    }

    /// Notes that the attempt is torn down: errors that it reports from now on are caused by that.
    pub fn ended(&mut self) {
        self.epoch = 0;
    }

    /// Lets the next attempt begin without delay, because the reason for the failure is gone.
    pub fn reconnect_now(&mut self) {
        self.reconnect_in(0);
    }

    /// Lets the next attempt begin after `delay_ms` milliseconds, because the reason for the
    /// failure should be gone by then.
    pub fn reconnect_in(&mut self, delay_ms: u32) {
        self.tries.delay_ms = Some(delay_ms);
    }

    /// The delay before the next attempt, in milliseconds. `random` is any 32 random bits.
    pub fn delay_ms(&self, backoff: &Backoff, random: u32) -> u32 {
        match self.tries.delay_ms {
            Some(delay_ms) => delay_ms,
            None => backoff.delay_ms(self.tries.made, random),
        }
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

/// Teardown of a path.
const DOWN: Actions = Actions::of(Action::TearDown);
/// Teardown of a path during an attempt.
const ABORT: Actions = DOWN.with(Action::AbortConnect);
/// Teardown after a failed attempt.
const FAILED: Actions = DOWN.with(Action::CountFailure);
/// The next attempt waits for the back-off.
const LATER: Actions = Actions::of(Action::ScheduleReconnect);
/// An operator's reconnect does not wait.
const NOW: Actions = Actions::of(Action::ReconnectNow);
const CANCEL: Actions = Actions::of(Action::CancelReconnect);

/// Applies `event` to a path in `state`. `retry` tells whether another attempt may follow.
pub const fn step(state: State, event: Event, retry: bool) -> Step {
    use Event as E;
    use State as S;

    const BUSY: Errno = Errno::EBUSY;
    const ALREADY: Errno = Errno::EALREADY;
    const GONE: Errno = Errno::ENODEV;

    match (state, event) {
        // An attempt is under way.
        (S::Connecting, E::Established) => Step::to(
            S::Connected,
            Actions::of(Action::CountConnect).with(Action::StartHeartbeat),
        ),
        (S::Connecting, E::ConnectFailed) => failed(retry),
        (S::Connecting, E::ConnectAgain) => failed(true),
        (S::Connecting, E::Error) => Step::to(S::ConnectingErr, Actions::of(Action::AbortConnect)),
        (S::Connecting, E::ReconnectDue) => Step::ignore(state),
        (S::Connecting, E::LimitSet) => Step::ignore(state),
        (S::Connecting, E::UserReconnect) => Step::refuse(state, BUSY),
        (S::Connecting, E::UserDisconnect) => Step::to(S::Closing, ABORT),
        (S::Connecting, E::UserRemove) => Step::to(S::Closing, ABORT),
        (S::Connecting, E::CloseDone) => Step::ignore(state),

        // The attempt is lost, and its worker is about to report it.
        (S::ConnectingErr, E::Established) => Step::ignore(state),
        (S::ConnectingErr, E::ConnectFailed) => failed(retry),
        (S::ConnectingErr, E::ConnectAgain) => failed(true),
        (S::ConnectingErr, E::Error) => Step::ignore(state),
        (S::ConnectingErr, E::ReconnectDue) => Step::ignore(state),
        (S::ConnectingErr, E::LimitSet) => Step::ignore(state),
        (S::ConnectingErr, E::UserReconnect) => {
            Step::to(S::Reconnecting, ABORT.and(FAILED).and(NOW))
        }
        (S::ConnectingErr, E::UserDisconnect) => Step::to(S::Closing, ABORT),
        (S::ConnectingErr, E::UserRemove) => Step::to(S::Closing, ABORT),
        (S::ConnectingErr, E::CloseDone) => Step::ignore(state),

        // Requests flow.
        (S::Connected, E::Established) => Step::ignore(state),
        (S::Connected, E::ConnectFailed) => Step::ignore(state),
        (S::Connected, E::ConnectAgain) => Step::ignore(state),
        (S::Connected, E::Error) if retry => Step::to(S::Reconnecting, DOWN.and(LATER)),
        (S::Connected, E::Error) => Step::to(S::Closing, DOWN),
        (S::Connected, E::ReconnectDue) => Step::ignore(state),
        (S::Connected, E::LimitSet) => Step::ignore(state),
        (S::Connected, E::UserReconnect) => Step::to(S::Reconnecting, DOWN.and(NOW)),
        (S::Connected, E::UserDisconnect) => Step::to(S::Closing, DOWN),
        (S::Connected, E::UserRemove) => Step::to(S::Closing, DOWN),
        (S::Connected, E::CloseDone) => Step::ignore(state),

        // Torn down or about to be, waiting for the next attempt.
        (S::Reconnecting, E::Established) => Step::ignore(state),
        (S::Reconnecting, E::ConnectFailed) => Step::ignore(state),
        (S::Reconnecting, E::ConnectAgain) => Step::ignore(state),
        (S::Reconnecting, E::Error) => Step::ignore(state),
        (S::Reconnecting, E::ReconnectDue) => {
            Step::to(S::Connecting, Actions::of(Action::StartConnect))
        }
        (S::Reconnecting, E::LimitSet) if retry => Step::ignore(state),
        (S::Reconnecting, E::LimitSet) => Step::to(S::Closing, CANCEL),
        (S::Reconnecting, E::UserReconnect) => Step::to(S::Reconnecting, CANCEL.and(NOW)),
        (S::Reconnecting, E::UserDisconnect) => Step::to(S::Closing, CANCEL),
        (S::Reconnecting, E::UserRemove) => Step::to(S::Closing, CANCEL),
        (S::Reconnecting, E::CloseDone) => Step::ignore(state),

        // Being torn down.
        (S::Closing, E::Established) => Step::ignore(state),
        (S::Closing, E::ConnectFailed) => Step::ignore(state),
        (S::Closing, E::ConnectAgain) => Step::ignore(state),
        (S::Closing, E::Error) => Step::ignore(state),
        (S::Closing, E::ReconnectDue) => Step::ignore(state),
        (S::Closing, E::LimitSet) => Step::ignore(state),
        (S::Closing, E::UserReconnect) => Step::refuse(state, BUSY),
        (S::Closing, E::UserDisconnect) => Step::refuse(state, ALREADY),
        (S::Closing, E::UserRemove) => Step::refuse(state, BUSY),
        (S::Closing, E::CloseDone) => Step::to(S::Closed, Actions::NONE),

        // Torn down.
        (S::Closed, E::Established) => Step::ignore(state),
        (S::Closed, E::ConnectFailed) => Step::ignore(state),
        (S::Closed, E::ConnectAgain) => Step::ignore(state),
        (S::Closed, E::Error) => Step::ignore(state),
        (S::Closed, E::ReconnectDue) => Step::ignore(state),
        (S::Closed, E::LimitSet) => Step::ignore(state),
        (S::Closed, E::UserReconnect) => Step::to(S::Reconnecting, NOW),
        (S::Closed, E::UserDisconnect) => Step::refuse(state, ALREADY),
        (S::Closed, E::UserRemove) => Step::to(S::Dead, Actions::NONE),
        (S::Closed, E::CloseDone) => Step::ignore(state),

        // Removed.
        (S::Dead, E::Established) => Step::ignore(state),
        (S::Dead, E::ConnectFailed) => Step::ignore(state),
        (S::Dead, E::ConnectAgain) => Step::ignore(state),
        (S::Dead, E::Error) => Step::ignore(state),
        (S::Dead, E::ReconnectDue) => Step::ignore(state),
        (S::Dead, E::LimitSet) => Step::ignore(state),
        (S::Dead, E::UserReconnect) => Step::refuse(state, GONE),
        (S::Dead, E::UserDisconnect) => Step::refuse(state, GONE),
        (S::Dead, E::UserRemove) => Step::refuse(state, GONE),
        (S::Dead, E::CloseDone) => Step::ignore(state),
    }
}

/// The step after the worker of an attempt has reported that it failed.
const fn failed(retry: bool) -> Step {
    if retry {
        Step::to(State::Reconnecting, FAILED.and(LATER))
    } else {
        Step::to(State::Closing, FAILED)
    }
}
