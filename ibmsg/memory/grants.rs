// SPDX-License-Identifier: GPL-2.0

//! What the peer asks for: keys of this side's memory, and pushes of it.

use ibmsg_proto::{
    memory::{
        export::Unmapping,
        GrantError,
        Handle,
        Key,
        Range,
        Refusal,
        Rights, //
    },
    wire::{
        Ask,
        Get,
        Got,
        KeyRecord,
        MemoryRecord,
        Return, //
    }, //
};
use ibtrs_core::messages::memory::{
    Access,
    Device,
    Region,
    Remote,
    Source, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::user::UserPages;

use super::{
    patience::Patience,
    refusal_of,
    Cookie,
    Job,
    Memory,
    Refused,
    MAX_PUSHES,
    PAUSE_US,
    PUSHES, //
};

/// A place for a key of the peer, with the number that [`ibmsg_proto::memory::Granted`] gives it.
pub(super) enum Place {
    Free,
    /// It is to be registered.
    Wanted(Handle, u64),
    /// It is being registered; whether the peer may still have it.
    Busy(Handle, u64, bool),
    /// The peer has it.
    Has(Region),
    /// It is being invalidated.
    Ending,
}

/// A push of memory to the peer.
pub(super) struct Push {
    pub(super) number: u32,
    /// The peer's number.
    id: u32,
    pub(super) handle: Handle,
    part: Range,
    to: Remote,
    state: PushState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PushState {
    /// Its memory is to be mapped.
    Wanted,
    Busy,
    /// It is being written, and was answered.
    Written,
}

/// The first byte of a part among the pages of its range.
fn place_in(range: &Range, part: &Range) -> Result<usize> {
    let at = part.start().checked_sub(range.start()).ok_or(EINVAL)?;
    Ok(usize::try_from(at)?)
}

impl Memory {
    fn answer(&mut self, handle: Handle, piece: u64, key: Result<Key, Refusal>) {
        self.queue_answer(MemoryRecord::Key(KeyRecord {
            channel: self.channel,
            handle,
            piece,
            key,
        }));
    }

    /// ASK has arrived.
    pub(super) fn asked(&mut self, ask: &Ask) -> Result<(), Refused> {
        self.may_ask()?;
        let slot = self.slot_of(ask.handle);
        let key = slot.map_or(Err(Refusal::Stale), |slot| {
            slot.export.key(ask.handle, ask.piece)
        });
        if let Err(refusal) = key {
            self.answer(ask.handle, ask.piece, Err(refusal));
            return Ok(());
        }
        let granted = self.granted.grant(ask.handle, ask.piece);
        let at = granted.map_err(|e| Refused::Breach(e.as_str()))?;
        // One that was returned is not invalid yet.
        let at = at.ok_or(Refused::Later)?;
        if let Some(slot) = self.slot_of(ask.handle) {
            slot.export.granted();
        }
        if let Some(place) = self.places.get_mut(at) {
            *place = Place::Wanted(ask.handle, ask.piece);
        }
        Ok(())
    }

    /// RETURN has arrived.
    pub(super) fn returned(&mut self, back: &Return, device: &dyn Device) -> Result<(), Refused> {
        let Some(slot) = self.slot_of(back.handle) else {
            return Err(Refused::Breach(GrantError::NotGranted.as_str()));
        };
        match back.piece {
            None => {
                // Once: what comes later is no progress.
                let is_asked = slot.export.unmapping() == Unmapping::Tell;
                if is_asked && slot.export.handle() == back.handle {
                    slot.patience = Patience::new();
                }
                slot.export.returned(back.handle);
            }
            Some(piece) => {
                let is_live = slot.export.live(back.handle).is_ok();
                let at = self.granted.returned(back.handle, piece, is_live);
                if let Some(at) = at.map_err(|e| Refused::Breach(e.as_str()))? {
                    self.end_key(at, Some(device));
                }
            }
        }
        Ok(())
    }

    /// A handle is revoked: those who have asked for a key of it and have no answer get none, nor do those who have asked
    /// for a push that has not begun.
    pub(super) fn refuse_askers(&mut self, handle: Handle) {
        let is_it = |push: &Push| push.handle == handle && push.state == PushState::Wanted;
        while let Some(at) = self.pushes.iter().position(is_it) {
            if let Ok(push) = self.pushes.remove(at) {
                self.push_has_ended(handle);
                self.got_record(push.id, Some(Refusal::Stale));
            }
        }
        for at in 0..self.places.len() {
            let piece = match self.places.get_mut(at) {
                Some(Place::Wanted(of, piece)) if *of == handle => *piece,
                Some(Place::Busy(of, piece, may @ true)) if *of == handle => {
                    *may = false;
                    *piece
                }
                _ => continue,
            };
            self.answer(handle, piece, Err(Refusal::Stale));
            if let Some(place @ Place::Wanted(..)) = self.places.get_mut(at) {
                *place = Place::Ending;
                self.granted.end(at);
                self.key_is_invalid(at);
            }
        }
    }

    /// Invalidates all keys of a handle.
    pub(super) fn end_keys(&mut self, handle: Handle, device: Option<&dyn Device>) {
        // Without its connection, they end with that.
        if device.is_none() {
            return;
        }
        while let Some(at) = self.granted.end_next(handle) {
            self.end_key(at, device);
        }
    }

    /// Invalidates the key at a place, which is ending.
    fn end_key(&mut self, at: usize, device: Option<&dyn Device>) {
        let cookie = Cookie::Key(at).to_bits(self.channel);
        let Some(place) = self.places.get_mut(at) else {
            return;
        };
        match core::mem::replace(place, Place::Ending) {
            Place::Has(region) => {
                if let Some(device) = device {
                    device.invalidate(region, cookie);
                }
            }
            Place::Wanted(..) => self.key_is_invalid(at),
            Place::Busy(handle, piece, _) => *place = Place::Busy(handle, piece, false),
            Place::Free | Place::Ending => {}
        }
    }

    /// The key at a place is invalid.
    pub(super) fn key_is_invalid(&mut self, at: usize) {
        if let Some(handle) = self.granted.invalidated(at) {
            if let Some(slot) = self.slot_of(handle) {
                slot.export.invalidated();
            }
        }
        if let Some(place) = self.places.get_mut(at) {
            *place = Place::Free;
        }
    }

    /// GET has arrived.
    pub(super) fn asked_to_push(&mut self, get: &Get) -> Result<(), Refused> {
        const READ: Rights = Rights {
            read: true,
            write: false,
        };
        self.may_ask()?;
        let waiting = self.pushes.iter();
        let waiting = waiting.filter(|push| push.state != PushState::Written);
        if waiting.count() >= usize::from(PUSHES) {
            return Err(Refused::Breach(GrantError::TooManyGets.as_str()));
        }
        if self.pushes.len() >= MAX_PUSHES {
            return Err(Refused::Later);
        }
        // The record has been checked: it is not empty.
        let part = Range::new(get.offset, u64::from(get.len)).ok_or(Refused::Later)?;
        let slot = self.slot_of(get.handle);
        let checked = slot.map_or(Err(Refusal::Stale), |slot| {
            slot.export.check(get.handle, &part, READ)?;
            slot.export.push_begins();
            Ok(())
        });
        if let Err(refusal) = checked {
            self.got_record(get.id, Some(refusal));
            return Ok(());
        }
        let push = Push {
            number: self.next_number(),
            id: get.id,
            handle: get.handle,
            part,
            to: Remote {
                addr: get.addr,
                rkey: get.rkey,
            },
            state: PushState::Wanted,
        };
        // There is a place.
        let _ = self.pushes.push_within_capacity(push);
        Ok(())
    }

    fn got_record(&mut self, id: u32, refused: Option<Refusal>) {
        self.queue_answer(MemoryRecord::Got(Got {
            channel: self.channel,
            id,
            refused,
        }));
    }

    /// A push has been written.
    pub(super) fn pushed(&mut self, number: u32) {
        let at = self.pushes.iter().position(|push| push.number == number);
        if let Some(Ok(push)) = at.map(|at| self.pushes.remove(at)) {
            self.push_has_ended(push.handle);
        }
    }

    fn push_has_ended(&mut self, handle: Handle) {
        if let Some(slot) = self.slot_of(handle) {
            slot.export.push_ended();
        }
    }

    /// Whether there is a key to be registered.
    pub(super) fn wants_key(&self) -> bool {
        let mut places = self.places.iter();
        places.any(|place| matches!(place, Place::Wanted(..)))
    }

    /// Whether there is memory to be mapped.
    pub(super) fn wants_push(&self) -> bool {
        let mut pushes = self.pushes.iter();
        pushes.any(|push| push.state == PushState::Wanted)
    }

    /// The next registration for the peer.
    pub(super) fn job_of_key(&mut self) -> Option<Job> {
        for at in 0..self.places.len() {
            let Some(Place::Wanted(handle, piece)) = self.places.get(at) else {
                continue;
            };
            let (handle, piece) = (*handle, *piece);
            let era = self.era;
            let job = self.slot_of(handle).and_then(|slot| {
                let (range, rights, part) = slot.export.key(handle, piece).ok()?;
                Some(Job::Register {
                    era,
                    at,
                    pages: slot.pages.clone()?,
                    from: place_in(&range, &part).ok()?,
                    len: usize::try_from(part.len()).ok()?,
                    access: match rights {
                        Rights { write: false, .. } => Access::RemoteRead,
                        Rights { read: false, .. } => Access::RemoteWrite,
                        _ => Access::RemoteReadWrite,
                    },
                    key: (range, rights),
                })
            });
            if let (Some(place), Some(job)) = (self.places.get_mut(at), job) {
                *place = Place::Busy(handle, piece, true);
                return Some(job);
            }
        }
        None
    }

    /// The next mapping for the peer.
    pub(super) fn job_of_push(&mut self) -> Option<Job> {
        let mut pushes = self.pushes.iter();
        let at = pushes.position(|push| push.state == PushState::Wanted)?;
        let era = self.era;
        let push = self.pushes.get_mut(at)?;
        push.state = PushState::Busy;
        let (number, handle, part) = (push.number, push.handle, push.part);
        let slot = self.slot_of(handle)?;
        let (pages, range): (Arc<UserPages>, Range) = (slot.pages.clone()?, slot.range?);
        Some(Job::MapPush {
            era,
            number,
            pages,
            from: place_in(&range, &part).ok()?,
            len: usize::try_from(part.len()).ok()?,
        })
    }

    /// A key was registered, or not.
    pub(super) fn registered(
        &mut self,
        at: usize,
        (range, rights): (Range, Rights),
        region: Result<Region>,
        device: &dyn Device,
        now: u64,
    ) {
        let Some(place) = self.places.get_mut(at) else {
            return;
        };
        let Place::Busy(handle, piece, may) = *place else {
            return;
        };
        match region {
            Ok(region) if may => {
                let Remote { addr, rkey } = region.remote();
                *place = Place::Has(region);
                let key = Key {
                    rkey,
                    addr,
                    range,
                    rights,
                    readable: self.peer_knows_reads && device.is_readable(),
                };
                self.answer(handle, piece, Ok(key));
            }
            Ok(region) => {
                *place = Place::Ending;
                self.granted.end(at);
                device.invalidate(region, Cookie::Key(at).to_bits(self.channel));
            }
            // There is no room in the queue, or the connection is being lost: it is tried again, on
            // the channel's next connection in the second case.
            Err(EAGAIN | ENOTCONN | EIO) if may => {
                *place = Place::Wanted(handle, piece);
                self.pause = Some(now + PAUSE_US);
            }
            Err(e) => {
                *place = Place::Ending;
                self.granted.end(at);
                self.key_is_invalid(at);
                if may {
                    self.answer(handle, piece, Err(refusal_of(e)));
                }
            }
        }
    }

    /// The memory of a push is mapped, or not.
    pub(super) fn push_is_mapped(
        &mut self,
        number: u32,
        source: Result<Source>,
        device: &dyn Device,
    ) {
        let mut pushes = self.pushes.iter_mut();
        let Some(push) = pushes.find(|push| push.number == number) else {
            return;
        };
        let (id, handle) = (push.id, push.handle);
        let slot = self.exports.get(usize::from(handle.slot()));
        let is_live = slot.is_some_and(|slot| slot.export.live(handle).is_ok());
        match source {
            // The peer may have been told that nothing follows, and may have invalidated its key.
            Ok(_) if !is_live => {
                self.pushed(number);
                self.got_record(id, Some(Refusal::Stale));
            }
            Ok(source) => {
                push.state = PushState::Written;
                let cookie = Cookie::Push(number).to_bits(self.channel);
                // CAST: At most a piece.
                let len = push.part.len() as usize;
                device.write(&source, 0, len, push.to, cookie);
                // Behind what was written.
                self.got_record(id, None);
            }
            Err(e) => {
                self.pushed(number);
                self.got_record(id, Some(refusal_of(e)));
            }
        }
    }
}
