// SPDX-License-Identifier: GPL-2.0

//! The interface for the service above, the server's state, and the listener.

use crate::{
    accept::Backlog,
    audit::{
        Audit,
        ClientLog, //
    },
    authentication::FailureTable,
    buffers::Buffers,
    clients::{
        Clients,
        Sources, //
    },
    config::Config,
    drain::{
        Deadline,
        Drain, //
    },
    memory::Ledger,
    notices::Notices,
    path::Path,
    pool::Pool,
    ports::Ports,
    refusal::Refusal,
    request::Request,
    session::Session, //
};
use ibtrs_proto::{
    addr::Addr,
    name::SessionName, //
};
use kernel::{
    new_condvar,
    new_mutex,
    prelude::*,
    str::CStr,
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex,
        MutexGuard, //
    },
    time::Jiffies,
    warn_on, //
};
use kx::{
    sync::atomic::{
        Atomic,
        AtomicFlag, //
    },
    work::{
        DelayedWork,
        Options,
        Queue,
        Work, //
    }, //
};

/// A path that is about to join its session; its client has proved that it has the session's key.
pub struct Joining<'a> {
    /// The session's name.
    pub name: SessionName<'a>,
    /// The client's address.
    pub source: Addr,
    /// Number of paths of all sessions with this name, including this path.
    pub paths: u32,
    /// Number of connections that these paths have when they are complete.
    pub connections: u32,
    /// Bytes of the server's memory that these paths may take.
    pub memory: u64,
    /// Bytes that other paths of these sessions keep while they are being closed.
    pub closing: u64,
}

/// The service that serves the requests of sessions.
pub trait Service: Send + Sync + 'static {
    /// A client's session has come up with its first path.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The reason for refusing the session.
    fn session_up(&self, info: SessionInfo<'_>) -> Result<Arc<dyn ServiceSession>, Refusal>;

    /// A client is about to get `name` for its session; `authenticated` tells whether it has proved
    /// that it has a key of that name.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// The reason for refusing the session, which has neither the name nor memory yet.
    fn check_name(&self, name: SessionName<'_>, authenticated: bool) -> Result<(), Refusal>;

    /// A client that has proved that it has a session's key is about to add a path to the session.
    /// [`Clients::recheck`] asks again.
    ///
    /// # Context
    ///
    /// May sleep, but all other clients that connect wait meanwhile. So it must not wait for a disk
    /// or a client.
    ///
    /// # Errors
    ///
    /// The reason for refusing the path, whose error the client gets.
    fn authorize(&self, joining: &Joining<'_>) -> Result<(), Refusal>;
}

/// The service of one session.
pub trait ServiceSession: Send + Sync + 'static {
    /// A request has arrived, on any path. [`Request::respond`] answers it, later and in another
    /// context if need be.
    ///
    /// # Context
    ///
    /// A work queue that also handles the completions of this connection and of all others: may sleep,
    /// but must not wait for a disk or for a client. A request that waits does so elsewhere, until
    /// [`Request::is_moot`].
    fn request(&self, request: Request);

    /// Returns the error for the answer to a request whose transport header is bad, `error` by
    /// default. A service whose requests have checksums knows that the request was damaged.
    ///
    /// # Context
    ///
    /// As for [`Self::request`].
    fn bad_request(&self, error: Error) -> Error;

    /// A session without authentication is about to get a path from `source`: `add` puts the path
    /// among its [`Sources`], unless `add` fails. The service must make no decision that depends on
    /// the sources concurrently with `add`. If the path was there when the service learnt of the
    /// session, `add` does nothing.
    ///
    /// # Context
    ///
    /// As for [`Service::authorize`].
    ///
    /// # Errors
    ///
    /// Those of `add`; the reason for refusing the path, whose error the client gets.
    fn join(
        &self,
        source: Addr,
        add: &mut dyn FnMut() -> Result<(), Refusal>,
    ) -> Result<(), Refusal>;

    /// The server is being drained: from here on the session ends its requests with
    /// [`Request::abandon`], makes durable what it has answered, and tells its client so
    /// ([`Notices::durable`]). Returns by `limit` at the latest; the paths are then closed.
    ///
    /// # Context
    ///
    /// May sleep. Called once for each drain of the server; called again for a session that is left
    /// over from an earlier drain.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: something is not durable, or is still in service.
    fn drain(&self, limit: Deadline) -> Result;

    /// The client has received the report of [`Notices::durable`] about object `number`.
    ///
    /// # Context
    ///
    /// Any. The client chooses the number and the time.
    fn durable_seen(&self, number: u32);

    /// The session has gone with its last path: all of its requests have been answered, and no more
    /// will arrive.
    ///
    /// # Context
    ///
    /// May sleep.
    fn down(&self);
}

/// The description of a new session for the service.
pub struct SessionInfo<'a> {
    /// The name that the client gave.
    pub name: &'a CStr,
    /// Whether all of its clients prove that they have a key of that name.
    pub authenticated: bool,
    /// The source addresses of its paths.
    pub sources: Sources,
    /// The number of chunks; [`Request::buf_id`] is below it.
    pub queue_depth: u16,
    /// Whether the client knows the extensions of the protocol.
    pub extensions: bool,
    /// Bytes of a chunk, headers included.
    pub chunk_bytes: u32,
    /// Limits for the lines of the log that the client causes.
    pub log: ClientLog,
    /// Sends notices; `None` if the client takes none.
    pub notices: Option<Notices>,
}

