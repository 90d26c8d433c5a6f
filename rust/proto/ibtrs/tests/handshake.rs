// SPDX-License-Identifier: GPL-2.0

//! Golden bytes and refusals of immediates and of the connection messages.

use ibtrs_proto::capsule::Window;
use ibtrs_proto::errno::Errno;
use ibtrs_proto::handshake::*;
use ibtrs_proto::imm::*;
use ibtrs_proto::limits;
use ibtrs_proto::slots::MAX_SLOT_BYTES;
use ibtrs_proto::tag::Tag;

/// The golden immediates of Documentation/protocol.md, "Immediates".
#[test]
fn immediates_of_the_protocol() {
    let l = ImmLayout::new(512, 131_072).unwrap();
    assert_eq!(l.mem_bits(), 19);
    let req = |id, off| {
        let payload = l.request(Tag::new(id), off).unwrap();
        Imm::IoReq { payload }.encode()
    };
    // 4 KiB write, then read, on chunk 5; OPEN, SESS_INFO, CLOSE on chunk 0.
    assert_eq!(req(5, 4096 + 32), 0x0028_1020);
    assert_eq!(req(0, 56 + 264), 0x0000_0140);
    assert_eq!(req(0, 36 + 36), 0x0000_0048);
    assert_eq!(req(0, 8), 0x0000_0008);
    let rsp = |id, errno| Imm::IoRsp { id, errno }.encode();
    assert_eq!(rsp(5, 0), 0x1000_0005);
    assert_eq!(Imm::IoRspInv { id: 5, errno: 0 }.encode(), 0x2000_0005);
    assert_eq!(Imm::IoRspSameKey { id: 5, errno: 5 }.encode(), 0x6028_0005);
    assert_eq!(Imm::IoRspMore { id: 5, errno: 5 }.encode(), 0xB028_0005);
    assert_eq!(rsp(5, 5), 0x1028_0005);
    assert_eq!(rsp(7, 107), 0x1358_0007);
    assert_eq!(Imm::Heartbeat.encode(), 0x8000_0000);
    assert_eq!(Imm::HeartbeatAck.encode(), 0x9000_0000);
    assert_eq!(Imm::Nop.encode(), 0xC000_0000);
    assert_eq!(l.check(0x0028_1020), Ok((Tag::new(5), 4128)));
}

#[test]
fn errno_is_mapped_not_truncated() {
    for errno in [512u16, 524, 4095, u16::MAX] {
        let raw = Imm::IoRsp { id: 3, errno }.encode();
        assert_eq!(Imm::decode(raw), Imm::IoRsp { id: 3, errno: 5 });
    }
    let raw = Imm::IoRsp { id: 3, errno: 511 }.encode();
    assert_eq!(Imm::decode(raw), Imm::IoRsp { id: 3, errno: 511 });
    assert_eq!(Errno::ENOTSUPP.to_imm(), 5);
    assert_eq!(Errno(0).to_imm(), 5);
    assert_eq!(Errno(-5).to_imm(), 5);
    assert_eq!(Errno::ENOTCONN.to_imm(), 107);
    assert_eq!(Errno::from_imm(0), None);
    assert_eq!(Errno::from_imm(107), Some(Errno::ENOTCONN));
    // Numbers that user space does not have: 512 would make the kernel start a system call again.
    assert_eq!(Errno::from_imm(133), Some(Errno(133)));
    for number in [134, 256, 511] {
        assert_eq!(Errno::from_imm(number), Some(Errno::EIO));
    }
    for number in [0, 134, 512, 4095, u16::MAX] {
        assert_eq!(Errno::from_peer(number), Errno::EIO);
    }
    // Sizes that would make a request go round forever.
    assert_eq!(Errno::from_imm(Errno::ESTALE.to_imm()), Some(Errno::EIO));
    assert_eq!(Errno::from_kernel(-104), Some(Errno::ECONNRESET));
    assert_eq!(Errno::from_kernel(0), None);
    assert_eq!(Errno::from_kernel(7), None);
    assert_eq!(Errno::from_kernel(-4096), None);
    assert_eq!(Errno::from_kernel(i32::MIN), None);
    assert_eq!(Errno(i32::MIN).to_kernel(), i32::MAX);
    assert_eq!(Errno::ECONNRESET.as_str(), "ECONNRESET");
    assert_eq!(Errno(4000).as_str(), "E?");
}

