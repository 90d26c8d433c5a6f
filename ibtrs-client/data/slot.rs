// SPDX-License-Identifier: GPL-2.0

//! The life of a request in flight: one slot for each chunk of the server.
//!
//! A request ends when its memory is no longer in use:
//!
//! - a read, when the server has answered and the key is invalid: invalidated by the server, if our
//!   own device confirms that, otherwise by us;
//! - a write from its own memory, when the server has answered and the message was acknowledged,
//!   because the device may retransmit it until then;
//! - a write with more pieces than one message can have, or whose data the server fetches, through
//!   a registration, when the server has answered and the registration is invalidated;
//! - a request whose data is copied through an [`IoBuffer`], when the server has
//!   answered: neither the server nor the device ever knew its memory.
//!
//! The memory of a request that was cancelled before the server answered is no longer accessible:
//! see [`cancel`].
//!
//! A request is removed from its slot under the slot's lock, so it ends only once. When the path is
//! torn down, unanswered requests are removed with everything that is needed to resend them: see
//! [`take`].

use crate::{
    data::{
        con::Con,
        io_buffer::IoBuffer,
        link::Link,
        plan::Data,
        stats::Timer,
        wire::Wire, //
    },
    types::{
        Descriptor,
        Dir,
        MAX_USER_HDR, //
    }, //
};
use ibtrs_core::{
    convert,
    trace, //
};
use ibtrs_proto::{
    consts::MAX_REQUEST_HDR_LEN,
    errno::Errno,
    keys::{
        Bogus,
        Key,
        Revoked, //
    },
    msg::{
        Chunk,
        ServerTimes,
        Trailer, //
    }, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        lock::{
            Backend,
            Guard, //
        },
        Arc,
        SpinLockIrq, //
    },
    time::{
        Instant,
        Monotonic, //
    }, //
};
use kx::{
    io::IoHandle,
    sync::{
        atomic::Relaxed,
        PercpuArc, //
    }, //
};
use rdma::{
    dma::{
        Direction,
        DmaBuf,
        MappedIo, //
    },
    mr::IoMr,
    pd::Pd,
    qp::{
        QpRef,
        QueuePair, //
    },
    sendq::Signal,
    sge::Remote,
    slot::{
        Kind,
        SlotRef, //
    },
};

/// The request slot of a tag: its header buffer, memory region and chunk, and the request in flight, if any.
#[pin_data]
pub(crate) struct ReqSlot {
    #[pin]
    pub(super) inner: SpinLockIrq<ReqSlotInner>,
    /// The buffer for the data of small requests, if the tag has one.
    pub(super) io_buffer: Option<IoBuffer>,
}

pub(super) struct ReqSlotInner {
    pub(super) mr: IoMr,
    pub(super) hdr: DmaBuf,
    pub(super) chunk: Remote,
    pub(super) in_flight: Option<InFlight>,
}

/// A request in flight, or one that is over.
pub(crate) struct InFlight {
    /// `None` while a cancelled request is reported to its users.
    pub(super) io: Option<Carried>,
    /// The user header is at the beginning of the slot's header buffer.
    pub(super) request: Descriptor,
    pub(super) timer: Timer,
    /// The server has not answered yet.
    pub(super) unanswered: bool,
    /// The device may still send the message from the request's memory.
    pub(super) unsent: bool,
    /// Number of messages received on the connection when the request was submitted.
    pub(super) messages: u64,
    /// State of the region's key: whether the server or the device may still use it.
    pub(super) key: Key,
    /// The request was cancelled.
    pub(super) cancelled: bool,
    pub(super) result: Result,
    /// The answer ends with the server's times.
    pub(super) timed: bool,
    /// The server's times, as the answer has them.
    pub(super) times: Option<u32>,
    /// The number of the server's upper layer at the end of the answer.
    pub(super) trailer: Option<u32>,
}

pub(super) enum Carried {
    Mapped(MappedIo),
    /// The data goes through the slot's [`IoBuffer`].
    Buffered(IoHandle),
    /// No data, or none that the device knows any more.
    Plain(IoHandle),
}

