// SPDX-License-Identifier: GPL-2.0

//! Requests and replies of a channel.

use ibmsg_proto::{
    call::{
        Answer,
        CallError,
        CallId,
        CalleeSlot,
        CallerSlot, //
    },
    outcome::{
        CallOutcome,
        Cause, //
    },
    Outcome,
    Seq, //
};
use kernel::prelude::*;

use super::inbox::Notice;

/// A call of the program.
pub(crate) struct Call {
    slot: CallerSlot,
    id: CallId,
    tag: u64,
    deadline: Option<u64>,
    /// The number of the request, once the peer's kernel has queued it.
    queued: Option<Seq>,
    /// The program waits for the reply.
    is_waiting: bool,
}

/// The calls in both directions.
pub(crate) struct Calls {
    made: KVec<Call>,
    taken: KVec<CalleeSlot>,
}

impl Calls {
    pub(crate) const fn new() -> Self {
        Self {
            made: KVec::new(),
            taken: KVec::new(),
        }
    }

    /// Slots for requests that may come, at most `calls` at a time.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn slots(calls: u16) -> Result<KVec<CalleeSlot>> {
        let slots = KVec::from_elem(
            CalleeSlot::default(),
            usize::from(calls),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(slots)
    }

    /// Takes these slots for requests.
    pub(crate) fn serve(&mut self, slots: KVec<CalleeSlot>) {
        self.taken = slots;
    }

    /// For how many calls there must be memory so that another one can be made, of which `most` may be
    /// unanswered; none if there is enough, or a call cannot be made.
    pub(crate) fn lack(&self, most: u16) -> Option<usize> {
        let (len, most) = (self.made.len(), usize::from(most));
        let is_full = len == self.made.capacity() && len < most;
        let lacks = is_full && !self.made.iter().any(|call| call.slot.is_free());
        lacks.then(|| most.min((2 * len).max(8)))
    }

    /// Takes memory for calls. What is left in `made` is not needed.
    pub(crate) fn extend(&mut self, made: &mut KVec<Call>) {
        if made.capacity() <= self.made.capacity() {
            return;
        }
        let mut old = core::mem::replace(&mut self.made, KVec::new());
        for call in old.drain_all() {
            let _ = made.push_within_capacity(call);
        }
        self.made = core::mem::replace(made, old);
    }

    /// Makes a call, of which at most `most` may be unanswered. Returns its id.
    ///
    /// # Errors
    ///
    /// [`EOPNOTSUPP`] if the peer answers none, [`EAGAIN`] if there are too many, [`ENOMEM`] if there is no
    /// memory before [`Calls::extend`].
    pub(crate) fn make(&mut self, most: u16, tag: u64, deadline: Option<u64>) -> Result<u64> {
        if most == 0 {
            return Err(EOPNOTSUPP);
        }
        let at = match self.made.iter().position(|call| call.slot.is_free()) {
            Some(at) => at,
            None => {
                let slot = u16::try_from(self.made.len()).map_err(|_| EAGAIN)?;
                if slot >= most {
                    return Err(EAGAIN);
                }
                let call = Call {
                    slot: CallerSlot::new(slot),
                    id: CallId::from_wire(0),
                    tag: 0,
                    deadline: None,
                    queued: None,
                    is_waiting: false,
                };
                self.made.push_within_capacity(call).map_err(|_| ENOMEM)?;
                usize::from(slot)
            }
        };
        let call = self.made.get_mut(at).ok_or(EAGAIN)?;
        call.id = call.slot.call().ok_or(EAGAIN)?;
        (call.tag, call.deadline, call.queued) = (tag, deadline, None);
        call.is_waiting = true;
        Ok(call.id.to_wire())
    }

    fn find(&mut self, id: CallId) -> Option<&mut Call> {
        self.made.get_mut(usize::from(id.slot()))
    }

    fn current(&mut self, id: u64) -> Option<&mut Call> {
        let id = CallId::from_wire(id);
        self.find(id).filter(|call| call.id == id)
    }

