// SPDX-License-Identifier: GPL-2.0

//! Memory that is mapped for a device, so that the device may read or write it.
//!
//! Mappings are made with the `ib_dma_*` functions, because software devices have no DMA device.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! use kx::{
//!     io::IoHandle,
//!     mm::{Node, PageBlock, Pieces},
//! };
//! use rdma::{
//!     dma::{Direction, DmaBuf, DmaPages, DmaPieces, MappedIo},
//!     pd::Pd,
//! };
//!
//! fn map(pd: &Arc<Pd>) -> Result {
//!     let mut small = DmaBuf::new(pd, 64)?;
//!     small.write(0, b"bytes to send")?;
//!     let to_send = small.sge(0, 13)?;
//!
//!     let pages = Arc::new(PageBlock::with_len(8192, Node::ANY)?, GFP_KERNEL)?;
//!     let pages = DmaPages::new(pd, pages, Direction::FromDevice)?;
//!     // After the device has written there, and before the CPU reads it:
//!     pages.sync_for_cpu(4096)?;
//!
//!     let pieces = Arc::new(Pieces::new(1 << 20, Node::ANY)?, GFP_KERNEL)?;
//!     let mut pieces = DmaPieces::new(pd, pieces, Direction::Bidirectional)?;
//!     // Where a read from the peer may write.
//!     let sinks = pieces.sinks(4096).count();
//! #   let _ = (to_send, sinks);
//!     Ok(())
//! }
//!
//! /// Maps the data of a disk's write until the work requests that name it have completed.
//! fn map_write(pd: &Pd, io: IoHandle) -> Result<IoHandle, (Error, IoHandle)> {
//!     let mapped = MappedIo::new(pd, io, Direction::ToDevice)?;
//!     let elements = mapped.sges(pd).count();
//! #   let _ = elements;
//!     Ok(mapped.unmap(pd))
//! }
//! ```

use core::{
    mem::{
        take,
        ManuallyDrop, //
    },
    ptr, //
};

use crate::{
    pd::{
        keep::{
            KeepNode,
            Mapped, //
        },
        Pd, //
    },
    sge::Sge, //
};
use ibtrs_bindings as bindings;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    io::IoHandle,
    mm::PageBlock, //
};

mod pieces;
mod reads;
mod user;

pub use crate::direction::Direction;
pub use pieces::{
    DmaPieces,
    DmaRoom, //
};
pub use reads::Sink;
pub use user::DmaUser;

/// Bytes that stay mapped for a device as long as this value lives, or as a queue pair may use them.
///
/// Nobody has a reference to all of the bytes, as the device may own a part of them while the CPU
/// uses another.
///
/// # Invariants
///
/// `addr` maps the whole of `bytes` for the device of `pd` in the direction `dir`, unless they are empty.
pub(crate) struct MappedBytes {
    bytes: KVec<u8>,
    addr: u64,
    dir: Direction,
    /// See [`Device::needs_sync`](crate::device::Device::needs_sync).
    needs_sync: bool,
    /// Present until this value is dropped.
    room: Option<KBox<KeepNode>>,
    pd: Arc<Pd>,
}

impl MappedBytes {
    /// Allocates `len` zeroed bytes and maps them.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` for a length of zero, or one that does not fit 32 bits.
    pub(crate) fn new(pd: &Arc<Pd>, len: usize, dir: Direction) -> Result<Self> {
        if len == 0 || u32::try_from(len).is_err() {
            return Err(EINVAL);
        }
        let room = KeepNode::new(GFP_KERNEL)?;
        let mut bytes = KVec::<u8>::zeroed(len, GFP_KERNEL)?;
        // SAFETY: The device is live, as `pd` keeps it. `bytes` has that length, is physically
        // contiguous as all memory of kmalloc is, and does not move, as the vector never grows.
        let addr = unsafe {
            bindings::ib_dma_map_single(
                pd.device().as_raw(),
                bytes.as_mut_ptr().cast(),
                len,
                dir.raw(),
            )
        };
        // SAFETY: The device is live, and the callee accepts any address.
        if unsafe { bindings::ib_dma_mapping_error(pd.device().as_raw(), addr) } != 0 {
            return Err(ENOMEM);
        }
        // INVARIANT: The whole of `bytes` was just mapped.
        Ok(Self {
            bytes,
            addr,
            dir,
            needs_sync: pd.device().needs_sync(addr),
            room: Some(room),
            pd: pd.clone(),
        })
    }

