// SPDX-License-Identifier: GPL-2.0

//! Drains the server before it is stopped, so that its clients lose nothing.
//!
//! The server refuses new sessions. It announces to the clients for how long it expects to be down, if
//! the operator has specified that. Each existing session completes the requests in service, and the
//! service makes the answered writes durable and notifies the client ([`ServiceSession::drain`]);
//! messages that programs have written are delivered; then the server closes the paths of the session.
//! The client treats this as the loss of all paths: it quiesces its disks and tries to reconnect. Its
//! next session is a new one, even on this server.
//!
//! [`ServiceSession::drain`]: crate::ServiceSession::drain

use crate::{
    server::Server,
    session::{
        notices::Notices,
        sessions::List, //
        Session,
    },
    types::Deadline, //
};
use ibtrs_proto::downtime::Downtime;
use kernel::{
    alloc::flags::GFP_NOWAIT,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kx::sync::atomic::{
    Acquire,
    Atomic,
    AtomicFlag,
    Full,
    Relaxed, //
};

/// Interval at which a drain checks whether the sessions have ended.
const CHECK_MS: i64 = 10;
/// Time for the paths to be closed after the limit has passed.
const CLOSE_MS: u32 = 2000;
/// Interval in milliseconds at which the server repeats an announcement without an answer.
const AGAIN_MS: u32 = 200;
/// Time in milliseconds that a client has to answer; its machine may be dead.
const ANSWER_MS: u32 = 10_000;

/// Drains a server, or makes it accept sessions again.
#[derive(Clone)]
pub struct Drain {
    server: Arc<Server>,
}

impl Drain {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server }
    }

    /// Drains all sessions, and refuses new ones until [`Drain::resume`]. Announces to the clients
    /// that the server expects to be down for `downtime`, if that is known. Returns when all
    /// sessions have ended, or two seconds after `limit_ms` milliseconds.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: a session did not end in time, and its paths are being closed; or a session
    /// ended before the service had flushed all of its devices.
    pub fn drain(&self, limit_ms: u32, downtime: Option<Downtime>) -> Result {
        let draining = &self.server.draining;
        let _one = draining.one.lock();
        let limit = Deadline::in_ms(limit_ms);
        let mut sessions = self.server.sessions.lock();
        if !sessions.drained {
            // If the server is still drained, sessions of the previous drain may be in the list.
            draining.left_over.store(false, Relaxed);
        }
        // From here on, a look-up of a session under the lock is refused.
        sessions.drained = true;
        sessions.close_candidates();
        for session in &sessions.list {
            session.ending.store(true, Relaxed);
            let (server, this, last) = (self.server.clone(), session.clone(), session.clone());
            draining.finishing.fetch_add(1, Relaxed);
            // If the allocation fails, the session is closed as if its paths were lost, and its
            // client may be left with unflushed writes.
            let spawned = self.server.env.slow.spawn(GFP_NOWAIT, move || {
                this.drain(&server.draining, limit, downtime);
                server.draining.finished_one();
            });
            if spawned.is_err() {
                draining.left_over.store(true, Relaxed);
                draining.finished_one();
                last.close();
            }
        }
        drop(sessions);
        let end = Deadline::in_ms(limit_ms.saturating_add(CLOSE_MS));
        let mut is_late = false;
        loop {
            let sessions = self.server.sessions.lock();
            if sessions.list.is_empty() && draining.has_finished() {
                break;
            }
            if limit.has_passed() && !is_late {
                is_late = true;
                self.close_late(&sessions);
            }
            drop(sessions);
            if end.has_passed() {
                return Err(ETIMEDOUT);
            }
            fsleep(Delta::from_millis(CHECK_MS));
        }
        // ORDERING: Written before `finished_one`, which `has_finished` has seen.
        match draining.left_over.load(Relaxed) {
            true => Err(ETIMEDOUT),
            false => Ok(()),
        }
    }

    /// Begins to close the sessions that the service has not finished with. It is waiting for a
    /// disk, and their clients must not continue to write to other disks.
    fn close_late(&self, sessions: &List) {
        // ORDERING: If the flag is set concurrently, a session that was just in time counts as
        // late.
        let is_late = |session: &&Arc<Session>| !session.is_served.load(Relaxed);
        for session in sessions.list.iter().filter(is_late) {
            self.server.draining.left_over.store(true, Relaxed);
            session.close();
        }
    }

    /// Accepts sessions again, unless the server is being unloaded. Drained sessions stay closed,
    /// even if some of their requests are still in service: their clients get new sessions.
    ///
    /// # Context
    ///
    /// May sleep while the server is being drained.
    pub fn resume(&self) {
        let _one = self.server.draining.one.lock();
        self.server.sessions.lock().drained = false;
    }

    /// Returns whether the server is drained or being drained.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn is_drained(&self) -> bool {
        self.server.sessions.lock().drained
    }
}

/// The drain of a server.
#[pin_data]
pub(crate) struct Draining {
    /// Held while the server is being drained.
    #[pin]
    one: Mutex<()>,
    /// The service did not finish in time with a drained session.
    left_over: AtomicFlag,
    /// Number of sessions that are being drained and that the service has not finished with. Such a
    /// session may have been removed from the list, because its last path was lost.
    finishing: Atomic<u32>,
}

impl Draining {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            one <- new_mutex!((), "Draining::one"),
            left_over: AtomicFlag::new(false),
            finishing: Atomic::new(0),
        })
    }

    /// Records that the service has finished with a session that is being drained.
    fn finished_one(&self) {
        // ORDERING: Pairs with `has_finished`.
        self.finishing.fetch_sub(1, Full);
    }

    /// Returns whether the service has finished with all sessions that drains have begun with.
    fn has_finished(&self) -> bool {
        // ORDERING: Pairs with `finished_one`.
        self.finishing.load(Acquire) == 0
    }
}

impl Session {
    /// Lets the service drain the session, and closes the session's paths.
    fn drain(self: &Arc<Self>, draining: &Draining, limit: Deadline, downtime: Option<Downtime>) {
        self.announce_drain(downtime);
        let notices = Notices::new(self.clone());
        let is_told = |downtime: &Downtime| !matches!(notices.downtime(*downtime), Err(ENOTCONN));
        let downtime = downtime.filter(is_told);
        if let Some(uppers) = self.io.uppers.as_ref() {
            if uppers.drain(limit).is_err() {
                draining.left_over.store(true, Relaxed);
            }
        }
        // The session does not count as late after this.
        self.is_served.store(true, Relaxed);
        self.drain_messages(limit);
        if let Some(downtime) = downtime {
            self.announce(&notices, downtime, limit);
        }
        self.close();
    }

    /// Repeats the announcement of a downtime until the client has acknowledged it, for the rest of `limit`,
    /// but at most for [`ANSWER_MS`]. The first announcement may have been lost, so there is at least one
    /// more even if no time is left.
    fn announce(&self, notices: &Notices, downtime: Downtime, limit: Deadline) {
        let limit = Deadline::in_ms(limit.left_ms().clamp(AGAIN_MS, ANSWER_MS));
        while !self.downtime_seen.is_done() {
            if matches!(notices.downtime(downtime), Err(ENOTCONN)) {
                break;
            }
            let pause = limit.left_ms().clamp(1, AGAIN_MS);
            if self.downtime_seen.wait_timeout(pause).is_err() && limit.has_passed() {
                kx::pr_warn_ratelimited!(
                    "{}: the client has not acknowledged that the server is away for {} s\n",
                    self.io.name(),
                    downtime.seconds()
                );
                break;
            }
        }
    }
}
