// SPDX-License-Identifier: GPL-2.0

//! A double-ended queue that allocates only in explicit calls.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::deque::Deque;
//!
//! let mut waiting = Deque::new();
//! waiting.reserve(2, GFP_KERNEL)?;
//! // There is room, so nothing is allocated.
//! waiting.push_back(1).map_err(|_| ENOMEM)?;
//! waiting.push_front(0).map_err(|_| ENOMEM)?;
//! assert!(waiting.pop_front() == Some(0) && waiting.len() == 1);
//! # Ok::<(), Error>(())
//! ```

use kernel::{
    alloc::Flags,
    prelude::*, //
};

/// Values in a chunk.
const CHUNK: usize = 32;
/// Chunks that an empty queue keeps: as many as one value needs.
const KEPT: usize = 2;

/// Preallocated memory with which a queue can grow in atomic context ([`Deque::extend`]).
pub struct Spare<T> {
    /// New chunks, with capacity for the existing chunks of the queue.
    chunks: KVec<KVec<Option<T>>>,
}

impl<T> Spare<T> {
    /// No memory.
    pub const fn none() -> Self {
        Self {
            chunks: KVec::new(),
        }
    }

    /// Allocates the memory that a queue lacks, see [`Deque::lack`].
    ///
    /// # Context
    ///
    /// Any in which `flags` allow an allocation.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new(lack: Lack, flags: Flags) -> Result<Self> {
        let mut chunks = KVec::with_capacity(lack.whole, flags)?;
        for _ in 0..lack.more {
            chunks.push(chunk(flags)?, flags)?;
        }
        Ok(Self { chunks })
    }
}

/// The memory that a queue lacks for more values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lack {
    /// The number of chunks to allocate, and the capacity for the list of all chunks.
    more: usize,
    whole: usize,
}

fn chunk<T>(flags: Flags) -> Result<KVec<Option<T>>> {
    let mut chunk = KVec::with_capacity(CHUNK, flags)?;
    for _ in 0..CHUNK {
        chunk.push(None, flags)?;
    }
    Ok(chunk)
}

/// A queue of values that may be taken from any place.
///
/// Only [`Deque::reserve`] and [`Spare::new`] allocate, so the other methods may be called under a spinlock, and
/// a push into reserved space never fails. The values are in chunks, so that a long queue needs no large
/// allocation; the caller should box large values.
pub struct Deque<T> {
    /// Chunks of the same length; entries outside of the queue are empty.
    chunks: KVec<KVec<Option<T>>>,
    /// The place of the first value.
    head: usize,
    len: usize,
}

impl<T> Deque<T> {
    /// Creates an empty queue, without room.
    pub const fn new() -> Self {
        Self {
            chunks: KVec::new(),
            head: 0,
            len: 0,
        }
    }

