// SPDX-License-Identifier: GPL-2.0

//! Properties of the wire format: no input panics, and every value survives a round trip.

use ibtrs_proto::capsule::Window;
use ibtrs_proto::consts::*;
use ibtrs_proto::handshake::*;
use ibtrs_proto::imm::Imm;
use ibtrs_proto::layout;
use ibtrs_proto::msg::*;
use ibtrs_proto::slots::SLOT_UNIT;
use proptest::prelude::*;

fn desc(addr: u64, key: u32, len: u32) -> SgDesc {
    SgDesc { addr, key, len }
}

fn any_desc() -> impl Strategy<Value = SgDesc> {
    any::<(u64, u32, u32)>().prop_map(|(a, k, l)| desc(a, k, l))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(b in prop::collection::vec(any::<u8>(), 0..400), qd: u16, c: u32) {
        let _ = ConnReq::decode(&b);
        let _ = ConnRsp::decode(&b);
        let _ = reject_decode(&b);
        let _ = InfoReq::decode(&b);
        if let Ok(rsp) = InfoRsp::parse(&b, qd, c) {
            prop_assert_eq!(rsp.chunks().count(), usize::from(qd));
        }
        let _ = RkeyRsp::decode_for(&b, qd.into(), qd);
        let _ = MoreAnswers::decode(&b);
        let _ = InvAnswer::decode(&b, c & 1 == 1, qd);
        if let Ok(h) = RequestHdr::parse(&b, c & 2 == 2) {
            let _ = ServerRequest::parse(&h, c, Bounds::Chunk(c.wrapping_mul(3)));
            let _ = ServerRequest::parse(&h, c, Bounds::Slot { bytes: c.wrapping_mul(3), max_io: c });
        }
    }

    #[test]
    fn imm_decode_encode(raw: u32) {
        let imm = Imm::decode(raw);
        prop_assert_eq!(Imm::decode(imm.encode()), imm);
        match imm {
            Imm::Heartbeat | Imm::HeartbeatAck | Imm::Nop => {}
            _ => prop_assert_eq!(imm.encode(), raw),
        }
    }

    #[test]
    fn conn_req_round_trip(
        cid_num in 1u16..=4096, cid: u16, recon_cnt: u16,
        path_uuid: [u8; 16], session_uuid: [u8; 16], first_conn: bool,
        ext in prop::option::of((1..=MAX_EPOCH, any::<[bool; 10]>(), any::<u32>())),
        tail in prop::collection::vec(any::<u8>(), 0..140),
    ) {
        let ext = ext.map(|(epoch, flags, failover_time_ms)| {
            let [
                send_imm, notices, same_key, durable, more_answers, inv_answers, slots, capsules, downtime,
                messages,
            ] = flags;
            ReqExt {
                epoch, send_imm, notices, same_key, durable, more_answers, inv_answers, slots, capsules,
                downtime, messages, failover_time_ms,
            }
        });
        let cids = cid_num + u16::from(ext.is_some_and(|ext: ReqExt| ext.messages));
        let cid = cid % cids;
        let req = ConnReq { cid, cid_num, recon_cnt, path_uuid, session_uuid, first_conn, ext };
        let mut b = req.encode().to_vec();
        b.extend(tail);
        prop_assert_eq!(ConnReq::decode(&b), Ok(req));
    }

    /// Whatever is accepted can be worked with.
    #[test]
    fn conn_rsp_accepts_only_layouts(
        queue_depth: u16, io: u32, hdr: u32, new_rkey: bool,
        ext in prop::option::of((any::<[u8; 16]>(), any::<u32>(), any::<bool>())),
        slot_units in prop::option::of(1u32..256), window: u8,
    ) {
        let times = ext.is_some_and(|(_, _, times)| times);
        let slot_bytes = ext.and(slot_units).map(|units| units * SLOT_UNIT);
        let window = ext.and_then(|_| Window::from_wire(window));
        let ext = ext.map(|(server_run, session_gen, _)| RspExt { server_run, session_gen });
        let (io, hdr) = (io >> (io % 32), hdr >> (hdr % 32));
        let rsp = ConnRsp {
            queue_depth, max_io_size: io, max_hdr_size: hdr, new_rkey, times, messages: times, slot_bytes,
            window, ext,
        };
        if let Ok(back) = ConnRsp::decode(&rsp.encode()) {
            prop_assert_eq!(back, rsp);
            let l = rsp.layout().unwrap();
            let chunk = slot_bytes.map_or(u64::from(io) + u64::from(hdr), u64::from);
            prop_assert_eq!(u64::from(l.chunk_size()), chunk);
            prop_assert!(l.chunk_size() >= hdr);
        }
    }

    #[test]
    fn inv_answer_round_trip(id in 0u32..512, errno in 0u16..512, rkey: Option<u32>,
                             upper: Option<u32>, times: Option<u32>) {
        let trailer = Trailer::new(upper, times);
        let message = InvAnswer { answer: ibtrs_proto::imm::Answer { id, errno }, rkey, trailer };
        let mut buf = [0; INV_ANSWER_LEN];
        let len = message.encode(&mut buf).unwrap();
        prop_assert_eq!(InvAnswer::decode(&buf[..len], true, 512), Ok(message));
        // A client that asked for times gets them, and others the number that they know.
        prop_assert_eq!(trailer.parts(times.is_some()), (upper, times));
    }

    /// The received time is less than the measured one by one part in 1024 at most, and never more.
    #[test]
    fn times_lose_little(queue: u64, disk: u64, shifts in (0u32..64, 0u32..64)) {
        let sent = ServerTimes { queue_ns: queue >> shifts.0, disk_ns: disk >> shifts.1 };
        let got = ServerTimes::decode(sent.encode());
        for (sent, got) in [(sent.queue_ns, got.queue_ns), (sent.disk_ns, got.disk_ns)] {
            let sent = sent.min(MAX_SENT_NS);
            prop_assert!(got <= sent && sent - got <= sent / 1024, "{sent} {got}");
        }
        prop_assert_eq!(ServerTimes::decode(got.encode()), got);
    }

    /// A longer time is never shown as a shorter one.
    #[test]
    fn times_keep_their_order(a: u64, b: u64, shifts in (0u32..64, 0u32..64)) {
        let sent = |ns| ServerTimes { queue_ns: ns, disk_ns: 0 }.encode();
        let (a, b) = (a >> shifts.0, b >> shifts.1);
        prop_assert!(sent(a.min(b)) <= sent(a.max(b)));
    }

    /// Whatever a server sends is a time that can be added up.
    #[test]
    fn any_number_is_times(number: u32) {
        let ServerTimes { queue_ns, disk_ns } = ServerTimes::decode(number);
        prop_assert!(queue_ns <= MAX_SENT_NS && disk_ns <= MAX_SENT_NS);
    }

    #[test]
    fn info_rsp_round_trip(runs in prop::collection::vec(1u32..5, 1..40), base: u32) {
        // Pad the runs so that their number divides the depth.
        let (count, c) = (runs.len() as u32, 8192u32);
        let sum: u32 = runs.iter().sum();
        let mut runs = runs;
        runs[0] += (count - sum % count) % count;
        let qd: u32 = runs.iter().sum();
        let descs: Vec<_> = runs.iter().enumerate()
            .map(|(i, r)| desc(u64::from(base) << 20 | (i as u64) << 40, i as u32, r * c))
            .collect();
        let mut buf = vec![0; info_rsp_len(count as u16)];
        prop_assert_eq!(InfoRsp::write(&mut buf, descs.iter().copied()), Ok(buf.len()));
        let rsp = InfoRsp::parse(&buf, qd as u16, c).unwrap();
        let want: Vec<_> = descs.iter()
            .flat_map(|d| (0..d.len / c).map(|i| Chunk {
                addr: d.addr + u64::from(i * c), rkey: d.key,
            }))
            .collect();
        prop_assert_eq!(rsp.chunks().collect::<Vec<_>>(), want);
    }

    #[test]
    fn headers_round_trip(usr_len: u16, need_inval: bool, timed: bool, d in prop::option::of(any_desc())) {
        let need_inval = need_inval && d.is_some();
        let h = ReadHdr { usr_len, need_inval, timed, desc: d };
        let mut buf = [0; 24];
        let n = h.encode(&mut buf).unwrap();
        prop_assert_eq!(n, h.wire_len());
        prop_assert_eq!(RequestHdr::parse(&buf[..n], true), Ok(RequestHdr::Read(h)));
        let w = WriteHdr { usr_len, timed };
        prop_assert_eq!(RequestHdr::parse(&w.encode(), true), Ok(RequestHdr::Write(w)));
        let desc = d.unwrap_or_default();
        let f = FetchHdr { usr_len, need_inval, timed, desc };
        prop_assert_eq!(f.encode().len(), f.wire_len());
        prop_assert_eq!(RequestHdr::parse(&f.encode(), true), Ok(RequestHdr::Fetch(f)));
        // Without times, it is no request.
        prop_assert_eq!(RequestHdr::parse(&f.encode(), false).is_err(), timed);
        prop_assert_eq!(RequestHdr::parse(&buf[..n], false).is_err(), timed);
        prop_assert_eq!(RequestHdr::parse(&w.encode(), false).is_err(), timed);
    }

    /// The server finds everything where a client places it, with the same numbers.
    #[test]
    fn placement_meets_server(data_len in 0u32..140_000, usr_len in 0u16..5000, write: bool) {
        let (c, h) = (131_072, 4096);
        let place = if write { layout::write } else { layout::read };
        let Ok(p) = place(data_len, usr_len, c, h) else {
            return Ok(());
        };
        prop_assert!(p.offset_of_first_byte + p.total_len <= c);
        let hdr = if write {
            RequestHdr::Write(WriteHdr { usr_len, timed: false })
        } else {
            let desc = (data_len > 0).then(|| desc(0, 1, data_len));
            RequestHdr::Read(ReadHdr { usr_len, need_inval: true, timed: true, desc })
        };
        let end = p.offset_of_first_byte + p.total_len;
        prop_assert_eq!(p.imm_offset + hdr.wire_len() as u32, end);
        let req = ServerRequest::parse(&hdr, p.imm_offset, Bounds::Chunk(c)).unwrap();
        prop_assert_eq!((req.data_len, req.usr_len), (data_len, usr_len));
        prop_assert_eq!((req.direction, req.timed), (hdr.direction(), hdr.timed()));
    }

    /// Whatever the server accepts stays inside the chunk, and returns no more than the data.
    #[test]
    fn server_request_bounds(b in prop::collection::vec(any::<u8>(), 24), kind in 2u8..4,
                             sg in 0u8..2, offset in 0u32..20_000, c in 1u32..20_000) {
        let mut b = b;
        (b[0], b[1], b[6], b[7], b[3], b[22], b[23]) = (kind, 0, sg, 0, b[3] & 0x1F, 0, 0);
        let hdr = RequestHdr::parse(&b, false).unwrap();
        if let Ok(r) = ServerRequest::parse(&hdr, offset, Bounds::Chunk(c)) {
            prop_assert_eq!(r.usr_at, r.data_len);
            let end = r.usr_at + u32::from(r.usr_len) + hdr.wire_len() as u32;
            prop_assert!(end <= c);
            prop_assert!(r.return_len() <= r.data_len);
            prop_assert_eq!(r.desc.is_some(), r.return_len() > 0);
        }
    }
}
