// SPDX-License-Identifier: GPL-2.0

//! Sends the responses to requests (Documentation/protocol.md, "Answers").

use core::mem::take;

use super::wait_for_space;
use crate::{
    data::con::{
        Con,
        PathIo, //
    },
    storage::{
        chunk::Chunk,
        landing::Spare, //
    },
    types::{
        Shape,
        MAX_SGES, //
    }, //
};
use ibtrs_core::{
    tag::Tagged,
    trace, //
};
use ibtrs_proto::{
    imm::{
        Answer,
        Imm, //
    },
    msg::Direction as Dir, //
};
use kernel::prelude::*;
use rdma::{
    mr::Access,
    qp::QueuePair,
    sendq::{
        is_surely_unsent,
        Chain,
        Doorbell,
        Signal,
        SqSpace, //
    },
    sge::{
        Remote,
        Sge, //
    },
    slot::{
        Kind,
        SlotRef, //
    },
};

/// The data of a read that is answered.
#[derive(Clone, Copy)]
struct Data {
    /// The client's memory.
    to: Remote,
    /// All of the data, if it fits one scatter element, as it usually does.
    whole: Option<Sge>,
}

/// Returns the SQ space of an answer: the data, if there is any, and `others` work requests, of which
/// one may have a scatter element.
fn space(data: Option<Data>, chunk: &Chunk, others: u32) -> SqSpace {
    let writes = match data {
        None => 0,
        Some(Data { whole: Some(_), .. }) => 1,
        Some(_) => chunk.count_writes(),
    };
    SqSpace {
        wrs: writes + others,
        sges: writes * MAX_SGES + 1,
    }
}

/// Takes the request of a chunk out of service, answers it, and puts the chunk back.
///
/// # Context
///
/// Any.
pub(crate) fn respond(qp: &QueuePair<Con>, mut chunk: KBox<Chunk>, result: Result) {
    chunk.result = result;
    leave_service(qp, &mut chunk);
    chunk.note_times();
    // Every chunk is that of a slot.
    let Some(slot) = qp.slot(chunk.tag().get()) else {
        return;
    };
    let con = qp.handler();
    if chunk.request.direction == Dir::Write {
        // A read needs its memory until the answer is sent, see `send`.
        let short = con.path.shortage();
        if short.is_some() {
            slot.give_small(&mut chunk, short);
        }
    }
    if con.path.more_answers && chunk.is_bare() {
        let now = con.batch.add(&slot, chunk);
        con.path.strip_if_drained(&slot);
        return send_batch(qp, now);
    }
    answer(qp, slot, chunk);
}

/// Sends answers that have waited for the end of the batch, if there are some: that of `first`, which has
/// the others.
///
/// # Context
///
/// Any.
#[inline]
pub(crate) fn send_batch(qp: &QueuePair<Con>, first: Option<KBox<Chunk>>) {
    if let Some(chunk) = first {
        send_first(qp, chunk);
    }
}

/// Sends the answer of `chunk`, which has others.
#[inline(never)]
fn send_first(qp: &QueuePair<Con>, chunk: KBox<Chunk>) {
    if let Some(slot) = qp.slot(chunk.tag().get()) {
        answer(qp, slot, chunk);
    }
}

/// Sends an answer, together with the answers that share its message, or queues it until there is
/// SQ space.
// Into the ways of reads, which are answered at once, and of batches.
#[inline(always)]
fn answer(qp: &QueuePair<Con>, slot: SlotRef<'_, Con>, chunk: KBox<Chunk>) {
    let chunk = match qp.handler().unsent.is_some() {
        true => chunk,
        false => match send(qp, slot, chunk) {
            Ok(spare) => return drop(spare),
            Err((error, chunk)) if error == EAGAIN => chunk,
            Err((error, chunk)) => return lost(qp, slot, chunk, error),
        },
    };
    if slot.unsent.put(chunk).is_ok() {
        wait_for_space(qp, slot.tag());
    }
}

/// Counts the request as ended, and releases its tag.
#[inline]
fn leave_service(qp: &QueuePair<Con>, chunk: &mut Chunk) {
    let con = qp.handler();
    let path = &con.path;
    if take(&mut chunk.counted) {
        path.stats.flow.ended();
        trace::server_response(|| {
            let error = chunk.result.err().map_or(0, Error::to_errno);
            (path.session.name(), &path.name, chunk.tag().get(), error)
        });
    }
    // Before the answer, as the client may send the next capsule after it.
    if let Some(kept) = chunk.capsule.take() {
        qp.give_back(kept);
    }
    // Before the answer, as the client may reuse the tag after it.
    if take(&mut chunk.claimed) {
        path.session
            .release(path.id, chunk.tag(), || con.control.wake());
    }
}

