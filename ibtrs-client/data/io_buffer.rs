// SPDX-License-Identifier: GPL-2.0

//! Buffers for the data of small requests.
//!
//! Copying a page takes less time than registering the memory of a read and having its key
//! invalidated, and less than waiting until the device no longer needs the memory of a write. Each
//! of the first tags of a path therefore has a buffer, which stays registered for the life of the
//! connection attempt. The server writes the data of a read there, and the client copies it when
//! the answer has arrived. The data of a write is copied before it is sent, and the write ends with
//! its answer. A server can write to a buffer at any time, but to no other memory, and no other
//! peer can access the buffer, as the protection domain belongs to the attempt.
//!
//! The buffers are in groups, each of which is one region: creating and registering a region takes
//! longer than allocating a buffer, and a path connects no sooner than all regions are registered.

use crate::types::{
    Descriptor,
    Dir, //
};
use ibtrs_proto::{
    msg::SgDesc,
    tag::Tag, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    io::IoHandle,
    mm::{
        PageBlock,
        Pieces, //
    }, //
};
use rdma::{
    dma::{
        Direction,
        DmaPieces, //
    },
    mr::Mr,
    pd::Pd,
    sge::Sge, //
};

/// Maximum bytes of a write whose data is copied. For a longer write, copying takes more time than
/// waiting until the device no longer needs its memory.
const WRITE_MAX: u32 = 4096;
/// Number of tags of a path that have a buffer: the lowest ones, which are used most.
const COUNT_MAX: usize = 512;
/// Maximum bytes of a group. A group without memory for all its buffers has none.
const GROUP_BYTES: usize = 1 << 18;
/// Minimum distance between two buffers, so that no two share a cache line.
const STRIDE_MIN: usize = 512;

/// The buffers of a connection attempt. The attempt, and each slot for its own buffer, holds a
/// reference until the connections are closed, as the server can write to the buffers until then.
pub(crate) struct IoBuffers {
    groups: KVVec<Arc<Group>>,
    /// Bytes of a buffer.
    bytes: u32,
    /// Binary logarithm of the distance between two buffers in bytes.
    stride_shift: u32,
    /// Binary logarithm of the number of buffers of a group.
    group_shift: u32,
}

/// Buffers that are registered as one region.
struct Group {
    dma: DmaPieces,
    mr: Mr,
    /// Number of buffers.
    count: usize,
}

impl Group {
    /// Creates a group of `count` buffers of `stride` bytes, a power of two. Its region is still to be
    /// registered.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if memory is so fragmented that a buffer would be in two pieces; errors of
    /// [`Mr::of_pieces`].
    fn new(pd: &Arc<Pd>, count: usize, stride: usize) -> Result<Self> {
        let pieces = Pieces::optional(count * stride, pd.device().node())?;
        // The size of pieces is a power of two as well, so either none divides a buffer, or the first
        // one does.
        pieces.part(0, stride).ok_or(ENOMEM)?;
        let pieces = Arc::new(pieces, GFP_KERNEL)?;
        let mut dma = DmaPieces::new(pd, pieces, Direction::Bidirectional)?;
        Ok(Self {
            mr: Mr::of_pieces(&mut dma)?,
            dma,
            count,
        })
    }
}

impl IoBuffers {
    /// Creates buffers for up to `depth` tags, or for fewer if resources of the device or memory
    /// run out: requests with other tags do not use a buffer. They are registered as `regions`
    /// regions at most.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(pd: &Arc<Pd>, depth: u16, regions: u32) -> Self {
        Self::of_size(pd, crate::param::small_io_bytes.get(), depth, regions)
    }

    /// As [`Self::new`], with buffers of `bytes`.
    fn of_size(pd: &Arc<Pd>, bytes: u32, depth: u16, regions: u32) -> Self {
        let stride = (bytes as usize).next_power_of_two().max(STRIDE_MIN);
        let dev = pd.device();
        // CAST: From `u32` to `u64` and `usize`, none of which is smaller.
        let most = u64::from(dev.max_fast_reg_pages()) * u64::from(dev.region_page_bytes());
        let most = usize::try_from(most)
            .unwrap_or(GROUP_BYTES)
            .min(GROUP_BYTES);
        let in_group = (most / stride).checked_ilog2();
        let mut this = Self {
            groups: KVVec::new(),
            bytes,
            stride_shift: stride.trailing_zeros(),
            group_shift: in_group.unwrap_or(0),
        };
        let mut left = match (bytes, in_group) {
            (0, _) | (_, None) => 0,
            _ => usize::from(depth).min(COUNT_MAX),
        };
        for _ in 0..regions {
            let count = left.min(1 << this.group_shift);
            let make = || Ok::<_, Error>(Arc::new(Group::new(pd, count, stride)?, GFP_KERNEL)?);
            let Some(Ok(group)) = (count > 0).then(make) else {
                break;
            };
            if this.groups.push(group, GFP_KERNEL).is_err() {
                break;
            }
            left -= count;
        }
        this
    }

    /// Returns the buffer of `tag`, if there is one.
    pub(crate) fn get(&self, tag: Tag) -> Option<IoBuffer> {
        let tag = usize::from(tag);
        let group = self.groups.get(tag >> self.group_shift)?;
        let number = tag & ((1 << self.group_shift) - 1);
        let at = number << self.stride_shift;
        // The distance from one buffer to the next, which `Group::new` has found to be in one
        // piece.
        let part = group.dma.pieces().part(at, 1 << self.stride_shift)?;
        // The last group may have fewer.
        (number < group.count).then(|| IoBuffer {
            group: group.clone(),
            at,
            piece: part.piece,
            offset: part.offset,
            bytes: self.bytes,
        })
    }

    /// Iterates over the regions, which the caller must register for remote writes by the server.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Mr> {
        self.groups.iter().map(|group| &group.mr)
    }
}

