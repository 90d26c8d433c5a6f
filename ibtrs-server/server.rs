// SPDX-License-Identifier: GPL-2.0

//! The interface for the service above, and the listener.

use crate::{
    accept::{
        Backlog,
        Incoming, //
    },
    authentication::FailureTable,
    config::Config,
    drain::{
        Deadline,
        Drain, //
    },
    memory::Ledger,
    notices::Notices,
    path::Path,
    pool::Pool,
    request::Request,
    session::Session, //
};
use ibtrs_core::convert;
use kernel::{
    new_condvar, new_mutex,
    prelude::*,
    str::CStr,
    sync::{
        atomic::AtomicFlag,
        Arc,
        CondVar,
        Mutex, //
    },
};
use kx::{
    net::{
        addr::SockAddr,
        Net, //
    },
    work::{
        DelayedWork,
        Options,
        Queue,
        Work, //
    },
};
use rdma::cm::{
    CmId,
    PortSpace, //
};

/// The service that serves the requests of sessions.
pub trait Service: Send + Sync + 'static {
    /// A client's session has come up.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Any; the session is then refused.
    fn session_up(&self, info: SessionInfo<'_>) -> Result<Arc<dyn ServiceSession>>;
}

/// The service of one session.
pub trait ServiceSession: Send + Sync + 'static {
    /// A request has come in, on any path. It is answered by [`Request::respond`], later and
    /// anywhere if need be.
    ///
    /// # Context
    ///
    /// A work queue, which handles the other requests of the connection, too:
    /// must not wait long.
    fn request(&self, request: Request);

    /// The server is drained: from now on the session ends its requests by [`Request::abandon`],
    /// makes durable what it has answered, and tells its client so ([`Notices::durable`]). Its
    /// paths are closed when this returns, which is after `limit` at the latest.
    ///
    /// # Context
    ///
    /// May sleep. Once for each session.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` if something is not durable, or in service still.
    fn drain(&self, limit: Deadline) -> Result;

    /// The client has heard what [`Notices::durable`] said of a number.
    ///
    /// # Context
    ///
    /// Any; the client chooses the number, and when.
    fn durable_seen(&self, number: u32);

    /// The session has gone with its last path: all its requests have been
    /// answered, no other will come.
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
    /// The number of chunks; [`Request::buf_id`] is below it.
    pub queue_depth: u16,
    /// Whether the client knows the extensions of the messages.
    pub extensions: bool,
    /// Bytes of a chunk, headers included.
    pub chunk_bytes: u32,
    /// For a client that takes notices.
    pub notices: Option<Notices>,
}

/// All sessions of a service.
#[pin_data]
pub(crate) struct Server {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) config: Config,
    /// The boot id of the server.
    pub(crate) boot_id: [u8; 16],
    /// For short work: accepts, state changes, heartbeats, fences.
    pub(crate) queue: Arc<Queue>,
    /// For the ends of paths and sessions, which wait for connections to end, and for devices to
    /// be closed.
    pub(crate) slow: Arc<Queue>,
    /// For requests that had to wait, which may wait for disks again.
    pub(crate) wakes: Arc<Queue>,
    #[pin]
    pub(crate) ledger: Ledger,
    #[pin]
    pub(crate) pool: Pool,
    /// Held while a path is looked for, made and added.
    #[pin]
    pub(crate) joining: Mutex<()>,
    #[pin]
    pub(crate) failures: FailureTable,
    #[pin]
    pub(crate) sessions: Mutex<Sessions>,
    #[pin]
    pub(crate) emptied: CondVar,
    /// Held while the server is drained.
    #[pin]
    pub(crate) draining: Mutex<()>,
    /// A session was drained that the service has not finished with in time.
    pub(crate) left_over: AtomicFlag,
    #[pin]
    pub(crate) backlog: Mutex<Backlog>,
    #[pin]
    pub(crate) accept: Work<Self, { work::ACCEPT }>,
    #[pin]
    pub(crate) expiry: DelayedWork<Self, { work::EXPIRY }>,
}

/// Names of the works of a server.
pub(crate) mod work {
    pub(crate) const ACCEPT: u64 = 0;
    pub(crate) const EXPIRY: u64 = 1;
}

kx::impl_has_work! {
    impl HasWork<Work<Self, { work::ACCEPT }>> for Server { self.accept }
    impl HasWork<DelayedWork<Self, { work::EXPIRY }>> for Server { self.expiry }
}

