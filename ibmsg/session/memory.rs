// SPDX-License-Identifier: GPL-2.0

//! Memory of programs: what they do with it, work requests that complete, and work that may sleep.

use core::mem::MaybeUninit;
use ibmsg_proto::{
    channel::Conn,
    memory::{
        Handle,
        MemoryTerms,
        Range,
        Rights, //
    },
    wire::MemoryRecord,
    Seq, //
};
use ibtrs_core::messages::memory::Device;
use ibtrs_proto::Errno;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::{
    deque::Deque,
    file::{
        uring::Command,
        WaitQueue, //
    },
    user::UserPages, //
};

use super::{
    ConnState,
    Role,
    Side,
    State, //
};
use crate::{
    channel::{
        Chan,
        Copied,
        Fault,
        Reserved,
        Sent, //
    },
    link::Connection,
    memory::{
        self,
        Memory,
        Outcome,
        PutOp,
        Waits, //
    },
    types::{
        now,
        Terms, //
    }, //
};

/// Channels among which one is chosen to return a key.
const LOOKS: usize = 64;
/// Things that are done before other work of the machine gets its turn.
const BATCH: usize = 16;

impl State {
    /// Whether a connection is lost and drained, or never was: nothing reaches memory by it.
    pub(super) fn is_drained(&self, id: Conn) -> bool {
        self.conns.iter().all(|conn| conn.id != id) && !self.undrained.contains(&id)
    }
}

/// The connection that a channel is on, if that works.
fn conn_of<'c>(conns: &'c [KBox<ConnState>], chan: &Chan) -> Option<&'c ConnState> {
    let on = chan.proto.answers_on()?;
    let mut conns = conns.iter().map(|conn| &**conn);
    conns.find(|conn| conn.id == on && !conn.has_failed)
}

/// A channel, its connection, and what is to be done by that.
type Next = (u32, (Conn, Arc<dyn Connection>), memory::Job);

impl Side {
    /// The terms of memory of this side: programs of one machine have shared memory.
    pub(super) fn memory_terms(&self) -> Option<MemoryTerms> {
        match self.0.peer {
            ibmsg_proto::access::Peer::Local => None,
            _ => memory::TERMS,
        }
    }

    /// The same for a channel of this end's terms.
    pub(super) fn memory_terms_for(&self, terms: &Terms) -> Option<MemoryTerms> {
        Some(self.memory_terms()?.with_bodies(terms.wants.bodies))
    }

    /// Makes the place for the memory of a channel.
    ///
    /// # Errors
    ///
    /// See [`Chan::may_have_memory`]; [`ENOMEM`].
    pub(crate) fn prepare_memory(&self, id: u32) -> Result {
        let missing = self
            .with(id, |chan| chan.may_have_memory())
            .ok_or(EPIPE)??;
        if let Some(terms) = missing {
            let mut place = Some(Memory::new(id, terms, GFP_KERNEL_ACCOUNT)?);
            // Another task may have been faster.
            self.with(id, |chan| chan.add_memory(&mut place))
                .ok_or(EPIPE)?;
        }
        Ok(())
    }

    /// The same for a channel that is to be opened: its number, and the peer's terms, follow.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`]
    pub(super) fn place_for_bodies(&self, terms: &Terms) -> Result<Option<KBox<Memory>>> {
        let ours = self.memory_terms().filter(|_| terms.wants.bodies);
        ours.map(|ours| Memory::new(0, ours, GFP_KERNEL_ACCOUNT))
            .transpose()
    }

    fn with_memory<R>(&self, id: u32, f: impl FnOnce(&mut Memory) -> Result<R>) -> Result<R> {
        let result = self.change(id, |chan| {
            chan.may_have_memory()?;
            f(chan.memory.as_mut().ok_or(EPIPE)?)
        });
        result.ok_or(EPIPE)?
    }

    /// Publishes pages of a program on a channel.
    ///
    /// # Errors
    ///
    /// As [`Chan::publish_memory`].
    pub(crate) fn publish(
        &self,
        id: u32,
        range: Range,
        rights: Rights,
        pages: Arc<UserPages>,
    ) -> Result<Handle> {
        let result = self.change(id, |chan| chan.publish_memory(range, rights, pages));
        result.ok_or(EPIPE)?
    }

