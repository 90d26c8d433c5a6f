// SPDX-License-Identifier: GPL-2.0

//! In-flight requests: one slot for each chunk of the server.
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
//! A request that was cancelled before the server answered has no memory any more:
//! see [`cancel`].
//!
//! A request leaves its slot under the slot's lock, so it ends once. When the path
//! is torn down, requests without an answer are taken out with everything that is
//! needed to send them again: see [`take`].

use crate::{
    data::{
        con::Con,
        io_buffer::{
            IoBuffer,
            IoBuffers, //
        },
        link::Link,
        plan::{
            Transfer,
            Way, //
        },
        stats::Timer,
        wire::Wire, //
    },
    types::{
        Dir,
        Info,
        Req,
        MAX_USER_HDR, //
    }, //
};
use ibtrs_core::{
    convert,
    trace, //
};
use ibtrs_proto::{
    capsule,
    consts::{
        MAX_REQUEST_HDR_LEN,
        WRITE_HDR_LEN, //
    },
    errno::Errno,
    imm::Imm,
    keys::{
        Bogus,
        Key,
        Revoked, //
    },
    layout::Placement,
    msg::{
        Chunk,
        FetchHdr,
        ReadHdr,
        ServerTimes,
        SgDesc,
        Trailer,
        WriteHdr, //
    }, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
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
    mr::{
        Access,
        IoMr, //
    },
    pd::Pd,
    qp::{
        QpRef,
        QueuePair, //
    },
    sendq::{
        Chain,
        Doorbell,
        Signal,
        SqSpace, //
    },
    sge::Remote,
    slot::{
        Kind,
        SlotRef,
        Slots, //
    },
};

/// The slot of a chunk.
#[pin_data]
pub(crate) struct Request {
    #[pin]
    inner: SpinLockIrq<Inner>,
    /// The I/O buffers of the path, shared by all slots.
    io_buffers: Arc<IoBuffers>,
}

struct Inner {
    mr: IoMr,
    hdr: DmaBuf,
    chunk: Remote,
    in_flight: Option<InFlight>,
}

/// A request in flight.
struct InFlight {
    /// `None` while a cancelled request is reported to its users.
    io: Option<Carried>,
    /// The user header is at the beginning of the slot's header buffer.
    info: Info,
    /// The request is counted in [`Link::inflight`].
    counted: bool,
    timer: Timer,
    /// The server has not answered yet.
    unanswered: bool,
    /// The device may still send the message from the request's memory.
    unsent: bool,
    /// Number of messages received on the connection when the request was submitted.
    messages: u64,
    /// State of the region's key: whether the server or the device may still use it.
    key: Key,
    /// The request was cancelled.
    cancelled: bool,
    result: Result<(), Errno>,
    /// The answer ends with the server's times.
    timed: bool,
    /// The server's times, as the answer has them.
    times: Option<u32>,
    /// The number of the server's upper layer at the end of the answer.
    trailer: Option<u32>,
}

enum Carried {
    Mapped(MappedIo),
    /// The data goes through the slot's [`IoBuffer`].
    Buffered(IoHandle),
    /// No data, or none that the device knows any more.
    Plain(IoHandle),
}

impl Carried {
    fn map(pd: &Pd, submit_bytes: u32, dir: Dir, io: IoHandle) -> Result<Self, (Error, IoHandle)> {
        if submit_bytes == 0 {
            return Ok(Self::Plain(io));
        }
        let dir = match dir {
            Dir::Read => Direction::FromDevice,
            Dir::Write => Direction::ToDevice,
        };
        MappedIo::new(pd, io, dir).map(Self::Mapped)
    }