/// The sessions, and whether new ones may come.
pub(crate) struct Sessions {
    pub(crate) list: KVec<Arc<Session>>,
    /// Paths whose clients have yet to prove themselves; neither they nor their sessions are in a
    /// list but this.
    pub(crate) candidates: KVec<Arc<Path>>,
    /// How many there were; numbers each for clients.
    pub(crate) made: u32,
    /// For good.
    pub(crate) closing: bool,
    /// Until an operator has it otherwise.
    pub(crate) drained: bool,
}

impl Sessions {
    /// Tells whether no session may come, nor a path.
    pub(crate) fn refuses(&self) -> bool {
        self.closing || self.drained
    }
}

impl Server {
    fn new(service: Arc<dyn Service>) -> Result<Arc<Self>> {
        // Without a rescuer of its own: the end of a session closes devices, which
        // waits for queues of the system that have none either.
        let queue = Queue::new(Options::unbound(), fmt!("ibtrs-server"))?;
        let slow = Queue::new(Options::unbound(), fmt!("ibtrs-server-end"))?;
        let wakes = Queue::new(Options::unbound(), fmt!("ibtrs-server-io"))?;
        let (accept_queue, expiry_queue) = (queue.clone(), slow.clone());
        let backlog = Backlog::new()?;
        let failures = FailureTable::new()?;
        Arc::pin_init(
            try_pin_init!(Self {
                service,
                config: Config::from_params()?,
                boot_id: kx::random::uuid(),
                queue,
                slow,
                wakes,
                ledger <- Ledger::new(),
                pool <- Pool::new(),
                joining <- new_mutex!((), "Server::joining"),
                failures <- failures,
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
                left_over: AtomicFlag::new(false),
                backlog <- new_mutex!(backlog, "Server::backlog"),
                accept <- kx::new_work!(accept_queue, "Server::accept"),
                expiry <- kx::new_delayed_work!(expiry_queue, "Server::expiry"),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Closes every session and waits until the last is gone.
    fn close(&self) {
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
        self.slow.flush();
        self.queue.flush();
        self.expiry.disable_sync();
    }
}

/// Takes sessions in as long as it lives.
///
/// Dropping it closes all sessions, and waits for their requests: may sleep.
pub struct Listener {
    // Dropped first, so that no request comes in any more.
    ids: [Option<CmId>; 3],
    server: Arc<Server>,
}

impl Listener {
    /// Returns what drains the server.
    pub fn drain(&self) -> Drain {
        Drain::new(self.server.clone())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ids = [None, None, None];
        // Requests that came before.
        self.server.queue.flush();
        self.server.close();
    }
}

/// Listens on all local addresses of the caller's network namespace at `port`, which
/// is not 0, for sessions of `service`. GIDs belong to the first namespace, as the
/// connection manager has it, so that one listens on them there, if that is possible.
///
/// The namespace stays as long as the listener.
///
/// # Context
///
/// May sleep.
///
/// # Errors
///
/// `EADDRINUSE` when the port is in use; `EINVAL` for module parameters that contradict each other;
/// `ENOMEM`.
pub fn listen(service: Arc<dyn Service>, port: u16) -> Result<Listener> {
    let server = Server::new(service)?;
    let incoming = Arc::new(Incoming::new(server.clone()), GFP_KERNEL)?;
    // iWARP finds no device for an IPv4 address that came through a wildcard of
    // IPv6, so each family has its own.
    let net = Net::current();
    // If a later one fails, this ends what clients have begun by the first.
    let mut listener = Listener {
        ids: [const { None }; 3],
        server,
    };
    let [v4, v6, gids] = &mut listener.ids;
    *v4 = Some(listen_at(&incoming, &net, &SockAddr::v4([0; 4], port))?);
    *v6 = match listen_at(&incoming, &net, &SockAddr::v6([0; 16], port, 0)) {
        Ok(id) => Some(id),
        Err(error) if error == EAFNOSUPPORT => None,
        Err(error) => return Err(error),
    };
    *gids = listen_at_gids(&incoming, &net, port);
    pr_info!("listening on port {port}\n");
    Ok(listener)
}

fn listen_at_gids(incoming: &Arc<Incoming>, net: &Net, port: u16) -> Option<CmId> {
    if *net != *Net::init() {
        return None;
    }
    match listen_at(incoming, net, &SockAddr::gid([0; 16], port)) {
        Ok(id) => Some(id),
        Err(error) => {
            // Without InfiniBand devices this is not an error.
            let error = convert::errno(error);
            pr_info!("not listening on GIDs: {}\n", error.as_str());
            None
        }
    }
}

fn listen_at(incoming: &Arc<Incoming>, net: &Net, addr: &SockAddr) -> Result<CmId> {
    let id = CmId::new(net, PortSpace::of(addr), incoming.clone())?;
    id.set_family_only()?;
    id.listen(addr, 64)?;
    Ok(id)
}
