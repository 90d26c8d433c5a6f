// SPDX-License-Identifier: GPL-2.0

//! Addresses and lengths of contiguous memory of programs, and the end of their mappings.

use core::ops::Deref;

use crate::{
    device::Device,
    direction::Direction, //
};
use ibtrs_bindings as bindings;
use kernel::{
    prelude::*,
    sync::Arc,
    workqueue, //
};
use kx::{
    user::UserPages,
    work::{
        cond_resched,
        later, //
    }, //
};

/// Spans that are unmapped between two calls of `cond_resched`: with an IOMMU, each may take microseconds.
const PORTION: usize = 256;

/// Addresses and lengths of contiguous memory. A long list comes from `vmalloc`, whose memory must not be freed in atomic
/// context, and takes long to unmap. A work item does both.
///
/// # Invariants
///
/// If there is an `ending`, its invariants hold for the spans of `list`.
#[pin_data]
struct SpanList {
    list: KVVec<(u64, u32)>,
    ending: Option<Ending>,
    #[pin]
    end: workqueue::Work<Self>,
}

/// Memory of a program that is unmapped with its list.
///
/// # Invariants
///
/// Each span of the list is mapped for `dev` in the direction `dir`, with its length, and no device uses it
/// any more.
struct Ending {
    pages: Arc<UserPages>,
    dir: Direction,
    dev: Arc<Device>,
}

kernel::impl_has_work! {
    impl HasWork<Self> for SpanList { self.end }
}

impl workqueue::WorkItem for SpanList {
    type Pointer = Pin<KBox<Self>>;

    fn run(mut this: Pin<KBox<Self>>) {
        let list = this.as_mut().project();
        if let Some(Ending { pages, dir, dev }) = list.ending.take() {
            // SAFETY: By the type invariants; the `Ending` is moved out, so this happens once.
            unsafe { unmap(&dev, list.list, dir, How::Used) };
            // The program's memory is unpinned only now.
            drop((pages, dev));
        }
        drop(this);
    }
}

/// Whether the device has used the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// It may have used it.
    Used,
    /// It has not used it. The contents of a bounce buffer are not copied back, as they would overwrite
    /// what the program has written since.
    Unused,
}

/// Unmaps spans.
///
/// # Context
///
/// May sleep.
///
/// # Safety
///
/// Each span must be mapped for `dev` in that direction, with its length, and must be passed here only
/// once.
pub(crate) unsafe fn unmap(dev: &Device, spans: &[(u64, u32)], dir: Direction, how: How) {
    for portion in spans.chunks(PORTION) {
        for (addr, len) in portion {
            // CAST: Lossless.
            let (addr, len) = (*addr, *len as usize);
            match how {
                // SAFETY: By this function's contract.
                How::Used => unsafe {
                    bindings::ib_dma_unmap_page(dev.as_raw(), addr, len, dir.raw())
                },
                // SAFETY: As above.
                How::Unused => unsafe {
                    bindings::kx_dma_unmap_unused(dev.as_raw(), addr, len, dir.raw())
                },
            }
        }
        cond_resched();
    }
}

/// A list of spans, which may be dropped in any context.
pub(crate) struct Spans(Option<Pin<KBox<SpanList>>>);

impl Spans {
    /// Returns an empty value, which takes no memory.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Allocates a list for `count` spans.
    pub(crate) fn new(count: usize) -> Result<Self> {
        let list = KVVec::with_capacity(count, GFP_KERNEL)?;
        // INVARIANT: There is no `ending`.
        let list = pin_init!(SpanList {
            list,
            ending: None,
            end <- new_end(),
        });
        Ok(Self(Some(KBox::pin_init(list, GFP_KERNEL)?)))
    }

    /// Adds a span, for which the list must have room.
    pub(crate) fn push(&mut self, span: (u64, u32)) {
        if let Some(list) = &mut self.0 {
            let _ = list.as_mut().project().list.push_within_capacity(span);
        }
    }

    /// Schedules the unmapping of all spans and the drop of `pages`.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Safety
    ///
    /// Each span must be mapped for `dev` in that direction, with its length; the mappings pass to this
    /// function. No device may use them any more.
    pub(crate) unsafe fn end_later(
        mut self,
        pages: Arc<UserPages>,
        dir: Direction,
        dev: Arc<Device>,
    ) {
        if let Some(list) = &mut self.0 {
            // INVARIANT: By this function's contract.
            *list.as_mut().project().ending = Some(Ending { pages, dir, dev });
        }
    }
}

/// Neither generic nor inlined, so that the lock class has one name at one address.
#[inline(never)]
fn new_end() -> impl PinInit<workqueue::Work<SpanList>> {
    kernel::new_work!("DmaUser::end")
}

impl Deref for Spans {
    type Target = [(u64, u32)];

    fn deref(&self) -> &Self::Target {
        match &self.0 {
            Some(list) => &list.list,
            None => &[],
        }
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        if let Some(list) = self.0.take() {
            later(list);
        }
    }
}
