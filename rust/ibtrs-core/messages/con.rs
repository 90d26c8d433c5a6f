// SPDX-License-Identifier: GPL-2.0

//! A message connection: a queue pair on which both sides send frames.
//!
//! Each frame is copied into a buffer that stays mapped, and sent from there. The peer has a receive for
//! each frame that may be in flight ([`limits::FRAMES`]), and one for the frame that it handles: it is
//! never without one.
//!
//! # Lock order
//!
//! `MessageConn::out`, which may be taken under the locks of the service; then `MessageConn::buffer`, or the
//! locks of the path and of the queue pair. `MessageConn::backlog` is taken alone.

use super::{
    memory::{
        Access,
        Device,
        Reads,
        Region,
        RegionUse,
        Remote,
        Source,
        Target,
        MAX_REGION, //
    },
    Arrived,
    Attached,
    Conn,
    Connection,
    Frame, //
};
use ibmsg_proto::limits;
use kernel::{
    fmt,
    new_spinlock_irq,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};
use kx::{
    deque::Deque,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        PercpuArc,
        SetOnce, //
    },
    user::UserPages,
    work::{
        DelayedWork,
        Queue,
        WorkItem, //
    }, //
};
use rdma::{
    cm::CmId,
    cq::PollContext,
    dma::{
        Direction,
        DmaBuf,
        DmaUser,
        Sink, //
    },
    mr::UserMr,
    pd::Pd,
    qp::{
        Handler,
        Qp,
        QpConfig,
        QpRef,
        QueuePair, //
    },
    recv::{
        Received,
        RecvClass,
        Repost,
        MAX_CLASSES, //
    },
    sendq::{
        is_surely_unsent,
        Doorbell,
        Position,
        Signal,
        SqSpace, //
    },
    sge::Sge,
    slot::{
        Kind,
        SlotRef,
        Slots, //
    },
    wc::Wc,
};

/// Bytes of a frame.
// CAST: A small constant.
const FRAME: usize = limits::FRAME as usize;
/// Receives, of which one is that of the frame being handled.
const RECEIVES: u32 = limits::FRAMES + 1;
/// Receives of a class, whose memory is one piece: few enough that it is easily found.
const OF_CLASS: u32 = RECEIVES / MAX_CLASSES as u32;
const _: () = assert!(OF_CLASS * MAX_CLASSES as u32 == RECEIVES);
/// One in this many sends is signalled: each completion costs an interrupt.
const SIGNAL_EVERY: u32 = 4;
/// Buffers for frames in flight. The peer may consume a frame and grant a credit for the next one before its
/// send has completed here.
const SENDS: u16 = (RECEIVES + 2 * SIGNAL_EVERY) as u16;
/// Buffers that are cached for later frames.
const KEPT: usize = 8;
/// Interval after which a frame that found no memory is offered again, in milliseconds.
const PAUSE_MS: u32 = 10;
/// Bytes of memory of a message connection, without its queues.
pub const BYTES: u64 = (2 * RECEIVES as u64 + SENDS as u64) * FRAME as u64;
/// Entries of its send queue and of its receive queue.
pub const ENTRIES: (u32, u32) = (SENDS as u32 + WORK_ENTRIES, RECEIVES);
/// Writes, reads and invalidations that the device may have at a time; others wait.
const WORKS: u16 = 32;
/// Send queue entries for these and for registrations.
const WORK_ENTRIES: u32 = 64;
/// Scatter elements of a work request, if the device supports as many.
const SGES: u32 = 16;
/// Bytes of a write or read that are posted at a time, in as few work requests as the device
/// supports.
const CHUNK: usize = 32 * PAGE_SIZE;
/// The maximum number of regions of a connection, and how many of them are reserved for landing
/// zones.
const REGIONS: usize = 256;
const LANDINGS: usize = 64;

/// Callbacks from a message connection to its path, in any context.
pub trait Owner: Send + Sync {
    /// A message has arrived, so the peer is alive.
    fn heard(&self);

    /// Ends the path, because the connection was flushed: it is lost, or is being closed.
    fn flushed(&self);

