// SPDX-License-Identifier: GPL-2.0

//! A path of the client (protocol 5.1).
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

use super::{actions, Verdict};
use crate::errno::Errno;

/// State of a client path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// An attempt to connect is under way.
    Connecting,
    /// The attempt has failed; its worker has not noticed yet. [`Event::Established`] is
    /// ignored here: a worker that is told so reports [`Event::ConnectFailed`].
    ConnectingErr,
    /// The path takes requests.
    Connected,
    /// The path failed; it is torn down, or waits for its next attempt.
    Reconnecting,
    /// The path is torn down for good, or until a user asks for it again.
    Closing,
    /// Torn down. Only a user's wish leads out of it.
    Closed,
    /// Removed. Nothing leads out of it.
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

    /// What the attribute `state` shows (protocol 7.1).
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

/// What happens to a client path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The attempt succeeded: a valid INFO_RSP is in.
    Established,
    /// The attempt to connect failed, says its worker.
    ConnectFailed {
        /// Whether the reconnect policy allows another attempt.
        retry: bool,
    },
    /// Something broke: a work completion, the connection, the heartbeat, a post.
    Error {
        /// Whether the reconnect policy allows an attempt to reconnect.
        retry: bool,
    },
    /// The delay before the next attempt is over.
    ReconnectDue,
    /// The reconnect policy was changed and allows no further attempt.
    GiveUp,
    /// A user wants the path connected anew (attribute `reconnect`).
    UserReconnect,
    /// A user, or the session's end, wants the path closed (attribute `disconnect`).
    UserDisconnect,
    /// A user wants the path gone (attribute `remove_path`). The first time it closes the
    /// path; once CLOSED, it removes it.
    UserRemove,
    /// The RDMA device goes away. What was made of it has to go; the path tries again, as its
    /// addresses may lead to another device, or to this one when it is back.
    DeviceRemoved,
    /// The tear-down that CLOSING asked for is complete.
    CloseDone,
}

impl Event {
    /// All events.
    pub const ALL: [Event; 12] = [
        Event::Established,
        Event::ConnectFailed { retry: true },
        Event::ConnectFailed { retry: false },
        Event::Error { retry: true },
        Event::Error { retry: false },
        Event::ReconnectDue,
        Event::GiveUp,
        Event::UserReconnect,
        Event::UserDisconnect,
        Event::UserRemove,
        Event::DeviceRemoved,
        Event::CloseDone,
    ];

    /// The name for logs and traces.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Event::Established => "established",
            Event::ConnectFailed { .. } => "connect failed",
            Event::Error { .. } => "error",
            Event::ReconnectDue => "reconnect due",
            Event::GiveUp => "attempts exhausted",
            Event::UserReconnect => "reconnect by user",
            Event::UserDisconnect => "disconnect by user",
            Event::UserRemove => "remove by user",
            Event::DeviceRemoved => "device removed",
            Event::CloseDone => "closed",
        }
    }
}

actions! {
    /// What the caller has to do after a step, in this order.
    Actions {
        /// Make a running attempt to connect return early, and wait for it: its last event
        /// belongs to this attempt, not to the next.
        ABORT_CONNECT = 0,
        /// Cancel the timer of the next attempt.
        CANCEL_RECONNECT = 1,
        /// Stop the heartbeat, let no new request start, disconnect and drain the QPs.
        STOP_AND_DESTROY = 2,
        /// Complete or fail over the requests that were in flight. Part of the tear-down:
        /// after the QPs are drained, before they are destroyed.
        FAIL_INFLIGHT = 3,
        /// The path no longer counts as up.
        NOTIFY_DOWN = 4,
        /// Start the count of attempts from zero.
        RESET_ATTEMPTS = 5,
        /// Count a failed attempt.
        COUNT_FAILURE = 6,
        /// Start the timer of the next attempt.
        SCHEDULE_RECONNECT = 7,
        /// Make the next attempt at once: [`Event::ReconnectDue`] without delay.
        RECONNECT_NOW = 8,
        /// Begin an attempt to connect.
        START_CONNECT = 9,
        /// Start the heartbeat.
        START_HEARTBEAT = 10,
        /// The path counts as up from now on.
        NOTIFY_UP = 11,
        /// Wake those who wait for the path to be closed.
        WAKE_WAITERS = 12,
        /// Unlink the path and let go of it.
        RELEASE = 13,
    }
}

/// Outcome of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Step {
    /// The state from now on.
    pub next: State,
    /// What to do.
    pub actions: Actions,
    /// What became of the event.
    pub verdict: Verdict,
}

