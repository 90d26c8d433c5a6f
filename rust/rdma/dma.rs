// SPDX-License-Identifier: GPL-2.0

//! Memory that a device may read or write.
//!
//! Software devices have no DMA device of their own, so only the `ib_dma_*`
//! functions know how a device addresses memory.

use core::mem::ManuallyDrop;

use crate::{
    device::Device,
    pd::Pd,
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

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The device reads the memory.
    ToDevice,
    /// The device writes the memory.
    FromDevice,
    /// Both.
    Bidirectional,
}

impl Direction {
    fn raw(self) -> kernel::bindings::dma_data_direction {
        match self {
            Self::ToDevice => kernel::bindings::dma_data_direction::DMA_TO_DEVICE,
            Self::FromDevice => kernel::bindings::dma_data_direction::DMA_FROM_DEVICE,
            Self::Bidirectional => kernel::bindings::dma_data_direction::DMA_BIDIRECTIONAL,
        }
    }
}

/// A kernel buffer that stays mapped for a device as long as it lives.
///
/// # Invariants
///
/// `addr` maps the whole of `bytes` for the device of `pd` in the direction `dir`.
pub struct DmaBuf {
    bytes: KVec<u8>,
    addr: u64,
    dir: Direction,
    pd: Arc<Pd>,
}

impl DmaBuf {
    /// Allocates `len` zeroed bytes and maps them.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL` for a length of zero.
    pub fn new(pd: &Arc<Pd>, len: usize, dir: Direction) -> Result<Self> {
        if len == 0 {
            return Err(EINVAL);
        }
        let mut bytes = KVec::from_elem(0u8, len, GFP_KERNEL)?;
        // SAFETY: The device is live as `pd` holds it; `bytes` has that length, is physically
        // contiguous like all memory of kmalloc, and does not move.
        let addr = unsafe {
            bindings::ib_dma_map_single(
                pd.device().as_raw(),
                bytes.as_mut_ptr().cast(),
                len,
                dir.raw(),
            )
        };
        // SAFETY: As above.
        if unsafe { bindings::ib_dma_mapping_error(pd.device().as_raw(), addr) } != 0 {
            return Err(ENOMEM);
        }
        // INVARIANT: Just mapped. The vector never grows.
        Ok(Self {
            bytes,
            addr,
            dir,
            pd: pd.clone(),
        })
    }

    /// Allocates and maps a copy of `bytes`, for a message to send.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// Those of [`DmaBuf::new`].
    pub fn with(pd: &Arc<Pd>, bytes: &[u8]) -> Result<Self> {
        let mut buf = Self::new(pd, bytes.len(), Direction::ToDevice)?;
        buf.bytes_mut()
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        Ok(buf)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the buffer is empty, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the scatter element for `len` bytes at `offset`, after making the CPU's writes there
    /// visible to the device.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range exceeds the buffer.
    pub fn sge(&self, offset: usize, len: usize) -> Result<Sge> {
        let addr = self.range(offset, len)?;
        // SAFETY: The range is mapped by the type invariant.
        unsafe {
            bindings::ib_dma_sync_single_for_device(
                self.pd.device().as_raw(),
                addr,
                len,
                self.dir.raw(),
            )
        };
        // CAST: Checked by `range`.
        let (len, lkey) = (len as u32, self.pd.local_dma_lkey());
        Ok(Sge::new(self.pd.device(), addr, len, lkey))
    }

    /// Returns `len` bytes at `offset`, after making the device's writes there visible to the CPU.
    /// The device must no longer write there.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range exceeds the buffer.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Result<&[u8]> {
        let addr = self.range(offset, len)?;
        // SAFETY: The range is mapped by the type invariant.
        unsafe {
            bindings::ib_dma_sync_single_for_cpu(
                self.pd.device().as_raw(),
                addr,
                len,
                self.dir.raw(),
            )
        };
        self.bytes.get(offset..offset + len).ok_or(EINVAL)
    }

