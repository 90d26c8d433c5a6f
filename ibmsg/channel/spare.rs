// SPDX-License-Identifier: GPL-2.0

//! Memory with which the lists of a channel grow.
//!
//! It is allocated when no lock is held, by a task that may wait for it.

use kernel::{
    alloc::Flags,
    prelude::*, //
};
use kx::deque::{
    Lack,
    Spare, //
};

use super::{
    calls::Call,
    inbox::{
        Incoming,
        Notice, //
    },
    Chan,
    Sent, //
};

/// What a channel lacks for the next message in either direction.
pub(crate) struct Needs {
    out: Option<Lack>,
    messages: Option<Lack>,
    notices: Option<Lack>,
    calls: Option<usize>,
}

/// Memory for that.
pub(crate) struct Spares {
    out: Spare<KBox<Sent>>,
    messages: Spare<KBox<Incoming>>,
    notices: Spare<Notice>,
    calls: KVVec<Call>,
}

impl Needs {
    /// Allocates what is needed.
    ///
    /// # Context
    ///
    /// As `flags` says.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn allocate(&self, flags: Flags) -> Result<Spares> {
        Ok(Spares {
            out: spare(self.out, flags)?,
            messages: spare(self.messages, flags)?,
            notices: spare(self.notices, flags)?,
            calls: KVVec::with_capacity(self.calls.unwrap_or(0), flags)?,
        })
    }
}

fn spare<T>(lack: Option<Lack>, flags: Flags) -> Result<Spare<T>> {
    lack.map_or(Ok(Spare::none()), |lack| Spare::new(lack, flags))
}

impl Chan {
    /// What this channel lacks.
    pub(crate) fn needs(&self) -> Needs {
        let (messages, notices) = self.inbox.lack();
        Needs {
            out: self.out.lack(),
            messages,
            notices,
            calls: self.calls.lack(self.most_calls()),
        }
    }

    /// What it lacks for a message that arrives.
    pub(crate) fn needs_for_arrival(&self) -> Needs {
        let (messages, _) = self.inbox.lack();
        Needs {
            out: None,
            messages,
            notices: None,
            calls: None,
        }
    }

    /// Takes what was allocated. What is left is not needed.
    pub(crate) fn extend(&mut self, spares: &mut Spares) {
        self.out.extend(&mut spares.out);
        self.inbox.extend(&mut spares.messages, &mut spares.notices);
        self.calls.extend(&mut spares.calls);
    }

    /// There is memory for messages: those that were dropped are to come again.
    pub(crate) fn feed(&mut self, spares: &mut Spares) {
        self.extend(spares);
        self.hungry_at = None;
        self.proto.rx.ask_again();
    }

    /// A message had no memory.
    pub(crate) fn starves(&mut self, now: u64) {
        self.inbox.drop_pieces();
        self.hungry_at.get_or_insert(now + PAUSE_US);
    }

    /// Memory is still unavailable. Keeps the pieces that arrived in the meantime, which have theirs.
    pub(crate) fn starves_on(&mut self, now: u64) {
        self.hungry_at = Some(now + PAUSE_US);
    }

    /// Whether it is time to look for memory.
    pub(crate) fn is_hungry(&self, now: u64) -> bool {
        self.hungry_at.is_some_and(|at| at <= now)
    }
}

/// For how long a channel waits for memory, in microseconds.
const PAUSE_US: u64 = 10_000;
