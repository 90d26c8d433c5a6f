// SPDX-License-Identifier: GPL-2.0

//! State machine of a path of the server.
//!
//! ```text
//! CONNECTING --> CONNECTED --> CLOSING --> CLOSED
//!      +-------------------------^
//! ```
//!
//! A path never comes back: the client's next attempt is a new path, and is rejected as long as
//! the old one of the same UUID is not CLOSED.

use super::actions;
use crate::errno::Errno;

/// State of a server path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Connections are being accepted; INFO_REQ has not arrived.
    Connecting,
    /// The path takes requests.
    Connected,
    /// The path is being torn down.
    Closing,
    /// The path is torn down. Nothing leads out of this state.
    Closed,
}

impl State {
    /// All states.
    pub const ALL: [State; 4] = [
        State::Connecting,
        State::Connected,
        State::Closing,
        State::Closed,
    ];

    /// The name for logs and traces.
    pub const fn as_str(&self) -> &'static str {
        match self {
            State::Connecting => "connecting",
            State::Connected => "connected",
            State::Closing => "closing",
            State::Closed => "closed",
        }
    }

    /// A number for atomics and traces; the inverse of [`State::from_u8`].
    pub const fn to_u8(self) -> u8 {
        match self {
            State::Connecting => 0,
            State::Connected => 1,
            State::Closing => 2,
            State::Closed => 3,
        }
    }

    /// The state of a number from [`State::to_u8`].
    pub const fn from_u8(n: u8) -> Option<Self> {
        match n {
            0 => Some(State::Connecting),
            1 => Some(State::Connected),
            2 => Some(State::Closing),
            3 => Some(State::Closed),
            _ => None,
        }
    }
}

/// The events of a server path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// INFO_REQ has arrived.
    Info {
        /// All connections of the path exist, and the name of the session is acceptable.
        complete: bool,
    },
    /// Something broke: a work completion, a connection, the heartbeat, a post, a malformed
    /// request.
    Error,
    /// The setup timer has expired: the client did not complete its connections.
    Stale,
    /// The client has superseded this path, as another path shows: by a fence, by a request for a
    /// chunk number that this path has in service, or by the path's next attempt.
    Superseded,
    /// An operator, or the unloading of the module, closes the path.
    UserDisconnect,
    /// The RDMA device goes away.
    DeviceRemoved,
    /// The teardown that CLOSING asked for is complete.
    CloseDone,
}

impl Event {
    /// All events.
    pub const ALL: [Event; 8] = [
        Event::Info { complete: true },
        Event::Info { complete: false },
        Event::Error,
        Event::Stale,
        Event::Superseded,
        Event::UserDisconnect,
        Event::DeviceRemoved,
        Event::CloseDone,
    ];

    /// The name for logs and traces.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Event::Info { .. } => "info request",
            Event::Error => "error",
            Event::Stale => "connecting for too long",
            Event::Superseded => "superseded by the client",
            Event::UserDisconnect => "disconnect by user",
            Event::DeviceRemoved => "device removed",
            Event::CloseDone => "closed",
        }
    }
}

actions! {
    /// The actions of the caller after a step, in this order.
    Action,
    /// The actions that a step asks for.
    Actions {
        /// Cancel the setup timer, which each connection of the path restarts: the path can no
        /// longer become stale.
        CancelStale,
        /// Start the heartbeat.
        StartHeartbeat,
        /// Register the chunks and send INFO_RSP after them.
        SendInfoRsp,
        /// Stop the heartbeat, disconnect and drain every QP, wait until no request of the path
        /// is in service any more, release memory regions, QPs and the device; then report
        /// [`Event::CloseDone`].
        TearDown,
        /// Unlink the path, and release it and the session.
        Release,
    }
}

/// Outcome of an event.
pub type Step = super::Step<State, Actions>;

/// The state of a new path, whose first connection was accepted.
pub const INITIAL: State = State::Connecting;

const DOWN: Actions = Actions::of(Action::TearDown);

/// Applies `event` to a path in `state`.
pub const fn step(state: State, event: Event) -> Step {
    use Event as E;
    use State as S;

    const ALREADY: Errno = Errno::EALREADY;

    match (state, event) {
        // Connections are being accepted.
        (S::Connecting, E::Info { complete: true }) => Step::to(
            S::Connected,
            Actions::of(Action::CancelStale)
                .with(Action::StartHeartbeat)
                .with(Action::SendInfoRsp),
        ),
        (S::Connecting, E::Info { complete: false }) => Step::to(S::Closing, DOWN),
        (S::Connecting, E::Error) => Step::to(S::Closing, DOWN),
        (S::Connecting, E::Stale) => Step::to(S::Closing, DOWN),
        (S::Connecting, E::Superseded) => Step::to(S::Closing, DOWN),
        (S::Connecting, E::UserDisconnect) => Step::to(S::Closing, DOWN),
        (S::Connecting, E::DeviceRemoved) => Step::to(S::Closing, DOWN),
        (S::Connecting, E::CloseDone) => Step::ignore(state),

        // Requests flow. A second INFO_REQ breaks the protocol.
        (S::Connected, E::Info { complete: _ }) => Step::to(S::Closing, DOWN),
        (S::Connected, E::Error) => Step::to(S::Closing, DOWN),
        (S::Connected, E::Stale) => Step::ignore(state),
        (S::Connected, E::Superseded) => Step::to(S::Closing, DOWN),
        (S::Connected, E::UserDisconnect) => Step::to(S::Closing, DOWN),
        (S::Connected, E::DeviceRemoved) => Step::to(S::Closing, DOWN),
        (S::Connected, E::CloseDone) => Step::ignore(state),

        // Being torn down.
        (S::Closing, E::Info { complete: _ }) => Step::ignore(state),
        (S::Closing, E::Error) => Step::ignore(state),
        (S::Closing, E::Stale) => Step::ignore(state),
        (S::Closing, E::Superseded) => Step::ignore(state),
        (S::Closing, E::UserDisconnect) => Step::refuse(state, ALREADY),
        (S::Closing, E::DeviceRemoved) => Step::ignore(state),
        (S::Closing, E::CloseDone) => Step::to(S::Closed, Actions::of(Action::Release)),

        // Torn down.
        (S::Closed, E::Info { complete: _ }) => Step::ignore(state),
        (S::Closed, E::Error) => Step::ignore(state),
        (S::Closed, E::Stale) => Step::ignore(state),
        (S::Closed, E::Superseded) => Step::ignore(state),
        (S::Closed, E::UserDisconnect) => Step::refuse(state, ALREADY),
        (S::Closed, E::DeviceRemoved) => Step::ignore(state),
        (S::Closed, E::CloseDone) => Step::ignore(state),
    }
}