/// Puts back the chunk of a request that gets no answer: its session is about to be closed, and the
/// client resends the request in the next one.
///
/// # Context
///
/// Any.
pub(crate) fn abandon(qp: &QueuePair<Con>, mut chunk: KBox<Chunk>) {
    chunk.result = Err(ESHUTDOWN);
    leave_service(qp, &mut chunk);
    if let Some(slot) = qp.slot(chunk.tag().get()) {
        qp.handler().path.put_back(&slot, chunk);
    }
}

/// Fails the path, because a response could not be sent and the client gets none.
#[cold]
pub(super) fn lost(qp: &QueuePair<Con>, slot: SlotRef<'_, Con>, chunk: KBox<Chunk>, error: Error) {
    let con = qp.handler();
    con.cannot_send("cannot post an answer", error);
    con.path.put_back(&slot, chunk);
}

/// Sends an answer, and puts its chunk back; returns what the slot gives back.
#[inline(always)]
pub(super) fn send(
    qp: &QueuePair<Con>,
    slot: SlotRef<'_, Con>,
    mut chunk: KBox<Chunk>,
) -> Result<Spare, (Error, KBox<Chunk>)> {
    let path = &qp.handler().path;
    let short = path.shortage();
    // Locked until the chunk is back, or the use of its buffers is cancelled.
    let place = slot.place();
    let signal = sending(path, slot, &mut chunk, short.is_some());
    let is_signalled = !matches!(signal, Signal::None);
    if is_signalled {
        slot.begin_use();
    }
    match post(qp, &mut chunk, signal) {
        Ok(()) => Ok(place.put(chunk, short)),
        Err(error) => {
            // After any other error, the device may have a part of the answer until the connection
            // is closed.
            if is_signalled && is_surely_unsent(error) {
                slot.cancel_use();
            }
            drop(place);
            Err((error, chunk))
        }
    }
}

/// Returns the signal for the last work request of an answer: when it completes, its buffer is no
/// longer needed. Records that data is sent.
#[inline]
fn sending<'a>(
    path: &PathIo,
    slot: SlotRef<'a, Con>,
    chunk: &mut Chunk,
    is_short: bool,
) -> Signal<'a, Con> {
    if chunk.result.is_err() || chunk.request.sink().is_none() {
        return Signal::None;
    }
    let cid = chunk.cid;
    let is_signalled = chunk
        .landing
        .slot()
        .is_some_and(|slot| slot.sends(cid, path.idle.latest(), is_short));
    match is_signalled {
        true => Signal::Slot(slot, Kind::Send),
        false => Signal::None,
    }
}

/// Posts the work requests of an answer, the last of them with `signal`.
#[inline(always)]
fn post(qp: &QueuePair<Con>, chunk: &mut Chunk, signal: Signal<'_, Con>) -> Result {
    let request = chunk.request;
    let data = match request.sink() {
        Some(desc) => Some(Data {
            to: Remote {
                addr: desc.addr,
                rkey: desc.key,
            },
            whole: chunk.leave_data()?,
        }),
        None => None,
    };
    let data = data.filter(|_| chunk.result.is_ok());
    let inval = request
        .desc
        .filter(|_| request.need_inval && qp.handler().path.remote_invalidation)
        .map(|desc| desc.key);
    let Answer { id, errno } = chunk.outcome();
    if let (Some(rkey), true) = (inval, qp.handler().path.inv_answers) {
        return post_inv(qp, data, rkey, chunk, signal);
    }
    if qp.handler().path.same_key && inval.is_none() && !chunk.invalidated {
        if !chunk.more.is_empty() {
            let imm = Imm::IoRspMore { id, errno };
            let (more, imm) = (chunk.more_answers()?, imm.encode());
            return qp.send_message(None, [more], imm, Signal::None, Doorbell::Now);
        }
        let imm = Imm::IoRspSameKey { id, errno };
        if chunk.has_trailer() {
            let trailer = chunk.answer_body(None)?.ok_or(EINVAL)?;
            return post_with_trailer(qp, data, chunk, (trailer, imm), signal);
        }
        // Most reads. Posted here, so that the parts of the message need not be passed on in memory.
        if let Some(Data {
            to,
            whole: Some(sge),
        }) = data
        {
            return qp.send_message(Some(to), [sge], imm.encode(), signal, Doorbell::Now);
        }
        return post_one(qp, data, chunk, imm, signal);
    }
    let imm = match inval {
        Some(_) => Imm::IoRspInv { id, errno },
        None => Imm::IoRsp { id, errno },
    };
    let key = if qp.handler().path.session.env.config.invalidate {
        if chunk.invalidated {
            chunk.next_key();
        }
        Some(chunk.key())
    } else {
        None
    };
    let body = chunk.answer_body(key)?;
    let chunk = &*chunk;
    if body.is_none() && inval.is_none() {
        return post_one(qp, data, chunk, imm, signal);
    }
    // Registration, invalidation, message.
    qp.send(space(data, chunk, 3), Doorbell::Now, |chain| {
        if let Some(data) = data {
            write_data(chain, data, chunk, None);
        }
        if let Some(mr) = chunk.invalidated_mr() {
            chain.reg_mr(mr, Access::RemoteWrite);
        }
        if let Some(rkey) = inval {
            chain.send_inv(rkey, [], Signal::None);
        }
        let imm = imm.encode();
        match body {
            Some(body) => chain.send_imm([body], imm, signal),
            None => chain.rdma_write_imm(Remote::default(), [] as [Sge; 0], imm, signal),
        }
    })
}

