// SPDX-License-Identifier: GPL-2.0

//! The fast path for most requests: reads and writes of a disk that are sent as a capsule, with their
//! data in the buffer of the tag. The general path could send them as well; this one skips the checks
//! whose results are known for all of them.

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
    consts::MAX_REQUEST_HDR_LEN,
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

/// Returns the user header of a small request, whose data, if it is a write, fits in its message; `None` if
/// the request is not small.
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
    #[inline(always)]
    pub(super) fn post_small(
        &mut self,
        wire: &Wire,
        qp: &QueuePair<Con>,
        buffer: &IoBuffer,
        req: &Descriptor,
        user_hdr: &[u8; DISK_USER_HDR],
    ) -> Result {
        // Before anything else: a request in the slot is sent again by these.
        let len = self.write_small(req, user_hdr, buffer)?;
        let hdr = self.hdr.sge(0, len)?;
        // CAST: A small constant.
        let payload = wire.layout.request(req.tag, DISK_USER_HDR as u32);
        let imm = Imm::IoReq {
            payload: payload.ok_or(EINVAL)?,
        };
        let (imm, signal) = (imm.encode(), Signal::None);
        let doorbell = match req.last {
            true => Doorbell::Now,
            false => Doorbell::Later,
        };
        match req.dir {
            Dir::Read => qp.send_message(None, [hdr], imm, signal, doorbell),
            Dir::Write => {
                let io = self.in_flight.as_mut().and_then(|f| f.io.as_mut());
                let Some(Carried::Buffered(io)) = io else {
                    return Err(EINVAL);
                };
                let data = buffer.copy_from(io, req.bytes)?;
                qp.send_message(None, [hdr, data], imm, signal, doorbell)
            }
        }
    }

    /// Writes the headers of a small request; returns the length that is sent.
    #[inline(always)]
    fn write_small(
        &mut self,
        req: &Descriptor,
        user_hdr: &[u8; DISK_USER_HDR],
        buffer: &IoBuffer,
    ) -> Result<usize> {
        // CAST: A small constant.
        let usr_len = DISK_USER_HDR as u16;
        self.hdr.write(0, user_hdr)?;
        match req.dir {
            Dir::Read => {
                let header = ReadHdr {
                    usr_len,
                    need_inval: false,
                    timed: false,
                    desc: Some(buffer.desc(req.bytes)),
                };
                let mut bytes = [0; MAX_REQUEST_HDR_LEN];
                header.encode(&mut bytes).ok_or(EINVAL)?;
                self.hdr.write(DISK_USER_HDR, &bytes)?;
                Ok(SMALL_HEADERS as usize)
            }
            Dir::Write => {
                let header = WriteHdr {
                    usr_len,
                    timed: false,
                };
                // With zeroes up to the data.
                let mut bytes = [0; HEADERS - DISK_USER_HDR];
                *bytes.first_chunk_mut().ok_or(EINVAL)? = header.encode();
                self.hdr.write(DISK_USER_HDR, &bytes)?;
                Ok(HEADERS)
            }
        }
    }
}

#[cfg(IBTRS_KUNIT)]
#[kernel::macros::kunit_tests(ibtrs_client_small)]
mod tests {
    use super::*;
    use crate::data::{
        io_buffer::IoBuffers,
        plan::{
            Data,
            Transfer, //
        },
        slot::{
            Memory,
            ReqSlot, //
        }, //
    };
    use ibtrs_proto::{
        capsule::Window,
        handshake::{
            ConnRsp,
            ReqExt,
            RspExt, //
        },
        msg::Chunk,
        tag::Tag, //
    };
    use kernel::sync::Arc;
    use rdma::{
        device::Device,
        pd::Pd, //
    };

    const USER_HDR: [u8; DISK_USER_HDR] = [0xa5; DISK_USER_HDR];
    const TAG: Tag = Tag::new(3);

