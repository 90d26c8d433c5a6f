// SPDX-License-Identifier: GPL-2.0

//! Sends the responses to requests (Documentation/protocol.md, "Answers").

use core::mem::take;

use crate::{
    batch::Answered,
    chunk::Chunk,
    con::Con,
    fetch, idle,
    landing::Spare,
    path::Path,
    types::{
        Shape,
        MAX_SGES, //
    },
};
use ibtrs_core::{
    convert,
    trace, //
};
use ibtrs_proto::{
    errno::Errno,
    imm::{
        Answer,
        Imm, //
    },
    msg::Direction as Dir, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::SpinLockIrq, //
};
use kx::{
    ring::Ring,
    sync::atomic::{
        AtomicFlag,
        Relaxed, //
    }, //
};
use rdma::{
    mr::Access,
    qp::QueuePair,
    sendq::{
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
    /// All of the data, if it takes one scatter element, as most does.
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

/// What a connection sends when there is SQ space.
///
/// Later answers and fetches wait behind it, so that a long chain finds space some time: shorter ones
/// would take all that becomes free.
#[pin_data]
pub(crate) struct Unsent {
    #[pin]
    queue: SpinLockIrq<Queue>,
    /// Whether something waits; apart from the queue, so that a connection with SQ space only reads
    /// this. Written under the lock.
    some: AtomicFlag,
}

struct Queue {
    /// The chunk numbers of answers, and of requests whose data is to be fetched, oldest first.
    indices: Ring<u32>,
    /// A [flush](crate::idle): [`send_nothing`], before all that waits, which it need not report on.
    flush: bool,
}

impl Unsent {
    /// Creates the queue of a session with `depth` chunks.
    pub(crate) fn new(depth: u16) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            queue <- new_spinlock_irq!(
                Queue { indices: Ring::new(usize::from(depth))?, flush: false },
                "Unsent::queue"
            ),
            some: AtomicFlag::new(false),
        }? Error)
    }

    /// Returns whether something waits for SQ space.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        // ORDERING: Who queues something tries again under the lock after it has set the flag, which
        // makes up for a stale value.
        self.some.load(Relaxed)
    }
}

/// Takes the request of chunk `index` out of service, answers it, and puts its chunk back.
///
/// # Context
///
/// Any.
pub(crate) fn respond(qp: &QueuePair<Con>, index: u32, mut chunk: KBox<Chunk>, result: Result) {
    leave_service(qp, index, &mut chunk, result);
    chunk.note_times();
    let short = qp.handler().path.shortage();
    if short.is_some() && chunk.request.direction == Dir::Write {
        if let Some(slot) = qp.slot(index) {
            slot.give_small(&mut chunk, short);
        }
    }
    let answered = Answered {
        index,
        chunk,
        result,
    };
    if let Some(answered) = qp.handler().batch.add(qp, answered) {
        answer(qp, answered);
    }
}

/// Sends an answer, with those that travel in its message, or keeps it until there is SQ space.
///
/// # Context
///
/// Any.
pub(crate) fn answer(qp: &QueuePair<Con>, answered: Answered) {
    let Answered {
        index,
        chunk,
        result,
    } = answered;
    let unsent = &qp.handler().unsent;
    let chunk = match unsent.is_some() {
        true => chunk,
        false => match send(qp, index, chunk, result) {
            Ok(spare) => return drop(spare),
            Err((error, chunk)) if error == EAGAIN => chunk,
            Err((error, chunk)) => return lost(qp, index, chunk, error),
        },
    };
    if let Some(slot) = qp.slot(index) {
        if slot.unsent.put((chunk, result)).is_ok() {
            wait_for_space(qp, index);
        }
    }
}

/// Has the answer of `index`, or the data of its request, which is in its place, sent or fetched
/// once there is SQ space.
///
/// # Context
///
/// Any.
pub(crate) fn wait_for_space(qp: &QueuePair<Con>, index: u32) {
    // A number either has an answer to send or data to fetch, so the ring has room.
    queue(qp, |queue| {
        queue.indices.push(index);
    });
}

