// SPDX-License-Identifier: GPL-2.0

//! The keys of the peer's memory that this side has, on the connection that a channel is on.

use super::range::{Handle, Key, Range, Refusal, Rights};

/// What an operation does to get a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Use it; [`Keys::done`] with this place when the work request has completed.
    Use(Key, usize),
    /// Send ASK.
    Ask,
    /// Send RETURN for this piece, then ASK: the peer gives no more keys at once.
    Replace(Handle, u64),
    /// Wait: for KEY, or for work requests that use keys.
    Wait,
    /// The peer refuses.
    Refused(Refusal),
}

/// What the peer must not do. The receiver fails the path that the record came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeysError {
    /// KEY without ASK.
    NotAsked,
    /// GOT without GET.
    NoGet(u32),
}

impl KeysError {
    /// One line for the log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotAsked => "key that was not asked for",
            Self::NoGet(_) => "answer to no GET",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Asked,
    Has(Key),
    /// KEY said so; kept until the operation that asked has seen it.
    Refused(Refusal),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    handle: Handle,
    piece: u64,
    state: State,
    /// Work requests that use the key.
    uses: u32,
    /// When it was used last, in calls.
    used: u64,
    /// REVOKE has arrived.
    revoked: bool,
}

impl Entry {
    /// Whether it is a key that may be returned: no work request uses it.
    fn is_idle(&self) -> bool {
        self.uses == 0 && !self.revoked && matches!(self.state, State::Has(_))
    }
}

/// What an operation may do for a key that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// Nothing.
    Have,
    /// Ask for it, if there is a place.
    Ask,
    /// Ask for it, in the place of another one.
    Replace,
}

/// Where an operation finds memory of the peer.
pub(super) enum Access {
    /// There, with this key; `place` is for [`Keys::done`].
    At {
        rkey: u32,
        addr: u64,
        place: usize,
        readable: bool,
    },
    /// ASK for this piece comes first.
    Ask(u64),
    /// RETURN for this piece of this handle comes first.
    Return(Handle, u64),
    /// Nowhere without that, and the operation does not want it.
    Full,
    /// Nowhere yet.
    Wait,
    /// Nowhere.
    Refused(Refusal),
}

/// Up to `N` keys, of which the peer gives at most [`super::MemoryTerms::keys`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keys<const N: usize> {
    entries: [Option<Entry>; N],
    limit: usize,
    clock: u64,
    /// What the last key said about RDMA READ.
    readable: Option<bool>,
}

impl<const N: usize> Keys<N> {
    /// No keys yet of a peer whose terms have this number.
    pub const fn new(limit: u16) -> Self {
        Self {
            entries: [None; N],
            // Lossless: u16 to usize.
            limit: limit as usize,
            clock: 0,
            readable: None,
        }
    }

    fn entry(&mut self, handle: Handle, piece: u64) -> Option<(usize, &mut Entry)> {
        let mut all = self.entries.iter_mut().enumerate();
        all.find_map(|(at, e)| match e {
            Some(e) if e.handle == handle && e.piece == piece => Some((at, e)),
            _ => None,
        })
    }

    /// An operation wants the key of a piece.
    pub fn want(&mut self, handle: Handle, piece: u64) -> Want {
        self.clock = self.clock.saturating_add(1);
        let clock = self.clock;
        if let Some((at, entry)) = self.entry(handle, piece) {
            let refusal = match entry.state {
                State::Asked => return Want::Wait,
                State::Has(key) if !entry.revoked => {
                    entry.uses = entry.uses.saturating_add(1);
                    entry.used = clock;
                    return Want::Use(key, at);
                }
                State::Has(_) => return Want::Refused(Refusal::Stale),
                State::Refused(refusal) => refusal,
            };
            if let Some(place) = self.entries.get_mut(at) {
                *place = None;
            }
            return Want::Refused(refusal);
        }
        if self.is_revoked(handle) {
            return Want::Refused(Refusal::Stale);
        }
        let count = self.entries.iter().flatten().count();
        let free = self.entries.iter_mut().find(|e| e.is_none());
        match free.filter(|_| count < self.limit) {
            Some(place) => {
                *place = Some(Entry {
                    handle,
                    piece,
                    state: State::Asked,
                    uses: 0,
                    used: clock,
                    revoked: false,
                });
                Want::Ask
            }
            None => self.replace(handle, piece),
        }
    }

    /// Whether there is a place for the key of a piece, or it is there, or was asked for; `asks`: whether it may be asked for.
    fn has_room_for(&mut self, handle: Handle, piece: u64, asks: bool) -> bool {
        if self.entry(handle, piece).is_some() {
            return true;
        }
        if self.entries.iter().flatten().count() >= self.limit.min(N) {
            self.forget_refusals();
        }
        asks && self.entries.iter().flatten().count() < self.limit.min(N)
    }

    /// Forgets what the peer has refused, and nobody has seen: an operation that still wants it asks again.
    pub fn forget_refusals(&mut self) {
        for place in &mut self.entries {
            if place.is_some_and(|e| matches!(e.state, State::Refused(_))) {
                *place = None;
            }
        }
    }

