// SPDX-License-Identifier: GPL-2.0

//! Tests of both halves of this module together: they create a disk, open it and do I/O to it.

use super::*;
use crate::{
    io::IoHandle,
    mm::{
        Node,
        PageBlock,
        Pieces, //
    },
    sg::SgList,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Full,
            Relaxed, //
        },
        Completion,
        TakeCell, //
    },
    sysfs::Action,
    work, //
};
use kernel::{
    bindings,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
    ModuleMetadata, //
};

/// A sector that cannot be read or written.
const BAD_SECTOR: u64 = 1000;
const CAPACITY: u64 = 2048;

/// Code without a module, so nothing keeps the test's code loaded while its disks are open: a test
/// must close and free them before it ends.
struct NoModule;

impl ModuleMetadata for NoModule {
    const NAME: &'static CStr = c"kx_test";
    // SAFETY: A null pointer stands for code without a module, and is allowed as an owner.
    const THIS_MODULE: ThisModule = unsafe { ThisModule::from_ptr(core::ptr::null_mut()) };
}

/// A disk that stores nothing, and counts requests.
struct NullDriver;

struct NullPdu {
    magic: u32,
    uses: Atomic<u32>,
}

impl Default for NullPdu {
    fn default() -> Self {
        Self {
            magic: MAGIC,
            uses: Atomic::new(0),
        }
    }
}

struct Counts {
    reads: Atomic<u32>,
    bytes: Atomic<u32>,
    flushes: Atomic<u32>,
    others: Atomic<u32>,
    fuas: Atomic<u32>,
    busy: Atomic<u32>,
    /// Number of requests to requeue on arrival, or [`HOLD`], or [`SWAP`].
    requeues: Atomic<u32>,
    /// A request that the driver holds back for a while.
    held: TakeCell<Request<NullDriver>>,
    commits: Atomic<u32>,
    opens: Atomic<i32>,
    /// Failed checks: a list that was not empty, or a call of `release` with a wrong `last`.
    miscounts: Atomic<u32>,
}

impl Counts {
    fn zero() -> Self {
        Self {
            reads: Atomic::new(0),
            bytes: Atomic::new(0),
            flushes: Atomic::new(0),
            others: Atomic::new(0),
            fuas: Atomic::new(0),
            busy: Atomic::new(0),
            requeues: Atomic::new(0),
            held: TakeCell::empty(),
            commits: Atomic::new(0),
            opens: Atomic::new(0),
            miscounts: Atomic::new(0),
        }
    }
}

const MAGIC: u32 = 0x1bbd;
/// The next request is held back instead of being requeued.
const HOLD: u32 = u32::MAX;
/// The next request is held back, and the one held back before is returned in its place.
const SWAP: u32 = u32::MAX - 1;

#[vtable]
impl Operations for NullDriver {
    type OwnerModule = NoModule;
    type Pdu = NullPdu;
    type Shared = ();
    type Sg = SgList<8>;
    type QueueData = Arc<Counts>;

    fn queue_rq(
        hctx: Hctx<'_>,
        disk: &Arc<Counts>,
        mut rq: Request<Self>,
        _last: bool,
    ) -> Result<(), (Request<Self>, Status)> {
        // Every third request is refused at first.
        if disk.busy.fetch_add(1, Relaxed) % 3 == 2 {
            return Err((rq, Status::RESOURCE));
        }
        if hctx.index() >= 2 || rq.tag() >= 16 || rq.pdu().magic != MAGIC {
            return Err((rq, Status::TARGET));
        }
        rq.pdu().uses.fetch_add(1, Relaxed);
        match disk.requeues.load(Relaxed) {
            0 => (),
            HOLD => {
                disk.requeues.store(0, Relaxed);
                return disk.held.put(rq).map_err(|rq| (rq, Status::TARGET));
            }
            SWAP => {
                disk.requeues.store(0, Relaxed);
                let Some(other) = disk.held.take() else {
                    return Err((rq, Status::TARGET));
                };
                return match disk.held.put(rq) {
                    Ok(()) => Err((other, Status::RESOURCE)),
                    Err(rq) => Err((rq, Status::TARGET)),
                };
            }
            left => {
                disk.requeues.store(left - 1, Relaxed);
                rq.requeue();
                return Ok(());
            }
        }
        // No data is left from the previous use of the request.
        if !rq.table().is_some_and(|table| table.is_empty()) {
            disk.miscounts.fetch_add(1, Relaxed);
        }
        let Ok((nents, mapped)) = rq.map_sg().map(|table| (table.nents(), table.bytes())) else {
            return Err((rq, Status::INVALID));
        };
        match rq.op() {
            Some(Op::Read | Op::Write) if nents == 0 || mapped != u64::from(rq.bytes()) => {
                return Err((rq, Status::INVALID));
            }
            Some(Op::Read) => {
                disk.reads.fetch_add(1, Relaxed);
            }
            Some(Op::Write) => {
                disk.bytes.fetch_add(rq.bytes(), Relaxed);
            }
            Some(Op::Flush) => {
                disk.flushes.fetch_add(1, Relaxed);
            }
            _ => {
                disk.others.fetch_add(1, Relaxed);
            }
        }
        if rq.is_fua() {
            disk.fuas.fetch_add(1, Relaxed);
        }
        let end = rq.sector().saturating_add(u64::from(rq.bytes()) / 512);
        if rq.op() != Some(Op::Flush) && (rq.sector()..end).contains(&BAD_SECTOR) {
            rq.end(Status::MEDIUM);
        } else {
            rq.end(Status::OK);
        }
        Ok(())
    }

