// SPDX-License-Identifier: GPL-2.0

//! Buffers for the data of requests in service, which all sessions share. Clients cannot write to
//! them. [`ibtrs_proto::buffers`] defines their sizes, their limit and the share of a session.
//!
//! A slot keeps a buffer of the smallest size for later requests, until the path has been idle
//! ([`crate::data::idle`]). A larger buffer is for one request. Free buffers are on a per-CPU shelf or,
//! beyond a few, in the common store. A thread that takes a buffer delays completions, so it never waits
//! for memory.
//!
//! A request that gets no buffer waits in the line of its session ([`Holding`]).
//!
//! A buffer that is released while the device may still write to it is *late*: it stays mapped and
//! charged to its session until the connections of its path are closed, and is not reused before.
//! This should never happen; if it does because of a bug, the cost is a path, and neither a memory
//! leak nor another client's data.

use crate::storage::source::Source;
use ibtrs_proto::buffers::{
    self,
    may_take,
    Sizes, //
};
use kernel::{
    alloc::{
        flags::GFP_NOWAIT,
        Flags, //
    },
    cpu::{
        nr_cpu_ids,
        CpuId, //
    },
    new_spinlock_irq,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
    warn_on, //
};
use kx::{
    mm::{
        Node,
        Pieces, //
    },
    sync::atomic::{
        Atomic,
        AtomicFlag,
        Full,
        Relaxed, //
    },
    work::{
        DelayedWork,
        Queue,
        WorkItem, //
    }, //
};
use rdma::{
    dma::{
        Direction,
        DmaRoom, //
    },
    pd::Pd, //
};

mod holding;

pub(crate) use holding::{
    Holding,
    Waiter, //
};

/// Maximum number of free buffers of a size on the shelf of a CPU.
const SHELF: usize = 8;

/// Time after which unused free buffers are freed, in milliseconds.
const KEEP_MS: u32 = 5_000;

/// Interval between checks whether late buffers can be released, in milliseconds.
const LATE_MS: u32 = 100;

/// The session that holds buffers.
pub(crate) trait Holder: Send + Sync {
    /// Returns its share of the buffers.
    fn holding(&self) -> &Holding;

    /// Schedules the work item that serves its line.
    ///
    /// # Context
    ///
    /// Any.
    fn serve_line(self: Arc<Self>);

    /// Schedules the work item that serves the lines of all sessions, at once if `is_urgent`.
    ///
    /// # Context
    ///
    /// Any.
    fn look_after_lines(&self, is_urgent: bool);

    /// Logs that a buffer was released to which the device may still write.
    fn is_late(&self);

    /// Closes the path for which a late buffer is mapped: only after the end of its connections is
    /// it certain that the device no longer writes.
    ///
    /// # Context
    ///
    /// May sleep.
    fn close_path_of(&self, memory: &Source);
}

/// The memory of a buffer.
struct Memory {
    pieces: Arc<Pieces>,
    /// Number of its size.
    size: usize,
    /// Whether it is the reserve buffer of a session.
    is_reserve: bool,
    /// The mapping for the device of the request that uses the buffer.
    source: Option<Source>,
    /// Preallocated space for the next mapping, unless the memory is mapped.
    room: DmaRoom,
    /// The session that holds it, while a slot uses it or it is late.
    holder: Option<Arc<dyn Holder>>,
    /// The next entry of a stack, or the former buffer of the slot.
    next: Option<KBox<Memory>>,
}

impl Memory {
    /// Maps the memory for the device of `pd`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: the device has no mapping space.
    fn map(&mut self, pd: &Arc<Pd>) -> Result {
        let room = core::mem::take(&mut self.room);
        match Source::new_in(pd, self.pieces.clone(), Direction::Bidirectional, room) {
            Ok(source) => {
                self.source = Some(source);
                Ok(())
            }
            Err(room) => {
                self.room = room;
                Err(ENOMEM)
            }
        }
    }

    /// Ends the mapping; returns false if the memory remains mapped, as the device may still write
    /// to it.
    fn unmap(&mut self) -> bool {
        match self.source.take().map(Source::unmap) {
            None => true,
            Some(Ok(room)) => {
                self.room = room;
                true
            }
            Some(Err(source)) => {
                self.source = Some(source);
                false
            }
        }
    }
}

