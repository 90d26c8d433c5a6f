// SPDX-License-Identifier: GPL-2.0

//! The state of a disk that decides how its requests are dispatched.
//!
//! The server names a device by a number that a restart invalidates. Until the device is reopened
//! the queue is quiesced: each request waits here in the slot of its tag, and then returns to the
//! block layer, which dispatches it again.
//!
//! Contexts: *any*, unless stated otherwise.

use crate::{
    by_tag::ByTag,
    damage::Damage,
    events::EventHandler,
    fair_share::{
        DiskGroup,
        FairShare, //
    },
    latencies::Latencies,
    paused::Paused,
    request::{
        self,
        IbnbdMq, //
    },
    timeouts::Timeouts,
    write_cache::WriteCache, //
};
use ibnbd_proto::{
    checksum::DataChecksum,
    dispatch,
    state::QueueState, //
};
use ibtrs_client::{
    Session,
    Tag, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    blk::{
        Request,
        Status, //
    },
    sync::{
        atomic::{
            Acquire,
            Atomic,
            AtomicFlag,
            Full,
            Relaxed, //
        },
        TakeCell, //
    },
    work, //
};

const LIVE: u32 = 0;
const QUIESCED: u32 = 1;
const FAILING: u32 = 2;

/// Properties of a disk.
pub(crate) struct Traits {
    /// The number of the disk.
    pub(crate) number: u32,
    /// The disk group of the session.
    pub(crate) group: Arc<DiskGroup>,
    /// The devices of the session.
    pub(crate) devices: Arc<EventHandler>,
    /// The server's id of the device.
    pub(crate) device_id: u32,
    /// The disk is read-only.
    pub(crate) read_only: bool,
    /// The server honours I/O priorities.
    pub(crate) prio: bool,
    /// The server's disk retains all writes that it has answered.
    pub(crate) safe: bool,
    /// The checksum of the disk's data.
    pub(crate) checksum: DataChecksum,
    /// Runs the work items that end the pauses of requests; none of them waits for a disk.
    pub(crate) work_queue: Arc<work::Queue>,
}

/// The queue data of a disk: everything that its requests need.
#[pin_data]
pub(crate) struct DiskQueue {
    transport: Arc<Session>,
    devices: Arc<EventHandler>,
    read_only: bool,
    prio: bool,
    device_id: Atomic<u32>,
    queue_state: Atomic<u32>,
    /// The disk is being unmapped by force: all requests fail.
    gone: AtomicFlag,
    /// The server's disk has a volatile cache that the block layer does not know of.
    write_through: AtomicFlag,
    write_cache: WriteCache,
    timeouts: Timeouts,
    latencies: Latencies,
    damage: Damage,
    #[pin]
    fair_share: FairShare,
    /// Requests that wait for the queue state to change, by tag.
    queued: ByTag<TakeCell<Request<IbnbdMq>>>,
    paused: Arc<Paused>,
}

impl DiskQueue {
    /// Creates the queue data of a disk; its queue is live.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(transport: Arc<Session>, traits: &Traits) -> Result<Arc<Self>> {
        let tags = usize::from(transport.io_depth());
        let (number, group) = (traits.number, traits.group.clone());
        let init = try_pin_init!(Self {
            transport,
            devices: traits.devices.clone(),
            read_only: traits.read_only,
            prio: traits.prio,
            device_id: Atomic::new(traits.device_id),
            queue_state: Atomic::new(LIVE),
            gone: AtomicFlag::new(false),
            write_through: AtomicFlag::new(false),
            write_cache: WriteCache::new(traits.safe),
            timeouts: Timeouts::new(),
            latencies: Latencies::new()?,
            damage: Damage::new(traits.checksum),
            fair_share <- FairShare::new(group, number, tags),
            queued: ByTag::new(tags, TakeCell::empty)?,
            paused: Paused::new(tags, traits.work_queue.clone())?,
        }? Error);
        Arc::pin_init(init, GFP_KERNEL)
    }

    /// Returns the session of the transport.
    #[inline]
    pub(crate) fn transport(&self) -> &Arc<Session> {
        &self.transport
    }

    /// Returns the state of the server's write cache.
    #[inline]
    pub(crate) fn write_cache(&self) -> &WriteCache {
        &self.write_cache
    }

    /// Returns the request timeouts.
    #[inline]
    pub(crate) fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// Returns the latency counters.
    #[inline]
    pub(crate) fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Returns the checksum of the disk, and the counts of damaged requests.
    #[inline]
    pub(crate) fn damage(&self) -> &Damage {
        &self.damage
    }

    /// Returns whether requests have a checksum.
    #[inline]
    pub(crate) fn has_checksums(&self) -> bool {
        self.damage.checksum().is_on()
    }

    /// Returns the requests that pause before they are resent.
    #[inline]
    pub(crate) fn paused(&self) -> &Arc<Paused> {
        &self.paused
    }

    /// Returns the disk's fair share of the session.
    #[inline]
    pub(crate) fn fair_share(&self) -> &FairShare {
        &self.fair_share
    }

    /// Returns whether the disk is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether the server honours I/O priorities.
    #[inline]
    pub(crate) fn wants_prio(&self) -> bool {
        self.prio
    }

    /// Returns whether each write must be durable before it ends.
    #[inline]
    pub(crate) fn is_write_through(&self) -> bool {
        self.write_through.load(Relaxed)
    }

    /// Keeps a request until the queue state changes.
    ///
    /// # Errors
    ///
    /// Returns the request with `Status::RESOURCE` if its tag has no free slot.
    pub(crate) fn queue(&self, rq: Request<IbnbdMq>) -> Result<(), (Request<IbnbdMq>, Status)> {
        dispatch::queue(self, rq.tag(), rq).map_err(|rq| (rq, Status::RESOURCE))
    }

    /// Requeues the request with tag `tag` if it waits for a change of the queue state. A cancelled
    /// request ends instead.
    pub(crate) fn dispatch_again(&self, tag: Tag) {
        dispatch::Disk::requeue(self, tag.into());
    }

    /// Sets the queue live for the device with the server's number `device_id`; with
    /// `write_through`, each write must be durable before it ends.
    pub(crate) fn open(&self, device_id: u32, write_through: bool) {
        self.write_through.store(write_through, Relaxed);
        dispatch::open(self, device_id);
    }

    /// Sets the queue state, and dispatches waiting requests again.
    pub(crate) fn set_queue_state(&self, queue_state: QueueState) {
        dispatch::set_state(self, queue_state);
    }

    /// Fails waiting requests and all later ones. Requests in flight end normally, because the
    /// session still exists.
    pub(crate) fn set_gone(&self) {
        dispatch::fail_all(self);
    }
}