    /// Closes the path because of an error of the connection; `what` is logged as the reason.
    fn error(&self, what: fmt::Arguments<'_>);

    /// As [`Owner::error`], because the peer has violated the protocol.
    fn breach(&self, what: fmt::Arguments<'_>);
}

/// A buffer that is mapped for the device.
#[pin_data]
struct Buffer {
    /// `None` for a slot of a request on memory, which sends no frame.
    #[pin]
    bytes: SpinLockIrq<Option<DmaBuf>>,
}

/// Frames and work requests in flight to the peer, and the queue of waiting ones.
struct Out {
    /// Buffers that are not in use.
    free: Deque<u16>,
    /// Buffers in use, in the order in which they were posted.
    posted: Deque<u16>,
    /// Sends since the last signalled one.
    unsignalled: u32,
    /// Frames and work that wait for a buffer or for send queue entries, in FIFO order.
    waiting: Deque<Waiting>,
    /// Memory for frames.
    kept: KVec<KVec<u8>>,
    /// The posted requests on memory, by slot number.
    works: KVec<Option<Posted>>,
    /// Regions without a key.
    regions: KVec<KBox<UserMr>>,
    /// Number of allocated regions.
    made: usize,
    /// How many of them are keys.
    keys: usize,
}

impl Out {
    /// Whether another region may have this use. The caller counts it with [`Out::count`].
    fn may_use(&self, usage: RegionUse) -> bool {
        usage != RegionUse::Key || self.keys < REGIONS - LANDINGS
    }

    fn count(&mut self, usage: RegionUse) {
        self.keys += usize::from(usage == RegionUse::Key);
    }

    fn count_off(&mut self, usage: RegionUse) {
        self.keys -= usize::from(usage == RegionUse::Key);
    }

    /// Keeps a region for reuse. Its key is invalid.
    fn keep(&mut self, mr: KBox<UserMr>, usage: RegionUse) {
        self.count_off(usage);
        // The list has capacity for all regions.
        let _ = self.regions.push_within_capacity(mr);
    }
}

/// A frame or work that is to be posted.
enum Waiting {
    Frame(Frame),
    /// A write, from byte `done` on.
    Write {
        from: Source,
        at: usize,
        len: usize,
        to: Remote,
        done: usize,
        cookie: u64,
    },
    /// A read, from byte `done` on.
    Read {
        into: Target,
        from: Remote,
        done: usize,
        cookie: u64,
    },
    /// An invalidation.
    Invalidate(Region, u64),
}

/// A posted request on memory.
struct Posted {
    cookie: u64,
    /// The source of a write.
    _from: Option<Source>,
    /// The target of a read.
    into: Option<Target>,
    /// The region whose key is invalidated.
    region: Option<Region>,
}

/// Received frames that the service could not process for lack of memory.
struct Backlog {
    /// Each with the number of its records that were processed.
    frames: Deque<(Frame, usize)>,
    /// Memory for more.
    spare: KVec<KVec<u8>>,
    /// The first one is being offered again.
    is_busy: bool,
}

#[pin_data]
struct Shared {
    id: Conn,
    reads: Reads,
    owner: Arc<dyn Owner>,
    upper: SetOnce<Arc<Attached>>,
    /// See [`Device::completions`]. Written under the lock of `out`.
    completions: Atomic<u32>,
    #[pin]
    out: SpinLockIrq<Out>,
    #[pin]
    backlog: SpinLockIrq<Backlog>,
    #[pin]
    retry: DelayedWork<Self>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Shared { self.retry }
}

impl WorkItem for Shared {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if !this.offer_again() {
            this.retry.enqueue_in(this.clone(), PAUSE_MS);
        }
    }
}

/// The handler of the queue pair.
struct Con {
    shared: Arc<Shared>,
}

/// A message connection and its owner's end.
pub struct MessageConn {
    shared: Arc<Shared>,
    qp: Qp<Con>,
}

impl MessageConn {
    /// Creates the queue pair of a connection id, with its receives; `queue` runs the retries of frames
    /// that wait for memory, and `reads` are the limits that are negotiated by the connection manager.
    /// The path of `owner` must close the connection.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; errors of [`QpConfig::create`].
    pub fn new(
        id: (Conn, Arc<CmId>),
        pd: &Arc<Pd>,
        owner: Arc<dyn Owner>,
        queue: Arc<Queue>,
        vector: u32,
        reads: Reads,
    ) -> Result<KBox<Self>> {
        let (id, cm_id) = id;
        let shared = Shared::new((id, reads), owner, queue)?;
        let config = QpConfig {
            send_depth: ENTRIES.0,
            send_reserve: 0,
            send_sges: SGES.min(pd.device().max_send_sge()).max(1),
            recv_depth: RECEIVES,
            payloads: false,
            context: PollContext::SoftIrq,
            vector,
        };
        let con = Con {
            shared: shared.clone(),
        };
        let qp = config.create(cm_id, pd, con)?;
        let slots = Slots::new(SENDS + WORKS, |index| Buffer::new(pd, index < SENDS))?;
        qp.set_slots(slots)?;
        for class in 0..MAX_CLASSES {
            let spec = RecvClass {
                count: OF_CLASS,
                bytes: limits::FRAME,
                payload: 0,
            };
            qp.add_recvs(class, spec)?;
        }
        Ok(KBox::new(Self { shared, qp }, GFP_KERNEL)?)
    }