    /// Begins to take a handle back. Returns the tasks that are woken when pages are free.
    ///
    /// # Errors
    ///
    /// [`ESTALE`]: the handle is not valid.
    pub(crate) fn unmap(&self, id: u32, handle: Handle) -> Result<Arc<WaitQueue>> {
        let result = self.change(id, |chan| {
            let memory = chan.memory.as_mut().ok_or(ESTALE)?;
            memory.take_back(handle)?;
            Ok(chan.waiters().clone())
        });
        result.ok_or(ESTALE)?
    }

    /// Whether the other program takes messages with a body.
    ///
    /// # Errors
    ///
    /// As [`Chan::may_lend`].
    pub(crate) fn may_lend(&self, id: u32) -> Result {
        self.with(id, |chan| chan.may_lend()).ok_or(EPIPE)?
    }

    /// Whether the program has a body of the other one.
    pub(crate) fn holds(&self, id: u32, handle: Handle) -> bool {
        let holds = self.with(id, |chan| chan.holds(handle));
        holds.unwrap_or(false)
    }

    /// The program releases a body, in a place that was reserved.
    ///
    /// # Errors
    ///
    /// As [`Chan::release_body`].
    pub(crate) fn release_body(
        &self,
        id: u32,
        reserved: Reserved,
        handle: Handle,
        place: KBox<MaybeUninit<Sent>>,
    ) -> Result {
        let result = self.change(id, |chan| chan.release_body(reserved, handle, place));
        result.ok_or(EPIPE)?
    }

    /// Whether the pages of a handle are free.
    pub(crate) fn is_unmapped(&self, id: u32, handle: Handle) -> bool {
        let is_free = self.with(id, |chan| {
            let memory = chan.memory.as_mut();
            memory.is_none_or(|memory| memory.is_free(handle))
        });
        is_free.unwrap_or(true)
    }

    /// The program whose pages are published has gone: takes their handle back at once.
    pub(crate) fn owner_exits(&self, id: u32, handle: Handle) {
        let _ = self.change(id, |chan| {
            if let Some(memory) = &mut chan.memory {
                memory.owner_exits(handle);
            }
        });
    }

    /// Makes a place for an operation. Returns its number.
    ///
    /// # Errors
    ///
    /// As [`Chan::may_have_memory`]; [`EAGAIN`]: there are too many operations.
    pub(crate) fn begin_op(&self, id: u32, waits: Waits) -> Result<u32> {
        self.with_memory(id, |memory| memory.begin_op(waits))
    }

    /// Attaches the command that waits for an operation.
    pub(crate) fn attach_op(&self, id: u32, number: u32, command: Command) {
        // Without the channel, it is dropped, and so fails.
        let _ = self.with(id, |chan| {
            if let Some(memory) = &mut chan.memory {
                memory.attach_op(number, command);
            }
        });
    }

    /// Begins a PUT in a place that was reserved.
    pub(crate) fn put(
        &self,
        id: u32,
        number: u32,
        reserved: Reserved,
        what: Copied,
        (place, put): (KBox<MaybeUninit<Sent>>, KBox<MaybeUninit<PutOp>>),
    ) {
        // Without the channel, nobody waits.
        let _ = self.change(id, |chan| {
            chan.start_put(number, reserved, what, place, put);
        });
    }

    /// Begins a GET that may take that long, in milliseconds; 0: as long as the channel's terms say.
    pub(crate) fn get(&self, id: u32, number: u32, what: Copied, timeout_ms: u32) {
        let now = now();
        let _ = self.change(id, |chan| {
            let timeout_ms = match timeout_ms {
                0 => chan.terms.timeout_ms,
                timeout_ms => timeout_ms,
            };
            let deadline = (timeout_ms != 0).then(|| now + u64::from(timeout_ms) * 1000);
            chan.start_get(number, what, deadline);
        });
    }

    /// The command that waits for an operation is to end at once. Returns it, if it is the caller's to complete.
    pub(crate) fn cancel_op(&self, id: u32, number: u32) -> Option<Command> {
        let command = self.change(id, |chan| {
            let command = chan.memory.as_mut()?.detach_op(number)?;
            let _ = chan.give_up_op(number);
            Some(command)
        });
        command.flatten()
    }