impl Carried {
    pub(super) fn map(
        pd: &Pd,
        submit_bytes: u32,
        dir: Dir,
        io: IoHandle,
    ) -> Result<Self, (Error, IoHandle)> {
        if submit_bytes == 0 {
            return Ok(Self::Plain(io));
        }
        let dir = match dir {
            Dir::Read => Direction::FromDevice,
            Dir::Write => Direction::ToDevice,
        };
        MappedIo::new(pd, io, dir).map(Self::Mapped)
    }

    /// Returns the properties of the data on which the plan of the request depends.
    #[inline]
    pub(super) fn data(&self) -> Data {
        match self {
            Self::Mapped(io) => Data::Mapped(io.nents()),
            Self::Buffered(_) => Data::Buffered,
            Self::Plain(_) => Data::None,
        }
    }

    /// Returns the number of scatter list elements as the device sees them.
    pub(super) fn nents(&self) -> u32 {
        match self {
            Self::Mapped(io) => io.nents(),
            Self::Buffered(_) => 1,
            Self::Plain(_) => 0,
        }
    }

    fn is_wanted(&self) -> bool {
        match self {
            Self::Mapped(io) => io.is_wanted(),
            Self::Buffered(io) | Self::Plain(io) => io.is_wanted(),
        }
    }

    fn is_cancelled(&self) -> bool {
        match self {
            Self::Mapped(io) => io.is_cancelled(),
            Self::Buffered(io) | Self::Plain(io) => io.is_cancelled(),
        }
    }

    #[inline(always)]
    pub(super) fn release(self, pd: &Pd) -> IoHandle {
        match self {
            Self::Mapped(io) => io.unmap(pd),
            Self::Buffered(io) | Self::Plain(io) => io,
        }
    }
}

impl InFlight {
    /// Stops counting the request as one in flight.
    pub(super) fn uncount(&self, link: &Link) {
        if self.request.counted {
            link.inflight.fetch_sub(1, Relaxed);
        }
    }

    fn is_over(&self) -> bool {
        !self.unanswered && self.is_released() && self.io.is_some()
    }

    /// Returns whether the request was cancelled, and can end for its users although the server has not
    /// answered.
    fn may_be_reported(&self) -> bool {
        self.cancelled && self.unanswered && self.is_released()
    }

    /// Returns whether neither the server nor the device needs the request's memory any more.
    fn is_released(&self) -> bool {
        !self.unsent && self.key.is_dead()
    }
}

impl ReqSlot {
    /// Returns whether a request is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.inner.lock().in_flight.is_some()
    }

    /// Returns when the request in flight was submitted, if it is unanswered.
    pub(crate) fn unanswered_since(&self) -> Option<Instant<Monotonic>> {
        let inner = self.inner.lock();
        let in_flight = inner.in_flight.as_ref();
        let unanswered = in_flight.filter(|in_flight| in_flight.unanswered);
        unanswered.map(|in_flight| in_flight.timer.began())
    }

    /// Returns whether an unanswered request is in flight whose users no longer want its result.
    pub(crate) fn is_unwanted(&self) -> bool {
        let inner = self.inner.lock();
        let in_flight = inner
            .in_flight
            .as_ref()
            .filter(|in_flight| in_flight.unanswered);
        let io = in_flight.and_then(|in_flight| in_flight.io.as_ref());
        io.is_some_and(|io| !io.is_wanted())
    }

    /// Creates the slot of `chunk`.
    pub(crate) fn new(
        Memory { mr, hdr }: Memory,
        chunk: Chunk,
        io_buffer: Option<IoBuffer>,
    ) -> impl PinInit<Self, Error> {
        let inner = ReqSlotInner {
            mr,
            hdr,
            chunk: Remote {
                addr: chunk.addr,
                rkey: chunk.rkey,
            },
            in_flight: None,
        };
        try_pin_init!(Self {
            inner <- new_spinlock_irq!(inner, "ReqSlot::inner"),
            io_buffer,
        }? Error)
    }

    /// Returns the buffer for the data of a request, if the data goes through one.
    pub(super) fn buffer_for(&self, wire: &Wire, req: &Descriptor) -> Option<&IoBuffer> {
        match req.dir {
            Dir::Write if !wire.is_pushed(req) => None,
            _ => self.buffer(req),
        }
    }

    /// As [`Self::buffer_for`], of a request that takes its data to the server, or has none to take.
    #[inline]
    pub(super) fn buffer(&self, req: &Descriptor) -> Option<&IoBuffer> {
        let buffer = self.io_buffer.as_ref();
        buffer.filter(|buffer| req.bytes > 0 && buffer.takes(req))
    }
}