    /// Passes the connection, which is established on both sides, to the service. The peer has not sent
    /// anything yet.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL`: see [`Upper::connected`](super::Upper::connected).
    pub fn attach(&self, upper: Arc<Attached>) -> Result {
        let sender = Sender {
            shared: self.shared.clone(),
            qp: self.qp.get(),
        };
        let sender = Arc::new(sender, GFP_KERNEL)?;
        if !self.shared.upper.populate(upper.clone()) {
            return Err(EINVAL);
        }
        upper.connected(self.shared.id, sender, limits::FRAMES)
    }

    /// Begins to disconnect; see [`QueuePair::disconnect`].
    ///
    /// # Context
    ///
    /// May sleep; not from a handler.
    pub fn disconnect(&self) {
        self.qp.disconnect();
    }

    /// Closes the connection, and notifies the service. No frame arrives after this. May be called
    /// again.
    ///
    /// # Context
    ///
    /// May sleep; not from a handler.
    pub fn close(&self) {
        self.qp.close();
        self.shared.retry.disable_sync();
        self.shared.end_works();
        if let Some(upper) = self.shared.upper.as_ref() {
            upper.lost(self.shared.id);
        }
    }
}

impl Drop for MessageConn {
    fn drop(&mut self) {
        // The service holds a reference to the queue pair until `close` has notified it.
        self.close();
    }
}

impl Buffer {
    fn new(pd: &Arc<Pd>, is_for_frames: bool) -> Result<impl PinInit<Self, Error>> {
        let bytes = match is_for_frames {
            true => Some(DmaBuf::new(pd, FRAME)?),
            false => None,
        };
        Ok(try_pin_init!(Self { bytes <- new_buffer(bytes) }? Error))
    }
}

/// Never inlined: lockdep expects one class to have one name, at one address.
#[inline(never)]
fn new_buffer(bytes: Option<DmaBuf>) -> impl PinInit<SpinLockIrq<Option<DmaBuf>>> {
    new_spinlock_irq!(bytes, "MessageConn::buffer")
}

impl Shared {
    #[inline(never)]
    fn new(
        (id, reads): (Conn, Reads),
        owner: Arc<dyn Owner>,
        queue: Arc<Queue>,
    ) -> Result<Arc<Self>> {
        let mut out = Out {
            free: Deque::new(),
            posted: Deque::new(),
            unsignalled: 0,
            waiting: Deque::new(),
            kept: KVec::with_capacity(KEPT, GFP_KERNEL)?,
            works: KVec::with_capacity(WORKS.into(), GFP_KERNEL)?,
            regions: KVec::with_capacity(REGIONS, GFP_KERNEL)?,
            made: 0,
            keys: 0,
        };
        for _ in 0..WORKS {
            out.works.push_within_capacity(None)?;
        }
        out.free.reserve(SENDS.into(), GFP_KERNEL)?;
        out.posted.reserve(SENDS.into(), GFP_KERNEL)?;
        for index in 0..SENDS {
            let _ = out.free.push_back(index);
        }
        out.waiting.reserve(limits::FRAMES as usize, GFP_KERNEL)?;
        // One more than there are credits: credits may be renewed before the memory of a frame is
        // returned.
        let frames = limits::FRAMES as usize + 1;
        let mut backlog = Backlog {
            frames: Deque::new(),
            spare: KVec::with_capacity(frames, GFP_KERNEL)?,
            is_busy: false,
        };
        backlog.frames.reserve(frames, GFP_KERNEL)?;
        for _ in 0..frames {
            let bytes = KVec::from_elem(0, FRAME, GFP_KERNEL)?;
            backlog.spare.push_within_capacity(bytes)?;
        }
        Arc::pin_init(
            pin_init!(Self {
                id,
                reads,
                owner,
                upper: SetOnce::new(),
                completions: Atomic::new(0),
                out <- new_spinlock_irq!(out, "MessageConn::out"),
                backlog <- new_spinlock_irq!(backlog, "MessageConn::backlog"),
                retry <- kx::new_delayed_work!(queue, "MessageConn::retry"),
            }),
            GFP_KERNEL,
        )
    }

