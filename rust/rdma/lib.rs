// SPDX-License-Identifier: GPL-2.0

//! RDMA verbs and the connection manager for Rust drivers.
//!
//! C headers: [`include/rdma/ib_verbs.h`], [`include/rdma/rdma_cm.h`].
//!
//! # Use
//!
//! 1. A module keeps a [`device::Client`] as long as it is loaded. The client tracks all RDMA
//!    devices, and notifies users when a device is removed. A driver creates a separate protection
//!    domain ([`pd::Pd`]) for each peer.
//! 2. A [`cm::ActiveId`] resolves an address; a [`cm::Listener`] listens. Events go to a
//!    [`cm::CmHandler`].
//! 3. [`qp::QpConfig::create`] creates the queue pair of a resolved or incoming id, with its
//!    completion queue and its rings of receive buffers. Completions go to a [`qp::Handler`], which
//!    the queue pair owns.
//! 4. [`qp::QueuePair::send`] builds work requests as one chain, in memory that the queue pair has
//!    preallocated. It allocates nothing. Chains wait until the doorbell is rung once for all of
//!    them.
//! 5. A completion is reported with a [`slot::Slot`]: an object with embedded completion entries,
//!    in a table that the queue pair keeps alive.
//!
//! # Guarantees of the types
//!
//! - A protection domain outlives its queue pairs, regions and mappings, and the removal of a
//!   device waits for all of them. No work request names a region that was freed, or a region of
//!   another domain.
//! - No completion is handled after its queue pair was closed, and none refers to a slot or buffer
//!   that was freed.
//! - A send queue is never overrun: a chain that does not fit is refused with `EAGAIN`. `EAGAIN`,
//!   `EINVAL` and `ENOTCONN` always mean that no part of the chain was sent; errors of a device's
//!   driver are reported with other values.
//! - A DMA address is used only in the protection domain that it was mapped in.
//! - Memory of this crate's own types may be dropped at any time. While a queue pair of its
//!   protection domain is open, dropped memory passes to the domain, still mapped, and is freed
//!   together with the domain, after the last queue pair. This applies to buffers
//!   ([`dma::DmaBuf`]), pages ([`dma::DmaPages`]), pieces ([`dma::DmaPieces`]) and the memory of a
//!   region ([`mr::Mr::of_pages`], [`mr::Mr::of_pieces`]).
//! - A device writes only to memory that was set up for device writes: to receive buffers, to
//!   [`dma::Sink`]s, and to registered regions. A read from a peer ([`sendq::Chain::rdma_read`])
//!   accepts only sinks. Pieces that are unmapped before the completion of a read pass to the domain
//!   as well.
//! - A region describes the same memory for its whole lifetime. The exceptions are [`mr::IoMr`], and [`mr::UserMr`],
//!   which owns the memory that it describes.
//!
//! # Duties of the driver
//!
//! The users of the memory of an I/O ([`dma::MappedIo`]) are not counted. The memory belongs to a
//! user of the disk and must be returned as soon as the I/O has ended. As with every DMA interface,
//! the driver is responsible for it:
//!
//! - It calls [`dma::MappedIo::unmap`] only when the work requests that name the memory have
//!   completed, and the key of its registration is invalid, or all queue pairs of the protection
//!   domain are closed (see [`pd::Pd`]). Only the completion of an invalidation, or
//!   [`recv::Received::invalidated`], shows that a key is invalid.
//! - Under the same condition, it calls [`mr::IoMr::map`] again.
//!
//! The same applies to memory of programs: the driver calls [`dma::DmaUser::unmap`] and [`mr::UserMr::invalidated`]
//! when no work request names the memory and no key is valid for it. If they are dropped without these calls, the
//! domain keeps the memory.
//!
//! An rkey and a remote address are plain numbers, which cannot be checked against the peer's memory.
//! The device reads memory when it sends: until then, the driver must not change the memory, nor unmap
//! pieces ([`dma::DmaPieces::unmap`]). It must map memory in the direction in which work requests and
//! registrations use it.
//!
//! A driver must not leak an owner with `mem::forget` and then unload its module, as this crate may
//! still call the module's code.
//!
//! [`include/rdma/ib_verbs.h`]: srctree/include/rdma/ib_verbs.h
//! [`include/rdma/rdma_cm.h`]: srctree/include/rdma/rdma_cm.h

use kernel::prelude::*;

const __LOG_PREFIX: &[u8] = b"rdma\0";

pub mod cm;
pub mod cq;
pub mod device;
mod direction;
pub mod dma;
pub mod imm;
pub mod mr;
pub mod pd;
mod position;
pub mod qp;
pub mod sge;
mod spans;
pub mod wc;

pub use qp::{
    recv,
    sendq::{
        self,
        slot, //
    }, //
};

/// Returns the name of the owner of resources that `rdma res` shows.
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

// SAFETY: The structure consists only of numbers, raw pointers, and unions and arrays of these, for
// which zeroes are valid.
unsafe impl CZeroed for ibtrs_bindings::ib_send_wr {}
// SAFETY: As above.
unsafe impl CZeroed for ibtrs_bindings::ib_rdma_wr {}
// SAFETY: As above.
unsafe impl CZeroed for ibtrs_bindings::ib_reg_wr {}
// SAFETY: As above.
unsafe impl CZeroed for ibtrs_bindings::ib_recv_wr {}
// SAFETY: As above. The structure also has optional function pointers, which may be null.
unsafe impl CZeroed for ibtrs_bindings::ib_qp_init_attr {}
// SAFETY: As above.
unsafe impl CZeroed for ibtrs_bindings::ib_client {}
// SAFETY: As above.
unsafe impl CZeroed for ibtrs_bindings::rdma_conn_param {}
// SAFETY: As above.
unsafe impl CZeroed for kernel::bindings::scatterlist {}
