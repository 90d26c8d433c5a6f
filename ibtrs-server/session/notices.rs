// SPDX-License-Identifier: GPL-2.0

//! Notices, by which the service reports changes to a client.

use crate::{
    path::Path,
    session::Session, //
};
use ibtrs_proto::{
    downtime::Downtime,
    imm::Imm, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// Sends notices to a client that supports them.
///
/// Holds a reference to the session, so the service must drop it when the session has ended
/// ([`ServiceSession::down`](crate::ServiceSession::down)).
pub struct Notices {
    session: Arc<Session>,
    /// Selects the path for the next notice, modulo the number of paths.
    next_path: Atomic<u32>,
}

impl Notices {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self {
            session,
            next_path: Atomic::new(0),
        }
    }

    /// Sends a notice about object `number`, of which the lower 28 bits arrive. The notice may be
    /// lost with the path that carries it; each notice starts with another path.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`: no connected path supports notices; `EAGAIN`: no path can send one now.
    pub fn send(&self, number: u32) -> Result {
        self.send_by(Imm::Notice(number), Path::takes_notices)
    }

    /// Reports to the client that all answers about object `number` in this session, past and
    /// future, are durable. May be lost like [`Notices::send`]; the client confirms it
    /// ([`ServiceSession::durable_seen`](crate::ServiceSession::durable_seen)).
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`: no connected path supports this message; `EAGAIN`: no path can send it now.
    pub fn durable(&self, number: u32) -> Result {
        self.send_by(Imm::Durable(number), |path| {
            path.durable && path.io.takes_requests()
        })
    }

    /// Announces to the client for how long the server expects to be down. May be lost like
    /// [`Notices::send`]; the client's answer completes `Session::downtime_seen`.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Errors of [`Notices::durable`].
    pub(crate) fn downtime(&self, downtime: Downtime) -> Result {
        self.send_by(Imm::Downtime(downtime.seconds()), |path| {
            path.downtime && path.io.takes_requests()
        })
    }

    fn send_by(&self, imm: Imm, takes: impl Fn(&Path) -> bool) -> Result {
        let paths = self.session.paths.lock();
        let Some(count) = u32::try_from(paths.len()).ok().filter(|count| *count > 0) else {
            return Err(ENOTCONN);
        };
        // CAST: Less than the number of paths.
        let first = (self.next_path.fetch_add(1, Relaxed) % count) as usize;
        let in_turn = paths.iter().cycle().skip(first).take(paths.len());
        let mut result = Err(ENOTCONN);
        for path in in_turn.filter(|path| takes(path)) {
            if path.notify(imm).is_ok() {
                return Ok(());
            }
            result = Err(EAGAIN);
        }
        result
    }
}