    /// Posts waiting frames and work, as far as there are buffers and send queue entries.
    fn send_waiting(&self, qp: &QueuePair<Con>, out: &mut Out) -> Result {
        while let Some(next) = out.waiting.pop_front() {
            let left = match next {
                Waiting::Frame(frame) => Self::send_frame(qp, out, frame)?,
                Waiting::Write { .. } => Self::send_write(qp, out, next)?,
                Waiting::Read { .. } => Self::send_read(qp, out, next)?,
                Waiting::Invalidate(region, cookie) => {
                    Self::send_invalidation(qp, out, region, cookie)?
                }
            };
            if let Some(left) = left {
                // `pop_front` has left a free place.
                let _ = out.waiting.push_front(left);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends a frame, unless it must wait.
    fn send_frame(qp: &QueuePair<Con>, out: &mut Out, frame: Frame) -> Result<Option<Waiting>> {
        let Some(index) = out.free.pop_front() else {
            return Ok(Some(Waiting::Frame(frame)));
        };
        let slot = qp.slot(index).ok_or(EINVAL)?;
        let bytes = frame.bytes.get(..frame.len).ok_or(EINVAL)?;
        let mut buffer = slot.bytes.lock();
        let buffer_bytes = (*buffer).as_mut().ok_or(EINVAL)?;
        buffer_bytes.write(0, bytes)?;
        let sge = buffer_bytes.sge(0, bytes.len())?;
        drop(buffer);
        // The completion of a send implies those of all earlier ones.
        let is_signalled = out.unsignalled + 1 == SIGNAL_EVERY;
        let sent = qp.send(SqSpace { wrs: 1, sges: 1 }, Doorbell::Now, |chain| {
            let signal = match is_signalled {
                true => Signal::Slot(slot, Kind::Send),
                false => Signal::None,
            };
            chain.send([sge], signal)
        });
        match sent {
            // Work for memory occupies the entries.
            Err(EAGAIN) => {
                let _ = out.free.push_front(index);
                return Ok(Some(Waiting::Frame(frame)));
            }
            sent => sent?,
        }
        out.unsignalled = (out.unsignalled + 1) % SIGNAL_EVERY;
        // There is a place for every buffer.
        let _ = out.posted.push_back(index);
        // If there are enough, this one is freed.
        let _ = out.kept.push_within_capacity(frame.bytes);
        Ok(None)
    }

    /// Posts the rest of a write, chunk by chunk, unless it must wait.
    fn send_write(qp: &QueuePair<Con>, out: &mut Out, write: Waiting) -> Result<Option<Waiting>> {
        let Waiting::Write {
            from,
            at,
            len,
            to,
            mut done,
            cookie,
        } = write
        else {
            return Err(EINVAL);
        };
        let place = out.works.iter_mut().position(|work| work.is_none());
        let slot = place.and_then(|place| Self::work_slot(qp, place));
        let mut posted = Ok(());
        while done < len && posted.is_ok() {
            let chunk = CHUNK.min(len - done);
            let is_last = done + chunk == len;
            let to = Remote {
                addr: to.addr.wrapping_add(done as u64),
                rkey: to.rkey,
            };
            posted = match slot {
                Some(slot) => {
                    let sges = from.sges(at + done, chunk);
                    Self::post_write(qp, sges, to, is_last.then_some(slot))
                }
                None => Err(EAGAIN),
            };
            if posted.is_ok() {
                done += chunk;
            }
        }
        if let Err(EAGAIN) = posted {
            return Ok(Some(Waiting::Write {
                from,
                at,
                len,
                to,
                done,
                cookie,
            }));
        }
        // Even after an error, the device may have received some of the work requests.
        let place = place.and_then(|place| out.works.get_mut(place));
        *place.ok_or(EINVAL)? = Some(Posted {
            cookie,
            _from: Some(from),
            into: None,
            region: None,
        });
        posted.map(|()| None)
    }

    fn post_write(
        qp: &QueuePair<Con>,
        sges: impl Iterator<Item = Sge> + Clone,
        to: Remote,
        signal: Option<SlotRef<'_, Con>>,
    ) -> Result {
        // CAST: Small numbers.
        let count = sges.clone().count() as u32;
        let most = SGES.min(qp.pd().device().max_send_sge()).max(1);
        let space = SqSpace {
            wrs: count.div_ceil(most),
            sges: count,
        };
        qp.send(space, Doorbell::Now, |chain| {
            let (mut sges, mut left, mut addr) = (sges, count, to.addr);
            while left > 0 {
                let now = left.min(most);
                left -= now;
                // CAST: Lossless.
                let part = sges.clone().take(now as usize);
                let bytes: u64 = part.clone().map(|sge| u64::from(sge.len())).sum();
                let to = Remote {
                    addr,
                    rkey: to.rkey,
                };
                let signal = match signal.filter(|_| left == 0) {
                    Some(slot) => Signal::Slot(slot, Kind::Other),
                    None => Signal::None,
                };
                chain.rdma_write_signalled(to, part, signal);
                addr = addr.wrapping_add(bytes);
                for _ in 0..now {
                    let _ = sges.next();
                }
            }
        })
    }

    /// Posts the rest of a read, chunk by chunk, unless it must wait.
    fn send_read(qp: &QueuePair<Con>, out: &mut Out, read: Waiting) -> Result<Option<Waiting>> {
        let Waiting::Read {
            mut into,
            from,
            mut done,
            cookie,
        } = read
        else {
            return Err(EINVAL);
        };
        let len = into.bytes();
        let place = out.works.iter_mut().position(|work| work.is_none());
        let slot = place.and_then(|place| Self::work_slot(qp, place));
        let mut posted = Ok(());
        while done < len && posted.is_ok() {
            let chunk = CHUNK.min(len - done);
            let is_last = done + chunk == len;
            let from = Remote {
                addr: from.addr.wrapping_add(done as u64),
                rkey: from.rkey,
            };
            posted = match slot {
                Some(slot) => {
                    let sinks = into.sinks(done, chunk);
                    Self::post_read(qp, sinks, from, is_last.then_some(slot))
                }
                None => Err(EAGAIN),
            };
            if posted.is_ok() {
                done += chunk;
            }
        }
        if let Err(EAGAIN) = posted {
            return Ok(Some(Waiting::Read {
                into,
                from,
                done,
                cookie,
            }));
        }
        // Even after an error, the device may have received some of the work requests.
        let place = place.and_then(|place| out.works.get_mut(place));
        *place.ok_or(EINVAL)? = Some(Posted {
            cookie,
            _from: None,
            into: Some(into),
            region: None,
        });
        posted.map(|()| None)
    }

    fn post_read<'s>(
        qp: &QueuePair<Con>,
        sinks: impl Iterator<Item = Sink<'s>> + Clone,
        from: Remote,
        signal: Option<SlotRef<'_, Con>>,
    ) -> Result {
        // CAST: Small numbers.
        let count = sinks.clone().count() as u32;
        let most = SGES.min(qp.pd().device().max_read_sge()).max(1);
        let space = SqSpace {
            wrs: count.div_ceil(most),
            sges: count,
        };
        qp.send(space, Doorbell::Now, |chain| {
            let (mut sinks, mut left, mut addr) = (sinks, count, from.addr);
            while left > 0 {
                let now = left.min(most);
                left -= now;
                // CAST: Lossless.
                let part = sinks.clone().take(now as usize);
                let bytes: u64 = part.clone().map(|sink| u64::from(sink.len())).sum();
                let from = Remote {
                    addr,
                    rkey: from.rkey,
                };
                let signal = match signal.filter(|_| left == 0) {
                    Some(slot) => Signal::Slot(slot, Kind::Other),
                    None => Signal::None,
                };
                chain.rdma_read(from, part, signal);
                addr = addr.wrapping_add(bytes);
                for _ in 0..now {
                    let _ = sinks.next();
                }
            }
        })
    }

    /// Posts an invalidation, unless it must wait.
    fn send_invalidation(
        qp: &QueuePair<Con>,
        out: &mut Out,
        region: Region,
        cookie: u64,
    ) -> Result<Option<Waiting>> {
        let place = out.works.iter_mut().position(|work| work.is_none());
        let slot = place.and_then(|place| Self::work_slot(qp, place));
        let posted = match slot {
            Some(slot) => qp.invalidate(region.remote().rkey, Signal::Slot(slot, Kind::Other)),
            None => Err(EAGAIN),
        };
        match posted {
            Err(EAGAIN) => return Ok(Some(Waiting::Invalidate(region, cookie))),
            posted => posted?,
        }
        let place = place.and_then(|place| out.works.get_mut(place));
        *place.ok_or(EINVAL)? = Some(Posted {
            cookie,
            _from: None,
            into: None,
            region: Some(region),
        });
        Ok(None)
    }

    /// The slot for work for memory.
    fn work_slot(qp: &QueuePair<Con>, place: usize) -> Option<SlotRef<'_, Con>> {
        // CAST: Less than `WORKS`.
        qp.slot(SENDS + place as u16)
    }

    /// Queues a frame or work at the end and posts as far as possible, or fails the path.
    fn post(&self, qp: &QueuePair<Con>, what: Waiting) {
        let mut out = self.out.lock();
        // There is a place unless completions of the device are overdue.
        let _ = out.waiting.reserve(1, GFP_ATOMIC | __GFP_NOWARN);
        match out.waiting.push_back(what) {
            Ok(()) => self.send_all(qp, &mut out),
            Err(what) => {
                drop(out);
                drop(what);
                let owner = &self.owner;
                owner.error(fmt!("no memory for a frame that waits to be sent"));
            }
        }
    }

    /// Drops all waiting and posted work. The queue pair must be drained, so that the device no
    /// longer uses the memory.
    fn end_works(&self) {
        loop {
            let mut out = self.out.lock();
            let waiting = out.waiting.pop_front();
            let work = out.works.iter_mut().find_map(Option::take);
            drop(out);
            if waiting.is_none() && work.is_none() {
                return;
            }
        }
    }

    /// Work for memory has completed. Returns its cookie.
    fn worked(&self, qp: &QueuePair<Con>, index: u16, done: Position) -> Option<u64> {
        let mut out = self.out.lock();
        self.count_completion();
        let place = usize::from(index.checked_sub(SENDS)?);
        let place = out.works.get_mut(place)?;
        let mut work = place.take()?;
        if let Some(into) = &work.into {
            into.end_reads(done);
        }
        if let Some(Region(mut mr, usage)) = work.region.take() {
            mr.invalidated();
            out.keep(mr, usage);
        }
        self.send_all(qp, &mut out);
        drop(out);
        Some(work.cookie)
    }

    /// Counts a completion; the caller has the lock of `out`.
    fn count_completion(&self) {
        // ORDERING: A counter, which only the holder of the lock changes.
        let count = self.completions.load(Relaxed);
        self.completions.store(count.wrapping_add(1), Relaxed);
    }

    /// A region without a key, which counts for its use until [`Out::keep`].
    fn region(&self, pd: &Arc<Pd>, usage: RegionUse) -> Result<KBox<UserMr>> {
        let mut out = self.out.lock();
        if !out.may_use(usage) {
            return Err(ENOBUFS);
        }
        if let Some(region) = out.regions.pop() {
            out.count(usage);
            return Ok(region);
        }
        if out.made >= REGIONS {
            return Err(ENOBUFS);
        }
        out.made += 1;
        out.count(usage);
        drop(out);
        // CAST: A small number.
        let pages = MAX_REGION.div_ceil(PAGE_SIZE) as u32;
        let region = UserMr::new(pd, pages).and_then(|mr| Ok(KBox::new(mr, GFP_KERNEL)?));
        region.inspect_err(|_| {
            let mut out = self.out.lock();
            out.made -= 1;
            out.count_off(usage);
        })
    }

    /// As [`Self::send_waiting`], and ends the path if that fails.
    fn send_all(&self, qp: &QueuePair<Con>, out: &mut Out) {
        match self.send_waiting(qp, out) {
            Ok(()) | Err(ENOTCONN) => {}
            Err(error) => self.owner.error(fmt!(
                "cannot send a message ({})",
                crate::convert::errno(error).as_str()
            )),
        }
    }

    /// Handles a received frame.
    ///
    /// # Errors
    ///
    /// The violation of the protocol, for the log.
    fn arrived(self: &Arc<Self>, bytes: &[u8]) -> Result<(), &'static str> {
        let upper = self
            .upper
            .as_ref()
            .ok_or("a frame on a path that is not complete")?;
        // Calls of the handler are not concurrent, and `offer_again` offers only frames of the backlog. If
        // the backlog is empty, no other task therefore offers a frame until this returns.
        let backlog = self.backlog.lock();
        let mut done = 0;
        if backlog.frames.is_empty() && !backlog.is_busy {
            drop(backlog);
            if upper.arrived(self.id, bytes, &mut done) == Arrived::Done {
                return Ok(());
            }
        } else {
            drop(backlog);
        }
        self.keep(bytes, done)
    }