/// Has a flush posted, which reports to [`crate::idle`], before all that waits for SQ space.
///
/// # Context
///
/// Any.
pub(crate) fn flush(qp: &QueuePair<Con>) {
    queue(qp, |queue| queue.flush = true);
}

/// Queues something, and sends as much as there is SQ space for: completions may have freed some
/// before.
fn queue(qp: &QueuePair<Con>, add: impl FnOnce(&mut Queue)) {
    let unsent = &qp.handler().unsent;
    let mut queue = unsent.queue.lock();
    add(&mut queue);
    unsent.some.store(true, Relaxed);
    drop(queue);
    drain(qp);
}

/// Counts the request as ended, and releases its number.
fn leave_service(qp: &QueuePair<Con>, index: u32, chunk: &mut Chunk, result: Result) {
    let path = &qp.handler().path;
    if take(&mut chunk.counted) {
        path.stats.flow.ended();
        trace::server_response(|| {
            let error = result.err().map_or(0, Error::to_errno);
            // CAST: A table has no more slots than numbers.
            (path.session.name(), &path.name, index as u16, error)
        });
    }
    // Before the answer, after which the client may send the next capsule.
    if let Some(kept) = chunk.capsule.take() {
        qp.give_back(kept);
    }
    // Before the answer, after which the client may use the number again.
    if take(&mut chunk.claimed) {
        // CAST: A table has no more slots than numbers.
        path.session.release(path.tag, index as u16);
    }
}

/// Puts back the chunk of a request that gets no answer: its session is about to be closed, and the
/// client sends the request again in the next one.
///
/// # Context
///
/// Any.
pub(crate) fn abandon(qp: &QueuePair<Con>, index: u32, mut chunk: KBox<Chunk>) {
    leave_service(qp, index, &mut chunk, Err(ESHUTDOWN));
    if let Some(slot) = qp.slot(index) {
        qp.handler().path.put_back(&slot, chunk);
    }
}

/// Sends what waits as far as there is SQ space.
///
/// # Context
///
/// Any.
pub(crate) fn retry(qp: &QueuePair<Con>) {
    if qp.handler().unsent.is_some() {
        drain(qp);
    }
}

/// What has left the queue of the unsent, and is to be dealt with without its lock, as it gives
/// buffers back.
enum Left<'a> {
    /// A flush cannot be posted.
    NotFlushed(Error),
    /// An answer was sent.
    Sent(Spare),
    /// An answer cannot be sent.
    Lost(u32, KBox<Chunk>, Error),
    /// Data cannot be fetched.
    NotFetched(SlotRef<'a, Con>, KBox<Chunk>, Error),
}

fn drain(qp: &QueuePair<Con>) {
    loop {
        let left = send_unsent(qp, &mut qp.handler().unsent.queue.lock());
        match left {
            Some(Left::NotFlushed(error)) => idle::not_flushed(qp, error),
            Some(Left::Sent(spare)) => drop(spare),
            Some(Left::Lost(index, chunk, error)) => lost(qp, index, chunk, error),
            Some(Left::NotFetched(slot, chunk, error)) => fetch::give_up(qp, slot, chunk, error),
            None => return,
        }
    }
}

/// Sends what is queued until there is no SQ space, or something to do without the lock.
fn send_unsent<'a>(qp: &'a QueuePair<Con>, queue: &mut Queue) -> Option<Left<'a>> {
    if queue.flush {
        let space = SqSpace { wrs: 1, sges: 0 };
        let posted = qp.send(space, Doorbell::Now, |chain| {
            send_nothing(chain, Signal::Control)
        });
        if posted == Err(EAGAIN) {
            return None;
        }
        queue.flush = false;
        if let Err(error) = posted {
            return Some(Left::NotFlushed(error));
        }
    }
    while let Some(index) = queue.indices.first() {
        let slot = qp.slot(index)?;
        let left = match slot.unsent.take() {
            Some((chunk, result)) => send_again(qp, slot, chunk, result),
            // No answer, but a request whose data is to be fetched.
            None => fetch_again(qp, slot),
        };
        // There is no SQ space.
        let left = left.ok()?;
        queue.indices.pop();
        if left.is_some() {
            return left;
        }
    }
    qp.handler().unsent.some.store(false, Relaxed);
    None
}

