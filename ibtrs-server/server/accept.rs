// SPDX-License-Identifier: GPL-2.0

//! Accepts or rejects connection requests (Documentation/protocol.md, "Connecting").

use crate::{
    data::con::{
        Con,
        Control,
        RECV_AUTH,
        RECV_INFO,
        RECV_REQUESTS, //
    },
    ends::Ends,
    env::{
        backlog::{
            Asked,
            PendingConn, //
        },
        config::{
            Config,
            SETUP_RECVS,
            SHORTEST_SENDS, //
        },
        Env, //
    },
    path::{
        First,
        Path, //
    },
    refusal::Refusal,
    server::Server,
    session::{
        sessions::Sessions, //
        Session,
    },
    types::{
        Place,
        Purpose,
        Shape,
        Terms,
        MAX_SGES, //
    }, //
};
use ibtrs_core::{
    auth::{
        self,
        Crypto, //
    },
    messages::{
        self,
        memory::Reads,
        Conn, //
    }, //
};
use ibtrs_proto::{
    audit::Trust,
    auth::{
        offered,
        Policy,
        ServerAuth,
        Session as Kind,
        Source,
        AUTH1_LEN, //
    },
    consts::{
        CONN_REQ_LEN,
        CONN_RSP_LEN,
        INFO_REQ_LEN, //
    },
    fsm::server_path::Event,
    handshake::{
        reject_encode,
        ConnReq, //
    },
    join::Attempt,
    origin::Origin, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    pr_warn_ratelimited,
    sync::atomic::Relaxed,
    work::WorkItem, //
};
use rdma::{
    cm::{
        CmEvent,
        CmHandler,
        ConnParam,
        ConnRequest,
        IncomingId,
        NotAccepted, //
    },
    cq::PollContext,
    device::Device,
    qp::{
        Qp,
        QpConfig, //
    },
    recv::RecvClass,
};

/// Receives the connection requests of the listening id.
pub(crate) struct Incoming {
    server: Arc<Server>,
}

impl Incoming {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server }
    }
}

impl CmHandler for Incoming {
    fn event(&self, _event: &CmEvent<'_>) {}

    fn connect_request(
        &self,
        request: ConnRequest,
        private_data: &[u8],
    ) -> Result<(), ConnRequest> {
        let env = &self.server.env;
        let pending = PendingConn::new(request, private_data);
        let pushed = env.backlog.lock().push(pending);
        pushed.inspect_err(|request| {
            log_refusal(env, &Ends::of(&request.addrs()), "the backlog is full");
        })?;
        self.server.accept.enqueue(self.server.clone());
        Ok(())
    }
}

/// Accepts connection requests, one at a time.
impl WorkItem for Server {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        loop {
            let next = this.env.backlog.lock().next();
            let Some(next) = next else {
                return;
            };
            this.accept(next);
        }
    }
}

impl Server {
    /// Accepts a connection, or refuses it with a line in the log. Drops it silently if the
    /// client has ended it or memory is short.
    fn accept(&self, pending: PendingConn) {
        let Ok(id) = pending.id.into_id() else {
            return;
        };
        if id.has_ended() {
            // The client no longer waits for an answer.
            return;
        }
        let ends = Ends::of(&id.addrs());
        let result = match (pending.asked, ends) {
            (_, Ok(ends)) if !ends.is_credible(&id) => Err(Refusal::new(
                EACCES,
                "the client claims an address that its GID does not have",
            )),
            (Ok(Asked { request, bytes }), Ok(ends)) => Incomer {
                id: &id,
                ends,
                request: &request,
                bytes: &bytes,
                came: pending.came,
            }
            .prepare(&self.sessions),
            (Err(error), _) => Err(error.into()),
            (_, Err(error)) => Err(error.into()),
        };
        let (refusal, unanswered) = match result {
            Err(refusal) => (refusal, Some(id)),
            Ok(ready) => match ready.accept(id) {
                Ok(()) => return,
                Err(NotAccepted { error, unanswered }) => (error.into(), unanswered),
            },
        };
        log_refusal(&self.env, &ends, &refusal);
        if let Some(id) = unanswered {
            // If this fails, the client's request times out.
            let _ = id.reject(&reject_encode(refusal.errno()));
        }
    }
}