/// A buffer in use by a slot. When dropped, which must be after the last use by a device, it
/// returns to the free buffers or to the reserve.
pub(crate) struct Buffer {
    /// Present until it is dropped; mapped, and with its holder.
    memory: Option<KBox<Memory>>,
}

impl Buffer {
    /// Takes a buffer of at least `len` bytes, and maps it for the device of `pd`; `None` if `holder`
    /// already holds its share, or if there is no memory.
    ///
    /// # Context
    ///
    /// May sleep, but does not wait for memory.
    pub(crate) fn take(holder: Arc<dyn Holder>, pd: &Arc<Pd>, len: u32) -> Option<Self> {
        let holding = holder.holding();
        let memory = holding.buffers.take(holding, len as usize)?;
        Self::new(holder, pd, memory)
    }

    /// Takes the reserve buffer of `holder`, if it is not in use, and maps it for the device of `pd`.
    pub(crate) fn take_reserve(holder: Arc<dyn Holder>, pd: &Arc<Pd>) -> Option<Self> {
        let memory = holder.holding().reserve.take()?;
        Self::new(holder, pd, memory)
    }

    /// Maps the memory; `None` if the device has no mapping space.
    fn new(holder: Arc<dyn Holder>, pd: &Arc<Pd>, mut memory: KBox<Memory>) -> Option<Self> {
        match memory.map(pd) {
            Ok(()) => {
                memory.holder = Some(holder);
                Some(Self {
                    memory: Some(memory),
                })
            }
            Err(_) => {
                let holding = holder.holding();
                holding.give_back(memory);
                holding.buffers.fail();
                None
            }
        }
    }

    /// Returns the mapped memory.
    #[inline]
    pub(crate) fn source(&self) -> Option<&Source> {
        self.memory.as_ref()?.source.as_ref()
    }

    /// As [`Self::source`].
    #[inline]
    pub(crate) fn source_mut(&mut self) -> Option<&mut Source> {
        self.memory.as_mut()?.source.as_mut()
    }

    /// Returns whether the buffer has room for `len` bytes.
    #[inline]
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.memory
            .as_ref()
            .is_some_and(|memory| len <= memory.pieces.len())
    }

    /// Returns whether the buffer is for one request only, however small that is.
    pub(crate) fn is_reserve(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_reserve)
    }

    /// Keeps a buffer that the slot had before, and from which a device may still send, until this
    /// one is dropped.
    pub(crate) fn keep_former(&mut self, mut former: Buffer) {
        if let Some(memory) = &mut self.memory {
            // A buffer that was just taken has none.
            memory.next = former.memory.take();
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut next = self.memory.take();
        while let Some(mut memory) = next {
            next = memory.next.take();
            // Before it is reused.
            match memory.unmap() {
                true => take_back(memory),
                false => leave_mapped(memory),
            }
        }
    }
}

/// A stack of free buffers of one size.
#[derive(Default)]
struct Stack {
    top: Option<KBox<Memory>>,
    count: usize,
}

impl Stack {
    #[inline]
    fn push(&mut self, mut memory: KBox<Memory>) {
        memory.next = self.top.take();
        self.top = Some(memory);
        self.count += 1;
    }

    #[inline]
    fn pop(&mut self) -> Option<KBox<Memory>> {
        let mut memory = self.top.take()?;
        self.top = memory.next.take();
        self.count -= 1;
        Some(memory)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // One by one, as dropping a long list would recurse.
        while self.pop().is_some() {}
    }
}

type Stacks = [Stack; Sizes::MOST];

/// The common store.
struct Store {
    stacks: Stacks,
    memory: buffers::Memory,
    /// The minimum of free bytes since the last check: that many were not needed.
    least: u64,
    /// Late buffers of all sizes, including reserve buffers. They are not free.
    late: Stack,
}

