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

    /// Whether a user may remap the device now.
    ///
    /// # Errors
    ///
    /// EALREADY when it is open, ENODEV when it goes away, EBUSY when it is being set up.
    pub const fn may_remap(&self) -> Result<(), Errno> {
        match self {
            DevState::Closed => Ok(()),
            DevState::Open => Err(Errno::EALREADY),
            DevState::Unmapped => Err(Errno::ENODEV),
            DevState::Init => Err(Errno::EBUSY),
        }
    }

    /// Whether a user may resize the device now.
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

/// The decision about a request for a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QueueState {
    /// It is sent.
    Live,
    /// It waits.
    Quiesced,
    /// It ends with an error.
    Failing,
}

/// How a device stands with the server, as far as the session can reach that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Standing {
    /// The server has it open for us.
    Open,
    /// The server has lost the session and is to open the device again; requests wait.
    Reopening,
    /// As before, but requests have waited for the queue timeout.
    TimedOut,
    /// The server has another disk under the name. Only a user can say when to look again, or a
    /// server that was restarted once more.
    Refused,
    /// The server's operator has taken it away. Only a user can say when to look again, or a
    /// server that was restarted.
    Revoked,
}

impl Standing {
    /// All of them.
    pub const ALL: [Standing; 5] = [
        Standing::Open,
        Standing::Reopening,
        Standing::TimedOut,
        Standing::Refused,
        Standing::Revoked,
    ];

    /// The decision about requests.
    pub const fn queue_state(&self) -> QueueState {
        match self {
            Self::Open => QueueState::Live,
            Self::Reopening => QueueState::Quiesced,
            Self::TimedOut | Self::Refused | Self::Revoked => QueueState::Failing,
        }
    }

    /// Whether the server is to be asked again without anyone saying so.
    pub const fn is_retried(&self) -> bool {
        matches!(self, Self::Reopening | Self::TimedOut)
    }

    /// After the server has answered, with a device that is the `same` as before or not.
    #[must_use]
    pub const fn answered(same: Result<(), Difference>) -> Self {
        match same {
            Ok(()) => Self::Open,
            Err(_) => Self::Refused,
        }
    }

    /// After an attempt that came to nothing; `late` if requests have waited for long enough.
    #[must_use]
    pub const fn failed(self, late: bool) -> Self {
        match self {
            Self::Reopening if late => Self::TimedOut,
            other => other,
        }
    }
}