    /// An operation wants to access `part` of `range`, in this piece: its key, and the address for it. `wish`: what it may
    /// do for a key that is not there.
    pub(super) fn access(
        &mut self,
        handle: Handle,
        range: &Range,
        (piece, part): (u64, &Range),
        rights: Rights,
        wish: Wish,
    ) -> Access {
        let has_room = match wish {
            Wish::Replace => true,
            Wish::Ask => self.has_room_for(handle, piece, true),
            Wish::Have => self.has_room_for(handle, piece, false),
        };
        if !has_room {
            return Access::Full;
        }
        let (key, place) = match self.want(handle, piece) {
            Want::Use(key, place) => (key, place),
            Want::Ask => return Access::Ask(piece),
            Want::Replace(handle, piece) => return Access::Return(handle, piece),
            Want::Wait => return Access::Wait,
            Want::Refused(refusal) => return Access::Refused(refusal),
        };
        match key.address(piece, range, part, rights) {
            Ok(addr) => Access::At {
                rkey: key.rkey,
                addr,
                place,
                readable: key.readable,
            },
            Err(refusal) => {
                self.done(place);
                Access::Refused(refusal)
            }
        }
    }

    /// Makes room: the key that was used least recently, and is not in use.
    fn replace(&mut self, handle: Handle, piece: u64) -> Want {
        let free = |e: &Entry| e.is_idle() || matches!(e.state, State::Refused(_));
        match self.take_oldest(free) {
            Some(e) if e.is_idle() => Want::Replace(e.handle, e.piece),
            // A refusal that nobody waits for: there is room now.
            Some(_) => self.want(handle, piece),
            None => Want::Wait,
        }
    }

    fn take_oldest(&mut self, may: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let all = self.entries.iter_mut();
        let all = all.filter(|e| e.as_ref().is_some_and(&may));
        all.min_by_key(|e| e.map_or(0, |e| e.used))?.take()
    }

    /// Keys that no work request uses.
    pub fn idle(&self) -> usize {
        self.entries
            .iter()
            .flatten()
            .filter(|e| e.is_idle())
            .count()
    }

    /// Gives up the key that was used least recently, and is not in use, as another channel of the connection has none: send
    /// RETURN for this piece.
    pub fn give_up(&mut self) -> Option<(Handle, u64)> {
        let entry = self.take_oldest(Entry::is_idle)?;
        Some((entry.handle, entry.piece))
    }

    /// KEY has refused the piece for want of room, and it is to be asked for again.
    pub fn forget_refusal(&mut self, handle: Handle, piece: u64) {
        for place in &mut self.entries {
            let is_it = |e: &Entry| e.handle == handle && e.piece == piece;
            if place.is_some_and(|e| is_it(&e) && matches!(e.state, State::Refused(_))) {
                *place = None;
            }
        }
    }

    /// KEY has arrived.
    ///
    /// # Errors
    ///
    /// When it was not asked for.
    pub fn answered(
        &mut self,
        handle: Handle,
        piece: u64,
        key: Result<Key, Refusal>,
    ) -> Result<(), KeysError> {
        // It has been used later than others that were used while it was on its way.
        let clock = self.clock;
        match self.entry(handle, piece) {
            Some((_, entry)) if entry.state == State::Asked => {
                entry.used = clock;
                entry.state = match key {
                    Ok(key) => State::Has(key),
                    Err(refusal) => State::Refused(refusal),
                };
                self.readable = key.ok().map(|key| key.readable).or(self.readable);
                Ok(())
            }
            _ => Err(KeysError::NotAsked),
        }
    }

    /// Whether RDMA READ may be used on this connection, as far as is known: yes until a key has said no.
    pub const fn may_be_readable(&self) -> bool {
        !matches!(self.readable, Some(false))
    }

    /// A work request that used the key at the place has completed.
    pub fn done(&mut self, at: usize) {
        if let Some(Some(entry)) = self.entries.get_mut(at) {
            entry.uses = entry.uses.saturating_sub(1);
        }
    }

    fn is_revoked(&self, handle: Handle) -> bool {
        let mut all = self.entries.iter().flatten();
        all.any(|e| e.handle == handle && e.revoked)
    }

    /// REVOKE has arrived. Send RETURN for all of the handle if [`Keys::may_return`], else when it may.
    pub fn revoked(&mut self, handle: Handle) {
        for entry in self.entries.iter_mut().flatten() {
            // What was asked for will be refused: the peer grants nothing after REVOKE.
            if entry.handle == handle && matches!(entry.state, State::Has(_)) {
                entry.revoked = true;
            }
        }
    }

    /// Whether no work request uses a key of the handle. Then its keys are dropped, and RETURN must follow.
    #[must_use]
    pub fn may_return(&mut self, handle: Handle) -> bool {
        let of = |e: &Entry| e.handle == handle && matches!(e.state, State::Has(_));
        let mut all = self.entries.iter().flatten();
        if all.any(|e| of(e) && e.uses > 0) {
            return false;
        }
        for place in &mut self.entries {
            if matches!(place, Some(e) if of(e)) {
                *place = None;
            }
        }
        true
    }

    /// Whether no key of the peer is there, and none was asked for.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }

    /// The connection is lost, and its queue pair drained: there are no keys, and no work requests.
    pub fn lost(&mut self) {
        self.entries = [None; N];
        self.readable = None;
    }
}
