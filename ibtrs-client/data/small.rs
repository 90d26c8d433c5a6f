// SPDX-License-Identifier: GPL-2.0

//! Most requests: reads and writes of a disk that go in a capsule, their data through the buffer of the
//! tag. They could be sent as any others; here, what is known of all of them is not asked for again.

use crate::{
    data::{
        con::Con,
        io_buffer::IoBuffer,
        slot::{
            Carried,
            ReqSlotInner, //
        },
        wire::{
            Wire,
            DISK_USER_HDR,
            SMALL_HEADERS, //
        }, //
    },
    types::{
        Descriptor,
        Dir, //
    }, //
};
use ibtrs_proto::{
    capsule,
    consts::WRITE_HDR_LEN,
    imm::Imm,
    msg::{
        ReadHdr,
        WriteHdr, //
    }, //
};
use kernel::prelude::*;
use rdma::{
    qp::QueuePair,
    sendq::{
        Doorbell,
        Signal, //
    }, //
};

/// Where the data of a write begins.
const HEADERS: usize = capsule::HEADERS as usize;

/// Returns the user header of a small request; `None` if that is no small one.
#[inline]
pub(super) fn user_hdr<'a>(
    wire: &Wire,
    req: &Descriptor,
    user_hdr: &'a [u8],
) -> Option<&'a [u8; DISK_USER_HDR]> {
    let is_small = wire.small_capsules && req.cid > 0 && req.bytes <= capsule::MAX_DATA;
    user_hdr.try_into().ok().filter(|_| is_small)
}

impl ReqSlotInner {
    /// Writes the headers, and posts the request.
    #[inline]
    pub(super) fn post_small(
        &mut self,
        wire: &Wire,
        qp: &QueuePair<Con>,
        buffer: IoBuffer<'_>,
        req: &Descriptor,
        user_hdr: &[u8; DISK_USER_HDR],
    ) -> Result {
        // CAST: A small constant.
        let usr_len = DISK_USER_HDR as u16;
        let mut headers = [0; HEADERS];
        *headers.first_chunk_mut().ok_or(EINVAL)? = *user_hdr;
        let rest = headers.get_mut(DISK_USER_HDR..).ok_or(EINVAL)?;
        match req.dir {
            Dir::Read => {
                let header = ReadHdr {
                    usr_len,
                    need_inval: false,
                    timed: false,
                    desc: Some(buffer.desc(req.bytes)),
                };
                header.encode(rest).ok_or(EINVAL)?;
            }
            Dir::Write => {
                let header = WriteHdr {
                    usr_len,
                    timed: false,
                };
                *rest.first_chunk_mut::<WRITE_HDR_LEN>().ok_or(EINVAL)? = header.encode();
            }
        }
        // Before anything else: a request in the slot is sent again by these.
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
        match req.dir {
            Dir::Read => {
                let from = [self.hdr.sge(0, SMALL_HEADERS as usize)?];
                qp.send_message(None, from, imm, signal, doorbell)
            }
            Dir::Write => {
                let io = self.in_flight.as_mut().and_then(|f| f.io.as_mut());
                let Some(Carried::Buffered(io)) = io else {
                    return Err(EINVAL);
                };
                let data = buffer.copy_from(io, req.bytes)?;
                let from = [self.hdr.sge(0, HEADERS)?, data];
                qp.send_message(None, from, imm, signal, doorbell)
            }
        }
    }
}