    /// Puts a frame into the backlog.
    fn keep(self: &Arc<Self>, bytes: &[u8], done: usize) -> Result<(), &'static str> {
        const TOO_MANY: &str = "more frames than credits";
        let mut backlog = self.backlog.lock();
        let mut memory = backlog.spare.pop().ok_or(TOO_MANY)?;
        let place = memory.get_mut(..bytes.len()).ok_or("a frame is too long")?;
        place.copy_from_slice(bytes);
        let frame = Frame {
            bytes: memory,
            len: bytes.len(),
        };
        let pushed = backlog.frames.push_back((frame, done));
        drop(backlog);
        pushed.map_err(|_| TOO_MANY)?;
        self.retry.enqueue_in(self.clone(), PAUSE_MS);
        Ok(())
    }

    /// Passes the frames of the backlog to the service again. Returns whether it accepted all of them.
    fn offer_again(&self) -> bool {
        let Some(upper) = self.upper.as_ref() else {
            return true;
        };
        let mut backlog = self.backlog.lock();
        while let Some((frame, mut done)) = backlog.frames.pop_front() {
            backlog.is_busy = true;
            drop(backlog);
            let bytes = frame.bytes.get(..frame.len).unwrap_or(&[]);
            let arrived = upper.arrived(self.id, bytes, &mut done);
            backlog = self.backlog.lock();
            backlog.is_busy = false;
            if arrived == Arrived::Later {
                // `pop_front` has left a free place.
                let _ = backlog.frames.push_front((frame, done));
                return false;
            }
            let _ = backlog.spare.push_within_capacity(frame.bytes);
        }
        true
    }
}

