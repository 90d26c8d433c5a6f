// SPDX-License-Identifier: GPL-2.0

//! What the requests of a disk need to know, and those of them that wait.
//!
//! The server names a device by a number, which it has forgotten when it was
//! restarted. Until the device is open again, requests are kept here, each in the
//! place of its tag; then they are queued once more, and decided about anew.
//!
//! Contexts: *any*, where nothing else is said.

use crate::{
    by_tag::ByTag,
    cache::Cache,
    patience::Patience,
    queue::Queue,
    share::{
        Neighbours,
        Share, //
    }, //
};
pub(crate) use ibnbd_proto::gate::Verdict;
use ibnbd_proto::{
    gate,
    state::Gate, //
};
use ibtrs_client::Session;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            AtomicFlag,
            Full,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kx::{
    blk::{
        Request,
        Status, //
    },
    sync::TakeCell, //
};

const PASS: u32 = 0;
const HOLD: u32 = 1;
const FAIL: u32 = 2;

/// What a disk of some device is like for requests.
pub(crate) struct Traits {
    /// The number of the disk.
    pub(crate) number: u32,
    /// The other disks of the session.
    pub(crate) neighbours: Arc<Neighbours>,
    /// The server's number of the device.
    pub(crate) device_id: u32,
    /// Nobody may write.
    pub(crate) read_only: bool,
    /// The server wants priorities.
    pub(crate) prio: bool,
    /// The server's disk keeps everything that it answers.
    pub(crate) safe: bool,
}

/// The driver's part of a disk.
#[pin_data]
pub(crate) struct DiskIo {
    transport: Arc<Session>,
    read_only: bool,
    prio: bool,
    device_id: Atomic<u32>,
    gate: Atomic<u32>,
    /// The disk goes, no matter who uses it.
    gone: AtomicFlag,
    /// The server's disk caches writes, and the block layer does not know.
    write_through: AtomicFlag,
    cache: Cache,
    patience: Patience,
    #[pin]
    share: Share,
    /// Requests that wait, by tag.
    held: ByTag<TakeCell<Request<Queue>>>,
}

impl DiskIo {
    /// Makes the part of a disk.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(transport: Arc<Session>, traits: &Traits) -> Result<Arc<Self>> {
        let tags = usize::from(transport.io_depth());
        let (number, neighbours) = (traits.number, traits.neighbours.clone());
        let init = try_pin_init!(Self {
            transport,
            read_only: traits.read_only,
            prio: traits.prio,
            device_id: Atomic::new(traits.device_id),
            gate: Atomic::new(PASS),
            gone: AtomicFlag::new(false),
            write_through: AtomicFlag::new(false),
            cache: Cache::new(traits.safe),
            patience: Patience::new(tags)?,
            share <- Share::new(neighbours, number, tags),
            held: ByTag::new(tags, TakeCell::empty)?,
        }? Error);
        Arc::pin_init(init, GFP_KERNEL)
    }

    /// Returns the session.
    #[inline]
    pub(crate) fn transport(&self) -> &Arc<Session> {
        &self.transport
    }

    /// Returns what is known of the server's cache.
    #[inline]
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns what is known of requests that take too long.
    #[inline]
    pub(crate) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Returns the disk's part of the session.
    #[inline]
    pub(crate) fn share(&self) -> &Share {
        &self.share
    }

    /// Returns whether nobody may write.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether the server wants priorities.
    #[inline]
    pub(crate) fn wants_prio(&self) -> bool {
        self.prio
    }

    /// Returns whether what is written must not stay in the server's cache.
    #[inline]
    pub(crate) fn is_write_through(&self) -> bool {
        self.write_through.load(Relaxed)
    }

    /// Returns what to do with a request.
    #[inline]
    pub(crate) fn verdict(&self) -> Verdict {
        gate::verdict(self)
    }

    /// Keeps a request until the gate is moved.
    ///
    /// # Errors
    ///
    /// The request comes back if there is no place for it.
    pub(crate) fn hold(&self, rq: Request<Queue>) -> Result<(), (Request<Queue>, Status)> {
        gate::hold(self, rq.tag(), rq).map_err(|rq| (rq, Status::RESOURCE))
    }

    /// Lets requests go to the device that the server calls `device_id`; with
    /// `write_through` they do not stay in its cache.
    pub(crate) fn open(&self, device_id: u32, write_through: bool) {
        self.write_through.store(write_through, Relaxed);
        gate::open(self, device_id);
    }

    /// Moves the gate, and lets those decide anew that wait before it.
    pub(crate) fn set_gate(&self, gate: Gate) {
        gate::set(self, gate);
    }

    /// Lets requests that wait, and all later ones, fail. Requests that pass still end, as the
    /// session is there.
    pub(crate) fn set_gone(&self) {
        gate::go(self);
    }
}

/// The words and places that [`gate`] decides about.
impl gate::Disk for DiskIo {
    type Request = Request<Queue>;

    #[inline]
    fn gate(&self) -> Gate {
        // ORDERING: Pairs with `set_gate`, so that the number is that of the device.
        match self.gate.load(Acquire) {
            PASS => Gate::Pass,
            HOLD => Gate::Hold,
            _ => Gate::Fail,
        }
    }

    fn set_gate(&self, gate: Gate) {
        let gate = match gate {
            Gate::Pass => PASS,
            Gate::Hold => HOLD,
            Gate::Fail => FAIL,
        };
        // ORDERING: Also publishes the number.
        self.gate.xchg(gate, Full);
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
        // ORDERING: A full barrier, as all exchanges that give a value back.
        self.gate.fetch_add(0, Full);
    }

    fn put(&self, tag: u32, rq: Request<Queue>) -> Result<(), Request<Queue>> {
        match self.held.get(tag) {
            Some(slot) => slot.put(rq),
            None => Err(rq),
        }
    }

    fn requeue(&self, tag: u32) {
        if let Some(slot) = self.held.get(tag) {
            requeue(slot);
        }
    }

    fn requeue_all(&self) {
        for slot in self.held.iter() {
            requeue(slot);
        }
    }
}

/// After the server has lost writes that were not flushed.
impl DiskIo {
    /// Nobody has the disk open any more.
    pub(crate) fn closed(&self) {
        self.say_whole(self.cache.closed());
    }

    /// Those who have the disk open know what was lost.
    pub(crate) fn accept_loss(&self) {
        self.say_whole(self.cache.accept_loss());
    }

    fn say_whole(&self, whole_now: bool) {
        if whole_now {
            pr_info!("ibnbd{}: flushes succeed again\n", self.share.number());
        }
    }
}

fn requeue(slot: &TakeCell<Request<Queue>>) {
    if let Some(rq) = slot.take() {
        rq.requeue();
    }
}
