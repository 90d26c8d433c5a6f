// SPDX-License-Identifier: GPL-2.0

//! Keys of the peer's memory that this end has, and GETs.
//!
//! Where the devices at both ends can be trusted with RDMA READ, a GET maps a part of its buffer after the other, and
//! reads into it. Otherwise (soft-RoCE loses bytes) it is a push of the peer's kernel, which writes to a landing zone of
//! this side.

use ibmsg_proto::{
    channel::Conn,
    memory::{
        Get,
        GetStep,
        Handle,
        KeysError,
        OpOutcome,
        Range,
        Reading,
        Refusal, //
    },
    outcome::Cause,
    wire::{
        Ask,
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
    Remote,
    Target, //
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
    IDLE_GRID_US,
    IDLE_US,
    MAX_OPS,
    MAX_READS,
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
    /// This part, from this byte on, is to be mapped for a read.
    ToMap(Range, u64),
    Mapping,
    /// It is mapped, and not read into yet.
    Mapped(Target),
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
    /// What was to be read into is not mapped, or not any more.
    fn is_not_mapped(&mut self) {
        self.landing = Landing::None;
        self.get.not_mapped();
    }

    /// It goes on no more, and the peer writes nothing to its buffer any more. What it reads itself still lands there.
    fn has_no_landing(&mut self) {
        self.landing = Landing::None;
        self.get.abandoned();
    }

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
                op.has_no_landing();
            }
        }
    }

    /// Whether a READ is under way: the peer must not be told that nothing follows, as it then invalidates its keys, which
    /// the READ may not have used yet.
    pub(crate) fn is_reading(&self) -> bool {
        self.reads > 0
    }

    /// Goes on with GETs. `is_ending`: the channel has ended, or is about to; `is_over`: the peer sends nothing any more, and
    /// writes nothing.
    pub(super) fn advance_gets(
        &mut self,
        device: Option<(Conn, &dyn Device)>,
        (is_ending, is_over): (bool, bool),
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
            // Another one is the first to have its turn each time.
            self.turn = self.turn.wrapping_add(1);
            let (turn, len) = (self.turn, self.gets.len());
            for at in 0..len {
                let at = turn.wrapping_add(at) % len;
                self.step_get(at, (on, device), (is_ending, is_over), course.now);
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
            Landing::Wanted(..) => op.has_no_landing(),
            // Nor has the device.
            Landing::ToMap(..) | Landing::Mapped(_) => op.is_not_mapped(),
            Landing::None if op.get.is_reading() => course.wait_for_device(&mut op.patience),
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
            Landing::None | Landing::Mapping | Landing::Busy(..) | Landing::Gone => {}
        }
    }

    fn step_get(
        &mut self,
        at: usize,
        (on, device): (Conn, &dyn Device),
        ends: (bool, bool),
        now: u64,
    ) {
        let (is_ending, is_over) = ends;
        let asked = self.gets.iter().filter(|op| op.get.is_requested()).count();
        let is_orphan = self.gets.get(at).is_none_or(|op| op.is_orphan);
        let may_ask = asked < self.most_gets && !is_orphan && !is_over;
        // Used only if there is a request.
        let id = may_ask.then(|| self.next_request());
        let reading = match !is_orphan && !is_ending && !is_over && device.can_read() {
            true if self.reads >= MAX_READS => Reading::Later,
            true if now < self.asks_not_until => Reading::WithKey,
            true => Reading::Now,
            false => Reading::No,
        };
        if (id.is_some() || reading != Reading::No) && !self.begins_on(on) {
            return;
        }
        let channel = self.channel;
        let Some(op) = self.gets.get_mut(at) else {
            return;
        };
        if is_orphan && !op.get.is_posted() {
            return;
        }
        let handle = op.get.handle();
        match op.get.step(&mut self.keys, id, reading) {
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
                self.step_get(at, (on, device), ends, now);
            }
            GetStep::Ended(refused) if !is_orphan => {
                op.is_orphan = true;
                if let Landing::Mapped(_) = op.landing {
                    op.has_no_landing();
                }
                let number = op.number;
                let outcome = match refused {
                    None => OpOutcome::Done,
                    Some(_) => OpOutcome::NotDone,
                };
                self.end_op(number, told(outcome, refused, Cause::Closed));
            }
            GetStep::Ask(piece) => self.queue(MemoryRecord::Ask(Ask {
                channel,
                handle,
                piece,
            })),
            GetStep::Return(handle, piece) => {
                self.queue(MemoryRecord::Return(Return {
                    channel,
                    handle,
                    piece: Some(piece),
                }));
                self.step_get(at, (on, device), ends, now);
            }
            GetStep::Map { part, to } => op.landing = Landing::ToMap(part, to),
            GetStep::Read {
                rkey, addr, place, ..
            } => {
                let cookie = Cookie::Get(op.number, place).to_bits(channel);
                if let Landing::Mapped(target) = core::mem::replace(&mut op.landing, Landing::None)
                {
                    self.reads += 1;
                    device.read(target, Remote { addr, rkey }, cookie);
                }
                self.step_get(at, (on, device), ends, now);
            }
            GetStep::Ended(_) | GetStep::Wait => {}
        }
    }

    /// A part of a GET was read, with the key at `place`.
    pub(super) fn was_read(&mut self, number: u32, place: usize) {
        self.reads = self.reads.saturating_sub(1);
        let mut gets = self.gets.iter_mut();
        match gets.find(|op| op.number == number) {
            Some(op) => op.get.completed(&mut self.keys, place),
            None => self.keys.done(place),
        }
        self.end_gets();
    }

    /// A part of the buffer of a GET is mapped, or cannot be.
    pub(super) fn get_is_mapped(&mut self, number: u32, target: Result<Target>) {
        let op = self.get_op(number);
        let Some(op) = op.filter(|op| matches!(op.landing, Landing::Mapping)) else {
            return;
        };
        match target {
            Ok(target) if !op.is_orphan => {
                op.landing = Landing::Mapped(target);
                op.get.mapped();
            }
            _ => op.is_not_mapped(),
        }
        self.end_gets();
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
                (false, true) => op.has_no_landing(),
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
            op.has_no_landing();
        }
        Ok(())
    }

    /// Whether there is one.
    pub(super) fn wants_landing(&self) -> bool {
        self.gets
            .iter()
            .any(|op| matches!(op.landing, Landing::Wanted(..)))
    }

    /// Whether a part of a buffer is to be mapped for a read.
    pub(super) fn wants_target(&self) -> bool {
        self.gets
            .iter()
            .any(|op| matches!(op.landing, Landing::ToMap(..)))
    }

    /// The next one.
    pub(super) fn job_of_target(&mut self) -> Option<Job> {
        let era = self.era;
        let mut gets = self.gets.iter_mut();
        let op = gets.find(|op| matches!(op.landing, Landing::ToMap(..)))?;
        let Landing::ToMap(part, to) = op.landing else {
            return None;
        };
        op.landing = Landing::Mapping;
        Some(Job::MapGet {
            era,
            number: op.number,
            pages: op.pages.clone()?,
            from: usize::try_from(to).ok()?,
            len: usize::try_from(part.len()).ok()?,
        })
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
            // The channel leaves a connection that is being lost, and the GET begins again.
            Err(EAGAIN | ENOTCONN | EIO) => true,
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
                    op.get.abandoned();
                    return Self::close(op, channel, device);
                }
                self.queue(record);
            }
            Err(_) if op.is_orphan => op.has_no_landing(),
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
        // Somebody is about to use it.
        self.used_keys_at = now;
        if key.key != Err(Refusal::Resources) {
            return Ok(());
        }
        self.asks_not_until = now + IDLE_US;
        self.has_no_room(handle, piece);
        // What has taken too long is for the PUT to see.
        let is_over = self.put_waits && !self.key_lack.may_wait(now);
        if !is_over {
            self.keys.forget_refusal(handle, piece);
        }
        if self.put_waits && !is_over {
            self.ask_again = Some(now + PAUSE_US);
            self.needs_room = true;
        }
        Ok(())
    }

    /// The peer has no room for a key: GETs that have asked for it need none as pushes.
    fn has_no_room(&mut self, handle: Handle, piece: u64) {
        for op in self.gets.iter_mut().filter(|op| !op.is_orphan) {
            op.get.has_no_room(handle, piece);
        }
    }

    /// Returns the keys of a channel that has not used them for a while: they take resources of the peer, and keep the
    /// channel where it is.
    pub(super) fn return_idle_keys(&mut self, course: &mut Course) {
        let is_in_use =
            self.reads > 0 || self.writes > 0 || self.put_waits || !self.gets.is_empty();
        if is_in_use || core::mem::take(&mut self.has_used_keys) {
            self.used_keys_at = course.now;
        }
        if self.keys.is_empty() {
            return;
        }
        let until = self.used_keys_at.saturating_add(IDLE_US);
        if course.now < until {
            return course.looks_again_at(until.next_multiple_of(IDLE_GRID_US));
        }
        self.keys.forget_refusals();
        while self.keys.idle() > 0 {
            self.return_key();
        }
        // Until the peer has ended them.
        self.used_keys_at = course.now;
    }

    /// Keys of the peer's memory that are not in use.
    pub(crate) fn idle_keys(&self) -> usize {
        self.keys.idle()
    }

    /// Returns one of them, as another channel of the connection has none.
    pub(crate) fn give_up_key(&mut self, now: u64) {
        self.asks_not_until = now + IDLE_US;
        self.used_keys_at = now;
        self.return_key();
    }

    fn return_key(&mut self) {
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