    /// Returns the scatter element for `len` bytes at `offset`, after making the CPU's writes there
    /// visible to the device.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range exceeds the bytes.
    #[inline(always)]
    pub(crate) fn sge(&self, offset: usize, len: usize) -> Result<Sge> {
        self.check(offset, len)?;
        let addr = self.addr + offset as u64;
        if self.needs_sync {
            // SAFETY: The range is inside the bytes, which are mapped by the type invariant.
            unsafe {
                bindings::ib_dma_sync_single_for_device(
                    self.pd.device().as_raw(),
                    addr,
                    len,
                    self.dir.raw(),
                )
            };
        }
        // CAST: No more than the length of the bytes, which fits 32 bits.
        let (len, lkey) = (len as u32, self.pd.local_dma_lkey());
        Ok(Sge::new(&self.pd, addr, len, lkey))
    }

    /// Returns whether the bytes need synchronisation.
    #[inline]
    pub(crate) fn needs_sync(&self) -> bool {
        self.needs_sync
    }

    /// Copies `from` to `offset`. If the device is reading there, it gets some of the old bytes and
    /// some of the new ones.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range exceeds the bytes.
    #[inline]
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) -> Result {
        let to = self.part(offset, from.len())?;
        // SAFETY: `to` is that many bytes, which this value owns. There is no other reference to
        // them, as `self` is borrowed exclusively, so `from` does not overlap them.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// As [`Self::write`], with `len` zeroes.
    #[inline]
    pub(crate) fn zero(&mut self, offset: usize, len: usize) -> Result {
        let to = self.part(offset, len)?;
        // SAFETY: As in `write`.
        unsafe { ptr::write_bytes(to, 0, len) };
        Ok(())
    }

    /// Returns `len` bytes at `offset`, after making the device's writes there visible to the CPU.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range exceeds the bytes.
    ///
    /// # Safety
    ///
    /// The device must not write to the range as long as the result is used.
    #[inline]
    pub(crate) unsafe fn read(&self, offset: usize, len: usize) -> Result<&[u8]> {
        let part = self.part(offset, len)?;
        if self.needs_sync {
            // SAFETY: The range is inside the bytes, which are mapped by the type invariant.
            unsafe {
                bindings::ib_dma_sync_single_for_cpu(
                    self.pd.device().as_raw(),
                    self.addr + offset as u64,
                    len,
                    self.dir.raw(),
                )
            };
        }
        // SAFETY: `part` is that many bytes, which were initialised and live as long as `self`. The
        // CPU writes to them only with exclusive access to `self`, and by this function's contract
        // the device does not.
        Ok(unsafe { core::slice::from_raw_parts(part, len) })
    }

    /// Unmaps and frees the bytes at once, even if the domain has open queue pairs. The buffer is
    /// empty afterwards.
    ///
    /// # Safety
    ///
    /// No work request that may not have completed, or may still be posted, may name the bytes.
    pub(crate) unsafe fn free(&mut self) {
        // SAFETY: By the type invariant the bytes, if any, are mapped at that address. They are moved
        // out, so they are unmapped only once.
        let mapped = unsafe { Mapped::bytes(take(&mut self.bytes), self.addr, self.dir) };
        // SAFETY: They are mapped for this device. By this function's contract it does not use them.
        unsafe { mapped.end(self.pd.device()) };
    }

    /// Returns the address of `len` bytes at `offset`.
    #[inline]
    fn part(&self, offset: usize, len: usize) -> Result<*mut u8> {
        self.check(offset, len)?;
        // The pointer of the vector comes from the allocator, not from a reference to the elements.
        Ok(self.bytes.as_ptr().cast_mut().wrapping_add(offset))
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes.len() => Ok(()),
            _ => Err(EINVAL),
        }
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        // SAFETY: By the type invariant the bytes are mapped there, and this value ends.
        let mapped = unsafe { Mapped::bytes(take(&mut self.bytes), self.addr, self.dir) };
        // SAFETY: They are mapped for the device of this domain.
        unsafe { self.pd.release(mapped, self.room.take()) };
    }
}

