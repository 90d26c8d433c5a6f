// SPDX-License-Identifier: GPL-2.0

//! One connection of a path: receives requests.

use crate::{
    batch::{
        self,
        Batch, //
    },
    buffers::{
        self,
        Buffer,
        Waiter, //
    },
    chunk::{
        Chunk,
        ChunkSlot,
        MAX_USER_HDR,
        SHORT_USER_HDR, //
    },
    chunk_owner::Claim,
    fetch,
    path::Path,
    request::Request,
    respond::{
        self,
        Unsent, //
    },
    types::Purpose,
    upper::ServiceSession, //
};
use ibtrs_core::{
    convert,
    imm::send_imm,
    trace, //
};
use ibtrs_proto::{
    consts::MAX_REQUEST_HDR_LEN,
    imm::Imm,
    msg::{
        Bounds,
        RequestError,
        RequestHdr,
        ServerRequest, //
    },
    serving::{
        self,
        Place, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::sync::PercpuArc;
use rdma::{
    qp::{
        Handler,
        QpRef,
        QueuePair, //
    },
    recv::{
        Received,
        Repost, //
    },
    sendq::{
        Position,
        Signal, //
    },
    slot::{
        Kind,
        SlotRef, //
    },
    wc::Wc,
};

/// Receives for immediates: requests, fences and heartbeats.
pub(crate) const RECV_REQUESTS: usize = 0;
/// The receive buffer for the session's name, on the service connection.
pub(crate) const RECV_INFO: usize = 1;
/// The receive buffer for AUTH1, on the service connection of a path that authenticates. The first
/// message arrives in it, whatever it is.
pub(crate) const RECV_AUTH: usize = 2;

/// The handler of a connection.
pub(crate) struct Con {
    pub(crate) path: Arc<Path>,
    pub(crate) cid: u16,
    purpose: Purpose,
    /// Answers, fetches and a flush that wait for SQ space.
    pub(crate) unsent: Pin<KBox<Unsent>>,
    /// Answers that wait to be sent in one message.
    pub(crate) batch: Pin<KBox<Batch>>,
}

impl Con {
    pub(crate) fn new(path: Arc<Path>, cid: u16, purpose: Purpose) -> Result<Self> {
        Ok(Self {
            unsent: KBox::pin_init(Unsent::new(path.layout.queue_depth()), GFP_KERNEL)?,
            batch: KBox::pin_init(Batch::new(), GFP_KERNEL)?,
            path,
            cid,
            purpose,
        })
    }

    /// Returns what gets the requests of the connection.
    fn upper(&self) -> Option<&dyn ServiceSession> {
        self.path.session.upper(self.purpose)
    }

    /// Handles the arrival of a request.
    ///
    /// # Errors
    ///
    /// A violation of the protocol that leaves no request to answer; for the log.
    fn request(
        &self,
        qp: &QpRef<'_, Self>,
        payload: u32,
        message: &Received<'_>,
    ) -> Result<(), &'static str> {
        let path = &self.path;
        if !path.takes_requests() {
            return Err("request on a path that is not connected");
        }
        let (buf_id, offset) = path.layout.check(payload).map_err(|error| error.as_str())?;
        let slot = qp.slot(buf_id.into());
        let slot = slot.ok_or("no such chunk")?;
        let Some(mut chunk) = slot.take() else {
            return Err(IN_USE);
        };
        chunk.begin(self.cid);
        let parsed = match path.terms.window {
            Some(_) if !message.is_write && self.cid > 0 => {
                parse_capsule(&mut chunk, offset, path.bounds, message)
            }
            // Clients that know the extensions may ask for times, and have their headers forgotten.
            _ => parse(&mut chunk, offset, path.bounds, path.has_extensions()),
        };
        chunk.refused = parsed.err().map(|error| self.refuse(error));
        match path.claim(&slot, buf_id, chunk) {
            Ok(Claim::Serve(chunk)) => proceed(path, qp.get(), slot, chunk),
            Ok(Claim::Later) => {}
            Err(chunk) => {
                drop(slot.put(chunk));
                return Err(IN_USE);
            }
        }
        Ok(())
    }

    /// Logs that a request is refused; returns the error for its answer.
    #[cold]
    fn refuse(&self, error: RequestError) -> Error {
        if self.path.may_log() {
            pr_warn!("{}: bad request: {}\n", *self.path, error.as_str());
        }
        let errno = convert::error(error.errno());
        match (error, self.upper()) {
            // The request may be a good one.
            (RequestError::NoMemory, _) | (_, None) => errno,
            (_, Some(upper)) => upper.bad_request(errno),
        }
    }
}

const IN_USE: &str = "request for a chunk that is in use";

/// Serves a request of `path` that has claimed its number, or refuses it: a client that sends one again
/// believes the answer, so that must not come before the first attempt is over. Before a request is
/// served, it gets a buffer if it needs one, its data is fetched, or the key of its chunk is
/// invalidated. The reference to the queue pair becomes the request's.
///
/// # Context
///
/// May sleep.
pub(crate) fn proceed(
    path: &Arc<Path>,
    qp: PercpuArc<QueuePair<Con>>,
    slot: SlotRef<'_, Con>,
    mut chunk: KBox<Chunk>,
) {
    if let Some(error) = chunk.refused {
        return Request::new(qp, slot.index(), chunk).respond(Err(error));
    }
    if chunk.lacks_buffer() {
        let session = &path.session;
        // Those that wait come first.
        let take = || Buffer::take(session.clone(), &path.pd, chunk.request.data_len);
        let buffer = (!session.share.is_waiting()).then(take).flatten();
        match buffer {
            Some(buffer) => path.grant(&mut chunk, buffer),
            None => return wait_for_buffer(path, slot, chunk),
        }
    }
    if chunk.request.source().is_some() {
        return fetch::begin(&qp, slot, chunk);
    }
    match chunk.chunk().map(|whole| whole.mr().rkey()) {
        Some(rkey) if chunk.must_invalidate() => invalidate(path, &qp, slot, chunk, rkey),
        _ => serve(path, qp, slot.index(), chunk),
    }
}

/// Makes a request wait until there is a buffer for its data.
fn wait_for_buffer(path: &Arc<Path>, slot: SlotRef<'_, Con>, chunk: KBox<Chunk>) {
    let session = &path.session;
    // CAST: A table has no more slots than numbers.
    let buf_id = slot.index() as u16;
    let waiter = Waiter {
        tag: path.tag.get(),
        buf_id,
        cid: chunk.cid,
        bytes: chunk.request.data_len,
    };
    let queue = || {
        // The request is in its place, so either this sees that the path is being closed, or the
        // teardown sees the request. Once it is in the line, it may go on at once, and is not this
        // thread's to take back.
        if !path.takes_requests_after_all() {
            return false;
        }
        let queued = buffers::wait(session.clone(), waiter);
        if queued.is_err() {
            path.error(fmt!("too many requests of closing paths wait for memory"));
        }
        queued.is_ok()
    };
    if let Err(chunk) = serving::pend(&**slot, chunk, queue) {
        session.drop_request(path, &slot, buf_id, chunk);
    }
}

/// Invalidates the key of the chunk of a request, which is served after that.
fn invalidate(
    path: &Arc<Path>,
    qp: &QueuePair<Con>,
    slot: SlotRef<'_, Con>,
    mut chunk: KBox<Chunk>,
    rkey: u32,
) {
    chunk.invalidated = true;
    let post = || {
        let posted = qp.invalidate(rkey, Signal::Slot(slot, Kind::Invalidate));
        if let Err(error) = posted {
            path.failed("cannot invalidate a key", error);
        }
        posted.is_ok()
    };
    if let Err(chunk) = serving::pend(&**slot, chunk, post) {
        // CAST: A table has no more slots than numbers.
        let buf_id = slot.index() as u16;
        path.session.drop_request(path, &slot, buf_id, chunk);
    }
}

/// Hands a request of `path` to the service.
fn serve(path: &Path, qp: PercpuArc<QueuePair<Con>>, index: u32, mut chunk: KBox<Chunk>) {
    path.stats
        .flow
        .begun(chunk.request.direction, chunk.request_bytes());
    chunk.counted = true;
    trace::server_request(|| {
        let write = chunk.request.direction == crate::Dir::Write;
        let bytes = u32::try_from(chunk.request_bytes()).unwrap_or(u32::MAX);
        // CAST: A table has no more slots than numbers.
        (path.session.name(), &path.name, index as u16, write, bytes)
    });
    let ready = match &chunk.capsule {
        Some(kept) => qp.sync_payload(kept, chunk.request.data_len as usize),
        None => chunk.prepare_data(),
    };
    let purpose = qp.handler().purpose;
    let op = Request::new(qp, index, chunk);
    if ready.is_err() {
        // Cannot happen, as the lengths were checked.
        return op.respond(Err(EINVAL));
    }
    match path.session.upper(purpose) {
        Some(upper) => upper.request(op),
        None => op.respond(Err(ENODEV)),
    }
}

/// Parses the headers of a request in its chunk, and copies the user header out of it. With
/// `extensions`, a request may ask for times, and its transport header is overwritten.
fn parse(
    chunk: &mut Chunk,
    offset: u32,
    bounds: Bounds,
    extensions: bool,
) -> Result<(), RequestError> {
    // The user header is right before the transport header. Both are read at once, unless it is long.
    let mut bytes = [0; SHORT_USER_HDR + MAX_REQUEST_HDR_LEN];
    let before = SHORT_USER_HDR.min(offset as usize);
    let len = MAX_REQUEST_HDR_LEN.min((bounds.bytes() - offset) as usize);
    let both = bytes.get_mut(SHORT_USER_HDR - before..SHORT_USER_HDR + len);
    let copied = chunk.read(offset as usize - before, both.ok_or(RequestError::Short)?);
    copied.map_err(|_| RequestError::Short)?;
    let (usr_hdr, hdr) = bytes.split_first_chunk().ok_or(RequestError::Short)?;
    let header = RequestHdr::parse(hdr.get(..len).ok_or(RequestError::Short)?, extensions)?;
    let usr_len = begin(chunk, ServerRequest::parse(&header, offset, bounds)?)?;
    let kept = chunk.keep_header(usr_hdr);
    kept.map_err(|error| not_copied(error, usr_len))?;
    if extensions {
        let forgotten = chunk.forget_header();
        forgotten.map_err(|_| RequestError::UserLen(usr_len))?;
    }
    Ok(())
}

/// As [`parse`], for a request in a capsule, whose data stays in the message.
fn parse_capsule(
    chunk: &mut Chunk,
    offset: u32,
    bounds: Bounds,
    message: &Received<'_>,
) -> Result<(), RequestError> {
    let hdr = message.bytes.get(offset as usize..);
    let header = RequestHdr::parse(hdr.ok_or(RequestError::Short)?, true)?;
    // CAST: A capsule is not longer than its receive.
    let bounds = bounds.capsule(message.bytes.len() as u32, message.payload as u32);
    let usr_len = begin(chunk, ServerRequest::parse(&header, offset, bounds)?)?;
    let copied = chunk.copy_header_from(message.bytes);
    copied.map_err(|error| not_copied(error, usr_len))?;
    chunk.capsule = message.keep();
    match (message.payload, &chunk.capsule) {
        (1.., None) => Err(RequestError::Short),
        _ => Ok(()),
    }
}

/// Begins a request that was parsed; returns the length of its user header.
fn begin(chunk: &mut Chunk, request: ServerRequest) -> Result<u16, RequestError> {
    if usize::from(request.usr_len) > MAX_USER_HDR {
        return Err(RequestError::HeaderSize(request.usr_len));
    }
    chunk.request = request;
    if request.timed {
        chunk.begin_times();
    }
    Ok(request.usr_len)
}

fn not_copied(error: Error, usr_len: u16) -> RequestError {
    match error {
        ENOMEM => RequestError::NoMemory,
        _ => RequestError::UserLen(usr_len),
    }
}

impl Handler for Con {
    type Slot = ChunkSlot;

    fn received(&self, qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
        self.path.heartbeat.received();
        let imm = match (message.imm, message.class) {
            (None, RECV_AUTH) => {
                self.path.auth1_received(message.bytes);
                return Repost::No;
            }
            (None, RECV_INFO) => {
                self.path.info_received(message.bytes);
                return Repost::No;
            }
            (None, _) | (Some(_), RECV_AUTH) => {
                self.path.error(fmt!("unexpected message"));
                return Repost::No;
            }
            (Some(imm), _) => imm,
        };
        let decoded = Imm::decode(imm);
        let checked =
            (self.path.imms).check_from_client(decoded, self.cid, !message.bytes.is_empty());
        if let Err(error) = checked {
            self.path.error(fmt!(
                "connection {}: unexpected immediate {:#x}: {}",
                self.cid,
                imm,
                error.as_str()
            ));
            return Repost::No;
        }
        match decoded {
            Imm::IoReq { payload } => {
                if let Err(what) = self.request(&qp, payload, &message) {
                    self.path.error(fmt!("bad request: {}", what));
                }
            }
            Imm::Fence(fence) => {
                if let Err(what) = self.path.fence_received(fence) {
                    self.path.error(fmt!("{}", what));
                }
            }
            Imm::Heartbeat => {
                self.path.is_heard();
                if let Err(error) = send_imm(&qp, Imm::HeartbeatAck) {
                    self.path.failed("cannot answer a heartbeat", error);
                }
            }
            Imm::HeartbeatAck => {
                self.path.heartbeat.answered();
            }
            // Until the path is connected, the client may not have proved itself.
            Imm::DurableSeen(number) if self.path.charge.is_connected() => {
                if let Some(upper) = self.upper() {
                    upper.durable_seen(number);
                }
            }
            Imm::DurableSeen(_) => {}
            Imm::DowntimeSeen(_) if self.path.charge.is_connected() => {
                self.path.session.downtime_seen.complete_all();
            }
            Imm::DowntimeSeen(_) => {}
            // Refused above.
            Imm::IoRsp { .. }
            | Imm::IoRspInv { .. }
            | Imm::IoRspSameKey { .. }
            | Imm::IoRspMore { .. }
            | Imm::FenceDone(_)
            | Imm::Notice(_)
            | Imm::Durable(_)
            | Imm::Downtime(_)
            | Imm::Nop
            | Imm::Unknown(_) => {}
        }
        Repost::Yes
    }

    fn sent(&self, _qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>) {
        slot.end_use(self.path.shortage());
    }

    fn control_sent(&self, _qp: QpRef<'_, Self>) {
        self.path.idle.flushed(self.cid);
    }

    fn invalidated(&self, qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>, done: Position) {
        let Some(chunk) = slot.take_pending() else {
            return;
        };
        chunk.end_fetch(done);
        if self.path.takes_requests() {
            return serve(&self.path, qp.get(), slot.index(), chunk);
        }
        // CAST: A table has no more slots than numbers.
        let buf_id = slot.index() as u16;
        self.path
            .session
            .drop_request(&self.path, &slot, buf_id, chunk);
    }

    fn completes(&self, qp: &QueuePair<Self>, position: u32) {
        self.path.stats.batches.completes(position);
        if position == 0 {
            // A batch can be long: do not keep answers until it ends.
            batch::flush(qp);
        }
    }

    fn batch_begins(&self) {
        self.batch.begin();
    }

    fn batch_ends(&self, qp: &QueuePair<Self>) {
        batch::end(qp);
    }

    fn sq_space_freed(&self, qp: QpRef<'_, Self>) {
        respond::retry(&qp);
    }

    fn failed(&self, _qp: QpRef<'_, Self>, wc: &Wc) {
        if wc.is_flush() {
            self.path.ended(self.cid, c"flushed");
        } else {
            self.path.error(fmt!("connection {}: {}", self.cid, wc));
        }
    }
}
