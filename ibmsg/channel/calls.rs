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
use ibtrs_proto::Errno;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::file::{
    uring::Command,
    Ready,
    WaitQueue, //
};

use super::inbox::{
    Incoming,
    Notice, //
};

/// Who gets the answer to a call.
pub(crate) enum Caller {
    /// The program reads it like other messages.
    Reader,
    /// A task waits for it.
    Task(Arc<WaitQueue>),
    /// A command of io_uring, unless it is being completed, or is still to be attached.
    Command(Option<Command>),
    /// Nobody, or nobody any more.
    Nobody,
}

/// The answer to a call that is not for readers.
pub(crate) enum Answered {
    /// A reply.
    Reply(KBox<Incoming>),
    /// There is none, for this reason.
    Errno(Errno),
}

/// A call of the program.
pub(crate) struct Call {
    slot: CallerSlot,
    id: CallId,
    tag: u64,
    /// When it was made.
    since: u64,
    deadline: Option<u64>,
    /// The number of the request, once the peer's kernel has queued it.
    queued: Option<Seq>,
    /// The program waits for the reply.
    is_waiting: bool,
    caller: Caller,
    /// For the task or command, until it has taken it.
    answer: Option<Answered>,
    /// The number and the length of the reply that it has not copied to its program.
    reply: Option<(Seq, u32)>,
    /// The request may be sent.
    is_written: bool,
}

impl Call {
    const fn new(slot: u16) -> Self {
        Self {
            slot: CallerSlot::new(slot),
            id: CallId::from_wire(0),
            tag: 0,
            since: 0,
            deadline: None,
            queued: None,
            is_waiting: false,
            caller: Caller::Reader,
            answer: None,
            reply: None,
            is_written: false,
        }
    }

    /// Whether another call can be made in its slot.
    fn is_free(&self) -> bool {
        self.slot.is_free() && !matches!(self.caller, Caller::Task(_) | Caller::Command(_))
    }

    /// There is an answer for the task or command.
    fn answered(&mut self, answer: Answered) {
        self.answer = Some(answer);
        match &mut self.caller {
            Caller::Task(waiters) => waiters.wake(Ready::IN),
            Caller::Command(command) => {
                if let Some(command) = command.take() {
                    command.complete();
                }
            }
            Caller::Reader | Caller::Nobody => {}
        }
    }

    /// The call ends without a reply. Returns what to tell the program.
    fn ends(&mut self, outcome: CallOutcome, cause: Cause) -> Option<Notice> {
        let errno = outcome.errno(cause);
        match &self.caller {
            Caller::Reader => Some(Notice::unanswered(self.tag, errno)),
            Caller::Task(_) | Caller::Command(_) => {
                self.answered(Answered::Errno(errno));
                None
            }
            Caller::Nobody => None,
        }
    }
}

/// Calls that have a reply, and the time that they took together.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallTimes {
    pub(crate) count: u64,
    pub(crate) us: u64,
}

impl CallTimes {
    fn add(&mut self, since: u64, now: u64) {
        self.count += 1;
        self.us = self.us.saturating_add(now.saturating_sub(since));
    }
}

/// A slot for a request.
#[derive(Clone, Default)]
pub(crate) struct Slot {
    slot: CalleeSlot,
    /// When its request was queued for the program.
    since: u64,
}

/// Memory for calls that are made.
///
/// It is one piece of up to a few hundred KiB, which comes from `vmalloc` if the pages are scattered. Neither `vmalloc`
/// nor `vfree` may be called in atomic context, whatever the flags of the allocation, so this has none: only callers
/// that may sleep make or drop one.
pub(crate) struct CallTable(KVVec<Call>);

impl CallTable {
    /// Memory for that many calls.
    ///
    /// # Context
    ///
    /// *may sleep*, also to drop it.
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(crate) fn new(calls: usize) -> Result<Self> {
        Ok(Self(KVVec::with_capacity(calls, GFP_KERNEL_ACCOUNT)?))
    }
}

