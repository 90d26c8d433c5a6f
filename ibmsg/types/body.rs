// SPDX-License-Identifier: GPL-2.0

//! The content of a message.

use core::mem::take;
use ibmsg_proto::memory::{
    BodyRef,
    BODY_LEN, //
};
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::Arc,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};
use kx::file::{
    append_from,
    IovIterDest,
    IovIterSource, //
};

/// The most bytes of a block.
pub(crate) const BLOCK: usize = 4096;
/// The most bytes of a message.
// CAST: A small constant.
const MAX_LEN: usize = ibmsg_proto::limits::MAX_MESSAGE as usize;

/// The most bytes that need no block: as many as messages that have arrived have room for in 128 bytes.
const SHORT: usize = 71;

/// The content of a message, in blocks. Those of a message that has arrived are not longer than a page each.
///
/// # Context
///
/// *any*, unless a function says otherwise.
#[derive(Default)]
pub struct Body {
    len: u32,
    blocks: Blocks,
}

/// Most messages are short, or have no content: those need no list, and nothing is freed where nothing was
/// allocated.
#[derive(Default)]
enum Blocks {
    #[default]
    None,
    /// All of a message; nothing is added to it.
    Short([u8; SHORT]),
    One(KVec<u8>),
    /// At least one, or room for them.
    Many(KVec<KVec<u8>>),
    /// Those of a content that others have as well. Nothing is added to it.
    Shared(Arc<Body>),
}

impl Blocks {
    /// Makes room for `more` blocks behind those that there are.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    fn reserve(&mut self, more: usize, flags: Flags) -> Result {
        match self {
            Self::Short(_) => return Err(ENOMEM),
            Self::None if more > 1 => *self = Self::Many(KVec::with_capacity(more, flags)?),
            Self::None => {}
            Self::One(_) => {
                let mut many = KVec::with_capacity(more.saturating_add(1), flags)?;
                if let Self::One(first) = take(self) {
                    // There is room.
                    let _ = many.push_within_capacity(first);
                }
                *self = Self::Many(many);
            }
            Self::Many(many) => many.reserve(more, flags)?,
            Self::Shared(_) => return Err(EINVAL),
        }
        Ok(())
    }

    /// Adds a block, for which there is room.
    fn push(&mut self, block: KVec<u8>) {
        match self {
            Self::None => *self = Self::One(block),
            // Not reached, as `reserve` has made a list, or has failed.
            Self::Short(_) | Self::One(_) | Self::Shared(_) => {}
            Self::Many(many) => {
                let _ = many.push_within_capacity(block);
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::None | Self::Short(_) | Self::Shared(_) => 0,
            Self::One(_) => 1,
            Self::Many(many) => many.len(),
        }
    }

    fn as_slice(&self) -> &[KVec<u8>] {
        match self {
            Self::None | Self::Short(_) | Self::Shared(_) => &[],
            Self::One(block) => core::slice::from_ref(block),
            Self::Many(many) => many,
        }
    }
}

impl Body {
    /// No content.
    pub const fn new() -> Self {
        Self {
            len: 0,
            blocks: Blocks::None,
        }
    }

    /// Bytes of it.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is no content.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A copy of some bytes.
    ///
    /// # Context
    ///
    /// Any in which `flags` allow an allocation.
    ///
    /// # Errors
    ///
    /// [`EMSGSIZE`] if there are more than 65536, which no channel takes; [`ENOMEM`].
    pub fn copied(content: &[u8], flags: Flags) -> Result<Self> {
        match content.len() <= MAX_LEN {
            true => Self::whole(content, flags),
            false => Err(EMSGSIZE),
        }
    }