/// All buffers of the server, except the reserve buffers of sessions.
#[pin_data]
pub(crate) struct Buffers {
    sizes: Sizes,
    /// One for each CPU.
    shelves: KVVec<Pin<KBox<SpinLockIrq<Stacks>>>>,
    #[pin]
    store: SpinLockIrq<Store>,
    /// Bytes that sessions hold.
    used: Atomic<u64>,
    /// Bytes that the buffers may take.
    limit: Atomic<u64>,
    /// A session waits although others hold more, or although its share allows more: slots must not
    /// keep buffers for their next requests.
    short: AtomicFlag,
    /// An allocation of a buffer has failed since the lines were last served.
    failed: AtomicFlag,
    /// Frees unused buffers after some time, and releases late ones.
    #[pin]
    tidy: DelayedWork<Self>,
}

kx::impl_has_work! {
    impl HasWork<DelayedWork<Self>> for Buffers { self.tidy }
}

impl Buffers {
    /// Creates no buffer yet: for requests of up to `max_io` bytes, which may take `limit` bytes.
    pub(crate) fn new(max_io: u32, limit: u64, queue: Arc<Queue>) -> Result<Arc<Self>> {
        let sizes = Sizes::new(max_io as usize, PAGE_SIZE);
        let this = try_pin_init!(Self {
            sizes,
            shelves: {
                let mut shelves = KVVec::with_capacity(nr_cpu_ids() as usize, GFP_KERNEL)?;
                for _ in 0..nr_cpu_ids() {
                    let shelf = new_spinlock_irq!(Stacks::default(), "Buffers::shelves");
                    shelves.push(KBox::pin_init(shelf, GFP_KERNEL)?, GFP_KERNEL)?;
                }
                shelves
            },
            store <- new_spinlock_irq!(
                Store {
                    stacks: Stacks::default(),
                    memory: buffers::Memory::default(),
                    least: 0,
                    late: Stack::default(),
                },
                "Buffers::store"
            ),
            used: Atomic::new(0),
            limit: Atomic::new(limit),
            short: AtomicFlag::new(false),
            failed: AtomicFlag::new(false),
            tidy <- kx::new_delayed_work!(queue, "Buffers::tidy"),
        }? Error);
        Arc::pin_init(this, GFP_KERNEL)
    }

