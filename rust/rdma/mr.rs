// SPDX-License-Identifier: GPL-2.0

//! Memory regions for fast registration.

use core::ptr::NonNull;

use crate::{
    dma::{
        DmaPages,
        MappedIo, //
    },
    pd::Pd,
    CZeroed, //
};
use ibtrs_bindings as bindings;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// What a registration lets the holder of its keys do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The local queue pair may write.
    Local,
    /// The peer may write, too.
    RemoteWrite,
}

impl Access {
    pub(crate) fn bits(self) -> i32 {
        let bits = match self {
            Self::Local => bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE,
            Self::RemoteWrite => {
                bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
                    | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE
            }
        };
        bits as i32
    }
}

/// A memory region that work requests register and invalidate.
///
/// The life of one registration: [`Mr::map`] names the memory,
/// [`Mr::next_key`] makes the keys of the last registration useless, a
/// `reg_mr` work request lets the device honour the new ones, an invalidation
/// (local, or by the peer's send) ends it.
///
/// # Invariants
///
/// `ptr` is a live memory region of the protection domain `_pd`.
pub struct Mr {
    ptr: NonNull<bindings::ib_mr>,
    _pd: Arc<Pd>,
}

// SAFETY: A region may be used and freed from any thread.
unsafe impl Send for Mr {}
// SAFETY: Shared access only reads keys, address and length.
unsafe impl Sync for Mr {}

impl Mr {
    /// Allocates a region of at most `pages` pages.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `EINVAL` or `ENOMEM` from the driver, when the device cannot register
    /// as many pages at once or has no region left.
    pub fn new(pd: &Arc<Pd>, pages: u32) -> Result<Self> {
        // SAFETY: The protection domain is live as `pd` holds it.
        let ptr = crate::from_err_ptr(unsafe {
            bindings::ib_alloc_mr(pd.as_raw(), bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        })?;
        // INVARIANT: Just allocated in `pd`.
        Ok(Self {
            ptr,
            _pd: pd.clone(),
        })
    }

    /// Describes the mapped scatter list of `io` as one range of I/O virtual
    /// addresses, in pages of `PAGE_SIZE` bytes.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the list has gaps or more pages than the region.
    pub fn map_io(&mut self, io: &MappedIo) -> Result {
        // SAFETY: `io` holds a mapped list of that many elements.
        unsafe { self.map(io.as_raw(), io.nents() as i32) }
    }

    /// Describes all of `pages`; else as [`Mr::map_io`].
    pub fn map_pages(&mut self, pages: &DmaPages) -> Result {
        let length = u32::try_from(pages.len())?;
        let mut sg = kernel::bindings::scatterlist {
            dma_address: pages.addr(),
            length,
            ..kernel::bindings::scatterlist::c_zeroed()
        };
        // SAFETY: `sg` is one valid element, of which this sets the length that
        // devices see.
        unsafe { bindings::sg_set_dma_len(&mut sg, length) };
        // SAFETY: `sg` is a list of one element with DMA address and length, of
        // which the callee reads nothing else.
        unsafe { self.map(&mut sg, 1) }
    }

    /// # Safety
    ///
    /// `sg` must point to `nents` elements with DMA addresses and lengths.
    unsafe fn map(&mut self, sg: *mut kernel::bindings::scatterlist, nents: i32) -> Result {
        // SAFETY: The region is live by the type invariant and exclusively
        // ours, the list is valid by this function's contract.
        let mapped = unsafe {
            bindings::ib_map_mr_sg(
                self.ptr.as_ptr(),
                sg,
                nents,
                core::ptr::null_mut(),
                kernel::page::PAGE_SIZE as u32,
            )
        };
        kernel::error::to_result(mapped.min(0))?;
        if mapped != nents {
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Makes new keys out of the old ones by counting up their low byte.
    pub fn next_key(&mut self) {
        // SAFETY: The region is live and exclusively ours.
        unsafe {
            let key = bindings::ib_inc_rkey(self.rkey());
            bindings::ib_update_fast_reg_key(self.ptr.as_ptr(), key as u8);
        }
    }

    /// Returns the remote key.
    #[inline]
    pub fn rkey(&self) -> u32 {
        // SAFETY: The region is live by the type invariant.
        unsafe { (*self.ptr.as_ptr()).rkey }
    }

    /// Returns the local key.
    #[inline]
    pub fn lkey(&self) -> u32 {
        // SAFETY: The region is live by the type invariant.
        unsafe { (*self.ptr.as_ptr()).lkey }
    }

    /// Returns the I/O virtual address that [`Mr::map`] gave the range.
    #[inline]
    pub fn iova(&self) -> u64 {
        // SAFETY: The region is live by the type invariant.
        unsafe { (*self.ptr.as_ptr()).iova }
    }

    /// Returns the length in bytes that [`Mr::map`] found.
    #[inline]
    pub fn length(&self) -> u64 {
        // SAFETY: The region is live by the type invariant.
        unsafe { (*self.ptr.as_ptr()).length }
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::ib_mr {
        self.ptr.as_ptr()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the region is live, and nothing uses
        // it after this. An error would mean that it is bound to a window,
        // which this crate never does.
        unsafe { bindings::ib_dereg_mr_user(self.ptr.as_ptr(), core::ptr::null_mut()) };
    }
}