    /// Returns the number of scatter list elements as the device sees them.
    fn nents(&self) -> u32 {
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

    fn release(self, pd: &Pd) -> IoHandle {
        match self {
            Self::Mapped(io) => io.unmap(pd),
            Self::Buffered(io) | Self::Plain(io) => io,
        }
    }
}

impl InFlight {
    /// Stops counting the request as one in flight.
    fn uncount(&self, link: &Link) {
        if self.counted {
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

impl Request {
    /// Returns whether a request is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.inner.lock().in_flight.is_some()
    }

    /// Returns whether an unanswered request is in flight that its users no longer want.
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
        io_buffers: Arc<IoBuffers>,
    ) -> impl PinInit<Self, Error> {
        let inner = Inner {
            mr,
            hdr,
            chunk: Remote {
                addr: chunk.addr,
                rkey: chunk.rkey,
            },
            in_flight: None,
        };
        try_pin_init!(Self {
            inner <- new_spinlock_irq!(inner, "Request::inner"),
            io_buffers,
        }? Error)
    }

    /// Returns the buffer for the data of a request, if the data goes through one.
    #[inline]
    fn buffer_for(&self, wire: &Wire, req: &Req<'_>) -> Option<&IoBuffer> {
        let info = &req.info;
        if info.bytes == 0 || info.dir == Dir::Write && !wire.is_pushed(req) {
            return None;
        }
        let buffer = self.io_buffers.get(info.tag)?;
        buffer.takes(info).then_some(buffer)
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
    /// `ENOMEM`; those of the driver.
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

impl Inner {
    /// Writes the user header and the request header, which names `buffer` if the data goes through
    /// it, and asks for the server's times if `timed`; returns the placement.
    fn write_header(
        &mut self,
        wire: &Wire,
        submit: &Req<'_>,
        way: Way,
        buffer: Option<&IoBuffer>,
        timed: bool,
    ) -> Result<Placement> {
        let usr_len = u16::try_from(submit.user_hdr.len())?;
        let place = wire.place(submit, usr_len, way)?;
        let desc = (submit.info.bytes > 0).then(|| match buffer {
            Some(buffer) => buffer.desc(submit.info.bytes),
            None => SgDesc {
                addr: self.mr.iova(),
                key: self.mr.rkey(),
                len: submit.info.bytes,
            },
        });
        let usr_end = submit.user_hdr.len();
        let hdr = &mut self.hdr;
        hdr.write(0, submit.user_hdr)?;
        match (submit.info.dir, desc) {
            (Dir::Write, Some(desc)) if way.transfer == Transfer::Fetch => {
                let header = FetchHdr {
                    usr_len,
                    need_inval: true,
                    timed,
                    desc,
                };
                hdr.write(usr_end, &header.encode())?;
            }
            (Dir::Write, _) => {
                let bytes = WriteHdr { usr_len, timed }.encode();
                hdr.write(usr_end, &bytes)?;
                if way.is_capsule {
                    // Before the data.
                    let used = usr_end + bytes.len();
                    let padding = (capsule::HEADERS as usize).saturating_sub(used);
                    hdr.zero(used, padding)?;
                }
            }
            (Dir::Read, desc) => {
                let header = ReadHdr {
                    usr_len,
                    need_inval: buffer.is_none(),
                    timed,
                    desc,
                };
                // All of it, as a copy of constant length is faster.
                let mut bytes = [0; MAX_REQUEST_HDR_LEN];
                header.encode(&mut bytes).ok_or(EMSGSIZE)?;
                hdr.write(usr_end, &bytes)?;
            }
        }
        Ok(place)
    }

    /// Chooses the transfer, and maps the data in the region if needed.
    fn prepare(&mut self, wire: &Wire, submit: &Req<'_>, io: &Carried) -> Result<Transfer> {
        let io = match io {
            Carried::Mapped(io) => io,
            Carried::Buffered(_) if submit.info.dir == Dir::Write => return Ok(Transfer::Buffer),
            Carried::Buffered(_) | Carried::Plain(_) => return Ok(Transfer::None),
        };
        let is_write = submit.info.dir == Dir::Write;
        if is_write && wire.is_pushed(submit) && io.nents() < wire.max_sges {
            return Ok(Transfer::Direct);
        }
        // A capsule has no data from a region.
        let is_fetched = is_write && !wire.fits_landing(submit);
        self.mr.map(io)?;
        if self.mr.length() != u64::from(submit.info.bytes) {
            return Err(EINVAL);
        }
        self.mr.next_key();
        Ok(match is_fetched {
            true => Transfer::Fetch,
            false => Transfer::Region,
        })
    }

    /// Posts the request on `qp`.
    fn post(
        &mut self,
        conn: &PathIo,
        qp: &QueuePair<Con>,
        slot: SlotRef<'_, Con>,
        submit: &Req<'_>,
        place: Placement,
        Way {
            transfer,
            is_capsule,
        }: Way,
    ) -> Result {
        let Some(in_flight) = &mut self.in_flight else {
            return Err(EINVAL);
        };
        let hdr_len = match (submit.info.dir, transfer) {
            (Dir::Write, Transfer::Direct | Transfer::Buffer) if is_capsule => {
                capsule::HEADERS as usize
            }
            (Dir::Write, Transfer::Fetch) | (Dir::Read, _) => place.total_len as usize,
            (Dir::Write, _) => submit.user_hdr.len() + WRITE_HDR_LEN,
        };
        let hdr = self.hdr.sge(0, hdr_len)?;
        let payload = conn
            .wire
            .layout
            .request(submit.info.tag, place.imm_offset)
            .ok_or(EINVAL)?;
        let imm = Imm::IoReq { payload }.encode();
        let to = Remote {
            addr: self.chunk.addr + u64::from(place.offset_of_first_byte),
            rkey: self.chunk.rkey,
        };
        let doorbell = if submit.last {
            Doorbell::Now
        } else {
            Doorbell::Later
        };
        let send_headers = |chain: &mut Chain<'_, Con>| match is_capsule {
            true => chain.send_imm([hdr], imm, Signal::None),
            false => chain.rdma_write_imm(to, [hdr], imm, Signal::None),
        };
        match (transfer, &mut in_flight.io) {
            (Transfer::Direct, Some(Carried::Mapped(io))) => {
                let space = SqSpace {
                    wrs: 1,
                    sges: io.nents() + 1,
                };
                let data = io.sges(&conn.pd);
                let signal = Signal::Slot(slot, Kind::Send);
                qp.send(space, doorbell, |chain| match is_capsule {
                    true => {
                        let pieces = Iterator::chain([hdr].into_iter(), data);
                        chain.send_imm(pieces, imm, signal);
                    }
                    false => {
                        let pieces = Iterator::chain(data, [hdr]);
                        chain.rdma_write_imm(to, pieces, imm, signal);
                    }
                })
            }
            (Transfer::Region, _) => {
                let space = SqSpace { wrs: 2, sges: 2 };
                let data = self.mr.sge(submit.info.bytes)?;
                qp.send(space, doorbell, |chain| match submit.info.dir {
                    Dir::Read => {
                        chain.reg_mr(&self.mr, Access::RemoteWrite);
                        send_headers(chain);
                    }
                    Dir::Write => {
                        chain.reg_mr(&self.mr, Access::Local);
                        chain.rdma_write_imm(to, [data, hdr], imm, Signal::None);
                    }
                })
            }
            (Transfer::Fetch, _) => qp.send(SqSpace { wrs: 2, sges: 1 }, doorbell, |chain| {
                chain.reg_mr(&self.mr, Access::RemoteRead);
                send_headers(chain);
            }),
            (Transfer::Buffer, Some(Carried::Buffered(io))) => {
                let buffer = slot.io_buffers.get(submit.info.tag).ok_or(EINVAL)?;
                let data = buffer.copy_from(io, submit.info.bytes)?;
                qp.send(
                    SqSpace { wrs: 1, sges: 2 },
                    doorbell,
                    |chain| match is_capsule {
                        true => chain.send_imm([hdr, data], imm, Signal::None),
                        false => chain.rdma_write_imm(to, [data, hdr], imm, Signal::None),
                    },
                )
            }
            _ => qp.send(SqSpace { wrs: 1, sges: 1 }, doorbell, send_headers),
        }
    }

    /// Takes the request out of its slot if it is over.
    fn finish(&mut self, qp: &QueuePair<Con>) -> Option<Ended> {
        let in_flight = self
            .in_flight
            .as_mut()
            .filter(|in_flight| in_flight.is_over())?;
        // What is needed leaves part by part, as moving the whole takes longer.
        let io = in_flight.io.take()?;
        let info = &in_flight.info;
        let result = in_flight.result.map_err(convert::error);
        let link = qp.handler().link();
        in_flight.uncount(link);
        qp.handler().leave();
        let stats = &link.stats;
        let ns = stats.ended(info.dir, &in_flight.timer, info.cid);
        if info.entry.was_moved() {
            qp.handler().control().moved_request_answered();
        }
        trace::client_complete(|| {
            let error = result.err().map_or(0, Error::to_errno);
            let times = in_flight.times.map(ServerTimes::decode);
            let (queue_ns, disk_ns) = trace::shares(times);
            (
                link.env.name(),
                &link.names.path,
                info.tag,
                error,
                ns,
                queue_ns,
                disk_ns,
            )
        });
        let in_buffer = match &io {
            Carried::Buffered(_) if result.is_ok() && info.dir == Dir::Read => info.bytes,
            _ => 0,
        };
        let ended = Ended {
            io,
            in_buffer,
            result,
            trailer: in_flight.trailer,
            epoch: link.epoch,
        };
        self.in_flight = None;
        Some(ended)
    }
}

/// A request that is over and has left its slot.
pub(crate) struct Ended {
    io: Carried,
    /// Bytes of data to copy from the slot's [`IoBuffer`].
    in_buffer: u32,
    result: Result,
    /// The number of the server's upper layer at the end of the answer.
    trailer: Option<u32>,
    /// The epoch of the path.
    epoch: u32,
}

impl Ended {
    /// Ends the request, which was in `slot` of a path with the domain `pd`; the slot is not used again before that.
    ///
    /// # Context
    ///
    /// Any but hardirq; under no lock.
    pub(crate) fn end(mut self, slot: &SlotRef<'_, Con>, pd: &Pd) {
        let mut io = self.io.release(pd);
        if self.in_buffer > 0 {
            // CAST: A table has no more slots than tags.
            let buffer = slot.io_buffers.get(slot.index() as u16);
            let copied = buffer
                .ok_or(EIO)
                .and_then(|buffer| buffer.copy_to(&mut io, self.in_buffer));
            self.result = copied.map_err(|_| EIO);
        }
        // A user of trailers needs to know which path has damaged a request.
        if self.trailer.is_some() || self.result == Err(EBADMSG) {
            io.note_answer(self.trailer, self.epoch);
        }
        io.done(self.result);
    }
}

/// The connections of a published path, for submitters.
pub(crate) struct PathIo {
    pub(crate) link: Arc<Link>,
    pub(crate) qps: KVec<PercpuArc<QueuePair<Con>>>,
    pub(crate) slots: Arc<Slots<Con>>,
    pub(crate) wire: Wire,
    pub(crate) pd: Arc<Pd>,
}

impl PathIo {
    /// Counts and traces a request that was handed to the device.
    #[inline]
    fn count(&self, req: &Req<'_>, nents: u32) {
        let (link, info) = (&self.link, &req.info);
        // CAST: A user header has at most `MAX_USER_HDR` bytes.
        let bytes = info.bytes + req.user_hdr.len() as u32;
        link.stats.submitted(info.dir, bytes, nents);
        trace::client_submit(|| {
            let write = info.dir == Dir::Write;
            (
                link.env.name(),
                &*link.names.path,
                info.tag,
                write,
                info.bytes,
            )
        });
    }

    /// Sends a request on its connection; see [`Session::submit`].
    ///
    /// # Errors
    ///
    /// The I/O is handed back with `ENOTCONN` if the path is going away and has certainly not sent
    /// the request; other errors are those of [`Session::submit`].
    ///
    /// [`Session::submit`]: crate::session::Session::submit
    pub(crate) fn submit(&self, req: &Req<'_>, io: IoHandle) -> Result<(), (Error, IoHandle)> {
        let cid = req.info.cid;
        if self.enter(cid) {
            return self.submit_here(req, io).inspect_err(|_| self.leave(cid));
        }
        // The caller may have left requests there that are still to be rung for.
        self.commit(cid);
        // CAST: A path has no more connections than fit 16 bits.
        let nr_queues = self.link.env.nr_queues() as u16;
        let mut others =
            Iterator::chain(cid.saturating_add(1)..=nr_queues, 1..cid.min(nr_queues + 1));
        let Some(cid) = others.find(|other| self.enter(*other)) else {
            return Err((EAGAIN, io));
        };
        let mut req = *req;
        req.info.cid = cid;
        // The caller rings the doorbell of its own connection only.
        req.last = true;
        self.submit_here(&req, io).inspect_err(|_| self.leave(cid))
    }

    /// Counts a request on the connection `cid`, unless there are as many as its window allows.
    #[inline]
    fn enter(&self, cid: u16) -> bool {
        let qp = self.qps.get(usize::from(cid));
        qp.is_some_and(|qp| qp.handler().enter(self.wire.window))
    }

    /// Stops counting a request on the connection `cid` that was not sent.
    fn leave(&self, cid: u16) {
        if let Some(qp) = self.qps.get(usize::from(cid)) {
            qp.handler().leave();
        }
    }

    /// Sends a request on its connection, which has room for it.
    #[inline]
    fn submit_here(&self, req: &Req<'_>, io: IoHandle) -> Result<(), (Error, IoHandle)> {
        let info = &req.info;
        let (Some(qp), Some(slot)) = (
            self.qps.get(usize::from(info.cid)),
            self.slots.get(info.tag.into()),
        ) else {
            return Err((EINVAL, io));
        };
        if info.bytes > self.wire.max_io_bytes {
            return Err((EMSGSIZE, io));
        }
        let stats = &self.link.stats;
        let buffer = slot.buffer_for(&self.wire, req);
        // Before interrupts are disabled: a long scatterlist, and an IOMMU, take their time.
        let io = match buffer {
            Some(_) => Carried::Buffered(io),
            None => Carried::map(&self.pd, info.bytes, info.dir, io)?,
        };
        let mut guard = slot.inner.lock();
        let inner = &mut *guard;
        if inner.in_flight.is_some() {
            drop(guard);
            return Err((EBUSY, io.release(&self.pd)));
        }
        let nents = io.nents();
        let timed = trace::traces_client_complete() && self.wire.rsp.times;
        let prepared = inner.prepare(&self.wire, req, &io).and_then(|transfer| {
            let way = Way {
                transfer,
                is_capsule: self.wire.is_capsule(req, transfer),
            };
            let place = inner.write_header(&self.wire, req, way, buffer, timed)?;
            Ok((place, way))
        });
        let (place, way) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                drop(guard);
                return Err((error, io.release(&self.pd)));
            }
        };
        inner.in_flight = Some(InFlight {
            io: Some(io),
            info: *info,
            counted: req.counted,
            timer: stats.timer(),
            messages: qp.handler().messages(),
            unanswered: true,
            unsent: way.transfer == Transfer::Direct,
            key: match way.transfer {
                Transfer::Region | Transfer::Fetch => Key::Live,
                Transfer::Direct | Transfer::Buffer | Transfer::None => Key::Dead,
            },
            cancelled: false,
            result: Ok(()),
            timed,
            times: None,
            trailer: None,
        });
        if req.counted {
            self.link.inflight.fetch_add(1, Relaxed);
        }
        let posted = inner.post(self, qp, slot, req, place, way);
        let error = match posted {
            Ok(()) => {
                self.count(req, nents);
                return Ok(());
            }
            Err(error) => error,
        };
        if !is_surely_unsent(error) {
            // The device may have the request: the teardown of the path ends it or sends it again.
            self.count(req, nents);
            drop(guard);
            qp.handler()
                .error(fmt!("cannot post ({})", convert::errno(error).as_str()));
            return Ok(());
        }
        let in_flight = inner.in_flight.take();
        drop(guard);
        // The request was put there above, under the lock.
        let Some(in_flight) = in_flight else {
            return Ok(());
        };
        in_flight.uncount(&self.link);
        match in_flight.io {
            Some(io) => Err((error, io.release(&self.pd))),
            None => Ok(()),
        }
    }