#[test]
fn a_client_uses_no_more_chunks_than_requests() {
    use ibtrs_proto::permit::DepthSplit;
    for depth in [1, 2, 512, 10_244] {
        assert_eq!(limits::client_depth(depth), depth);
    }
    let used = limits::client_depth(u16::MAX);
    assert_eq!(DepthSplit::of_session(used).io(), 10_240);
    assert_eq!(limits::client_depth(10_245), used);
}

#[test]
fn unknown_immediates_are_kept() {
    for kind in [14u32, 15] {
        let raw = (kind << 28) | 0x0123_4567;
        assert_eq!(Imm::decode(raw), Imm::Unknown(raw));
        assert_eq!(Imm::decode(raw).encode(), raw);
    }
    // The payload of a heartbeat, or of nothing, does not matter.
    let (id, errno) = (5, 0);
    assert_eq!(Imm::decode(0x0000_0007), Imm::IoReq { payload: 7 });
    assert_eq!(Imm::decode(0x1000_0005), Imm::IoRsp { id, errno });
    assert_eq!(Imm::decode(0x2000_0005), Imm::IoRspInv { id, errno });
    assert_eq!(Imm::decode(0x6000_0005), Imm::IoRspSameKey { id, errno });
    assert_eq!(Imm::decode(0xB000_0005), Imm::IoRspMore { id, errno });
    assert_eq!(Imm::decode(0x8000_0001), Imm::Heartbeat);
    assert_eq!(Imm::decode(0x9FFF_FFFF), Imm::HeartbeatAck);
    assert_eq!(Imm::decode(0xC000_0001), Imm::Nop);
}

#[test]
fn conn_req_golden() {
    let req = ConnReq {
        cid: 0x0102,
        cid_num: 0x0304,
        recon_cnt: 0x0506,
        path_uuid: core::array::from_fn(|i| 0x10 + i as u8),
        session_uuid: core::array::from_fn(|i| 0x30 + i as u8),
        first_conn: true,
        ext: None,
    };
    let b = req.encode();
    let head = [
        0, 0, 0xBD, 0x1B, 0x00, 0x02, 0x02, 0x01, 0x04, 0x03, 0x06, 0x05,
    ];
    assert_eq!(b[..12], head);
    assert_eq!(b[12..28], req.path_uuid);
    assert_eq!(b[28..44], req.session_uuid);
    assert_eq!(b[44], 1);
    assert!(b[45..].iter().all(|&x| x == 0));
    assert_eq!(ConnReq::decode(&b), Ok(req));
    // Padding after, reserved bytes and bits, and a connection manager's header are nothing.
    let mut long = [0xFFu8; 196];
    long[..56].copy_from_slice(&b);
    assert_eq!(ConnReq::decode(&long), Ok(req));
    let mut b2 = b;
    (b2[0], b2[1], b2[44]) = (0x07, 0x40, 0xFF);
    b2[45..].fill(0xEE);
    assert_eq!(ConnReq::decode(&b2), Ok(req));
    b2[44] = 0xFE;
    assert!(!ConnReq::decode(&b2).unwrap().first_conn);
}

#[test]
fn conn_req_refusals() {
    let good = ConnReq {
        cid: 0,
        cid_num: 1,
        recon_cnt: 1,
        path_uuid: [1; 16],
        session_uuid: [2; 16],
        first_conn: false,
        ext: None,
    };
    let b = good.encode();
    for n in 0..56 {
        assert_eq!(ConnReq::decode(&b[..n]), Err(HandshakeError::Short));
    }
    let with = |off: usize, v: u16| {
        let mut b = b;
        b[off..off + 2].copy_from_slice(&v.to_le_bytes());
        ConnReq::decode(&b)
    };
    assert_eq!(with(2, 0xBD1B), Err(HandshakeError::Magic(0xBD1B)));
    assert_eq!(with(4, 0x0100), Err(HandshakeError::Version(0x0100)));
    assert_eq!(with(4, 0x0300), Err(HandshakeError::Version(0x0300)));
    assert!(with(4, 0x0207).is_ok(), "only the major version counts");
    assert_eq!(with(8, 0), Err(HandshakeError::ConnectionCount(0)));
    assert_eq!(with(8, 4097), Err(HandshakeError::ConnectionCount(4097)));
    assert!(with(8, 4096).is_ok());
    assert_eq!(with(6, 1), Err(HandshakeError::ConnectionId(1)));
    assert_eq!(HandshakeError::ConnectionId(1).errno(), Errno::ECONNRESET);
}

