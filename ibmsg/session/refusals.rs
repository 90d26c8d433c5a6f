// SPDX-License-Identifier: GPL-2.0

//! Channels that clients were refused, for the log.
//!
//! They are collected while the lock of the session is held, and logged when it is not. Each session has a limit
//! of its own, so that no client can hide the lines of another, and all together have one, as a client may have many
//! sessions.

use ibmsg_proto::{
    access::{
        Peer,
        Refusal, //
    },
    refused::Reason, //
};
use ibtrs_proto::{
    audit::{
        Single,
        Together,
        Trust, //
    },
    Errno, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};

use super::Side;
use crate::{
    history::Cause,
    limits::Denied,
    types::Name, //
};

/// Why a channel is refused.
#[derive(Clone, Copy)]
pub(super) enum Why {
    /// By the operator's rule, or for want of authentication.
    Rule(Refusal),
    /// By a limit.
    Limit(Denied),
    /// The portal's name is bound by nobody, or the portal was closed.
    NoPortal,
    /// The portal has as many offers as it takes.
    Backlog,
    /// The session has as many channels as there may be.
    Session,
    /// The program of an old channel has not closed it, and the client uses its number again.
    Number,
    NoMemory,
}

impl Why {
    /// What only this end knows; empty if the reason says it all.
    const fn detail(self) -> &'static str {
        match self {
            Self::Rule(refusal) => refusal.as_str(),
            Self::Limit(denied) => denied.as_str(),
            Self::Session => "the session has 65536 channels",
            Self::NoMemory => "out of memory",
            Self::NoPortal | Self::Backlog | Self::Number => "",
        }
    }

    /// For the log.
    fn as_str(self) -> &'static str {
        match self.detail() {
            "" => self.reason().as_str(),
            detail => detail,
        }
    }

    /// The reason for the other end, and what the channel counts as.
    pub(super) const fn reason(self) -> Reason {
        match self {
            Self::Rule(_) => Reason::Rule,
            Self::Limit(denied) => denied.reason(),
            Self::NoPortal => Reason::Unbound,
            Self::Backlog => Reason::Backlog,
            Self::Number => Reason::Number,
            Self::Session | Self::NoMemory => Reason::Memory,
        }
    }

    /// For the other end.
    pub(super) fn errno(self) -> Errno {
        self.reason().errno().unwrap_or(Errno::EIO)
    }

    /// For the events of the session.
    pub(super) fn cause(self) -> Cause {
        Cause::Refused(self.errno(), self.detail())
    }
}

impl From<Refusal> for Why {
    fn from(refusal: Refusal) -> Self {
        Self::Rule(refusal)
    }
}

impl From<Denied> for Why {
    fn from(denied: Denied) -> Self {
        Self::Limit(denied)
    }
}

/// A line for the log.
struct Line {
    portal: Name,
    why: Why,
    left_out: u32,
}

/// Lines that were not logged yet; hardly ever there are any.
pub(super) struct Lines(Option<KVec<Line>>);

impl Lines {
    /// Logs them.
    pub(super) fn log(self, side: &Side) {
        for line in self.0.iter().flatten() {
            if line.left_out > 0 {
                pr_info!("{}: lines left out: {}\n", side.name(), line.left_out);
            }
            let (why, error) = (line.why.as_str(), line.why.errno().as_str());
            pr_info!(
                "{}: portal {}: channel refused: {} ({})\n",
                side.name(),
                line.portal,
                why,
                error
            );
        }
    }
}

/// The limits of all sessions together: of those that have proved a key, and of the others.
#[pin_data]
pub(crate) struct LogLimits {
    #[pin]
    proved: SpinLockIrq<Together>,
    #[pin]
    others: SpinLockIrq<Together>,
}

impl LogLimits {
    /// Limits without lines.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new() -> Result<Arc<Self>> {
        let all = Together::new;
        Arc::pin_init(
            pin_init!(Self {
                proved <- new_spinlock_irq!(all(Trust::Authenticated), "LogLimits::proved"),
                others <- new_spinlock_irq!(all(Trust::Connected), "LogLimits::others"),
            }),
            GFP_KERNEL,
        )
    }

    fn of(&self, peer: Peer) -> &SpinLockIrq<Together> {
        match peer {
            Peer::Unauthenticated => &self.others,
            Peer::Local | Peer::Authenticated => &self.proved,
        }
    }
}

/// The refusals of a session.
pub(super) struct Refusals {
    peer: Peer,
    limiter: Single,
    lines: Lines,
}

impl Refusals {
    pub(super) const fn new(peer: Peer) -> Self {
        let trust = match peer {
            Peer::Unauthenticated => Trust::Connected,
            Peer::Local | Peer::Authenticated => Trust::Authenticated,
        };
        Self {
            peer,
            limiter: Single::new(trust),
            lines: Lines(None),
        }
    }

    /// Notes a refusal, unless there are too many.
    pub(super) fn note(&mut self, limits: &LogLimits, portal: Name, why: Why, now_us: u64) {
        let mut all = limits.of(self.peer).lock();
        let line = self.limiter.line(&mut all, now_us / 1000);
        drop(all);
        if let Some(left_out) = line {
            let line = Line {
                portal,
                why,
                left_out,
            };
            // Without memory for a line, there is worse to log.
            let lines = self.lines.0.get_or_insert_with(KVec::new);
            let _ = lines.push(line, GFP_ATOMIC | __GFP_NOWARN);
        }
    }

    /// What was noted since.
    pub(super) fn take(&mut self) -> Lines {
        Lines(self.lines.0.take())
    }
}