    /// Takes the outcome of an operation, if it has ended.
    pub(crate) fn take_outcome(&self, id: u32, number: u32) -> Option<Outcome> {
        let outcome = self.with(id, |chan| {
            let memory = chan.memory.as_mut();
            memory.map_or(Some(Err(Errno::ECONNABORTED)), |memory| {
                memory.take_outcome(number)
            })
        });
        outcome.unwrap_or(Some(Err(Errno::ECONNABORTED)))
    }

    /// The task does not wait for an operation any longer. Returns the outcome, if it is known.
    pub(crate) fn give_up_op(&self, id: u32, number: u32) -> Option<Outcome> {
        self.change(id, |chan| chan.give_up_op(number)).flatten()
    }

    /// A record about memory has arrived.
    pub(super) fn memory_record(
        &self,
        state: &mut State,
        from: Conn,
        record: &MemoryRecord,
        now: u64,
    ) -> core::result::Result<(), Fault> {
        let id = record.channel();
        let State { conns, chans, .. } = &mut *state;
        let conn = conns.iter().find(|conn| conn.id == from);
        let chan = chans.get_mut(&id);
        // A channel takes records from its connection only.
        let chan = chan.filter(|chan| chan.proto.takes_from(from));
        let device = conn.and_then(|conn| conn.out.memory());
        if let (Some(chan), Some(device)) = (chan, device) {
            chan.memory_record(from, record, device, now)?;
            self.attend(state, id, now);
        }
        Ok(())
    }

    /// A work request has completed.
    pub(super) fn memory_done(&self, from: Conn, cookie: u64) {
        let id = memory::channel_of(cookie);
        self.locked(|state| {
            let chan = state.chans.get_mut(&id);
            // Otherwise it was lost with its connection.
            if let Some(chan) = chan.filter(|chan| chan.memory_on() == Some(from)) {
                chan.memory_done(cookie);
                self.done(state, id);
            }
        });
    }

    /// Looks after the memory of a channel that has changed. Returns the connection on which another channel is to return a
    /// key, see [`Side::make_room`].
    pub(super) fn attend_memory(
        &self,
        chan: &mut Chan,
        conns: &mut [KBox<ConnState>],
        sleepers: &mut Deque<u32>,
        now: u64,
    ) -> Option<Conn> {
        let conn = conn_of(conns, chan);
        let device = conn.and_then(|conn| Some((conn.id, conn.out.memory()?)));
        let (stuck, crowded) = chan.advance_memory(device, now);
        let has_job = chan.memory.as_ref().is_some_and(|memory| memory.has_job());
        if has_job && device.is_some() && !chan.is_listed_memory {
            chan.is_listed_memory = sleepers.push_back(chan.proto.id()).is_ok();
            self.0.memory.enqueue(self.0.clone());
        }
        let mut conns = conns.iter_mut();
        if let Some(conn) = stuck.and_then(|stuck| conns.find(|conn| conn.id == stuck)) {
            conn.give_up("the device does not release memory of programs");
        }
        crowded
    }

    /// The peer has no region for another key of `on`. The channel that keeps most keys there that it does not use returns one:
    /// one with many mappings does not keep another one from its first. Each call compares a few channels, the next call
    /// the next ones.
    pub(super) fn make_room(state: &mut State, on: Conn, now: u64) {
        let (mut from, mut most, mut has_most) = (state.looks_from, 0, None);
        for _ in 0..LOOKS {
            let next = state.next_chan(from).or_else(|| state.next_chan(0));
            let Some((id, chan)) = next.and_then(|id| Some((id, state.chans.get(&id)?))) else {
                break;
            };
            let memory = chan.memory.as_ref();
            let memory = memory.filter(|memory| memory.on() == Some(on));
            let idle = memory.map_or(0, |memory| memory.idle_keys());
            if idle > most {
                (most, has_most) = (idle, Some(id));
            }
            from = id.wrapping_add(1);
        }
        state.looks_from = from;
        let Some(id) = has_most else {
            return;
        };
        if let Some(memory) = state
            .chans
            .get_mut(&id)
            .and_then(|chan| chan.memory.as_mut())
        {
            memory.give_up_key(now);
        }
        state.list_ready(id);
    }

