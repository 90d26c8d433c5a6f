// SPDX-License-Identifier: GPL-2.0

//! The fences that a path carries, from their arrival to their answer ([`crate::session::fences`]).

use crate::path::Path;
use ibtrs_core::{
    imm::send_imm,
    trace, //
};
use ibtrs_proto::{
    fsm::server_path::Event,
    imm::{
        Fence,
        Imm, //
    }, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        SpinLockIrq, //
    },
};
use kx::work::WorkItem;

/// Maximum number of fences of a path that are not handled or not answered yet; a client needs one
/// for each of its paths.
const MAX_FENCES: usize = 256;
/// Delay before a retry to answer a fence if there was no SQ space.
const RETRY_MS: u32 = 20;

/// Fences that a path has received.
#[pin_data]
pub(crate) struct Inbox {
    #[pin]
    state: SpinLockIrq<State>,
}

struct State {
    /// Fences to handle. Neither list grows beyond its initial capacity.
    new: KVec<Fence>,
    done: KVec<Fence>,
    /// Number of fences in both lists, plus the fences that wait for the end of paths.
    open: usize,
}

impl Inbox {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            state <- new_spinlock_irq!(
                State {
                    new: KVec::with_capacity(MAX_FENCES, GFP_KERNEL)?,
                    done: KVec::with_capacity(MAX_FENCES, GFP_KERNEL)?,
                    open: 0,
                },
                "Inbox::state"
            ),
        }? Error)
    }

    fn take(&self) -> Option<Fence> {
        let mut state = self.state.lock();
        match state.new.is_empty() {
            true => None,
            false => state.new.remove(0).ok(),
        }
    }

    /// Queues a completed fence to be answered.
    fn done(&self, fence: Fence) {
        // There is room: the fence was counted in `open` when it arrived.
        let _ = self.state.lock().done.push_within_capacity(fence);
    }

    fn first_done(&self) -> Option<Fence> {
        self.state.lock().done.first().copied()
    }

    fn answered(&self) {
        let mut state = self.state.lock();
        if state.done.remove(0).is_ok() {
            state.open = state.open.saturating_sub(1);
        }
    }
}

impl Path {
    /// Handles the arrival of a fence that the path may carry.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// A violation of the protocol, for the log.
    pub(crate) fn fence_received(self: &Arc<Self>, fence: Fence) -> Result<(), &'static str> {
        if !self.io.takes_requests() {
            return Err("fence on a path that is not connected");
        }
        trace::server_fence(|| {
            (
                self.io.session.name(),
                &self.io.name,
                fence.epoch,
                fence.drain,
            )
        });
        let mut state = self.inbox.state.lock();
        if state.open >= MAX_FENCES || state.new.push_within_capacity(fence).is_err() {
            return Err("too many fences");
        }
        state.open += 1;
        drop(state);
        self.fences.enqueue(self.clone());
        Ok(())
    }

    /// Completes a fence that this path has carried.
    pub(crate) fn fence_done(self: &Arc<Self>, fence: Fence) {
        self.inbox.done(fence);
        self.fences.enqueue(self.clone());
    }

    /// Sends the answers to completed fences.
    fn answer_fences(self: &Arc<Self>) -> Result {
        while let Some(fence) = self.inbox.first_done() {
            send_imm(&*self.io.service()?, Imm::FenceDone(fence))?;
            trace::server_fence_done(|| {
                (
                    self.io.session.name(),
                    &self.io.name,
                    fence.epoch,
                    fence.drain,
                )
            });
            self.inbox.answered();
        }
        Ok(())
    }

    /// Closes the path, which the client has superseded.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn superseded(self: &Arc<Self>) {
        if self.event(Event::Superseded) && self.may_log() {
            pr_info!("{}: superseded by the client\n", **self);
        }
    }
}

/// Handles new fences, and answers completed ones.
impl WorkItem<{ crate::path::work::FENCES }> for Path {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        while let Some(fence) = this.inbox.take() {
            match this.parent.apply_fence(&this, fence) {
                Ok(true) => this.inbox.done(fence),
                Ok(false) => {}
                // The client repeats the fence over another path.
                Err(error) => return this.failed("cannot carry out a fence", error),
            }
        }
        match this.answer_fences() {
            Ok(()) => {}
            Err(error) if error == EAGAIN => {
                this.fences.enqueue_in(this.clone(), RETRY_MS);
            }
            // The path is being closed.
            Err(error) if error == ENOTCONN => {}
            Err(error) => this.failed("cannot answer a fence", error),
        }
    }
}
