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
use ibtrs_core::convert;
use ibtrs_proto::{
    imm::Answer,
    tag::Tag, //
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

/// The answer to the request with this tag, which is no longer in service.
pub(crate) struct Answered {
    pub(crate) tag: Tag,
    pub(crate) chunk: KBox<Chunk>,
    pub(crate) result: Result,
}

impl Answered {
    /// Returns the outcome of the request as answers carry it.
    pub(crate) fn on_wire(&self) -> Answer {
        answer_on_wire(self.tag, self.result)
    }
}

/// Returns the outcome of the request with tag `tag` as answers carry it: an error in nine bits.
pub(crate) fn answer_on_wire(tag: Tag, result: Result) -> Answer {
    let errno = result.map_or_else(|error| convert::errno(error).to_imm(), |()| 0);
    Answer {
        id: tag.into(),
        errno,
    }
}

/// No CPU.
const NONE: u32 = u32::MAX;

/// Answers of a connection that wait for the end of a batch.
#[pin_data]
pub(crate) struct Batch {
    /// The CPU that is handling a batch, or [`NONE`], which is written under the lock.
    cpu: Atomic<u32>,
    /// Whether an answer waits; written under the lock.
    some: AtomicFlag,
    /// The first waiting answer, whose chunk carries the others; `None` unless a CPU is handling a
    /// batch.
    #[pin]
    first: SpinLockIrq<Option<Answered>>,
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

    /// Keeps an answer for the message of the batch; its chunk is that of `slot`. Returns an answer to
    /// send now, if any: `answered` if it cannot wait, or the first one if the message is full.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn add(&self, slot: &ChunkSlot, answered: Answered) -> Option<Answered> {
        let mut waiting = self.first.lock();
        // ORDERING: A batch ends under the lock, and its end sends the waiting answers.
        if self.cpu.load(Relaxed) != CpuId::current().as_u32() {
            return Some(answered);
        }
        let Some(first) = &mut *waiting else {
            *waiting = Some(answered);
            self.some.store(true, Relaxed);
            return None;
        };
        if !first.chunk.more.push(answered.on_wire()) {
            return Some(answered);
        }
        let is_full = first.chunk.more.is_full();
        // Before the client has the answer, which its next request may follow at once.
        let spare = slot.put(answered.chunk);
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

    /// Takes the waiting answers; the batch goes on.
    pub(crate) fn take(&self) -> Option<Answered> {
        // ORDERING: An answer missed here is sent at the end of the batch.
        match self.some.load(Relaxed) {
            true => self.take_from(self.first.lock()),
            false => None,
        }
    }

    /// Ends the batch, when it is over or its thread goes to sleep: from here on answers are sent at
    /// once. Returns those that wait.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn end(&self) -> Option<Answered> {
        let waiting = self.first.lock();
        self.cpu.store(NONE, Relaxed);
        self.take_from(waiting)
    }

    fn take_from(&self, mut waiting: SpinLockIrqGuard<'_, Option<Answered>>) -> Option<Answered> {
        self.some.store(false, Relaxed);
        waiting.take()
    }
}
