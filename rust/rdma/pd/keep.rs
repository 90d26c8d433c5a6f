// SPDX-License-Identifier: GPL-2.0

//! Memory that a protection domain keeps after its owner was dropped.
//!
//! Work requests and registrations name memory by numbers, and the device may use the memory until they have completed
//! or were invalidated. The I/O path does not count these uses. Instead, memory that is dropped while the domain has a
//! queue pair passes to the domain ([`Pd::release`](super::Pd::release)). The domain unmaps and frees the memory with
//! itself, after its last queue pair. A driver that drops memory too early therefore only delays its release, and the
//! device never writes to memory that was reused.

use core::mem::take;

use crate::{
    device::Device,
    direction::Direction,
    spans::{
        unmap,
        How,
        Spans, //
    }, //
};
use ibtrs_bindings as bindings;
use kernel::{
    alloc::Flags,
    prelude::*,
    sync::Arc, //
};
use kx::{
    mm::{
        PageBlock,
        Pieces, //
    },
    user::UserPages, //
};

/// Memory that is mapped for a device.
enum Memory {
    Bytes(KVec<u8>),
    Block(Arc<PageBlock>),
    /// With the address of each piece.
    Pieces(Arc<Pieces>, KVVec<u64>),
    /// With the address and the length of each span.
    User(Arc<UserPages>, Spans),
}

/// Memory and its mapping, without the domain.
///
/// # Invariants
///
/// The memory is mapped in the direction `dir` for the device of the domain that the mapping was
/// made in: bytes, if there are any, and blocks as a whole at `addr`, pieces and spans of pages of
/// programs each at the address in their list.
pub(crate) struct Mapped {
    memory: Memory,
    addr: u64,
    dir: Direction,
}

impl Mapped {
    /// # Safety
    ///
    /// All of `bytes`, if there are any, must be mapped at `addr` in that direction; the mapping passes
    /// to the result.
    pub(crate) unsafe fn bytes(bytes: KVec<u8>, addr: u64, dir: Direction) -> Self {
        // INVARIANT: By this function's contract.
        Self {
            memory: Memory::Bytes(bytes),
            addr,
            dir,
        }
    }

    /// # Safety
    ///
    /// As for [`Self::bytes`].
    pub(crate) unsafe fn block(block: Arc<PageBlock>, addr: u64, dir: Direction) -> Self {
        // INVARIANT: By this function's contract.
        Self {
            memory: Memory::Block(block),
            addr,
            dir,
        }
    }

    /// # Safety
    ///
    /// The first pieces must be mapped at `addrs` in that direction; the mappings pass to the
    /// result.
    pub(crate) unsafe fn pieces(pieces: Arc<Pieces>, addrs: KVVec<u64>, dir: Direction) -> Self {
        // INVARIANT: By this function's contract.
        Self {
            memory: Memory::Pieces(pieces, addrs),
            addr: 0,
            dir,
        }
    }

    /// # Safety
    ///
    /// Parts of `pages` must be mapped at `spans`, each with that length, in that direction; the mappings
    /// pass to the result.
    pub(crate) unsafe fn user(pages: Arc<UserPages>, spans: Spans, dir: Direction) -> Self {
        // INVARIANT: By this function's contract.
        Self {
            memory: Memory::User(pages, spans),
            addr: 0,
            dir,
        }
    }

    /// Ends the mapping and drops the memory.
    ///
    /// # Context
    ///
    /// Any; with memory of a program, it may sleep.
    ///
    /// # Safety
    ///
    /// `dev` must be the device that the memory is mapped for, and must not use it any more.
    pub(crate) unsafe fn end(self, dev: &Device) {
        let Self { memory, addr, dir } = self;
        let unmap_one = |addr, len| {
            // SAFETY: By the type invariant these bytes are mapped with this length and direction,
            // by this function's contract for this device. As `self` is consumed, this happens once.
            unsafe { bindings::ib_dma_unmap_single(dev.as_raw(), addr, len, dir.raw()) }
        };
        match memory {
            Memory::Bytes(bytes) if bytes.is_empty() => (),
            Memory::Bytes(bytes) => unmap_one(addr, bytes.len()),
            Memory::Block(block) => unmap_one(addr, block.len()),
            Memory::Pieces(pieces, addrs) => {
                let mapped = addrs.iter().zip(pieces.blocks());
                mapped.for_each(|(addr, block)| unmap_one(*addr, block.len()));
            }
            Memory::User(pages, spans) => {
                // SAFETY: As for the others.
                unsafe { unmap(dev, &spans, dir, How::Used) };
                // The program's memory is unpinned only now.
                drop(pages);
            }
        }
    }

