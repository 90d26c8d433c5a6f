// SPDX-License-Identifier: GPL-2.0

//! RDMA verbs and the connection manager for Rust drivers.
//!
//! C headers: [`include/rdma/ib_verbs.h`], [`include/rdma/rdma_cm.h`].
//!
//! # How a driver uses this
//!
//! 1. A module keeps a [`device::Client`] for its life: it takes in every RDMA
//!    device and tells users when a device goes away. Each peer gets a
//!    protection domain of its own, a [`pd::Pd`].
//! 2. A [`cm::CmId`] resolves an address or listens. Its events reach a
//!    [`cm::CmHandler`].
//! 3. [`qp::QpConfig::create`] makes the queue pair of a resolved or incoming
//!    id together with its completion queue and its ring of receive buffers.
//!    Its completions reach a [`qp::Handler`], which the queue pair owns.
//! 4. Work requests are built as one chain inside [`qp::QueuePair::send`], in
//!    memory that the queue pair keeps for it: nothing is allocated, and chains
//!    queue up until the doorbell is rung once for all.
//! 5. A completion finds its owner by a [`slot::Slot`]: an object with embedded
//!    completion entries in a table that the queue pair keeps alive.
//!
//! # What the types guarantee
//!
//! - A protection domain outlives its queue pairs, regions and mappings; a
//!   device removal waits for all of them. No work request names a region that is
//!   gone, or one of another domain.
//! - No completion runs after its queue pair was closed, and none refers to a
//!   slot or buffer that is gone.
//! - A send queue is never overrun: a chain that does not fit is refused with
//!   `EAGAIN`. An error that means that nothing was sent is never a driver's.
//! - Addresses for a device never get to another one.
//!
//! # What they do not
//!
//! An [`sge::Sge`] and a registration do not keep the memory that they name; an
//! rkey and a remote address are plain numbers. What memory a device reads or
//! writes through them is, as with every DMA interface, the business of the
//! driver's protocol. It keeps a mapping until the work requests that name it have
//! completed and the registrations of it are invalid, or until all queue pairs of
//! the protection domain are closed (see [`pd::Pd`]).
//!
//! A driver that leaks an owner with `mem::forget` and unloads its module has its code called after
//! that.
//!
//! [`include/rdma/ib_verbs.h`]: srctree/include/rdma/ib_verbs.h
//! [`include/rdma/rdma_cm.h`]: srctree/include/rdma/rdma_cm.h

use kernel::prelude::*;

const __LOG_PREFIX: &[u8] = b"rdma\0";

pub mod cm;
pub mod cq;
pub mod device;
pub mod dma;
pub mod imm;
pub mod mr;
pub mod pd;
mod plug;
pub mod qp;
pub mod recv;
pub mod sendq;
pub mod sge;
pub mod slot;
pub mod wc;

/// Returns the owner's name for the resource tracker (`rdma res`).
pub(crate) fn caller() -> *const kernel::ffi::c_char {
    kernel::str::CStrExt::as_char_ptr(c"ibtrs")
}

/// Converts a pointer that may be an error pointer; null becomes `ENOMEM`.
pub(crate) fn from_err_ptr<T>(ptr: *mut T) -> Result<core::ptr::NonNull<T>> {
    let ptr = kernel::error::from_err_ptr(ptr)?;
    core::ptr::NonNull::new(ptr).ok_or(ENOMEM)
}

/// C structures that may be initialised with zeroes, as in C.
///
/// # Safety
///
/// All zeroes must be a valid value.
pub(crate) unsafe trait CZeroed: Sized {
    /// Returns a zeroed structure.
    #[inline]
    fn c_zeroed() -> Self {
        // SAFETY: By the trait's contract.
        unsafe { core::mem::zeroed() }
    }
}

// SAFETY: Numbers, raw pointers, and unions and arrays of them.
unsafe impl CZeroed for ibtrs_bindings::ib_send_wr {}
// SAFETY: As above.
unsafe impl CZeroed for ibtrs_bindings::ib_rdma_wr {}
// SAFETY: As above.
unsafe impl CZeroed for ibtrs_bindings::ib_reg_wr {}
// SAFETY: As above.
unsafe impl CZeroed for ibtrs_bindings::ib_recv_wr {}
// SAFETY: As above; optional functions are null.
unsafe impl CZeroed for ibtrs_bindings::ib_qp_init_attr {}
// SAFETY: As above.
unsafe impl CZeroed for ibtrs_bindings::ib_client {}
// SAFETY: As above.
unsafe impl CZeroed for ibtrs_bindings::rdma_conn_param {}
// SAFETY: As above.
unsafe impl CZeroed for kernel::bindings::scatterlist {}
