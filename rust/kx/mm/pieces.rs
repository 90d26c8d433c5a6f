// SPDX-License-Identifier: GPL-2.0

//! Memory in pieces, each of contiguous pages.

use super::{
    Node,
    PageBlock, //
};
use ibtrs_proto::pieces::{
    self,
    Part,
    Parts,
    PieceLayout, //
};
use kernel::{
    alloc::{
        flags::GFP_NOWAIT,
        Flags, //
    },
    bindings,
    page::PAGE_SIZE,
    prelude::*, //
};

/// A segment of an I/O: a whole piece.
#[repr(transparent)]
struct Segment(bindings::bio_vec);

// SAFETY: The pointer in a segment is to a page, which has no thread affinity.
unsafe impl Send for Segment {}
// SAFETY: Shared references only read a segment.
unsafe impl Sync for Segment {}

/// Memory in pieces, whose contents may change at any time, like a [`PageBlock`].
///
/// The pieces are as large as can be allocated, up to [`MAX_PIECE_BYTES`](pieces::MAX_PIECE_BYTES),
/// and single pages in the worst case. The allocation therefore never fails for lack of contiguous
/// memory.
///
/// # Invariants
///
/// - `blocks` has one block for each piece of `layout`, of the size of the piece.
/// - Each of `segments` describes all of the block with the same number.
pub struct Pieces {
    blocks: KVVec<PageBlock>,
    segments: KVVec<Segment>,
    layout: PieceLayout,
}

impl Pieces {
    /// Allocates the smallest number of pages with room for `len` bytes, filled with zeros and
    /// preferably on `node`.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], without a warning in the log; also for a length of zero.
    pub fn new(len: usize, node: Node) -> Result<Self> {
        let mut layouts = PieceLayout::candidates(len, PAGE_SIZE);
        let pieces = layouts.find_map(|layout| Self::with_layout(layout, node).ok());
        pieces.ok_or(ENOMEM)
    }