    /// Stops the work item. All connections must be closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn close(&self) {
        self.tidy.disable_sync();
        // No late buffer must remain, as each holds a reference to its session.
        if warn_on!(self.take_late()) {
            self.forget_late();
        }
    }

    /// Returns whether slots must not keep buffers for their next requests, in all sessions.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        // ORDERING: A slot that misses the change keeps its buffer for one more request.
        self.short.load(Relaxed)
    }

    /// Takes a buffer's memory of at least `len` bytes; `None` if the session holds its share, or if
    /// there is no memory.
    fn take(&self, holding: &Holding, len: usize) -> Option<KBox<Memory>> {
        let size = self.sizes.of(len)?;
        if !self.charge(holding, self.bytes(size)) {
            return None;
        }
        let Some(memory) = self.take_memory(size) else {
            self.release(holding, self.bytes(size));
            self.fail();
            return None;
        };
        // It may be larger than requested.
        let more = self.bytes(memory.size).saturating_sub(self.bytes(size));
        if more > 0 {
            self.used.add(more, Relaxed);
            holding.held.add(more, Relaxed);
        }
        Some(memory)
    }

    fn bytes(&self, size: usize) -> u64 {
        self.sizes.bytes(size) as u64
    }

    /// Records that an allocation has failed, although the limit allows more.
    fn fail(&self) {
        self.failed.store(true, Relaxed);
        self.short.store(true, Relaxed);
    }

    /// Sets the result of [`Self::is_short`].
    pub(crate) fn set_short(&self, is_short: bool) {
        self.short.store(is_short, Relaxed);
    }

    /// Returns whether there was no memory for a buffer since the last call.
    pub(crate) fn take_failed(&self) -> bool {
        self.failed.xchg(false, Relaxed)
    }

    /// Counts `bytes` more for a session, unless that would be more than its share.
    fn charge(&self, holding: &Holding, bytes: u64) -> bool {
        // ORDERING: Counters only; two concurrent calls may both fail, and both are retried.
        let used = self.used.fetch_add(bytes, Relaxed);
        let held = holding.held.fetch_add(bytes, Relaxed);
        let may = may_take(held, bytes, used, self.limit.load(Relaxed));
        if !may {
            self.release(holding, bytes);
        }
        may
    }

    /// Counts `bytes` less for a session.
    fn release(&self, holding: &Holding, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
        // ORDERING: Full, so that this is ordered before the check whether a request waits; pairs
        // with `Holding::wait`.
        holding.held.fetch_sub(bytes, Full);
    }

    fn shelf(&self) -> Option<&SpinLockIrq<Stacks>> {
        let cpu = CpuId::current().as_u32() as usize;
        self.shelves.get(cpu).map(|shelf| &**shelf)
    }

    fn take_memory(&self, size: usize) -> Option<KBox<Memory>> {
        let shelf = self.shelf()?;
        let found = shelf.lock().get_mut(size).and_then(Stack::pop);
        found
            .or_else(|| self.take_stored(size))
            .or_else(|| self.any_free(size))
    }

    /// Takes a buffer from the common store, or allocates it.
    fn take_stored(&self, size: usize) -> Option<KBox<Memory>> {
        let found = self.source(size);
        let found = match found {
            buffers::Source::Nowhere => {
                self.clear_shelves();
                self.source(size)
            }
            found => found,
        };
        match found {
            buffers::Source::Free => self.store.lock().pop(size, &self.sizes),
            buffers::Source::New => self.allocate(size),
            buffers::Source::InPlaceOf { bytes } => {
                self.shrink(bytes);
                self.allocate(size)
            }
            buffers::Source::Nowhere => None,
        }
    }

    /// Takes a free buffer of at least `size`, from any shelf or the store.
    fn any_free(&self, size: usize) -> Option<KBox<Memory>> {
        self.clear_shelves();
        let mut store = self.store.lock();
        (size..Sizes::MOST).find_map(|size| store.pop(size, &self.sizes))
    }

    fn source(&self, size: usize) -> buffers::Source {
        let store = self.store.lock();
        let is_free = store.stacks.get(size).is_some_and(|stack| stack.count > 0);
        store
            .memory
            .source(self.bytes(size), is_free, self.limit.load(Relaxed))
    }

    fn allocate(&self, size: usize) -> Option<KBox<Memory>> {
        let bytes = self.bytes(size);
        let mut store = self.store.lock();
        let then = store.memory.taken.saturating_add(bytes);
        // Another thread may have taken the rest.
        if then > self.limit.load(Relaxed) {
            return store.pop(size, &self.sizes);
        }
        store.memory.taken = then;
        drop(store);
        let pieces = Pieces::optional(self.sizes.bytes(size), Node::ANY);
        let memory = pieces.and_then(|pieces| memory(pieces, size, false, GFP_NOWAIT));
        if memory.is_err() {
            let mut store = self.store.lock();
            store.memory.taken = store.memory.taken.saturating_sub(bytes);
        }
        memory.ok()
    }

    /// Puts the buffers on the shelves of all CPUs into the common store.
    fn clear_shelves(&self) {
        for shelf in &self.shelves {
            let stacks = core::mem::take(&mut *shelf.lock());
            for mut stack in stacks {
                while let Some(memory) = stack.pop() {
                    self.store.lock().push(memory, &self.sizes);
                }
            }
        }
    }

    /// Frees buffers of `bytes` in total, or more, as far as there are free ones.
    fn shrink(&self, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            // The largest first. Dropped without the lock.
            let Some(memory) = self.store.lock().remove(&self.sizes) else {
                return;
            };
            left = left.saturating_sub(self.bytes(memory.size));
        }
    }

    /// Adds memory to the free buffers, which are freed after some time if they are not used.
    fn put(self: &Arc<Self>, memory: KBox<Memory>) {
        if self.shelve(memory) {
            self.tidy.enqueue_in(self.clone(), KEEP_MS);
        }
    }

    /// Puts memory on the shelf of this CPU, or into the store. Returns whether the shelf had none
    /// of that size, or has too much.
    fn shelve(&self, memory: KBox<Memory>) -> bool {
        if let Some(shelf) = self.shelf() {
            let mut stacks = shelf.lock();
            match stacks.get_mut(memory.size) {
                Some(stack) if stack.count < SHELF => {
                    stack.push(memory);
                    return stack.count == 1;
                }
                _ => {}
            }
        }
        self.store.lock().push(memory, &self.sizes);
        true
    }

    /// Sets how many bytes the buffers may take.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
        let taken = self.store.lock().memory.taken;
        if taken > limit {
            self.clear_shelves();
            self.shrink(taken - limit);
        }
    }

    /// Frees the buffers that were not needed since the last call; returns whether some are left.
    fn expire(&self) -> bool {
        self.clear_shelves();
        let mut store = self.store.lock();
        let unneeded = store.least;
        drop(store);
        self.shrink(unneeded);
        store = self.store.lock();
        store.least = store.memory.free;
        store.memory.free > 0
    }

    /// Releases the late buffers to which no device writes any more, and closes the paths of the
    /// others. Returns whether there are others.
    ///
    /// # Context
    ///
    /// May sleep.
    fn take_late(&self) -> bool {
        let mut late = core::mem::take(&mut self.store.lock().late);
        let mut left = Stack::default();
        while let Some(mut memory) = late.pop() {
            if memory.unmap() {
                take_back(memory);
                continue;
            }
            if let (Some(holder), Some(source)) = (&memory.holder, &memory.source) {
                holder.close_path_of(source);
            }
            left.push(memory);
        }
        let mut store = self.store.lock();
        while let Some(memory) = left.pop() {
            store.late.push(memory);
        }
        store.late.count > 0
    }

    /// Passes the late buffers to the domains for which they are mapped.
    ///
    /// # Context
    ///
    /// May sleep.
    fn forget_late(&self) {
        let mut late = core::mem::take(&mut self.store.lock().late);
        while let Some(memory) = late.pop() {
            drop(memory);
        }
    }
}