/// Logs that a connection is refused.
fn log_refusal(env: &Env, ends: &Result<Ends>, why: impl fmt::Display) {
    match ends {
        // The address is not verified yet, and may be forged.
        Ok(ends) if !env.audit.may_log(Trust::Stranger, &ends.src) => {}
        Ok(ends) => pr_warn!("{}: refused: {}\n", *ends, why),
        Err(_) => pr_warn_ratelimited!("connection refused: {}\n", why),
    }
}

/// A connection that is being accepted.
pub(crate) struct Incomer<'a> {
    pub(crate) id: &'a IncomingId,
    pub(crate) ends: Ends,
    pub(crate) request: &'a ConnReq,
    /// The request as received.
    pub(crate) bytes: &'a [u8; CONN_REQ_LEN],
    came: Instant<Monotonic>,
}

/// The private data of an acceptance.
type Acceptance = [u8; CONN_RSP_LEN];

/// A connection that has its queue pair, and is accepted next.
struct Ready {
    path: Arc<Path>,
    acceptance: Acceptance,
    /// The limits of reads in flight.
    reads: Reads,
}

impl Ready {
    /// Accepts the connection.
    ///
    /// # Errors
    ///
    /// Errors of [`IncomingId::accept`]; the path fails.
    fn accept(&self, id: IncomingId) -> Result<(), NotAccepted> {
        let accepted = id.accept(ConnParam {
            private_data: &self.acceptance,
            retry_count: 7,
            rnr_retry_count: 7,
            reads_by_peer: self.reads.by_peer,
            reads: self.reads.of_peer,
        });
        accepted.inspect_err(|_| {
            self.path.event(Event::Error);
        })
    }
}

/// Adds a path to a session without authentication, if the service allows it.
fn join_plain(session: &Session, path: &Arc<Path>) -> Result<(), Refusal> {
    let source = path.io.ends.src;
    let mut add = || Ok(session.add_path(path.clone())?);
    if let Some(uppers) = session.io.uppers.as_ref() {
        return uppers.join(source, &mut add);
    }
    // The service does not know the session yet, unless the session comes up concurrently.
    add()?;
    match session.io.uppers.as_ref() {
        Some(uppers) => uppers.join(source, &mut || Ok(())),
        None => Ok(()),
    }
}

/// Returns the policy for a path of a session of kind `kind`, and whether there are keys.
///
/// A server that has ever had a key keeps the policy of a server with keys, so that strangers do
/// not get in when its last key is removed or expires.
fn policy(kind: Kind) -> (Policy, bool) {
    let had_keys = auth::had_keys();
    (crate::auth.get().policy(kind, had_keys), auth::has_keys())
}

