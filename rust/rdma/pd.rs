// SPDX-License-Identifier: GPL-2.0

//! Protection domains: which queue pairs may use which keys.
//!
//! A device honours a key only for queue pairs of the domain that the region was
//! made in. So a driver gives each peer, and each attempt to connect to one, a
//! domain of its own: whatever key a peer guesses or remembers, it reaches the
//! memory that was registered for it and nothing else.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::ptr::NonNull;

use crate::device::Device;
use ibtrs_bindings as bindings;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// A protection domain of a device.
///
/// Queue pairs, regions and mappings hold references, so that the domain goes
/// after the last of them.
///
/// # When memory may be used for something else
///
/// Once every queue pair of a domain has been closed (see
/// [`QueuePair::close`]), no peer reaches memory by the domain's keys any more,
/// though its regions still live and may never have been invalidated: a closed
/// queue pair is in the error state, in which the device executes nothing that
/// arrives, and no other queue pair may use the keys. The memory may be given
/// back before the regions are dropped.
///
/// This holds only for a domain that gets no further queue pair.
///
/// # Invariants
///
/// `ptr` is a live protection domain of `dev`.
///
/// [`QueuePair::close`]: crate::qp::QueuePair::close
pub struct Pd {
    ptr: NonNull<bindings::ib_pd>,
    dev: Arc<Device>,
}

// SAFETY: A protection domain may be used and freed from any thread.
unsafe impl Send for Pd {}
// SAFETY: The C functions that take a protection domain are thread-safe; what
// is read of it here is constant.
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
    /// `ENOMEM`, or what the driver returns when the device has no domain left.
    pub fn new(dev: &Arc<Device>) -> Result<Arc<Self>> {
        // SAFETY: The device is live as `dev` holds it.
        let ptr = crate::from_err_ptr(unsafe {
            bindings::__ib_alloc_pd(dev.as_raw(), 0, crate::caller())
        })?;
        // INVARIANT: Just allocated on `dev`. If the allocation fails, dropping
        // the value frees the domain.
        let pd = Self {
            ptr,
            dev: dev.clone(),
        };
        Ok(Arc::new(pd, GFP_KERNEL)?)
    }

    /// Returns the device.
    #[inline]
    pub fn device(&self) -> &Arc<Device> {
        &self.dev
    }

    /// Returns the key under which local memory needs no registration.
    #[inline]
    pub fn local_dma_lkey(&self) -> u32 {
        // SAFETY: The domain is live by the type invariant, and its key does not
        // change.
        unsafe { (*self.ptr.as_ptr()).local_dma_lkey }
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::ib_pd {
        self.ptr.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: The domain is live by the type invariant. Whatever was made in
        // it holds a reference to `self`, so all of that is gone.
        unsafe { bindings::ib_dealloc_pd_user(self.ptr.as_ptr(), core::ptr::null_mut()) };
    }
}