impl Step {
    const fn to(next: State, actions: Actions) -> Self {
        Self {
            next,
            actions,
            verdict: Verdict::Accepted,
        }
    }

    const fn ignore(state: State) -> Self {
        Self {
            next: state,
            actions: Actions::NONE,
            verdict: Verdict::Ignored,
        }
    }

    const fn refuse(state: State, errno: Errno) -> Self {
        Self {
            next: state,
            actions: Actions::NONE,
            verdict: Verdict::Refused(errno),
        }
    }
}

/// The first step of a new path.
pub const fn initial() -> Step {
    Step::to(State::Connecting, Actions::START_CONNECT)
}

/// Tear-down of a path that took requests.
const DOWN: Actions = Actions::STOP_AND_DESTROY
    .and(Actions::FAIL_INFLIGHT)
    .and(Actions::NOTIFY_DOWN);
/// Tear-down of a path during an attempt.
const ABORT: Actions = Actions::ABORT_CONNECT.and(Actions::STOP_AND_DESTROY);
/// After a failed attempt: clean up, and try again later.
const RETRY: Actions = Actions::STOP_AND_DESTROY
    .and(Actions::COUNT_FAILURE)
    .and(Actions::SCHEDULE_RECONNECT);
/// A user's wish to reconnect forgets the attempts made and waits for nothing.
const NOW: Actions = Actions::RESET_ATTEMPTS.and(Actions::RECONNECT_NOW);
/// After a failed attempt that was the last.
const LAST: Actions = Actions::STOP_AND_DESTROY.and(Actions::COUNT_FAILURE);