/// The buffer of a tag. Its place is looked up once, not for each request.
pub(crate) struct IoBuffer {
    group: Arc<Group>,
    /// Where it begins in the group.
    at: usize,
    /// The piece of the group that all of it is in, and where it begins there.
    piece: usize,
    offset: usize,
    bytes: u32,
}

impl IoBuffer {
    /// Returns whether the data of a request is copied through the buffer.
    #[inline]
    pub(crate) fn takes(&self, request: &Descriptor) -> bool {
        let most = match request.dir {
            Dir::Read => self.bytes,
            Dir::Write => self.bytes.min(WRITE_MAX),
        };
        request.bytes <= most
    }

    /// Returns the descriptor of the first `bytes`, to which the server writes the data of a read.
    #[inline]
    pub(crate) fn desc(&self, bytes: u32) -> SgDesc {
        let mr = &self.group.mr;
        SgDesc {
            // Addresses of regions are below 2^63.
            addr: mr.iova().wrapping_add(self.at as u64),
            key: mr.rkey(),
            len: bytes,
        }
    }

    /// Returns the piece that contains the first `bytes`, and their offset in it. The memory behind
    /// the buffer in the piece belongs to other requests.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the buffer is shorter.
    #[inline(always)]
    fn place(&self, bytes: u32) -> Result<(&PageBlock, usize)> {
        if bytes > self.bytes {
            return Err(EINVAL);
        }
        let block = self.group.dma.pieces().blocks().get(self.piece);
        Ok((block.ok_or(EINVAL)?, self.offset))
    }

    /// Copies `bytes` from the memory of `io` to the beginning of the buffer; returns their scatter
    /// element for a message.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the buffer is shorter; errors of [`IoHandle::read_out`].
    #[inline(always)]
    pub(crate) fn copy_from(&self, io: &mut IoHandle, bytes: u32) -> Result<Sge> {
        let (len, (block, offset)) = (bytes as usize, self.place(bytes)?);
        let sge = self.group.dma.sge_in(self.piece, offset, bytes);
        let copied = io.read_out(block, offset, len);
        // Sync the buffer for the device even after an error: no copied byte may reach memory later
        // than the data of the next read.
        self.group.dma.sync_for_device(self.at, len)?;
        copied?;
        sge.ok_or(EINVAL)
    }

    /// Copies the first `bytes` of the buffer to the memory of `io`.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the buffer is shorter; errors of [`IoHandle::fill`].
    #[inline(always)]
    pub(crate) fn copy_to(&self, io: &mut IoHandle, bytes: u32) -> Result {
        let (len, (block, offset)) = (bytes as usize, self.place(bytes)?);
        self.group.dma.sync_for_cpu(self.at, len)?;
        let copied = io.fill(block, offset, len);
        // Return the buffer to the device, for the next read.
        self.group.dma.sync_for_device(self.at, len)?;
        copied
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_client_io_buffer)]
mod tests {
    use super::*;
    use kx::io::SyncIo;
    use rdma::device::Device;

    /// With buffers of 4096 bytes, of which a group has 64, the last group is shorter.
    const DEPTH: u16 = 150;

    /// Returns the number with which the buffer of a tag is marked.
    fn mark(tag: Tag) -> [u8; 2] {
        (tag.get() + 1).to_ne_bytes()
    }