/// The server of a service: all sessions, and what they share.
#[pin_data]
pub(crate) struct Server {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) config: Config,
    /// The boot id of the server.
    pub(crate) boot_id: [u8; 16],
    /// Queue for heartbeats and fences, for which clients wait. Its work runs even if the machine is
    /// short of CPU time and memory.
    pub(crate) urgent: Arc<Queue>,
    /// Queue for other short work: accepts, checks of keys, buffers.
    pub(crate) queue: Arc<Queue>,
    /// Queue for the set-up and the state changes of paths. A set-up may wait for memory, for the client,
    /// and for another session to end, and so does not hold up the requests, fences and heartbeats of
    /// others.
    pub(crate) setup: Arc<Queue>,
    /// Queue for the ends of paths and sessions, which wait for connections to end and for devices
    /// to be closed.
    pub(crate) slow: Arc<Queue>,
    /// Queue for requests that had to wait for another path; they may wait for disks in turn.
    pub(crate) wakes: Arc<Queue>,
    #[pin]
    pub(crate) ledger: Ledger,
    /// Chunks of lost paths.
    #[pin]
    pub(crate) pool: Pool,
    /// Groups of slots of lost paths.
    #[pin]
    pub(crate) slot_pool: Pool,
    #[pin]
    pub(crate) buffers: Buffers,
    /// Held while the pools and the buffers are limited.
    #[pin]
    pub(crate) limits: Mutex<()>,
    /// Held while a path is looked up, created and added.
    #[pin]
    pub(crate) joining: Mutex<()>,
    #[pin]
    pub(crate) failures: FailureTable,
    pub(crate) audit: Arc<Audit>,
    #[pin]
    pub(crate) sessions: Mutex<Sessions>,
    #[pin]
    pub(crate) emptied: CondVar,
    /// Held while the server is being drained.
    #[pin]
    pub(crate) draining: Mutex<()>,
    /// The service did not finish in time with a drained session.
    pub(crate) left_over: AtomicFlag,
    /// Number of sessions that a drain has begun with and the service has not finished with. Such a
    /// session may have left the list, because its last path was lost.
    pub(crate) finishing: Atomic<u32>,
    #[pin]
    pub(crate) backlog: Mutex<Backlog>,
    #[pin]
    pub(crate) accept: Work<Self, { work::ACCEPT }>,
    #[pin]
    pub(crate) expiry: DelayedWork<Self, { work::EXPIRY }>,
    #[pin]
    pub(crate) feed: DelayedWork<Self, { work::FEED }>,
    #[pin]
    pub(crate) tidy: DelayedWork<Self, { work::TIDY }>,
}

/// Ids of the work items of a server.
pub(crate) mod work {
    pub(crate) const ACCEPT: u64 = 0;
    pub(crate) const EXPIRY: u64 = 1;
    pub(crate) const FEED: u64 = 2;
    pub(crate) const TIDY: u64 = 3;
}

kx::impl_has_work! {
    impl HasWork<Work<Self, { work::ACCEPT }>> for Server { self.accept }
    impl HasWork<DelayedWork<Self, { work::EXPIRY }>> for Server { self.expiry }
    impl HasWork<DelayedWork<Self, { work::FEED }>> for Server { self.feed }
    impl HasWork<DelayedWork<Self, { work::TIDY }>> for Server { self.tidy }
}

/// The sessions, and whether new ones are accepted.
pub(crate) struct Sessions {
    pub(crate) list: KVec<Arc<Session>>,
    /// The candidates; neither they nor their sessions are in any other list.
    pub(crate) candidates: KVec<Arc<Path>>,
    /// Number of sessions created so far; the next session's generation follows from it.
    pub(crate) made: u32,
    /// The server is being unloaded: set for good.
    pub(crate) closing: bool,
    /// The server is drained: set until the operator undoes it.
    pub(crate) drained: bool,
}

