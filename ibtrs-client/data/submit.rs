// SPDX-License-Identifier: GPL-2.0

//! Sends requests: the way down, from [`PathIo::submit`] to the send queue.

use crate::{
    data::{
        con::Con,
        io_buffer::IoBuffer,
        link::Link,
        plan::{
            Plan,
            Transfer, //
        },
        slot::{
            Carried,
            InFlight,
            ReqSlotInner, //
        },
        small,
        wire::{
            Wire,
            DISK_USER_HDR, //
        }, //
    },
    types::{
        Descriptor,
        Dir, //
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
    imm::Imm,
    keys::Key,
    layout::Placement,
    msg::{
        FetchHdr,
        ReadHdr,
        SgDesc,
        WriteHdr, //
    },
    stats::counter::client_path, //
};
use kernel::{
    prelude::*,
    sync::{
        lock::{
            Backend,
            Guard, //
        },
        Arc, //
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
    mr::{
        Access,
        Mr, //
    },
    pd::Pd,
    qp::QueuePair,
    sendq::{
        is_surely_unsent,
        Doorbell,
        Signal,
        SqSpace, //
    },
    sge::{
        Remote,
        Sge, //
    },
    slot::{
        Kind,
        SlotRef,
        Slots, //
    },
};

/// The connections of a published path, for submitters.
pub(crate) struct PathIo {
    pub(crate) link: Arc<Link>,
    pub(crate) qps: KVec<PercpuArc<QueuePair<Con>>>,
    pub(crate) slots: Arc<Slots<Con>>,
    pub(crate) wire: Wire,
    pub(crate) pd: Arc<Pd>,
}

impl PathIo {
    /// Sends a request on its connection; see [`Session::submit`].
    ///
    /// # Errors
    ///
    /// Returns the I/O with `ENOTCONN` if the path is being torn down and has certainly not sent
    /// the request, or with an error of [`Session::submit`].
    ///
    /// [`Session::submit`]: crate::session::Session::submit
    #[inline(always)]
    pub(crate) fn submit(
        &self,
        req: &Descriptor,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Result<(), (Error, IoHandle)> {
        let elsewhere;
        let (qp, req) = match self.qps.get(usize::from(req.cid)) {
            Some(qp) if qp.handler().try_acquire_credit(self.wire.window) => (qp, req),
            _ => {
                let Some((cid, qp)) = self.another(req.cid) else {
                    return Err((EAGAIN, io));
                };
                // The caller rings the doorbell of its own connection only.
                elsewhere = Descriptor {
                    cid,
                    last: true,
                    ..*req
                };
                (qp, &elsewhere)
            }
        };
        self.submit_here(qp, req, user_hdr, io)
            .inspect_err(|_| qp.handler().release_credit())
    }

    /// Returns another connection, as the window of `cid` is full, and takes one request of that
    /// connection's window.
    #[cold]
    fn another(&self, cid: u16) -> Option<(u16, &PercpuArc<QueuePair<Con>>)> {
        self.link.stats.declared.inc(client_path::WINDOW_FULL);
        // The caller may have left requests there that are still to be rung for.
        self.commit(cid);
        // CAST: A path has no more connections than fit 16 bits.
        let nr_queues = self.link.env.nr_queues() as u16;
        let mut others =
            Iterator::chain(cid.saturating_add(1)..=nr_queues, 1..cid.min(nr_queues + 1));
        others.find_map(|other| {
            let qp = self.qps.get(usize::from(other))?;
            qp.handler()
                .try_acquire_credit(self.wire.window)
                .then_some((other, qp))
        })
    }

    /// Sends a request on its connection `qp`, for which a credit was taken.
    #[inline(always)]
    fn submit_here(
        &self,
        qp: &QueuePair<Con>,
        req: &Descriptor,
        user_hdr: &[u8],
        io: IoHandle,
    ) -> Result<(), (Error, IoHandle)> {
        let Some(slot) = self.slots.get(req.tag.get()) else {
            return Err((EINVAL, io));
        };
        if req.bytes > self.wire.max_io_bytes {
            return Err((EMSGSIZE, io));
        }
        let timed = trace::traces_client_complete() && self.wire.rsp.times;
        let small = small::user_hdr(&self.wire, req, user_hdr).filter(|_| !timed);
        match (small, slot.buffer(req)) {
            (Some(user_hdr), Some(buffer)) => {
                self.submit_small((qp, slot), buffer, req, user_hdr, io)
            }
            _ => self.submit_any((qp, slot), req, user_hdr, io, timed),
        }
    }

    /// As [`Self::submit_here`], for all kinds of requests; requests the server's times if `timed`.
    #[inline(never)]
    fn submit_any(
        &self,
        (qp, slot): (&QueuePair<Con>, SlotRef<'_, Con>),
        req: &Descriptor,
        user_hdr: &[u8],
        io: IoHandle,
        timed: bool,
    ) -> Result<(), (Error, IoHandle)> {
        let buffer = slot.buffer_for(&self.wire, req);
        // Before interrupts are disabled: a long scatterlist, and an IOMMU, take their time.
        let io = match buffer {
            Some(_) => Carried::Buffered(io),
            None => Carried::map(&self.pd, req.bytes, req.dir, io)?,
        };
        let mut guard = slot.inner.lock();
        let inner = &mut *guard;
        if inner.in_flight.is_some() {
            drop(guard);
            return Err((EBUSY, io.release(&self.pd)));
        }
        let nents = io.nents();
        let plan = self.wire.plan(req, io.data());
        let prepared = inner
            .prepare(plan, req, &io)
            .and_then(|()| inner.write_header(&self.wire, req, user_hdr, plan, buffer, timed));
        let place = match prepared {
            Ok(place) => place,
            Err(error) => {
                drop(guard);
                return Err((error, io.release(&self.pd)));
            }
        };
        inner.in_flight = Some(InFlight {
            unsent: plan.transfer == Transfer::Direct,
            key: match plan.has_region() {
                true => Key::Live,
                false => Key::Dead,
            },
            timed,
            ..self.in_flight(qp, req, io)
        });
        if req.counted {
            self.link.inflight.fetch_add(1, Relaxed);
        }
        let posted = inner.post(self, qp, slot, req, place, plan);
        self.posted(qp, guard, req, nents, posted)
    }

    /// As [`Self::submit_here`], for a request for which [`small::user_hdr`] has returned `user_hdr`.
    #[inline(always)]
    fn submit_small(
        &self,
        (qp, slot): (&QueuePair<Con>, SlotRef<'_, Con>),
        buffer: &IoBuffer,
        req: &Descriptor,
        user_hdr: &[u8; DISK_USER_HDR],
        io: IoHandle,
    ) -> Result<(), (Error, IoHandle)> {
        let mut guard = slot.inner.lock();
        let inner = &mut *guard;
        if inner.in_flight.is_some() {
            drop(guard);
            return Err((EBUSY, io));
        }
        inner.in_flight = Some(self.in_flight(qp, req, Carried::Buffered(io)));
        if req.counted {
            self.link.inflight.fetch_add(1, Relaxed);
        }
        let posted = inner.post_small(&self.wire, qp, buffer, req, user_hdr);
        self.posted(qp, guard, req, 1, posted)
    }

    /// Returns the state of a request that is about to be posted, without its own region.
    #[inline]
    fn in_flight(&self, qp: &QueuePair<Con>, req: &Descriptor, io: Carried) -> InFlight {
        InFlight {
            io: Some(io),
            request: *req,
            timer: self.link.stats.timer(),
            messages: qp.handler().messages(),
            unanswered: true,
            unsent: false,
            key: Key::Dead,
            cancelled: false,
            result: Ok(()),
            timed: false,
            times: None,
            trailer: None,
        }
    }

    /// Handles the result of posting the request in a slot, which has `nents` scatter elements. Returns the request if it
    /// was certainly not sent.
    #[inline(always)]
    fn posted<B: Backend>(
        &self,
        qp: &QueuePair<Con>,
        mut slot: Guard<'_, ReqSlotInner, B>,
        req: &Descriptor,
        nents: u32,
        posted: Result,
    ) -> Result<(), (Error, IoHandle)> {
        let Err(error) = posted else {
            self.count(req, nents);
            return Ok(());
        };
        if !is_surely_unsent(error) {
            self.count(req, nents);
            drop(slot);
            self.not_posted(qp, error);
            return Ok(());
        }
        let in_flight = slot.in_flight.take();
        drop(slot);
        self.hand_back(in_flight, error)
    }

    /// Fails the path: the device may have a request of `qp` or not. The teardown of the path ends the
    /// request or sends it again.
    #[cold]
    fn not_posted(&self, qp: &QueuePair<Con>, error: Error) {
        qp.handler()
            .error(fmt!("cannot post ({})", convert::errno(error).as_str()));
    }

    /// Hands back the I/O of a request that has certainly not been sent, and has left its slot.
    #[cold]
    fn hand_back(
        &self,
        in_flight: Option<InFlight>,
        error: Error,
    ) -> Result<(), (Error, IoHandle)> {
        // The request was put there under the lock that was held since.
        let Some(in_flight) = in_flight else {
            return Ok(());
        };
        in_flight.uncount(&self.link);
        match in_flight.io {
            Some(io) => Err((error, io.release(&self.pd))),
            None => Ok(()),
        }
    }

    /// Counts and traces a request that was handed to the device.
    #[inline(always)]
    fn count(&self, req: &Descriptor, nents: u32) {
        let link = &self.link;
        // CAST: A user header has at most `MAX_USER_HDR` bytes.
        let bytes = req.bytes + req.usr_len as u32;
        link.stats.submitted(req.dir, bytes, nents);
        trace::client_submit(|| {
            let write = req.dir == Dir::Write;
            (
                link.env.name(),
                &*link.names.path,
                req.tag.get(),
                write,
                req.bytes,
            )
        });
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

    /// Handles completions of connection `cid` if it is polled; returns the number of completions.
    #[inline]
    pub(crate) fn poll(&self, cid: u16) -> u32 {
        self.qps.get(usize::from(cid)).map_or(0, |qp| qp.poll())
    }
}

impl ReqSlotInner {
    /// Maps the data in the region if the plan needs that.
    #[inline]
    fn prepare(&mut self, plan: Plan, submit: &Descriptor, io: &Carried) -> Result {
        let (true, Carried::Mapped(io)) = (plan.has_region(), io) else {
            return Ok(());
        };
        self.mr.map(io)?;
        if self.mr.length() != u64::from(submit.bytes) {
            return Err(EINVAL);
        }
        self.mr.next_key();
        Ok(())
    }

    /// Writes the user header and the request header, which names `buffer` if the data is copied
    /// through it, and requests the server's times if `timed`; returns the placement.
    pub(super) fn write_header(
        &mut self,
        wire: &Wire,
        submit: &Descriptor,
        user_hdr: &[u8],
        plan: Plan,
        buffer: Option<&IoBuffer>,
        timed: bool,
    ) -> Result<Placement> {
        let usr_len = u16::try_from(submit.usr_len)?;
        let place = wire.place(submit, usr_len, plan)?;
        let desc = (submit.bytes > 0).then(|| match buffer {
            Some(buffer) => buffer.desc(submit.bytes),
            None => SgDesc {
                addr: self.mr.iova(),
                key: self.mr.rkey(),
                len: submit.bytes,
            },
        });
        let usr_end = submit.usr_len;
        let hdr = &mut self.hdr;
        hdr.write(0, user_hdr)?;
        match (submit.dir, desc) {
            (Dir::Write, Some(desc)) if plan.transfer == Transfer::Fetch => {
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
                if plan.is_capsule {
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

    /// Posts the request on `qp`.
    fn post(
        &mut self,
        conn: &PathIo,
        qp: &QueuePair<Con>,
        slot: SlotRef<'_, Con>,
        submit: &Descriptor,
        place: Placement,
        Plan {
            transfer,
            is_capsule,
        }: Plan,
    ) -> Result {
        let Some(in_flight) = &mut self.in_flight else {
            return Err(EINVAL);
        };
        let hdr_len = match (submit.dir, transfer) {
            (Dir::Write, Transfer::Direct | Transfer::FromBuffer) if is_capsule => {
                capsule::HEADERS as usize
            }
            (Dir::Write, Transfer::Fetch) | (Dir::Read, _) => place.total_len as usize,
            (Dir::Write, _) => submit.usr_len + WRITE_HDR_LEN,
        };
        let hdr = self.hdr.sge(0, hdr_len)?;
        let payload = conn
            .wire
            .layout
            .request(submit.tag, place.imm_offset)
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
        let message = Message {
            hdr,
            to,
            imm,
            is_capsule,
            doorbell,
        };
        let registered = |access| Some((&*self.mr, access));
        match (transfer, &mut in_flight.io) {
            (Transfer::Direct, Some(Carried::Mapped(io))) => {
                let signal = Signal::Slot(slot, Kind::Send);
                message.post(qp, None, io.nents(), io.sges(&conn.pd), signal)
            }
            (Transfer::FromBuffer, Some(Carried::Buffered(io))) => {
                let buffer = slot.io_buffer.as_ref().ok_or(EINVAL)?;
                let data = buffer.copy_from(io, submit.bytes)?;
                message.post_simple(qp, Some(data))
            }
            (Transfer::Region, _) => {
                let data = self.mr.sge(submit.bytes)?;
                match submit.dir {
                    Dir::Read => {
                        let region = registered(Access::RemoteWrite);
                        message.post(qp, region, 1, [], Signal::None)
                    }
                    Dir::Write => {
                        let region = registered(Access::Local);
                        message.post(qp, region, 1, [data], Signal::None)
                    }
                }
            }
            (Transfer::Fetch, _) => {
                let region = registered(Access::RemoteRead);
                message.post(qp, region, 0, [], Signal::None)
            }
            _ => message.post_simple(qp, None),
        }
    }
}

/// The message that a request is sent in.
struct Message {
    /// The headers.
    hdr: Sge,
    /// The place of the data, or else of the headers, unless the request is a capsule.
    to: Remote,
    imm: u32,
    is_capsule: bool,
    doorbell: Doorbell,
}

impl Message {
    /// Posts the message alone, with `data` in one element if there is any.
    #[inline]
    fn post_simple(self, qp: &QueuePair<Con>, data: Option<Sge>) -> Result {
        let to = (!self.is_capsule).then_some(self.to);
        let (imm, doorbell) = (self.imm, self.doorbell);
        match (data, self.is_capsule) {
            (None, _) => qp.send_message(to, [self.hdr], imm, Signal::None, doorbell),
            (Some(data), true) => {
                qp.send_message(to, [self.hdr, data], imm, Signal::None, doorbell)
            }
            (Some(data), false) => {
                qp.send_message(to, [data, self.hdr], imm, Signal::None, doorbell)
            }
        }
    }

    /// Posts the registration of `region`, if there is one, and the message with `data`, for whose
    /// `pieces` there must be room.
    #[inline]
    fn post(
        self,
        qp: &QueuePair<Con>,
        region: Option<(&Mr, Access)>,
        pieces: u32,
        data: impl IntoIterator<Item = Sge>,
        signal: Signal<'_, Con>,
    ) -> Result {
        let space = SqSpace {
            wrs: 1 + u32::from(region.is_some()),
            sges: 1 + pieces,
        };
        qp.send(space, self.doorbell, |chain| {
            if let Some((mr, access)) = region {
                chain.reg_mr(mr, access);
            }
            match self.is_capsule {
                true => {
                    let pieces = Iterator::chain([self.hdr].into_iter(), data);
                    chain.send_imm(pieces, self.imm, signal);
                }
                false => {
                    let pieces = Iterator::chain(data.into_iter(), [self.hdr]);
                    chain.rdma_write_imm(self.to, pieces, self.imm, signal);
                }
            }
        })
    }
}