    /// As [`Self::end`], but defers memory of a program to process context.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Safety
    ///
    /// As for [`Self::end`].
    pub(crate) unsafe fn end_later(self, dev: &Arc<Device>) {
        match self {
            Self {
                memory: Memory::User(pages, spans),
                dir,
                ..
            } => {
                // SAFETY: By the type invariant and this function's contract.
                unsafe { spans.end_later(pages, dir, dev.clone()) }
            }
            // SAFETY: By this function's contract.
            other => unsafe { other.end(dev) },
        }
    }
}

/// An entry of the list of memory that a domain keeps. Each mapping allocates its own in advance, as dropping the
/// mapping must not fail.
#[derive(Default)]
pub(crate) struct KeepNode {
    mapped: Option<Mapped>,
    next: Option<KBox<KeepNode>>,
}

impl KeepNode {
    /// Allocates an empty entry.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(flags: Flags) -> Result<KBox<Self>> {
        Ok(KBox::new(Self::default(), flags)?)
    }
}

/// The queue pairs of a domain, and the memory that it keeps.
///
/// # Invariants
///
/// The memory in the list is mapped for the device of the domain.
#[derive(Default)]
pub(crate) struct Keeper {
    /// Queue pairs that are not closed.
    open: u32,
    /// A queue pair was closed.
    has_closed: bool,
    /// All queue pairs were closed, and there will be no other.
    over: bool,
    kept: Option<KBox<KeepNode>>,
}

impl Keeper {
    /// Counts a queue pair.
    ///
    /// # Errors
    ///
    /// `ESHUTDOWN`: the last queue pair was closed. Memory may have been freed whose keys are still
    /// valid, so another one must not follow.
    pub(crate) fn begin(&mut self) -> Result {
        if self.over {
            return Err(ESHUTDOWN);
        }
        self.open += 1;
        Ok(())
    }

    /// Stops counting a queue pair that was not created.
    pub(crate) fn undo(&mut self) {
        self.open -= 1;
        self.over |= self.has_closed && self.open == 0;
    }

    /// Stops counting a queue pair that was closed.
    pub(crate) fn end(&mut self) {
        self.has_closed = true;
        self.open -= 1;
        self.over |= self.open == 0;
    }

    /// Returns whether no queue pair uses memory any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Keeps memory.
    ///
    /// # Safety
    ///
    /// It must be mapped for the device of the domain.
    pub(crate) unsafe fn keep(&mut self, mapped: Mapped, mut room: KBox<KeepNode>) {
        room.mapped = Some(mapped);
        room.next = self.kept.take();
        // INVARIANT: By this function's contract.
        self.kept = Some(room);
    }

    /// Frees the memory that was kept.
    ///
    /// # Safety
    ///
    /// `dev` must be the device of the domain, and no queue pair may use the memory.
    pub(crate) unsafe fn free(&mut self, dev: &Device) {
        let mut next = take(&mut self.kept);
        while let Some(mut room) = next {
            next = room.next.take();
            if let Some(mapped) = room.mapped.take() {
                // SAFETY: By the type invariant it is mapped for this device.
                unsafe { mapped.end(dev) };
            }
        }
    }

    /// Returns how many mappings were kept.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn count(&self) -> usize {
        let first = self.kept.as_deref();
        core::iter::successors(first, |room| room.next.as_deref()).count()
    }
}
