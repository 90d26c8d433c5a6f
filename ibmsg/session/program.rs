// SPDX-License-Identifier: GPL-2.0

//! What programs do with the channels of a session.

use core::mem::MaybeUninit;
use ibmsg_proto::{
    channel::{
        Channel,
        Conn, //
    },
    limits::FIRST,
    receive::Due, //
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

use super::{
    Seat,
    Side,
    State, //
};
use crate::{
    channel::{
        Answered,
        Begun,
        CallTable,
        CallTimes,
        Caller,
        Calls,
        Chan,
        Reserved,
        Sent,
        Take,
        Taken, //
    },
    limits::{
        self,
        Accounts, //
    },
    memory,
    types::{
        now,
        Body,
        Header,
        Name,
        Terms,
        MAX_DATA, //
    }, //
};

/// What a program can know about a channel.
pub(crate) struct Info {
    pub(crate) state: u32,
    /// It has a connection now.
    pub(crate) is_connected: bool,
    pub(crate) portal: Name,
    pub(crate) terms: Terms,
    pub(crate) peer_max_message: u32,
    pub(crate) peer_messages: u32,
    pub(crate) next_len: usize,
    pub(crate) waiting: usize,
    pub(crate) unacknowledged: usize,
    pub(crate) moves: u32,
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) queued: u64,
    pub(crate) taken: u64,
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Calls of this program that have a reply.
    pub(crate) answered: CallTimes,
    /// Requests to which it has replied.
    pub(crate) served: CallTimes,
}

/// What the portal has said to a program that waits for it.
pub(crate) struct Answer {
    /// Why it has refused, if it has.
    pub(crate) refused: Option<u16>,
    pub(crate) data: [u8; MAX_DATA],
    pub(crate) len: usize,
}

impl Side {
    /// Opens a channel to a portal, which counts for a user and `accounts`. `tells`: the program does not wait.
    /// Returns the channel's number.
    ///
    /// # Errors
    ///
    /// [`EDQUOT`], [`ENOBUFS`] and [`ENOMEM`] for limits; [`ENODEV`]: the session has ended;
    /// [`EOPNOTSUPP`]: the other machine takes no message connections.
    pub(crate) fn open(
        &self,
        uid: u32,
        accounts: &Accounts,
        portal: Name,
        terms: Terms,
        data: KVec<u8>,
        tells: bool,
    ) -> Result<(u32, Arc<WaitQueue>)> {
        // Whether the other machine has memory for channels is not known yet.
        let bytes = terms.memory() + memory::charge(self.memory_terms().is_some());
        let charge = self.0.limits.charge(uid, bytes, accounts);
        let charge = charge.inspect_err(|denied| limits::refuse(accounts, denied.reason()))?;
        let wake = Arc::pin_init(kx::new_wait_queue!("Chan::wake"), GFP_KERNEL)?;
        let seat = Seat::new(GFP_KERNEL_ACCOUNT)?;
        let place = KVec::with_capacity(MAX_DATA, GFP_KERNEL_ACCOUNT)?;
        let slots = Calls::slots(terms.window.calls())?;
        let bodies = self.place_for_bodies(&terms)?;
        let garbage;
        let mut state = self.0.state.lock();
        if state.is_over || state.is_closing {
            return Err(ENODEV);
        }
        if state.conns.is_empty() && !state.is_supported {
            return Err(EOPNOTSUPP);
        }
        Self::reserve(&mut state)?;
        let id = Self::free_number(&state);
        let conn = state.least_used().map(|(conn, _)| conn);
        // Without a connection, the channel begins on none, and moves to the first one that comes.
        let nowhere = Conn { epoch: 0, cid: 0 };
        let on = conn.unwrap_or(nowhere);
        let window = terms.window.with_memory(self.memory_terms_for(&terms));
        let mut proto = Channel::opening(id, on, window, terms.limits, FIRST);
        if conn.is_none() {
            proto.lost(nowhere);
        }
        let mut chan = Chan::new(proto, portal, terms, wake.clone(), Some(charge));
        chan.open(data, place, tells, conn.is_some());
        chan.serve_calls(slots);
        chan.memory = bodies;
        Self::insert(&mut state, seat, chan);
        state.last = id;
        self.done(&mut state, id);
        garbage = core::mem::take(&mut state.garbage);
        drop(state);
        drop(garbage);
        Ok((id, wake))
    }

    /// A number for another channel. It is not 0, and as old as possible: when all were used, the server
    /// refuses those that it still has.
    fn free_number(state: &State) -> u32 {
        let mut id = state.last;
        // There are fewer channels than numbers.
        loop {
            id = id.wrapping_add(1);
            if id != 0 && state.chans.get(&id).is_none() {
                return id;
            }
        }
    }

