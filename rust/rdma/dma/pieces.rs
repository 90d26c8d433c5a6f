// SPDX-License-Identifier: GPL-2.0

//! Memory in pieces that is mapped for a device.

use super::{
    map_block,
    reads::{
        Reads,
        Sink, //
    },
    Direction, //
};
use crate::{
    pd::{
        keep::{
            KeepNode,
            Mapped, //
        },
        Pd, //
    },
    position::Position,
    sge::Sge, //
};
use core::mem::take;
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

/// Memory in pieces that is mapped for a device, each piece separately.
///
/// It may be dropped while the device uses it: then the protection domain keeps it until all queue
/// pairs are closed. [`DmaPieces::unmap`] fails if a queue pair may still read from a peer into the
/// memory.
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
    /// For the domain; taken when this value ends.
    room: Option<KBox<KeepNode>>,
    reads: Reads,
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
        let kept = KeepNode::new(GFP_KERNEL)?;
        let room = DmaRoom::new(&pieces, GFP_KERNEL)?;
        let mut this = Self::new_in(pd, pieces, dir, room).map_err(|_| ENOMEM)?;
        this.room = Some(kept);
        Ok(this)
    }

    /// Maps `pieces` without allocating: `room` must be the result of [`DmaRoom::new`] for them.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// Returns `room` if the device has no mapping space left, or if `room` is for fewer pieces.
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
            room: None,
            reads: Reads::none(),
            pd: pd.clone(),
        };
        for block in this.pieces.blocks() {
            let Ok(addr) = map_block(&this.pd, block, dir) else {
                // SAFETY: `this` is new, so no work request or registration names the memory.
                return Err(unsafe { this.end_now() });
            };
            this.needs_sync |= pd.device().needs_sync(addr);
            // INVARIANT: The block with the next number was just mapped. The list has room.
            let _ = this.addrs.push_within_capacity(addr);
        }
        Ok(this)
    }

    /// Ends the mappings; returns the room for the next ones.
    ///
    /// The device must no longer send from the memory, or it may send data of the memory's next
    /// use.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// Returns the memory, still mapped, if the device may write there until all queue pairs are
    /// closed, because a [read](Self::end_reads) is pending or a region covers the memory. Until then
    /// the memory must not be reused. If it is dropped, it passes to the domain.
    pub fn unmap(mut self) -> Result<DmaRoom, Self> {
        if self.reads.is_pending() && !self.pd.is_over() {
            return Err(self);
        }
        // SAFETY: No read into the memory is pending, which includes a region that covers it (`keep`), or the
        // domain has no queue pair any more. The caller keeps the device from sending from it.
        Ok(unsafe { self.end_now() })
    }

    /// Ends the mappings at once; returns the room for the next ones.
    ///
    /// # Safety
    ///
    /// As for [`Self::free`].
    unsafe fn end_now(&mut self) -> DmaRoom {
        // SAFETY: By the caller's contract.
        unsafe { self.free() };
        DmaRoom(take(&mut self.addrs))
    }

    /// Records that the device writes to the memory until all queue pairs are closed.
    pub(crate) fn keep(&mut self) {
        self.reads.never_end();
    }

    /// Records that the reads from a peer into this memory have completed, if they were posted before the
    /// request at `done`, which [`Handler::slot_done`] gets.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// [`Handler::slot_done`]: crate::qp::Handler::slot_done
    #[inline]
    pub fn end_reads(&self, done: Position) {
        self.reads.end(done);
    }

    /// Ends the mappings at once, even if the domain has open queue pairs.
    ///
    /// # Safety
    ///
    /// No work request that may not have completed, or may still be posted, and no registration may name
    /// the memory.
    pub(crate) unsafe fn free(&mut self) {
        for (addr, len) in self.mapped() {
            // SAFETY: By the type invariant the piece is mapped with this length and direction, and by the
            // caller's contract the device does not use it any more.
            unsafe {
                bindings::ib_dma_unmap_single(self.pd.device().as_raw(), addr, len, self.dir.raw())
            };
        }
        // INVARIANT: Nothing is mapped any more.
        self.addrs.clear();
    }

    /// Returns whether the memory needs [`Self::sync_for_device`] and [`Self::sync_for_cpu`].
    #[inline]
    pub(crate) fn needs_sync(&self) -> bool {
        self.needs_sync
    }

    /// Returns the memory.
    #[inline]
    pub fn pieces(&self) -> &Arc<Pieces> {
        &self.pieces
    }

    /// Returns the domain.
    #[inline]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
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
        Some(Sge::new(&self.pd, addr, len, self.pd.local_dma_lkey()))
    }

    /// As [`Self::sge`], of `len` bytes, at least one, from `offset` on of the piece with this number.
    #[inline(always)]
    pub fn sge_in(&self, piece: usize, offset: usize, len: u32) -> Option<Sge> {
        let bytes = self.pieces.blocks().get(piece)?.len();
        let is_inside = len > 0 && offset.checked_add(len as usize)? <= bytes;
        let addr = self.addrs.get(piece).filter(|_| is_inside)?;
        let addr = *addr + offset as u64;
        Some(Sge::new(&self.pd, addr, len, self.pd.local_dma_lkey()))
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
            let sge = || Sge::new(&self.pd, addr, len as u32, self.pd.local_dma_lkey());
            (len > 0).then(sge)
        })
    }

    /// As [`Self::sges`], for reads from a peer into the memory. They must be ended with
    /// [`Self::end_reads`] before the memory is unmapped.
    #[inline]
    pub fn sinks(&mut self, len: usize) -> impl Iterator<Item = Sink<'_>> {
        // INVARIANT: The result borrows the memory exclusively.
        let reads = &self.reads;
        self.sges(len).map(move |sge| Sink { sge, reads })
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
        match self.needs_sync {
            true => self.sync_parts_for_device(offset, len),
            false => self.pieces.parts(offset, len).map(drop),
        }
    }

    #[inline(never)]
    fn sync_parts_for_device(&self, offset: usize, len: usize) -> Result {
        for (addr, len) in self.mapped_at(offset, len)? {
            let (dev, dir) = (self.pd.device().as_raw(), self.dir.raw());
            // SAFETY: `mapped_at` returns ranges that are mapped for the device.
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
        match self.needs_sync {
            true => self.sync_parts_for_cpu(offset, len),
            false => self.pieces.parts(offset, len).map(drop),
        }
    }

    #[inline(never)]
    fn sync_parts_for_cpu(&self, offset: usize, len: usize) -> Result {
        for (addr, len) in self.mapped_at(offset, len)? {
            let (dev, dir) = (self.pd.device().as_raw(), self.dir.raw());
            // SAFETY: `mapped_at` returns ranges that are mapped for the device.
            unsafe { bindings::ib_dma_sync_single_for_cpu(dev, addr, len, dir) };
        }
        Ok(())
    }

    /// Iterates over the DMA addresses and lengths of the parts of a range. By the type invariant their
    /// pieces are mapped, and a part is inside its piece.
    fn mapped_at(
        &self,
        offset: usize,
        len: usize,
    ) -> Result<impl Iterator<Item = (u64, usize)> + '_> {
        let parts = self.pieces.parts(offset, len)?;
        Ok(parts.filter_map(|part| {
            // There is one for each piece, once `new` has returned.
            let addr = self.addrs.get(part.piece)?;
            Some((addr + part.offset as u64, part.len))
        }))
    }
}