    /// Number of values.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Allocates space for `more` values behind those in the queue.
    ///
    /// # Context
    ///
    /// Any in which `flags` allow an allocation.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn reserve(&mut self, more: usize, flags: Flags) -> Result {
        let chunks = self.chunks_for(more);
        self.reuse();
        while self.chunks.len() < chunks {
            self.chunks.push(chunk(flags)?, flags)?;
        }
        Ok(())
    }

    /// Chunks for `more` values behind those in the queue.
    fn chunks_for(&self, more: usize) -> usize {
        // The first value is never further than a chunk from the beginning, once chunks are reused.
        let places = self.len.saturating_add(more).saturating_add(CHUNK);
        places.div_ceil(CHUNK)
    }

    /// Returns what [`Spare::new`] must allocate for `more` values behind those in the queue;
    /// `None` if there is space.
    pub fn lack(&self, more: usize) -> Option<Lack> {
        let (chunks, have) = (self.chunks_for(more), self.chunks.len());
        let more = chunks.checked_sub(have).filter(|more| *more > 0)?;
        Some(Lack {
            more,
            // The list of chunks is copied seldom.
            whole: chunks.next_power_of_two(),
        })
    }

    /// Grows by preallocated memory. If the queue has outgrown `room` in the meantime, it remains
    /// unchanged. Memory left in `room` can be freed.
    pub fn extend(&mut self, room: &mut Spare<T>) {
        self.reuse();
        let new = room.chunks.len();
        if self.chunks.capacity() < self.chunks.len() + new {
            if room.chunks.capacity() < self.chunks.len() + new {
                // The queue has grown since.
                return;
            }
            let mut old = core::mem::replace(&mut self.chunks, KVec::new());
            for chunk in old.drain_all() {
                let _ = room.chunks.push_within_capacity(chunk);
            }
            room.chunks.rotate_left(new);
            self.chunks = core::mem::replace(&mut room.chunks, old);
            return;
        }
        for chunk in room.chunks.drain_all() {
            let _ = self.chunks.push_within_capacity(chunk);
        }
    }

    /// Moves chunks before the first value behind the last one.
    fn reuse(&mut self) {
        // One place stays before the first value, for `push_front`.
        if self.head > CHUNK {
            let chunks = (self.head - 1) / CHUNK;
            self.head -= chunks * CHUNK;
            self.chunks.rotate_left(chunks);
        }
    }

    /// Gives up the memory if the queue is empty, but for that of a few values.
    pub fn shrink(&mut self) {
        if self.len == 0 {
            self.head = 0;
            self.chunks.truncate(KEPT);
        }
    }

    fn entry(&self, index: usize) -> Option<&Option<T>> {
        let place = self.head.checked_add(index)?;
        self.chunks.get(place / CHUNK)?.get(place % CHUNK)
    }

    fn entry_mut(&mut self, index: usize) -> Option<&mut Option<T>> {
        let place = self.head.checked_add(index)?;
        self.chunks.get_mut(place / CHUNK)?.get_mut(place % CHUNK)
    }

    /// Appends a value.
    ///
    /// # Errors
    ///
    /// Returns the value if there is no room for it.
    pub fn push_back(&mut self, value: T) -> Result<(), T> {
        let len = self.len;
        if self.entry(len).is_none() {
            self.reuse();
        }
        match self.entry_mut(len) {
            Some(entry) => *entry = Some(value),
            None => return Err(value),
        }
        self.len += 1;
        Ok(())
    }

    /// Puts a value back that was the first one.
    ///
    /// # Errors
    ///
    /// Returns the value if none was popped, or its place was used since.
    pub fn push_front(&mut self, value: T) -> Result<(), T> {
        let Some(head) = self.head.checked_sub(1) else {
            return Err(value);
        };
        self.head = head;
        match self.entry_mut(0) {
            Some(entry) => *entry = Some(value),
            None => {
                self.head += 1;
                return Err(value);
            }
        }
        self.len += 1;
        Ok(())
    }

    /// Removes and returns the first value.
    pub fn pop_front(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let value = self.entry_mut(0)?.take();
        self.head += 1;
        self.len -= 1;
        value
    }

    /// The value at a place, counted from the first one.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.entry(index)?.as_ref()
    }

    /// The value at a place, to be changed.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.entry_mut(index)?.as_mut()
    }

    /// The first value.
    #[inline]
    pub fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// The last value.
    #[inline]
    pub fn back(&self) -> Option<&T> {
        self.get(self.len.checked_sub(1)?)
    }

    /// All values in their order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).filter_map(|index| self.get(index))
    }

    /// Removes and returns the value at `index`; the following values move up.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        let mut value = None;
        let mut at = self.len;
        while at > index {
            at -= 1;
            value = core::mem::replace(self.entry_mut(at)?, value);
        }
        let is_inside = index < self.len;
        self.len -= usize::from(is_inside);
        value
    }

    /// Passes each value to `keep`, in order; values that it returns stay in the queue.
    pub fn retain(&mut self, mut keep: impl FnMut(T) -> Option<T>) {
        let mut kept = 0;
        for at in 0..self.len {
            let value = self.entry_mut(at).and_then(Option::take);
            let Some(value) = value.and_then(&mut keep) else {
                continue;
            };
            // This entry is empty: it is the one above, or an earlier one whose value was moved or
            // removed.
            if let Some(entry) = self.entry_mut(kept) {
                *entry = Some(value);
            }
            kept += 1;
        }
        self.len = kept;
    }
}

impl<T> Default for Deque<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_deque)]
mod tests {
    use super::*;

