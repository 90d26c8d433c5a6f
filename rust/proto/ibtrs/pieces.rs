// SPDX-License-Identifier: GPL-2.0

//! Memory in pieces.
//!
//! The kernel may have a lot of free memory, but no large block of it. So memory that need not be
//! contiguous consists of pieces: all of the same size, a power of two, except that the last one
//! may be shorter. A machine that has no pieces of one size left may have smaller ones.

use core::iter::successors;

/// Size of the largest pieces in bytes, unless a page is larger. Linux makes an effort to have
/// blocks of this size (`PAGE_ALLOC_COSTLY_ORDER`, with pages of 4096 bytes).
pub const MAX_PIECE_BYTES: usize = 32_768;

/// The division of memory into pieces.
///
/// # Invariants
///
/// - The memory has at least one byte.
/// - The pieces have `2^shift` bytes, which fits in a `usize`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceLayout {
    len: usize,
    shift: u32,
}

impl PieceLayout {
    /// The division of `len` bytes into pieces of `piece_bytes`; `None` if there are no bytes, or
    /// if the size of the pieces is no power of two.
    pub const fn new(len: usize, piece_bytes: usize) -> Option<Self> {
        if len == 0 || !piece_bytes.is_power_of_two() {
            return None;
        }
        // INVARIANT: Just checked; a power of two has as many zeros behind its one bit.
        Some(Self {
            len,
            shift: piece_bytes.trailing_zeros(),
        })
    }

    /// The layouts to try for `len` bytes, in whole pages of `page_bytes`: the one with the largest
    /// pieces first, that with a piece for each page last. None if there are no such layouts.
    pub fn candidates(len: usize, page_bytes: usize) -> impl Iterator<Item = Self> {
        let len = match page_bytes.is_power_of_two() {
            true => len.checked_next_multiple_of(page_bytes).unwrap_or(0),
            false => 0,
        };
        // One piece takes it all, even if that is less.
        let largest = len
            .checked_next_power_of_two()
            .map(|whole| whole.min(MAX_PIECE_BYTES).max(page_bytes));
        let smaller = move |size: &usize| (*size > page_bytes).then_some(*size >> 1);
        successors(largest, smaller).filter_map(move |size| Self::new(len, size))
    }

    /// Number of bytes of all pieces.
    #[inline]
    #[expect(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Number of pieces, at least one.
    #[inline]
    pub const fn count(&self) -> usize {
        self.count_of(self.len)
    }

    /// Number of pieces that the first `len` bytes are in, at most all.
    #[inline]
    pub const fn count_of(&self, len: usize) -> usize {
        let len = if len < self.len { len } else { self.len };
        match len.checked_sub(1) {
            Some(last) => last.wrapping_shr(self.shift).saturating_add(1),
            None => 0,
        }
    }

    /// Number of bytes of a piece; 0 if there is no such piece.
    pub fn bytes_of(&self, piece: usize) -> usize {
        let size = self.mask().saturating_add(1);
        let before = piece.saturating_mul(size);
        self.len.saturating_sub(before).min(size)
    }

    /// The parts of the pieces that are `len` bytes from `offset` on; `None` if the memory has
    /// fewer bytes.
    #[inline]
    pub fn parts(&self, offset: usize, len: usize) -> Option<Parts> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Some(Parts {
                next: offset,
                left: len,
                layout: *self,
            }),
            _ => None,
        }
    }

    /// The same as one part, as most ranges are short: `None` as well if they are in several pieces,
    /// or empty.
    #[inline]
    pub fn part(&self, offset: usize, len: usize) -> Option<Part> {
        let within = offset & self.mask();
        let is_one = len.wrapping_sub(1) <= self.mask().wrapping_sub(within);
        let is_there = offset.checked_add(len)? <= self.len;
        (is_one && is_there).then_some(Part {
            piece: offset.wrapping_shr(self.shift),
            offset: within,
            len,
        })
    }

    /// The bits of an offset that are the place in its piece.
    #[inline]
    const fn mask(&self) -> usize {
        1usize.wrapping_shl(self.shift).wrapping_sub(1)
    }
}

/// A part of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The number of the piece.
    pub piece: usize,
    /// The place in the piece where the part begins, in bytes.
    pub offset: usize,
    /// Bytes of the part, at least one.
    pub len: usize,
}

/// Iterator of [`PieceLayout::parts`], in the order of the bytes.
///
/// # Invariants
///
/// The `left` bytes from `next` on are in the memory.
#[derive(Clone, Debug)]
pub struct Parts {
    next: usize,
    left: usize,
    layout: PieceLayout,
}

impl Parts {
    /// The place of the next byte in its piece.
    #[inline]
    const fn within(&self) -> usize {
        self.next & self.layout.mask()
    }

    /// Number of bytes that are left in the piece of the next byte.
    #[inline]
    fn run(&self) -> usize {
        let to_end = self.layout.mask().wrapping_sub(self.within());
        self.left.min(to_end.wrapping_add(1))
    }

    /// The next `len` bytes, which must be in one piece.
    #[inline]
    fn cut(&mut self, len: usize) -> Option<Part> {
        if len == 0 {
            return None;
        }
        let part = Part {
            piece: self.next.wrapping_shr(self.layout.shift),
            offset: self.within(),
            len,
        };
        // INVARIANT: The rest of the bytes.
        self.next = self.next.saturating_add(len);
        self.left = self.left.saturating_sub(len);
        Some(part)
    }
}

impl Iterator for Parts {
    type Item = Part;

    #[inline]
    fn next(&mut self) -> Option<Part> {
        self.cut(self.run())
    }
}

/// Cuts two ranges of the same length in the same places, so that each pair of parts is in one piece
/// of either. If a range is shorter, the rest of the other is left out.
#[inline]
pub fn pairs(mut one: Parts, mut other: Parts) -> impl Iterator<Item = (Part, Part)> {
    core::iter::from_fn(move || {
        let len = one.run().min(other.run());
        Some((one.cut(len)?, other.cut(len)?))
    })
}
