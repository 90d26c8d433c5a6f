// SPDX-License-Identifier: GPL-2.0

//! Which immediates each side accepts, by type, connection and extensions.

use ibtrs_proto::handshake::ReqExt;
use ibtrs_proto::imm::{Fence, Imm};
use ibtrs_proto::imm_check::{ImmError, ImmTerms};
use proptest::prelude::*;

const EPOCH: u32 = 5;
/// Sets the bit of an extension.
type SetBit = fn(&mut ReqExt);
const NONE: ReqExt = ReqExt::plain(EPOCH);
const ALL: ReqExt = ReqExt {
    notices: true,
    same_key: true,
    durable: true,
    more_answers: true,
    inv_answers: true,
    slots: true,
    capsules: true,
    downtime: true,
    messages: false,
    ..NONE
};
/// A peer of mainline, one with extensions but none of those with a bit, and one with all.
const MAINLINE: ImmTerms = ImmTerms::new(None, false);
const BARE: ImmTerms = ImmTerms::new(Some(NONE), false);
const FULL: ImmTerms = ImmTerms::new(Some(ALL), true);

const fn fence(epoch: u32, drain: bool) -> Fence {
    Fence { epoch, drain }
}

const ANSWERS: [Imm; 2] = [
    Imm::IoRsp { id: 5, errno: 0 },
    Imm::IoRspInv { id: 5, errno: 5 },
];
const SAME_KEY: Imm = Imm::IoRspSameKey { id: 5, errno: 0 };
const MORE: Imm = Imm::IoRspMore { id: 5, errno: 0 };
const HEARTBEATS: [Imm; 2] = [Imm::Heartbeat, Imm::HeartbeatAck];
const REQUEST: Imm = Imm::IoReq { payload: 1 };
const SERVERS: [Imm; 9] = [
    ANSWERS[0],
    ANSWERS[1],
    SAME_KEY,
    MORE,
    Imm::FenceDone(fence(4, false)),
    Imm::Notice(3),
    Imm::Durable(3),
    Imm::Downtime(3),
    Imm::Nop,
];
const CLIENTS: [Imm; 4] = [
    REQUEST,
    Imm::Fence(fence(4, false)),
    Imm::DurableSeen(3),
    Imm::DowntimeSeen(3),
];

#[test]
fn a_mainline_peer_may_send_what_mainline_sends_and_nothing_else() {
    for cid in [0, 1, 4095] {
        for answer in ANSWERS {
            assert_eq!(MAINLINE.check_from_server(answer, cid, true), Ok(()));
            assert_eq!(MAINLINE.check_from_server(answer, cid, false), Ok(()));
        }
        assert_eq!(MAINLINE.check_from_client(REQUEST, cid, false), Ok(()));
    }
    for heartbeat in HEARTBEATS {
        assert_eq!(MAINLINE.check_from_server(heartbeat, 0, false), Ok(()));
        assert_eq!(MAINLINE.check_from_client(heartbeat, 0, false), Ok(()));
    }
    for imm in &SERVERS[2..] {
        let refused = MAINLINE.check_from_server(*imm, 0, false);
        assert_eq!(refused, Err(ImmError::NotNegotiated), "{imm:?}");
    }
    for imm in &CLIENTS[1..] {
        let refused = MAINLINE.check_from_client(*imm, 0, false);
        assert_eq!(refused, Err(ImmError::NotNegotiated), "{imm:?}");
    }
}

#[test]
fn a_peer_with_extensions_may_send_what_was_negotiated() {
    for imm in SERVERS {
        assert_eq!(FULL.check_from_server(imm, 0, false), Ok(()), "{imm:?}");
    }
    for imm in CLIENTS {
        assert_eq!(FULL.check_from_client(imm, 0, false), Ok(()), "{imm:?}");
    }
    for imm in [SAME_KEY, MORE, Imm::Nop] {
        assert_eq!(FULL.check_from_server(imm, 7, false), Ok(()), "{imm:?}");
    }
}

/// Each extension by itself permits its immediate, and no other extension does.
#[test]
fn each_extension_has_its_immediates() {
    let bits: [(Imm, SetBit); 5] = [
        (SAME_KEY, |ext| ext.same_key = false),
        (MORE, |ext| ext.more_answers = false),
        (Imm::Notice(3), |ext| ext.notices = false),
        (Imm::Durable(3), |ext| ext.durable = false),
        (Imm::Downtime(3), |ext| ext.downtime = false),
    ];
    for (imm, clear) in bits {
        let mut ext = ALL;
        clear(&mut ext);
        let terms = ImmTerms::new(Some(ext), true);
        let refused = terms.check_from_server(imm, 0, false);
        assert_eq!(refused, Err(ImmError::NotNegotiated), "{imm:?}");
        let bare = BARE.check_from_server(imm, 0, false);
        assert_eq!(bare, Err(ImmError::NotNegotiated), "{imm:?}");
    }
    // Several answers in a message need answers that keep the key.
    let ext = ReqExt {
        same_key: false,
        ..ALL
    };
    let terms = ImmTerms::new(Some(ext), true);
    let refused = terms.check_from_server(MORE, 1, false);
    assert_eq!(refused, Err(ImmError::NotNegotiated));
    // The client asks for slots, and the server decides.
    let asked = ImmTerms::new(Some(ALL), false);
    let refused = asked.check_from_server(Imm::Nop, 1, false);
    assert_eq!(refused, Err(ImmError::NotNegotiated));
    let answers: [(Imm, SetBit); 2] = [
        (Imm::DurableSeen(3), |ext| ext.durable = false),
        (Imm::DowntimeSeen(3), |ext| ext.downtime = false),
    ];
    for (imm, clear) in answers {
        let mut ext = ALL;
        clear(&mut ext);
        for terms in [ImmTerms::new(Some(ext), true), BARE] {
            let refused = terms.check_from_client(imm, 0, false);
            assert_eq!(refused, Err(ImmError::NotNegotiated), "{imm:?}");
        }
    }
}

