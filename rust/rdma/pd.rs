// SPDX-License-Identifier: GPL-2.0

//! Protection domains, which limit each key to certain queue pairs.
//!
//! A device honours a key only for queue pairs in the protection domain of the key's region. So a
//! driver creates a domain for each peer and each connection attempt: whatever key a peer guesses
//! or remembers, it reaches only the memory that was registered for it. Not every device checks the
//! domain when a peer invalidates a key. On rxe, which does not, a peer can invalidate the
//! registrations of others, but cannot reach their memory.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::ptr::NonNull;

use crate::device::Device;
use ibtrs_bindings as bindings;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use kx::pr_warn_ratelimited;

/// A protection domain of a device.
///
/// Queue pairs, regions and mappings hold references to the domain, so it is freed after the last
/// of them. The domain owns the regions that were allocated in it, and frees them together with
/// itself; until then, a work request may name any of them.
///
/// # When memory may be reused
///
/// Once every queue pair of a domain has been closed (see [`QueuePair::close`]), no peer reaches
/// memory with the domain's keys any more, even though its regions still exist and may never have
/// been invalidated. A closed queue pair is in the error state, in which the device executes
/// nothing that arrives, and no queue pair of another domain may use the keys. So the memory may be
/// freed before the regions.
///
/// This holds only for a domain that gets no further queue pair.
///
/// # Invariants
///
/// `ptr` is a live protection domain of `dev`, and `regions` has all live regions in it.
///
/// [`QueuePair::close`]: crate::qp::QueuePair::close
#[pin_data(PinnedDrop)]
pub struct Pd {
    ptr: NonNull<bindings::ib_pd>,
    #[pin]
    regions: Mutex<Regions>,
    dev: Arc<Device>,
}

/// The regions of a protection domain.
struct Regions(KVVec<NonNull<bindings::ib_mr>>);

// SAFETY: Any thread may use and free a region.
unsafe impl Send for Regions {}

// SAFETY: Any thread may use and free a protection domain.
unsafe impl Send for Pd {}
// SAFETY: Several threads may call the C functions for a protection domain at a time, and its field
// that is read here is constant.
unsafe impl Sync for Pd {}

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
                regions <- new_mutex!(Regions(KVVec::new()), "Pd::regions"),
                dev: dev.clone(),
            }),
            GFP_KERNEL,
        )
        .inspect_err(|_| {
            // SAFETY: The domain was just allocated, and nobody uses it.
            unsafe { bindings::ib_dealloc_pd_user(ptr.as_ptr(), core::ptr::null_mut()) };
        })
    }

    /// Allocates a region of at most `pages` pages, which lives as long as the domain.
    pub(crate) fn new_region(&self, pages: u32) -> Result<NonNull<bindings::ib_mr>> {
        let mut regions = self.regions.lock();
        regions.0.reserve(1, GFP_KERNEL)?;
        // SAFETY: The domain is live by the type invariant.
        let region = crate::from_err_ptr(unsafe {
            bindings::ib_alloc_mr(
                self.as_raw(),
                bindings::ib_mr_type_IB_MR_TYPE_MEM_REG,
                pages,
            )
        })?;
        // INVARIANT: The new region is in the list, which has room.
        let _ = regions.0.push_within_capacity(region);
        Ok(region)
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
        self.regions.lock().0.contains(&region)
    }
}

#[pinned_drop]
impl PinnedDrop for Pd {
    fn drop(self: Pin<&mut Self>) {
        let mut kept = false;
        for region in &self.regions.lock().0 {
            // SAFETY: The region is live by the type invariant. Its users are an `Mr` and queue
            // pairs, which hold references to `self`, so none is left.
            let error =
                unsafe { bindings::ib_dereg_mr_user(region.as_ptr(), core::ptr::null_mut()) };
            self.gave_back("memory region", error);
            kept |= error != 0;
        }
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
