// SPDX-License-Identifier: GPL-2.0

//! Memory of lost paths, retained until they reconnect.
//!
//! When a client reconnects, a machine whose memory is full of page cache, perhaps with data that is
//! still to be written, provides free memory slowly or not at all. The memory of a path is therefore
//! retained for some minutes after its end, unless other paths need it: retained memory and the
//! memory of paths together never exceed the limit for paths. The memory is wiped first, as another
//! client may get it. The memory of receives is not retained: it is small and can be allocated in
//! single pages.

use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use kx::mm::{
    Node,
    Pieces, //
};

/// The memory of one chunk.
pub(crate) struct ChunkMemory {
    /// Memory to which the client can write.
    pub(crate) chunk: Arc<Pieces>,
    /// Memory to which no client can write, if the chunk has it; see
    /// [`Whole::want_small`](super::landing::Whole::want_small).
    pub(crate) private: Option<Arc<Pieces>>,
}

impl ChunkMemory {
    fn new(chunk_bytes: usize, node: Node) -> Result<Self> {
        Ok(Self {
            chunk: Arc::new(Pieces::new(chunk_bytes, node)?, GFP_KERNEL)?,
            private: None,
        })
    }

    /// Returns the memory of a chunk whose mappings and regions were dropped.
    ///
    /// `None` if a protection domain still has it mapped, because the domain has a queue pair: a device
    /// may then write to the memory, and unmapping may copy a bounce buffer into it. The memory is then
    /// freed with the domain.
    pub(crate) fn unmapped(chunk: Arc<Pieces>, private: Option<Arc<Pieces>>) -> Option<Self> {
        // A domain holds references to memory that it keeps.
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
    /// The minimum of free bytes since the last check: that many were not needed.
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

    /// Takes the memory of a chunk from the pool, on any node, or allocates it, preferably on
    /// `node`. The memory is zeroed. (Clients without capsules have larger slots.)
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn take(&self, chunk_bytes: usize, node: Node) -> Result<ChunkMemory> {
        // The memory is whole pages, but the size of a chunk may not be.
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
        ChunkMemory::new(chunk_bytes, node)
    }

    /// Retains the memory of an unused chunk, unless the pool would exceed `most` bytes.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn give(&self, memory: ChunkMemory, most: u64) {
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

    /// Frees memory until no more than `most` bytes are retained.
    pub(crate) fn shrink(&self, most: u64) {
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

    /// Returns the number of retained bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.lock().bytes
    }

    /// Frees the memory that was not needed since the last check; returns whether any is left.
    pub(crate) fn expire(&self) -> bool {
        let mut kept = self.kept.lock();
        let needed = kept.bytes.saturating_sub(kept.least);
        kept.least = needed;
        drop(kept);
        self.shrink(needed);
        self.kept.lock().bytes > 0
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_server_pool)]
mod tests {
    use super::*;

    /// With large pages, the default size of a chunk is not a whole number of pages.
    #[test]
    fn memory_of_any_size_is_found_again() -> Result {
        let pool = KBox::pin_init(Pool::new(), GFP_KERNEL)?;
        for bytes in [PAGE_SIZE, PAGE_SIZE + 512, 3 * PAGE_SIZE - 1] {
            let memory = pool.take(bytes, Node::ANY)?;
            assert!(memory.chunk.len() >= bytes);
            let kept = memory.bytes();
            pool.give(memory, u64::MAX);
            assert_eq!(pool.bytes(), kept);
            drop(pool.take(bytes, Node::ANY)?);
            assert_eq!(pool.bytes(), 0);
        }
        Ok(())
    }
}