    /// Handles completions of connection `cid` if it is polled; returns the number of completions.
    #[inline]
    pub(crate) fn poll(&self, cid: u16) -> u32 {
        self.qps.get(usize::from(cid)).map_or(0, |qp| qp.poll())
    }

    /// Rings the doorbell of the connection `cid`.
    pub(crate) fn commit(&self, cid: u16) {
        let Some(qp) = self.qps.get(usize::from(cid)) else {
            return;
        };
        if let Err(error) = qp.ring() {
            if !is_surely_unsent(error) {
                qp.handler()
                    .error(fmt!("cannot post ({})", convert::errno(error).as_str()));
            }
        }
    }
}

/// Returns whether a post that failed with `error` handed nothing to the device. Such an error does
/// not fail the path.
fn is_surely_unsent(error: Error) -> bool {
    // The device never returns one of these, see `QueuePair::send`.
    matches!(error, ENOTCONN | EAGAIN | EINVAL)
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
    if in_flight.info.cid != answer.cid {
        return Err(Stray::Elsewhere(in_flight.info.cid));
    }
    let revoked = answer.revoked.since(answer.revoked_at, in_flight.messages);
    let step = revoked.and_then(|revoked| in_flight.key.answered(inner.mr.rkey(), revoked));
    let step = step.map_err(Stray::Bogus)?;
    in_flight.key = step.next;
    in_flight.unanswered = false;
    (in_flight.trailer, in_flight.times) = answer.trailer.parts(in_flight.timed);
    if let Some(errno) = Errno::from_imm(answer.errno) {
        in_flight.result = Err(errno);
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
    end(over, &slot, qp);
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
fn invalidate(qp: &QueuePair<Con>, slot: SlotRef<'_, Con>, rkey: u32) -> Result {
    qp.invalidate(rkey, Signal::Slot(slot, Kind::Invalidate))
}

/// Handles the acknowledgement of the message of `slot`.
pub(crate) fn sent(qp: &QpRef<'_, Con>, slot: SlotRef<'_, Con>) {
    advance(qp, slot, |in_flight| in_flight.unsent = false);
}

/// Handles the completion of the local invalidation that the request of `slot` has posted. The
/// request stays in its slot until then, so the completion is never another request's.
pub(crate) fn invalidated(qp: &QpRef<'_, Con>, slot: SlotRef<'_, Con>) {
    advance(qp, slot, |in_flight| {
        in_flight.key = in_flight.key.invalidated()
    });
}

/// Applies `note` to the request of `slot` for a completion; ends the request if it is over then.
fn advance(qp: &QpRef<'_, Con>, slot: SlotRef<'_, Con>, note: impl FnOnce(&mut InFlight)) {
    let mut inner = slot.inner.lock();
    let mut revoked = false;
    if let Some(in_flight) = &mut inner.in_flight {
        note(in_flight);
        revoked = in_flight.cancelled;
    }
    let over = inner.finish(qp);
    drop(inner);
    end(over, &slot, qp);
    if revoked {
        report_cancelled(qp, slot);
    }
}

/// Cancels the request of `slot` if it [is to be cancelled](IoHandle::is_cancelled) and the server has
/// not answered it: the request ends for its users as soon as its memory is no longer in use. It stays
/// in its slot until it is answered, or until the teardown of the path leaves it to the session.
///
/// # Context
///
/// Any but hardirq. The caller keeps the path from being torn down meanwhile.
pub(crate) fn cancel(conn: &PathIo, slot: SlotRef<'_, Con>) {
    let mut guard = slot.inner.lock();
    let inner = &mut *guard;
    let rkey = inner.mr.rkey();
    let Some(in_flight) = unanswered(&mut inner.in_flight) else {
        return;
    };
    let Some(qp) = conn.qps.get(usize::from(in_flight.info.cid)) else {
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
        conn.link.revoked.store(true, Relaxed);
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
    let in_flight = in_flight.filter(|f| f.info.cid == cid && f.may_be_reported());
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
    let over = inner.finish(qp);
    drop(inner);
    end(over, &slot, qp);
}

/// Takes the request out of `slot`, whose connections are drained; `service` is one of them. Returns an
/// answered request with its result. Any other is left to `requeue`, with the time of its submission and
/// its user header, and returned only if refused.
pub(crate) fn take(
    slot: &SlotRef<'_, Con>,
    service: &QueuePair<Con>,
    requeue: impl FnOnce((Info, Instant<Monotonic>), &[u8], IoHandle) -> Option<IoHandle>,
) -> Option<Ended> {
    let mut guard = slot.inner.lock();
    let inner = &mut *guard;
    let in_flight = inner.in_flight.take()?;
    let link = service.handler().link();
    in_flight.uncount(link);
    // An answered read through an `IoBuffer` is over at once, so none is here.
    let ended = |io, result, trailer| Ended {
        io: Carried::Plain(io),
        in_buffer: 0,
        result,
        trailer,
        epoch: link.epoch,
    };
    let io = in_flight.io?.release(service.pd());
    if !in_flight.unanswered {
        let stats = &link.stats;
        stats.ended(in_flight.info.dir, &in_flight.timer, in_flight.info.cid);
        if in_flight.info.entry.was_moved() {
            service.handler().control().moved_request_answered();
        }
        let result = in_flight.result.map_err(convert::error);
        return Some(ended(io, result, in_flight.trailer));
    }
    let user = inner.hdr.bytes(in_flight.info.usr_len);
    let moved = (in_flight.info, in_flight.timer.began());
    let refused = requeue(moved, user, io);
    refused.map(|io| ended(io, Err(EIO), None))
}

/// Ends the request of `slot` if it is over; must not be called under a lock.
fn end(over: Option<Ended>, slot: &SlotRef<'_, Con>, qp: &QueuePair<Con>) {
    if let Some(ended) = over {
        ended.end(slot, qp.pd());
    }
}