    #[test]
    fn goes_round_and_grows() -> Result {
        let mut deque = Deque::new();
        assert_eq!(deque.push_back(1), Err(1));
        assert_eq!(deque.push_front(1), Err(1));
        let (mut next, mut first) = (0u32, 0u32);
        for round in 1..40 {
            deque.reserve(round, GFP_KERNEL)?;
            for _ in 0..round {
                assert_eq!(deque.push_back(next), Ok(()));
                next += 1;
            }
            for _ in 0..round / 2 {
                assert_eq!(deque.pop_front(), Some(first));
                first += 1;
            }
            assert!(deque.iter().copied().eq(first..next));
            assert_eq!(
                (deque.front(), deque.back()),
                (Some(&first), Some(&(next - 1)))
            );
        }
        while let Some(value) = deque.pop_front() {
            assert_eq!(value, first);
            first += 1;
        }
        assert!(first == next && deque.is_empty() && deque.back().is_none());
        deque.shrink();
        assert_eq!(deque.chunks.len(), KEPT);
        assert_eq!(deque.push_back(1), Ok(()));
        Ok(())
    }

    #[test]
    fn grows_by_memory_of_others() -> Result {
        let mut deque = Deque::new();
        let mut first = 0u32;
        for value in 0..1000 {
            if let Some(lack) = deque.lack(1) {
                let mut room = Spare::new(lack, GFP_KERNEL)?;
                // A second, late extension changes nothing, or adds capacity.
                let mut other = Spare::new(lack, GFP_KERNEL)?;
                deque.extend(&mut room);
                assert!(deque.lack(1).is_none());
                deque.extend(&mut other);
            }
            assert_eq!(deque.push_back(value), Ok(()));
            if value % 3 == 0 {
                assert_eq!(deque.pop_front(), Some(first));
                first += 1;
            }
            assert!(deque.lack(0).is_none());
        }
        assert!(deque.iter().copied().eq(first..1000));
        deque.extend(&mut Spare::none());
        assert!(deque.iter().copied().eq(first..1000));
        Ok(())
    }

    #[test]
    fn puts_back_and_removes() -> Result {
        let mut deque = Deque::new();
        deque.reserve(4, GFP_KERNEL)?;
        for value in 0..4 {
            assert_eq!(deque.push_back(value), Ok(()));
        }
        assert_eq!(deque.push_front(9), Err(9));
        assert_eq!(deque.pop_front(), Some(0));
        assert_eq!((deque.push_front(0), deque.pop_front()), (Ok(()), Some(0)));
        assert_eq!(deque.push_back(4), Ok(()));
        let mut gone = KVec::new();
        deque.retain(|value| match value {
            3 => {
                let _ = gone.push(value, GFP_KERNEL);
                None
            }
            value => Some(value),
        });
        assert_eq!(gone.as_slice(), [3]);
        assert!(deque.iter().copied().eq([1, 2, 4]));
        assert_eq!(deque.push_front(7), Ok(()));
        assert!(deque.iter().copied().eq([7, 1, 2, 4]));
        deque.retain(|value| (value % 2 == 0).then_some(value));
        assert!(deque.iter().copied().eq([2, 4]));
        assert_eq!((deque.pop_front(), deque.push_back(8)), (Some(2), Ok(())));
        assert_eq!((deque.remove(2), deque.remove(1)), (None, Some(8)));
        deque.retain(|_| None);
        assert!(deque.is_empty() && deque.pop_front().is_none());
        assert_eq!((deque.push_back(1), deque.front()), (Ok(()), Some(&1)));
        // The reserved capacity remains while chunks are reused.
        let mut deque = Deque::new();
        deque.reserve(50, GFP_KERNEL)?;
        for value in 0..50 {
            assert_eq!(deque.push_back(value), Ok(()));
        }
        for value in 0..1000 {
            assert_eq!(deque.pop_front(), Some(value));
            assert_eq!(deque.push_front(value), Ok(()));
            assert_eq!(deque.pop_front(), Some(value));
            assert_eq!(deque.push_back(value + 50), Ok(()));
        }
        assert_eq!((deque.len(), deque.chunks.len()), (50, 3));
        Ok(())
    }
}
