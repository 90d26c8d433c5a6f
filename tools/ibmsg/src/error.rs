// SPDX-License-Identifier: GPL-2.0

//! What may go wrong.

use std::fmt;
use std::io;

use crate::words::{self, Doing};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure.
#[derive(Debug)]
pub enum Error {
    /// The kernel refuses a call.
    System {
        /// What the program wanted.
        doing: Doing,
        /// Why not.
        error: io::Error,
    },
    /// The portal refuses a channel.
    Refused {
        /// The reason, an errno.
        reason: i32,
        /// Private data of the portal's program.
        data: Vec<u8>,
    },
    /// A request has no answer: the kernel says why, with an errno.
    Unanswered(i32),
    /// The other program answers a request with an errno, and perhaps more.
    Answered(i32, Vec<u8>),
    /// The channel has ended; with an errno if the other kernel has lost it.
    Closed(i32),
    /// The kernel gives out something that this crate does not understand.
    Format,
}

impl Error {
    pub(crate) fn system(doing: Doing, error: impl Into<io::Error>) -> Self {
        Self::System {
            doing,
            error: error.into(),
        }
    }

    /// The error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::System { error, .. } => error.raw_os_error(),
            Self::Refused { reason, .. } => Some(*reason),
            Self::Unanswered(errno) | Self::Answered(errno, _) => Some(*errno),
            Self::Closed(0) | Self::Format => None,
            Self::Closed(errno) => Some(*errno),
        }
    }

    /// What can be done about it.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::System { doing, error } => words::advice(*doing, error.raw_os_error()?),
            Self::Refused { reason, .. } => words::advice(Doing::Refused, *reason),
            Self::Unanswered(errno) => words::advice(Doing::Unanswered, *errno),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { doing, error } => match error.raw_os_error() {
                Some(errno) => f.write_str(&words::meaning(*doing, errno)),
                None => write!(f, "{error}"),
            },
            Self::Refused { reason, .. } => {
                f.write_str(&words::meaning(Doing::Refused, *reason))
            }
            Self::Unanswered(errno) => f.write_str(&words::meaning(Doing::Unanswered, *errno)),
            Self::Answered(errno, _) => write!(
                f,
                "the other program answers with an error: {}",
                words::name(*errno)
            ),
            Self::Closed(0) => f.write_str("the other program has closed the channel, or has died"),
            Self::Closed(errno) => f.write_str(&words::meaning(Doing::Closed, *errno)),
            Self::Format => f.write_str("the module says something that this program does not understand; they are of different versions"),
        }
    }
}

impl std::error::Error for Error {}
