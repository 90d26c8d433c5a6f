// SPDX-License-Identifier: GPL-2.0

//! Polls the polled connections of a path while they are closed.

use crate::{
    data::con::Con,
    path::Path, //
};
use core::mem::MaybeUninit;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        UniqueArc, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kx::{
    sync::{
        atomic::{
            AtomicFlag,
            Relaxed, //
        },
        Completion,
        PercpuArc, //
    },
    work::WorkItem, //
};
use rdma::qp::{
    Qp,
    QueuePair, //
};

/// Interval of polling while connections are closed.
const DRAIN_MS: i64 = 1;

/// Connections of a path that are polled while they are closed.
#[pin_data]
pub(crate) struct Closing {
    polled: KVec<PercpuArc<QueuePair<Con>>>,
    over: AtomicFlag,
    #[pin]
    done: Completion,
}

/// The memory of a [`Drain`], allocated with the attempt: a teardown must not wait for memory, as
/// reclaim may need to write to the disks whose requests are about to fail over.
pub(crate) struct DrainMemory {
    /// Empty, with room for all polled connections.
    polled: KVec<PercpuArc<QueuePair<Con>>>,
    closing: UniqueArc<MaybeUninit<Closing>>,
}

impl DrainMemory {
    /// Allocates memory for `count` polled connections; `None` if there are none.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(count: u32) -> Result<Option<Self>> {
        if count == 0 {
            return Ok(None);
        }
        Ok(Some(Self {
            // CAST: A path has at most some thousand connections.
            polled: KVec::with_capacity(count as usize, GFP_KERNEL)?,
            closing: UniqueArc::new_uninit(GFP_KERNEL)?,
        }))
    }

    /// Returns the polled connections among `qps`; allocates nothing.
    fn fill(mut self, qps: &[Qp<Con>]) -> Option<Arc<Closing>> {
        for qp in qps.iter().filter(|qp| qp.is_direct()) {
            self.polled.push_within_capacity(qp.get()).ok()?;
        }
        let polled = self.polled;
        let filled = self.closing.pin_init_with(pin_init!(Closing {
            polled,
            over: AtomicFlag::new(false),
            done <- Completion::new(),
        }));
        filled.map(Arc::from).ok()
    }
}

/// Makes a worker poll connections of a path until this is dropped.
pub(crate) struct Drain<'a> {
    path: &'a Path,
    closing: Option<Arc<Closing>>,
}

impl<'a> Drain<'a> {
    /// Makes a worker poll the polled connections among `qps`, all together; without it, closing each
    /// one would poll slowly in turn. `memory` is the attempt's, `None` if no connection is polled.
    pub(crate) fn begin(path: &'a Arc<Path>, qps: &[Qp<Con>], memory: Option<DrainMemory>) -> Self {
        let closing = memory.and_then(|memory| memory.fill(qps));
        if let Some(closing) = &closing {
            // `closing` is empty: a path has one attempt at a time.
            let _ = path.closing.put(closing.clone());
            path.drain.enqueue(path.clone());
        }
        Self { path, closing }
    }
}

impl Closing {
    fn poll(&self) {
        while !self.over.load(Relaxed) {
            for qp in &self.polled {
                while qp.poll() > 0 {}
            }
            fsleep(Delta::from_millis(DRAIN_MS));
        }
        self.done.complete_all();
    }
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        let Some(closing) = &self.closing else { return };
        closing.over.store(true, Relaxed);
        // When memory is short, the caller may occupy the only worker, so that the work item has
        // not begun. It does nothing once `closing` is taken.
        if self.path.closing.take().is_none() {
            closing.done.wait();
        }
    }
}

/// Polls connections that are being closed.
impl WorkItem<{ crate::path::work::DRAIN }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if let Some(closing) = this.closing.take() {
            closing.poll();
        }
    }
}
