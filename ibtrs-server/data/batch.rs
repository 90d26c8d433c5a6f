// SPDX-License-Identifier: GPL-2.0

//! Several answers in one message (extension).
//!
//! While a CPU handles a batch of completions, the answers that it sends wait for the end of the
//! batch. They are answers to requests of the batch whose I/O ended immediately, or to earlier
//! requests whose completion interrupted the batch. Answers of other CPUs do not wait, and no
//! answer waits while the thread that handles the batch sleeps.

use crate::storage::chunk::{
    Chunk,
    ChunkSlot, //
};
use kernel::{
    cpu::CpuId,
    new_spinlock_irq,
    prelude::*,
    sync::{
        SpinLockIrq,
        SpinLockIrqGuard, //
    }, //
};
use kx::sync::atomic::{
    Atomic,
    AtomicFlag,
    Relaxed, //
};

/// The value that stands for no CPU.
const NONE: u32 = u32::MAX;

/// Answers of a connection that wait for the end of a batch.
#[pin_data]
pub(crate) struct Batch {
    /// The CPU that is handling a batch, or [`NONE`], which is written under the lock.
    cpu: Atomic<u32>,
    /// Whether an answer waits; written under the lock.
    some: AtomicFlag,
    /// The chunk of the first waiting answer, which carries the others; `None` unless a CPU is handling a
    /// batch.
    #[pin]
    first: SpinLockIrq<Option<KBox<Chunk>>>,
}

impl Batch {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            cpu: Atomic::new(NONE),
            some: AtomicFlag::new(false),
            first <- new_spinlock_irq!(None, "Batch::first"),
        })
    }

    /// Records that this CPU begins a batch. The thread stays on the CPU until [`Self::end`], unless the
    /// CPU goes offline.
    pub(crate) fn begin(&self) {
        // ORDERING: Meant for this CPU only; on others, their own number does not match.
        self.cpu.store(CpuId::current().as_u32(), Relaxed);
    }

    /// Adds the answer of `chunk`, the chunk of `slot`, to the message of the batch. Returns the chunk of an
    /// answer to send now, if any: `chunk` if it cannot be batched, or the first one if the message is full.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn add(&self, slot: &ChunkSlot, chunk: KBox<Chunk>) -> Option<KBox<Chunk>> {
        let mut waiting = self.first.lock();
        // ORDERING: A batch ends under the lock, and its end sends the waiting answers.
        if self.cpu.load(Relaxed) != CpuId::current().as_u32() {
            return Some(chunk);
        }
        let Some(first) = &mut *waiting else {
            *waiting = Some(chunk);
            self.some.store(true, Relaxed);
            return None;
        };
        if !first.more.push(chunk.outcome()) {
            return Some(chunk);
        }
        let is_full = first.more.is_full();
        // Before the client receives the answer, as its next request may follow at once.
        let spare = slot.put(chunk);
        let full = match is_full {
            true => {
                self.some.store(false, Relaxed);
                waiting.take()
            }
            false => None,
        };
        drop(waiting);
        drop(spare);
        full
    }

    /// Takes the waiting answers; the batch stays open.
    pub(crate) fn take(&self) -> Option<KBox<Chunk>> {
        // ORDERING: An answer missed here is sent at the end of the batch.
        match self.some.load(Relaxed) {
            true => self.take_from(self.first.lock()),
            false => None,
        }
    }

    /// Closes the batch, at its end or before its thread sleeps: later answers are sent at once.
    /// Returns the waiting answers.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn end(&self) -> Option<KBox<Chunk>> {
        let waiting = self.first.lock();
        self.cpu.store(NONE, Relaxed);
        self.take_from(waiting)
    }

    fn take_from(
        &self,
        mut waiting: SpinLockIrqGuard<'_, Option<KBox<Chunk>>>,
    ) -> Option<KBox<Chunk>> {
        self.some.store(false, Relaxed);
        waiting.take()
    }
}