impl Incomer<'_> {
    /// Finds or creates the path of the connection, and creates its queue pair.
    ///
    /// # Errors
    ///
    /// The reason for the refusal.
    fn prepare(&self, sessions: &Arc<Sessions>) -> Result<Ready, Refusal> {
        if u32::from(self.request.cid_num) > sessions.env.config.max_connections {
            return Err(Refusal::new(
                ENOSPC,
                "its session has more queues than max_connections allows: raise it, or map with fewer nr_queues",
            ));
        }
        let joining = sessions.joining.lock();
        let (path, acceptance) = self.find_path(sessions)?;
        drop(joining);
        let reads = self.connect(&path).inspect_err(|_| {
            path.event(Event::Error);
        })?;
        Ok(Ready {
            path,
            acceptance,
            reads,
        })
    }

    /// Returns the origin of the connection, for the accounts of strangers.
    pub(crate) fn origin(&self) -> Origin {
        self.ends.origin(self.id)
    }

    fn place(&self) -> Place {
        Place {
            ends: self.ends,
            attempt: Attempt {
                cid_num: self.request.cid_num,
                epoch: self.request.ext.map(|ext| ext.epoch),
            },
            cid: self.request.cid,
        }
    }

    /// Returns the private data of the acceptance of a connection to a path with these terms.
    fn acceptance(&self, session: &Session, terms: Terms) -> Acceptance {
        let ext = self.request.ext.map(|_| session.rsp_ext());
        session.io.env.config.rsp(terms, ext).encode()
    }

    /// Returns where the requests of a path land that begins with this connection.
    fn shape(&self, config: &Config) -> Shape {
        let takes = self.request.ext.is_some_and(|ext| ext.wants_slots());
        let can_fetch = self.id.device().is_ok_and(|dev| {
            dev.has_immediates()
                && dev.max_reads() > 0
                && dev.max_read_sge() >= MAX_SGES
                && (dev.reads_survive_loss() || crate::slots_over_rxe.get())
        });
        match takes && can_fetch && self.id.reads_allowed() > 0 && config.gives_slots() {
            true => Shape::Slots,
            false => Shape::Chunks,
        }
    }

    /// Returns the terms of a path that begins with this connection.
    pub(crate) fn terms(&self, config: &Config) -> Terms {
        let takes = self.request.ext.is_some_and(|ext| ext.wants_capsules());
        let (shape, cons) = (self.shape(config), self.request.cid_num);
        let messages = self.request.ext.is_some_and(|ext| ext.messages) && messages::has_service();
        let terms = |has_capsules| Terms {
            messages,
            ..config.terms(shape, has_capsules, cons)
        };
        let with_capsules = terms(takes && crate::capsules.get());
        let can_take = self.id.device().is_ok_and(|dev| {
            dev.has_immediates()
                && dev.max_recv_sge() > 1
                && fits(&dev, config.io_recvs(with_capsules))
        });
        match can_take {
            true => with_capsules,
            false => terms(false),
        }
    }

    /// Finds the path of the connection, or creates it; also returns the private data of the
    /// acceptance.
    fn find_path(&self, sessions: &Arc<Sessions>) -> Result<(Arc<Path>, Acceptance), Refusal> {
        let (env, found) = (&sessions.env, self.find_session(sessions)?);
        let found = found.filter(|session| !self.may_replace(session));
        let kind = found.as_ref().map_or(Kind::New, |session| session.kind());
        if let (Kind::Authenticated, Some(session), true) = (kind, &found, self.request.cid > 0) {
            return self.join_by_proof(session);
        }
        let (policy, has_keys) = policy(kind);
        let allowed = crate::auth_suites.usable();
        let chosen = policy.choose(kind, offered(self.bytes), allowed, has_keys)?;
        let known = found
            .as_ref()
            .filter(|session| session.kind() == Kind::Authenticated);
        let source = Source {
            origin: self.origin(),
            session: known.map(|session| session.io.uuid),
        };
        if chosen.is_some() && env.failures.must_wait(&source) {
            return Err(Refusal::new(
                EBUSY,
                "too many failed authentications from this address: wait a few seconds",
            ));
        }
        let session = match found {
            Some(session) => session,
            None if chosen.is_some() => Session::new(sessions, self.request.session_uuid, true)?,
            None => self.begin_session(sessions)?,
        };
        let known = match chosen {
            Some(_) => Ok(None),
            None => self.known_path(&session),
        };
        let known = known.inspect_err(|_| session.forget_if_unused())?;
        let terms = match &known {
            Some(path) => path.io.terms,
            None => self.terms(&env.config),
        };
        let mut acceptance = self.acceptance(&session, terms);
        let nonce = kx::random::secret();
        let auth = ServerAuth::accept(chosen, self.bytes, &mut acceptance, nonce);
        let path = match (known, chosen) {
            (Some(path), _) => Ok(path),
            (None, Some(_)) => self.new_candidate(&session, auth, false),
            (None, None) => self.plain_path(&session, auth),
        };
        let path = path.inspect_err(|_| session.forget_if_unused())?;
        Ok((path, acceptance))
    }

    /// Finds the session of the connection; `None` if the connection begins a new session.
    fn find_session(&self, sessions: &Sessions) -> Result<Option<Arc<Session>>, Refusal> {
        let sessions = sessions.lock();
        sessions.check_open()?;
        let Some(session) = sessions.find(&self.request.session_uuid) else {
            return match self.request.first_conn {
                true => Ok(None),
                false => Err(Refusal::new(ENXIO, "no such session")),
            };
        };
        if session.gone.load(Relaxed) || session.ending.load(Relaxed) {
            return Err(Refusal::new(ECONNRESET, "the session is being closed"));
        }
        Ok(Some(session.clone()))
    }

    /// Returns whether the client of this connection gets the UUID of `session` once it proves a
    /// key, because `session` is not authenticated. (A client that has joined such a session no
    /// longer offers a proof.) See [`Session::take_uuid`].
    fn may_replace(&self, session: &Session) -> bool {
        if session.kind() != Kind::Plain || self.request.cid > 0 {
            return false;
        }
        let (policy, has_keys) = policy(Kind::New);
        let allowed = crate::auth_suites.usable();
        let chosen = policy.choose(Kind::New, offered(self.bytes), allowed, has_keys);
        matches!(chosen, Ok(Some(_)))
    }

    /// Begins a session without authentication.
    fn begin_session(&self, sessions: &Arc<Sessions>) -> Result<Arc<Session>, Refusal> {
        let session = Session::new(sessions, self.request.session_uuid, false)?;
        session.enlist(sessions.env.ledger.knows(self.origin()))?;
        Ok(session)
    }

    /// Finds the path of a further connection in an authenticated session.
    fn join_by_proof(&self, session: &Session) -> Result<(Arc<Path>, Acceptance), Refusal> {
        let paths = session.paths.lock();
        let owner = paths.iter().find(|path| path.owns(self.bytes)).cloned();
        drop(paths);
        let stranger = Refusal::new(
            EKEYREJECTED,
            "it does not prove that it belongs to a path of the authenticated session",
        );
        let owner = owner.ok_or(stranger)?;
        let path = session.find_path(&self.place(), |path| Arc::ptr_eq(path, &owner))?;
        let path = path.ok_or(Refusal::new(ECONNRESET, "its path has gone"))?;
        let mut acceptance = self.acceptance(session, path.io.terms);
        let auth = path.auth.lock();
        auth.further_accept(&Crypto, self.bytes, &mut acceptance);
        drop(auth);
        Ok((path, acceptance))
    }

    /// Finds the path of the connection in a session without authentication.
    fn known_path(&self, session: &Session) -> Result<Option<Arc<Path>>, Refusal> {
        let uuid = self.request.path_uuid;
        session.find_path(&self.place(), |path| path.uuid == uuid)
    }

    /// Adds the path to a session without authentication.
    fn plain_path(&self, session: &Arc<Session>, auth: ServerAuth) -> Result<Arc<Path>, Refusal> {
        let path = self.new_candidate(session, auth, session.has_connected_path())?;
        join_plain(session, &path).inspect_err(|_| {
            path.event(Event::Error);
        })?;
        Ok(path)
    }

    /// Creates a candidate, which is in no session's list yet; `known` says whether its client is
    /// known.
    fn new_candidate(
        &self,
        session: &Arc<Session>,
        auth: ServerAuth,
        known: bool,
    ) -> Result<Arc<Path>, Refusal> {
        session.sessions.lock().reserve_candidate()?;
        let id = session.next_id();
        let id = id.ok_or(Refusal::new(ENOSPC, "the path cannot be created"))?;
        let first = First {
            id: self.id,
            ends: self.ends,
            request: self.request,
            terms: self.terms(&session.io.env.config),
        };
        let path = Path::new(session.clone(), &session.io, id, &first, auth, known)?;
        let added = session.sessions.lock().add_candidate(path.clone());
        added.inspect_err(|_| {
            path.event(Event::Error);
        })?;
        Ok(path)
    }

    /// Creates the queue pair of a connection; returns the limits of reads for [`Ready`].
    fn connect(&self, path: &Arc<Path>) -> Result<Reads, Refusal> {
        path.take_for_connection(self.request.cid)?;
        let events = Events {
            path: path.clone(),
            cid: self.request.cid,
        };
        let events = Arc::new(events, GFP_KERNEL).map_err(Error::from)?;
        // Before any slow operation: the client may end the connection at any time.
        self.id.set_handler(events)?;
        if self.request.is_for_messages() {
            return self.make_message_conn(path);
        }
        Ok(self.make_qp(path)?)
    }

    /// Creates the queue pair of the message connection.
    fn make_message_conn(&self, path: &Arc<Path>) -> Result<Reads, Refusal> {
        let epoch = path.io.epoch.filter(|_| path.io.terms.messages);
        let epoch = epoch.ok_or(Refusal::new(EPROTO, "its path has no message connection"))?;
        let conn = Conn {
            epoch,
            cid: self.request.cid,
        };
        let vector = path.vector(self.request.cid);
        let (allowed, wanted) = (self.id.reads_allowed(), self.id.reads_wanted());
        let reads = Reads::of(path.io.pd.device()).with_peer(allowed, wanted);
        let conn = path.new_message_conn((conn, self.id.shared()), vector, reads)?;
        path.add_message_conn(conn, self.came)?;
        Ok(reads)
    }

    fn make_qp(&self, path: &Arc<Path>) -> Result<Reads> {
        let (config, request) = (&path.io.session.env.config, self.request);
        let terms = path.io.terms;
        if terms.shape == Shape::Slots && self.id.reads_allowed() == 0 {
            // No data could be fetched over this connection, and its requests would hold buffers
            // forever.
            return Err(EPROTO);
        }
        let con = Con::new(path.io.clone(), path.clone(), request.cid, Purpose::Blocks)?;
        let service = request.cid == 0;
        let dev = path.io.pd.device();
        let (send_depth, send_reserve) = match service {
            true => (config.service_sends(terms), 0),
            false => (config.io_sends(terms), config.invalidations(terms)),
        };
        let setup_recvs = if service { SETUP_RECVS } else { 0 };
        let requests = requests(config, terms, dev, service);
        let qp_config = QpConfig {
            send_depth,
            send_reserve,
            send_sges: MAX_SGES,
            recv_depth: requests + setup_recvs,
            payloads: !service && terms.window.is_some(),
            context: PollContext::WorkQueue,
            vector: path.vector(request.cid),
        };
        let qp = qp_config.create(self.id.shared(), &path.io.pd, con)?;
        if terms.shape == Shape::Slots && qp.send_depth() < SHORTEST_SENDS {
            // The device's completion queue is too short for this many sends in addition to the
            // receives.
            return Err(E2BIG);
        }
        qp.set_slots(path.io.slots.clone())?;
        if request.ext.is_some_and(|ext| ext.send_imm) {
            qp.carry_imm_in_messages()?;
        }
        if service {
            add_service_recvs(&qp, path)?;
        }
        // The receives for capsules are posted when the client has completed the path.
        if service || terms.window.is_none() {
            qp.add_recvs(RECV_REQUESTS, RecvClass::empty(requests))?;
        }
        path.add_con(request.cid, qp, self.came)?;
        Ok(Reads {
            of_peer: match terms.shape {
                Shape::Chunks => 0,
                Shape::Slots => path.io.pd.device().max_reads().min(self.id.reads_allowed()),
            },
            by_peer: 0,
        })
    }
}