    fn commit_rqs(_hctx: Hctx<'_>, disk: &Arc<Counts>) {
        disk.commits.fetch_add(1, Relaxed);
    }

    fn open(disk: &Arc<Counts>, mode: OpenMode) -> Result {
        if mode.exclusive && mode.write {
            return Err(EPERM);
        }
        disk.opens.fetch_add(1, Relaxed);
        Ok(())
    }

    fn release(disk: &Arc<Counts>, last: bool) {
        let others = disk.opens.fetch_add(-1, Relaxed) - 1;
        if last != (others == 0) {
            disk.miscounts.fetch_add(1, Relaxed);
        }
    }
}

impl IoOperations for NullDriver {
    fn io_done(rq: Request<Self>, _result: Result) {
        rq.requeue();
    }
}

/// A driver that supports polled I/O, and has no disks.
struct PolledDriver;

#[vtable]
impl Operations for PolledDriver {
    type OwnerModule = NoModule;
    type Pdu = NullPdu;
    type Shared = ();
    type Sg = ();
    type QueueData = u32;

    fn queue_rq(
        _hctx: Hctx<'_>,
        _disk: &u32,
        rq: Request<Self>,
        _last: bool,
    ) -> Result<(), (Request<Self>, Status)> {
        Err((rq, Status::TARGET))
    }

    fn poll(_hctx: Hctx<'_>, _disk: &u32) -> u32 {
        0
    }
}

fn polled_set(nr_queues: u32, nr_poll_queues: u32) -> Result<Pin<KBox<TagSet<PolledDriver>>>> {
    let spec = TagSetSpec {
        nr_queues,
        nr_poll_queues,
        depth: 16,
        ..TagSetSpec::default()
    };
    KBox::pin_init(TagSet::new(spec), GFP_KERNEL)
}

/// One I/O of the test, and the task that waits for it.
struct TestIo {
    dev: Arc<BlockDevice>,
    buf: Option<(Arc<Pieces>, usize)>,
    end: Arc<End>,
}

#[pin_data]
struct End {
    #[pin]
    done: Completion,
    errno: Atomic<i32>,
    /// Whether the end was reported inside an RCU read section.
    in_section: AtomicFlag,
}

impl End {
    fn wait(&self, ms: u32) -> Result {
        self.done.wait_timeout(ms)?;
        match self.errno.load(Relaxed) {
            0 => Ok(()),
            errno => Err(Error::from_errno(errno)),
        }
    }
}

impl BioOwner for TestIo {
    fn device(&self) -> &BlockDevice {
        &self.dev
    }

    fn buffer(&self) -> Option<BioBuf<'_>> {
        let (pieces, len) = self.buf.as_ref()?;
        BioBuf::new(pieces, 0, *len).ok()
    }

    fn done(self, status: Status) {
        let errno = status.to_result().map_or_else(|e| e.to_errno(), |()| 0);
        self.end.errno.store(errno, Relaxed);
        // SAFETY: The callee only reads the state of the current task.
        let in_section = unsafe { ibtrs_bindings::kx_in_rcu_section() };
        self.end.in_section.store(in_section, Relaxed);
        self.end.done.complete_all();
    }
}

struct Rig {
    table: BioTable<TestIo>,
    dev: Arc<BlockDevice>,
    pieces: Arc<Pieces>,
}

const PLAIN: BioSpec = BioSpec {
    op: Op::Read,
    sector: 0,
    bytes: 512,
    flags: BioFlags::SYNC,
    prio: 0xe000,
};

impl Rig {
    fn io(&self, spec: BioSpec) -> Result {
        self.start(spec)?.wait(10_000)
    }

    fn start(&self, spec: BioSpec) -> Result<Arc<End>> {
        self.start_in(3, spec)
    }

    /// Starts an I/O that the driver holds back; `how` is [`HOLD`] or [`SWAP`].
    fn start_kept(&self, slot: usize, counts: &Counts, how: u32) -> Result<Arc<End>> {
        self.keep(slot, counts, how, PLAIN)
    }

