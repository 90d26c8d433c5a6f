// SPDX-License-Identifier: GPL-2.0

//! GET: by RDMA READ, or as a push of the peer's kernel.
//!
//! RDMA READ needs devices at both ends that lose none of its bytes. The asker knows its own device; the owner's kernel
//! says with each key whether its device is one ([`super::Key::readable`]). A GET for whose key there is no place, or for
//! which either side has no resources, is a push as well: it needs no key of the peer.
//!
//! A READ is not ordered before what is sent after it: the peer's device may answer it when the peer's kernel has taken a
//! later record. So RETURN, and whatever else lets the peer's kernel invalidate keys, is sent when no READ is under way
//! ([`Get::is_reading`]).
//!
//! A GET changes nothing at the peer, so it is repeated from its beginning after a move. What lands in the
//! asker's own memory is fenced by the asker alone: its queue pair is drained, or the landing key is
//! invalidated, before the GET is repeated or ends. So its outcome is always certain.

use super::keys::{Access, Wish};
use super::range::{Handle, Range, Refusal, Rights, MAX_WORK};
use super::Keys;

/// Whether a GET may be an RDMA READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// This side's device may not be trusted with it, or nothing new is to begin.
    No,
    /// When others have had their turn.
    Later,
    /// Now, with a key that is there: the peer is short of regions.
    WithKey,
    /// Now.
    Now,
}

/// What to do next for a GET.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GetStep {
    /// Send ASK for this piece.
    Ask(u64),
    /// Send RETURN for this piece of this handle, and ask again.
    Return(Handle, u64),
    /// Map this part of the program's buffer for a READ: [`Get::mapped`], or [`Get::not_mapped`].
    Map {
        /// Offsets of the memory.
        part: Range,
        /// The first byte's place in the program's buffer.
        to: u64,
    },
    /// Post a READ to what was mapped last: [`Get::completed`] with `place` when it has completed.
    Read {
        /// Offsets of the memory.
        part: Range,
        /// The first byte's place in the program's buffer.
        to: u64,
        /// The key.
        rkey: u32,
        /// The address for it.
        addr: u64,
        /// For [`Keys::done`].
        place: usize,
    },
    /// Register the landing zone and send the record GET with these offsets and this number.
    Request {
        /// Offsets of the memory.
        part: Range,
        /// The first byte's place in the program's buffer.
        to: u64,
        /// The number.
        id: u32,
    },
    /// Invalidate the landing key; [`Get::invalidated`] when that has completed.
    Invalidate,
    /// Nothing now.
    Wait,
    /// It has ended, and nothing lands any more.
    Ended(Option<Refusal>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Landing {
    None,
    /// Of a READ: it is being mapped.
    Mapping,
    /// Of a READ: it is mapped.
    Mapped,
    /// GET was sent.
    Open(u32),
    /// GOT has arrived, and the key is still valid.
    Landed,
    /// LOCAL_INV was posted.
    Closing,
}

/// A GET.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Get {
    handle: Handle,
    range: Range,
    at: u64,
    posted: u32,
    landing: Landing,
    /// It is not read on this connection.
    is_pushed: bool,
    refused: Option<Refusal>,
}

impl Get {
    /// A GET from these offsets.
    pub const fn new(handle: Handle, range: Range) -> Self {
        Self {
            handle,
            range,
            at: 0,
            posted: 0,
            landing: Landing::None,
            is_pushed: false,
            refused: None,
        }
    }

    /// The memory.
    pub const fn handle(&self) -> Handle {
        self.handle
    }

    /// Whether a record GET is unanswered; it counts against [`super::MemoryTerms::pushes`].
    pub const fn is_requested(&self) -> bool {
        matches!(self.landing, Landing::Open(_))
    }

    /// The number of the record GET that is unanswered.
    pub const fn unanswered(&self) -> Option<u32> {
        match self.landing {
            Landing::Open(id) => Some(id),
            _ => None,
        }
    }

    /// Whether bytes may be on their way. A channel may leave a connection that works only if no GET of it says so.
    pub const fn is_posted(&self) -> bool {
        self.posted > 0
            || matches!(
                self.landing,
                Landing::Open(_) | Landing::Landed | Landing::Closing
            )
    }

    /// Whether a READ is under way.
    pub const fn is_reading(&self) -> bool {
        self.posted > 0
    }

