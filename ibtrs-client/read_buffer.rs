// SPDX-License-Identifier: GPL-2.0

//! Memory that the data of small reads lands in.
//!
//! To register the memory of a read and to have the key invalidated takes longer than to copy a
//! page. So each of the first tags of a path has a buffer, which stays registered as long as the
//! connection attempt lives. The server writes there, and the data is copied once, when the
//! answer has come. A server can write to a buffer at any time, but it reaches nothing else, and
//! nobody else reaches the buffer: the protection domain is the attempt's.

use ibtrs_proto::msg::SgDesc;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    io::IoHandle,
    mm::{
        Node,
        PageBlock, //
    },
};
use rdma::{
    dma::{
        Direction,
        DmaPages, //
    },
    mr::Mr,
    pd::Pd, //
};

/// How many tags of a path have a buffer, the lowest ones: these are used most.
const COUNT_MAX: u16 = 512;

/// The buffers of a connection attempt, which keeps them until its connections are closed: until
/// then the server can write there.
pub(crate) struct ReadBuffers(KVVec<ReadBuffer>);

impl ReadBuffers {
    /// Makes the buffers of `depth` tags, of which the first ones have one if the device or the
    /// memory has no room for all: the reads of the others do without.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(pd: &Arc<Pd>, depth: u16) -> Result<Arc<Self>> {
        let bytes = crate::param::read_buffer_bytes.get();
        let count = if bytes > 0 { depth.min(COUNT_MAX) } else { 0 };
        let mut buffers = KVVec::with_capacity(usize::from(count), GFP_KERNEL)?;
        for _ in 0..count {
            let Ok(buffer) = ReadBuffer::new(pd, bytes) else {
                break;
            };
            // There is room.
            let _ = buffers.push_within_capacity(buffer);
        }
        Ok(Arc::new(Self(buffers), GFP_KERNEL)?)
    }

    /// Returns the buffer of a tag, if it has one.
    #[inline]
    pub(crate) fn get(&self, tag: u16) -> Option<&ReadBuffer> {
        self.0.get(usize::from(tag))
    }

    /// Goes through the regions, which are to be registered for the peer to write to.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Mr> {
        self.0.iter().map(|buffer| &buffer.mr)
    }
}

/// The buffer of a tag.
pub(crate) struct ReadBuffer {
    pages: DmaPages,
    mr: Mr,
    bytes: u32,
}

impl ReadBuffer {
    /// Makes a buffer of `bytes`, whose region is still to be registered.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; those of the driver.
    fn new(pd: &Arc<Pd>, bytes: u32) -> Result<Self> {
        let block = PageBlock::with_len(bytes as usize, Node::ANY)?;
        let pages = DmaPages::new(pd, Arc::new(block, GFP_KERNEL)?, Direction::FromDevice)?;
        let region_pages = u32::try_from(pages.len())?.div_ceil(pd.device().region_page_bytes());
        let mut mr = Mr::new(pd, region_pages)?;
        mr.map_pages(&pages)?;
        mr.next_key();
        Ok(Self { pages, mr, bytes })
    }

    /// Tells whether a read of `bytes` fits.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u32) -> bool {
        bytes <= self.bytes
    }

    /// Names the first `bytes` for the server.
    #[inline]
    pub(crate) fn desc(&self, bytes: u32) -> SgDesc {
        SgDesc {
            addr: self.mr.iova(),
            key: self.mr.rkey(),
            len: bytes,
        }
    }

    /// Copies the first `bytes` to the memory of `io`.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// Those of [`IoHandle::fill`].
    pub(crate) fn copy_to(&self, io: &mut IoHandle, bytes: u32) -> Result {
        let len = bytes as usize;
        self.pages.sync_for_cpu(0, len)?;
        io.fill(self.pages.block(), len)
    }
}