/// What `event` does to a path in `state`.
pub const fn step(state: State, event: Event) -> Step {
    use Event as E;
    use State as S;

    const BUSY: Errno = Errno::EBUSY;
    const ALREADY: Errno = Errno::EALREADY;
    const GONE: Errno = Errno::ENODEV;

    match (state, event) {
        // An attempt is under way.
        (S::Connecting, E::Established) => Step::to(
            S::Connected,
            Actions::RESET_ATTEMPTS
                .and(Actions::START_HEARTBEAT)
                .and(Actions::NOTIFY_UP),
        ),
        (S::Connecting, E::ConnectFailed { retry: true }) => Step::to(S::Reconnecting, RETRY),
        (S::Connecting, E::ConnectFailed { retry: false }) => Step::to(S::Closing, LAST),
        (S::Connecting, E::Error { retry: _ }) => {
            Step::to(S::ConnectingErr, Actions::ABORT_CONNECT)
        }
        (S::Connecting, E::ReconnectDue) => Step::ignore(state),
        (S::Connecting, E::GiveUp) => Step::ignore(state),
        (S::Connecting, E::UserReconnect) => Step::refuse(state, BUSY),
        (S::Connecting, E::UserDisconnect) => Step::to(S::Closing, ABORT),
        (S::Connecting, E::UserRemove) => Step::to(S::Closing, ABORT),
        (S::Connecting, E::DeviceRemoved) => Step::to(S::ConnectingErr, Actions::ABORT_CONNECT),
        (S::Connecting, E::CloseDone) => Step::ignore(state),

        // The attempt is lost, its worker is about to say so.
        (S::ConnectingErr, E::Established) => Step::ignore(state),
        (S::ConnectingErr, E::ConnectFailed { retry: true }) => Step::to(S::Reconnecting, RETRY),
        (S::ConnectingErr, E::ConnectFailed { retry: false }) => Step::to(S::Closing, LAST),
        (S::ConnectingErr, E::Error { retry: _ }) => Step::ignore(state),
        (S::ConnectingErr, E::ReconnectDue) => Step::ignore(state),
        (S::ConnectingErr, E::GiveUp) => Step::ignore(state),
        (S::ConnectingErr, E::UserReconnect) => Step::to(
            S::Reconnecting,
            Actions::ABORT_CONNECT
                .and(Actions::STOP_AND_DESTROY)
                .and(Actions::COUNT_FAILURE)
                .and(NOW),
        ),
        (S::ConnectingErr, E::UserDisconnect) => Step::to(S::Closing, ABORT),
        (S::ConnectingErr, E::UserRemove) => Step::to(S::Closing, ABORT),
        (S::ConnectingErr, E::DeviceRemoved) => Step::ignore(state),
        (S::ConnectingErr, E::CloseDone) => Step::ignore(state),

        // Requests flow.
        (S::Connected, E::Established) => Step::ignore(state),
        (S::Connected, E::ConnectFailed { retry: _ }) => Step::ignore(state),
        (S::Connected, E::Error { retry: true }) => {
            Step::to(S::Reconnecting, DOWN.and(Actions::SCHEDULE_RECONNECT))
        }
        (S::Connected, E::Error { retry: false }) => Step::to(S::Closing, DOWN),
        (S::Connected, E::ReconnectDue) => Step::ignore(state),
        (S::Connected, E::GiveUp) => Step::ignore(state),
        (S::Connected, E::UserReconnect) => Step::to(S::Reconnecting, DOWN.and(NOW)),
        (S::Connected, E::UserDisconnect) => Step::to(S::Closing, DOWN),
        (S::Connected, E::UserRemove) => Step::to(S::Closing, DOWN),
        (S::Connected, E::DeviceRemoved) => {
            Step::to(S::Reconnecting, DOWN.and(Actions::SCHEDULE_RECONNECT))
        }
        (S::Connected, E::CloseDone) => Step::ignore(state),

        // Torn down or about to be, waiting for the next attempt.
        (S::Reconnecting, E::Established) => Step::ignore(state),
        (S::Reconnecting, E::ConnectFailed { retry: _ }) => Step::ignore(state),
        (S::Reconnecting, E::Error { retry: _ }) => Step::ignore(state),
        (S::Reconnecting, E::ReconnectDue) => Step::to(S::Connecting, Actions::START_CONNECT),
        (S::Reconnecting, E::GiveUp) => Step::to(S::Closing, Actions::CANCEL_RECONNECT),
        (S::Reconnecting, E::UserReconnect) => {
            Step::to(S::Reconnecting, Actions::CANCEL_RECONNECT.and(NOW))
        }
        (S::Reconnecting, E::UserDisconnect) => Step::to(S::Closing, Actions::CANCEL_RECONNECT),
        (S::Reconnecting, E::UserRemove) => Step::to(S::Closing, Actions::CANCEL_RECONNECT),
        (S::Reconnecting, E::DeviceRemoved) => Step::ignore(state),
        (S::Reconnecting, E::CloseDone) => Step::ignore(state),

        // Being torn down.
        (S::Closing, E::Established) => Step::ignore(state),
        (S::Closing, E::ConnectFailed { retry: _ }) => Step::ignore(state),
        (S::Closing, E::Error { retry: _ }) => Step::ignore(state),
        (S::Closing, E::ReconnectDue) => Step::ignore(state),
        (S::Closing, E::GiveUp) => Step::ignore(state),
        (S::Closing, E::UserReconnect) => Step::refuse(state, BUSY),
        (S::Closing, E::UserDisconnect) => Step::refuse(state, ALREADY),
        (S::Closing, E::UserRemove) => Step::refuse(state, BUSY),
        (S::Closing, E::DeviceRemoved) => Step::ignore(state),
        (S::Closing, E::CloseDone) => Step::to(S::Closed, Actions::WAKE_WAITERS),

        // Torn down.
        (S::Closed, E::Established) => Step::ignore(state),
        (S::Closed, E::ConnectFailed { retry: _ }) => Step::ignore(state),
        (S::Closed, E::Error { retry: _ }) => Step::ignore(state),
        (S::Closed, E::ReconnectDue) => Step::ignore(state),
        (S::Closed, E::GiveUp) => Step::ignore(state),
        (S::Closed, E::UserReconnect) => Step::to(S::Reconnecting, NOW),
        (S::Closed, E::UserDisconnect) => Step::refuse(state, ALREADY),
        (S::Closed, E::UserRemove) => Step::to(S::Dead, Actions::RELEASE),
        (S::Closed, E::DeviceRemoved) => Step::ignore(state),
        (S::Closed, E::CloseDone) => Step::ignore(state),

        // Removed.
        (S::Dead, E::Established) => Step::ignore(state),
        (S::Dead, E::ConnectFailed { retry: _ }) => Step::ignore(state),
        (S::Dead, E::Error { retry: _ }) => Step::ignore(state),
        (S::Dead, E::ReconnectDue) => Step::ignore(state),
        (S::Dead, E::GiveUp) => Step::ignore(state),
        (S::Dead, E::UserReconnect) => Step::refuse(state, GONE),
        (S::Dead, E::UserDisconnect) => Step::refuse(state, GONE),
        (S::Dead, E::UserRemove) => Step::refuse(state, GONE),
        (S::Dead, E::DeviceRemoved) => Step::ignore(state),
        (S::Dead, E::CloseDone) => Step::ignore(state),
    }
}