impl Drop for DmaPieces {
    fn drop(&mut self) {
        if self.addrs.is_empty() {
            return;
        }
        let (pieces, addrs) = (self.pieces.clone(), take(&mut self.addrs));
        // SAFETY: By the type invariant the pieces are mapped there, and this value ends.
        let mapped = unsafe { Mapped::pieces(pieces, addrs, self.dir) };
        // SAFETY: They are mapped for the device of this domain.
        unsafe { self.pd.release(mapped, self.room.take()) };
    }
}

/// Preallocated, empty space for the addresses of a mapping.
#[derive(Default)]
pub struct DmaRoom(KVVec<u64>);

impl DmaRoom {
    /// Allocates the space for a mapping of `pieces`.
    ///
    /// # Context
    ///
    /// Any in which `flags` allow an allocation.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(pieces: &Pieces, flags: Flags) -> Result<Self> {
        Ok(Self(KVVec::with_capacity(pieces.blocks().len(), flags)?))
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(rdma_pieces)]
mod tests {
    use super::*;
    use crate::device::Device;
    use kernel::page::PAGE_SIZE;
    use kx::mm::Node;

    const LEN: usize = 3 * PAGE_SIZE;

    fn at(queue: u64, number: u64) -> Position {
        Position { queue, number }
    }

    fn pieces() -> Result<Arc<Pieces>> {
        Ok(Arc::new(Pieces::new(LEN, Node::ANY)?, GFP_KERNEL)?)
    }

