// SPDX-License-Identifier: GPL-2.0

//! Fetches the data of writes from the memory of clients (Documentation/protocol.md, "Slots").
//!
//! A request whose data is being fetched is pending in its slot, where the teardown of its path
//! finds it. The teardown closes the connections first, so that the device no longer writes to the
//! buffer.
//!
//! A request that has waited for a buffer, but has no data to fetch, is handled here as well: the
//! completion of a NOP returns it to the context of its connection, where it may wait for its
//! client's throttle.

use super::{
    send_nothing,
    wait_for_space, //
};
use crate::{
    data::con::{
        Con, //
    },
    storage::chunk::Chunk,
    types::MAX_SGES, //
};
use ibtrs_core::tag::Tagged;
use ibtrs_proto::{
    serving::Place,
    stats::counter::server_path, //
};
use kernel::prelude::*;
use rdma::{
    qp::QueuePair,
    sendq::{
        is_surely_unsent,
        Chain,
        Doorbell,
        Signal,
        SqSpace, //
    },
    sge::Remote,
    slot::{
        Kind,
        SlotRef, //
    },
};

/// The reason in the log for closing the path.
const FAILED: &str = "cannot fetch the data of a write";

/// Begins to fetch the data of a request that has a buffer; without data to fetch, only posts a NOP.
/// The request is served on its connection when the fetch has completed.
///
/// # Context
///
/// Any.
pub(crate) fn begin(qp: &QueuePair<Con>, slot: SlotRef<'_, Con>, chunk: KBox<Chunk>) {
    let chunk = match qp.handler().unsent.is_some() {
        true => chunk,
        false => match post(qp, slot, chunk) {
            Ok(()) => return,
            Err((error, chunk)) if error == EAGAIN => chunk,
            Err((error, chunk)) => return give_up(qp, slot, chunk, error),
        },
    };
    match slot.put_pending(chunk) {
        Ok(()) => wait_for_space(qp, slot.tag()),
        // Does not happen: a tag has one request.
        Err(chunk) => give_up(qp, slot, chunk, EBUSY),
    }
}

/// Retries the fetch for `slot`, for which there was no SQ space.
///
/// # Errors
///
/// `EAGAIN`: there still is none. With any other error, the caller must pass the request to
/// [`give_up`].
pub(crate) fn retry(
    qp: &QueuePair<Con>,
    slot: SlotRef<'_, Con>,
) -> Result<(), (Error, Option<KBox<Chunk>>)> {
    let Some(chunk) = slot.take_pending() else {
        // The path is being closed, and the request was dropped.
        return Ok(());
    };
    match post(qp, slot, chunk) {
        Ok(()) => Ok(()),
        Err((error, chunk)) if error == EAGAIN => match slot.put_pending(chunk) {
            Ok(()) => Err((EAGAIN, None)),
            // Does not happen: its place was just emptied.
            Err(chunk) => Err((EBUSY, Some(chunk))),
        },
        Err((error, chunk)) => Err((error, Some(chunk))),
    }
}

/// Posts the work requests, and keeps the request pending until they have completed. The request is
/// put into its slot before the work requests are posted, as they may complete at once.
///
/// # Errors
///
/// Returns the request if its work requests were certainly not posted, unless the teardown of the
/// path has taken it; or if the slot already has a pending request.
fn post(
    qp: &QueuePair<Con>,
    slot: SlotRef<'_, Con>,
    chunk: KBox<Chunk>,
) -> Result<(), (Error, KBox<Chunk>)> {
    let wrs = chunk.count_reads().max(1);
    let space = SqSpace {
        wrs,
        sges: wrs * MAX_SGES,
    };
    if let Err(error) = chunk.prepare_fetch() {
        return Err((error, chunk));
    }
    let bytes = chunk.request.source().map_or(0, |_| chunk.request.data_len);
    let mut held = Some(chunk);
    let posted = qp.send(space, Doorbell::Now, |chain| {
        if let Some(mut chunk) = held.take() {
            read(chain, slot, &mut chunk);
            held = slot.put_pending(chunk).err();
        }
    });
    // `held` is empty after a successful post, as a tag has only one request. If it were not, its
    // buffer would be late.
    let left = match posted {
        Ok(()) => {
            let stats = &qp.handler().path.stats;
            stats.declared.add(server_path::FETCHED_BYTES, bytes.into());
            held.map(|chunk| (EBUSY, chunk))
        }
        Err(error) if is_surely_unsent(error) => {
            let chunk = held.or_else(|| slot.take_pending());
            chunk.map(|chunk| (error, chunk))
        }
        Err(error) => {
            // The request stays pending until the connections are closed.
            qp.handler().failed(FAILED, error);
            let left = held.and_then(|chunk| slot.put_pending(chunk).err());
            left.map(|chunk| (error, chunk))
        }
    };
    left.map_or(Ok(()), Err)
}

/// Reads the data of a request; or flushes the connection, if there is none to read.
fn read(chain: &mut Chain<'_, Con>, slot: SlotRef<'_, Con>, chunk: &mut Chunk) {
    let Some((from, reads)) = chunk.fetch() else {
        return send_nothing(chain, Signal::Slot(slot, Kind::Other));
    };
    let from = Remote {
        addr: from.addr,
        rkey: from.key,
    };
    for read in reads {
        let signal = match read.is_last {
            true => Signal::Slot(slot, Kind::Other),
            false => Signal::None,
        };
        chain.rdma_read(read.place_in(from), read.sges(), signal);
    }
}

/// Drops a request whose data cannot be fetched, and closes its path.
///
/// # Context
///
/// Any.
pub(crate) fn give_up(
    qp: &QueuePair<Con>,
    slot: SlotRef<'_, Con>,
    chunk: KBox<Chunk>,
    error: Error,
) {
    qp.handler().cannot_send(FAILED, error);
    qp.handler().drop_request(slot, chunk);
}
