// SPDX-License-Identifier: GPL-2.0

//! The tag of a request: one number for all that a request has on its way.
//!
//! The same number is the request's tag at the block layer, selects its slots on the client, and
//! names its chunk and everything else that the server keeps for it. All conversions are here. An
//! answer names a chunk in 19 bits, so it may name one that no request can have.

use core::num::TryFromIntError;

/// The tag of a request.
///
/// ```
/// use ibtrs_proto::tag::Tag;
///
/// let tag = Tag::try_from(7u32).unwrap();
/// assert_eq!((tag, usize::from(tag)), (Tag::new(7), 7));
/// assert!(Tag::try_from(1u32 << 16).is_err());
/// assert_eq!(Tag::all(2).last(), Some(Tag::new(1)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[repr(transparent)]
pub struct Tag(u16);

impl Tag {
    /// The tag with this number, whether a session has it or not.
    #[inline]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// The number.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The tags of a queue of `depth` requests.
    #[inline]
    pub fn all(depth: u16) -> impl Iterator<Item = Self> {
        (0..depth).map(Self)
    }
}

/// The tag that the block layer or an answer names, if a request can have it.
impl TryFrom<u32> for Tag {
    type Error = TryFromIntError;

    #[inline]
    fn try_from(number: u32) -> Result<Self, TryFromIntError> {
        u16::try_from(number).map(Self)
    }
}

/// The number of the chunk in an immediate.
impl From<Tag> for u32 {
    #[inline]
    fn from(tag: Tag) -> Self {
        tag.0.into()
    }
}

/// The index in a table that has an element for each tag.
impl From<Tag> for usize {
    #[inline]
    fn from(tag: Tag) -> Self {
        tag.0.into()
    }
}
