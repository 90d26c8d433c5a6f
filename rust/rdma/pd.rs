// SPDX-License-Identifier: GPL-2.0

//! Protection domains, which limit each key to certain queue pairs.
//!
//! A device honours a key only for queue pairs in the protection domain of the key's region. A
//! driver therefore creates a domain for each peer and each connection attempt: even with a guessed
//! or an old key, a peer can access only memory that was registered for it. Not every device checks
//! the domain when a peer invalidates a key. On rxe, which does not, a peer can invalidate the
//! registrations of other peers, but cannot access their memory.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! use rdma::{device::Device, dma::DmaBuf, pd::Pd};
//!
//! fn header(device: &Arc<Device>) -> Result<DmaBuf> {
//!     let pd = Pd::new(device)?;
//!     // The buffer holds a reference to the domain.
//!     DmaBuf::with(&pd, b"header")
//! }
//! ```
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::ptr::NonNull;

use crate::device::Device;
use bases::Bases;
use ibtrs_bindings as bindings;
use keep::{
    KeepNode,
    Keeper,
    Mapped, //
};
use kernel::{
    new_mutex,
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLockIrq, //
    },
    workqueue, //
};
use kx::{
    pr_warn_ratelimited,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    work::later, //
};

pub(crate) mod bases;
pub(crate) mod keep;

/// A protection domain of a device.
///
/// Queue pairs, regions and mappings hold references to the domain, so it is freed after the last
/// of them. The domain owns the regions that were allocated in it, and frees them together with
/// itself; until then, a work request may name any of them.
///
/// # When memory may be reused
///
/// Once every queue pair of a domain has been closed (see [`QueuePair::close`]), no peer can access
/// memory with the domain's keys, even though its regions still exist and may never have been
/// invalidated. A closed queue pair is in the error state, in which the device executes nothing
/// that arrives, and no queue pair of another domain may use the keys. The memory may therefore be
/// freed before the regions.
///
/// This holds only for a domain that gets no further queue pair, so the domain refuses one.
///
/// Memory that is dropped earlier passes to the domain, and is freed with it: see `pd/keep.rs`.
///
/// # Invariants
///
/// `ptr` is a live protection domain of `dev`, and `regions` lists all its live regions. `memory` is
/// mapped for `dev`.
///
/// [`QueuePair::close`]: crate::qp::QueuePair::close
#[pin_data(PinnedDrop)]
pub struct Pd {
    ptr: NonNull<bindings::ib_pd>,
    /// A number that no other domain ever has.
    id: u64,
    #[pin]
    regions: Mutex<Regions>,
    #[pin]
    memory: SpinLockIrq<Keeper>,
    /// Drops the last reference.
    #[pin]
    free: workqueue::Work<Self>,
    dev: Arc<Device>,
}

kernel::impl_has_work! {
    impl HasWork<Self> for Pd { self.free }
}

impl workqueue::WorkItem for Pd {
    type Pointer = Arc<Self>;

    fn run(last: Arc<Self>) {
        drop(last);
    }
}

/// The regions of a protection domain.
struct Regions {
    list: KVVec<NonNull<bindings::ib_mr>>,
    /// The addresses of the regions follow from it.
    bases: Bases,
}

// SAFETY: Any thread may use and free a region.
unsafe impl Send for Regions {}

// SAFETY: Any thread may use and free a protection domain.
unsafe impl Send for Pd {}
// SAFETY: Several threads may call the C functions for a protection domain at a time, and its field
// that is read here is constant.
unsafe impl Sync for Pd {}

/// The number of the latest domain.
static LAST_ID: Atomic<u64> = Atomic::new(0);

/// See `new_send_queue` in [`crate::qp`].
#[inline(never)]
fn new_memory() -> impl PinInit<SpinLockIrq<Keeper>> {
    new_spinlock_irq!(Keeper::default(), "Pd::memory")
}

/// As [`new_memory`].
#[inline(never)]
fn new_free() -> impl PinInit<workqueue::Work<Pd>> {
    kernel::new_work!("Pd::free")
}

/// A queue pair that is being created.
pub(crate) struct Opening<'a>(&'a Pd);

impl Opening<'_> {
    /// The queue pair was created: [`Pd::close`] follows.
    pub(crate) fn done(self) {
        core::mem::forget(self);
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.memory.lock().undo();
    }
}

