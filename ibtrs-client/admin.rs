// SPDX-License-Identifier: GPL-2.0

//! Permits for administrative messages. The last chunks of the queue are
//! reserved for them; no I/O uses these.

use crate::session::Session;
use ibtrs_proto::permit::{
    DepthSplit,
    FreeIds, //
};
use kernel::{
    new_condvar,
    new_mutex,
    prelude::*,
    sync::{
        CondVar,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::msecs_to_jiffies, //
};
use kx::{
    io::SyncIo,
    mm::in_reclaim, //
};

/// The reserved chunks that are in use.
#[pin_data]
pub(crate) struct Admin {
    #[pin]
    state: Mutex<State>,
    #[pin]
    returned: CondVar,
}

struct State {
    /// Of all that could ever be reserved; below the number that is.
    free: FreeIds,
    /// Messages that the server has not answered, and that no sender waits for any more.
    late: [Option<SyncIo>; DepthSplit::MESSAGES as usize],
}

impl State {
    /// Takes note of late answers.
    fn collect_late(&mut self) {
        for (nr, late) in self.late.iter_mut().enumerate() {
            let ended = |io: &mut SyncIo| io.result() != Err(EINPROGRESS);
            if late.take_if(ended).is_some() {
                // In range, as the array is that short.
                self.free.give(nr as u16);
            }
        }
    }
}

impl Admin {
    pub(crate) fn new() -> impl PinInit<Self> {
        let state = State {
            free: FreeIds::new(DepthSplit::MESSAGES),
            late: [const { None }; DepthSplit::MESSAGES as usize],
        };
        pin_init!(Self {
            state <- new_mutex!(state, "Admin::state"),
            returned <- new_condvar!("Admin::returned"),
        })
    }

    /// Tells lockdep that reclaim may wait for the lock: these messages open devices again.
    pub(crate) fn needed_in_reclaim(&self) {
        in_reclaim(|| drop(self.state.lock()));
    }

    /// Waits for a permit.
    ///
    /// # Errors
    ///
    /// `EINTR`; `ENOTCONN` when the session is cut off.
    pub(crate) fn get<'a>(&'a self, session: &Session) -> Result<Permit<'a>> {
        let depth_split = session.depth_split();
        let mut state = self.state.lock();
        loop {
            if !session.is_connected() {
                return Err(ENOTCONN);
            }
            state.collect_late();
            match state.free.take() {
                Some(nr) if nr < depth_split.reserved() => {
                    return Ok(Permit {
                        admin: self,
                        nr,
                        tag: depth_split.io() + nr,
                        late: None,
                    });
                }
                Some(nr) => {
                    state.free.give(nr);
                }
                None => {}
            }
            // Checked periodically, because a late answer wakes no waiter.
            let pause = msecs_to_jiffies(100);
            if let CondVarTimeoutResult::Signal { .. } =
                self.returned.wait_interruptible_timeout(&mut state, pause)
            {
                return Err(EINTR);
            }
        }
    }
}

/// The right to use a chunk for an administrative message.
pub(crate) struct Permit<'a> {
    admin: &'a Admin,
    nr: u16,
    tag: u16,
    late: Option<SyncIo>,
}

impl Permit<'_> {
    pub(crate) fn tag(&self) -> u16 {
        self.tag
    }

    /// Keeps the chunk in use until `io` has ended, although no task waits for that any more.
    pub(crate) fn keep_until_answered(mut self, io: SyncIo) {
        self.late = Some(io);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.admin.state.lock();
        let late = self.late.take();
        match (late, state.late.get_mut(usize::from(self.nr))) {
            (Some(io), Some(place)) => *place = Some(io),
            _ => {
                state.free.give(self.nr);
            }
        }
        drop(state);
        self.admin.returned.notify_one();
    }
}