impl Handler for Con {
    type Slot = Buffer;

    fn received(&self, _qp: QpRef<'_, Self>, message: Received<'_>) -> Repost {
        self.shared.owner.heard();
        let result = match (message.imm, message.invalidated) {
            (None, None) => self.shared.arrived(message.bytes),
            _ => Err("more than a frame"),
        };
        match result {
            Ok(()) => Repost::Yes,
            Err(what) => {
                self.shared
                    .owner
                    .breach(fmt!("message connection: {}", what));
                Repost::No
            }
        }
    }

    fn sent(&self, qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>) {
        let mut out = self.shared.out.lock();
        self.shared.count_completion();
        // There is a place for every buffer.
        while let Some(index) = out.posted.pop_front() {
            let _ = out.free.push_back(index);
            if index == slot.index() {
                break;
            }
        }
        self.shared.send_all(&qp, &mut out);
    }

    fn slot_done(&self, qp: QpRef<'_, Self>, slot: SlotRef<'_, Self>, done: Position) {
        let cookie = self.shared.worked(&qp, slot.index(), done);
        if let (Some(cookie), Some(upper)) = (cookie, self.shared.upper.as_ref()) {
            upper.completed(self.shared.id, cookie);
        }
    }

    fn sq_space_freed(&self, qp: QpRef<'_, Self>) {
        let mut out = self.shared.out.lock();
        if !out.waiting.is_empty() {
            self.shared.send_all(&qp, &mut out);
        }
    }