/// A kernel buffer to send messages from, which is mapped for a device.
///
/// The device only reads it: the mapping does not allow more, and [`Chain::rdma_read`] takes other
/// memory. It may be dropped while a message is being sent: then the protection domain keeps it
/// until all queue pairs are closed.
///
/// [`Chain::rdma_read`]: crate::sendq::Chain::rdma_read
pub struct DmaBuf(MappedBytes);

impl DmaBuf {
    /// Allocates `len` zeroed bytes and maps them.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` for a length of zero, or one that does not fit 32 bits.
    pub fn new(pd: &Arc<Pd>, len: usize) -> Result<Self> {
        MappedBytes::new(pd, len, Direction::ToDevice).map(Self)
    }

    /// Allocates and maps a copy of `bytes`, for a message to send.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Errors of [`DmaBuf::new`].
    pub fn with(pd: &Arc<Pd>, bytes: &[u8]) -> Result<Self> {
        let mut buf = Self::new(pd, bytes.len())?;
        buf.write(0, bytes)?;
        Ok(buf)
    }

    /// Returns the scatter element for `len` bytes at `offset`, after making the CPU's writes there
    /// visible to the device.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range exceeds the buffer.
    #[inline]
    pub fn sge(&self, offset: usize, len: usize) -> Result<Sge> {
        self.0.sge(offset, len)
    }

    /// Copies `from` to `offset`. A message from there that is still being sent gets some of the old
    /// bytes and some of the new ones.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range exceeds the buffer.
    #[inline]
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result {
        self.0.write(offset, from)
    }

    /// As [`Self::write`], with `len` zeroes.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range exceeds the buffer.
    #[inline]
    pub fn zero(&mut self, offset: usize, len: usize) -> Result {
        self.0.zero(offset, len)
    }

    /// See [`MappedBytes::free`].
    ///
    /// # Safety
    ///
    /// See [`MappedBytes::free`].
    pub(crate) unsafe fn free(&mut self) {
        // SAFETY: By this function's contract.
        unsafe { self.0.free() };
    }

    /// Returns the first `len` bytes, as written last, or all if there are fewer.
    #[inline]
    pub fn bytes(&self, len: usize) -> &[u8] {
        let bytes = &self.0.bytes;
        // Only the CPU writes to the buffer, so all may be borrowed to read.
        bytes.get(..len).unwrap_or(bytes)
    }
}

/// An I/O whose scatter list is mapped for a device.
///
/// [`MappedIo::unmap`] must end the mapping. Dropping this value instead is a bug, of which the
/// kernel warns. Without the device the mapping cannot be ended, so the device may still use the
/// memory, and the I/O is never ended either.
///
/// # Invariants
///
/// `sg` is the list of `io`, which does not move as long as this value owns `io`. The first `nents`
/// elements are mapped in the direction `dir` for the device of the protection domain with the number
/// `domain`.
pub struct MappedIo {
    io: ManuallyDrop<IoHandle>,
    sg: *mut kernel::bindings::scatterlist,
    nents: i32,
    orig_nents: i32,
    dir: Direction,
    domain: u64,
}

// SAFETY: The list belongs to the I/O, which this value owns and which is `Send`.
unsafe impl Send for MappedIo {}
// SAFETY: Shared references only read the list, and the I/O is `Sync`.
unsafe impl Sync for MappedIo {}