impl Server {
    pub(crate) fn new(service: Arc<dyn Service>) -> Result<Arc<Self>> {
        // Without memory for another worker, clients must still learn that this server is there.
        let urgent = Options::unbound().high_priority().mem_reclaim();
        let urgent = Queue::new(urgent, fmt!("ibtrs-server-hb"))?;
        // The others have no rescuers: the end of a session closes devices, which waits for queues
        // of the system that have none either.
        let queue = Queue::new(Options::unbound(), fmt!("ibtrs-server"))?;
        let setup = Queue::new(Options::unbound(), fmt!("ibtrs-server-setup"))?;
        let slow = Queue::new(Options::unbound(), fmt!("ibtrs-server-end"))?;
        let wakes = Queue::new(Options::unbound(), fmt!("ibtrs-server-io"))?;
        let (accept_queue, expiry_queue) = (queue.clone(), slow.clone());
        let (feed_queue, tidy_queue) = (queue.clone(), slow.clone());
        let config = Config::from_params()?;
        let buffers = Buffers::new(config.max_io(), config.max_memory.min(config.max_buffers));
        let backlog = Backlog::new()?;
        let failures = FailureTable::new()?;
        Arc::pin_init(
            try_pin_init!(Self {
                service,
                config,
                boot_id: kx::random::uuid(),
                urgent,
                queue,
                setup,
                slow,
                wakes,
                ledger <- Ledger::new(),
                pool <- Pool::new(),
                slot_pool <- Pool::new(),
                buffers <- buffers,
                joining <- new_mutex!((), "Server::joining"),
                failures <- failures,
                audit: Audit::new()?,
                sessions <- new_mutex!(
                    Sessions {
                        list: KVec::new(),
                        candidates: KVec::new(),
                        made: 0,
                        closing: false,
                        drained: false,
                    },
                    "Server::sessions"
                ),
                emptied <- new_condvar!("Server::emptied"),
                draining <- new_mutex!((), "Server::draining"),
                limits <- new_mutex!((), "Server::limits"),
                left_over: AtomicFlag::new(false),
                finishing: Atomic::new(0),
                backlog <- new_mutex!(backlog, "Server::backlog"),
                accept <- kx::new_work!(accept_queue, "Server::accept"),
                expiry <- kx::new_delayed_work!(expiry_queue, "Server::expiry"),
                feed <- kx::new_delayed_work!(feed_queue, "Server::feed"),
                tidy <- kx::new_delayed_work!(tidy_queue, "Server::tidy"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Waits until a session or a candidate is gone, at most for `left`. Returns the remaining
    /// time; 0 after a signal.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn wait_for_end(
        &self,
        sessions: &mut MutexGuard<'_, Sessions>,
        left: Jiffies,
    ) -> Jiffies {
        match self.emptied.wait_interruptible_timeout(sessions, left) {
            CondVarTimeoutResult::Woken { jiffies } => jiffies,
            _ => 0,
        }
    }

    /// Closes every session and waits until the last is gone.
    pub(crate) fn close(&self) {
        let mut sessions = self.sessions.lock();
        sessions.closing = true;
        for session in &sessions.list {
            session.close();
        }
        sessions.close_candidates();
        while !sessions.list.is_empty() || !sessions.candidates.is_empty() {
            self.emptied.wait(&mut sessions);
        }
        drop(sessions);
        self.wakes.flush();
        self.setup.flush();
        self.slow.flush();
        self.queue.flush();
        self.expiry.disable_sync();
        self.feed.disable_sync();
        self.tidy.disable_sync();
        // All connections are closed, so none stays: each refers to its session, and that to the server.
        if warn_on!(self.buffers.take_late()) {
            self.buffers.forget_late();
        }
    }
}

/// Accepts sessions as long as it lives.
///
/// Dropping it closes all sessions and waits for their requests: may sleep.
pub struct Listener {
    ports: Arc<Ports>,
    server: Arc<Server>,
}

impl Listener {
    /// Returns a handle that drains the server.
    pub fn drain(&self) -> Drain {
        Drain::new(self.server.clone())
    }

    /// Returns a handle that closes paths of authenticated clients.
    pub fn clients(&self) -> Clients {
        Clients::new(self.server.clone())
    }

    /// Returns where the server listens.
    pub fn ports(&self) -> Arc<Ports> {
        self.ports.clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ports.close();
        // Wait for the connection requests that arrived before.
        self.server.queue.flush();
        self.server.close();
    }
}

/// Accepts sessions of `service` in the caller's network namespace, which the listener keeps. It
/// listens on all local addresses at `port_nr` until there are [ports](Ports); with 0, on ports
/// only.
///
/// # Context
///
/// May sleep.
///
/// # Errors
///
/// `EADDRINUSE`: the port is in use; `EINVAL`: module parameters contradict each other; `ENOMEM`.
pub fn listen(service: Arc<dyn Service>, port_nr: u16) -> Result<Listener> {
    let server = Server::new(service)?;
    // If this fails, dropping the listener ends what clients have begun meanwhile.
    let listener = Listener {
        ports: Ports::new(server.clone(), port_nr)?,
        server,
    };
    listener.ports.open()?;
    Ok(listener)
}