    fn failed(&self, _qp: QpRef<'_, Self>, wc: &Wc) {
        // Flushed work requests follow an error that was reported before, or a disconnect.
        if wc.is_flush() {
            self.shared.owner.flushed();
        } else {
            self.shared.owner.error(fmt!("message connection: {}", wc));
        }
    }

    fn receive_failed(&self, qp: QpRef<'_, Self>, wc: &Wc) {
        if wc.is_peers_mistake() {
            self.shared
                .owner
                .breach(fmt!("message connection: a frame: {}", wc));
        } else {
            self.failed(qp, wc);
        }
    }
}

/// The service's handle for sending frames.
struct Sender {
    shared: Arc<Shared>,
    qp: PercpuArc<QueuePair<Con>>,
}

impl Connection for Sender {
    fn room(&self) -> Option<Frame> {
        let kept = self.shared.out.lock().kept.pop();
        Frame::new(kept, FRAME)
    }

    fn send(&self, frame: Frame) {
        self.shared.post(&self.qp, Waiting::Frame(frame));
    }

    fn memory(&self) -> Option<&dyn Device> {
        Some(self)
    }

    fn fail(&self, why: &str) {
        self.shared
            .owner
            .breach(fmt!("message connection: {}", why));
    }

    fn give_up(&self, why: &str) {
        self.shared.owner.error(fmt!("message connection: {}", why));
    }
}

