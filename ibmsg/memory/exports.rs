// SPDX-License-Identifier: GPL-2.0

//! What this end publishes, and how that ends.

use ibmsg_proto::{
    memory::{
        export::Unmapping,
        Export,
        Handle,
        Loan,
        Range,
        Rights,
        Unmap, //
    },
    wire::{
        MemoryRecord,
        Revoke, //
    }, //
};
use ibtrs_core::messages::memory::Device;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use kx::user::UserPages;

use super::{
    patience::{
        Course,
        Patience, //
    },
    Memory,
    MAX_EXPORTS, //
};
use crate::limits::Published;

/// Number of handles that were given, on all channels: what is still done with a handle of a channel that has gone finds
/// no other memory on a channel of the same number.
static GIVEN: Atomic<u64> = Atomic::new(0);

/// A place for memory that is published.
pub(super) struct Slot {
    pub(super) export: Export,
    /// The range, of which the pages are.
    pub(super) range: Option<Range>,
    /// Until nothing can reach them any more.
    pub(super) pages: Option<Arc<UserPages>>,
    /// They count in the accounts of the channel until then.
    counted: Option<Published>,
    /// REVOKE was sent on this connection.
    pub(super) is_told: bool,
    /// For keys, pushes, and invalidations, when the handle is revoked.
    pub(super) patience: Patience,
    /// The memory is, or was, the body of a message.
    pub(super) loan: Option<Loan>,
}

impl Slot {
    /// Whether something else can be published here. The peer names what it releases by the handle.
    fn is_free(&self) -> bool {
        self.pages.is_none() && self.loan.is_none()
    }

    /// Whether there is something to take back: pages, or a body whose receipt the program does not have.
    fn is_to_take_back(&self) -> bool {
        self.pages.is_some() || self.loan.as_ref().is_some_and(Loan::owes_receipt)
    }

    /// Whether REVOKE is to be sent.
    pub(super) fn is_to_tell(&self) -> bool {
        !self.is_told && self.export.is_revoked() && self.export.unmapping() == Unmapping::Tell
    }
}

impl Memory {
    /// The slot of a handle, whether or not that is valid.
    pub(super) fn slot_of(&mut self, handle: Handle) -> Option<&mut Slot> {
        self.exports.get_mut(usize::from(handle.slot()))
    }

    /// Publishes pages as a range.
    ///
    /// # Errors
    ///
    /// [`ENOBUFS`]: there are as many as there may be.
    pub(crate) fn publish(
        &mut self,
        range: Range,
        rights: Rights,
        (pages, counted): (Arc<UserPages>, Option<Published>),
    ) -> Result<Handle> {
        let (slot, handle) = self.publish_range(range, rights)?;
        (slot.pages, slot.counted) = (Some(pages), counted);
        Ok(handle)
    }

    /// The same, but for the pages.
    pub(super) fn publish_range(
        &mut self,
        range: Range,
        rights: Rights,
    ) -> Result<(&mut Slot, Handle)> {
        let free = self.exports.iter().position(Slot::is_free);
        let at = match free {
            Some(at) => at,
            None => {
                let at = self.exports.len();
                if at >= MAX_EXPORTS {
                    return Err(ENOBUFS);
                }
                let slot = Slot {
                    export: Export::new(u16::try_from(at)?),
                    range: None,
                    pages: None,
                    counted: None,
                    is_told: false,
                    patience: Patience::new(),
                    loan: None,
                };
                self.exports
                    .push_within_capacity(slot)
                    .map_err(|_| ENOBUFS)?;
                at
            }
        };
        let slot = self.exports.get_mut(at).ok_or(ENOBUFS)?;
        let number = GIVEN.fetch_add(1, Relaxed);
        let handle = slot.export.publish_as(range, rights, number);
        let handle = handle.ok_or(ENOBUFS)?;
        slot.range = Some(range);
        (slot.is_told, slot.patience) = (false, Patience::new());
        Ok((slot, handle))
    }