/// Creates the memory of a buffer of size number `size`, with preallocated space for a mapping.
fn memory(pieces: Pieces, size: usize, is_reserve: bool, flags: Flags) -> Result<KBox<Memory>> {
    Ok(KBox::new(
        Memory {
            room: DmaRoom::new(&pieces, flags)?,
            pieces: Arc::new(pieces, flags)?,
            size,
            is_reserve,
            source: None,
            holder: None,
            next: None,
        },
        flags,
    )?)
}

impl Store {
    fn push(&mut self, memory: KBox<Memory>, sizes: &Sizes) {
        let bytes = sizes.bytes(memory.size) as u64;
        if let Some(stack) = self.stacks.get_mut(memory.size) {
            stack.push(memory);
            self.memory.free += bytes;
        }
    }

    fn pop(&mut self, size: usize, sizes: &Sizes) -> Option<KBox<Memory>> {
        let memory = self.stacks.get_mut(size)?.pop()?;
        let free = self.memory.free;
        self.memory.free = free.saturating_sub(sizes.bytes(size) as u64);
        self.least = self.least.min(self.memory.free);
        Some(memory)
    }

    /// Removes a free buffer, for the caller to free.
    fn remove(&mut self, sizes: &Sizes) -> Option<KBox<Memory>> {
        let size = self.stacks.iter().rposition(|stack| stack.count > 0)?;
        let memory = self.pop(size, sizes)?;
        let taken = self.memory.taken;
        self.memory.taken = taken.saturating_sub(sizes.bytes(size) as u64);
        Some(memory)
    }
}

impl Holding {
    /// Allocates the reserve buffer of the session, unless it has one.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn make_reserve(&self) -> Result {
        let sizes = &self.buffers.sizes;
        let mut has_reserve = self.has_reserve.lock();
        if *has_reserve {
            return Ok(());
        }
        let pieces = Pieces::new(sizes.bytes(sizes.last()), Node::ANY)?;
        let memory = memory(pieces, sizes.last(), true, GFP_KERNEL)?;
        *has_reserve = self.reserve.put(memory).is_ok();
        Ok(())
    }

    /// Returns memory, which must not be mapped, to the free buffers or to the reserve.
    fn give_back(&self, memory: KBox<Memory>) {
        if memory.is_reserve {
            // There is only one, so its place is free.
            let _ = self.reserve.put(memory);
        } else {
            let bytes = self.buffers.bytes(memory.size);
            self.buffers.put(memory);
            self.buffers.release(self, bytes);
        }
    }
}

