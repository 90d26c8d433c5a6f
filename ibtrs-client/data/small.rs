// SPDX-License-Identifier: GPL-2.0

//! Most requests: reads and writes of a disk that go in a capsule, their data through the buffer of the
//! tag. [`super::submit`] sends them as well as any other; here, all that is known of them is not asked for
//! again.

use crate::{
    data::{
        con::Con,
        io_buffer::IoBuffer,
        slot::{
            Carried,
            InFlight,
            Inner, //
        },
        submit::PathIo,
        wire::Wire, //
    },
    types::{
        Descriptor,
        Dir, //
    }, //
};
use ibtrs_proto::{
    capsule,
    consts::{
        MAX_REQUEST_HDR_LEN,
        WRITE_HDR_LEN, //
    },
    imm::Imm,
    keys::Key,
    msg::{
        ReadHdr,
        WriteHdr, //
    }, //
};
use kernel::prelude::*;
use kx::io::IoHandle;
use rdma::{
    qp::QueuePair,
    sendq::{
        is_surely_unsent,
        Doorbell,
        Signal, //
    },
    slot::SlotRef, //
};

/// The length of a disk's user headers.
const USER_HDR: usize = 32;
/// Where the headers of a request end, unless it is a write, whose data begins at [`HEADERS`].
const HEADERS_END: usize = USER_HDR + MAX_REQUEST_HDR_LEN;
const HEADERS: usize = capsule::HEADERS as usize;
const _: () = assert!(HEADERS_END <= HEADERS);

/// Returns whether a server that takes headers of `max_hdr_size` bytes takes those of a small request.
pub(super) const fn are_headers_taken(max_hdr_size: u32) -> bool {
    // CAST: A small constant.
    max_hdr_size >= HEADERS_END as u32
}

/// Returns the user header of a small request; `None` if that is no small one.
#[inline]
pub(super) fn user_hdr<'a>(
    wire: &Wire,
    req: &Descriptor,
    user_hdr: &'a [u8],
) -> Option<&'a [u8; USER_HDR]> {
    let is_small = wire.small_capsules && req.cid > 0 && req.bytes <= capsule::MAX_DATA;
    user_hdr.try_into().ok().filter(|_| is_small)
}

impl PathIo {
    /// Sends a request for which [`user_hdr`] has returned `user_hdr`, and which has a `buffer`; see
    /// [`PathIo::submit`].
    #[inline]
    pub(super) fn submit_small(
        &self,
        (qp, slot): (&QueuePair<Con>, SlotRef<'_, Con>),
        buffer: IoBuffer<'_>,
        req: &Descriptor,
        user_hdr: &[u8; USER_HDR],
        io: IoHandle,
    ) -> Result<(), (Error, IoHandle)> {
        let mut guard = slot.inner.lock();
        let inner = &mut *guard;
        if inner.in_flight.is_some() {
            drop(guard);
            return Err((EBUSY, io));
        }
        inner.in_flight = Some(InFlight {
            io: Some(Carried::Buffered(io)),
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
        });
        if req.counted {
            self.count_in_flight();
        }
        let Err(error) = inner.post_small(&self.wire, qp, buffer, req, user_hdr) else {
            self.count(req, 1);
            return Ok(());
        };
        if !is_surely_unsent(error) {
            self.count(req, 1);
            drop(guard);
            self.not_posted(qp, error);
            return Ok(());
        }
        let in_flight = inner.in_flight.take();
        drop(guard);
        self.hand_back(in_flight, error)
    }
}

impl Inner {
    /// Writes the headers, and posts the request.
    #[inline]
    fn post_small(
        &mut self,
        wire: &Wire,
        qp: &QueuePair<Con>,
        buffer: IoBuffer<'_>,
        req: &Descriptor,
        user_hdr: &[u8; USER_HDR],
    ) -> Result {
        // CAST: A small constant.
        let usr_len = USER_HDR as u16;
        let mut headers = [0; HEADERS];
        *headers.first_chunk_mut().ok_or(EINVAL)? = *user_hdr;
        let rest = headers.get_mut(USER_HDR..).ok_or(EINVAL)?;
        let data = match req.dir {
            Dir::Read => {
                let header = ReadHdr {
                    usr_len,
                    need_inval: false,
                    timed: false,
                    desc: Some(buffer.desc(req.bytes)),
                };
                header.encode(rest).ok_or(EMSGSIZE)?;
                None
            }
            Dir::Write => {
                let header = WriteHdr {
                    usr_len,
                    timed: false,
                };
                *rest.first_chunk_mut::<WRITE_HDR_LEN>().ok_or(EINVAL)? = header.encode();
                let Some(Carried::Buffered(io)) =
                    self.in_flight.as_mut().and_then(|f| f.io.as_mut())
                else {
                    return Err(EINVAL);
                };
                Some(buffer.copy_from(io, req.bytes)?)
            }
        };
        self.hdr.write(0, &headers)?;
        let payload = wire.layout.request(req.tag, usr_len.into());
        let imm = Imm::IoReq {
            payload: payload.ok_or(EINVAL)?,
        };
        let (imm, signal) = (imm.encode(), Signal::None);
        let doorbell = match req.last {
            true => Doorbell::Now,
            false => Doorbell::Later,
        };
        match data {
            None => {
                let from = [self.hdr.sge(0, HEADERS_END)?];
                qp.send_message(None, from, imm, signal, doorbell)
            }
            Some(data) => {
                let from = [self.hdr.sge(0, HEADERS)?, data];
                qp.send_message(None, from, imm, signal, doorbell)
            }
        }
    }
}