    /// The call ends without an answer, with this outcome of its request. None if it has ended before.
    pub(crate) fn abandon(&mut self, id: u64, request: Outcome) -> Option<CallOutcome> {
        let call = self.current(id)?;
        call.is_waiting = false;
        call.slot.abandon(request)
    }

    /// The peer's kernel has queued the request.
    pub(crate) fn queued(&mut self, id: u64, number: Option<Seq>) {
        if let Some(call) = self.current(id) {
            call.queued = number;
        }
    }

    /// SKIP takes the place of the request.
    pub(crate) fn skipped(&mut self, id: u64) {
        if let Some(call) = self.current(id) {
            call.slot.skipped(CallId::from_wire(id));
        }
    }

    /// A reply has arrived. Returns the tag of the request if the program waits for it.
    ///
    /// # Errors
    ///
    /// When there is no such call.
    pub(crate) fn reply(&mut self, id: u64) -> Result<Option<u64>, CallError> {
        let id = CallId::from_wire(id);
        let call = self.find(id).ok_or(CallError::NoCall(id))?;
        let answer = call.slot.reply(id)?;
        call.is_waiting = false;
        Ok(match answer {
            Answer::Program => Some(call.tag),
            Answer::Late => None,
        })
    }

    /// Ends the next call, from the place `from` on, whose request is queued: one whose request the peer's
    /// program has not taken before `taken`; without that, any. Returns what to tell.
    pub(crate) fn end(
        &mut self,
        taken: Option<Seq>,
        cause: Cause,
        from: &mut usize,
    ) -> Option<Notice> {
        let is_gone = |number: Seq| taken.is_none_or(|taken| !number.is_before(taken));
        let call = self.next(from, |call| call.queued.is_some_and(is_gone))?;
        let request = match taken {
            Some(_) => Outcome::NotDelivered,
            None => Outcome::Delivered,
        };
        let outcome = call.slot.abandon(request)?;
        Some(Notice::unanswered(call.tag, outcome.errno(cause)))
    }

    /// Ends the next call, from the place `from` on, whose request is queued, and whose time is over.
    /// Returns what to tell.
    pub(crate) fn expire(&mut self, now: u64, from: &mut usize) -> Option<Notice> {
        let is_over = |deadline: u64| deadline <= now;
        let call = self.next(from, |call| {
            call.queued.is_some() && call.deadline.is_some_and(is_over)
        })?;
        let outcome = call.slot.abandon(Outcome::Delivered)?;
        Some(Notice::unanswered(call.tag, outcome.errno(Cause::Timeout)))
    }

    /// The next waiting call, from the place `from` on, that `is_it`, which waits no more; `from` moves
    /// behind it.
    fn next(&mut self, from: &mut usize, is_it: impl Fn(&Call) -> bool) -> Option<&mut Call> {
        let mut rest = self.made.iter_mut().enumerate().skip(*from);
        let (at, call) = rest.find(|(_, call)| call.is_waiting && is_it(call))?;
        *from = at + 1;
        call.is_waiting = false;
        Some(call)
    }

    /// When the next time of a call whose request is queued is over.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let waiting = self
            .made
            .iter()
            .filter(|call| call.is_waiting && call.queued.is_some());
        waiting.filter_map(|call| call.deadline).min()
    }

    fn slot(&mut self, id: CallId) -> Option<&mut CalleeSlot> {
        self.taken.get_mut(usize::from(id.slot()))
    }

    /// A request has arrived.
    ///
    /// # Errors
    ///
    /// When its slot does not exist or is in use.
    pub(crate) fn request(&mut self, id: u64) -> Result<(), CallError> {
        let id = CallId::from_wire(id);
        self.slot(id).ok_or(CallError::Slot(id.slot()))?.request(id)
    }

    /// Whether a request has no reply.
    pub(crate) fn is_unanswered(&mut self, id: u64) -> bool {
        let id = CallId::from_wire(id);
        self.slot(id)
            .is_some_and(|slot| slot.unanswered() == Some(id))
    }

    /// The program replies to a request. Returns whether it still can.
    pub(crate) fn answer(&mut self, id: u64) -> bool {
        let id = CallId::from_wire(id);
        self.slot(id).is_some_and(|slot| slot.reply(id))
    }
}