    /// A copy of all of a message.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn whole(content: &[u8], flags: Flags) -> Result<Self> {
        match content.len() {
            1..=SHORT => Self::short(content.len(), |place| {
                place.copy_from_slice(content);
                Ok(())
            }),
            _ => Self::piece(content, flags),
        }
    }

    /// Whether it is a whole message without a block.
    pub(crate) const fn is_short(&self) -> bool {
        matches!(self.blocks, Blocks::Short(_))
    }

    /// A short message of `len` bytes, which `fill` fills in.
    fn short(len: usize, fill: impl FnOnce(&mut [u8]) -> Result) -> Result<Self> {
        let mut bytes = [0; SHORT];
        fill(bytes.get_mut(..len).ok_or(EMSGSIZE)?)?;
        Ok(Self {
            // CAST: A small constant at most.
            len: len as u32,
            blocks: Blocks::Short(bytes),
        })
    }

    /// The content, one block after the other.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.blocks()
    }

    /// The content that others have as well. None of it is copied.
    pub(crate) fn shared(of: &Arc<Self>) -> Self {
        Self {
            len: of.len,
            blocks: Blocks::Shared(of.clone()),
        }
    }

    /// Private data of a record, in memory that was allocated for it.
    pub(crate) fn within(mut place: KVec<u8>, data: &[u8]) -> Self {
        let mut body = Self::new();
        // Nothing is allocated, as there is room.
        if !data.is_empty() && place.extend_from_slice(data, GFP_NOWAIT).is_ok() {
            body.push(place);
        }
        body
    }

    /// Adds a block, for which there is room.
    fn push(&mut self, block: KVec<u8>) {
        // CAST: At most a block.
        self.len += block.len() as u32;
        self.blocks.push(block);
    }

    /// The next `len` bytes that a program writes.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], [`EFAULT`]
    pub(crate) fn written(from: &mut IovIterSource<'_>, len: usize) -> Result<Self> {
        if (1..=SHORT).contains(&len) {
            return Self::short(len, |place| match from.copy_from_iter(place) == len {
                true => Ok(()),
                false => Err(EFAULT),
            });
        }
        Self::in_blocks(len, |block, len| {
            append_from(from, block, len, GFP_KERNEL_ACCOUNT)
        })
    }

    /// A copy of the `len` bytes at an address of the calling program.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], [`EFAULT`]
    pub(crate) fn copied_from(mut at: UserPtr, len: usize) -> Result<Self> {
        if (1..=SHORT).contains(&len) {
            return Self::short(len, |place| {
                UserSlice::new(at, len).reader().read_slice(place)
            });
        }
        Self::in_blocks(len, |block, len| {
            UserSlice::new(at, len).read_all(block, GFP_KERNEL_ACCOUNT)?;
            at = at.wrapping_byte_add(len);
            Ok(())
        })
    }

    /// `len` bytes, of which `read` appends the next ones to a block.
    fn in_blocks(len: usize, mut read: impl FnMut(&mut KVec<u8>, usize) -> Result) -> Result<Self> {
        let mut body = Self::new();
        body.blocks
            .reserve(len.div_ceil(BLOCK), GFP_KERNEL_ACCOUNT)?;
        let mut left = len;
        while left > 0 {
            let mut block = KVec::new();
            read(&mut block, left.min(BLOCK))?;
            left -= block.len();
            body.push(block);
        }
        Ok(body)
    }

    /// A copy of a piece that has arrived, to be added by [`Body::add`].
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn piece(content: &[u8], flags: Flags) -> Result<Self> {
        let mut body = Self::new();
        body.blocks.reserve(content.len().div_ceil(BLOCK), flags)?;
        for chunk in content.chunks(BLOCK) {
            body.push(super::copy(chunk, flags)?);
        }
        Ok(body)
    }

    /// Makes room for the blocks of another body behind this one.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], also if one of the two is short: then it is a whole message.
    pub(crate) fn reserve(&mut self, more: &Self, flags: Flags) -> Result {
        match more.blocks {
            Blocks::Short(_) => Err(ENOMEM),
            _ => self.blocks.reserve(more.blocks.len(), flags),
        }
    }

    /// Adds a piece, for which there is room.
    pub(crate) fn add(&mut self, more: Self) {
        match more.blocks {
            // A short one has no room here, see `reserve`; a piece that has arrived is not shared.
            Blocks::None | Blocks::Short(_) | Blocks::Shared(_) => {}
            Blocks::One(block) => self.push(block),
            Blocks::Many(many) => {
                for block in many {
                    self.push(block);
                }
            }
        }
    }

    /// Copies everything to an address of the calling program.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`EFAULT`]
    pub(crate) fn copy_to(&self, mut at: UserPtr) -> Result {
        for block in self.blocks() {
            let mut writer = UserSlice::new(at, block.len()).writer();
            writer.write_slice(block)?;
            at = at.wrapping_byte_add(block.len());
        }
        Ok(())
    }

    fn blocks(&self) -> impl Iterator<Item = &[u8]> {
        let of = match &self.blocks {
            Blocks::Shared(of) => &**of,
            _ => self,
        };
        let short = match &of.blocks {
            // CAST: Lossless.
            Blocks::Short(bytes) => bytes.get(..of.len as usize),
            _ => None,
        };
        let blocks = of.blocks.as_slice().iter().map(|block| block.as_slice());
        Iterator::chain(short.into_iter(), blocks)
    }

    /// Where the body of the message is, by its content; none if that cannot be.
    pub(crate) fn body_ref(&self) -> Option<BodyRef> {
        let mut bytes = [0; BODY_LEN];
        let is_whole = self.copy_out(0, &mut bytes);
        BodyRef::read(&bytes).ok().filter(|_| is_whole)
    }

    /// Copies bytes, the first of which is at `offset`. Returns whether there are as many as `out` takes.
    pub fn copy_out(&self, offset: usize, mut out: &mut [u8]) -> bool {
        let mut skip = offset;
        for block in self.blocks() {
            let Some(block) = block.get(skip..) else {
                skip -= block.len();
                continue;
            };
            skip = 0;
            let len = block.len().min(out.len());
            let (place, rest) = out.split_at_mut(len);
            if let Some(block) = block.get(..len) {
                place.copy_from_slice(block);
            }
            out = rest;
        }
        out.is_empty()
    }

    /// Copies everything to a program.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`EFAULT`]
    pub(crate) fn read_out(&self, to: &mut IovIterDest<'_>) -> Result {
        for block in self.blocks() {
            if to.copy_to_iter(block) != block.len() {
                return Err(EFAULT);
            }
        }
        Ok(())
    }
}

