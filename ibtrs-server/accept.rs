// SPDX-License-Identifier: GPL-2.0

//! Accepts or rejects connection requests (Documentation/protocol.md, "Connecting").

use crate::{
    con::{
        Con,
        RECV_INFO,
        RECV_REQUESTS, //
    },
    path::{
        Ends,
        Path, //
    },
    server::Server,
    session::Session, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    consts::{
        INFO_REQ_LEN,
        SERVICE_QUEUE_DEPTH, //
    },
    fsm::server_path::Event,
    handshake::{
        reject_encode,
        ConnReq,
        HandshakeError, //
    },
    join::{
        self,
        Attempt,
        Decision, //
    },
    quota,
    setup, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};
use kx::{
    pr_warn_ratelimited,
    work::WorkItem, //
};
use rdma::{
    cm::{
        CmEvent,
        CmHandler,
        CmId,
        ConnParam, //
    },
    cq::PollContext,
    qp::QpConfig,
    recv::RecvClass,
};

/// Gets the requests of the listening id.
pub(crate) struct Incoming {
    server: Arc<Server>,
}

impl Incoming {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server }
    }
}

/// A connection request that waits to be accepted.
pub(crate) struct PendingConn {
    id: CmId,
    request: Result<ConnReq, HandshakeError>,
    came: Instant<Monotonic>,
}

impl PendingConn {
    /// The UUIDs of its session and its path.
    fn path(&self) -> Option<PathName> {
        let request = self.request.as_ref().ok()?;
        Some((request.session_uuid, request.path_uuid))
    }

    /// Not the first connection of its path.
    fn is_further(&self) -> bool {
        self.request.as_ref().is_ok_and(|request| request.cid > 0)
    }
}

/// Identifies a path: the UUIDs of its session and of itself.
type PathName = ([u8; 16], [u8; 16]);

/// Connection requests that wait to be accepted, the oldest first.
pub(crate) struct Backlog {
    pending: KVVec<PendingConn>,
    /// The path of the request that is being accepted.
    now: Option<PathName>,
}

impl Backlog {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            pending: KVVec::with_capacity(setup::WAITING_MAX, GFP_KERNEL)?,
            now: None,
        })
    }

    /// Adds a request; returns it if the backlog is full.
    fn push(&mut self, pending: PendingConn) -> Result<(), CmId> {
        if !setup::may_wait(self.pending.len(), pending.is_further()) {
            return Err(pending.id);
        }
        self.pending
            .push_within_capacity(pending)
            .map_err(|full| full.0.id)
    }

    /// Takes the next request to be accepted; the accept of the previous one has ended.
    fn next(&mut self) -> Option<PendingConn> {
        let next = self.pending.remove(0).ok();
        self.now = next.as_ref().and_then(PendingConn::path);
        next
    }

    /// Returns whether a connection of that path waits to be accepted, or is being accepted.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let path = Some((path.session.uuid, path.uuid));
        self.now == path || self.pending.iter().any(|pending| pending.path() == path)
    }
}

impl CmHandler for Incoming {
    fn event(&self, _event: &CmEvent<'_>) {}

    fn connect_request(&self, id: CmId, private_data: &[u8]) -> Result<(), CmId> {
        let request = ConnReq::decode(private_data);
        let pending = PendingConn {
            id,
            request,
            came: Instant::now(),
        };
        self.server.backlog.lock().push(pending).inspect_err(|_| {
            pr_warn_ratelimited!("connection refused: the backlog is full\n");
        })?;
        self.server.accept.enqueue(self.server.clone());
        Ok(())
    }
}

/// Accepts connection requests, one at a time.
impl WorkItem<{ crate::server::work::ACCEPT }> for Server {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        loop {
            let next = this.backlog.lock().next();
            let Some(next) = next else {
                return;
            };
            next.accept(&this);
        }
    }
}

/// Why a connection is refused, or a path.
pub(crate) struct Refusal {
    error: Error,
    why: &'static str,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self {
            error,
            why: "it cannot be made",
        }
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

impl From<join::Refusal> for Refusal {
    fn from(refusal: join::Refusal) -> Self {
        Self {
            error: convert::error(refusal.errno()),
            why: refusal.as_str(),
        }
    }
}

impl From<quota::Refusal> for Refusal {
    fn from(refusal: quota::Refusal) -> Self {
        Self {
            error: convert::error(refusal.errno()),
            why: refusal.as_str(),
        }
    }
}

/// Without a reason there was no memory to find one.
impl From<Option<quota::Refusal>> for Refusal {
    fn from(refusal: Option<quota::Refusal>) -> Self {
        refusal.map_or(ENOMEM.into(), Self::from)
    }
}

impl Refusal {
    pub(crate) const fn new(error: Error, why: &'static str) -> Self {
        Self { error, why }
    }
}

/// As in the log.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = convert::errno(self.error);
        f.write_fmt(fmt!("{} ({})", self.why, errno.as_str()))
    }
}

impl PendingConn {
    /// Accepts the connection or refuses it, with a line in the log.
    fn accept(self, server: &Arc<Server>) {
        let Ok(id) = Arc::new(self.id, GFP_KERNEL) else {
            return;
        };
        if id.has_ended() {
            // The client does not wait for an answer any more.
            return;
        }
        let ends = Ends::of(&id);
        let result = match (self.request, ends) {
            (Ok(request), Ok(ends)) => accept(server, &id, ends, &request, self.came),
            (Err(error), _) => Err(error.into()),
            (_, Err(error)) => Err(error.into()),
        };
        let Err(refusal) = result else {
            return;
        };
        match ends {
            Ok(ends) => pr_warn_ratelimited!("{}: refused: {}\n", ends, refusal),
            Err(_) => pr_warn_ratelimited!("connection refused: {}\n", refusal),
        }
        // If it fails the client learns when the id is dropped.
        let _ = id.reject(&reject_encode(convert::errno(refusal.error)));
    }
}