    fn keep(&self, slot: usize, counts: &Counts, how: u32, spec: BioSpec) -> Result<Arc<End>> {
        counts.requeues.store(how, Relaxed);
        let end = self.start_in(slot, spec)?;
        for _ in 0..200 {
            if counts.requeues.load(Relaxed) == 0 && counts.held.is_full() {
                return Ok(end);
            }
            fsleep(Delta::from_millis(50));
        }
        Err(ETIMEDOUT)
    }

    fn start_in(&self, slot: usize, spec: BioSpec) -> Result<Arc<End>> {
        let end = Arc::pin_init(
            pin_init!(End {
                done <- Completion::new(),
                errno: Atomic::new(1),
                in_section: AtomicFlag::new(false),
            }),
            GFP_KERNEL,
        )?;
        let io = TestIo {
            dev: self.dev.clone(),
            buf: spec
                .op
                .has_data()
                .then(|| (self.pieces.clone(), spec.bytes as usize)),
            end: end.clone(),
        };
        self.table.submit(slot, &spec, io).map_err(|(e, _)| e)?;
        Ok(end)
    }
}

fn spec(name: &'static str, limits: Limits, f: impl FnOnce(DiskSpec<'_>) -> Result) -> Result {
    f(DiskSpec {
        name: fmt!("{name}"),
        capacity_sectors: CAPACITY,
        limits,
        read_only: false,
    })
}

const LIMITS: Limits = Limits {
    logical_block_bytes: 512,
    physical_block_bytes: 4096,
    alignment_offset_bytes: 0,
    io_min_bytes: 4096,
    io_opt_bytes: 0,
    max_hw_sectors: 16,
    max_segments: 8,
    max_segment_bytes: 0,
    virt_boundary_mask: 4095,
    dma_alignment_mask: 511,
    max_discard_sectors: 64,
    discard_granularity_bytes: 4096,
    discard_alignment_bytes: 0,
    max_secure_erase_sectors: 0,
    max_write_zeroes_sectors: 32,
    write_zeroes_unmaps: false,
    write_cache: true,
    fua: true,
    rotational: false,
    stable_writes: true,
};

fn tag_set() -> Result<Arc<TagSet<NullDriver>>> {
    Arc::pin_init(
        TagSet::new(TagSetSpec {
            nr_queues: 2,
            depth: 16,
            shared_tags: true,
            no_scheduler: true,
            ..TagSetSpec::default()
        }),
        GFP_KERNEL,
    )
}

#[kernel::macros::kunit_tests(kx_blk_disk)]
mod suite {
    use super::*;

    #[test]
    fn pdu_follows_request() -> Result {
        let rq = KBox::pin_init(
            kernel::types::Opaque::<bindings::request>::ffi_init(|_| ()),
            GFP_KERNEL,
        )?;
        // SAFETY: Only computes an address.
        let c = unsafe { bindings::blk_mq_rq_to_pdu(rq.get()) };
        assert_eq!(Request::<NullDriver>::private_of(rq.get()).cast(), c);
        Ok(())
    }

    #[test]
    fn impossible_tag_sets() {
        let try_spec = |spec| {
            let set = KBox::pin_init(TagSet::<NullDriver>::new(spec), GFP_KERNEL);
            set.map(|_| ())
        };
        let none = TagSetSpec {
            nr_queues: 0,
            ..TagSetSpec::default()
        };
        assert_eq!(try_spec(none), Err(EINVAL));
        let no_tags = TagSetSpec {
            depth: 0,
            ..TagSetSpec::default()
        };
        assert_eq!(try_spec(no_tags), Err(EINVAL));
        // A queue for polled I/O, while the driver does not support polling.
        let polled = TagSetSpec {
            nr_poll_queues: 1,
            ..TagSetSpec::default()
        };
        assert_eq!(try_spec(polled), Err(EINVAL));
        for (nr_queues, nr_poll_queues) in [(0, 1), (u32::MAX, 1)] {
            assert!(polled_set(nr_queues, nr_poll_queues).is_err());
        }
    }

    /// Checks the queue of each CPU, in each map of a tag set.
    fn maps_are_right(nr_queues: u32, nr_poll_queues: u32) -> Result {
        let set = polled_set(nr_queues, nr_poll_queues)?;
        let cpus = kernel::cpu::nr_cpu_ids();
        // SAFETY: The tag set is initialized, and no disk uses it.
        let (nr_maps, all, maps) = unsafe {
            let set = set.as_raw();
            ((*set).nr_maps, (*set).nr_hw_queues, &(*set).map)
        };
        let ordinary = match nr_poll_queues {
            0 => nr_queues.min(cpus),
            _ => nr_queues,
        };
        assert_eq!(nr_maps, if nr_poll_queues > 0 { 3 } else { 1 });
        assert_eq!(all, ordinary + nr_poll_queues);
        // The maps for ordinary I/O, for reads, and for polled I/O.
        let wanted = [
            (0, ordinary),
            (0, ordinary),
            (ordinary, nr_poll_queues), //
        ];
        for (map, (first, nr)) in maps.iter().zip(wanted).take(nr_maps as usize) {
            assert_eq!((map.queue_offset, map.nr_queues), (first, nr));
            for cpu in 0..cpus {
                // SAFETY: A map has an entry for each CPU.
                let queue = unsafe { map.mq_map.add(cpu as usize).read() };
                assert_eq!(queue, first + cpu % nr);
            }
        }
        Ok(())
    }