    /// Looks after a channel with which a program has done something.
    pub(super) fn done(&self, state: &mut State, id: u32) {
        let now = now();
        self.attend(state, id, now);
        self.step(state, now);
    }

    /// Calls a function for a channel that a program has.
    pub(super) fn with<R>(&self, id: u32, f: impl FnOnce(&mut Chan) -> R) -> Option<R> {
        let mut state = self.0.state.lock();
        state.chans.get_mut(&id).map(|chan| f(chan))
    }

    /// The same, and looks after the channel.
    pub(super) fn change<R>(&self, id: u32, f: impl FnOnce(&mut Chan) -> R) -> Option<R> {
        self.locked(|state| {
            let result = state.chans.get_mut(&id).map(|chan| f(chan))?;
            self.done(state, id);
            Some(result)
        })
    }

    /// How the portal has answered; none if it has not.
    pub(crate) fn answer(&self, id: u32) -> Option<Answer> {
        self.with(id, |chan| {
            let (begun, body) = chan.begun();
            let refused = match begun {
                Begun::No => return None,
                Begun::Open => None,
                Begun::Refused(errno) => Some(u16::try_from(errno.get()).unwrap_or(0)),
            };
            let mut answer = Answer {
                refused,
                data: [0; MAX_DATA],
                // CAST: Lossless.
                len: body.len() as usize,
            };
            if let Some(data) = answer.data.get_mut(..answer.len) {
                body.copy_out(0, data);
            }
            Some(answer)
        })
        .flatten()
    }

    /// The program that waited for the portal has its answer.
    pub(crate) fn forget_answer(&self, id: u32) {
        let _ = self.with(id, Chan::forget_answer);
    }

    /// Allocates what the next message of a channel's program needs.
    ///
    /// # Context
    ///
    /// *may sleep*
    ///
    /// # Errors
    ///
    /// [`ENOMEM`], [`EPIPE`]
    pub(crate) fn grow(&self, id: u32) -> Result {
        let needs = self.with(id, |chan| (chan.needs(), chan.lack_of_calls()));
        let (needs, calls) = needs.ok_or(EPIPE)?;
        let mut spares = needs.allocate(GFP_KERNEL_ACCOUNT)?;
        let mut table = CallTable::new(calls.unwrap_or(0))?;
        let grown = self.with(id, |chan| {
            chan.extend(&mut spares);
            chan.extend_calls(&mut table);
        });
        grown.ok_or(EPIPE)
    }

    /// What `poll` says about a channel.
    pub(crate) fn poll(&self, id: u32) -> Ready {
        self.with(id, Chan::poll).unwrap_or(Ready::HUP)
    }

    /// Takes what a program can read, if it has room for it. The program has got `former`.
    ///
    /// As long as there is more, the channel is looked after only if the peer is to be told of credits, or no time is
    /// set for that.
    pub(crate) fn take(&self, id: u32, former: Option<Taken>, room: usize) -> Take {
        self.locked(|state| {
            let Some(chan) = state.chans.get_mut(&id) else {
                return Take::End;
            };
            let has_taken = former.is_some();
            if let Some(former) = former {
                chan.took(former);
            }
            let take = chan.take(room);
            if has_taken {
                let is_due = match (&take, chan.due(now())) {
                    (Take::Item(_), Due::Never) => false,
                    (Take::Item(_), Due::At(_)) => !chan.is_timed,
                    _ => true,
                };
                if is_due {
                    self.done(state, id);
                }
            }
            take
        })
    }

    /// The program has got it.
    pub(crate) fn took(&self, id: u32, taken: Taken) {
        let _ = self.change(id, |chan| chan.took(taken));
    }

    /// The program has not got it.
    pub(crate) fn put_back(&self, id: u32, taken: Taken) {
        // Credits of what was taken before may be due.
        let _ = self.change(id, |chan| chan.put_back(taken));
    }

    /// Reserves a place for a message.
    ///
    /// # Errors
    ///
    /// See [`Chan::reserve`].
    pub(crate) fn reserve_message(
        &self,
        id: u32,
        header: &Header,
        caller: Caller,
    ) -> Result<Reserved> {
        let now = now();
        let reserved = self.with(id, |chan| {
            let was_waiting = chan.gather.until().is_some();
            let reserved = chan.reserve(header, caller, now);
            (reserved, was_waiting && chan.gather.until().is_none())
        });
        let (reserved, is_released) = reserved.ok_or(EPIPE)?;
        if is_released {
            self.flush(id);
        }
        reserved
    }

