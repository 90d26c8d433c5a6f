// SPDX-License-Identifier: GPL-2.0

//! Memory in pieces that is mapped for a device.

use super::{
    map_block,
    Direction, //
};
use crate::{
    pd::Pd,
    sge::Sge, //
};
use ibtrs_bindings as bindings;
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::Arc, //
};
use kx::mm::{
    PageBlock,
    Pieces, //
};

/// Memory in pieces that stays mapped for a device as long as this value lives: each piece has a
/// mapping of its own.
///
/// # Invariants
///
/// `addrs` has no more elements than there are pieces. Each maps all of the piece with the same
/// number for the device of `pd` in the direction `dir`.
pub struct DmaPieces {
    pieces: Arc<Pieces>,
    addrs: KVVec<u64>,
    dir: Direction,
    /// Whether one of the mappings needs that: see [`Device::needs_sync`].
    ///
    /// [`Device::needs_sync`]: crate::device::Device::needs_sync
    needs_sync: bool,
    pd: Arc<Pd>,
}

impl DmaPieces {
    /// Maps `pieces`.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also when the device has no mapping space left.
    pub fn new(pd: &Arc<Pd>, pieces: Arc<Pieces>, dir: Direction) -> Result<Self> {
        let room = DmaRoom::new(&pieces, GFP_KERNEL)?;
        Self::new_in(pd, pieces, dir, room).map_err(|_| ENOMEM)
    }

    /// Maps `pieces`, and allocates nothing: `room` is what [`DmaRoom::new`] has returned for them.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// Hands the room back: the device has no mapping space left, or the room is for fewer pieces.
    pub fn new_in(
        pd: &Arc<Pd>,
        pieces: Arc<Pieces>,
        dir: Direction,
        room: DmaRoom,
    ) -> Result<Self, DmaRoom> {
        if room.0.capacity() < pieces.blocks().len() {
            return Err(room);
        }
        // INVARIANT: Nothing is mapped yet: a room is empty.
        let mut this = Self {
            pieces,
            addrs: room.0,
            dir,
            needs_sync: false,
            pd: pd.clone(),
        };
        for block in this.pieces.blocks() {
            let Ok(addr) = map_block(&this.pd, block, dir) else {
                return Err(this.unmap());
            };
            this.needs_sync |= pd.device().needs_sync(addr);
            // INVARIANT: The block with the next number was just mapped. The list has room.
            let _ = this.addrs.push_within_capacity(addr);
        }
        Ok(this)
    }

    /// Ends the mappings; returns the room for the next ones.
    ///
    /// # Context
    ///
    /// Any.
    pub fn unmap(mut self) -> DmaRoom {
        self.end_all();
        DmaRoom(core::mem::take(&mut self.addrs))
    }

    fn end_all(&mut self) {
        for (addr, len) in self.mapped() {
            // SAFETY: By the type invariant the piece is mapped with this length and direction.
            unsafe {
                bindings::ib_dma_unmap_single(self.pd.device().as_raw(), addr, len, self.dir.raw())
            };
        }
        // INVARIANT: Nothing is mapped any more.
        self.addrs.clear();
    }

    /// Returns the memory.
    #[inline]
    pub fn pieces(&self) -> &Arc<Pieces> {
        &self.pieces
    }

    /// Returns the number of the device.
    #[inline]
    pub(crate) fn device_id(&self) -> u64 {
        self.pd.device().id()
    }

    /// Iterates over the DMA addresses and lengths of the pieces.
    pub(crate) fn mapped(&self) -> impl ExactSizeIterator<Item = (u64, usize)> + '_ {
        let len = |(addr, block): (&u64, &PageBlock)| (*addr, block.len());
        self.addrs.iter().zip(self.pieces.blocks()).map(len)
    }

    /// Returns the scatter element of `len` bytes from `offset` on, if there are any and all of them
    /// are in one piece. The CPU's writes must have been made visible with
    /// [`DmaPieces::sync_for_device`].
    #[inline]
    pub fn sge(&self, offset: usize, len: u32) -> Option<Sge> {
        let part = self.pieces.part(offset, len as usize)?;
        let addr = *self.addrs.get(part.piece)? + part.offset as u64;
        let (device, lkey) = (self.pd.device(), self.pd.local_dma_lkey());
        Some(Sge::new(device, addr, len, lkey))
    }

    /// Iterates over the scatter elements of the first `len` bytes, or of all if there are fewer:
    /// one for each piece. The CPU's writes must have been made visible with
    /// [`DmaPieces::sync_for_device`].
    #[inline]
    pub fn sges(&self, len: usize) -> impl Iterator<Item = Sge> + '_ {
        let mut left = len;
        self.mapped().map_while(move |(addr, piece)| {
            let len = left.min(piece);
            left -= len;
            // CAST: The length of a block of pages fits in 32 bits.
            let sge = || Sge::new(self.pd.device(), addr, len as u32, self.pd.local_dma_lkey());
            (len > 0).then(sge)
        })
    }

    /// Makes the CPU's writes to `len` bytes at `offset` visible to the device.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range exceeds the memory.
    #[inline]
    pub fn sync_for_device(&self, offset: usize, len: usize) -> Result {
        for (addr, len) in self.to_sync(offset, len)? {
            let (dev, dir) = (self.pd.device().as_raw(), self.dir.raw());
            // SAFETY: `to_sync` returns ranges that are mapped for the device.
            unsafe { bindings::ib_dma_sync_single_for_device(dev, addr, len, dir) };
        }
        Ok(())
    }

    /// Makes the device's writes to `len` bytes at `offset` visible to the CPU.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the range exceeds the memory.
    #[inline]
    pub fn sync_for_cpu(&self, offset: usize, len: usize) -> Result {
        for (addr, len) in self.to_sync(offset, len)? {
            let (dev, dir) = (self.pd.device().as_raw(), self.dir.raw());
            // SAFETY: `to_sync` returns ranges that are mapped for the device.
            unsafe { bindings::ib_dma_sync_single_for_cpu(dev, addr, len, dir) };
        }
        Ok(())
    }

    /// Iterates over the DMA addresses and lengths of the parts of a range, if the device needs them
    /// synchronised. By the type invariant their pieces are mapped, and a part is inside its piece.
    #[inline]
    fn to_sync(
        &self,
        offset: usize,
        len: usize,
    ) -> Result<impl Iterator<Item = (u64, usize)> + '_> {
        let parts = self.pieces.parts(offset, len)?;
        let most = if self.needs_sync { usize::MAX } else { 0 };
        Ok(parts.take(most).filter_map(|part| {
            // There is one for each piece, once `new` has returned.
            let addr = self.addrs.get(part.piece)?;
            Some((addr + part.offset as u64, part.len))
        }))
    }
}

impl Drop for DmaPieces {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// Room for the addresses of a mapping, which was allocated before. It is empty.
#[derive(Default)]
pub struct DmaRoom(KVVec<u64>);

impl DmaRoom {
    /// Allocates what a mapping of `pieces` takes.
    ///
    /// # Context
    ///
    /// That of `flags`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(pieces: &Pieces, flags: Flags) -> Result<Self> {
        Ok(Self(KVVec::with_capacity(pieces.blocks().len(), flags)?))
    }
}
