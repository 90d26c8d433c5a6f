// SPDX-License-Identifier: GPL-2.0

//! Refusals of connections and paths: the error for the client, and the reason for the log.

use ibtrs_core::convert;
use ibtrs_proto::{
    auth::AuthError,
    errno::Errno,
    handshake::HandshakeError,
    join,
    quota, //
};
use kernel::{
    fmt,
    prelude::*, //
};

/// Why a connection or a path is refused.
pub struct Refusal {
    error: Error,
    why: &'static str,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self {
            error,
            why: "the connection cannot be created",
        }
    }
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Self {
        let why = match error {
            AuthError::Required => {
                "the client does not authenticate, but must: load the session's key there"
            }
            error => error.as_str(),
        };
        Self::new(convert::error(error.errno()), why)
    }
}

impl From<HandshakeError> for Refusal {
    fn from(error: HandshakeError) -> Self {
        Self {
            error: convert::error(error.errno()),
            why: error.as_str(),
        }
    }
}

impl From<join::JoinRefusal> for Refusal {
    fn from(refusal: join::JoinRefusal) -> Self {
        Self {
            error: convert::error(refusal.errno()),
            why: refusal.as_str(),
        }
    }
}

impl From<quota::QuotaRefusal> for Refusal {
    fn from(refusal: quota::QuotaRefusal) -> Self {
        Self {
            error: convert::error(refusal.errno()),
            why: refusal.as_str(),
        }
    }
}

/// `None` means that memory was short.
impl From<Option<quota::QuotaRefusal>> for Refusal {
    fn from(refusal: Option<quota::QuotaRefusal>) -> Self {
        refusal.map_or(ENOMEM.into(), Self::from)
    }
}

impl Refusal {
    /// Creates a refusal: the client gets `error`, and `why` is logged.
    pub const fn new(error: Error, why: &'static str) -> Self {
        Self { error, why }
    }

    /// Returns the error for the client.
    pub(crate) fn errno(&self) -> Errno {
        convert::errno(self.error)
    }
}

/// As in the log: reason and error.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!("{} ({})", self.why, self.errno().as_str()))
    }
}
