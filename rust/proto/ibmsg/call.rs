// SPDX-License-Identifier: GPL-2.0

//! Calls: a request and its reply are two messages with one id.
//!
//! Each is a message with a number of its own direction, so it arrives exactly once: a request that is
//! sent again over another path is not executed again, and a reply is retained like any message. There
//! is no cache of replies.
//!
//! The callee's terms have a number of slots ([`crate::window::Window::calls`]). A call has a slot of
//! the caller and the callee's slot with the same number, from when it is made until its reply has
//! arrived, or it is certain that the request will not.

use crate::outcome::{CallOutcome, Outcome};

/// Bits of an id for the slot; the generation is above them.
const SLOT_BITS: u32 = 16;
/// The greatest generation; 0 follows.
const MAX_GENERATION: u64 = u64::MAX >> SLOT_BITS;

/// Names a call in its request and its reply: slot | generation << 16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallId(u64);

impl CallId {
    /// The id on the wire.
    pub const fn from_wire(id: u64) -> Self {
        Self(id)
    }

    /// The number on the wire.
    pub const fn to_wire(self) -> u64 {
        self.0
    }

    /// The slot.
    pub const fn slot(self) -> u16 {
        let [a, b, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([a, b])
    }
}

/// What is wrong with a request or a reply from the peer. The receiver fails the path that it came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallError {
    /// A request in a slot that the callee does not have.
    Slot(u16),
    /// A request in a slot whose call is not answered.
    Busy(CallId),
    /// A reply to a call that does not exist.
    NoCall(CallId),
}

impl CallError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Slot(_) => "request in a slot that does not exist",
            Self::Busy(_) => "request in a slot whose call is not answered",
            Self::NoCall(_) => "reply to no call",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Caller {
    Free,
    Waiting,
    Abandoned,
}

/// Whom a reply is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The program that waits for it.
    Program,
    /// Nobody any more: the call had ended without it.
    Late,
}

/// A slot of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallerSlot {
    id: CallId,
    state: Caller,
}

impl CallerSlot {
    /// The free slot with this number.
    pub const fn new(slot: u16) -> Self {
        // Lossless: u16 to u64.
        Self {
            id: CallId(slot as u64),
            state: Caller::Free,
        }
    }

    /// Whether a call can be made.
    pub const fn is_free(&self) -> bool {
        matches!(self.state, Caller::Free)
    }

    /// Makes a call: returns the id for its request; `None` if the slot is in use.
    pub fn call(&mut self) -> Option<CallId> {
        if !self.is_free() {
            return None;
        }
        let generation = match self.id.0 >> SLOT_BITS {
            MAX_GENERATION => 0,
            generation => generation.wrapping_add(1),
        };
        self.id = CallId(generation << SLOT_BITS | u64::from(self.id.slot()));
        self.state = Caller::Waiting;
        Some(self.id)
    }

    /// A reply has arrived. The slot is free again.
    ///
    /// # Errors
    ///
    /// When there is no such call.
    pub fn reply(&mut self, id: CallId) -> Result<Answer, CallError> {
        let answer = match self.state {
            Caller::Waiting if id == self.id => Answer::Program,
            Caller::Abandoned if id == self.id => Answer::Late,
            _ => return Err(CallError::NoCall(id)),
        };
        self.state = Caller::Free;
        Ok(answer)
    }

    /// The call ends without an answer, by its time or because its program has gone; `request` is the
    /// outcome of its request so far. Returns the outcome for the program; `None` if there is no call
    /// that waits. Unless the request will certainly not arrive, the slot stays in use until its reply
    /// has come.
    pub fn abandon(&mut self, request: Outcome) -> Option<CallOutcome> {
        if self.state != Caller::Waiting {
            return None;
        }
        self.state = match request {
            Outcome::NotDelivered => Caller::Free,
            Outcome::Delivered | Outcome::Unknown => Caller::Abandoned,
        };
        Some(CallOutcome::of_request(request))
    }

    /// SKIP takes the place of the request of an abandoned call: there will be no reply.
    pub fn skipped(&mut self, id: CallId) {
        if id == self.id && self.state == Caller::Abandoned {
            self.state = Caller::Free;
        }
    }
}

/// A slot of the callee.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CalleeSlot {
    call: Option<CallId>,
}

impl CalleeSlot {
    /// A request was queued for the program.
    ///
    /// # Errors
    ///
    /// When the slot has a call that is not answered.
    pub fn request(&mut self, id: CallId) -> Result<(), CallError> {
        match self.call {
            Some(_) => Err(CallError::Busy(id)),
            None => {
                self.call = Some(id);
                Ok(())
            }
        }
    }

    /// The program replies, or its kernel does so in its place. Whether there is such a call: the reply
    /// is sent only then, so each request has one.
    #[must_use]
    pub fn reply(&mut self, id: CallId) -> bool {
        match self.call {
            Some(call) if call == id => {
                self.call = None;
                true
            }
            _ => false,
        }
    }

    /// The call that is not answered.
    pub const fn unanswered(&self) -> Option<CallId> {
        self.call
    }
}