/// Posts an answer in the message that invalidates the client's key `rkey`.
#[inline(never)]
fn post_inv(
    qp: &QueuePair<Con>,
    data: Option<Data>,
    rkey: u32,
    chunk: &mut Chunk,
    signal: Signal<'_, Con>,
) -> Result {
    if chunk.invalidated {
        chunk.next_key();
    }
    let body = chunk.inv_answer()?;
    let chunk = &*chunk;
    qp.send(space(data, chunk, 2), Doorbell::Now, |chain| {
        if let Some(data) = data {
            write_data(chain, data, chunk, None);
        }
        if let Some(mr) = chunk.invalidated_mr() {
            chain.reg_mr(mr, Access::RemoteWrite);
        }
        chain.send_inv(rkey, [body], signal);
    })
}

/// Posts an answer that is one message, with the data of a read if there is any.
#[inline]
fn post_one(
    qp: &QueuePair<Con>,
    data: Option<Data>,
    chunk: &Chunk,
    imm: Imm,
    signal: Signal<'_, Con>,
) -> Result {
    let imm = imm.encode();
    let now = Doorbell::Now;
    match (data, qp.handler().path.terms.shape) {
        (
            Some(Data {
                to,
                whole: Some(sge),
            }),
            _,
        ) => qp.send_message(Some(to), [sge], imm, signal, now),
        (Some(data), _) => qp.send(space(Some(data), chunk, 0), now, |chain| {
            write_data(chain, data, chunk, Some((imm, signal)))
        }),
        (None, Shape::Chunks) => qp.send_message(Some(Remote::default()), [], imm, signal, now),
        (None, Shape::Slots) => qp.send_message(None, [], imm, signal, now),
    }
}

/// Writes the data of a read to the client's memory, the last of it with `last`: an immediate and
/// its signal.
fn write_data(
    chain: &mut Chain<'_, Con>,
    data: Data,
    chunk: &Chunk,
    mut last: Option<(u32, Signal<'_, Con>)>,
) {
    if let Some(sge) = data.whole {
        return match last {
            Some((imm, signal)) => chain.rdma_write_imm(data.to, [sge], imm, signal),
            None => chain.rdma_write(data.to, [sge]),
        };
    }
    for write in chunk.answer_data().into_iter().flatten() {
        let to = write.place_in(data.to);
        match last.take_if(|_| write.is_last) {
            Some((imm, signal)) => chain.rdma_write_imm(to, write.sges(), imm, signal),
            None => chain.rdma_write(to, write.sges()),
        }
    }
}

/// Posts the data of a read, if there is any, and then an answer with the trailer as a message.
#[inline(never)]
fn post_with_trailer(
    qp: &QueuePair<Con>,
    data: Option<Data>,
    chunk: &Chunk,
    (trailer, imm): (Sge, Imm),
    signal: Signal<'_, Con>,
) -> Result {
    qp.send(space(data, chunk, 1), Doorbell::Now, |chain| {
        if let Some(data) = data {
            write_data(chain, data, chunk, None);
        }
        chain.send_imm([trailer], imm.encode(), signal);
    })
}
