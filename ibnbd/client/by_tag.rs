// SPDX-License-Identifier: GPL-2.0

//! A value for each tag of a disk.

use kernel::prelude::*;

/// One value for each tag; tags count from 0.
pub(crate) struct ByTag<T>(KVVec<T>);

impl<T> ByTag<T> {
    /// Creates the values of `tags` tags, each by a call of `make`.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(tags: usize, mut make: impl FnMut() -> T) -> Result<Self> {
        let mut places = KVVec::with_capacity(tags, GFP_KERNEL)?;
        for _ in 0..tags {
            places.push(make(), GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    /// Returns the value of `tag`; [`None`] if `tag` is out of range.
    #[inline]
    pub(crate) fn get(&self, tag: u32) -> Option<&T> {
        self.0.get(usize::try_from(tag).ok()?)
    }

    /// Iterates over the values, in the order of the tags.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}