    /// Returns the parameters that are negotiated with a server whose response `change` modifies.
    fn wire(dev: &Device, change: impl FnOnce(&mut ConnRsp)) -> Result<Wire> {
        let mut rsp = ConnRsp {
            queue_depth: 8,
            max_io_size: 61_440,
            max_hdr_size: 4096,
            new_rkey: false,
            times: true,
            messages: false,
            slot_bytes: None,
            window: Window::from_wire(4),
            ext: Some(RspExt {
                session_gen: 1,
                server_run: [7; 16],
            }),
        };
        change(&mut rsp);
        let asked = ReqExt {
            capsules: true,
            ..ReqExt::plain(1)
        };
        Wire::new(rsp, asked, dev, None)
    }

    fn request(dir: Dir, bytes: u32) -> Descriptor {
        let mut req = Descriptor::new(TAG, dir, bytes);
        (req.cid, req.usr_len) = (1, DISK_USER_HDR);
        req
    }

    /// A small request is sent exactly as the general path would send it.
    #[test]
    fn a_small_request_is_as_any_other() -> Result {
        let dev = Device::nth(0)?;
        let (pd, wire) = (Pd::new(&dev)?, wire(&dev, |_| ())?);
        let buffers = IoBuffers::new(&pd, 8, 100);
        let chunk = Chunk { addr: 0, rkey: 0 };
        let slot = ReqSlot::new(Memory::new(&pd, &wire)?, chunk, buffers.get(TAG));
        let slot = Arc::pin_init(slot, GFP_KERNEL)?;
        for (dir, sent, transfer) in [
            (Dir::Read, SMALL_HEADERS as usize, Transfer::IntoBuffer),
            (Dir::Write, HEADERS, Transfer::FromBuffer),
        ] {
            for bytes in [1, 512, capsule::MAX_DATA] {
                let req = request(dir, bytes);
                let buffer = slot.buffer_for(&wire, &req).ok_or(ENOMEM)?;
                let user_hdr = user_hdr(&wire, &req, &USER_HDR).ok_or(EINVAL)?;
                let plan = wire.plan(&req, Data::Buffered);
                assert!(plan.is_capsule && plan.transfer == transfer);
                let mut inner = slot.inner.lock();
                // Remains of an earlier request.
                inner.hdr.write(0, &[0xff; HEADERS])?;
                assert_eq!(inner.write_small(&req, user_hdr, buffer)?, sent);
                let mut small = [0; HEADERS];
                small[..sent].copy_from_slice(inner.hdr.bytes(sent));
                inner.hdr.write(0, &[0xff; HEADERS])?;
                let place =
                    inner.write_header(&wire, &req, &USER_HDR, plan, Some(buffer), false)?;
                assert_eq!(place.imm_offset as usize, DISK_USER_HDR);
                if dir == Dir::Read {
                    assert_eq!(place.total_len as usize, sent);
                }
                assert_eq!(inner.hdr.bytes(sent), &small[..sent]);
            }
        }
        Ok(())
    }

    #[test]
    fn others_are_not_small() -> Result {
        let dev = Device::nth(0)?;
        let plain = wire(&dev, |_| ())?;
        let req = request(Dir::Write, capsule::MAX_DATA);
        assert!(user_hdr(&plain, &req, &USER_HDR).is_some());
        // Requests of others than disks.
        assert!(user_hdr(&plain, &req, &USER_HDR[1..]).is_none());
        assert!(user_hdr(&plain, &req, &[0; DISK_USER_HDR + 1]).is_none());
        let long = request(Dir::Write, capsule::MAX_DATA + 1);
        assert!(user_hdr(&plain, &long, &USER_HDR).is_none());
        // The service connection has no capsules.
        let service = Descriptor::new(TAG, Dir::Write, 512);
        assert!(user_hdr(&plain, &service, &USER_HDR).is_none());
        let no_capsules = wire(&dev, |rsp| rsp.window = None)?;
        assert!(user_hdr(&no_capsules, &req, &USER_HDR).is_none());
        let short_headers = wire(&dev, |rsp| rsp.max_hdr_size = SMALL_HEADERS - 1)?;
        assert!(user_hdr(&short_headers, &req, &USER_HDR).is_none());
        let enough = wire(&dev, |rsp| rsp.max_hdr_size = SMALL_HEADERS)?;
        assert!(user_hdr(&enough, &req, &USER_HDR).is_some());
        Ok(())
    }
}
