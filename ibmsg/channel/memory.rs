// SPDX-License-Identifier: GPL-2.0

//! Memory of programs, as far as it concerns the channel and its queue; [`crate::memory`] has the rest.

use core::mem::MaybeUninit;
use ibmsg_proto::{
    channel::Conn,
    memory::{
        BodyEnd,
        BodyError,
        BodyRef,
        Handle,
        MemoryTerms,
        Range,
        Rights, //
    },
    outcome::Cause,
    receive::Arrival,
    send::{
        Next,
        Progress, //
    },
    wire::{
        FrameWriter,
        MemoryRecord,
        Note,
        NoteKind,
        NOTE_LEN, //
    },
    Outcome, //
};
use ibtrs_core::{
    convert,
    messages::memory::Device, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    file::Ready,
    user::UserPages, //
};

use super::{
    inbox::{
        self,
        Notice, //
    },
    out::{
        Reserved,
        Sent, //
    },
    serve::Put,
    Begun,
    Chan,
    End,
    Fault, //
};
use crate::{
    memory::{
        self,
        Memory,
        PutOp,
        Refused, //
    },
    types::{
        now,
        Body,
        Kind,
        F_BODY, //
    }, //
};

/// Memory of the peer, and pages of the program to copy from or to.
pub(crate) type Copied = (Handle, Range, Arc<UserPages>);

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Later => Self::NoMemory,
            Refused::Breach(what) => Self::Protocol(what),
        }
    }
}

impl Chan {
    /// The peer's terms of memory; none if one of the two sides has none.
    fn memory_terms(&self) -> Option<MemoryTerms> {
        self.proto.rx.window().memory()?;
        self.peer?.memory()
    }

    /// Whether the program can use memory here. Returns the peer's terms, if the place for it is still missing.
    ///
    /// # Errors
    ///
    /// - [`ENOTCONN`] if the channel is not open yet,
    /// - [`EPIPE`] if the program has closed its end, or the peer has,
    /// - [`EOPNOTSUPP`] if the other machine, or the session, has no memory.
    pub(crate) fn may_have_memory(&self) -> Result<Option<MemoryTerms>> {
        if self.begun != Begun::Open && !self.takes_no_more() {
            return Err(ENOTCONN);
        }
        if self.takes_no_more() {
            return Err(EPIPE);
        }
        let terms = self.memory_terms().ok_or(EOPNOTSUPP)?;
        Ok(self.memory.is_none().then_some(terms))
    }

    /// Whether the peer's program takes messages with a body.
    ///
    /// # Errors
    ///
    /// As [`Chan::may_have_memory`]; [`EOPNOTSUPP`] also if it does not.
    pub(crate) fn may_lend(&self) -> Result {
        self.may_have_memory()?;
        let takes = self.memory_terms().is_some_and(|terms| terms.bodies());
        takes.then_some(()).ok_or(EOPNOTSUPP)
    }

    /// The body that a message is to have.
    ///
    /// # Errors
    ///
    /// As [`Memory::may_lend`]; [`EINVAL`]: the message does not say where it is.
    pub(super) fn body_to_lend(&mut self, content: &Body) -> Result<BodyRef> {
        let body = content.body_ref().ok_or(EINVAL)?;
        let memory = self.memory.as_mut().ok_or(ESTALE)?;
        memory.may_lend(&body)?;
        Ok(body)
    }

    /// A message with a body was queued.
    pub(super) fn lend(&mut self, body: &BodyRef, tag: u64) {
        if let Some(memory) = &mut self.memory {
            memory.lend(body, tag);
        }
    }

    /// A message was not delivered, or perhaps not: its body ends, if it has one.
    pub(super) fn end_body(&mut self, sent: &Sent, outcome: Outcome, cause: Cause) {
        let Some(errno) = outcome.errno(cause) else {
            return;
        };
        let may_have = self.proto.tx.may_have(&sent.item, outcome);
        if let (Some(body), Some(memory)) = (sent.lends(), &mut self.memory) {
            memory.body_ends(body.handle, errno, may_have);
        }
    }

