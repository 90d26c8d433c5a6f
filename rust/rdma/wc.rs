// SPDX-License-Identifier: GPL-2.0

//! Work completions.
//!
//! # Examples
//!
//! ```
//! use rdma::wc::Wc;
//!
//! fn is_worth_a_line(wc: &Wc) -> bool {
//!     // A flushed request only says that the queue pair is being closed.
//!     !wc.is_success() && !wc.is_flush()
//! }
//! ```

use ibtrs_bindings as bindings;
use kernel::{
    prelude::*,
    str::CStr, //
};

/// A work completion, borrowed from the array into which the completion queue was polled.
///
/// # Invariants
///
/// `ib_poll_cq` has set the fields that are valid for the status of the completion.
#[repr(transparent)]
pub struct Wc(bindings::ib_wc);

impl Wc {
    /// Wraps the completion that a `done` callback got.
    ///
    /// # Safety
    ///
    /// `wc` must point to a completion that `ib_poll_cq` has filled in, and that nobody changes
    /// during `'a`.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(wc: *mut bindings::ib_wc) -> &'a Self {
        // CAST: `Wc` is transparent.
        // SAFETY: By this function's contract.
        unsafe { &*wc.cast() }
    }

    /// Returns whether the work request succeeded.
    #[inline]
    pub fn is_success(&self) -> bool {
        self.0.status == bindings::ib_wc_status_IB_WC_SUCCESS
    }

    /// Returns whether the work request was flushed, because its queue pair had failed or was being
    /// drained.
    #[inline]
    pub fn is_flush(&self) -> bool {
        self.0.status == bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR
    }

    /// Returns whether a receive failed because of the peer's message, which was too long, or named
    /// a key that the peer may not use. Network and hardware errors have other statuses, except
    /// `LOC_QP_OP_ERR`, which soft-RoCE uses for messages that are too long.
    pub fn is_peers_mistake(&self) -> bool {
        matches!(
            self.0.status,
            bindings::ib_wc_status_IB_WC_LOC_LEN_ERR
                | bindings::ib_wc_status_IB_WC_LOC_QP_OP_ERR
                | bindings::ib_wc_status_IB_WC_LOC_ACCESS_ERR
                | bindings::ib_wc_status_IB_WC_REM_INV_REQ_ERR
                | bindings::ib_wc_status_IB_WC_REM_ACCESS_ERR
        )
    }

    /// Returns a description of the status.
    pub fn status_str(&self) -> &'static CStr {
        // SAFETY: The function accepts any status and returns a static string.
        unsafe { CStr::from_char_ptr(bindings::ib_wc_status_msg(self.0.status)) }
    }

    /// Returns the number of bytes received. For a write with immediate, some drivers return the
    /// number of bytes written.
    #[inline]
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// Returns the immediate of the message, if it has one, in host byte order.
    #[inline]
    pub(crate) fn imm(&self) -> Option<u32> {
        if self.0.wc_flags & bindings::ib_wc_flags_IB_WC_WITH_IMM as i32 == 0 {
            return None;
        }
        // SAFETY: The flag says that the union has an immediate, and any bits are a valid one.
        Some(u32::from_be(unsafe { *self.0.ex.imm_data }))
    }

    /// Returns the key of this side that the message invalidated, if any.
    #[inline]
    pub(crate) fn invalidated(&self) -> Option<u32> {
        if self.0.wc_flags & bindings::ib_wc_flags_IB_WC_WITH_INVALIDATE as i32 == 0 {
            return None;
        }
        // SAFETY: The flag says that the union has a key, and any bits are a valid one.
        Some(unsafe { *self.0.ex.invalidate_rkey })
    }

    /// Returns whether the completion is that of an RDMA write with immediate, which does not use
    /// the receive buffer.
    #[inline]
    pub fn is_rdma_imm(&self) -> bool {
        self.0.opcode == bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM
    }
}

/// Displays the status and the vendor's error code, for completions in error.
impl kernel::fmt::Display for Wc {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        kernel::fmt::Display::fmt(self.status_str(), f)?;
        f.write_fmt(fmt!(" (vendor error {:#x})", self.0.vendor_err))
    }
}

/// Returns the index of a completion among those that were polled together. The core polls them
/// into an array of the queue, and calls their completion functions in order. With direct polling
/// the index is unknown, and each completion counts as the first one.
///
/// # Safety
///
/// `cq` must be the live completion queue that `wc` was found on.
pub(crate) unsafe fn position(cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) -> u32 {
    // SAFETY: By this function's contract the queue is live; neither field changes.
    let (first, context) = unsafe { ((*cq).wc, (*cq).poll_ctx) };
    if context == bindings::ib_poll_context_IB_POLL_DIRECT {
        // The array is on the poller's stack.
        return 0;
    }
    let bytes = wc.addr().wrapping_sub(first.addr());
    u32::try_from(bytes / size_of::<bindings::ib_wc>()).unwrap_or(0)
}