    /// Returns the whole buffer, for the CPU to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn range(&self, offset: usize, len: usize) -> Result<u64> {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.bytes.len() || u32::try_from(len).is_err() {
            return Err(EINVAL);
        }
        Ok(self.addr + offset as u64)
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: Mapped by the type invariant.
        unsafe {
            bindings::ib_dma_unmap_single(
                self.pd.device().as_raw(),
                self.addr,
                self.bytes.len(),
                self.dir.raw(),
            )
        };
    }
}

/// An I/O whose scatter list is mapped for a device.
///
/// [`MappedIo::unmap`] must end it. Dropping it instead is a bug, of which the kernel warns:
/// without the device the mapping cannot be ended, and as the device may still use the memory, the
/// I/O is never ended either.
///
/// # Invariants
///
/// `sg` is the list of `io`, which stays in place as long as `io` is held; its
/// first `nents` elements are mapped for the device with the number `device` in
/// the direction `dir`.
pub struct MappedIo {
    io: ManuallyDrop<IoHandle>,
    sg: *mut kernel::bindings::scatterlist,
    nents: i32,
    orig_nents: i32,
    dir: Direction,
    device: u64,
}

// SAFETY: The list belongs to the I/O, which is owned and `Send`.
unsafe impl Send for MappedIo {}
// SAFETY: Shared access only reads the list.
unsafe impl Sync for MappedIo {}

impl MappedIo {
    /// Maps the scatter list of `io` for `dev`.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// Returns the I/O with `EINVAL` when it has no list or an empty one, and with `ENOMEM` when
    /// the device has no mapping space left: the same I/O may be retried, unless it exceeds
    /// [`Device::max_mapping_bytes`].
    pub fn new(dev: &Device, mut io: IoHandle, dir: Direction) -> Result<Self, (Error, IoHandle)> {
        let Some(table) = io.sg() else {
            return Err((EINVAL, io));
        };
        let (sg, orig_nents) = (table.as_mut_ptr(), table.nents() as i32);
        if orig_nents == 0 {
            return Err((EINVAL, io));
        }
        // SAFETY: The device is live as it is borrowed. The table belongs to this I/O, has that
        // many elements, and is not mapped, as nobody else can reach it.
        let nents = unsafe { bindings::ib_dma_map_sg(dev.as_raw(), sg, orig_nents, dir.raw()) };
        if nents <= 0 {
            return Err((ENOMEM, io));
        }
        // INVARIANT: Just mapped. The table stays in place and is reached through
        // `io` only, by the contract of `kx::io::Io`.
        Ok(Self {
            io: ManuallyDrop::new(io),
            sg,
            nents,
            orig_nents,
            dir,
            device: dev.id(),
        })
    }

    /// Ends the mapping and returns the I/O. `dev` must be the device that the I/O is mapped for;
    /// otherwise the mapping stays, and the kernel warns.
    ///
    /// The device must no longer use the memory.
    ///
    /// # Context
    ///
    /// Any.
    pub fn unmap(self, dev: &Device) -> IoHandle {
        let this = ManuallyDrop::new(self);
        if this.device == dev.id() {
            // SAFETY: Mapped for this device by the type invariant, as device numbers are never
            // reused, and not used again.
            unsafe {
                bindings::ib_dma_unmap_sg(dev.as_raw(), this.sg, this.orig_nents, this.dir.raw())
            };
        } else {
            // Leaking the mapping is the lesser evil.
            kernel::warn_on!(true);
        }
        // SAFETY: `this` is neither used again nor dropped.
        unsafe { ManuallyDrop::into_inner(core::ptr::read(&this.io)) }
    }

    /// Returns whether the I/O is still wanted, see [`IoHandle::is_wanted`].
    pub fn is_wanted(&self) -> bool {
        self.io.is_wanted()
    }

    /// Returns the number of mapped elements, at least one.
    #[inline]
    pub fn nents(&self) -> u32 {
        self.nents as u32
    }

    /// Returns the number of the device.
    #[inline]
    pub(crate) fn device_id(&self) -> u64 {
        self.device
    }

    pub(crate) fn as_raw(&self) -> *mut kernel::bindings::scatterlist {
        self.sg
    }

