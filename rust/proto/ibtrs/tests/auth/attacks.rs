// SPDX-License-Identifier: GPL-2.0

//! Attackers without the key, who see and change everything on the wire.

use super::*;
use proptest::prelude::*;

const NOBODY: (bool, bool) = (false, false);

#[test]
fn a_wrong_key_proves_nothing() {
    let keys = [None, Some(OTHER_KEY)];
    let all = OF_EACH_SUITE
        .into_iter()
        .flat_map(|sides| keys.map(|key| (sides, key)));
    for (sides, server_key) in all {
        let run = undisturbed(Sides {
            server_key,
            ..sides
        });
        assert_eq!(run.are_authenticated(), NOBODY);
        // An unknown key and a wrong one look alike, and neither is answered.
        assert_eq!(run.server.unwrap_err(), AuthError::Proof);
        assert!(run.wire[3].is_empty());
    }
}

/// The key that the server computes with for an unknown id is of no use even if it were known.
#[test]
fn the_stand_in_for_an_unknown_key_proves_nothing() {
    let run = undisturbed(Sides {
        client_key: SERVER_NONCE,
        server_key: None,
        ..SIDES
    });
    assert_eq!(run.server.unwrap_err(), AuthError::Proof);
}

/// The server finds the key by id and session name.
#[test]
fn a_key_is_asked_for_with_its_session() {
    let run = honest();
    let request: Message = run.wire[0].clone().try_into().unwrap();
    let mut acceptance = plain_acceptance().encode();
    let policy = (Policy::Required, Session::New, Suites::ALL);
    let mut server = accept(policy, &request, &mut acceptance, ACCEPT_NONCE).unwrap();
    let mut asked = None;
    let find = |key_id: &KeyId, session: SessionName<'_>| {
        asked = Some((*key_id, session.as_str().to_string()));
        None
    };
    let refused = answer(&mut server, &run.wire[2], find);
    assert_eq!(refused, Err(AuthError::Proof));
    assert_eq!(asked, Some((id(), "web1".to_string())));
}

#[test]
fn a_server_without_the_key_is_found_out() {
    for sides in OF_EACH_SUITE {
        let run = run(sides, |leg, bytes| {
            if leg == Leg::Auth2 {
                let forged = hmac(&OTHER_KEY, &[&bytes[..AUTH2_BODY]]);
                bytes[AUTH2_BODY..].copy_from_slice(&forged);
            }
        });
        assert_eq!(run.client.unwrap_err(), AuthError::Proof);
    }
}

/// INFO_REQ under another name than AUTH1's.
#[test]
fn the_session_is_the_authenticated_one() {
    let run = honest();
    for other in ["web", "web11", "WEB1"] {
        let other = SessionName::new(other.as_bytes()).unwrap();
        assert_eq!(run.server().introduced(other), Err(AuthError::OtherName));
    }
}

#[test]
fn messages_of_another_exchange_are_refused() {
    let others = OF_EACH_SUITE.map(|sides| {
        let other = [
            Sides { epoch: 8, ..sides },
            Sides {
                client_nonce: [0x45; NONCE_LEN],
                ..sides
            },
            Sides {
                accept_nonce: [0x23; ACCEPT_NONCE_LEN],
                ..sides
            },
        ];
        other.map(|other| (sides, other))
    });
    for &(sides, other) in others.as_flattened() {
        let recorded = undisturbed(other).wire;
        // AUTH1 is bound to both connection messages, AUTH2 to AUTH1 as well.
        for (leg, is_refused) in [
            (Leg::Auth1, other.client_nonce == CLIENT_NONCE),
            (Leg::Auth2, true),
        ] {
            let run = run(sides, |at, bytes| {
                if at == leg {
                    bytes.clone_from(&recorded[leg as usize]);
                }
            });
            let (client, server) = run.are_authenticated();
            assert!(!client);
            assert_eq!(!server, is_refused && leg == Leg::Auth1);
        }
    }
}

/// All that the client has ever sent, to a server that chose another nonce.
#[test]
fn a_client_cannot_be_replayed() {
    for sides in OF_EACH_SUITE {
        let recorded = undisturbed(sides).wire;
        let run = run(
            Sides {
                accept_nonce: [0x23; ACCEPT_NONCE_LEN],
                ..sides
            },
            |leg, bytes| {
                if matches!(leg, Leg::Request | Leg::Auth1) {
                    bytes.clone_from(&recorded[leg as usize]);
                }
            },
        );
        assert_eq!(run.server.unwrap_err(), AuthError::Proof);
    }
}

