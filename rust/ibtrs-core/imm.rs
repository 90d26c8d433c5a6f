// SPDX-License-Identifier: GPL-2.0

//! Messages that consist of an immediate only.

use ibtrs_proto::imm::Imm;
use kernel::prelude::*;
use rdma::{
    qp::{
        Handler,
        QueuePair, //
    },
    sendq::{
        Doorbell,
        Signal,
        SqSpace, //
    },
    sge::Remote, //
};

/// Sends an immediate without data, such as a heartbeat.
///
/// # Context
///
/// Any.
///
/// # Errors
///
/// `EAGAIN` when the send queue is full, others as [`QueuePair::send`].
pub fn send_imm<H: Handler>(qp: &QueuePair<H>, imm: Imm) -> Result {
    qp.send(SqSpace { wrs: 1, sges: 0 }, Doorbell::Now, |chain| {
        chain.rdma_write_imm(Remote::default(), [], imm.encode(), Signal::None)
    })
}