    /// What to do next, while the channel's [`crate::channel::Channel::conn`] has a connection. `id`: a number for the
    /// record that no other has on this connection; `None` while the peer executes as many GETs as it may. A GET that is to
    /// begin nothing new has none, and [`Reading::No`].
    pub fn step<const N: usize>(
        &mut self,
        keys: &mut Keys<N>,
        id: Option<u32>,
        reading: Reading,
    ) -> GetStep {
        match self.landing {
            Landing::Open(_) | Landing::Closing | Landing::Mapping => return GetStep::Wait,
            Landing::Landed => {
                self.landing = Landing::Closing;
                return GetStep::Invalidate;
            }
            Landing::None | Landing::Mapped => {}
        }
        let ends = self.refused.is_some();
        let Some((piece, part)) = self.range.work(self.at).filter(|_| !ends) else {
            return match self.posted {
                0 => GetStep::Ended(self.refused),
                _ => GetStep::Wait,
            };
        };
        match reading {
            _ if self.is_pushed || !keys.may_be_readable() => self.request(part, id),
            Reading::No => self.request(part, id),
            Reading::Later => GetStep::Wait,
            Reading::WithKey => self.read(keys, (piece, part), id, Wish::Have),
            Reading::Now => self.read(keys, (piece, part), id, Wish::Ask),
        }
    }

    fn read<const N: usize>(
        &mut self,
        keys: &mut Keys<N>,
        (piece, part): (u64, Range),
        id: Option<u32>,
        wish: Wish,
    ) -> GetStep {
        let read = Rights {
            read: true,
            write: false,
        };
        match keys.access(self.handle, &self.range, (piece, &part), read, wish) {
            Access::At {
                place,
                readable: false,
                ..
            } => {
                keys.done(place);
                self.request(part, id)
            }
            Access::At { place, .. } if self.landing != Landing::Mapped => {
                keys.done(place);
                self.landing = Landing::Mapping;
                GetStep::Map { part, to: self.at }
            }
            Access::At {
                rkey, addr, place, ..
            } => {
                let to = self.at;
                self.at = self.at.saturating_add(part.len());
                self.posted = self.posted.saturating_add(1);
                self.landing = Landing::None;
                GetStep::Read {
                    part,
                    to,
                    rkey,
                    addr,
                    place,
                }
            }
            Access::Ask(piece) => GetStep::Ask(piece),
            Access::Return(handle, piece) => GetStep::Return(handle, piece),
            Access::Full | Access::Refused(Refusal::Resources) => {
                self.is_pushed = true;
                self.request(part, id)
            }
            Access::Wait => GetStep::Wait,
            Access::Refused(refusal) => self.refuse(refusal),
        }
    }

    fn request(&mut self, first: Range, id: Option<u32>) -> GetStep {
        let Some(id) = id else {
            return GetStep::Wait;
        };
        let left = self.range.end().saturating_sub(first.start());
        let part = Range::new(first.start(), left.min(u64::from(MAX_WORK))).unwrap_or(first);
        let to = self.at;
        self.at = self.at.saturating_add(part.len());
        self.landing = Landing::Open(id);
        GetStep::Request { part, to, id }
    }

    fn refuse(&mut self, refusal: Refusal) -> GetStep {
        self.refused = Some(refusal);
        match self.posted {
            0 => GetStep::Ended(self.refused),
            _ => GetStep::Wait,
        }
    }

    /// The part that [`GetStep::Map`] names is mapped.
    pub fn mapped(&mut self) {
        if self.landing == Landing::Mapping {
            self.landing = Landing::Mapped;
        }
    }

    /// The part that [`GetStep::Map`] names cannot be mapped, or is not mapped any more: it is pushed.
    pub fn not_mapped(&mut self) {
        if matches!(self.landing, Landing::Mapping | Landing::Mapped) {
            self.landing = Landing::None;
            self.is_pushed = true;
        }
    }

    /// The peer has no room for the key of a piece: a GET that wants it next is a push.
    pub fn has_no_room(&mut self, handle: Handle, piece: u64) {
        let next = self.range.work(self.at).map(|(piece, _)| piece);
        self.is_pushed |= self.handle == handle && next == Some(piece);
    }

    /// A GET that begins nothing new has no landing zone any more, and awaits no answer. It ends when no
    /// [READ](Self::is_reading) is under way.
    pub fn abandoned(&mut self) {
        self.landing = Landing::None;
    }

    /// A READ has completed.
    pub fn completed<const N: usize>(&mut self, keys: &mut Keys<N>, place: usize) {
        self.posted = self.posted.saturating_sub(1);
        keys.done(place);
    }

    /// GOT has arrived with the number `id`. Returns `false` if it is for another GET: one that no GET takes is
    /// [`super::keys::KeysError::NoGet`].
    #[must_use]
    pub fn got(&mut self, id: u32, refused: Option<Refusal>) -> bool {
        if self.landing != Landing::Open(id) {
            return false;
        }
        self.landing = Landing::Landed;
        self.refused = self.refused.or(refused);
        true
    }

    /// The landing key is invalid.
    pub fn invalidated(&mut self) {
        if self.landing == Landing::Closing {
            self.landing = Landing::None;
        }
    }

    /// The connection is lost, and its queue pair drained, so the landing key is invalid. All of it is read again.
    pub fn lost(&mut self) {
        (self.at, self.posted) = (0, 0);
        self.landing = Landing::None;
        self.is_pushed = false;
    }
}
