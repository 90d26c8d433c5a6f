// SPDX-License-Identifier: GPL-2.0

//! Handles the completions of a connection: receives requests.

use crate::{
    data::{
        claims::Claim,
        con::{
            Con,
            RECV_AUTH,
            RECV_INFO, //
        },
        send::{
            self,
            answer, //
        },
        serve::{
            dispatch,
            serve, //
        }, //
    }, //
    storage::chunk::{
        Chunk,
        ChunkSlot,
        MAX_USER_HDR,
        SHORT_USER_HDR, //
    },
};
use ibtrs_core::{
    convert,
    imm::send_imm, //
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
    serving::Place, //
};
use kernel::prelude::*;
use rdma::{
    qp::{
        Handler,
        QpRef,
        QueuePair, //
    },
    recv::{
        Content,
        Received,
        Repost, //
    },
    sendq::Position,
    slot::SlotRef,
    wc::Wc, //
};

const IN_USE: &str = "request for a chunk that is in use";

impl Con {
    /// Handles the arrival of a request.
    ///
    /// # Errors
    ///
    /// A violation of the protocol that leaves no request to answer; for the log.
    #[inline]
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
        let (tag, offset) = path.layout.check(payload).map_err(|error| error.as_str())?;
        let slot = qp.slot(tag.get());
        let slot = slot.ok_or("no such chunk")?;
        let Some(mut chunk) = slot.take() else {
            return Err(IN_USE);
        };
        chunk.begin(self.cid);
        let parsed = match path.terms.window {
            Some(_) if !message.is_write && self.cid > 0 => {
                parse_capsule(&mut chunk, offset, path.bounds, message)
            }
            // Clients that know the extensions may ask for times; their transport headers are
            // overwritten.
            _ => parse(&mut chunk, offset, path.bounds, path.epoch.is_some()),
        };
        chunk.result = parsed.map_err(|error| self.refuse(error));
        match self.claim(slot, tag, chunk) {
            Ok(Claim::Serve(chunk)) => dispatch(path, qp.get(), slot, chunk),
            Ok(Claim::Later) => {}
            Err(chunk) => {
                drop(slot.put(chunk));
                return Err(IN_USE);
            }
        }
        Ok(())
    }

    /// Sends the answers that wait for the end of a batch; the batch stays open.
    #[inline(never)]
    fn send_waiting(&self, qp: &QueuePair<Self>) {
        answer::send_batch(qp, self.batch.take());
    }

    /// Logs that a request is refused; returns the error for its answer.
    #[cold]
    fn refuse(&self, error: RequestError) -> Error {
        self.control.warn(fmt!("bad request: {}", error.as_str()));
        let errno = convert::error(error.errno());
        match (error, self.upper()) {
            // The request may be valid.
            (RequestError::NoMemory, _) | (_, None) => errno,
            (_, Some(upper)) => upper.bad_request(errno),
        }
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
    let both = both.ok_or(RequestError::Short)?;
    let copied = chunk.landing.read(offset as usize - before, both);
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
#[inline]
fn parse_capsule(
    chunk: &mut Chunk,
    offset: u32,
    bounds: Bounds,
    message: &Received<'_>,
) -> Result<(), RequestError> {
    // CAST: A capsule is not longer than its receive.
    let (len, data) = (message.bytes.len() as u32, message.payload as u32);
    // Begun in each case, so that a usual request is written to its chunk and nowhere else.
    let usr_len = match ServerRequest::usual(message.bytes, offset, data, bounds) {
        Some(request) => begin(chunk, request),
        None => begin(
            chunk,
            parse_unusual(message.bytes, offset, bounds.capsule(len, data))?,
        ),
    }?;
    let copied = chunk.copy_header_from(message.bytes);
    copied.map_err(|error| not_copied(error, usr_len))?;
    chunk.capsule = message.keep();
    match (message.payload, &chunk.capsule) {
        (1.., None) => Err(RequestError::Short),
        _ => Ok(()),
    }
}

/// Parses the headers of any capsule.
#[inline(never)]
fn parse_unusual(bytes: &[u8], offset: u32, bounds: Bounds) -> Result<ServerRequest, RequestError> {
    let hdr = bytes.get(offset as usize..).ok_or(RequestError::Short)?;
    ServerRequest::parse(&RequestHdr::parse(hdr, true)?, offset, bounds)
}

/// Begins a request that was parsed; returns the length of its user header.
#[inline]
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

impl Con {
    /// Handles a message that is no request.
    #[cold]
    fn received_other(&self, qp: QpRef<'_, Self>, message: Content<'_>) -> Repost {
        let imm = match (message.imm, message.class) {
            (None, RECV_AUTH) => {
                self.control.clone().auth1_received(message.bytes);
                return Repost::No;
            }
            (None, RECV_INFO) => {
                self.control.clone().info_received(message.bytes);
                return Repost::No;
            }
            (None, _) | (Some(_), RECV_AUTH) => {
                self.error(fmt!("unexpected message"));
                return Repost::No;
            }
            (Some(imm), _) => imm,
        };
        let decoded = Imm::decode(imm);
        let checked =
            (self.path.imms).check_from_client(decoded, self.cid, !message.bytes.is_empty());
        if let Err(error) = checked {
            self.error(fmt!(
                "connection {}: unexpected immediate {:#x}: {}",
                self.cid,
                imm,
                error.as_str()
            ));
            return Repost::No;
        }
        match decoded {
            Imm::Fence(fence) => {
                if let Err(what) = self.control.clone().fence_received(fence) {
                    self.error(fmt!("{}", what));
                }
            }
            Imm::Heartbeat => {
                self.path.set_recvs_posted();
                if let Err(error) = send_imm(&qp, Imm::HeartbeatAck) {
                    self.failed("cannot answer a heartbeat", error);
                }
            }
            Imm::HeartbeatAck => {
                self.path.heartbeat.answered();
            }
            Imm::DurableSeen(number) => self.control.durable_seen(self.purpose, number),
            Imm::DowntimeSeen(_) => self.control.downtime_seen(),
            // Handled by the caller, or refused above.
            Imm::IoReq { .. }
            | Imm::IoRsp { .. }
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
}

impl Handler for Con {
    type Slot = ChunkSlot;

    #[inline]
    fn received(&self, qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
        self.path.heartbeat.received();
        match (message.imm.map(Imm::decode), message.class) {
            // A client may send one on any connection; its terms are checked where it is decoded.
            (Some(Imm::IoReq { payload }), class) if class != RECV_AUTH => {
                if let Err(what) = self.request(&qp, payload, &message) {
                    self.error(fmt!("bad request: {}", what));
                }
                Repost::Yes
            }
            _ => self.received_other(qp, message.content()),
        }
    }

    fn sent(&self, _qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>) {
        slot.end_use(self.path.shortage());
    }

    fn control_sent(&self, _qp: QpRef<'_, Self>) {
        self.path.idle.flushed(self.cid);
    }

    fn slot_done(&self, qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>, done: Position) {
        let Some(chunk) = slot.take_pending() else {
            return;
        };
        chunk.end_fetch(done);
        match self.path.takes_requests() {
            true => serve(&self.path, qp.get(), chunk),
            false => self.drop_request(slot, chunk),
        }
    }

    #[inline]
    fn completes(&self, qp: &QueuePair<Self>, position: u32) {
        self.path.stats.batches.completes(position);
        if position == 0 {
            // A batch can be long: do not keep answers until it ends.
            self.send_waiting(qp);
        }
    }

    fn batch_begins(&self) {
        self.batch.begin();
    }

    fn batch_ends(&self, qp: &QueuePair<Self>) {
        answer::send_batch(qp, self.batch.end());
    }

    fn sq_space_freed(&self, qp: QpRef<'_, Self>) {
        send::retry(&qp);
    }

    fn failed(&self, _qp: QpRef<'_, Self>, wc: &Wc) {
        if wc.is_flush() {
            self.control.clone().ended(self.cid, c"flushed");
        } else {
            self.error(fmt!("connection {}: {}", self.cid, wc));
        }
    }
}