/// Appends a request of `holder`, which is pending in its place, to the line.
///
/// # Context
///
/// May sleep.
///
/// # Errors
///
/// `ENOSPC`: too many requests of closing paths are still in the line.
pub(crate) fn wait(holder: Arc<dyn Holder>, waiter: Waiter) -> Result {
    holder.holding().wait(waiter)?;
    holder.clone().serve_line();
    holder.look_after_lines(false);
    Ok(())
}

/// Releases the memory of a buffer that a slot has used; it must not be mapped.
fn take_back(mut memory: KBox<Memory>) {
    // Each has a holder.
    let Some(holder) = memory.holder.take() else {
        return;
    };
    let holding = holder.holding();
    holding.give_back(memory);
    if holding.is_waiting_ordered() {
        holder.clone().serve_line();
    }
    if holding.buffers.is_short() {
        holder.look_after_lines(true);
    }
}

/// Keeps the memory of a buffer to which the device may still write as late, until it can be
/// [released](take_back).
fn leave_mapped(memory: KBox<Memory>) {
    if let Some(holder) = memory.holder.clone() {
        holder.is_late();
        let buffers = &holder.holding().buffers;
        buffers.store.lock().late.push(memory);
        buffers.tidy.modify(buffers.clone(), 0);
    }
}

impl Buffers {
    /// Schedules the release of late buffers, if there are any.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn look_after_late(self: &Arc<Self>) {
        if self.store.lock().late.count > 0 {
            self.tidy.modify(self.clone(), 0);
        }
    }
}

/// Frees unused buffers after some time, and releases late ones.
impl WorkItem for Buffers {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.take_late() {
            // A released buffer may have queued the work item with a longer delay.
            this.tidy.modify(this.clone(), LATE_MS);
        } else if this.expire() {
            this.tidy.enqueue_in(this.clone(), KEEP_MS);
        }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_server_buffers)]
mod tests {
    use super::*;
    use kx::work::Options;
    use rdma::{
        device::Device,
        mr::Mr, //
    };

    /// A session without clients.
    #[pin_data]
    struct Nobody {
        #[pin]
        holding: Holding,
    }

    impl Holder for Nobody {
        fn holding(&self) -> &Holding {
            &self.holding
        }

        fn serve_line(self: Arc<Self>) {}

        fn look_after_lines(&self, _is_urgent: bool) {}

        fn is_late(&self) {}

        fn close_path_of(&self, _memory: &Source) {}
    }

    /// Buffers, their holder, and the domain of a path.
    struct Rig {
        holder: Arc<dyn Holder>,
        pd: Arc<Pd>,
    }

    impl Rig {
        fn new() -> Result<Self> {
            let queue = Queue::new(Options::unbound(), fmt!("ibtrs-server-test"))?;
            let buffers = Buffers::new(4 * PAGE_SIZE as u32, u64::MAX, queue)?;
            // The tests call its steps directly.
            buffers.tidy.disable_sync();
            let nobody = try_pin_init!(Nobody { holding <- Holding::new(buffers, 4) }? Error);
            Ok(Self {
                holder: Arc::pin_init(nobody, GFP_KERNEL)?,
                pd: Pd::new(&Device::nth(0)?)?,
            })
        }

        fn buffers(&self) -> &Buffers {
            &self.holder.holding().buffers
        }

        fn take(&self) -> Result<Buffer> {
            Buffer::take(self.holder.clone(), &self.pd, PAGE_SIZE as u32).ok_or(ENOMEM)
        }

        /// Returns the bytes of all buffers, of the buffers that sessions hold, and of the buffers
        /// that this session holds.
        fn counts(&self) -> (u64, u64, u64) {
            let buffers = self.buffers();
            let taken = buffers.store.lock().memory.taken;
            let used = buffers.used.load(Relaxed);
            (taken, used, self.holder.holding().held())
        }
    }

    /// As a read from the client that is pending: the device may write there as long as the domain has
    /// a queue pair.
    fn expose(buffer: &mut Buffer) -> Result<Mr> {
        buffer.source_mut().ok_or(EINVAL)?.cover()
    }

    fn start(buffer: &Buffer) -> Result<usize> {
        let source = buffer.source().ok_or(EINVAL)?;
        let first = source.pieces().blocks().first().ok_or(EINVAL)?;
        Ok(first.as_ptr().addr())
    }

