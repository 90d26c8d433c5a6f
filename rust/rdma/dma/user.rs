// SPDX-License-Identifier: GPL-2.0

//! Memory of programs that is mapped for a device.
//!
//! # Examples
//!
//! ```
//! # use kernel::{prelude::*, sync::Arc};
//! # use kx::user::UserPages;
//! use rdma::{
//!     dma::{Direction, DmaUser},
//!     mr::UserMr,
//!     pd::Pd,
//! };
//!
//! /// Returns what the peer needs to read all of the memory, once a work request has registered it.
//! fn offer(pd: &Arc<Pd>, memory: &Arc<UserPages>, len: usize) -> Result<(UserMr, u64, u32)> {
//!     let mapped = DmaUser::new(pd, memory, 0, len, Direction::ToDevice)?;
//!     let pages = u32::try_from(len.div_ceil(4096) + 1)?;
//!     let mut mr = UserMr::new(pd, pages)?;
//!     mr.describe(mapped)?;
//!     let (addr, key) = (mr.iova(), mr.rkey());
//!     Ok((mr, addr, key))
//! }
//! ```

use core::mem::ManuallyDrop;

use super::reads::{
    Reads,
    Sink, //
};
use crate::{
    dma::Direction,
    pd::{
        keep::{
            KeepNode,
            Mapped, //
        },
        Pd, //
    },
    position::Position,
    sge::Sge,
    spans::{
        unmap,
        How,
        Spans, //
    }, //
};
use ibtrs_bindings as bindings;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    user::UserPages,
    work::cond_resched, //
};

/// A part of the memory of a program, mapped for a device until this value is dropped and no queue pair can use the
/// mapping.
///
/// The device and the program may access the memory at any time, so it can be mapped only for devices that are
/// cache-coherent with the processor and need no bounce buffer.
///
/// It may be dropped in any context.
///
/// # Invariants
///
/// Each of `spans` maps contiguous bytes of `pages` for the device of `pd` in the direction `dir`; together they are
/// `len` bytes.
pub struct DmaUser {
    pages: Arc<UserPages>,
    spans: Spans,
    len: usize,
    dir: Direction,
    reads: Reads,
    /// Present until this value is dropped.
    room: Option<KBox<KeepNode>>,
    /// Taken when this value is dropped.
    pd: ManuallyDrop<Arc<Pd>>,
}

// SAFETY: A mapping has no thread affinity; neither have the pages.
unsafe impl Send for DmaUser {}
// SAFETY: Shared references only read the addresses.
unsafe impl Sync for DmaUser {}

impl DmaUser {
    /// The longest piece that is mapped as one, if the device maps as much.
    const SPAN: usize = 1 << 30;
    /// Spans that are mapped between two calls of `cond_resched`.
    const PORTION: usize = 256;

    /// Maps `len` bytes of `pages` from `at` on.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the range exceeds the memory, or is empty,
    /// - `EOPNOTSUPP`: accesses to the memory would need synchronisation,
    /// - `ENOMEM`, also when the device has no mapping space left.
    pub fn new(
        pd: &Arc<Pd>,
        pages: &Arc<UserPages>,
        at: usize,
        len: usize,
        dir: Direction,
    ) -> Result<Self> {
        let dev = pd.device();
        let most = Self::SPAN.min(dev.max_mapping_bytes());
        let count = pages.spans(at, len, most)?.count();
        if count == 0 {
            return Err(EINVAL);
        }
        let mut this = Self {
            pages: pages.clone(),
            spans: Spans::new(count)?,
            len,
            dir,
            reads: Reads::none(),
            room: Some(KeepNode::new(GFP_KERNEL)?),
            pd: ManuallyDrop::new(pd.clone()),
        };
        for (number, span) in pages.spans(at, len, most)?.enumerate() {
            if number % Self::PORTION == Self::PORTION - 1 {
                cond_resched();
            }
            // SAFETY: The device is live, as `pd` keeps it. The bytes are pinned and contiguous.
            let addr = unsafe {
                bindings::ib_dma_map_page(dev.as_raw(), span.page, span.offset, span.len, dir.raw())
            };
            // SAFETY: The device is live, and the callee accepts any address.
            if unsafe { bindings::ib_dma_mapping_error(dev.as_raw(), addr) } != 0 {
                this.discard();
                return Err(ENOMEM);
            }
            // INVARIANT: The span was just mapped, and there is a place for each. CAST: At most `SPAN`.
            this.spans.push((addr, span.len as u32));
            if dev.needs_sync(addr) {
                this.discard();
                return Err(EOPNOTSUPP);
            }
        }
        Ok(this)
    }

