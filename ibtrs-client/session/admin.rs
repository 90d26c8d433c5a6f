// SPDX-License-Identifier: GPL-2.0

//! Permits for administrative messages. The last chunks of the session are reserved for them; no
//! I/O uses these.

use crate::{
    session::Session,
    types::{
        Generation,
        ADMIN_TIMEOUT_MS, //
    }, //
};
use ibtrs_proto::{
    permit::{
        DepthSplit,
        FreeIds, //
    },
    tag::Tag, //
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
    time::{
        msecs_to_jiffies,
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    io::SyncIo,
    mm::in_reclaim, //
};

/// The permits, one for each reserved chunk.
#[pin_data]
pub(crate) struct Admin {
    #[pin]
    state: Mutex<State>,
    #[pin]
    returned: CondVar,
}

struct State {
    /// Free permits. Of the [`DepthSplit::MESSAGES`] possible ones, only those below
    /// [`DepthSplit::reserved`] are used.
    free: FreeIds,
    /// Messages that the server has not answered and whose sender no longer waits.
    late: [Option<SyncIo>; DepthSplit::MESSAGES as usize],
}

impl State {
    /// Frees the permits of late messages that have been answered.
    fn collect_late(&mut self) {
        for (nr, late) in self.late.iter_mut().enumerate() {
            if late.take_if(|io| io.has_ended()).is_some() {
                // CAST: The array has `DepthSplit::MESSAGES` elements, which is a `u16`.
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

    /// Declares to lockdep that reclaim may wait for the lock, as administrative messages reopen
    /// devices.
    pub(crate) fn needed_in_reclaim(&self) {
        in_reclaim(|| drop(self.state.lock()));
    }

    /// Returns whether a message is being sent or unanswered.
    pub(crate) fn is_busy(&self) -> bool {
        let mut state = self.state.lock();
        state.collect_late();
        !state.free.all_are_free()
    }

    /// Waits for a permit, up to the time limit of a message, as the server may not answer any
    /// message.
    ///
    /// # Errors
    ///
    /// `EINTR`; `ETIMEDOUT`; `ENOTCONN`: no path is connected; `ESTALE`: the message is for session
    /// generation `only`, and another one has begun.
    pub(crate) fn get<'a>(
        &'a self,
        session: &Session,
        only: Option<Generation>,
    ) -> Result<Permit<'a>> {
        let depth_split = session.depth_split();
        let began = Instant::<Monotonic>::now();
        let mut state = self.state.lock();
        loop {
            if !session.is_connected() {
                return Err(ENOTCONN);
            }
            if only.is_some_and(|only| !session.generation().is_same_session(only)) {
                return Err(ESTALE);
            }
            state.collect_late();
            match state.free.take() {
                Some(nr) if nr < depth_split.reserved() => {
                    return Ok(Permit {
                        admin: self,
                        nr,
                        tag: Tag::new(depth_split.io() + nr),
                        late: None,
                    });
                }
                Some(nr) => {
                    state.free.give(nr);
                }
                None => {}
            }
            if began.elapsed().as_millis() >= i64::from(ADMIN_TIMEOUT_MS) {
                return Err(ETIMEDOUT);
            }
            // Polled, because a late answer does not wake a waiter.
            let pause = msecs_to_jiffies(100);
            if let CondVarTimeoutResult::Signal { .. } =
                self.returned.wait_interruptible_timeout(&mut state, pause)
            {
                return Err(EINTR);
            }
        }
    }
}

/// A chunk that is reserved for one administrative message.
pub(crate) struct Permit<'a> {
    admin: &'a Admin,
    nr: u16,
    tag: Tag,
    late: Option<SyncIo>,
}

impl Permit<'_> {
    pub(crate) fn tag(&self) -> Tag {
        self.tag
    }

    /// Keeps the chunk reserved until `io` has ended, although no task waits for it any more.
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