impl Device for Sender {
    fn map(&self, pages: &Arc<UserPages>, at: usize, len: usize) -> Result<Source> {
        let mapped = DmaUser::new(self.qp.pd(), pages, at, len, Direction::ToDevice)?;
        Source::new(mapped)
    }

    fn register(
        &self,
        pages: &Arc<UserPages>,
        at: usize,
        len: usize,
        (access, usage): (Access, RegionUse),
    ) -> Result<Region> {
        let mut mr = self.shared.region(self.qp.pd(), usage)?;
        let dir = Direction::Bidirectional;
        let memory = DmaUser::new(self.qp.pd(), pages, at, len, dir);
        if let Err(e) = memory.and_then(|memory| mr.describe(memory)) {
            self.shared.out.lock().keep(mr, usage);
            return Err(e);
        }
        let space = SqSpace { wrs: 1, sges: 0 };
        let posted = self.qp.send(space, Doorbell::Now, |chain| {
            chain.reg_mr(&mr, access);
        });
        match posted {
            Ok(()) => Ok(Region(mr, usage)),
            Err(e) if is_surely_unsent(e) => {
                mr.invalidated();
                self.shared.out.lock().keep(mr, usage);
                Err(e)
            }
            // The connection is unusable; its protection domain keeps the memory.
            Err(e) => {
                self.shared.owner.error(fmt!(
                    "cannot register memory ({})",
                    crate::convert::errno(e).as_str()
                ));
                Err(e)
            }
        }
    }

    fn invalidate(&self, region: Region, cookie: u64) {
        self.shared
            .post(&self.qp, Waiting::Invalidate(region, cookie));
    }

    fn write(&self, from: &Source, at: usize, len: usize, to: Remote, cookie: u64) {
        let write = Waiting::Write {
            from: from.clone(),
            at,
            len,
            to,
            done: 0,
            cookie,
        };
        self.shared.post(&self.qp, write);
    }

    fn can_read(&self) -> bool {
        self.shared.reads.of_peer > 0
    }

    fn is_readable(&self) -> bool {
        self.shared.reads.by_peer > 0
    }

    fn map_target(&self, pages: &Arc<UserPages>, at: usize, len: usize) -> Result<Target> {
        let mapped = DmaUser::new(self.qp.pd(), pages, at, len, Direction::FromDevice)?;
        Target::new(mapped)
    }

    fn read(&self, into: Target, from: Remote, cookie: u64) {
        let read = Waiting::Read {
            into,
            from,
            done: 0,
            cookie,
        };
        self.shared.post(&self.qp, read);
    }

    fn completions(&self) -> u32 {
        // ORDERING: A counter.
        self.shared.completions.load(Relaxed)
    }
}
