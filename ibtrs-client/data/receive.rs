// SPDX-License-Identifier: GPL-2.0

//! Handles the completions of a connection.

use crate::data::{
    con::{
        Con,
        RECV_ANSWERS,
        RECV_AUTH,
        RECV_INFO, //
    },
    slot::{
        self,
        Answer,
        ReqSlot,
        Stray, //
    }, //
};
use ibtrs_core::{
    convert,
    imm::send_imm, //
};
use ibtrs_proto::{
    consts::RKEY_RSP_LEN,
    imm::{
        self,
        Imm, //
    },
    imm_check::ImmError,
    msg::{
        InvAnswer,
        MoreAnswers,
        RkeyRsp,
        Trailer, //
    },
    tag::Tag, //
};
use kernel::prelude::*;
use kx::sync::atomic::Relaxed;
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
    wc::Wc,
};

impl Con {
    /// As [`Self::answers`], for answers in a message with other contents. Not inlined.
    #[inline(never)]
    fn answered(
        &self,
        qp: &QpRef<'_, Self>,
        answer: imm::Answer,
        rkey: Option<u32>,
        trailer: Trailer,
    ) {
        self.answers(qp, answer, rkey, trailer);
    }

    /// Handles an answer; `rkey` is the new key of its chunk, if that has changed.
    // Inlined into `received`, where most answers have no key, so that the code for a key is
    // optimized out.
    #[inline(always)]
    fn answers(
        &self,
        qp: &QpRef<'_, Self>,
        imm::Answer { id, errno }: imm::Answer,
        rkey: Option<u32>,
        trailer: Trailer,
    ) {
        let revoked = self.take_revoked();
        let tag = Tag::try_from(id).ok();
        let Some(slot) = tag.and_then(|tag| qp.slot(tag.get())) else {
            self.breach(fmt!("answer to the chunk {id}, which does not exist"));
            return;
        };
        let answer = Answer {
            cid: self.cid(),
            errno,
            revoked,
            revoked_at: self.revoked_at(),
            rkey,
            trailer,
        };
        match slot::answered(qp, slot, &answer) {
            Ok(()) => {}
            Err(Stray::Unasked) => self.breach(fmt!("answer to the chunk {id}, which has no request")),
            Err(Stray::Elsewhere(asked)) => self.breach(fmt!(
                "answer on connection {} to the chunk {id}, whose request went by connection {asked}",
                self.cid()
            )),
            Err(Stray::Bogus(bogus)) => self.bogus(bogus),
        }
    }

    /// Handles an answer whose message contains a new key for its chunk if the server sends new
    /// keys.
    fn answered_with_key(&self, qp: &QpRef<'_, Self>, message: &Content<'_>, answer: imm::Answer) {
        let Some(wire) = self.link().wire.as_ref() else {
            return;
        };
        if !wire.rsp.new_rkey {
            return self.answered(qp, answer, None, Trailer::decode(message.bytes));
        }
        match RkeyRsp::decode_for(message.bytes, answer.id, wire.depth) {
            Ok(rsp) => {
                let rest = message.bytes.get(RKEY_RSP_LEN..).unwrap_or(&[]);
                self.answered(qp, answer, Some(rsp.rkey), Trailer::decode(rest));
            }
            Err(error) => self.breach(fmt!("bad answer: {}", error.as_str())),
        }
    }

    /// Handles a message that both invalidates a key and contains the answer. The invalidation was
    /// recorded before, as for a message whose answer follows.
    fn answered_with_inv(&self, qp: &QpRef<'_, Self>, message: &Content<'_>) {
        let wire = self.link().wire.as_ref();
        let Some(wire) = wire.filter(|wire| wire.inv_answers) else {
            return self.unexpected();
        };
        match InvAnswer::decode(message.bytes, wire.rsp.new_rkey, wire.depth) {
            Ok(InvAnswer {
                answer,
                rkey,
                trailer,
            }) => self.answered(qp, answer, rkey, trailer),
            Err(error) => self.breach(fmt!("bad answer: {}", error.as_str())),
        }
    }

    /// Handles a message with the answers to several requests; the first answer is in the
    /// immediate.
    fn all_answered(&self, qp: &QpRef<'_, Self>, message: &Content<'_>, first: imm::Answer) {
        let more = match MoreAnswers::decode(message.bytes) {
            Ok(more) => more,
            Err(error) => {
                let what = error.as_str();
                return self.breach(fmt!("bad answers: {what}"));
            }
        };
        self.answered(qp, first, None, Trailer::None);
        for answer in more.iter() {
            self.answered(qp, answer, None, Trailer::None);
        }
    }

    /// Handles a message without immediate.
    fn plain(&self, qp: &QpRef<'_, Self>, message: &Content<'_>) -> Repost {
        if message.invalidated.is_some() {
            // If the message is empty, the answer follows in another one.
            if !message.bytes.is_empty() {
                self.answered_with_inv(qp, message);
            }
            return Repost::Yes;
        }
        if message.class == RECV_INFO {
            self.control().info_received(message.bytes);
            return Repost::No;
        }
        self.unexpected();
        Repost::Yes
    }

