// SPDX-License-Identifier: GPL-2.0

//! Small records in memory in pieces, whose place is found once and used often.

use super::Pieces;
use core::ptr::NonNull;

/// The number of words of a record.
const WORDS: usize = Record::BYTES / size_of::<u64>();

/// [`Record::BYTES`] bytes of [`Pieces`], aligned to their number, whose contents may change at any time.
///
/// The place was checked when the record was found, so that [`Record::take`] checks nothing.
///
/// # Invariants
///
/// The bytes lie in one piece of the memory that the record was found in, and are aligned to their number.
#[derive(Clone, Copy)]
pub struct Record(NonNull<u64>);

// SAFETY: Pages have no thread affinity.
unsafe impl Send for Record {}
// SAFETY: There is never a reference to the contents, which may change at any time.
unsafe impl Sync for Record {}

impl Record {
    /// The size of a record.
    pub const BYTES: usize = 64;

    /// Copies the bytes out, reading each once, and leaves zeroes.
    ///
    /// # Context
    ///
    /// *any*
    ///
    /// # Safety
    ///
    /// The memory that the record was found in must still live.
    #[inline]
    pub unsafe fn take(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (number, to) in bytes.chunks_exact_mut(size_of::<u64>()).enumerate() {
            let word = self.0.as_ptr().wrapping_add(number);
            // SAFETY: By the type invariant the word is inside a piece, which lives by this function's
            // contract, and is aligned. The access is volatile, as there may be concurrent writes.
            let word = unsafe { word.read_volatile() };
            to.copy_from_slice(&word.to_ne_bytes());
        }
        for number in 0..WORDS {
            // SAFETY: As above. There is no reference to the contents.
            unsafe { self.0.as_ptr().wrapping_add(number).write_volatile(0) };
        }
        bytes
    }
}

impl Pieces {
    /// Returns the record at `offset`; `None` unless it is in one piece and aligned.
    #[inline]
    pub fn record(&self, offset: usize) -> Option<Record> {
        let (block, at) = self.in_one(offset, Record::BYTES)?;
        let start = block.as_ptr().wrapping_add(at);
        // INVARIANT: `in_one` has checked that the bytes are in this piece.
        (start.addr() % Record::BYTES == 0)
            .then(|| NonNull::new(start.cast()).map(Record))
            .flatten()
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_record)]
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
        let mut pattern = [0u8; 3 * Record::BYTES];
        for (number, byte) in pattern.iter_mut().enumerate() {
            // CAST: Below 256.
            *byte = number as u8 + 1;
        }
        let at = PAGE_SIZE - Record::BYTES;
        memory.copy_in(at - Record::BYTES, &pattern)?;
        let record = memory.record(at).ok_or(EINVAL)?;
        // SAFETY: `memory` lives.
        let (first, second) = unsafe { (record.take(), record.take()) };
        assert_eq!(
            pattern.get(Record::BYTES..2 * Record::BYTES),
            Some(&first[..])
        );
        assert_eq!(second, [0; Record::BYTES]);
        // The bytes before and after the record are unchanged.
        let mut around = [0u8; 3 * Record::BYTES];
        memory.copy_out(at - Record::BYTES, &mut around)?;
        assert_eq!(around.get(..Record::BYTES), pattern.get(..Record::BYTES));
        assert_eq!(
            around.get(2 * Record::BYTES..),
            pattern.get(2 * Record::BYTES..)
        );
        Ok(())
    }

    #[test]
    fn lies_in_one_piece() -> Result {
        let memory = Pieces::of_size(2 * PAGE_SIZE, PAGE_SIZE)?;
        assert!(
            memory.record(0).is_some() && memory.record(2 * PAGE_SIZE - Record::BYTES).is_some()
        );
        assert!(memory.record(8).is_none());
        assert!(memory.record(PAGE_SIZE - 8).is_none());
        assert!(memory.record(2 * PAGE_SIZE).is_none());
        Ok(())
    }
}