    /// Schedules the unmapping and the release of the memory.
    ///
    /// The device must no longer use the memory, see the duties of the driver in the documentation of the crate. If a
    /// [read](Self::end_reads) is pending, the memory passes to the domain instead, as if this were dropped.
    ///
    /// # Context
    ///
    /// Any.
    pub fn unmap(mut self) {
        if self.reads.is_pending() && !self.pd.is_over() {
            return;
        }
        if let Some(mapped) = self.take() {
            // SAFETY: The spans are mapped for the device of this domain, which does not use them any more: it has no read
            // to complete, or the domain has no queue pair, and the caller has ensured the rest.
            unsafe { mapped.end_later(self.pd.device()) };
        }
    }

    /// Ends a mapping at once that no device has used.
    fn discard(&mut self) {
        let spans = core::mem::replace(&mut self.spans, Spans::none());
        // SAFETY: By the type invariant the spans are mapped; they are moved out, so this happens
        // once.
        unsafe { unmap(self.pd.device(), &spans, self.dir, How::Unused) };
    }

    fn take(&mut self) -> Option<Mapped> {
        let spans = core::mem::replace(&mut self.spans, Spans::none());
        // SAFETY: By the type invariant the spans are mapped; they are moved out, so the mappings pass to the
        // result.
        (!spans.is_empty()).then(|| unsafe { Mapped::user(self.pages.clone(), spans, self.dir) })
    }

    /// Number of bytes.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The DMA addresses and lengths of the spans.
    pub(crate) fn mapped(&self) -> &[(u64, u32)] {
        &self.spans
    }

    /// As [`Self::sges`], for reads from a peer into the memory, which must be ended with [`Self::end_reads`] before the
    /// memory is unmapped.
    ///
    /// There are none if the memory was not mapped [for the device to write to](Direction::FromDevice).
    pub fn sinks(&mut self, at: usize, len: usize) -> impl Iterator<Item = Sink<'_>> + Clone {
        let len = match self.dir {
            Direction::ToDevice => 0,
            Direction::FromDevice | Direction::Bidirectional => len,
        };
        // INVARIANT: The result borrows the memory exclusively.
        let reads = &self.reads;
        self.sges(at, len).map(move |sge| Sink { sge, reads })
    }

    /// Records that the reads from a peer into this memory have completed, if they were posted before the request at
    /// `done`, which [`Handler::slot_done`] gets.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// [`Handler::slot_done`]: crate::qp::Handler::slot_done
    pub fn end_reads(&self, done: Position) {
        self.reads.end(done);
    }

    /// Iterates over the scatter elements of `len` bytes from `at` on, or up to the end of the
    /// memory.
    pub fn sges(&self, at: usize, len: usize) -> impl Iterator<Item = Sge> + Clone + '_ {
        let (mut skip, mut left) = (at, len);
        self.spans.iter().filter_map(move |(addr, span)| {
            // CAST: Lossless.
            let span = *span as usize;
            if skip >= span || left == 0 {
                skip -= span.min(skip);
                return None;
            }
            let len = left.min(span - skip);
            // CAST: Lossless; a part of a span, whose length has 32 bits.
            let sge = Sge::new(
                &self.pd,
                addr + skip as u64,
                len as u32,
                self.pd.local_dma_lkey(),
            );
            (skip, left) = (0, left - len);
            Some(sge)
        })
    }
}

impl Drop for DmaUser {
    fn drop(&mut self) {
        let mapped = self.take();
        // SAFETY: The field is taken once, as `self` is being dropped.
        let pd = unsafe { ManuallyDrop::take(&mut self.pd) };
        if let Some(mapped) = mapped {
            // SAFETY: They are mapped for the device of this domain.
            if let Err(mapped) = unsafe { pd.keep(mapped, self.room.take()) } {
                // SAFETY: As above. The last queue pair was closed, and no other follows.
                unsafe { mapped.end_later(pd.device()) };
            }
        }
        Pd::leave(pd);
    }
}