/// Sends an answer that has waited; `EAGAIN` if it has to wait longer.
fn send_again<'a>(
    qp: &QueuePair<Con>,
    slot: SlotRef<'a, Con>,
    chunk: KBox<Chunk>,
    result: Result,
) -> Result<Option<Left<'a>>> {
    match send(qp, slot.index(), chunk, result) {
        Ok(spare) => Ok(spare.some().map(Left::Sent)),
        Err((error, chunk)) if error == EAGAIN => {
            // Just taken out, so its place is free.
            let _ = slot.unsent.put((chunk, result));
            Err(EAGAIN)
        }
        Err((error, chunk)) => Ok(Some(Left::Lost(slot.index(), chunk, error))),
    }
}

/// As [`send_again`], for data to fetch.
fn fetch_again<'a>(qp: &QueuePair<Con>, slot: SlotRef<'a, Con>) -> Result<Option<Left<'a>>> {
    match fetch::retry(qp, slot) {
        Ok(()) => Ok(None),
        Err((error, None)) => Err(error),
        Err((error, Some(chunk))) => Ok(Some(Left::NotFetched(slot, chunk, error))),
    }
}

/// Fails the path, because a response could not be sent and the client gets none.
fn lost(qp: &QueuePair<Con>, index: u32, chunk: KBox<Chunk>, error: Error) {
    let path = &qp.handler().path;
    if error != ENOTCONN {
        path.failed("cannot post an answer", error);
    }
    if let Some(slot) = qp.slot(index) {
        path.put_back(&slot, chunk);
    }
}

/// Returns whether nothing of a chain that was refused with `error` was or will be sent; see
/// [`QueuePair::send`].
pub(crate) fn is_surely_unsent(error: Error) -> bool {
    error == EAGAIN || error == EINVAL || error == ENOTCONN
}

fn send(
    qp: &QueuePair<Con>,
    index: u32,
    chunk: KBox<Chunk>,
    result: Result,
) -> Result<Spare, (Error, KBox<Chunk>)> {
    let Some(slot) = qp.slot(index) else {
        return Err((EINVAL, chunk));
    };
    let path = &qp.handler().path;
    let short = path.shortage();
    slot.put_after(chunk, short, |chunk| {
        let signal = sending(path, slot, chunk, result, short.is_some());
        let is_signalled = !matches!(signal, Signal::None);
        if is_signalled {
            slot.begin_use();
        }
        let posted = post(qp, index, chunk, result, signal);
        if let (true, Err(error)) = (is_signalled, posted) {
            // Otherwise the device may have a part of the answer, until the connection is closed.
            if is_surely_unsent(error) {
                slot.cancel_use();
            }
        }
        posted
    })
}

/// Returns the signal for the last work request of an answer: when it completes, its buffer is no
/// longer needed. Notes that data is sent.
#[inline]
fn sending<'a>(
    path: &Path,
    slot: SlotRef<'a, Con>,
    chunk: &mut Chunk,
    result: Result,
    is_short: bool,
) -> Signal<'a, Con> {
    if result.is_err() || chunk.request.sink().is_none() {
        return Signal::None;
    }
    let cid = chunk.cid;
    let is_signalled = chunk
        .slot()
        .is_some_and(|slot| slot.sends(cid, path.idle.latest(), is_short));
    match is_signalled {
        true => Signal::Slot(slot, Kind::Send),
        false => Signal::None,
    }
}

