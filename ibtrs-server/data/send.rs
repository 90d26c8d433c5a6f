// SPDX-License-Identifier: GPL-2.0

//! Sends [answers](answer), and posts the work requests that [fetch](fetch) the data of requests, when
//! there is space in the send queue.

use crate::{
    data::{
        con::Con,
        unsent::Queue, //
    }, //
    storage::{
        chunk::Chunk,
        landing::Spare, //
    },
};
use ibtrs_proto::{
    imm::Imm,
    tag::Tag, //
};
use kernel::prelude::*;
use kx::sync::atomic::Relaxed;
use rdma::{
    qp::QueuePair,
    sendq::{
        Chain,
        Doorbell,
        Signal,
        SqSpace, //
    },
    slot::SlotRef, //
};

pub(crate) mod answer;
pub(crate) mod fetch;

/// Queues the answer to the request with `tag`, or the fetch of its data, until there is SQ space. The
/// request must be in its slot.
///
/// # Context
///
/// Any.
pub(crate) fn wait_for_space(qp: &QueuePair<Con>, tag: Tag) {
    // A tag has either an answer to send or data to fetch, so the ring has a place.
    queue(qp, |queue| {
        queue.tags.push(tag);
    });
}

/// Posts a flush for [`crate::data::idle`], ahead of everything that waits for SQ space.
///
/// # Context
///
/// Any.
pub(crate) fn flush(qp: &QueuePair<Con>) {
    queue(qp, |queue| queue.flush = true);
}

/// Queues an entry, and then sends as much as fits, as completions may have freed SQ space before
/// the entry was queued.
fn queue(qp: &QueuePair<Con>, add: impl FnOnce(&mut Queue)) {
    let unsent = &qp.handler().unsent;
    let mut queue = unsent.queue.lock();
    add(&mut queue);
    unsent.some.store(true, Relaxed);
    drop(queue);
    drain(qp);
}

/// Sends waiting entries as far as there is SQ space.
///
/// # Context
///
/// Any.
pub(crate) fn retry(qp: &QueuePair<Con>) {
    if qp.handler().unsent.is_some() {
        drain(qp);
    }
}

/// An entry that has left the queue, to be handled without the lock of the queue, as handling it
/// releases buffers.
enum Left<'a> {
    /// A flush cannot be posted.
    NotFlushed(Error),
    /// An answer was sent.
    Sent(Spare),
    /// An answer cannot be sent.
    Lost(SlotRef<'a, Con>, KBox<Chunk>, Error),
    /// Data cannot be fetched.
    NotFetched(SlotRef<'a, Con>, KBox<Chunk>, Error),
}

fn drain(qp: &QueuePair<Con>) {
    loop {
        let left = send_unsent(qp, &mut qp.handler().unsent.queue.lock());
        match left {
            // The send queue is closed or broken, so the flush never reports, and the round of `idle`
            // does not complete.
            Some(Left::NotFlushed(error)) => {
                qp.handler().cannot_send("cannot flush a send queue", error)
            }
            Some(Left::Sent(spare)) => drop(spare),
            Some(Left::Lost(slot, chunk, error)) => answer::lost(qp, slot, chunk, error),
            Some(Left::NotFetched(slot, chunk, error)) => fetch::give_up(qp, slot, chunk, error),
            None => return,
        }
    }
}

/// Sends queued entries until there is no SQ space, or until one must be handled without the lock.
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
    while let Some(tag) = queue.tags.first() {
        let slot = qp.slot(tag.get())?;
        let left = match slot.unsent.take() {
            Some(chunk) => send_again(qp, slot, chunk),
            // No answer, but a request whose data is to be fetched.
            None => fetch_again(qp, slot),
        };
        // There is no SQ space.
        let left = left.ok()?;
        queue.tags.pop();
        if left.is_some() {
            return left;
        }
    }
    qp.handler().unsent.some.store(false, Relaxed);
    None
}

/// Sends an answer that has waited; `EAGAIN` if there still is no space.
#[cold]
fn send_again<'a>(
    qp: &QueuePair<Con>,
    slot: SlotRef<'a, Con>,
    chunk: KBox<Chunk>,
) -> Result<Option<Left<'a>>> {
    match answer::send(qp, slot, chunk) {
        Ok(spare) => Ok(spare.some().map(Left::Sent)),
        Err((error, chunk)) if error == EAGAIN => {
            // It was just taken out, so its place is free.
            let _ = slot.unsent.put(chunk);
            Err(EAGAIN)
        }
        Err((error, chunk)) => Ok(Some(Left::Lost(slot, chunk, error))),
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

/// Sends an empty message (NOP) on a connection with slots. When it completes, the client's device
/// has acknowledged everything that was sent before.
///
/// Neither this nor the answers on such a connection may be RDMA writes of 0 bytes. When soft-RoCE
/// retransmits the response to an RDMA read, it uses the length of the last write or read that it
/// received. If that is 0, the read and the connection fail, and the kernel warns (`read_reply()` in
/// drivers/infiniband/sw/rxe/rxe_resp.c).
pub(crate) fn send_nothing(chain: &mut Chain<'_, Con>, signal: Signal<'_, Con>) {
    chain.send_imm([], Imm::Nop.encode(), signal);
}