    #[test]
    fn each_cpu_has_its_queues() -> Result {
        let cpus = kernel::cpu::nr_cpu_ids();
        let fewer = (cpus / 2).max(1);
        for (nr_queues, nr_poll_queues) in [
            (1, 0),
            (fewer, 0),
            (cpus, 0),
            // The block layer needs no more than one for each CPU.
            (cpus + 3, 0),
            (1, 1),
            (1, cpus),
            (fewer, 1),
            (cpus, 1),
            (cpus, fewer),
            (cpus, cpus),
            (cpus + 1, cpus + 2),
        ] {
            maps_are_right(nr_queues, nr_poll_queues)?;
        }
        Ok(())
    }

    #[test]
    fn bad_limits_leave_nothing() -> Result {
        let owner = DiskOwner::new()?;
        let counts = Arc::new(Counts::zero(), GFP_KERNEL)?;
        let limits = Limits {
            logical_block_bytes: 700,
            ..LIMITS
        };
        let res = spec("kxbad", limits, |spec| {
            GenDisk::add(spec, tag_set()?, counts.clone(), &owner).map(|_| ())
        });
        assert_eq!(res, Err(EINVAL));
        let res = spec("a-name-of-more-than-thirty-one-bytes", LIMITS, |spec| {
            GenDisk::add(spec, tag_set()?, counts.clone(), &owner).map(|_| ())
        });
        assert_eq!(res, Err(EINVAL));
        Ok(())
    }

    #[test]
    fn from_birth_to_death() -> Result {
        let owner = DiskOwner::new()?;
        let counts = Arc::new(Counts::zero(), GFP_KERNEL)?;
        let set = tag_set()?;
        assert_eq!(set.depth(), 16);
        spec("kxtest0", LIMITS, |spec| {
            let disk = GenDisk::add(spec, set.clone(), counts.clone(), &owner)?;
            assert_eq!(disk.name().to_bytes(), b"kxtest0");
            assert_eq!(disk.capacity_sectors(), CAPACITY);
            disk.scan_partitions()?;
            lifetime(&disk, &counts)?;
            Ok(())
        })?;
        drop(set);
        drop(owner);
        Ok(())
    }

    fn open_to_read(name: &CStr, holder: Option<&'static Holder>) -> Result<BlockDevice> {
        let spec = OpenSpec {
            write: false,
            holder,
        };
        BlockDevice::open(BlockDevice::find(c"/dev", name)?, spec)
    }