/// Device resources of a slot.
pub(crate) struct Memory {
    mr: IoMr,
    hdr: DmaBuf,
}

impl Memory {
    /// Allocates the memory region and the header buffer of a slot.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; errors of the device's driver.
    pub(crate) fn new(pd: &Arc<Pd>, wire: &Wire) -> Result<Self> {
        Ok(Self {
            mr: IoMr::new(pd, wire.mr_pages)?,
            hdr: DmaBuf::new(pd, MAX_USER_HDR + MAX_REQUEST_HDR_LEN)?,
        })
    }
}

/// Returns the request in flight, unless the server has answered it.
fn unanswered(in_flight: &mut Option<InFlight>) -> Option<&mut InFlight> {
    in_flight.as_mut().filter(|in_flight| in_flight.unanswered)
}

impl ReqSlotInner {
    /// Removes the request from its slot if it has ended.
    #[inline(always)]
    fn finish(&mut self, qp: &QueuePair<Con>) -> Option<InFlight> {
        let over = self.in_flight.take_if(|in_flight| in_flight.is_over())?;
        let (request, result) = (&over.request, over.result);
        let link = qp.handler().link();
        over.uncount(link);
        qp.handler().release_credit();
        let stats = &link.stats;
        let ns = stats.ended(request.dir, &over.timer, request.cid);
        if request.failover != 0 {
            let control = qp.handler().control();
            control.moved_request_answered(request.failover);
        }
        trace::client_complete(|| {
            let error = result.err().map_or(0, Error::to_errno);
            let times = over.times.map(ServerTimes::decode);
            let (queue_ns, disk_ns) = trace::shares(times);
            (
                link.env.name(),
                &link.names.path,
                request.tag.get(),
                error,
                ns,
                queue_ns,
                disk_ns,
            )
        });
        Some(over)
    }
}

impl InFlight {
    /// Completes a request that has ended and was removed from `slot`, which must not be reused before that; `qp` is a
    /// connection of its path.
    ///
    /// # Context
    ///
    /// Any but hardirq; under no lock.
    // Into the ways of answers, which then move no more of a request than its end needs.
    #[inline(always)]
    pub(crate) fn end(self, slot: &SlotRef<'_, Con>, qp: &QueuePair<Con>) {
        // There is one in each request that is over.
        let Some(carried) = self.io else {
            return;
        };
        let is_read = self.request.dir == Dir::Read && self.result.is_ok();
        let is_in_buffer = is_read && matches!(carried, Carried::Buffered(_));
        let (mut io, mut result) = (carried.release(qp.pd()), self.result);
        if is_in_buffer {
            let buffer = slot.io_buffer.as_ref().ok_or(EIO);
            let copied = buffer.and_then(|buffer| buffer.copy_to(&mut io, self.request.bytes));
            result = copied.map_err(|_| EIO);
        }
        // A user of trailers needs to know which path has damaged a request.
        if self.trailer.is_some() || result == Err(EBADMSG) {
            io.note_answer(self.trailer, qp.handler().link().epoch);
        }
        io.done(result);
    }
}

/// An answer from the server.
pub(crate) struct Answer {
    /// The connection on which the answer arrived.
    pub(crate) cid: u16,
    /// The error; 0 for success.
    pub(crate) errno: u16,
    /// The keys that the server invalidated on that connection just before.
    pub(crate) revoked: Revoked,
    /// Number of the message that invalidated it.
    pub(crate) revoked_at: u64,
    /// The new key of the chunk, if it has changed.
    pub(crate) rkey: Option<u32>,
    /// The trailer of the answer.
    pub(crate) trailer: Trailer,
}

