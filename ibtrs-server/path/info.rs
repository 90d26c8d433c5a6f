// SPDX-License-Identifier: GPL-2.0

//! The INFO request, which completes a path, and its response
//! (Documentation/protocol.md, "INFO exchange").

use crate::{
    data::con::Con,
    path::{
        Info,
        Path, //
    },
    refusal::Refusal,
    storage::{
        landing::Whole,
        source::{
            Source,
            MESSAGE_PIECES, //
        }, //
    },
    types::{
        Shape,
        MAX_SGES, //
    }, //
};
use ibtrs_core::convert;
use ibtrs_proto::{
    consts::info_rsp_len,
    msg::{
        InfoReq,
        InfoRsp,
        SgDesc, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    },
};
use kx::mm::{
    Node,
    Pieces, //
};
use rdma::{
    dma::Direction,
    qp::QueuePair,
    sendq::{
        Doorbell,
        Signal,
        SqSpace, //
    },
};

/// How long the answer may wait for space in the send queue. Only a client that acknowledges nothing keeps
/// it full for longer.
const SPACE_TIMEOUT_MS: i64 = 10_000;

/// Handles the INFO request: completes the path, and brings up the session with its first path.
/// Returns whether the path is complete; logs a refusal.
pub(crate) fn check(path: &Arc<Path>, info: &Info) -> bool {
    let request = InfoReq::decode(info.bytes());
    let result = match &request {
        Ok(request) => path.parent.clone().complete(path, request.name),
        Err(error) => Err(Refusal::new(convert::error(error.errno()), error.as_str())),
    };
    let Err(refusal) = result else {
        // The key may have been removed since the client proved that it has the key. The path is
        // already shown, so a user who removes the key and then disconnects the paths authenticated
        // with it misses none.
        let completed = path.keeps_its_key();
        if completed {
            path.charge.connected();
        }
        return completed;
    };
    if path.may_log() {
        match (path.io.session.known_name(), request) {
            (None, Ok(request)) => pr_warn!(
                "{}: {}: session refused: {}\n",
                request.name.as_str(),
                path.io.ends,
                refusal
            ),
            _ => pr_warn!("{}: session refused: {}\n", **path, refusal),
        }
    }
    false
}

/// Registers the chunks and sends the client their addresses and keys.
///
/// # Errors
///
/// `ENOMEM`, `ENOTCONN`, errors of the device's driver; `ETIMEDOUT`: the send queue stays full.
pub(crate) fn answer(path: &Arc<Path>) -> Result {
    let service = path.io.service()?;
    let space = Space::new(path);
    let descs = match path.io.terms.shape {
        Shape::Chunks => register_chunks(path, &service, &space)?,
        Shape::Slots => register_groups(path, &service, &space)?,
    };

    let message = message(path, &descs)?;
    path.io.cons.lock().info_rsp = Some(message);
    // CAST: With the greatest depth, 1 MiB and some bytes.
    let len = length(&descs) as u32;
    let needed = SqSpace {
        wrs: 2,
        sges: MAX_SGES,
    };
    space.once_free(|| {
        let cons = path.io.cons.lock();
        let message = cons.info_rsp.as_ref().ok_or(ENOTCONN)?;
        service.send(needed, Doorbell::Now, |chain| {
            message.register(chain);
            chain.send(message.sges(len, message.region()), Signal::Control)
        })
    })
}

/// Registers the chunks; returns their descriptors.
fn register_chunks(
    path: &Path,
    service: &QueuePair<Con>,
    space: &Space<'_>,
) -> Result<KVVec<SgDesc>> {
    let needed = SqSpace {
        wrs: Whole::REGIONS,
        sges: 0,
    };
    let mut descs = KVVec::with_capacity(usize::from(path.io.layout.queue_depth()), GFP_KERNEL)?;
    for slot in path.io.slots.iter() {
        let mut desc = space.once_free(|| {
            let registered = slot.with_idle(|chunk| {
                let whole = chunk.landing.chunk().ok_or(EINVAL)?;
                service.send(needed, Doorbell::Later, |chain| whole.register(chain))?;
                Ok(whole.descriptor())
            });
            registered.ok_or(EBUSY)?
        })?;
        desc.len = path.io.layout.chunk_size();
        descs.push(desc, GFP_KERNEL)?;
    }
    Ok(descs)
}

/// Registers the groups of slots; returns their descriptors.
fn register_groups(
    path: &Path,
    service: &QueuePair<Con>,
    space: &Space<'_>,
) -> Result<KVVec<SgDesc>> {
    let needed = SqSpace { wrs: 1, sges: 0 };
    let bytes = u32::try_from(path.io.session.env.config.group_bytes(path.io.terms))?;
    let count = path.groups.lock().len();
    let mut descs = KVVec::with_capacity(count, GFP_KERNEL)?;
    for at in 0..count {
        // `None` if the path is being torn down.
        let group = path.groups.lock().get(at).cloned().ok_or(ENOTCONN)?;
        space.once_free(|| service.send(needed, Doorbell::Later, |chain| group.register(chain)))?;
        let desc = SgDesc {
            len: bytes,
            ..group.descriptor()
        };
        descs.push(desc, GFP_KERNEL)?;
    }
    Ok(descs)
}

/// Waits for space in the send queue of the service connection, which has entries for one registration
/// of each chunk; a chunk in many pieces has more.
struct Space<'a> {
    path: &'a Path,
    began: Instant<Monotonic>,
}

impl<'a> Space<'a> {
    fn new(path: &'a Path) -> Self {
        Self {
            path,
            began: Instant::now(),
        }
    }

    /// Calls `send` until the send queue has space for its work requests.
    ///
    /// # Errors
    ///
    /// Errors of `send`; `ETIMEDOUT`: all calls together have waited too long.
    fn once_free<T>(&self, mut send: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match send() {
                // A lost connection frees no space, and ends the path.
                Err(error) if error == EAGAIN && !self.path.is_closing() => {
                    if self.began.elapsed().as_millis() >= SPACE_TIMEOUT_MS {
                        return Err(ETIMEDOUT);
                    }
                    fsleep(Delta::from_millis(1));
                }
                other => return other,
            }
        }
    }
}

/// Returns the length of the message with these descriptors.
fn length(descs: &[SgDesc]) -> usize {
    // CAST: No more than the queue depth.
    info_rsp_len(descs.len() as u16)
}

/// Returns the message that tells the client about its chunks.
fn message(path: &Path, descs: &[SgDesc]) -> Result<Source> {
    let len = length(descs);
    let mut bytes = KVVec::<u8>::zeroed(len, GFP_KERNEL)?;
    InfoRsp::write(&mut bytes, descs.iter().copied()).map_err(|_| EINVAL)?;
    let pieces = Arc::new(Pieces::new(len, Node::ANY)?, GFP_KERNEL)?;
    pieces.copy_in(0, &bytes)?;
    let message = Source::complete(&path.io.pd, pieces, Direction::ToDevice, MESSAGE_PIECES)?;
    message.dma().sync_for_device(0, len)?;
    Ok(message)
}