    /// As `Chain::rdma_read` does; returns whether it may read.
    fn read(dma: &mut DmaPieces, at: Position) -> bool {
        dma.sinks(LEN).all(|sink| sink.reads.note(at))
    }

    #[test]
    fn memory_is_unmapped_after_its_reads() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let pieces = pieces()?;
        let mut dma = DmaPieces::new(&pd, pieces.clone(), Direction::FromDevice)?;
        assert_eq!(
            dma.sinks(LEN)
                .map(|sink| sink.len() as usize)
                .sum::<usize>(),
            LEN
        );
        // Two reads; the completion of the last one ends both.
        assert!(read(&mut dma, at(1, 7)) && read(&mut dma, at(1, 8)));
        for too_early in [at(1, 0), at(1, 7), at(2, 9)] {
            dma.end_reads(too_early);
            assert!(dma.reads.is_pending());
        }
        dma.end_reads(at(1, 9));
        let room = dma.unmap().map_err(|_| EBUSY)?;
        assert_eq!(pd.kept(), 0);
        // The room is that of the next mapping.
        let dma = DmaPieces::new_in(&pd, pieces.clone(), Direction::FromDevice, room);
        let room = dma.map_err(|_| ENOMEM)?.unmap().map_err(|_| EBUSY)?;
        assert!(room.0.capacity() >= pieces.blocks().len());
        assert!(Arc::into_unique_or_drop(pieces).is_some());
        Ok(())
    }

    #[test]
    fn memory_that_is_read_into_is_kept() -> Result {
        for new in [true, false] {
            let pd = Pd::new(&Device::nth(0)?)?;
            let pieces = pieces()?;
            let mut dma = match new {
                true => DmaPieces::new(&pd, pieces.clone(), Direction::FromDevice)?,
                false => {
                    let room = DmaRoom::new(&pieces, GFP_KERNEL)?;
                    let dma = DmaPieces::new_in(&pd, pieces.clone(), Direction::FromDevice, room);
                    dma.map_err(|_| ENOMEM)?
                }
            };
            assert!(read(&mut dma, at(1, 1)));
            let dma = dma.unmap().err().ok_or(EINVAL)?;
            assert_eq!(dma.mapped().count(), pieces.blocks().len());
            drop(dma);
            assert_eq!(pd.kept(), 1);
            // The domain has the other reference.
            let again = pieces.clone();
            assert!(Arc::into_unique_or_drop(again).is_none());
            drop(pd);
            assert!(Arc::into_unique_or_drop(pieces).is_some());
        }
        Ok(())
    }

    /// The completions of reads that are flushed do not count.
    #[test]
    fn memory_that_was_read_into_is_unmapped_with_the_last_queue_pair() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let pieces = pieces()?;
        let mut dma = DmaPieces::new(&pd, pieces.clone(), Direction::FromDevice)?;
        assert!(read(&mut dma, at(1, 1)));
        let dma = dma.unmap().err().ok_or(EINVAL)?;
        pd.end()?;
        let room = dma.unmap().map_err(|_| EBUSY)?;
        assert!(room.0.capacity() >= pieces.blocks().len());
        assert_eq!(pd.kept(), 0);
        assert!(Arc::into_unique_or_drop(pieces).is_some());
        Ok(())
    }

    #[test]
    fn one_queue_reads_at_a_time() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let mut dma = DmaPieces::new(&pd, pieces()?, Direction::FromDevice)?;
        assert!(read(&mut dma, at(1, 5)));
        assert!(!read(&mut dma, at(2, 1)));
        dma.end_reads(at(2, 6));
        assert!(dma.reads.is_pending());
        dma.end_reads(at(1, 5));
        assert!(read(&mut dma, at(2, 1)));
        dma.end_reads(at(2, 1));
        assert!(!dma.reads.is_pending());
        Ok(())
    }

    /// Neither a completion nor a further read makes memory free that a region covers.
    #[test]
    fn memory_of_a_region_is_not_read_into() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let mut dma = DmaPieces::new(&pd, pieces()?, Direction::FromDevice)?;
        assert!(read(&mut dma, at(1, 5)));
        dma.keep();
        dma.end_reads(at(1, 5));
        assert!(!read(&mut dma, at(1, 6)));
        drop(dma.unmap().err().ok_or(EINVAL)?);
        assert_eq!(pd.kept(), 1);
        Ok(())
    }
}