    #[test]
    fn a_buffer_that_is_given_back_is_the_next() -> Result {
        let rig = Rig::new()?;
        let buffer = rig.take()?;
        let (bytes, place) = (rig.counts().0, start(&buffer)?);
        assert_eq!(rig.counts(), (bytes, bytes, bytes));
        drop(buffer);
        assert_eq!(rig.counts(), (bytes, 0, 0));
        // They are on another CPU's shelf if the test migrates.
        rig.buffers().clear_shelves();
        assert_eq!(start(&rig.take()?)?, place);
        assert!(!rig.buffers().take_late());
        Ok(())
    }

    /// A buffer to which the device may still write is not reused, and all others can be used.
    #[test]
    fn a_buffer_comes_back_when_its_device_writes_no_more() -> Result {
        let rig = Rig::new()?;
        let mut buffer = rig.take()?;
        let (bytes, place) = (rig.counts().0, start(&buffer)?);
        let region = expose(&mut buffer)?;
        drop((buffer, region));
        // A late buffer counts as in use by its session.
        assert_eq!(rig.counts(), (bytes, bytes, bytes));
        for _ in 0..2 {
            rig.buffers().clear_shelves();
            let others = [rig.take()?, rig.take()?];
            for other in &others {
                assert!(start(other)? != place);
            }
            assert_eq!(rig.counts(), (3 * bytes, 3 * bytes, 3 * bytes));
            drop(others);
            assert!(rig.buffers().take_late());
            assert_eq!(rig.counts(), (3 * bytes, bytes, bytes));
        }
        rig.pd.end()?;
        assert!(!rig.buffers().take_late());
        assert_eq!(rig.counts(), (3 * bytes, 0, 0));
        // It can be reused.
        rig.buffers().clear_shelves();
        let all = [rig.take()?, rig.take()?, rig.take()?];
        assert_eq!(rig.counts(), (3 * bytes, 3 * bytes, 3 * bytes));
        let mut places = all.iter().map(start);
        assert!(places.any(|other| other == Ok(place)));
        Ok(())
    }

    /// A buffer owns the earlier buffers of its slot.
    #[test]
    fn each_of_several_buffers_comes_back_on_its_own() -> Result {
        let rig = Rig::new()?;
        let (mut first, mut former) = (rig.take()?, rig.take()?);
        let bytes = rig.counts().0 / 2;
        let region = expose(&mut former)?;
        first.keep_former(former);
        drop((first, region));
        assert_eq!(rig.counts(), (2 * bytes, bytes, bytes));
        rig.pd.end()?;
        assert!(!rig.buffers().take_late());
        assert_eq!(rig.counts(), (2 * bytes, 0, 0));
        Ok(())
    }

    /// A session whose reserve buffer is late has no reserve until the buffer is released.
    #[test]
    fn the_reserve_comes_back() -> Result {
        let rig = Rig::new()?;
        rig.holder.holding().make_reserve()?;
        let reserve = || Buffer::take_reserve(rig.holder.clone(), &rig.pd);
        let mut buffer = reserve().ok_or(ENOMEM)?;
        let place = start(&buffer)?;
        let region = expose(&mut buffer)?;
        drop((buffer, region));
        assert!(reserve().is_none());
        assert!(rig.buffers().take_late());
        rig.holder.holding().make_reserve()?;
        assert!(reserve().is_none());
        rig.pd.end()?;
        assert!(!rig.buffers().take_late());
        for _ in 0..2 {
            assert_eq!(start(&reserve().ok_or(ENOMEM)?)?, place);
        }
        assert_eq!(rig.counts(), (0, 0, 0));
        Ok(())
    }

    /// The server may be dropped while there are late buffers.
    #[test]
    fn a_server_that_ends_leaves_none() -> Result {
        let rig = Rig::new()?;
        let mut buffer = rig.take()?;
        let pieces = buffer.source().ok_or(EINVAL)?.pieces().clone();
        let region = expose(&mut buffer)?;
        drop((buffer, region));
        rig.pd.end()?;
        rig.buffers().close();
        drop(rig);
        assert!(Arc::into_unique_or_drop(pieces).is_some());
        Ok(())
    }
}