#[test]
fn conn_rsp_golden() {
    let rsp = ConnRsp {
        queue_depth: 512,
        max_io_size: 126_976,
        max_hdr_size: 4096,
        new_rkey: true,
        times: false,
        messages: false,
        slot_bytes: None,
        window: None,
        ext: None,
    };
    let b = rsp.encode();
    let head = [
        0xBD, 0x1B, 0x00, 0x02, 0, 0, 0x00, 0x02, 0x00, 0xF0, 0x01, 0x00, 0x00, 0x10, 0, 0, 2, 0,
        0, 0,
    ];
    assert_eq!(b[..20], head);
    assert!(b[20..].iter().all(|&x| x == 0));
    assert_eq!(ConnRsp::decode(&b), Ok(rsp));
    assert_eq!(rsp.chunk_size(), 131_072);
    assert_eq!(rsp.layout(), ImmLayout::new(512, 131_072));
    // Flags of a later version do not hurt.
    let mut b2 = b;
    b2[16..].fill(0xFF);
    assert_eq!(ConnRsp::decode(&b2), Ok(rsp));
    let l = limits::server_layout(131_072, 512).unwrap();
    assert_eq!(limits::server_response(&l, true), rsp);
}

#[test]
fn conn_rsp_refusals() {
    let good = ConnRsp {
        queue_depth: 512,
        max_io_size: 126_976,
        max_hdr_size: 4096,
        new_rkey: false,
        times: false,
        messages: false,
        slot_bytes: None,
        window: None,
        ext: None,
    };
    for n in 0..56 {
        assert_eq!(
            ConnRsp::decode(&good.encode()[..n]),
            Err(HandshakeError::Short)
        );
    }
    let check = |f: &dyn Fn(&mut ConnRsp)| {
        let mut rsp = good;
        f(&mut rsp);
        ConnRsp::decode(&rsp.encode())
    };
    assert_eq!(
        check(&|r| r.queue_depth = 0),
        Err(HandshakeError::Layout(LayoutError::ZeroDepth))
    );
    assert_eq!(
        check(&|r| r.queue_depth = 2049),
        Err(HandshakeError::Layout(LayoutError::TooBig))
    );
    assert!(check(&|r| r.queue_depth = 2048).is_ok());
    assert_eq!(check(&|r| r.max_io_size = 0), Err(HandshakeError::Sizes));
    assert_eq!(check(&|r| r.max_hdr_size = 23), Err(HandshakeError::Sizes));
    assert!(check(&|r| r.max_hdr_size = 24).is_ok());
    assert_eq!(
        check(&|r| r.max_io_size = u32::MAX),
        Err(HandshakeError::ChunkSize)
    );
    assert_eq!(
        ConnRsp::decode(&reject_encode(Errno::EIO)),
        Err(HandshakeError::Status(0xFFFB))
    );
}