/// All that the server has ever sent, to a client that chose another nonce.
#[test]
fn a_server_cannot_be_replayed() {
    for sides in OF_EACH_SUITE {
        let recorded = undisturbed(sides).wire;
        let run = run(
            Sides {
                client_nonce: [0x45; NONCE_LEN],
                ..sides
            },
            |leg, bytes| {
                if matches!(leg, Leg::Acceptance | Leg::Auth2) {
                    bytes.clone_from(&recorded[leg as usize]);
                }
            },
        );
        assert_eq!(run.client.unwrap_err(), AuthError::Proof);
    }
}

/// No message of one direction passes for one of the other, whatever is changed around its proof.
#[test]
fn proofs_cannot_be_sent_back() {
    OF_EACH_SUITE.into_iter().for_each(reflect);
}

fn reflect(sides: Sides) {
    let recorded = undisturbed(sides).wire;
    let (auth1, auth2) = (&recorded[2], &recorded[3]);
    let bare = |leg: Leg, instead: Vec<u8>| {
        let run = run(sides, |at, bytes| {
            if at == leg {
                bytes.clone_from(&instead);
            }
        });
        match leg {
            Leg::Auth1 => run.server.unwrap_err(),
            _ => run.client.unwrap_err(),
        }
    };
    assert_eq!(bare(Leg::Auth2, auth1.clone()), AuthError::Length);
    assert_eq!(bare(Leg::Auth1, auth2.clone()), AuthError::Length);
    let client_proof = &auth1[AUTH1_BODY..];
    let server_proof = &auth2[AUTH2_BODY..];
    let reflected = [&auth2[..AUTH2_BODY], client_proof].concat();
    assert_eq!(bare(Leg::Auth2, reflected), AuthError::Proof);
    let reflected = [&auth1[..AUTH1_BODY], server_proof].concat();
    assert_eq!(bare(Leg::Auth1, reflected), AuthError::Proof);
    let cut = auth1[..AUTH2_LEN].to_vec();
    assert_eq!(bare(Leg::Auth2, cut), AuthError::Type(5));
}

/// An attacker takes the offer, the choice or the extensions out, or puts another suite in.
#[test]
fn downgrades_are_found() {
    let changes: [(Leg, usize, u8); 10] = [
        (Leg::Request, 47, 0),
        (Leg::Request, 47, 1),
        (Leg::Request, 47, 2),
        (Leg::Request, 47, 7),
        (Leg::Request, 45, 0),
        (Leg::Request, 46, 0),
        (Leg::Acceptance, 21, 0),
        (Leg::Acceptance, 21, 1),
        (Leg::Acceptance, 21, 3),
        (Leg::Acceptance, 20, 0),
    ];
    for (leg, at, byte) in changes {
        let change = |on: Leg, bytes: &mut Vec<u8>| {
            if on == leg {
                bytes[at] = byte;
            }
        };
        // A side that requires authentication gives up.
        let both = run(SIDES, change);
        assert_eq!(both.are_authenticated(), NOBODY, "{leg:?} {at} {byte}");
        assert!(
            both.client.is_err() && both.server.map_or(true, |s| s.introduced(name()).is_err())
        );
        let client_only = Sides {
            server: Policy::Optional,
            ..SIDES
        };
        assert!(run(client_only, change).client.is_err());
        let server_only = Sides {
            client: Policy::Optional,
            ..SIDES
        };
        let server = run(server_only, change).server;
        assert!(server.map_or(true, |s| s.introduced(name()).is_err()));
        // Where both only may, none believes in a proof that there was not; and a session that
        // was authenticated once is not continued without.
        let optional = Sides {
            client: Policy::Optional,
            server: Policy::Optional,
            ..SIDES
        };
        assert_eq!(run(optional, change).are_authenticated(), NOBODY);
        let session = Session::Authenticated;
        let again = run(
            Sides {
                session,
                ..optional
            },
            change,
        );
        assert!(again.client.is_err());
        assert!(again.server.map_or(true, |s| s.introduced(name()).is_err()));
    }
}

/// The knowledge of a stranger who saw all of a path: its UUIDs and the proofs of its connections.
#[test]
fn a_proof_serves_its_own_connection() {
    OF_EACH_SUITE
        .into_iter()
        .for_each(join_with_all_that_was_seen);
}