    /// Allocates memory as [`Pieces::new`], but only memory that is free and not reserved, without
    /// waiting for any; see [`PageBlock::optional`].
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], without a warning in the log.
    pub fn optional(len: usize, node: Node) -> Result<Self> {
        let mut layouts = PieceLayout::candidates(len, PAGE_SIZE);
        let block = |len| PageBlock::optional(len, node);
        let pieces = layouts.find_map(|layout| Self::fill(layout, GFP_NOWAIT, block).ok());
        pieces.ok_or(ENOMEM)
    }

    /// Allocates memory with this layout, whose pieces are whole pages.
    fn with_layout(layout: PieceLayout, node: Node) -> Result<Self> {
        Self::fill(layout, GFP_KERNEL, |len| PageBlock::with_len(len, node))
    }

    /// Maximum number of pieces, far more than any caller needs. For an absurdly long list, the
    /// allocator would warn instead of just failing.
    const MOST: usize = 1 << 16;

    /// Creates memory with this layout from blocks of whole pages that `allocate` returns, each of
    /// the requested length. Lists are allocated with `flags`.
    fn fill(
        layout: PieceLayout,
        flags: Flags,
        mut allocate: impl FnMut(usize) -> Result<PageBlock>,
    ) -> Result<Self> {
        let count = layout.count();
        if count > Self::MOST {
            return Err(ENOMEM);
        }
        let mut blocks = KVVec::with_capacity(count, flags)?;
        let mut segments = KVVec::with_capacity(count, flags)?;
        for piece in 0..count {
            let block = allocate(layout.bytes_of(piece))?;
            // For the invariant; both allocators return the requested length.
            if block.len() != layout.bytes_of(piece) {
                return Err(EINVAL);
            }
            let segment = bindings::bio_vec {
                bv_page: block.page(),
                bv_len: u32::try_from(block.len())?,
                bv_offset: 0,
            };
            blocks.push_within_capacity(block).map_err(|_| ENOMEM)?;
            let pushed = segments.push_within_capacity(Segment(segment));
            pushed.map_err(|_| ENOMEM)?;
        }
        // INVARIANT: Both were just filled, with blocks of the length of the piece.
        Ok(Self {
            blocks,
            segments,
            layout,
        })
    }

    /// Returns the size in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Returns the pieces, in order.
    #[inline]
    pub fn blocks(&self) -> &[PageBlock] {
        &self.blocks
    }

    /// Returns the number of pieces that the first `len` bytes are in.
    #[inline]
    pub fn count_of(&self, len: usize) -> usize {
        self.layout.count_of(len)
    }

    /// Returns the parts of the pieces that are `len` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the range exceeds the memory.
    #[inline]
    pub fn parts(&self, offset: usize, len: usize) -> Result<Parts> {
        self.layout.parts(offset, len).ok_or(EINVAL)
    }

    /// Returns the part of a piece that is the `len` bytes from `offset` on, at least one; `None` if
    /// they are in several pieces, or if the range exceeds the memory.
    #[inline]
    pub fn part(&self, offset: usize, len: usize) -> Option<Part> {
        self.layout.part(offset, len)
    }

    /// As [`Pieces::part`]; returns the piece, and the place in it.
    #[inline]
    pub fn in_one(&self, offset: usize, len: usize) -> Option<(&PageBlock, usize)> {
        let part = self.part(offset, len)?;
        Some((self.blocks.get(part.piece)?, part.offset))
    }

    /// Returns the piece of a part, which is always there by the type invariant.
    #[inline]
    fn block(&self, part: &Part) -> Result<&PageBlock> {
        self.blocks.get(part.piece).ok_or(EINVAL)
    }

    /// Returns a pointer to the segments: a constant array of all pieces, in order, for the data of
    /// a bio. It stays where it is as long as this value lives.
    #[inline]
    pub(crate) fn segments(&self) -> *const bindings::bio_vec {
        // CAST: `Segment` is transparent over `bio_vec`.
        self.segments.as_ptr().cast()
    }

    /// Copies the bytes from `offset` on to `to`, reading each byte once.
    ///
    /// # Context
    ///
    /// *any*, like all functions here but the constructor
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the range exceeds the memory.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> Result {
        match self.in_one(offset, to.len()) {
            Some((block, at)) => block.copy_out(at, to),
            None => self.copy_out_of_several(offset, to),
        }
    }

    fn copy_out_of_several(&self, offset: usize, to: &mut [u8]) -> Result {
        let parts = self.parts(offset, to.len())?;
        let mut rest = to;
        for part in parts {
            let (now, later) = rest.split_at_mut_checked(part.len).ok_or(EINVAL)?;
            self.block(&part)?.copy_out(part.offset, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Copies `from` into the memory, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the range exceeds the memory.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result {
        match self.in_one(offset, from.len()) {
            Some((block, at)) => block.copy_in(at, from),
            None => self.copy_in_to_several(offset, from),
        }
    }

    fn copy_in_to_several(&self, offset: usize, from: &[u8]) -> Result {
        let mut rest = from;
        for part in self.parts(offset, from.len())? {
            let (now, later) = rest.split_at_checked(part.len).ok_or(EINVAL)?;
            self.block(&part)?.copy_in(part.offset, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Copies `len` bytes from `offset` on to the offset `at` of other memory.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if a range exceeds its memory, or if bytes would be copied within a piece.
    #[inline]
    pub fn copy_to(&self, offset: usize, other: &Self, at: usize, len: usize) -> Result {
        match (self.in_one(offset, len), other.in_one(at, len)) {
            (Some((from, offset)), Some((to, at))) => from.copy_to(offset, to, at, len),
            _ => self.copy_to_several(offset, other, at, len),
        }
    }

    fn copy_to_several(&self, offset: usize, other: &Self, at: usize, len: usize) -> Result {
        let (from, to) = (self.parts(offset, len)?, other.parts(at, len)?);
        for (from, to) in pieces::pairs(from, to) {
            let block = other.block(&to)?;
            self.block(&from)?
                .copy_to(from.offset, block, to.offset, from.len)?;
        }
        Ok(())
    }

    /// Continues a CRC-32C with `len` bytes from `offset` on, see [`crc32c`](crate::crc::crc32c).
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the range exceeds the memory.
    pub fn crc32c(&self, crc: u32, offset: usize, len: usize) -> Result<u32> {
        self.parts(offset, len)?.try_fold(crc, |crc, part| {
            self.block(&part)?.crc32c(crc, part.offset, part.len)
        })
    }

    /// Writes `len` zeroes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] if the range exceeds the memory.
    #[inline]
    pub fn zero(&self, offset: usize, len: usize) -> Result {
        match self.in_one(offset, len) {
            Some((block, at)) => block.zero(at, len),
            None => self.zero_several(offset, len),
        }
    }

    fn zero_several(&self, offset: usize, len: usize) -> Result {
        self.parts(offset, len)?
            .try_for_each(|part| self.block(&part)?.zero(part.offset, part.len))
    }
}

#[cfg(IBTRS_KUNIT)]
impl Pieces {
    /// Allocates memory in pieces of `piece_bytes`, a power of two of pages, for tests.
    pub(crate) fn of_size(len: usize, piece_bytes: usize) -> Result<Self> {
        let layout = PieceLayout::new(len, piece_bytes).ok_or(EINVAL)?;
        Self::with_layout(layout, Node::ANY)
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_pieces)]
mod tests {
    use super::*;
    use crate::crc::crc32c;

    /// Bytes that differ from those one page further on.
    fn pattern(len: usize) -> Result<KVVec<u8>> {
        let mut bytes = KVVec::with_capacity(len, GFP_KERNEL)?;
        for at in 0..len {
            // CAST: Any byte will do.
            bytes.push((at % 251) as u8, GFP_KERNEL)?;
        }
        Ok(bytes)
    }

    fn content(memory: &Pieces) -> Result<KVVec<u8>> {
        let mut bytes = KVVec::from_elem(0, memory.len(), GFP_KERNEL)?;
        memory.copy_out(0, &mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn has_what_was_asked_for() -> Result {
        for len in [1, PAGE_SIZE, PAGE_SIZE + 1, 33 * PAGE_SIZE, 257 * PAGE_SIZE] {
            let memory = Pieces::new(len, Node::ANY)?;
            assert_eq!(memory.len(), len.next_multiple_of(PAGE_SIZE));
            let mut bytes = 0;
            let most = pieces::MAX_PIECE_BYTES.max(PAGE_SIZE);
            for (number, block) in memory.blocks().iter().enumerate() {
                assert!(block.len() <= most);
                // SAFETY: There is a segment for each block.
                let segment = unsafe { &*memory.segments().add(number) };
                assert!(segment.bv_page == block.page());
                assert_eq!(
                    (segment.bv_len as usize, segment.bv_offset),
                    (block.len(), 0)
                );
                bytes += block.len();
            }
            assert_eq!(bytes, memory.len());
            assert!(content(&memory)?.iter().all(|byte| *byte == 0));
        }
        for none in [0, usize::MAX, usize::MAX / 2] {
            assert!(matches!(Pieces::new(none, Node::ANY), Err(e) if e == ENOMEM));
        }
        Ok(())
    }

    /// Wherever the boundaries of the pieces are, the memory has the same contents.
    #[test]
    fn boundaries_do_not_show() -> Result {
        let len = 9 * PAGE_SIZE;
        let bytes = pattern(len)?;
        for size in [PAGE_SIZE, 2 * PAGE_SIZE, 8 * PAGE_SIZE, 16 * PAGE_SIZE] {
            let memory = Pieces::of_size(len, size)?;
            memory.copy_in(0, &bytes)?;
            assert!(content(&memory)?[..] == bytes[..]);
            assert_eq!(memory.crc32c(7, 0, len), Ok(crc32c(7, &bytes)));
            for boundary in [size, 2 * size, PAGE_SIZE] {
                let at = boundary.min(len) - 8;
                let end = (at + 16).min(len);
                let mut part = [0; 16];
                memory.copy_out(at, &mut part[..end - at])?;
                assert!(part[..end - at] == bytes[at..end]);
                let crc = memory.crc32c(0, at, end - at);
                assert_eq!(crc, Ok(crc32c(0, &bytes[at..end])));
            }
            let at = PAGE_SIZE - 4;
            memory.zero(at, PAGE_SIZE + 8)?;
            memory.copy_in(2 * PAGE_SIZE - 3, b"abcdef")?;
            for (place, byte) in content(&memory)?.iter().enumerate() {
                let expected = match place.checked_sub(at) {
                    Some(within) if within < PAGE_SIZE + 8 => {
                        let letter = place.checked_sub(2 * PAGE_SIZE - 3);
                        letter
                            .and_then(|at| b"abcdef".get(at))
                            .copied()
                            .unwrap_or(0)
                    }
                    _ => bytes[place],
                };
                assert_eq!(*byte, expected);
            }
        }
        Ok(())
    }

    #[test]
    fn copies_between_pieces_of_all_sizes() -> Result {
        let bytes = pattern(8 * PAGE_SIZE)?;
        for (from, to) in [(1, 1), (1, 8), (8, 1), (2, 4), (8, 8)] {
            let one = Pieces::of_size(8 * PAGE_SIZE, from * PAGE_SIZE)?;
            let other = Pieces::of_size(5 * PAGE_SIZE, to * PAGE_SIZE)?;
            one.copy_in(0, &bytes)?;
            for (offset, at, len) in [
                (0, 0, 4 * PAGE_SIZE),
                (PAGE_SIZE, 0, PAGE_SIZE),
                (17, 4000, 3 * PAGE_SIZE + 5),
                (8 * PAGE_SIZE - 9, 5 * PAGE_SIZE - 9, 9),
                (0, 0, 0),
            ] {
                other.zero(0, other.len())?;
                one.copy_to(offset, &other, at, len)?;
                let content = content(&other)?;
                assert!(content[at..at + len] == bytes[offset..offset + len]);
                let rest = Iterator::chain(content[..at].iter(), &content[at + len..]);
                assert!(rest.copied().all(|byte| byte == 0));
            }
            assert_eq!(one.copy_to(0, &other, 0, other.len() + 1), Err(EINVAL));
            assert_eq!(one.copy_to(one.len() - 1, &other, 0, 2), Err(EINVAL));
            assert_eq!(one.copy_to(0, &one, 0, 1), Err(EINVAL));
        }
        Ok(())
    }

    /// The last piece may have any number of pages.
    #[test]
    fn optional_memory_of_all_lengths() -> Result {
        for pages in 1..=256 {
            let memory = Pieces::optional(pages * PAGE_SIZE - 1, Node::ANY)?;
            assert_eq!(memory.len(), pages * PAGE_SIZE);
            memory.copy_in(memory.len() - 4, b"last")?;
            let mut bytes = [1; 4];
            memory.copy_out(0, &mut bytes)?;
            assert_eq!(bytes, [0; 4]);
        }
        assert!(matches!(Pieces::optional(0, Node::ANY), Err(e) if e == ENOMEM));
        Ok(())
    }

    #[test]
    fn keeps_to_its_bounds() -> Result {
        let memory = Pieces::of_size(3 * PAGE_SIZE, PAGE_SIZE)?;
        let len = memory.len();
        let mut bytes = [1; 4];
        assert_eq!(memory.copy_out(len, &mut []), Ok(()));
        for offset in [len - 3, len, len + 1, usize::MAX - 1, usize::MAX] {
            assert_eq!(memory.copy_out(offset, &mut bytes), Err(EINVAL));
            assert_eq!(memory.copy_in(offset, &bytes), Err(EINVAL));
            assert_eq!(memory.zero(offset, 4), Err(EINVAL));
            assert_eq!(memory.crc32c(0, offset, 4), Err(EINVAL));
        }
        assert_eq!(bytes, [1; 4]);
        assert!(content(&memory)?.iter().all(|byte| *byte == 0));
        let offset = |at, len| memory.in_one(at, len).map(|(_, offset)| offset);
        assert_eq!(offset(0, PAGE_SIZE), Some(0));
        assert_eq!(offset(PAGE_SIZE + 5, PAGE_SIZE - 5), Some(5));
        assert_eq!(
            (offset(0, PAGE_SIZE + 1), offset(5, PAGE_SIZE)),
            (None, None)
        );
        assert_eq!((offset(len, 1), offset(0, 0)), (None, None));
        assert_eq!(memory.count_of(PAGE_SIZE + 1), 2);
        Ok(())
    }
}
