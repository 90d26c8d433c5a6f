// SPDX-License-Identifier: GPL-2.0

//! Requests that a disk does not accept without blocking.
//!
//! Completion handlers of all clients share a work queue of the RDMA core, and each handles all
//! requests of its connection. Therefore no handler may sleep in `submit_bio()`: it submits with
//! `REQ_NOWAIT`, and a request that the disk does not accept joins the backlog of the device.
//! Workers submit these requests, and sleep until the disk accepts them. Devices that do not
//! support `REQ_NOWAIT` get all their requests from these workers.
//!
//! New requests do not overtake the backlog, as the workers would starve.
//!
//! A device has a few *lanes*, each with one worker at a time, so that a slow device occupies a
//! limited number of threads, and requests of different CPUs do not wait for each other. The work
//! queue belongs to the session, so that hung disks of one client do not occupy the workers of
//! others. It is safe for memory reclaim: the client may be waiting to free its memory.

use super::{
    requests::{
        Requests,
        Waiting, //
    },
    IoRequest, //
};
use ibtrs_server::Tag;
use kernel::{
    cpu::{
        self,
        CpuId, //
    },
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};
use kx::{
    blk,
    ring::Ring,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    work::{
        Queue,
        Work,
        WorkItem, //
    }, //
};

/// Maximum number of lanes of a device: 256 devices, the default limit of a session, may all be
/// slow without using up the work queue.
const MAX_LANES: u32 = 4;

/// The backlog of a device.
///
/// Dropping it waits for the workers, and may sleep. All requests of the device must have ended.
pub(crate) struct Backlog {
    requests: Arc<Requests>,
    lanes: KVec<Arc<Lane>>,
    /// Number of requests in the lanes or being submitted by workers.
    len: Arc<Atomic<u32>>,
}

impl Backlog {
    /// Creates the backlog of a device, whose workers run on `queue`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(requests: &Arc<Requests>, queue: &Arc<Queue>) -> Result<Self> {
        let mut lanes = KVec::new();
        let len = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        for _ in 0..cpu::nr_cpu_ids().min(MAX_LANES) {
            lanes.push(Lane::new(requests, &len, queue)?, GFP_KERNEL)?;
        }
        Ok(Self {
            requests: requests.clone(),
            lanes,
            len,
        })
    }

    /// Returns whether no request waits. If one does, a new request must queue behind it: with
    /// `REQ_NOWAIT` it would take the tag for which a worker sleeps.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // ORDERING: A request that misses one which has just joined overtakes it, which is
        // harmless.
        self.len.load(Relaxed) == 0
    }

    /// Adds a request for the device of this backlog.
    ///
    /// # Context
    ///
    /// Any.
    #[cold]
    pub(crate) fn push(&self, io: IoRequest) {
        let Some(tag) = self.requests.keep(Waiting::Io(io)) else {
            return;
        };
        let at = CpuId::current().as_u32() as usize % self.lanes.len().max(1);
        if let Some(lane) = self.lanes.get(at) {
            self.len.fetch_add(1, Relaxed);
            // The ring has a place for each tag.
            let _ = kernel::warn_on!(!lane.tags.lock().push(tag));
            lane.work.enqueue(lane.clone());
        }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.work.disable_sync();
        }
    }
}

/// Requests that one worker at a time submits, in order.
#[pin_data]
struct Lane {
    requests: Arc<Requests>,
    /// Shared with the backlog.
    len: Arc<Atomic<u32>>,
    #[pin]
    tags: SpinLockIrq<Ring<Tag>>,
    #[pin]
    work: Work<Self>,
}

kx::impl_has_work! {
    impl HasWork<Work<Self>> for Lane { self.work }
}

impl Lane {
    fn new(
        requests: &Arc<Requests>,
        len: &Arc<Atomic<u32>>,
        queue: &Arc<Queue>,
    ) -> Result<Arc<Self>> {
        let tags = Ring::new(requests.depth().into())?;
        Arc::pin_init(
            pin_init!(Self {
                requests: requests.clone(),
                len: len.clone(),
                tags <- new_spinlock_irq!(tags, "Lane::tags"),
                work <- kx::new_work!(queue.clone(), "Lane::work"),
            }),
            GFP_KERNEL,
        )
    }

    fn serve(&self) {
        loop {
            let tag = self.tags.lock().pop();
            let Some(tag) = tag else {
                return;
            };
            if let Some(Waiting::Io(io)) = self.requests.take(tag) {
                io.submit_waiting(&self.requests);
            }
            self.len.fetch_sub(1, Relaxed);
        }
    }
}

/// Submits the requests of a lane.
impl WorkItem for Lane {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        blk::plugged(|| this.serve(), || {});
    }
}
