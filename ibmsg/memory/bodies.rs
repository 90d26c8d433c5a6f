// SPDX-License-Identifier: GPL-2.0

//! Bodies of messages: what this end has lent, and what its program has of the peer.

use ibmsg_proto::memory::{
    bodies::Receipt,
    BodyEnd,
    BodyError,
    BodyRef,
    Handle,
    Loan, //
};
use ibtrs_core::convert;
use ibtrs_proto::Errno;
use kernel::prelude::*;

use super::Memory;

impl Memory {
    /// Whether memory can be the body of a message.
    ///
    /// # Errors
    ///
    /// - [`ESTALE`]: the handle is not valid,
    /// - [`EACCES`]: it was not published for that, or is the body of a message already,
    /// - [`ERANGE`]: the body is not all of it.
    pub(crate) fn may_lend(&mut self, body: &BodyRef) -> Result {
        let slot = self.slot_of(body.handle).ok_or(ESTALE)?;
        // Of a copy, which changes nothing.
        let mut export = slot.export;
        let range = export.lend(body.handle);
        let range = range.map_err(|refusal| convert::error(refusal.errno()))?;
        match range == body.range {
            true => Ok(()),
            false => Err(ERANGE),
        }
    }

    /// Memory of which that was so is the body of a message with a tag.
    pub(crate) fn lend(&mut self, body: &BodyRef, tag: u64) {
        let Some(slot) = self.slot_of(body.handle) else {
            return;
        };
        if slot.export.lend(body.handle).is_ok() {
            slot.loan = Some(Loan::new(tag));
            self.lent += 1;
        }
    }

    /// The body with a handle, which this end has lent.
    fn loan_of(&mut self, handle: Handle) -> Option<&mut Loan> {
        let slot = self.slot_of(handle)?;
        let is_it = slot.export.handle() == handle;
        slot.loan.as_mut().filter(|_| is_it)
    }

    /// A message with a body was not delivered, or perhaps not. `may_have`: the peer's kernel has it, or may get it, and may
    /// release the body.
    pub(crate) fn body_ends(&mut self, handle: Handle, why: Errno, may_have: bool) {
        let Some(loan) = self.loan_of(handle) else {
            return;
        };
        loan.ends(BodyEnd::Message(why));
        if !may_have {
            loan.not_sent();
        }
        let _ = self.unmap(handle);
        // Nothing else may happen on the channel by which that would be looked at.
        self.due = Some(0);
    }

    /// SKIP takes the place of a message with a body.
    pub(crate) fn body_is_skipped(&mut self, handle: Handle) {
        if let Some(loan) = self.loan_of(handle) {
            loan.not_sent();
        }
    }

    /// The owner of a body takes it back.
    pub(super) fn body_is_taken_back(&mut self, handle: Handle) {
        if let Some(loan) = self.loan_of(handle) {
            loan.ends(BodyEnd::TakenBack);
        }
    }

    /// The peer has released a body.
    ///
    /// # Errors
    ///
    /// When it does not have that.
    pub(crate) fn body_is_released(&mut self, handle: Handle) -> Result<(), BodyError> {
        let loan = self.loan_of(handle).ok_or(BodyError::Unknown)?;
        loan.released()?;
        // Unless it is being unmapped already.
        let _ = self.unmap(handle);
        Ok(())
    }

    /// All bodies end: this end was closed for the reason `why`, or if `is_over`, nothing of the peer follows.
    pub(crate) fn bodies_end(&mut self, is_over: bool, why: BodyEnd) {
        if self.lent == 0 {
            return;
        }
        for loan in self
            .exports
            .iter_mut()
            .filter_map(|slot| slot.loan.as_mut())
        {
            match is_over {
                true => loan.over(),
                false => loan.ends(why),
            }
        }
    }

    /// The next receipt that the program is to have. Slots of which nothing more is to be known are free.
    pub(crate) fn next_receipt(&mut self) -> Option<Receipt> {
        if self.lent == 0 {
            return None;
        }
        let mut receipt = None;
        for slot in &mut self.exports {
            let Some(loan) = &mut slot.loan else {
                continue;
            };
            receipt = receipt.or_else(|| loan.receipt());
            if loan.is_done() {
                slot.loan = None;
                self.lent -= 1;
            }
        }
        receipt
    }

    /// How many bodies have no receipt, or are with the peer.
    pub(crate) fn lent(&self) -> usize {
        self.lent
    }

    /// Whether the program has receipts to come.
    pub(crate) fn owes_receipts(&self) -> bool {
        let mut loans = self.exports.iter().filter_map(|slot| slot.loan.as_ref());
        self.lent > 0 && loans.any(Loan::owes_receipt)
    }

    /// A message with a body was queued for the program.
    ///
    /// # Errors
    ///
    /// When the peer has broken the rules.
    pub(crate) fn body_arrived(&mut self, handle: Handle) -> Result<(), BodyError> {
        self.held.arrived(handle)
    }

    /// Whether the program has a body of the peer.
    pub(crate) fn holds(&self, handle: Handle) -> bool {
        self.held.holds(handle)
    }

    /// The program releases a body of the peer.
    pub(crate) fn release_body(&mut self, handle: Handle) {
        let _ = self.held.release(handle);
    }
}
