// SPDX-License-Identifier: GPL-2.0

//! One connection of a path: takes requests in.

use crate::{
    body::{
        Body,
        BodySlot, //
    },
    op::Op,
    path::Path,
    respond::{
        self,
        Parked, //
    },
};
use ibtrs_proto::{
    consts::MAX_REQUEST_HDR_LEN,
    imm::Imm,
    msg::{
        RequestHdr,
        ServerRequest, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::pr_warn_ratelimited;
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
        Doorbell,
        Room,
        Signal, //
    },
    sge::Remote,
    slot::{
        Kind,
        SlotRef, //
    },
    wc::Wc,
};

/// Longest user header that is taken, in bytes.
pub(crate) const MAX_USER_HDR: usize = 512;

/// Receives that requests complete.
pub(crate) const RECV_REQUESTS: usize = 0;
/// The receive buffer for the session's name, on the service connection.
pub(crate) const RECV_INFO: usize = 1;

/// The handler of a connection.
pub(crate) struct Con {
    pub(crate) path: Arc<Path>,
    pub(crate) cid: u16,
    /// Answers that wait for room in the send queue.
    pub(crate) parked: Pin<KBox<Parked>>,
}

impl Con {
    pub(crate) fn new(path: Arc<Path>, cid: u16) -> Result<Self> {
        Ok(Self {
            parked: KBox::pin_init(
                Parked::new(path.session.server.config.queue_depth),
                GFP_KERNEL,
            )?,
            path,
            cid,
        })
    }

    /// Handles the arrival of a request.
    ///
    /// # Errors
    ///
    /// What is wrong with it, for the log: the peer broke the protocol.
    fn request(&self, qp: &QpRef<'_, Self>, payload: u32) -> Result<(), &'static str> {
        let config = &self.path.session.server.config;
        let (buf_id, offset) = config
            .layout
            .check(payload)
            .map_err(|error| error.as_str())?;
        let slot = qp.slots().and_then(|slots| slots.get(buf_id.into()));
        let slot = slot.ok_or("no such chunk")?;
        let Some(mut body) = slot.take() else {
            return Err("request for a chunk that is in use");
        };
        if let Err(error) = parse(&mut body, offset, config.chunk_bytes) {
            slot.put(body);
            return Err(error);
        }
        if usize::from(body.request.usr_len) > MAX_USER_HDR {
            body.request.usr_len = 0;
            Op::new(qp.get(), slot.index(), body).respond(Err(EMSGSIZE));
            return Ok(());
        }
        if body.must_invalidate() {
            return invalidate(qp, slot, body);
        }
        self.serve(qp, slot, body);
        Ok(())
    }

    /// Hands a request to the service.
    fn serve(&self, qp: &QpRef<'_, Self>, slot: SlotRef<'_, Self>, mut body: KBox<Body>) {
        let ready = body.prepare_data();
        let op = Op::new(qp.get(), slot.index(), body);
        if ready.is_err() {
            // Cannot happen, as the lengths were checked.
            return op.respond(Err(EINVAL));
        }
        match self.path.session.upper.as_ref() {
            Some(upper) => upper.request(op),
            None => op.respond(Err(ENODEV)),
        }
    }
}

/// Reads the headers of a request out of its chunk.
fn parse(body: &mut Body, offset: u32, chunk_bytes: u32) -> Result<(), &'static str> {
    let mut bytes = [0; MAX_REQUEST_HDR_LEN];
    let at = offset as usize;
    let len = bytes.len().min((chunk_bytes - offset) as usize);
    let hdr = bytes.get_mut(..len).ok_or("bad offset")?;
    let copied = body
        .chunk()
        .sync_for_cpu(at, len)
        .and_then(|()| body.chunk().block().copy_out(at, hdr));
    copied.map_err(|_| "bad offset")?;
    let header = RequestHdr::parse(hdr).map_err(|error| error.as_str())?;
    let request = ServerRequest::parse(&header, offset, chunk_bytes);
    body.request = request.map_err(|error| error.as_str())?;
    body.invalidated = false;
    if usize::from(body.request.usr_len) > MAX_USER_HDR {
        // Answered with an error.
        return Ok(());
    }
    body.copy_header().map_err(|_| "bad offset")
}

/// Takes the client's right to write to a chunk away; its request is served
/// when that is done.
fn invalidate(
    qp: &QpRef<'_, Con>,
    slot: SlotRef<'_, Con>,
    mut body: KBox<Body>,
) -> Result<(), &'static str> {
    let rkey = body.mr().rkey();
    body.invalidated = true;
    if slot.invalidating.put(body).is_err() {
        return Err("request for a chunk that is in use");
    }
    qp.send(Room { wrs: 1, sges: 0 }, Doorbell::Now, |chain| {
        chain.local_inv(rkey, Signal::Slot(slot, Kind::Invalidate))
    })
    .map_err(|_| "no room to invalidate a key")
}

impl Handler for Con {
    type Slot = BodySlot;

    fn received(&self, qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
        self.path.heart.received();
        let Some(imm) = message.wc.imm() else {
            if message.class == RECV_INFO {
                self.path.info_received(message.bytes);
            } else {
                self.path.error(fmt!("unexpected message"));
            }
            return Repost::No;
        };
        match Imm::decode(imm) {
            Imm::IoReq { payload } => {
                if let Err(what) = self.request(&qp, payload) {
                    self.path.error(fmt!("bad request: {}", what));
                }
            }
            Imm::Heartbeat => {
                if let Err(error) = send_imm(&qp, Imm::HeartbeatAck) {
                    self.path
                        .error(fmt!("cannot answer a heartbeat ({:?})", error));
                }
            }
            Imm::HeartbeatAck => {
                self.path.heart.answered();
            }
            Imm::IoRsp { .. }
            | Imm::IoRspInv { .. }
            | Imm::Fence(_)
            | Imm::FenceDone(_)
            | Imm::Unknown(_) => pr_warn_ratelimited!(
                "{}: connection {}: unknown immediate {:#x}\n",
                self.path.session.name(),
                self.cid,
                imm
            ),
        }
        Repost::Yes
    }

    fn invalidated(&self, qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>) {
        if let Some(body) = slot.invalidating.take() {
            self.serve(&qp, slot, body);
        }
    }

    fn room(&self, qp: QpRef<'_, Self>) {
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

/// Sends an immediate without data, such as a heartbeat.
pub(crate) fn send_imm(qp: &QueuePair<Con>, imm: Imm) -> Result {
    qp.send(Room { wrs: 1, sges: 0 }, Doorbell::Now, |chain| {
        chain.rdma_write_imm(Remote::default(), [], imm.encode(), Signal::None)
    })
}