/// Returns whether the queues of a device have room for this number of receives, in addition to the
/// sends that any connection needs.
fn fits(dev: &Device, receives: u32) -> bool {
    receives <= dev.max_recvs(SHORTEST_SENDS)
}

/// Returns the number of receives of a connection for requests and heartbeats: as configured, or fewer if
/// the device's queues are shorter. Over InfiniBand and RoCE, a message without a receive is retried; iWARP
/// does not retry, but its devices have longer queues.
fn requests(config: &Config, terms: Terms, dev: &Device, service: bool) -> u32 {
    let (wanted, beside, others) = match service {
        // Sends get at most half of the completion queue.
        true => {
            let sends = config.service_sends(terms).min(dev.max_cqe() / 2);
            (config.service_requests(terms), sends, SETUP_RECVS)
        }
        false => (config.io_recvs(terms), SHORTEST_SENDS, 0),
    };
    match dev.has_immediates() {
        true => wanted.min(dev.max_recvs(beside).saturating_sub(others)),
        false => wanted,
    }
}

/// Posts the receives for the messages that set up the path, in the order in which they arrive.
fn add_service_recvs(qp: &Qp<Con>, path: &Path) -> Result {
    let one = |bytes: usize| RecvClass {
        count: 1,
        // CAST: These messages have some hundred bytes.
        bytes: bytes as u32,
        payload: 0,
    };
    if path.auth.lock().is_pending() {
        qp.add_recvs(RECV_AUTH, one(AUTH1_LEN))?;
    }
    qp.add_recvs(RECV_INFO, one(INFO_REQ_LEN))
}

/// Handles the connection manager's events of one connection.
struct Events {
    path: Arc<Path>,
    cid: u16,
}

impl CmHandler for Events {
    fn event(&self, event: &CmEvent<'_>) {
        if event.is_end() {
            self.path.clone().ended(self.cid, event.as_str());
        }
    }
}