    /// How many bodies have no receipt, or are with the peer.
    pub(super) fn lent(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.lent())
    }

    /// Tells the program that bodies have ended.
    fn tell_bodies(&mut self) {
        while let Some(receipt) = self.memory.as_mut().and_then(|it| it.next_receipt()) {
            self.inbox.owes_less();
            if self.has_program {
                let errno = receipt.end.errno();
                self.inbox.tell(Notice {
                    kind: Kind::Receipt,
                    flags: F_BODY,
                    tag: receipt.tag,
                    status: errno.map_or(0, inbox::status),
                });
                // The end of the channel may have waited for it.
                self.wake.wake(Ready::IN | Ready::PRI | Ready::HUP);
            }
        }
    }

    /// The end of the channel, unless the program has receipts of bodies to come.
    pub(super) fn end_to_tell(&self) -> Option<End> {
        let owes = |memory: &KBox<Memory>| memory.owes_receipts();
        self.end.filter(|_| !self.memory.as_ref().is_some_and(owes))
    }

    /// The peer's terms, if it may send messages with a body.
    fn terms_of_bodies(&self) -> Option<MemoryTerms> {
        let ours = self.proto.rx.window().memory();
        self.memory_terms()
            .filter(|_| ours.is_some_and(|ours| ours.bodies()))
    }

    /// The same, if the place for bodies is still missing: it is made before the channel is open.
    pub(crate) fn lacks_place_of_bodies(&self) -> Option<MemoryTerms> {
        self.terms_of_bodies().filter(|_| self.memory.is_none())
    }

    /// The peer's terms are known now, on which the place for memory depends.
    pub(super) fn memory_is_agreed(&mut self) {
        let (id, terms) = (self.proto.id(), self.memory_terms());
        if let (Some(memory), Some(terms)) = (&mut self.memory, terms) {
            memory.agreed(id, terms);
        }
    }

    /// Checks that a body, which has arrived, can be taken.
    pub(super) fn takes_bodies(&self) -> Result<(), Fault> {
        if self.terms_of_bodies().is_none() {
            return Err(Fault::Protocol("messages with a body were not agreed upon"));
        }
        // What arrives after the end of this side is dropped.
        match self.memory.is_some() || self.is_shut {
            true => Ok(()),
            false => Err(Fault::NoMemory),
        }
    }

    /// A message with a body is queued for the program.
    pub(super) fn body_arrived(&mut self, content: &Body) -> Result<(), Fault> {
        let body = content
            .body_ref()
            .ok_or(Fault::Protocol("message with an impossible body"))?;
        let memory = self.memory.as_mut().ok_or(Fault::NoMemory)?;
        let arrived = memory.body_arrived(body.handle);
        arrived.map_err(|e| Fault::Protocol(e.as_str()))
    }

    /// Whether the program has a body of the peer.
    pub(crate) fn holds(&self, handle: Handle) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| memory.holds(handle))
    }

    /// The program releases a body: queues RELEASE in a place that was reserved.
    ///
    /// # Errors
    ///
    /// [`ESTALE`]: it does not have that; [`EPIPE`] if nothing can be written any more.
    pub(crate) fn release_body(
        &mut self,
        reserved: Reserved,
        handle: Handle,
        place: KBox<MaybeUninit<Sent>>,
    ) -> Result {
        if !self.holds(handle) {
            self.cancel(reserved);
            return Err(ESTALE);
        }
        self.commit(reserved, Body::new(), place)?;
        self.out.add_release(handle);
        if let Some(memory) = &mut self.memory {
            memory.release_body(handle);
        }
        Ok(())
    }

    /// Adds the note that a body was released, whose turn it is. None if the frame has no room.
    pub(super) fn put_release(
        &mut self,
        (at, handle): (usize, Handle),
        frame: &mut FrameWriter<'_>,
    ) -> Option<Put> {
        if frame.room() < NOTE_LEN {
            return None;
        }
        // CAST: A small constant.
        if !self.deficit.spend(NOTE_LEN as u32) {
            return Some(Put::NoQuantum);
        }
        let Some(sent) = self.out.get_mut(at) else {
            return Some(Put::Nothing);
        };
        let is_new = sent.item.number().is_none();
        let Next::Message(number) = self.proto.tx.next(&mut sent.item) else {
            return Some(Put::Nothing);
        };
        self.counts.sent += u64::from(is_new);
        let note = Note {
            channel: self.proto.id(),
            number,
            kind: NoteKind::Release,
            ack: self.proto.rx.announce(),
            handle,
            len: 0,
        };
        let note = MemoryRecord::Note(note);
        frame.record(|out| note.encode(out))?;
        Some(Put::Record)
    }

    /// Publishes pages of the program, which count in the accounts of the channel: as whole pages, however little of them
    /// is published.
    ///
    /// # Errors
    ///
    /// As [`Chan::may_have_memory`]; [`EDQUOT`]: one of the accounts is full; [`ENOBUFS`]: there are too many ranges.
    pub(crate) fn publish_memory(
        &mut self,
        range: Range,
        rights: Rights,
        pages: Arc<UserPages>,
    ) -> Result<Handle> {
        self.may_have_memory()?;
        // CAST: Lossless.
        let bytes = pages.pinned_len() as u64;
        let charge = self.charge.as_ref();
        let counted = charge.map(|charge| charge.publish(bytes)).transpose()?;
        let memory = self.memory.as_mut().ok_or(EPIPE)?;
        memory.publish(range, rights, (pages, counted))
    }

    /// Takes a place for memory, if there is none.
    pub(crate) fn add_memory(&mut self, place: &mut Option<KBox<Memory>>) {
        if self.memory.is_none() {
            self.memory = place.take();
        }
    }

    /// The connection that keys and work requests of the channel belong to, if there are any.
    pub(crate) fn memory_on(&self) -> Option<Conn> {
        self.memory.as_ref()?.on()
    }

    /// As [`Chan::memory_on`], if they must have ended before the channel is on another connection.
    pub(crate) fn fence_on(&self) -> Option<Conn> {
        let memory = self.memory.as_ref().filter(|memory| memory.needs_fence());
        memory?.on()
    }

    /// Whether the client may move the channel away from a connection that works.
    pub(super) fn may_leave(&self) -> bool {
        let memory = self.memory.as_ref();
        memory.is_none_or(|memory| memory.may_leave(now()))
    }

    /// The channel has left its connection, by which nothing reaches memory any more.
    pub(crate) fn memory_left(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.left();
            self.out.each_put(PutOp::lost);
        }
    }

    /// The peer's memory is fenced.
    pub(super) fn peer_is_fenced(&mut self) {
        if self.memory.is_some() {
            self.out.each_put(PutOp::is_fenced);
        }
    }

    /// Whether nothing of memory is left.
    pub(super) fn is_memory_quiet(&self) -> bool {
        self.memory.as_ref().is_none_or(|memory| memory.is_quiet())
    }

    /// Whether memory of the peer is being read.
    pub(super) fn is_reading(&self) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| memory.is_reading())
    }

    /// Whether there are records about memory to send.
    pub(super) fn has_memory_records(&mut self) -> bool {
        let is_on = self.proto.conn().is_some();
        let memory = self.memory.as_mut().filter(|_| is_on);
        memory.is_some_and(|memory| memory.has_records())
    }

    /// A record about memory has arrived by `from`.
    pub(crate) fn memory_record(
        &mut self,
        from: Conn,
        record: &MemoryRecord,
        device: &dyn Device,
        now: u64,
    ) -> Result<(), Fault> {
        let terms = self.memory_terms();
        let terms = terms.ok_or(Fault::Protocol("memory was not agreed upon"))?;
        if let MemoryRecord::Note(note) = record {
            return self.note(note);
        }
        if self.proto.conn() != Some(from) {
            // After the end of either side, nothing more is asked for.
            return Ok(());
        }
        if self.memory.is_none() {
            let flags = GFP_ATOMIC | __GFP_NOWARN;
            self.memory = Some(Memory::new(self.proto.id(), terms, flags)?);
        }
        match &mut self.memory {
            Some(memory) => Ok(memory.arrived(from, record, device, now)?),
            None => Err(Fault::NoMemory),
        }
    }

    /// NOTE has arrived: what the peer has put is in place, or it has released a body.
    fn note(&mut self, note: &Note) -> Result<(), Fault> {
        self.proto.check_open()?;
        let is_new = self.proto.rx.note(note.number)? == Arrival::Skipped;
        if is_new {
            self.inbox.drop_pieces();
        }
        self.acknowledged(&note.ack)?;
        match note.kind {
            NoteKind::Release if is_new => self.body_is_released(note.handle),
            _ => Ok(()),
        }
    }

    fn body_is_released(&mut self, handle: Handle) -> Result<(), Fault> {
        let memory = self.memory.as_mut();
        let released = memory.map_or(Err(BodyError::Unknown), |it| it.body_is_released(handle));
        released.map_err(|e| Fault::Protocol(e.as_str()))
    }

    /// A work request has completed.
    pub(crate) fn memory_done(&mut self, cookie: u64) {
        let Some(memory) = &mut self.memory else {
            return;
        };
        if let Some((number, place)) = memory.completed(cookie) {
            memory.wrote(self.out.put_mut(number), place);
        }
    }

    /// Goes on with what is taken back, and with GETs. `conn`: the connection that the channel is on, if that works.
    /// Returns the connection that is to be given up, as it does not let go of memory, and the one on which another channel
    /// is to return a key.
    pub(crate) fn advance_memory(
        &mut self,
        conn: Option<(Conn, &dyn Device)>,
        now: u64,
    ) -> (Option<Conn>, Option<Conn>) {
        let is_over = self.proto.is_over() || self.proto.peer_has_ended();
        let is_ending = self.is_shut || self.proto.tx.is_stopped();
        let Some(memory) = &mut self.memory else {
            return (None, None);
        };
        if self.is_shut || is_over {
            // What the operator has closed, the program has not taken back.
            let why = match self.own_reason {
                0 => BodyEnd::TakenBack,
                _ => BodyEnd::Closed,
            };
            memory.bodies_end(is_over, why);
        }
        let advanced = memory.advance(conn, is_ending, is_over, now);
        let on = memory.on();
        if advanced.has_freed {
            // Tasks in UNMAP, which needs no memory to wait with.
            self.wake.wake(Ready::PRI);
        }
        self.tell_bodies();
        (
            on.filter(|_| advanced.is_stuck),
            on.filter(|_| advanced.needs_room),
        )
    }

    /// What may sleep was done.
    pub(crate) fn memory_did(&mut self, done: memory::Done, device: &dyn Device, now: u64) {
        let Some(memory) = &mut self.memory else {
            return;
        };
        if let Some((number, source)) = memory.did(done, device, now) {
            if let Some(put) = self.out.put_mut(number) {
                put.mapped(source);
            }
        }
    }

    /// Queues the PUT with a number in its place, for which the caller has memory. If that is impossible, it has that
    /// outcome; if nobody waits for it any more, it does not begin.
    pub(crate) fn start_put(
        &mut self,
        number: u32,
        reserved: Reserved,
        (handle, range, pages): Copied,
        place: KBox<MaybeUninit<Sent>>,
        put: KBox<MaybeUninit<PutOp>>,
    ) {
        if !self.may_begin(number) {
            return self.cancel(reserved);
        }
        let put = KBox::write(put, PutOp::new(number, handle, range, pages));
        match self.commit(reserved, Body::new(), place) {
            Ok(()) => self.out.add_put(put),
            Err(e) => self.end_op(number, e),
        }
    }

    /// Begins the GET with a number, which may take until `deadline`. If that is impossible, it has that outcome; if nobody
    /// waits for it any more, it does not begin.
    pub(crate) fn start_get(
        &mut self,
        number: u32,
        (handle, range, pages): Copied,
        deadline: Option<u64>,
    ) {
        if !self.may_begin(number) {
            return;
        }
        let begun = match (self.may_have_memory(), &mut self.memory) {
            (Ok(_), Some(memory)) => memory.begin_get(number, handle, range, pages, deadline),
            (Err(e), _) => Err(e),
            (_, None) => Err(EPIPE),
        };
        match begun {
            Ok(()) => self.expires_at(deadline),
            Err(e) => self.end_op(number, e),
        }
    }

    fn may_begin(&self, number: u32) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| memory.may_begin(number))
    }

    fn end_op(&mut self, number: u32, error: Error) {
        if let Some(memory) = &mut self.memory {
            memory.end_op(number, Err(convert::errno(error)));
        }
    }

    /// Nobody waits for an operation any longer. Returns the outcome, if that is known now.
    pub(crate) fn give_up_op(&mut self, number: u32) -> Option<memory::Outcome> {
        self.out.expire_put(number);
        self.next_expiry = Some(0);
        self.expire(0);
        let memory = self.memory.as_mut()?;
        let outcome = memory.take_outcome(number);
        memory.leave_op(number);
        memory.give_up_get(number);
        outcome
    }

    /// Tells the task what has become of a PUT.
    pub(super) fn tell_put(&mut self, sent: &Sent, put: &PutOp, outcome: Outcome, cause: Cause) {
        if sent.about.may_tell {
            self.inbox.owes_less();
        }
        let progress = match outcome {
            Outcome::Delivered => Progress::Queued,
            _ => self.proto.tx.progress(&sent.item),
        };
        if let Some(memory) = &mut self.memory {
            memory.end_op(put.number(), put.outcome(progress, cause));
            if outcome != Outcome::Delivered {
                memory.abandon_writes();
            }
        }
    }

    /// Adds records about memory to a frame. None if it has no room for the next.
    pub(super) fn put_memory(
        &mut self,
        on: Conn,
        frame: &mut FrameWriter<'_>,
        records: &mut u32,
    ) -> Option<()> {
        let Some(memory) = &mut self.memory else {
            return Some(());
        };
        while memory.send(on, |record| {
            frame.record(|out| record.encode(out)).is_some()
        })? {
            *records += 1;
        }
        Some(())
    }

    /// Goes on with the PUT at `at` in the queue, whose turn it is. None if the frame has no room.
    pub(super) fn put_put(
        &mut self,
        at: usize,
        (on, device): (Conn, Option<&dyn Device>),
        frame: &mut FrameWriter<'_>,
    ) -> Option<Put> {
        if frame.room() < NOTE_LEN {
            return None;
        }
        let (Some(device), Some(memory), Some(sent)) =
            (device, self.memory.as_mut(), self.out.get_mut(at))
        else {
            return Some(Put::Nothing);
        };
        let Some(put) = &mut sent.put else {
            return Some(Put::Nothing);
        };
        match memory.step_put(put, &self.proto.tx, &mut sent.item, (on, device)) {
            memory::Next::Wait => return Some(Put::Nothing),
            memory::Next::Failed(outcome) => {
                memory.end_op(put.number(), outcome);
                let is_unsent = sent.item.number().is_none();
                if sent.about.may_tell {
                    self.inbox.owes_less();
                }
                if is_unsent {
                    self.drop_unsent(at);
                }
                return Some(Put::Again);
            }
            memory::Next::Note => {}
        }
        // CAST: A small constant.
        if !self.deficit.spend(NOTE_LEN as u32) {
            return Some(Put::NoQuantum);
        }
        let is_new = sent.item.number().is_none();
        let Next::Message(number) = self.proto.tx.next(&mut sent.item) else {
            return Some(Put::Nothing);
        };
        self.counts.sent += u64::from(is_new);
        let note = put.note(self.proto.id(), number, self.proto.rx.announce());
        frame.record(|out| note.encode(out))?;
        Some(Put::Record)
    }

    /// A message that has no number leaves the queue.
    fn drop_unsent(&mut self, at: usize) {
        if let Some(mut sent) = self.out.remove(at) {
            self.proto.tx.release(sent.item.take());
            self.out.bury(sent);
            self.has_freed = true;
        }
    }
}