    /// Checks that the server may send `imm` in a message of `bytes`. No message with an immediate is
    /// expected before the server's terms are known.
    #[inline]
    fn check(&self, imm: Imm, bytes: &[u8]) -> Result<(), ImmError> {
        let wire = self.link().wire.as_ref();
        let terms = wire.ok_or(ImmError::NotNegotiated)?.imms;
        terms.check_from_server(imm, self.cid(), !bytes.is_empty())
    }

    fn unexpected(&self) {
        self.breach(fmt!("connection {}: unexpected message", self.cid()));
    }
}

impl Con {
    /// Handles a message that is more than an answer.
    #[inline(never)]
    fn received_any(&self, qp: QpRef<'_, Self>, message: Content<'_>) -> Repost {
        if message.class == RECV_AUTH {
            // The server has not proved itself yet, so nothing but AUTH2 is accepted.
            match (message.imm, message.invalidated) {
                (None, None) => self.control().auth2_received(message.bytes),
                _ => self.unexpected(),
            }
            return Repost::No;
        }
        match message.invalidated {
            Some(key) if qp.pd().device().vouches_for_invalidations() => self.key_revoked(key),
            _ => {}
        }
        let Some(imm) = message.imm else {
            return self.plain(&qp, &message);
        };
        let decoded = Imm::decode(imm);
        if let Err(error) = self.check(decoded, message.bytes) {
            self.breach(fmt!(
                "connection {}: unexpected immediate {:#x}: {}",
                self.cid(),
                imm,
                error.as_str()
            ));
            return Repost::Yes;
        }
        match decoded {
            // What the server reports about the key is not trusted, see `ibtrs_proto::keys`.
            Imm::IoRsp { id, errno } | Imm::IoRspInv { id, errno } => {
                self.answered_with_key(&qp, &message, imm::Answer { id, errno });
            }
            Imm::IoRspSameKey { id, errno } => {
                let answer = imm::Answer { id, errno };
                self.answered(&qp, answer, None, Trailer::decode(message.bytes));
            }
            Imm::IoRspMore { id, errno } => {
                self.all_answered(&qp, &message, imm::Answer { id, errno })
            }
            Imm::Heartbeat => {
                if let Err(error) = send_imm(&qp, Imm::HeartbeatAck) {
                    self.error(fmt!(
                        "cannot answer a heartbeat ({})",
                        convert::errno(error).as_str()
                    ));
                }
            }
            Imm::HeartbeatAck => self.link().heartbeat_answered(),
            Imm::Nop => {}
            Imm::FenceDone(fence) => self.control().fence_done(fence),
            Imm::Notice(number) => self.control().noticed(number),
            Imm::Durable(number) => self.control().durable(number),
            Imm::Downtime(seconds) => {
                if self.control().downtime_announced(seconds) {
                    // If this fails, the server repeats the announcement.
                    let _ = send_imm(&qp, Imm::DowntimeSeen(seconds));
                }
            }
            // Refused above.
            Imm::IoReq { .. }
            | Imm::Fence(_)
            | Imm::DurableSeen(_)
            | Imm::DowntimeSeen(_)
            | Imm::Unknown(_) => {}
        }
        Repost::Yes
    }
}

impl Handler for Con {
    type Slot = ReqSlot;

    #[inline]
    fn received(&self, qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
        self.link().heartbeat.received();
        self.count_message();
        let imm = message.imm.map(Imm::decode);
        match (imm, message.class, message.invalidated) {
            // Most answers.
            (Some(imm @ Imm::IoRspSameKey { id, errno }), RECV_ANSWERS, None)
                if self.check(imm, message.bytes).is_ok() =>
            {
                let answer = imm::Answer { id, errno };
                self.answers(&qp, answer, None, Trailer::decode(message.bytes));
                Repost::Yes
            }
            _ => self.received_any(qp, message.content()),
        }
    }

    fn sent(&self, qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>) {
        slot::sent(&qp, slot);
    }

    fn slot_done(&self, qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>, _done: Position) {
        slot::invalidated(&qp, slot);
    }

    fn completes(&self, _qp: &QueuePair<Self>, position: u32) {
        self.link().stats.batches.completes(position);
    }

    fn failed(&self, _qp: QpRef<'_, Self>, wc: &Wc) {
        // Flushed work requests follow an error that was reported before, or a disconnect.
        if wc.is_flush() {
            self.error(fmt!("connection {} was flushed", self.cid()));
        } else {
            self.error(fmt!("connection {}: {}", self.cid(), wc));
        }
    }

    fn receive_failed(&self, qp: QpRef<'_, Self>, wc: &Wc) {
        if wc.is_peers_mistake() && !self.link().revoked.load(Relaxed) {
            self.breach(fmt!("connection {}: a message: {}", self.cid(), wc));
        } else {
            self.failed(qp, wc);
        }
    }
}