/// Accepts a connection.
///
/// # Errors
///
/// The reason to refuse the connection with.
fn accept(
    server: &Arc<Server>,
    id: &Arc<CmId>,
    ends: Ends,
    request: &ConnReq,
    came: Instant<Monotonic>,
) -> Result<(), Refusal> {
    if u32::from(request.cid_num) > server.config.max_connections {
        return Err(Refusal::new(
            ENOSPC,
            "its client has more CPUs and poll queues than max_connections allows: raise it",
        ));
    }
    let session = find_session(server, ends, request)?;
    let path = find_path(&session, id, ends, request).inspect_err(|_| {
        session.forget_if_unused();
    })?;
    let result = connect(&path, id, request, came);
    if result.is_err() {
        path.event(Event::Error);
    }
    result
}

/// Finds the session of a connection, or makes it.
fn find_session(
    server: &Arc<Server>,
    ends: Ends,
    request: &ConnReq,
) -> Result<Arc<Session>, Refusal> {
    let known = server.ledger.knows(ends.src);
    let mut sessions = server.sessions.lock();
    if sessions.refuses() {
        let why = match sessions.closing {
            true => "the server is being unloaded",
            false => "the server is drained",
        };
        return Err(Refusal::new(ECONNREFUSED, why));
    }
    if let Some(session) = sessions.find(&request.session_uuid) {
        if session.gone.load(Relaxed) || session.drained.load(Relaxed) {
            return Err(Refusal::new(ECONNRESET, "the session is being closed"));
        }
        return Ok(session.clone());
    }
    if !request.first_conn {
        return Err(Refusal::new(ENXIO, "no such session"));
    }
    let (count, max) = (sessions.list.len(), server.config.max_sessions);
    if !quota::has_room_for_session(count, max, known) {
        let why = match count < max {
            true => "the last of max_sessions are reserved for known clients",
            false => "the server already has max_sessions sessions",
        };
        return Err(Refusal::new(ENOSPC, why));
    }
    Ok(sessions.add(server, request.session_uuid)?)
}

/// Finds the path of a connection, or makes it.
fn find_path(
    session: &Arc<Session>,
    id: &Arc<CmId>,
    ends: Ends,
    request: &ConnReq,
) -> Result<Arc<Path>, Refusal> {
    let attempt = Attempt {
        cid_num: request.cid_num,
        epoch: request.ext.map(|ext| ext.epoch),
    };
    let paths = session.paths.lock();
    let known = paths.iter().map(|path| (path, path.known(&ends, request)));
    let decision = join::decide(attempt, known);
    match decision {
        Decision::Join(path) => return Ok(path.clone()),
        Decision::Refuse(refusal, superseded) => {
            if let Some(path) = superseded {
                path.superseded();
            }
            return Err(refusal.into());
        }
        Decision::New => drop(paths),
    }
    let path = Path::new(session, id, ends, request)?;
    if let Err(error) = session.add_path(path.clone()) {
        path.event(Event::Error);
        return Err(error.into());
    }
    Ok(path)
}

/// Creates the queue pair of a connection and accepts it.
fn connect(
    path: &Arc<Path>,
    id: &Arc<CmId>,
    request: &ConnReq,
    came: Instant<Monotonic>,
) -> Result<(), Refusal> {
    path.take_for_connection(request.cid)?;
    let events = Events {
        path: path.clone(),
        cid: request.cid,
    };
    let events = Arc::new(events, GFP_KERNEL).map_err(Error::from)?;
    // Before anything that takes long: the client may have ended it meanwhile.
    id.set_handler(events)?;
    Ok(make_qp(path, id, request, came)?)
}

fn make_qp(
    path: &Arc<Path>,
    id: &Arc<CmId>,
    request: &ConnReq,
    came: Instant<Monotonic>,
) -> Result {
    let config = path.session.server.config;
    let requests = config.io_recvs();
    let con = Con::new(path.clone(), request.cid)?;
    let service = request.cid == 0;
    let qp_config = if service {
        QpConfig {
            send_depth: config.service_sends(),
            send_sges: 2,
            recv_depth: config.service_recvs(),
            context: PollContext::WorkQueue,
            vector: 0,
        }
    } else {
        QpConfig {
            send_depth: config.io_sends(),
            send_sges: 2,
            recv_depth: requests,
            context: PollContext::WorkQueue,
            vector: u32::from(request.cid) - 1,
        }
    };
    let qp = qp_config.create(id.clone(), &path.pd, con)?;
    qp.set_slots(path.slots.clone())?;
    if request.ext.is_some_and(|ext| ext.send_imm) {
        qp.carry_imm_in_messages()?;
    }
    let receives = if service {
        qp.add_recvs(
            RECV_INFO,
            RecvClass {
                count: 1,
                bytes: INFO_REQ_LEN as u32,
            },
        )?;
        u32::from(SERVICE_QUEUE_DEPTH)
    } else {
        requests
    };
    qp.add_recvs(
        RECV_REQUESTS,
        RecvClass {
            count: receives,
            bytes: 0,
        },
    )?;
    path.add_con(request.cid, qp, came)?;
    let ext = request.ext.map(|_| path.session.rsp_ext());
    id.accept(ConnParam {
        private_data: &config.rsp(ext).encode(),
        retry_count: 7,
        rnr_retry_count: 7,
    })
}

/// Gets the events of a connection's id.
struct Events {
    path: Arc<Path>,
    cid: u16,
}

impl CmHandler for Events {
    fn event(&self, event: &CmEvent<'_>) {
        if event.is_end() {
            self.path.ended(self.cid, event.as_str());
        }
    }
}
