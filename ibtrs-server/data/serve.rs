// SPDX-License-Identifier: GPL-2.0

//! The steps of a request from its claim to the service.

use crate::{
    data::{
        con::{
            Con,
            PathIo,
            Request, //
        },
        send::fetch, //
    }, //
    storage::{
        buffers::{
            self,
            Buffer,
            Waiter, //
        },
        chunk::Chunk, //
    },
};
use ibtrs_core::{
    tag::Tagged,
    trace, //
};
use ibtrs_proto::{
    serving::{
        self,
        Place, //
    },
    stats::counter::server_path, //
};
use kernel::prelude::*;
use kx::sync::PercpuArc;
use rdma::{
    qp::QueuePair,
    sendq::Signal,
    slot::{
        Kind,
        SlotRef, //
    },
};

/// Serves or refuses a request of `path` that owns its tag. Even a refusal must wait for the
/// previous attempt to complete, as a client that resends a request takes the first answer as final.
/// Before a request is served, it gets a buffer if it needs one, its data is fetched, or the key of
/// its chunk is invalidated. The request takes over the reference to the queue pair.
///
/// # Context
///
/// May sleep.
// Most requests pass it where they arrive; others have waited, and are rare.
#[inline(always)]
pub(crate) fn dispatch(
    path: &PathIo,
    qp: PercpuArc<QueuePair<Con>>,
    slot: SlotRef<'_, Con>,
    mut chunk: KBox<Chunk>,
) {
    if chunk.result.is_err() {
        let result = chunk.result;
        return Request::new(qp, chunk).respond(result);
    }
    if chunk.lacks_buffer() {
        let con = qp.handler();
        // Waiting requests come first.
        let take = || Buffer::take(con.control.holder(), &path.pd, chunk.request.data_len);
        match (!path.session.holding.is_waiting()).then(take).flatten() {
            Some(buffer) => grant(con, &mut chunk, buffer),
            None => return wait_for_buffer(con, slot, chunk),
        }
    }
    if chunk.request.source().is_some() {
        return fetch::begin(&qp, slot, chunk);
    }
    chunk.want_small();
    match chunk.landing.chunk().map(|whole| whole.mr().rkey()) {
        Some(rkey) if chunk.must_invalidate() => invalidate(&qp, slot, chunk, rkey),
        _ => serve(path, qp, chunk),
    }
}

/// Assigns a buffer to a request.
#[inline]
fn grant(con: &Con, chunk: &mut Chunk, buffer: Buffer) {
    if chunk.grant(buffer) {
        con.control.clone().keeps_small();
    }
}

/// Queues a request until there is a buffer for its data.
#[cold]
fn wait_for_buffer(con: &Con, slot: SlotRef<'_, Con>, chunk: KBox<Chunk>) {
    con.path.stats.declared.inc(server_path::BUFFER_WAITS);
    let waiter = Waiter {
        path: con.path.id.get(),
        tag: slot.tag(),
        cid: chunk.cid,
        bytes: chunk.request.data_len,
    };
    let queue = || {
        // The request is pending in its slot, so either this thread sees that the path is being
        // closed, or the teardown sees the request. Once it is in the line, another thread may
        // resume it at any time, so this thread must not touch it.
        if !con.path.takes_requests_ordered() {
            return false;
        }
        let queued = buffers::wait(con.control.holder(), waiter);
        if queued.is_err() {
            con.error(fmt!("too many requests of closing paths wait for memory"));
        }
        queued.is_ok()
    };
    if let Err(chunk) = serving::pend(&**slot, chunk, queue) {
        con.drop_request(slot, chunk);
    }
}

/// Invalidates the key of a request's chunk; the request is served when the invalidation completes.
#[inline(never)]
fn invalidate(qp: &QueuePair<Con>, slot: SlotRef<'_, Con>, mut chunk: KBox<Chunk>, rkey: u32) {
    chunk.invalidated = true;
    let post = || {
        let posted = qp.invalidate(rkey, Signal::Slot(slot, Kind::Other));
        if let Err(error) = posted {
            qp.handler().failed("cannot invalidate a key", error);
        }
        posted.is_ok()
    };
    if let Err(chunk) = serving::pend(&**slot, chunk, post) {
        qp.handler().drop_request(slot, chunk);
    }
}

/// Passes a request of `path` to the service.
#[inline(always)]
pub(crate) fn serve(path: &PathIo, qp: PercpuArc<QueuePair<Con>>, mut chunk: KBox<Chunk>) {
    path.stats
        .flow
        .begun(chunk.request.direction, chunk.request_bytes());
    chunk.counted = true;
    trace::server_request(|| {
        let write = chunk.request.direction == crate::Dir::Write;
        let bytes = u32::try_from(chunk.request_bytes()).unwrap_or(u32::MAX);
        (
            path.session.name(),
            &path.name,
            chunk.tag().get(),
            write,
            bytes,
        )
    });
    let ready = match &chunk.capsule {
        Some(_) => Ok(()),
        None => chunk.prepare_data(),
    };
    let purpose = qp.handler().purpose;
    let op = Request::new(qp, chunk);
    if ready.is_err() {
        // Cannot happen: the parser has checked the length against the chunk or slot.
        return op.respond(Err(EINVAL));
    }
    match path.session.upper(purpose) {
        Some(upper) => upper.request(op),
        None => op.respond(Err(ENODEV)),
    }
}

impl PathIo {
    /// Resumes a request that has waited for `buffer`, on its connection.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn resume(&self, waiter: Waiter, buffer: Buffer) {
        let qp = self.qp(waiter.cid);
        // Without a connection or a slot, the teardown of the path drops the request.
        let Some((qp, slot)) = qp.zip(self.slots.get(waiter.tag.get())) else {
            return;
        };
        // If the slot is empty, the teardown has already dropped the request.
        if let Some(mut chunk) = slot.take_pending() {
            grant(qp.handler(), &mut chunk, buffer);
            fetch::begin(&qp, slot, chunk);
        }
    }
}
