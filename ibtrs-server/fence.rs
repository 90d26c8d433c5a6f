// SPDX-License-Identifier: GPL-2.0

//! Fences: over one path, a client asks the server to accept nothing more from other paths.
//!
//! A path takes no more requests as soon as it begins to close (see [`Path::takes_requests`]). So
//! the server closes the paths that the fence names, and answers at once. Requests that these paths
//! have in service keep their chunk numbers ([`crate::chunk_owner`]). If the client also asks for
//! the end of these requests (`drain`), the answer waits until the paths are gone.

use crate::path::Path;
use ibtrs_core::{
    imm::send_imm,
    trace, //
};
use ibtrs_proto::{
    chunk_owner::PathTag,
    fsm::server_path::Event, //
    imm::{
        Fence,
        Imm, //
    },
};
use kernel::{
    new_mutex, new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SpinLockIrq, //
    },
};
use kx::{
    mm::NoIo,
    work::WorkItem, //
};

/// Maximum number of fences of a path that are not handled or not answered yet; a client needs one
/// for each of its paths.
const MAX_FENCES: usize = 256;
/// Delay before another try to answer a fence if there was no SQ space.
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
    /// Number of fences in both lists, and of those that wait until paths are gone.
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

    /// Adds a completed fence to those to answer.
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

/// A fence that waits until paths are gone.
struct Pending {
    fence: Fence,
    carrier: Arc<Path>,
    /// The paths that are not gone yet.
    left: KVec<PathTag>,
}

/// The waiting fences of a session.
#[pin_data]
pub(crate) struct Fences {
    #[pin]
    list: Mutex<KVec<Pending>>,
}

impl Fences {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVec::new(), "Session::fences"),
        })
    }

    /// Handles the end of a path: completes the fences that waited for nothing else, and drops
    /// those that the path carried.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn path_gone(&self, path: &Arc<Path>) {
        let mut list = self.list.lock();
        list.retain(|pending| {
            if Arc::ptr_eq(&pending.carrier, path) {
                return false;
            }
            pending.left.retain(|tag| *tag != path.tag);
            let wait = !pending.left.is_empty();
            if !wait {
                pending.carrier.fence_done(pending.fence);
            }
            wait
        });
    }
}

impl Path {
    /// Takes a fence that the path may carry.
    ///
    /// # Context
    ///
    /// Any.
    ///
    /// # Errors
    ///
    /// A violation of the protocol, for the log.
    pub(crate) fn fence_received(self: &Arc<Self>, fence: Fence) -> Result<(), &'static str> {
        if !self.takes_requests() {
            return Err("fence on a path that is not connected");
        }
        trace::server_fence(|| (self.session.name(), &self.name, fence.epoch, fence.drain));
        let mut state = self.inbox.state.lock();
        if state.open >= MAX_FENCES || state.new.push_within_capacity(fence).is_err() {
            return Err("too many fences");
        }
        state.open += 1;
        drop(state);
        self.fences.enqueue(self.clone());
        Ok(())
    }

    /// Closes the paths that a fence covers; completes the fence if it need not wait until they are
    /// gone.
    fn put_up(self: &Arc<Self>, fence: Fence) -> Result {
        // Operators wait for the lock of the paths, so no allocation under it waits for I/O.
        let _no_io = NoIo::enter();
        let mut left = KVec::new();
        let mut list = self.session.fences.list.lock();
        for path in self.session.paths.lock().iter() {
            if Arc::ptr_eq(path, self) || !fence.covers(path.epoch) {
                continue;
            }
            path.superseded();
            left.push(path.tag, GFP_KERNEL)?;
        }
        if left.is_empty() || !fence.drain {
            drop(list);
            self.inbox.done(fence);
            return Ok(());
        }
        let pending = Pending {
            fence,
            carrier: self.clone(),
            left,
        };
        list.push(pending, GFP_KERNEL)?;
        Ok(())
    }

    /// Completes a fence that this path has carried.
    fn fence_done(self: &Arc<Self>, fence: Fence) {
        self.inbox.done(fence);
        self.fences.enqueue(self.clone());
    }

    /// Sends the answers to completed fences.
    fn answer_fences(self: &Arc<Self>) -> Result {
        while let Some(fence) = self.inbox.first_done() {
            let cons = self.cons.lock();
            let Some(Some(service)) = cons.qps.first() else {
                // The path is being closed.
                return Ok(());
            };
            send_imm(service, Imm::FenceDone(fence))?;
            trace::server_fence_done(|| {
                (self.session.name(), &self.name, fence.epoch, fence.drain)
            });
            drop(cons);
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
            if let Err(error) = this.put_up(fence) {
                // The client repeats the fence over another path.
                return this.failed("cannot carry out a fence", error);
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
