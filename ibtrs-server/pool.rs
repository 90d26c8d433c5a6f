// SPDX-License-Identifier: GPL-2.0

//! Memory of lost paths, kept for when they reconnect.
//!
//! A chunk is contiguous. When a client reconnects, a machine whose memory is full of page
//! cache may have no free block of that size. So the blocks of a path are kept for some
//! minutes after its end, unless others need the memory: kept blocks and the memory of
//! paths together never exceed the limit for paths. The blocks are wiped first, as another
//! client may get them.

use crate::server::Server;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use kx::{
    mm::{
        Node,
        PageBlock, //
    },
    work::WorkItem,
};

/// Interval between checks, in milliseconds. Blocks that were not needed between two checks are
/// freed, so unused blocks are kept for one to two intervals.
const KEEP_MS: u32 = 120_000;

/// The memory of one chunk.
pub(crate) struct Blocks {
    /// Memory to which the client can write.
    pub(crate) chunk: Arc<PageBlock>,
    /// Memory to which no client can write, if the server uses some.
    pub(crate) private: Option<Arc<PageBlock>>,
}

impl Blocks {
    fn new(chunk_bytes: usize, private_bytes: usize) -> Result<Self> {
        let block =
            |len| Ok::<_, Error>(Arc::new(PageBlock::with_len(len, Node::ANY)?, GFP_KERNEL)?);
        Ok(Self {
            chunk: block(chunk_bytes)?,
            private: match private_bytes {
                0 => None,
                len => Some(block(len)?),
            },
        })
    }

    fn all(&self) -> impl Iterator<Item = &PageBlock> {
        Iterator::chain([&*self.chunk].into_iter(), self.private.as_deref())
    }

    fn bytes(&self) -> u64 {
        self.all().map(|block| block.len() as u64).sum()
    }

    /// Zeroes the memory.
    fn wipe(&self) -> Result {
        self.all().try_for_each(|block| block.zero(0, block.len()))
    }
}

struct Kept {
    blocks: KVVec<Blocks>,
    bytes: u64,
    /// The fewest free bytes since the last check: that much was not needed.
    least: u64,
}

/// Blocks that no path uses.
#[pin_data]
pub(crate) struct Pool {
    #[pin]
    kept: Mutex<Kept>,
}

impl Pool {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            kept <- new_mutex!(
                Kept { blocks: KVVec::new(), bytes: 0, least: 0 },
                "Pool::kept"
            ),
        })
    }

    /// Takes the memory of a chunk from the pool, or allocates it. The memory is zeroed.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn take(&self, chunk_bytes: usize, private_bytes: usize) -> Result<Blocks> {
        let mut kept = self.kept.lock();
        if let Some(blocks) = kept.blocks.pop() {
            kept.bytes = kept.bytes.saturating_sub(blocks.bytes());
            kept.least = kept.least.min(kept.bytes);
            return Ok(blocks);
        }
        drop(kept);
        Blocks::new(chunk_bytes, private_bytes)
    }

    /// Keeps the memory of an unused chunk, unless the pool would exceed `most` bytes.
    ///
    /// # Context
    ///
    /// May sleep.
    fn give(&self, blocks: Blocks, most: u64) {
        let bytes = blocks.bytes();
        if blocks.wipe().is_err() {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.bytes.saturating_add(bytes) > most {
            return;
        }
        if kept.blocks.push(blocks, GFP_KERNEL).is_ok() {
            kept.bytes += bytes;
        }
    }

    /// Frees blocks until no more than `most` bytes are kept.
    fn shrink(&self, most: u64) {
        loop {
            let mut kept = self.kept.lock();
            if kept.bytes <= most {
                return;
            }
            let Some(blocks) = kept.blocks.pop() else {
                return;
            };
            kept.bytes = kept.bytes.saturating_sub(blocks.bytes());
            kept.least = kept.least.min(kept.bytes);
        }
    }

    /// Frees the blocks that were not needed since the last check; returns whether any are left.
    fn expire(&self) -> bool {
        let mut kept = self.kept.lock();
        let needed = kept.bytes.saturating_sub(kept.least);
        kept.least = needed;
        drop(kept);
        self.shrink(needed);
        self.kept.lock().bytes > 0
    }
}

impl Server {
    /// Limits the pool to the memory that paths have not taken: `max_memory` less `taken` bytes.
    pub(crate) fn leave_to_pool(&self, taken: u64) {
        self.pool
            .shrink(self.config.max_memory.saturating_sub(taken));
    }

    /// Keeps the memory that a path has given back.
    pub(crate) fn keep(self: &Arc<Self>, blocks: impl Iterator<Item = Blocks>, taken: u64) {
        let most = self.config.max_memory.saturating_sub(taken);
        blocks.for_each(|blocks| self.pool.give(blocks, most));
        // Other paths may have taken memory meanwhile.
        self.leave_to_pool(self.ledger.taken());
        self.expiry.enqueue_in(self.clone(), KEEP_MS);
    }
}

/// Frees blocks that were not needed for some time.
impl WorkItem<{ crate::server::work::EXPIRY }> for Server {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.pool.expire() {
            this.expiry.enqueue_in(this.clone(), KEEP_MS);
        }
    }
}