impl MappedIo {
    /// Maps the scatter list of `io` for use by queue pairs in `pd`.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// Returns the I/O with `EINVAL` when it has no list or an empty one, and with `ENOMEM` when
    /// the device has no mapping space left. The caller may retry after `ENOMEM`, unless the I/O
    /// exceeds [`Device::max_mapping_bytes`](crate::device::Device::max_mapping_bytes).
    pub fn new(pd: &Pd, mut io: IoHandle, dir: Direction) -> Result<Self, (Error, IoHandle)> {
        let Some(table) = io.sg() else {
            return Err((EINVAL, io));
        };
        let (sg, orig_nents) = (table.as_mut_ptr(), table.nents() as i32);
        if orig_nents == 0 {
            return Err((EINVAL, io));
        }
        let dev = pd.device().as_raw();
        // SAFETY: The device is live, as `pd` keeps it. The table belongs to this I/O and has that
        // many elements. It is not mapped, as a mapping would own the I/O.
        let nents = unsafe { bindings::ib_dma_map_sg(dev, sg, orig_nents, dir.raw()) };
        if nents <= 0 {
            return Err((ENOMEM, io));
        }
        // INVARIANT: The table was just mapped. By the contract of `kx::io::Io` it does not move,
        // and is reached only through `io`.
        Ok(Self {
            io: ManuallyDrop::new(io),
            sg,
            nents,
            orig_nents,
            dir,
            domain: pd.id(),
        })
    }

    /// Ends the mapping and returns the I/O. `pd` must be the domain that the I/O is mapped for;
    /// otherwise the mapping remains, and the kernel warns.
    ///
    /// The device must no longer use the memory, see the duties of the driver in the documentation of
    /// the crate.
    ///
    /// # Context
    ///
    /// Any.
    pub fn unmap(self, pd: &Pd) -> IoHandle {
        let this = ManuallyDrop::new(self);
        if this.domain == pd.id() {
            let dev = pd.device().as_raw();
            // SAFETY: By the type invariant the list is mapped for the device of the domain with this
            // number, which is `pd`, as numbers are never reused. The mapping is not used again.
            unsafe { bindings::ib_dma_unmap_sg(dev, this.sg, this.orig_nents, this.dir.raw()) };
        } else {
            // Leaking the mapping is better than unmapping it from another device.
            kernel::warn_on!(true);
        }
        // SAFETY: `this` is neither used again nor dropped.
        unsafe { ManuallyDrop::into_inner(ptr::read(&this.io)) }
    }

    /// Returns whether the I/O is still wanted, see [`IoHandle::is_wanted`].
    pub fn is_wanted(&self) -> bool {
        self.io.is_wanted()
    }

    /// Returns whether the I/O is cancelled, see [`IoHandle::is_cancelled`].
    pub fn is_cancelled(&self) -> bool {
        self.io.is_cancelled()
    }

    /// Returns the number of mapped elements, at least one.
    #[inline]
    pub fn nents(&self) -> u32 {
        self.nents as u32
    }

    /// Returns the number of the domain.
    #[inline]
    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    pub(crate) fn as_raw(&self) -> *mut kernel::bindings::scatterlist {
        self.sg
    }

    /// Iterates over the mapped elements, as scatter elements for queue pairs in `pd`, which must be the
    /// domain that the I/O is mapped for: others refuse them.
    pub fn sges(&self, pd: &Pd) -> Sges<'_> {
        Sges {
            next: self.sg,
            left: self.nents,
            lkey: pd.local_dma_lkey(),
            domain: self.domain,
            _io: core::marker::PhantomData,
        }
    }
}

impl Drop for MappedIo {
    fn drop(&mut self) {
        kernel::warn_on!(true);
    }
}

/// Iterator of [`MappedIo::sges`].
pub struct Sges<'a> {
    next: *mut kernel::bindings::scatterlist,
    left: i32,
    lkey: u32,
    domain: u64,
    _io: core::marker::PhantomData<&'a MappedIo>,
}

impl Iterator for Sges<'_> {
    type Item = Sge;

    fn next(&mut self) -> Option<Sge> {
        if self.left == 0 {
            return None;
        }
        // SAFETY: `left` is not zero, so `next` is one of the mapped elements of the list, which
        // lives as long as the `MappedIo` is borrowed.
        let (addr, len) = unsafe {
            (
                kernel::bindings::sg_dma_address(self.next),
                kernel::bindings::sg_dma_len(self.next),
            )
        };
        self.left -= 1;
        // SAFETY: `next` is an element of the list, whose end is marked by the type invariant of
        // `SgTable`. After the last mapped element the result is not used.
        self.next = unsafe { kernel::bindings::sg_next(self.next) };
        Some(Sge::of_domain(self.domain, addr, len, self.lkey))
    }
}

