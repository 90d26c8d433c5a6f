// SPDX-License-Identifier: GPL-2.0

//! Memory of lost paths, kept for when they reconnect.
//!
//! When a client reconnects, a machine whose memory is full of page cache, perhaps with data that is
//! still to be written, gets free memory slowly or not at all. So the memory of a path is kept for
//! some minutes after its end, unless others need it: kept memory and the memory of paths together
//! never exceed the limit for paths. The memory is wiped first, as another client may get it. That of
//! receives is not kept: it comes in single pages if need be, of which there are few.

use crate::server::Server;
use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use kx::{
    mm::{
        Node,
        Pieces, //
    },
    work::WorkItem,
};

/// Interval between checks, in milliseconds. Memory that was not needed between two checks is
/// freed, so unused memory is kept for one to two intervals.
const KEEP_MS: u32 = 120_000;

/// The memory of one chunk.
pub(crate) struct ChunkMemory {
    /// Memory to which the client can write.
    pub(crate) chunk: Arc<Pieces>,
    /// Memory to which no client can write, if the server uses some.
    pub(crate) private: Option<Arc<Pieces>>,
}

impl ChunkMemory {
    fn new(chunk_bytes: usize, private_bytes: usize, node: Node) -> Result<Self> {
        let pieces = |len| Ok::<_, Error>(Arc::new(Pieces::new(len, node)?, GFP_KERNEL)?);
        Ok(Self {
            chunk: pieces(chunk_bytes)?,
            private: match private_bytes {
                0 => None,
                len => Some(pieces(len)?),
            },
        })
    }

    /// Returns the memory of a chunk whose mappings and regions were dropped.
    ///
    /// `None` if one of the protection domains still has it mapped, because it has a queue pair: then a
    /// device may write there, and the end of the mapping may copy there what the device has written.
    /// The memory is freed with the domain.
    pub(crate) fn unmapped(chunk: Arc<Pieces>, private: Option<Arc<Pieces>>) -> Option<Self> {
        // A domain has a reference to what it keeps.
        let alone = |pieces| Arc::into_unique_or_drop(pieces).map(Arc::from);
        Some(Self {
            chunk: alone(chunk)?,
            private: match private {
                Some(private) => Some(alone(private)?),
                None => None,
            },
        })
    }

    fn all(&self) -> impl Iterator<Item = &Pieces> {
        Iterator::chain([&*self.chunk].into_iter(), self.private.as_deref())
    }

    fn bytes(&self) -> u64 {
        self.all().map(|pieces| pieces.len() as u64).sum()
    }

    /// Zeroes the memory.
    fn wipe(&self) -> Result {
        self.all()
            .try_for_each(|pieces| pieces.zero(0, pieces.len()))
    }
}

struct Kept {
    chunks: KVVec<ChunkMemory>,
    bytes: u64,
    /// The fewest free bytes since the last check: that much was not needed.
    least: u64,
}

/// Memory that no path uses.
#[pin_data]
pub(crate) struct Pool {
    #[pin]
    kept: Mutex<Kept>,
}

impl Pool {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            kept <- new_mutex!(
                Kept { chunks: KVVec::new(), bytes: 0, least: 0 },
                "Pool::kept"
            ),
        })
    }

    /// Takes the memory of a chunk from the pool, wherever it is, or allocates it, preferably on
    /// `node`. The memory is zeroed. (Clients without capsules have larger slots.)
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn take(
        &self,
        chunk_bytes: usize,
        private_bytes: usize,
        node: Node,
    ) -> Result<ChunkMemory> {
        // Memory is whole pages, and a chunk need not be.
        let wanted = chunk_bytes.next_multiple_of(PAGE_SIZE);
        let mut kept = self.kept.lock();
        let fits = |memory: &ChunkMemory| memory.chunk.len() == wanted;
        let found = kept.chunks.iter().rposition(fits);
        if let Some(memory) = found.and_then(|index| kept.chunks.remove(index).ok()) {
            kept.bytes = kept.bytes.saturating_sub(memory.bytes());
            kept.least = kept.least.min(kept.bytes);
            return Ok(memory);
        }
        drop(kept);
        ChunkMemory::new(chunk_bytes, private_bytes, node)
    }

    /// Keeps the memory of an unused chunk, unless the pool would exceed `most` bytes.
    ///
    /// # Context
    ///
    /// May sleep.
    fn give(&self, memory: ChunkMemory, most: u64) {
        let bytes = memory.bytes();
        if memory.wipe().is_err() {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.bytes.saturating_add(bytes) > most {
            return;
        }
        if kept.chunks.push(memory, GFP_KERNEL).is_ok() {
            kept.bytes += bytes;
        }
    }

    /// Frees memory until no more than `most` bytes are kept.
    fn shrink(&self, most: u64) {
        loop {
            let mut kept = self.kept.lock();
            if kept.bytes <= most {
                return;
            }
            let Some(memory) = kept.chunks.pop() else {
                return;
            };
            kept.bytes = kept.bytes.saturating_sub(memory.bytes());
            kept.least = kept.least.min(kept.bytes);
        }
    }

    /// Returns the number of bytes that are kept.
    fn bytes(&self) -> u64 {
        self.kept.lock().bytes
    }

    /// Frees the memory that was not needed since the last check; returns whether any is left.
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
    /// Limits the pools, and the buffers, to the memory that paths have not taken. The pools leave the
    /// buffers what paths leave them.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn leave_to_pool(&self) {
        let _limits = self.limits.lock();
        let left = self.left();
        let mut kept = 0;
        for pool in [&self.pool, &self.slot_pool] {
            pool.shrink(self.config.for_pools(left).saturating_sub(kept));
            kept += pool.bytes();
        }
        let buffers = left.saturating_sub(kept);
        self.buffers.set_limit(buffers.min(self.config.max_buffers));
    }

    /// Returns the bytes that paths have not taken.
    fn left(&self) -> u64 {
        self.config.max_memory.saturating_sub(self.ledger.taken())
    }

    /// Keeps the memory that a path has given back in `pool`.
    pub(crate) fn keep(self: &Arc<Self>, pool: &Pool, memory: impl Iterator<Item = ChunkMemory>) {
        let most = self.config.for_pools(self.left());
        memory.for_each(|memory| pool.give(memory, most));
        // Other paths may have taken memory meanwhile.
        self.leave_to_pool();
        self.expiry.enqueue_in(self.clone(), KEEP_MS);
    }
}

/// Frees memory that was not needed for some time.
impl WorkItem<{ crate::server::work::EXPIRY }> for Server {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let chunks = this.pool.expire();
        let slots = this.slot_pool.expire();
        if chunks || slots {
            this.expiry.enqueue_in(this.clone(), KEEP_MS);
        }
        this.leave_to_pool();
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_server_pool)]
mod tests {
    use super::*;

    /// A chunk of the usual size is no whole number of pages where these are large.
    #[test]
    fn memory_of_any_size_is_found_again() -> Result {
        let pool = KBox::pin_init(Pool::new(), GFP_KERNEL)?;
        for bytes in [PAGE_SIZE, PAGE_SIZE + 512, 3 * PAGE_SIZE - 1] {
            let memory = pool.take(bytes, 0, Node::ANY)?;
            assert!(memory.chunk.len() >= bytes);
            let kept = memory.bytes();
            pool.give(memory, u64::MAX);
            assert_eq!(pool.bytes(), kept);
            drop(pool.take(bytes, 0, Node::ANY)?);
            assert_eq!(pool.bytes(), 0);
        }
        Ok(())
    }
}