#[test]
fn extensions_golden() {
    let req = ConnReq {
        cid: 0,
        cid_num: 3,
        recon_cnt: 1,
        path_uuid: [1; 16],
        session_uuid: [2; 16],
        first_conn: true,
        ext: Some(ReqExt {
            send_imm: true,
            ..ReqExt::plain(0x0102_0304)
        }),
    };
    let b = req.encode();
    assert_eq!(b[44..], [1, 1, 1, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
    assert_eq!(ConnReq::decode(&b), Ok(req));
    let mut told = req;
    told.ext.as_mut().unwrap().notices = true;
    assert_eq!(told.encode()[44..48], [1, 1, 3, 0]);
    assert_eq!(ConnReq::decode(&told.encode()), Ok(told));
    told.ext.as_mut().unwrap().same_key = true;
    assert_eq!(told.encode()[44..48], [1, 1, 7, 0]);
    assert_eq!(ConnReq::decode(&told.encode()), Ok(told));
    told.ext.as_mut().unwrap().durable = true;
    assert_eq!(told.encode()[44..48], [1, 1, 15, 0]);
    assert_eq!(ConnReq::decode(&told.encode()), Ok(told));
    told.ext.as_mut().unwrap().more_answers = true;
    assert_eq!(told.encode()[44..48], [1, 1, 31, 0]);
    assert_eq!(ConnReq::decode(&told.encode()), Ok(told));
    told.ext.as_mut().unwrap().inv_answers = true;
    assert_eq!(told.encode()[44..48], [1, 1, 63, 0]);
    assert_eq!(ConnReq::decode(&told.encode()), Ok(told));
    told.ext.as_mut().unwrap().slots = true;
    assert_eq!(told.encode()[44..48], [1, 1, 127, 0]);
    assert_eq!(ConnReq::decode(&told.encode()), Ok(told));
    told.ext.as_mut().unwrap().capsules = true;
    assert_eq!(told.encode()[44..48], [1, 1, 255, 0]);
    assert_eq!(ConnReq::decode(&told.encode()), Ok(told));
    // The next one is in the byte before.
    told.ext.as_mut().unwrap().downtime = true;
    assert_eq!(told.encode()[44..48], [3, 1, 255, 0]);
    assert_eq!(ConnReq::decode(&told.encode()), Ok(told));
    let joins = ConnReq {
        first_conn: false,
        ..told
    };
    assert_eq!(joins.encode()[44..48], [2, 1, 255, 0]);
    assert_eq!(ConnReq::decode(&joins.encode()), Ok(joins));
    told.ext.as_mut().unwrap().failover_time_ms = 5000;
    assert_eq!(told.encode()[48..], [4, 3, 2, 1, 0x88, 0x13, 0, 0]);
    assert_eq!(ConnReq::decode(&told.encode()), Ok(told));
    // Another version of the extensions, or an attempt without a number, is no extension.
    let with = |off: usize, v: u8| {
        let mut b = b;
        b[off] = v;
        ConnReq::decode(&b).unwrap().ext
    };
    assert_eq!(with(45, 2), None);
    assert_eq!(with(51, 8), None, "28 bits");
    let mut zero = b;
    zero[48..52].fill(0);
    assert_eq!(ConnReq::decode(&zero).unwrap().ext, None);

    let rsp = ConnRsp {
        queue_depth: 512,
        max_io_size: 126_976,
        max_hdr_size: 4096,
        new_rkey: false,
        times: false,
        messages: false,
        slot_bytes: None,
        window: None,
        ext: Some(RspExt {
            server_run: core::array::from_fn(|i| 0x50 + i as u8),
            session_gen: 0x0A0B_0C0D,
        }),
    };
    let b = rsp.encode();
    assert_eq!(b[20..28], [1, 0, 0, 0, 0x0D, 0x0C, 0x0B, 0x0A]);
    assert_eq!(b[28..44], rsp.ext.unwrap().server_run);
    assert!(b[44..].iter().all(|&x| x == 0));
    assert_eq!(ConnRsp::decode(&b), Ok(rsp));

    // Times: bit 0 of byte 22, which counts only with extensions.
    let timed = ConnRsp { times: true, ..rsp };
    let mut b = timed.encode();
    assert_eq!(b[20..28], [1, 0, 1, 0, 0x0D, 0x0C, 0x0B, 0x0A]);
    assert_eq!(ConnRsp::decode(&b), Ok(timed));
    b[22] = 0xF8;
    assert_eq!(ConnRsp::decode(&b), Ok(rsp));
    b[22] = 0xF9;
    assert_eq!(ConnRsp::decode(&b), Ok(timed));
    b[20] = 0;
    let plain = ConnRsp { ext: None, ..rsp };
    assert_eq!(ConnRsp::decode(&b), Ok(plain));
    let without = ConnRsp { ext: None, ..timed };
    assert_eq!(without.encode(), plain.encode());

    // Capsules: the last byte of the flags, which counts only with extensions.
    let capsules = ConnRsp {
        window: Window::from_wire(18),
        ..rsp
    };
    let mut b = capsules.encode();
    assert_eq!(b[16..24], [0, 0, 0, 18, 1, 0, 0, 0]);
    assert_eq!(ConnRsp::decode(&b), Ok(capsules));
    b[20] = 0;
    assert_eq!(ConnRsp::decode(&b), Ok(plain));
    let without = ConnRsp {
        ext: None,
        ..capsules
    };
    assert_eq!(without.encode(), plain.encode());
}

/// Message connections: bit 2 of byte 44 of the request, and of byte 22 of the acceptance.
#[test]
fn messages_golden() {
    let asks = |cid, messages| ConnReq {
        cid,
        cid_num: 3,
        recon_cnt: 1,
        path_uuid: [1; 16],
        session_uuid: [2; 16],
        first_conn: false,
        ext: Some(ReqExt {
            messages,
            ..ReqExt::plain(9)
        }),
    };
    for cid in 0..=3 {
        let req = asks(cid, true);
        assert_eq!(req.encode()[44..48], [4, 1, 0, 0]);
        assert_eq!(ConnReq::decode(&req.encode()), Ok(req));
        assert_eq!(req.is_for_messages(), cid == 3);
    }
    // The id behind the last is that of the message connection alone.
    for (cid, messages) in [(4, true), (u16::MAX, true), (3, false)] {
        let bytes = asks(cid, messages).encode();
        let refused = Err(HandshakeError::ConnectionId(cid));
        assert_eq!(ConnReq::decode(&bytes), refused);
    }
    let mut plain = asks(3, true).encode();
    plain[45] = 0;
    let refused = Err(HandshakeError::ConnectionId(3));
    assert_eq!(ConnReq::decode(&plain), refused, "without extensions");

    let rsp = ConnRsp {
        queue_depth: 512,
        max_io_size: 126_976,
        max_hdr_size: 4096,
        new_rkey: false,
        times: false,
        messages: true,
        slot_bytes: None,
        window: None,
        ext: Some(RspExt {
            server_run: [7; 16],
            session_gen: 1,
        }),
    };
    let mut bytes = rsp.encode();
    assert_eq!(bytes[20..24], [1, 0, 4, 0]);
    assert_eq!(ConnRsp::decode(&bytes), Ok(rsp));
    bytes[20] = 0;
    assert!(!ConnRsp::decode(&bytes).unwrap().messages);
}

/// Slots: bit 1 of byte 22, with their size in byte 23.
#[test]
fn slots_golden() {
    let rsp = ConnRsp {
        queue_depth: 4096,
        max_io_size: 131_072,
        max_hdr_size: 4096,
        new_rkey: true,
        times: true,
        messages: false,
        slot_bytes: Some(8192),
        window: None,
        ext: Some(RspExt {
            server_run: [7; 16],
            session_gen: 1,
        }),
    };
    let b = rsp.encode();
    assert_eq!(b[20..24], [1, 0, 3, 2]);
    assert_eq!(ConnRsp::decode(&b), Ok(rsp));
    assert_eq!(rsp.chunk_size(), 8192);
    // Chunks of that size would be too many.
    assert_eq!(rsp.layout().unwrap().mem_bits(), 16);
    let with = |off: usize, v: u8| {
        let mut b = b;
        b[off] = v;
        ConnRsp::decode(&b)
    };
    let whole = Err(HandshakeError::Layout(LayoutError::TooBig));
    assert_eq!(with(22, 1), whole, "chunks");
    assert_eq!(with(20, 0), whole, "no extensions");
    assert_eq!(with(23, 0), Err(HandshakeError::Sizes));
    assert_eq!(with(13, 0x21), Err(HandshakeError::Sizes), "longer headers");
    let most = ConnRsp {
        slot_bytes: Some(MAX_SLOT_BYTES),
        queue_depth: 256,
        ..rsp
    };
    assert_eq!(most.encode()[23], 255);
    assert_eq!(ConnRsp::decode(&most.encode()), Ok(most));
}

/// A server sends an answer in a message of another kind only to clients that take it like that.
#[test]
fn kinds_of_answers_are_negotiated() {
    for flags in 0..=255u8 {
        let mut b = ConnReq {
            cid: 1,
            cid_num: 3,
            recon_cnt: 1,
            path_uuid: [1; 16],
            session_uuid: [2; 16],
            first_conn: true,
            ext: None,
        }
        .encode();
        b[46] = flags;
        assert_eq!(ConnReq::decode(&b).unwrap().ext, None, "no extensions");
        b[45] = 1;
        b[48] = 7;
        let ext = ConnReq::decode(&b).unwrap().ext.unwrap();
        let has = |bits: u8| flags & bits == bits;
        assert_eq!(ext.wants_more_answers(), has(4 | 16));
        assert_eq!(ext.wants_inv_answers(), has(4 | 32) && !has(1));
        assert_eq!(ext.wants_slots(), has(4 | 32 | 64) && !has(1));
        assert_eq!(ext.wants_capsules(), has(4 | 128) && !has(1));
    }
}

#[test]
fn fences_golden() {
    let fence = Fence {
        epoch: 0x0123_4567,
        drain: false,
    };
    assert_eq!(Imm::Fence(fence).encode(), 0x3123_4567);
    let drain = Fence {
        epoch: 5,
        drain: true,
    };
    assert_eq!(Imm::FenceDone(drain).encode(), 0x4800_0005);
    for imm in [Imm::Fence(fence), Imm::FenceDone(drain)] {
        assert_eq!(Imm::decode(imm.encode()), imm);
    }
}

#[test]
fn notices_golden() {
    assert_eq!(Imm::Notice(0x0ABC_DEF1).encode(), 0x5ABC_DEF1);
    // A longer number is told by its lower bits.
    assert_eq!(Imm::Notice(0xFABC_DEF1).encode(), 0x5ABC_DEF1);
    assert_eq!(Imm::decode(0x5ABC_DEF1), Imm::Notice(0x0ABC_DEF1));
    assert_eq!(Imm::Durable(0xFABC_DEF1).encode(), 0x7ABC_DEF1);
    assert_eq!(Imm::decode(0x7ABC_DEF1), Imm::Durable(0x0ABC_DEF1));
    assert_eq!(Imm::DurableSeen(0xFABC_DEF1).encode(), 0xAABC_DEF1);
    assert_eq!(Imm::decode(0xAABC_DEF1), Imm::DurableSeen(0x0ABC_DEF1));
    assert_eq!(notice_number(0xFABC_DEF1), 0x0ABC_DEF1);
}

#[test]
fn downtimes_golden() {
    assert_eq!(Imm::Downtime(600).encode(), 0xD000_0258);
    assert_eq!(Imm::DowntimeSeen(600).encode(), 0xD800_0258);
    for seconds in [0, 1, 600, (1 << 27) - 1] {
        for imm in [Imm::Downtime(seconds), Imm::DowntimeSeen(seconds)] {
            assert_eq!(Imm::decode(imm.encode()), imm);
        }
    }
    // A longer number leaves the kind as it is.
    assert_eq!(Imm::Downtime(1 << 27 | 5).encode(), 0xD000_0005);
    assert_eq!(Imm::DowntimeSeen(1 << 27 | 5).encode(), 0xD800_0005);
}

#[test]
fn rejects() {
    let b = reject_encode(Errno::ECONNRESET);
    assert_eq!(b[..6], [0xBD, 0x1B, 0x00, 0x02, 0x98, 0xFF]);
    assert!(b[6..].iter().all(|&x| x == 0));
    for e in [1, 6, 12, 17, 104, 133] {
        assert_eq!(reject_decode(&reject_encode(Errno(e))), Errno(e));
    }
    for e in [134, 512, 4095, 32_767] {
        assert_eq!(reject_decode(&reject_encode(Errno(e))), Errno::EIO);
    }
    for e in [0, -1, 65_536, i32::MAX, i32::MIN] {
        assert_eq!(reject_encode(Errno(e)), reject_encode(Errno::ECONNRESET));
    }
    let b = reject_encode(Errno::EEXIST);
    assert_eq!(reject_decode(&b[..55]), Errno::ECONNRESET);
    assert_eq!(reject_decode(&[]), Errno::ECONNRESET);
    for (off, v) in [(0, 0), (3, 1), (5, 0x11), (4, 0)] {
        let mut g = b;
        g[off] = v;
        if off == 4 {
            g[5] = 0;
        }
        assert_eq!(reject_decode(&g), Errno::ECONNRESET, "byte {off}");
    }
}