    /// The owner of a handle takes it back. The handle may be revoked already, by another task, the release or the end of a
    /// body, or the end of the channel; the peer may still reach the pages then, and the owner waits for them.
    ///
    /// # Errors
    ///
    /// [`ESTALE`]: no memory has this handle any more.
    pub(crate) fn take_back(&mut self, handle: Handle) -> Result {
        let slot = self.slot_of(handle);
        let is_its = |slot: &&mut Slot| slot.export.handle() == handle && slot.is_to_take_back();
        let slot = slot.filter(is_its).ok_or(ESTALE)?;
        slot.export.revoke(Unmap::Gently);
        self.refuse_askers(handle);
        self.body_is_taken_back(handle);
        Ok(())
    }

    /// Begins to take a handle back. [`Memory::advance`] goes on with it.
    ///
    /// # Errors
    ///
    /// [`ESTALE`]: the handle is not valid.
    pub(super) fn unmap(&mut self, handle: Handle) -> Result {
        let slot = self.slot_of(handle);
        let slot = slot.filter(|slot| slot.export.live(handle).is_ok());
        let slot = slot.ok_or(ESTALE)?;
        slot.export.revoke(Unmap::Gently);
        self.refuse_askers(handle);
        Ok(())
    }

    /// Takes a handle back at once, if its pages are still there.
    pub(crate) fn owner_exits(&mut self, handle: Handle) {
        let slot = self.slot_of(handle);
        if let Some(slot) =
            slot.filter(|slot| slot.pages.is_some() && slot.export.handle() == handle)
        {
            slot.export.revoke(Unmap::Now);
            self.refuse_askers(handle);
            self.body_is_taken_back(handle);
        }
    }

    /// Whether the pages of a handle are free.
    pub(crate) fn is_free(&mut self, handle: Handle) -> bool {
        let slot = self.slot_of(handle);
        slot.is_none_or(|slot| slot.export.handle() != handle || slot.pages.is_none())
    }

    /// REVOKE for the next handle that is to be returned. `counts`: it was sent.
    pub(super) fn next_revoke(&mut self, counts: bool) -> Option<MemoryRecord> {
        let slot = self.exports.iter_mut().find(|slot| slot.is_to_tell())?;
        slot.is_told = counts;
        Some(MemoryRecord::Revoke(Revoke {
            channel: self.channel,
            handle: slot.export.handle(),
        }))
    }

    /// Goes on with what is being taken back. Returns whether pages were given back.
    pub(super) fn advance_exports(
        &mut self,
        device: Option<&dyn Device>,
        is_ending: bool,
        is_over: bool,
        course: &mut Course,
    ) -> bool {
        let mut has_freed = false;
        for at in 0..self.exports.len() {
            let Some(slot) = self.exports.get_mut(at) else {
                break;
            };
            if slot.pages.is_none() {
                continue;
            }
            let handle = slot.export.handle();
            if is_over {
                slot.export.revoke(Unmap::Now);
            } else if is_ending {
                slot.export.revoke(Unmap::Gently);
            }
            if !slot.export.is_revoked() {
                continue;
            }
            if is_ending || is_over {
                self.refuse_askers(handle);
            }
            has_freed |= self.go_on_with(at, device, course);
        }
        has_freed
    }

    /// Goes on with one slot, which is revoked. Returns whether its pages were given back.
    fn go_on_with(&mut self, at: usize, device: Option<&dyn Device>, course: &mut Course) -> bool {
        let Some(slot) = self.exports.get_mut(at) else {
            return false;
        };
        let handle = slot.export.handle();
        let mut what = slot.export.unmapping();
        match what {
            Unmapping::Done => {}
            Unmapping::Tell => {
                if course.is_peer_late(&mut slot.patience) {
                    what = slot.export.revoke(Unmap::Now);
                    course.turn_to_device(&mut slot.patience);
                }
            }
            _ => course.wait_for_device(&mut slot.patience),
        }
        if what == Unmapping::Invalidate {
            self.end_keys(handle, device);
        }
        let Some(slot) = self.exports.get_mut(at) else {
            return false;
        };
        let is_free = slot.export.free();
        if is_free {
            (slot.pages, slot.range, slot.counted) = (None, None, None);
            if let Some(loan) = &mut slot.loan {
                loan.freed();
            }
        }
        is_free
    }
}
