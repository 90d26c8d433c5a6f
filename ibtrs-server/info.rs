// SPDX-License-Identifier: GPL-2.0

//! The INFO request, which completes a path, and its response
//! (Documentation/protocol.md, "INFO exchange").

use crate::{
    chunk::ChunkSlot,
    path::{
        Info,
        Path, //
    },
};
use ibtrs_core::convert;
use ibtrs_proto::{
    consts::info_rsp_len,
    msg::{
        InfoReq,
        InfoRsp,
        SgDesc, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
};
use kx::pr_err_ratelimited;
use rdma::{
    dma::{
        Direction,
        DmaBuf, //
    },
    mr::Access,
    sendq::{
        Doorbell,
        Signal,
        SqSpace, //
    },
};

const HIDE_TRIES: u32 = 500;
const HIDE_PAUSE: Delta = Delta::from_millis(10);

/// Checks the message, and lets the session come up if it is the first path's.
pub(crate) fn check(path: &Arc<Path>, info: &Info) -> bool {
    let bytes = info.bytes.get(..info.len).unwrap_or(&[]);
    let request = match InfoReq::decode(bytes) {
        Ok(request) => request,
        Err(error) => {
            pr_err_ratelimited!("{}: session refused: {}\n", **path, error.as_str());
            return false;
        }
    };
    if let Err(error) = path.auth.lock().introduced(request.name) {
        pr_err_ratelimited!("{}: session refused: {}\n", **path, error.as_str());
        return false;
    }
    if path.cons.lock().qps.iter().any(Option::is_none) {
        pr_err_ratelimited!(
            "{}: session refused: the client has not set up all connections\n",
            **path
        );
        return false;
    }
    let refused = |error| {
        let (name, ends) = (request.name.as_str(), path.ends);
        pr_err_ratelimited!(
            "{}: {}: session refused ({})\n",
            name,
            ends,
            convert::errno(error).as_str()
        );
    };
    // Before the chunks, which cost the most.
    if let Err(error) = path.session.claim_name(request.name) {
        refused(error);
        return false;
    }
    if let Err(refusal) = path.make_chunks() {
        pr_err_ratelimited!("{}: session refused: {}\n", **path, refusal);
        return false;
    }
    if let Err(error) = path.session.path_up(path) {
        refused(error);
        return false;
    }
    if let Err(error) = wait_hidden(path).and_then(|()| path.show()) {
        pr_err_ratelimited!(
            "{}: session refused: cannot create the path's files in sysfs ({})\n",
            **path,
            convert::errno(error).as_str()
        );
        return false;
    }
    path.charge.connected();
    true
}

/// Waits until paths of the same addresses are not shown any more: they are being
/// closed, as else this one would not have been accepted.
fn wait_hidden(path: &Arc<Path>) -> Result {
    for _ in 0..HIDE_TRIES {
        if !path.session.shows(path.ends) {
            return Ok(());
        }
        fsleep(HIDE_PAUSE);
    }
    Err(EEXIST)
}

/// Registers the chunks and tells the client where they are.
///
/// # Errors
///
/// `ENOMEM`, `ENOTCONN`, those of the driver.
pub(crate) fn answer(path: &Arc<Path>) -> Result {
    let config = path.session.server.config;
    let cons = path.cons.lock();
    let service = match cons.qps.first() {
        Some(Some(service)) => service.get(),
        _ => return Err(ENOTCONN),
    };
    drop(cons);

    let mut descs = KVVec::with_capacity(usize::from(config.queue_depth), GFP_KERNEL)?;
    for slot in path.slots.iter() {
        let mut desc = register(&slot)?;
        // The queue has room for all; it is only a matter of time if not.
        loop {
            let posted = slot.with_idle(|chunk| {
                service.send(SqSpace { wrs: 1, sges: 0 }, Doorbell::Later, |chain| {
                    chain.reg_mr(chunk.mr(), Access::RemoteWrite)
                })
            });
            match posted.ok_or(EBUSY)? {
                Err(error) if error == EAGAIN => fsleep(Delta::from_millis(1)),
                other => break other,
            }
        }?;
        desc.len = config.chunk_bytes;
        descs.push(desc, GFP_KERNEL)?;
    }

    let len = info_rsp_len(config.queue_depth);
    let mut message = DmaBuf::new(&path.pd, len, Direction::ToDevice)?;
    InfoRsp::write(message.bytes_mut(), descs.iter().copied()).map_err(|_| EINVAL)?;
    let sge = message.sge(0, len)?;
    path.cons.lock().info_rsp = Some(message);
    service.send(SqSpace { wrs: 1, sges: 1 }, Doorbell::Now, |chain| {
        chain.send([sge], Signal::Control)
    })
}

/// Describes the chunk of `slot` to its region; returns where clients find it.
fn register(slot: &ChunkSlot) -> Result<SgDesc> {
    slot.with_idle(|chunk| {
        chunk.register()?;
        Ok(chunk.descriptor())
    })
    .ok_or(EBUSY)?
}