/// Posts the work requests of an answer, the last of them with `signal`.
fn post(
    qp: &QueuePair<Con>,
    index: u32,
    chunk: &mut Chunk,
    result: Result,
    signal: Signal<'_, Con>,
) -> Result {
    let request = chunk.request;
    let desc = request.desc;
    if request.sink().is_some() {
        chunk.leave_data()?;
    }
    let data = request.sink().filter(|_| result.is_ok());
    let data = data.map(|desc| Data {
        to: Remote {
            addr: desc.addr,
            rkey: desc.key,
        },
        whole: chunk.answer_sge(),
    });
    let inval = desc
        .filter(|_| request.need_inval && qp.handler().path.remote_invalidation)
        .map(|desc| desc.key);
    let answer = answer_on_wire(index, result);
    let errno = answer.errno;
    if let (Some(rkey), true) = (inval, qp.handler().path.inv_answers) {
        return post_inv(qp, data, rkey, chunk, answer, signal);
    }
    if qp.handler().path.same_key && inval.is_none() && !chunk.invalidated {
        if !chunk.more.is_empty() {
            let imm = Imm::IoRspMore { id: index, errno };
            return post_more(qp, chunk.more_answers()?, imm);
        }
        let imm = Imm::IoRspSameKey { id: index, errno };
        if chunk.has_trailer() {
            let trailer = chunk.answer_body(None)?.ok_or(EINVAL)?;
            return post_with_trailer(qp, data, chunk, (trailer, imm), signal);
        }
        return post_one(qp, data, chunk, imm, signal);
    }
    let imm = match inval {
        Some(_) => Imm::IoRspInv { id: index, errno },
        None => Imm::IoRsp { id: index, errno },
    };
    let key = if qp.handler().path.session.env.config.invalidate {
        if chunk.invalidated {
            chunk.next_key();
        }
        Some(chunk.key(index as u16))
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
fn post_inv(
    qp: &QueuePair<Con>,
    data: Option<Data>,
    rkey: u32,
    chunk: &mut Chunk,
    answer: Answer,
    signal: Signal<'_, Con>,
) -> Result {
    if chunk.invalidated {
        chunk.next_key();
    }
    let body = chunk.inv_answer(answer)?;
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
fn post_one(
    qp: &QueuePair<Con>,
    data: Option<Data>,
    chunk: &Chunk,
    imm: Imm,
    signal: Signal<'_, Con>,
) -> Result {
    let imm = imm.encode();
    let others = u32::from(data.is_none());
    let shape = qp.handler().path.terms.shape;
    qp.send(space(data, chunk, others), Doorbell::Now, |chain| {
        match (data, shape) {
            (Some(data), _) => write_data(chain, data, chunk, Some((imm, signal))),
            (None, Shape::Chunks) => chain.rdma_write_imm(Remote::default(), [], imm, signal),
            (None, Shape::Slots) => chain.send_imm([], imm, signal),
        }
    })
}

/// Sends a message of nothing on a connection with slots: when it completes, the client's device has
/// acknowledged all that was sent before.
///
/// That is no RDMA write of 0 bytes, nor are the answers on such a connection. When soft-RoCE repeats
/// the answer to an RDMA read, it goes by the length of the last write or read that it got. If that is
/// 0, the read fails, and with it the connection, and the kernel warns (`read_reply()` in
/// drivers/infiniband/sw/rxe/rxe_resp.c).
pub(crate) fn send_nothing(chain: &mut Chain<'_, Con>, signal: Signal<'_, Con>) {
    chain.send_imm([], Imm::Nop.encode(), signal);
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

/// Posts a message with several answers, all but the first in `more`.
fn post_more(qp: &QueuePair<Con>, more: Sge, imm: Imm) -> Result {
    let space = SqSpace { wrs: 1, sges: 1 };
    qp.send(space, Doorbell::Now, |chain| {
        chain.send_imm([more], imm.encode(), Signal::None)
    })
}

/// Returns the outcome of the request of chunk `index` as answers carry it.
pub(crate) fn answer_on_wire(index: u32, result: Result) -> Answer {
    let errno = match result {
        Ok(()) => 0,
        Err(error) => errno_on_wire(error),
    };
    Answer { id: index, errno }
}

/// Returns an error as the nine bits of an answer.
fn errno_on_wire(error: Error) -> u16 {
    let errno: Errno = convert::errno(error);
    errno.to_imm()
}
