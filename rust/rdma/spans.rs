// SPDX-License-Identifier: GPL-2.0

//! Addresses and lengths of contiguous memory.

use core::ops::Deref;

use kernel::{
    prelude::*,
    workqueue, //
};
use kx::work::later;

/// Addresses and lengths of contiguous memory. There may be so much of it that it comes from `vmalloc`, whose memory must
/// not be freed in atomic context: a work item does that.
#[pin_data]
struct SpanList {
    list: KVVec<(u64, u32)>,
    #[pin]
    free: workqueue::Work<Self>,
}

kernel::impl_has_work! {
    impl HasWork<Self> for SpanList { self.free }
}

impl workqueue::WorkItem for SpanList {
    type Pointer = Pin<KBox<Self>>;

    fn run(this: Pin<KBox<Self>>) {
        drop(this);
    }
}

/// Such a list, which may be dropped in any context.
pub(crate) struct Spans(Option<Pin<KBox<SpanList>>>);

impl Spans {
    /// No list.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// A list with room for that many.
    pub(crate) fn new(count: usize) -> Result<Self> {
        let list = KVVec::with_capacity(count, GFP_KERNEL)?;
        let list = pin_init!(SpanList {
            list,
            free <- new_free(),
        });
        Ok(Self(Some(KBox::pin_init(list, GFP_KERNEL)?)))
    }

    /// Adds one, for which there is room.
    pub(crate) fn push(&mut self, span: (u64, u32)) {
        if let Some(list) = &mut self.0 {
            let _ = list.as_mut().project().list.push_within_capacity(span);
        }
    }
}

/// Not generic, and not inlined, so that the lock class has one name at one address.
#[inline(never)]
fn new_free() -> impl PinInit<workqueue::Work<SpanList>> {
    kernel::new_work!("DmaUser::free")
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
