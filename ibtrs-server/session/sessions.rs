// SPDX-License-Identifier: GPL-2.0

//! The sessions of a server.

use crate::{
    env::Env,
    path::Path,
    refusal::Refusal,
    session::{
        service::Services,
        Session, //
    }, //
};
use ibtrs_proto::{
    buffers::Pace,
    fsm::server_path::{
        Event,
        State, //
    },
    quota, //
};
use kernel::{
    new_condvar,
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex,
        MutexGuard,
        SpinLockIrq, //
    },
    time::{
        Instant,
        Jiffies,
        Monotonic, //
    }, //
};
use kx::{
    mm::NoIo,
    sync::atomic::Relaxed,
    work::DelayedWork, //
};

/// The sessions, with the services and the environment that they share.
#[pin_data]
pub(crate) struct Sessions {
    pub(crate) env: Arc<Env>,
    pub(crate) services: Services,
    /// Serializes the look-up, creation and addition of paths.
    #[pin]
    pub(crate) joining: Mutex<()>,
    #[pin]
    list: Mutex<List>,
    /// Notified when a session or a candidate has ended.
    #[pin]
    emptied: CondVar,
    #[pin]
    pub(crate) look: SpinLockIrq<Look>,
    /// Serves the requests that wait for buffers, see [`crate::session::lines`].
    #[pin]
    pub(crate) feed: DelayedWork<Self>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Sessions { self.feed }
}

/// When the server last served the lines.
pub(crate) struct Look {
    /// The origin of [`Look::now_ms`].
    since: Instant<Monotonic>,
    pub(crate) pace: Pace,
}

impl Look {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            pace: Pace::default(),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(0)
    }
}

/// The sessions, and whether new ones are accepted.
pub(crate) struct List {
    pub(crate) list: KVec<Arc<Session>>,
    /// The candidates; neither they nor their sessions are in any other list.
    pub(crate) candidates: KVec<Arc<Path>>,
    /// Number of sessions created so far; the next session's generation follows from it.
    pub(crate) made: u32,
    /// The server is being unloaded; never reset.
    pub(crate) closing: bool,
    /// The server is drained: set until the operator undoes it.
    pub(crate) drained: bool,
}

impl Sessions {
    /// Creates it without sessions.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(env: Arc<Env>, services: Services) -> Result<Arc<Self>> {
        let queue = env.queue.clone();
        let list = List {
            list: KVec::new(),
            candidates: KVec::new(),
            made: 0,
            closing: false,
            drained: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                env,
                services,
                joining <- new_mutex!((), "Sessions::joining"),
                list <- new_mutex!(list, "Sessions::list"),
                emptied <- new_condvar!("Sessions::emptied"),
                look <- new_spinlock_irq!(Look::new(), "Sessions::look"),
                feed <- kx::new_delayed_work!(queue, "Sessions::feed"),
            }),
            GFP_KERNEL,
        )
    }

    /// Locks the list.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock()
    }

    /// Records that a session or a candidate has ended.
    pub(crate) fn one_has_gone(&self) {
        self.emptied.notify_all();
    }

    /// Waits for the end of a session or a candidate, at most for `left`. Returns the remaining
    /// time; 0 after a signal.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn wait_for_end(
        &self,
        sessions: &mut MutexGuard<'_, List>,
        left: Jiffies,
    ) -> Jiffies {
        match self.emptied.wait_interruptible_timeout(sessions, left) {
            CondVarTimeoutResult::Woken { jiffies } => jiffies,
            _ => 0,
        }
    }

    /// Closes every session and waits for the end of the last one.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn close(&self) {
        let mut sessions = self.lock();
        sessions.closing = true;
        for session in &sessions.list {
            session.close();
        }
        sessions.close_candidates();
        while !sessions.list.is_empty() || !sessions.candidates.is_empty() {
            self.emptied.wait(&mut sessions);
        }
        drop(sessions);
        self.feed.disable_sync();
    }
}

impl List {
    /// Finds the session with `uuid`.
    pub(crate) fn find(&self, uuid: &[u8; 16]) -> Option<&Arc<Session>> {
        self.list.iter().find(|session| session.io.uuid == *uuid)
    }

    /// Returns whether the session in the list under the UUID of `session` is `session` itself.
    pub(crate) fn has_this(&self, session: &Session) -> bool {
        self.find(&session.io.uuid)
            .is_some_and(|found| core::ptr::eq(&**found, session))
    }

    /// Returns whether `session` is in the list.
    ///
    /// # Errors
    ///
    /// `ECONNRESET`: the session is being closed, or its client has begun another one under its
    /// UUID.
    pub(crate) fn has(&self, session: &Session) -> Result<bool, Refusal> {
        if session.gone.load(Relaxed) {
            return Err(Refusal::new(ECONNRESET, "the session is being closed"));
        }
        match self.find(&session.io.uuid) {
            None => Ok(false),
            Some(found) if core::ptr::eq(&**found, session) => Ok(true),
            Some(_) => Err(Refusal::new(ECONNRESET, "another path began the session")),
        }
    }

    /// Returns whether a candidate whose client has proved a key is about to begin or to join a
    /// session under this UUID.
    pub(crate) fn is_claimed(&self, uuid: &[u8; 16]) -> bool {
        let mut candidates = self.candidates.iter();
        candidates.any(|path| path.io.session.uuid == *uuid && path.is_authenticated())
    }

    /// Returns the generation of a new session.
    pub(crate) fn next_gen(&mut self) -> u32 {
        self.made = self.made.wrapping_add(1);
        self.made
    }

    /// Checks that the server accepts sessions and paths.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        let why = match (self.closing, self.drained) {
            (true, _) => "the server is being unloaded",
            (false, true) => "the server is drained",
            (false, false) => return Ok(()),
        };
        Err(Refusal::new(ECONNREFUSED, why))
    }

    /// Checks that there is room for one more session.
    pub(crate) fn check_room(&self, max: usize, known: bool) -> Result<(), Refusal> {
        let count = self.list.len();
        if quota::has_room_for_session(count, max, known) {
            return Ok(());
        }
        let why = match count < max {
            true => "the last of max_sessions are reserved for known clients",
            false => "the server already has max_sessions sessions",
        };
        Err(Refusal::new(ENOSPC, why))
    }

    /// Reserves capacity for a candidate.
    pub(crate) fn reserve_candidate(&mut self) -> Result {
        // As in `enlist`; the caller holds the lock.
        let _no_io = NoIo::enter();
        Ok(self.candidates.reserve(1, GFP_KERNEL)?)
    }

    /// Adds a candidate, for which capacity was reserved.
    ///
    /// # Errors
    ///
    /// Errors of [`List::check_open`]; `ECONNRESET`: the path is being closed. The server waits for
    /// the end of such a path nevertheless.
    pub(crate) fn add_candidate(&mut self, path: Arc<Path>) -> Result<(), Refusal> {
        let closing = path.is_closing();
        // A path that is closed may have been removed already.
        if path.state() != State::Closed {
            let _ = self.candidates.push_within_capacity(path);
        }
        self.check_open()?;
        match closing {
            true => Err(ECONNRESET.into()),
            false => Ok(()),
        }
    }

    /// Removes a path from the candidates, if it is one.
    pub(crate) fn drop_candidate(&mut self, path: &Arc<Path>) {
        self.candidates.retain(|other| !Arc::ptr_eq(other, path));
    }

    /// Begins to close all candidates.
    pub(crate) fn close_candidates(&self) {
        for path in &self.candidates {
            path.event(Event::UserDisconnect);
        }
    }
}