    /// A channel that the client moves leaves the connection that it was on. Returns whether nothing reaches its memory
    /// by that any more.
    ///
    /// # Errors
    ///
    /// When it is moved to the connection that it is on although memory is in use there.
    pub(super) fn fence_memory(
        state: &mut State,
        to: Conn,
        (channel, moves): (u32, Seq),
    ) -> core::result::Result<bool, Fault> {
        let State {
            conns,
            chans,
            undrained,
            ..
        } = &mut *state;
        let Some(chan) = chans.get_mut(&channel) else {
            return Ok(true);
        };
        let is_newer = moves.since(chan.proto.moves()) > 0;
        let Some(on) = chan.memory_on().filter(|_| is_newer) else {
            return Ok(true);
        };
        if chan.fence_on() == Some(to) {
            return Err(Fault::Protocol("a channel is moved with its memory in use"));
        }
        let conn = conns.iter_mut().find(|conn| conn.id == on);
        if conn.is_none() && !undrained.contains(&on) || chan.fence_on().is_none() {
            chan.memory_left();
            return Ok(true);
        }
        // What arrives by it does not count any more. The record waits until it is drained.
        if chan.proto.lost(on) {
            chan.lost();
        }
        if let Some(conn) = conn {
            conn.fail("a channel has left it whose memory is in use");
        }
        Ok(false)
    }

    /// Does what may sleep for the memory of channels.
    ///
    /// # Context
    ///
    /// *may sleep*
    pub(super) fn memory_work(&self) {
        for _ in 0..BATCH {
            let Some((id, (on, conn), job)) = self.next_job() else {
                return;
            };
            let Some(device) = conn.memory() else {
                continue;
            };
            let done = job.run(device);
            if done.is_unsupported() {
                kx::pr_warn_ratelimited!(
                    "{}: channel {}: no GET or PUT: the RDMA device of this machine reaches memory of programs only by copies of the kernel (swiotlb); boot without swiotlb=force, or use a device that reaches all memory (EOPNOTSUPP)\n",
                    self.name(),
                    id
                );
            }
            self.did_job(id, on, device, done);
        }
        self.0.memory.enqueue(self.0.clone());
    }

    fn next_job(&self) -> Option<Next> {
        let mut state = self.0.state.lock();
        let State {
            conns,
            chans,
            sleepers,
            ..
        } = &mut *state;
        loop {
            let id = sleepers.pop_front()?;
            let Some(chan) = chans.get_mut(&id) else {
                continue;
            };
            chan.is_listed_memory = false;
            let Some(conn) = conn_of(conns, chan) else {
                continue;
            };
            let memory = chan.memory.as_mut();
            let job = memory
                .filter(|memory| memory.on().is_none_or(|on| on == conn.id))
                .and_then(|memory| memory.next_job());
            if let Some(job) = job {
                return Some((id, (conn.id, conn.out.clone()), job));
            }
        }
    }

    fn did_job(&self, id: u32, on: Conn, device: &dyn Device, done: memory::Done) {
        self.locked(|state| {
            // A channel of the same number may be another one by now; what was done is then of no use to it.
            let chan = state.chans.get_mut(&id);
            if let Some(chan) = chan.filter(|chan| chan.memory_on() == Some(on)) {
                chan.memory_did(done, device, now());
                self.done(state, id);
            }
        });
    }

    /// The connection of a channel's memory is lost: that of channels which are on others.
    pub(super) fn settle_memory(state: &mut State, id: u32) {
        let on = state.chans.get(&id).and_then(|chan| chan.memory_on());
        if on.is_some_and(|on| state.is_drained(on)) {
            if let Some(chan) = state.chans.get_mut(&id) {
                chan.memory_left();
            }
        }
    }

    /// A connection that was forgotten before is drained.
    pub(super) fn is_drained_now(&self, state: &mut State, id: Conn) {
        let len = state.undrained.len();
        state.undrained.retain(|conn| *conn != id);
        if state.undrained.len() < len && self.0.role == Role::Server {
            state.walk_again(self.0.role);
        }
    }
}