/// The calls in both directions.
pub(crate) struct Calls {
    made: KVVec<Call>,
    /// Replies that tasks and commands have not copied to their programs.
    replies: usize,
    taken: KVec<Slot>,
    /// Calls of the program, from the request until the reply has arrived.
    pub(crate) answered: CallTimes,
    /// Requests for the program, from their arrival until it has replied.
    pub(crate) served: CallTimes,
}

impl Calls {
    pub(crate) const fn new() -> Self {
        Self {
            made: KVVec::new(),
            replies: 0,
            taken: KVec::new(),
            answered: CallTimes { count: 0, us: 0 },
            served: CallTimes { count: 0, us: 0 },
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
    pub(crate) fn slots(calls: u16) -> Result<KVec<Slot>> {
        let slots = KVec::from_elem(Slot::default(), usize::from(calls), GFP_KERNEL_ACCOUNT)?;
        Ok(slots)
    }

    /// Takes these slots for requests.
    pub(crate) fn serve(&mut self, slots: KVec<Slot>) {
        self.taken = slots;
    }

    /// Returns the number of calls for which to allocate memory before the next call can be made; `most` may be
    /// unanswered. None if there is memory, or no call can be made.
    pub(crate) fn lack(&self, most: u16) -> Option<usize> {
        let (len, most) = (self.made.len(), usize::from(most));
        let is_full = len == self.made.capacity() && len < most;
        let lacks = is_full && !self.made.iter().any(Call::is_free);
        lacks.then(|| most.min((2 * len).max(8)))
    }

    /// Calls for which there is memory.
    #[cfg(IBTRS_KUNIT)]
    pub(crate) fn capacity(&self) -> usize {
        self.made.capacity()
    }

    /// Takes memory for calls. What is left in the table is not needed.
    pub(crate) fn extend(&mut self, CallTable(made): &mut CallTable) {
        if made.capacity() <= self.made.capacity() {
            return;
        }
        let mut old = core::mem::replace(&mut self.made, KVVec::new());
        for call in old.drain_all() {
            let _ = made.push_within_capacity(call);
        }
        self.made = core::mem::replace(made, old);
    }

    /// Makes a call, of which at most `most` may be unanswered, now and with this deadline. Returns its id.
    ///
    /// # Errors
    ///
    /// [`EOPNOTSUPP`] if the peer answers none, [`EAGAIN`] if there are too many, [`ENOMEM`] if there is no
    /// memory before [`Calls::extend`].
    pub(crate) fn make(
        &mut self,
        most: u16,
        tag: u64,
        (now, deadline): (u64, Option<u64>),
        caller: Caller,
    ) -> Result<u64> {
        if most == 0 {
            return Err(EOPNOTSUPP);
        }
        let at = match self.made.iter().position(Call::is_free) {
            Some(at) => at,
            None => {
                let slot = u16::try_from(self.made.len()).map_err(|_| EAGAIN)?;
                if slot >= most {
                    return Err(EAGAIN);
                }
                self.made
                    .push_within_capacity(Call::new(slot))
                    .map_err(|_| ENOMEM)?;
                usize::from(slot)
            }
        };
        let call = self.made.get_mut(at).ok_or(EAGAIN)?;
        call.id = call.slot.call().ok_or(EAGAIN)?;
        (call.tag, call.since, call.deadline, call.queued) = (tag, now, deadline, None);
        (call.is_waiting, call.caller, call.is_written) = (true, caller, false);
        Ok(call.id.to_wire())
    }

    fn find(&mut self, id: CallId) -> Option<&mut Call> {
        self.made.get_mut(usize::from(id.slot()))
    }

    fn current(&mut self, id: u64) -> Option<&mut Call> {
        let id = CallId::from_wire(id);
        self.find(id).filter(|call| call.id == id)
    }

    /// The call ends without a reply, with this outcome of its request. Returns what to tell the program; `None` if
    /// it has ended before, or the program does not read its answer.
    pub(crate) fn abandon(&mut self, id: u64, request: Outcome, cause: Cause) -> Option<Notice> {
        let call = self.current(id)?;
        call.is_waiting = false;
        let outcome = call.slot.abandon(request)?;
        call.ends(outcome, cause)
    }

    /// The request goes into the queue. Returns whether somebody still waits for the answer.
    pub(crate) fn written(&mut self, id: u64) -> bool {
        let Some(call) = self.current(id) else {
            return false;
        };
        call.is_written = !matches!(call.caller, Caller::Nobody);
        call.is_written
    }

    /// The request was not written after all.
    pub(crate) fn unmake(&mut self, id: u64) {
        if let Some(call) = self.current(id) {
            let _ = call.slot.abandon(Outcome::NotDelivered);
            (call.is_waiting, call.caller) = (false, Caller::Reader);
        }
    }

    /// Attaches a command to its call. If the call has been cancelled, the command fails.
    pub(crate) fn attach(&mut self, id: u64, command: Command) {
        match self.current(id).map(|call| &mut call.caller) {
            Some(Caller::Command(place)) => *place = Some(command),
            _ => command.fail(ECANCELED),
        }
    }

    /// The command that makes a call is to end at once. Returns it, unless it is being completed, or is not
    /// attached.
    pub(crate) fn detach(&mut self, id: u64) -> Option<Command> {
        let call = self.current(id).filter(|call| call.answer.is_none())?;
        let Caller::Command(command) = &mut call.caller else {
            return None;
        };
        let command = command.take();
        self.leave(id);
        command
    }

    /// Takes the answer of a task or command.
    pub(crate) fn take_answer(&mut self, id: u64) -> Option<Answered> {
        self.current(id)?.answer.take()
    }

    /// The task or command has copied its answer. Returns whether that was a reply.
    pub(crate) fn took_answer(&mut self, id: u64) -> bool {
        let Some(call) = self.current(id) else {
            return false;
        };
        call.caller = Caller::Reader;
        let was_reply = call.reply.take().is_some();
        self.replies -= usize::from(was_reply);
        was_reply
    }

    /// The program takes no more messages. The replies that tasks and commands have count as taken: calls a function
    /// with the length of each.
    pub(crate) fn takes_replies(&mut self, mut counts: impl FnMut(u32)) {
        if core::mem::take(&mut self.replies) == 0 {
            return;
        }
        for (_, len) in self.made.iter_mut().filter_map(|call| call.reply.take()) {
            counts(len);
        }
    }

    /// Ends the calls of tasks and commands: they get no reply any more.
    pub(crate) fn close(&mut self) {
        for call in &mut self.made {
            let is_direct = matches!(call.caller, Caller::Task(_) | Caller::Command(_));
            if call.is_waiting && call.is_written && is_direct {
                call.is_waiting = false;
                let _ = call.slot.abandon(Outcome::Unknown);
                call.answered(Answered::Errno(Errno::ECONNABORTED));
            }
        }
    }

    /// The task waits no more, and has no answer.
    pub(crate) fn leave(&mut self, id: u64) {
        if let Some(call) = self.current(id) {
            call.caller = Caller::Nobody;
            // Whatever comes is late.
            call.deadline = Some(0);
        }
    }

    /// The number of the first reply that a task or command has not copied to its program.
    pub(crate) fn front(&self) -> Option<Seq> {
        if self.replies == 0 {
            return None;
        }
        let replies = self.made.iter().filter_map(|call| Some(call.reply?.0));
        replies.reduce(|a, b| if b.is_before(a) { b } else { a })
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

    /// A reply has arrived. Returns it if it is for the inbox, and not for a task.
    ///
    /// # Errors
    ///
    /// When there is no such call.
    pub(crate) fn reply(
        &mut self,
        id: u64,
        mut incoming: KBox<Incoming>,
        now: u64,
    ) -> Result<Option<KBox<Incoming>>, CallError> {
        let id = CallId::from_wire(id);
        let call = self.made.get_mut(usize::from(id.slot()));
        let call = call.filter(|call| call.is_written);
        let call = call.ok_or(CallError::NoCall(id))?;
        let answer = call.slot.reply(id)?;
        call.is_waiting = false;
        if matches!(answer, Answer::Program) {
            self.answered.add(call.since, now);
        }
        match (answer, &call.caller) {
            (Answer::Program, Caller::Task(_) | Caller::Command(_)) => {
                call.reply = Some((incoming.number, incoming.body.len()));
                self.replies += 1;
                call.answered(Answered::Reply(incoming));
                return Ok(None);
            }
            (Answer::Program, Caller::Reader) => incoming.tag = call.tag,
            (Answer::Late, _) | (_, Caller::Nobody) => incoming.is_late = true,
        }
        Ok(Some(incoming))
    }

    /// Ends each call at or after index `from` whose request is queued: only requests that the peer's program has
    /// not taken, from the number `taken` on; without `taken`, all. Returns at the first call that needs a notice.
    pub(crate) fn end(
        &mut self,
        taken: Option<Seq>,
        cause: Cause,
        from: &mut usize,
    ) -> Option<Notice> {
        let is_gone = |number: Seq| taken.is_none_or(|taken| !number.is_before(taken));
        let request = match taken {
            Some(_) => Outcome::NotDelivered,
            None => Outcome::Delivered,
        };
        self.end_those(from, request, cause, |call| {
            call.queued.is_some_and(is_gone)
        })
    }

    /// Ends each call at or after index `from` whose request is queued and whose deadline has passed. Returns as
    /// [`Calls::end`] does.
    pub(crate) fn expire(&mut self, now: u64, from: &mut usize) -> Option<Notice> {
        let is_over = |deadline: u64| deadline <= now;
        self.end_those(from, Outcome::Delivered, Cause::Timeout, |call| {
            call.queued.is_some() && call.deadline.is_some_and(is_over)
        })
    }

    fn end_those(
        &mut self,
        from: &mut usize,
        request: Outcome,
        cause: Cause,
        is_it: impl Fn(&Call) -> bool,
    ) -> Option<Notice> {
        loop {
            let call = self.next(from, &is_it)?;
            let outcome = call.slot.abandon(request);
            let notice = outcome.and_then(|outcome| call.ends(outcome, cause));
            if notice.is_some() {
                return notice;
            }
        }
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

    fn slot(&mut self, id: CallId) -> Option<&mut Slot> {
        self.taken.get_mut(usize::from(id.slot()))
    }

    /// A request has arrived.
    ///
    /// # Errors
    ///
    /// When its slot does not exist or is in use.
    pub(crate) fn request(&mut self, id: u64, now: u64) -> Result<(), CallError> {
        let id = CallId::from_wire(id);
        let slot = self.slot(id).ok_or(CallError::Slot(id.slot()))?;
        slot.slot.request(id)?;
        slot.since = now;
        Ok(())
    }

    /// Whether a request has no reply.
    pub(crate) fn is_unanswered(&mut self, id: u64) -> bool {
        let id = CallId::from_wire(id);
        self.slot(id)
            .is_some_and(|slot| slot.slot.unanswered() == Some(id))
    }

    /// The program replies to a request. Returns whether it still can.
    pub(crate) fn answer(&mut self, id: u64, now: u64) -> bool {
        let id = CallId::from_wire(id);
        let Some(slot) = self.slot(id) else {
            return false;
        };
        if !slot.slot.reply(id) {
            return false;
        }
        let since = slot.since;
        self.served.add(since, now);
        true
    }
}
