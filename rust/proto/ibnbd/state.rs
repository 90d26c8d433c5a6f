// SPDX-License-Identifier: GPL-2.0

//! States of a client's device.

use ibtrs_proto::Errno;

use crate::identity::Difference;

/// State of a mapped device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DevState {
    /// Being set up.
    Init,
    /// In use.
    Open,
    /// The server is out of reach, or has not answered the new OPEN yet.
    Closed,
    /// Being removed.
    Unmapped,
}

impl DevState {
    /// All states.
    pub const ALL: [DevState; 4] = [
        DevState::Init,
        DevState::Open,
        DevState::Closed,
        DevState::Unmapped,
    ];

    /// The text of the attribute `state`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            DevState::Init => "init",
            DevState::Open => "open",
            DevState::Closed => "closed",
            DevState::Unmapped => "unmapped",
        }
    }

    /// Whether an operator may remap the device now.
    ///
    /// # Errors
    ///
    /// EALREADY if it is open, ENODEV if it is unmapped, EBUSY if it is being set up.
    pub const fn may_remap(&self) -> Result<(), Errno> {
        match self {
            DevState::Closed => Ok(()),
            DevState::Open => Err(Errno::EALREADY),
            DevState::Unmapped => Err(Errno::ENODEV),
            DevState::Init => Err(Errno::EBUSY),
        }
    }

    /// Whether an operator may resize the device now.
    ///
    /// # Errors
    ///
    /// ENOENT unless it is open.
    pub const fn may_resize(&self) -> Result<(), Errno> {
        match self {
            DevState::Open => Ok(()),
            _ => Err(Errno::ENOENT),
        }
    }
}

/// State of a disk's queue, which decides about its requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QueueState {
    /// Requests are sent.
    Live,
    /// Requests wait on the client.
    Quiesced,
    /// Requests end with an error.
    Failing,
}

/// The state of a device on the server, regardless of whether the session is connected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Standing {
    /// The server has the device open.
    Open,
    /// The server has lost the session, and the client reopens the device; requests wait.
    Reopening,
    /// As [`Standing::Reopening`], but the queue timeout has passed, or the last user has closed an
    /// unproven disk; requests fail.
    TimedOut,
    /// The server has another disk under the name. The client reopens the device only when an
    /// operator remaps it, or when the server has lost the session once more.
    Refused,
    /// Nothing proves that the server's disk is the one in use. As [`Standing::Refused`], but the client
    /// also reopens the device when the last user closes the disk.
    Unproven,
    /// The server's operator has closed the device. The client reopens it only when an operator
    /// remaps it, or when the server has lost the session.
    Revoked,
}

impl Standing {
    /// All standings.
    pub const ALL: [Standing; 6] = [
        Standing::Open,
        Standing::Reopening,
        Standing::TimedOut,
        Standing::Refused,
        Standing::Unproven,
        Standing::Revoked,
    ];

    /// The queue state that belongs to the standing.
    pub const fn queue_state(&self) -> QueueState {
        match self {
            Self::Open => QueueState::Live,
            Self::Reopening => QueueState::Quiesced,
            Self::TimedOut | Self::Refused | Self::Unproven | Self::Revoked => QueueState::Failing,
        }
    }

    /// Why the client has no use of the device; empty if it has it open.
    pub const fn cause(&self) -> &'static str {
        match self {
            Self::Open => "",
            Self::Reopening => "the server has lost the session",
            Self::TimedOut => "it could not be opened again in time",
            Self::Refused => "the server has another disk under the name",
            Self::Unproven => "nothing proves that it is the same disk",
            Self::Revoked => "closed on the server",
        }
    }

    /// Whether the client retries OPEN by itself.
    pub const fn is_retried(&self) -> bool {
        matches!(self, Self::Reopening | Self::TimedOut)
    }

    /// The standing after a successful OPEN; `same` tells whether the disk is the same as before.
    #[must_use]
    pub const fn answered(same: Result<(), Difference>) -> Self {
        match same {
            Ok(()) => Self::Open,
            Err(Difference::Unproven) => Self::Unproven,
            Err(_) => Self::Refused,
        }
    }

    /// The standing after a failed attempt to reopen; `late` if the queue timeout has passed.
    #[must_use]
    pub const fn failed(self, late: bool) -> Self {
        match self {
            Self::Reopening if late => Self::TimedOut,
            other => other,
        }
    }

    /// The standing after the last user has closed the disk: what was refused because nothing proved that
    /// it is the disk in use may be used now.
    #[must_use]
    pub const fn unused(self) -> Self {
        match self {
            Self::Unproven => Self::TimedOut,
            other => other,
        }
    }
}