/// The state that [`dispatch`] reads and changes.
impl dispatch::Disk for DiskQueue {
    type Request = Request<IbnbdMq>;

    #[inline]
    fn queue_state(&self) -> QueueState {
        // ORDERING: Pairs with `set_queue_state`: a number that is read after `LIVE` belongs to the
        // device for which the state was set.
        match self.queue_state.load(Acquire) {
            LIVE => QueueState::Live,
            QUIESCED => QueueState::Quiesced,
            _ => QueueState::Failing,
        }
    }

    fn set_queue_state(&self, queue_state: QueueState) {
        let queue_state = match queue_state {
            QueueState::Live => LIVE,
            QueueState::Quiesced => QUIESCED,
            QueueState::Failing => FAILING,
        };
        // ORDERING: Publishes the number of the device; fully ordered, as the trait demands.
        self.queue_state.xchg(queue_state, Full);
    }

    #[inline]
    fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    fn set_gone(&self) {
        self.gone.xchg(true, Full);
    }

    #[inline]
    fn device_id(&self) -> u32 {
        self.device_id.load(Relaxed)
    }

    fn set_device_id(&self, id: u32) {
        self.device_id.store(id, Relaxed);
    }

    fn barrier(&self) {
        // ORDERING: A value-returning atomic operation with `Full` is a full barrier.
        self.queue_state.fetch_add(0, Full);
    }

    fn put(&self, tag: u32, rq: Request<IbnbdMq>) -> Result<(), Request<IbnbdMq>> {
        match self.queued.get(tag) {
            Some(slot) => slot.put(rq),
            None => Err(rq),
        }
    }

    fn requeue(&self, tag: u32) {
        if let Some(slot) = self.queued.get(tag) {
            requeue(slot);
        }
    }

    fn requeue_all(&self) {
        for slot in self.queued.iter() {
            requeue(slot);
        }
    }
}

/// The last close, and recovery from a loss of unflushed writes.
impl DiskQueue {
    /// Records that the last opener has closed the disk.
    ///
    /// # Context
    ///
    /// May sleep, but not for the server or the disk; with the disk's open mutex held.
    pub(crate) fn closed(&self) {
        self.say_whole(self.write_cache.closed());
        // ORDERING: The device sets the queue state of a refusal and then reads the number of openers,
        // which the caller has changed before it reads the queue state: at least one of the two sees
        // the other's change.
        dispatch::Disk::barrier(self);
        let failing = dispatch::Disk::queue_state(self) == QueueState::Failing;
        if failing && !dispatch::Disk::is_gone(self) {
            self.devices.disk_closed(self.fair_share.number());
        }
    }

    /// Acknowledges the loss at the operator's request.
    pub(crate) fn accept_loss(&self) {
        self.say_whole(self.write_cache.accept_loss());
    }

    fn say_whole(&self, whole_now: bool) {
        if whole_now {
            pr_info!("ibnbd{}: flushes succeed again\n", self.fair_share.number());
        }
    }
}

fn requeue(slot: &TakeCell<Request<IbnbdMq>>) {
    if let Some(rq) = slot.take() {
        request::hand_back(rq);
    }
}
