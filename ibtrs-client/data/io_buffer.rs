// SPDX-License-Identifier: GPL-2.0

//! Buffers for the data of small requests.
//!
//! Copying a page takes less time than registering the memory of a read and having its key
//! invalidated, and less than waiting until the device no longer needs the memory of a write. So
//! each of the first tags of a path has a buffer, which stays registered for the life of the
//! connection attempt. The server writes the data of a read there, and the client copies it when
//! the answer has arrived. The data of a write is copied before it is sent, and the write ends with
//! its answer. A server can write to a buffer at any time, but reaches nothing else, and no other
//! peer reaches the buffer: the protection domain belongs to the attempt.

use crate::types::{
    Descriptor,
    Dir, //
};
use ibtrs_proto::msg::SgDesc;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    io::IoHandle,
    mm::PageBlock, //
};
use rdma::{
    dma::{
        Direction,
        DmaPages, //
    },
    mr::Mr,
    pd::Pd,
    sge::Sge, //
};

/// Maximum bytes of a write whose data is copied. For a longer write, copying takes more time than
/// waiting until the device no longer needs its memory.
const WRITE_MAX: u32 = 4096;
/// Number of tags of a path that have a buffer: the lowest ones, which are used most.
const COUNT_MAX: u16 = 512;

/// The buffers of a connection attempt. The attempt keeps them until its connections are closed, as
/// the server can write to them until then.
pub(crate) struct IoBuffers(KVVec<IoBuffer>);

impl IoBuffers {
    /// Creates buffers for up to `count` tags, or for fewer if the device or memory runs out:
    /// requests with other tags do without.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(pd: &Arc<Pd>, count: u16) -> Self {
        let bytes = crate::param::small_io_bytes.get();
        let count = if bytes > 0 { count.min(COUNT_MAX) } else { 0 };
        let mut buffers = KVVec::new();
        for _ in 0..count {
            let made = IoBuffer::new(pd, bytes);
            if !made.is_ok_and(|buffer| buffers.push(buffer, GFP_KERNEL).is_ok()) {
                break;
            }
        }
        Self(buffers)
    }

    /// Returns the buffer of `tag`, if there is one.
    #[inline]
    pub(crate) fn get(&self, tag: u16) -> Option<&IoBuffer> {
        self.0.get(usize::from(tag))
    }

    /// Iterates over the regions, which the caller registers for the server to write to.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Mr> {
        self.0.iter().map(|buffer| &buffer.mr)
    }
}

/// The buffer of a tag.
pub(crate) struct IoBuffer {
    pages: DmaPages,
    mr: Mr,
    bytes: u32,
}

impl IoBuffer {
    /// Creates a buffer of `bytes`, whose region is still to be registered.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; those of the driver.
    fn new(pd: &Arc<Pd>, bytes: u32) -> Result<Self> {
        let block = PageBlock::optional(bytes as usize, pd.device().node())?;
        let pages = DmaPages::new(pd, Arc::new(block, GFP_KERNEL)?, Direction::Bidirectional)?;
        let mr = Mr::of_pages(&pages)?;
        Ok(Self { pages, mr, bytes })
    }

    /// Returns whether the data of a request goes through the buffer.
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
        SgDesc {
            addr: self.mr.iova(),
            key: self.mr.rkey(),
            len: bytes,
        }
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
    /// Those of [`IoHandle::read_out`].
    pub(crate) fn copy_from(&self, io: &mut IoHandle, bytes: u32) -> Result<Sge> {
        let len = bytes as usize;
        let copied = io.read_out(self.pages.block(), 0, len);
        // Sync the buffer for the device even after an error: no copied byte may reach memory later
        // than the data of the next read.
        let data = self.pages.sge(len)?;
        copied.map(|()| data)
    }

    /// Copies the first `bytes` of the buffer to the memory of `io`.
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
        self.pages.sync_for_cpu(len)?;
        let copied = io.fill(self.pages.block(), 0, len);
        // Hand the buffer back to the device, for the next read.
        self.pages.sync_for_device(len)?;
        copied
    }
}
