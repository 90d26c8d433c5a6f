// SPDX-License-Identifier: GPL-2.0

//! Fixed-capacity FIFO.
//!
//! # Examples
//!
//! ```
//! # use kernel::prelude::*;
//! use kx::ring::Ring;
//!
//! let mut tags = Ring::<u16>::new(64)?;
//! assert!(tags.push(5));
//! assert!(tags.pop() == Some(5) && tags.pop().is_none());
//! # Ok::<(), Error>(())
//! ```

use kernel::prelude::*;

/// Fixed-capacity FIFO of small values.
///
/// It allocates only when it is created, so it may be changed under a spinlock.
pub struct Ring<T> {
    entries: KVVec<T>,
    head: usize,
    len: usize,
}

impl<T: Copy + Default> Ring<T> {
    /// Creates an empty queue with room for `capacity` values.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub fn new(capacity: usize) -> Result<Self> {
        Ok(Self {
            entries: KVVec::from_elem(T::default(), capacity, GFP_KERNEL)?,
            head: 0,
            len: 0,
        })
    }

    /// Returns the number of values in the queue.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the queue has no values.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a value; returns whether there was room.
    #[inline]
    pub fn push(&mut self, value: T) -> bool {
        if self.len >= self.entries.len() {
            return false;
        }
        let mut at = self.head + self.len;
        if at >= self.entries.len() {
            at -= self.entries.len();
        }
        let Some(entry) = self.entries.get_mut(at) else {
            return false;
        };
        *entry = value;
        self.len += 1;
        true
    }

    /// Returns the first value without removing it.
    #[inline]
    pub fn first(&self) -> Option<T> {
        match self.len {
            0 => None,
            _ => self.entries.get(self.head).copied(),
        }
    }

    /// Removes and returns the first value.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let value = self.first()?;
        self.head += 1;
        if self.head == self.entries.len() {
            self.head = 0;
        }
        self.len -= 1;
        Some(value)
    }

    /// Removes values from the end until there are no more than `len`.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(kx_ring)]
mod tests {
    use super::*;

    #[test]
    fn goes_round() -> Result {
        let mut ring = Ring::new(3)?;
        assert!(ring.is_empty() && ring.first().is_none() && ring.pop().is_none());
        for round in 0..10u32 {
            assert!(ring.push(round) && ring.push(round + 1));
            assert_eq!((ring.len(), ring.first()), (2, Some(round)));
            assert_eq!((ring.pop(), ring.pop()), (Some(round), Some(round + 1)));
        }
        Ok(())
    }

    #[test]
    fn has_its_size() -> Result {
        let mut ring = Ring::new(2)?;
        assert!(ring.push(1u32) && ring.push(2) && !ring.push(3));
        ring.truncate(1);
        assert!(ring.push(4));
        ring.truncate(5);
        assert_eq!(
            (ring.pop(), ring.pop(), ring.pop()),
            (Some(1), Some(4), None)
        );
        let mut none = Ring::new(0)?;
        assert!(!none.push(1u32) && none.pop().is_none());
        Ok(())
    }
}