/// Why an answer is refused: the server has broken the protocol.
pub(crate) enum Stray {
    /// No request waits for an answer.
    Unasked,
    /// The request was sent on this other connection, and may still be on its way there.
    Elsewhere(u16),
    /// A wrong key was invalidated before the answer.
    Bogus(Bogus),
}

/// Handles the server's answer to the request of `slot`.
///
/// # Errors
///
/// The answer is refused: the caller fails the path, and the request then fails over.
#[inline]
pub(crate) fn answered(
    qp: &QpRef<'_, Con>,
    slot: SlotRef<'_, Con>,
    answer: &Answer,
) -> Result<(), Stray> {
    let mut guard = slot.inner.lock();
    let inner = &mut *guard;
    let Some(in_flight) = unanswered(&mut inner.in_flight) else {
        return Err(Stray::Unasked);
    };
    if in_flight.request.cid != answer.cid {
        return Err(Stray::Elsewhere(in_flight.request.cid));
    }
    let revoked = answer.revoked.since(answer.revoked_at, in_flight.messages);
    let step = revoked.and_then(|revoked| in_flight.key.answered(inner.mr.rkey(), revoked));
    let step = step.map_err(Stray::Bogus)?;
    in_flight.key = step.next;
    in_flight.unanswered = false;
    (in_flight.trailer, in_flight.times) = answer.trailer.parts(in_flight.timed);
    if let Some(errno) = Errno::from_imm(answer.errno) {
        in_flight.result = Err(convert::error(errno));
    }
    if let Some(rkey) = answer.rkey {
        inner.chunk.rkey = rkey;
    }
    let invalidated = match step.invalidate {
        true => invalidate(qp, slot, inner.mr.rkey()),
        false => Ok(()),
    };
    let over = inner.finish(qp);
    drop(guard);
    if let Some(over) = over {
        over.end(&slot, qp);
    }
    if let Err(error) = invalidated {
        // The request ends when the path is torn down.
        qp.handler().error(fmt!(
            "cannot invalidate a key ({})",
            convert::errno(error).as_str()
        ));
    }
    Ok(())
}

/// Posts a local invalidation of the key of `slot`'s request; its completion calls [`invalidated`].
#[inline(never)]
fn invalidate(qp: &QueuePair<Con>, slot: SlotRef<'_, Con>, rkey: u32) -> Result {
    qp.invalidate(rkey, Signal::Slot(slot, Kind::Other))
}

/// Handles the acknowledgement of the message of `slot`.
pub(crate) fn sent(qp: &QpRef<'_, Con>, slot: SlotRef<'_, Con>) {
    advance(qp, slot, |in_flight| in_flight.unsent = false);
}

/// Handles the completion of the local invalidation that the request of `slot` has posted. The
/// request stays in its slot until then, so the completion is never attributed to another request.
pub(crate) fn invalidated(qp: &QpRef<'_, Con>, slot: SlotRef<'_, Con>) {
    advance(qp, slot, |in_flight| {
        in_flight.key = in_flight.key.invalidated()
    });
}

/// Applies `note` to the request of `slot` for a completion; ends the request if that was the last
/// event it waited for.
fn advance(qp: &QpRef<'_, Con>, slot: SlotRef<'_, Con>, note: impl FnOnce(&mut InFlight)) {
    let mut inner = slot.inner.lock();
    let mut revoked = false;
    if let Some(in_flight) = &mut inner.in_flight {
        note(in_flight);
        revoked = in_flight.cancelled;
    }
    end_if_over(qp, slot, inner);
    if revoked {
        report_cancelled(qp, slot);
    }
}

/// Ends the request of `slot`, whose lock is held, if it is over.
fn end_if_over<B: Backend>(
    qp: &QueuePair<Con>,
    slot: SlotRef<'_, Con>,
    mut inner: Guard<'_, ReqSlotInner, B>,
) {
    let over = inner.finish(qp);
    drop(inner);
    if let Some(over) = over {
        over.end(&slot, qp);
    }
}