    /// Iterates over the mapped elements, as scatter elements for queue pairs in `pd`.
    pub fn sges(&self, pd: &Pd) -> Sges<'_> {
        Sges {
            next: self.sg,
            left: self.nents,
            lkey: pd.local_dma_lkey(),
            device: self.device,
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
    device: u64,
    _io: core::marker::PhantomData<&'a MappedIo>,
}

impl Iterator for Sges<'_> {
    type Item = Sge;

    fn next(&mut self) -> Option<Sge> {
        if self.left == 0 {
            return None;
        }
        // SAFETY: `left` elements of the mapped list are still ahead.
        let (addr, len) = unsafe {
            (
                kernel::bindings::sg_dma_address(self.next),
                kernel::bindings::sg_dma_len(self.next),
            )
        };
        self.left -= 1;
        // SAFETY: `self.next` is an element of the list, whose end is marked; after the last mapped
        // element the result is not used.
        self.next = unsafe { kernel::bindings::sg_next(self.next) };
        Some(Sge::of_device(self.device, addr, len, self.lkey))
    }
}

/// Physically contiguous pages that stay mapped for a device as long as this lives.
///
/// # Invariants
///
/// `addr` maps all of `block` for the device of `pd` in the direction `dir`.
pub struct DmaPages {
    block: Arc<PageBlock>,
    addr: u64,
    dir: Direction,
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
    /// `ENOMEM` when the device has no mapping space left.
    pub fn new(pd: &Arc<Pd>, block: Arc<PageBlock>, dir: Direction) -> Result<Self> {
        // SAFETY: The device is live as `pd` holds it, and so is the block.
        let addr = unsafe {
            bindings::ib_dma_map_single(
                pd.device().as_raw(),
                block.as_ptr().cast(),
                block.len(),
                dir.raw(),
            )
        };
        // SAFETY: As above.
        if unsafe { bindings::ib_dma_mapping_error(pd.device().as_raw(), addr) } != 0 {
            return Err(ENOMEM);
        }
        // INVARIANT: Just mapped.
        Ok(Self {
            block,
            addr,
            dir,
            pd: pd.clone(),
        })
    }

    /// Returns the DMA address of the first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the number of the device.
    #[inline]
    pub(crate) fn device_id(&self) -> u64 {
        self.pd.device().id()
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Returns whether the block is empty, which is never the case.
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
    pub fn sge(&self, len: usize) -> Result<Sge> {
        self.sync_for_device(len)?;
        // CAST: Checked by `sync_for_device`.
        let (len, lkey) = (len as u32, self.pd.local_dma_lkey());
        Ok(Sge::new(self.pd.device(), self.addr, len, lkey))
    }

    /// Makes the CPU's writes to the first `len` bytes visible to the device.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the block is shorter.
    pub fn sync_for_device(&self, len: usize) -> Result {
        self.check(0, len)?;
        // SAFETY: The range is mapped by the type invariant.
        unsafe {
            bindings::ib_dma_sync_single_for_device(
                self.pd.device().as_raw(),
                self.addr,
                len,
                self.dir.raw(),
            )
        };
        Ok(())
    }

    /// Makes the device's writes to `len` bytes at `offset` visible to the CPU.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the block is shorter.
    pub fn sync_for_cpu(&self, offset: usize, len: usize) -> Result {
        self.check(offset, len)?;
        // SAFETY: The range is mapped by the type invariant.
        unsafe {
            bindings::ib_dma_sync_single_for_cpu(
                self.pd.device().as_raw(),
                self.addr + offset as u64,
                len,
                self.dir.raw(),
            )
        };
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() && len <= u32::MAX as usize => Ok(()),
            _ => Err(EINVAL),
        }
    }
}

impl Drop for DmaPages {
    fn drop(&mut self) {
        // SAFETY: Mapped by the type invariant.
        unsafe {
            bindings::ib_dma_unmap_single(
                self.pd.device().as_raw(),
                self.addr,
                self.block.len(),
                self.dir.raw(),
            )
        };
    }
}