    /// Runs `func` on a worker; the result is set once `done` is completed.
    fn beside<R: Send + 'static>(
        queue: &work::Queue,
        func: impl FnOnce() -> R + Send + 'static,
    ) -> Result<Arc<Beside<R>>> {
        let init = pin_init!(Beside {
            done <- Completion::new(),
            result: TakeCell::empty(),
        });
        let this = Arc::pin_init(init, GFP_KERNEL)?;
        let there = this.clone();
        queue.spawn(GFP_KERNEL, move || {
            let _ = there.result.put(func());
            there.done.complete_all();
        })?;
        Ok(this)
    }

    #[pin_data]
    struct Beside<R> {
        #[pin]
        done: Completion,
        result: TakeCell<R>,
    }

    /// A new disk can be opened before its partition table is read. Exclusive opens block until it
    /// has been read.
    #[test]
    fn scanned_when_asked() -> Result {
        static HOLDER: Holder = Holder::new();

        let owner = DiskOwner::new()?;
        let queue = work::Queue::new(work::Options::unbound(), fmt!("kxtest"))?;
        let counts = Arc::new(Counts::zero(), GFP_KERNEL)?;
        spec("kxtest4", LIMITS, |spec| {
            let disk = GenDisk::add(spec, tag_set()?, counts.clone(), &owner)?;
            drop(open_to_read(c"kxtest4", None)?);
            assert_eq!(counts.reads.load(Relaxed), 0);
            let claim = beside(&queue, || open_to_read(c"kxtest4", Some(&HOLDER)).map(drop))?;
            assert_eq!(claim.done.wait_timeout(100), Err(ETIMEDOUT));
            disk.scan_partitions()?;
            let reads = counts.reads.load(Relaxed);
            assert!(reads > 0);
            claim.done.wait_timeout(10_000)?;
            assert_eq!(claim.result.take(), Some(Ok(())));
            disk.scan_partitions()?;
            assert_eq!(counts.reads.load(Relaxed), reads);
            assert_eq!(disk.begin_removal(false), Ok(()));
            Ok(())
        })?;
        // Dropping an unscanned disk ends the claim.
        spec("kxtest5", LIMITS, |spec| {
            let disk = GenDisk::add(spec, tag_set()?, counts.clone(), &owner)?;
            let claim = beside(&queue, || open_to_read(c"kxtest5", Some(&HOLDER)).map(drop))?;
            assert_eq!(claim.done.wait_timeout(100), Err(ETIMEDOUT));
            drop(disk);
            claim.done.wait_timeout(10_000)?;
            assert_eq!(claim.result.take(), Some(Err(ENXIO)));
            Ok(())
        })?;
        assert_eq!(counts.opens.load(Relaxed), 0);
        assert_eq!(counts.miscounts.load(Relaxed), 0);
        Ok(())
    }

    /// A disk whose partition table cannot be read can still be removed by force.
    #[test]
    fn a_scan_that_is_stuck() -> Result {
        let owner = DiskOwner::new()?;
        let queue = work::Queue::new(work::Options::unbound(), fmt!("kxtest"))?;
        let counts = Arc::new(Counts::zero(), GFP_KERNEL)?;
        spec("kxtest4", LIMITS, |spec| {
            let disk = GenDisk::add(spec, tag_set()?, counts.clone(), &owner)?;
            let disk = Arc::new(disk, GFP_KERNEL)?;
            counts.requeues.store(HOLD, Relaxed);
            let scan = {
                let disk = disk.clone();
                beside(&queue, move || disk.scan_partitions())?
            };
            wait_for_held(&counts)?;
            assert_eq!(disk.begin_removal(false), Err(EBUSY));
            assert_eq!(disk.begin_removal(true), Ok(()));
            disk.mark_dead();
            assert!(!scan.done.is_done());
            let rq = counts.held.take().ok_or(EINVAL)?;
            rq.end(Status::IO_ERROR);
            scan.done.wait_timeout(10_000)?;
            assert!(matches!(scan.result.take(), Some(Err(_))));
            disk.delete();
            Ok(())
        })?;
        spec("kxtest5", LIMITS, |spec| {
            let disk = GenDisk::add(spec, tag_set()?, counts.clone(), &owner)?;
            assert_eq!(disk.begin_removal(true), Ok(()));
            assert_eq!(disk.scan_partitions(), Err(ENXIO));
            Ok(())
        })?;
        queue.flush();
        assert_eq!(counts.opens.load(Relaxed), 0);
        Ok(())
    }

    /// Waits until the driver holds back a request.
    fn wait_for_held(counts: &Counts) -> Result {
        for _ in 0..1000 {
            if counts.held.is_full() {
                return Ok(());
            }
            fsleep(Delta::from_millis(10));
        }
        Err(ETIMEDOUT)
    }

    /// If two openers close a disk at once, neither of them writes back its data while the block layer
    /// still counts it. The disk is in use nevertheless.
    #[test]
    fn two_closers() -> Result {
        let owner = DiskOwner::new()?;
        let queue = work::Queue::new(work::Options::unbound(), fmt!("kxtest"))?;
        let counts = Arc::new(Counts::zero(), GFP_KERNEL)?;
        spec("kxtest6", LIMITS, |spec| {
            let disk = GenDisk::add(spec, tag_set()?, counts.clone(), &owner)?;
            disk.scan_partitions()?;
            assert_eq!(disk.usage(), Usage::None);
            let open = || {
                let spec = OpenSpec {
                    write: true,
                    holder: None,
                };
                BlockDevice::open(BlockDevice::find(c"/dev", c"kxtest6")?, spec)
            };
            let (first, second) = (open()?, open()?);
            first.write_cached(&[1; 4096])?;
            assert_eq!(disk.usage(), Usage::Open);
            counts.requeues.store(HOLD, Relaxed);
            let closers = disk.if_unlocked(|| {
                let closers = (
                    beside(&queue, move || drop(first))?,
                    beside(&queue, move || drop(second))?,
                );
                // Until both have found that they are not the last one, and wait for the mutex.
                fsleep(Delta::from_millis(1000));
                assert_eq!(disk.usage(), Usage::Open);
                Ok::<_, Error>(closers)
            });
            let (first, second) = closers.ok_or(EBUSY)??;
            wait_for_held(&counts)?;
            assert_eq!((disk.openers(), disk.usage()), (0, Usage::Changing));
            let rq = counts.held.take().ok_or(EINVAL)?;
            assert_eq!(rq.op(), Some(Op::Write));
            rq.end(Status::OK);
            first.done.wait_timeout(10_000)?;
            second.done.wait_timeout(10_000)?;
            assert_eq!(disk.usage(), Usage::None);
            Ok(())
        })?;
        queue.flush();
        assert_eq!(counts.opens.load(Relaxed), 0);
        assert_eq!(counts.miscounts.load(Relaxed), 0);
        Ok(())
    }

    /// A tag set is marked shared from its first disk to its last, so that the block layer never freezes the
    /// queue of one disk because another is added or removed.
    #[test]
    fn shared_by_one_disk() -> Result {
        let owner = DiskOwner::new()?;
        let counts = Arc::new(Counts::zero(), GFP_KERNEL)?;
        let set = tag_set()?;
        let add = |name| {
            let mut disk = None;
            spec(name, LIMITS, |spec| {
                disk = Some(GenDisk::add(spec, set.clone(), counts.clone(), &owner)?);
                Ok(())
            })?;
            disk.ok_or(EINVAL)
        };
        let is_shared = || {
            // SAFETY: The tag set is allocated; no disk is added or removed concurrently.
            unsafe { (*set.as_raw()).flags & bindings::BLK_MQ_F_TAG_QUEUE_SHARED != 0 }
        };
        drop(add("kxtest1")?);
        // A disk that is added after all others were removed.
        let first = add("kxtest2")?;
        assert!(is_shared());
        let second = add("kxtest3")?;
        assert!(is_shared());
        drop(first);
        assert!(is_shared());
        drop(second);
        Ok(())
    }

    fn lifetime(disk: &GenDisk<NullDriver>, counts: &Counts) -> Result {
        static HOLDER: Holder = Holder::new();

        let plain = OpenSpec {
            write: true,
            holder: None,
        };
        let claim = OpenSpec {
            write: true,
            holder: Some(&HOLDER),
        };
        let open = |spec| BlockDevice::open(BlockDevice::find(c"/dev", c"kxtest0")?, spec);
        let find = |root, path| BlockDevice::find(root, path).err();
        assert_eq!(find(c"/dev", c"kxtest1"), Some(ENOENT));
        assert_eq!(find(c"/dev", c"null"), Some(ENOTBLK));
        assert_eq!(find(c"/proc", c"../dev/kxtest0"), Some(EXDEV));
        // No driver has this major number.
        assert_eq!(BlockDevice::open(u32::MAX, plain).err(), Some(ENXIO));
        assert_eq!(open(claim).err(), Some(EPERM));

        let mut rig = Rig {
            table: BioTable::new(4)?,
            dev: Arc::new(frozen(disk, || open(plain))?, GFP_KERNEL)?,
            pieces: Arc::new(Pieces::new(8 * PAGE_SIZE, Node::ANY)?, GFP_KERNEL)?,
        };
        assert_eq!(rig.dev.capacity_sectors(), CAPACITY);
        assert_eq!(rig.dev.name().to_bytes(), b"kxtest0");
        let limits = rig.dev.limits();
        assert_eq!(limits.physical_block_bytes, 4096);
        assert_eq!(limits.max_discard_sectors, 64);
        assert!(limits.write_cache && limits.fua && !limits.rotational);
        assert_eq!(rig.dev.unique_id(), None);
        assert_eq!((rig.dev.partition(), rig.dev.partition_uuid()), (0, None));
        drop(open(plain)?);
        transfers(disk, &rig, counts)?;
        rig.pieces = Arc::new(Pieces::of_size(5 * PAGE_SIZE, PAGE_SIZE)?, GFP_KERNEL)?;
        in_pieces(&rig, counts)?;
        again(&rig, counts)?;
        swapped(&rig, counts)?;
        tail(&rig, counts)?;
        handed_out(&rig, counts)?;
        abandoned(disk, &rig, counts)?;
        disk.uevent(Action::Offline, &[c"TEST=1"])?;
        disk.uevent(Action::Online, &[])?;

        assert_eq!(disk.begin_removal(false), Err(EBUSY));
        drop(disk.quiesce());
        disk.set_capacity(CAPACITY / 2);
        disk.announce_size()?;
        assert_eq!(rig.dev.capacity_sectors(), CAPACITY / 2);

        // Removed under an opener.
        assert_eq!(disk.begin_removal(true), Ok(()));
        assert_eq!(disk.begin_removal(true), Err(EALREADY));
        assert_eq!(open(plain).err(), Some(ENXIO));
        disk.mark_dead();
        disk.delete();
        disk.delete();
        assert_eq!(disk.uevent(Action::Change, &[]), Err(ENODEV));
        disk.announce();
        assert_eq!(disk.announce_size(), Err(ENODEV));
        assert!(rig.io(PLAIN).is_err());
        drop(rig);
        assert_eq!(counts.opens.load(Relaxed), 0);
        assert_eq!(counts.miscounts.load(Relaxed), 0);
        Ok(())
    }

    /// An I/O of memory in several pieces has all of their bytes, in order, and no others.
    fn in_pieces(rig: &Rig, counts: &Counts) -> Result {
        let bytes = 2 * PAGE_SIZE - 512;
        let write = BioSpec {
            op: Op::Write,
            bytes: u32::try_from(bytes)?,
            ..PLAIN
        };
        for at in 0..rig.pieces.len() {
            // CAST: Any byte will do.
            rig.pieces.copy_in(at, &[(at % 251) as u8])?;
        }
        let end = rig.keep(3, counts, HOLD, write)?;
        let mut rq = counts.held.take().ok_or(EINVAL)?;
        assert_eq!(rq.bytes(), write.bytes);
        rq.map_sg()?;
        let mut io = IoHandle::new(rq);
        let seen = PageBlock::with_len(bytes, Node::ANY)?;
        io.read_out(&seen, 0, bytes)?;
        assert_eq!(io.read_out(&seen, 0, bytes + 1), Err(EINVAL));
        let rq = io.downcast::<Request<NullDriver>>().map_err(|_| EINVAL)?;
        rq.end(Status::OK);
        end.wait(10_000)?;
        assert_eq!(seen.crc32c(0, 0, bytes), rig.pieces.crc32c(0, 0, bytes));

        // Larger than the limit of the queue, so it is split.
        counts.bytes.xchg(0, Full);
        let most = u32::try_from(rig.pieces.len())?;
        rig.io(BioSpec {
            bytes: most,
            ..write
        })?;
        assert_eq!(counts.bytes.load(Relaxed), most);
        let beyond = BioSpec {
            bytes: most + 512,
            ..write
        };
        assert_eq!(rig.io(beyond), Err(EINVAL));
        Ok(())
    }

    /// Requests that the driver returns without ending them are dispatched again.
    fn again(rig: &Rig, counts: &Counts) -> Result {
        let before = counts.reads.load(Relaxed);
        counts.requeues.store(3, Relaxed);
        rig.io(PLAIN)?;
        assert_eq!(counts.requeues.load(Relaxed), 0);
        assert_eq!(counts.reads.load(Relaxed), before + 1);

        // Held back, and requeued later.
        let end = rig.start_kept(3, counts, HOLD)?;
        assert_eq!(end.wait(50), Err(ETIMEDOUT));
        counts.held.take().ok_or(EINVAL)?.requeue();
        end.wait(10_000)?;
        assert_eq!(counts.reads.load(Relaxed), before + 2);
        Ok(())
    }

    /// If a driver returns another request than it received, the returned one ends with an error,
    /// and the driver keeps the received one.
    fn swapped(rig: &Rig, counts: &Counts) -> Result {
        let first = rig.start_kept(1, counts, HOLD)?;
        let second = rig.start_kept(2, counts, SWAP)?;
        assert_eq!(first.wait(10_000), Err(EIO));
        assert_eq!(second.wait(50), Err(ETIMEDOUT));
        counts.held.take().ok_or(EINVAL)?.end(Status::OK);
        assert_eq!(second.wait(10_000), Ok(()));
        Ok(())
    }

    /// The end of a bio is reported inside an RCU read section, even if the task that ends the bio
    /// is in none. The driver may be unloaded then, but its code stays until the section ends.
    fn tail(rig: &Rig, counts: &Counts) -> Result {
        let end = rig.start_kept(1, counts, HOLD)?;
        // SAFETY: The callee only reads the state of the current task.
        assert!(!unsafe { ibtrs_bindings::kx_in_rcu_section() });
        counts.held.take().ok_or(EINVAL)?.end(Status::OK);
        assert_eq!(end.wait(10_000), Ok(()));
        assert!(end.in_section.load(Relaxed));
        Ok(())
    }

    /// Calls `func` while the queue of the disk is frozen, as it is while limits or the scheduler
    /// change.
    fn frozen<T>(disk: &GenDisk<NullDriver>, func: impl FnOnce() -> T) -> T {
        // SAFETY: The queue is live, as the disk is.
        unsafe { bindings::blk_freeze_queue_start_non_owner(disk.queue()) };
        let result = func();
        // SAFETY: As above, and it was frozen once more than it was thawed.
        unsafe { bindings::blk_mq_unfreeze_queue_non_owner(disk.queue()) };
        result
    }

    /// Waits until no request of the disk is in flight.
    fn wait_until_idle(disk: &GenDisk<NullDriver>) {
        // SAFETY: The queue is live, as the disk is. The thread that froze the queue thaws it, with
        // the flags that the freeze returned.
        unsafe {
            let memflags = ibtrs_bindings::blk_mq_freeze_queue(disk.queue());
            ibtrs_bindings::blk_mq_unfreeze_queue(disk.queue(), memflags);
        }
    }

    /// A transport reaches the memory of a request that the driver has not mapped, with a list and
    /// without one.
    fn handed_out(rig: &Rig, counts: &Counts) -> Result {
        let (data, mut copied) = (PageBlock::new(0, Node::ANY)?, [0; 4]);
        data.copy_in(508, b"last")?;
        let end = rig.start_kept(3, counts, HOLD)?;
        let mut io = IoHandle::new(counts.held.take().ok_or(EINVAL)?);
        io.fill(&data, 0, 512)?;
        rig.pieces.copy_out(508, &mut copied)?;
        assert_eq!(&copied, b"last");
        // More than the request has: the list shows it.
        assert_eq!(io.fill(&data, 0, 513), Err(EINVAL));
        assert_eq!(io.sg().map(|table| table.bytes()), Some(512));
        data.zero(508, 4)?;
        io.read_out(&data, 0, 512)?;
        data.copy_out(508, &mut copied)?;
        assert_eq!(&copied, b"last");
        let rq = io.downcast::<Request<NullDriver>>().map_err(|_| EINVAL)?;
        rq.end(Status::OK);
        end.wait(10_000)
    }

    /// A request whose users already got an error ends when the driver requeues it, and is not
    /// dispatched again.
    fn abandoned(disk: &GenDisk<NullDriver>, rig: &Rig, counts: &Counts) -> Result {
        let end = rig.start_kept(3, counts, HOLD)?;
        let mut io = IoHandle::new(counts.held.take().ok_or(EINVAL)?);
        let seen = counts.busy.load(Relaxed);
        io.end_early(ENODEV);
        assert_eq!(end.wait(10_000), Err(ENODEV));
        // It has no memory any more.
        assert!(io.sg().is_none());
        assert_eq!(io.fill(&PageBlock::new(0, Node::ANY)?, 0, 512), Err(EINVAL));
        // The driver requeues the request.
        io.done(Ok(()));
        // The request ends nevertheless, and the driver does not receive it again.
        wait_until_idle(disk);
        assert_eq!(counts.busy.load(Relaxed), seen);
        Ok(())
    }

    fn transfers(disk: &GenDisk<NullDriver>, rig: &Rig, counts: &Counts) -> Result {
        for sector in 0..20 {
            rig.io(BioSpec { sector, ..PLAIN })?;
        }
        assert!(counts.reads.load(Relaxed) >= 20);

        let write = BioSpec {
            op: Op::Write,
            bytes: 8192,
            ..PLAIN
        };
        counts.bytes.xchg(0, Full);
        rig.io(write)?;
        // Larger than the limit of the queue, so it is split.
        rig.io(BioSpec {
            bytes: 20480,
            ..write
        })?;
        assert_eq!(counts.bytes.load(Relaxed), 28672);
        let at = |sector| BioSpec { sector, ..write };
        assert_eq!(rig.io(at(BAD_SECTOR - 2)), Err(ENODATA));
        assert_eq!(rig.io(at(CAPACITY)), Err(EIO));

        // No I/O blocks, except by writeback throttling; and none is split.
        let direct = BioSpec {
            flags: BioFlags::SYNC.and(BioFlags::NOWAIT),
            ..write
        };
        // The queue was frozen when the device was opened, so the answer was not available. Now it is,
        // and it stays cached.
        frozen(disk, || assert!(!rig.dev.takes_nowait(&direct)));
        assert!(rig.dev.takes_nowait(&direct) && rig.dev.takes_nowait(&PLAIN));
        frozen(disk, || assert!(rig.dev.takes_nowait(&direct)));
        rig.io(direct)?;
        assert_eq!(
            rig.io(BioSpec {
                bytes: 20480,
                ..direct
            }),
            Err(EAGAIN)
        );

        assert_eq!(counts.flushes.load(Relaxed), 0);
        let flush = BioSpec {
            op: Op::Flush,
            bytes: 0,
            ..PLAIN
        };
        rig.io(flush)?;
        assert_eq!(counts.flushes.load(Relaxed), 1);
        let fua = BioFlags::SYNC.and(BioFlags::FUA);
        rig.io(BioSpec {
            flags: fua,
            ..write
        })?;
        assert_eq!(counts.fuas.load(Relaxed), 1);

        let zeroes = BioSpec {
            op: Op::WriteZeroes,
            bytes: 4096,
            flags: BioFlags::SYNC.and(BioFlags::NOUNMAP),
            ..PLAIN
        };
        rig.io(zeroes)?;
        let discard = BioSpec {
            op: Op::Discard,
            bytes: 4096,
            ..PLAIN
        };
        rig.io(discard)?;
        assert_eq!(counts.others.load(Relaxed), 2);
        let erase = BioSpec {
            op: Op::SecureErase,
            ..discard
        };
        assert_eq!(rig.io(erase), Err(EOPNOTSUPP));

        // Invalid I/O is refused before it reaches the block layer.
        for spec in [
            BioSpec { bytes: 0, ..PLAIN },
            BioSpec {
                bytes: 100,
                ..PLAIN
            },
            BioSpec {
                flags: fua,
                ..PLAIN
            },
            BioSpec {
                bytes: 512,
                ..flush
            },
            BioSpec {
                flags: BioFlags::SYNC.and(BioFlags::NOUNMAP),
                ..discard
            },
            BioSpec {
                bytes: 1 << 20,
                ..write
            },
        ] {
            assert_eq!(rig.io(spec), Err(EINVAL));
        }
        Ok(())
    }
}