/// Cancels the request of `slot` if it [is to be cancelled](IoHandle::is_cancelled) and the server has
/// not answered it: the request ends for its users as soon as its memory is no longer in use. It stays
/// in its slot until it is answered, or until the teardown of the path passes it to the session.
///
/// # Context
///
/// Any but hardirq. The caller must prevent a teardown of the path during the call.
pub(crate) fn cancel(qps: &[PercpuArc<QueuePair<Con>>], slot: SlotRef<'_, Con>) {
    let mut guard = slot.inner.lock();
    let inner = &mut *guard;
    let rkey = inner.mr.rkey();
    let Some(in_flight) = unanswered(&mut inner.in_flight) else {
        return;
    };
    let Some(qp) = qps.get(usize::from(in_flight.request.cid)) else {
        return;
    };
    // The tag may be another request's by now.
    if !in_flight.io.as_ref().is_some_and(Carried::is_cancelled) {
        return;
    }
    // Send not completed yet; retried at the next timeout.
    if in_flight.cancelled || in_flight.unsent {
        return;
    }
    in_flight.cancelled = true;
    let step = in_flight.key.revoke();
    in_flight.key = step.next;
    if step.invalidate {
        qp.handler().link().revoked.store(true, Relaxed);
    }
    let invalidated = match step.invalidate {
        true => invalidate(qp, slot, rkey),
        false => Ok(()),
    };
    drop(guard);
    match invalidated {
        Ok(()) => report_cancelled(qp, slot),
        // The request is then sent again over another path.
        Err(error) => qp.handler().error(fmt!(
            "cannot invalidate a key ({})",
            convert::errno(error).as_str()
        )),
    }
}

/// Ends a cancelled request of the connection `qp` for its users, if its memory is no longer in use.
fn report_cancelled(qp: &QueuePair<Con>, slot: SlotRef<'_, Con>) {
    let mut inner = slot.inner.lock();
    let in_flight = inner.in_flight.as_mut();
    // The slot may have another request by now. If that is cancelled as well, and went by another
    // connection, it is for the completions there: the request leaves the window of its own connection.
    let cid = qp.handler().cid();
    let in_flight = in_flight.filter(|f| f.request.cid == cid && f.may_be_reported());
    let Some(in_flight) = in_flight else {
        return;
    };
    let Some(carried) = in_flight.io.take() else {
        return;
    };
    drop(inner);
    let mut io = carried.release(qp.pd());
    io.end_early(ETIMEDOUT);
    let mut inner = slot.inner.lock();
    // The request does not leave its slot while `io` is `None`.
    if let Some(in_flight) = &mut inner.in_flight {
        in_flight.io = Some(Carried::Plain(io));
    }
    end_if_over(qp, slot, inner);
}

/// Removes the request from `slot`, whose connections are drained; `service` is one of them. Returns an
/// answered request with its result. An unanswered one is passed to `requeue`, with the time of its
/// submission and its user header, and returned only if `requeue` refuses it.
pub(crate) fn take(
    slot: &SlotRef<'_, Con>,
    service: &QueuePair<Con>,
    requeue: impl FnOnce((Descriptor, Instant<Monotonic>), &[u8], IoHandle) -> Option<IoHandle>,
) -> Option<InFlight> {
    let mut guard = slot.inner.lock();
    let inner = &mut *guard;
    let mut over = inner.in_flight.take()?;
    let link = service.handler().link();
    over.uncount(link);
    let io = over.io.take()?.release(service.pd());
    if over.unanswered {
        let user = inner.hdr.bytes(over.request.usr_len);
        let refused = requeue((over.request, over.timer.began()), user, io)?;
        over.result = Err(EIO);
        over.io = Some(Carried::Plain(refused));
        return Some(over);
    }
    let request = &over.request;
    link.stats.ended(request.dir, &over.timer, request.cid);
    if request.failover != 0 {
        let control = service.handler().control();
        control.moved_request_ended(request.failover);
    }
    // An answered read through an `IoBuffer` is over at once, so none is here.
    over.io = Some(Carried::Plain(io));
    Some(over)
}
