// SPDX-License-Identifier: GPL-2.0

//! Keys of the peer's memory that this end has, and GETs.
//!
//! A GET is a push of the peer's kernel: it writes to a landing zone of this side. (RDMA READ loses bytes on soft-RoCE.)

use ibmsg_proto::{
    channel::Conn,
    memory::{
        Get,
        GetStep,
        Handle,
        KeysError,
        OpOutcome,
        Range,
        Refusal, //
    },
    outcome::Cause,
    wire::{
        Get as GetRecord,
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
    Remote, //
};
use ibtrs_proto::Errno;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kx::user::UserPages;

use super::{
    ops::told,
    patience::{
        Course,
        Lack,
        Patience, //
    },
    refusal_of,
    Cookie,
    Job,
    Memory,
    Refused,
    MAX_OPS,
    PAUSE_US, //
};

/// A GET.
pub(super) struct GetOp {
    pub(super) number: u32,
    pub(super) get: Get,
    /// Where the bytes go; none if they will not be written any more.
    pages: Option<Arc<UserPages>>,
    landing: Landing,
    /// When its time is over.
    deadline: Option<u64>,
    /// It goes on no more: it has an outcome, the program has given it up, or the channel has ended.
    is_orphan: bool,
    /// For the answer, and for the device, when it goes on no more.
    patience: Patience,
}

/// The landing zone of a GET.
enum Landing {
    None,
    /// It is to be registered: for this part, from this byte on, for a record with this number.
    Wanted(Range, u64, u32),
    Busy(Range, u64, u32),
    /// The peer may write there.
    Open(Region),
    /// It is being invalidated.
    Closing,
    /// It was invalidated before the peer has answered. The answer is still awaited: until then, the peer counts the record.
    Gone,
}

impl GetOp {
    /// The channel has left its connection.
    pub(super) fn lost(&mut self) {
        self.get.lost();
        self.landing = Landing::None;
    }
}

impl Memory {
    /// Begins a GET of `range`, to all of `pages`.
    ///
    /// # Errors
    ///
    /// [`EAGAIN`]: there are as many as there may be.
    pub(crate) fn begin_get(
        &mut self,
        number: u32,
        handle: Handle,
        range: Range,
        pages: Arc<UserPages>,
        deadline: Option<u64>,
    ) -> Result {
        if self.gets.len() >= MAX_OPS {
            return Err(EAGAIN);
        }
        let op = GetOp {
            number,
            get: Get::new(handle, range),
            pages: Some(pages),
            landing: Landing::None,
            deadline,
            is_orphan: false,
            patience: Patience::new(),
        };
        self.gets.push_within_capacity(op).map_err(|_| EAGAIN)
    }

    /// Ends GETs whose time is over at `now`, as far as their programs are told. Returns when that of the next one is.
    pub(crate) fn expire_gets(&mut self, now: u64) -> Option<u64> {
        let mut next = None;
        for at in 0..self.gets.len() {
            let Some(op) = self.gets.get_mut(at).filter(|op| !op.is_orphan) else {
                continue;
            };
            match op.deadline {
                Some(deadline) if deadline <= now => {
                    op.is_orphan = true;
                    let number = op.number;
                    self.end_op(number, Err(Errno::ETIMEDOUT));
                    self.due = Some(now);
                }
                Some(deadline) => {
                    next = Some(next.map_or(deadline, |next: u64| next.min(deadline)))
                }
                None => {}
            }
        }
        next
    }

    /// Nobody waits for a GET any more. It ends when the peer cannot write to its buffer.
    pub(crate) fn give_up_get(&mut self, number: u32) {
        if let Some(op) = self.get_op(number) {
            op.is_orphan = true;
        }
    }

    fn get_op(&mut self, number: u32) -> Option<&mut GetOp> {
        self.gets.iter_mut().find(|op| op.number == number)
    }

    /// Removes GETs that go on no more and that the peer cannot write to.
    pub(super) fn end_gets(&mut self) {
        let has_ended =
            |op: &GetOp| op.is_orphan && !op.get.is_posted() && matches!(op.landing, Landing::None);
        while let Some(at) = self.gets.iter().position(has_ended) {
            if let Ok(op) = self.gets.remove(at) {
                // Unless it has an outcome already.
                self.end_op(op.number, told(OpOutcome::NotDone, None, Cause::Closed));
            }
        }
    }

    /// The channel has ended: GETs go on no more, and no answer comes.
    fn cancel_gets(&mut self) {
        for op in &mut self.gets {
            op.is_orphan = true;
            if let Landing::Gone = op.landing {
                op.lost();
            }
        }
    }

    /// Goes on with GETs. `is_over`: the peer sends nothing any more, and writes nothing.
    pub(super) fn advance_gets(
        &mut self,
        device: Option<(Conn, &dyn Device)>,
        is_over: bool,
        course: &mut Course,
    ) {
        if self.gets.is_empty() {
            return;
        }
        if is_over {
            self.cancel_gets();
            self.end_gets();
        }
        for at in 0..self.gets.len() {
            if let Some(op) = self.gets.get_mut(at).filter(|op| op.is_orphan) {
                Self::leave(
                    op,
                    self.channel,
                    device.map(|(_, device)| device),
                    is_over,
                    course,
                );
            }
        }
        if let Some((on, device)) = device {
            for at in 0..self.gets.len() {
                self.step_get(at, on, device, is_over);
            }
        }
        self.end_gets();
    }

    /// Lets go of the landing zone of a GET that goes on no more.
    fn leave(
        op: &mut GetOp,
        channel: u32,
        device: Option<&dyn Device>,
        is_over: bool,
        course: &mut Course,
    ) {
        match op.landing {
            // The peer has not been asked.
            Landing::Wanted(..) => op.lost(),
            Landing::Open(_) => {
                // After the end, no answer will come.
                if course.is_peer_late(&mut op.patience) || is_over {
                    if let Some(device) = device {
                        Self::close(op, channel, device);
                        course.turn_to_device(&mut op.patience);
                    }
                }
            }
            Landing::Closing => course.wait_for_device(&mut op.patience),
            Landing::None | Landing::Busy(..) | Landing::Gone => {}
        }
    }

    fn step_get(&mut self, at: usize, on: Conn, device: &dyn Device, is_over: bool) {
        let asked = self.gets.iter().filter(|op| op.get.is_requested()).count();
        let is_orphan = self.gets.get(at).is_none_or(|op| op.is_orphan);
        let may_ask = asked < self.most_gets && !is_orphan && !is_over;
        // Used only if there is a request.
        let id = may_ask.then(|| self.next_request());
        if id.is_some() && !self.begins_on(on) {
            return;
        }
        let Some(op) = self.gets.get_mut(at) else {
            return;
        };
        if is_orphan && !op.get.is_posted() {
            return;
        }
        match op.get.step(&mut self.keys, id, false) {
            GetStep::Request { part, to, id } => {
                op.landing = Landing::Wanted(part, to, id);
                self.request = id;
            }
            GetStep::Invalidate => {
                match op.landing {
                    Landing::Open(_) => return Self::close(op, self.channel, device),
                    // That has begun before the answer came.
                    Landing::Closing => return,
                    // It never had a key.
                    _ => op.landing = Landing::None,
                }
                op.get.invalidated();
                self.step_get(at, on, device, is_over);
            }
            GetStep::Ended(refused) if !is_orphan => {
                op.is_orphan = true;
                let number = op.number;
                let outcome = match refused {
                    None => OpOutcome::Done,
                    Some(_) => OpOutcome::NotDone,
                };
                self.end_op(number, told(outcome, refused, Cause::Closed));
            }
            // Pushes need no keys of the peer.
            GetStep::Ended(_)
            | GetStep::Wait
            | GetStep::Ask(_)
            | GetStep::Return(..)
            | GetStep::Map { .. }
            | GetStep::Read { .. } => {}
        }
    }

    /// Invalidates the landing key of a GET.
    fn close(op: &mut GetOp, channel: u32, device: &dyn Device) {
        if let Landing::Open(region) = core::mem::replace(&mut op.landing, Landing::Closing) {
            let cookie = Cookie::Landing(op.number).to_bits(channel);
            op.patience = Patience::new();
            device.invalidate(region, cookie);
        }
    }

    /// The landing key of a GET is invalid.
    pub(super) fn landing_is_closed(&mut self, number: u32) {
        if let Some(op) = self.get_op(number) {
            match (op.get.is_requested(), op.is_orphan) {
                // The buffer is not needed for it.
                (true, _) => (op.landing, op.pages) = (Landing::Gone, None),
                (false, true) => op.lost(),
                (false, false) => {
                    op.landing = Landing::None;
                    op.get.invalidated();
                }
            }
        }
        self.end_gets();
    }

    /// GOT has arrived.
    pub(super) fn got(&mut self, got: &Got) -> Result<(), Refused> {
        let mut gets = self.gets.iter_mut();
        // A landing zone that is still to be registered was not asked for.
        let asked = |op: &&mut GetOp| {
            matches!(
                op.landing,
                Landing::Open(_) | Landing::Closing | Landing::Gone
            ) && op.get.unanswered() == Some(got.id)
        };
        let op = gets.find(asked);
        let op = op.ok_or(Refused::Breach(KeysError::NoGet(got.id).as_str()))?;
        let _ = op.get.got(got.id, got.refused);
        if let Landing::Gone = op.landing {
            op.lost();
        }
        Ok(())
    }

    /// Whether there is one.
    pub(super) fn wants_landing(&self) -> bool {
        self.gets
            .iter()
            .any(|op| matches!(op.landing, Landing::Wanted(..)))
    }

    /// The next landing zone that is to be registered.
    pub(super) fn job_of_landing(&mut self) -> Option<Job> {
        let era = self.era;
        let mut gets = self.gets.iter_mut();
        let op = gets.find(|op| matches!(op.landing, Landing::Wanted(..)))?;
        let Landing::Wanted(part, to, id) = op.landing else {
            return None;
        };
        op.landing = Landing::Busy(part, to, id);
        Some(Job::Land {
            era,
            number: op.number,
            pages: op.pages.clone()?,
            from: usize::try_from(to).ok()?,
            len: usize::try_from(part.len()).ok()?,
            access: Access::RemoteWrite,
        })
    }

    /// A landing zone was registered, or not.
    pub(super) fn landed(
        &mut self,
        number: u32,
        region: Result<Region>,
        device: &dyn Device,
        now: u64,
    ) {
        let channel = self.channel;
        let is_again = match region {
            Ok(_) => {
                self.landing_lack = Lack::none();
                false
            }
            Err(EAGAIN) => true,
            // Others have all of them for a while.
            Err(e) => e == ENOBUFS && self.landing_lack.may_wait(now),
        };
        if is_again {
            self.pause = Some(now + PAUSE_US);
        }
        let Some(op) = self.get_op(number) else {
            return;
        };
        let Landing::Busy(part, to, id) = op.landing else {
            return;
        };
        match region {
            Ok(region) => {
                let Remote { addr, rkey } = region.remote();
                op.landing = Landing::Open(region);
                let record = MemoryRecord::Get(GetRecord {
                    channel,
                    id,
                    handle: op.get.handle(),
                    offset: part.start(),
                    // CAST: At most a piece.
                    len: part.len() as u32,
                    rkey,
                    addr,
                });
                if op.is_orphan {
                    // The peer does not know of it, and does not answer.
                    op.get.lost();
                    return Self::close(op, channel, device);
                }
                self.queue(record);
            }
            Err(_) if op.is_orphan => op.lost(),
            // It is tried again.
            Err(_) if is_again => op.landing = Landing::Wanted(part, to, id),
            // It cannot be told apart from a peer that cannot do it.
            Err(e) => {
                op.landing = Landing::None;
                let _ = op.get.got(id, Some(refusal_of(e)));
            }
        }
    }

    /// KEY has arrived. If the peer has no region for it, that is no answer yet: the keys that channels of the connection keep
    /// for later are the first to go, and the piece is asked for again.
    pub(super) fn key_arrived(&mut self, key: &KeyRecord, now: u64) -> Result<(), Refused> {
        let KeyRecord { handle, piece, .. } = *key;
        let answered = self.keys.answered(handle, piece, key.key);
        answered.map_err(|e| Refused::Breach(e.as_str()))?;
        match key.key {
            Err(Refusal::Resources) if self.key_lack.may_wait(now) => {
                self.keys.forget_refusal(handle, piece);
                self.ask_again = Some(now + PAUSE_US);
                self.needs_room = true;
            }
            _ => self.key_lack = Lack::none(),
        }
        Ok(())
    }

    /// Keys of the peer's memory that are not in use.
    pub(crate) fn idle_keys(&self) -> usize {
        self.keys.idle()
    }

    /// Returns one of them, as another channel of the connection has none.
    pub(crate) fn give_up_key(&mut self) {
        if let Some((handle, piece)) = self.keys.give_up() {
            self.queue(MemoryRecord::Return(Return {
                channel: self.channel,
                handle,
                piece: Some(piece),
            }));
        }
    }

    /// REVOKE has arrived.
    pub(super) fn is_revoked(&mut self, handle: Handle) -> Result<(), Refused> {
        self.keys.revoked(handle);
        if self.revoked.contains(&handle) {
            return Ok(());
        }
        let pushed = self.revoked.push_within_capacity(handle);
        pushed.map_err(|_| Refused::Breach("more handles are revoked than keys were given"))
    }

    /// RETURN for the next handle that no work request uses. `counts`: it was sent.
    pub(super) fn next_return(&mut self, counts: bool) -> Option<MemoryRecord> {
        let keys = &mut self.keys;
        let mut revoked = self.revoked.iter();
        let at = revoked.position(|handle| keys.may_return(*handle))?;
        let handle = *self.revoked.get(at)?;
        if counts {
            let _ = self.revoked.remove(at);
        }
        Some(MemoryRecord::Return(Return {
            channel: self.channel,
            handle,
            piece: None,
        }))
    }
}