/// Maps all of `block`, which the caller keeps until it ends the mapping; returns the DMA address.
///
/// # Errors
///
/// `ENOMEM` when the device has no mapping space left.
fn map_block(pd: &Pd, block: &PageBlock, dir: Direction) -> Result<u64> {
    let dev = pd.device().as_raw();
    // SAFETY: The device is live, as `pd` keeps it. The block has that length and is contiguous.
    let addr =
        unsafe { bindings::ib_dma_map_single(dev, block.as_ptr().cast(), block.len(), dir.raw()) };
    // SAFETY: The device is live, and the callee accepts any address.
    match unsafe { bindings::ib_dma_mapping_error(dev, addr) } {
        0 => Ok(addr),
        _ => Err(ENOMEM),
    }
}

/// Physically contiguous pages that are mapped for a device.
///
/// They may be dropped while the device uses them: then the protection domain keeps them until all
/// queue pairs are closed.
///
/// # Invariants
///
/// `addr` maps all of `block` for the device of `pd` in the direction `dir`.
pub struct DmaPages {
    block: Arc<PageBlock>,
    addr: u64,
    dir: Direction,
    /// See [`Device::needs_sync`](crate::device::Device::needs_sync).
    needs_sync: bool,
    /// Present until this value is dropped.
    room: Option<KBox<KeepNode>>,
    pd: Arc<Pd>,
}

impl DmaPages {
    /// Maps `block`.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also when the device has no mapping space left.
    pub fn new(pd: &Arc<Pd>, block: Arc<PageBlock>, dir: Direction) -> Result<Self> {
        let room = KeepNode::new(GFP_KERNEL)?;
        let addr = map_block(pd, &block, dir)?;
        // INVARIANT: The whole block was just mapped.
        Ok(Self {
            block,
            addr,
            dir,
            needs_sync: pd.device().needs_sync(addr),
            room: Some(room),
            pd: pd.clone(),
        })
    }

    /// Returns the DMA address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the domain.
    #[inline]
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Returns false, as a block is never empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the pages.
    #[inline]
    pub fn block(&self) -> &Arc<PageBlock> {
        &self.block
    }

    /// Returns the scatter element for the first `len` bytes, after making the CPU's writes there
    /// visible to the device.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the block is shorter.
    #[inline]
    pub fn sge(&self, len: usize) -> Result<Sge> {
        self.sync_for_device(len)?;
        // CAST: Checked by `sync_for_device`.
        let (len, lkey) = (len as u32, self.pd.local_dma_lkey());
        Ok(Sge::new(&self.pd, self.addr, len, lkey))
    }

    /// Makes the CPU's writes to the first `len` bytes visible to the device.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the block is shorter.
    #[inline]
    pub fn sync_for_device(&self, len: usize) -> Result {
        self.check(len)?;
        if self.needs_sync {
            // SAFETY: `check` has checked that the range is inside the block, which is mapped by
            // the type invariant.
            unsafe {
                bindings::ib_dma_sync_single_for_device(
                    self.pd.device().as_raw(),
                    self.addr,
                    len,
                    self.dir.raw(),
                )
            };
        }
        Ok(())
    }

    /// Makes the device's writes to the first `len` bytes visible to the CPU.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the block is shorter.
    #[inline]
    pub fn sync_for_cpu(&self, len: usize) -> Result {
        self.check(len)?;
        if self.needs_sync {
            // SAFETY: As in `sync_for_device`.
            unsafe {
                bindings::ib_dma_sync_single_for_cpu(
                    self.pd.device().as_raw(),
                    self.addr,
                    len,
                    self.dir.raw(),
                )
            };
        }
        Ok(())
    }

    #[inline]
    fn check(&self, len: usize) -> Result {
        match len <= self.len() && len <= u32::MAX as usize {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }
}

impl Drop for DmaPages {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the block is mapped there, and this value ends.
        let mapped = unsafe { Mapped::block(self.block.clone(), self.addr, self.dir) };
        // SAFETY: It is mapped for the device of this domain.
        unsafe { self.pd.release(mapped, self.room.take()) };
    }
}
