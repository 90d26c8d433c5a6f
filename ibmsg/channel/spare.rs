// SPDX-License-Identifier: GPL-2.0

//! Memory with which the lists of a channel grow.
//!
//! It is allocated when no lock of this module is held. The lists are in small pieces, and may grow in any context. The
//! table of calls is one piece ([`CallTable`]), and grows only where the caller may sleep.

use core::mem::MaybeUninit;
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
    /// It lacks a place for a reply, too.
    reply_place: bool,
}

/// Memory for that.
pub(crate) struct Spares {
    out: Spare<KBox<Sent>>,
    messages: Spare<KBox<Incoming>>,
    notices: Spare<Notice>,
    reply_place: Option<KBox<MaybeUninit<Sent>>>,
}

/// What the channel of another module has from the beginning, as nothing that large can be allocated where it sends, or
/// to be sure that it can reply.
pub(crate) struct Stock {
    table: CallTable,
    reply_place: Option<KBox<MaybeUninit<Sent>>>,
}

impl Stock {
    /// For `calls` calls that may be unanswered.
    ///
    /// # Context
    ///
    /// *may sleep*, also to drop it.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(calls: u16) -> Result<Self> {
        Ok(Self {
            table: CallTable::new(usize::from(calls))?,
            reply_place: Some(KBox::new_uninit(GFP_KERNEL_ACCOUNT)?),
        })
    }
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
            reply_place: match self.reply_place {
                true => Some(KBox::new_uninit(flags)?),
                false => None,
            },
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
            reply_place: self.wants_memory && self.reply_place.is_none(),
        }
    }

    /// What it lacks for the messages that had no memory.
    pub(crate) fn needs_of_hungry(&self) -> Needs {
        if self.wants_memory {
            return self.needs();
        }
        let (messages, _) = self.inbox.lack();
        Needs {
            out: None,
            messages,
            notices: None,
            reply_place: false,
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
        if self.reply_place.is_none() {
            self.reply_place = spares.reply_place.take();
        }
    }

    /// The number of calls for which a table is needed before another call can be made; none if there is room.
    pub(crate) fn lack_of_calls(&self) -> Option<usize> {
        self.calls.lack(self.most_calls())
    }

    /// Takes a larger table of calls. What is left in its place is not needed.
    pub(crate) fn extend_calls(&mut self, table: &mut CallTable) {
        self.calls.extend(table);
    }

    /// Takes what a channel of another module has from the beginning. What is left is not needed.
    pub(crate) fn stock(&mut self, stock: &mut Stock) {
        self.extend_calls(&mut stock.table);
        self.reply_place = stock.reply_place.take();
    }

    /// The place for a reply when there is no memory for one. Another one follows when there is.
    pub(crate) fn take_reply_place(&mut self, now: u64) -> Option<KBox<MaybeUninit<Sent>>> {
        self.wants_memory(now);
        self.reply_place.take()
    }

    /// A message of another module is refused for want of memory: it is notified of room when there is some.
    pub(crate) fn refused_for_memory(&mut self, now: u64) {
        if !self.takes_no_more() {
            self.is_blocked = true;
            self.wants_memory(now);
        }
    }

    pub(super) fn wants_memory(&mut self, now: u64) {
        self.wants_memory = true;
        self.hungry_at.get_or_insert(now + PAUSE_US);
    }

    /// There is memory for messages: those that were dropped, or refused, are to come again.
    pub(crate) fn feed(&mut self, spares: &mut Spares) {
        self.extend(spares);
        self.hungry_at = None;
        self.proto.rx.ask_again();
        if core::mem::take(&mut self.wants_memory) {
            self.has_freed = true;
            self.tell_writable();
        }
    }

    /// What was dropped comes again by another connection. What was refused still waits for memory.
    pub(super) fn comes_again(&mut self) {
        self.hungry_at = self.hungry_at.filter(|_| self.wants_memory);
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