impl Pd {
    /// Allocates a protection domain of `dev`.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or the driver's error when the device has no domain left.
    pub fn new(dev: &Arc<Device>) -> Result<Arc<Self>> {
        // SAFETY: The device is live, as `dev` keeps it.
        let ptr = crate::from_err_ptr(unsafe {
            bindings::__ib_alloc_pd(dev.as_raw(), 0, crate::caller())
        })?;
        // INVARIANT: The domain was just allocated on `dev`, without any region.
        Arc::pin_init(
            pin_init!(Self {
                ptr,
                id: LAST_ID.fetch_add(1, Relaxed) + 1,
                memory <- new_memory(),
                free <- new_free(),
                regions <- new_mutex!(
                    Regions {
                        list: KVVec::new(),
                        bases: Bases::new(kx::random::next_u64()),
                    },
                    "Pd::regions"
                ),
                dev: dev.clone(),
            }),
            GFP_KERNEL,
        )
        .inspect_err(|_| {
            // SAFETY: The domain was just allocated, and nobody uses it.
            unsafe { bindings::ib_dealloc_pd_user(ptr.as_ptr(), core::ptr::null_mut()) };
        })
    }

    /// Drops a reference where the end of the domain, which may sleep, must not be waited for.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn leave(this: Arc<Self>) {
        if let Some(last) = Arc::into_unique_or_drop(this) {
            // It cannot be queued yet: only the owner of the last reference queues it.
            let _ = later(Arc::from(last));
        }
    }

    /// Allocates a region of at most `pages` pages, which lives as long as the domain. Also returns
    /// where its registrations begin.
    pub(crate) fn new_region(&self, pages: u32) -> Result<(NonNull<bindings::ib_mr>, Bases)> {
        let mut regions = self.regions.lock();
        regions.list.reserve(1, GFP_KERNEL)?;
        // SAFETY: The domain is live by the type invariant.
        let region = crate::from_err_ptr(unsafe {
            bindings::ib_alloc_mr(
                self.as_raw(),
                bindings::ib_mr_type_IB_MR_TYPE_MEM_REG,
                pages,
            )
        })?;
        // INVARIANT: The new region is in the list, which has room.
        let _ = regions.list.push_within_capacity(region);
        Ok((region, regions.bases.split()))
    }

    /// Returns the number of the domain.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Begins to create a queue pair.
    ///
    /// # Errors
    ///
    /// `ESHUTDOWN`: the last queue pair of the domain was closed.
    pub(crate) fn open(&self) -> Result<Opening<'_>> {
        self.memory.lock().begin()?;
        Ok(Opening(self))
    }

    /// Records that a queue pair was closed: the device no longer executes anything for it.
    pub(crate) fn close(&self) {
        self.memory.lock().end();
    }

    /// Returns whether the last queue pair was closed, so that no device uses the memory of the domain.
    pub(crate) fn is_over(&self) -> bool {
        self.memory.lock().is_over()
    }

    /// Unmaps and frees memory: at once if no queue pair can use it any more, otherwise together with
    /// the domain.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Safety
    ///
    /// It must be mapped for the device of this domain.
    pub(crate) unsafe fn release(&self, mapped: Mapped, room: Option<KBox<KeepNode>>) {
        // SAFETY: By this function's contract.
        if let Err(mapped) = unsafe { self.keep(mapped, room) } {
            // SAFETY: By this function's contract it is mapped for this device. The last queue pair was closed, and no
            // other follows.
            unsafe { mapped.end(&self.dev) };
        }
    }

    /// Passes memory to the domain, which unmaps and frees it when the domain is freed. Returns the
    /// memory if no queue pair can use it any more.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Safety
    ///
    /// It must be mapped for the device of this domain.
    pub(crate) unsafe fn keep(
        &self,
        mapped: Mapped,
        room: Option<KBox<KeepNode>>,
    ) -> Result<(), Mapped> {
        let room = room.or_else(|| KeepNode::new(GFP_ATOMIC).ok());
        let mut memory = self.memory.lock();
        match room {
            _ if memory.is_over() => return Err(mapped),
            // SAFETY: By this function's contract.
            Some(room) => unsafe { memory.keep(mapped, room) },
            // The device may write to the memory, so it must not be freed: leak it.
            None => core::mem::forget(mapped),
        }
        Ok(())
    }

    /// Simulates the end of the domain's only queue pair.
    ///
    /// # Errors
    ///
    /// `ESHUTDOWN`: the last queue pair was already closed.
    #[cfg(IBTRS_KUNIT)]
    pub fn end(&self) -> Result {
        self.open()?.done();
        self.close();
        Ok(())
    }

    /// Returns the number of mappings that the domain keeps.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn kept(&self) -> usize {
        self.memory.lock().count()
    }

    /// Returns the device.
    #[inline]
    pub fn device(&self) -> &Arc<Device> {
        &self.dev
    }

    /// Returns the local key for memory that is mapped but not registered.
    #[inline]
    pub fn local_dma_lkey(&self) -> u32 {
        // SAFETY: The domain is live by the type invariant, and its key does not change.
        unsafe { (*self.ptr.as_ptr()).local_dma_lkey }
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.ptr.as_ptr()
    }

    /// Returns whether the domain will free `region`.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn has_region(&self, region: NonNull<bindings::ib_mr>) -> bool {
        self.regions.lock().list.contains(&region)
    }
}