    /// Sets for how many bytes and microseconds messages wait for others.
    ///
    /// # Errors
    ///
    /// [`EINVAL`]; [`EPIPE`] if the channel has gone.
    pub(crate) fn tune(&self, id: u32, watermark: u32, wait_us: u32) -> Result {
        let is_legal = self.with(id, |chan| chan.gather.tune(watermark, wait_us));
        match is_legal.ok_or(EPIPE)? {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }

    /// Sends the messages that wait for others.
    pub(crate) fn flush(&self, id: u32) {
        let _ = self.change(id, Chan::flush);
    }

    /// Attaches the command that makes a call.
    pub(crate) fn attach_call(&self, id: u32, call: u64, command: Command) {
        // Without the channel, it is dropped, and so fails.
        let _ = self.with(id, |chan| chan.attach_call(call, command));
    }

    /// The command that makes a call is to end at once. Returns it, if it is the caller's to complete.
    pub(crate) fn cancel_call(&self, id: u32, call: u64) -> Option<Command> {
        self.change(id, |chan| chan.cancel_call(call)).flatten()
    }

    /// Takes the answer to a call of a task or command.
    pub(crate) fn take_answer(&self, id: u32, call: u64) -> Option<Answered> {
        match self.with(id, |chan| chan.take_answer(call)) {
            Some(answer) => answer,
            None => Some(Answered::Errno(Errno::ECONNABORTED)),
        }
    }

    /// The task or command has the answer to its call, which has `len` bytes.
    pub(crate) fn took_answer(&self, id: u32, call: u64, len: u32) {
        let _ = self.change(id, |chan| chan.took_answer(call, len));
    }

    /// The task does not wait for the answer to its call any longer. Returns the answer if it has just come.
    pub(crate) fn give_up_call(&self, id: u32, call: u64) -> Option<Answered> {
        self.change(id, |chan| chan.give_up_call(call)).flatten()
    }

    /// Gives up a place.
    pub(crate) fn cancel(&self, id: u32, reserved: Reserved) {
        // What is published may have waited for its room.
        let _ = self.change(id, |chan| chan.cancel(reserved));
    }

    /// Sends a message, at once unless it is [gathered](Chan::gathers): then a work item sends it soon, with what was
    /// written until then, or what is sent next does.
    ///
    /// # Errors
    ///
    /// See [`Chan::commit`].
    pub(crate) fn send(
        &self,
        id: u32,
        reserved: Reserved,
        body: Body,
        place: KBox<MaybeUninit<Sent>>,
    ) -> Result {
        let kind = reserved.about.kind;
        self.locked(|state| {
            let chan = state.chans.get_mut(&id).ok_or(EPIPE)?;
            let result = chan.commit(reserved, body, place);
            let is_gathered = result.is_ok() && chan.gathers(kind);
            let now = now();
            self.attend(state, id, now);
            // Its time may be over by now, or something else is due.
            let chan = state.chans.get_mut(&id);
            let is_held = chan.is_some_and(|chan| chan.holds_the_rest() && chan.ready_on.is_none());
            match is_gathered {
                // The timer sends it, or the next message.
                _ if is_held => {}
                true => {
                    self.0.more.enqueue(self.0.clone());
                }
                false => self.step(state, now),
            }
            result
        })
    }

    /// The program writes no more and takes no more.
    pub(crate) fn shut_down(&self, id: u32) {
        // What was not read is dropped here, without the lock.
        let _ = self.change(id, Chan::close);
    }

    /// The program has gone.
    pub(crate) fn release(&self, id: u32) {
        let _ = self.change(id, Chan::release);
    }

    /// What there is to know about a channel.
    pub(crate) fn info(&self, id: u32) -> Option<Info> {
        self.with(id, |chan| {
            let (taken, queued) = chan.progress();
            let (waiting, unacknowledged) = chan.queued();
            let counts = chan.counts;
            let (answered, served) = chan.call_times();
            Info {
                state: chan.state(),
                is_connected: chan.proto.conn().is_some(),
                portal: chan.portal,
                terms: chan.terms,
                peer_max_message: chan.peer.map_or(0, |peer| peer.max_message()),
                peer_messages: chan.peer.map_or(0, |peer| peer.messages()),
                next_len: chan.next_len(),
                waiting,
                unacknowledged,
                moves: counts.moves,
                sent: counts.sent,
                sent_bytes: counts.sent_bytes,
                queued,
                taken,
                received: counts.received,
                received_bytes: counts.received_bytes,
                answered,
                served,
            }
        })
    }
}
