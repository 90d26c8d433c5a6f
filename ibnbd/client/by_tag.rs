// SPDX-License-Identifier: GPL-2.0

//! A value for each tag of a disk.

use kernel::prelude::*;

/// A place for each tag.
pub(crate) struct ByTag<T>(KVVec<T>);

impl<T> ByTag<T> {
    /// Makes `tags` places.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(tags: usize, mut make: impl FnMut() -> T) -> Result<Self> {
        let mut places = KVVec::with_capacity(tags, GFP_KERNEL)?;
        for _ in 0..tags {
            places.push(make(), GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    /// Returns the place of a tag.
    #[inline]
    pub(crate) fn get(&self, tag: u32) -> Option<&T> {
        self.0.get(usize::try_from(tag).ok()?)
    }

    /// Goes through all places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}
