// SPDX-License-Identifier: GPL-2.0

//! Outcomes of messages and calls.

use ibtrs_proto::Errno;

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was queued for the peer's program.
    Delivered,
    /// The peer's program has not got it, and never will.
    NotDelivered,
    /// The peer's program may have got it, or may get it, but not after a later message of the channel.
    Unknown,
}

/// What became of a call that has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallOutcome {
    /// The peer's program has not got the request, and never will.
    NotDelivered,
    /// The request was queued for the peer's program.
    Unanswered,
    /// The peer's program may have got the request, or may get it.
    Unknown,
}

/// Why a message or a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Its time is over.
    Timeout,
    /// The peer's program has closed the channel; what it had taken is known.
    Closed,
    /// The peer's kernel no longer has the channel, so what it had received is not known.
    PeerLost,
}

impl Outcome {
    /// The errno for the program; `None` for success.
    pub const fn errno(self, cause: Cause) -> Option<Errno> {
        match self {
            Self::Delivered => None,
            Self::NotDelivered => Some(Errno::ECANCELED),
            Self::Unknown => Some(unknown(cause)),
        }
    }
}

impl CallOutcome {
    /// The outcome of a call whose request has ended with `request`.
    pub const fn of_request(request: Outcome) -> Self {
        match request {
            Outcome::Delivered => Self::Unanswered,
            Outcome::NotDelivered => Self::NotDelivered,
            Outcome::Unknown => Self::Unknown,
        }
    }

    /// The errno for the program.
    pub const fn errno(self, cause: Cause) -> Errno {
        match (self, cause) {
            (Self::NotDelivered, _) => Errno::ECANCELED,
            (Self::Unanswered, Cause::Closed | Cause::PeerLost) => Errno::ECONNRESET,
            (Self::Unanswered | Self::Unknown, _) => unknown(cause),
        }
    }
}

const fn unknown(cause: Cause) -> Errno {
    match cause {
        Cause::Timeout => Errno::ETIMEDOUT,
        Cause::Closed | Cause::PeerLost => Errno::ECONNABORTED,
    }
}