#[pinned_drop]
impl PinnedDrop for Pd {
    fn drop(self: Pin<&mut Self>) {
        let mut kept = false;
        for region in &self.regions.lock().list {
            // SAFETY: The region is live by the type invariant. Its users, an `Mr` and queue pairs,
            // hold references to `self`, so there are none.
            let error =
                unsafe { bindings::ib_dereg_mr_user(region.as_ptr(), core::ptr::null_mut()) };
            self.gave_back("memory region", error);
            kept |= error != 0;
        }
        let mut memory = core::mem::take(&mut *self.memory.lock());
        // SAFETY: By the type invariant it is mapped for this device. Queue pairs hold references to
        // `self`, so none is left.
        unsafe { memory.free(&self.dev) };
        if kept {
            // A region that was not freed refers to its domain, and not every driver refuses to
            // free a domain in use.
            return;
        }
        // SAFETY: The domain is live by the type invariant. It has no users any more, as queue
        // pairs hold references to `self`, and all regions were freed.
        let error =
            unsafe { bindings::ib_dealloc_pd_user(self.ptr.as_ptr(), core::ptr::null_mut()) };
        self.gave_back("protection domain", error);
    }
}

impl Pd {
    /// Logs a failure to free an object, which the driver then keeps. No peer reaches the object,
    /// as the domain has no queue pair any more, but the device has one object less for other
    /// users.
    fn gave_back(&self, what: &str, error: c_int) {
        if error != 0 {
            pr_warn_ratelimited!(
                "{}: the driver failed to free a {} ({}), which is lost until the driver is reloaded\n",
                self.dev.name(),
                what,
                error
            );
        }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_pd)]
mod tests {
    use super::*;
    use crate::dma::{
        Direction,
        MappedBytes, //
    };

    /// Drops a buffer, and returns whether its bytes are still there; the address of freed memory
    /// must not be used.
    fn outlives_its_owner(pd: &Arc<Pd>) -> Result<bool> {
        let before = pd.kept();
        let mut bytes = MappedBytes::new(pd, 4096, Direction::FromDevice)?;
        bytes.write(4000, b"still here")?;
        // SAFETY: No device knows the buffer.
        let start = unsafe { bytes.read(4000, 10) }?.as_ptr();
        drop(bytes);
        if pd.kept() == before {
            return Ok(false);
        }
        // SAFETY: The domain keeps the memory. (KASAN tells if it does not.)
        let kept = unsafe { core::slice::from_raw_parts(start, 10) };
        Ok(kept == b"still here")
    }

    #[test]
    fn keeps_memory_until_the_last_queue_pair_is_closed() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        assert!(outlives_its_owner(&pd)?);
        pd.open()?.done();
        pd.open()?.done();
        assert!(outlives_its_owner(&pd)?);
        pd.close();
        assert!(outlives_its_owner(&pd)?);
        assert!(!pd.is_over());
        pd.close();
        assert!(pd.is_over());
        assert!(!outlives_its_owner(&pd)?);
        assert_eq!(pd.kept(), 3);
        Ok(())
    }

    /// The peer of a further queue pair could access freed memory with an old key.
    #[test]
    fn no_queue_pair_follows_the_last() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        // One that was not created does not count.
        drop(pd.open()?);
        assert!(!pd.is_over());
        pd.open()?.done();
        pd.close();
        assert_eq!(pd.open().err(), Some(ESHUTDOWN));
        Ok(())
    }

    #[test]
    fn numbers_are_not_reused() -> Result {
        let device = Device::nth(0)?;
        let (one, other) = (Pd::new(&device)?, Pd::new(&device)?);
        assert!(one.id() != other.id());
        let last = other.id();
        drop(other);
        assert!(Pd::new(&device)?.id() > last);
        Ok(())
    }
}
