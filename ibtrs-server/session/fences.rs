// SPDX-License-Identifier: GPL-2.0

//! Fences: over one path, a client asks the server to accept nothing more from other paths.
//!
//! A path takes no more requests as soon as it begins to close (see
//! [`PathIo::takes_requests`](crate::data::con::PathIo::takes_requests)). The server therefore closes the paths
//! that the fence names, and answers at once. Requests that these paths have in service keep their chunk
//! numbers ([`crate::data::chunk_owner`]). If the client also requests the completion of these requests
//! (`drain`), the answer waits until the paths have ended.

use crate::{
    path::Path,
    session::Session, //
};
use ibtrs_proto::{
    chunk_owner::PathId,
    imm::Fence, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::mm::NoIo;

/// A fence that waits for the end of paths.
struct Pending {
    fence: Fence,
    carrier: Arc<Path>,
    /// The paths that have not ended yet.
    left: KVec<PathId>,
}

/// The waiting fences of a session.
#[pin_data]
pub(crate) struct Fences {
    #[pin]
    list: Mutex<KVec<Pending>>,
}

impl Fences {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVec::new(), "Session::fences"),
        })
    }

    /// Handles the end of a path: completes the fences that waited only for this path, and drops
    /// the fences that it carried.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn path_gone(&self, path: &Arc<Path>) {
        let mut list = self.list.lock();
        list.retain(|pending| {
            if Arc::ptr_eq(&pending.carrier, path) {
                return false;
            }
            pending.left.retain(|id| *id != path.io.id);
            let wait = !pending.left.is_empty();
            if !wait {
                pending.carrier.fence_done(pending.fence);
            }
            wait
        });
    }
}

impl Session {
    /// See [`Parent::apply_fence`](crate::path::parent::Parent::apply_fence).
    pub(crate) fn apply_fence(&self, carrier: &Arc<Path>, fence: Fence) -> Result<bool> {
        // Operators wait for the lock of the paths, so no allocation under it waits for I/O.
        let _no_io = NoIo::enter();
        let mut left = KVec::new();
        let mut list = self.fences.list.lock();
        for path in self.paths.lock().iter() {
            if Arc::ptr_eq(path, carrier) || !fence.covers(path.io.epoch) {
                continue;
            }
            path.superseded();
            left.push(path.io.id, GFP_KERNEL)?;
        }
        if left.is_empty() || !fence.drain {
            return Ok(true);
        }
        let pending = Pending {
            fence,
            carrier: carrier.clone(),
            left,
        };
        list.push(pending, GFP_KERNEL)?;
        Ok(false)
    }
}