    fn nth(all: &IoBuffers, tag: u16) -> Result<IoBuffer> {
        all.get(Tag::new(tag)).ok_or(ENOMEM)
    }

    fn each_tag_has_its_own(bytes: u32, in_group: usize) -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let all = IoBuffers::of_size(&pd, bytes, DEPTH, 100);
        let regions = usize::from(DEPTH).div_ceil(in_group);
        assert_eq!(all.regions().count(), regions);
        for tag in Tag::all(DEPTH) {
            let buffer = all.get(tag).ok_or(ENOMEM)?;
            let (block, offset) = buffer.place(bytes)?;
            block.copy_in(offset, &mark(tag))?;
            block.copy_in(offset + bytes as usize - 2, &mark(tag))?;
        }
        for tag in Tag::all(DEPTH) {
            let buffer = all.get(tag).ok_or(ENOMEM)?;
            let (block, offset) = buffer.place(bytes)?;
            for at in [0, bytes as usize - 2] {
                let mut seen = [0; 2];
                block.copy_out(offset + at, &mut seen)?;
                assert_eq!(seen, mark(tag));
            }
            // Data that the server writes to the address arrives in the buffer.
            let desc = buffer.desc(2);
            let mr = all
                .regions()
                .nth(usize::from(tag) / in_group)
                .ok_or(EINVAL)?;
            assert_eq!((desc.key, desc.len), (mr.rkey(), 2));
            let at = usize::try_from(desc.addr - mr.iova())?;
            assert!((at + bytes as usize) as u64 <= mr.length());
            let (block, offset) = buffer.group.dma.pieces().in_one(at, 2).ok_or(EINVAL)?;
            let mut seen = [0; 2];
            block.copy_out(offset, &mut seen)?;
            assert_eq!(seen, mark(tag));
        }
        assert!([DEPTH, u16::MAX]
            .iter()
            .all(|n| all.get(Tag::new(*n)).is_none()));
        Ok(())
    }

    #[test]
    fn each_tag_has_a_buffer_of_its_own() -> Result {
        for (bytes, in_group) in [(2, 512), (512, 512), (4096, 64), (5000, 32), (16384, 16)] {
            each_tag_has_its_own(bytes, in_group)?;
        }
        Ok(())
    }

    #[test]
    fn data_goes_both_ways() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let all = IoBuffers::of_size(&pd, 4096, DEPTH, 100);
        let (one, other) = (nth(&all, 1)?, nth(&all, 2)?);
        let (block, offset) = one.place(8)?;
        block.copy_in(offset, b"12345678")?;
        let io = SyncIo::new(8)?;
        let mut handle = io.handle()?;
        one.copy_to(&mut handle, 8)?;
        let sge = other.copy_from(&mut handle, 8)?;
        assert_eq!(sge.len(), 8);
        assert!(other.copy_from(&mut handle, 9).is_err());
        handle.done(Ok(()));
        assert_eq!(io.bytes()?, b"12345678");
        let mut seen = [0; 8];
        let (block, offset) = other.place(8)?;
        block.copy_out(offset, &mut seen)?;
        assert_eq!(&seen, b"12345678");
        Ok(())
    }

    /// The next buffer of the group follows at once.
    #[test]
    fn nothing_is_copied_beyond_a_buffer() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let all = IoBuffers::of_size(&pd, 4096, DEPTH, 100);
        let (one, next) = (nth(&all, 0)?, nth(&all, 1)?);
        let (block, offset) = next.place(1)?;
        block.copy_in(offset, b"1")?;
        let io = SyncIo::new(8192)?;
        let mut handle = io.handle()?;
        assert_eq!(one.copy_from(&mut handle, 4097).err(), Some(EINVAL));
        assert_eq!(one.copy_to(&mut handle, 4097), Err(EINVAL));
        assert!(one.copy_from(&mut handle, 4096).is_ok());
        handle.done(Ok(()));
        let mut seen = [0];
        block.copy_out(offset, &mut seen)?;
        assert_eq!(&seen, b"1");
        Ok(())
    }

    #[test]
    fn the_first_tags_have_buffers() -> Result {
        let pd = Pd::new(&Device::nth(0)?)?;
        let one = IoBuffers::of_size(&pd, 4096, DEPTH, 1);
        assert!(nth(&one, 63).is_ok() && nth(&one, 64).is_err());
        for (bytes, depth, regions) in [(4096, 0, 100), (4096, DEPTH, 0), (0, DEPTH, 100)] {
            let none = IoBuffers::of_size(&pd, bytes, depth, regions);
            assert!(nth(&none, 0).is_err() && none.regions().count() == 0);
        }
        Ok(())
    }
}
