// SPDX-License-Identifier: GPL-2.0

//! A slot of the owner's table: memory that is published on a channel.
//!
//! | step of the owner | call |
//! |---|---|
//! | publish | [`Export::publish`] |
//! | a message has it as its body | [`Export::lend`] |
//! | ASK | [`Export::check`], [`super::Granted::grant`], then [`Export::granted`] |
//! | GET | [`Export::check`], then [`Export::push_begins`], and [`Export::push_ended`] at its completion |
//! | UNMAP, death of the owner | [`Export::revoke`] |
//! | a key is invalidated, or its queue pair drained | [`Export::invalidated`] |
//! | free the pages | [`Export::free`] |

use super::range::{Handle, Range, Refusal, Rights, MAX_GENERATION};

/// How memory is unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmap {
    /// The peer is asked to return its keys, so that its work requests end first.
    Gently,
    /// The owner has died, or does not wait: keys are invalidated at once. A work request of the peer that is
    /// under way fails, and with it the connection.
    Now,
}

/// What is to be done next for memory that is being unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmapping {
    /// Send REVOKE, if the channel is on a connection, and again after each move.
    Tell,
    /// Invalidate all keys, and wait for that.
    Invalidate,
    /// Only wait: for invalidations, or for pushes.
    Wait,
    /// [`Export::free`] succeeds.
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Live,
    /// The peer is to return its keys.
    Revoked,
    /// The peer has returned its keys, or is not asked.
    Invalidating,
}

/// A slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export {
    handle: Handle,
    state: State,
    range: Option<Range>,
    rights: Rights,
    /// Keys that are not invalidated.
    keys: u32,
    /// Pushes that are under way.
    pushes: u32,
}

impl Export {
    /// The free slot with this number.
    pub const fn new(slot: u16) -> Self {
        Self {
            handle: Handle::new(slot, 0),
            state: State::Free,
            range: None,
            rights: Rights {
                read: false,
                write: false,
            },
            keys: 0,
            pushes: 0,
        }
    }

    /// Publishes a range, under a handle that the slot has not had before. `None` if the slot is in use.
    pub fn publish(&mut self, range: Range, rights: Rights) -> Option<Handle> {
        self.publish_as(range, rights, self.handle.generation())
    }

    /// The same, under the handle with a number of the caller's choice: one that it has not given before, for this slot or
    /// for that of a former channel with the same number.
    pub fn publish_as(&mut self, range: Range, rights: Rights, number: u64) -> Option<Handle> {
        if self.state != State::Free {
            return None;
        }
        // Never 0.
        let generation = (number % MAX_GENERATION).saturating_add(1);
        *self = Self {
            handle: Handle::new(self.handle.slot(), generation),
            state: State::Live,
            range: Some(range),
            rights,
            ..Self::new(0)
        };
        Some(self.handle)
    }

    /// The range that may be used.
    ///
    /// # Errors
    ///
    /// When the handle is not valid.
    pub fn live(&self, handle: Handle) -> Result<Range, Refusal> {
        match (self.state, self.range) {
            (State::Live, Some(range)) if handle == self.handle => Ok(range),
            _ => Err(Refusal::Stale),
        }
    }

    /// A message has the memory as its body, which the peer may read from now on. Returns the range.
    ///
    /// # Errors
    ///
    /// [`Refusal::Access`] for memory that was published with rights, or is the body of a message already.
    pub fn lend(&mut self, handle: Handle) -> Result<Range, Refusal> {
        let range = self.live(handle)?;
        if self.rights != Rights::default() {
            return Err(Refusal::Access);
        }
        self.rights.read = true;
        Ok(range)
    }

    /// Whether the peer may use `part`.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn check(&self, handle: Handle, part: &Range, rights: Rights) -> Result<(), Refusal> {
        let range = self.live(handle)?;
        match (self.rights.allow(rights), range.contains(part)) {
            (false, _) => Err(Refusal::Access),
            (_, false) => Err(Refusal::Range),
            _ => Ok(()),
        }
    }

    /// What KEY says about the range, and the part that the key of the piece covers.
    ///
    /// # Errors
    ///
    /// Why the peer gets no key.
    pub fn key(&self, handle: Handle, piece: u64) -> Result<(Range, Rights, Range), Refusal> {
        let range = self.live(handle)?;
        if self.rights == Rights::default() {
            return Err(Refusal::Access);
        }
        let part = range.piece(piece).ok_or(Refusal::Range)?;
        Ok((range, self.rights, part))
    }

    /// The peer gets a key: before KEY is sent.
    pub fn granted(&mut self) {
        self.keys = self.keys.saturating_add(1);
    }

    /// A key is invalid: LOCAL_INV has completed, or its queue pair is in error and drained.
    pub fn invalidated(&mut self) {
        self.keys = self.keys.saturating_sub(1);
    }

    /// A push begins.
    pub fn push_begins(&mut self) {
        self.pushes = self.pushes.saturating_add(1);
    }

    /// A push has ended: its WRITE has completed, or its queue pair is drained.
    pub fn push_ended(&mut self) {
        self.pushes = self.pushes.saturating_sub(1);
    }

    /// Revokes the handle. From now on it is refused; the memory is still under DMA until
    /// [`Export::free`] succeeds. UNMAP without waiting returns EBUSY if it does not at once; the memory is
    /// unmapped in the background then.
    pub fn revoke(&mut self, how: Unmap) -> Unmapping {
        match (self.state, how) {
            (State::Live, Unmap::Gently) => self.state = State::Revoked,
            (State::Live | State::Revoked, Unmap::Now) => self.state = State::Invalidating,
            _ => {}
        }
        self.unmapping()
    }

    /// RETURN has arrived for all of the handle.
    pub fn returned(&mut self, handle: Handle) -> Unmapping {
        if self.state == State::Revoked && handle == self.handle {
            self.state = State::Invalidating;
        }
        self.unmapping()
    }

    /// What is to be done next.
    pub const fn unmapping(&self) -> Unmapping {
        match (self.state, self.keys, self.pushes) {
            (State::Live, _, _) => Unmapping::Wait,
            (State::Free, _, _) | (_, 0, 0) => Unmapping::Done,
            (_, 0, _) => Unmapping::Wait,
            (State::Revoked, _, _) => Unmapping::Tell,
            (State::Invalidating, _, _) => Unmapping::Invalidate,
        }
    }

    /// Frees the slot, if nothing can reach the memory any more: then its pages may be given back.
    #[must_use]
    pub fn free(&mut self) -> bool {
        let is_gone = self.is_revoked() && self.keys == 0 && self.pushes == 0;
        if is_gone {
            self.state = State::Free;
            self.range = None;
        }
        is_gone
    }

    /// Whether the memory is being unmapped.
    pub const fn is_revoked(&self) -> bool {
        matches!(self.state, State::Revoked | State::Invalidating)
    }

    /// The latest handle of the slot.
    pub const fn handle(&self) -> Handle {
        self.handle
    }
}