fn join_with_all_that_was_seen(sides: Sides) {
    let path = undisturbed(sides);
    let seen = further(path.client(), 1);
    assert!(path.server().owns(&Library, &seen));
    let bare = plain_request(1, SIDES.epoch).encode();
    assert!(!path.server().owns(&Library, &bare));
    let with_seen = |cid, epoch| {
        let mut request = plain_request(cid, epoch).encode();
        request[12..28].copy_from_slice(&seen[12..28]);
        request
    };
    assert_eq!(with_seen(1, SIDES.epoch), seen);
    assert!(!path.server().owns(&Library, &with_seen(2, SIDES.epoch)));
    assert!(!path.server().owns(&Library, &with_seen(1, SIDES.epoch + 1)));
    // The next attempt has another key, even if only the server's nonce is another.
    let next = undisturbed(Sides {
        accept_nonce: [0x23; ACCEPT_NONCE_LEN],
        ..sides
    });
    assert!(!next.server().owns(&Library, &seen));
    // Connection 0 is known by the path's UUID, in both kinds of path.
    assert!(path
        .server()
        .owns(&Library, &plain_request(0, SIDES.epoch + 1).encode()));
}

proptest! {
    /// Whatever bit changes on the way, at least one side refuses, and neither goes on without.
    #[test]
    fn no_bit_may_change(
        sides in 0..2usize, leg in 0..4usize, at in any::<prop::sample::Index>(), bit in 0..8u8,
    ) {
        let leg = LEGS[leg];
        let run = run(OF_EACH_SUITE[sides], |on, bytes| {
            if on == leg {
                // The first two bytes of a request belong to the connection manager.
                let first = if leg == Leg::Request { 2 } else { 0 };
                let at = first + at.index(bytes.len() - first);
                bytes[at] ^= 1 << bit;
            }
        });
        let (client, server) = run.are_authenticated();
        prop_assert!(!client);
        prop_assert!(run.client.is_err());
        prop_assert_eq!(server, leg == Leg::Auth2);
    }

    /// The same for many changes at once.
    #[test]
    fn no_bytes_may_change(
        sides in 0..2usize,
        changes in prop::collection::vec((0..4usize, any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut changed = [false; 4];
        let plain = undisturbed(OF_EACH_SUITE[sides]).wire;
        for (leg, at, byte) in &changes {
            let bytes = &plain[*leg];
            let at = at.index(bytes.len());
            changed[*leg] |= bytes[at] != *byte && (*leg > 0 || at > 1);
        }
        let run = run(OF_EACH_SUITE[sides], |on, bytes| {
            for (leg, at, byte) in &changes {
                if *leg == on as usize {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
            }
        });
        let same = !changed.contains(&true);
        let (client, server) = run.are_authenticated();
        prop_assert_eq!(client, same);
        prop_assert!(!server || changed[..3] == [false; 3]);
    }

    #[test]
    fn the_connection_manager_may_change_its_own(bytes: [u8; 2]) {
        let run = run(SIDES, |on, said| {
            if on == Leg::Request {
                said[..2].copy_from_slice(&bytes);
            }
        });
        prop_assert_eq!(run.are_authenticated(), (true, true));
        let mut request = further(run.client(), 1);
        request[..2].copy_from_slice(&bytes);
        prop_assert!(run.server().owns(&Library, &request));
    }

    /// No bit of a key may differ.
    #[test]
    fn keys_are_compared_whole(at in 0..KEY_LEN, bit in 0..8u8) {
        let mut server_key = KEY;
        server_key[at] ^= 1 << bit;
        let run = undisturbed(Sides { server_key: Some(server_key), ..SIDES });
        prop_assert_eq!(run.are_authenticated(), NOBODY);
    }

    /// A proof is of one request and one acceptance of one path.
    #[test]
    fn proofs_fit_nothing_else(
        sides in 0..2usize, at in 2..56usize, byte in 0..56usize, bit in 0..8u8,
    ) {
        let run = undisturbed(OF_EACH_SUITE[sides]);
        let (client, server) = (run.client(), run.server());
        let request = further(client, 1);
        let mut acceptance = plain_acceptance().encode();
        server.further_accept(&Library, &request, &mut acceptance);
        let accepted = |request: &Message, acceptance: &Message| {
            client.further_accepted(&Library, request, acceptance)
        };
        prop_assert_eq!(accepted(&request, &acceptance), Ok(()));
        let mut other = request;
        other[at] ^= 1 << bit;
        prop_assert!(!server.owns(&Library, &other));
        prop_assert_eq!(accepted(&other, &acceptance), Err(AuthError::Proof));
        let mut other = acceptance;
        other[byte] ^= 1 << bit;
        prop_assert_eq!(accepted(&request, &other), Err(AuthError::Proof));
    }
}