impl TryFrom<KVec<u8>> for Body {
    type Error = KVec<u8>;

    /// Takes memory as content without copying it. If it has more than 65536 bytes, it comes back. Limits count the
    /// bytes of content: a vector with a much greater capacity takes more memory than it is charged for.
    fn try_from(content: KVec<u8>) -> Result<Self, KVec<u8>> {
        let mut body = Self::new();
        match content.len() {
            0 => {}
            1..=MAX_LEN => body.push(content),
            _ => return Err(content),
        }
        Ok(body)
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibmsg_body)]
mod tests {
    use super::*;

    #[test]
    fn is_short_if_it_fits() -> Result {
        let content: [u8; SHORT + 1] = core::array::from_fn(|at| at as u8);
        for len in 0..=content.len() {
            let body = Body::copied(&content[..len], GFP_KERNEL)?;
            assert_eq!((body.len() as usize, body.is_empty()), (len, len == 0));
            assert_eq!(
                matches!(body.blocks, Blocks::Short(_)),
                (1..=SHORT).contains(&len)
            );
            assert!(body.slices().flatten().eq(&content[..len]));
            let mut out = [0; SHORT + 1];
            assert!(body.copy_out(0, &mut out[..len]) && out[..len] == content[..len]);
            assert!(!body.copy_out(0, &mut [0; SHORT + 2]));
            assert!(len < 2 || (body.copy_out(1, &mut out[..1]) && out[0] == 1));
        }
        // Nothing is added to a whole message, and a whole message to nothing.
        let (mut short, mut long) = (
            Body::copied(b"abc", GFP_KERNEL)?,
            Body::piece(b"abc", GFP_KERNEL)?,
        );
        assert_eq!(short.reserve(&long, GFP_KERNEL), Err(ENOMEM));
        assert_eq!(long.reserve(&short, GFP_KERNEL), Err(ENOMEM));
        Ok(())
    }

    #[test]
    fn is_made_of_pieces() -> Result {
        let content = KVVec::from_elem(0u8, 20_000, GFP_KERNEL)?;
        let mut content = content;
        for (at, byte) in content.iter_mut().enumerate() {
            // CAST: The lowest byte.
            *byte = ((at * 7) >> 3) as u8;
        }
        let mut body = Body::new();
        for piece in content.chunks(5000) {
            let piece = Body::piece(piece, GFP_KERNEL)?;
            body.reserve(&piece, GFP_KERNEL)?;
            body.add(piece);
        }
        assert_eq!(body.len(), 20_000);
        let mut out = KVVec::from_elem(0u8, 7000, GFP_KERNEL)?;
        for offset in [0, 1, 4095, 4096, 5000, 9999, 13_000] {
            assert!(body.copy_out(offset, &mut out));
            assert!(content[offset..offset + 7000] == out[..]);
        }
        assert!(!body.copy_out(13_001, &mut out));
        assert!(Body::new().copy_out(0, &mut []) && !Body::new().copy_out(0, &mut [0]));
        Ok(())
    }
}
