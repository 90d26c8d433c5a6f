// SPDX-License-Identifier: GPL-2.0

//! Admission of connections (protocol 2.3).

use crate::{
    con::{
        Con,
        RECV_INFO,
        RECV_REQUESTS, //
    },
    path::Path,
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
};
use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
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

/// Paths of a session.
const MAX_PATHS: usize = 1;

/// Gets the requests of the listening id.
pub(crate) struct Incoming {
    server: Arc<Server>,
}

impl Incoming {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server }
    }
}

/// A connection that waits for its admission.
pub(crate) struct Waiting {
    id: CmId,
    request: Result<ConnReq, HandshakeError>,
}

impl Waiting {
    /// How many may wait; more are refused.
    pub(crate) const MAX: usize = 1024;
}

impl CmHandler for Incoming {
    fn event(&self, _event: &CmEvent<'_>) {}

    fn connect_request(&self, id: CmId, private_data: &[u8]) -> Result<(), CmId> {
        let request = ConnReq::decode(private_data);
        let mut waiting = self.server.waiting.lock();
        if let Err(full) = waiting.push_within_capacity(Waiting { id, request }) {
            return Err(full.0.id);
        }
        drop(waiting);
        self.server.admit.enqueue(self.server.clone());
        Ok(())
    }
}

/// Admissions, one after the other.
impl WorkItem for Server {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        loop {
            let mut waiting = this.waiting.lock();
            if waiting.is_empty() {
                return;
            }
            let next = waiting.remove(0);
            drop(waiting);
            if let Ok(next) = next {
                next.admit(&this);
            }
        }
    }
}

impl Waiting {
    /// Accepts the connection or refuses it.
    fn admit(self, server: &Arc<Server>) {
        let Ok(id) = Arc::new(self.id, GFP_KERNEL) else {
            return;
        };
        let result = match self.request {
            Ok(request) => admit(server, &id, &request),
            Err(error) => {
                pr_warn_ratelimited!("connection refused: {}\n", error.as_str());
                Err(convert::error(error.errno()))
            }
        };
        if let Err(error) = result {
            let errno = convert::errno(error);
            pr_warn_ratelimited!("connection refused with {}\n", errno.as_str());
            // If it fails the client learns when the id is dropped.
            let _ = id.reject(&reject_encode(errno));
        }
    }
}

/// Accepts a connection.
///
/// # Errors
///
/// What to refuse it with.
fn admit(server: &Arc<Server>, id: &Arc<CmId>, request: &ConnReq) -> Result {
    let session = find_session(server, request)?;
    let path = find_path(&session, id, request)?;
    let result = connect(&path, id, request);
    if result.is_err() {
        path.event(Event::Error);
    }
    result
}

/// Finds the session of a connection, or makes it.
fn find_session(server: &Arc<Server>, request: &ConnReq) -> Result<Arc<Session>> {
    let mut sessions = server.sessions.lock();
    if sessions.closing {
        return Err(ECONNREFUSED);
    }
    let found = sessions
        .list
        .iter()
        .find(|session| session.uuid == request.session_uuid);
    if let Some(session) = found {
        if session.gone.load(Relaxed) {
            return Err(ECONNRESET);
        }
        return Ok(session.clone());
    }
    if !request.first_conn {
        return Err(ENXIO);
    }
    let session = Session::new(server, request.session_uuid)?;
    sessions.list.push(session.clone(), GFP_KERNEL)?;
    Ok(session)
}

/// Finds the path of a connection, or makes it.
fn find_path(session: &Arc<Session>, id: &Arc<CmId>, request: &ConnReq) -> Result<Arc<Path>> {
    let paths = session.paths.lock();
    let found = paths
        .iter()
        .find(|path| path.uuid == request.path_uuid)
        .cloned();
    let count = paths.len();
    drop(paths);
    if let Some(path) = found {
        path.check_stale();
        path.may_connect(request)?;
        return Ok(path);
    }
    let new = || {
        // Chunks belong to the session, but their keys to a path: with two paths
        // a client could write through one to what it sent through the other.
        if count >= MAX_PATHS {
            pr_warn_ratelimited!("{}: a session has one path\n", session.name());
            return Err(ECONNRESET);
        }
        let path = Path::new(session, id, request)?;
        if let Err(error) = session.add_path(path.clone()) {
            path.event(Event::Error);
            return Err(error);
        }
        Ok(path)
    };
    new().inspect_err(|_| session.forget_if_unused())
}

/// Makes the queue pair of a connection and accepts it.
fn connect(path: &Arc<Path>, id: &Arc<CmId>, request: &ConnReq) -> Result {
    let config = path.session.server.config;
    let depth = u32::from(config.queue_depth);
    let con = Con::new(path.clone(), request.cid)?;
    let service = request.cid == 0;
    let qp_config = if service {
        QpConfig {
            // The registration of all chunks and the information about them.
            send_depth: depth.max(2 * u32::from(SERVICE_QUEUE_DEPTH)) + 2,
            send_sges: 2,
            recv_depth: u32::from(SERVICE_QUEUE_DEPTH) + 1,
            context: PollContext::WorkQueue,
            vector: 0,
        }
    } else {
        QpConfig {
            // The longest answer has four requests, an invalidation comes before.
            send_depth: 5 * depth,
            send_sges: 2,
            recv_depth: depth,
            context: PollContext::WorkQueue,
            vector: u32::from(request.cid) - 1,
        }
    };
    let qp = qp_config.create(id.clone(), &path.dev, con)?;
    qp.set_slots(path.slots.clone())?;
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
        depth
    };
    qp.add_recvs(
        RECV_REQUESTS,
        RecvClass {
            count: receives,
            bytes: 0,
        },
    )?;
    let events = Events {
        path: path.clone(),
        cid: request.cid,
    };
    id.set_handler(Arc::new(events, GFP_KERNEL)?)?;
    path.add_con(request.cid, qp)?;
    id.accept(ConnParam {
        private_data: &config.rsp().encode(),
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
