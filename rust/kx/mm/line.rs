// SPDX-License-Identifier: GPL-2.0

//! Small records in memory in pieces, found once and read often.

use super::Pieces;
use core::ptr::NonNull;

/// The number of words of a line.
const WORDS: usize = Line::BYTES / size_of::<u64>();

/// [`Line::BYTES`] bytes of [`Pieces`], aligned to their number, whose contents may change at any time.
///
/// The place was checked when the line was made, so that [`Line::take`] checks nothing.
///
/// # Invariants
///
/// The bytes lie in one piece of the memory that the line was made of, and are aligned to their number.
#[derive(Clone, Copy)]
pub struct Line(NonNull<u64>);

// SAFETY: Pages have no thread affinity.
unsafe impl Send for Line {}
// SAFETY: There is never a reference to the contents, which may change at any time.
unsafe impl Sync for Line {}

impl Line {
    /// The size of a line.
    pub const BYTES: usize = 64;

    /// Copies the bytes out, reading each once, and leaves zeroes.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Safety
    ///
    /// The memory that the line was made of must still live.
    #[inline]
    pub unsafe fn take(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (number, to) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            let word = self.0.as_ptr().wrapping_add(number);
            // SAFETY: By the type invariant the word is inside a piece, which lives by this function's
            // contract, and is aligned. The access is volatile, as others may write meanwhile.
            *to = unsafe { word.read_volatile() }.to_ne_bytes();
        }
        for number in 0..WORDS {
            // SAFETY: As above. There is no reference to the contents.
            unsafe { self.0.as_ptr().wrapping_add(number).write_volatile(0) };
        }
        bytes
    }
}

impl Pieces {
    /// Returns the line at `offset`; `None` unless it is in one piece and aligned.
    #[inline]
    pub fn line(&self, offset: usize) -> Option<Line> {
        let (block, at) = self.in_one(offset, Line::BYTES)?;
        let start = block.as_ptr().wrapping_add(at);
        // INVARIANT: `in_one` has checked that the bytes are in this piece.
        (start.addr() % Line::BYTES == 0)
            .then(|| NonNull::new(start.cast()).map(Line))
            .flatten()
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_line)]
mod tests {
    use super::*;
    use crate::mm::Node;
    use kernel::{
        page::PAGE_SIZE,
        prelude::*, //
    };

    #[test]
    fn is_taken_once() -> Result {
        let memory = Pieces::new(2 * PAGE_SIZE, Node::ANY)?;
        let mut pattern = [0u8; 3 * Line::BYTES];
        for (number, byte) in pattern.iter_mut().enumerate() {
            // CAST: Below 256.
            *byte = number as u8 + 1;
        }
        let at = PAGE_SIZE - Line::BYTES;
        memory.copy_in(at - Line::BYTES, &pattern)?;
        let line = memory.line(at).ok_or(EINVAL)?;
        // SAFETY: `memory` lives.
        let (first, second) = unsafe { (line.take(), line.take()) };
        assert_eq!(pattern.get(Line::BYTES..2 * Line::BYTES), Some(&first[..]));
        assert_eq!(second, [0; Line::BYTES]);
        // Nothing beside it.
        let mut around = [0u8; 3 * Line::BYTES];
        memory.copy_out(at - Line::BYTES, &mut around)?;
        assert_eq!(around.get(..Line::BYTES), pattern.get(..Line::BYTES));
        assert_eq!(
            around.get(2 * Line::BYTES..),
            pattern.get(2 * Line::BYTES..)
        );
        Ok(())
    }

    #[test]
    fn lies_in_one_piece() -> Result {
        let memory = Pieces::of_size(2 * PAGE_SIZE, PAGE_SIZE)?;
        assert!(memory.line(0).is_some() && memory.line(2 * PAGE_SIZE - Line::BYTES).is_some());
        assert!(memory.line(8).is_none());
        assert!(memory.line(PAGE_SIZE - 8).is_none());
        assert!(memory.line(2 * PAGE_SIZE).is_none());
        Ok(())
    }
}