#[test]
fn some_belong_on_the_service_connection() {
    let of_server = [
        Imm::FenceDone(fence(4, true)),
        Imm::Notice(3),
        Imm::Durable(3),
        Imm::Downtime(3),
    ];
    for imm in of_server.into_iter().chain(HEARTBEATS) {
        assert_eq!(FULL.check_from_server(imm, 0, false), Ok(()), "{imm:?}");
        let refused = FULL.check_from_server(imm, 1, false);
        assert_eq!(refused, Err(ImmError::NotService), "{imm:?}");
    }
    let of_client = [
        Imm::Fence(fence(4, true)),
        Imm::DurableSeen(3),
        Imm::DowntimeSeen(3),
    ];
    for imm in of_client.into_iter().chain(HEARTBEATS) {
        assert_eq!(FULL.check_from_client(imm, 0, false), Ok(()), "{imm:?}");
        let refused = FULL.check_from_client(imm, 1, false);
        assert_eq!(refused, Err(ImmError::NotService), "{imm:?}");
    }
}

#[test]
fn no_fence_covers_the_path_that_carries_it() {
    let own = [
        fence(EPOCH, false),
        fence(EPOCH, true),
        fence(EPOCH + 1, true),
    ];
    for own in own {
        let refused = FULL.check_from_client(Imm::Fence(own), 0, false);
        assert_eq!(refused, Err(ImmError::OwnFence));
        let refused = FULL.check_from_server(Imm::FenceDone(own), 0, false);
        assert_eq!(refused, Err(ImmError::OwnFence));
    }
}

#[test]
fn only_requests_and_answers_have_content() {
    for imm in SERVERS {
        let is_answer = matches!(
            imm,
            Imm::IoRsp { .. }
                | Imm::IoRspInv { .. }
                | Imm::IoRspSameKey { .. }
                | Imm::IoRspMore { .. }
        );
        let expected = if is_answer {
            Ok(())
        } else {
            Err(ImmError::Content)
        };
        assert_eq!(FULL.check_from_server(imm, 0, true), expected, "{imm:?}");
    }
    assert_eq!(FULL.check_from_client(REQUEST, 1, true), Ok(()));
    for imm in CLIENTS[1..].iter().copied().chain(HEARTBEATS) {
        let refused = FULL.check_from_client(imm, 0, true);
        assert_eq!(refused, Err(ImmError::Content), "{imm:?}");
    }
}

#[test]
fn unknown_types_and_those_of_the_other_side_are_refused_everywhere() {
    for terms in [MAINLINE, BARE, FULL] {
        for cid in [0, 1] {
            for content in [false, true] {
                for kind in 14..16 {
                    let unknown = Imm::decode(kind << 28 | 5);
                    let refused = terms.check_from_server(unknown, cid, content);
                    assert_eq!(refused, Err(ImmError::Unknown));
                    let refused = terms.check_from_client(unknown, cid, content);
                    assert_eq!(refused, Err(ImmError::Unknown));
                }
                for imm in CLIENTS {
                    let refused = terms.check_from_server(imm, cid, content);
                    assert_eq!(refused, Err(ImmError::WrongSide), "{imm:?}");
                }
                for imm in SERVERS {
                    let refused = terms.check_from_client(imm, cid, content);
                    assert_eq!(refused, Err(ImmError::WrongSide), "{imm:?}");
                }
            }
        }
    }
}

fn terms() -> impl Strategy<Value = ImmTerms> {
    let ext = (any::<[bool; 9]>(), 1u32..1 << 27).prop_map(|(bits, epoch)| {
        let [send_imm, notices, same_key, durable, more_answers, inv_answers, slots, capsules, downtime] =
            bits;
        ReqExt {
            send_imm,
            notices,
            same_key,
            durable,
            more_answers,
            inv_answers,
            slots,
            capsules,
            downtime,
            ..ReqExt::plain(epoch)
        }
    });
    (proptest::option::of(ext), any::<bool>()).prop_map(|(ext, slots)| ImmTerms::new(ext, slots))
}

proptest! {
    /// Whatever arrives, at most one side may have sent it, unless it is a heartbeat or its answer.
    #[test]
    fn each_immediate_has_one_sender(
        raw: u32,
        terms in terms(),
        cid in 0u16..4,
        content: bool,
    ) {
        let imm = Imm::decode(raw);
        let of_server = terms.check_from_server(imm, cid, content).is_ok();
        let of_client = terms.check_from_client(imm, cid, content).is_ok();
        let is_heartbeat = matches!(imm, Imm::Heartbeat | Imm::HeartbeatAck);
        prop_assert!(!(of_server && of_client) || is_heartbeat);
        if matches!(imm, Imm::Unknown(_)) {
            prop_assert!(!of_server && !of_client);
        }
        // What mainline sends is accepted in every session.
        if MAINLINE.check_from_server(imm, cid, content).is_ok() {
            prop_assert!(of_server);
        }
        if MAINLINE.check_from_client(imm, cid, content).is_ok() {
            prop_assert!(of_client);
        }
    }
}
