// SPDX-License-Identifier: GPL-2.0

//! Memory with which the lists of a channel grow.
//!
//! It is allocated when no lock of this module is held. The lists are in small pieces, and may grow in any context. The
//! table of calls is one piece ([`CallTable`]), and grows only where the caller may sleep.

use kernel::{
    alloc::Flags,
    prelude::*, //
};
use kx::deque::{
    Lack,
    Spare, //
};

use super::{
    inbox::{
        Incoming,
        Notice, //
    },
    CallTable,
    Chan,
    Sent, //
};

/// What the lists of a channel lack for the next message in either direction.
pub(crate) struct Needs {
    out: Option<Lack>,
    messages: Option<Lack>,
    notices: Option<Lack>,
}

/// Memory for that.
pub(crate) struct Spares {
    out: Spare<KBox<Sent>>,
    messages: Spare<KBox<Incoming>>,
    notices: Spare<Notice>,
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
        })
    }
}

fn spare<T>(lack: Option<Lack>, flags: Flags) -> Result<Spare<T>> {
    lack.map_or(Ok(Spare::none()), |lack| Spare::new(lack, flags))
}

impl Chan {
    /// What the lists lack.
    pub(crate) fn needs(&self) -> Needs {
        let (messages, notices) = self.inbox.lack();
        Needs {
            out: self.out.lack(),
            messages,
            notices,
        }
    }

    /// What it lacks for a message that arrives.
    pub(crate) fn needs_for_arrival(&self) -> Needs {
        let (messages, _) = self.inbox.lack();
        Needs {
            out: None,
            messages,
            notices: None,
        }
    }

    /// Calls for which there is memory.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn room_for_calls(&self) -> usize {
        self.calls.capacity()
    }

    /// Takes what was allocated. What is left is not needed.
    pub(crate) fn extend(&mut self, spares: &mut Spares) {
        self.out.extend(&mut spares.out);
        self.inbox.extend(&mut spares.messages, &mut spares.notices);
    }

    /// The number of calls for which a table is needed before another call can be made; none if there is room.
    pub(crate) fn lack_of_calls(&self) -> Option<usize> {
        self.calls.lack(self.most_calls())
    }

    /// Takes a larger table of calls. What is left in its place is not needed.
    pub(crate) fn extend_calls(&mut self, table: &mut CallTable) {
        self.calls.extend(table);
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
