// SPDX-License-Identifier: GPL-2.0

//! One connection of a path: what its completions mean.

use crate::{
    attempt::Attempt,
    request::{
        self,
        Request, //
    },
};
use ibtrs_core::imm::send_imm;
use ibtrs_proto::{
    imm::Imm,
    msg::RkeyRsp, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::pr_warn_ratelimited;
use rdma::{
    qp::{
        Handler,
        QpRef, //
    },
    recv::{
        Received,
        Repost, //
    },
    slot::SlotRef,
    wc::Wc,
};

/// Receive buffers that the server's answers arrive in.
pub(crate) const RECV_ANSWERS: usize = 0;
/// The receive buffer for the session information, on the service connection.
pub(crate) const RECV_INFO: usize = 1;

/// The handler of a connection.
pub(crate) struct Con {
    pub(crate) attempt: Arc<Attempt>,
    /// The number of the connection; 0 is the service connection.
    pub(crate) cid: u16,
}

impl Con {
    /// Handles an answer to the request that used the chunk `id`.
    fn answered(
        &self,
        qp: &QpRef<'_, Self>,
        message: &Received<'_>,
        id: u32,
        errno: u16,
        invalidated: bool,
    ) {
        let Some(wire) = self.attempt.wire.as_ref() else {
            return;
        };
        let rkey = if wire.rsp.new_rkey {
            match RkeyRsp::decode_for(message.bytes, id, wire.rsp.queue_depth) {
                Ok(rsp) => Some(rsp.rkey),
                Err(error) => {
                    self.attempt.error(fmt!("bad answer: {}", error.as_str()));
                    return;
                }
            }
        } else {
            None
        };
        let slot = qp.slots().and_then(|slots| slots.get(id));
        let Some(slot) = slot else {
            self.attempt
                .error(fmt!("answer to the chunk {id}, which does not exist"));
            return;
        };
        request::answered(qp, slot, errno, invalidated, rkey);
    }
}

impl Handler for Con {
    type Slot = Request;

    fn received(&self, qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
        self.attempt.heart.received();
        let Some(imm) = message.imm else {
            if message.class == RECV_INFO {
                self.attempt.info_received(message.bytes);
                return Repost::No;
            }
            // The server invalidated a key; the answer follows.
            return Repost::Yes;
        };
        match Imm::decode(imm) {
            Imm::IoRsp { id, errno } => self.answered(&qp, &message, id, errno, false),
            Imm::IoRspInv { id, errno } => self.answered(&qp, &message, id, errno, true),
            Imm::Heartbeat => {
                if let Err(error) = send_imm(&qp, Imm::HeartbeatAck) {
                    self.attempt
                        .error(fmt!("cannot answer a heartbeat ({:?})", error));
                }
            }
            Imm::HeartbeatAck => self.attempt.heartbeat_answered(),
            Imm::FenceDone(fence) => self.attempt.fence_done(fence),
            Imm::Notice(number) => self.attempt.path.session.noticed(number),
            Imm::IoReq { .. } | Imm::Fence(_) | Imm::Unknown(_) => pr_warn_ratelimited!(
                "{}: connection {}: unknown immediate {:#x}\n",
                self.attempt.log(),
                self.cid,
                imm
            ),
        }
        Repost::Yes
    }

    fn sent(&self, qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>) {
        request::sent(&qp, slot);
    }

    fn invalidated(&self, qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>) {
        request::invalidated(&qp, slot);
    }

    fn completes(&self, position: u32) {
        self.attempt.path.stats.batches.completes(position);
    }

    fn failed(&self, _qp: QpRef<'_, Self>, wc: &Wc) {
        // What is flushed was lost to an error that was reported before, or to
        // a disconnect.
        if wc.is_flush() {
            self.attempt
                .error(fmt!("connection {} was flushed", self.cid));
        } else {
            self.attempt.error(fmt!("connection {}: {}", self.cid, wc));
        }
    }
}
